//! How long threads are kept, and what is deleted at once. What goes when its time is over: `jobs/sweep.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::run_context::RunContext;
use super::worker::Worker;
use crate::db::{self, DbError, DbResult};
use crate::domain::thread::Ttl;

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Threads that do not say it themselves; for good when none.
    pub threads: Option<Ttl>,
    /// The checkpoints of threads whose state has not changed since; for good when none.
    pub checkpoints: Option<Ttl>,
    /// How often it is looked what can go.
    pub interval: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            threads: None,
            checkpoints: None,
            interval: Duration::from_secs(60),
        }
    }
}

impl Worker {
    /// Takes away the copies of threads that a crash left unfinished. `at_start`, before anybody is served, see
    /// [`db::copies::sweep`].
    pub(super) async fn sweep_copies(&self, at_start: bool) -> DbResult<()> {
        let now = self.clock.now();
        while self
            .db
            .write(move |tx| Box::pin(db::copies::sweep(tx, at_start, now)))
            .await?
        {
            tracing::info!("an unfinished copy of a thread was removed");
        }
        Ok(())
    }

    /// Removes the thread of a stateless run, once those who wait for the result have read it.
    pub(super) async fn clear_away(&self, run_context: &Arc<RunContext>) {
        let request = &run_context.run.request;
        if !request.temporary || request.held || self.shutdown.soft().is_cancelled() {
            return;
        }
        for _ in 0..200 {
            // One is held here.
            if Arc::strong_count(&run_context.log) <= 1 {
                break;
            }
            let pause = tokio::time::sleep(Duration::from_millis(25));
            if self.shutdown.soft().run_until_cancelled(pause).await.is_none() {
                // It goes when its time is over, on whatever server.
                return;
            }
        }
        let thread = run_context.run.thread;
        let deleted = self
            .db
            .write(move |tx| Box::pin(async move { db::threads::delete(tx, thread).await }))
            .await;
        // A server that stops leaves it, too.
        if let Err(error) = deleted
            && !matches!(error, DbError::Closed)
        {
            tracing::warn!(%thread, %error, "could not remove the thread of a stateless run");
        }
    }
}
