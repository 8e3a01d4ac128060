//! The core of the runtime: what its parts share. It depends on none of them but the registry.

use std::sync::Arc;

use super::admission::{AdmissionContext, Checked};
use super::registry::Registry;
use super::{Retention, RunBounds, Webhooks};
use crate::db::{self, Db, DbError, DbResult};
use crate::domain::id::WorkerId;
use crate::domain::idempotency::{IdempotencyKey, Once};
use crate::domain::size::SizeLimits;
use crate::domain::time::Clock;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// What all parts of the runtime share. One for each server process.
pub(super) struct Core {
    /// This process.
    pub(super) id: WorkerId,
    pub(super) db: Db,
    pub(super) events: Events,
    pub(super) registry: Arc<Registry>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) shutdown: Shutdown,
    pub(super) metrics: Metrics,
    pub(super) webhooks: Arc<Webhooks>,
    /// How long threads and histories are kept.
    pub(super) retention: Retention,
    /// How many runs may wait, and how long one may be at work.
    pub(super) bounds: RunBounds,
    /// How large files and states may become.
    pub(super) sizes: SizeLimits,
}

impl Core {
    /// What a run is admitted with now, if it has to wait for its turn.
    pub(super) fn admission_context(&self, checked: Vec<Checked>) -> AdmissionContext {
        AdmissionContext {
            registry: Arc::clone(&self.registry),
            webhooks: Arc::clone(&self.webhooks),
            sizes: self.sizes,
            checked,
            worker: None,
            now: self.clock.now(),
            ttl: self.retention.threads,
            most_waiting: self.bounds.waiting_on_thread,
        }
    }

    /// What a request under this key was answered before, if it was. That answer is given again whatever would keep the
    /// request from being granted now: nothing is done for it.
    ///
    /// # Errors
    /// When the database fails.
    pub(super) async fn kept<T>(&self, key: Option<IdempotencyKey>) -> DbResult<Option<Once<T>>> {
        let Some(key) = key else { return Ok(None) };
        let now = self.clock.now();
        let found = self
            .db
            .read(move |tx| Box::pin(async move { db::idempotency::kept(tx, &key, now).await }));
        Ok(found.await?.map(|kept| kept.map_or(Once::Reused, Once::Again)))
    }

    /// Does what must not be left half done, even if whoever asked for it leaves meanwhile.
    ///
    /// # Errors
    /// Those of the work; [`DbError::Closed`] when the server stopped before it was done.
    pub(super) async fn detached<T, E>(&self, work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + Send + 'static,
    {
        let done = self.shutdown.spawn("change of runs", work).await;
        done.ok().flatten().unwrap_or(Err(DbError::Closed.into()))
    }
}
