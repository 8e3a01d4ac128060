//! The state of the queue as this process knows it from its last look.

use std::sync::atomic::{AtomicBool, Ordering};

/// The state of the queue. All changes are in one order: either the end of a run finds that runs are queued, or the look that has
/// found them finds that a run has ended since it began.
#[derive(Debug, Default)]
pub(super) struct QueueState {
    /// True if no run was queued at the last look, and none was queued here since. A run of another process that no look has
    /// found yet is not counted: its notification causes the look.
    is_empty: AtomicBool,
    /// True if a slot has become free since the last look began.
    is_freed: AtomicBool,
}

impl QueueState {
    /// Notes that a look begins. A run that is queued meanwhile is noted after that.
    pub(super) fn begin_look(&self) {
        self.is_empty.store(true, Ordering::SeqCst);
        self.is_freed.store(false, Ordering::SeqCst);
    }

    /// Notes that a run may be queued.
    pub(super) fn note_queued(&self) {
        self.is_empty.store(false, Ordering::SeqCst);
    }

    /// Notes that a look has found runs that wait. Returns whether another look is necessary: a run has ended since this one began,
    /// and perhaps after it had read that others wait for that run.
    pub(super) fn note_waiting(&self) -> bool {
        self.note_queued();
        self.is_freed.load(Ordering::SeqCst)
    }

    /// Notes that a slot is free. Returns whether a run may be queued that waits for it.
    pub(super) fn note_free_slot(&self) -> bool {
        self.is_freed.store(true, Ordering::SeqCst);
        !self.is_empty.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_needs_a_look_only_if_a_run_may_be_queued() {
        let queue = QueueState::default();
        assert!(queue.note_free_slot(), "nothing has looked yet");
        queue.begin_look();
        assert!(!queue.note_free_slot());
        queue.note_queued();
        assert!(queue.note_free_slot());
    }

    #[test]
    fn a_run_that_ends_during_a_look_that_finds_others_needs_another_look() {
        let queue = QueueState::default();
        queue.begin_look();
        assert!(!queue.note_free_slot());
        assert!(queue.note_waiting());
        queue.begin_look();
        assert!(!queue.note_waiting());
        assert!(queue.note_free_slot());
    }
}
