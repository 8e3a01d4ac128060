//! The runs of subagents as runs of the main agent change them, and as they are again when such a run is undone.

use const_format::concatcp;
use sqlx::query;

use super::below::WITH_TREE;
use super::{encode_error, encode_usage};
use crate::db::codec::blobs;
use crate::db::engine::on_engine;
use crate::db::{DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::limits::Usage;
use crate::domain::machine::Failure;
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;

/// Assignments that save the status and the usage of a subagent's run before run `$2` of the main agent changes them, for
/// [`restore_children`]. The row of a main agent's run keeps what it has: on SQLite it does not name its root.
pub(super) const SAVE: &str = "\
    before = case when depth > 0 and root_id <> $2 and touched_by is distinct from $2 then status else before end, \
    usage_before = case when depth > 0 and root_id <> $2 and touched_by is distinct from $2 then coalesce(usage, '{}') \
    else usage_before end, \
    touched_by = case when depth > 0 and root_id <> $2 then $2 else touched_by end";

/// The changes to the row of a subagent's run that go with a write for the run.
#[derive(Debug, Clone, Copy)]
pub struct ChildRowUpdate<'a> {
    /// The status.
    pub status: RunStatus,
    /// The failure, if it failed.
    pub error: Option<&'a Failure>,
    /// The usage of the run so far, if it is to be stored.
    pub usage: Option<&'a Usage>,
}

/// Changes a subagent's run, on behalf of run `by` of the main agent, so that [`restore_children`] can undo it.
pub async fn update_child(
    tx: &mut Tx<'_>,
    child: RunId,
    update: ChildRowUpdate<'_>,
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    const SQL: &str = concatcp!(
        "update runs set status = $3, error = $4, updated_at = $5, usage = coalesce($6, usage), ",
        SAVE,
        " where run_id = $1 and depth > 0"
    );
    let error = encode_error(tx, child, update.error).await?;
    let usage = update.usage.map(|usage| encode_usage(tx, usage)).transpose()?;
    tx.statement(SQL)
        .bind(child.0)
        .bind(by.0)
        .bind(update.status.word())
        .bind(error)
        .bind(now.0)
        .bind(usage)
        .execute_later()
        .await
}

/// Sets all running subagents' runs of a thread to `interrupted`. What is done on behalf of run `by` of the main agent
/// can be undone by [`restore_children`].
pub async fn stop_children(tx: &mut Tx<'_>, thread: ThreadId, by: Option<RunId>, now: Timestamp) -> DbResult<()> {
    // Nothing is equal to null, or differs from it, so without a run the earlier status is not saved.
    const SQL: &str = concatcp!(
        "update runs set status = 'interrupted', updated_at = $3, ",
        SAVE,
        " where thread_id = $1 and depth > 0 and status = 'running'"
    );
    on_engine!(tx, |conn| query(SQL)
        .bind(thread.0)
        .bind(by.map(|run| run.0))
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Sets all running runs below a subagent's run to `interrupted`, on behalf of run `by` of the main agent, so that
/// [`restore_children`] can undo it.
pub async fn stop_below(tx: &mut Tx<'_>, child: RunId, by: RunId, now: Timestamp) -> DbResult<()> {
    const SQL: &str = concatcp!(
        WITH_TREE,
        "update runs set status = 'interrupted', updated_at = $3, ",
        SAVE,
        " where run_id in (select member from tree) and run_id <> $1 and status = 'running'"
    );
    on_engine!(tx, |conn| query(SQL)
        .bind(child.0)
        .bind(by.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Stores that run `by` of the main agent began a subagent's run. If that run is below one that an earlier run began, it
/// has the root of the earlier run, and [`restore_children`] finds it by this mark.
pub async fn mark_begun_by(tx: &mut Tx<'_>, child: RunId, by: RunId) -> DbResult<()> {
    const SQL: &str = "update runs set touched_by = $2 where run_id = $1 and depth > 0 and root_id <> $2";
    tx.statement(SQL).bind(child.0).bind(by.0).execute_later().await
}

/// Undoes the changes of run `by` to subagents' runs that belong to other runs of the main agent: their child runs that
/// `by` began are deleted, and the others get back their former status and usage.
pub async fn restore_children(tx: &mut Tx<'_>, by: RunId) -> DbResult<()> {
    const DELETE: &str = "delete from runs where touched_by = $1 and before is null";
    const RESTORE: &str = "update runs set status = coalesce(before, status), usage = coalesce(usage_before, usage), \
        error = null, before = null, usage_before = null, cancel = null, touched_by = null where touched_by = $1";
    let freed = blobs::of_runs_begun_by(tx, by).await?;
    on_engine!(tx, |conn| query(DELETE).bind(by.0).execute(conn).await.map(drop))?;
    blobs::delete_unreferenced(tx, freed).await?;
    on_engine!(tx, |conn| query(RESTORE).bind(by.0).execute(conn).await.map(drop))?;
    Ok(())
}
