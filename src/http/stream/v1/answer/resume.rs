//! Answers that a reader resumes: what it received on an earlier connection is read from the finished message.

use serde_json::Value;

use super::AnswerBuilder;
use crate::domain::event::Chunk;
use crate::domain::message::Message;
use crate::http::stream::fold::unsent_part;
use crate::http::stream::frame::{AnswerOffset, Frame, json};

/// The first part of a finished message.
struct Prefix {
    reasoning: String,
    text: String,
    calls: Vec<PrefixCall>,
}

struct PrefixCall {
    id: String,
    name: String,
    args: String,
}

impl Prefix {
    /// The part that a reader with this offset has.
    fn of(message: &Message, offset: u32) -> Self {
        let mut remaining = usize::try_from(offset).unwrap_or(usize::MAX).saturating_sub(1);
        let mut take_prefix = |whole: &str| {
            let end = (0..=remaining.min(whole.len()))
                .rev()
                .find(|end| whole.is_char_boundary(*end))
                .unwrap_or(0);
            remaining -= end;
            whole[..end].to_owned()
        };
        let reasoning = message
            .additional_kwargs
            .get("reasoning_content")
            .and_then(Value::as_str);
        let reasoning = take_prefix(reasoning.unwrap_or_default());
        let text = take_prefix(&message.content.text());
        let readable = message.tool_calls().iter().map(|call| PrefixCall {
            id: call.id.clone(),
            name: call.name.clone(),
            args: String::from_utf8(json(&call.args)).unwrap_or_default(),
        });
        let unreadable = message.invalid_tool_calls().iter().map(|call| PrefixCall {
            id: call.id.clone().unwrap_or_default(),
            name: call.name.clone().unwrap_or_default(),
            args: call.args.clone().unwrap_or_default(),
        });
        let mut calls = vec![];
        for call in readable.chain(unreadable) {
            // Each call counts one more than its arguments.
            if take_prefix("+").is_empty() {
                break;
            }
            let args = take_prefix(&call.args);
            calls.push(PrefixCall { args, ..call });
        }
        Self { reasoning, text, calls }
    }
}

impl AnswerBuilder {
    /// Marks the part of the finished message as sent that the reader received on an earlier connection. If that ended
    /// within the frames of a chunk, the others are sent.
    pub(in crate::http::stream::v1) fn resume(&mut self, message: &Message, seen: AnswerOffset, out: &mut Vec<Frame>) {
        let AnswerOffset { offset, cut, .. } = seen;
        if offset == 0 || self.progress().is_some_and(|progress| progress.offset >= offset) {
            return;
        }
        let Some(cut) = cut else {
            return self.set_sent(message, offset);
        };
        self.set_sent(message, cut.from);
        let first = out.len();
        self.push_chunk_up_to(message, offset, out);
        let sent = usize::try_from(cut.frames).unwrap_or(usize::MAX);
        out.drain(first..out.len().min(first.saturating_add(sent)));
    }

    /// Compares the chunks before the position from which the reader resumes with what the reader has `received` of the
    /// answer. A reader that has read on at a server without the chunks lacks them, so the answer begins anew and waits for the
    /// complete message.
    pub(in crate::http::stream::v1) fn confirm(&mut self, received: Option<AnswerOffset>) {
        if !std::mem::take(&mut self.is_unconfirmed) {
            return;
        }
        if self.offset() == received.map_or(0, AnswerOffset::of_whole_chunks) {
            return;
        }
        self.started = false;
        self.ended = false;
        self.text.clear();
        self.reasoning.clear();
        self.calls.clear();
        self.response_metadata = self.header.response_metadata();
        self.usage = None;
        self.has_gap = true;
    }

    fn set_sent(&mut self, message: &Message, offset: u32) {
        let sent = Prefix::of(message, offset);
        self.started = offset > 0;
        self.ended = offset == AnswerOffset::END;
        self.reasoning = sent.reasoning;
        self.text = sent.text;
        self.calls.clear();
        for (index, call) in sent.calls.iter().enumerate() {
            self.take_call(index, Some(&call.id), Some(&call.name), &call.args);
        }
    }

    /// Sends the chunk that leads from what was sent to the length `offset`.
    fn push_chunk_up_to(&mut self, message: &Message, offset: u32, out: &mut Vec<Frame>) {
        if !self.started {
            return self.push_chunk(&Chunk::Begin, out);
        }
        if offset == AnswerOffset::END {
            return self.end_with(message, out);
        }
        let upto = Prefix::of(message, offset);
        if let Some(rest) = unsent_part(&self.reasoning, &upto.reasoning) {
            return self.push_chunk(&Chunk::Reasoning(rest.to_owned()), out);
        }
        if upto.text.len() > self.text.len() {
            return self.push_text(message, &upto.text, out);
        }
        let index = upto.calls.len().saturating_sub(1);
        let Some(call) = upto.calls.into_iter().next_back() else {
            return;
        };
        let Some(sent) = self.calls.get(index) else {
            let id = Some(call.id);
            let name = Some(call.name);
            let args = call.args;
            return self.push_chunk(&Chunk::Call { index, id, name, args }, out);
        };
        if let Some(rest) = unsent_part(&sent.args, &call.args) {
            let args = rest.to_owned();
            let chunk = Chunk::Call {
                index,
                id: None,
                name: None,
                args,
            };
            self.push_chunk(&chunk, out);
        }
    }
}
