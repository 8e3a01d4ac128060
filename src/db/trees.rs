//! The usage of trees of runs whose budget spans several threads, and the share of each run in it.

use const_format::concatcp;
use sqlx::query_as;

use super::engine::{LaterRows, on_engine};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::busy_time::BusyTime;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::limits::UsageChange;
use crate::domain::time::Timestamp;

/// The usage of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TreeUsed {
    /// The usage without time, and the number of unfinished subagents.
    pub sum: UsageChange,
    /// The time during which any of its runs was running.
    pub busy: BusyTime,
}

from_row! {
    struct SumRow {
        model_calls: i64,
        tool_calls: i64,
        input_tokens: i64,
        output_tokens: i64,
        cost_micros: i64,
        children: i64,
        under_way: i64,
    }
}

impl From<SumRow> for UsageChange {
    fn from(row: SumRow) -> Self {
        let SumRow {
            model_calls,
            tool_calls,
            input_tokens,
            output_tokens,
            cost_micros,
            children,
            under_way,
        } = row;
        Self {
            model_calls,
            tool_calls,
            input_tokens,
            output_tokens,
            cost_micros,
            children,
            under_way,
        }
    }
}

from_row! {
    struct TreeRow {
        busy_micros: i64,
        busy_before: i64,
        busy_from: i64,
        busy_until: i64,
        ..sum: SumRow,
    }
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

const SUMS: &str = "model_calls, tool_calls, input_tokens, output_tokens, cost_micros, children, under_way";

/// Creates the row of a tree and the row of a run's share in it, unless they exist.
pub async fn create_missing(
    tx: &mut Tx<'_>,
    tree: RunId,
    share: RunId,
    thread: ThreadId,
    now: Timestamp,
) -> DbResult<()> {
    // The thread of a background task is entered before it exists; its tree exists then. The policy of the table refuses a
    // row of no thread, even if there is a conflict.
    const TREE: &str = concatcp!(
        "insert into trees (tree_id, thread_id, ",
        SUMS,
        ", busy_micros, busy_before, busy_from, busy_until) select $1, $2, 0, 0, 0, 0, 0, 0, 0, 0, $3, $3, $3 \
         where exists (select 1 from threads where thread_id = $2) on conflict (tree_id) do nothing"
    );
    const SHARE: &str = concatcp!(
        "insert into tree_shares (tree_id, run_id, thread_id, ",
        SUMS,
        ") values ($1, $2, $3, 0, 0, 0, 0, 0, 0, 0) on conflict (tree_id, run_id) do nothing"
    );
    let insert = tx.statement(TREE).bind(tree.0).bind(thread.0).bind(now.0);
    insert.execute_later().await?;
    let insert = tx.statement(SHARE).bind(tree.0).bind(share.0).bind(thread.0);
    insert.execute_later().await
}

/// Returns the usage of a tree, locked until the end of the transaction. None if no run entered the tree, or its thread
/// was deleted.
pub async fn lock(tx: &mut Tx<'_>, tree: RunId) -> DbResult<Option<TreeUsed>> {
    const SQLITE: &str = concatcp!(
        "select ",
        SUMS,
        ", busy_micros, busy_before, busy_from, busy_until from trees where tree_id = $1"
    );
    const POSTGRES: &str = concatcp!(SQLITE, " for update");
    let sql = tx.either(SQLITE, POSTGRES);
    let row: Option<TreeRow> = tx.statement(sql).bind(tree.0).fetch_optional().await?;
    Ok(row.map(TreeUsed::from))
}

/// Sets the usage of a tree.
pub async fn set(tx: &mut Tx<'_>, tree: RunId, used: &TreeUsed) -> DbResult<()> {
    const SQL: &str = "update trees set model_calls = $2, tool_calls = $3, input_tokens = $4, output_tokens = $5, \
        children = $6, under_way = $7, busy_micros = $8, busy_before = $9, busy_from = $10, busy_until = $11, \
        cost_micros = $12 where tree_id = $1";
    let TreeUsed { sum, busy } = used;
    tx.statement(SQL)
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
        .bind(sum.cost_micros)
        .execute_later()
        .await
}

/// Returns the share of a run in the usage of a tree.
pub async fn share(tx: &mut Tx<'_>, tree: RunId, share: RunId) -> DbResult<Option<UsageChange>> {
    const SQL: &str = concatcp!("select ", SUMS, " from tree_shares where tree_id = $1 and run_id = $2");
    let found = tx.statement(SQL).bind(tree.0).bind(share.0);
    let row: Option<SumRow> = found.fetch_optional().await?;
    Ok(row.map(UsageChange::from))
}

/// Adds to the share of a run. Returns whether it has one.
pub async fn add_to_share(tx: &mut Tx<'_>, tree: RunId, share: RunId, change: &UsageChange) -> DbResult<bool> {
    const SQL: &str = "update tree_shares set model_calls = model_calls + $3, tool_calls = tool_calls + $4, \
        input_tokens = input_tokens + $5, output_tokens = output_tokens + $6, children = children + $7, \
        under_way = under_way + $8, cost_micros = cost_micros + $9 where tree_id = $1 and run_id = $2";
    let changed = tx
        .statement(SQL)
        .bind(tree.0)
        .bind(share.0)
        .bind(change.model_calls)
        .bind(change.tool_calls)
        .bind(change.input_tokens)
        .bind(change.output_tokens)
        .bind(change.children)
        .bind(change.under_way)
        .bind(change.cost_micros)
        .execute()
        .await?;
    Ok(changed == 1)
}

/// Deletes the shares of the runs on a thread. Returns their sum, which still counts in the tree.
pub async fn remove_shares(tx: &mut Tx<'_>, tree: RunId, thread: ThreadId) -> DbResult<UsageChange> {
    const SQL: &str = concatcp!(
        "delete from tree_shares where tree_id = $1 and thread_id = $2 returning ",
        SUMS
    );
    let rows: Vec<SumRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(tree.0)
        .bind(thread.0)
        .fetch_all(conn)
        .await)?;
    let shares = rows.into_iter().map(UsageChange::from);
    Ok(shares.fold(UsageChange::default(), UsageChange::plus))
}

/// A count of delegations that is made later in its transaction.
pub struct LaterDelegations(LaterRows<(i64,)>);

/// Returns the number of the delegations of a run, to subagents and to background tasks, to be counted later in the transaction,
/// which must make none meanwhile. They are counted together with other statements.
pub async fn delegations_later(tx: &mut Tx<'_>, run: RunId) -> DbResult<LaterDelegations> {
    const SQL: &str = "select (select count(*) from runs where parent_id = $1) \
        + (select count(*) from background_tasks where parent_run = $1)";
    let statement = tx.statement(SQL).bind(run.0);
    statement.fetch_later().await.map(LaterDelegations)
}

impl LaterDelegations {
    /// Counts the delegations.
    pub async fn count(self, tx: &mut Tx<'_>) -> DbResult<u64> {
        let counted = self.0.fetch_optional(tx).await?;
        Ok(counted.and_then(|(count,)| u64::try_from(count).ok()).unwrap_or(0))
    }
}
