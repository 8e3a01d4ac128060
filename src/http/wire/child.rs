//! Runs of subagents on the wire.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::run::{RunStatusWord, RunView};
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
    /// What it is doing.
    pub status: RunStatusWord,
    /// Why it failed, when it did: `{error, message}`.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// A run, be it of the main agent or of a subagent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnyRunView {
    /// Of the main agent.
    Main(Box<RunView>),
    /// Of a subagent.
    Child(Box<ChildRunView>),
}

impl From<Run> for AnyRunView {
    fn from(run: Run) -> Self {
        if run.lineage.depth == 0 { Self::Main(Box::new(run.into())) } else { Self::Child(Box::new(run.into())) }
    }
}

/// A run and the runs below it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "RunTree")]
pub struct RunTreeView {
    /// The run.
    #[serde(flatten)]
    pub top: RunNodeView,
    /// Whether there are more runs than are shown: of large trees the upper levels are.
    pub truncated: bool,
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
    /// The runs that it delegated to, the oldest first.
    #[schema(no_recursion)]
    pub children: Vec<RunNodeView>,
}

impl From<&Run> for RunNodeView {
    fn from(run: &Run) -> Self {
        Self {
            run_id: run.id.0,
            agent_name: run.lineage.agent().to_owned(),
            agent_path: run.lineage.path.clone(),
            task_call_id: run.lineage.cause.clone(),
            depth: run.lineage.depth,
            status: run.status.into(),
            error: run.error.as_ref().map(super::failure),
            checkpoint_ns: run.lineage.checkpoint_ns(),
            created_at: run.created_at.to_string(),
            updated_at: run.updated_at.to_string(),
            children: vec![],
        }
    }
}

impl RunTreeView {
    /// How many runs of a tree are shown.
    pub const LARGEST: usize = 1000;

    /// The tree of the runs in `all`, its top first and every run behind the one that delegated to it. None if there are
    /// none.
    pub fn of(mut all: Vec<Run>) -> Option<Self> {
        let truncated = all.len() > Self::LARGEST;
        all.truncate(Self::LARGEST);
        let mut below: HashMap<Uuid, Vec<RunNodeView>> = HashMap::new();
        for run in all.iter().skip(1).rev() {
            let node = RunNodeView::with(run, &mut below);
            if let Some(parent) = run.lineage.parent {
                below.entry(parent.0).or_default().push(node);
            }
        }
        Some(Self { top: RunNodeView::with(all.first()?, &mut below), truncated })
    }
}

impl RunNodeView {
    /// The node of `run` with those of its children, which lie in `below`, the youngest first.
    fn with(run: &Run, below: &mut HashMap<Uuid, Vec<Self>>) -> Self {
        let children = below.remove(&run.id.0).unwrap_or_default().into_iter().rev().collect();
        Self { children, ..Self::from(run) }
    }
}

impl From<Run> for ChildRunView {
    fn from(run: Run) -> Self {
        Self {
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
