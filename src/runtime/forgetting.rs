//! Forgets idempotency keys whose time is over.

use std::sync::Arc;
use std::time::Duration;

use super::worker::Worker;
use crate::db::{self, DbResult};

/// How often keys are looked through.
const PAUSE: Duration = Duration::from_secs(600);

/// How many keys one transaction forgets.
const AT_ONCE: i64 = 100;

impl Worker {
    /// Forgets keys as their time is over. Ends with the server.
    pub(super) async fn forget_keys(self: Arc<Self>) {
        loop {
            if let Err(error) = self.forget_old_keys().await {
                tracing::warn!(%error, "could not forget old idempotency keys");
            }
            if self.shutdown.soft().run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_none() {
                return;
            }
        }
    }

    async fn forget_old_keys(&self) -> DbResult<()> {
        while !self.shutdown.soft().is_cancelled() {
            let now = self.clock.now();
            let write = self.db.write(move |tx| Box::pin(db::idempotency::sweep(tx, now, AT_ONCE)));
            if i64::try_from(write.await?).is_ok_and(|forgotten| forgotten < AT_ONCE) {
                break;
            }
        }
        Ok(())
    }
}
