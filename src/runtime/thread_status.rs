//! The status of a thread that a run leaves.

use super::interrupts;
use crate::db::threads::ThreadAfterRun;
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::machine::{Failure, Phase, Position};
use crate::domain::run::RunStatus;
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// Stores the status of a thread after a run: busy, if other runs are queued that may begin.
pub(super) async fn leave_thread(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    left: &ThreadAfterRun,
    now: Timestamp,
) -> DbResult<()> {
    let found = db::threads::leave(tx, thread, left, now).await?;
    let may_hold_messages = found.is_some_and(|found| found.may_hold_messages);
    if may_hold_messages && interrupts::hold_messages(tx, thread).await? {
        db::threads::leave(tx, thread, left, now).await?;
    }
    Ok(())
}

/// Returns the status of a thread on which no run is at work, and the failure of its last step.
pub(super) async fn thread_status(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<(ThreadStatus, Option<Failure>)> {
    let (status, error, was_left) = match db::checkpoints::head(tx, thread, Lane::Main).await {
        Ok(Some(head)) => status_at(head.position),
        Ok(None) => (ThreadStatus::Idle, None, false),
        Err(error) if error.is_corrupt() => (ThreadStatus::Error, Some(db::runs::unreadable(&error)), false),
        Err(error) => return Err(error),
    };
    let error = match was_left {
        true => Box::pin(cancellation(tx, thread)).await?,
        false => error,
    };
    Ok((status, error))
}

/// Returns the status of a thread that is at this position, the failure of the step, and whether a run left the step without
/// a question to answer: it was cancelled, or stopped at a breakpoint.
fn status_at(position: Position) -> (ThreadStatus, Option<Failure>, bool) {
    let was_left = !position.waits_for_answers();
    match (position.failure, position.phase) {
        (Some(failure), _) => (ThreadStatus::Error, Some(failure), false),
        (None, Phase::Ended) => (ThreadStatus::Idle, None, false),
        (None, Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Tools { .. } | Phase::Work { .. }) => {
            (ThreadStatus::Interrupted, None, was_left)
        }
    }
}

/// Returns the failure of the run that made the newest step of a thread, if that run was cancelled.
async fn cancellation(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<Failure>> {
    let later = db::runs::of_newest_step_later(tx, thread).await?;
    let run = db::unless_corrupt(later.read(tx).await)?.flatten();
    let cancelled = run.filter(|run| run.status == RunStatus::Interrupted);
    Ok(cancelled.and_then(|run| run.error))
}
