//! Slow checks of requests. They are made before the transaction that admits a run or creates a cron, because all other
//! writes wait for a transaction.
//! The definition may change before the transaction. So a check records the definition that it used. If the transaction
//! finds another definition, it repeats the check.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Admission;
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::access::Ownership;
use crate::domain::id::ThreadId;
use crate::domain::thread::Thread;
use crate::domain::time::Timestamp;
use crate::runtime::admission::{Checked, check, settings, task_lineage, with_choices};
use crate::runtime::error::{BatchError, StartError};
use crate::runtime::new_run::{AssistantRef, NewRun, is_context_large, is_large};
use crate::runtime::registry::Registry;

impl Admission {
    /// Makes the slow checks of requests.
    ///
    /// # Errors
    /// Returns the refusal, with the position of its request.
    pub(in crate::runtime) async fn precheck(&self, new_runs: &Arc<Vec<NewRun>>) -> Result<Vec<Checked>, BatchError> {
        let mut all_checked = vec![];
        for number in (0..new_runs.len()).filter(|number| self.may_take_long(&new_runs[*number])) {
            let all = Arc::clone(new_runs);
            let registry = Arc::clone(&self.core.registry);
            let now = self.core.clock.now();
            let found = self
                .core
                .db
                .read(move |tx| Box::pin(async move { resolve_agent(tx, &all[number], &registry, now).await }));
            let refused = |error| BatchError { at: number, error };
            // An agent that is not found here is refused when the run is admitted.
            let Some((known, context)) = found.await.map_err(|error| refused(error.into()))? else {
                continue;
            };
            if !is_large(&new_runs[number].request) && !is_context_large(&context) {
                continue;
            }
            let digest = known.digest.clone();
            let all = Arc::clone(new_runs);
            let sizes = self.core.sizes;
            let checking = tokio::task::spawn_blocking(move || -> Result<Map<String, Value>, Invalid> {
                check(&all[number], known.agent(), sizes)?;
                if let Some(schema) = known.agent().context() {
                    schema.check(&context)?;
                }
                Ok(context)
            });
            // A check that broke off is repeated in the write.
            let Ok(checked) = checking.await else { continue };
            let context = checked.map_err(|invalid| refused(invalid.into()))?;
            all_checked.push(Checked {
                number,
                digest,
                context,
            });
        }
        Ok(all_checked)
    }

    /// Returns whether the check of a request may be slow: it is large, the assistant may have a large context that is
    /// checked with each of its runs, or an agent has to be built for what the run chooses.
    fn may_take_long(&self, new_run: &NewRun) -> bool {
        let agents = self.core.registry.agents();
        // The agent of a choice is built here, so that the write finds it.
        let has_slow_check =
            |known: &Arc<RegisteredAgent>| known.agent().context().is_some() || known.is_configurable();
        let is_checked = match &new_run.assistant {
            AssistantRef::Graph(graph_id) => agents.of_graph(graph_id).is_some_and(has_slow_check),
            // The agent of the assistant is not known without reading the assistant.
            AssistantRef::Id(_) => agents.all().any(has_slow_check),
        };
        is_checked || is_large(&new_run.request)
    }
}

/// Returns the agent that would run, and the context that it would have.
async fn resolve_agent(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    registry: &Registry,
    now: Timestamp,
) -> DbResult<Option<(Arc<RegisteredAgent>, Map<String, Value>)>> {
    let mut resolved = match registry.resolve(tx, &new_run.assistant).await {
        Ok(resolved) => resolved,
        Err(StartError::Fault(error)) => return Err(error),
        Err(_) => return Ok(None),
    };
    // A refusal here would describe an agent that does not exist for the caller. The admission refuses the run.
    let caller = &new_run.caller;
    if !caller.is_unrestricted() && !registry.agents_of(&caller.tenant).contains(&resolved.known.graph_id) {
        return Ok(None);
    }
    resolved.known = registry.pinned_definition(tx, new_run, resolved.known).await?;
    let thread = match new_run.target.thread() {
        Some(thread) => db::threads::find(tx, thread).await?,
        None => None,
    };
    let thread =
        thread.unwrap_or_else(|| Thread::new(ThreadId::mint(), Ownership::of(&new_run.caller), Map::new(), now));
    let task = task_lineage(tx, new_run, &thread).await?;
    let settings = settings(new_run, &resolved, &thread, task.is_some());
    // A choice that is not allowed is refused when the run is admitted.
    let known = with_choices(&resolved.known, task.is_some(), &settings.context);
    Ok(Some((known.unwrap_or(resolved.known), settings.context)))
}
