//! Polls the database for changes by other processes and wakes the readers of quiet threads.
//!
//! One query covers all watched threads, so that a single reader causes no queries of its own.

use std::sync::Arc;
use std::time::Duration;

use super::Events;
use super::log::ThreadLog;
use crate::db::{self, DbResult, Engine, warn_of};
use crate::domain::id::ThreadId;

/// The interval at which readers look for changes by other processes that did not notify this one.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The number of threads per query.
pub(super) const THREADS_PER_QUERY: usize = 500;

impl Events {
    /// Wakes the readers of threads that other processes change. Runs until shutdown; returns at once on SQLite, where
    /// there are no other processes.
    pub async fn watch(self) {
        if self.db.engine() != Engine::Postgres {
            return;
        }
        while self
            .shutdown
            .run_until_cancelled(tokio::time::sleep(POLL_INTERVAL))
            .await
            .is_some()
        {
            if let Err(error) = self.poll().await {
                warn_of!(error, "could not poll for changes by other processes");
            }
        }
    }

    /// Versions are compared instead of times, since the clocks of processes differ. Every change of a thread changes
    /// the version of its row.
    async fn poll(&self) -> DbResult<()> {
        let watched_threads = self.watched_threads();
        for chunk in watched_threads.chunks(THREADS_PER_QUERY) {
            let threads: Vec<ThreadId> = chunk.iter().map(|(thread, _)| *thread).collect();
            let read = self
                .db
                .read(move |tx| Box::pin(async move { db::threads::versions(tx, &threads).await }));
            for found in read.await? {
                if let Some((_, log)) = chunk.iter().find(|(thread, _)| *thread == found.thread) {
                    log.wake_if_changed(found.version, found.is_at_work);
                }
            }
        }
        Ok(())
    }

    /// The threads that have readers here but no active run.
    pub(super) fn watched_threads(&self) -> Vec<(ThreadId, Arc<ThreadLog>)> {
        let logs = self.logs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let alive = logs.iter().filter_map(|(thread, log)| Some((*thread, log.upgrade()?)));
        alive.filter(|(_, log)| log.has_readers() && !log.is_active()).collect()
    }
}
