//! Runs that end with their clients, and whose clients do not know of them: the database did not say whether the run is
//! stored, or the client disconnected before it was answered. Nobody follows such a run, so nobody would cancel it.
//!
//! This process looks for it, and cancels it once it is stored: often at first, and then from time to time, since the
//! database may store a commit long after it was given up here. A process that ends forgets these runs, as it forgets which
//! clients follow its runs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::retry::TransactionError;
use super::{CancelAction, CancelError, Runs, StartError};
use crate::db::{self, DbError, DbResult, RowAccess, warn_of};
use crate::domain::id::RunId;
use crate::domain::run::Run;

/// The time for which looks are frequent. Most commits that still arrive do so earlier.
const ARRIVAL: Duration = Duration::from_secs(5);
/// The pause between frequent looks.
const FREQUENT: Duration = Duration::from_millis(250);
/// The time after which a run counts as not stored.
const KEPT: Duration = Duration::from_secs(600);
/// The most runs that are looked for at a time.
const MOST: usize = 1_000;

/// The runs that are to be cancelled once they are stored.
#[derive(Debug, Default)]
pub(super) struct UnheardRuns(Mutex<Unheard>);

#[derive(Debug, Default)]
struct Unheard {
    /// The runs, each with the time since which it is looked for.
    since: BTreeMap<RunId, Instant>,
    /// True while a task looks for them.
    is_looking: bool,
}

impl UnheardRuns {
    /// Adds a run. Returns false if a task looks for such runs already; otherwise the caller has to start it.
    fn add(&self, run: RunId) -> bool {
        let mut unheard = self.unheard();
        unheard.since.insert(run, Instant::now());
        if unheard.since.len() > MOST {
            // The ids of runs grow with the time.
            unheard.since.pop_first();
        }
        !std::mem::replace(&mut unheard.is_looking, true)
    }

    /// Returns the pause before the next look; none if there is nothing to look for, and the task ends. `longest` is the pause
    /// between looks that are not frequent.
    fn pause(&self, longest: Duration) -> Option<Duration> {
        let mut unheard = self.unheard();
        unheard.since.retain(|_, since| since.elapsed() < KEPT);
        if unheard.since.is_empty() {
            unheard.is_looking = false;
            return None;
        }
        let is_new = |since: &Instant| since.elapsed() < ARRIVAL;
        Some(match unheard.since.values().any(is_new) {
            true => FREQUENT,
            false => longest,
        })
    }

    /// Returns the runs to look for.
    fn all(&self) -> Vec<RunId> {
        self.unheard().since.keys().copied().collect()
    }

    fn forget(&self, run: RunId) {
        self.unheard().since.remove(&run);
    }

    fn unheard(&self) -> MutexGuard<'_, Unheard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run whose client has not been answered yet. If this is dropped before, the run is cancelled once it is stored.
pub(super) struct UnansweredRun {
    runs: Runs,
    run: RunId,
    is_settled: bool,
}

impl UnansweredRun {
    pub(super) fn new(runs: &Runs, run: RunId) -> Self {
        Self {
            runs: runs.clone(),
            run,
            is_settled: false,
        }
    }

    /// Leaves the run alone if its client learns of it, or if it is certain that the run is not stored.
    pub(super) fn settle(mut self, started: &Result<Run, StartError>) {
        let fault = started.as_ref().err().and_then(TransactionError::fault);
        self.is_settled = !matches!(fault, Some(DbError::Unavailable(_)));
    }
}

impl Drop for UnansweredRun {
    fn drop(&mut self) {
        if !self.is_settled {
            self.runs.cancel_once_stored(self.run);
        }
    }
}

impl Runs {
    /// Cancels a run once it is stored, if it is.
    fn cancel_once_stored(&self, run: RunId) {
        if self.core.unheard.add(run) {
            let runs = self.clone();
            // The runs of all tenants are looked for by one task.
            let looking = RowAccess::Server.scope(async move { runs.cancel_unheard_runs().await });
            drop(self.core.spawn("unheard runs", looking));
        }
    }

    async fn cancel_unheard_runs(&self) {
        let soft = self.core.shutdown.soft().clone();
        while let Some(pause) = self.core.unheard.pause(self.core.longest_sleep()) {
            if soft.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
            self.look_for_unheard_runs().await;
        }
    }

    async fn look_for_unheard_runs(&self) {
        for run in self.core.unheard.all() {
            match self.cancel_unheard(run).await {
                Ok(true) => self.core.unheard.forget(run),
                Ok(false) => {}
                Err(error) => {
                    warn_of!(error, %run, "could not cancel a run whose client does not know of it");
                    if error.is_out_of_reach() {
                        return;
                    }
                }
            }
        }
    }

    /// Cancels a run, if it is stored. Returns whether it is over.
    async fn cancel_unheard(&self, run: RunId) -> DbResult<bool> {
        let read = self.core.db.read(move |tx| Box::pin(db::access::run_thread(tx, run)));
        let Some(thread) = read.await? else {
            return Ok(false);
        };
        match self.cancel(thread, run, CancelAction::Interrupt).await {
            // It may not be driven yet, so the next look cancels it again.
            Ok(()) | Err(CancelError::NoRun) => Ok(false),
            Err(CancelError::Over | CancelError::NoUndo) => Ok(true),
            Err(CancelError::Fault(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_run_is_looked_for_often_at_first_and_not_for_ever() {
        let unheard = UnheardRuns::default();
        assert_eq!(unheard.pause(LONGEST), None);
        let run = RunId::mint();
        assert!(unheard.add(run), "a task has to be started");
        assert!(!unheard.add(run), "it looks for all of them");
        assert_eq!(unheard.pause(LONGEST), Some(FREQUENT));
        tokio::time::advance(ARRIVAL).await;
        assert_eq!(unheard.pause(LONGEST), Some(LONGEST));
        assert_eq!(unheard.all(), [run]);
        tokio::time::advance(KEPT).await;
        assert_eq!(unheard.pause(LONGEST), None);
        assert!(unheard.add(RunId::mint()), "the task has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_runs_are_looked_for() {
        let unheard = UnheardRuns::default();
        let runs: Vec<RunId> = (0..=MOST).map(|_| RunId::mint()).collect();
        for run in &runs {
            unheard.add(*run);
        }
        assert_eq!(unheard.all().len(), MOST);
        let newest = runs.iter().max().expect("a run");
        assert!(unheard.all().contains(newest));
        unheard.forget(*newest);
        assert!(!unheard.all().contains(newest));
    }
}
