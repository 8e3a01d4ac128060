//! A provider's model behind our trait: one request goes out, its reply comes back as events.

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

use super::file_names::FileNames;
use super::separators::Separator;
use super::transport::{CallIds, Watched};
use super::{Protocol, content, errors, reply, request};
use crate::domain::message::Message;
use crate::model::limits::AnswerLimits;
use crate::model::{Model, ModelError, ModelEvent, ModelRequest};

/// What the beginning of a call counts toward the length of an answer, beside its arguments.
const CALL_BYTES: usize = 64;

/// A model of one provider, over the wire `W`.
pub(super) struct Adapter<W> {
    kind: Protocol,
    model: String,
    wire: W,
    http: DynHttpClient,
    limits: AnswerLimits,
    key: Option<SecretString>,
}

impl<W> Adapter<W> {
    /// A model that sends what `wire` encodes through `http`. `key` is only known here so that it can be cut out of
    /// error texts.
    pub(super) fn new(
        (kind, model): (Protocol, &str),
        wire: W,
        (http, limits): (DynHttpClient, AnswerLimits),
        key: Option<SecretString>,
    ) -> Self {
        Self {
            kind,
            model: model.to_owned(),
            wire,
            http,
            limits,
            key,
        }
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
        content::human_block(block).err()
    }

    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        let blocks = request.system.blocks();
        let separator = Separator::mint(self.kind, &request.messages);
        let built = request::build(&request, self.kind, separator.as_ref())
            .map_err(|error| self.unsupported(&request.messages).unwrap_or(error))?;
        let ids = CallIds::default();
        let transport = Watched {
            http: self.http.clone(),
            kind: self.kind,
            ids: ids.clone(),
            file_names: FileNames::of(&built, self.kind),
            blocks: blocks.into(),
            separator,
        };
        // What fails here was not sent.
        let streamed = driver::Model::new(self.wire.clone(), transport)
            .stream(built)
            .map_err(|error| {
                self.unsupported(&request.messages)
                    .unwrap_or_else(|| errors::map(&error, false, self.key.as_ref()))
            })?;
        let reading = Reading {
            streamed: Some(streamed),
            pieces: Pieces {
                ids,
                ..Pieces::default()
            },
            kind: self.kind,
            limits: self.limits,
            model: self.model.clone(),
            key: self.key.clone(),
        };
        Ok(stream::unfold(Box::new(reading), |mut reading| async move {
            Some((reading.next().await?, reading))
        })
        .boxed())
    }
}

impl<W> Adapter<W>
where
    Self: Model,
{
    /// Names the first block of the conversation that cannot be sent to the model.
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

/// A reply while it arrives.
struct Reading {
    streamed: Option<CompletionStream>,
    pieces: Pieces,
    kind: Protocol,
    limits: AnswerLimits,
    model: String,
    key: Option<SecretString>,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.pieces.ready.pop_front() {
                return Some(Ok(event));
            }
            let streamed = self.streamed.as_mut()?;
            // The client below waits for bytes; signs of life are bytes, too, but no pieces of an answer.
            let limit = self.limits.pieces.longest();
            match tokio::time::timeout(limit.time, streamed.next()).await {
                Ok(Some(Ok(Item::Event(event)))) => {
                    self.pieces.absorb(event);
                    if self.pieces.length > self.limits.max_answer_bytes {
                        self.streamed = None;
                        self.pieces.ready.clear();
                        let message = format!("it is longer than {} bytes", self.limits.max_answer_bytes);
                        return Some(Err(ModelError::TooLarge { message }));
                    }
                }
                Ok(Some(Ok(Item::Unknown(_)))) => {}
                Ok(Some(Err(error))) => {
                    self.streamed = None;
                    return Some(Err(errors::map(&error, self.pieces.begun, self.key.as_ref())));
                }
                Ok(None) => return self.finish().await,
                Err(_) => {
                    self.streamed = None;
                    return Some(Err(ModelError::TimedOut {
                        message: limit.to_string(),
                    }));
                }
            }
        }
    }

    /// The provider closed the reply, or the connection ended without it.
    async fn finish(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        let begun = self.pieces.begun;
        let response = match self.streamed.take()?.finish().await {
            Ok(response) => response,
            Err(error) => return Some(Err(errors::map(&error, begun, self.key.as_ref()))),
        };
        Some(reply::message(&response, self.kind, &self.model).map(|message| ModelEvent::Done(Box::new(message))))
    }
}

/// Turns the library's parts into our pieces. Calls are numbered in the order in which they begin.
#[derive(Default)]
struct Pieces {
    ids: CallIds,
    calls: Vec<Call>,
    ready: VecDeque<ModelEvent>,
    begun: bool,
    /// How many bytes were said.
    length: usize,
}

struct Call {
    part: usize,
    /// The name of a call not announced yet because its id is not known.
    unannounced: Option<String>,
    /// Arguments that arrived meanwhile.
    waiting: String,
}

impl Pieces {
    fn absorb(&mut self, event: StreamEvent) {
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
                    waiting: String::new(),
                });
                let index = self.calls.len() - 1;
                self.announce(index, self.ids.get(index));
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
                    // The provider may have sent the arguments whole, with the end.
                    if known.waiting.is_empty() && !call.function.arguments.is_empty() {
                        known.waiting = serde_json::to_string(&call.function.arguments).unwrap_or_default();
                    }
                    self.announce(index, Some(call.id.wire().into_owned()));
                }
            }
            StreamEvent::Start { .. } | StreamEvent::End { .. } => {}
        }
    }

    fn arguments(&mut self, part: usize, json: String) {
        let Some(index) = self.position(part) else { return };
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.unannounced.is_some() {
            call.waiting.push_str(&json);
            self.announce(index, self.ids.get(index));
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
    fn announce(&mut self, index: usize, id: Option<String>) {
        let (Some(id), Some(call)) = (id, self.calls.get_mut(index)) else {
            return;
        };
        let Some(name) = call.unannounced.take() else { return };
        let args = std::mem::take(&mut call.waiting);
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
