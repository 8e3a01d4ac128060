//! Keys under which requests were granted. A key is stored in the transaction that makes what the request asks for, so
//! neither is ever there without the other.

use futures::future::BoxFuture;
use sqlx::{query, query_as};
use uuid::Uuid;

use super::engine::on_engine;
use super::error::corrupt;
use super::{Db, DbResult, Tx};
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
}

impl KeyRow {
    fn kept(self) -> Option<Kept> {
        if let (Some(thread), Some(run)) = (self.thread_id, self.run_id) {
            return Some(Kept::Run {
                thread: ThreadId(thread),
                run: RunId(run),
            });
        }
        let status = u16::try_from(self.status?).ok()?;
        Some(Kept::Answer {
            status,
            body: self.body?,
            location: self.location,
        })
    }
}

impl Db {
    /// As [`Db::write`], for a job that makes something: once for each key, and whenever it is asked without one. `kept`
    /// says what is kept of it for those who ask again. A job that refuses (the inner error) must have made nothing; its
    /// key stays free. Who comes second with a key waits for the end of the first.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn write_once<T, E, K, J>(
        &self,
        key: Option<Key>,
        now: Timestamp,
        kept: K,
        job: J,
    ) -> DbResult<Result<Once<T>, E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        K: FnOnce(&T) -> Kept + Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<Result<T, E>>> + Send + 'static,
    {
        let write = self.write(move |tx| {
            Box::pin(async move {
                let Some(key) = key else {
                    return Ok(job(tx).await?.map(Once::First));
                };
                match claim(tx, &key, now).await? {
                    Once::First(()) => {}
                    Once::Again(kept) => return Ok(Ok(Once::Again(kept))),
                    Once::Reused => return Ok(Ok(Once::Reused)),
                }
                let made = job(tx).await?;
                match &made {
                    Ok(made) => keep(tx, &key, &kept(made)).await?,
                    Err(_) => release(tx, &key).await?,
                }
                Ok(made.map(Once::First))
            })
        });
        write.await
    }
}

/// Takes the key for a request. It has to be the first statement of its transaction: who comes second with the same key
/// waits here for the end of the first one's, and must hold nothing meanwhile.
async fn claim(tx: &mut Tx<'_>, key: &Key, now: Timestamp) -> DbResult<Once<()>> {
    const FORGET: &str = "delete from idempotency_keys where idempotency_key = $1 and created_at <= $2";
    const INSERT: &str = "insert into idempotency_keys (idempotency_key, fingerprint, created_at) \
        values ($1, $2, $3) on conflict (idempotency_key) do nothing";
    const FIND: &str = "select fingerprint, status, body, location, thread_id, run_id \
        from idempotency_keys where idempotency_key = $1";
    on_engine!(tx, |conn| query(FORGET)
        .bind(key.name())
        .bind(forgotten_at(now))
        .execute(conn)
        .await
        .map(drop))?;
    let inserted = on_engine!(tx, |conn| query(INSERT)
        .bind(key.name())
        .bind(key.fingerprint())
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if inserted == 1 {
        return Ok(Once::First(()));
    }
    let row: KeyRow = on_engine!(tx, |conn| query_as(FIND).bind(key.name()).fetch_one(conn).await)?;
    if row.fingerprint != key.fingerprint() {
        return Ok(Once::Reused);
    }
    row.kept()
        .map(Once::Again)
        .ok_or_else(|| corrupt(TABLE, "body", key.name()))
}

/// How the request of a key was answered, if it was; or that the key belongs to another request (the inner none).
pub async fn kept(tx: &mut Tx<'_>, key: &Key, now: Timestamp) -> DbResult<Option<Option<Kept>>> {
    const SQL: &str = "select fingerprint, status, body, location, thread_id, run_id \
        from idempotency_keys where idempotency_key = $1 and created_at > $2";
    let row: Option<KeyRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(key.name())
        .bind(forgotten_at(now))
        .fetch_optional(conn)
        .await)?;
    let Some(row) = row else { return Ok(None) };
    if row.fingerprint != key.fingerprint() {
        return Ok(Some(None));
    }
    row.kept()
        .map(|kept| Some(Some(kept)))
        .ok_or_else(|| corrupt(TABLE, "body", key.name()))
}

/// Keeps how the request of a claimed key was answered.
async fn keep(tx: &mut Tx<'_>, key: &Key, kept: &Kept) -> DbResult<()> {
    const SQL: &str = "update idempotency_keys set status = $2, body = $3, location = $4, thread_id = $5, run_id = $6 \
        where idempotency_key = $1";
    let mut answer = None;
    let mut place = None;
    match kept {
        Kept::Answer { status, body, location } => {
            answer = Some((i32::from(*status), body.as_str(), location.as_deref()));
        }
        Kept::Run { thread, run } => place = Some((thread.0, run.0)),
    }
    on_engine!(tx, |conn| query(SQL)
        .bind(key.name())
        .bind(answer.map(|(status, ..)| status))
        .bind(answer.map(|(_, body, _)| body))
        .bind(answer.and_then(|(.., location)| location))
        .bind(place.map(|(thread, _)| thread))
        .bind(place.map(|(_, run)| run))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Gives a claimed key back: its request was refused and has left nothing behind.
async fn release(tx: &mut Tx<'_>, key: &Key) -> DbResult<()> {
    const SQL: &str = "delete from idempotency_keys where idempotency_key = $1";
    on_engine!(tx, |conn| query(SQL).bind(key.name()).execute(conn).await.map(drop))?;
    Ok(())
}

/// Forgets some of the keys whose time is over, the oldest first. Returns how many there were.
pub async fn sweep(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<u64> {
    const SQL: &str = "delete from idempotency_keys where idempotency_key in (select idempotency_key \
        from idempotency_keys where created_at <= $1 order by created_at, idempotency_key limit $2)";
    let swept = on_engine!(tx, |conn| query(SQL)
        .bind(forgotten_at(now))
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(swept)
}

/// Keys that are as old as this are forgotten at the moment `now`.
fn forgotten_at(now: Timestamp) -> i64 {
    now.0
        .saturating_sub(i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX))
}
