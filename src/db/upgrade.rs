//! The end of an upgrade of several servers on Postgres: from then on servers may store what those of the former release do
//! not read.
//!
//! A worker of this release has an id of version 8, see [`WorkerId::mint`](crate::domain::id::WorkerId::mint); those of former
//! releases are of version 7. Once the upgrade is finished, constraints with one name allow no other workers: none has a lease,
//! holds a run that is running, or has claimed a job. A lease alone would not do: a server that was suspended for days looks
//! for runs and jobs before it knows that it has no lease, and it ends what it cannot read. In a database that servers of this
//! release have made, it is so from the beginning; the migration has the same constraints.

use const_format::concatcp;
use sqlx::{Connection, PgConnection, query_scalar, raw_sql};

use super::error::DbResult;
use super::session_lock::is_held;
use super::workers::database_now;

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
/// When the database fails, when another transaction uses the tables for too long, or when the role may not change tables.
pub(super) async fn finish(conn: &mut PgConnection) -> DbResult<bool> {
    // The servers wait meanwhile, and must renew their leases.
    const LOCK: &str = "set local lock_timeout = '1s'; lock table workers, runs, jobs in access exclusive mode";
    const IS_FORMER_AT_WORK: &str = concatcp!(
        "select exists (select 1 from workers where substr(worker_id::text, 15, 1) <> '8' and (alive_until > ",
        database_now!(postgres),
        " or session_lock is not null and ",
        is_held!("workers.session_lock"),
        "))"
    );
    // Rows that are there are not read: what remains of former workers does no harm.
    const FINISH: &str = "delete from workers where substr(worker_id::text, 15, 1) <> '8'; \
        update runs set worker = null where depth = 0 and status = 'running' and substr(worker::text, 15, 1) <> '8'; \
        alter table workers add constraint reads_short_texts check (substr(worker_id::text, 15, 1) = '8'); \
        alter table runs add constraint reads_short_texts \
        check (status <> 'running' or substr(worker::text, 15, 1) = '8') not valid; \
        alter table jobs add constraint reads_short_texts check (substr(worker::text, 15, 1) = '8') not valid";
    let mut transaction = conn.begin().await?;
    raw_sql(LOCK).execute(&mut *transaction).await?;
    // Another process may have finished it since.
    if is_finished(&mut transaction).await? {
        transaction.rollback().await?;
        return Ok(true);
    }
    let is_at_work: bool = query_scalar(IS_FORMER_AT_WORK).fetch_one(&mut *transaction).await?;
    if is_at_work {
        transaction.rollback().await?;
        return Ok(false);
    }
    raw_sql(FINISH).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}
