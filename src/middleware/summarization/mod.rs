//! Middleware: the older part of a long conversation is replaced by a summary in requests to the model.
//!
//! The messages of the state stay as they are, as long as they fit into it, see [`room`]. The private field
//! `_summarization_event` says what a summary stands for, and what has left the state; requests are made from it. It is
//! written together with the answer to the request for which the conversation was compacted: after a crash before that, the
//! whole step is repeated. A *compaction* is the making of a summary, and the event of the log that says what it stands for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::model_call::ask_model;
use super::{Contribution, Middleware, MiddlewareModel, ModelAnswer, ModelWithSettings, NextModel};
use crate::definition::{SummarizationSettings, builtins, is_about_answers};
use crate::domain::background::NOTIFICATION;
use crate::domain::graph::Field;
use crate::domain::long_message::LongMessagePlace;
use crate::domain::machine::Failure;
use crate::domain::message::{Message, Role, SOURCE};
use crate::domain::state::{File, FileWrites, State, Update};
use crate::domain::summarization::{
    EVENT, NODE, STATUS, SUMMARIZED_ANSWERS, SummarizationEvent, UserRequest, can_be_shortened,
};
use crate::model::{CONTEXT_OVERFLOW, ModelError, ModelRequest};
use crate::tool::{Halt, Scope};
use cut::{KeptPart, cut};
use length::{Lengths, ToolTokens};
pub(super) use length::{tokens_of_arguments, tokens_of_message};
use tool::CompactConversation;

mod cut;
mod length;
mod room;
mod tool;
mod wording;

/// The folder for the messages that summaries replace.
const FOLDER: &str = "/conversation_history";
/// The length from which texts in older arguments are shortened by default, in characters.
const MAX_ARGUMENT_CHARS: u32 = 2_000;
/// The maximum length of a summary, in tokens; for small windows a fifth of the window.
const MAX_SUMMARY_TOKENS: u64 = 8_000;
/// The tokens that a model may write for a summary at least, whatever the agent's own answers may have; for small windows a
/// fifth of the window.
const LEAST_OUTPUT_TOKENS: u64 = 2_000;
/// The number of times that a summary is tried again with half of the transcript, if that is too long for its model.
const MAX_HALVINGS: u32 = 3;
/// The class of the failure of a model that wrote an empty summary.
const NO_TEXT: &str = "SummarizationError";
/// A compaction that would shorten the request by less than one of this many parts is not worth its summary.
const MIN_PART: u64 = 10;

/// The middleware. Cheap to clone.
#[derive(Clone)]
pub struct Summarization(Arc<Parts>);

struct Parts {
    lengths: Lengths,
    tool_tokens: ToolTokens,
    /// The model that writes the summaries.
    summarizer: MiddlewareModel,
    summary_prompt: Option<String>,
    max_argument_chars: u32,
    has_tool: bool,
    has_files: bool,
}

/// The cause of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionCause {
    /// The request has reached the length of the settings.
    Length,
    /// The provider refused the request, because it is too long.
    Overflow,
    /// The state of the thread becomes too large, see `[runtime] max_state_bytes`.
    Size,
    /// The agent or a client has asked for it, with this number of messages to keep if it gives one.
    Request(Option<u64>),
}

impl CompactionCause {
    /// Returns whether the conversation cannot go on without a compaction.
    fn is_forced(self) -> bool {
        matches!(self, Self::Overflow | Self::Size)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Overflow => "overflow",
            Self::Size => "size",
            Self::Request(_) => "request",
        }
    }
}

/// A compaction: what is written to the state.
#[derive(Debug, Clone, PartialEq)]
pub struct Compaction {
    /// The new event.
    pub event: SummarizationEvent,
    /// The files with the messages that are not shown to the model any more; `None` deletes an older one.
    files: FileWrites,
}

impl Compaction {
    /// Returns the writes.
    pub fn update(self) -> Update {
        let mut update = Update {
            files: self.files,
            ..Update::none()
        };
        update.fields.insert(STATUS.to_owned(), self.event.status());
        update.fields.insert(EVENT.to_owned(), json!(self.event));
        update
    }
}

/// A conversation, and the part of it that the model reads.
struct Conversation<'a> {
    scope: &'a Scope,
    state: &'a State,
    /// The messages of the state that are not compressed, or those that a client's command has given for the request.
    messages: &'a [Arc<Message>],
    /// True if `messages` are those of the state.
    is_of_state: bool,
    /// The number of messages before `messages` that are in the state: the compressed ones.
    earlier: usize,
    /// The number of messages before these, which have left the state.
    left: usize,
    /// The last request of the user among these.
    left_request: Option<UserRequest>,
    event: SummarizationEvent,
    view: Vec<Arc<Message>>,
}

impl<'a> Conversation<'a> {
    fn new(messages: &'a [Arc<Message>], scope: &'a Scope, state: &'a State) -> Self {
        let mut event = SummarizationEvent::of(&state.fields).unwrap_or_default();
        let view = event.view(messages);
        // What the event names has left. The number may be another one: a client may have removed all messages since, and a
        // server of the former release does not write it.
        event.media_left_until = None;
        event.left_until = None;
        event.left_messages = state.messages.left_len();
        if event.left_messages == 0 {
            event.left_request = None;
        }
        let id_of_first = |messages: &[Arc<Message>]| messages.first().and_then(|message| message.id.clone());
        let is_of_state = id_of_first(messages) == id_of_first(state.messages.recent());
        Self {
            scope,
            state,
            messages,
            is_of_state,
            earlier: if is_of_state { state.messages.earlier_len() } else { 0 },
            left: if is_of_state { state.messages.left_len() } else { 0 },
            left_request: event.left_request.clone(),
            event,
            view,
        }
    }

    /// Returns the number of messages before the index `end`, counted from the beginning of the thread.
    fn count(&self, end: usize) -> usize {
        self.left + self.earlier + end
    }

    /// Returns the index of the first message that is kept, at least `start`.
    fn cut(&self, start: usize, kept: KeptPart) -> usize {
        cut(self.messages, start, kept, |message| room::weight(self.state, message))
    }

    /// Returns the summary, if the model reads one, and the messages from the first one after it up to `end`.
    fn older(&self, end: usize) -> Vec<Arc<Message>> {
        let cutoff = self.event.cutoff(self.messages);
        let shown = self.messages.get(cutoff..end).unwrap_or_default();
        self.last_summary().into_iter().chain(shown).cloned().collect()
    }

    /// Returns the message with the last summary, if the model reads it.
    fn last_summary(&self) -> Option<&Arc<Message>> {
        let cutoff = self.event.cutoff(self.messages);
        self.view.first().filter(|_| cutoff > 0)
    }

    /// Returns the last request of the user before `end`, with the answers between the two; none if there is a later one.
    fn last_request(&self, end: usize) -> Option<UserRequest> {
        let (older, later) = self.messages.split_at_checked(end)?;
        if later.iter().any(|message| is_of_user(message)) {
            return None;
        }
        // It may be in the part before, which has a summary already.
        newest_request(older, None).or_else(|| match self.earlier + self.left {
            0 => None,
            _ => {
                let all = self.state.messages.all();
                newest_request(all.get(..self.earlier + end)?, self.left_request.as_ref())
            }
        })
    }
}

impl Summarization {
    /// Creates the middleware for an agent with these models. `summarizer` writes the summaries instead of them.
    /// `has_files` says whether the agent can read files.
    pub fn new(
        settings: &SummarizationSettings,
        model: &MiddlewareModel,
        summarizer: Option<MiddlewareModel>,
        has_files: bool,
    ) -> Self {
        let lengths = Lengths::new(settings, model);
        let least_output = LEAST_OUTPUT_TOKENS.min(lengths.window() / 5);
        Self(Arc::new(Parts {
            lengths,
            tool_tokens: ToolTokens::default(),
            summarizer: for_summaries(summarizer.as_ref().unwrap_or(model), least_output),
            summary_prompt: settings.summary_prompt.clone(),
            max_argument_chars: settings.max_argument_chars.unwrap_or(MAX_ARGUMENT_CHARS),
            has_tool: settings.tool,
            has_files,
        }))
    }

    /// Compacts the conversation of a state, because the agent or a client has asked for it. Returns none if there is
    /// nothing to summarise.
    ///
    /// # Errors
    /// The failure of the model that was to write the summary.
    pub async fn compact(
        &self,
        scope: &Scope,
        state: &State,
        keep_messages: Option<u64>,
    ) -> Result<Option<Compaction>, Halt> {
        let conversation = Conversation::new(state.messages.recent(), scope, state);
        self.compact_for(&conversation, CompactionCause::Request(keep_messages))
            .await
    }

    /// Compacts the conversation of a state that is too large, so that its older part can leave it. Returns none if nothing
    /// can leave.
    ///
    /// # Errors
    /// As [`Summarization::compact`].
    pub async fn make_room(&self, scope: &Scope, state: &State) -> Result<Option<Compaction>, Halt> {
        let conversation = Conversation::new(state.messages.recent(), scope, state);
        self.compact_for(&conversation, CompactionCause::Size).await
    }

    /// Compacts a conversation and sends clients the news.
    async fn compact_for(
        &self,
        conversation: &Conversation<'_>,
        cause: CompactionCause,
    ) -> Result<Option<Compaction>, Halt> {
        let scope = conversation.scope;
        if cause == CompactionCause::Length
            && let Some(compaction) = self.shorten_arguments(conversation)
        {
            send_news(scope, cause, "finished", compaction.event.status()).await;
            return Ok(Some(compaction));
        }
        let kept = self.kept_part(conversation, cause);
        let start = conversation.event.cutoff(conversation.messages);
        let end = conversation.cut(start, kept);
        let long = match cause {
            CompactionCause::Overflow => long_messages(&conversation.messages[end.max(start)..], &conversation.event),
            CompactionCause::Length | CompactionCause::Size | CompactionCause::Request(_) => vec![],
        };
        let has_older = is_worth_it(conversation, start, end, cause);
        if !has_older && long.is_empty() {
            return Ok(match cause {
                CompactionCause::Size => without_older(conversation, start),
                CompactionCause::Length | CompactionCause::Overflow | CompactionCause::Request(_) => None,
            });
        }
        let count = conversation.count(conversation.messages.len());
        let begun = json!({"messages": count, "to_summarize": end.saturating_sub(start)});
        send_news(scope, cause, "started", begun).await;
        let mut compaction = Compaction {
            event: next_event(conversation),
            files: BTreeMap::new(),
        };
        if has_older {
            let summary = Box::pin(self.summarize(scope, &conversation.older(end))).await;
            let summary = match summary {
                Ok(summary) => summary,
                // The summary would fail in every later run as well, and the thread could not be used any more.
                Err(Halt::Fail(failure)) if cause.is_forced() && is_lasting(&failure) => {
                    tracing::warn!(agent = %scope.agent, run = %scope.run, class = failure.class,
                        "no summary could be written; the older part of the conversation is left out without one");
                    wording::without_summary(conversation.last_summary())
                }
                Err(halt) => {
                    let class = halt.failure().map_or("", |failure| failure.class.as_str());
                    send_news(scope, cause, "failed", json!({"error": class})).await;
                    return Err(halt);
                }
            };
            self.replace(&mut compaction, conversation, start..end, &summary);
        }
        self.shorten_messages(&mut compaction, &long, conversation);
        send_news(scope, cause, "finished", compaction.event.status()).await;
        Ok(Some(compaction))
    }

    fn kept_part(&self, conversation: &Conversation<'_>, cause: CompactionCause) -> KeptPart {
        let keep = self.0.lengths.keep();
        let settings = KeptPart {
            messages: keep.messages,
            tokens: self.0.lengths.tokens_of(&keep),
            bytes: Some(room::kept_bytes(conversation)),
        };
        match cause {
            CompactionCause::Length | CompactionCause::Size | CompactionCause::Request(None) => settings,
            CompactionCause::Request(Some(messages)) => KeptPart {
                messages: Some(messages),
                tokens: None,
                bytes: None,
            },
            // The estimates were wrong, or the window is not known, so less is kept than usual.
            CompactionCause::Overflow => {
                let quarter = length::tokens_of_messages(&conversation.view) / 4;
                let tokens = settings.tokens.map_or(quarter, |tokens| tokens.min(quarter));
                KeptPart {
                    tokens: Some(tokens),
                    ..settings
                }
            }
        }
    }

    /// Shortens texts in the arguments of older calls, if that is enough for now: it needs no summary.
    fn shorten_arguments(&self, conversation: &Conversation<'_>) -> Option<Compaction> {
        let most = self.0.max_argument_chars;
        let start = conversation.event.cutoff(conversation.messages);
        let kept = self.kept_part(conversation, CompactionCause::Length);
        let end = conversation.cut(start, kept);
        let last = conversation.messages.get(end.checked_sub(1)?)?;
        if most == 0 || end <= start {
            return None;
        }
        let mut event = next_event(conversation);
        event.arguments_until.clone_from(&last.id);
        event.max_argument_chars = most;
        let before = length::tokens_of_messages(&conversation.view);
        let after = length::tokens_of_messages(&event.view(conversation.messages));
        // A request that would soon be too long again needs the summary.
        (after <= before / 2).then(|| Compaction {
            event,
            files: BTreeMap::new(),
        })
    }

    /// Asks for the summary of `older`. If that is too long for the model that writes it, a part is left out.
    async fn summarize(&self, scope: &Scope, older: &[Arc<Message>]) -> Result<String, Halt> {
        let parts = &*self.0;
        let known = parts.summarizer.max_input_tokens();
        let window = known.unwrap_or_else(|| parts.lengths.window());
        // Three fifths of the window, at four bytes for each token.
        let mut max_bytes = usize::try_from(window.saturating_mul(4) / 5 * 3).unwrap_or(usize::MAX);
        let prompt = parts.summary_prompt.as_deref().unwrap_or(wording::PROMPT);
        let mut halvings = 0;
        let answer = loop {
            let text = wording::summary_request(prompt, older, max_bytes);
            let length = text.len();
            let request = ModelRequest {
                system: wording::SYSTEM.into(),
                messages: vec![Arc::new(Message::human(text))],
                ..ModelRequest::default()
            };
            match ask_model(scope, &parts.summarizer, request).await {
                Err(halt) if is_overflow(&halt) && halvings < MAX_HALVINGS => {
                    halvings += 1;
                    // The model takes less than it is known for.
                    max_bytes = max_bytes.min(length) / 2;
                }
                answer => break answer?,
            }
        };
        let text = answer.content.text();
        if text.trim().is_empty() {
            let failure = Failure::new(NO_TEXT, "The model wrote no summary of the conversation.");
            return Err(failure.into());
        }
        let most = MAX_SUMMARY_TOKENS.min(parts.lengths.window() / 5).saturating_mul(4);
        Ok(wording::clipped(
            text.trim(),
            usize::try_from(most).unwrap_or(usize::MAX),
        ))
    }

    /// Puts the summary in the place of the messages in `range` and of those before.
    fn replace(
        &self,
        compaction: &mut Compaction,
        conversation: &Conversation<'_>,
        range: std::ops::Range<usize>,
        summary: &str,
    ) {
        let scope = conversation.scope;
        let older = &conversation.messages[range.clone()];
        let event = &mut compaction.event;
        let lane = lane_name(scope);
        let path = self
            .0
            .has_files
            .then(|| format!("{FOLDER}/session_{lane}_{:04}.md", event.count));
        if let Some(path) = &path {
            let text = wording::history_text(older, event.count, room::file_bytes(scope.sizes));
            let own = format!("{FOLDER}/session_{lane}_");
            compaction.files = room::room_for(conversation, &own, text.len(), range.clone());
            let file = Arc::new(File::text(text, scope.now()));
            compaction.files.insert(path.clone(), Some(file));
        }
        // The model has to know what it works for, even if a long turn began before the cut.
        let request = conversation.last_request(range.end);
        let quoted = request.as_ref().map(|request| request.text.as_str());
        let count = conversation.count(range.end);
        let text = wording::summary_text(summary, count, path.as_deref(), quoted);
        let mut message = Message::human(text).with_id(format!("summary_{lane}_{}", event.count));
        message.set_source(wording::SOURCE);
        if let Some(request) = &request {
            message
                .additional_kwargs
                .insert(SUMMARIZED_ANSWERS.to_owned(), json!(request.answers));
        }
        if let Some(path) = &path {
            message.additional_kwargs.insert("file_path".to_owned(), json!(path));
        }
        event.cutoff_index = count;
        event.last_message_id = older.last().and_then(|message| message.id.clone());
        event.summary_message = Some(message);
        event.file_path = path;
        let after = conversation.messages[range.end..].iter();
        let after: BTreeSet<&String> = after.filter_map(|message| message.id.as_ref()).collect();
        event.shortened.retain(|id, _| after.contains(id));
        room::leave(event, conversation, range.end, &compaction.files);
    }

    /// Shortens messages that are too long for the model, and puts their texts into files.
    fn shorten_messages(&self, compaction: &mut Compaction, long: &[&Arc<Message>], conversation: &Conversation<'_>) {
        let Conversation { scope, state, .. } = conversation;
        let Compaction { event, files } = compaction;
        for message in long {
            let Some(id) = &message.id else { continue };
            let text = message.content.text();
            if !self.0.has_files || text.len() > scope.sizes.file {
                event.shortened.insert(id.clone(), String::new());
                continue;
            }
            let file_at = |path: &str| match files.get(path) {
                Some(file) => file.as_ref(),
                None => state.files.get(path),
            };
            let place = LongMessagePlace::of(id, &text, |path| scope.files.own_path(path), file_at);
            if !place.is_written {
                let file = Arc::new(File::text(text, scope.now()));
                files.insert(place.path.clone(), Some(file));
            }
            event.shortened.insert(id.clone(), place.path);
        }
    }
}

#[async_trait]
impl Middleware for Summarization {
    fn name(&self) -> &str {
        builtins::SUMMARIZATION
    }

    fn contribution(&self) -> Contribution {
        let schema = json!({"title": "Summarization", "type": "object", "properties": {
            "summarized_messages": {"type": "integer"}, "count": {"type": "integer"},
            "file_path": {"type": ["string", "null"]}, "created_at": {"type": "string"},
            "left_messages": {"type": "integer"}}});
        let tool = self.0.has_tool.then(|| CompactConversation::shared(self.clone()));
        Contribution {
            tools: tool.into_iter().collect(),
            prompt: None,
            fields: vec![Field { name: STATUS, schema }],
        }
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let scope = next.scope;
        let state = next.state;
        // Each request gets the messages of its view, so the others are not copied with it.
        let messages = std::mem::take(&mut request.messages);
        let mut conversation = Conversation::new(&messages, scope, state);
        let mut written: Option<Compaction> = None;
        let length = length::of_request(
            &request,
            &conversation.view,
            conversation.event.created_after.as_deref(),
            &self.0.tool_tokens,
        );
        let is_reached = self.0.lengths.is_reached(length, length::requested_output(&request));
        let is_short = room::is_short(&conversation, next.size).then_some(CompactionCause::Size);
        let causes = is_short
            .into_iter()
            .chain(is_reached.then_some(CompactionCause::Length));
        for cause in causes {
            match self.compact_for(&conversation, cause).await {
                // What is too little to make room may be much of what the model can read.
                Ok(None) => {}
                Ok(Some(compaction)) => {
                    written = Some(compaction);
                    break;
                }
                // The request may still be short enough.
                Err(Halt::Fail(failure)) => {
                    tracing::warn!(agent = %scope.agent, run = %scope.run, class = failure.class,
                        "the conversation could not be summarised");
                    break;
                }
                Err(halt) => return Err(halt),
            }
        }
        if let Some(compaction) = &written {
            conversation.view = compaction.event.view(&messages);
            conversation.event = compaction.event.clone();
        }
        let shown = |view: Vec<Arc<Message>>| ModelRequest {
            messages: view,
            ..request.clone()
        };
        let view = std::mem::take(&mut conversation.view);
        let answer = match next.ask(shown(view)).await {
            Err(halt) if is_overflow(&halt) => {
                conversation.view = conversation.event.view(&messages);
                let cause = CompactionCause::Overflow;
                let compaction = self.compact_for(&conversation, cause).await;
                let compaction = compaction.map_err(not_compacted)?.ok_or_else(nothing_to_compact)?;
                let view = compaction.event.view(&messages);
                let mut files = written.take().map(|first| first.files).unwrap_or_default();
                files.extend(compaction.files);
                written = Some(Compaction {
                    files,
                    event: compaction.event,
                });
                next.ask(shown(view)).await.map_err(still_too_long)?
            }
            answer => answer?,
        };
        let mut extra = match written.filter(|written| is_about(&written.event, state)) {
            Some(compaction) => compaction.update(),
            None => Update::none(),
        };
        extra.merge(answer.extra);
        Ok(ModelAnswer { extra, ..answer })
    }
}

/// Returns the models that write the summaries without the settings of the form of an answer, which concern the answers of
/// agents, and with room for a summary: at least this number of tokens.
fn for_summaries(model: &MiddlewareModel, least_output: u64) -> MiddlewareModel {
    let with_room = |(name, value): (String, Value)| {
        let most = value
            .as_u64()
            .filter(|_| length::OUTPUT_SETTINGS.contains(&name.as_str()));
        let value = most.map_or(value, |most| json!(most.max(least_output)));
        (name, value)
    };
    let models = model.models().iter().cloned().map(|own| {
        let settings = own.settings.into_iter();
        let settings = settings.filter(|(name, _)| !is_about_answers(name));
        ModelWithSettings {
            settings: settings.map(with_room).collect(),
            ..own
        }
    });
    MiddlewareModel::new(models)
}

/// Returns the event of another compaction, in which nothing has changed yet.
fn next_event(conversation: &Conversation<'_>) -> SummarizationEvent {
    SummarizationEvent {
        count: conversation.event.count + 1,
        created_after: conversation.messages.last().and_then(|message| message.id.clone()),
        created_at: conversation.scope.now().to_string(),
        ..conversation.event.clone()
    }
}

/// Returns the compaction of a conversation that has nothing to summarise, but older messages that can leave the state:
/// those before the index `start`, for which there is a summary.
fn without_older(conversation: &Conversation<'_>, start: usize) -> Option<Compaction> {
    let mut event = next_event(conversation);
    room::leave(&mut event, conversation, start, &BTreeMap::new());
    let before = &conversation.event;
    let has_left = event.left_until != before.left_until || event.media_left_until != before.media_left_until;
    has_left.then(|| Compaction {
        event,
        files: BTreeMap::new(),
    })
}

/// Returns whether a message is one of the user: reminders, reports and the like have the same role.
fn is_of_user(message: &Message) -> bool {
    let marks = [SOURCE, NOTIFICATION];
    message.is_human() && !marks.iter().any(|mark| message.additional_kwargs.contains_key(*mark))
}

/// Returns the last request of the user in these messages, or `earlier`, which was before them, with the answers since then.
fn newest_request(messages: &[Arc<Message>], earlier: Option<&UserRequest>) -> Option<UserRequest> {
    let at = messages.iter().rposition(|message| is_of_user(message));
    let since = messages[at.unwrap_or(0)..].iter();
    let answers = since.filter(|message| message.is_ai()).count();
    match at {
        Some(at) => Some(UserRequest {
            id: messages[at].id.clone(),
            text: wording::repeated(&messages[at]),
            answers,
        }),
        None => earlier.map(|earlier| UserRequest {
            answers: earlier.answers + answers,
            ..earlier.clone()
        }),
    }
}

/// Returns whether an event is about the messages of a state. A client's command may have given other messages for the
/// request.
fn is_about(event: &SummarizationEvent, state: &State) -> bool {
    let newest = event.created_after.as_deref();
    newest.is_some()
        && state
            .messages
            .recent()
            .iter()
            .rev()
            .any(|message| message.id.as_deref() == newest)
}

/// Returns whether the messages before `end` are worth a summary.
fn is_worth_it(conversation: &Conversation<'_>, start: usize, end: usize, cause: CompactionCause) -> bool {
    let count = end.saturating_sub(start);
    match cause {
        CompactionCause::Request(_) => count > 1,
        CompactionCause::Overflow => count > 0,
        CompactionCause::Size => count > 0 && room::is_worth_it(conversation, &conversation.messages[start..end]),
        CompactionCause::Length if count < 2 => false,
        CompactionCause::Length => {
            let view = length::tokens_of_messages(&conversation.view);
            length::tokens_of_messages(&conversation.messages[start..end]) >= view / MIN_PART
        }
    }
}

/// Returns the messages whose text is a large part of what a model can read, and not shortened yet.
fn long_messages<'a>(kept: &'a [Arc<Message>], event: &SummarizationEvent) -> Vec<&'a Arc<Message>> {
    let is_shortened = |message: &Message| message.id.as_ref().is_none_or(|id| event.shortened.contains_key(id));
    let is_text = |message: &Message| matches!(message.role, Role::Human | Role::Tool { .. });
    kept.iter()
        .filter(|message| is_text(message) && can_be_shortened(message) && !is_shortened(message))
        .collect()
}

/// Returns a name for the agent's own conversation on its thread.
fn lane_name(scope: &Scope) -> String {
    match scope.subagent {
        Some(run) => run.0.simple().to_string(),
        None => scope.thread.0.simple().to_string(),
    }
}

async fn send_news(scope: &Scope, cause: CompactionCause, status: &str, mut news: Value) {
    if let Value::Object(fields) = &mut news {
        fields.insert("type".to_owned(), json!("summarization"));
        fields.insert("node".to_owned(), json!(NODE));
        fields.insert("lc_agent_name".to_owned(), json!(scope.agent));
        fields.insert("cause".to_owned(), json!(cause.word()));
        fields.insert("status".to_owned(), json!(status));
    }
    scope.progress.send(news).await;
}

fn is_overflow(halt: &Halt) -> bool {
    halt.failure().is_some_and(|failure| failure.class == CONTEXT_OVERFLOW)
}

/// Returns whether a summary that failed in this way would fail again: the model does not take the transcript, or writes
/// nothing about it.
fn is_lasting(failure: &Failure) -> bool {
    ModelError::is_about_request(failure) || [CONTEXT_OVERFLOW, NO_TEXT].contains(&failure.class.as_str())
}

/// The failure of a request that was too long even after the compaction.
fn still_too_long(halt: Halt) -> Halt {
    match is_overflow(&halt) {
        true => overflow("It was compacted and asked again, and it is still too long."),
        false => halt,
    }
}

/// The failure of a request that was too long, because the summary failed.
fn not_compacted(halt: Halt) -> Halt {
    match halt {
        Halt::Fail(failure) => overflow(&format!("Its summary failed ({}): {}", failure.class, failure.message)),
        Halt::Ask(_) | Halt::Stopped => halt,
    }
}

fn nothing_to_compact() -> Halt {
    overflow(
        "There is nothing in it that could be summarised: the instructions, the tools and the last messages are too long.",
    )
}

fn overflow(detail: &str) -> Halt {
    let message = format!("The conversation is too long for the model. {detail}");
    Failure::new(CONTEXT_OVERFLOW, message).into()
}

#[cfg(test)]
mod tests;
