//! The handle for deliveries of webhooks.

use std::sync::Arc;

use super::shared::Core;
use crate::db::{DbResult, deliveries};
use crate::domain::delivery::Delivery;
use crate::domain::id::{DeliveryId, ThreadId};

/// The handle for deliveries of webhooks. Cheap to clone.
#[derive(Clone)]
pub struct Deliveries {
    core: Arc<Core>,
}

impl Deliveries {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Sends a delivery again, whatever its status. Returns none if it does not exist.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn redeliver(&self, id: DeliveryId) -> DbResult<Option<Delivery>> {
        let now = self.core.clock.now();
        let renewed = self
            .core
            .db
            .write(move |tx| Box::pin(async move { deliveries::renew(tx, id, now).await }))
            .await?;
        self.core.jobs.wake();
        Ok(renewed)
    }

    /// Deletes the finished deliveries of a thread that a client has deleted.
    pub(super) async fn forget_thread(&self, thread: ThreadId) -> DbResult<()> {
        self.core
            .db
            .write(move |tx| Box::pin(async move { deliveries::forget_thread(tx, thread).await }))
            .await
    }
}
