//! Deletions that do not wait for the sweep job (`jobs/sweep.rs`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::background::delete_thread_of_stateless_run;
use super::dispatcher::Dispatcher;
use super::run_context::RunContext;
use super::shared::Core;
use crate::db::{self, DbError, DbResult};

/// The time for which the thread of a stateless run stays after the end of the run: on a busy server the client that has
/// started it may not read yet.
const STATELESS_THREAD_GRACE: Duration = Duration::from_secs(1);
/// The same while there are other servers: a client that waits there reads from the database.
const FOR_OTHER_SERVERS: Duration = Duration::from_secs(5);
/// The longest that the thread stays for readers after that.
const FOR_READERS: Duration = Duration::from_secs(5);

/// Deletes the copies of threads that a crash left unfinished. `at_start` is set before clients are served, see
/// [`db::copies::sweep`].
pub(super) async fn sweep_copies(core: &Core, at_start: bool) -> DbResult<()> {
    let now = core.clock.now();
    while core
        .db
        .write(move |tx| Box::pin(db::copies::sweep(tx, at_start, now)))
        .await?
    {
        tracing::info!("an unfinished copy of a thread was removed");
    }
    Ok(())
}

impl Dispatcher {
    /// Deletes the thread of a stateless run once its readers have the result.
    pub(super) async fn delete_temporary_thread(&self, run_context: &Arc<RunContext>) {
        let request = &run_context.run.request;
        if !request.temporary || request.held || self.core.shutdown.soft().is_cancelled() {
            return;
        }
        let soft = self.core.shutdown.soft();
        let at_least = match run_context.has_other_workers {
            true => FOR_OTHER_SERVERS,
            false => STATELESS_THREAD_GRACE,
        };
        if soft.run_until_cancelled(sleep(at_least)).await.is_none() {
            // The sweeper deletes the thread when its TTL has ended, on any server.
            return;
        }
        let end = Instant::now() + FOR_READERS;
        // This function holds one reference itself.
        while Arc::strong_count(&run_context.log) > 1 && Instant::now() < end {
            if soft
                .run_until_cancelled(sleep(Duration::from_millis(25)))
                .await
                .is_none()
            {
                return;
            }
        }
        let thread = run_context.run.thread;
        let now = self.core.clock.now();
        let write = self
            .core
            .db
            .write(move |tx| Box::pin(delete_thread_of_stateless_run(tx, thread, now)));
        match write.await {
            Ok(true) => self.core.jobs.discover(),
            // A server that stops also leaves the thread to the sweeper.
            Ok(false) | Err(DbError::Closed) => {}
            Err(error) => tracing::warn!(%thread, %error, "could not remove the thread of a stateless run"),
        }
    }
}
