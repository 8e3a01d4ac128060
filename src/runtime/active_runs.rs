//! The runs of main agents at work in this process, each with the tokens that end its loop.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::cancel_action::CancelAction;
use crate::domain::id::RunId;

/// The runs of main agents at work in this process.
#[derive(Default)]
pub(super) struct ActiveRuns {
    runs: Mutex<HashMap<RunId, ActiveRun>>,
    /// Notified when a run was removed.
    removed: Notify,
}

/// A run at work in this process.
pub(super) struct ActiveRun {
    stop: CancellationToken,
    /// Cancelled when this process leaves the run to the next one, as it also does on shutdown.
    leave: CancellationToken,
    wanted: Option<CancelAction>,
}

impl ActiveRun {
    pub(super) fn new(stop: CancellationToken, leave: CancellationToken) -> Self {
        Self {
            stop,
            leave,
            wanted: None,
        }
    }

    /// Stops the work on the run in this process, which has lost the run: another one goes on with it, and with what was begun
    /// for it elsewhere.
    fn stop_as_lost(&self) {
        self.leave.cancel();
        self.stop.cancel();
    }
}

impl ActiveRuns {
    /// Registers a run that is at work in this process. Returns `new` if the run is still registered under an earlier
    /// claim: another process took the run and lost it again before the loop in this process noticed. The earlier loop
    /// is cancelled then.
    pub(super) fn register(&self, run: RunId, new: ActiveRun) -> Option<ActiveRun> {
        let mut runs = self.runs();
        if let Some(old) = runs.get(&run) {
            old.stop_as_lost();
            return Some(new);
        }
        runs.insert(run, new);
        None
    }

    /// Registers a run that [`Self::register`] has returned, once the loop of its earlier claim has ended.
    pub(super) async fn register_later(&self, run: RunId, new: ActiveRun) {
        self.wait_until_ended(|other| other == run).await;
        self.runs().insert(run, new);
    }

    /// Removes a run whose loop has ended.
    pub(super) fn remove(&self, run: RunId) {
        self.runs().remove(&run);
        self.removed.notify_waiters();
    }

    /// Stops a run. Returns false if it is not at work in this process.
    pub(super) fn stop(&self, run: RunId, action: CancelAction) -> bool {
        let mut runs = self.runs();
        let Some(active) = runs.get_mut(&run) else {
            return false;
        };
        active.wanted.get_or_insert(action);
        active.stop.cancel();
        true
    }

    /// Stops all runs, because this process has lost them. Returns the number of those that were not stopped before.
    pub(super) fn stop_all_as_lost(&self) -> usize {
        let mut lost = 0;
        for active in self.runs().values().filter(|active| !active.stop.is_cancelled()) {
            active.stop_as_lost();
            lost += 1;
        }
        lost
    }

    /// Returns the first cancellation of a run that was requested here; none if it stops for another reason.
    pub(super) fn wanted(&self, run: RunId) -> Option<CancelAction> {
        self.runs().get(&run).and_then(|active| active.wanted)
    }

    /// Returns whether the run is at work in this process.
    pub(super) fn has(&self, run: RunId) -> bool {
        self.runs().contains_key(&run)
    }

    /// Returns the number of runs.
    pub(super) fn count(&self) -> usize {
        self.runs().len()
    }

    /// Waits until none of these runs is at work in this process.
    pub(super) async fn wait_until_ended(&self, concerns: impl Fn(RunId) -> bool) {
        loop {
            let mut removed = std::pin::pin!(self.removed.notified());
            // Registered before the check: a run that ends right after the check would be missed otherwise.
            removed.as_mut().enable();
            if !self.runs().keys().any(|run| concerns(*run)) {
                return;
            }
            removed.await;
        }
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, ActiveRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn active(stop: &CancellationToken) -> ActiveRun {
        ActiveRun::new(stop.clone(), CancellationToken::new())
    }

    #[tokio::test]
    async fn a_run_that_is_claimed_again_waits_for_its_earlier_loop() {
        let runs = ActiveRuns::default();
        let run = RunId::mint();
        let earlier = CancellationToken::new();
        let later = CancellationToken::new();
        assert!(runs.register(run, active(&earlier)).is_none());
        let late = runs.register(run, active(&later)).expect("it is registered already");
        assert!(earlier.is_cancelled() && !later.is_cancelled());
        let mut registering = std::pin::pin!(runs.register_later(run, late));
        assert!(
            registering.as_mut().now_or_never().is_none(),
            "the earlier loop is at work"
        );
        runs.remove(run);
        registering.await;
        assert!(runs.stop(run, CancelAction::Interrupt) && later.is_cancelled());
    }

    #[test]
    fn the_first_request_to_cancel_a_run_counts() {
        let runs = ActiveRuns::default();
        let run = RunId::mint();
        assert!(!runs.stop(run, CancelAction::Interrupt));
        runs.register(run, active(&CancellationToken::new()));
        assert!(runs.stop(run, CancelAction::Rollback) && runs.stop(run, CancelAction::Interrupt));
        assert_eq!(runs.wanted(run), Some(CancelAction::Rollback));
    }

    #[test]
    fn a_process_without_a_lease_loses_each_run_once() {
        let runs = ActiveRuns::default();
        runs.register(RunId::mint(), active(&CancellationToken::new()));
        runs.register(RunId::mint(), active(&CancellationToken::new()));
        assert_eq!(runs.stop_all_as_lost(), 2);
        assert_eq!(runs.stop_all_as_lost(), 0);
        assert_eq!(runs.count(), 2, "their loops have not ended yet");
    }
}
