//! Forgets what nobody will ask for any more: idempotency keys whose time is over, and threads that should have gone with
//! their runs, had the server not died in between.

use std::sync::Arc;
use std::time::Duration;

use super::worker::Worker;
use crate::db::{self, DbResult};
use crate::domain::time::Timestamp;

/// How often there is a look.
const PAUSE: Duration = Duration::from_secs(600);

/// How long a run has to be over before its thread counts as left over: those who waited for it read it first.
const GRACE: Duration = Duration::from_secs(60);

/// How much one transaction forgets.
const AT_ONCE: i64 = 100;

impl Worker {
    /// Forgets now and then. Ends with the server.
    pub(super) async fn forget(self: Arc<Self>) {
        loop {
            let forgot = self.forget_keys().await;
            if let Err(error) = forgot.and(self.forget_threads().await) {
                tracing::warn!(%error, "could not forget what is over");
            }
            if self.shutdown.soft().run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_none() {
                return;
            }
        }
    }

    async fn forget_keys(&self) -> DbResult<()> {
        while !self.shutdown.soft().is_cancelled() {
            let now = self.clock.now();
            let write = self.db.write(move |tx| Box::pin(db::idempotency::sweep(tx, now, AT_ONCE)));
            if i64::try_from(write.await?).is_ok_and(|forgotten| forgotten < AT_ONCE) {
                break;
            }
        }
        Ok(())
    }

    async fn forget_threads(&self) -> DbResult<()> {
        let grace = i64::try_from(GRACE.as_micros()).unwrap_or(i64::MAX);
        let until = Timestamp(self.clock.now().0.saturating_sub(grace));
        while !self.shutdown.soft().is_cancelled() {
            let write = self.db.write(move |tx| {
                Box::pin(async move {
                    let threads = db::runs::left_over(tx, until, AT_ONCE).await?;
                    for thread in &threads {
                        db::threads::delete(tx, *thread).await?;
                    }
                    Ok(threads.len())
                })
            });
            if i64::try_from(write.await?).is_ok_and(|forgotten| forgotten < AT_ONCE) {
                break;
            }
        }
        Ok(())
    }
}
