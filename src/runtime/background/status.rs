//! The status of a task on this server: that of the latest run on its thread. Messages that wait for the answer of a human
//! do not count.

use serde_json::json;

use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{TaskRecord, TaskSnapshot, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::Run;
use crate::runtime::interrupts::open_at;

/// The status of a task on this server, without its result.
struct TaskState {
    /// The latest run on its thread; none if it was deleted.
    run: Option<Run>,
    status: TaskStatus,
    /// The interrupts whose answers the task waits for.
    asked: Vec<InterruptRecord>,
}

/// Returns the latest run of a task and its status, as far as they are known on this server.
///
/// # Errors
/// Returns an error when the database fails.
pub async fn known_status(tx: &mut Tx<'_>, record: &TaskRecord) -> DbResult<(Option<RunId>, TaskStatus)> {
    match (&record.url, &record.remote.seen) {
        (None, _) => status_of(tx, record.task)
            .await
            .map(|state| (state.run.map(|run| run.id), state.status)),
        (Some(_), Some(seen)) => Ok((seen.run.parse().ok(), seen.status)),
        (Some(_), None) => Ok((None, TaskStatus::Pending)),
    }
}

/// Returns the status of the task on this thread, without its result.
async fn status_of(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<TaskState> {
    let Some(run) = db::runs::latest(tx, thread).await? else {
        return Ok(TaskState {
            run: None,
            status: TaskStatus::Error,
            asked: vec![],
        });
    };
    let mut status = TaskStatus::from(run.status);
    let mut asked = vec![];
    if status == TaskStatus::Success {
        asked = open_at(tx, thread, None).await?;
        if !asked.is_empty() {
            status = TaskStatus::Waiting;
        }
    }
    Ok(TaskState {
        run: Some(run),
        status,
        asked,
    })
}

/// Returns the state of the task on this thread with its result.
pub(in crate::runtime) async fn look(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<TaskSnapshot> {
    let TaskState { run, status, asked } = status_of(tx, thread).await?;
    let Some(run) = run else {
        let error = "The thread of the task, or its work there, was deleted.".to_owned();
        return Ok(TaskSnapshot {
            error: Some(error),
            ..TaskSnapshot::of("", status)
        });
    };
    let seen = TaskSnapshot::of(run.id.to_string(), status);
    match status {
        TaskStatus::Success => {
            let machine = match db::checkpoints::machine(tx, thread, Lane::Main).await {
                Ok((machine, _)) => machine,
                Err(error) if error.is_corrupt() => {
                    let error = Some(format!("The result of the task cannot be read: {error}."));
                    return Ok(TaskSnapshot {
                        error,
                        ..TaskSnapshot::of(run.id.to_string(), TaskStatus::Error)
                    });
                }
                Err(error) => return Err(error),
            };
            Ok(TaskSnapshot {
                result: machine.state.conclusion(),
                media: machine.state.media(),
                ..seen
            })
        }
        TaskStatus::Waiting => {
            let one =
                |asked: &InterruptRecord| json!({"id": asked.interrupt.id, "value": asked.interrupt.question.value});
            Ok(TaskSnapshot {
                interrupts: asked.iter().map(one).collect(),
                ..seen
            })
        }
        TaskStatus::Error | TaskStatus::Timeout => {
            let error = run
                .error
                .map(|failure| format!("{}: {}", failure.class, failure.message));
            Ok(TaskSnapshot { error, ..seen })
        }
        TaskStatus::Running | TaskStatus::Pending | TaskStatus::Cancelled => Ok(seen),
    }
}
