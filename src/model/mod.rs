//! Language models: the interface for the loop, and its implementations.
//!
//! [`Model`] is independent of providers. A model always streams; a caller that needs only the complete answer takes
//! the last event.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde_json::{Map, Value};

use crate::definition::{AnswerFormat, SystemPrompt};
use crate::domain::machine::Failure;
use crate::domain::message::Message;
use crate::domain::trace::SpanContext;

pub mod embedding;
pub mod limits;
pub mod pieces;
pub mod providers;
pub mod retry;
pub mod structured_output;
pub mod windows;

/// A language model.
#[async_trait]
pub trait Model: Send + Sync {
    /// Returns the provider's name and the model's name, as in `openai` and `gpt-5`.
    fn identity(&self) -> (&str, &str);

    /// Returns the reason why a content block of a human message can never be sent to the model; none if it may be
    /// possible.
    fn refusal(&self, _block: &Value) -> Option<String> {
        None
    }

    /// Returns the largest input of a request, in tokens; none if it is not known.
    fn max_input_tokens(&self) -> Option<u64> {
        None
    }

    /// Sends a request to the model. The stream yields any number of deltas and ends with exactly one
    /// [`ModelEvent::Done`]; an error is the last item. A stream that ends without either was cut off, and the caller
    /// treats it as [`ModelError::Interrupted`].
    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError>;
}

/// A request to a model. Cheap to clone: the messages are shared.
#[derive(Debug, Clone, Default)]
pub struct ModelRequest {
    /// The instructions; blank means none.
    pub system: SystemPrompt,
    /// The conversation, oldest first, without system messages.
    pub messages: Vec<Arc<Message>>,
    /// The tools that the model may call.
    pub tools: Vec<Arc<ToolSpec>>,
    /// The tool choice.
    pub tool_choice: ToolChoice,
    /// Provider settings merged into the request (`temperature`, `max_tokens`, …).
    pub settings: Map<String, Value>,
    /// The form of the text of a final answer, to which the provider is to keep the model.
    pub answer_format: Option<Arc<AnswerFormat>>,
    /// The span of the call, if the provider may get the context of the trace.
    pub trace: Option<SpanContext>,
}

impl ModelRequest {
    /// Adds a section to the end of the instructions: a block of its own where these are blocks.
    pub fn add_to_system(&mut self, section: &str) {
        self.system.add(section);
    }
}

/// True if the model may, or must, call a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// Some tool must be called.
    Any,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSpec {
    /// The name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The JSON Schema of the arguments, an object schema.
    pub parameters: Value,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// A piece of text.
    Text(String),
    /// A piece of reasoning.
    Reasoning(String),
    /// A piece of a tool call. The first piece of an `index` has the `id` and the `name`.
    CallChunk {
        /// The index of the call within the answer, from 0.
        index: usize,
        /// The provider's id, in the first piece.
        id: Option<String>,
        /// The name of the tool, in the first piece.
        name: Option<String>,
        /// A piece of the JSON text of the arguments.
        args: String,
    },
    /// The complete answer: an `ai` message with calls, invalid calls, usage and `response_metadata`
    /// (`finish_reason`, `model_name`, `model_provider`), without an id. Always the last event.
    Done(Box<Message>),
}

/// The error of a model request. The text is for the log and never contains a key.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModelError {
    /// The provider refused the request; a retry will not help.
    #[error("the model refused the request ({status}): {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The provider's message.
        message: String,
    },
    /// The conversation has content that the model does not support, so no request was sent. The text may be shown to
    /// clients.
    #[error("{message}")]
    UnsupportedContent {
        /// The message and block, and the reason.
        message: String,
    },
    /// Too many requests.
    #[error("the model is rate limited: {message}")]
    RateLimited {
        /// The provider's `retry-after`.
        retry_after: Option<Duration>,
        /// The provider's message.
        message: String,
    },
    /// The conversation exceeds the model's context.
    #[error("the request is too long for the model: {message}")]
    TooLong {
        /// The provider's message.
        message: String,
    },
    /// The provider could not be reached or failed (5xx, connection refused, timeout).
    #[error("the model is unavailable: {message}")]
    Unavailable {
        /// The provider's `retry-after`.
        retry_after: Option<Duration>,
        /// The reason.
        message: String,
    },
    /// The answer ended before it was complete.
    #[error("the model's answer broke off: {message}")]
    Interrupted {
        /// The reason.
        message: String,
    },
    /// The provider sent no data for too long.
    #[error("the model takes too long: {message}")]
    TimedOut {
        /// The reason.
        message: String,
    },
    /// The answer exceeds a size limit.
    #[error("the model's answer is too large: {message}")]
    TooLarge {
        /// The reason.
        message: String,
    },
    /// The request has neither messages nor instructions. Providers would refuse it, so it is not sent.
    #[error(
        "there is nothing to ask the model: the thread has no messages, and the agent has no instructions. Send a message in \
         `input.messages`"
    )]
    NothingToAsk,
    /// The tenant may not use the model.
    #[error(
        "the model `{0}` is not among `models` in the section of the tenant, `[tenants.NAME]`, in the configuration"
    )]
    NotAllowed(String),
    /// The model cannot be used with this configuration (unknown provider, missing key).
    #[error("{message}")]
    Misconfigured {
        /// The missing setting, and where to set it.
        message: String,
    },
}

/// The class of [`ModelError::TooLong`].
pub const CONTEXT_OVERFLOW: &str = "ContextOverflowError";
/// The class of [`ModelError::Refused`].
const REFUSED: &str = "ModelRefusedError";
/// The class of [`ModelError::UnsupportedContent`].
const UNSUPPORTED_CONTENT: &str = "UnsupportedContentError";
/// The statuses of requests that a provider could not read.
const REQUEST_STATUSES: [u16; 4] = [400, 413, 415, 422];

/// Returns the text for clients about a request that was refused with this status.
fn refused_text(status: u16) -> String {
    format!("The model provider refused the request (status {status}).")
}

impl ModelError {
    /// Returns the text for clients. The provider's message may contain confidential data and is only logged.
    pub fn client_text(&self) -> String {
        match self {
            Self::Refused { status, .. } => refused_text(*status),
            Self::RateLimited { .. } => "The model provider is rate limiting this server.".to_owned(),
            Self::TooLong { .. } => "The conversation is too long for the model.".to_owned(),
            Self::Unavailable { .. } => "The model provider could not be reached or failed.".to_owned(),
            Self::Interrupted { .. } => "The model's answer ended before it was complete.".to_owned(),
            Self::TimedOut { message } => format!("The model provider takes too long: {message}."),
            Self::TooLarge { message } => format!("The model's answer is too large: {message}."),
            Self::NothingToAsk | Self::NotAllowed(_) => self.to_string(),
            Self::UnsupportedContent { message } | Self::Misconfigured { message } => message.clone(),
        }
    }

    /// Returns the error class, which clients receive instead of the provider's message.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Refused { .. } => REFUSED,
            Self::UnsupportedContent { .. } => UNSUPPORTED_CONTENT,
            Self::RateLimited { .. } => "ModelRateLimitError",
            Self::TooLong { .. } => CONTEXT_OVERFLOW,
            Self::Unavailable { .. } => "ModelUnavailableError",
            Self::Interrupted { .. } => "ModelInterruptedError",
            Self::TimedOut { .. } => "ModelTimeoutError",
            Self::TooLarge { .. } => "ModelAnswerTooLargeError",
            Self::NothingToAsk => "EmptyInputError",
            Self::NotAllowed(_) => "ModelNotAllowedError",
            Self::Misconfigured { .. } => "ModelConfigurationError",
        }
    }

    /// Returns whether another model may answer the request.
    pub fn may_fall_back(&self) -> bool {
        !matches!(self, Self::NothingToAsk)
    }

    /// Returns whether a run's failure is that of a request whose content the provider has refused, or may have refused:
    /// a request that it could not read, and not one that lacked a key or credit.
    pub fn is_about_request(failure: &Failure) -> bool {
        let refused = || {
            REQUEST_STATUSES
                .iter()
                .any(|status| failure.message == refused_text(*status))
        };
        match failure.class.as_str() {
            UNSUPPORTED_CONTENT => true,
            REFUSED => refused(),
            _ => false,
        }
    }

    /// Returns whether a retry may succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::RateLimited { .. } | Self::Unavailable { .. } | Self::Interrupted { .. } => true,
            // After a timeout another attempt would wait as long again.
            Self::Refused { .. }
            | Self::UnsupportedContent { .. }
            | Self::TooLong { .. }
            | Self::TimedOut { .. }
            | Self::TooLarge { .. }
            | Self::NothingToAsk
            | Self::NotAllowed(_)
            | Self::Misconfigured { .. } => false,
        }
    }
}

/// Returns the name of a provider in the semantic conventions of OpenTelemetry.
pub fn span_provider_name(provider: &str) -> Cow<'_, str> {
    match provider {
        "google_genai" => "gcp.gemini".into(),
        "google_vertexai" => "gcp.vertex_ai".into(),
        "azure_openai" => "azure.ai.openai".into(),
        "bedrock" => "aws.bedrock".into(),
        "mistralai" => "mistral_ai".into(),
        "xai" => "x_ai".into(),
        other => other.into(),
    }
}
