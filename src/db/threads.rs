//! The table of threads: their metadata, status and TTL. Their messages are in the checkpoints.

mod terms;

use std::collections::BTreeSet;
use std::time::Duration;

use const_format::{concatcp, str_replace};
use serde_json::{Map, Value};
use sqlx::types::Json;
use sqlx::{QueryBuilder, query};
use uuid::Uuid;

use super::codec::blobs;
use super::codec::json::{ColumnRef, log_unreadable};
use super::engine::sealing::Sealer;
use super::engine::{Engine, LaterRows, Statement, on_engine};
use super::interrupts::NO_QUESTION;
use super::of_thread::{of_thread_on_postgres, of_thread_on_sqlite};
use super::row::from_row;
use super::{DbResult, Tx, access, idempotency};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::Failure;
use crate::domain::thread::{Thread, ThreadStatus, Ttl, TtlStrategy};
use crate::domain::time::Timestamp;

const TABLE: &str = "threads";

pub(super) const COLUMNS: &str = "thread_id, status, cast(metadata as text) as metadata, cast(config as text) as config, error, \
    created_at, updated_at, state_updated_at, ttl, ttl_strategy, expires_at, tenant, owner";
const SELECT: &str = concatcp!("select ", COLUMNS, " from threads");

from_row! {
    /// The row of a thread.
    pub(super) struct ThreadRow {
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
        tenant: String,
        owner: String,
    }
}

/// Reads a thread leniently: a thread with unreadable JSON columns can still run, expire and be deleted.
impl From<ThreadRow> for Thread {
    fn from(row: ThreadRow) -> Self {
        let at = |column| ColumnRef {
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
            ownership: access::ownership(row.tenant, row.owner),
        }
    }
}

/// Decodes the TTL of a thread. If the columns cannot be read, there is no TTL, so that the thread is kept for good.
fn read_ttl(micros: Option<i64>, strategy: Option<&str>) -> Option<Ttl> {
    let after = Duration::from_micros(u64::try_from(micros?).ok()?);
    let strategy = TtlStrategy::from_word(strategy?)?;
    Some(Ttl { after, strategy })
}

/// Returns a column of a thread.
fn cell<'a>(column: &'static str, thread: &'a ThreadId) -> ColumnRef<'a, ThreadId> {
    ColumnRef {
        table: TABLE,
        column,
        id: thread,
    }
}

/// Encodes the error of the last run, if there is one.
fn encode_error(sealer: &Sealer, thread: ThreadId, error: Option<&Failure>) -> DbResult<Option<String>> {
    let encoded = error.map(|error| sealer.encode(&cell("error", &thread), error));
    encoded.transpose()
}

/// Stores a new thread. Returns false, and changes nothing, when the id is taken.
pub async fn insert(tx: &mut Tx<'_>, thread: &Thread) -> DbResult<bool> {
    let inserted = insert_unindexed(tx, thread).await?;
    if inserted {
        terms::insert(tx, thread.id, &thread.metadata).await?;
    }
    Ok(inserted)
}

/// Stores a new thread, in a transaction that stores nothing if the id is taken.
///
/// # Errors
/// [`super::DbError::Conflict`] when the id is taken: by the end of the transaction, see
/// [`Statement::execute_later`](super::engine::Statement::execute_later).
pub async fn insert_later(tx: &mut Tx<'_>, thread: &Thread) -> DbResult<()> {
    insertion(tx, INSERT, thread).await?.execute_later().await?;
    terms::insert(tx, thread.id, &thread.metadata).await
}

/// Stores a new thread that searches by metadata do not find yet.
pub(super) async fn insert_unindexed(tx: &mut Tx<'_>, thread: &Thread) -> DbResult<bool> {
    const UNLESS_TAKEN: &str = concatcp!(INSERT, " on conflict (thread_id) do nothing");
    let inserted = insertion(tx, UNLESS_TAKEN, thread).await?.execute().await?;
    Ok(inserted == 1)
}

const INSERT: &str = "insert into threads \
    (thread_id, status, metadata, config, error, created_at, updated_at, state_updated_at, ttl, ttl_strategy, \
    expires_at, tenant, owner) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// Returns the statement `sql` that stores a new thread.
async fn insertion<'t, 'c>(tx: &'t mut Tx<'c>, sql: &'static str, thread: &Thread) -> DbResult<Statement<'t, 'c>> {
    let sealer = tx.sealer(thread.ownership.tenant.as_str()).await?;
    let error = encode_error(&sealer, thread.id, thread.error.as_ref())?;
    let config = sealer.json(&cell("config", &thread.id), &thread.config)?;
    Ok(tx
        .statement(sql)
        .bind(thread.id.0)
        .bind(thread.status.word())
        .bind(Json(&thread.metadata))
        .bind(Json(config))
        .bind(error)
        .bind(thread.created_at.0)
        .bind(thread.updated_at.0)
        .bind(thread.state_updated_at.0)
        .bind(thread.ttl.map(micros))
        .bind(thread.ttl.map(|ttl| ttl.strategy.word()))
        .bind(thread.expires_at.map(|at| at.0))
        .bind(thread.ownership.tenant.as_str())
        .bind(thread.ownership.owner.as_str()))
}

/// Returns the thread with this id.
pub async fn find(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Option<Thread>> {
    const SQL: &str = concatcp!(SELECT, " where thread_id = $1");
    select_one(tx, SQL, id).await
}

/// Returns the thread with this id, locked until the end of the transaction. Rows that belong to the thread can still be
/// added: the steps of its run at work do not wait. See [the order of locks](crate::db#the-order-of-locks).
pub async fn lock(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Option<Thread>> {
    lock_later(tx, id).await?.lock(tx).await
}

/// A thread that is read or locked later in its transaction.
pub struct LaterThread(LaterRows<ThreadRow>);

/// Returns the thread with this id, to be read later in the transaction, which must not change it meanwhile. It is read
/// together with other rows.
pub async fn find_later(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<LaterThread> {
    const SQL: &str = concatcp!(SELECT, " where thread_id = $1");
    let found = tx.statement(SQL).bind(id.0).fetch_later().await?;
    Ok(LaterThread(found))
}

/// Returns the thread with this id, to be locked later in the transaction, which must not change it meanwhile. It is
/// read together with other rows.
pub async fn lock_later(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<LaterThread> {
    const SQLITE: &str = concatcp!(SELECT, " where thread_id = $1");
    const POSTGRES: &str = concatcp!(SELECT, " where thread_id = $1 for no key update");
    let sql = tx.either(SQLITE, POSTGRES);
    let found = tx.statement(sql).bind(id.0).fetch_later().await?;
    Ok(LaterThread(found))
}

impl LaterThread {
    /// Reads the thread of [`find_later`].
    pub async fn find(self, tx: &mut Tx<'_>) -> DbResult<Option<Thread>> {
        let found = self.0.fetch_optional(tx).await?;
        Ok(found.map(Thread::from))
    }

    /// Locks the thread of [`lock_later`] like [`lock`], and returns it.
    pub async fn lock(self, tx: &mut Tx<'_>) -> DbResult<Option<Thread>> {
        self.find(tx).await
    }

    /// Locks the thread of [`lock_later`] like [`Self::lock`], and tells what of it could be read.
    pub async fn lock_and_check(self, tx: &mut Tx<'_>) -> DbResult<Option<LockedThread>> {
        const EMPTY: &str = "{}";
        let Some(row) = self.0.fetch_optional(tx).await? else {
            return Ok(None);
        };
        let is_empty = row.metadata == EMPTY;
        let thread = Thread::from(row);
        let knows_metadata = is_empty || !thread.metadata.is_empty();
        Ok(Some(LockedThread { thread, knows_metadata }))
    }
}

/// A locked thread.
pub struct LockedThread {
    /// The thread.
    pub thread: Thread,
    /// False if the stored metadata could not be read; then the thread has none.
    pub knows_metadata: bool,
}

/// Locks threads like [`lock`], in an order that is the same for all transactions.
pub async fn lock_all(tx: &mut Tx<'_>, ids: &[ThreadId]) -> DbResult<()> {
    let ids: BTreeSet<Uuid> = ids.iter().map(|id| id.0).collect();
    if tx.engine() == Engine::Sqlite || ids.is_empty() {
        return Ok(());
    }
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select thread_id from threads where thread_id in (");
        let mut list = sql.separated(", ");
        for id in &ids {
            list.push_bind(*id);
        }
        sql.push(") order by thread_id for no key update");
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Locks a thread in the weakest way, so that it stays until the end of the transaction. Returns whether it exists.
pub(super) async fn lock_to_add(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<bool> {
    const SQLITE: &str = "select thread_id from threads where thread_id = $1";
    const POSTGRES: &str = concatcp!(SQLITE, " for key share");
    let sql = tx.either(SQLITE, POSTGRES);
    let found: Option<(Uuid,)> = tx.statement(sql).bind(id.0).fetch_optional().await?;
    Ok(found.is_some())
}

/// Locks a thread that the transaction deletes, if it exists. No row that belongs to the thread can be added meanwhile.
pub async fn lock_to_delete(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<()> {
    const SQL: &str = "select thread_id from threads where thread_id = $1 for update";
    if tx.engine() == Engine::Postgres {
        on_engine!(tx, |conn| query(SQL).bind(id.0).execute(conn).await.map(drop))?;
    }
    Ok(())
}

async fn select_one(tx: &mut Tx<'_>, sql: &'static str, id: ThreadId) -> DbResult<Option<Thread>> {
    let row: Option<ThreadRow> = tx.statement(sql).bind(id.0).fetch_optional().await?;
    Ok(row.map(Thread::from))
}

fn micros(ttl: Ttl) -> i64 {
    i64::try_from(ttl.after.as_micros()).unwrap_or(i64::MAX)
}

/// Sets the given metadata keys, keeps the others, and sets the TTL if one is given. Returns the changed thread; none
/// if it does not exist.
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
    let thread = thread.with_ttl(ttl);
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

/// A change of a thread. The default changes nothing but `updated_at`.
#[derive(Debug, Clone, Default)]
pub struct ThreadChange {
    /// The new status.
    pub status: Option<ThreadStatus>,
    /// The new config: that of the run that starts, if it differs.
    pub config: Option<Map<String, Value>>,
    /// The failure of the last run; `Some(None)` clears an earlier one.
    pub error: Option<Option<Failure>>,
    /// The whole new metadata. The caller has read and locked the thread.
    pub metadata: Option<Map<String, Value>>,
    /// The metadata that are stored, if they are known for certain: what searches find by them then need not be stored again.
    pub former_metadata: Option<Map<String, Value>>,
    /// True to set `state_updated_at`, too.
    pub state_changed: bool,
}

/// Changes a thread, if it exists.
pub async fn set(tx: &mut Tx<'_>, id: ThreadId, change: ThreadChange, now: Timestamp) -> DbResult<()> {
    const CHANGE: &str = "update threads set status = coalesce($2, status), config = coalesce($3, config), \
        error = case when $4 then $5 else error end, metadata = coalesce($6, metadata), updated_at = $7, \
        expires_at = $7 + ttl";
    const THREAD: &str = " where thread_id = $1";
    const OTHERS: &str = concatcp!(CHANGE, THREAD);
    const STATE: &str = concatcp!(CHANGE, ", state_updated_at = $7", THREAD);
    // SQLite writes the indexes of all columns that are set, also of those that keep their values.
    let sql = if change.state_changed { STATE } else { OTHERS };
    let sealer = tx.sealer_of_thread(id).await?;
    let error = encode_error(&sealer, id, change.error.iter().flatten().next())?;
    let config = change
        .config
        .as_ref()
        .map(|config| sealer.json(&cell("config", &id), config));
    let config = config.transpose()?;
    match (&change.metadata, &change.former_metadata) {
        (Some(metadata), Some(former)) => terms::change(tx, id, former, metadata).await?,
        (Some(metadata), None) => terms::replace(tx, id, metadata).await?,
        (None, _) => {}
    }
    tx.statement(sql)
        .bind(id.0)
        .bind(change.status.map(ThreadStatus::word))
        .bind(config.map(Json))
        .bind(change.error.is_some())
        .bind(error)
        .bind(change.metadata.map(Json))
        .bind(now.0)
        .execute_later()
        .await
}

/// The outcome of a run for its thread.
#[derive(Debug, Clone)]
pub struct ThreadAfterRun {
    /// The run, of the main agent.
    pub run: RunId,
    /// The new status of the thread, unless it has other runs that are running, or wait for more than an answer: then it
    /// is busy.
    pub status: ThreadStatus,
    /// The failure of the run, if it failed.
    pub error: Option<Failure>,
}

/// The state in which the end of a run leaves a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftThread {
    /// True if there are queued messages that wait for answers, and pending interrupts, on whatever branch.
    pub may_hold_messages: bool,
}

/// The beginning of the update of a thread that a run leaves, before the condition that the thread stays busy.
const LEAVE: &str = "update threads set status = case when ";
/// The rest of that update.
const LEFT: &str = " then $3 else $4 end, error = $5, updated_at = $6, state_updated_at = $6, \
    expires_at = $6 + ttl where thread_id = $1";
/// The condition that another run of thread `$1` than `$2` is at work, or waits for no answer: a
/// [question about a thread](super::of_thread).
const HAS_OTHERS: &str = concatcp!(
    "exists (select 1 from runs other where other.thread_id = $1 and other.depth = 0 and {running} \
     and other.run_id <> $2) \
     or exists (select 1 from runs other where other.thread_id = $1 and other.depth = 0 and {pending} \
     and other.run_id <> $2 and ",
    str_replace!(NO_QUESTION, "{run}", "other"),
    ")"
);
/// The condition that thread `$1` [may hold messages](LeftThread::may_hold_messages).
const MAY_HOLD_MESSAGES: &str = "exists (select 1 from interrupts asked \
    where asked.thread_id = $1 and asked.status = 'pending') and exists (select 1 from runs message \
    where message.thread_id = $1 and message.depth = 0 and {pending} and message.turn in ('after_answers', 'unheld'))";

/// Updates the status, error and times of a thread at the end of a run. Returns none if the thread does not exist.
pub async fn leave(
    tx: &mut Tx<'_>,
    id: ThreadId,
    left: &ThreadAfterRun,
    now: Timestamp,
) -> DbResult<Option<LeftThread>> {
    const SQL: &str = concatcp!(LEAVE, HAS_OTHERS, LEFT, " returning ", MAY_HOLD_MESSAGES);
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    let update = leave_statement(tx, sql, id, left, now).await?;
    let found: Option<(bool,)> = update.fetch_optional().await?;
    Ok(found.map(|(may_hold_messages,)| LeftThread { may_hold_messages }))
}

/// Updates a thread like [`leave`], if it holds no messages for certain. The transaction has just ended the run, which was at work.
///
/// # Errors
/// [`DbError::NoRow`](super::DbError::NoRow) if the thread does not exist, or [may hold messages](LeftThread::may_hold_messages): by
/// the end of the transaction, see [`Statement::change_later`].
pub async fn leave_without_messages(
    tx: &mut Tx<'_>,
    id: ThreadId,
    left: &ThreadAfterRun,
    now: Timestamp,
) -> DbResult<()> {
    // No other run can be at work beside the one that ends, and where no message is held, no pending run waits for answers.
    const OTHER: &str = "exists (select 1 from runs other \
        where other.thread_id = $1 and other.depth = 0 and other.run_id <> $2 and other.status ";
    const END: &str = concatcp!(LEFT, " and not (", MAY_HOLD_MESSAGES, ")");
    const SQLITE: &str = concatcp!(LEAVE, OTHER, "= 'pending')", of_thread_on_sqlite!(END));
    // By the condition of the index of runs by thread. Postgres could look for pending runs among those of all threads.
    const POSTGRES: &str = concatcp!(LEAVE, OTHER, "in ('pending', 'running'))", of_thread_on_postgres!(END));
    let sql = tx.either(SQLITE, POSTGRES);
    let update = leave_statement(tx, sql, id, left, now).await?;
    update.change_later().await
}

async fn leave_statement<'t, 'c>(
    tx: &'t mut Tx<'c>,
    sql: &'static str,
    id: ThreadId,
    left: &ThreadAfterRun,
    now: Timestamp,
) -> DbResult<Statement<'t, 'c>> {
    let sealer = tx.sealer_of_thread(id).await?;
    let error = encode_error(&sealer, id, left.error.as_ref())?;
    Ok(tx
        .statement(sql)
        .bind(id.0)
        .bind(left.run.0)
        .bind(ThreadStatus::Busy.word())
        .bind(left.status.word())
        .bind(error)
        .bind(now.0))
}

/// Deletes a thread and everything on it, and the stored answers to requests about it. Returns whether it existed.
pub async fn delete(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<bool> {
    const SQL: &str = "delete from threads where thread_id = $1";
    tx.erase_traces();
    idempotency::forget_thread(tx, id).await?;
    lock_to_delete(tx, id).await?;
    let freed = blobs::of_thread(tx, id).await?;
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    blobs::delete_unreferenced(tx, freed).await?;
    Ok(deleted == 1)
}

/// The stored version of a thread, for clients that poll for changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadVersion {
    /// The thread.
    pub thread: ThreadId,
    /// A token of the row that differs after every change. It says nothing about the order of versions.
    pub version: i64,
    /// True when a run of the main agent is running on it.
    pub is_at_work: bool,
}

/// Returns the versions of those of these threads that exist.
pub async fn versions(tx: &mut Tx<'_>, threads: &[ThreadId]) -> DbResult<Vec<ThreadVersion>> {
    const AT_WORK: &str = ", exists (select 1 from runs where runs.thread_id = threads.thread_id and depth = 0 and {running} \
        limit 1 offset 0) from threads where thread_id in (";
    let at_work = tx.either(of_thread_on_sqlite!(AT_WORK), of_thread_on_postgres!(AT_WORK));
    // On Postgres, the id of the transaction that wrote the row: clocks of servers may differ.
    let version = tx.either("updated_at", "cast(cast(threads.xmin as text) as bigint)");
    let found: Vec<(Uuid, i64, bool)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select thread_id, ");
        sql.push(version).push(at_work);
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
