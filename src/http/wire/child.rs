//! Runs of subagents on the wire.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::run::RunStatusWord;
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
