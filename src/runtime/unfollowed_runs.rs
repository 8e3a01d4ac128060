//! Runs that end with their clients and have lost them, so that no client would cancel them.
//!
//! The client may not know of its run: the database did not say whether the run is stored, or the client disconnected before
//! it was answered. This process looks for such a run as for other [late commits](super::late_commits), and cancels it once it
//! is stored.
//!
//! Or the process has ended that the client was connected to. The process at work on the run cancels it then, unless a client
//! joins the run in time, at whatever process. For that the request of the run names the processes with its followers, and
//! the process at work looks from time to time whether they are still there. Of its own clients it knows which of them follow
//! the run. So does each process that a client has joined the run at: it is not named any more once its clients have left,
//! unless it is the last one, which cancels the run then. A process that ends forgets the runs that it looks for: the next
//! one begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::cancel_action::CancelAction;
use super::error::{CancelError, StartError};
use super::late_commits;
use super::retry::TransactionError;
use super::runs::Runs;
use crate::db::{self, DbError, DbResult, RowAccess, warn_of};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::Run;

mod followers;

use followers::{Following, FoundFollowers, following};

pub use followers::FollowingClient;

/// The pause between frequent looks.
const FREQUENT: Duration = Duration::from_millis(250);
/// The time after the first look after which a run is not looked for any more. Looks while the database is away do not count.
const KEPT: Duration = Duration::from_secs(600);
/// The time for which a run is left alone whose client was connected to a process that has ended: the client may join it.
const REJOIN: Duration = Duration::from_secs(10);
/// The pause between looks at a run whose followers are at other processes.
const FOLLOWED: Duration = Duration::from_secs(5);
/// The most runs that are looked for at a time: those whose clients may not know of them, and as many with followers at other
/// processes.
const MOST: usize = 1_000;

/// A flag that says whether the transaction that stores a run may have been committed. The transaction has a clone while it is
/// in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct CommitFlag(Arc<AtomicBool>);

impl CommitFlag {
    /// Sets the flag: the transaction has written the run, and is about to be committed.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
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
pub(super) struct UnfollowedRuns(Mutex<Unfollowed>);

#[derive(Debug, Default)]
struct Unfollowed {
    runs: BTreeMap<RunId, UnfollowedRun>,
    /// The numbers of clients of this process that follow runs.
    here: BTreeMap<RunId, usize>,
    /// True while a task looks for them.
    is_looking: bool,
}

/// A run that is looked for.
#[derive(Debug)]
struct UnfollowedRun {
    /// The time of the first look. Looks are frequent for a while from then on.
    since: Instant,
    /// True if the run is cancelled only if no process with followers is left.
    may_be_followed: bool,
    /// True if there was a process with followers at the last look, or a client of this process has followed it since.
    was_followed: bool,
    written: CommitFlag,
    /// The time of the first look that the database answered.
    first_look: Option<Instant>,
    /// True if the last look has found it.
    is_found: bool,
}

impl UnfollowedRuns {
    /// Adds a run whose client does not know of it. Returns true if the caller has to start the task that looks for such
    /// runs.
    fn add(&self, run: RunId, written: CommitFlag) -> bool {
        let added = UnfollowedRun {
            since: Instant::now(),
            may_be_followed: false,
            was_followed: false,
            written,
            first_look: None,
            is_found: false,
        };
        self.insert(run, added)
    }

    /// Adds a run whose client was connected to another process. Returns as [`UnfollowedRuns::add`].
    fn add_left(&self, run: RunId) -> bool {
        let written = CommitFlag::default();
        written.set();
        let added = UnfollowedRun {
            since: Instant::now() + REJOIN,
            may_be_followed: true,
            was_followed: false,
            written,
            first_look: None,
            is_found: false,
        };
        self.insert(run, added)
    }

    fn insert(&self, run: RunId, added: UnfollowedRun) -> bool {
        let mut unfollowed = self.unfollowed();
        let is_alike = |known: &&UnfollowedRun| known.may_be_followed == added.may_be_followed;
        if unfollowed.runs.values().filter(is_alike).count() >= MOST {
            tracing::warn!(%run, "too many runs that nobody follows; this one is not cancelled");
            return false;
        }
        // A run that is given back and taken up again has the time of its first takeover.
        unfollowed.runs.entry(run).or_insert(added);
        !std::mem::replace(&mut unfollowed.is_looking, true)
    }

    /// Returns the pause before the next look; none if there is nothing to look for, and the task ends. `longest` is the pause
    /// between looks that are not frequent.
    fn pause(&self, longest: Duration) -> Option<Duration> {
        let mut unfollowed = self.unfollowed();
        unfollowed
            .runs
            .retain(|_, unfollowed| unfollowed.written.may_be_stored());
        if unfollowed.runs.is_empty() {
            unfollowed.is_looking = false;
            return None;
        }
        let now = Instant::now();
        let is_new = |unfollowed: &UnfollowedRun| late_commits::is_likely(unfollowed.since, now);
        Some(match unfollowed.runs.values().any(is_new) {
            true => FREQUENT,
            false => longest,
        })
    }

    /// Returns the runs to look for now, each with whether it may be followed.
    fn due(&self) -> Vec<(RunId, bool)> {
        let now = Instant::now();
        let unfollowed = self.unfollowed();
        let due = unfollowed.runs.iter().filter(|(_, unfollowed)| unfollowed.since <= now);
        due.map(|(run, unfollowed)| (*run, unfollowed.may_be_followed))
            .collect()
    }

    /// Notes which processes have followers of a run that may be followed. Returns whether it is cancelled now. A run whose
    /// last process with followers has ended since the last look is left alone for a while: its client may join it.
    fn note_followers(&self, run: RunId, following: Following) -> bool {
        let mut unfollowed = self.unfollowed();
        if following == Following::Settled {
            unfollowed.runs.remove(&run);
            return false;
        }
        let Some(known) = unfollowed.runs.get_mut(&run) else {
            return false;
        };
        let was_followed = std::mem::replace(&mut known.was_followed, following == Following::Somewhere);
        if known.was_followed {
            known.since = Instant::now() + FOLLOWED;
            return false;
        }
        if was_followed {
            known.since = Instant::now() + REJOIN;
        }
        !was_followed
    }

    /// Notes which of these runs a look has found that began then. Those that were found before, and are gone, are forgotten,
    /// and those that were looked for long enough.
    fn looked(&self, looked_for: &[(RunId, bool)], found: &[(RunId, ThreadId)], began: Instant) {
        let mut unfollowed = self.unfollowed();
        for (run, _) in looked_for {
            let Some(known) = unfollowed.runs.get_mut(run) else {
                continue;
            };
            let is_found = found.iter().any(|(stored, _)| stored == run);
            let first = *known.first_look.get_or_insert(began);
            let is_gone = known.is_found && !is_found;
            known.is_found = is_found;
            if is_gone || began.duration_since(first) >= KEPT {
                unfollowed.runs.remove(run);
            }
        }
    }

    fn forget(&self, run: RunId) {
        self.unfollowed().runs.remove(&run);
    }

    /// Counts a client of this process that follows a run. If it leaves before the next look, it may still come back.
    fn add_client(&self, run: RunId) {
        let mut unfollowed = self.unfollowed();
        *unfollowed.here.entry(run).or_default() += 1;
        if let Some(known) = unfollowed.runs.get_mut(&run) {
            known.was_followed = true;
        }
    }

    /// Counts a client of this process that follows a run no more.
    fn leave(&self, run: RunId) {
        let mut unfollowed = self.unfollowed();
        if let Some(count) = unfollowed.here.get_mut(&run) {
            *count -= 1;
            if *count == 0 {
                unfollowed.here.remove(&run);
            }
        }
    }

    fn is_followed_here(&self, run: RunId) -> bool {
        self.unfollowed().here.contains_key(&run)
    }

    /// Returns the runs that clients of this process follow.
    fn followed_here(&self) -> BTreeSet<RunId> {
        self.unfollowed().here.keys().copied().collect()
    }

    fn unfollowed(&self) -> MutexGuard<'_, Unfollowed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run whose client has not been answered yet. If this is dropped before, the run is cancelled once it is stored.
pub(super) struct UnansweredRun {
    runs: Runs,
    run: RunId,
    written: CommitFlag,
    is_settled: bool,
}

impl UnansweredRun {
    pub(super) fn new(runs: &Runs, run: RunId, written: &CommitFlag) -> Self {
        Self {
            runs: runs.clone(),
            run,
            written: written.clone(),
            is_settled: false,
        }
    }

    /// Leaves the run alone if its client learns of it, or if it is certain that the run is not stored.
    pub(super) fn settle(mut self, started: &Result<Run, StartError>) {
        let fault = started.as_ref().err().and_then(TransactionError::db_error);
        let may_be_stored = fault.is_some_and(DbError::may_be_committed) && self.written.is_set();
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
    fn cancel_once_stored(&self, run: RunId, written: CommitFlag) {
        if self.core.unfollowed.add(run, written) {
            self.spawn_look_for_unfollowed_runs();
        }
    }

    /// Cancels a run after some time, unless there is a process then to which a client that follows it is connected.
    pub(super) fn cancel_unless_followed(&self, run: RunId) {
        if self.core.unfollowed.add_left(run) {
            self.spawn_look_for_unfollowed_runs();
        }
    }

    fn spawn_look_for_unfollowed_runs(&self) {
        let runs = self.clone();
        // The runs of all tenants are looked for by one task.
        let looking = RowAccess::Server.scope(async move { runs.cancel_unfollowed_runs().await });
        drop(self.core.spawn("unfollowed runs", looking));
    }

    async fn cancel_unfollowed_runs(&self) {
        let soft = self.core.shutdown.soft().clone();
        while let Some(pause) = self.core.unfollowed.pause(self.core.longest_sleep()) {
            if soft.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
            if let Err(error) = self.look_for_unfollowed_runs().await {
                warn_of!(error, "could not look for runs that nobody follows");
            }
        }
    }

    async fn look_for_unfollowed_runs(&self) -> DbResult<()> {
        let mut due = self.core.unfollowed.due();
        if due.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let wanted = due.clone();
        let own = self.core.id;
        let here = self.core.unfollowed.followed_here();
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let all: Vec<RunId> = wanted.iter().map(|(run, _)| *run).collect();
                let mut followed = vec![];
                for (run, _) in wanted.iter().filter(|(_, may_be_followed)| *may_be_followed) {
                    followed.push((*run, following(tx, *run, own, here.contains(run)).await?));
                }
                Ok((db::runs::threads_of(tx, &all).await?, followed))
            })
        });
        let (mut found, followed) = read.await?;
        let mut left_alone = BTreeSet::new();
        let mut outdated = BTreeSet::new();
        for (run, FoundFollowers { following, is_outdated }) in followed {
            tracing::debug!(%run, ?following, is_outdated, "looked for the followers of a run");
            if is_outdated {
                outdated.insert(run);
            }
            if !self.core.unfollowed.note_followers(run, following) {
                left_alone.insert(run);
            }
        }
        for (run, thread) in found.iter().filter(|(run, _)| outdated.contains(run)) {
            match self.correct_followers(*thread, *run).await {
                Ok(()) => {}
                Err(error) if error.is_out_of_reach() => return Err(error),
                // The next look tries again. The other runs do not wait for it.
                Err(error) => tracing::warn!(%run, %error, "could not correct who follows a run"),
            }
        }
        due.retain(|(run, _)| !left_alone.contains(run));
        found.retain(|(run, _)| !left_alone.contains(run));
        for (run, thread) in &found {
            match self.cancel(*thread, *run, CancelAction::Interrupt).await {
                // It may not be driven yet, so the next look cancels it again.
                Ok(()) | Err(CancelError::NoRun) => {}
                Err(CancelError::Over | CancelError::NoUndo) => self.core.unfollowed.forget(*run),
                Err(CancelError::Fault(error)) if error.is_out_of_reach() => return Err(error),
                Err(CancelError::Fault(error)) => {
                    tracing::warn!(%run, %error, "could not cancel a run that nobody follows");
                }
            }
        }
        self.core.unfollowed.looked(&due, &found, began);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::late_commits::ARRIVAL;

    const LONGEST: Duration = Duration::from_secs(60);

    /// Adds a run that may be stored. Returns it, and whether a task has to be started.
    fn added(unfollowed: &UnfollowedRuns) -> (RunId, bool) {
        let run = RunId::mint();
        let written = CommitFlag::default();
        written.set();
        (run, unfollowed.add(run, written))
    }

    /// Returns the runs that are looked for now.
    fn all(unfollowed: &UnfollowedRuns) -> Vec<RunId> {
        unfollowed.due().into_iter().map(|(run, _)| run).collect()
    }

    /// Looks for all runs, and finds these.
    fn look(unfollowed: &UnfollowedRuns, found: &[RunId]) {
        let found: Vec<_> = found.iter().map(|run| (*run, ThreadId::mint())).collect();
        unfollowed.looked(&unfollowed.due(), &found, Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_looked_for_often_at_first_and_not_for_ever() {
        let unfollowed = UnfollowedRuns::default();
        assert_eq!(unfollowed.pause(LONGEST), None);
        let (run, has_to_start) = added(&unfollowed);
        assert!(has_to_start, "a task has to be started");
        assert_eq!(unfollowed.pause(LONGEST), Some(FREQUENT));
        tokio::time::advance(ARRIVAL).await;
        assert_eq!(unfollowed.pause(LONGEST), Some(LONGEST));
        // The database is away.
        tokio::time::advance(KEPT).await;
        look(&unfollowed, &[]);
        assert_eq!(all(&unfollowed), [run]);
        tokio::time::advance(KEPT).await;
        let (later, has_to_start) = added(&unfollowed);
        assert!(!has_to_start, "one task looks for all of them");
        look(&unfollowed, &[]);
        assert_eq!(all(&unfollowed), [later]);
        unfollowed.forget(later);
        assert_eq!(unfollowed.pause(LONGEST), None);
        assert!(added(&unfollowed).1, "the task has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_certainly_not_stored_is_not_looked_for() {
        let unfollowed = UnfollowedRuns::default();
        let in_progress = CommitFlag::default();
        unfollowed.add(RunId::mint(), in_progress.clone());
        assert_eq!(unfollowed.pause(LONGEST), Some(FREQUENT), "it may be stored yet");
        // The transaction was refused.
        drop(in_progress);
        assert_eq!(unfollowed.pause(LONGEST), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_gone_is_not_looked_for() {
        let unfollowed = UnfollowedRuns::default();
        let (run, _) = added(&unfollowed);
        look(&unfollowed, &[]);
        look(&unfollowed, &[run]);
        assert_eq!(all(&unfollowed), [run]);
        look(&unfollowed, &[]);
        assert_eq!(unfollowed.pause(LONGEST), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_whose_client_may_come_back_is_left_alone_for_a_while() {
        let unfollowed = UnfollowedRuns::default();
        let run = RunId::mint();
        assert!(unfollowed.add_left(run), "a task has to be started");
        assert!(unfollowed.due().is_empty());
        assert_eq!(unfollowed.pause(LONGEST), Some(FREQUENT));
        tokio::time::advance(REJOIN).await;
        assert_eq!(unfollowed.due(), [(run, true)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_with_followers_elsewhere_is_cancelled_some_time_after_the_last_of_them_has_ended() {
        let unfollowed = UnfollowedRuns::default();
        let run = RunId::mint();
        unfollowed.add_left(run);
        tokio::time::advance(REJOIN).await;
        // For longer than a run is looked for whose client does not know of it.
        for _ in 0..KEPT.as_secs() / FOLLOWED.as_secs() + 2 {
            assert_eq!(unfollowed.due(), [(run, true)]);
            assert!(!unfollowed.note_followers(run, Following::Somewhere));
            assert!(unfollowed.due().is_empty());
            tokio::time::advance(FOLLOWED).await;
        }
        assert!(
            !unfollowed.note_followers(run, Following::Nowhere),
            "its client may join it"
        );
        assert!(unfollowed.due().is_empty());
        tokio::time::advance(REJOIN).await;
        assert_eq!(unfollowed.due(), [(run, true)]);
        assert!(unfollowed.note_followers(run, Following::Nowhere));
        assert!(!unfollowed.note_followers(run, Following::Settled));
        assert_eq!(unfollowed.pause(LONGEST), None, "it is not looked for any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_left_alone_for_a_while_after_a_client_has_followed_it_between_two_looks() {
        let unfollowed = UnfollowedRuns::default();
        let run = RunId::mint();
        unfollowed.add_left(run);
        unfollowed.add_client(run);
        unfollowed.leave(run);
        tokio::time::advance(REJOIN).await;
        assert!(!unfollowed.note_followers(run, Following::Nowhere));
        assert!(unfollowed.due().is_empty());
        tokio::time::advance(REJOIN).await;
        assert!(unfollowed.note_followers(run, Following::Nowhere));
    }

    #[test]
    fn a_process_without_followers_is_not_named_unless_it_is_the_last_one() {
        let outdated = |is_named, is_here, are_others| FoundFollowers::of(is_named, is_here, are_others).is_outdated;
        assert!(outdated(true, false, true), "others are left");
        assert!(
            !outdated(true, false, false),
            "it is the last one, which cancels the run"
        );
        assert!(!outdated(true, true, true));
        assert!(outdated(false, true, true), "a client came when it was taken off");
        assert!(!outdated(false, false, true));
        assert_eq!(FoundFollowers::of(true, false, false).following, Following::Nowhere);
    }

    #[test]
    fn a_run_is_followed_here_until_the_last_client_has_left() {
        let unfollowed = UnfollowedRuns::default();
        let run = RunId::mint();
        unfollowed.add_client(run);
        unfollowed.add_client(run);
        unfollowed.leave(run);
        assert_eq!(unfollowed.followed_here(), BTreeSet::from([run]));
        assert!(unfollowed.is_followed_here(run));
        unfollowed.leave(run);
        assert!(unfollowed.followed_here().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_runs_are_looked_for_and_no_more() {
        let unfollowed = UnfollowedRuns::default();
        let mut runs: Vec<RunId> = (0..=MOST).map(|_| added(&unfollowed).0).collect();
        runs.truncate(MOST);
        runs.sort_unstable();
        assert_eq!(all(&unfollowed), runs);
    }
}
