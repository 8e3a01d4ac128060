//! Runs of subagents on the wire.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::run::{RunStatusWord, RunView};
use crate::domain::background::{TaskRecord, TaskStatus};
use crate::domain::id::RunId;
use crate::domain::limits::Usage;
use crate::domain::run::Run;

/// A run of a subagent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "ChildRun")]
pub struct ChildRunView {
    /// Identifies it.
    pub run_id: Uuid,
    /// The thread it works on.
    pub thread_id: Uuid,
    /// The run that delegated to it.
    pub parent_run_id: Option<Uuid>,
    /// The run of the main agent at the top.
    pub root_run_id: Uuid,
    /// How many delegations deep it is.
    pub depth: u32,
    /// The subagent's name.
    pub agent_name: String,
    /// The names from the main agent down to it.
    pub agent_path: Vec<String>,
    /// The call of the `task` tool that caused it.
    pub task_call_id: Option<String>,
    /// Its namespace in streams: `tools:<task id>`.
    pub checkpoint_ns: String,
    /// What its definition says that a user interface shows while it works.
    pub display_text: Option<String>,
    /// What it is doing.
    pub status: RunStatusWord,
    /// Why it failed, when it did: `{error, message}`.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// What it has used itself.
    pub usage: UsageView,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// What a run has used, as of its last step.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(title = "Usage")]
pub struct UsageView {
    /// Answers of models.
    pub model_calls: u64,
    /// Calls of tools, delegations included.
    pub tool_calls: u64,
    /// Tokens that models read.
    pub input_tokens: u64,
    /// Tokens that models wrote.
    pub output_tokens: u64,
    /// Delegations.
    pub children: u64,
    /// Seconds at work; of several runs, those of each.
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
            seconds,
        } = usage;
        Self {
            model_calls,
            tool_calls,
            input_tokens,
            output_tokens,
            children,
            seconds,
        }
    }
}

/// What the runs of a tree have used, each by itself.
pub type Used = HashMap<RunId, Usage>;

fn used_by(used: &Used, run: RunId) -> UsageView {
    used.get(&run).copied().unwrap_or_default().into()
}

/// A run of the main agent with what it has used.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "MainRun")]
pub struct MainRunView {
    /// The run.
    #[serde(flatten)]
    pub run: RunView,
    /// What it has used itself.
    pub usage: UsageView,
    /// What it and all runs below it have used, background tasks as far as they have come.
    pub tree_usage: UsageView,
}

/// A run, be it of the main agent or of a subagent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnyRunView {
    /// Of the main agent.
    Main(Box<MainRunView>),
    /// Of a subagent.
    Child(Box<ChildRunView>),
}

impl AnyRunView {
    /// A run with what it has `used`.
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
    /// What the run and all below it have used together, background tasks as far as they have come.
    pub tree_usage: UsageView,
    /// Whether there are more runs than are shown: of large trees the upper levels are.
    pub truncated: bool,
    /// What the run has begun in the background, on threads of its own, the oldest first.
    pub background_tasks: Vec<BackgroundTaskView>,
}

/// A task that a run has begun in the background, as it stands now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "BackgroundTask")]
pub struct BackgroundTaskView {
    /// Identifies it.
    pub task_id: Uuid,
    /// Its thread.
    pub thread_id: Uuid,
    /// The name of the agent that does it.
    pub agent_name: String,
    /// Which agent that is.
    pub graph_id: String,
    /// The tool call that began it.
    pub task_call_id: String,
    /// The names of the agents from the main one down to the subagent that began it; null if the main agent did.
    pub begun_by: Option<Vec<String>>,
    /// The newest run on its thread; null if that is gone.
    pub run_id: Option<Uuid>,
    /// `pending`, `running`, `waiting` for a human, `success`, `error`, `timeout` or `cancelled`.
    #[schema(example = "running")]
    pub status: String,
    /// When it was begun.
    #[schema(format = DateTime)]
    pub created_at: String,
}

impl BackgroundTaskView {
    /// A task, its newest run, and how it stands.
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
    /// Identifies it.
    pub run_id: Uuid,
    /// The agent's name.
    pub agent_name: String,
    /// The names from the main agent down to it.
    pub agent_path: Vec<String>,
    /// The tool call that caused it; null for the main agent.
    pub task_call_id: Option<String>,
    /// How many delegations deep it is; 0 for the main agent.
    pub depth: u32,
    /// What its definition says that a user interface shows while it works.
    pub display_text: Option<String>,
    /// What it is doing.
    pub status: RunStatusWord,
    /// Why it failed, when it did: `{error, message}`.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// Its namespace in streams: `tools:<task id>`; empty for the main agent.
    pub checkpoint_ns: String,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// What it has used itself.
    pub usage: UsageView,
    /// The runs that it delegated to, the oldest first.
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
    /// How many runs of a tree are shown.
    pub const LARGEST: usize = 1000;

    /// The tree of the runs in `all`, its top first and every run behind the one that delegated to it. None if there are
    /// none.
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
    /// The node of `run` with those of its children, which lie in `below`, the youngest first.
    fn with(run: &Run, used: &Used, below: &mut HashMap<Uuid, Vec<Self>>) -> Self {
        Self::of(
            run,
            used,
            below.remove(&run.id.0).unwrap_or_default().into_iter().rev().collect(),
        )
    }
}

impl ChildRunView {
    /// A run with what it has `used`.
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
