//! The runs that end with their clients and have lost them, as far as this process looks for them; see
//! [`unfollowed_runs`](crate::runtime::unfollowed_runs).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::domain::id::{RunId, ThreadId};
use crate::runtime::late_commits;

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

/// The processes with followers of a run that ends with its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum Following {
    /// The run is over, gone, or does not end with its clients.
    Settled,
    /// Clients follow it here, or there are other processes, which are alive.
    Somewhere,
    /// All of the others have ended.
    Nowhere,
}

/// A flag that says whether the transaction that stores a run may have been committed. The transaction has a clone while it is
/// in progress.
#[derive(Debug, Clone, Default)]
pub(in crate::runtime) struct CommitFlag(Arc<AtomicBool>);

impl CommitFlag {
    /// Sets the flag: the transaction has written the run, and is about to be committed.
    pub(in crate::runtime) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(in crate::runtime) fn is_set(&self) -> bool {
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
pub(in crate::runtime) struct UnfollowedRuns {
    state: Mutex<Unfollowed>,
    /// Wakes the loop that looks for them when a run is added.
    added: Notify,
}

#[derive(Debug, Default)]
struct Unfollowed {
    runs: BTreeMap<RunId, UnfollowedRun>,
    /// The numbers of clients of this process that follow runs.
    here: BTreeMap<RunId, usize>,
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
    /// Adds a run whose client got no response. The run is cancelled if the database has stored it.
    pub(in crate::runtime) fn add(&self, run: RunId, written: CommitFlag) {
        let added = UnfollowedRun {
            since: Instant::now(),
            may_be_followed: false,
            was_followed: false,
            written,
            first_look: None,
            is_found: false,
        };
        self.insert(run, added);
    }

    /// Adds a run whose client was connected to another process. The run is cancelled after some time, unless a client
    /// follows the run at any process by then.
    pub(in crate::runtime) fn add_left(&self, run: RunId) {
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
        self.insert(run, added);
    }

    fn insert(&self, run: RunId, added: UnfollowedRun) {
        let mut unfollowed = self.unfollowed();
        let is_alike = |known: &&UnfollowedRun| known.may_be_followed == added.may_be_followed;
        if unfollowed.runs.values().filter(is_alike).count() >= MOST {
            tracing::warn!(%run, "too many runs that nobody follows; this one is not cancelled");
            return;
        }
        // A run that is given back and taken up again has the time of its first takeover.
        unfollowed.runs.entry(run).or_insert(added);
        self.added.notify_one();
    }

    /// Waits until it is time for the next look. `longest` is the pause between looks that are not frequent.
    pub(in crate::runtime) async fn wait_for_look(&self, longest: Duration) {
        loop {
            match self.pause(longest) {
                Some(pause) => return sleep(pause).await,
                None => self.added.notified().await,
            }
        }
    }

    /// Returns the pause before the next look; none if there is nothing to look for.
    fn pause(&self, longest: Duration) -> Option<Duration> {
        let mut unfollowed = self.unfollowed();
        unfollowed
            .runs
            .retain(|_, unfollowed| unfollowed.written.may_be_stored());
        if unfollowed.runs.is_empty() {
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
    pub(in crate::runtime) fn due(&self) -> Vec<(RunId, bool)> {
        let now = Instant::now();
        let unfollowed = self.unfollowed();
        let due = unfollowed.runs.iter().filter(|(_, unfollowed)| unfollowed.since <= now);
        due.map(|(run, unfollowed)| (*run, unfollowed.may_be_followed))
            .collect()
    }

    /// Notes which processes have followers of a run that may be followed. Returns whether it is cancelled now. A run whose
    /// last process with followers has ended since the last look is left alone for a while: its client may join it.
    pub(in crate::runtime) fn note_followers(&self, run: RunId, following: Following) -> bool {
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
    pub(in crate::runtime) fn looked(&self, looked_for: &[(RunId, bool)], found: &[(RunId, ThreadId)], began: Instant) {
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

    pub(in crate::runtime) fn forget(&self, run: RunId) {
        self.unfollowed().runs.remove(&run);
    }

    /// Counts a client of this process that follows a run. If it leaves before the next look, it may still come back.
    pub(in crate::runtime) fn add_client(&self, run: RunId) {
        let mut unfollowed = self.unfollowed();
        *unfollowed.here.entry(run).or_default() += 1;
        if let Some(known) = unfollowed.runs.get_mut(&run) {
            known.was_followed = true;
        }
    }

    /// Counts a client of this process that follows a run no more.
    pub(in crate::runtime) fn leave(&self, run: RunId) {
        let mut unfollowed = self.unfollowed();
        if let Some(count) = unfollowed.here.get_mut(&run) {
            *count -= 1;
            if *count == 0 {
                unfollowed.here.remove(&run);
            }
        }
    }

    pub(in crate::runtime) fn is_followed_here(&self, run: RunId) -> bool {
        self.unfollowed().here.contains_key(&run)
    }

    /// Returns the runs that clients of this process follow.
    pub(in crate::runtime) fn followed_here(&self) -> BTreeSet<RunId> {
        self.unfollowed().here.keys().copied().collect()
    }

    fn unfollowed(&self) -> MutexGuard<'_, Unfollowed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::late_commits::ARRIVAL;

    const LONGEST: Duration = Duration::from_secs(60);

    /// Adds a run that may be stored, and returns it.
    fn added(unfollowed: &UnfollowedRuns) -> RunId {
        let run = RunId::mint();
        let written = CommitFlag::default();
        written.set();
        unfollowed.add(run, written);
        run
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
        let run = added(&unfollowed);
        assert_eq!(unfollowed.pause(LONGEST), Some(FREQUENT));
        tokio::time::advance(ARRIVAL).await;
        assert_eq!(unfollowed.pause(LONGEST), Some(LONGEST));
        // The database is away.
        tokio::time::advance(KEPT).await;
        look(&unfollowed, &[]);
        assert_eq!(all(&unfollowed), [run]);
        tokio::time::advance(KEPT).await;
        let later = added(&unfollowed);
        look(&unfollowed, &[]);
        assert_eq!(all(&unfollowed), [later]);
        unfollowed.forget(later);
        assert_eq!(unfollowed.pause(LONGEST), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_begins_soon_after_a_run_is_added_and_not_before() {
        let unfollowed = UnfollowedRuns::default();
        // The wakeup for a run that is gone is left.
        unfollowed.forget(added(&unfollowed));
        let began = Instant::now();
        let adding = async {
            sleep(LONGEST).await;
            added(&unfollowed)
        };
        let looking = async { tokio::join!(unfollowed.wait_for_look(LONGEST), adding) };
        let looked = tokio::time::timeout(LONGEST + LONGEST, looking).await;
        assert!(looked.is_ok(), "the run wakes the loop");
        assert!(began.elapsed() >= LONGEST + FREQUENT, "there was nothing to look for");
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
        let run = added(&unfollowed);
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
        unfollowed.add_left(run);
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
        let mut runs: Vec<RunId> = (0..=MOST).map(|_| added(&unfollowed)).collect();
        runs.truncate(MOST);
        runs.sort_unstable();
        assert_eq!(all(&unfollowed), runs);
    }
}
