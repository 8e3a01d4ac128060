//! Background tasks on this server.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::limits::{self, TaskParent};
use super::{
    NOT_OWN_TASK, PARENT_RUN, STOP_TIMEOUT, TaskError, WAITS_ALREADY, find_own_task, new_cancelling_run, new_record,
    new_task_run, refusal_text, status, storage_error, strategy, task_ids,
};
use crate::db::{self, Tx};
use crate::domain::background::{TaskRecord, TaskRun, TaskSnapshot, TaskStatus};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{Multitask, Run};
use crate::runtime::admission::{self, AdmissionContext, Admitted};
use crate::runtime::{BackgroundTasks, CancelAction, CancelError, NewRun, Target};
use crate::tool::Scope;
use crate::tool::background::BackgroundOrder;

/// The pause between two looks at a task that was cancelled.
const POLL: Duration = Duration::from_millis(20);

/// The run that a call starts.
enum Begun {
    /// A run that was admitted now.
    Now(Box<Admitted>),
    /// The run that the same call started before.
    Before(Box<Run>),
}

impl BackgroundTasks {
    /// Starts a task on this server.
    pub(super) async fn start_task(&self, scope: &Scope, order: BackgroundOrder<'_>) -> Result<TaskRun, String> {
        let (thread, run) = task_ids(scope)?;
        let new_run = new_task_run(scope, order, thread, Multitask::Reject);
        self.core
            .webhooks
            .check(&new_run.request)
            .map_err(|invalid| refusal_text(&invalid.into()))?;
        let parent = TaskParent::of(scope);
        let record = new_record(scope, order, thread);
        self.start_run(move |tx, context| {
            Box::pin(async move { begin(tx, run, &new_run, record, &parent, &context).await })
        })
        .await
    }

    /// Sends a further message to a task on this server.
    pub(super) async fn update_task(
        &self,
        scope: &Scope,
        task: ThreadId,
        order: BackgroundOrder<'_>,
    ) -> Result<TaskRun, String> {
        let (_, run) = task_ids(scope)?;
        let new_run = new_task_run(scope, order, task, strategy(order.agent.update_strategy));
        self.core
            .webhooks
            .check(&new_run.request)
            .map_err(|invalid| refusal_text(&invalid.into()))?;
        let parent = TaskParent::of(scope);
        self.start_run(move |tx, context| {
            Box::pin(async move { continue_task(tx, run, &new_run, task, &parent, &context).await })
        })
        .await
    }

    /// Returns the state of a task on this server.
    pub(super) async fn read_task(&self, task: ThreadId) -> Result<TaskSnapshot, String> {
        self.core
            .db
            .read(move |tx| Box::pin(async move { status::look(tx, task).await }))
            .await
            .map_err(storage_error)
    }

    /// Cancels a task on this server: its runs, the queued ones first, or its interrupts.
    pub(super) async fn cancel_task(&self, scope: &Scope, record: TaskRecord) -> Result<TaskSnapshot, String> {
        let task = record.task;
        let seen = self.read_task(task).await?;
        if seen.status == TaskStatus::Waiting {
            return self.cancel_waiting_task(scope, &record, seen).await;
        }
        if seen.status.is_final() {
            return Ok(seen);
        }
        let in_flight = self.core.db.read(move |tx| Box::pin(db::runs::in_flight(tx, task)));
        for run in in_flight.await.map_err(storage_error)?.into_iter().rev() {
            match self.runs.cancel(task, run.id, CancelAction::Interrupt).await {
                Ok(()) | Err(CancelError::NoRun | CancelError::Over | CancelError::NoUndo) => {}
                Err(CancelError::Fault(error)) => return Err(storage_error(error)),
            }
        }
        let began = tokio::time::Instant::now();
        loop {
            let seen = self.read_task(task).await?;
            if seen.status.is_outcome() {
                return Ok(seen);
            }
            if began.elapsed() >= STOP_TIMEOUT {
                // The cancellation is stored, so the task will stop.
                return Ok(TaskSnapshot {
                    status: TaskStatus::Cancelled,
                    ..seen
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Cancels a task that waits for an answer.
    async fn cancel_waiting_task(
        &self,
        scope: &Scope,
        record: &TaskRecord,
        seen: TaskSnapshot,
    ) -> Result<TaskSnapshot, String> {
        let (_, run) = task_ids(scope)?;
        let new_run = new_cancelling_run(scope, record.task, &record.graph_id);
        let begun = self.start_run(move |tx, context| {
            Box::pin(async move {
                if let Some(before) = db::runs::get_by_id(tx, run).await? {
                    return Ok(Begun::Before(Box::new(before)));
                }
                let admitted = admission::start_as(tx, run, &new_run, 0, &context).await?;
                Ok(Begun::Now(Box::new(admitted)))
            })
        });
        begun.await?;
        Ok(TaskSnapshot {
            status: TaskStatus::Cancelled,
            interrupts: vec![],
            ..seen
        })
    }

    /// Stores the run of a call, unless an earlier try of the same call has stored it, and starts it.
    async fn start_run<J>(&self, job: J) -> Result<TaskRun, String>
    where
        J: for<'t> FnOnce(&'t mut Tx<'_>, AdmissionContext) -> BoxFuture<'t, Result<Begun, TaskError>>,
        J: Send + 'static,
    {
        let admission = self.admission.clone();
        let core = Arc::clone(&self.core);
        let work = self.core.run_detached(async move {
            let (permit, context) = admission.with_slot(vec![]);
            let begun = core.db.write(move |tx| job(tx, context)).await?;
            core.jobs.has_tasks(true);
            Ok::<_, TaskError>(match begun {
                Begun::Now(admitted) => admission.start_or_queue(*admitted, permit),
                Begun::Before(run) => *run,
            })
        });
        let run = work.await.map_err(TaskError::text)?;
        Ok(TaskRun {
            thread: run.thread.to_string(),
            run: run.id.to_string(),
            status: TaskStatus::from(run.status),
        })
    }
}

/// Starts a task, if the limits allow it. The calling thread is locked during all checks and counts, so that parallel
/// calls see each other.
async fn begin(
    tx: &mut Tx<'_>,
    id: RunId,
    new_run: &NewRun,
    record: TaskRecord,
    parent: &TaskParent,
    context: &AdmissionContext,
) -> Result<Begun, TaskError> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(Begun::Before(Box::new(before)));
    }
    let (ancestry, not_over) = limits::admit(tx, parent, &record, context.now).await?;
    let record = TaskRecord {
        ancestry: ancestry.clone(),
        ..record
    };
    let mut new_run = new_run.clone();
    new_run.request.background = Some(ancestry);
    let admitted = admission::start_as(tx, id, &new_run, 0, context).await;
    let admitted = admitted.inspect_err(|_| parent.budget.not_begun(not_over))?;
    db::background::insert(tx, &record).await?;
    Ok(Begun::Now(Box::new(admitted)))
}

/// Sends a further message to a task, if the limits allow it.
async fn continue_task(
    tx: &mut Tx<'_>,
    id: RunId,
    new_run: &NewRun,
    task: ThreadId,
    parent: &TaskParent,
    context: &AdmissionContext,
) -> Result<Begun, TaskError> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(Begun::Before(Box::new(before)));
    }
    db::threads::lock(tx, parent.thread).await?;
    let Some(record) = find_own_task(tx, task, parent.thread).await? else {
        return Err(TaskError::Refused(NOT_OWN_TASK.to_owned()));
    };
    let in_flight = db::runs::in_flight(tx, task).await?;
    let mine = serde_json::json!(parent.run);
    let is_mine = |run: &Run| run.metadata.get(PARENT_RUN) == Some(&mine);
    let waits = in_flight
        .iter()
        .any(|run| TaskStatus::from(run.status) == TaskStatus::Pending && is_mine(run));
    if new_run.request.multitask == Multitask::Enqueue && waits {
        return Err(TaskError::Refused(WAITS_ALREADY.to_owned()));
    }
    if in_flight.is_empty() {
        limits::check_restart(tx, parent, &record.ancestry).await?;
    }
    let mut new_run = new_run.clone();
    new_run.target = Target::Thread(task);
    new_run.request.background = Some(record.ancestry);
    let admitted = admission::start_as(tx, id, &new_run, 0, context).await?;
    db::background::watch(tx, task).await?;
    Ok(Begun::Now(Box::new(admitted)))
}
