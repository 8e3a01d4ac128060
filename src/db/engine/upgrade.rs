//! The end of an upgrade of several servers on Postgres: from then on servers may store what those of the former release do
//! not read.
//!
//! The id of a worker says what its server reads, see [`WorkerId::mint`]. Once the upgrade is
//! finished, constraints with one name allow no workers that read less: none has a lease, holds a run that is running, or has
//! claimed a job. A lease alone would not do: a server that was suspended for days looks for runs and jobs before it knows that
//! it has no lease, and it ends what it cannot read. In a database that servers of this release have made, it is so from the
//! beginning; the migrations have the same constraints.
//!
//! The constraint of runs is a trigger, which looks only at a worker that is stored: Postgres would check it in each step of a run.

use const_format::{concatcp, str_replace};
use sqlx::{Connection, PgConnection, Postgres, Transaction, query_scalar, raw_sql};

use super::Tx;
use super::clock::NOW_POSTGRES;
use super::error::DbResult;
use super::session_lock::IS_HELD;
use crate::domain::id::WorkerId;

/// The condition that the worker `{worker}` is one of this release or a later one.
const READS_ALL: &str = "substr({worker}::text, 29) collate \"C\" between '00000004' and '000000ff'";

/// The number of the forms of rows up to texts in the [short form](crate::db::codec::short_form). Each release with a new form reads those
/// of former releases, too.
pub(in crate::db) const SHORT_TEXTS: u32 = 1;
/// The number of the forms of rows up to positions and events without the [questions](crate::db::questions) of their interrupts.
pub(in crate::db) const QUESTIONS_ONCE: u32 = 2;
/// The number of the forms of rows up to steps with [events](crate::db::events) that have no rows of their own.
pub(in crate::db) const EVENTS_IN_STEPS: u32 = 3;
/// The number of the forms of rows up to interrupts without the [schemas](crate::db::interrupts) of their answers.
pub(in crate::db) const ANSWER_SCHEMAS: u32 = 4;

impl Tx<'_> {
    /// Returns whether the long schemas of answers are stored apart from new interrupts.
    pub(in crate::db) fn stores_answer_schemas(&self) -> bool {
        self.forms >= ANSWER_SCHEMAS
    }
}

/// Returns the number of the forms of rows that every server reads which can be at work.
pub(in crate::db) async fn forms_read(conn: &mut PgConnection) -> DbResult<u32> {
    // Servers of former releases could finish an upgrade to theirs: then all read short texts, for example.
    const SQL: &str = "select conname::text from pg_constraint where conrelid = to_regclass('runs') \
        and conname in ('reads_short_texts', 'reads_questions_once', 'reads_events_in_steps', 'reads_answer_schemas') \
        union all select tgname::text from pg_trigger where tgrelid = to_regclass('runs') and tgname = 'reads_answer_schemas'";
    let names: Vec<String> = query_scalar(SQL).fetch_all(conn).await?;
    let forms = names.iter().map(|name| match name.as_str() {
        "reads_answer_schemas" => ANSWER_SCHEMAS,
        "reads_events_in_steps" => EVENTS_IN_STEPS,
        "reads_questions_once" => QUESTIONS_ONCE,
        _ => SHORT_TEXTS,
    });
    Ok(forms.max().unwrap_or(0))
}

/// Returns whether the upgrade is finished: every server that can be at work reads all that this one may store.
pub(in crate::db) async fn is_finished(conn: &mut PgConnection) -> DbResult<bool> {
    Ok(forms_read(conn).await? == WorkerId::FORMS_READ)
}

/// Finishes the upgrade, if it is not finished. Servers store all forms from their next start on. Runs that servers of the
/// former release have left are free for others. Returns false, without a change, if such a server is at work.
///
/// # Errors
/// When the database fails, when another transaction uses a table for too long, or when the role may not change tables. The
/// upgrade can be finished later then.
pub(in crate::db) async fn finish(conn: &mut PgConnection) -> DbResult<bool> {
    const OF_WORKER_ID: &str = str_replace!(READS_ALL, "{worker}", "worker_id");
    const OF_WORKER: &str = str_replace!(READS_ALL, "{worker}", "worker");
    // Those of former releases are part of the new constraint.
    const DROPS: &str = "drop constraint if exists reads_short_texts, drop constraint if exists reads_questions_once, \
        drop constraint if exists reads_events_in_steps, drop constraint if exists reads_answer_schemas";
    const REPLACES: &str = concatcp!(DROPS, ", add constraint reads_answer_schemas check (");
    const IS_FORMER_AT_WORK: &str = concatcp!(
        "select exists (select 1 from workers where not (",
        OF_WORKER_ID,
        ") and (alive_until > ",
        NOW_POSTGRES,
        " or session_lock is not null and ",
        str_replace!(IS_HELD, "{lock}", "workers.session_lock"),
        "))"
    );
    // Rows of jobs and runs that are there are not read: what remains of former workers does no harm.
    const WORKERS: &str = concatcp!(
        "delete from workers where not (",
        OF_WORKER_ID,
        "); alter table workers ",
        REPLACES,
        OF_WORKER_ID,
        ")"
    );
    const JOBS: &str = concatcp!("alter table jobs ", REPLACES, OF_WORKER, ") not valid");
    const RUNS: &str = concatcp!(
        "update runs set worker = null where depth = 0 and status = 'running' and not (",
        OF_WORKER,
        "); alter table runs ",
        DROPS,
        "; create trigger reads_answer_schemas \
         after insert or update of worker on runs for each row execute function refuse_former_worker()"
    );
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
