//! The table of the tokens of tool calls.

use sqlx::query;
use uuid::Uuid;

use super::access::ownership;
use super::codec::json::{ColumnRef, encode, unless_corrupt};
use super::engine::on_engine;
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::api_key::SecretDigest;
use crate::domain::call_token::CallBinding;
use crate::domain::id::{RunId, TaskId, ThreadId};
use crate::domain::time::Timestamp;

/// The most expired tokens that are deleted when another one is stored.
const SWEPT: i64 = 100;

/// Stores the token of a call, in place of one that an earlier attempt at the call has left. Deletes some expired ones.
///
/// # Errors
/// [`super::DbError::Conflict`] when the thread was deleted.
pub async fn insert(
    tx: &mut Tx<'_>,
    digest: &SecretDigest,
    call: &CallBinding,
    expires_at: Timestamp,
    now: Timestamp,
) -> DbResult<()> {
    const SWEEP: &str = "delete from call_tokens where digest in \
        (select digest from call_tokens where expires_at <= $1 order by expires_at limit $2)";
    const REPLACE: &str = "delete from call_tokens where task_id = $1";
    const INSERT: &str = "insert into call_tokens (digest, task_id, thread_id, run_id, child_id, tool, access, expires_at) \
        values ($1, $2, $3, $4, $5, $6, $7, $8)";
    on_engine!(tx, |conn| query(SWEEP)
        .bind(now.0)
        .bind(SWEPT)
        .execute(conn)
        .await
        .map(drop))?;
    on_engine!(tx, |conn| query(REPLACE)
        .bind(call.task.0)
        .execute(conn)
        .await
        .map(drop))?;
    let access = encode(&call.access)?;
    on_engine!(tx, |conn| query(INSERT)
        .bind(digest.bytes().as_slice())
        .bind(call.task.0)
        .bind(call.thread.0)
        .bind(call.run.0)
        .bind(call.child.map(|child| child.0))
        .bind(&call.tool)
        .bind(&access)
        .bind(expires_at.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

from_row! {
    struct CallTokenRow {
        task_id: Uuid,
        thread_id: Uuid,
        run_id: Uuid,
        child_id: Option<Uuid>,
        tool: String,
        access: String,
        tenant: String,
        owner: String,
    }
}

/// Returns the call to which a token is bound. None if there is no such token, if it has expired, or if the run that makes
/// the call is not at work.
pub async fn find(tx: &mut Tx<'_>, digest: &SecretDigest, now: Timestamp) -> DbResult<Option<CallBinding>> {
    const SQL: &str = "select c.task_id, c.thread_id, c.run_id, c.child_id, c.tool, c.access, t.tenant, t.owner \
        from call_tokens c join threads t on t.thread_id = c.thread_id join runs main on main.run_id = c.run_id \
        where c.digest = $1 and c.expires_at > $2 and main.status = 'running' and (c.child_id is null \
        or exists (select 1 from runs child where child.run_id = c.child_id and child.status = 'running'))";
    let statement = tx.statement(SQL).bind(digest.bytes().as_slice()).bind(now.0);
    let row: Option<CallTokenRow> = statement.fetch_optional().await?;
    let Some(row) = row else { return Ok(None) };
    let column = ColumnRef {
        table: "call_tokens",
        column: "access",
        id: &row.task_id,
    };
    // A token that cannot be read, perhaps of another release, is refused.
    let access = unless_corrupt(column.decode(&row.access))?;
    Ok(access.map(|access| CallBinding {
        task: TaskId(row.task_id),
        ownership: ownership(row.tenant, row.owner),
        thread: ThreadId(row.thread_id),
        run: RunId(row.run_id),
        child: row.child_id.map(RunId),
        tool: row.tool,
        access,
    }))
}

/// Deletes a token.
pub async fn delete(tx: &mut Tx<'_>, digest: &SecretDigest) -> DbResult<()> {
    const SQL: &str = "delete from call_tokens where digest = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(digest.bytes().as_slice())
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}
