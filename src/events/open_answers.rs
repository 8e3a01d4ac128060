//! The answers that models are giving, each from its beginning.
//!
//! Pieces of answers are not stored. Who joins in the middle of an answer gets its beginning from the events in memory;
//! of what memory drops while the answer goes on, the texts are kept here, joined to few pieces.

use std::sync::Arc;

use super::slot::SlotContent;
use crate::domain::checkpoint::Lane;
use crate::domain::event::{AnswerHead, Chunk, Delta, Event, EventBody, Fact};
use crate::domain::id::RunId;

/// The unfinished answers of a thread's agents.
#[derive(Clone, Default)]
pub(super) struct OpenAnswers(Vec<OpenAnswer>);

#[derive(Clone)]
struct OpenAnswer {
    head: Arc<AnswerHead>,
    lane: Lane,
    /// The number of the next piece.
    next: u32,
    pieces: Vec<Arc<Event>>,
}

impl OpenAnswers {
    /// Adds the next event of the log.
    pub(super) fn add(&mut self, content: &SlotContent) {
        self.take(content, OpenAnswer::push);
    }

    /// Adds the next event of the log, which memory drops. Its text is joined to the text before it.
    pub(super) fn join(&mut self, content: &SlotContent) {
        self.take(content, OpenAnswer::join);
    }

    fn take(&mut self, content: &SlotContent, add: fn(&mut OpenAnswer, &Arc<Event>)) {
        match content {
            SlotContent::Reserved => {}
            SlotContent::Stored(ends) => ends.iter().for_each(|lane| self.end(*lane)),
            SlotContent::Visible(event) => {
                if let EventBody::Delta(delta) = &event.body {
                    self.take_piece(event, delta, add);
                } else if ends_answers(&event.body) {
                    self.end(event.origin.lane);
                }
            }
        }
    }

    fn take_piece(&mut self, event: &Arc<Event>, delta: &Delta, add: fn(&mut OpenAnswer, &Arc<Event>)) {
        let is_same = |answer: &OpenAnswer| answer.head.message == delta.answer.message;
        let Some(at) = self.0.iter().position(is_same) else {
            if delta.chunk == Chunk::Begin {
                self.0.push(OpenAnswer::new(event, delta));
            }
            return;
        };
        // After a gap, what follows cannot be added to what is there.
        if delta.chunk == Chunk::Void || delta.ordinal != self.0[at].next {
            self.0.remove(at);
        } else {
            add(&mut self.0[at], event);
        }
    }

    fn end(&mut self, lane: Lane) {
        self.0.retain(|answer| answer.lane != lane);
    }

    /// Returns the pieces of the answers of this run in their order.
    pub(super) fn into_events(self, run: RunId) -> Vec<Arc<Event>> {
        let pieces = self.0.into_iter().flat_map(OpenAnswer::into_pieces);
        let mut pieces: Vec<Arc<Event>> = pieces.filter(|event| event.run == run).collect();
        pieces.sort_by_key(|event| event.seq);
        pieces
    }
}

impl OpenAnswer {
    fn new(event: &Arc<Event>, delta: &Delta) -> Self {
        Self {
            head: Arc::clone(&delta.answer),
            lane: event.origin.lane,
            next: delta.ordinal.saturating_add(1),
            pieces: vec![Arc::clone(event)],
        }
    }

    fn push(&mut self, event: &Arc<Event>) {
        self.next = self.next.saturating_add(1);
        self.pieces.push(Arc::clone(event));
    }

    fn join(&mut self, event: &Arc<Event>) {
        let last = self.pieces.last_mut().filter(|last| continues(last, event));
        let Some(last) = last.map(Arc::make_mut) else {
            return self.push(event);
        };
        last.seq = event.seq;
        append(&mut last.body, &event.body);
        self.next = self.next.saturating_add(1);
    }

    /// Returns the pieces with their numbers. Joined pieces are counted backwards from the newest number, because readers
    /// expect the number after it next.
    fn into_pieces(self) -> impl Iterator<Item = Arc<Event>> {
        let count = u32::try_from(self.pieces.len()).unwrap_or(u32::MAX);
        let first = self.next.saturating_sub(count);
        (first..).zip(self.pieces).map(|(ordinal, mut event)| {
            let is_other = matches!(&event.body, EventBody::Delta(delta) if delta.ordinal != ordinal);
            if is_other && let EventBody::Delta(delta) = &mut Arc::make_mut(&mut event).body {
                delta.ordinal = ordinal;
            }
            event
        })
    }
}

/// Returns whether an event ends the answers of its agent: what they became is stored.
pub(super) fn ends_answers(body: &EventBody) -> bool {
    match body {
        EventBody::Entry(_)
        | EventBody::Fact(Fact::Started { .. } | Fact::BrokenOff { .. } | Fact::Ended { .. } | Fact::Undone) => true,
        EventBody::Fact(
            Fact::Calling { .. }
            | Fact::Answered { .. }
            | Fact::FellBack { .. }
            | Fact::Asked { .. }
            | Fact::Paused
            | Fact::Custom { .. },
        )
        | EventBody::Delta(_)
        | EventBody::Begun(_)
        | EventBody::Output { .. } => false,
    }
}

/// Returns whether the text of a piece can be joined to that of the piece before it.
fn continues(last: &Event, event: &Event) -> bool {
    match (chunk_of(&last.body), chunk_of(&event.body)) {
        (Some(Chunk::Text(_)), Some(Chunk::Text(_))) | (Some(Chunk::Reasoning(_)), Some(Chunk::Reasoning(_))) => true,
        (
            Some(Chunk::Call { index, .. }),
            Some(Chunk::Call {
                index: other,
                id: None,
                name: None,
                ..
            }),
        ) => index == other,
        _ => false,
    }
}

fn chunk_of(body: &EventBody) -> Option<&Chunk> {
    match body {
        EventBody::Delta(delta) => Some(&delta.chunk),
        EventBody::Entry(_) | EventBody::Fact(_) | EventBody::Begun(_) | EventBody::Output { .. } => None,
    }
}

/// Appends the text of a piece to that of another one.
fn append(body: &mut EventBody, more: &EventBody) {
    if let EventBody::Delta(delta) = body
        && let Chunk::Text(text) | Chunk::Reasoning(text) | Chunk::Call { args: text, .. } = &mut delta.chunk
        && let Some(Chunk::Text(more) | Chunk::Reasoning(more) | Chunk::Call { args: more, .. }) = chunk_of(more)
    {
        text.push_str(more);
    }
}

#[cfg(test)]
mod tests;
