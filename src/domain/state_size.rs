//! The size of the state of a loop, without measuring all of it at each step.
//!
//! The sizes of all writes are summed up, so the sum is at least the size of the state: replaced and removed values
//! stay counted. The state is measured again only when the sum exceeds a limit.

use std::sync::{Mutex, PoisonError};

use super::Invalid;
use super::failure::Failure;
use super::message::Message;
use super::size::{self, SizeLimits};
use super::state::{State, Update};

/// The upper bound of the size of one loop's state.
#[derive(Debug, Default)]
pub struct StateSize {
    limits: SizeLimits,
    sums: Mutex<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    /// The maximum size of the committed state; none before it was measured.
    state: Option<usize>,
    /// The size of the results that the current step will write.
    pending: usize,
}

impl Sums {
    /// Returns whether `more` bytes fit into the state, in addition to the pending results.
    fn has_room(&mut self, state: &State, more: usize, most: usize) -> bool {
        let needed = self.pending.saturating_add(more);
        let known = self.state.unwrap_or(usize::MAX);
        if known.saturating_add(needed) > most {
            self.state = Some(size::of_state(state));
        }
        self.state.unwrap_or(usize::MAX).saturating_add(needed) <= most
    }
}

impl StateSize {
    /// Creates a counter for a state that was not measured yet.
    pub fn new(limits: SizeLimits) -> Self {
        Self {
            limits,
            sums: Mutex::default(),
        }
    }

    /// Starts a step whose results are written together, or goes on with one that has results of `written` bytes.
    pub fn begin_step(&self, written: usize) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = std::mem::replace(&mut sums.pending, written);
        sums.state = sums.state.map(|known| known.saturating_add(pending));
    }

    /// Counts a result that will be written into `state`.
    ///
    /// # Errors
    /// If a file or the state would become too large; then nothing is counted.
    pub fn admit(&self, state: &State, writes: &Update) -> Result<(), Invalid> {
        self.limits.check_files(writes)?;
        let most = self.limits.state;
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let more = size::of_update(writes);
        if !sums.has_room(state, more, most) {
            let reason = format!(
                "would become larger than {most} bytes with this result of {more} bytes; delete files, or ask \
                 for less"
            );
            return Err(Invalid::new("the state", reason));
        }
        sums.pending += more;
        Ok(())
    }

    /// Counts a write that was not checked by [`StateSize::admit`].
    pub fn record(&self, writes: &Update) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let more = size::of_update(writes);
        sums.state = sums.state.map(|known| known.saturating_add(more));
    }

    /// Counts a message that was not checked by [`StateSize::admit`].
    pub fn record_message(&self, message: &Message) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let more = message.size();
        sums.state = sums.state.map(|known| known.saturating_add(more));
    }

    /// Returns whether the state, which has the results of the last step, is larger than `most` bytes. It is measured only if
    /// the sum of all writes is.
    pub fn exceeds(&self, state: &State, most: usize) -> bool {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sums.state.map(|known| known.saturating_add(sums.pending));
        if known.is_some_and(|known| known <= most) {
            return false;
        }
        let measured = size::of_state(state);
        sums.state = Some(measured);
        measured > most
    }

    /// Checks the size of the state, as [`StateSize::exceeds`] does.
    ///
    /// # Errors
    /// The state is too large.
    pub fn check(&self, state: &State) -> Result<(), Failure> {
        let most = self.limits.state;
        if !self.exceeds(state, most) {
            return Ok(());
        }
        let message = format!(
            "The state of the thread is larger than {most} bytes (the setting `[runtime] max_state_bytes`). Remove messages or files from it, or go on \
             with a new thread."
        );
        Err(Failure::new("StateTooLargeError", message))
    }
}

/// Returns the failure of [`StateSize::check`] for an agent that does not summarise its conversations.
pub fn without_summaries(failure: Failure) -> Failure {
    let hint = "The agent does not summarise the conversation (`summarization = false`), so no older messages leave it; if it \
                does, they can.";
    Failure {
        message: format!("{} {hint}", failure.message),
        ..failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: usize = 8 * 1024 * 1024;

    fn answer_of(length: usize) -> Update {
        Update::messages([Message::ai("x".repeat(length))])
    }

    #[test]
    fn results_of_one_step_count_together_and_removals_free_space() {
        let state_size = StateSize::default();
        let mut state = State::default();
        assert_eq!(state_size.check(&state), Ok(()));
        state_size.begin_step(0);
        for _ in 0..3 {
            let writes = answer_of(QUARTER);
            assert_eq!(state_size.admit(&state, &writes), Ok(()));
            state.apply(&writes);
        }
        // The results are pending until the step is over.
        let before = State::default();
        assert!(state_size.admit(&before, &answer_of(QUARTER)).is_err());
        state_size.begin_step(0);
        assert!(state_size.admit(&state, &answer_of(QUARTER)).is_err());
        state.messages = state.messages.recent()[..1].to_vec().into();
        assert_eq!(state_size.admit(&state, &answer_of(QUARTER)), Ok(()));
    }

    #[test]
    fn a_state_is_measured_only_when_its_writes_are_larger_than_the_limit() {
        let state_size = StateSize::default();
        let mut state = State::default();
        state.apply(&answer_of(QUARTER));
        assert!(!state_size.exceeds(&state, 2 * QUARTER));
        let writes = answer_of(2 * QUARTER);
        state.apply(&writes);
        assert!(!state_size.exceeds(&state, 2 * QUARTER), "nothing was recorded");
        state_size.record(&writes);
        assert!(state_size.exceeds(&state, 2 * QUARTER));
        state.messages = state.messages.recent()[..1].to_vec().into();
        assert!(!state_size.exceeds(&state, 2 * QUARTER));
        // The results of a step count although the next step has not begun.
        state_size.begin_step(0);
        let writes = answer_of(QUARTER);
        assert_eq!(state_size.admit(&state, &writes), Ok(()));
        state.apply(&writes);
        assert!(state_size.exceeds(&state, 2 * QUARTER));
    }

    #[test]
    fn results_that_a_step_had_before_an_interrupt_count() {
        let state_size = StateSize::default();
        let state = State::default();
        state_size.begin_step(3 * QUARTER);
        assert!(state_size.admit(&state, &answer_of(QUARTER)).is_err());
        assert_eq!(state_size.admit(&state, &answer_of(QUARTER / 2)), Ok(()));
    }

    #[test]
    fn results_that_are_in_the_state_count_once() {
        let state_size = StateSize::default();
        let mut state = State::default();
        assert_eq!(state_size.check(&state), Ok(()));
        state_size.begin_step(0);
        let writes = answer_of(2 * QUARTER);
        assert_eq!(state_size.admit(&state, &writes), Ok(()));
        state.apply(&writes);
        // The state has nothing of this any more, so that it is measured.
        state_size.record(&answer_of(2 * QUARTER));
        assert_eq!(state_size.check(&state), Ok(()));
    }

    #[test]
    fn a_state_that_models_answers_made_too_large_stops_the_loop() {
        let state_size = StateSize::default();
        let mut state = State::default();
        for _ in 0..3 {
            let writes = answer_of(QUARTER);
            state_size.record(&writes);
            state.apply(&writes);
            assert_eq!(state_size.check(&state), Ok(()));
        }
        let writes = answer_of(QUARTER);
        state_size.record(&writes);
        state.apply(&writes);
        assert_eq!(
            state_size.check(&state).map_err(|failure| failure.class),
            Err("StateTooLargeError".to_owned())
        );
    }
}
