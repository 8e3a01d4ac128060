//! Stops the work on other servers that was begun for subagents whose runs were stopped, or failed.
//!
//! Whoever stops waiting has it stopped at once; this is for what could not be told then, since the other server was out of
//! reach, or this one died.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::remote::{LOOKS_FOR, stop};
use crate::agent::assemble::Known;
use crate::db::{self, DbResult, Tx};
use crate::definition::SubagentDefinition;
use crate::domain::errand::RemoteErrand;
use crate::domain::run::{Assigned, Run};
use crate::peer::{Workplace, delegate};
use crate::runtime::Runs;

/// How many errands are looked at in one go.
const AT_ONCE: i64 = 16;
/// For how long one is taken up: longer than it can take.
const CLAIM: Duration = Duration::from_secs(60);

/// Writes down that a subagent is about to have its work done on the server at `url`, if it has.
pub(in crate::runtime) async fn note(tx: &mut Tx<'_>, run: &Run, url: Option<&str>) -> DbResult<()> {
    let Some(url) = url else { return Ok(()) };
    // A subagent is described in the definition of the next agent above it that has one.
    let mut above: Option<Run> = None;
    let mut next = run.lineage.parent;
    while let Some(id) = next {
        let Some(found) = db::runs::get_by_id(tx, id).await? else {
            break;
        };
        next = found.lineage.parent.filter(|_| found.request.agent.is_none());
        above = Some(found);
    }
    let Some(Assigned {
        graph_id, definition, ..
    }) = above.and_then(|run| run.request.agent)
    else {
        return Ok(());
    };
    let agent = run.lineage.agent().to_owned();
    let url = url.to_owned();
    let now = run.created_at;
    let errand = RemoteErrand {
        run: run.id,
        graph_id,
        definition,
        agent,
        url,
        looks: 0,
        lost_since: None,
    };
    db::errands::insert(tx, &errand, now).await
}

impl Runs {
    /// Goes once through the errands that may be over, and stops what is left of those that nobody wants any more.
    pub(super) async fn run_errands(&self) -> DbResult<()> {
        let now = self.0.clock.now();
        if !self
            .0
            .db
            .read(move |tx| Box::pin(db::errands::any_due(tx, now)))
            .await?
        {
            return Ok(());
        }
        let claimed = self.0.db.write(move |tx| {
            Box::pin(async move {
                db::errands::settle(tx, AT_ONCE * 16).await?;
                db::errands::claim(tx, now, now.plus(CLAIM), AT_ONCE).await
            })
        });
        for errand in claimed.await? {
            drop(self.0.shutdown.spawn("errand", self.clone().end(errand)));
        }
        Ok(())
    }

    /// Sees to it that nothing is left of an errand.
    async fn end(self, errand: RemoteErrand) {
        let ending = self.0.shutdown.soft().clone();
        let ended = ending
            .run_until_cancelled(timeout(CLAIM / 2, self.stop_errand(&errand)))
            .await;
        let ended = match ended {
            // Another server takes it up when the claim runs out.
            None => return,
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err("its server took too long".to_owned()),
        };
        let now = self.0.clock.now();
        let looks = *self.0.registry.workshop.peers.looks();
        let since = errand.lost_since.unwrap_or(now);
        let is_over = match &ended {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!(run = %errand.run, agent = %errand.agent, %reason, "could not have work stopped at another server");
                now.since(since) >= looks.patience
            }
        };
        let late = RemoteErrand {
            looks: errand.looks + 1,
            lost_since: Some(since),
            ..errand
        };
        let due_at = now.plus(looks.pause(late.looks, late.run.0));
        let write = self.0.db.write(move |tx| {
            Box::pin(async move {
                match is_over {
                    true => db::errands::forget(tx, late.run).await,
                    false => db::errands::put_off(tx, &late, due_at).await,
                }
            })
        });
        if let Err(error) = write.await {
            tracing::warn!(%error, "could not note what became of work at another server");
        }
    }

    async fn stop_errand(&self, errand: &RemoteErrand) -> Result<(), String> {
        let (place, agent) = self.place_of(errand).await?;
        stop(&place, &agent, LOOKS_FOR)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Where the work is done, and by whom.
    pub(super) async fn place_of(&self, errand: &RemoteErrand) -> Result<(Workplace, SubagentDefinition), String> {
        let registry = &self.0.registry;
        let now = registry.agents().of_graph(&errand.graph_id).cloned();
        let named = |known: &Arc<Known>| known.remote_subagent(&errand.agent, &errand.url).is_some();
        let known = match (now.filter(named), &errand.definition) {
            (Some(known), _) => Some(known),
            (None, Some(digest)) => {
                let registry = Arc::clone(registry);
                let graph_id = errand.graph_id.clone();
                let digest = digest.clone();
                let read = self
                    .0
                    .db
                    .read(move |tx| Box::pin(async move { registry.of_digest(tx, &graph_id, &digest).await }));
                read.await.map_err(super::fault)?
            }
            (None, None) => None,
        };
        let found = known
            .as_ref()
            .and_then(|known| known.remote_subagent(&errand.agent, &errand.url));
        let (agent, is_owners) = found.ok_or_else(|| "it is not defined any more".to_owned())?;
        let peer = registry.workshop.peers.peer(&errand.url, &agent.headers.0, is_owners);
        let place = delegate::workplace(peer.map_err(|invalid| invalid.to_string())?, errand.run);
        Ok((place, agent.clone()))
    }
}
