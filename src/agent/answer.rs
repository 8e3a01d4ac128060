//! The stream of an answer: publishes its pieces as they arrive, and keeps the text of an answer that ends early.

use std::sync::Arc;

use serde_json::{Map, json};

use super::answer_filters::AnswerFilters;
use super::journal::Journal;
use crate::domain::call_ids::CallIdAllocator;
use crate::domain::event::{AnswerHead, Chunk, Delta, Fact};
use crate::domain::json_limits::without_nul;
use crate::domain::machine::Failure;
use crate::domain::message::{Content, InvalidToolCall, Message, Role};

/// The stream of one answer. A model sends one message; a remote agent may send several, one after the other.
pub(super) struct AnswerStream<'a> {
    /// The head of the current message.
    head: Arc<AnswerHead>,
    /// The head of the first message.
    first: Arc<AnswerHead>,
    ordinals: std::ops::RangeFrom<u32>,
    journal: &'a dyn Journal,
    /// True if the current message has begun and not ended.
    is_open: bool,
    /// The text of the current message so far.
    text: String,
    /// The reasoning of the current message so far.
    reasoning: String,
    /// The calls of the current message so far, by their index.
    calls: Vec<(usize, InvalidToolCall)>,
    ids: CallIdAllocator,
    filters: AnswerFilters,
}

impl<'a> AnswerStream<'a> {
    /// Creates a stream that has received nothing yet.
    pub(super) fn new(head: AnswerHead, journal: &'a dyn Journal) -> Self {
        let head = Arc::new(head);
        Self {
            first: Arc::clone(&head),
            head,
            ordinals: 0..,
            journal,
            is_open: false,
            text: String::new(),
            reasoning: String::new(),
            calls: vec![],
            ids: CallIdAllocator::default(),
            filters: AnswerFilters::default(),
        }
    }

    /// Has the texts of the answer pass these filters.
    pub(super) fn with_filters(self, filters: AnswerFilters) -> Self {
        Self { filters, ..self }
    }

    /// Returns the id of the current message.
    pub(super) fn message(&self) -> &str {
        &self.head.message
    }

    /// Returns the name of the model, as `provider:model-name`.
    pub(super) fn model_name(&self) -> String {
        format!("{}:{}", self.head.provider, self.head.model)
    }

    /// Publishes a piece from a model or a remote agent.
    pub(super) fn push(&mut self, chunk: Chunk) {
        let chunk = match chunk {
            Chunk::Text(text) => Chunk::Text(self.filters.push_text(without_nul(text))),
            Chunk::Reasoning(text) => Chunk::Reasoning(self.filters.push_reasoning(without_nul(text))),
            Chunk::Call { index, id, name, args } => Chunk::Call {
                index,
                id: self.ids.chunk_id(index, id.map(without_nul)),
                name: name.map(without_nul),
                args: without_nul(args),
            },
            Chunk::Begin | Chunk::End { .. } | Chunk::Void => chunk,
        };
        if !self.is_held_back(&chunk) {
            self.send(chunk);
        }
    }

    /// Returns whether a filter has held back all of a piece.
    fn is_held_back(&self, chunk: &Chunk) -> bool {
        let is_empty = matches!(chunk, Chunk::Text(text) | Chunk::Reasoning(text) if text.is_empty());
        is_empty && !self.filters.is_empty()
    }

    /// Publishes what the filters have held back.
    fn release(&mut self) -> Result<(), Failure> {
        if self.filters.is_empty() {
            return Ok(());
        }
        let [reasoning, text] = self.filters.finish()?;
        for chunk in [Chunk::Reasoning(reasoning), Chunk::Text(text)] {
            if !self.is_held_back(&chunk) {
                self.send(chunk);
            }
        }
        Ok(())
    }

    /// Ends the stream of a model with its complete answer, after the filters have rewritten it.
    ///
    /// # Errors
    /// The failure of a filter that does not let the answer pass.
    pub(super) fn complete_filtered(&mut self, answer: &mut Message) -> Result<(), Failure> {
        self.release()?;
        if !self.filters.is_empty() {
            self.filters.rewrite(answer)?;
        }
        self.complete(answer);
        Ok(())
    }

    fn send(&mut self, chunk: Chunk) {
        self.is_open = !matches!(chunk, Chunk::End { .. } | Chunk::Void);
        match &chunk {
            Chunk::Text(text) => self.text.push_str(text),
            Chunk::Reasoning(text) => self.reasoning.push_str(text),
            Chunk::Call { index, id, name, args } => self.add_call(*index, id.as_ref(), name.as_ref(), args),
            Chunk::Begin | Chunk::End { .. } | Chunk::Void => {}
        }
        let ordinal = self.ordinals.next().unwrap_or(u32::MAX);
        self.journal.publish(Delta {
            answer: Arc::clone(&self.head),
            ordinal,
            chunk,
        });
    }

    fn add_call(&mut self, index: usize, id: Option<&String>, name: Option<&String>, args: &str) {
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

    /// Ends the current message.
    pub(super) fn end(&mut self) {
        if self.is_open {
            self.send(Chunk::End {
                response_metadata: Map::new(),
                usage: None,
            });
        }
    }

    /// Ends the stream with the complete answer. If pieces of a remote agent's message were missed, no end is
    /// published: the finished message is published with its checkpoint.
    pub(super) fn complete(&mut self, answer: &Message) {
        let is_whole = || answer.id.as_ref() == Some(&self.head.message) && answer.content.text() == self.text;
        if answer.id.is_none() || is_whole() {
            self.send(end_of(answer));
        }
    }

    /// Switches to the message with this id: later pieces belong to it.
    pub(super) fn switch_to(&mut self, message: &str) {
        let message = without_nul(message.to_owned());
        if self.head.message == message {
            return;
        }
        self.end();
        let head = AnswerHead {
            message,
            ..AnswerHead::clone(&self.head)
        };
        let first = Arc::clone(&self.first);
        *self = Self {
            first,
            ..Self::new(head, self.journal)
        };
        self.push(Chunk::Begin);
    }

    /// Ends the stream early. Returns the event to store for a message that has begun and will not end; none if
    /// nothing of it has arrived.
    pub(super) fn abort(mut self, failed: bool) -> Option<Fact> {
        // Text that a filter does not let pass stays unpublished.
        let _ = self.release();
        let Self {
            head,
            first,
            journal,
            is_open,
            text,
            reasoning,
            calls,
            ..
        } = self;
        if failed {
            journal.publish(Delta {
                answer: first,
                ordinal: u32::MAX,
                chunk: Chunk::Void,
            });
        }
        if !is_open || text.is_empty() && reasoning.is_empty() && calls.is_empty() {
            return None;
        }
        // The arguments may be cut off, so the calls are stored as invalid.
        let invalid_tool_calls = calls.into_iter().map(|(_, call)| call).collect();
        let role = Role::Ai {
            tool_calls: vec![],
            invalid_tool_calls,
            usage_metadata: None,
        };
        let mut message = Message {
            id: Some(head.message.clone()),
            ..Message::new(role, Content::Text(text))
        };
        if !reasoning.is_empty() {
            message
                .additional_kwargs
                .insert("reasoning_content".to_owned(), json!(reasoning));
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
