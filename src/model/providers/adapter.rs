//! The implementation of [`Model`] for a provider of rig-core: one request, whose reply is streamed as events.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use rig_core::driver;
use rig_core::http_client::DynHttpClient;
use rig_core::message::AssistantContent;
use rig_core::operation::Completion;
use rig_core::streaming::{CompletionStream, Item, PartKind, StreamEvent};
use rig_core::wire::{Encoded, Wire, WireFrame};
use secrecy::SecretString;
use serde_json::Value;
use tokio::time::Instant;

use super::caching::{CacheHint, Caching};
use super::chat_body::{EncodedTools, OmittedParts};
use super::file_names::FileNames;
use super::known_requests::{KnownRequests, RequestEncoding, RequestWire};
use super::separators::Separator;
use super::transport::{AdjustedTransport, CallIds};
use super::{Protocol, caching, content, errors, plain_chat, reply, request};
use crate::domain::message::Message;
use crate::domain::recent_texts::RecentTexts;
use crate::model::limits::AnswerLimits;
use crate::model::pieces::SilenceTimer;
use crate::model::{Model, ModelError, ModelEvent, ModelRequest, ToolChoice};

/// The number of bytes that a call counts towards the size of an answer, besides its arguments.
const CALL_BYTES: usize = 64;

/// A model of one provider with the wire format `W`.
pub(super) struct Adapter<W> {
    kind: Protocol,
    model: String,
    wire: W,
    http: DynHttpClient,
    limits: AnswerLimits,
    key: Option<SecretString>,
    caching: Caching,
    tools: EncodedTools,
    known: Arc<KnownRequests>,
    recent: RecentTexts,
    /// True if conversations are encoded by [`plain_chat`] where it can.
    has_plain_chat: bool,
}

impl<W> Adapter<W> {
    /// Creates a model whose requests are encoded by `wire` and sent by `http`. `key` is only used to remove it from
    /// error texts.
    pub(super) fn new(
        kind: Protocol,
        model: &str,
        wire: W,
        http: DynHttpClient,
        limits: AnswerLimits,
        key: Option<SecretString>,
    ) -> Self {
        Self {
            kind,
            model: model.to_owned(),
            wire,
            http,
            limits,
            key,
            caching: Caching::default(),
            tools: EncodedTools::default(),
            known: Arc::default(),
            recent: RecentTexts::default(),
            has_plain_chat: false,
        }
    }

    /// Returns the model with what its requests say to the cache of the provider.
    pub(super) fn with_caching(self, caching: Caching) -> Self {
        Self { caching, ..self }
    }

    /// Returns the model with conversations that are encoded by [`plain_chat`] where it can, if `has_plain_chat`.
    pub(super) fn with_plain_chat(self, has_plain_chat: bool) -> Self {
        Self { has_plain_chat, ..self }
    }
}

#[async_trait]
impl<W> Model for Adapter<W>
where
    W: Wire<Op = Completion, Payload = Encoded, Frame = WireFrame>,
{
    fn identity(&self) -> (&str, &str) {
        (self.kind.as_str(), &self.model)
    }

    fn refusal(&self, block: &Value) -> Option<String> {
        content::refusal(block)
    }

    async fn ask(
        &self,
        mut request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        if request.tool_choice == ToolChoice::Any && !self.may_force_calls(&request) {
            request.tool_choice = ToolChoice::Auto;
        }
        let cache = self.caching.hint();
        let conversation = caching::conversation_key(&request, cache);
        let is_keyed = cache == CacheHint::Key && !request.settings.contains_key(caching::KEY);
        let key = conversation.clone().filter(|_| is_keyed);
        let blocks = match cache {
            CacheHint::Markers => request.system.blocks(),
            CacheHint::Nothing | CacheHint::Key | CacheHint::KeyInHeader => vec![],
        };
        let messages = match self.has_plain_chat {
            true => plain_chat::encode(&request, &self.recent),
            false => None,
        };
        let is_plain = messages.is_some();
        if is_plain {
            request.messages = vec![Arc::new(Message::human(request::STAND_IN))];
        } else if let Some(key) = &key {
            request.settings.insert(caching::KEY.to_owned(), key.as_str().into());
        }
        let encoding = match is_plain {
            true => self.known.encoding(&request),
            false => RequestEncoding::Whole,
        };
        let separator = Separator::new(self.kind, &request.messages);
        let built = request::build(&request, self.kind, separator.as_ref())
            .map_err(|error| self.unsupported(&request.messages).unwrap_or(error))?;
        let omitted = match self.kind {
            Protocol::OpenAi | Protocol::Ollama => {
                let omitted = OmittedParts::of(&request, &self.tools, messages)?;
                Some(omitted.with_cache_key(key.filter(|_| is_plain)))
            }
            Protocol::OpenAiResponses | Protocol::Anthropic | Protocol::GoogleGenAi | Protocol::Scripted => None,
        };
        let ids = CallIds::default();
        let transport = AdjustedTransport {
            http: self.http.clone(),
            kind: self.kind,
            ids: ids.clone(),
            file_names: FileNames::of(&built, self.kind),
            omitted,
            known: encoding.known(),
            blocks: blocks.into(),
            separator,
            cache,
            conversation,
            trace: request.trace.clone(),
        };
        // An error here means that nothing was sent.
        let wire = RequestWire {
            wire: self.wire.clone(),
            encoding,
        };
        let streamed = driver::Model::new(wire, transport).stream(built).map_err(|error| {
            self.unsupported(&request.messages)
                .unwrap_or_else(|| errors::map(&error, false, self.key.as_ref()))
        })?;
        let reading = ReplyStream {
            streamed: Some(streamed),
            pieces: EventBuilder {
                ids,
                ..EventBuilder::default()
            },
            kind: self.kind,
            limits: self.limits,
            silence: SilenceTimer::new(Instant::now() + self.limits.pieces.longest().time),
            model: self.model.clone(),
            key: self.key.clone(),
        };
        Ok(stream::unfold(Box::new(reading), |mut reading| async move {
            Some((reading.next().await?, reading))
        })
        .boxed())
    }
}

impl<W: Wire<Op = Completion>> Adapter<W> {
    /// Returns whether the model answers a request in which it has to call a tool. Newer models of Anthropic refuse such
    /// a request, and all of them do while they think. Those are asked to call it in words, and reminded if they do not.
    fn may_force_calls(&self, request: &ModelRequest) -> bool {
        let thinking = request
            .settings
            .get("thinking")
            .and_then(|thinking| thinking.get("type"));
        let thinks = self.kind == Protocol::Anthropic && thinking.is_some_and(|kind| kind != "disabled");
        !thinks && !self.wire.describe().capabilities.completion.rejects_forced_tool_choice
    }
}

impl<W> Adapter<W>
where
    Self: Model,
{
    /// Returns an error for the first block of the conversation that cannot be sent to the model.
    fn unsupported(&self, messages: &[Arc<Message>]) -> Option<ModelError> {
        messages.iter().enumerate().find_map(|(at, message)| {
            let (block, reason) = message.unsupported(|block| self.refusal(block))?;
            let id = message.id.as_deref().unwrap_or_default();
            let message = format!(
                "The model was not asked: `messages[{at}].content[{block}]`, in the message `{id}`: {reason}. Take the \
                 message out of the state of the thread, or write it anew without the block."
            );
            Some(ModelError::UnsupportedContent { message })
        })
    }
}

/// A reply that is being received.
struct ReplyStream {
    streamed: Option<CompletionStream>,
    pieces: EventBuilder,
    kind: Protocol,
    limits: AnswerLimits,
    silence: SilenceTimer,
    model: String,
    key: Option<SecretString>,
}

impl ReplyStream {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.pieces.ready.pop_front() {
                return Some(Ok(event));
            }
            let streamed = self.streamed.as_mut()?;
            // The HTTP client limits the time between bytes; keep-alive comments are bytes, but no pieces of an answer.
            let limit = self.limits.pieces.longest();
            self.silence.restart(limit.time);
            match self.silence.limit(streamed.next()).await {
                Some(Some(Ok(Item::Event(event)))) => {
                    self.pieces.add(event);
                    if self.pieces.length > self.limits.max_answer_bytes {
                        self.streamed = None;
                        self.pieces.ready.clear();
                        let message = format!("it is longer than {} bytes", self.limits.max_answer_bytes);
                        return Some(Err(ModelError::TooLarge { message }));
                    }
                }
                Some(Some(Ok(Item::Unknown(_)))) => {}
                Some(Some(Err(error))) => {
                    self.streamed = None;
                    return Some(Err(errors::map(&error, self.pieces.begun, self.key.as_ref())));
                }
                Some(None) => return self.finish().await,
                None => {
                    self.streamed = None;
                    return Some(Err(ModelError::TimedOut {
                        message: limit.to_string(),
                    }));
                }
            }
        }
    }

    /// Ends the reply: returns the message, or an error if the stream ended early.
    async fn finish(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        let begun = self.pieces.begun;
        let response = match self.streamed.take()?.finish().await {
            Ok(response) => response,
            Err(error) => return Some(Err(errors::map(&error, begun, self.key.as_ref()))),
        };
        Some(reply::message(&response, self.kind, &self.model).map(|message| ModelEvent::Done(Box::new(message))))
    }
}

/// The conversion of rig-core's parts into model events. Calls are numbered in the order in which they begin.
#[derive(Default)]
struct EventBuilder {
    ids: CallIds,
    calls: Vec<Call>,
    ready: VecDeque<ModelEvent>,
    begun: bool,
    /// The size of the answer so far, in bytes.
    length: usize,
}

struct Call {
    part: usize,
    /// The name of a call whose first chunk has not been emitted, since its id is not known yet.
    unannounced: Option<String>,
    /// The arguments that have arrived meanwhile.
    buffered_args: String,
}

impl EventBuilder {
    fn add(&mut self, event: StreamEvent) {
        self.length += match &event {
            StreamEvent::Text { text, .. } | StreamEvent::Reasoning { text, .. } => text.len(),
            StreamEvent::Arguments { json, .. } => json.len(),
            StreamEvent::Start { .. } | StreamEvent::End { .. } => CALL_BYTES,
        };
        match event {
            StreamEvent::Text { text, .. } => self.push(ModelEvent::Text(text)),
            StreamEvent::Reasoning { text, .. } => self.push(ModelEvent::Reasoning(text)),
            StreamEvent::Start {
                part,
                kind: PartKind::ToolCall,
                name,
            } => {
                let name = name.map(String::from);
                self.calls.push(Call {
                    part: part.index(),
                    unannounced: name,
                    buffered_args: String::new(),
                });
                let index = self.calls.len() - 1;
                self.emit_first_chunk(index, self.ids.get(index));
            }
            StreamEvent::Arguments { part, json } => self.arguments(part.index(), json),
            StreamEvent::End {
                part,
                content: AssistantContent::ToolCall(call),
            } => {
                let Some(index) = self.position(part.index()) else {
                    return;
                };
                if let Some(known) = self.calls.get_mut(index).filter(|known| known.unannounced.is_some()) {
                    // The provider may have sent all arguments with the end.
                    if known.buffered_args.is_empty() && !call.function.arguments.is_empty() {
                        known.buffered_args = serde_json::to_string(&call.function.arguments).unwrap_or_default();
                    }
                    self.emit_first_chunk(index, Some(call.id.wire().into_owned()));
                }
            }
            StreamEvent::Start { .. } | StreamEvent::End { .. } => {}
        }
    }

    fn arguments(&mut self, part: usize, json: String) {
        let Some(index) = self.position(part) else { return };
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.unannounced.is_some() {
            call.buffered_args.push_str(&json);
            self.emit_first_chunk(index, self.ids.get(index));
        } else {
            self.push(ModelEvent::CallChunk {
                index,
                id: None,
                name: None,
                args: json,
            });
        }
    }

    /// Emits the first chunk of a call as soon as its id is known.
    fn emit_first_chunk(&mut self, index: usize, id: Option<String>) {
        let Some(id) = id else { return };
        let Some(call) = self.calls.get_mut(index) else { return };
        let Some(name) = call.unannounced.take() else { return };
        let args = std::mem::take(&mut call.buffered_args);
        self.push(ModelEvent::CallChunk {
            index,
            id: Some(id),
            name: Some(name),
            args,
        });
    }

    fn position(&self, part: usize) -> Option<usize> {
        self.calls.iter().rposition(|call| call.part == part)
    }

    fn push(&mut self, event: ModelEvent) {
        let is_empty = matches!(&event, ModelEvent::Text(text) | ModelEvent::Reasoning(text) if text.is_empty());
        if !is_empty {
            self.begun = true;
            self.ready.push_back(event);
        }
    }
}
