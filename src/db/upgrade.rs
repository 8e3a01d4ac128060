//! The end of an upgrade of several servers on Postgres: from then on servers may store what those of the former release do
//! not read.
//!
//! The fact has one place: the column `workers.reads` has no default any more. A server of the former release does not name
//! the column, so the database refuses it a lease, even if it was suspended for days. In a database that servers of this
//! release have made, it is so from the beginning.

use const_format::concatcp;
use sqlx::{Connection, PgConnection, query, query_scalar, raw_sql};

use super::error::DbResult;
use super::session_lock::is_held;
use super::workers::{READS_SHORT_TEXTS, database_now};

/// Returns whether the upgrade is finished: every server that can have a lease reads texts in the
/// [short form](super::short_form).
pub(super) async fn is_finished(conn: &mut PgConnection) -> DbResult<bool> {
    const SQL: &str =
        "select not atthasdef from pg_attribute where attrelid = to_regclass('workers') and attname = 'reads'";
    Ok(query_scalar(SQL).fetch_one(conn).await?)
}

/// Finishes the upgrade. Servers store texts in the short form from their next start on. Returns false, without a change, if
/// a server of the former release is at work.
///
/// # Errors
/// When the database fails, or when the role may not change tables.
pub(super) async fn finish(conn: &mut PgConnection) -> DbResult<bool> {
    const IS_FORMER_AT_WORK: &str = concatcp!(
        "select exists (select 1 from workers where reads < $1 and (alive_until > ",
        database_now!(postgres),
        " or session_lock is not null and ",
        is_held!("workers.session_lock"),
        "))"
    );
    let mut transaction = conn.begin().await?;
    // Servers renew their leases in this table, and must not wait for long.
    raw_sql("set local lock_timeout = '5s'; lock table workers in access exclusive mode")
        .execute(&mut *transaction)
        .await?;
    let is_at_work: bool = query_scalar(IS_FORMER_AT_WORK)
        .bind(READS_SHORT_TEXTS)
        .fetch_one(&mut *transaction)
        .await?;
    if is_at_work {
        transaction.rollback().await?;
        return Ok(false);
    }
    query("delete from workers where reads < $1")
        .bind(READS_SHORT_TEXTS)
        .execute(&mut *transaction)
        .await?;
    raw_sql("alter table workers alter column reads drop default")
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(true)
}
