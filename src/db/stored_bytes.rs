//! The sizes of what owners store. They are measured from time to time and not with each write. The checkpoints, events and
//! interrupts of a thread that were measured before are not read again.

use const_format::concatcp;
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::access::push_owner;
use super::checkpoints::LAST_SEQ;
use super::engine::{OF_MAIN_AGENTS, OF_SUBAGENTS, on_engine};
use super::{DbResult, Tx};
use crate::domain::id::ThreadId;
use crate::domain::identity::{Tenant, UserId};
use crate::domain::time::Timestamp;

/// The owner whose data is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageOwner {
    /// The tenant.
    pub tenant: Tenant,
    /// The user; `None` for the whole tenant.
    pub owner: Option<UserId>,
}

/// Returns up to `limit` threads that were changed since they were measured, those first that never were.
pub async fn changed_threads(tx: &mut Tx<'_>, by: &StorageOwner, limit: i64) -> DbResult<Vec<ThreadId>> {
    const THREADS: &str =
        "select t.thread_id from threads t left join thread_bytes m on m.thread_id = t.thread_id where ";
    const CHANGED: &str = " and (m.measured_at is null or t.updated_at >= m.measured_at or t.pruned_at >= m.measured_at) \
        order by coalesce(m.measured_at, 0), t.thread_id limit ";
    let ids: Vec<Uuid> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(THREADS);
        push_owner(&mut sql, "t.", &by.tenant, by.owner.as_ref());
        sql.push(CHANGED).push_bind(limit);
        sql.build_query_scalar().fetch_all(conn).await
    })?;
    Ok(ids.into_iter().map(ThreadId).collect())
}

/// Measures what was added to a thread since it was measured, or all of it if its history was pruned since.
pub async fn measure(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<()> {
    const BEFORE: &str = "select m.bytes, m.seq from thread_bytes m join threads t on t.thread_id = m.thread_id \
        where m.thread_id = $1 and (t.pruned_at is null or t.pruned_at < m.measured_at)";
    const CHECKPOINTS: &str = concatcp!(
        "select cast(coalesce(sum(octet_length(writes) + octet_length(position) + coalesce(octet_length(shown), 0) \
         + coalesce(octet_length(next_event), 0)), 0) as bigint), coalesce(max(",
        LAST_SEQ,
        "), 0) from checkpoints where thread_id = $1 and seq > $2"
    );
    const EVENTS: &str = "select cast(coalesce(sum(octet_length(body)), 0) as bigint), coalesce(max(seq), 0) \
        from events where thread_id = $1 and seq > $2";
    // The numbers of interrupts are those of events. In a copy it is the one that follows: it counts when the log has got there.
    const INTERRUPTS: &str = "select cast(coalesce(sum(octet_length(interrupt)), 0) as bigint) \
        from interrupts where thread_id = $1 and seq > $2 and seq <= $3";
    const SQLITE: &[&str] = &[
        concatcp!(CHECKPOINTS, OF_MAIN_AGENTS),
        concatcp!(CHECKPOINTS, OF_SUBAGENTS),
        EVENTS,
    ];
    const POSTGRES: &[&str] = &[CHECKPOINTS, EVENTS];
    const STORE: &str = "insert into thread_bytes (thread_id, tenant, owner, bytes, seq, measured_at) \
        select thread_id, tenant, owner, $2, $3, $4 from threads where thread_id = $1 \
        on conflict (thread_id) do update set bytes = excluded.bytes, seq = excluded.seq, \
        measured_at = excluded.measured_at";
    let before: Option<(i64, i64)> = on_engine!(tx, |conn| query_as(BEFORE).bind(thread.0).fetch_optional(conn).await)?;
    let mut bytes = before.map_or(0, |before| before.0);
    let after = before.map_or(0, |before| before.1);
    let mut seq = after;
    let sums = tx.either(SQLITE, POSTGRES);
    for sql in sums {
        let added: (i64, i64) = on_engine!(tx, |conn| query_as(*sql)
            .bind(thread.0)
            .bind(after)
            .fetch_one(conn)
            .await)?;
        bytes = bytes.saturating_add(added.0);
        seq = seq.max(added.1);
    }
    let asked: i64 = on_engine!(tx, |conn| query_scalar(INTERRUPTS)
        .bind(thread.0)
        .bind(after)
        .bind(seq)
        .fetch_one(conn)
        .await)?;
    bytes = bytes.saturating_add(asked);
    on_engine!(tx, |conn| query(STORE)
        .bind(thread.0)
        .bind(bytes)
        .bind(seq)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Returns the measured bytes of threads, and the bytes of their blobs and of items. All items are read.
pub async fn stored(tx: &mut Tx<'_>, by: &StorageOwner) -> DbResult<u64> {
    const THREADS: &str = "select cast(coalesce(sum(bytes), 0) as bigint) from thread_bytes where ";
    const ITEMS: &str = "select cast(coalesce(sum(octet_length(cast(value as text))), 0) as bigint) from items where ";
    const BLOBS: &str = "select cast(coalesce(sum(bytes), 0) as bigint) from (\
        select held.digest, held.bytes from threads t join entry_blobs held on held.thread_id = t.thread_id where ";
    const OF_REQUESTS: &str = " union \
        select held.digest, held.bytes from threads t join request_blobs held on held.thread_id = t.thread_id where ";
    let mut sum: i64 = 0;
    for select in [THREADS, ITEMS] {
        let bytes: i64 = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(select);
            push_owner(&mut sql, "", &by.tenant, by.owner.as_ref());
            sql.build_query_scalar().fetch_one(conn).await
        })?;
        sum = sum.saturating_add(bytes);
    }
    // A blob counts once for an owner, however many threads refer to it.
    let bytes: i64 = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(BLOBS);
        push_owner(&mut sql, "t.", &by.tenant, by.owner.as_ref());
        sql.push(OF_REQUESTS);
        push_owner(&mut sql, "t.", &by.tenant, by.owner.as_ref());
        sql.push(") used").build_query_scalar().fetch_one(conn).await
    })?;
    sum = sum.saturating_add(bytes);
    Ok(u64::try_from(sum).unwrap_or(0))
}
