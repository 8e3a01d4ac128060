//! The events from before a reader came, and what is left out of them: states that a later state replaces, and messages that
//! have left the newest state.

use std::collections::BTreeMap;

use crate::domain::checkpoint::Lane;
use crate::domain::message_list::MessageList;
use crate::domain::state::State;

/// The size of the states of one agent that are sent step by step, in bytes of JSON. Of those after them only the last one is
/// sent.
const STEP_BY_STEP_BYTES: usize = 1024 * 1024;

/// The part of a thread's log that was there when a reader came.
#[derive(Debug)]
pub struct Replay {
    /// The number of its last event.
    until: i64,
    /// The messages that have left the newest state of the main agent; none if they are sent, too.
    left: MessageList,
    lanes: BTreeMap<Lane, ReplayedStates>,
}

/// The states of one agent that were sent to a reader.
#[derive(Debug, Default)]
struct ReplayedStates {
    /// Their size.
    bytes: usize,
    /// The number of the agent's last step in the replay that clients see something of, once it is needed. It may not be
    /// known, which is -1.
    last_step: Option<i64>,
}

impl Replay {
    /// Creates the replay up to the event `until`. The messages that have left the main agent's state according to `left` are
    /// left out, and so are states that have them.
    pub fn new(until: i64, left: MessageList) -> Self {
        Self {
            until,
            left,
            lanes: BTreeMap::new(),
        }
    }

    /// The number of the last event.
    pub(super) fn last_seq(&self) -> i64 {
        self.until
    }

    /// Returns whether a message of an agent has left the agent's newest state.
    pub(super) fn has_left(&self, lane: Lane, message: &str) -> bool {
        lane == Lane::Main && self.left.has_left(message)
    }

    /// Returns whether the number of the agent's last step must be known.
    pub(super) fn lacks_last_step(&self, lane: Lane) -> bool {
        let states = self.lanes.get(&lane);
        states.is_some_and(|states| states.bytes >= STEP_BY_STEP_BYTES && states.last_step.is_none())
    }

    /// Sets the number of the agent's last step that clients see something of, if it is known. After such a step a live stream
    /// has the state, too, so a client that has lost its connection before that gets it when it resumes.
    pub(super) fn set_last_step(&mut self, lane: Lane, seq: Option<i64>) {
        self.lanes.entry(lane).or_default().last_step = Some(seq.unwrap_or(-1));
    }

    /// Returns whether the state of an agent after the event `seq` is left out.
    pub(super) fn leaves_out(&self, lane: Lane, seq: i64, state: Option<&State>) -> bool {
        let left = state.map_or(0, |state| state.messages.left_len());
        let is_former = lane == Lane::Main && left < self.left.left_len();
        let last = self.lanes.get(&lane).and_then(|states| states.last_step);
        is_former || last.is_some_and(|last| seq < last)
    }

    /// Counts the bytes of a state that was sent.
    pub(super) fn count(&mut self, lane: Lane, bytes: usize) {
        self.lanes.entry(lane).or_default().bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::id::RunId;

    const UNTIL: i64 = 100;

    #[test]
    fn after_the_first_states_of_an_agent_only_the_last_one_is_sent() {
        let mut replay = Replay::new(UNTIL, MessageList::default());
        let child = Lane::Child(RunId::mint());
        let state = State::default();
        for seq in [1, 3] {
            assert!(!replay.leaves_out(Lane::Main, seq, Some(&state)));
            assert!(!replay.lacks_last_step(Lane::Main));
            replay.count(Lane::Main, STEP_BY_STEP_BYTES * 2 / 3);
        }
        assert!(replay.lacks_last_step(Lane::Main) && !replay.lacks_last_step(child));
        replay.set_last_step(Lane::Main, Some(9));
        assert!(!replay.lacks_last_step(Lane::Main));
        assert!(replay.leaves_out(Lane::Main, 5, Some(&state)));
        assert!(!replay.leaves_out(child, 5, Some(&state)));
        assert!(!replay.leaves_out(Lane::Main, 9, Some(&state)));
        assert!(!replay.leaves_out(Lane::Main, 11, Some(&state)));
    }

    #[test]
    fn an_agent_without_a_known_last_step_has_all_its_states_sent() {
        let mut replay = Replay::new(UNTIL, MessageList::default());
        replay.count(Lane::Main, STEP_BY_STEP_BYTES);
        replay.set_last_step(Lane::Main, None);
        assert!(!replay.lacks_last_step(Lane::Main));
        assert!(!replay.leaves_out(Lane::Main, 5, None));
    }

    #[test]
    fn states_with_messages_that_have_left_are_left_out_of_the_main_agent() {
        let mut newest = State::default();
        newest.messages.count_left(3);
        let replay = Replay::new(UNTIL, newest.messages.without_messages());
        let older = State::default();
        assert!(replay.leaves_out(Lane::Main, 5, Some(&older)));
        assert!(!replay.leaves_out(Lane::Main, 5, Some(&newest)));
        assert!(!replay.leaves_out(Lane::Child(RunId::mint()), 5, Some(&older)));
    }
}
