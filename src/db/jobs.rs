//! The table of jobs: work that is due later, and the worker that has claimed each job.

use const_format::{concatcp, str_replace};
use sqlx::{QueryBuilder, query, query_as};
use uuid::Uuid;

use super::codec::json::{ColumnRef, readable};
use super::engine::on_engine;
use super::row::from_row;
use super::workers::{IS_ALIVE_POSTGRES, IS_ALIVE_SQLITE};
use super::{DbResult, Tx};
use crate::domain::id::{AssistantId, JobId, ThreadId, WorkerId};
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::time::Timestamp;

const TABLE: &str = "jobs";

from_row! {
    struct JobRow {
        job_id: Uuid,
        kind: String,
        key: Uuid,
        attempts: i32,
        fence: i64,
    }
}

impl TryFrom<JobRow> for ClaimedJob {
    type Error = super::DbError;

    fn try_from(row: JobRow) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.job_id,
        };
        Ok(Self {
            id: JobId(row.job_id),
            kind: JobKind::from_word(&row.kind).ok_or_else(|| at("kind").corrupt())?,
            key: row.key,
            attempts: u32::try_from(row.attempts).map_err(|_| at("attempts").corrupt())?,
            fence: row.fence,
        })
    }
}

/// The owner of a job. A job is deleted with its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobOwner {
    /// The thread.
    pub thread: Option<ThreadId>,
    /// The assistant.
    pub assistant: Option<AssistantId>,
}

/// The SQL condition that a job has a worker with a valid lease.
const HAS_WORKER_SQLITE: &str = str_replace!(IS_ALIVE_SQLITE, "{worker}", "jobs.worker");
/// The same on Postgres.
const HAS_WORKER_POSTGRES: &str = str_replace!(IS_ALIVE_POSTGRES, "{worker}", "jobs.worker");

const INSERT: &str = "insert into jobs \
    (job_id, kind, key, thread_id, assistant_id, due_at, attempts, worker, fence) \
    values ($1, $2, $3, $4, $5, $6, 0, null, 0) on conflict (kind, key) do update set ";

/// Executes `sql`, which begins with [`INSERT`] and says what happens to an existing job.
async fn insert(
    tx: &mut Tx<'_>,
    sql: &'static str,
    kind: JobKind,
    key: Uuid,
    owner: JobOwner,
    due_at: Timestamp,
) -> DbResult<()> {
    tx.statement(sql)
        .bind(JobId::mint().0)
        .bind(kind.word())
        .bind(key)
        .bind(owner.thread.map(|thread| thread.0))
        .bind(owner.assistant.map(|assistant| assistant.0))
        .bind(due_at.0)
        .execute_later()
        .await
}

/// Schedules a job at `due_at` and resets its attempts. An existing job is rescheduled, and a worker that has claimed
/// it loses the claim.
///
/// # Errors
/// [`super::DbError::Conflict`] when the owner does not exist: by the end of the transaction, see
/// [`Statement::execute_later`](super::engine::Statement::execute_later).
pub async fn schedule(tx: &mut Tx<'_>, kind: JobKind, key: Uuid, owner: JobOwner, due_at: Timestamp) -> DbResult<()> {
    const SQL: &str = concatcp!(
        INSERT,
        "assistant_id = excluded.assistant_id, due_at = excluded.due_at, attempts = 0, worker = null, \
         fence = jobs.fence + 1"
    );
    insert(tx, SQL, kind, key, owner, due_at).await
}

/// Schedules a job at `due_at`, unless it exists. An existing job is only moved to an earlier time, and only if no
/// worker has claimed it.
///
/// # Errors
/// As [`schedule`].
pub async fn ensure(tx: &mut Tx<'_>, kind: JobKind, key: Uuid, owner: JobOwner, due_at: Timestamp) -> DbResult<()> {
    const SQL: &str = concatcp!(
        INSERT,
        "due_at = excluded.due_at where jobs.worker is null and jobs.due_at > excluded.due_at"
    );
    insert(tx, SQL, kind, key, owner, due_at).await
}

/// Deletes the job of this kind for this key. A worker that has claimed it loses the claim.
pub async fn delete(tx: &mut Tx<'_>, kind: JobKind, key: Uuid) -> DbResult<()> {
    const SQL: &str = "delete from jobs where kind = $1 and key = $2";
    on_engine!(tx, |conn| query(SQL)
        .bind(kind.word())
        .bind(key)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Claims due jobs of a kind for `worker`, longest due first, until `until`. Another worker may claim the jobs after
/// that time, or when this worker dies. On Postgres, jobs that another transaction is claiming are skipped.
pub async fn claim(
    tx: &mut Tx<'_>,
    worker: WorkerId,
    kind: JobKind,
    now: Timestamp,
    until: Timestamp,
    limit: i64,
) -> DbResult<Vec<ClaimedJob>> {
    const DUE: &str = "select job_id, kind, key, attempts + 1 as attempts, fence + 1 as fence from jobs \
        where kind = $1 and due_at <= $2 and (worker is null or worker = $3 or not ";
    const FIRST: &str = ") order by due_at, job_id limit $4";
    const SQLITE: &str = concatcp!(DUE, HAS_WORKER_SQLITE, FIRST);
    const POSTGRES: &str = concatcp!(DUE, HAS_WORKER_POSTGRES, FIRST, " for update skip locked");
    let sql = tx.either(SQLITE, POSTGRES);
    let rows: Vec<JobRow> = on_engine!(tx, |conn| query_as(sql)
        .bind(kind.word())
        .bind(now.0)
        .bind(worker.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    if rows.is_empty() {
        return Ok(vec![]);
    }
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update jobs set fence = fence + 1, attempts = attempts + 1, worker = ");
        sql.push_bind(worker.0).push(", due_at = ").push_bind(until.0);
        sql.push(" where job_id in (");
        let mut list = sql.separated(", ");
        for row in &rows {
            list.push_bind(row.job_id);
        }
        sql.push(")");
        sql.build().execute(conn).await.map(drop)
    })?;
    readable(rows)
}

/// Makes jobs due again whose worker let its lease expire, except those of `worker`. Returns their number.
pub async fn free_orphans(tx: &mut Tx<'_>, worker: WorkerId, now: Timestamp) -> DbResult<u64> {
    const FREE: &str = "update jobs set due_at = $2, worker = null where worker is not null and worker <> $1 and not ";
    const SQLITE: &str = concatcp!(FREE, HAS_WORKER_SQLITE);
    const POSTGRES: &str = concatcp!(FREE, HAS_WORKER_POSTGRES);
    let sql = tx.either(SQLITE, POSTGRES);
    Ok(on_engine!(tx, |conn| query(sql)
        .bind(worker.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}

/// Makes the jobs due again that `worker` has claimed, except those that it is `at_work` on. Returns their number.
pub async fn free_left(tx: &mut Tx<'_>, worker: WorkerId, at_work: &[JobId], now: Timestamp) -> DbResult<u64> {
    Ok(on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update jobs set worker = null, due_at = ");
        sql.push_bind(now.0).push(" where worker = ").push_bind(worker.0);
        if !at_work.is_empty() {
            sql.push(" and job_id not in (");
            let mut list = sql.separated(", ");
            for job in at_work {
                list.push_bind(job.0);
            }
            sql.push(")");
        }
        sql.build().execute(conn).await.map(|done| done.rows_affected())
    })?)
}

/// Deletes a job that is done. Returns false if another worker has claimed the job, or it was rescheduled.
pub async fn finish(tx: &mut Tx<'_>, job: &ClaimedJob) -> DbResult<bool> {
    const SQL: &str = "delete from jobs where job_id = $1 and fence = $2";
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(job.id.0)
        .bind(job.fence)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Postpones a job until `due_at`. Returns false if another worker has claimed the job, or it was rescheduled.
pub async fn put_off(tx: &mut Tx<'_>, job: &ClaimedJob, due_at: Timestamp) -> DbResult<bool> {
    const SQL: &str = "update jobs set due_at = $3, worker = null where job_id = $1 and fence = $2";
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(job.id.0)
        .bind(job.fence)
        .bind(due_at.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Makes a job due at `due_at` that could not be done. Changes nothing if the job is claimed no more: a transaction that the
/// worker takes for failed may have settled it.
pub async fn give_back(tx: &mut Tx<'_>, job: &ClaimedJob, due_at: Timestamp) -> DbResult<()> {
    const SQL: &str =
        "update jobs set due_at = $3, worker = null where job_id = $1 and fence = $2 and worker is not null";
    on_engine!(tx, |conn| query(SQL)
        .bind(job.id.0)
        .bind(job.fence)
        .bind(due_at.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Returns the time at which the next job of each kind is due or its claim expires. Kinds without jobs are left out.
pub async fn next_due(tx: &mut Tx<'_>) -> DbResult<Vec<(JobKind, Timestamp)>> {
    let rows: Vec<(String, Option<i64>)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("");
        for (index, kind) in JobKind::ALL.iter().enumerate() {
            sql.push(if index == 0 { "" } else { " union all " });
            sql.push("select cast(").push_bind(kind.word());
            sql.push(" as text), min(due_at) from jobs where kind = ")
                .push_bind(kind.word());
        }
        sql.build_query_as().fetch_all(conn).await
    })?;
    let known = |(word, due): (String, Option<i64>)| Some((JobKind::from_word(&word)?, Timestamp(due?)));
    Ok(rows.into_iter().filter_map(known).collect())
}

/// Returns whether there are jobs, except those of `worker`, whose worker let its lease expire.
pub async fn any_orphans(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<bool> {
    const ANY: &str = "select exists (select 1 from jobs where worker is not null and worker <> $1 and not ";
    const SQLITE: &str = concatcp!(ANY, HAS_WORKER_SQLITE, ")");
    const POSTGRES: &str = concatcp!(ANY, HAS_WORKER_POSTGRES, ")");
    let sql = tx.either(SQLITE, POSTGRES);
    Ok(on_engine!(tx, |conn| query_as(sql)
        .bind(worker.0)
        .fetch_one(conn)
        .await
        .map(|row: (bool,)| row.0))?)
}

/// Counts the jobs of each kind, claimed ones included. Kinds of newer releases are left out.
pub async fn count(tx: &mut Tx<'_>) -> DbResult<Vec<(JobKind, u64)>> {
    const SQL: &str = "select kind, count(*) from jobs group by kind";
    let rows: Vec<(String, i64)> = on_engine!(tx, |conn| query_as(SQL).fetch_all(conn).await)?;
    let known = |(word, count): (String, i64)| {
        let count = u64::try_from(count).unwrap_or(0);
        JobKind::from_word(&word).map(|kind| (kind, count))
    };
    Ok(rows.into_iter().filter_map(known).collect())
}
