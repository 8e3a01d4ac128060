//! Deletion of runs.

use std::sync::Arc;

use super::cancel_action::CancelAction;
use super::error::DeleteRunError;
use super::prepare::CRASH_GAP;
use super::retry::write_while_busy;
use super::runs::Runs;
use super::shared::Core;
use super::thread_status::leave_thread;
use super::withdraw::withdraw;
use super::{log_lines, reports};
use crate::db::events::NewEvent;
use crate::db::threads::ThreadAfterRun;
use crate::db::{self, DbResult, Notification, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::Failure;
use crate::domain::run::{Run, RunStatus};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

impl Runs {
    /// Deletes a run of the main agent and the runs below it. A run that is pending or at work, here or in another
    /// process, is cancelled first. Runs below it from which the thread continues stay.
    ///
    /// # Errors
    /// See [`DeleteRunError`]; nothing is deleted then.
    pub async fn delete_run(&self, thread: ThreadId, run: RunId) -> Result<(), DeleteRunError> {
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { Ok(find_deletable(tx, thread, run).await) }));
        let found = read.await??;
        if !found.status.is_final() {
            self.stop_and_wait(&found).await?;
        }
        let core = Arc::clone(&self.core);
        let now = self.core.clock.now();
        let write = write_while_busy(&self.core.db, move |tx| {
            Box::pin(async move { delete(tx, &core, &found, now).await })
        });
        let has_ended_now = write.await?;
        if has_ended_now {
            self.dispatcher.wake_for_queued();
            self.core.jobs.discover();
        }
        Ok(())
    }
}

/// Returns a run, if it may be deleted.
async fn find_deletable(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> Result<Run, DeleteRunError> {
    let found = db::runs::find(tx, thread, run).await?;
    // The run of a subagent is deleted together with the run of its main agent.
    let found = found.filter(|found| found.lineage.depth == 0);
    let found = found.ok_or(DeleteRunError::NoRun)?;
    // In this order, since a run that continues the work may end between the two reads, with an interrupt.
    if let Some(other) = db::runs::successor(tx, thread, run).await? {
        return Err(DeleteRunError::Continued(other));
    }
    if let Some(interrupt) = db::interrupts::pending_of_run(tx, thread, run).await? {
        return Err(DeleteRunError::Waits(interrupt));
    }
    Ok(found)
}

/// Deletes a run, and ends it before, unless it has ended. Returns whether it ended only now.
async fn delete(tx: &mut Tx<'_>, core: &Core, known: &Run, now: Timestamp) -> Result<bool, DeleteRunError> {
    let Run { thread, id, .. } = *known;
    // No run begins on the thread, or is admitted, before the end of the transaction.
    db::threads::lock(tx, thread).await?;
    // The steps of the run do not wait for that lock.
    db::runs::lock(tx, id).await?;
    let found = find_deletable(tx, thread, id).await?;
    match found.status {
        RunStatus::Pending => {
            withdraw(tx, &found, CancelAction::Interrupt, core, now).await?;
        }
        RunStatus::Running => end_at_work(tx, core, &found, now).await?,
        RunStatus::Success | RunStatus::Error | RunStatus::Timeout | RunStatus::Interrupted => {}
    }
    db::runs::delete(tx, thread, id).await?;
    Ok(!found.status.is_final())
}

/// Ends a run on behalf of its process, which has died, or does not know yet that the run was cancelled. That process
/// stores nothing more for the run once its row is gone.
async fn end_at_work(tx: &mut Tx<'_>, core: &Core, run: &Run, now: Timestamp) -> DbResult<()> {
    let thread = run.thread;
    let cancelled = Failure::cancelled();
    let fact = &Fact::over(RunStatus::Interrupted, Some(cancelled.clone()));
    // Readers know numbers that the process has given to pieces of answers.
    let seq = db::checkpoints::max_seq(tx, thread).await? + CRASH_GAP;
    let event = NewEvent {
        thread,
        seq,
        run: run.id,
        lane: Lane::Main,
        fact,
        at: now,
    };
    db::events::insert(tx, &[event]).await?;
    db::runs::stop_children(tx, thread, Some(run.id), now).await?;
    reports::report_withdrawn(tx, core, run, now).await?;
    let left = ThreadAfterRun {
        run: run.id,
        status: ThreadStatus::Interrupted,
        error: Some(cancelled),
    };
    leave_thread(tx, thread, &left, now).await?;
    log_lines::run_withdrawn(run, RunStatus::Interrupted.word());
    for notification in [
        Notification::Cancel(run.id),
        Notification::Ended(thread),
        Notification::Queue,
    ] {
        db::notifications::notify(tx, notification).await?;
    }
    Ok(())
}
