//! Messages of a person that follow one another reach the provider as they are.
//!
//! The library joins neighbouring messages of the user into one. Providers whose protocol takes them one by one get them
//! so: a system message with a text that nobody can know is put between two of them, and taken out of the encoded request.
//! For the others the library's form is right: the blocks of all of them in one message.

use std::sync::Arc;

use rig_core::wire::Body;
use serde_json::Value;
use uuid::Uuid;

use super::Protocol;
use crate::domain::message::{Message, Role};

/// The text of the messages that keep others apart in one request.
#[derive(Debug, Clone)]
pub(super) struct Separator(String);

impl Separator {
    /// A new one, when messages of a person follow one another in `messages` and the protocol of `kind` takes them so.
    #[expect(
        clippy::disallowed_methods,
        reason = "a client that knew the text could have its own messages left out"
    )]
    pub(super) fn mint(kind: Protocol, messages: &[Arc<Message>]) -> Option<Self> {
        let takes_them = match kind {
            Protocol::OpenAi | Protocol::Ollama => true,
            // Anthropic joins them itself, Google wants the speakers to take turns.
            Protocol::Anthropic | Protocol::GoogleGenAi | Protocol::Scripted => false,
        };
        let is_human = |message: &Message| matches!(message.role, Role::Human);
        let has_neighbours = messages
            .windows(2)
            .any(|pair| pair.iter().all(|message| is_human(message)));
        (takes_them && has_neighbours).then(|| Self(format!("separator {}", Uuid::new_v4())))
    }

    /// The text of the message to put between two others.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Takes the separators out of an encoded request.
    pub(super) fn remove(&self, request: &mut http::Request<Body>) {
        let Body::Bytes(bytes) = request.body_mut() else { return };
        let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
            return;
        };
        let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else {
            return;
        };
        messages.retain(|message| !self.is_it(message));
        *bytes = body.to_string().into_bytes();
    }

    fn is_it(&self, message: &Value) -> bool {
        let content = &message["content"];
        let text = content.as_str().or_else(|| content.pointer("/0/text")?.as_str());
        message["role"] != "user" && text == Some(self.text())
    }
}
