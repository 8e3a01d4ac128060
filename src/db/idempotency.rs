//! Keys under which requests were granted. A key is stored in the transaction that makes what the request asks for, so
//! neither is ever there without the other.

use sqlx::{query, query_as};
use uuid::Uuid;

use super::engine::on_engine;
use super::error::corrupt;
use super::{DbResult, Tx, runs, threads};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::idempotency::{Kept, Key, Once, REMEMBERED};
use crate::domain::time::Timestamp;

const TABLE: &str = "idempotency_keys";

#[derive(sqlx::FromRow)]
struct KeyRow {
    fingerprint: Uuid,
    status: Option<i32>,
    body: Option<String>,
    location: Option<String>,
    thread_id: Option<Uuid>,
    run_id: Option<Uuid>,
    temporary: bool,
}

impl KeyRow {
    fn kept(self) -> Option<Kept> {
        if let (Some(thread), Some(run)) = (self.thread_id, self.run_id) {
            return Some(Kept::Run { thread: ThreadId(thread), run: RunId(run), temporary: self.temporary });
        }
        let status = u16::try_from(self.status?).ok()?;
        Some(Kept::Answer { status, body: self.body?, location: self.location })
    }
}

/// Takes the key for a request. [`Once::First`] asks the caller to make what is asked for, and then to [`keep`] the answer
/// or to [`release`] the key. Who comes second with the same key waits here for the end of the first one's transaction;
/// so it has to be the first statement of its own.
pub async fn claim(tx: &mut Tx<'_>, key: &Key, now: Timestamp) -> DbResult<Once<()>> {
    const INSERT: &str = "insert into idempotency_keys (idempotency_key, fingerprint, temporary, created_at) \
        values ($1, $2, $3, $4) on conflict (idempotency_key) do nothing";
    const FORGET: &str = "delete from idempotency_keys where idempotency_key = $1 and created_at <= $2 \
        returning thread_id, temporary";
    const FIND: &str = "select fingerprint, status, body, location, thread_id, run_id, temporary \
        from idempotency_keys where idempotency_key = $1";
    let over: Vec<Forgotten> =
        on_engine!(tx, |conn| query_as(FORGET).bind(key.text()).bind(forgotten_at(now)).fetch_all(conn).await)?;
    clear(tx, over, now).await?;
    let inserted = on_engine!(tx, |conn| query(INSERT)
        .bind(key.text())
        .bind(key.fingerprint())
        .bind(false)
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if inserted == 1 {
        return Ok(Once::First(()));
    }
    let row: KeyRow = on_engine!(tx, |conn| query_as(FIND).bind(key.text()).fetch_one(conn).await)?;
    if row.fingerprint != key.fingerprint() {
        return Ok(Once::Reused);
    }
    row.kept().map(Once::Again).ok_or_else(|| corrupt(TABLE, "body", key.text()))
}

/// Keeps how the request of a claimed key was answered.
pub async fn keep(tx: &mut Tx<'_>, key: &Key, kept: &Kept) -> DbResult<()> {
    const SQL: &str = "update idempotency_keys set status = $2, body = $3, location = $4, thread_id = $5, run_id = $6, \
        temporary = $7 where idempotency_key = $1";
    let (mut status, mut body, mut location, mut place, mut goes) = (None, None, None, None, false);
    match kept {
        Kept::Answer { status: of, body: text, location: at } => {
            (status, body, location) = (Some(i32::from(*of)), Some(text.as_str()), at.as_deref());
        }
        Kept::Run { thread, run, temporary } => (place, goes) = (Some((thread.0, run.0)), *temporary),
    }
    on_engine!(tx, |conn| query(SQL)
        .bind(key.text())
        .bind(status)
        .bind(body)
        .bind(location)
        .bind(place.map(|(thread, _)| thread))
        .bind(place.map(|(_, run)| run))
        .bind(goes)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Gives a claimed key back: its request was refused and has left nothing behind.
pub async fn release(tx: &mut Tx<'_>, key: &Key) -> DbResult<()> {
    const SQL: &str = "delete from idempotency_keys where idempotency_key = $1";
    on_engine!(tx, |conn| query(SQL).bind(key.text()).execute(conn).await.map(drop))?;
    Ok(())
}

/// Forgets some of the keys whose time is over, the oldest first, with the threads that went on for their sake. Returns
/// how many there were.
pub async fn sweep(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<usize> {
    const SQL: &str = "delete from idempotency_keys where idempotency_key in (select idempotency_key \
        from idempotency_keys where created_at <= $1 order by created_at, idempotency_key limit $2) \
        returning thread_id, temporary";
    let over: Vec<Forgotten> =
        on_engine!(tx, |conn| query_as(SQL).bind(forgotten_at(now)).bind(limit).fetch_all(conn).await)?;
    let count = over.len();
    clear(tx, over, now).await?;
    Ok(count)
}

/// What goes with a forgotten key: its thread, if that is there for nothing else.
type Forgotten = (Option<Uuid>, bool);

async fn clear(tx: &mut Tx<'_>, over: Vec<Forgotten>, now: Timestamp) -> DbResult<()> {
    for (thread, temporary) in over {
        let Some(thread) = thread.filter(|_| temporary).map(ThreadId) else { continue };
        let mut at_work = runs::in_flight(tx, thread).await?;
        if at_work.is_empty() {
            threads::delete(tx, thread).await?;
        }
        // One that takes longer than a day takes its thread with it when it ends.
        for run in &mut at_work {
            run.request.held = false;
            runs::set_request(tx, run.id, &run.request, now).await?;
        }
    }
    Ok(())
}

/// Keys that are as old as this are forgotten at the moment `now`.
fn forgotten_at(now: Timestamp) -> i64 {
    now.0.saturating_sub(i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX))
}
