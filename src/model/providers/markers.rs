//! The cache markers (`cache_control`) in an agent's instructions, which rig-core does not support.
//!
//! rig-core itself marks the last tool, the last block of the instructions and the end of the conversation. The markers
//! of the definition take precedence; rig-core's are kept as far as the provider's maximum of four allows.

use rig_core::wire::Body;
use serde_json::{Value, json};

use crate::definition::{MOST_MARKERS, PromptBlock};

/// The field of a marked block.
pub(super) const MARKER: &str = "cache_control";

/// Sets the markers of `blocks` in the instructions of an encoded request.
pub(super) fn set(request: &mut http::Request<Body>, blocks: &[PromptBlock]) {
    let Body::Bytes(bytes) = request.body_mut() else { return };
    let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    set_in_body(&mut body, blocks);
    *bytes = body.to_string().into_bytes();
}

/// Removes all markers from the body of a request. Returns whether it had any.
pub(super) fn remove(body: &mut Value) -> bool {
    let mut is_marked = false;
    let mut take = |block: &mut Value| {
        let marker = block.as_object_mut().and_then(|block| block.shift_remove(MARKER));
        is_marked |= marker.is_some();
    };
    for list in ["tools", "system"] {
        let blocks = body.get_mut(list).and_then(Value::as_array_mut);
        blocks.into_iter().flatten().for_each(&mut take);
    }
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten() {
        let blocks = message.get_mut("content").and_then(Value::as_array_mut);
        blocks.into_iter().flatten().for_each(&mut take);
    }
    is_marked
}

/// Sets the markers of `blocks` in a body whose last tool, last block of the instructions and last block of the
/// conversation are marked.
pub(super) fn set_in_body(body: &mut Value, blocks: &[PromptBlock]) {
    let Some(system) = body.get_mut("system").and_then(Value::as_array_mut) else {
        return;
    };
    let mut marked = vec![];
    for (at, (sent, block)) in system.iter_mut().zip(blocks).enumerate() {
        // With system messages inside the conversation, rig-core joins all instructions into one block.
        let is_same_text = sent.get("text").and_then(Value::as_str) == Some(&block.text);
        if is_same_text && let Some(marker) = block.cache_control {
            sent[MARKER] = json!(marker);
            marked.push(at);
        }
    }
    let surplus = marked.len().saturating_sub(MOST_MARKERS);
    marked.drain(..surplus).for_each(|at| unmark(system.get_mut(at)));
    let Some(last) = marked.last().copied() else { return };
    // Anthropic requires blocks with a longer lifetime to come first.
    let long = marked
        .iter()
        .rposition(|at| system[*at][MARKER]["ttl"] == "1h")
        .unwrap_or_default();
    marked[..long]
        .iter()
        .for_each(|at| system[*at][MARKER]["ttl"] = json!("1h"));
    if marked.len() + 1 >= MOST_MARKERS && last + 1 < system.len() {
        unmark(system.last_mut());
    }
    // The tools precede the instructions, so every marker in the instructions covers them.
    unmark(body.get_mut("tools").and_then(|tools| tools.as_array_mut()?.last_mut()));
    if marked.len() == MOST_MARKERS {
        let message = body
            .get_mut("messages")
            .and_then(|messages| messages.as_array_mut()?.last_mut());
        unmark(message.and_then(|message| message.get_mut("content")?.as_array_mut()?.last_mut()));
    }
}

fn unmark(block: Option<&mut Value>) {
    if let Some(block) = block.and_then(Value::as_object_mut) {
        block.shift_remove(MARKER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the marked blocks of a request with these instructions, after rig-core's own markers were set.
    fn marked(blocks: Value) -> Vec<String> {
        let blocks: Vec<PromptBlock> = serde_json::from_value(blocks).expect("blocks");
        let auto = json!({"type": "ephemeral"});
        let mut system: Vec<Value> = blocks
            .iter()
            .map(|block| json!({"type": "text", "text": block.text}))
            .collect();
        if let Some(last) = system.last_mut() {
            last[MARKER] = auto.clone();
        }
        let mut body = json!({"tools": [{"text": "tool", MARKER: auto}], "system": system,
            "messages": [{"content": [{"text": "end", MARKER: auto}]}]});
        set_in_body(&mut body, &blocks);
        let all = [&body["tools"], &body["system"], &body["messages"][0]["content"]];
        let all = all.into_iter().filter_map(Value::as_array).flatten();
        let describe = |block: &Value| {
            let ttl = block.get(MARKER)?.get("ttl").and_then(Value::as_str).unwrap_or("5m");
            Some(format!("{} {ttl}", block["text"].as_str()?))
        };
        all.filter_map(describe).collect()
    }

    fn block(text: &str, ttl: Option<&str>) -> Value {
        json!({"text": text, "cache_control": {"type": "ephemeral", "ttl": ttl}})
    }

    #[test]
    fn own_markers_come_first_and_those_of_rig_fill_up_to_four() {
        let own = |text| block(text, None);
        let plain = |text: &str| json!({"text": text});
        assert_eq!(marked(json!([plain("a"), plain("b")])), ["tool 5m", "b 5m", "end 5m"]);
        assert_eq!(marked(json!([own("a"), plain("b")])), ["a 5m", "b 5m", "end 5m"]);
        assert_eq!(marked(json!([own("a"), own("b")])), ["a 5m", "b 5m", "end 5m"]);
        assert_eq!(
            marked(json!([own("a"), own("b"), own("c"), plain("d")])),
            ["a 5m", "b 5m", "c 5m", "end 5m"]
        );
        let many = ["a", "b", "c", "d", "e"].map(own);
        assert_eq!(marked(json!(many)), ["b 5m", "c 5m", "d 5m", "e 5m"]);
    }

    #[test]
    fn a_marker_of_an_hour_never_follows_a_shorter_one() {
        let mixed = json!([block("a", None), block("b", Some("1h")), block("c", Some("5m"))]);
        assert_eq!(marked(mixed), ["a 1h", "b 1h", "c 5m", "end 5m"]);
    }

    #[test]
    fn blocks_that_rig_joined_have_no_markers_of_their_own() {
        let mut body = json!({"system": [{"text": "a\n\nb"}]});
        let blocks: Vec<PromptBlock> = serde_json::from_value(json!([block("a", None)])).expect("blocks");
        set_in_body(&mut body, &blocks);
        assert_eq!(body, json!({"system": [{"text": "a\n\nb"}]}));
    }
}
