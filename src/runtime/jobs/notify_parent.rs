//! Notifies idle agents of the outcome of their background tasks.
//!
//! An outcome is stored when the run of the task ends, in any process, and the agent can be notified once it is idle.
//! So nothing schedules this job; it looks for agents to notify.
//!
//! The notification is a run on the thread of the agent. The transaction that starts the run also marks the outcome as
//! reported. Outcomes that the state of the agent holds are left out, since an agent that was at work when the task
//! ended has already read them. So each outcome is reported once, on any number of servers.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::{JobHandler, JobLimits, JobOutcome, Unscheduled};
use crate::db::jobs::JobOwner;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{BackgroundTask, FIELD, TaskRecord, TaskRun, TaskSnapshot, TaskStatus};
use crate::domain::backoff::Backoff;
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::run::{Multitask, RunRequest};
use crate::domain::state::State;
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;
use crate::runtime::admission::{self, AdmissionContext, Admitted};
use crate::runtime::background::{new_run, status};
use crate::runtime::handles::RuntimeHandles;
use crate::runtime::new_run::{AssistantRef, NewRun, Target, streamed_request};

/// The most agents that one query returns.
const AT_ONCE: i64 = 64;
/// The lease of a claim: longer than it takes to start the runs.
const LEASE: Duration = Duration::from_secs(60);
/// The pauses after failures.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60));

pub(super) struct NotifyParentHandler;

impl JobHandler for NotifyParentHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 1, batch: 64 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn find_unscheduled<'t>(&self, tx: &'t mut Tx<'_>, _: Timestamp) -> BoxFuture<'t, DbResult<Unscheduled>> {
        Box::pin(async move {
            if !db::background::any_watched(tx).await? {
                return Ok(Unscheduled::default());
            }
            Ok(Unscheduled {
                any: !db::background::parents_to_wake(tx, 1).await?.is_empty(),
                comes_with_runs: true,
                next: None,
            })
        })
    }

    fn schedule<'a>(&'a self, runtime: &'a RuntimeHandles) -> BoxFuture<'a, DbResult<()>> {
        Box::pin(async move {
            let read = runtime
                .core
                .db
                .read(|tx| Box::pin(db::background::parents_to_wake(tx, AT_ONCE)));
            let now = runtime.core.clock.now();
            for parent in read.await? {
                let owner = JobOwner {
                    thread: Some(parent),
                    assistant: None,
                };
                let kind = JobKind::NotifyParent;
                let write = runtime
                    .core
                    .db
                    .write(move |tx| Box::pin(db::jobs::ensure(tx, kind, parent.0, owner, now)));
                if let Err(error) = write.await {
                    tracing::warn!(thread = %parent, %error, "could not schedule the run that reports background tasks to their agent");
                }
            }
            Ok(())
        })
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let parent = ThreadId(job.key);
            if let Err(error) = wake_parent(runtime, parent).await {
                tracing::warn!(thread = %parent, %error, "could not report the outcome of a background task to its agent");
                if !error.is_corrupt() {
                    let pause = BACKOFF.spread_pause(job.attempts, job.key);
                    return Ok(JobOutcome::Again(runtime.core.clock.now().plus(pause)));
                }
                let write = runtime
                    .core
                    .db
                    .write(move |tx| Box::pin(async move { db::background::unwatch_all(tx, parent).await }));
                write.await?;
            }
            // If more outcomes are left, the agent is found again.
            Ok(JobOutcome::Done)
        })
    }
}

async fn wake_parent(runtime: &RuntimeHandles, parent: ThreadId) -> DbResult<()> {
    let woken = runtime.tasks.admission.admit(vec![], move |tx, context| {
        Box::pin(start_notifying_run(tx, parent, context))
    });
    if let Some(run) = woken.await? {
        tracing::info!(thread = %parent, run = %run.id, "started a run that reports background tasks to their agent");
    }
    Ok(())
}

/// A task with outcomes that the agent is to read.
struct UnreadTask {
    record: TaskRecord,
    known: BackgroundTask,
    seen: TaskSnapshot,
}

/// Starts a run that notifies the agent of a thread, if the agent is idle and does not know an outcome.
async fn start_notifying_run(
    tx: &mut Tx<'_>,
    parent: ThreadId,
    mut context: AdmissionContext,
) -> DbResult<Option<Admitted>> {
    let Some(thread) = db::threads::lock(tx, parent).await? else {
        return Ok(None);
    };
    if !matches!(thread.status, ThreadStatus::Idle | ThreadStatus::Error) {
        return Ok(None);
    }
    let (machine, _) = db::checkpoints::machine(tx, parent, Lane::Main).await?;
    let mut unread = vec![];
    for record in db::background::watched(tx, parent).await? {
        let seen = match &record.url {
            None => status::snapshot(tx, record.task).await?,
            Some(_) => match &record.remote.seen {
                Some(seen) => seen.clone(),
                None => continue,
            },
        };
        if !seen.status.is_outcome() {
            continue;
        }
        // A task that waits will have another outcome later, so it stays watched.
        db::background::set_notified(tx, record.task, seen.run.parse().ok(), !seen.status.is_final()).await?;
        if !record.notify {
            continue;
        }
        let known = find_task(tx, &machine.state, &record)
            .await?
            .unwrap_or_else(|| unrecorded(&record, &seen));
        let seen = match &record.url {
            None => {
                let earlier = status::earlier_outcomes(tx, record.task, &known, &seen).await?;
                TaskSnapshot { earlier, ..seen }
            }
            Some(_) => known.with_unknown_past(seen),
        };
        if !known.new_outcomes(&seen).is_empty() {
            unread.push(UnreadTask { record, known, seen });
        }
    }
    let Some(last) = unread.last() else { return Ok(None) };
    let launcher = db::runs::get_by_id(tx, last.record.parent_run).await?;
    let launcher = launcher.map(|run| run.request).unwrap_or_default();
    // The run belongs to the trace of the run that started the task.
    context.caller_span = launcher.trace.as_ref().map(|trace| trace.context.clone());
    let new_run = new_notifying_run(&unread, &last.record, &machine.state, launcher, context.now);
    match admission::try_start(tx, &new_run, &context).await? {
        Ok(admitted) => Ok(Some(admitted)),
        Err(refusal) => {
            // The agent reads the outcome in its next run.
            tracing::warn!(thread = %parent, %refusal, "could not start the run that reports background tasks to their agent");
            Ok(None)
        }
    }
}

/// Returns a task from the state of the main agent, or else from the state of the subagent that started it, whose work
/// is over by now.
async fn find_task(tx: &mut Tx<'_>, main: &State, record: &TaskRecord) -> DbResult<Option<BackgroundTask>> {
    let task = record.task.to_string();
    let starter = record.ancestry.starter.as_ref();
    match (BackgroundTask::find(main, &task), starter) {
        (None, Some(starter)) => {
            let lane = Lane::Child(starter.run);
            let (machine, _) = db::checkpoints::machine(tx, record.parent_thread, lane).await?;
            Ok(BackgroundTask::find(&machine.state, &task))
        }
        (known, _) => Ok(known),
    }
}

/// Returns a task that is missing in the state of its agent, since the run that started it broke off.
fn unrecorded(record: &TaskRecord, seen: &TaskSnapshot) -> BackgroundTask {
    let thread = record.task.to_string();
    let run = seen.run.clone();
    BackgroundTask::started(
        &record.agent,
        TaskRun {
            thread,
            run,
            status: TaskStatus::Running,
        },
        record.created_at,
    )
}

/// Returns the run that notifies the agent, with the settings of the run that started the task.
fn new_notifying_run(
    unread: &[UnreadTask],
    last: &TaskRecord,
    state: &State,
    launcher: RunRequest,
    now: Timestamp,
) -> NewRun {
    let mut tasks = state
        .fields
        .get(FIELD)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let mut messages = vec![];
    for UnreadTask { known, seen, .. } in unread {
        let outcomes = known.new_outcomes(seen).into_iter();
        messages.extend(outcomes.map(|outcome| json!(known.notification(outcome))));
        tasks.insert(known.task_id.clone(), json!(known.with_snapshot(seen, now)));
    }
    let ids: Vec<&str> = unread.iter().map(|unread| unread.known.task_id.as_str()).collect();
    let metadata = Map::from_iter([("background_tasks".to_owned(), json!(ids))]);
    let RunRequest {
        mut config, context, ..
    } = launcher;
    config.shift_remove("metadata");
    let request = RunRequest {
        input: Some(json!({"messages": messages, FIELD: tasks})),
        config,
        context,
        multitask: Multitask::Reject,
        ..streamed_request()
    };
    let parent = last.parent_thread;
    let assistant = AssistantRef::Id(last.parent_assistant);
    NewRun {
        target: Target::Thread(parent),
        ..new_run(parent, assistant, request, metadata)
    }
}
