//! Takes away what has been kept long enough: threads whose time is over, histories, and idempotency keys.
//!
//! Every process sweeps. A thread is judged again in the transaction that takes it away, so it does no harm if two
//! processes find the same one, or if somebody begins to use it in between; one that is at work is left alone.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::desk::Desk;
use super::worker::Worker;
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::id::ThreadId;
use crate::domain::idempotency::REMEMBERED;
use crate::domain::thread::{Ttl, TtlStrategy};
use crate::domain::time::Timestamp;

/// How long the thread of a stateless run is kept after its end if nobody was left to remove it.
pub(super) const TEMPORARY: Ttl = Ttl {
    after: Duration::from_secs(600),
    strategy: TtlStrategy::Delete,
};

/// How long it is kept if whoever asked for the run may ask again what came of it.
pub(super) const HELD: Ttl = Ttl {
    after: REMEMBERED,
    strategy: TtlStrategy::Delete,
};

/// How many threads are looked for at once.
const AT_ONCE: i64 = 100;

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
    /// Sweeps now and then. Ends with the server.
    pub(super) async fn keep_sweeping(self: Arc<Self>) {
        loop {
            match self.shutdown.soft().run_until_cancelled(self.sweep()).await {
                Some(Ok(0)) | None => {}
                Some(Ok(count)) => tracing::info!(count, "threads swept"),
                Some(Err(error)) => tracing::warn!(%error, "could not sweep threads"),
            }
            let pause = tokio::time::sleep(self.retention.interval);
            if self.shutdown.soft().run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

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

    /// Takes away all that can go by now. Returns of how many threads.
    async fn sweep(&self) -> DbResult<u64> {
        let now = self.clock.now();
        let mut swept = 0;
        loop {
            let due = self
                .db
                .read(move |tx| Box::pin(async move { db::retention::expired(tx, now, AT_ONCE).await }));
            let gone = self
                .take(due.await?, move |tx, thread| Box::pin(end_time(tx, thread, now)))
                .await?;
            swept += gone;
            if gone == 0 {
                break;
            }
        }
        while self
            .db
            .write(move |tx| Box::pin(db::idempotency::sweep(tx, now, AT_ONCE)))
            .await?
            > 0
        {}
        self.sweep_copies(false).await?;
        let Some(ttl) = self.retention.checkpoints else {
            return Ok(swept);
        };
        let until = now.minus(ttl.after);
        loop {
            let due = self
                .db
                .read(move |tx| Box::pin(async move { db::retention::unpruned(tx, until, AT_ONCE).await }));
            let gone = self
                .take(due.await?, move |tx, thread| {
                    Box::pin(end_history(tx, thread, ttl, now))
                })
                .await?;
            swept += gone;
            if gone == 0 {
                return Ok(swept);
            }
        }
    }

    /// Removes the thread of a stateless run, once those who wait for the result have read it.
    pub(super) async fn clear_away(&self, desk: &Arc<Desk>) {
        let request = &desk.run.request;
        if !request.temporary || request.held || self.shutdown.soft().is_cancelled() {
            return;
        }
        for _ in 0..200 {
            // One is the desk's own.
            if Arc::strong_count(&desk.log) <= 1 {
                break;
            }
            let pause = tokio::time::sleep(Duration::from_millis(25));
            if self.shutdown.soft().run_until_cancelled(pause).await.is_none() {
                // It goes when its time is over, on whatever server.
                return;
            }
        }
        let thread = desk.run.thread;
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

    /// Takes these threads away, each in a transaction of its own. Returns how many went. One that cannot be read is left
    /// alone from then on, so that it is not in the way of others.
    async fn take<J>(&self, threads: Vec<ThreadId>, job: J) -> DbResult<u64>
    where
        J: for<'t> Fn(&'t mut Tx<'_>, ThreadId) -> BoxFuture<'t, DbResult<bool>> + Copy + Send + 'static,
    {
        let mut gone = 0;
        for thread in threads {
            match self.db.write(move |tx| job(tx, thread)).await {
                Ok(went) => gone += u64::from(went),
                Err(error) if error.is_corrupt() => {
                    tracing::error!(%thread, %error, "the history of a thread cannot be read, so it is not swept");
                    let now = self.clock.now();
                    let write = self
                        .db
                        .write(move |tx| Box::pin(async move { db::retention::set_aside(tx, thread, now).await }));
                    write.await?;
                    gone += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }
}

/// Does what is to become of a thread whose time is over. False if it is not over, or the thread is at work.
async fn end_time(tx: &mut Tx<'_>, id: ThreadId, now: Timestamp) -> DbResult<bool> {
    let Some(thread) = db::threads::lock(tx, id).await? else {
        return Ok(false);
    };
    let is_over = thread.expires_at.is_some_and(|at| at <= now);
    let Some(ttl) = thread.ttl.filter(|_| is_over) else {
        return Ok(false);
    };
    if !db::runs::count_in_flight(tx, id).await?.is_none() {
        return Ok(false);
    }
    match ttl.strategy {
        TtlStrategy::Delete => db::threads::delete(tx, id).await,
        TtlStrategy::KeepLatest => {
            db::retention::rest(tx, id).await?;
            db::retention::keep_latest(tx, id, now).await
        }
    }
}

/// Takes the history of a thread away, or all of it. False if it changed since, or is at work.
async fn end_history(tx: &mut Tx<'_>, id: ThreadId, ttl: Ttl, now: Timestamp) -> DbResult<bool> {
    let Some(thread) = db::threads::lock(tx, id).await? else {
        return Ok(false);
    };
    if thread.state_updated_at > now.minus(ttl.after) || !db::runs::count_in_flight(tx, id).await?.is_none() {
        return Ok(false);
    }
    match ttl.strategy {
        TtlStrategy::Delete => db::threads::delete(tx, id).await,
        TtlStrategy::KeepLatest => db::retention::keep_latest(tx, id, now).await,
    }
}
