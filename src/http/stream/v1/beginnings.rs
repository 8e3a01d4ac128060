//! What was shown to begin before the log said so.
//!
//! That a step begins is volatile: whoever joins late, or comes back, learns of it only from what came of the step. So the
//! frames of a beginning are counted like the pieces of an answer, and a reader brings back how many of them he has seen.

use std::collections::HashMap;

use super::lane::{Ahead, LaneView};
use super::steps::Coming;
use super::{Presenter, records};
use crate::domain::checkpoint::{Lane, Source};
use crate::domain::event::{Event, EventBody, Fact, Work};
use crate::domain::id::CheckpointId;
use crate::domain::machine::TOOLS;
use crate::http::stream::frame::{Frame, Said};

/// What kind of beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The tasks after a checkpoint, and the checkpoint itself.
    Tasks = 1,
    /// The records of calls.
    Calls = 2,
}

/// The beginnings that one reader was shown.
#[derive(Default)]
pub(super) struct Beginnings {
    /// Those of steps that are not done.
    open: Vec<(Lane, Said)>,
    /// How much the reader saw of beginnings when he was here before.
    heard: HashMap<u32, u32>,
}

impl Beginnings {
    pub(super) fn recall(&mut self, said: &[Said]) {
        self.heard = said.iter().map(|said| (said.answer, said.much)).collect();
    }

    /// Takes the `frames` by which the step after `head` begins; `stored` when they come with an event that is stored, so
    /// that other readers may have had them before. Leaves those that this reader still lacks.
    pub(super) fn take(
        &mut self,
        lane: Lane,
        (kind, head): (Kind, Option<CheckpointId>),
        stored: bool,
        frames: &mut Vec<Frame>,
    ) {
        let key = key(kind, head);
        let heard = if stored {
            self.heard.remove(&key).unwrap_or(0)
        } else {
            0
        };
        frames.drain(..frames.len().min(usize::try_from(heard).unwrap_or(usize::MAX)));
        let mut much = heard;
        for frame in frames.iter_mut() {
            much += 1;
            frame.said = Some(Said { answer: key, much });
            frame.belated = stored;
        }
        if much > 0 {
            self.open.push((lane, Said { answer: key, much }));
        }
    }

    /// The step of an agent is done: nobody needs to remember how it began.
    pub(super) fn finish(&mut self, lane: Lane) {
        self.open.retain(|(other, _)| *other != lane);
    }

    pub(super) fn open(&self) -> impl Iterator<Item = Said> {
        self.open.iter().map(|(_, said)| *said)
    }
}

/// Stands for a beginning. The same in every process, since clients bring it back.
fn key(kind: Kind, head: Option<CheckpointId>) -> u32 {
    let head = head.map_or([0; 16], |head| *head.0.as_bytes());
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    [kind as u8].into_iter().chain(head).fold(0x811c_9dc5, hash)
}

impl Presenter {
    /// Shows the tasks that are known to have begun now that `event` is here: its own agent's, and the calls of the
    /// agents above it.
    pub(super) fn begin_tasks(&mut self, event: &Event, out: &mut Vec<Frame>) {
        let below = &event.origin.namespace;
        let mut ready: Vec<(Lane, Coming, Ahead)> = self
            .lanes
            .iter_mut()
            .filter(|(_, view)| below.starts_with(&view.origin.namespace))
            .filter_map(|(lane, view)| {
                let is_own = *lane == event.origin.lane;
                let coming = if is_own {
                    Coming::told_by(event, view)
                } else {
                    Coming::Calls
                };
                Some((*lane, coming, view.ahead.take()?))
            })
            .collect();
        ready.sort_by_key(|(lane, ..)| self.lanes.get(lane).map_or(0, |view| view.origin.namespace.len()));
        for (lane, coming, ahead) in ready {
            if let Some(view) = self.lanes.get(&lane) {
                let mut frames = vec![];
                self.steps(event.at).begin(view, &ahead, &coming, &mut frames);
                self.beginnings
                    .take(lane, (Kind::Tasks, view.head), event.body.is_stored(), &mut frames);
                out.append(&mut frames);
            }
        }
    }

    /// Records that calls begin, now that `event` tells it: those of its own agent, or those of the agents above it.
    pub(super) fn begin_calls(&mut self, event: &Event, out: &mut Vec<Frame>) {
        let below = &event.origin.namespace;
        let tells = |view: &LaneView| {
            let is_own = view.origin.lane == event.origin.lane;
            below.starts_with(&view.origin.namespace) && !view.calls_begun && (!is_own || tells_of_calls(&event.body))
        };
        let mut ready: Vec<&mut LaneView> = self.lanes.values_mut().filter(|view| tells(view)).collect();
        ready.sort_by_key(|view| view.origin.namespace.len());
        for view in ready {
            view.calls_begun = true;
            let made_before = match &event.body {
                EventBody::Entry(entry) if view.origin.lane == event.origin.lane => entry.shown.as_slice(),
                EventBody::Entry(_)
                | EventBody::Fact(_)
                | EventBody::Delta(_)
                | EventBody::Begun(_)
                | EventBody::Output { .. } => &[],
            };
            let mut frames = vec![];
            records::begin_calls(&self.facts, view, made_before, &mut frames);
            self.beginnings.take(
                view.origin.lane,
                (Kind::Calls, view.head),
                event.body.is_stored(),
                &mut frames,
            );
            out.append(&mut frames);
        }
    }
}

/// Whether an event tells that its agent makes calls.
fn tells_of_calls(body: &EventBody) -> bool {
    match body {
        EventBody::Output { .. } | EventBody::Fact(Fact::Calling { .. } | Fact::Answered { .. }) => true,
        EventBody::Entry(entry) => entry.source == Source::Loop && entry.node == TOOLS,
        EventBody::Begun(Work::Model | Work::Program)
        | EventBody::Delta(_)
        | EventBody::Fact(
            Fact::Started { .. }
            | Fact::Asked { .. }
            | Fact::BrokenOff { .. }
            | Fact::Paused
            | Fact::Undone
            | Fact::Custom { .. }
            | Fact::Ended { .. },
        ) => false,
    }
}
