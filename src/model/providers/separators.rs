//! Separators that keep consecutive messages of the user apart.
//!
//! rig-core joins consecutive messages of the user into one. For providers whose protocol accepts separate messages, a
//! system message with a random text is inserted between two of them, and removed from the encoded request. The other
//! providers get one message with the blocks of all.

use std::sync::Arc;

use rig_core::wire::Body;
use serde_json::Value;
use uuid::Uuid;

use super::Protocol;
use crate::domain::message::{Message, Role};

/// The random text of the separating messages of one request.
#[derive(Debug, Clone)]
pub(super) struct Separator(String);

impl Separator {
    /// Creates a separator if `messages` may become consecutive messages of the user and the protocol of `kind` accepts
    /// them.
    #[expect(
        clippy::disallowed_methods,
        reason = "a client that knew the text could have its own messages left out"
    )]
    pub(super) fn new(kind: Protocol, messages: &[Arc<Message>]) -> Option<Self> {
        let accepts_separate = match kind {
            Protocol::OpenAi | Protocol::Ollama => true,
            // Anthropic joins them itself; Google requires alternating roles.
            // Each block of a message is an item of its own in OpenAI's responses.
            Protocol::OpenAiResponses | Protocol::Anthropic | Protocol::GoogleGenAi | Protocol::Scripted => false,
        };
        let is_human = |message: &Message| matches!(message.role, Role::Human);
        // Files of results become a message of the user behind them.
        let has_consecutive = messages.windows(2).any(|pair| match pair {
            [first, second] => is_human(second) && (is_human(first) || first.answers().is_some()),
            _ => false,
        });
        (accepts_separate && has_consecutive).then(|| Self(format!("separator {}", Uuid::new_v4())))
    }

    /// Returns the text of a separating message.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Removes the separators from an encoded request.
    pub(super) fn remove(&self, request: &mut http::Request<Body>) {
        let Body::Bytes(bytes) = request.body_mut() else { return };
        let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
            return;
        };
        let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else {
            return;
        };
        messages.retain(|message| !self.is_separator(message));
        *bytes = body.to_string().into_bytes();
    }

    fn is_separator(&self, message: &Value) -> bool {
        let content = &message["content"];
        let text = content.as_str().or_else(|| content.pointer("/0/text")?.as_str());
        message["role"] != "user" && text == Some(self.text())
    }
}
