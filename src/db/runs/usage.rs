//! The usage of runs: tokens, calls and time.

use std::collections::HashMap;

use const_format::concatcp;
use sqlx::{query_as, query_scalar};
use uuid::Uuid;

use super::children::SAVE;
use super::{TABLE, encode_usage};
use crate::db::codec::json::ColumnRef;
use crate::db::engine::{LaterRows, on_engine};
use crate::db::{DbResult, Tx};
use crate::domain::id::RunId;
use crate::domain::limits::Usage;

/// The end of a query for the usage of each run in the tree of run `$1`. Only the runs below it are in the index of trees.
const OF_TREE: &str = "run_id = $1 and depth = 0 and usage is not null \
    union all select run_id, usage from runs where root_id = $1 and depth > 0 and usage is not null";

/// Sets the usage of a run, on behalf of run `by` of the main agent, so that [`restore_children`](super::restore_children)
/// can undo it.
pub async fn set_usage(tx: &mut Tx<'_>, run: RunId, usage: &Usage, by: RunId) -> DbResult<()> {
    const SQL: &str = concatcp!("update runs set usage = $3, ", SAVE, " where run_id = $1");
    let usage = encode_usage(tx, usage)?;
    tx.statement(SQL)
        .bind(run.0)
        .bind(by.0)
        .bind(usage)
        .execute_later()
        .await
}

/// Returns the usage of a run, without the runs below it.
pub async fn usage(tx: &mut Tx<'_>, run: RunId) -> DbResult<Usage> {
    const SQL: &str = "select usage from runs where run_id = $1";
    let found: Option<Option<String>> =
        on_engine!(tx, |conn| query_scalar(SQL).bind(run.0).fetch_optional(conn).await)?;
    Ok(decode(run.0, found.flatten().as_deref()))
}

/// Decodes the usage of a run, if it has any.
pub(super) fn decode(run: Uuid, usage: Option<&str>) -> Usage {
    let cell = ColumnRef {
        table: TABLE,
        column: "usage",
        id: &run,
    };
    usage.map(|usage| cell.decode_or_default(usage)).unwrap_or_default()
}

/// Returns the usage of each run in a tree. Runs without usage are left out.
pub async fn usages(tx: &mut Tx<'_>, root: RunId) -> DbResult<HashMap<RunId, Usage>> {
    usages_later(tx, root).await?.read(tx).await
}

/// The usage of runs, to be read later in its transaction.
pub struct LaterUsages(LaterRows<(Uuid, String)>);

/// Returns the usage of [`usages`], to be read later in the transaction, which must change none meanwhile. It is read
/// together with other rows.
pub async fn usages_later(tx: &mut Tx<'_>, root: RunId) -> DbResult<LaterUsages> {
    const SQL: &str = concatcp!("select run_id, usage from runs where ", OF_TREE);
    let statement = tx.statement(SQL).bind(root.0);
    statement.fetch_later().await.map(LaterUsages)
}

impl LaterUsages {
    /// Reads the usage.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<HashMap<RunId, Usage>> {
        Ok(decode_rows(self.0.fetch_all(tx).await?))
    }
}

/// Returns the usage of each run in a tree and of the background tasks started in it, at any depth. A task on another
/// server is listed under the id of the task.
pub async fn usages_with_background(tx: &mut Tx<'_>, root: RunId) -> DbResult<HashMap<RunId, Usage>> {
    const SQL: &str = concatcp!(
        "with recursive below(member) as (select r.run_id from background_tasks t \
        join runs r on r.thread_id = t.task_id where t.parent_run = $1 \
        union select r.run_id from below join background_tasks t on t.parent_run = below.member \
        join runs r on r.thread_id = t.task_id) \
        select run_id, usage from runs where ",
        OF_TREE,
        " union all select run_id, usage from runs where run_id in (select member from below) and usage is not null \
        union all select t.task_id, w.used from background_tasks t join remote_runs w on w.remote_run_id = t.task_id \
        where w.used is not null and (t.parent_run = $1 or t.parent_run in (select member from below))"
    );
    Ok(decode_rows(on_engine!(tx, |conn| query_as(SQL)
        .bind(root.0)
        .fetch_all(conn)
        .await)?))
}

fn decode_rows(rows: Vec<(Uuid, String)>) -> HashMap<RunId, Usage> {
    let decoded = |(id, usage): (Uuid, String)| (RunId(id), decode(id, Some(usage.as_str())));
    rows.into_iter().map(decoded).collect()
}
