//! Tells readers of quiet threads when something may have happened in another process.
//!
//! One look for all of them, now and then, so that a thread that is only looked at costs no look of its own.

use std::sync::Arc;
use std::time::Duration;

use super::Events;
use super::log::ThreadLog;
use crate::db::{self, DbResult, Engine};
use crate::domain::id::ThreadId;

/// How often it is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How many threads one question is about.
const THREADS_PER_QUERY: usize = 500;

impl Events {
    /// Rings for the readers of threads on which other processes are at work. Ends with the server, and at once where there
    /// can be no other process.
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
                tracing::warn!(%error, "could not look for what other processes did");
            }
        }
    }

    /// No clock is asked: those of processes differ. Whoever changes a thread changes the version of its row.
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

    /// The threads that somebody waits for and nobody works on here.
    fn watched_threads(&self) -> Vec<(ThreadId, Arc<ThreadLog>)> {
        let logs = self.logs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let alive = logs.iter().filter_map(|(thread, log)| Some((*thread, log.upgrade()?)));
        alive.filter(|(_, log)| log.has_readers() && !log.is_active()).collect()
    }
}
