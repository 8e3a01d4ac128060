//! Deleting conversations: what their background tasks may have left on other servers is cancelled there.
//!
//! The record of a task goes with the conversation. In its place, that work is stored like the work of a subagent whose run is
//! gone, until the job that cancels such work is done with it. Tasks on this server have threads that clients see, and go on.

use super::remote::START_TIMEOUT;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::TaskRecord;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::remote_run::RemoteRun;
use crate::domain::run::{AssignedAgent, Run};
use crate::domain::time::Timestamp;
use crate::runtime::remote_runs::describing_agent;

/// Deletes a thread. Returns whether it existed. The tasks on other servers that were started on it are cancelled there, but for
/// those of a stateless run, whose thread goes with it in any case.
///
/// # Errors
/// Returns an error when the database fails.
pub async fn delete_thread(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<bool> {
    let left = work_left_by(tx, thread, now).await?;
    delete_and_leave(tx, thread, &left).await
}

/// Deletes the thread of a stateless run like [`delete_thread`]. Returns whether tasks on other servers are to be cancelled.
///
/// # Errors
/// Returns an error when the database fails.
pub(in crate::runtime) async fn delete_thread_of_stateless_run(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    now: Timestamp,
) -> DbResult<bool> {
    let left = work_left_by(tx, thread, now).await?;
    delete_and_leave(tx, thread, &left).await?;
    Ok(!left.is_empty())
}

/// Returns the work on other servers that is to be cancelled when a thread is deleted, each with the time for it.
async fn work_left_by(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<Vec<(RemoteRun, Timestamp)>> {
    let mut left = vec![];
    for record in db::background::remote::polled(tx, thread).await? {
        // A row that cannot be read does not keep the thread from being deleted. Boxed, since runs are large and such
        // tasks are rare.
        let Some(starter) = db::unless_corrupt(Box::pin(starting_agent_of(tx, &record)).await)? else {
            continue;
        };
        if starter.is_stateless && !record.remote.cancel_requested {
            continue;
        }
        let due_at = match record.remote.seen {
            Some(_) => now,
            // The request that starts the task may still be on its way.
            None => now.plus(START_TIMEOUT),
        };
        match starter.describing {
            Some(described) => left.push((work_of(record, described), due_at)),
            None => tracing::warn!(
                %thread, task = %record.task,
                "a task on another server cannot be cancelled there: the run that has started it was deleted"
            ),
        }
    }
    Ok(left)
}

async fn delete_and_leave(tx: &mut Tx<'_>, thread: ThreadId, left: &[(RemoteRun, Timestamp)]) -> DbResult<bool> {
    let is_deleted = db::threads::delete(tx, thread).await?;
    for (work, due_at) in left {
        db::remote_runs::insert_of_deleted_task(tx, work, *due_at).await?;
    }
    Ok(is_deleted)
}

/// The agent that has started a task, as far as it is known.
struct StartingAgent {
    is_stateless: bool,
    /// The agent in whose definition the agent of the task is described.
    describing: Option<AssignedAgent>,
}

async fn starting_agent_of(tx: &mut Tx<'_>, record: &TaskRecord) -> DbResult<StartingAgent> {
    let parent = db::runs::get_by_id(tx, record.parent_run).await?;
    let is_stateless = parent.as_ref().is_some_and(|run| run.request.temporary);
    let describing = match db::background::remote::described_in(tx, record.task).await? {
        Some((graph_id, definition)) => Some(AssignedAgent {
            graph_id,
            version: 0,
            definition,
        }),
        None => described_by(tx, record, parent).await?,
    };
    Ok(StartingAgent {
        is_stateless,
        describing,
    })
}

async fn described_by(tx: &mut Tx<'_>, record: &TaskRecord, parent: Option<Run>) -> DbResult<Option<AssignedAgent>> {
    let starter = match parent {
        Some(run) if run.id == record.starter() => Some(run),
        Some(_) | None => db::runs::get_by_id(tx, record.starter()).await?,
    };
    match starter {
        Some(run) => describing_agent(tx, run).await,
        None => Ok(None),
    }
}

fn work_of(record: TaskRecord, described: AssignedAgent) -> RemoteRun {
    let run = RunId(record.task.0);
    RemoteRun {
        run,
        first: run,
        graph_id: described.graph_id,
        definition: described.definition,
        agent: record.agent,
        url: record.url.unwrap_or_default(),
        of_deleted_task: true,
        lost_since: None,
        was_missed: false,
    }
}
