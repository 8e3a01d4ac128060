//! The table of idempotency keys. A key is stored in the transaction that carries out its request, so neither is
//! committed without the other.

use futures::future::BoxFuture;
use sqlx::{query, query_as};
use uuid::Uuid;

use super::codec::json::ColumnRef;
use super::engine::on_engine;
use super::row::from_row;
use super::{Db, DbError, DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, REMEMBERED, StoredResponse};
use crate::domain::time::Timestamp;

const TABLE: &str = "idempotency_keys";

from_row! {
    struct KeyRow {
        fingerprint: Uuid,
        status: Option<i32>,
        body: Option<String>,
        location: Option<String>,
        thread_id: Option<Uuid>,
        run_id: Option<Uuid>,
    }
}

/// The columns of a stored response.
#[derive(Default)]
struct ResponseColumns {
    status: Option<i32>,
    body: Option<String>,
    location: Option<String>,
    thread_id: Option<Uuid>,
    run_id: Option<Uuid>,
}

/// Returns a column of a key.
fn cell<'a>(column: &'static str, name: &'a String) -> ColumnRef<'a, String> {
    ColumnRef {
        table: TABLE,
        column,
        id: name,
    }
}

impl KeyRow {
    fn response(self, key: &IdempotencyKey) -> DbResult<StoredResponse> {
        if let Some(thread) = self.thread_id
            && let Some(run) = self.run_id
        {
            return Ok(StoredResponse::Run {
                thread: ThreadId(thread),
                run: RunId(run),
            });
        }
        let name = key.name().to_owned();
        let status = self.status.and_then(|status| u16::try_from(status).ok());
        let status = status.ok_or_else(|| cell("status", &name).corrupt())?;
        let body = self.body.ok_or_else(|| cell("body", &name).corrupt())?;
        let location = self
            .location
            .map(|location| cell("location", &name).open_owned(location));
        Ok(StoredResponse::Answer {
            status,
            body: cell("body", &name).open_owned(body)?,
            location: location.transpose()?,
            thread: self.thread_id.map(ThreadId),
        })
    }
}

impl Db {
    /// Runs `operation` like [`Db::write`], but only once per key; without a key, always. `kept` returns the part of the
    /// result that is stored for repeated requests. An operation that returns an error leaves its key free. A concurrent
    /// request with the same key waits for the end of the first.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn write_once<T, E, K, J>(
        &self,
        key: Option<IdempotencyKey>,
        now: Timestamp,
        kept: K,
        operation: J,
    ) -> Result<IdempotentOutcome<T>, E>
    where
        T: Send + 'static,
        E: From<DbError> + Send + 'static,
        K: FnOnce(&T) -> StoredResponse + Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
    {
        let write = self.write(move |tx| {
            Box::pin(async move {
                let Some(key) = key else {
                    return operation(tx).await.map(IdempotentOutcome::First);
                };
                match claim(tx, &key, now).await? {
                    IdempotentOutcome::First(()) => {}
                    IdempotentOutcome::Replayed(kept) => return Ok(IdempotentOutcome::Replayed(kept)),
                    IdempotentOutcome::KeyReused => return Ok(IdempotentOutcome::KeyReused),
                }
                let made = operation(tx).await?;
                store_response(tx, &key, &kept(&made)).await?;
                Ok(IdempotentOutcome::First(made))
            })
        });
        write.await
    }
}

/// Claims the key for a request. Must be the first statement of its transaction: a second request with the key waits
/// here for the end of the first one's transaction, and must hold no locks meanwhile.
async fn claim(tx: &mut Tx<'_>, key: &IdempotencyKey, now: Timestamp) -> DbResult<IdempotentOutcome<()>> {
    const DELETE_EXPIRED: &str = "delete from idempotency_keys where idempotency_key = $1 and created_at <= $2";
    const INSERT: &str = "insert into idempotency_keys (idempotency_key, fingerprint, created_at, tenant) \
        values ($1, $2, $3, $4) on conflict (idempotency_key) do nothing";
    const FIND: &str = "select fingerprint, status, body, location, thread_id, run_id \
        from idempotency_keys where idempotency_key = $1";
    let expired = tx.statement(DELETE_EXPIRED).bind(key.name()).bind(expiry_limit(now));
    expired.execute_later().await?;
    let tenant = tx.access.word();
    let inserted = tx
        .statement(INSERT)
        .bind(key.name())
        .bind(key.fingerprint())
        .bind(now.0)
        .bind(tenant)
        .execute()
        .await?;
    if inserted == 1 {
        return Ok(IdempotentOutcome::First(()));
    }
    let row: KeyRow = on_engine!(tx, |conn| query_as(FIND).bind(key.name()).fetch_one(conn).await)?;
    if row.fingerprint != key.fingerprint() {
        return Ok(IdempotentOutcome::KeyReused);
    }
    row.response(key).map(IdempotentOutcome::Replayed)
}

/// Returns the stored response for a key, if the key was used; the inner none when the key belongs to another request.
pub async fn stored_response(
    tx: &mut Tx<'_>,
    key: &IdempotencyKey,
    now: Timestamp,
) -> DbResult<Option<Option<StoredResponse>>> {
    const SQL: &str = "select fingerprint, status, body, location, thread_id, run_id \
        from idempotency_keys where idempotency_key = $1 and created_at > $2";
    let statement = tx.statement(SQL).bind(key.name()).bind(expiry_limit(now));
    let row: Option<KeyRow> = statement.fetch_optional().await?;
    let Some(row) = row else { return Ok(None) };
    if row.fingerprint != key.fingerprint() {
        return Ok(Some(None));
    }
    row.response(key).map(|kept| Some(Some(kept)))
}

/// Stores the response for a claimed key.
async fn store_response(tx: &mut Tx<'_>, key: &IdempotencyKey, kept: &StoredResponse) -> DbResult<()> {
    const SQL: &str = "update idempotency_keys set status = $2, body = $3, location = $4, thread_id = $5, run_id = $6 \
        where idempotency_key = $1";
    // Keys belong to clients and not to tenants.
    let sealer = tx.sealer_of_server().await?;
    let name = key.name().to_owned();
    let row = match kept {
        StoredResponse::Answer {
            status,
            body,
            location,
            thread,
        } => ResponseColumns {
            status: Some(i32::from(*status)),
            body: Some(sealer.seal(&cell("body", &name), body.clone())?),
            location: sealer.seal_some(&cell("location", &name), location.clone())?,
            thread_id: thread.map(|thread| thread.0),
            run_id: None,
        },
        StoredResponse::Run { thread, run } => ResponseColumns {
            thread_id: Some(thread.0),
            run_id: Some(run.0),
            ..ResponseColumns::default()
        },
    };
    tx.statement(SQL)
        .bind(key.name())
        .bind(row.status)
        .bind(row.body)
        .bind(row.location)
        .bind(row.thread_id)
        .bind(row.run_id)
        .execute_later()
        .await
}

/// Deletes the answers to requests about a thread. Those that name its runs say nothing, and are kept.
pub(super) async fn forget_thread(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from idempotency_keys where thread_id = $1 and run_id is null";
    on_engine!(tx, |conn| query(SQL).bind(thread.0).execute(conn).await.map(drop))?;
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
