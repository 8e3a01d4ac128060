//! The form of an answer in rig-core, which is stored in the message if the message itself cannot hold all of it.
//!
//! Signed and redacted thinking, a provider's own tools, citations and Google's thought signatures must be sent back
//! unchanged, and messages have no fields for them. Such an answer is stored under `additional_kwargs.native` as
//! `{"provider", "message"}`. It is only sent to the same provider, and only as far as it agrees with the message,
//! since users may edit calls before they approve them.

use rig_core::completion::CompletionResponse;
use rig_core::message::{AssistantContent, AssistantMessage, Native, ToolFunction, ToolName};
use serde_json::{Value, json};

use super::Protocol;
use crate::domain::message::Message;

/// The key in `additional_kwargs`.
pub(super) const KEY: &str = "native";

/// The fields of a provider's block that messages can hold.
const HELD: [&str; 16] = [
    "type",
    "text",
    "content",
    "role",
    "id",
    "name",
    "input",
    "function",
    "functionCall",
    "index",
    "arguments",
    "thought",
    "tool_calls",
    // OpenAI's responses.
    "call_id",
    "status",
    "logprobs",
];

/// Returns the answer in the form of rig-core, if a message cannot hold all of it.
pub(super) fn keep(response: &CompletionResponse, kind: Protocol) -> Option<Value> {
    let mut after_call = false;
    let is_plain = response.choice.iter().all(|block| {
        let in_order = !(after_call && matches!(block, AssistantContent::Text(_)));
        after_call |= matches!(block, AssistantContent::ToolCall(_));
        in_order && is_held(block)
    });
    if is_plain {
        return None;
    }
    // Without a stop reason, since rig-core omits turns that it regards as failed.
    let message = response.head().with_stop(None).with_content(response.choice.clone());
    let message = serde_json::to_value(message).ok()?;
    Some(json!({"provider": kind.as_str(), "message": message}))
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum of rig-core is not exhaustive; what is not known is not held"
)]
fn is_held(block: &AssistantContent) -> bool {
    match block {
        AssistantContent::Text(text) => item_is_held(text.native.as_ref()) && text.citations().is_empty(),
        AssistantContent::ToolCall(call) => item_is_held(call.native.as_ref()),
        AssistantContent::Reasoning(reasoning) => !reasoning.redacted && reasoning.native.is_none(),
        _ => false,
    }
}

/// Returns whether a message can hold the item of a block. Nothing was changed in the answer, so the item is current, without a
/// comparison of digests.
fn item_is_held(native: Option<&Native>) -> bool {
    let Some(item) = native.and_then(|native| native.item.as_object()) else {
        return true;
    };
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    item.iter()
        .all(|(name, value)| HELD.contains(&name.as_str()) || is_empty(value))
}

/// Returns the stored form of a message, if it may be sent to this kind of provider.
pub(super) fn recall(message: &Message, kind: Protocol) -> Option<AssistantMessage> {
    let stored = message.additional_kwargs.get(KEY)?;
    if stored.get("provider")?.as_str()? != kind.as_str() {
        return None;
    }
    let mut native: AssistantMessage = serde_json::from_value(stored.get("message")?.clone()).ok()?;
    let text: String = native
        .content
        .iter()
        .filter_map(|block| {
            if let AssistantContent::Text(text) = block {
                Some(text.text.as_str())
            } else {
                None
            }
        })
        .collect();
    let calls = message.tool_calls().len() + message.invalid_tool_calls().len();
    if text != message.content.text() || native.tool_calls().count() != calls {
        return None;
    }
    for block in &mut native.content {
        if let AssistantContent::ToolCall(call) = block {
            let id = call.id.wire();
            if let Some(ours) = message.tool_calls().iter().find(|ours| ours.id == id) {
                // Assigning an edited call makes rig-core rebuild that block; the others keep their form.
                if ours.args != call.function.arguments || ours.name != call.function.name {
                    call.function =
                        ToolFunction::new(ToolName::new(ours.name.clone()).ok()?, Value::Object(ours.args.clone()));
                }
            } else if !message
                .invalid_tool_calls()
                .iter()
                .any(|ours| ours.id.as_deref() == Some(&*id))
            {
                return None;
            }
        }
    }
    Some(native)
}
