//! Language models: what the loop asks of one, and the adapters that answer.
//!
//! The loop knows [`Model`] and nothing of any provider. A model always streams; whoever wants only the whole
//! answer takes the last event. Neighbours: [`crate::agent`] asks, [`crate::middleware`] may change the request.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde_json::{Map, Value};

use crate::definition::{AnswerFormat, SystemPrompt};
use crate::domain::message::Message;

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

    /// Why a block of what a human says cannot be sent to the model, whatever else is said; none if it can be tried.
    fn refusal(&self, _block: &Value) -> Option<String> {
        None
    }

    /// Asks the model. The stream yields any number of deltas and ends with exactly one [`ModelEvent::Done`]; an error is
    /// the last item. A stream that ends without either was cut, and the caller treats it as [`ModelError::Interrupted`].
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
    /// The whole answer: an `ai` message with calls, unreadable calls, usage and `response_metadata`
    /// (`finish_reason`, `model_name`, `model_provider`), but without an id. Always the last event.
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
    pub fn class(&self) -> &'static str {
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
            | Self::Misconfigured { .. } => false,
        }
    }
}
