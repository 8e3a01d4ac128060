//! Child runs on the wire.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::run::{RunStatusWord, RunView};
use crate::domain::background::{TaskRecord, TaskStatus};
use crate::domain::id::RunId;
use crate::domain::limits::{Usage, is_free};
use crate::domain::run::Run;

/// A run of a subagent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "ChildRun")]
pub struct ChildRunView {
    /// The id of the run.
    pub run_id: Uuid,
    /// The thread of the run.
    pub thread_id: Uuid,
    /// The run that delegated to it.
    pub parent_run_id: Option<Uuid>,
    /// The run of the main agent.
    pub root_run_id: Uuid,
    /// The number of delegations above this run.
    pub depth: u32,
    /// The subagent's name.
    pub agent_name: String,
    /// The names of the agents from the main agent down to this one.
    pub agent_path: Vec<String>,
    /// The id of the `task` call that started the run.
    pub task_call_id: Option<String>,
    /// The namespace in streams: `tools:<task id>`.
    pub checkpoint_ns: String,
    /// The text that a user interface shows while the subagent works, from its definition.
    pub display_text: Option<String>,
    /// The status of the run.
    pub status: RunStatusWord,
    /// The error `{error, message}` of a failed run; otherwise null.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// The usage of this run alone.
    pub usage: UsageView,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time of the last change.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// The usage of a run as of its last step.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(title = "Usage")]
pub struct UsageView {
    /// Model calls.
    pub model_calls: u64,
    /// Tool calls, including delegations.
    pub tool_calls: u64,
    /// Tokens read by models.
    pub input_tokens: u64,
    /// Tokens written by models.
    pub output_tokens: u64,
    /// Delegations to subagents.
    pub children: u64,
    /// The cost of the models that have a price on this server, in millionths. Absent while it is 0.
    #[serde(skip_serializing_if = "is_free")]
    pub cost_micros: u64,
    /// Seconds of work; for several runs, the sum of all.
    pub seconds: f64,
}

impl From<Usage> for UsageView {
    fn from(usage: Usage) -> Self {
        let Usage {
            model_calls,
            tool_calls,
            input_tokens,
            output_tokens,
            children,
            cost_micros,
            seconds,
        } = usage;
        Self {
            model_calls,
            tool_calls,
            input_tokens,
            output_tokens,
            children,
            cost_micros,
            // Sums depend on the order of their parts in the last digits.
            seconds: (seconds * 1e6).round() / 1e6,
        }
    }
}

/// The usage of each run of a tree.
pub type Used = HashMap<RunId, Usage>;

fn used_by(used: &Used, run: RunId) -> UsageView {
    used.get(&run).copied().unwrap_or_default().into()
}

/// A run of the main agent with its usage.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "MainRun")]
pub struct MainRunView {
    /// The run.
    #[serde(flatten)]
    pub run: RunView,
    /// The usage of this run alone.
    pub usage: UsageView,
    /// The usage of the run and all runs below it, including background tasks.
    pub tree_usage: UsageView,
}

/// A run of the main agent or of a subagent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnyRunView {
    /// A run of the main agent.
    Main(Box<MainRunView>),
    /// A run of a subagent.
    Child(Box<ChildRunView>),
}

impl AnyRunView {
    /// Creates the view of a run with its usage.
    pub fn of(run: Run, used: &Used) -> Self {
        if run.lineage.depth > 0 {
            return Self::Child(Box::new(ChildRunView::of(run, used)));
        }
        let usage = used_by(used, run.id);
        let tree_usage = used.values().copied().fold(Usage::default(), Usage::plus).into();
        Self::Main(Box::new(MainRunView {
            run: run.into(),
            usage,
            tree_usage,
        }))
    }
}

/// A run and the runs below it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "RunTree")]
pub struct RunTreeView {
    /// The run.
    #[serde(flatten)]
    pub top: RunNodeView,
    /// The usage of the run and all runs below it, including background tasks.
    pub tree_usage: UsageView,
    /// True if the tree is too large to be shown completely; its upper levels are shown.
    pub truncated: bool,
    /// The background tasks that the run started, oldest first.
    pub background_tasks: Vec<BackgroundTaskView>,
}

/// A background task with its current status.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "BackgroundTask")]
pub struct BackgroundTaskView {
    /// The id of the task.
    pub task_id: Uuid,
    /// The thread of the task.
    pub thread_id: Uuid,
    /// The name of the agent.
    pub agent_name: String,
    /// The `graph_id` of the agent.
    pub graph_id: String,
    /// The tool call that started the task.
    pub task_call_id: String,
    /// The names of the agents from the main agent down to the subagent that started the task; null if the main agent
    /// did.
    pub begun_by: Option<Vec<String>>,
    /// The newest run on the task's thread; null if the run was deleted.
    pub run_id: Option<Uuid>,
    /// The status: `pending`, `running`, `waiting` for a human, `success`, `error`, `timeout` or `cancelled`.
    #[schema(example = "running")]
    pub status: String,
    /// The time when the task was started.
    #[schema(format = DateTime)]
    pub created_at: String,
}

impl BackgroundTaskView {
    /// Creates the view of a task with its newest run and status.
    pub fn of(record: TaskRecord, run: Option<RunId>, status: TaskStatus) -> Self {
        Self {
            task_id: record.task.0,
            thread_id: record.task.0,
            agent_name: record.agent,
            graph_id: record.graph_id,
            task_call_id: record.call,
            begun_by: record.ancestry.starter.map(|starter| starter.path),
            run_id: run.map(|run| run.0),
            status: status.word().to_owned(),
            created_at: record.created_at.to_string(),
        }
    }
}

/// A run in a tree of delegations.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "RunNode")]
pub struct RunNodeView {
    /// The id of the run.
    pub run_id: Uuid,
    /// The name of the agent.
    pub agent_name: String,
    /// The names of the agents from the main agent down to this one.
    pub agent_path: Vec<String>,
    /// The tool call that started the run; null for the main agent.
    pub task_call_id: Option<String>,
    /// The number of delegations above this run; 0 for the main agent.
    pub depth: u32,
    /// The text that a user interface shows while the subagent works, from its definition.
    pub display_text: Option<String>,
    /// The status of the run.
    pub status: RunStatusWord,
    /// The error `{error, message}` of a failed run; otherwise null.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// The namespace in streams: `tools:<task id>`; empty for the main agent.
    pub checkpoint_ns: String,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time of the last change.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// The usage of this run alone.
    pub usage: UsageView,
    /// The child runs, oldest first.
    #[schema(no_recursion)]
    pub children: Vec<RunNodeView>,
}

impl RunNodeView {
    fn of(run: &Run, used: &Used, children: Vec<Self>) -> Self {
        Self {
            run_id: run.id.0,
            agent_name: run.lineage.agent().to_owned(),
            agent_path: run.lineage.path.clone(),
            task_call_id: run.lineage.cause.clone(),
            depth: run.lineage.depth,
            display_text: run.display_text().map(str::to_owned),
            status: run.status.into(),
            error: run.error.as_ref().map(super::failure),
            checkpoint_ns: run.lineage.checkpoint_ns(),
            created_at: run.created_at.to_string(),
            updated_at: run.updated_at.to_string(),
            usage: used_by(used, run.id),
            children,
        }
    }
}

impl RunTreeView {
    /// The maximum number of runs in a tree.
    pub const LARGEST: usize = 1000;

    /// Builds the tree of the runs in `all`. The first one is the root, and parents come before their children. `None`
    /// if there are no runs.
    pub fn of(mut all: Vec<Run>, used: &Used) -> Option<Self> {
        let truncated = all.len() > Self::LARGEST;
        all.truncate(Self::LARGEST);
        let mut below: HashMap<Uuid, Vec<RunNodeView>> = HashMap::new();
        for run in all.iter().skip(1).rev() {
            let node = RunNodeView::with(run, used, &mut below);
            if let Some(parent) = run.lineage.parent {
                below.entry(parent.0).or_default().push(node);
            }
        }
        let top = all.first()?;
        let mine: Vec<Usage> = match top.lineage.depth {
            0 => used.values().copied().collect(),
            _ => all.iter().filter_map(|run| used.get(&run.id).copied()).collect(),
        };
        let tree_usage = mine.into_iter().fold(Usage::default(), Usage::plus).into();
        let background_tasks = vec![];
        Some(Self {
            top: RunNodeView::with(top, used, &mut below),
            tree_usage,
            truncated,
            background_tasks,
        })
    }
}

impl RunNodeView {
    /// Builds the node of `run`, taking its children out of `below`, where they are sorted newest first.
    fn with(run: &Run, used: &Used, below: &mut HashMap<Uuid, Vec<Self>>) -> Self {
        Self::of(
            run,
            used,
            below.remove(&run.id.0).unwrap_or_default().into_iter().rev().collect(),
        )
    }
}

impl ChildRunView {
    /// Creates the view of a run with its usage.
    pub fn of(run: Run, used: &Used) -> Self {
        Self {
            usage: used_by(used, run.id),
            display_text: run.display_text().map(str::to_owned),
            run_id: run.id.0,
            thread_id: run.thread.0,
            parent_run_id: run.lineage.parent.map(|parent| parent.0),
            root_run_id: run.lineage.root.0,
            depth: run.lineage.depth,
            agent_name: run.lineage.agent().to_owned(),
            checkpoint_ns: run.lineage.checkpoint_ns(),
            agent_path: run.lineage.path,
            task_call_id: run.lineage.cause,
            status: run.status.into(),
            error: run.error.as_ref().map(super::failure),
            created_at: run.created_at.to_string(),
            updated_at: run.updated_at.to_string(),
        }
    }
}
