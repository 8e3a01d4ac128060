//! The table of deliveries: reports of webhooks about runs that ended.

use const_format::concatcp;
use sqlx::{QueryBuilder, query};
use uuid::Uuid;

use super::access::{self, ScopedRows, push_scope};
use super::codec::json::ColumnRef;
use super::engine::{Contains, on_engine, sealing};
use super::jobs::{self, JobOwner};
use super::list_part::{ListBuilder, ListPart};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::access::AccessScope;
use crate::domain::delivery::{Delivery, DeliveryStatus};
use crate::domain::id::{DeliveryId, RunId, ThreadId};
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::time::Timestamp;

const TABLE: &str = "deliveries";

const SELECT: &str = "\
    select d.delivery_id, d.run_id, d.thread_id, d.url, d.body, d.status, coalesce(j.attempts, d.attempts) as attempts, \
    d.answer, d.error, case when j.worker is null then j.due_at end as next_attempt_at, d.created_at, d.finished_at, \
    d.tenant, d.owner \
    from deliveries d left join jobs j on j.kind = 'webhook' and j.key = d.delivery_id";

from_row! {
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
        next_attempt_at: Option<i64>,
        created_at: i64,
        finished_at: Option<i64>,
        tenant: String,
        owner: String,
    }
}

impl TryFrom<DeliveryRow> for Delivery {
    type Error = super::DbError;

    fn try_from(row: DeliveryRow) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.delivery_id,
        };
        Ok(Self {
            id: DeliveryId(row.delivery_id),
            run: RunId(row.run_id),
            thread: ThreadId(row.thread_id),
            ownership: access::ownership(row.tenant, row.owner),
            // As it was given, which is no JSON: it could begin like a text in the short form.
            url: sealing::open(&at("url"), &row.url)?.into_owned(),
            body: at("body").open_owned(row.body)?,
            status: DeliveryStatus::from_word(&row.status).ok_or_else(|| at("status").corrupt())?,
            attempts: u32::try_from(row.attempts).map_err(|_| at("attempts").corrupt())?,
            answer: row
                .answer
                .map(u16::try_from)
                .transpose()
                .map_err(|_| at("answer").corrupt())?,
            error: row.error,
            next_attempt_at: row.next_attempt_at.map(Timestamp),
            created_at: Timestamp(row.created_at),
            finished_at: row.finished_at.map(Timestamp),
        })
    }
}

/// Returns a column of a delivery.
fn cell<'a>(column: &'static str, delivery: &'a DeliveryId) -> ColumnRef<'a, DeliveryId> {
    ColumnRef {
        table: TABLE,
        column,
        id: delivery,
    }
}

/// Stores a new delivery, with the job that sends it.
pub async fn insert(tx: &mut Tx<'_>, delivery: &Delivery) -> DbResult<()> {
    const SQL: &str = "insert into deliveries (delivery_id, run_id, thread_id, url, body, status, attempts, answer, error, \
        created_at, finished_at, tenant, owner) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
    let sealer = tx.sealer(delivery.ownership.tenant.as_str()).await?;
    let url = sealer.seal(&cell("url", &delivery.id), delivery.url.clone())?;
    let body = sealer.seal(&cell("body", &delivery.id), delivery.body.clone())?;
    tx.statement(SQL)
        .bind(delivery.id.0)
        .bind(delivery.run.0)
        .bind(delivery.thread.0)
        .bind(url)
        .bind(body)
        .bind(delivery.status.word())
        .bind(i32::try_from(delivery.attempts).unwrap_or(i32::MAX))
        .bind(delivery.answer.map(i32::from))
        .bind(delivery.error.as_deref())
        .bind(delivery.created_at.0)
        .bind(delivery.finished_at.map(|at| at.0))
        .bind(delivery.ownership.tenant.as_str())
        .bind(delivery.ownership.owner.as_str())
        .execute_later()
        .await?;
    match delivery.next_attempt_at {
        Some(at) => jobs::schedule(tx, JobKind::Webhook, delivery.id.0, JobOwner::default(), at).await,
        None => Ok(()),
    }
}

/// Returns the delivery with this id.
pub async fn find(tx: &mut Tx<'_>, id: DeliveryId) -> DbResult<Option<Delivery>> {
    const SQL: &str = concatcp!(SELECT, " where d.delivery_id = $1");
    let row: Option<DeliveryRow> = tx.statement(SQL).bind(id.0).fetch_optional().await?;
    row.map(Delivery::try_from).transpose()
}

/// The result of an attempt to send a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The new status of the delivery.
    pub status: DeliveryStatus,
    /// The status with which the address answered, if it did.
    pub answer: Option<u16>,
    /// The error, if the attempt failed.
    pub error: Option<String>,
    /// The time of the next attempt, if the delivery is still pending.
    pub due_at: Timestamp,
}

/// Stores the result of the attempt of `job`. Returns false if another worker has claimed the job.
pub async fn settle(tx: &mut Tx<'_>, job: &ClaimedJob, attempt: &Attempt, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "update deliveries set status = $2, attempts = $3, answer = $4, error = $5, finished_at = $6 \
        where delivery_id = $1";
    let is_over = attempt.status != DeliveryStatus::Pending;
    let is_ours = match is_over {
        true => jobs::finish(tx, job).await?,
        false => jobs::put_off(tx, job, attempt.due_at).await?,
    };
    if !is_ours {
        return Ok(false);
    }
    on_engine!(tx, |conn| query(SQL)
        .bind(job.key)
        .bind(attempt.status.word())
        .bind(i32::try_from(job.attempts).unwrap_or(i32::MAX))
        .bind(attempt.answer.map(i32::from))
        .bind(attempt.error.as_deref())
        .bind(is_over.then_some(now.0))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(true)
}

/// Makes a delivery due at once, whatever its status, and resets its attempts. Returns the changed delivery.
pub async fn renew(tx: &mut Tx<'_>, id: DeliveryId, now: Timestamp) -> DbResult<Option<Delivery>> {
    const SQL: &str =
        "update deliveries set status = 'pending', attempts = 0, finished_at = null where delivery_id = $1";
    if find(tx, id).await?.is_none() {
        return Ok(None);
    }
    // The job is locked before the delivery, in the same order as when a worker settles the job.
    jobs::schedule(tx, JobKind::Webhook, id.0, JobOwner::default(), now).await?;
    on_engine!(tx, |conn| query(SQL).bind(id.0).execute(conn).await.map(drop))?;
    find(tx, id).await
}

/// Deletes some deliveries that ended before `before`. Returns their number.
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

/// Deletes the ended deliveries of a thread.
pub async fn forget_thread(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from deliveries where thread_id = $1 and finished_at is not null";
    tx.erase_traces();
    on_engine!(tx, |conn| query(SQL).bind(thread.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// A query for deliveries, newest first.
#[derive(Debug, Clone)]
pub struct DeliverySearch {
    /// Only deliveries in this scope. Deliveries cannot be shared.
    pub scope: AccessScope,
    /// Only deliveries of this run.
    pub run: Option<RunId>,
    /// Only deliveries of this thread.
    pub thread: Option<ThreadId>,
    /// Only deliveries with this status.
    pub status: Option<DeliveryStatus>,
    /// The maximum number of results.
    pub limit: i64,
    /// The number of results to skip.
    pub offset: i64,
}

impl DeliverySearch {
    /// Returns the query for up to `limit` deliveries of a scope.
    pub fn within(scope: AccessScope, limit: i64) -> Self {
        Self {
            scope,
            run: None,
            thread: None,
            status: None,
            limit,
            offset: 0,
        }
    }

    fn push_conditions<DB>(&self, sql: &mut QueryBuilder<DB>) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> String: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push(" where true");
        if let Some(run) = self.run {
            sql.push(" and d.run_id = ").push_bind(run.0);
        }
        if let Some(thread) = self.thread {
            sql.push(" and d.thread_id = ").push_bind(thread.0);
        }
        if let Some(status) = self.status {
            sql.push(" and d.status = ").push_bind(status.word());
        }
        let rows = ScopedRows {
            alias: "d.",
            can_be_shared: false,
            are_threads: false,
            some_are_of_server: false,
            by_other_index: self.run.is_some() || self.thread.is_some(),
        };
        push_scope(sql, &self.scope, rows)
    }
}

/// Returns the deliveries of a query.
pub async fn search(tx: &mut Tx<'_>, wanted: &DeliverySearch, bytes: usize) -> DbResult<ListPart<Delivery>> {
    let weigh = |row: &DeliveryRow| cell("body", &DeliveryId(row.delivery_id)).weigh(&row.body);
    let mut filling = ListBuilder::new(wanted.limit, bytes);
    while let Some(next) = filling.next() {
        let offset = wanted.offset + filling.count();
        let rows: Vec<DeliveryRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(SELECT);
            wanted.push_conditions(&mut sql)?;
            sql.push(" order by d.created_at desc, d.delivery_id desc limit ")
                .push_bind(next);
            sql.push(" offset ").push_bind(offset);
            sql.build_query_as().fetch_all(conn).await
        })?;
        filling.take(next, rows, weigh, Delivery::try_from)?;
    }
    Ok(filling.finish())
}

/// Counts the deliveries of a query, without limit and offset.
pub async fn count(tx: &mut Tx<'_>, wanted: &DeliverySearch) -> DbResult<i64> {
    let count = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select count(*) from deliveries d");
        wanted.push_conditions(&mut sql)?;
        sql.build_query_scalar().fetch_one(conn).await
    })?;
    Ok(count)
}
