//! Background tasks on this server.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::limits::{self, TaskParent};
use super::{
    BackgroundTasks, NOT_OWN_TASK, STOP_TIMEOUT, TaskError, WAITS_ALREADY, find_own_task, new_cancelling_run,
    new_record, new_task_run, refusal_text, status, storage_error, strategy, task_ids,
};
use crate::db::interrupts::InterruptState;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{BackgroundTask, TaskRecord, TaskRun, TaskSnapshot, TaskStatus};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{Multitask, Run, RunStatus};
use crate::runtime::admission::{self, AdmissionContext, Admitted};
use crate::runtime::admit::{AdmittedStart, MayStart};
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::error::{CancelError, StartError};
use crate::runtime::interrupts;
use crate::runtime::new_run::{AssistantRef, NewRun, PARENT_RUN, Target};
use crate::runtime::retry::retry_until_available;
use crate::runtime::withdraw::withdraw;
use crate::tool::Scope;
use crate::tool::scope::BackgroundOrder;

/// The pause between two looks at a task that was cancelled.
const POLL: Duration = Duration::from_millis(20);

/// The run that a call starts.
enum TaskStart {
    /// A run that was admitted now.
    New(Box<Admitted>),
    /// The run that the same call started before.
    Existing(Box<Run>),
}

impl MayStart for TaskStart {
    type Started = Run;

    fn started(self, begin: impl FnOnce(AdmittedStart) -> Run) -> Run {
        match self {
            Self::New(admitted) => begin((*admitted).into()),
            Self::Existing(run) => *run,
        }
    }
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
        self.start_run(scope.run, move |tx, context| {
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
        self.start_run(scope.run, move |tx, context| {
            Box::pin(async move { continue_task(tx, run, &new_run, task, &parent, &context).await })
        })
        .await
    }

    /// Returns the state of a task on this server.
    pub(super) async fn read_task(&self, task: ThreadId) -> Result<TaskSnapshot, String> {
        self.core
            .db
            .read(move |tx| Box::pin(async move { status::snapshot(tx, task).await }))
            .await
            .map_err(storage_error)
    }

    /// Returns the state of a task on this server, with the earlier outcomes that the agent does not know. `known` is the
    /// task in the state of the agent.
    pub(super) async fn read_task_as_known(
        &self,
        task: ThreadId,
        known: BackgroundTask,
    ) -> Result<TaskSnapshot, String> {
        self.core
            .db
            .read(move |tx| Box::pin(async move { status::snapshot_as_known(tx, task, &known).await }))
            .await
            .map_err(storage_error)
    }

    /// Cancels a task on this server: its runs, the queued ones first, and its interrupts.
    pub(super) async fn cancel_task(&self, scope: &Scope, record: TaskRecord) -> Result<TaskSnapshot, String> {
        let task = record.task;
        let seen = self.read_task(task).await?;
        if seen.status.is_final() {
            return Ok(seen);
        }
        let began = tokio::time::Instant::now();
        let mut stopped: Vec<RunId> = vec![];
        loop {
            let look = self.core.db.read(move |tx| Box::pin(look_at_work(tx, task)));
            let CancelledWork {
                seen,
                in_flight,
                is_asking,
            } = look.await.map_err(storage_error)?;
            let is_at_rest = in_flight.is_empty();
            if is_at_rest && !is_asking {
                return Ok(seen);
            }
            // An answer that came meanwhile has started a run, which is stopped like the others.
            let is_cancelled = is_at_rest && self.drop_questions(scope, &record).await?;
            // Once the cancellation of the runs is stored, the task will stop.
            if is_cancelled || began.elapsed() >= STOP_TIMEOUT {
                return Ok(TaskSnapshot {
                    status: TaskStatus::Cancelled,
                    interrupts: vec![],
                    ..seen
                });
            }
            for run in in_flight.into_iter().rev() {
                if stopped.contains(&run) {
                    continue;
                }
                match self.runs.cancel(task, run, CancelAction::Interrupt).await {
                    Ok(()) | Err(CancelError::NoRun | CancelError::Over | CancelError::NoUndo) => stopped.push(run),
                    Err(CancelError::Fault(error)) => return Err(storage_error(error)),
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Drops the interrupts of a task whose runs are over, with a run that does nothing else. From then on no answer is
    /// accepted. Returns false if another run has begun meanwhile.
    async fn drop_questions(&self, scope: &Scope, record: &TaskRecord) -> Result<bool, String> {
        let (_, run) = task_ids(scope)?;
        let task = record.task;
        let new_run = new_cancelling_run(scope, task, &record.graph_id);
        let begun = self.begin_run(scope.run, move |tx, context| {
            Box::pin(async move {
                if let Some(before) = db::runs::get_by_id(tx, run).await? {
                    return Ok(TaskStart::Existing(Box::new(before)));
                }
                let admitted = admission::start_as(tx, run, &new_run, 0, &context).await?;
                interrupts::drop_for_input(tx, task, None, run, context.now).await?;
                Ok(TaskStart::New(Box::new(admitted)))
            })
        });
        match begun.await {
            Ok(_) => Ok(true),
            Err(TaskError::Start(StartError::Busy)) => Ok(false),
            Err(error) => Err(error.text()),
        }
    }

    /// Starts the run of a call like [`BackgroundTasks::begin_run`]. A refusal is a text for the model.
    async fn start_run<J>(&self, calling: RunId, job: J) -> Result<TaskRun, String>
    where
        J: for<'t> FnOnce(&'t mut Tx<'_>, AdmissionContext) -> BoxFuture<'t, Result<TaskStart, TaskError>>,
        J: Clone + Send + 'static,
    {
        self.begin_run(calling, job).await.map_err(TaskError::text)
    }

    /// Stores the run of a call of the run `calling`, unless an earlier try of the same call has stored it, and starts it.
    /// While the database is unavailable, this is retried: the model must not be told that nothing was started when the run
    /// is stored.
    async fn begin_run<J>(&self, calling: RunId, job: J) -> Result<TaskRun, TaskError>
    where
        J: for<'t> FnOnce(&'t mut Tx<'_>, AdmissionContext) -> BoxFuture<'t, Result<TaskStart, TaskError>>,
        J: Clone + Send + 'static,
    {
        let run = retry_until_available(calling, move || Box::pin(self.try_to_begin_run(job.clone()))).await?;
        Ok(TaskRun {
            thread: run.thread.to_string(),
            run: run.id.to_string(),
            status: TaskStatus::from(run.status),
        })
    }

    /// Tries once to store and start the run of a call.
    async fn try_to_begin_run<J>(&self, job: J) -> Result<Run, TaskError>
    where
        J: for<'t> FnOnce(&'t mut Tx<'_>, AdmissionContext) -> BoxFuture<'t, Result<TaskStart, TaskError>>,
        J: Clone + Send + 'static,
    {
        let admission = self.admission.clone();
        let core = Arc::clone(&self.core);
        let work = self.core.run_detached(async move {
            let run = Box::pin(admission.admit(vec![], job)).await?;
            core.jobs.note_task();
            // The runs whose messages it took over may have reports to send.
            core.jobs.wake();
            Ok::<_, TaskError>(run)
        });
        work.await
    }
}

/// The work of a task that is being cancelled.
struct CancelledWork {
    seen: TaskSnapshot,
    /// Its runs that are not over, oldest first.
    in_flight: Vec<RunId>,
    /// True if one of its interrupts can be answered.
    is_asking: bool,
}

async fn look_at_work(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<CancelledWork> {
    let asked = db::interrupts::of_thread(tx, task, Some(InterruptState::Pending)).await?;
    Ok(CancelledWork {
        seen: status::snapshot(tx, task).await?,
        in_flight: db::runs::ids_in_flight(tx, task).await?,
        is_asking: !asked.is_empty(),
    })
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
) -> Result<TaskStart, TaskError> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(TaskStart::Existing(Box::new(before)));
    }
    let (ancestry, not_over) = limits::admit(tx, parent, &record, context.now).await?;
    let record = TaskRecord {
        ancestry: ancestry.clone(),
        ..record
    };
    let mut new_run = new_run.clone();
    new_run.request.background = Some(ancestry);
    let start = async {
        check_exists(&new_run, context)?;
        let admitted = admission::start_as(tx, id, &new_run, 0, context).await?;
        db::background::insert(tx, &record).await?;
        Ok::<_, TaskError>(admitted)
    };
    let started = Box::pin(start).await;
    let admitted = started.inspect_err(|_| parent.not_begun(not_over))?;
    Ok(TaskStart::New(Box::new(admitted)))
}

/// Sends a further message to a task, if the limits allow it. A message that cancels the running run brings along the
/// messages of the same conversation that the task has not read.
async fn continue_task(
    tx: &mut Tx<'_>,
    id: RunId,
    new_run: &NewRun,
    task: ThreadId,
    parent: &TaskParent,
    context: &AdmissionContext,
) -> Result<TaskStart, TaskError> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(TaskStart::Existing(Box::new(before)));
    }
    db::threads::lock(tx, parent.thread).await?;
    let Some(record) = find_own_task(tx, task, parent.thread).await? else {
        return Err(TaskError::Refused(NOT_OWN_TASK.to_owned()));
    };
    // None of the queued runs begins in between.
    db::threads::lock(tx, task).await?;
    let in_flight = db::runs::in_flight(tx, task).await?;
    let mine = json!(parent.run);
    // Clients and other servers write this key, too, so it says something only about a run that this server has created.
    let is_mine = |run: &Run| run.id.is_of_call() && run.metadata.get(PARENT_RUN) == Some(&mine);
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
    if new_run.request.multitask == Multitask::Interrupt {
        take_over_messages(tx, &mut new_run, &in_flight, context).await?;
    }
    check_exists(&new_run, context)?;
    let admitted = admission::start_as(tx, id, &new_run, 0, context).await?;
    db::background::watch(tx, task).await?;
    Ok(TaskStart::New(Box::new(admitted)))
}

/// Refuses an agent that does not exist for the tenant of the conversation like one that nobody has defined. Other checks of
/// its run would describe it.
fn check_exists(new_run: &NewRun, context: &AdmissionContext) -> Result<(), StartError> {
    let AssistantRef::Graph(graph_id) = &new_run.assistant else {
        return Ok(());
    };
    let existing = context.core.registry.agents_of(&new_run.caller.tenant);
    match existing.contains(graph_id) {
        true => Ok(()),
        false => Err(StartError::NoAssistant(graph_id.clone())),
    }
}

/// Withdraws the runs of a task that agents have queued and that have not begun, and puts their messages before those of
/// a new run.
async fn take_over_messages(
    tx: &mut Tx<'_>,
    new_run: &mut NewRun,
    in_flight: &[Run],
    context: &AdmissionContext,
) -> DbResult<()> {
    let mut messages: Vec<Value> = vec![];
    let is_unread = |run: &&Run| run.status == RunStatus::Pending && run.id.is_of_call();
    for run in in_flight.iter().filter(is_unread) {
        let Some(earlier) = messages_of(run.request.input.as_ref()) else {
            continue;
        };
        messages.extend_from_slice(earlier);
        withdraw(tx, run, CancelAction::Interrupt, &context.core, context.now).await?;
    }
    if !messages.is_empty() {
        messages.extend_from_slice(messages_of(new_run.request.input.as_ref()).unwrap_or_default());
        new_run.request.input = Some(json!({"messages": messages}));
    }
    Ok(())
}

/// Returns the messages of an input.
fn messages_of(input: Option<&Value>) -> Option<&[Value]> {
    input?.get("messages")?.as_array().map(Vec::as_slice)
}
