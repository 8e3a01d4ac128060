//! The table of idempotency keys. A key is stored in the transaction that carries out its request, so neither is
//! committed without the other.

use futures::future::BoxFuture;
use sqlx::{query, query_as};
use uuid::Uuid;

use super::engine::on_engine;
use super::error::corrupt;
use super::{Db, DbError, DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, Once, REMEMBERED, StoredResponse};
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
    fn response(self) -> Option<StoredResponse> {
        if let Some(thread) = self.thread_id
            && let Some(run) = self.run_id
        {
            return Some(StoredResponse::Run {
                thread: ThreadId(thread),
                run: RunId(run),
            });
        }
        let status = u16::try_from(self.status?).ok()?;
        Some(StoredResponse::Answer {
            status,
            body: self.body?,
            location: self.location,
        })
    }
}

impl Db {
    /// Runs `job` like [`Db::write`], but only once per key; without a key, always. `kept` returns the part of the
    /// result that is stored for repeated requests. A job that returns an error leaves its key free. A concurrent
    /// request with the same key waits for the end of the first.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn write_once<T, E, K, J>(
        &self,
        key: Option<IdempotencyKey>,
        now: Timestamp,
        kept: K,
        job: J,
    ) -> Result<Once<T>, E>
    where
        T: Send + 'static,
        E: From<DbError> + Send + 'static,
        K: FnOnce(&T) -> StoredResponse + Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
    {
        let write = self.write(move |tx| {
            Box::pin(async move {
                let Some(key) = key else {
                    return job(tx).await.map(Once::First);
                };
                match claim(tx, &key, now).await? {
                    Once::First(()) => {}
                    Once::Again(kept) => return Ok(Once::Again(kept)),
                    Once::Reused => return Ok(Once::Reused),
                }
                let made = job(tx).await?;
                store_response(tx, &key, &kept(&made)).await?;
                Ok(Once::First(made))
            })
        });
        write.await
    }
}

/// Claims the key for a request. Must be the first statement of its transaction: a second request with the key waits
/// here for the end of the first one's transaction, and must hold no locks meanwhile.
async fn claim(tx: &mut Tx<'_>, key: &IdempotencyKey, now: Timestamp) -> DbResult<Once<()>> {
    const DELETE_EXPIRED: &str = "delete from idempotency_keys where idempotency_key = $1 and created_at <= $2";
    const INSERT: &str = "insert into idempotency_keys (idempotency_key, fingerprint, created_at) \
        values ($1, $2, $3) on conflict (idempotency_key) do nothing";
    const FIND: &str = "select fingerprint, status, body, location, thread_id, run_id \
        from idempotency_keys where idempotency_key = $1";
    on_engine!(tx, |conn| query(DELETE_EXPIRED)
        .bind(key.name())
        .bind(expiry_limit(now))
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
    row.response()
        .map(Once::Again)
        .ok_or_else(|| corrupt(TABLE, "body", key.name()))
}

/// Returns the stored response for a key, if the key was used; the inner none when the key belongs to another request.
pub async fn kept(tx: &mut Tx<'_>, key: &IdempotencyKey, now: Timestamp) -> DbResult<Option<Option<StoredResponse>>> {
    const SQL: &str = "select fingerprint, status, body, location, thread_id, run_id \
        from idempotency_keys where idempotency_key = $1 and created_at > $2";
    let row: Option<KeyRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(key.name())
        .bind(expiry_limit(now))
        .fetch_optional(conn)
        .await)?;
    let Some(row) = row else { return Ok(None) };
    if row.fingerprint != key.fingerprint() {
        return Ok(Some(None));
    }
    row.response()
        .map(|kept| Some(Some(kept)))
        .ok_or_else(|| corrupt(TABLE, "body", key.name()))
}

/// Stores the response for a claimed key.
async fn store_response(tx: &mut Tx<'_>, key: &IdempotencyKey, kept: &StoredResponse) -> DbResult<()> {
    const SQL: &str = "update idempotency_keys set status = $2, body = $3, location = $4, thread_id = $5, run_id = $6 \
        where idempotency_key = $1";
    let mut answer = None;
    let mut run_ids = None;
    match kept {
        StoredResponse::Answer { status, body, location } => {
            answer = Some((i32::from(*status), body.as_str(), location.as_deref()));
        }
        StoredResponse::Run { thread, run } => run_ids = Some((thread.0, run.0)),
    }
    on_engine!(tx, |conn| query(SQL)
        .bind(key.name())
        .bind(answer.map(|(status, ..)| status))
        .bind(answer.map(|(_, body, _)| body))
        .bind(answer.and_then(|(.., location)| location))
        .bind(run_ids.map(|(thread, _)| thread))
        .bind(run_ids.map(|(_, run)| run))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Deletes up to `limit` expired keys, oldest first. Returns their number.
pub async fn sweep(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<u64> {
    const SQL: &str = "delete from idempotency_keys where idempotency_key in (select idempotency_key \
        from idempotency_keys where created_at <= $1 order by created_at, idempotency_key limit $2)";
    let swept = on_engine!(tx, |conn| query(SQL)
        .bind(expiry_limit(now))
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(swept)
}

/// Returns the time at or before which a key must have been created to be expired at `now`.
fn expiry_limit(now: Timestamp) -> i64 {
    now.0
        .saturating_sub(i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX))
}
