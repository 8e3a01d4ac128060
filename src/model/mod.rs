//! Language models: what the loop asks of one, and the adapters that answer.
//!
//! The loop knows [`Model`] and nothing of any provider. A model always streams; whoever wants only the whole
//! answer takes the last event. What stands in for a model may be an agent on another server: it has more to tell, and
//! may ask back. Neighbours: [`crate::agent`] asks, [`crate::middleware`] may change the request.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::definition::{AnswerFormat, SystemPrompt};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::interrupt::Question;
use crate::domain::message::Message;
use crate::domain::state::Update;

pub mod embedding;
pub mod limits;
pub mod pieces;
pub mod providers;
pub mod retry;
pub mod scripted;

/// A language model.
#[async_trait]
pub trait Model: Send + Sync {
    /// The provider's word for itself and the model's name, as in `openai` and `gpt-5`.
    fn identity(&self) -> (&str, &str);

    /// Whether it is an agent on another server that stands in for a model: it wants to know on whose behalf it is asked,
    /// and has no instructions and tools from here.
    fn stands_in(&self) -> bool {
        false
    }

    /// Why a block of what a human says cannot be sent to the model, whatever else is said; none if it can be tried.
    fn refusal(&self, _block: &Value) -> Option<String> {
        None
    }

    /// Asks the model. The stream yields any number of deltas and ends with exactly one [`ModelEvent::Done`], or one
    /// [`ModelEvent::Asks`]; an error is the last item. A stream that ends without either was cut, and the caller treats it as
    /// [`ModelError::Interrupted`].
    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError>;
}

/// One question to a model. Cheap to clone: the messages are shared.
#[derive(Debug, Clone, Default)]
pub struct ModelRequest {
    /// The instructions; blank means none.
    pub system: SystemPrompt,
    /// The conversation, oldest first, without system messages.
    pub messages: Vec<Arc<Message>>,
    /// The tools the model may call.
    pub tools: Vec<Arc<ToolSpec>>,
    /// Whether it must call one.
    pub tool_choice: ToolChoice,
    /// Provider settings merged into the request (`temperature`, `max_tokens`, …).
    pub settings: Map<String, Value>,
    /// The form of the text of a final answer, to which the provider is to keep the model.
    pub answer_format: Option<Arc<AnswerFormat>>,
    /// On whose behalf it is asked. Language models need not know.
    pub errand: Option<Arc<Errand>>,
}

/// On whose behalf a question is asked: what an agent on another server has to know that stands in for a model.
#[derive(Debug, Clone)]
pub struct Errand {
    /// The run that asks; the same when it is asked again after a crash.
    pub run: RunId,
    /// The thread and the name of the main agent above it, for those who look at the other server.
    pub caller: Caller,
    /// What it asked humans so far. It tells one turn from the next.
    pub questions: u32,
    /// What it asked them last, with the answers.
    pub answers: Vec<(Question, Value)>,
    /// How many levels of delegation there may be below the run; not limited when absent.
    pub levels: Option<u32>,
    /// How many steps each agent may take, if whoever began it all says so.
    pub step_limit: Option<u32>,
    /// How long it may take; as long as it likes when absent.
    pub time: Option<Duration>,
    /// Tells that the work is not wanted any more.
    pub stop: CancellationToken,
    /// Tells that this server leaves: the work goes on without it, and another one comes back to it.
    pub leave: CancellationToken,
}

/// Who is behind a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The thread.
    pub thread: ThreadId,
    /// The names from the main agent down to the one that asks.
    pub path: Arc<[String]>,
}

impl ModelRequest {
    /// Adds a section to the end of the instructions: a block of its own where these are blocks.
    pub fn add_to_system(&mut self, section: &str) {
        self.system.add(section);
    }
}

/// Whether the model may, or must, call a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// Some tool must be called.
    Any,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// The name it is called by.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// JSON Schema of the arguments, an object schema.
    pub parameters: Value,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// More text.
    Text(String),
    /// More of the model's reasoning.
    Reasoning(String),
    /// More of a tool call. The first chunk of an `index` carries `id` and `name`.
    CallChunk {
        /// Which call of this answer, from 0.
        index: usize,
        /// The provider's id, on the first chunk.
        id: Option<String>,
        /// The tool, on the first chunk.
        name: Option<String>,
        /// More of the JSON text of the arguments.
        args: String,
    },
    /// Of an agent that stands in: the pieces that follow belong to its message of this id.
    Message(String),
    /// Of an agent that stands in: what it wrote on the way to its answer, before that.
    Heard(Box<Update>),
    /// Of an agent that stands in: humans have to answer these before it can go on. Always the last event.
    Asks(Vec<Question>),
    /// The whole answer: an `ai` message with calls, unreadable calls, usage and `response_metadata`
    /// (`finish_reason`, `model_name`, `model_provider`), but without an id, unless an agent stands in. Always the last event.
    Done(Box<Message>),
}

/// Why a model did not answer. The text is for the log and the operator; it never contains a key.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModelError {
    /// The provider refused the request as it stands: asking again will not help.
    #[error("the model refused the request ({status}): {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The provider's words.
        message: String,
    },
    /// Something in the conversation cannot be sent to the model, so it was not asked. The text may be shown.
    #[error("{message}")]
    UnsupportedContent {
        /// Which message and block, and why.
        message: String,
    },
    /// Too many requests.
    #[error("the model is rate limited: {message}")]
    RateLimited {
        /// How long the provider asks to wait.
        retry_after: Option<Duration>,
        /// The provider's words.
        message: String,
    },
    /// The conversation does not fit.
    #[error("the request is too long for the model: {message}")]
    TooLong {
        /// The provider's words.
        message: String,
    },
    /// The provider could not be reached or failed (5xx, connection refused, time-out).
    #[error("the model is unavailable: {message}")]
    Unavailable {
        /// How long the provider asks to wait.
        retry_after: Option<Duration>,
        /// What happened.
        message: String,
    },
    /// The answer broke off after it had begun; what arrived is not an answer.
    #[error("the model's answer broke off: {message}")]
    Interrupted {
        /// What happened.
        message: String,
    },
    /// The provider hung: nothing came for as long as anybody waits.
    #[error("the model takes too long: {message}")]
    TimedOut {
        /// What happened.
        message: String,
    },
    /// The provider said more than is taken in.
    #[error("the model's answer is too large: {message}")]
    TooLarge {
        /// What happened.
        message: String,
    },
    /// An agent that stands in for a model came to no answer. The text may be shown.
    #[error("{message}")]
    Elsewhere {
        /// The class of the error, as clients know it.
        class: String,
        /// What happened.
        message: String,
    },
    /// There is nothing to ask: no message and no instructions. The provider would refuse it, and is not asked.
    #[error(
        "there is nothing to ask the model: the thread has no messages, and the agent has no instructions. Send a message in \
         `input.messages`"
    )]
    NothingToAsk,
    /// The model cannot be used as configured (no such provider, key missing).
    #[error("{message}")]
    Misconfigured {
        /// What is missing, and where to set it.
        message: String,
    },
}

impl ModelError {
    /// A short class name, shown to clients in place of the provider's words.
    pub fn class(&self) -> &str {
        match self {
            Self::Refused { .. } => "ModelRefusedError",
            Self::UnsupportedContent { .. } => "UnsupportedContentError",
            Self::RateLimited { .. } => "ModelRateLimitError",
            Self::TooLong { .. } => "ContextOverflowError",
            Self::Unavailable { .. } => "ModelUnavailableError",
            Self::Interrupted { .. } => "ModelInterruptedError",
            Self::TimedOut { .. } => "ModelTimeoutError",
            Self::TooLarge { .. } => "ModelAnswerTooLargeError",
            Self::NothingToAsk => "EmptyInputError",
            Self::Elsewhere { class, .. } => class,
            Self::Misconfigured { .. } => "ModelConfigurationError",
        }
    }

    /// Whether asking the same again may succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::RateLimited { .. } | Self::Unavailable { .. } | Self::Interrupted { .. } => true,
            // Who waited for one that hung does not wait as long again.
            Self::Refused { .. }
            | Self::UnsupportedContent { .. }
            | Self::TooLong { .. }
            | Self::TimedOut { .. }
            | Self::TooLarge { .. }
            | Self::NothingToAsk
            | Self::Elsewhere { .. }
            | Self::Misconfigured { .. } => false,
        }
    }
}
