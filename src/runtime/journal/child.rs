//! Admission of a child run: a call of the `task` tool, or of another agent of this server.

use std::sync::Arc;

use serde_json::Map;

use crate::agent::NewChildRun;
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult, Tx};
use crate::domain::run::{AssignedAgent, Run, RunRequest, RunStatus};
use crate::domain::time::Timestamp;
use crate::runtime::background;
use crate::runtime::run_context::RunContext;

/// The result of an admission. A refusal is not an error but a result for the model, so the other writes of the
/// transaction are kept.
pub(super) enum AdmittedChild {
    /// The child run is running, or was admitted before.
    Admitted(Box<Run>),
    /// The child run is refused for this reason.
    Refused(String),
}

/// Returns the agent of this server, as the tenant of the run may run it.
fn find(run_context: &RunContext, graph_id: &str) -> Option<Arc<RegisteredAgent>> {
    let registry = &run_context.core.registry;
    let tenant = &run_context.ownership.tenant;
    let known = registry.find_of_tenant(graph_id, tenant)?;
    registry.for_tenant(&known, tenant)
}

/// Admits a child run. A run that was admitted before is returned again.
pub(super) async fn admit(
    tx: &mut Tx<'_>,
    run_context: &RunContext,
    new_run: &NewChildRun,
    now: Timestamp,
) -> DbResult<AdmittedChild> {
    let root = &run_context.run;
    if let Some(run) = db::runs::get_by_id(tx, new_run.id).await? {
        return Ok(AdmittedChild::Admitted(Box::new(run)));
    }
    if new_run.lineage.depth > new_run.max_depth {
        return Ok(AdmittedChild::Refused(format!(
            "Delegation is limited to {} levels and this one would be level {}. Do the work yourself.",
            new_run.max_depth, new_run.lineage.depth
        )));
    }
    let mut url = new_run.url.clone();
    let agent = match &new_run.graph_id {
        None => None,
        Some(graph_id) => match find(run_context, graph_id) {
            Some(known) => {
                if let Some(refusal) = new_run.incompatibility(known.agent()) {
                    return Ok(AdmittedChild::Refused(refusal));
                }
                if let Err(error) = known.check_models() {
                    return Ok(AdmittedChild::Refused(format!(
                        "The agent `{graph_id}` cannot work here: {error}. Do the work yourself."
                    )));
                }
                url = known.agent().remote().map(|remote| remote.url.clone());
                let graph_id = graph_id.clone();
                let definition = Some(known.digest.clone());
                Some(AssignedAgent {
                    graph_id,
                    version: 1,
                    definition,
                })
            }
            None => {
                return Ok(AdmittedChild::Refused(format!(
                    "The agent `{graph_id}` is not defined on this server. Do the work yourself."
                )));
            }
        },
    };
    let request = RunRequest {
        input: serde_json::to_value(&new_run.order).ok(),
        agent,
        ..RunRequest::default()
    };
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
    db::runs::insert(tx, &run, None).await?;
    if run.lineage.root != root.id {
        db::runs::mark_begun_by(tx, run.id, root.id).await?;
    }
    background::insert_remote_run(tx, &run, url.as_deref()).await?;
    if url.is_some() {
        run_context.core.jobs.has_tasks();
    }
    Ok(AdmittedChild::Admitted(Box::new(run)))
}
