//! The followers of runs that end with their clients: the clients of this process, and the processes that the request of a run
//! names.

use std::sync::Arc;

use crate::db::{self, DbResult, Tx};
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::run::Run;
use crate::runtime::retry::write_while_busy;
use crate::runtime::runs::Runs;
use crate::runtime::shared::Core;
use crate::runtime::shared::unfollowed::Following;

/// The followers of a run as a look of this process has found them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundFollowers {
    pub(super) following: Following,
    /// True if the request of the run names this process without need, or does not name it although clients follow the run here.
    pub(super) is_outdated: bool,
}

impl FoundFollowers {
    const SETTLED: Self = Self {
        following: Following::Settled,
        is_outdated: false,
    };

    /// Returns what a look has found that saw whether this process is named, whether clients follow the run here, and whether
    /// other processes that are named are alive.
    pub(super) fn of(is_named: bool, is_here: bool, are_others: bool) -> Self {
        Self {
            following: match is_here || are_others {
                true => Following::Somewhere,
                false => Following::Nowhere,
            },
            is_outdated: match is_here {
                true => !is_named,
                // The last process that is named stays: a run without one does not end with its clients.
                false => is_named && are_others,
            },
        }
    }
}

/// A client of this process that follows a run, until this is dropped.
pub struct FollowingClient {
    core: Arc<Core>,
    run: RunId,
}

impl FollowingClient {
    fn new(core: &Arc<Core>, run: RunId) -> Self {
        core.unfollowed.add_client(run);
        Self {
            core: Arc::clone(core),
            run,
        }
    }
}

impl Drop for FollowingClient {
    fn drop(&mut self) {
        self.core.unfollowed.leave(self.run);
    }
}

impl Runs {
    /// Notes that a client follows a run, if the run ends with its clients: it goes on although the process has ended that
    /// the former client was connected to. The client follows it until the follower is dropped.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn follow(&self, run: &Run) -> DbResult<Option<FollowingClient>> {
        if run.request.followers.is_empty() {
            return Ok(None);
        }
        let follower = FollowingClient::new(&self.core, run.id);
        // The process that takes the run up may be this one, and finds itself among the followers then.
        if self.note_follower(run).await? {
            self.core.unfollowed.add_left(run.id);
        }
        Ok(Some(follower))
    }

    /// Notes that a client of this process follows a run. Returns false if that is known, or if the run is over.
    async fn note_follower(&self, run: &Run) -> DbResult<bool> {
        let own = self.core.id;
        let needs_note = move |run: &Run| {
            let followers = &run.request.followers;
            !run.status.is_final() && !followers.is_empty() && !followers.contains(&own)
        };
        if !needs_note(run) {
            return Ok(false);
        }
        let now = self.core.clock.now();
        let thread = run.thread;
        let id = run.id;
        let write = write_while_busy(&self.core.db, move |tx| {
            Box::pin(async move {
                // The run does not end in between.
                db::threads::lock(tx, thread).await?;
                let Some(mut run) = db::runs::find(tx, thread, id).await?.filter(needs_note) else {
                    return Ok(false);
                };
                run.request.followers = with_lease(tx, &run.request.followers).await?;
                run.request.followers.push(own);
                db::runs::set_request(tx, id, &run.request, now).await?;
                DbResult::Ok(true)
            })
        });
        write.await
    }

    /// Corrects whether the request of a run names this process.
    pub(super) async fn correct_followers(&self, thread: ThreadId, run: RunId) -> DbResult<()> {
        let core = Arc::clone(&self.core);
        let now = core.clock.now();
        let write = write_while_busy(&self.core.db, move |tx| {
            Box::pin(async move {
                // The run does not end in between.
                db::threads::lock(tx, thread).await?;
                // A client may have come, the others may have left, or the run may have ended since the look.
                let is_here = core.unfollowed.is_followed_here(run);
                if !following(tx, run, core.id, is_here).await?.is_outdated {
                    return Ok(());
                }
                let Some(mut found) = db::runs::find(tx, thread, run).await? else {
                    return Ok(());
                };
                let named = &mut found.request.followers;
                *named = others_with_lease(tx, named, core.id).await?;
                if is_here {
                    named.push(core.id);
                }
                db::runs::set_request(tx, run, &found.request, now).await?;
                DbResult::Ok(())
            })
        });
        write.await
    }
}

/// Looks for the followers of a run. `own` is this process, and `is_here` says whether clients follow the run at it.
pub(super) async fn following(tx: &mut Tx<'_>, run: RunId, own: WorkerId, is_here: bool) -> DbResult<FoundFollowers> {
    let named = db::runs::followers(tx, run).await?;
    if named.is_empty() {
        return Ok(FoundFollowers::SETTLED);
    }
    let others = others_with_lease(tx, &named, own).await?;
    Ok(FoundFollowers::of(named.contains(&own), is_here, !others.is_empty()))
}

/// Returns the workers among these that have a valid lease, without this process.
async fn others_with_lease(tx: &mut Tx<'_>, workers: &[WorkerId], own: WorkerId) -> DbResult<Vec<WorkerId>> {
    let mut alive = with_lease(tx, workers).await?;
    alive.retain(|worker| *worker != own);
    Ok(alive)
}

/// Returns the workers among these that have a valid lease.
async fn with_lease(tx: &mut Tx<'_>, workers: &[WorkerId]) -> DbResult<Vec<WorkerId>> {
    let mut alive = vec![];
    for worker in workers {
        if db::workers::has_lease(tx, *worker).await? {
            alive.push(*worker);
        }
    }
    Ok(alive)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
