//! The parts of the runtime that all its handles share.
//!
//! The modules of what [`Core`] has, in `shared/` and beside it (`registry.rs`, `turns.rs`, `webhooks.rs`), do not import it.
//! Work that takes several of them is in modules that import [`Core`].

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::registry::{AgentSources, Registry};
use super::trace;
use super::turns::Turns;
use super::webhooks::Webhooks;
use crate::db::{self, Db, DbError, DbResult, PendingEntries, RowAccess};
use crate::domain::backoff::spread;
use crate::domain::id::WorkerId;
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome};
use crate::domain::quota::Quotas;
use crate::domain::ruling::AccessPolicies;
use crate::domain::size::SizeLimits;
use crate::domain::time::Clock;
use crate::domain::trace::Tracer;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

pub(super) mod job_queue;
pub(super) mod left_claims;
pub(super) mod parts;
pub(super) mod queue_room;
pub(super) mod settings;
pub(super) mod stored_sums;
pub(super) mod unfollowed;

use job_queue::JobQueue;
use parts::RuntimeParts;
use queue_room::QueueRoom;
use settings::{AuditSettings, Retention, RunBounds, SharingRules};
use stored_sums::StoredSums;
use unfollowed::UnfollowedRuns;

/// About how long a loop sleeps at most without a wakeup.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

/// The parts that all handles of the runtime share. There is one for each server process.
pub(super) struct Core {
    /// This process.
    pub(super) id: WorkerId,
    pub(super) db: Db,
    pub(super) events: Events,
    pub(super) registry: Arc<Registry>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) shutdown: Shutdown,
    pub(super) metrics: Metrics,
    pub(super) tracer: Tracer,
    pub(super) webhooks: Arc<Webhooks>,
    /// The default lifetimes of threads and histories.
    pub(super) retention: Retention,
    /// The pause between two removals of expired items of the Store.
    pub(super) item_sweep_interval: Duration,
    /// The most runs that may wait, and the longest time that one may be at work.
    pub(super) bounds: RunBounds,
    /// The largest sizes of files and states.
    pub(super) sizes: SizeLimits,
    /// The rules by which owners share resources with their tenant.
    pub(super) sharing: SharingRules,
    /// The access policies.
    pub(super) policies: Arc<dyn AccessPolicies>,
    /// The settings of the audit.
    pub(super) audit: AuditSettings,
    /// The quotas of accounts.
    pub(super) quotas: Arc<Quotas>,
    /// The numbers of bytes that owners store.
    pub(super) stored: StoredSums,
    /// The turns in the queue of runs.
    pub(super) turns: Turns,
    /// The jobs of this process.
    pub(super) jobs: JobQueue,
    /// The room in the queue of runs.
    pub(super) queue: QueueRoom,
    /// The runs that are to be cancelled once they are stored.
    pub(super) unfollowed: UnfollowedRuns,
}

impl Core {
    /// Returns the shared parts of a process that has just started.
    pub(super) fn new(parts: RuntimeParts, jobs: JobQueue) -> Self {
        let AgentSources {
            factory,
            validation_context,
            files: _,
        } = parts.sources;
        let registry = Registry::new(
            parts.db.clone(),
            Arc::clone(&parts.clock),
            factory,
            validation_context,
            parts.tenants,
        );
        Self {
            id: WorkerId::mint(),
            db: parts.db,
            events: parts.events,
            registry: Arc::new(registry),
            clock: parts.clock,
            shutdown: parts.shutdown,
            metrics: parts.metrics,
            tracer: parts.tracer,
            webhooks: Arc::new(parts.webhooks),
            retention: parts.retention,
            item_sweep_interval: parts.store.sweep_interval(),
            bounds: parts.bounds,
            sizes: parts.sizes,
            sharing: parts.sharing,
            policies: parts.policies,
            audit: parts.audit,
            quotas: parts.quotas,
            stored: StoredSums::default(),
            turns: Turns::default(),
            jobs,
            queue: QueueRoom::new(parts.bounds.waiting),
            unfollowed: UnfollowedRuns::default(),
        }
    }

    /// Returns how long a loop sleeps at most, even if it knows of nothing to do: notifications of other processes can be
    /// lost, and clocks can be set. It differs between processes, so that those that began together do not wake together.
    pub(super) fn longest_sleep(&self) -> Duration {
        spread(LONGEST_SLEEP, self.id.0)
    }

    /// Returns the stored response to an earlier request with this key, if there was one. A repeated request gets that
    /// response even if a new one would be refused now, since nothing is done for it.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub(super) async fn stored_response<T>(
        &self,
        key: Option<IdempotencyKey>,
    ) -> DbResult<Option<IdempotentOutcome<T>>> {
        let Some(key) = key else { return Ok(None) };
        let now = self.clock.now();
        let found = self
            .db
            .read(move |tx| Box::pin(async move { db::idempotency::stored_response(tx, &key, now).await }));
        Ok(found
            .await?
            .map(|kept| kept.map_or(IdempotentOutcome::KeyReused, IdempotentOutcome::Replayed)))
    }

    /// Starts a task like [`Shutdown::spawn`], with the access of the current task to the database. All tasks of the
    /// runtime that end by themselves are started here: a task that is started elsewhere has no access.
    pub(super) fn spawn<W>(&self, name: &'static str, work: W) -> JoinHandle<Option<W::Output>>
    where
        W: Future + Send + 'static,
        W::Output: Send + 'static,
    {
        self.shutdown.spawn(name, RowAccess::in_current(work.boxed()))
    }

    /// Runs work to its end in a task of its own, even if the caller is dropped meanwhile.
    ///
    /// # Errors
    /// Returns the error of the work, or [`DbError::Closed`] when the server stopped before the work was done.
    pub(super) async fn run_detached<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + Send + 'static,
    {
        let (sender, result) = oneshot::channel();
        let work = async move {
            // The caller may be gone.
            let _ = sender.send(work.await);
        };
        self.detach(work.boxed()).await;
        // The task was dropped, or panicked, if there is no result.
        result.await.unwrap_or_else(|_| Err(DbError::Closed.into()))
    }

    /// Runs work like [`Core::run_detached`]. All that carries the work to its task exists once, since its result is not
    /// carried back.
    async fn detach(&self, work: BoxFuture<'static, ()>) {
        // The log lines of the work belong to the request of the caller.
        let work = trace::for_current_caller(PendingEntries::in_current(work)).in_current_span();
        let _ = self.spawn("change of runs", work).await;
    }
}
