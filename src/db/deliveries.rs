//! Deliveries: reports of runs that ended, on their way to those who asked for them.

use sqlx::{QueryBuilder, query, query_as};
use uuid::Uuid;

use super::engine::on_engine;
use super::json::{Cell, readable};
use super::part::{Filling, ListPart};
use super::workers::is_alive;
use super::{DbResult, Tx};
use crate::domain::delivery::{Delivery, DeliveryStatus};
use crate::domain::id::{DeliveryId, RunId, ThreadId, WorkerId};
use crate::domain::json_limits::parsed_bytes;
use crate::domain::time::Timestamp;

const TABLE: &str = "deliveries";

macro_rules! columns {
    () => {
        "delivery_id, run_id, thread_id, url, body, status, attempts, answer, error, due_at, worker, fence, created_at, \
         finished_at"
    };
}

#[derive(sqlx::FromRow)]
struct DeliveryRow {
    delivery_id: Uuid,
    run_id: Uuid,
    thread_id: Uuid,
    url: String,
    body: String,
    status: String,
    attempts: i32,
    answer: Option<i32>,
    error: Option<String>,
    due_at: i64,
    worker: Option<Uuid>,
    fence: i64,
    created_at: i64,
    finished_at: Option<i64>,
}

impl TryFrom<DeliveryRow> for Delivery {
    type Error = super::DbError;

    fn try_from(row: DeliveryRow) -> DbResult<Self> {
        let at = |column| Cell {
            table: TABLE,
            column,
            id: &row.delivery_id,
        };
        Ok(Self {
            id: DeliveryId(row.delivery_id),
            run: RunId(row.run_id),
            thread: ThreadId(row.thread_id),
            url: row.url,
            body: row.body,
            status: DeliveryStatus::from_word(&row.status).ok_or_else(|| at("status").corrupt())?,
            attempts: u32::try_from(row.attempts).map_err(|_| at("attempts").corrupt())?,
            answer: row
                .answer
                .map(u16::try_from)
                .transpose()
                .map_err(|_| at("answer").corrupt())?,
            error: row.error,
            due_at: Timestamp(row.due_at),
            worker: row.worker.map(WorkerId),
            fence: row.fence,
            created_at: Timestamp(row.created_at),
            finished_at: row.finished_at.map(Timestamp),
        })
    }
}

/// Stores a new delivery.
pub async fn insert(tx: &mut Tx<'_>, delivery: &Delivery) -> DbResult<()> {
    const SQL: &str = concat!(
        "insert into deliveries (",
        columns!(),
        ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
    );
    on_engine!(tx, |conn| query(SQL)
        .bind(delivery.id.0)
        .bind(delivery.run.0)
        .bind(delivery.thread.0)
        .bind(&delivery.url)
        .bind(&delivery.body)
        .bind(delivery.status.word())
        .bind(i32::try_from(delivery.attempts).unwrap_or(i32::MAX))
        .bind(delivery.answer.map(i32::from))
        .bind(delivery.error.as_deref())
        .bind(delivery.due_at.0)
        .bind(delivery.worker.map(|worker| worker.0))
        .bind(delivery.fence)
        .bind(delivery.created_at.0)
        .bind(delivery.finished_at.map(|at| at.0))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The delivery of this id.
pub async fn find(tx: &mut Tx<'_>, id: DeliveryId) -> DbResult<Option<Delivery>> {
    const SQL: &str = concat!("select ", columns!(), " from deliveries where delivery_id = $1");
    let row: Option<DeliveryRow> = on_engine!(tx, |conn| query_as(SQL).bind(id.0).fetch_optional(conn).await)?;
    row.map(Delivery::try_from).transpose()
}

/// Gives pending deliveries that are due to `worker`, those first that have been so for longest. Nobody else is given them
/// unless the worker dies, and it is not given them again itself before `until`. On Postgres those that somebody else is
/// about to take are passed over.
pub async fn claim(
    tx: &mut Tx<'_>,
    worker: WorkerId,
    now: Timestamp,
    until: Timestamp,
    limit: i64,
) -> DbResult<Vec<Delivery>> {
    macro_rules! claim {
        ($engine:ident, $lock:literal) => {
            concat!(
                "update deliveries set worker = $1, fence = fence + 1, attempts = attempts + 1, due_at = $3 \
                 where delivery_id in (select delivery_id from deliveries where status = 'pending' and due_at <= $2 \
                 and (worker is null or worker = $1 or not ",
                is_alive!($engine, "deliveries.worker"),
                ") order by due_at, delivery_id limit $4",
                $lock,
                ") returning ",
                columns!()
            )
        };
    }
    let sql = tx.either(claim!(sqlite, ""), claim!(postgres, " for update skip locked"));
    let rows: Vec<DeliveryRow> = on_engine!(tx, |conn| query_as(sql)
        .bind(worker.0)
        .bind(now.0)
        .bind(until.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let mut claimed: Vec<Delivery> = readable(rows)?;
    claimed.sort_by_key(|delivery| delivery.id);
    Ok(claimed)
}

/// Makes those deliveries due that are with a worker who broke its promise to be alive, and is not `worker`. Returns how
/// many there were.
pub async fn free_orphans(tx: &mut Tx<'_>, worker: WorkerId, now: Timestamp) -> DbResult<u64> {
    macro_rules! free {
        ($engine:ident) => {
            concat!(
                "update deliveries set due_at = $2, worker = null where worker is not null and worker <> $1 and not ",
                is_alive!($engine, "deliveries.worker")
            )
        };
    }
    let sql = tx.either(free!(sqlite), free!(postgres));
    Ok(on_engine!(tx, |conn| query(sql)
        .bind(worker.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// How the delivery stands now.
    pub status: DeliveryStatus,
    /// The status with which the address answered, if it did.
    pub answer: Option<u16>,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// When it may be tried again, if it is still pending.
    pub due_at: Timestamp,
}

/// Writes down what became of the attempt that was begun with this fence. False if somebody else has the delivery now.
pub async fn settle(
    tx: &mut Tx<'_>,
    (id, fence): (DeliveryId, i64),
    attempt: &Attempt,
    now: Timestamp,
) -> DbResult<bool> {
    const SQL: &str = "update deliveries set status = $3, answer = $4, error = $5, due_at = $6, finished_at = $7, \
        worker = null where delivery_id = $1 and fence = $2 and status = 'pending'";
    let finished = (attempt.status != DeliveryStatus::Pending).then_some(now.0);
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .bind(fence)
        .bind(attempt.status.word())
        .bind(attempt.answer.map(i32::from))
        .bind(attempt.error.as_deref())
        .bind(attempt.due_at.0)
        .bind(finished)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Makes a delivery due at once, whatever became of it, with all its attempts before it. Returns it as it is then.
pub async fn renew(tx: &mut Tx<'_>, id: DeliveryId, now: Timestamp) -> DbResult<Option<Delivery>> {
    const SQL: &str = concat!(
        "update deliveries set status = 'pending', attempts = 0, due_at = $2, worker = null, fence = fence + 1, \
         finished_at = null where delivery_id = $1 returning ",
        columns!()
    );
    let row: Option<DeliveryRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(id.0)
        .bind(now.0)
        .fetch_optional(conn)
        .await)?;
    row.map(Delivery::try_from).transpose()
}

/// Forgets some deliveries that arrived or were given up before `before`. Returns how many.
pub async fn sweep(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> DbResult<u64> {
    const SQL: &str = "delete from deliveries where delivery_id in (select delivery_id from deliveries \
        where finished_at is not null and finished_at < $1 order by finished_at, delivery_id limit $2)";
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(before.0)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}

/// Forgets the deliveries of a thread that arrived or were given up.
pub async fn forget_thread(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from deliveries where thread_id = $1 and finished_at is not null";
    on_engine!(tx, |conn| query(SQL).bind(thread.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Which deliveries are wanted; the newest come first.
#[derive(Debug, Clone, Default)]
pub struct DeliverySearch {
    /// Only those of this run.
    pub run: Option<RunId>,
    /// Only those of this thread.
    pub thread: Option<ThreadId>,
    /// Only those that stand so.
    pub status: Option<DeliveryStatus>,
    /// How many at most.
    pub limit: i64,
    /// How many to pass over before.
    pub offset: i64,
}

impl DeliverySearch {
    fn push_conditions<DB>(&self, sql: &mut QueryBuilder<DB>)
    where
        DB: sqlx::Database,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push(" where true");
        if let Some(run) = self.run {
            sql.push(" and run_id = ").push_bind(run.0);
        }
        if let Some(thread) = self.thread {
            sql.push(" and thread_id = ").push_bind(thread.0);
        }
        if let Some(status) = self.status {
            sql.push(" and status = ").push_bind(status.word());
        }
    }
}

/// The deliveries that are wanted.
pub async fn search(tx: &mut Tx<'_>, wanted: &DeliverySearch, bytes: usize) -> DbResult<ListPart<Delivery>> {
    const SELECT: &str = concat!("select ", columns!(), " from deliveries");
    let weigh = |row: &DeliveryRow| parsed_bytes(&row.body);
    let mut filling = Filling::new(wanted.limit, bytes);
    while let Some(next) = filling.next() {
        let offset = wanted.offset + filling.count();
        let rows: Vec<DeliveryRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(SELECT);
            wanted.push_conditions(&mut sql);
            sql.push(" order by created_at desc, delivery_id desc limit ")
                .push_bind(next);
            sql.push(" offset ").push_bind(offset);
            sql.build_query_as().fetch_all(conn).await
        })?;
        filling.take(next, rows, weigh, Delivery::try_from)?;
    }
    Ok(filling.finish())
}

/// How many deliveries meet the conditions; limit and offset are none.
pub async fn count(tx: &mut Tx<'_>, wanted: &DeliverySearch) -> DbResult<i64> {
    let count = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select count(*) from deliveries");
        wanted.push_conditions(&mut sql);
        sql.build_query_scalar().fetch_one(conn).await
    })?;
    Ok(count)
}
