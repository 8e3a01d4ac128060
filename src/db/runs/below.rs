//! The runs below a run: those that it delegated to, and theirs.

use sqlx::{query_as, query_scalar};
use uuid::Uuid;

use super::{RunRow, columns};
use crate::db::engine::on_engine;
use crate::db::{DbResult, Tx};
use crate::domain::id::RunId;
use crate::domain::run::Run;

/// Names the runs of a tree `tree`: the one of `$1` and all below it.
macro_rules! with_tree {
    () => {
        "with recursive tree(member) as (select run_id from runs where run_id = $1 union all \
         select runs.run_id from runs join tree on runs.parent_id = tree.member) "
    };
}
pub(super) use with_tree;

/// A run and the runs below it at any depth, the oldest first, up to `limit`.
pub async fn tree(tx: &mut Tx<'_>, top: RunId, limit: i64) -> DbResult<Vec<Run>> {
    const SQL: &str = concat!(
        with_tree!(),
        "select ",
        columns!(),
        " from runs where run_id in (select member from tree) order by depth, created_at, run_id limit $2"
    );
    let rows: Vec<RunRow> = on_engine!(tx, |conn| query_as(SQL).bind(top.0).bind(limit).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(Run::from).collect())
}

/// The ids of a run and of the runs below it at any depth.
pub async fn members(tx: &mut Tx<'_>, top: RunId) -> DbResult<Vec<RunId>> {
    const SQL: &str = concat!(with_tree!(), "select member from tree");
    let ids: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(top.0).fetch_all(conn).await)?;
    Ok(ids.into_iter().map(RunId).collect())
}
