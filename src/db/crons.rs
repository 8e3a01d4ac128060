//! The table of crons: runs that start at scheduled times.

use const_format::concatcp;
use sqlx::types::Json;
use sqlx::{QueryBuilder, query, query_as};
use uuid::Uuid;

use super::access::{self, ScopedRows, push_scope};
use super::codec::json::ColumnRef;
use super::engine::{Contains, on_engine};
use super::jobs::{self, JobOwner};
use super::list_part::{ListBuilder, ListPart};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::access::AccessScope;
use crate::domain::cron::{Cron, Schedule};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{AssistantId, CronId, ThreadId};
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::json_limits::parsed_bytes;
use crate::domain::time::Timestamp;

const TABLE: &str = "crons";

const SELECT: &str = "\
    select cron_id, assistant_id, thread_id, schedule, timezone, end_time, enabled, keep_threads, due_at, request, \
    payload, cast(metadata as text) as metadata, created_at, updated_at, tenant, owner from crons";

from_row! {
    struct CronRow {
        cron_id: Uuid,
        assistant_id: Uuid,
        thread_id: Option<Uuid>,
        schedule: String,
        timezone: Option<String>,
        end_time: Option<i64>,
        enabled: bool,
        keep_threads: bool,
        due_at: Option<i64>,
        request: String,
        payload: String,
        metadata: String,
        created_at: i64,
        updated_at: i64,
        tenant: String,
        owner: String,
    }
}

impl TryFrom<CronRow> for Cron {
    type Error = super::DbError;

    fn try_from(row: CronRow) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.cron_id,
        };
        Ok(Self {
            id: CronId(row.cron_id),
            ownership: access::ownership(row.tenant, row.owner),
            assistant: AssistantId(row.assistant_id),
            thread: row.thread_id.map(ThreadId),
            schedule: Schedule::read(&row.schedule, row.timezone.as_deref()).map_err(|invalid| {
                at(if invalid.field == "timezone" {
                    "timezone"
                } else {
                    "schedule"
                })
                .corrupt()
            })?,
            end: row.end_time.map(Timestamp),
            enabled: row.enabled,
            keep_threads: row.keep_threads,
            due_at: row.due_at.map(Timestamp),
            request: at("request").decode(&row.request)?,
            payload: at("payload").decode(&row.payload)?,
            metadata: at("metadata").decode(&row.metadata)?,
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
        })
    }
}

/// Returns a column of a cron.
fn cell<'a>(column: &'static str, cron: &'a CronId) -> ColumnRef<'a, CronId> {
    ColumnRef {
        table: TABLE,
        column,
        id: cron,
    }
}

/// Stores a new cron.
///
/// # Errors
/// [`super::DbError::Conflict`] when its thread or its assistant is gone.
pub async fn insert(tx: &mut Tx<'_>, cron: &Cron) -> DbResult<()> {
    const SQL: &str = "insert into crons (cron_id, assistant_id, thread_id, schedule, timezone, end_time, enabled, \
        keep_threads, due_at, request, payload, metadata, created_at, updated_at, tenant, owner) \
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
    let sealer = tx.sealer(cron.ownership.tenant.as_str()).await?;
    let request = sealer.encode(&cell("request", &cron.id), &cron.request)?;
    let payload = sealer.encode(&cell("payload", &cron.id), &cron.payload)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(cron.id.0)
        .bind(cron.assistant.0)
        .bind(cron.thread.map(|thread| thread.0))
        .bind(cron.schedule.text())
        .bind(cron.schedule.zone())
        .bind(cron.end.map(|end| end.0))
        .bind(cron.enabled)
        .bind(cron.keep_threads)
        .bind(cron.due_at.map(|due| due.0))
        .bind(request)
        .bind(payload)
        .bind(Json(&cron.metadata))
        .bind(cron.created_at.0)
        .bind(cron.updated_at.0)
        .bind(cron.ownership.tenant.as_str())
        .bind(cron.ownership.owner.as_str())
        .execute(conn)
        .await
        .map(drop))?;
    reschedule(tx, cron).await
}

/// Schedules the job that starts the next run of a cron. An earlier job of the cron is replaced.
async fn reschedule(tx: &mut Tx<'_>, cron: &Cron) -> DbResult<()> {
    let owner = JobOwner {
        thread: cron.thread,
        assistant: Some(cron.assistant),
    };
    match cron.due_at.filter(|_| cron.enabled) {
        Some(due) => jobs::schedule(tx, JobKind::Cron, cron.id.0, owner, due).await,
        None => jobs::delete(tx, JobKind::Cron, cron.id.0).await,
    }
}

/// Returns the cron with this id.
pub async fn find(tx: &mut Tx<'_>, id: CronId) -> DbResult<Option<Cron>> {
    const SQL: &str = concatcp!(SELECT, " where cron_id = $1");
    one(tx, SQL, id).await
}

/// Returns the cron with this id, locked until the end of the transaction.
pub async fn lock(tx: &mut Tx<'_>, id: CronId) -> DbResult<Option<Cron>> {
    const SQLITE: &str = concatcp!(SELECT, " where cron_id = $1");
    const POSTGRES: &str = concatcp!(SELECT, " where cron_id = $1 for update");
    let sql = tx.either(SQLITE, POSTGRES);
    one(tx, sql, id).await
}

async fn one(tx: &mut Tx<'_>, sql: &'static str, id: CronId) -> DbResult<Option<Cron>> {
    let row: Option<CronRow> = on_engine!(tx, |conn| query_as(sql).bind(id.0).fetch_optional(conn).await)?;
    row.map(Cron::try_from).transpose()
}

/// Updates a cron: everything except its id, its ownership, its thread and its creation time. Returns whether it
/// exists. A worker that has claimed its job loses the claim.
pub async fn update(tx: &mut Tx<'_>, cron: &Cron) -> DbResult<bool> {
    const SQL: &str = "update crons set assistant_id = $2, schedule = $3, timezone = $4, end_time = $5, enabled = $6, \
        keep_threads = $7, due_at = $8, request = $9, payload = $10, metadata = $11, updated_at = $12 where cron_id = $1";
    let sealer = tx.sealer(cron.ownership.tenant.as_str()).await?;
    let request = sealer.encode(&cell("request", &cron.id), &cron.request)?;
    let payload = sealer.encode(&cell("payload", &cron.id), &cron.payload)?;
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(cron.id.0)
        .bind(cron.assistant.0)
        .bind(cron.schedule.text())
        .bind(cron.schedule.zone())
        .bind(cron.end.map(|end| end.0))
        .bind(cron.enabled)
        .bind(cron.keep_threads)
        .bind(cron.due_at.map(|due| due.0))
        .bind(request)
        .bind(payload)
        .bind(Json(&cron.metadata))
        .bind(cron.updated_at.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if changed == 1 {
        reschedule(tx, cron).await?;
    }
    Ok(changed == 1)
}

/// Deletes a cron. Returns whether it existed. The runs that it started stay.
pub async fn delete(tx: &mut Tx<'_>, id: CronId) -> DbResult<bool> {
    const SQL: &str = "delete from crons where cron_id = $1";
    tx.erase_traces();
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    jobs::delete(tx, JobKind::Cron, id.0).await?;
    Ok(deleted == 1)
}

/// Sets the next due time of a cron and moves its job there. Returns false, and changes nothing, if another worker has
/// claimed `job`, or the cron was changed.
pub async fn move_on(tx: &mut Tx<'_>, id: CronId, job: &ClaimedJob, due: Option<Timestamp>) -> DbResult<bool> {
    const SQL: &str = "update crons set due_at = $2 where cron_id = $1";
    let is_ours = match due {
        Some(due) => jobs::put_off(tx, job, due).await?,
        None => jobs::finish(tx, job).await?,
    };
    if is_ours {
        on_engine!(tx, |conn| query(SQL)
            .bind(id.0)
            .bind(due.map(|due| due.0))
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(is_ours)
}

/// The sort key of crons. Missing values sort as the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CronOrder {
    /// By id.
    Id,
    /// By assistant.
    Assistant,
    /// By thread.
    Thread,
    /// By creation time.
    #[default]
    CreatedAt,
    /// By the time of the last change.
    UpdatedAt,
    /// By the next due time.
    Due,
    /// By the end.
    End,
}

/// A query for crons.
#[derive(Debug, Clone)]
pub struct CronQuery {
    /// Only crons in this scope. Crons cannot be shared.
    pub scope: AccessScope,
    /// Only crons of this assistant.
    pub assistant: Option<AssistantId>,
    /// Only crons of this thread.
    pub thread: Option<ThreadId>,
    /// Only crons that are enabled, or only crons that are not.
    pub enabled: Option<bool>,
    /// Only crons whose metadata contains this.
    pub metadata: MetadataFilter,
    /// The sort key.
    pub sort: CronOrder,
    /// True for ascending order.
    pub ascending: bool,
    /// The maximum number of results.
    pub limit: i64,
    /// The number of results to skip.
    pub offset: i64,
}

impl CronQuery {
    /// Returns the query for up to `limit` crons of a scope, the newest first.
    pub fn within(scope: AccessScope, limit: i64) -> Self {
        Self {
            scope,
            assistant: None,
            thread: None,
            enabled: None,
            metadata: MetadataFilter::default(),
            sort: CronOrder::default(),
            ascending: false,
            limit,
            offset: 0,
        }
    }

    fn order(&self) -> &'static str {
        match (self.sort, self.ascending) {
            (CronOrder::Id, true) => " order by cron_id",
            (CronOrder::Id, false) => " order by cron_id desc",
            (CronOrder::Assistant, true) => " order by assistant_id, created_at, cron_id",
            (CronOrder::Assistant, false) => " order by assistant_id desc, created_at desc, cron_id desc",
            (CronOrder::Thread, true) => " order by thread_id nulls first, created_at, cron_id",
            (CronOrder::Thread, false) => " order by thread_id desc nulls last, created_at desc, cron_id desc",
            (CronOrder::CreatedAt, true) => " order by created_at, cron_id",
            (CronOrder::CreatedAt, false) => " order by created_at desc, cron_id desc",
            (CronOrder::UpdatedAt, true) => " order by updated_at, cron_id",
            (CronOrder::UpdatedAt, false) => " order by updated_at desc, cron_id desc",
            (CronOrder::Due, true) => " order by due_at nulls first, cron_id",
            (CronOrder::Due, false) => " order by due_at desc nulls last, cron_id desc",
            (CronOrder::End, true) => " order by end_time nulls first, cron_id",
            (CronOrder::End, false) => " order by end_time desc nulls last, cron_id desc",
        }
    }

    fn push_conditions<DB>(&self, sql: &mut QueryBuilder<DB>) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> String: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push(" where true");
        if let Some(assistant) = self.assistant {
            sql.push(" and assistant_id = ").push_bind(assistant.0);
        }
        if let Some(thread) = self.thread {
            sql.push(" and thread_id = ").push_bind(thread.0);
        }
        if let Some(enabled) = self.enabled {
            sql.push(if enabled { " and enabled" } else { " and not enabled" });
        }
        if !self.metadata.is_empty() {
            sql.push(" and ").push_contains("metadata", self.metadata.wanted())?;
        }
        let rows = ScopedRows {
            alias: "",
            can_be_shared: false,
            are_threads: false,
            some_are_of_server: false,
            by_other_index: self.assistant.is_some() || self.thread.is_some(),
        };
        push_scope(sql, &self.scope, rows)
    }
}

/// Returns the crons of a query, up to about `bytes` of memory.
pub async fn search(tx: &mut Tx<'_>, wanted: &CronQuery, bytes: usize) -> DbResult<ListPart<Cron>> {
    let weigh = |row: &CronRow| {
        let id = CronId(row.cron_id);
        let request = cell("request", &id).weigh(&row.request);
        request + cell("payload", &id).weigh(&row.payload) + parsed_bytes(&row.metadata)
    };
    let mut filling = ListBuilder::new(wanted.limit, bytes);
    while let Some(next) = filling.next() {
        let offset = wanted.offset + filling.count();
        let rows: Vec<CronRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(SELECT);
            wanted.push_conditions(&mut sql)?;
            sql.push(wanted.order())
                .push(" limit ")
                .push_bind(next)
                .push(" offset ")
                .push_bind(offset);
            sql.build_query_as().fetch_all(conn).await
        })?;
        filling.take(next, rows, weigh, Cron::try_from)?;
    }
    Ok(filling.finish())
}

/// Counts the crons of a query, without order, limit and offset.
pub async fn count(tx: &mut Tx<'_>, wanted: &CronQuery) -> DbResult<i64> {
    let count = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select count(*) from crons");
        wanted.push_conditions(&mut sql)?;
        sql.build_query_scalar().fetch_one(conn).await
    })?;
    Ok(count)
}
