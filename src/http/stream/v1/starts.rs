//! Steps that were shown to begin before the log said so.
//!
//! That a step begins is volatile: whoever joins late, or comes back, learns of it only from the results of the step. So
//! the frames of a start are counted like the pieces of an answer, and a reader brings back how many of them it has seen.

use std::collections::HashMap;

use super::agent::ShownAgent;
use super::next_tasks::NextTasks;
use super::{V1Presenter, records};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{Event, EventBody, Origin};
use crate::domain::id::CheckpointId;
use crate::http::stream::frame::{AnswerOffset, Frame};

/// What starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartKind {
    /// The tasks after a checkpoint, shown with the checkpoint itself.
    Tasks = 1,
    /// The records of calls.
    Calls = 2,
}

/// A start, and how it became known.
pub(super) struct Start {
    /// Stands for it. The same in every process, since clients bring it back.
    key: u32,
    /// Whether it comes with a stored event, so that other readers may have been shown it before.
    is_late: bool,
}

impl Start {
    /// The start of the step after `head`, as `event` tells it.
    fn of(kind: StartKind, head: Option<CheckpointId>, event: &Event) -> Self {
        let head = head.map_or([0; 16], |head| *head.0.as_bytes());
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        Self {
            key: [kind as u8].into_iter().chain(head).fold(0x811c_9dc5, hash),
            is_late: event.body.is_stored(),
        }
    }
}

/// The starts that one reader was shown.
#[derive(Default)]
pub(super) struct SeenStarts {
    /// Those of steps that are not done.
    open: Vec<(Lane, AnswerOffset)>,
    /// How many frames of each the reader saw when it was here before.
    seen: HashMap<u32, u32>,
}

impl SeenStarts {
    pub(super) fn recall(&mut self, said: &[AnswerOffset]) {
        self.seen = said.iter().map(|said| (said.answer, said.offset)).collect();
    }

    /// Takes the `frames` by which a step starts; leaves those that this reader still lacks.
    fn take(&mut self, lane: Lane, start: Start, frames: &mut Vec<Frame>) {
        let Start { key, is_late } = start;
        let seen = if is_late {
            self.seen.remove(&key).unwrap_or(0)
        } else {
            0
        };
        frames.drain(..frames.len().min(usize::try_from(seen).unwrap_or(usize::MAX)));
        let mut offset = seen;
        for frame in frames.iter_mut() {
            offset += 1;
            frame.said = Some(AnswerOffset { answer: key, offset });
            frame.belated = is_late;
        }
        if offset > 0 {
            self.open.push((lane, AnswerOffset { answer: key, offset }));
        }
    }

    /// The step of an agent is done: nobody needs to remember how it started.
    pub(super) fn finish(&mut self, lane: Lane) {
        self.open.retain(|(other, _)| *other != lane);
    }

    pub(super) fn open(&self) -> impl Iterator<Item = AnswerOffset> {
        self.open.iter().map(|(_, said)| *said)
    }
}

impl V1Presenter {
    /// Shows the tasks that are known to have begun now that `event` is here: its own agent's, and the calls of the
    /// agents above it.
    pub(super) fn begin_tasks(&mut self, event: &Event, out: &mut Vec<Frame>) {
        for lane in self.at_or_above(&event.origin) {
            let Some(shown) = self.agents.get_mut(&lane) else {
                continue;
            };
            let Some(pending) = shown.pending.take() else {
                continue;
            };
            let next = if lane == event.origin.lane {
                NextTasks::shown_by(&event.body, shown.agent.head)
            } else {
                NextTasks::Calls
            };
            let head = shown.agent.head;
            let mut frames = vec![];
            if let Some(shown) = self.agents.get(&lane) {
                self.steps(event.at).begin(shown, &pending, &next, &mut frames);
            }
            let start = Start::of(StartKind::Tasks, head, event);
            self.starts.take(lane, start, &mut frames);
            out.append(&mut frames);
        }
    }

    /// Records that calls begin, now that `event` tells it: those of its own agent, or those of the agents above it.
    pub(super) fn begin_calls(&mut self, event: &Event, out: &mut Vec<Frame>) {
        for lane in self.at_or_above(&event.origin) {
            let is_own = lane == event.origin.lane;
            let Some(shown) = self.agents.get_mut(&lane) else {
                continue;
            };
            if shown.calls_begun || is_own && !NextTasks::are_calls(&event.body) {
                continue;
            }
            shown.calls_begun = true;
            let made_before = match &event.body {
                EventBody::Entry(entry) if is_own => entry.logged_writes.as_slice(),
                EventBody::Entry(_)
                | EventBody::Fact(_)
                | EventBody::Delta(_)
                | EventBody::Begun(_)
                | EventBody::Output { .. } => &[],
            };
            let mut frames = vec![];
            records::begin_calls(&self.info, shown, made_before, &mut frames);
            let start = Start::of(StartKind::Calls, shown.agent.head, event);
            self.starts.take(lane, start, &mut frames);
            out.append(&mut frames);
        }
    }

    /// The agents that were seen, from the main agent down to this one.
    fn at_or_above(&self, origin: &Origin) -> Vec<Lane> {
        let is_above = |shown: &&ShownAgent| origin.namespace.starts_with(&shown.agent.origin.namespace);
        let mut above: Vec<&ShownAgent> = self.agents.values().filter(is_above).collect();
        above.sort_by_key(|shown| shown.agent.origin.namespace.len());
        above.into_iter().map(|shown| shown.agent.origin.lane).collect()
    }
}
