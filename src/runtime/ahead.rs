//! Checks that take long, made before the write in which a run is admitted, a cron is made or a state is written: all other
//! writes wait for that one.
//!
//! By whom a run is checked may change until it is admitted. So it is noted which definition it was, and what was checked; if
//! it is another one then, it is checked again.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::admission::{self, Checked};
use super::registry::Registry;
use super::{AssistantRef, BatchError, NewRun, Runs, StartError, StateWrite, StateWriteError};
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult, Tx};
use crate::definition::Digest;
use crate::domain::Invalid;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::input::read_update;
use crate::domain::size::{self, SizeLimits};
use crate::domain::state::Update;
use crate::domain::thread::Thread;
use crate::domain::time::Timestamp;

/// From how many bytes on what a request brings is checked ahead. Less is checked in less than a millisecond.
const LARGE: usize = 16 * 1024;

impl Runs {
    /// Checks those parts of the requests whose check takes long.
    ///
    /// # Errors
    /// What does not fit, with the number of its request.
    pub(super) async fn checked_ahead(&self, wishes: &Arc<Vec<NewRun>>) -> Result<Vec<Checked>, BatchError> {
        let mut all_checked = vec![];
        for number in (0..wishes.len()).filter(|number| self.may_take_long(&wishes[*number])) {
            let all = Arc::clone(wishes);
            let registry = Arc::clone(&self.0.registry);
            let now = self.0.clock.now();
            let found = self
                .0
                .db
                .read(move |tx| Box::pin(async move { who_checks(tx, &all[number], &registry, now).await }));
            let refused = |error| BatchError { at: number, error };
            // Whoever is not found is missed again when the run is admitted.
            let Some((known, context)) = found.await.map_err(|error| refused(error.into()))? else {
                continue;
            };
            if !is_large(&wishes[number]) && size_of(&context) <= LARGE {
                continue;
            }
            let digest = known.digest.clone();
            let all = Arc::clone(wishes);
            let sizes = self.0.sizes;
            let checking = tokio::task::spawn_blocking(move || -> Result<Map<String, Value>, Invalid> {
                admission::check(&all[number], &known.agent, sizes)?;
                if let Some(schema) = known.agent.context() {
                    schema.check(&context)?;
                }
                Ok(context)
            });
            // A check that broke off is made again in the write.
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

    /// Whether the check of a request may take long: it brings much, or the assistant may have much stored that is checked
    /// with each of its runs.
    fn may_take_long(&self, wish: &NewRun) -> bool {
        let agents = self.0.registry.agents();
        let has_schema = |known: &Arc<RegisteredAgent>| known.agent.context().is_some();
        let is_checked = match &wish.assistant {
            AssistantRef::Graph(graph_id) => agents.of_graph(graph_id).is_some_and(has_schema),
            // Which agent it has is not known without a look at it.
            AssistantRef::Id(_) => agents.all().any(has_schema),
        };
        is_checked || is_large(wish)
    }

    /// Reads and checks a write into the state of a thread, off the threads that serve everybody.
    ///
    /// # Errors
    /// What does not fit, and that there is no such thread.
    pub(super) async fn checked_write(
        &self,
        thread: ThreadId,
        write: StateWrite,
    ) -> Result<CheckedWrite, StateWriteError> {
        let registry = Arc::clone(&self.0.registry);
        let found = self.0.db.read(move |tx| {
            Box::pin(async move {
                match db::threads::find(tx, thread).await? {
                    Some(found) => registry.of_thread(tx, &found).await.map(Some),
                    None => Ok(None),
                }
            })
        });
        let known = found.await?.ok_or(StateWriteError::NoThread(thread))?;
        let sizes = self.0.sizes;
        let checking = db::off_thread(move |_| -> Result<CheckedWrite, Invalid> {
            let StateWrite {
                values,
                as_node,
                checkpoint,
            } = write;
            let update = crate::agent::identified(read_update(&values)?);
            sizes.check_files(&update)?;
            if let Some(known) = &known {
                known.agent.check_update(&update)?;
            }
            let digest = known.map(|known| known.digest.clone());
            Ok(CheckedWrite {
                update,
                as_node,
                checkpoint,
                digest,
                sizes,
            })
        });
        Ok(checking.await??)
    }
}

/// A write into the state of a thread that was read and checked before the transaction that makes it.
pub(super) struct CheckedWrite {
    pub(super) update: Update,
    pub(super) as_node: Option<String>,
    pub(super) checkpoint: Option<CheckpointId>,
    /// By which definition it was checked; none if the thread has no agent.
    pub(super) digest: Option<Digest>,
    pub(super) sizes: SizeLimits,
}

/// Whether a request brings so much that checking it may take long.
fn is_large(wish: &NewRun) -> bool {
    let update = wish
        .request
        .command
        .as_ref()
        .and_then(|command| command.update.as_ref());
    let brought: usize = wish.request.input.iter().chain(update).map(size::of_value).sum();
    brought + size_of(&wish.request.context) > LARGE
}

fn size_of(context: &Map<String, Value>) -> usize {
    context.values().map(size::of_value).sum()
}

/// The agent that would run, and the context that it would have.
async fn who_checks(
    tx: &mut Tx<'_>,
    wish: &NewRun,
    registry: &Registry,
    now: Timestamp,
) -> DbResult<Option<(Arc<RegisteredAgent>, Map<String, Value>)>> {
    let mut resolved = match registry.resolve(tx, &wish.assistant).await {
        Ok(resolved) => resolved,
        Err(StartError::Fault(error)) => return Err(error),
        Err(_) => return Ok(None),
    };
    resolved.known = registry.bound(tx, wish, resolved.known).await?;
    let thread = match wish.target.thread() {
        Some(thread) => db::threads::find(tx, thread).await?,
        None => None,
    };
    let thread = thread.unwrap_or_else(|| Thread::new(ThreadId::mint(), Map::new(), now));
    let settings = admission::settings(wish, &resolved, &thread);
    Ok(Some((resolved.known, settings.context)))
}
