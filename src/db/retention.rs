//! Retention: finds expired threads, prunes histories and measures the storage of a thread.

use sqlx::{QueryBuilder, query, query_as};
use uuid::Uuid;

use super::codec::blobs::{self, BlobReferrer, Packer};
use super::engine::{IdColumn, OF_MAIN_AGENTS, OF_SUBAGENTS, on_engine};
use super::{DbResult, Engine, Tx, checkpoints, events, interrupts, runs, threads};
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::stored_update::StoredWrites;
use crate::domain::time::Timestamp;

/// Prunes the history of a thread: keeps only the newest state of the main agent, as one checkpoint, and the histories
/// of unfinished subagents. Returns false if the thread does not exist or has pending or running runs.
pub async fn keep_latest(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<bool> {
    const COLLAPSE: &str = "update checkpoints set parent_id = null, segment = seq, writes = $2, shown = null, \
        source = case source when 'begin' then 'input' else source end where checkpoint_id = $1 and thread_id = $3";
    const PRUNED: &str = "update threads set pruned_at = $2 where thread_id = $1";
    if threads::lock(tx, thread).await?.is_none() || !runs::count_in_flight(tx, thread).await?.is_none() {
        return Ok(false);
    }
    if let Some(head) = checkpoints::head(tx, thread, Lane::Main).await? {
        let state = checkpoints::load_state(tx, thread, Lane::Main, &head).await?;
        let mut packer = Packer::of_thread(tx, thread).await?;
        let writes = packer.encode(
            &checkpoints::cell("writes", &head.id.0),
            &StoredWrites(&[state.as_update()]),
        )?;
        packer.store(tx, BlobReferrer::Entry { thread, seq: head.seq }).await?;
        on_engine!(tx, |conn| query(COLLAPSE)
            .bind(head.id.0)
            .bind(writes)
            .bind(thread.0)
            .execute(conn)
            .await
            .map(drop))?;
        let unfinished = checkpoints::unfinished_lanes(tx, thread).await?;
        // Other interrupts wait on branches that are deleted, so no answer can continue them.
        let heads = unfinished
            .iter()
            .filter_map(|(_, newest)| newest.as_ref())
            .chain([&head]);
        let waiting: Vec<String> = heads
            .flat_map(|head| &head.position.asked)
            .map(|asked| asked.id.0.clone())
            .collect();
        interrupts::drop_others(tx, thread, &waiting, now).await?;
        let kept: Vec<Lane> = unfinished.into_iter().map(|(lane, _)| lane).collect();
        delete_before(tx, thread, &head, &kept).await?;
        blobs::forget_deleted_entries(tx, thread).await?;
    }
    on_engine!(tx, |conn| query(PRUNED)
        .bind(thread.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(true)
}

/// Returns the lowest number in the log of a pruned thread; none for a thread that was never pruned. Rolled back runs
/// leave gaps in the log, too, but readers of the log miss nothing there.
pub async fn pruned_to(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<i64>> {
    const SQL: &str = "select 1 from threads where thread_id = $1 and pruned_at is not null";
    let pruned: Option<(i32,)> = tx.statement(SQL).bind(thread.0).fetch_optional().await?;
    if pruned.is_none() {
        return Ok(None);
    }
    Ok(events::bounds(tx, thread).await?.map(|(first, _)| first))
}

/// Deletes the log of a thread before a checkpoint, except for some lanes. Later entries stay, so that no number of the
/// log is used twice.
async fn delete_before(tx: &mut Tx<'_>, thread: ThreadId, head: &checkpoints::Head, kept: &[Lane]) -> DbResult<()> {
    const CHECKPOINTS: &str = "delete from checkpoints where thread_id = ";
    const EVENTS: &str = "delete from events where thread_id = ";
    const SQLITE: &[(&str, &str)] = &[(CHECKPOINTS, OF_MAIN_AGENTS), (CHECKPOINTS, OF_SUBAGENTS), (EVENTS, "")];
    const POSTGRES: &[(&str, &str)] = &[(CHECKPOINTS, ""), (EVENTS, "")];
    let parts = tx.either(SQLITE, POSTGRES);
    for (delete, condition) in parts {
        on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(*delete);
            sql.push_bind(thread.0)
                .push(condition)
                .push(" and seq < ")
                .push_bind(head.seq);
            if !kept.is_empty() {
                sql.push(" and lane not in (");
                let mut list = sql.separated(", ");
                for lane in kept {
                    list.push_bind(IdColumn(*lane));
                }
                sql.push(")");
            }
            sql.build().execute(conn).await.map(drop)
        })?;
    }
    Ok(())
}

/// The place of a thread among those that are due: they are in the order of a time, then of their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuePosition {
    /// The time by which the threads are found.
    pub at: Timestamp,
    /// The thread.
    pub thread: ThreadId,
}

impl DuePosition {
    /// The place before all threads.
    pub const START: Self = Self {
        at: Timestamp(i64::MIN),
        thread: ThreadId(Uuid::nil()),
    };
}

/// Returns up to `limit` expired threads behind a place that are not busy, the first expired first.
pub async fn expired(tx: &mut Tx<'_>, now: Timestamp, behind: DuePosition, limit: i64) -> DbResult<Vec<DuePosition>> {
    const SQL: &str = "select thread_id, expires_at from threads where expires_at <= $1 \
        and (expires_at, thread_id) > ($2, $3) and status <> 'busy' order by expires_at, thread_id limit $4";
    select_due(tx, SQL, now, behind, limit).await
}

/// Makes the index of SQLite by which [`unpruned`] finds threads if that is used, else drops it: each change of a thread's state
/// writes a page of it or two. Postgres always has it, since its servers may be configured one after the other.
pub async fn set_index_of_unpruned(tx: &mut Tx<'_>, is_used: bool) -> DbResult<()> {
    const CREATE: &str = "create index if not exists threads_unpruned on threads (state_updated_at, thread_id) \
        where pruned_at is null or pruned_at < state_updated_at";
    const DROP: &str = "drop index if exists threads_unpruned";
    if tx.engine() == Engine::Postgres {
        return Ok(());
    }
    let sql = if is_used { CREATE } else { DROP };
    tx.statement(sql).execute_later().await
}

/// Returns up to `limit` threads behind a place that are not busy, whose state last changed at or before `until` and that were
/// not pruned since, oldest first.
pub async fn unpruned(
    tx: &mut Tx<'_>,
    until: Timestamp,
    behind: DuePosition,
    limit: i64,
) -> DbResult<Vec<DuePosition>> {
    const SQL: &str = "select thread_id, state_updated_at from threads \
        where (pruned_at is null or pruned_at < state_updated_at) and state_updated_at <= $1 \
        and (state_updated_at, thread_id) > ($2, $3) and status <> 'busy' \
        order by state_updated_at, thread_id limit $4";
    select_due(tx, SQL, until, behind, limit).await
}

async fn select_due(
    tx: &mut Tx<'_>,
    sql: &'static str,
    until: Timestamp,
    behind: DuePosition,
    limit: i64,
) -> DbResult<Vec<DuePosition>> {
    let rows: Vec<(Uuid, i64)> = on_engine!(tx, |conn| query_as(sql)
        .bind(until.0)
        .bind(behind.at.0)
        .bind(behind.thread.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let due = rows.into_iter().map(|(thread, at)| DuePosition {
        at: Timestamp(at),
        thread: ThreadId(thread),
    });
    Ok(due.collect())
}

/// Clears the expiry of a thread that was handled. The next change of the thread starts its TTL again.
pub async fn clear_expiry(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<()> {
    const SQL: &str = "update threads set expires_at = null where thread_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(thread.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Excludes a thread from expiry and pruning until it changes. For threads whose history cannot be read and so not be
/// folded.
pub async fn exclude_from_sweeps(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "update threads set expires_at = null, pruned_at = $2 where thread_id = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(thread.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The storage of a thread in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableUsage {
    /// The table.
    pub table: &'static str,
    /// The number of rows.
    pub rows: i64,
    /// The size of the content in bytes, without keys, numbers and indexes.
    pub bytes: i64,
}

/// Returns the storage of a thread by table; none if the thread does not exist.
pub async fn storage(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<Vec<TableUsage>>> {
    const TABLES: [(&str, &str); 5] = [
        (
            "checkpoints",
            "select count(*), cast(coalesce(sum(octet_length(writes) + octet_length(position) \
             + coalesce(octet_length(shown), 0) + coalesce(octet_length(next_event), 0)), 0) as bigint) \
             from checkpoints where thread_id = $1",
        ),
        (
            "events",
            "select count(*), cast(coalesce(sum(octet_length(body)), 0) as bigint) from events where thread_id = $1",
        ),
        (
            "runs",
            "select count(*), cast(coalesce(sum(octet_length(request) + octet_length(cast(metadata as text)) \
             + coalesce(octet_length(error), 0)), 0) as bigint) from runs where thread_id = $1",
        ),
        (
            "interrupts",
            "select count(*), cast(coalesce(sum(octet_length(interrupt) + coalesce(octet_length(resolution), 0)), 0) \
             as bigint) from interrupts where thread_id = $1",
        ),
        (
            "blobs",
            "select count(*), cast(coalesce(sum(bytes), 0) as bigint) from (\
             select digest, bytes from entry_blobs where thread_id = $1 \
             union select digest, bytes from request_blobs where thread_id = $1) held",
        ),
    ];
    if threads::find(tx, thread).await?.is_none() {
        return Ok(None);
    }
    let mut shares = vec![];
    for (table, sql) in TABLES {
        let (rows, bytes): (i64, i64) = on_engine!(tx, |conn| query_as(sql).bind(thread.0).fetch_one(conn).await)?;
        shares.push(TableUsage { table, rows, bytes });
    }
    Ok(Some(shares))
}
