//! Background tasks: runs on threads of their own. The agent that started one is notified of its outcome.
//!
//! A task on this server is stored in one transaction with its record, under ids that follow from the tool call. A call
//! that is repeated after a crash finds the task that it started. The outcome is stored when the run of the task ends.
//! An agent at work reads it by itself; an idle agent is notified by a job, `jobs/notify_parent.rs`.
//!
//! A task on another server is first stored on this server. Then it is started on the other server, under ids that also
//! follow from the call. It is polled until it is over, see [`remote`] and `jobs/poll_remote.rs`. The polled state is
//! stored, so that notification works alike for both.
//!
//! A task belongs to the conversation and not to the run that started it, so cancelling that run does not stop the
//! task. Undoing that run undoes the task with it, see `undone.rs`; for deleted conversations see `deleted.rs`. A
//! subagent that started a task is notified while it works, and after that the main agent is notified.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::admit::Admission;
use super::error::StartError;
use super::log_lines;
use super::new_run::{AssistantRef, NewRun, PARENT_RUN, Target, streamed_request};
use super::retry::TransactionError;
use super::runs::Runs;
use super::shared::Core;
use super::trace::called_by;
use crate::db::{self, DbError, DbResult, Tx};
use crate::definition::UpdateStrategy;
use crate::domain::background::{
    BackgroundTask, RemoteWork, StartedBy, TaskLineage, TaskRecord, TaskRun, TaskSnapshot,
};
use crate::domain::goto::Goto;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::machine::END;
use crate::domain::run::{Command, Multitask, RunRequest};
use crate::tool::Scope;
use crate::tool::scope::{BackgroundOrder, Tasks};

mod awaited_runs;
mod deleted;
mod limits;
mod local;
pub(super) mod remote;
pub(super) mod status;
mod undone;

pub use deleted::delete_thread;
pub(super) use deleted::delete_thread_of_stateless_run;
pub use status::known_status;
pub(super) use undone::{UndoneTasks, undo_tasks};

/// The deepest nesting of background tasks when no limit of depth is set.
const MAX_NESTING: u32 = 4;

/// The refusal for a task of another conversation.
const NOT_OWN_TASK: &str = "This task was not begun in this conversation.";

/// The longest wait for a cancelled task to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The refusal when a message is already queued.
const WAITS_ALREADY: &str = "A message to this task waits already for its turn; nothing was added. Put all that is to be \
    said into one message, or wait until the task has taken it up.";

/// The handle for background tasks: starts, updates and cancels them, on this server and on others. Cheap to clone.
#[derive(Clone)]
pub(super) struct BackgroundTasks {
    pub(super) core: Arc<Core>,
    pub(super) admission: Admission,
    runs: Runs,
}

impl Tasks for BackgroundTasks {
    fn start<'a>(&'a self, scope: &'a Scope, order: BackgroundOrder<'a>) -> BoxFuture<'a, Result<TaskRun, String>> {
        Box::pin(async move {
            let started = match order.agent.url {
                None => Box::pin(called_by(scope.trace.context().cloned(), self.start_task(scope, order))).await,
                Some(_) => self.start_remote(scope, order).await,
            }?;
            log_lines::background_task_started(scope, &order.agent.graph_id, &started);
            Ok(started)
        })
    }

    fn update<'a>(
        &'a self,
        scope: &'a Scope,
        task: &'a BackgroundTask,
        order: BackgroundOrder<'a>,
    ) -> BoxFuture<'a, Result<TaskRun, String>> {
        Box::pin(async move {
            let record = self.own_record(scope, task).await?;
            match record.url {
                None => {
                    let update = Box::pin(self.update_task(scope, record.task, order));
                    called_by(scope.trace.context().cloned(), update).await
                }
                Some(_) => self.update_remote(scope, record, order).await,
            }
        })
    }

    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        task: &'a BackgroundTask,
    ) -> BoxFuture<'a, Result<TaskSnapshot, String>> {
        Box::pin(async move {
            let record = self.own_record(scope, task).await?;
            match record.url {
                None => self.read_task_as_known(record.task, task.clone()).await,
                Some(_) => Ok(task.with_unknown_past(self.poll_task(&record).await?)),
            }
        })
    }

    fn cancel<'a>(&'a self, scope: &'a Scope, task: &'a BackgroundTask) -> BoxFuture<'a, Result<TaskSnapshot, String>> {
        Box::pin(async move {
            let record = self.own_record(scope, task).await?;
            match record.url {
                None => self.cancel_task(scope, record).await,
                Some(_) => self.cancel_remote(record).await,
            }
        })
    }
}

impl BackgroundTasks {
    pub(super) fn new(runs: Runs) -> Self {
        Self {
            core: Arc::clone(&runs.core),
            admission: runs.admission.clone(),
            runs,
        }
    }

    /// Returns the record of a task that this conversation has started.
    async fn own_record(&self, scope: &Scope, task: &BackgroundTask) -> Result<TaskRecord, String> {
        let id = task
            .task_id
            .parse()
            .map_err(|_| format!("There is no background task `{}` here.", task.task_id))?;
        let parent = scope.thread;
        let found = self
            .core
            .db
            .read(move |tx| Box::pin(async move { find_own_task(tx, id, parent).await }))
            .await;
        found.map_err(storage_error)?.ok_or_else(|| NOT_OWN_TASK.to_owned())
    }
}

/// Returns the record of a task that the conversation on this thread has started.
async fn find_own_task(tx: &mut Tx<'_>, task: ThreadId, parent: ThreadId) -> DbResult<Option<TaskRecord>> {
    Ok(db::background::find(tx, task)
        .await?
        .filter(|record| record.parent_thread == parent))
}

/// Returns the ids of the thread and the run that a call creates.
fn task_ids(scope: &Scope) -> Result<(ThreadId, RunId), String> {
    let task = scope
        .task
        .ok_or_else(|| "Background tasks are begun by tool calls only.".to_owned())?;
    Ok((ThreadId::of_background(task), RunId::of_background(task)))
}

/// Returns the record of a new task. Its lineage is not complete yet.
fn new_record(scope: &Scope, order: BackgroundOrder<'_>, task: ThreadId) -> TaskRecord {
    TaskRecord {
        task,
        parent_thread: scope.thread,
        parent_run: scope.run,
        parent_assistant: scope.assistant,
        call: order.call.id.clone(),
        agent: order.agent.name.clone(),
        graph_id: order.agent.graph_id.clone(),
        url: order.agent.url.clone(),
        ancestry: TaskLineage {
            top: scope.run,
            nesting: 1,
            levels: None,
            trees: vec![],
            starter: scope.subagent.map(|run| StartedBy {
                run,
                path: scope.path.to_vec(),
            }),
            visibility: order.agent.visibility.min(scope.visibility),
        },
        notify: order.agent.notify_parent,
        watched: true,
        reported_run: None,
        created_at: scope.now(),
        remote: RemoteWork::default(),
    }
}

/// Returns the metadata of the thread and the runs of a task.
fn notes(scope: &Scope, order: BackgroundOrder<'_>) -> Map<String, Value> {
    let notes = [
        ("subagent_name", json!(order.agent.name)),
        ("parent_thread_id", json!(scope.thread)),
        ("parent_assistant_id", json!(scope.assistant)),
        (PARENT_RUN, json!(scope.run)),
        ("tool_call_id", json!(order.call.id)),
        ("parent_agent_path", json!(scope.path)),
    ];
    notes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn storage_error(error: DbError) -> String {
    refusal_text(&StartError::Fault(error))
}

/// Returns the run that starts a task, or sends it a further message.
fn new_task_run(scope: &Scope, order: BackgroundOrder<'_>, thread: ThreadId, multitask: Multitask) -> NewRun {
    let BackgroundOrder { agent, text, .. } = order;
    let mut extra = Map::new();
    if let Some(webhook) = &agent.webhook {
        extra.insert("webhook".to_owned(), webhook.clone().into());
    }
    let reached = |key: &String| scope.context_scoping.reaches(key, &agent.name);
    let context = scope.context.iter().filter(|(key, _)| reached(key));
    let request = RunRequest {
        input: Some(json!({"messages": [{"type": "human", "content": text}]})),
        config: scope
            .step_limit
            .map(|limit| ("recursion_limit".to_owned(), json!(limit)))
            .into_iter()
            .collect(),
        context: context.map(|(key, value)| (key.clone(), value.clone())).collect(),
        multitask,
        extra,
        ..streamed_request()
    };
    NewRun {
        // The thread of a task belongs to the owner of the thread that started the task.
        caller: Arc::new(Identity::server_for(&scope.ownership)),
        ..new_run(
            thread,
            AssistantRef::Graph(agent.graph_id.clone()),
            request,
            notes(scope, order),
        )
    }
}

/// Returns the run that drops the interrupts of a task and does nothing else.
fn new_cancelling_run(scope: &Scope, thread: ThreadId, graph_id: &str) -> NewRun {
    let goto = Command {
        goto: vec![Goto::Node(END.to_owned())],
        ..Command::default()
    };
    let request = RunRequest {
        command: Some(goto),
        multitask: Multitask::Reject,
        ..streamed_request()
    };
    let metadata = Map::from_iter([(PARENT_RUN.to_owned(), json!(scope.run))]);
    new_run(thread, AssistantRef::Graph(graph_id.to_owned()), request, metadata)
}

/// Returns a run that the server itself starts.
pub(super) fn new_run(
    thread: ThreadId,
    assistant: AssistantRef,
    request: RunRequest,
    metadata: Map<String, Value>,
) -> NewRun {
    NewRun {
        target: Target::ThreadOrNew(thread),
        caller: Arc::new(Identity::server()),
        assistant,
        request,
        resume: None,
        metadata,
        after: Duration::ZERO,
    }
}

fn strategy(strategy: UpdateStrategy) -> Multitask {
    match strategy {
        UpdateStrategy::Interrupt => Multitask::Interrupt,
        UpdateStrategy::Enqueue => Multitask::Enqueue,
    }
}

/// The refusal to start a task or to send it a message.
#[derive(Debug, thiserror::Error)]
enum TaskError {
    /// The reason, as a text for the model.
    #[error("{0}")]
    Refused(String),
    /// The run of the task was not started.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<DbError> for TaskError {
    fn from(error: DbError) -> Self {
        Self::Start(error.into())
    }
}

impl TransactionError for TaskError {
    fn db_error(&self) -> Option<&DbError> {
        match self {
            Self::Refused(_) => None,
            Self::Start(error) => error.db_error(),
        }
    }
}

impl TaskError {
    /// Returns the refusal as a text for the model.
    fn text(self) -> String {
        match self {
            Self::Refused(reason) => reason,
            Self::Start(error) => refusal_text(&error),
        }
    }
}

/// Returns the refusal of a run as a text for the model.
fn refusal_text(error: &StartError) -> String {
    match error {
        StartError::QuestionPending(_) | StartError::AssignedToOthers(_) | StartError::WaitsForApprovers(_) => {
            "The task waits for a human and takes no message before the question is answered.".to_owned()
        }
        StartError::Fault(error) => {
            tracing::error!(%error, "the database failed under a background task");
            "The server could not store the task. Nothing was started.".to_owned()
        }
        StartError::Quota(reached) => format!("The task was not started. {reached}"),
        StartError::NoThread(_)
        | StartError::Forbidden(_)
        | StartError::ForbiddenByPolicy(_)
        | StartError::NoAssistant(_)
        | StartError::NoAgent { .. }
        | StartError::ModelNotAllowed(_)
        | StartError::PriorityNotAllowed
        | StartError::NoCheckpoint(_)
        | StartError::Busy
        | StartError::QueueFull(_)
        | StartError::ThreadFull(_)
        | StartError::NoOpenInterrupt
        | StartError::StaleInterrupt(..)
        | StartError::AmbiguousAnswer(_)
        | StartError::Invalid(_)
        | StartError::ResumeNeedsThread => format!("The task was not started: {error}."),
    }
}
