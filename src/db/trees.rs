//! What whole trees of runs have used whose limits reach beyond one thread, and the shares of those who used it.

use sqlx::{query, query_as, query_scalar};

use super::engine::on_engine;
use super::{DbResult, Tx};
use crate::domain::busy::BusyTime;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::limits::Change;
use crate::domain::time::Timestamp;

/// What a tree has used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TreeUsed {
    /// What was used, time aside, and how many subagents are under way.
    pub sum: Change,
    /// For how long it was at work.
    pub busy: BusyTime,
}

#[derive(sqlx::FromRow)]
struct SumRow {
    model_calls: i64,
    tool_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    children: i64,
    under_way: i64,
}

impl From<SumRow> for Change {
    fn from(row: SumRow) -> Self {
        let SumRow {
            model_calls,
            tool_calls,
            input_tokens,
            output_tokens,
            children,
            under_way,
        } = row;
        Self {
            model_calls,
            tool_calls,
            input_tokens,
            output_tokens,
            children,
            under_way,
        }
    }
}

#[derive(sqlx::FromRow)]
struct TreeRow {
    #[sqlx(flatten)]
    sum: SumRow,
    busy_micros: i64,
    busy_before: i64,
    busy_from: i64,
    busy_until: i64,
}

impl From<TreeRow> for TreeUsed {
    fn from(
        TreeRow {
            sum,
            busy_micros,
            busy_before,
            busy_from,
            busy_until,
        }: TreeRow,
    ) -> Self {
        let busy = BusyTime {
            micros: busy_micros,
            before: Timestamp(busy_before),
            from: Timestamp(busy_from),
            until: Timestamp(busy_until),
        };
        Self { sum: sum.into(), busy }
    }
}

macro_rules! sums {
    () => {
        "model_calls, tool_calls, input_tokens, output_tokens, children, under_way"
    };
}

/// Makes room for what a tree uses, and for the share of one of those who work for it.
pub async fn enter(tx: &mut Tx<'_>, tree: RunId, (share, thread): (RunId, ThreadId), now: Timestamp) -> DbResult<()> {
    const TREE: &str = concat!(
        "insert into trees (tree_id, thread_id, ",
        sums!(),
        ", busy_micros, busy_before, busy_from, busy_until) values ($1, $2, 0, 0, 0, 0, 0, 0, 0, $3, $3, $3) \
         on conflict (tree_id) do nothing"
    );
    const SHARE: &str = concat!(
        "insert into tree_shares (tree_id, run_id, thread_id, ",
        sums!(),
        ") values ($1, $2, $3, 0, 0, 0, 0, 0, 0) on conflict (tree_id, run_id) do nothing"
    );
    on_engine!(tx, |conn| query(TREE)
        .bind(tree.0)
        .bind(thread.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    on_engine!(tx, |conn| query(SHARE)
        .bind(tree.0)
        .bind(share.0)
        .bind(thread.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// What a tree has used; nobody else changes it before the end of the transaction. None if nobody entered it, or its
/// conversation was deleted.
pub async fn lock(tx: &mut Tx<'_>, tree: RunId) -> DbResult<Option<TreeUsed>> {
    macro_rules! find {
        ($lock:literal) => {
            concat!(
                "select ",
                sums!(),
                ", busy_micros, busy_before, busy_from, busy_until from trees where tree_id = $1",
                $lock
            )
        };
    }
    let sql = tx.either(find!(""), find!(" for update"));
    let row: Option<TreeRow> = on_engine!(tx, |conn| query_as(sql).bind(tree.0).fetch_optional(conn).await)?;
    Ok(row.map(TreeUsed::from))
}

/// Sets what a tree has used.
pub async fn set(tx: &mut Tx<'_>, tree: RunId, used: &TreeUsed) -> DbResult<()> {
    const SQL: &str = "update trees set model_calls = $2, tool_calls = $3, input_tokens = $4, output_tokens = $5, \
        children = $6, under_way = $7, busy_micros = $8, busy_before = $9, busy_from = $10, busy_until = $11 \
        where tree_id = $1";
    let TreeUsed { sum, busy } = used;
    on_engine!(tx, |conn| query(SQL)
        .bind(tree.0)
        .bind(sum.model_calls)
        .bind(sum.tool_calls)
        .bind(sum.input_tokens)
        .bind(sum.output_tokens)
        .bind(sum.children)
        .bind(sum.under_way)
        .bind(busy.micros)
        .bind(busy.before.0)
        .bind(busy.from.0)
        .bind(busy.until.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The share of one of those who work for a tree.
pub async fn share(tx: &mut Tx<'_>, tree: RunId, share: RunId) -> DbResult<Option<Change>> {
    const SQL: &str = concat!(
        "select ",
        sums!(),
        " from tree_shares where tree_id = $1 and run_id = $2"
    );
    let row: Option<SumRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(tree.0)
        .bind(share.0)
        .fetch_optional(conn)
        .await)?;
    Ok(row.map(Change::from))
}

/// Adds to a share.
pub async fn add_to_share(tx: &mut Tx<'_>, tree: RunId, share: RunId, change: &Change) -> DbResult<()> {
    const SQL: &str = "update tree_shares set model_calls = model_calls + $3, tool_calls = tool_calls + $4, \
        input_tokens = input_tokens + $5, output_tokens = output_tokens + $6, children = children + $7, \
        under_way = under_way + $8 where tree_id = $1 and run_id = $2";
    on_engine!(tx, |conn| query(SQL)
        .bind(tree.0)
        .bind(share.0)
        .bind(change.model_calls)
        .bind(change.tool_calls)
        .bind(change.input_tokens)
        .bind(change.output_tokens)
        .bind(change.children)
        .bind(change.under_way)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// How many delegations a run has made, be it in its own course or in the background.
pub async fn delegations(tx: &mut Tx<'_>, run: RunId) -> DbResult<i64> {
    const SQL: &str = "select (select count(*) from runs where parent_id = $1) \
        + (select count(*) from background_tasks where parent_run = $1)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}
