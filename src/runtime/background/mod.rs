//! Work in the background: tasks are runs on threads of their own, and whoever asked for one is told what came of it.
//!
//! On this server a task is begun in one transaction with the record of who asked for it, under ids that follow from the tool call: a call
//! that is made again after a crash finds what it began. What becomes of it is a fact in the tables from the moment its run
//! ends; an agent at work sees it by itself, and one that is idle is told by a job, `jobs/notify_parent.rs`.
//!
//! What another server does is written down here first, begun there under ids that follow from the call as well, and polled
//! until it is over, see [`remote`] and `jobs/poll_remote.rs`. What was seen is kept, so that telling it is the same for both.
//!
//! Cancelling the run that asked does not stop the task: it belongs to the conversation, not to the run. So does one that a
//! subagent has begun: as long as the subagent works it is told what comes of it, and then the main agent is.

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::{AssistantRef, NewRun, Runs, StartError, Target};
use crate::db::{self, DbError, DbResult, Tx};
use crate::definition::UpdateStrategy;
use crate::domain::background::{
    BackgroundTask, RemoteWork, StartedBy, TaskLineage, TaskRecord, TaskRun, TaskSnapshot,
};
use crate::domain::goto::Goto;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::END;
use crate::domain::run::{Command, Multitask, RunRequest};
use crate::tool::Scope;
use crate::tool::background::{BackgroundOrder, Tasks};

mod approvals;
mod awaited;
mod local;
pub(super) mod remote;
mod room;
pub(super) mod sight;

pub(super) use awaited::note_remote_run;
pub(super) use local::place;
pub use sight::known_of;

/// How many background tasks may lie one above the other when nobody says how deep delegations may nest.
const DEEPEST: u32 = 4;

/// How the run of a task is streamed to whoever follows it.
const MODES: [&str; 4] = ["values", "updates", "messages-tuple", "custom"];

/// The place of a task in the metadata of its thread and runs.
const PARENT_RUN: &str = "parent_run_id";

/// What is said of a task that another conversation has begun, or nobody.
const STRANGER: &str = "This task was not begun in this conversation.";

/// How long it is waited for a cancelled task to stop.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// What is said when a message waits already.
const WAITS_ALREADY: &str = "A message to this task waits already for its turn; nothing was added. Put all that is to be \
    said into one message, or wait until the task has taken it up.";

#[async_trait]
impl Tasks for Runs {
    async fn start(&self, scope: &Scope, order: BackgroundOrder<'_>) -> Result<TaskRun, String> {
        match order.agent.url {
            None => self.start_task(scope, order).await,
            Some(_) => self.start_remote(scope, order).await,
        }
    }

    async fn update(
        &self,
        scope: &Scope,
        task: &BackgroundTask,
        order: BackgroundOrder<'_>,
    ) -> Result<TaskRun, String> {
        let record = self.own(scope, task).await?;
        match record.url {
            None => self.update_task(scope, record.task, order).await,
            Some(_) => self.update_remote(scope, record, order).await,
        }
    }

    async fn look(&self, scope: &Scope, task: &BackgroundTask) -> Result<TaskSnapshot, String> {
        let record = self.own(scope, task).await?;
        match record.url {
            None => self.look_at_task(record.task).await,
            Some(_) => self.look_at_remote(&record).await,
        }
    }

    async fn cancel(&self, scope: &Scope, task: &BackgroundTask) -> Result<TaskSnapshot, String> {
        let record = self.own(scope, task).await?;
        match record.url {
            None => self.cancel_task(scope, record).await,
            Some(_) => self.cancel_remote(record).await,
        }
    }
}

impl Runs {
    /// The record of a task that this conversation has begun.
    async fn own(&self, scope: &Scope, task: &BackgroundTask) -> Result<TaskRecord, String> {
        let id = task
            .task_id
            .parse()
            .map_err(|_| format!("There is no background task `{}` here.", task.task_id))?;
        let parent = scope.thread;
        let found = self
            .0
            .db
            .read(move |tx| Box::pin(async move { own_task(tx, id, parent).await }))
            .await;
        found.map_err(fault)?.ok_or_else(|| STRANGER.to_owned())
    }
}

/// The record of a task that the conversation on this thread has begun.
async fn own_task(tx: &mut Tx<'_>, task: ThreadId, parent: ThreadId) -> DbResult<Option<TaskRecord>> {
    Ok(db::background::find(tx, task)
        .await?
        .filter(|record| record.parent_thread == parent))
}

/// The thread and the run that a call makes.
fn ids(scope: &Scope) -> Result<(ThreadId, RunId), String> {
    let task = scope
        .task
        .ok_or_else(|| "Background tasks are begun by tool calls only.".to_owned())?;
    Ok((ThreadId::of_background(task), RunId::of_background(task)))
}

/// What is remembered of a task that is about to begin. Its place among those who asked is not known yet.
fn record_of(scope: &Scope, order: BackgroundOrder<'_>, task: ThreadId) -> TaskRecord {
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

/// What those read who look at the thread or the run of a task.
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

fn fault(error: DbError) -> String {
    told(&StartError::Fault(error))
}

/// What a task is asked for: to begin, or to go on with a further message.
fn wish_for(scope: &Scope, order: BackgroundOrder<'_>, thread: ThreadId, multitask: Multitask) -> NewRun {
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
        ..followed()
    };
    wish(
        thread,
        AssistantRef::Graph(agent.graph_id.clone()),
        request,
        notes(scope, order),
    )
}

/// What gives up what a task waits for, without doing anything more.
fn wish_to_give_up(scope: &Scope, thread: ThreadId, graph_id: &str) -> NewRun {
    let goto = Command {
        goto: vec![Goto::Node(END.to_owned())],
        ..Command::default()
    };
    let request = RunRequest {
        command: Some(goto),
        multitask: Multitask::Reject,
        ..followed()
    };
    let metadata = Map::from_iter([(PARENT_RUN.to_owned(), json!(scope.run))]);
    wish(thread, AssistantRef::Graph(graph_id.to_owned()), request, metadata)
}

pub(super) fn wish(
    thread: ThreadId,
    assistant: AssistantRef,
    request: RunRequest,
    metadata: Map<String, Value>,
) -> NewRun {
    NewRun {
        target: Target::ThreadOrNew(thread),
        assistant,
        request,
        resume: None,
        metadata,
        after: Duration::ZERO,
    }
}

/// A request whose run can be followed in every way.
pub(super) fn followed() -> RunRequest {
    let stream_mode = MODES.map(str::to_owned).into();
    RunRequest {
        stream_mode,
        stream_subgraphs: true,
        stream_resumable: true,
        ..RunRequest::default()
    }
}

fn strategy(strategy: UpdateStrategy) -> Multitask {
    match strategy {
        UpdateStrategy::Interrupt => Multitask::Interrupt,
        UpdateStrategy::Enqueue => Multitask::Enqueue,
    }
}

/// Why a run was not started, for the model.
fn told(error: &StartError) -> String {
    match error {
        StartError::QuestionPending(_) => {
            "The task waits for a human and takes no message before the question is answered.".to_owned()
        }
        StartError::Fault(error) => {
            tracing::error!(%error, "the database failed under a background task");
            "The server could not store the task. Nothing was started.".to_owned()
        }
        StartError::NoThread(_)
        | StartError::NoAssistant(_)
        | StartError::NoAgent { .. }
        | StartError::NoCheckpoint(_)
        | StartError::Busy
        | StartError::QueueFull(_)
        | StartError::ThreadFull(_)
        | StartError::NoOpenInterrupt
        | StartError::AmbiguousAnswer(_)
        | StartError::Invalid(_)
        | StartError::ResumeNeedsThread => format!("The task was not started: {error}."),
    }
}
