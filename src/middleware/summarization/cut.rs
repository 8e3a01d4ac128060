//! The place where a conversation is cut: between what is summarised and what is kept.

use std::sync::Arc;

use super::length::tokens_of_message;
use crate::domain::message::{Message, answered_calls};

/// The newest part of a conversation that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptPart {
    /// The maximum number of messages.
    pub(super) messages: Option<u64>,
    /// The maximum number of tokens.
    pub(super) tokens: Option<u64>,
    /// The maximum size, in bytes.
    pub(super) bytes: Option<usize>,
}

/// Returns the index of the first message that is kept, at least `start`. The last message is always kept. A call is
/// never separated from its result, and the last answer is kept if one of its calls has no result yet. `size_of` returns the
/// size of a message, in bytes.
pub(super) fn cut(
    messages: &[Arc<Message>],
    start: usize,
    kept: KeptPart,
    size_of: impl Fn(&Message) -> usize,
) -> usize {
    let mut at = messages.len();
    let mut tokens = 0_u64;
    let mut count = 0_u64;
    let mut bytes = 0_usize;
    while at > start {
        tokens = tokens.saturating_add(tokens_of_message(&messages[at - 1]));
        count += 1;
        bytes = bytes.saturating_add(size_of(&messages[at - 1]));
        let fits = kept.tokens.is_none_or(|most| tokens <= most)
            && kept.messages.is_none_or(|most| count <= most)
            && kept.bytes.is_none_or(|most| bytes <= most);
        if !fits && at < messages.len() {
            break;
        }
        at -= 1;
    }
    // Results follow their answer directly.
    while at > start && at < messages.len() && messages[at].answers().is_some() {
        at -= 1;
    }
    let open = open_answer(messages).filter(|open| *open < at);
    open.map_or(at, |open| open.max(start))
}

/// Returns the index of the last answer, if one of its calls has no result.
fn open_answer(messages: &[Arc<Message>]) -> Option<usize> {
    let at = messages.iter().rposition(|message| message.is_ai())?;
    let answered = answered_calls(&messages[at + 1..]);
    let mut calls = messages[at].tool_calls().iter();
    calls.any(|call| !answered.contains(call.id.as_str())).then_some(at)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::domain::message::{ToolCall, ToolStatus};

    fn calls(ids: &[&str]) -> Vec<ToolCall> {
        ids.iter().map(|id| ToolCall::new(*id, "look", Map::new())).collect()
    }

    fn result(id: &str) -> Message {
        Message::tool(&calls(&[id])[0], ToolStatus::Success, "seen")
    }

    fn cut_after(messages: Vec<Message>, keep: u64) -> usize {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        let kept = KeptPart {
            messages: Some(keep),
            tokens: None,
            bytes: None,
        };
        cut(&messages, 0, kept, Message::size)
    }

    #[test]
    fn calls_and_results_stay_together() {
        let messages = || {
            vec![
                Message::human("go"),
                Message::calling(calls(&["a", "b"])),
                result("a"),
                result("b"),
                Message::ai("done"),
            ]
        };
        assert_eq!(cut_after(messages(), 1), 4);
        assert_eq!(cut_after(messages(), 2), 1, "the result of b would lose its call");
        assert_eq!(cut_after(messages(), 3), 1);
        assert_eq!(cut_after(messages(), 4), 1);
        assert_eq!(cut_after(messages(), 5), 0);
    }

    #[test]
    fn an_answer_with_an_open_call_is_kept() {
        let messages = vec![
            Message::human("go"),
            Message::calling(calls(&["a", "b"])),
            result("a"),
            Message::human("and?"),
        ];
        assert_eq!(cut_after(messages, 1), 1);
    }

    #[test]
    fn the_last_message_is_kept_even_if_it_is_too_long() {
        let messages = vec![
            Arc::new(Message::human("a")),
            Arc::new(Message::human("b".repeat(1_000))),
        ];
        let short = KeptPart {
            messages: None,
            tokens: Some(1),
            bytes: None,
        };
        let small = KeptPart {
            messages: None,
            tokens: None,
            bytes: Some(1),
        };
        for kept in [short, small] {
            assert_eq!(cut(&messages, 0, kept, Message::size), 1);
        }
        let kept = small;
        assert_eq!(cut(&messages, 2, kept, Message::size), 2);
        assert_eq!(cut(&[], 0, kept, Message::size), 0);
    }
}
