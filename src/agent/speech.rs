//! What a model says, passed on piece by piece as it comes.

use std::sync::Arc;

use serde_json::{Map, json};

use super::journal::Journal;
use crate::domain::event::{AnswerHead, Chunk, Delta, Fact};
use crate::domain::message::{Content, InvalidToolCall, Message, Role};

/// Passes pieces of an answer on.
pub(super) struct Speech<'a> {
    head: Arc<AnswerHead>,
    ordinals: std::ops::RangeFrom<u32>,
    journal: &'a dyn Journal,
    /// Whether a message was begun and not ended.
    is_open: bool,
    /// Its text so far.
    said: String,
    /// What was thought before it.
    thought: String,
    /// Its calls so far, by their index.
    calls: Vec<(usize, InvalidToolCall)>,
}

impl<'a> Speech<'a> {
    /// Nothing is said yet of the answer of this `head`.
    pub(super) fn new(head: &Arc<AnswerHead>, journal: &'a dyn Journal) -> Self {
        let said = String::new();
        let thought = String::new();
        let calls = vec![];
        Self {
            head: Arc::clone(head),
            ordinals: 0..,
            journal,
            is_open: false,
            said,
            thought,
            calls,
        }
    }

    pub(super) fn say(&mut self, chunk: Chunk) {
        self.is_open = !matches!(chunk, Chunk::End { .. } | Chunk::Void);
        match &chunk {
            Chunk::Text(text) => self.said.push_str(text),
            Chunk::Reasoning(text) => self.thought.push_str(text),
            Chunk::Call { index, id, name, args } => self.hear_call(*index, (id.as_ref(), name.as_ref()), args),
            Chunk::Begin | Chunk::End { .. } | Chunk::Void => {}
        }
        let ordinal = self.ordinals.next().unwrap_or(u32::MAX);
        self.journal.say(Delta {
            answer: Arc::clone(&self.head),
            ordinal,
            chunk,
        });
    }

    fn hear_call(&mut self, index: usize, (id, name): (Option<&String>, Option<&String>), args: &str) {
        let at = self
            .calls
            .iter()
            .position(|(known, _)| *known == index)
            .unwrap_or_else(|| {
                let kind = "invalid_tool_call".to_owned();
                self.calls.push((
                    index,
                    InvalidToolCall {
                        name: None,
                        args: None,
                        id: None,
                        error: None,
                        kind,
                    },
                ));
                self.calls.len() - 1
            });
        let (_, call) = &mut self.calls[at];
        call.id = id.cloned().or(call.id.take());
        call.name = name.cloned().or(call.name.take());
        call.args.get_or_insert_default().push_str(args);
    }

    /// The message under way was said to its end.
    pub(super) fn ends(&mut self) {
        if self.is_open {
            self.say(Chunk::End {
                response_metadata: Map::new(),
                usage: None,
            });
        }
    }

    /// The answer is whole. Of an agent that stands in, something may not have been heard: the finished message tells it.
    pub(super) fn completes(&mut self, answer: &Message) {
        let is_whole = || answer.id.as_ref() == Some(&self.head.message) && answer.content.text() == self.said;
        if answer.id.is_none() || is_whole() {
            self.say(end_of(answer));
        }
    }

    /// What follows belongs to the message of this id.
    pub(super) fn turns_to(&mut self, message: String) {
        if self.head.message != message {
            self.ends();
            let head = Arc::new(AnswerHead {
                message,
                ..AnswerHead::clone(&self.head)
            });
            *self = Self::new(&head, self.journal);
            self.say(Chunk::Begin);
        }
    }

    /// What there is to remember of a message that was begun and will not be ended; nothing when nothing of it was said.
    pub(super) fn breaks_off(self, failed: bool) -> Option<Fact> {
        let Self {
            head,
            is_open,
            said,
            thought,
            calls,
            ..
        } = self;
        if !is_open || said.is_empty() && thought.is_empty() && calls.is_empty() {
            return None;
        }
        // Their arguments are as unfinished as the message.
        let invalid_tool_calls = calls.into_iter().map(|(_, call)| call).collect();
        let role = Role::Ai {
            tool_calls: vec![],
            invalid_tool_calls,
            usage_metadata: None,
        };
        let mut message = Message {
            id: Some(head.message.clone()),
            ..Message::new(role, Content::Text(said))
        };
        if !thought.is_empty() {
            message
                .additional_kwargs
                .insert("reasoning_content".to_owned(), json!(thought));
        }
        let names = [("model_provider", &head.provider), ("model_name", &head.model)];
        message
            .response_metadata
            .extend(names.map(|(name, value)| (name.to_owned(), json!(value))));
        Some(Fact::BrokenOff {
            message: Box::new(message),
            failed,
        })
    }
}

fn end_of(message: &Message) -> Chunk {
    let usage = match &message.role {
        Role::Ai { usage_metadata, .. } => usage_metadata.clone(),
        Role::Human | Role::System | Role::Tool { .. } | Role::Remove => None,
    };
    Chunk::End {
        response_metadata: message.response_metadata.clone(),
        usage,
    }
}
