//! Runs that end with their clients, and whose clients do not know of them: the database did not say whether the run is
//! stored, or the client disconnected before it was answered. Nobody follows such a run, so nobody would cancel it.
//!
//! This process looks for it, and cancels it once it is stored: often at first, and then from time to time, since the
//! database may store a commit long after it was given up here. A process that ends forgets these runs, as it forgets which
//! clients follow its runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::retry::TransactionError;
use super::{CancelAction, CancelError, Runs, StartError};
use crate::db::{self, DbError, DbResult, RowAccess, warn_of};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::Run;

/// The time for which looks are frequent. Most commits that still arrive do so earlier.
const ARRIVAL: Duration = Duration::from_secs(5);
/// The pause between frequent looks.
const FREQUENT: Duration = Duration::from_millis(250);
/// The time after the first look after which a run is not looked for any more. Looks while the database is away do not count.
const KEPT: Duration = Duration::from_secs(600);
/// The most runs that are looked for at a time.
const MOST: usize = 1_000;

/// A flag that says whether the transaction that stores a run may have been committed. The transaction has a clone while it is
/// in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct Written(Arc<AtomicBool>);

impl Written {
    /// Notes that the transaction has written the run, and is about to be committed.
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_noted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Returns false if it is certain that the run is not stored, and will not be.
    fn may_be_stored(&mut self) -> bool {
        // Without other clones no transaction is in progress.
        Arc::get_mut(&mut self.0).is_none_or(|is_written| *is_written.get_mut())
    }
}

/// The runs that are to be cancelled once they are stored.
#[derive(Debug, Default)]
pub(super) struct UnheardRuns(Mutex<Unheard>);

#[derive(Debug, Default)]
struct Unheard {
    runs: BTreeMap<RunId, UnheardRun>,
    /// True while a task looks for them.
    is_looking: bool,
}

/// A run that is looked for.
#[derive(Debug)]
struct UnheardRun {
    since: Instant,
    written: Written,
    /// The time of the first look that the database answered.
    first_look: Option<Instant>,
    /// True if the last look has found it.
    is_found: bool,
}

impl UnheardRuns {
    /// Adds a run. Returns true if the caller has to start the task that looks for such runs.
    fn add(&self, run: RunId, written: Written) -> bool {
        let mut unheard = self.unheard();
        if unheard.runs.len() >= MOST {
            tracing::warn!(%run, "too many runs whose clients do not know of them; this one is not cancelled");
            return false;
        }
        let added = UnheardRun {
            since: Instant::now(),
            written,
            first_look: None,
            is_found: false,
        };
        unheard.runs.insert(run, added);
        !std::mem::replace(&mut unheard.is_looking, true)
    }

    /// Returns the pause before the next look; none if there is nothing to look for, and the task ends. `longest` is the pause
    /// between looks that are not frequent.
    fn pause(&self, longest: Duration) -> Option<Duration> {
        let mut unheard = self.unheard();
        unheard.runs.retain(|_, unheard| unheard.written.may_be_stored());
        if unheard.runs.is_empty() {
            unheard.is_looking = false;
            return None;
        }
        let is_new = |unheard: &UnheardRun| unheard.since.elapsed() < ARRIVAL;
        Some(match unheard.runs.values().any(is_new) {
            true => FREQUENT,
            false => longest,
        })
    }

    /// Returns the runs to look for.
    fn all(&self) -> Vec<RunId> {
        self.unheard().runs.keys().copied().collect()
    }

    /// Notes which of these runs a look has found that began then. Those that were found before, and are gone, are forgotten,
    /// and those that were looked for long enough.
    fn looked(&self, looked_for: &[RunId], found: &[(RunId, ThreadId)], began: Instant) {
        let mut unheard = self.unheard();
        for run in looked_for {
            let Some(known) = unheard.runs.get_mut(run) else {
                continue;
            };
            let is_found = found.iter().any(|(stored, _)| stored == run);
            let first = *known.first_look.get_or_insert(began);
            let is_gone = known.is_found && !is_found;
            known.is_found = is_found;
            if is_gone || began.duration_since(first) >= KEPT {
                unheard.runs.remove(run);
            }
        }
    }

    fn forget(&self, run: RunId) {
        self.unheard().runs.remove(&run);
    }

    fn unheard(&self) -> MutexGuard<'_, Unheard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run whose client has not been answered yet. If this is dropped before, the run is cancelled once it is stored.
pub(super) struct UnansweredRun {
    runs: Runs,
    run: RunId,
    written: Written,
    is_settled: bool,
}

impl UnansweredRun {
    pub(super) fn new(runs: &Runs, run: RunId, written: &Written) -> Self {
        Self {
            runs: runs.clone(),
            run,
            written: written.clone(),
            is_settled: false,
        }
    }

    /// Leaves the run alone if its client learns of it, or if it is certain that the run is not stored.
    pub(super) fn settle(mut self, started: &Result<Run, StartError>) {
        let fault = started.as_ref().err().and_then(TransactionError::fault);
        let may_be_stored = matches!(fault, Some(DbError::Unavailable(_))) && self.written.is_noted();
        self.is_settled = !may_be_stored;
    }
}

impl Drop for UnansweredRun {
    fn drop(&mut self) {
        if !self.is_settled {
            self.runs.cancel_once_stored(self.run, self.written.clone());
        }
    }
}

impl Runs {
    /// Cancels a run once it is stored, if it is.
    fn cancel_once_stored(&self, run: RunId, written: Written) {
        if self.core.unheard.add(run, written) {
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
            if let Err(error) = self.look_for_unheard_runs().await {
                warn_of!(error, "could not look for runs whose clients do not know of them");
            }
        }
    }

    async fn look_for_unheard_runs(&self) -> DbResult<()> {
        let all = self.core.unheard.all();
        let began = Instant::now();
        let wanted = all.clone();
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { db::runs::threads_of(tx, &wanted).await }));
        let found = read.await?;
        for (run, thread) in &found {
            match self.cancel(*thread, *run, CancelAction::Interrupt).await {
                // It may not be driven yet, so the next look cancels it again.
                Ok(()) | Err(CancelError::NoRun) => {}
                Err(CancelError::Over | CancelError::NoUndo) => self.core.unheard.forget(*run),
                Err(CancelError::Fault(error)) if error.is_out_of_reach() => return Err(error),
                Err(CancelError::Fault(error)) => {
                    tracing::warn!(%run, %error, "could not cancel a run whose client does not know of it");
                }
            }
        }
        self.core.unheard.looked(&all, &found, began);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    /// Adds a run that may be stored. Returns it, and whether a task has to be started.
    fn added(unheard: &UnheardRuns) -> (RunId, bool) {
        let run = RunId::mint();
        let written = Written::default();
        written.note();
        (run, unheard.add(run, written))
    }

    /// Looks for all runs, and finds these.
    fn look(unheard: &UnheardRuns, found: &[RunId]) {
        let found: Vec<_> = found.iter().map(|run| (*run, ThreadId::mint())).collect();
        unheard.looked(&unheard.all(), &found, Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_looked_for_often_at_first_and_not_for_ever() {
        let unheard = UnheardRuns::default();
        assert_eq!(unheard.pause(LONGEST), None);
        let (run, has_to_start) = added(&unheard);
        assert!(has_to_start, "a task has to be started");
        assert_eq!(unheard.pause(LONGEST), Some(FREQUENT));
        tokio::time::advance(ARRIVAL).await;
        assert_eq!(unheard.pause(LONGEST), Some(LONGEST));
        // The database is away.
        tokio::time::advance(KEPT).await;
        look(&unheard, &[]);
        assert_eq!(unheard.all(), [run]);
        tokio::time::advance(KEPT).await;
        let (later, has_to_start) = added(&unheard);
        assert!(!has_to_start, "one task looks for all of them");
        look(&unheard, &[]);
        assert_eq!(unheard.all(), [later]);
        unheard.forget(later);
        assert_eq!(unheard.pause(LONGEST), None);
        assert!(added(&unheard).1, "the task has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_certainly_not_stored_is_not_looked_for() {
        let unheard = UnheardRuns::default();
        let in_progress = Written::default();
        unheard.add(RunId::mint(), in_progress.clone());
        assert_eq!(unheard.pause(LONGEST), Some(FREQUENT), "it may be stored yet");
        // The transaction was refused.
        drop(in_progress);
        assert_eq!(unheard.pause(LONGEST), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_gone_is_not_looked_for() {
        let unheard = UnheardRuns::default();
        let (run, _) = added(&unheard);
        look(&unheard, &[]);
        look(&unheard, &[run]);
        assert_eq!(unheard.all(), [run]);
        look(&unheard, &[]);
        assert_eq!(unheard.pause(LONGEST), None);
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_runs_are_looked_for_and_no_more() {
        let unheard = UnheardRuns::default();
        let mut runs: Vec<RunId> = (0..=MOST).map(|_| added(&unheard).0).collect();
        runs.truncate(MOST);
        runs.sort_unstable();
        assert_eq!(unheard.all(), runs);
    }
}
