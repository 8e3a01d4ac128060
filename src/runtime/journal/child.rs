//! Admission of a child run: a call of the `task` tool, or of another agent of this server.

use serde_json::Map;

use crate::agent::NewChildRun;
use crate::db::{self, DbResult, Tx};
use crate::domain::run::{AssignedAgent, Run, RunRequest, RunStatus};
use crate::domain::time::Timestamp;
use crate::runtime::remote_runs::insert_remote_run;
use crate::runtime::run_context::RunContext;

/// The result of an admission. A refusal is not an error but a result for the model, so the other writes of the
/// transaction are kept.
pub(super) enum AdmittedChild {
    /// The child run is running, or was admitted before.
    Admitted(Box<Run>),
    /// The child run is refused for this reason.
    Refused(String),
}

/// A child run that may be admitted.
pub(super) struct PreparedChild {
    pub(super) run: Run,
    /// The address of the other server, for a remote agent.
    url: Option<String>,
}

impl PreparedChild {
    /// Returns a run that is stored already.
    pub(super) fn of(run: Run) -> Self {
        Self { run, url: None }
    }
}

/// Admits a child run. A run that was admitted before is returned again.
pub(super) async fn admit(
    tx: &mut Tx<'_>,
    run_context: &RunContext,
    new_run: &NewChildRun,
    now: Timestamp,
) -> DbResult<AdmittedChild> {
    if let Some(run) = db::runs::get_by_id(tx, new_run.id).await? {
        return Ok(AdmittedChild::Admitted(Box::new(run)));
    }
    match prepare(run_context, new_run, now) {
        Ok(prepared) => {
            store_all(tx, run_context, &[&prepared]).await?;
            Ok(AdmittedChild::Admitted(Box::new(prepared.run)))
        }
        Err(refusal) => Ok(AdmittedChild::Refused(refusal)),
    }
}

/// Prepares a child run for its admission.
///
/// # Errors
/// The reason for the model, if the run is refused.
pub(super) fn prepare(
    run_context: &RunContext,
    new_run: &NewChildRun,
    now: Timestamp,
) -> Result<PreparedChild, String> {
    if new_run.lineage.depth > new_run.max_depth {
        return Err(format!(
            "Delegation is limited to {} levels and this one would be level {}. Do the work yourself.",
            new_run.max_depth, new_run.lineage.depth
        ));
    }
    let mut url = new_run.url.clone();
    let agent = match &new_run.graph_id {
        None => None,
        Some(graph_id) => {
            let tenant = &run_context.ownership.tenant;
            let known = run_context.core.registry.agent_of_tenant(graph_id, tenant);
            let known = known.ok_or_else(|| {
                format!("The agent `{graph_id}` is not defined on this server. Do the work yourself.")
            })?;
            if let Some(refusal) = new_run.incompatibility(known.agent()) {
                return Err(refusal);
            }
            known
                .check_models()
                .map_err(|error| format!("The agent `{graph_id}` cannot work here: {error}. Do the work yourself."))?;
            url = known.agent().remote().map(|remote| remote.url.clone());
            let graph_id = graph_id.clone();
            let definition = Some(known.digest.clone());
            Some(AssignedAgent {
                graph_id,
                version: 1,
                definition,
            })
        }
    };
    let request = RunRequest {
        input: serde_json::to_value(&new_run.order).ok(),
        agent,
        ..RunRequest::default()
    };
    let root = &run_context.run;
    let run = Run {
        id: new_run.id,
        thread: root.thread,
        assistant: root.assistant,
        lineage: new_run.lineage.clone(),
        status: RunStatus::Running,
        request,
        metadata: Map::new(),
        error: None,
        attempt: 1,
        created_at: now,
        updated_at: now,
        due_at: now,
        queue: root.queue.clone(),
    };
    Ok(PreparedChild { run, url })
}

/// Stores child runs that do not exist yet.
///
/// # Errors
/// [`DbError::Conflict`](db::DbError::Conflict) if one of them exists, by the end of the transaction.
pub(super) async fn store_all(tx: &mut Tx<'_>, run_context: &RunContext, all: &[&PreparedChild]) -> DbResult<()> {
    let root = run_context.run.id;
    let runs: Vec<&Run> = all.iter().map(|prepared| &prepared.run).collect();
    db::runs::insert_children(tx, &runs).await?;
    for PreparedChild { run, url } in all {
        if run.lineage.root != root {
            db::runs::mark_begun_by(tx, run.id, root).await?;
        }
        insert_remote_run(tx, run, url.as_deref()).await?;
        if url.is_some() {
            run_context.core.jobs.note_task();
        }
    }
    Ok(())
}
