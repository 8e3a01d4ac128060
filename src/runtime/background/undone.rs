//! Undoing the background tasks of a run that is undone, and the tasks that were started below them.
//!
//! Tasks on this server are deleted with their threads, in the transaction that undoes the run. Where their runs are at
//! work, these lose their lease with their rows; a notification stops them at once. Tasks on other servers are cancelled
//! there by the job that polls them, which then deletes them here.

use std::collections::BTreeSet;

use super::remote::START_TIMEOUT;
use crate::db::background::remote::WorkCondition;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{RemoteWork, TaskRecord, TaskSnapshot, TaskStatus};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::Run;
use crate::domain::time::Timestamp;
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::remote_runs::describing_agent;

/// The background tasks that were undone with a run.
#[derive(Default)]
pub(in crate::runtime) struct UndoneTasks {
    /// The tasks.
    pub(in crate::runtime) tasks: Vec<ThreadId>,
    /// The trees that counted them.
    pub(in crate::runtime) trees: BTreeSet<RunId>,
    /// Their runs that were queued or at work.
    pub(in crate::runtime) stopped: Vec<RunId>,
}

/// Undoes the background tasks that a run has started, and those below them. Tasks of earlier runs stay as they are, also
/// if the run has sent them messages.
pub(in crate::runtime) async fn undo_tasks(tx: &mut Tx<'_>, run: &Run, now: Timestamp) -> DbResult<UndoneTasks> {
    let mut undone = UndoneTasks::default();
    let mut local = vec![];
    for task in db::background::begun_below(tx, run.id).await? {
        undone.tasks.push(task);
        // A task that cannot be read does not keep the run from being undone.
        let record = db::unless_corrupt(db::background::find(tx, task).await)?.flatten();
        let trees = record.iter().flat_map(|record| &record.ancestry.trees);
        undone.trees.extend(trees.map(|tree| tree.top));
        match record {
            Some(record) if record.url.is_some() => cancel_there(tx, record, run.thread, now).await?,
            Some(_) | None => local.push(task),
        }
    }
    // A task goes with the thread on which it was started, so those on other servers have moved away by now.
    for task in local {
        db::threads::lock_to_delete(tx, task).await?;
        for at_work in db::runs::ids_in_flight(tx, task).await? {
            db::runs::request_cancel(tx, at_work, CancelAction::Rollback.word()).await?;
            undone.stopped.push(at_work);
        }
        db::deliveries::forget_thread(tx, task).await?;
        db::threads::delete(tx, task).await?;
        db::background::delete(tx, task).await?;
    }
    Ok(undone)
}

/// Schedules the cancellation of a task on its server. The record moves to `thread`, since the thread on which the task
/// was started may be that of an undone task.
async fn cancel_there(tx: &mut Tx<'_>, record: TaskRecord, thread: ThreadId, now: Timestamp) -> DbResult<()> {
    let described = match db::runs::get_by_id(tx, record.starter()).await? {
        Some(starter) => describing_agent(tx, starter).await?,
        None => None,
    };
    let record = TaskRecord {
        parent_thread: thread,
        ..record
    };
    db::background::remote::detach(tx, &record, described.as_ref()).await?;
    let seen = record.remote.seen.as_ref();
    // The request that starts the task may still be on its way.
    let due_at = seen.map_or_else(|| now.plus(START_TIMEOUT), |_| now);
    let run = seen.map_or("", |seen| seen.run.as_str());
    let unwanted = RemoteWork {
        seen: Some(TaskSnapshot::of(run, TaskStatus::Cancelled)),
        cancel_requested: true,
        due_at: Some(due_at),
        ..RemoteWork::default()
    };
    db::background::remote::note(tx, &record, &unwanted, WorkCondition::Always)
        .await
        .map(drop)
}
