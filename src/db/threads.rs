//! Threads: conversations, without what was said in them.

mod search;
mod terms;

use std::time::Duration;

use serde_json::{Map, Value};
use sqlx::types::Json;
use sqlx::{QueryBuilder, query, query_as};
use uuid::Uuid;

#[cfg(test)]
pub(in crate::db) use search::Way;
pub use search::{COUNTED, LOOKED_INTO, ThreadPage, ThreadSearch, ThreadSort, count, search};

use super::engine::on_engine;
use super::json::{Cell, encode, log_unreadable};
use super::{DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::Failure;
use crate::domain::thread::{Thread, ThreadStatus, Ttl, TtlStrategy};
use crate::domain::time::Timestamp;

const TABLE: &str = "threads";

macro_rules! columns {
    () => {
        "thread_id, status, cast(metadata as text) as metadata, cast(config as text) as config, error, \
         created_at, updated_at, state_updated_at, ttl, ttl_strategy, expires_at"
    };
}
use columns;

macro_rules! select {
    () => {
        concat!("select ", columns!(), " from threads")
    };
}

#[derive(sqlx::FromRow)]
struct ThreadRow {
    thread_id: Uuid,
    status: String,
    metadata: String,
    config: String,
    error: Option<String>,
    created_at: i64,
    updated_at: i64,
    state_updated_at: i64,
    ttl: Option<i64>,
    ttl_strategy: Option<String>,
    expires_at: Option<i64>,
}

/// As far as it can be read: a thread is looked at in order to run on it, sweep and delete it, and none of that depends on
/// the columns that hold JSON.
impl From<ThreadRow> for Thread {
    fn from(row: ThreadRow) -> Self {
        let at = |column| Cell {
            table: TABLE,
            column,
            id: &row.thread_id,
        };
        let status = ThreadStatus::from_word(&row.status).unwrap_or_else(|| {
            log_unreadable(&at("status").corrupt());
            ThreadStatus::Error
        });
        Self {
            id: ThreadId(row.thread_id),
            status,
            metadata: at("metadata").decode_or_default(&row.metadata),
            config: at("config").decode_or_default(&row.config),
            error: row
                .error
                .as_deref()
                .and_then(|error| at("error").decode_or_default(error)),
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
            state_updated_at: Timestamp(row.state_updated_at),
            ttl: read_ttl(row.ttl, row.ttl_strategy.as_deref()),
            expires_at: row.expires_at.map(Timestamp),
        }
    }
}

/// How long a thread is kept; for good when that makes no sense.
fn read_ttl(micros: Option<i64>, strategy: Option<&str>) -> Option<Ttl> {
    let after = Duration::from_micros(u64::try_from(micros?).ok()?);
    let strategy = TtlStrategy::from_word(strategy?)?;
    Some(Ttl { after, strategy })
}

/// Stores a new thread. Returns false, and changes nothing, when there is one of this id.
pub async fn insert(tx: &mut Tx<'_>, thread: &Thread) -> DbResult<bool> {
    let inserted = insert_unindexed(tx, thread).await?;
    if inserted {
        terms::insert(tx, thread.id, &thread.metadata).await?;
    }
    Ok(inserted)
}

/// The same of a thread that is not to be found by its metadata yet.
pub(super) async fn insert_unindexed(tx: &mut Tx<'_>, thread: &Thread) -> DbResult<bool> {
    const SQL: &str = "insert into threads \
        (thread_id, status, metadata, config, error, created_at, updated_at, state_updated_at, ttl, ttl_strategy, \
        expires_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict (thread_id) do nothing";
    let error = thread.error.as_ref().map(encode).transpose()?;
    let inserted = on_engine!(tx, |conn| query(SQL)
        .bind(thread.id.0)
        .bind(thread.status.word())
        .bind(Json(&thread.metadata))
        .bind(Json(&thread.config))
        .bind(error)
        .bind(thread.created_at.0)
        .bind(thread.updated_at.0)
        .bind(thread.state_updated_at.0)
        .bind(thread.ttl.map(micros))
        .bind(thread.ttl.map(|ttl| ttl.strategy.word()))
        .bind(thread.expires_at.map(|at| at.0))
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(inserted == 1)
}

/// The thread of this id.
pub async fn find(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Option<Thread>> {
    const SQL: &str = concat!(select!(), " where thread_id = $1");
    one(tx, SQL, id).await
}

/// The thread of this id, kept from changing under us until the end of the transaction.
pub async fn lock(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Option<Thread>> {
    const SQLITE: &str = concat!(select!(), " where thread_id = $1");
    const POSTGRES: &str = concat!(select!(), " where thread_id = $1 for update");
    let sql = tx.either(SQLITE, POSTGRES);
    one(tx, sql, id).await
}

async fn one(tx: &mut Tx<'_>, sql: &'static str, id: ThreadId) -> DbResult<Option<Thread>> {
    let row: Option<ThreadRow> = on_engine!(tx, |conn| query_as(sql).bind(id.0).fetch_optional(conn).await)?;
    Ok(row.map(Thread::from))
}

fn micros(ttl: Ttl) -> i64 {
    i64::try_from(ttl.after.as_micros()).unwrap_or(i64::MAX)
}

/// Sets the given keys of the metadata and leaves the others, and with `ttl` how long the thread is kept. Returns the
/// thread as it is then.
pub async fn patch(
    tx: &mut Tx<'_>,
    id: ThreadId,
    patch: &Map<String, Value>,
    ttl: Option<Ttl>,
    now: Timestamp,
) -> DbResult<Option<Thread>> {
    const SQL: &str = "update threads set metadata = $2, updated_at = $3, ttl = $4, ttl_strategy = $5, \
        expires_at = $6 where thread_id = $1";
    let Some(found) = lock(tx, id).await? else {
        return Ok(None);
    };
    let mut thread = Thread {
        updated_at: now,
        ..found
    };
    thread.metadata.extend(patch.clone());
    let ttl = ttl.or(thread.ttl);
    let thread = thread.kept_for(ttl);
    on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .bind(Json(&thread.metadata))
        .bind(now.0)
        .bind(thread.ttl.map(micros))
        .bind(thread.ttl.map(|ttl| ttl.strategy.word()))
        .bind(thread.expires_at.map(|at| at.0))
        .execute(conn)
        .await
        .map(drop))?;
    if !patch.is_empty() {
        terms::replace(tx, id, &thread.metadata).await?;
    }
    Ok(Some(thread))
}

/// What shall change about a thread. The default changes nothing.
#[derive(Debug, Clone, Default)]
pub struct ThreadChange {
    /// The new status.
    pub status: Option<ThreadStatus>,
    /// The settings of the run that begins.
    pub config: Option<Map<String, Value>>,
    /// Why the last run failed; `Some(None)` forgets an older failure.
    pub error: Option<Option<Failure>>,
    /// The new metadata, all of it: for those who have read and locked the thread.
    pub metadata: Option<Map<String, Value>>,
    /// Whether its state changed, too.
    pub state_changed: bool,
}

/// Changes a thread. Returns whether there is one of this id.
pub async fn set(tx: &mut Tx<'_>, id: ThreadId, change: ThreadChange, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "update threads set status = coalesce($2, status), config = coalesce($3, config), \
        error = case when $4 then $5 else error end, metadata = coalesce($6, metadata), updated_at = $7, \
        expires_at = $7 + ttl, state_updated_at = case when $8 then $7 else state_updated_at end where thread_id = $1";
    let error = change.error.iter().flatten().next().map(encode).transpose()?;
    if let Some(metadata) = &change.metadata {
        terms::replace(tx, id, metadata).await?;
    }
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .bind(change.status.map(ThreadStatus::word))
        .bind(change.config.map(Json))
        .bind(change.error.is_some())
        .bind(error)
        .bind(change.metadata.map(Json))
        .bind(now.0)
        .bind(change.state_changed)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// How a run left its thread.
#[derive(Debug, Clone)]
pub struct Left {
    /// The run, of the main agent.
    pub run: RunId,
    /// What the thread is doing now, unless other runs are at work on it or wait for their turn: then it is busy.
    pub status: ThreadStatus,
    /// Why the run failed, when it did.
    pub error: Option<Failure>,
}

/// Notes that a run has left a thread, and that the thread's state changed. Returns whether there is such a thread.
pub async fn leave(tx: &mut Tx<'_>, id: ThreadId, left: &Left, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "update threads set status = case when exists (select 1 from runs other \
        where other.thread_id = $1 and other.depth = 0 and other.status in ('pending', 'running') \
        and other.run_id <> $2) then $3 else $4 end, error = $5, updated_at = $6, state_updated_at = $6, \
        expires_at = $6 + ttl where thread_id = $1";
    let error = left.error.as_ref().map(encode).transpose()?;
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .bind(left.run.0)
        .bind(ThreadStatus::Busy.word())
        .bind(left.status.word())
        .bind(error)
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Deletes a thread and everything on it. Returns whether there was one.
pub async fn delete(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<bool> {
    const SQL: &str = "delete from threads where thread_id = $1";
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(deleted == 1)
}

/// Which version of a thread is stored, for those who wait for news of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadVersion {
    /// The thread.
    pub thread: ThreadId,
    /// Stands for its row: another one after every change. It tells nothing else, not even which came first.
    pub version: i64,
    /// Whether a run is at work on it.
    pub is_at_work: bool,
}

/// The versions of those of these threads that there are.
pub async fn versions(tx: &mut Tx<'_>, threads: &[ThreadId]) -> DbResult<Vec<ThreadVersion>> {
    // On Postgres the transaction that wrote the row, whatever the clock of its server said.
    let version = tx.either("updated_at", "cast(cast(threads.xmin as text) as bigint)");
    let found: Vec<(Uuid, i64, bool)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select thread_id, ");
        sql.push(version)
            .push(", exists (select 1 from runs where runs.thread_id = threads.thread_id ");
        sql.push("and depth = 0 and status = 'running') from threads where thread_id in (");
        let mut list = sql.separated(", ");
        for thread in threads {
            list.push_bind(thread.0);
        }
        sql.push(")");
        sql.build_query_as().fetch_all(conn).await
    })?;
    let version = |(thread, version, is_at_work)| ThreadVersion {
        thread: ThreadId(thread),
        version,
        is_at_work,
    };
    Ok(found.into_iter().map(version).collect())
}
