//! Frames about the start of steps that were sent before the log contained the step.
//!
//! The start of a step is volatile: a reader that joins late or resumes learns of it only from the step's results. So
//! the frames of a start are counted like the chunks of an answer, and a resuming reader reports how many of them it
//! has received.

use std::collections::HashMap;

use super::agent::PresentedAgent;
use super::next_tasks::NextTasks;
use super::{StreamMode, V1Presenter, tool_events, trace_records};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{Event, EventBody, Origin};
use crate::domain::id::CheckpointId;
use crate::http::stream::frame::{AnswerOffset, Cursor, Frame};

/// The kind of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartKind {
    /// The tasks after a checkpoint, shown with the checkpoint itself.
    Tasks = 1,
    /// The records of tool calls.
    Calls = 2,
    /// The tool calls in the mode `tools`.
    Tools = 3,
}

/// The start of a step, and whether it is late.
pub(super) struct Start {
    /// The key of the step, as that of an answer.
    key: u32,
    /// True if it is sent with another event than the start itself, so that other readers may have received it before.
    is_late: bool,
}

impl Start {
    /// The start of the step after `head`, as `event` reveals it. An agent that starts again after a takeover begins the step
    /// again, which then is another start.
    fn of(kind: StartKind, head: Option<CheckpointId>, attempts: u32, event: &Event) -> Self {
        let head = head.map_or([0; 16], |head| *head.0.as_bytes());
        let again = (attempts > 1).then(|| attempts.to_le_bytes());
        let name = [kind as u8].into_iter().chain(head);
        Self {
            key: AnswerOffset::key_of(name.chain(again.into_iter().flatten())),
            is_late: !matches!(event.body, EventBody::Begun(_)),
        }
    }
}

/// The starts that were sent to one reader.
#[derive(Default)]
pub(super) struct SeenStarts {
    /// The starts of unfinished steps.
    open: Vec<(Lane, u32)>,
    /// The starts of the steps that have finished since they were asked for.
    finished: Vec<u32>,
    /// The number of frames of each start that the reader received on an earlier connection.
    resume_counts: HashMap<u32, u32>,
}

impl SeenStarts {
    pub(super) fn resume(&mut self, answers: &[AnswerOffset]) {
        self.resume_counts = answers.iter().map(|answer| (answer.answer, answer.offset)).collect();
    }

    /// Takes the `frames` of a start, and leaves those that this reader has not received.
    fn take(&mut self, lane: Lane, start: Start, frames: &mut Vec<Frame>) {
        let Start { key, is_late } = start;
        let received = if is_late {
            self.resume_counts.remove(&key).unwrap_or(0)
        } else {
            0
        };
        frames.drain(..frames.len().min(usize::try_from(received).unwrap_or(usize::MAX)));
        let mut offset = received;
        for frame in frames.iter_mut() {
            offset += 1;
            frame.progress = Some(AnswerOffset {
                answer: key,
                offset,
                cut: None,
            });
            frame.is_late = is_late;
        }
        if offset > 0 {
            self.open.push((lane, key));
        }
    }

    /// Forgets the start of an agent's finished step.
    pub(super) fn finish(&mut self, lane: Lane) {
        let Self { open, finished, .. } = self;
        finished.extend(open.iter().filter(|(other, _)| *other == lane).map(|(_, key)| *key));
        open.retain(|(other, _)| *other != lane);
    }

    /// Takes the starts of steps that have finished since the last call.
    pub(super) fn take_finished(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.finished)
    }
}

impl V1Presenter {
    /// Sends the tasks whose start `event` reveals: those of its own agent, and the calls of the agents above it.
    pub(super) fn start_tasks(&mut self, event: &Event, out: &mut Vec<Frame>) {
        if self.is_passed(event) {
            return;
        }
        for lane in self.at_or_above(&event.origin) {
            let Some(agent) = self.agents.get_mut(&lane) else {
                continue;
            };
            let Some(pending) = agent.pending.take() else {
                continue;
            };
            let next = if lane == event.origin.lane {
                NextTasks::inferred_from(&event.body, agent.fold.base)
            } else {
                NextTasks::Calls
            };
            let head = agent.fold.head;
            let attempts = agent.attempts;
            let mut frames = vec![];
            if let Some(agent) = self.agents.get(&lane) {
                self.steps(event.at).begin(agent, &pending, &next, &mut frames);
            }
            let start = Start::of(StartKind::Tasks, head, attempts, event);
            self.starts.take(lane, start, &mut frames);
            out.append(&mut frames);
        }
    }

    /// Sends the calls whose start `event` reveals: those of its own agent, or of the agents above it.
    pub(super) fn start_calls(&mut self, event: &Event, out: &mut Vec<Frame>) {
        if self.is_passed(event) {
            return;
        }
        for lane in self.at_or_above(&event.origin) {
            let is_own = lane == event.origin.lane;
            let Some(agent) = self.agents.get(&lane) else {
                continue;
            };
            if agent.calls_started || is_own && !NextTasks::are_calls(&event.body) {
                continue;
            }
            let made_before = match &event.body {
                EventBody::Entry(entry) if is_own => entry.logged_writes.as_slice(),
                EventBody::Entry(_)
                | EventBody::Fact(_)
                | EventBody::Delta(_)
                | EventBody::Begun(_)
                | EventBody::Output { .. } => &[],
            };
            let head = agent.fold.head;
            let attempts = agent.attempts;
            let mut records = vec![];
            if self.modes.has(StreamMode::Events) {
                trace_records::start_calls(&self.info, agent, made_before, &mut records);
            }
            let mut calls = vec![];
            if self.modes_for(&agent.fold.origin).has(StreamMode::Tools) {
                tool_events::start_calls(agent, made_before, &mut calls);
            }
            if let Some(agent) = self.agents.get_mut(&lane) {
                agent.calls_started = true;
            }
            for (kind, mut frames) in [(StartKind::Calls, records), (StartKind::Tools, calls)] {
                self.starts
                    .take(lane, Start::of(kind, head, attempts, event), &mut frames);
                out.append(&mut frames);
            }
        }
    }

    /// Returns true for an event that is not stored and lies before the position from which the reader resumes. The reader may
    /// have read the later events without it, so the start comes with the next event, without the frames that the reader has.
    fn is_passed(&self, event: &Event) -> bool {
        !event.body.is_stored() && self.seen.is_some_and(|seen| seen >= Cursor::after(event.seq))
    }

    /// The known agents from the main agent down to this one.
    fn at_or_above(&self, origin: &Origin) -> Vec<Lane> {
        let is_above = |agent: &&PresentedAgent| origin.namespace.starts_with(&agent.fold.origin.namespace);
        let mut above: Vec<&PresentedAgent> = self.agents.values().filter(is_above).collect();
        above.sort_by_key(|agent| agent.fold.origin.namespace.len());
        above.into_iter().map(|agent| agent.fold.origin.lane).collect()
    }
}
