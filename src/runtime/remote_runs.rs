//! The rows of remote runs for which an agent of this server waits. They are stored before the runs begin.

use super::run_context::RunContext;
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult, Tx};
use crate::domain::id::RunId;
use crate::domain::remote_run::RemoteRun;
use crate::domain::run::{AssignedAgent, Run};

/// Stores a remote run before it begins, if the work of the subagent is done on the server at `url`.
pub(super) async fn insert_remote_run(tx: &mut Tx<'_>, run: &Run, url: Option<&str>) -> DbResult<()> {
    let Some(url) = url else { return Ok(()) };
    let Some(AssignedAgent {
        graph_id, definition, ..
    }) = describing_agent(tx, run.clone()).await?
    else {
        return Ok(());
    };
    let work = RemoteRun {
        run: run.id,
        first: run.id,
        graph_id,
        definition,
        agent: run.lineage.agent().to_owned(),
        url: url.to_owned(),
        of_deleted_task: false,
        lost_since: None,
        was_missed: false,
    };
    db::remote_runs::insert(tx, &work).await
}

/// Returns the agent in whose definition the agent of a run is described: itself, or the next agent above it that has a
/// definition.
pub(super) async fn describing_agent(tx: &mut Tx<'_>, mut run: Run) -> DbResult<Option<AssignedAgent>> {
    while let (None, Some(parent)) = (&run.request.agent, run.lineage.parent) {
        let Some(found) = db::runs::get_by_id(tx, parent).await? else {
            break;
        };
        run = found;
    }
    Ok(run.request.agent)
}

/// Stores the remote run of a main agent before it begins, if the agent works on another server. `first` is the first
/// of the runs that this one continues.
pub(super) async fn insert_remote_run_of_main(
    run_context: &RunContext,
    known: &RegisteredAgent,
    first: RunId,
) -> DbResult<()> {
    let Some(remote) = known.agent().remote() else {
        return Ok(());
    };
    let work = RemoteRun {
        run: run_context.run.id,
        first,
        graph_id: known.graph_id.clone(),
        definition: Some(known.digest.clone()),
        agent: known.name.clone(),
        url: remote.url.clone(),
        of_deleted_task: false,
        lost_since: None,
        was_missed: false,
    };
    let write = run_context
        .core
        .db
        .write(move |tx| Box::pin(async move { db::remote_runs::insert(tx, &work).await }));
    write.await?;
    run_context.core.jobs.note_task();
    Ok(())
}
