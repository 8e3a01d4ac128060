//! Deletes expired data: threads, histories, idempotency keys, entries of the audit, schemas of answers, sums of old days, and
//! unfinished copies of threads.
//!
//! A thread is checked again in the transaction that deletes it. So two processes may find the same thread, and a
//! client may begin to use it in between. A thread at work is left alone.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::retention::DuePosition;
use crate::db::{self, DbError, DbResult, Engine, Tx, warn_of};
use crate::domain::id::ThreadId;
use crate::domain::job::ClaimedJob;
use crate::domain::thread::{Ttl, TtlStrategy};
use crate::domain::time::Timestamp;
use crate::runtime::background::delete_thread;
use crate::runtime::handles::RuntimeHandles;
use crate::runtime::quotas;
use crate::runtime::shared::Core;
use crate::runtime::sweeper::sweep_copies;

/// The most threads that one query returns, and the most other rows that one transaction deletes.
const AT_ONCE: i64 = 100;
/// The most threads that one sweep passes over, since they could not be swept in time. Each of them takes the time of the
/// writer. Behind the next one the threads wait for the next sweep, which begins there; other data is swept at once.
const MOST_PASSED: usize = 3;
/// The lease of a claim. Another process may start before this one is done, which does no harm.
const LEASE: Duration = Duration::from_secs(600);

pub(super) struct SweepHandler;

impl JobHandler for SweepHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 1, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, _: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let core = &runtime.core;
            match core.shutdown.soft().run_until_cancelled(sweep(core)).await {
                Some(Ok(0)) | None => {}
                Some(Ok(count)) => {
                    tracing::info!(count, "threads swept");
                    // Their sandboxes are to end.
                    core.jobs.discover();
                }
                Some(Err(error)) => warn_of!(error, "could not sweep threads"),
            }
            Ok(JobOutcome::Again(core.clock.now().plus(core.retention.interval)))
        })
    }
}

/// Deletes all expired data. Returns the number of threads that were swept.
async fn sweep(core: &Core) -> DbResult<u64> {
    let now = core.clock.now();
    let places = &core.jobs.left_by_sweep;
    let mut passed = 0;
    let mut swept = take_all(
        core,
        &places.expired,
        &mut passed,
        move |tx, behind| Box::pin(db::retention::expired(tx, now, behind, AT_ONCE)),
        move |tx, thread| Box::pin(end_time(tx, thread, now)),
    )
    .await?;
    delete_all(core, AT_ONCE, move |tx| {
        Box::pin(db::idempotency::sweep(tx, now, AT_ONCE))
    })
    .await?;
    if let Some(keep) = core.audit.keep {
        let until = now.minus(keep);
        delete_all(core, AT_ONCE, move |tx| Box::pin(db::audit::sweep(tx, until, AT_ONCE))).await?;
    }
    delete_all(core, AT_ONCE, move |tx| {
        Box::pin(db::interrupts::sweep_schemas(tx, now, AT_ONCE))
    })
    .await?;
    let day = quotas::first_kept_day(now);
    delete_all(core, AT_ONCE, move |tx| Box::pin(db::quotas::sweep(tx, day, AT_ONCE))).await?;
    sweep_copies(core, false).await?;
    if core.db.engine() == Engine::Sqlite {
        let is_used = core.retention.checkpoints.is_some();
        let write = core
            .db
            .write(move |tx| Box::pin(db::retention::set_index_of_unpruned(tx, is_used)));
        write.await?;
    }
    let Some(ttl) = core.retention.checkpoints else {
        return Ok(swept);
    };
    let until = now.minus(ttl.after);
    swept += take_all(
        core,
        &places.unpruned,
        &mut passed,
        move |tx, behind| Box::pin(db::retention::unpruned(tx, until, behind, AT_ONCE)),
        move |tx, thread| Box::pin(end_history(tx, thread, ttl, now)),
    )
    .await?;
    Ok(swept)
}

/// Deletes rows in several transactions, since others wait for each of them, until `delete` finds fewer than the `at_once` rows
/// that it deletes at most, or until this process stops. Returns the number of rows.
pub(super) async fn delete_all<J>(core: &Core, at_once: i64, delete: J) -> DbResult<u64>
where
    J: for<'t> Fn(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<u64>> + Copy + Send + 'static,
{
    let mut deleted = 0;
    loop {
        let count = core.db.write(delete).await?;
        deleted += count;
        if count < at_once.unsigned_abs() || core.shutdown.soft().is_cancelled() {
            return Ok(deleted);
        }
    }
}

/// Sweeps the threads that `find` returns, from the `place` on where the last sweep has left them. `passed` is the number of
/// threads that this sweep has passed over. Returns the number of those that were swept.
async fn take_all<F, J>(
    core: &Core,
    place: &Mutex<Option<DuePosition>>,
    passed: &mut usize,
    find: F,
    job: J,
) -> DbResult<u64>
where
    F: for<'t> Fn(&'t mut Tx<'_>, DuePosition) -> BoxFuture<'t, DbResult<Vec<DuePosition>>> + Copy + Send + 'static,
    J: for<'t> Fn(&'t mut Tx<'_>, ThreadId) -> BoxFuture<'t, DbResult<bool>> + Copy + Send + 'static,
{
    let left = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut last = left.unwrap_or(DuePosition::START);
    let mut gone = 0;
    loop {
        let due = core.db.read(move |tx| find(tx, last)).await?;
        if due.is_empty() {
            return Ok(gone);
        }
        for next in due {
            last = next;
            let outcome = take(core, next.thread, job).await?;
            gone += u64::from(outcome == ThreadOutcome::Swept);
            if outcome != ThreadOutcome::Failed {
                continue;
            }
            if *passed == MOST_PASSED {
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
                return Ok(gone);
            }
            *passed += 1;
        }
    }
}

/// The outcome of a sweep for one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadOutcome {
    /// The thread was swept, or set aside.
    Swept,
    /// The thread is at work, or was used since it was found.
    Left,
    /// The thread is locked, or takes too long.
    Failed,
}

/// Sweeps a thread in a transaction of its own. One that cannot be read is set aside, so that it does not block others.
async fn take<J>(core: &Core, thread: ThreadId, job: J) -> DbResult<ThreadOutcome>
where
    J: for<'t> Fn(&'t mut Tx<'_>, ThreadId) -> BoxFuture<'t, DbResult<bool>> + Copy + Send + 'static,
{
    match core.db.write(move |tx| job(tx, thread)).await {
        Ok(true) => Ok(ThreadOutcome::Swept),
        Ok(false) => Ok(ThreadOutcome::Left),
        Err(error) if error.is_corrupt() => {
            tracing::error!(%thread, %error, "the history of a thread cannot be read, so it is not swept");
            let now = core.clock.now();
            let write = core
                .db
                .write(move |tx| Box::pin(async move { db::retention::exclude_from_sweeps(tx, thread, now).await }));
            write.await?;
            Ok(ThreadOutcome::Swept)
        }
        Err(error) if is_of_thread(&error) => {
            tracing::warn!(%thread, %error, "a thread could not be swept, and a later sweep tries it again");
            Ok(ThreadOutcome::Failed)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether other threads may be swept after this error.
fn is_of_thread(error: &DbError) -> bool {
    !error.is_out_of_reach() && !matches!(error, DbError::Closed)
}

/// Deletes or prunes a thread whose TTL has ended. Returns false if the TTL has not ended, or the thread is at work.
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
        TtlStrategy::Delete => delete_thread(tx, id, now).await,
        TtlStrategy::KeepLatest => {
            db::retention::clear_expiry(tx, id).await?;
            db::retention::keep_latest(tx, id, now).await
        }
    }
}

/// Deletes a thread or prunes its history. Returns false if the thread changed since, or is at work.
async fn end_history(tx: &mut Tx<'_>, id: ThreadId, ttl: Ttl, now: Timestamp) -> DbResult<bool> {
    let Some(thread) = db::threads::lock(tx, id).await? else {
        return Ok(false);
    };
    if thread.state_updated_at > now.minus(ttl.after) || !db::runs::count_in_flight(tx, id).await?.is_none() {
        return Ok(false);
    }
    match ttl.strategy {
        TtlStrategy::Delete => delete_thread(tx, id, now).await,
        TtlStrategy::KeepLatest => db::retention::keep_latest(tx, id, now).await,
    }
}
