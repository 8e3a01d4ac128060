//! Queries over a tree of runs: a run, the runs it delegated to, and so on.

use const_format::concatcp;
use sqlx::{query_as, query_scalar};
use uuid::Uuid;

use super::{COLUMNS, RunRow, read_all};
use crate::db::codec::json::unless_corrupt;
use crate::db::engine::on_engine;
use crate::db::of_thread::{of_thread_on_postgres, of_thread_on_sqlite};
use crate::db::{DbResult, Tx, checkpoints};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::Run;

/// The common table expression `tree`: the ids of run `$1` and of all runs below it.
pub(super) const WITH_TREE: &str = "\
    with recursive tree(member) as (select run_id from runs where run_id = $1 union all \
    select runs.run_id from runs join tree on runs.parent_id = tree.member) ";

/// Returns a run and the runs below it at any depth: parents before children, oldest first, up to `limit`.
pub async fn tree(tx: &mut Tx<'_>, top: RunId, limit: i64) -> DbResult<Vec<Run>> {
    const SQL: &str = concatcp!(
        WITH_TREE,
        "select ",
        COLUMNS,
        " from runs where run_id in (select member from tree) order by depth, created_at, run_id limit $2"
    );
    let rows: Vec<RunRow> = on_engine!(tx, |conn| query_as(SQL).bind(top.0).bind(limit).fetch_all(conn).await)?;
    read_all(tx, rows).await
}

/// Returns the ids of a run and of the runs below it at any depth.
pub async fn members(tx: &mut Tx<'_>, top: RunId) -> DbResult<Vec<RunId>> {
    const SQL: &str = concatcp!(WITH_TREE, "select member from tree");
    let ids: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(top.0).fetch_all(conn).await)?;
    Ok(ids.into_iter().map(RunId).collect())
}

/// Returns the pending or running run that continues the work of a run of the main agent: it brings answers to interrupts
/// of that run or of runs below it, or is at work on one of the runs below it.
pub async fn successor(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<Option<RunId>> {
    // The interrupts of the thread are read once, and not for each of its runs.
    const SQL: &str = "with answers(answering) as materialized (select asked.resumed_by from interrupts asked \
        where asked.thread_id = $1 and asked.resumed_by is not null and (asked.run_id = $2 \
        or exists (select 1 from runs child where child.root_id = $2 and child.depth > 0 and child.run_id = asked.lane \
        limit 1 offset 0))) \
        select other.run_id, other.created_at from answers join runs other on other.run_id = answers.answering \
        where other.thread_id = $1 and other.depth < 1 and other.status in ('pending', 'running') and other.run_id <> $2 \
        union all select other.run_id, other.created_at from runs other where other.thread_id = $1 \
        and other.depth = 0 and {running} and other.run_id <> $2 and exists (select 1 from runs child \
        where child.root_id = $2 and child.depth > 0 and child.status = 'running') order by created_at, run_id limit 1";
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    let found: Option<Uuid> = on_engine!(tx, |conn| query_scalar(sql)
        .bind(thread.0)
        .bind(run.0)
        .fetch_optional(conn)
        .await)?;
    Ok(found.map(RunId))
}

/// Returns the runs below a run of the main agent for which agents of the thread wait at their present positions.
pub(super) async fn unfinished(tx: &mut Tx<'_>, thread: ThreadId, root: RunId) -> DbResult<Vec<RunId>> {
    const SQL: &str = "select run_id from runs where root_id = $1 and depth > 0";
    let below: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(root.0).fetch_all(conn).await)?;
    if below.is_empty() {
        return Ok(vec![]);
    }
    // No run can continue from a position that cannot be read.
    let lanes = unless_corrupt(checkpoints::unfinished_lanes(tx, thread).await)?.unwrap_or_default();
    let mut runs: Vec<RunId> = below.into_iter().map(RunId).collect();
    runs.retain(|run| lanes.iter().any(|(lane, _)| *lane == Lane::Child(*run)));
    Ok(runs)
}

/// Counts the subagents' runs of a thread that wait: those with a pending interrupt, and those above them.
pub async fn count_waiting(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<i64> {
    const SQL: &str = "with recursive waiting(member) as (\
        select r.run_id from interrupts i join runs r on r.run_id = i.lane \
        where i.thread_id = $1 and i.status = 'pending' \
        union select r.run_id from waiting join runs below on below.run_id = waiting.member \
        join runs r on r.run_id = below.parent_id where r.depth > 0) \
        select count(*) from waiting";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .fetch_one(conn)
        .await)?)
}
