//! Remote runs for which an agent of this server waits.

use std::sync::Arc;

use super::BackgroundTasks;
use crate::agent::assemble::RegisteredAgent;
use crate::db;
use crate::definition::SubagentDefinition;
use crate::domain::remote_run::RemoteRun;
use crate::peer::{RemoteThread, remote_agent};

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
