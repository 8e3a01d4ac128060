//! Plain instructions in requests with the protocols of OpenAI and Ollama.
//!
//! rig-core sends a system message as a list with one block of text. OpenAI takes both forms, but some servers of other
//! makers apply templates to the messages that take a text alone.

use std::collections::BTreeMap;

use rig_core::wire::Body;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// The role of a message of the system.
#[derive(Deserialize, Serialize)]
enum SystemRole {
    #[serde(rename = "system")]
    System,
}

/// A message of the system with blocks of text.
#[derive(Deserialize)]
struct BlockMessage {
    role: SystemRole,
    content: Vec<TextBlock>,
}

#[derive(Deserialize)]
struct TextBlock {
    text: String,
}

/// A message of the system with a text.
#[derive(Serialize)]
struct TextMessage {
    role: SystemRole,
    content: String,
}

/// Sends the messages of the system in an encoded request as texts.
pub(super) fn set(request: &mut http::Request<Body>) {
    let Body::Bytes(bytes) = request.body_mut() else { return };
    if let Some(plain) = with_texts(bytes) {
        *bytes = plain;
    }
}

/// Returns the body with these messages as texts; none if it has another form. The other messages are not parsed.
fn with_texts(body: &[u8]) -> Option<Vec<u8>> {
    let mut body: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(body).ok()?;
    let messages: Vec<Box<RawValue>> = serde_json::from_str(body.get("messages")?.get()).ok()?;
    let plain = messages
        .into_iter()
        .map(|message| text_message(&message).unwrap_or(message));
    let plain: Vec<Box<RawValue>> = plain.collect();
    body.insert("messages".to_owned(), to_raw_value(&plain).ok()?);
    serde_json::to_vec(&body).ok()
}

/// Returns a message of the system as a text; none for other messages.
fn text_message(message: &RawValue) -> Option<Box<RawValue>> {
    let BlockMessage { role, content } = serde_json::from_str(message.get()).ok()?;
    let texts: Vec<String> = content.into_iter().map(|block| block.text).collect();
    let content = texts.join("\n\n");
    to_raw_value(&TextMessage { role, content }).ok()
}
