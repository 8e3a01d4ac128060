//! The cache markers (`cache_control`) in OpenAI's chat completions, which gateways pass on to Claude.
//!
//! OpenAI's protocol has no markers, and rig-core sets none. Gateways take them on the blocks of text of messages. They
//! are placed as in Anthropic's own protocol: on the blocks of the instructions that the definition marks, at the end of
//! the instructions, which covers the tools before them, and at the end of the conversation.

use std::collections::BTreeMap;

use rig_core::wire::Body;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::markers::{self, MARKER};
use crate::definition::PromptBlock;

/// Sets the markers of an encoded request, whose instructions are `blocks`.
pub(super) fn set(request: &mut http::Request<Body>, blocks: &[PromptBlock]) {
    let Body::Bytes(bytes) = request.body_mut() else { return };
    if let Some(marked) = with_markers(bytes, blocks) {
        *bytes = marked;
    }
}

/// Returns the body with markers; none if it has another form. Only the first and the last messages are parsed.
fn with_markers(body: &[u8], blocks: &[PromptBlock]) -> Option<Vec<u8>> {
    let mut body: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(body).ok()?;
    let mut messages: Vec<Box<RawValue>> = serde_json::from_str(body.get("messages")?.get()).ok()?;
    let blocks: Vec<PromptBlock> = blocks
        .iter()
        .filter(|block| !block.text.trim().is_empty())
        .cloned()
        .collect();
    let first = messages.first()?;
    let mut instructions = instructions(first, &blocks);
    mark(instructions.last_mut());
    let mut newest = messages.iter().enumerate().rev();
    let (at, mut last) = newest.find_map(|(at, message)| Some((at, in_blocks(message)?)))?;
    let end = last_text(&mut last)?;
    mark(Some(&mut *end));
    // In the form in which the markers of the definition are set for Anthropic.
    let mut marked = json!({"system": instructions, "messages": [{"content": [end.take()]}]});
    markers::set_in_body(&mut marked, &blocks);
    *end = marked["messages"][0]["content"][0].take();
    messages[at] = to_raw_value(&last).ok()?;
    let instructions = marked["system"].take();
    if instructions.as_array().is_some_and(|blocks| !blocks.is_empty()) {
        messages[0] = to_raw_value(&json!({"role": "system", "content": instructions})).ok()?;
    }
    body.insert("messages".to_owned(), to_raw_value(&messages).ok()?);
    serde_json::to_vec(&body).ok()
}

/// Returns the instructions in the first message as blocks: those of the definition, if they are its text. None if there
/// are no instructions.
fn instructions(first: &RawValue, blocks: &[PromptBlock]) -> Vec<Value> {
    let message: Value = serde_json::from_str(first.get()).unwrap_or_default();
    let text = message["content"].as_str().filter(|_| message["role"] == "system");
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
        return vec![];
    };
    let texts: Vec<&str> = blocks.iter().map(|block| block.text.as_str()).collect();
    let texts = if texts.join("\n\n") == text { texts } else { vec![text] };
    texts
        .into_iter()
        .map(|text| json!({"type": "text", "text": text}))
        .collect()
}

/// Returns a message of the user or a tool in blocks; none if it is another one, or has no text.
fn in_blocks(message: &RawValue) -> Option<Value> {
    let mut message: Value = serde_json::from_str(message.get()).ok()?;
    if !matches!(message["role"].as_str(), Some("user" | "tool")) {
        return None;
    }
    if let Some(text) = message["content"].as_str().map(str::to_owned) {
        message["content"] = json!([{"type": "text", "text": text}]);
    }
    last_text(&mut message)?;
    Some(message)
}

/// Returns the last block of text of a message. Blank texts cannot be marked.
fn last_text(message: &mut Value) -> Option<&mut Value> {
    let blocks = message.get_mut("content")?.as_array_mut()?;
    let has_text = |block: &Value| block["text"].as_str().is_some_and(|text| !text.trim().is_empty());
    blocks
        .iter_mut()
        .rev()
        .find(|block| block["type"] == "text" && has_text(block))
}

fn mark(block: Option<&mut Value>) {
    if let Some(block) = block {
        block[MARKER] = json!({"type": "ephemeral"});
    }
}

/// Joins blocks of text that were split for markers, so that the request is the same as without markers.
pub(super) fn join_texts(body: &mut Value) {
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten() {
        let is_system = message["role"] == "system";
        let Some(blocks) = message["content"].as_array() else {
            continue;
        };
        let texts: Vec<&str> = blocks
            .iter()
            .filter(|block| block["type"] == "text")
            .filter_map(|block| block["text"].as_str())
            .collect();
        if texts.len() == blocks.len() && (is_system || texts.len() == 1) {
            message["content"] = texts.join("\n\n").into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(messages: Value, blocks: Value) -> Value {
        let blocks: Vec<PromptBlock> = serde_json::from_value(blocks).expect("blocks");
        let body = json!({"model": "m", "messages": messages, "tools": []}).to_string();
        let marked = with_markers(body.as_bytes(), &blocks).unwrap_or_else(|| body.clone().into_bytes());
        serde_json::from_slice(&marked).expect("a body")
    }

    fn marked(text: &str) -> Value {
        json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}})
    }

    #[test]
    fn the_instructions_and_the_end_of_the_conversation_are_marked() {
        let calls = json!({"role": "assistant", "tool_calls": [{"id": "c"}]});
        let user = json!({"role": "user", "content": "hello"});
        let messages = json!([{"role": "system", "content": "be brief"}, user, calls,
            {"role": "tool", "tool_call_id": "c", "content": "found"}]);
        let body = sent(messages, json!([{"text": "be brief"}]));
        assert_eq!(
            body["messages"],
            json!([{"role": "system", "content": [marked("be brief")]}, user, calls,
                {"role": "tool", "tool_call_id": "c", "content": [marked("found")]}])
        );
        assert_eq!(body["tools"], json!([]));
    }

    #[test]
    fn what_is_marked_last_is_a_text_of_the_user_or_a_tool() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": "see"}, image]},
            {"role": "user", "content": [image]}, {"role": "assistant", "content": "so"}]);
        let body = sent(messages, json!([]));
        assert_eq!(body["messages"][0]["content"], json!([marked("see"), image]));
        assert_eq!(body["messages"][1]["content"], json!([image]));
        assert_eq!(body["messages"][2]["content"], "so");
        let nothing = json!([{"role": "assistant", "content": "so"}]);
        assert_eq!(sent(nothing.clone(), json!([]))["messages"], nothing);
    }

    #[test]
    fn a_request_has_four_markers_at_most_those_of_the_definition_first() {
        let long = json!({"type": "ephemeral", "ttl": "1h"});
        let texts = ["a", "b", "c", "d"];
        let blocks: Vec<Value> = texts
            .iter()
            .map(|text| json!({"text": text, "cache_control": long}))
            .collect();
        let user = json!({"role": "user", "content": [{"type": "text", "text": "x"},
            {"type": "image_url", "image_url": {"url": "data:"}}]});
        let messages = json!([{"role": "system", "content": texts.join("\n\n")}, user]);
        let body = sent(messages.clone(), json!(blocks));
        let system = body["messages"][0]["content"].as_array().expect("blocks");
        assert!(system.iter().all(|block| block["cache_control"] == long), "{system:?}");
        assert_eq!(body["messages"][1], user);
        let one = sent(
            messages,
            json!([{"text": "a", "cache_control": long}, {"text": "b\n\nc\n\nd"}]),
        );
        let system = json!([{"type": "text", "text": "a", "cache_control": long}, marked("b\n\nc\n\nd")]);
        assert_eq!(one["messages"][0]["content"], system);
        assert_eq!(one["messages"][1]["content"][0], marked("x"));
    }

    #[test]
    fn without_markers_a_request_is_what_it_was_before() {
        let before = json!([{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "hello"}]);
        let mut body = sent(before.clone(), json!([{"text": "a"}, {"text": "b"}]));
        assert_ne!(body["messages"], before);
        assert!(markers::remove(&mut body));
        join_texts(&mut body);
        assert_eq!(body["messages"], before);
        assert!(!markers::remove(&mut body));
    }
}
