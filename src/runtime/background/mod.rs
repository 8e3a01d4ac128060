//! Work in the background: tasks are runs on threads of their own, and whoever asked for one is told what came of it.
//!
//! A task is begun in one transaction with the record of who asked for it, under ids that follow from the tool call: a call
//! that is made again after a crash finds what it began. What becomes of it is a fact in the tables from the moment its run
//! ends; an agent at work sees it by itself, and one that is idle is woken, see [`wake`].
//!
//! Cancelling the run that asked does not stop the task: it belongs to the conversation, not to the run.

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::{AssistantRef, Runs, StartError, Target, Wish};
use crate::domain::background::{BackgroundAgent, BackgroundTask, Sight, TaskRun, TaskStatus};
use crate::domain::definition::UpdateStrategy;
use crate::domain::goto::Goto;
use crate::domain::id::ThreadId;
use crate::domain::machine::END;
use crate::domain::run::{Command, Multitask, RunRequest, RunStatus};
use crate::tool::Scope;
use crate::tool::background::{Order, Tasks};

mod local;
mod sight;
mod wake;

pub(super) use local::inherited;
pub use sight::standing;
pub(super) use wake::Waker;

/// How many background tasks may lie one above the other when nobody says how deep delegations may nest.
const DEEPEST: u32 = 4;

/// How the run of a task is streamed to whoever follows it.
const MODES: [&str; 4] = ["values", "updates", "messages-tuple", "custom"];

/// The place of a task in the metadata of its thread and runs.
const PARENT_RUN: &str = "parent_run_id";

#[async_trait]
impl Tasks for Runs {
    async fn start(&self, scope: &Scope, order: Order<'_>) -> Result<TaskRun, String> {
        self.start_task(scope, order).await
    }

    async fn update(&self, scope: &Scope, task: &BackgroundTask, order: Order<'_>) -> Result<TaskRun, String> {
        self.update_task(scope, thread_of(task)?, order).await
    }

    async fn look(&self, scope: &Scope, task: &BackgroundTask, _: Option<&BackgroundAgent>) -> Result<Sight, String> {
        self.look_at_task(scope, thread_of(task)?).await
    }

    async fn cancel(&self, scope: &Scope, task: &BackgroundTask, _: Option<&BackgroundAgent>) -> Result<Sight, String> {
        self.cancel_task(scope, thread_of(task)?).await
    }
}

/// The thread of a task.
fn thread_of(task: &BackgroundTask) -> Result<ThreadId, String> {
    task.task_id.parse().map_err(|_| format!("There is no background task `{}` here.", task.task_id))
}

/// What a task is asked for: to begin, or to go on with a further message.
fn wish_for(scope: &Scope, order: Order<'_>, thread: ThreadId, multitask: Multitask) -> Wish {
    let Order { agent, text, call } = order;
    let mut extra = Map::new();
    if let Some(webhook) = &agent.webhook {
        extra.insert("webhook".to_owned(), webhook.clone().into());
    }
    let reached = |key: &String| scope.context_scoping.reaches(key, &agent.name);
    let context = scope.context.iter().filter(|(key, _)| reached(key));
    let request = RunRequest {
        input: Some(json!({"messages": [{"type": "human", "content": text}]})),
        context: context.map(|(key, value)| (key.clone(), value.clone())).collect(),
        multitask,
        extra,
        ..followed()
    };
    let metadata = [
        ("subagent_name", json!(agent.name)),
        ("parent_thread_id", json!(scope.thread)),
        ("parent_assistant_id", json!(scope.assistant)),
        (PARENT_RUN, json!(scope.run)),
        ("tool_call_id", json!(call.id)),
    ];
    let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    wish(thread, AssistantRef::Graph(agent.graph_id.clone()), request, metadata)
}

/// What gives up what a task waits for, without doing anything more.
fn wish_to_give_up(scope: &Scope, thread: ThreadId, graph_id: &str) -> Wish {
    let goto = Command { goto: vec![Goto::Node(END.to_owned())], ..Command::default() };
    let request = RunRequest { command: Some(goto), multitask: Multitask::Reject, ..followed() };
    let metadata = Map::from_iter([(PARENT_RUN.to_owned(), json!(scope.run))]);
    wish(thread, AssistantRef::Graph(graph_id.to_owned()), request, metadata)
}

fn wish(thread: ThreadId, assistant: AssistantRef, request: RunRequest, metadata: Map<String, Value>) -> Wish {
    Wish { target: Target::ThreadOrNew(thread), assistant, request, resume: None, metadata, after: Duration::ZERO }
}

/// A request whose run can be followed in every way.
fn followed() -> RunRequest {
    let stream_mode = MODES.map(str::to_owned).into();
    RunRequest { stream_mode, stream_subgraphs: true, stream_resumable: true, ..RunRequest::default() }
}

fn strategy(strategy: UpdateStrategy) -> Multitask {
    match strategy {
        UpdateStrategy::Interrupt => Multitask::Interrupt,
        UpdateStrategy::Enqueue => Multitask::Enqueue,
    }
}

/// What a run of a task is doing, as far as its status tells.
fn status_of(status: RunStatus) -> TaskStatus {
    match status {
        RunStatus::Pending => TaskStatus::Pending,
        RunStatus::Running => TaskStatus::Running,
        RunStatus::Success => TaskStatus::Success,
        RunStatus::Error => TaskStatus::Error,
        RunStatus::Timeout => TaskStatus::Timeout,
        RunStatus::Interrupted => TaskStatus::Cancelled,
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
        | StartError::AmbiguousAnswer(_)
        | StartError::Invalid(_)
        | StartError::ResumeNeedsThread => format!("The task was not started: {error}."),
    }
}
