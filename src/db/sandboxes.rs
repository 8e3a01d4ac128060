//! The table of sandboxes at sandbox services: which sandbox a thread has, and which are to be ended.

use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::engine::on_engine;
use super::jobs::{self, JobOwner};
use super::{DbResult, Tx};
use crate::domain::id::SandboxId;
use crate::domain::job::JobKind;
use crate::domain::sandbox::{SandboxKey, SandboxRecord};
use crate::domain::time::Timestamp;

/// Returns the sandbox for this purpose, if there is one.
pub async fn find(tx: &mut Tx<'_>, key: &SandboxKey) -> DbResult<Option<SandboxRecord>> {
    const SQL: &str =
        "select sandbox_id, created from sandboxes where thread_id = $1 and service = $2 and agent_path = $3";
    let row: Option<(Uuid, bool)> = on_engine!(tx, |conn| query_as(SQL)
        .bind(key.thread.0)
        .bind(&key.service)
        .bind(&key.agent_path)
        .fetch_optional(conn)
        .await)?;
    Ok(row.map(|(id, is_created)| SandboxRecord {
        id: SandboxId(id),
        is_created,
    }))
}

/// Stores a sandbox before it is created, unless there is one for this purpose.
///
/// # Errors
/// [`super::DbError::Conflict`] when the thread was deleted.
pub async fn insert(tx: &mut Tx<'_>, id: SandboxId, key: &SandboxKey) -> DbResult<()> {
    const SQL: &str = "insert into sandboxes (sandbox_id, thread_id, service, agent_path, created) \
        values ($1, $2, $3, $4, false) on conflict (thread_id, service, agent_path) do nothing";
    on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .bind(key.thread.0)
        .bind(&key.service)
        .bind(&key.agent_path)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Stores that the service has created a sandbox.
pub async fn set_created(tx: &mut Tx<'_>, id: SandboxId) -> DbResult<()> {
    const SQL: &str = "update sandboxes set created = true where sandbox_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(id.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// The sandboxes without a thread for which there is no job.
const TO_END: &str = "from sandboxes s where s.thread_id is null and \
    not exists (select 1 from jobs j where j.kind = 'end_sandbox' and j.key = s.sandbox_id)";

/// Returns whether there are sandboxes that are to be ended and have no job for that.
pub async fn any_to_end(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = const_format::concatcp!("select exists (select 1 ", TO_END, ")");
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Schedules the end of some sandboxes whose threads were deleted.
pub async fn schedule_ending(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<()> {
    const SQL: &str = const_format::concatcp!("select s.sandbox_id ", TO_END, " limit $1");
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(limit).fetch_all(conn).await)?;
    for sandbox in found {
        jobs::ensure(tx, JobKind::EndSandbox, sandbox, JobOwner::default(), now).await?;
    }
    Ok(())
}

/// Returns the name of the service of a sandbox that is to be ended.
pub async fn service_to_end(tx: &mut Tx<'_>, id: SandboxId) -> DbResult<Option<String>> {
    const SQL: &str = "select service from sandboxes where sandbox_id = $1 and thread_id is null";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(id.0)
        .fetch_optional(conn)
        .await)?)
}

/// Deletes a sandbox that has ended.
pub async fn delete(tx: &mut Tx<'_>, id: SandboxId) -> DbResult<()> {
    const SQL: &str = "delete from sandboxes where sandbox_id = $1 and thread_id is null";
    on_engine!(tx, |conn| query(SQL).bind(id.0).execute(conn).await.map(drop))?;
    Ok(())
}
