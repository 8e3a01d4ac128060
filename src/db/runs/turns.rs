//! The places of runs in the queue: which accounts wait, which are at work, and the next run of each.
//!
//! No statement here reads all waiting runs of an account: the accounts that wait are found by one look into an index
//! each, and so is the next run of an account.
//!
//! A queued message that has to wait for answers has the turn `after_answers`, and no pending interrupt of its thread may be
//! in its way. The row of an interrupt does not say whether its thread has left the branch on which it waits. So a
//! transaction that has found that no interrupt waits on the present branch gives these messages the turn `unheld`, see
//! [`hold_messages`].

use const_format::{concatcp, str_replace};
use sqlx::{query, query_scalar};
use uuid::Uuid;

use crate::db::engine::{Conn, Engine, on_engine};
use crate::db::interrupts::NO_QUESTION;
use crate::db::of_thread::{of_thread_on_postgres, of_thread_on_sqlite};
use crate::db::{DbResult, Tx};
use crate::domain::account::{RunQueue, end_of_subject};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;

/// The condition on a pending run of `runs` that its thread is free for it: no run is at work there, none that brings an
/// answer goes first, and no question is in its way.
pub(super) const MAY_BEGIN_ON_SQLITE: &str = of_thread_on_sqlite!(MAY_BEGIN);
/// The condition of [`MAY_BEGIN_ON_SQLITE`].
pub(super) const MAY_BEGIN_ON_POSTGRES: &str = of_thread_on_postgres!(MAY_BEGIN);
/// The condition as a [question about a thread](crate::db::of_thread). `offset 0` keeps Postgres from answering it for all threads.
const MAY_BEGIN: &str = concatcp!(
    "not exists (select 1 from runs other where other.thread_id = runs.thread_id and other.depth = 0 and {running} \
     limit 1 offset 0) \
     and (runs.turn = 'answer' or not exists (select 1 from runs answer where answer.thread_id = runs.thread_id \
     and answer.depth = 0 and {pending} and answer.turn = 'answer' limit 1 offset 0)) and ",
    str_replace!(NO_QUESTION, "{run}", "runs")
);

/// Lets the queued messages of a thread that wait for answers begin, or holds them: whether an interrupt waits on the present
/// branch of the thread. Returns whether this changes anything.
pub async fn hold_messages(tx: &mut Tx<'_>, thread: ThreadId, are_held: bool) -> DbResult<bool> {
    const HOLD: &str = "update runs set turn = 'after_answers' \
        where thread_id = $1 and depth = 0 and {pending} and turn = 'unheld'";
    const RELEASE: &str = "update runs set turn = 'unheld' \
        where thread_id = $1 and depth = 0 and {pending} and turn = 'after_answers'";
    let sql = if are_held {
        tx.either(of_thread_on_sqlite!(HOLD), of_thread_on_postgres!(HOLD))
    } else {
        tx.either(of_thread_on_sqlite!(RELEASE), of_thread_on_postgres!(RELEASE))
    };
    let changed = on_engine!(tx, |conn| query(sql)
        .bind(thread.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed > 0)
}

/// Returns up to `limit` places with pending runs, due or not, that follow the place `after` in the order of the texts.
pub async fn waiting_queues(tx: &mut Tx<'_>, after: &str, limit: i64) -> DbResult<Vec<RunQueue>> {
    const SQL: &str = "with recursive waiting(queue) as (\
        select (select queue from runs where depth = 0 and status = 'pending' and queue > $1 order by queue limit 1) \
        union all select (select queue from runs where depth = 0 and status = 'pending' and queue > waiting.queue \
        order by queue limit 1) from waiting where waiting.queue is not null) \
        select queue from waiting where queue is not null limit $2";
    let rows: Vec<(String,)> = tx.statement(SQL).bind(after).bind(limit).fetch_all().await?;
    Ok(rows.into_iter().map(|(queue,)| RunQueue::stored(queue)).collect())
}

/// Counts the running runs of the main agent by their places. Their number is bounded by the slots of all processes. A place may
/// be there more than once.
pub async fn at_work_by_queue(tx: &mut Tx<'_>) -> DbResult<Vec<(RunQueue, u64)>> {
    // SQLite has no index in the order of places, and would sort.
    const SQLITE: &str = "select queue, 1 from runs where depth = 0 and status = 'running'";
    const POSTGRES: &str = "select queue, count(*) from runs where depth = 0 and status = 'running' group by queue";
    let sql = tx.either(SQLITE, POSTGRES);
    let rows: Vec<(String, i64)> = tx.statement(sql).fetch_all().await?;
    let counted = rows.into_iter().map(|(queue, count)| {
        let count = u64::try_from(count).unwrap_or(0);
        (RunQueue::stored(queue), count)
    });
    Ok(counted.collect())
}

/// Returns the run at this place that became due first and whose thread is free for it. On Postgres its thread is locked,
/// and runs are skipped on whose threads another transaction is at work: it may claim them.
pub async fn next_in_queue(tx: &mut Tx<'_>, queue: &RunQueue, now: Timestamp) -> DbResult<Option<RunId>> {
    const IS_DUE: &str = " and runs.depth = 0 and runs.status = 'pending' and runs.due_at <= $1 and ";
    const SQLITE: &str = concatcp!(
        "select runs.run_id from runs where runs.queue = $2",
        IS_DUE,
        MAY_BEGIN_ON_SQLITE,
        " order by runs.due_at, runs.run_id limit 1"
    );
    // A range of one place, in the order of places: Postgres could also read the runs of all places in the order of times.
    const POSTGRES: &str = concatcp!(
        "select runs.run_id from runs join threads on threads.thread_id = runs.thread_id \
         where runs.queue between $2 and $2",
        IS_DUE,
        MAY_BEGIN_ON_POSTGRES,
        " order by runs.queue, runs.due_at, runs.run_id limit 1 for no key update of threads skip locked"
    );
    let sql = tx.either(SQLITE, POSTGRES);
    let next: Option<(Uuid,)> = tx
        .statement(sql)
        .bind(now.0)
        .bind(queue.text())
        .fetch_optional()
        .await?;
    Ok(next.map(|(id,)| RunId(id)))
}

/// The name of the advisory lock of all claims that are made under quotas for runs at work.
const CLAIMS: &str = "'adjutant: claims of runs'";

/// Waits until no other transaction claims runs under a quota for runs at work. Such claims are made one after the
/// other until the end of this transaction, so that each counts those before it. Call it before the rows of runs and
/// threads are locked: those who hold these may wait for the lock. SQLite has one writer anyway.
pub async fn lock_claims(tx: &mut Tx<'_>) -> DbResult<()> {
    const SQL: &str = concatcp!("select pg_advisory_xact_lock(hashtextextended(", CLAIMS, ", 0))");
    match tx.engine() {
        Engine::Sqlite => Ok(()),
        Engine::Postgres => tx.statement(SQL).execute_later().await,
    }
}

/// Tries like [`lock_claims`], for the accounts that begin with `subject` only, without waiting. Returns false if
/// another transaction claims a run of such an account, or of any.
pub async fn try_lock_claims(tx: &mut Tx<'_>, subject: &str) -> DbResult<bool> {
    const SQL: &str = concatcp!(
        "select pg_try_advisory_xact_lock_shared(hashtextextended(",
        CLAIMS,
        ", 0)) and pg_try_advisory_xact_lock(hashtextextended(",
        CLAIMS,
        " || ': ' || $1, 0))"
    );
    match &mut tx.conn {
        Conn::Sqlite(_) => Ok(true),
        Conn::Postgres(conn) => Ok(query_scalar(SQL).bind(subject).fetch_one(conn).await?),
    }
}

/// Counts the pending or running runs of the main agent of the accounts that begin with `subject`, up to `most`.
pub async fn count_of_subject(tx: &mut Tx<'_>, subject: &str, status: RunStatus, most: u64) -> DbResult<u64> {
    const PENDING: &str = "select count(*) from (select 1 from runs where depth = 0 and status = 'pending' \
        and queue >= $1 and queue < $2 order by queue limit $3) found";
    const RUNNING: &str = "select count(*) from (select 1 from runs where depth = 0 and status = 'running' \
        and queue >= $1 and queue < $2 limit $3) found";
    let sql = if status == RunStatus::Pending { PENDING } else { RUNNING };
    let count: i64 = on_engine!(tx, |conn| query_scalar(sql)
        .bind(subject)
        .bind(end_of_subject(subject))
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .fetch_one(conn)
        .await)?;
    Ok(u64::try_from(count).unwrap_or(0))
}
