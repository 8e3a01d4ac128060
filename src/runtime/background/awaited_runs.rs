//! Remote runs for which an agent of this server waits.

use std::sync::Arc;

use super::BackgroundTasks;
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult, Tx};
use crate::definition::SubagentDefinition;
use crate::domain::id::RunId;
use crate::domain::remote_run::RemoteRun;
use crate::domain::run::{AssignedAgent, Run};
use crate::peer::{RemoteThread, remote_agent};
use crate::runtime::run_context::RunContext;

/// Stores a remote run before it begins, if the work of the subagent is done on the server at `url`.
pub(in crate::runtime) async fn insert_remote_run(tx: &mut Tx<'_>, run: &Run, url: Option<&str>) -> DbResult<()> {
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
pub(in crate::runtime) async fn insert_remote_run_of_main(
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
    run_context.core.jobs.has_tasks();
    Ok(())
}

impl BackgroundTasks {
    /// Returns the thread of a remote run and the definition of its agent.
    pub(in crate::runtime) async fn remote_thread_of_run(
        &self,
        work: &RemoteRun,
    ) -> Result<(RemoteThread, SubagentDefinition), String> {
        let registry = &self.core.registry;
        let run = work.run;
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                match db::access::run_thread(tx, run).await? {
                    Some(thread) => db::access::thread_facts(tx, thread, false).await,
                    None => Ok(None),
                }
            })
        });
        let facts = read.await.map_err(super::storage_error)?;
        let tenant = facts.as_ref().map(|facts| &facts.ownership.tenant);
        // An agent of another tenant that has the name now has headers of that tenant.
        let now = registry.present(&work.graph_id, tenant);
        let named = |known: &Arc<RegisteredAgent>| known.remote_subagent(&work.agent, &work.url).is_some();
        let known = match (now.filter(named), &work.definition) {
            (Some(known), _) => Some(known),
            (None, Some(digest)) => {
                let registry = Arc::clone(registry);
                let graph_id = work.graph_id.clone();
                let digest = digest.clone();
                let read = self
                    .core
                    .db
                    .read(move |tx| Box::pin(async move { registry.of_digest(tx, &graph_id, &digest).await }));
                read.await.map_err(super::storage_error)?
            }
            (None, None) => None,
        };
        let found = known
            .as_ref()
            .and_then(|known| known.remote_subagent(&work.agent, &work.url));
        let (agent, is_owners) = found.ok_or_else(|| "it is not defined any more".to_owned())?;
        let peer = registry.factory.peers.peer(&work.url, &agent.headers.0, is_owners);
        let peer = peer.map_err(|invalid| invalid.to_string())?;
        let place = match work.of_deleted_task {
            true => RemoteThread {
                peer,
                thread: work.run.0,
            },
            false => remote_agent::remote_thread(peer, work.first),
        };
        Ok((place, agent.clone()))
    }
}
