//! The status of a task on this server: that of the latest run on its thread. Messages that wait for the answer of a human
//! do not count.

use std::collections::{BTreeSet, HashMap};

use serde_json::json;

use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{BackgroundTask, TaskRecord, TaskSnapshot, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::{Machine, Phase};
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
pub(in crate::runtime) async fn snapshot(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<TaskSnapshot> {
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
            Ok(with_result(seen, &machine))
        }
        TaskStatus::Waiting => {
            let one =
                |asked: &InterruptRecord| json!({"id": asked.interrupt.id, "value": asked.interrupt.question.value});
            Ok(TaskSnapshot {
                interrupts: asked.iter().map(one).collect(),
                ..seen
            })
        }
        TaskStatus::Error | TaskStatus::Timeout => Ok(with_error(seen, &run)),
        TaskStatus::Running | TaskStatus::Pending | TaskStatus::Cancelled => Ok(seen),
    }
}

fn with_result(seen: TaskSnapshot, machine: &Machine) -> TaskSnapshot {
    TaskSnapshot {
        result: machine.state.conclusion(),
        media: machine.state.media(),
        ..seen
    }
}

fn with_error(seen: TaskSnapshot, run: &Run) -> TaskSnapshot {
    let failure = run.error.as_ref();
    let error = failure.map(|failure| format!("{}: {}", failure.class, failure.message));
    TaskSnapshot { error, ..seen }
}

/// Returns the state like [`snapshot`], with the outcomes before it that the agent does not know.
pub(super) async fn snapshot_as_known(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    known: &BackgroundTask,
) -> DbResult<TaskSnapshot> {
    let seen = snapshot(tx, thread).await?;
    let earlier = earlier_outcomes(tx, thread, known, &seen).await?;
    Ok(TaskSnapshot { earlier, ..seen })
}

/// Returns the outcomes before the snapshot that the agent does not know, oldest first: of the runs that the agent
/// knows, and of the runs that continued them with answers. A queued run begins as soon as an earlier one ends, so that
/// no snapshot shows the outcome of the earlier one. Other runs that people start on the thread are not reported.
pub(in crate::runtime) async fn earlier_outcomes(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    known: &BackgroundTask,
    seen: &TaskSnapshot,
) -> DbResult<Vec<TaskSnapshot>> {
    let ids = known.superseded_run_ids.iter().chain([&known.run_id]);
    let own: BTreeSet<RunId> = ids.filter_map(|id| id.parse().ok()).collect();
    let resumed = db::interrupts::resumed(tx, thread).await?;
    let mut wanted: BTreeSet<RunId> = resumed
        .keys()
        .copied()
        .filter(|run| is_resumption_of(*run, &resumed, &own))
        .collect();
    wanted.extend(own);
    if let Ok(newest) = seen.run.parse() {
        wanted.remove(&newest);
    }
    let reported = known.reported_run().and_then(|run| run.parse().ok());
    let mut outcomes = vec![];
    for (run, first_seq) in db::runs::ended_among(tx, thread, &wanted, reported).await? {
        outcomes.extend(outcome_of(tx, &run, first_seq).await?);
    }
    Ok(outcomes)
}

/// Returns whether a run goes on with the work of one of these runs. `resumed` has the run before, by the run that
/// brought an answer.
fn is_resumption_of(run: RunId, resumed: &HashMap<RunId, RunId>, these: &BTreeSet<RunId>) -> bool {
    let mut last = run;
    // Runs that refer to each other end the loop, too.
    for _ in 0..resumed.len() {
        match resumed.get(&last) {
            Some(before) if these.contains(before) => return true,
            Some(before) => last = *before,
            None => return false,
        }
    }
    false
}

/// Returns the outcome of a run after which others have begun; none if the run asked something, or if its history was
/// deleted. `first_seq` is the number of its first event.
async fn outcome_of(tx: &mut Tx<'_>, run: &Run, first_seq: i64) -> DbResult<Option<TaskSnapshot>> {
    let seen = TaskSnapshot::of(run.id.to_string(), TaskStatus::from(run.status));
    match seen.status {
        TaskStatus::Success => {
            let next = db::runs::begun_after(tx, run.thread, first_seq).await?;
            let next = next.map_or(i64::MAX, |(_, seq)| seq);
            let newest = db::checkpoints::load_summaries(tx, run.thread, Lane::Main, next, 1).await;
            let newest = db::unless_corrupt(newest)?.unwrap_or_default();
            let Some(last) = newest.first().filter(|last| last.seq > first_seq) else {
                return Ok(None);
            };
            let machine = db::checkpoints::machine_as_left(tx, run.thread, last.id).await;
            let machine = db::unless_corrupt(machine)?.filter(|machine| machine.position.phase == Phase::Ended);
            Ok(machine.map(|machine| with_result(seen, &machine)))
        }
        TaskStatus::Error | TaskStatus::Timeout => Ok(Some(with_error(seen, run))),
        TaskStatus::Running | TaskStatus::Pending | TaskStatus::Waiting | TaskStatus::Cancelled => Ok(None),
    }
}
