//! The end of an upgrade of several servers on Postgres: from then on servers may store what those of the former release do
//! not read.
//!
//! A worker of this release has an id of version 8, see [`WorkerId::mint`](crate::domain::id::WorkerId::mint); those of former
//! releases are of version 7. Once the upgrade is finished, constraints with one name allow no other workers: none has a lease,
//! holds a run that is running, or has claimed a job. A lease alone would not do: a server that was suspended for days looks
//! for runs and jobs before it knows that it has no lease, and it ends what it cannot read. In a database that servers of this
//! release have made, it is so from the beginning; the migration has the same constraints.

use const_format::{concatcp, str_replace};
use sqlx::{Connection, PgConnection, Postgres, Transaction, query_scalar, raw_sql};

use super::error::DbResult;
use super::session_lock::IS_HELD;
use super::workers::NOW_POSTGRES;

/// Returns whether the upgrade is finished: every server that can be at work reads texts in the
/// [short form](super::short_form).
pub(super) async fn is_finished(conn: &mut PgConnection) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from pg_constraint \
        where conrelid = to_regclass('runs') and conname = 'reads_short_texts')";
    Ok(query_scalar(SQL).fetch_one(conn).await?)
}

/// Finishes the upgrade, if it is not finished. Servers store texts in the short form from their next start on. Runs that
/// servers of the former release have left are free for others. Returns false, without a change, if such a server is at work.
///
/// # Errors
/// When the database fails, when another transaction uses a table for too long, or when the role may not change tables. The
/// upgrade can be finished later then.
pub(super) async fn finish(conn: &mut PgConnection) -> DbResult<bool> {
    const IS_FORMER_AT_WORK: &str = concatcp!(
        "select exists (select 1 from workers where substr(worker_id::text, 15, 1) <> '8' and (alive_until > ",
        NOW_POSTGRES,
        " or session_lock is not null and ",
        str_replace!(IS_HELD, "{lock}", "workers.session_lock"),
        "))"
    );
    // Rows of jobs and runs that are there are not read: what remains of former workers does no harm.
    const WORKERS: &str = "delete from workers where substr(worker_id::text, 15, 1) <> '8'; \
        alter table workers drop constraint if exists reads_short_texts, \
        add constraint reads_short_texts check (substr(worker_id::text, 15, 1) = '8')";
    const JOBS: &str = "alter table jobs drop constraint if exists reads_short_texts, \
        add constraint reads_short_texts check (substr(worker::text, 15, 1) = '8') not valid";
    const RUNS: &str = "update runs set worker = null where depth = 0 and status = 'running' \
        and substr(worker::text, 15, 1) <> '8'; \
        alter table runs add constraint reads_short_texts \
        check (status <> 'running' or substr(worker::text, 15, 1) = '8') not valid";
    if is_finished(conn).await? {
        return Ok(true);
    }
    let mut transaction = lock(conn, "lock table workers in access exclusive mode").await?;
    let is_at_work: bool = query_scalar(IS_FORMER_AT_WORK).fetch_one(&mut *transaction).await?;
    if is_at_work {
        transaction.rollback().await?;
        return Ok(false);
    }
    raw_sql(WORKERS).execute(&mut *transaction).await?;
    transaction.commit().await?;

    let mut transaction = lock(conn, "lock table jobs in access exclusive mode").await?;
    raw_sql(JOBS).execute(&mut *transaction).await?;
    transaction.commit().await?;

    // The last one, since it says that the upgrade is finished.
    let mut transaction = lock(conn, "lock table runs in access exclusive mode").await?;
    // Another process may have finished it since.
    if !is_finished(&mut transaction).await? {
        raw_sql(RUNS).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// Begins a transaction with the lock of one table. Servers use the tables in any order, so a transaction with the locks of
/// several could wait for one that waits for it.
async fn lock<'c>(conn: &'c mut PgConnection, table: &'static str) -> DbResult<Transaction<'c, Postgres>> {
    let mut transaction = conn.begin().await?;
    // The servers wait meanwhile, and must renew their leases.
    raw_sql("set local lock_timeout = '1s'")
        .execute(&mut *transaction)
        .await?;
    raw_sql(table).execute(&mut *transaction).await?;
    Ok(transaction)
}
