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

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::cancel_action::CancelAction;
use super::error::{CancelError, StartError};
use super::new_run::NewRun;
use super::retry::TransactionError;
use super::runs::Runs;
use super::shared::Core;
use super::shared::unfollowed::CommitFlag;
use crate::db::{self, DbError, DbResult, warn_of};
use crate::domain::id::RunId;
use crate::domain::run::Run;

mod followers;

use followers::{FoundFollowers, following};

pub use followers::FollowingClient;

/// A run whose client has not been answered yet. If this is dropped before, the run is cancelled once it is stored.
struct UnansweredRun {
    core: Arc<Core>,
    run: RunId,
    written: CommitFlag,
    is_settled: bool,
}

impl UnansweredRun {
    fn new(core: &Arc<Core>, run: RunId, written: &CommitFlag) -> Self {
        Self {
            core: Arc::clone(core),
            run,
            written: written.clone(),
            is_settled: false,
        }
    }

    /// Leaves the run alone if its client learns of it, or if it is certain that the run is not stored.
    fn settle(mut self, started: &Result<Run, StartError>) {
        let fault = started.as_ref().err().and_then(TransactionError::db_error);
        let may_be_stored = fault.is_some_and(DbError::may_be_committed) && self.written.is_set();
        self.is_settled = !may_be_stored;
    }
}

impl Drop for UnansweredRun {
    fn drop(&mut self) {
        if !self.is_settled {
            self.core.unfollowed.add(self.run, self.written.clone());
        }
    }
}

impl Runs {
    /// Starts a run, or queues it, for a client that cancels the run by disconnecting. The run is cancelled, too, if the
    /// client disconnects before it is answered, if the database does not say that the run is stored, or if this process
    /// ends before and nobody [follows](Runs::follow) the run then.
    ///
    /// # Errors
    /// As [`Runs::start`].
    pub async fn start_followed(&self, mut new_run: NewRun) -> Result<Run, StartError> {
        new_run.request.followers = vec![self.core.id];
        let (new_runs, checked) = self.prepare(new_run).await?;
        let id = RunId::mint();
        let written = CommitFlag::default();
        let unanswered = UnansweredRun::new(&self.core, id, &written);
        let started = self.admit(id, new_runs, checked, written).await;
        unanswered.settle(&started);
        started
    }

    /// Looks for runs that have lost their clients, those of all tenants, and cancels them. Ends with the server.
    pub(super) async fn cancel_unfollowed_runs(self) {
        let soft = self.core.shutdown.soft().clone();
        let unfollowed = &self.core.unfollowed;
        let longest = self.core.longest_sleep();
        while soft
            .run_until_cancelled(unfollowed.wait_for_look(longest))
            .await
            .is_some()
        {
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
