//! The metadata of checkpoints, which are read without their positions and writes.

use const_format::concatcp;
use uuid::Uuid;

use super::{TABLE, source_of, with_parents};
use crate::db::codec::json::ColumnRef;
use crate::db::engine::{IdColumn, LaterRows};
use crate::db::row::from_row;
use crate::db::{DbError, DbResult, Tx};
use crate::domain::checkpoint::{CheckpointSource, Lane};
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::time::Timestamp;

/// The metadata of a checkpoint, without its position, writes and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Its number in the log of the thread.
    pub seq: i64,
    /// Its step number in the lane.
    pub step: i64,
    /// The kind of write that made it.
    pub source: CheckpointSource,
    /// The run of the main agent that made it; none for a client's update.
    pub run: Option<RunId>,
    /// The checkpoint before it.
    pub parent: Option<CheckpointId>,
    /// The checkpoint before it, if this one is the first of a branch.
    pub fork_of: Option<CheckpointId>,
    /// The time at which it was made.
    pub created_at: Timestamp,
}

from_row! {
    /// The columns of a [`CheckpointSummary`].
    pub(super) struct SummaryRow {
        pub(super) checkpoint_id: Uuid,
        pub(super) seq: i64,
        pub(super) segment: i64,
        pub(super) parent_id: Option<Uuid>,
        pub(super) step: i64,
        pub(super) source: String,
        pub(super) run_id: Option<Uuid>,
        pub(super) created_at: i64,
    }
}

impl TryFrom<&SummaryRow> for CheckpointSummary {
    type Error = DbError;

    fn try_from(row: &SummaryRow) -> DbResult<Self> {
        let cell = ColumnRef {
            table: TABLE,
            column: "source",
            id: &row.checkpoint_id,
        };
        Ok(Self {
            id: CheckpointId(row.checkpoint_id),
            seq: row.seq,
            step: row.step,
            source: source_of(&row.source).ok_or_else(|| cell.corrupt())?,
            run: row.run_id.map(RunId),
            parent: row.parent_id.map(CheckpointId),
            fork_of: row.parent_id.filter(|_| row.segment == row.seq).map(CheckpointId),
            created_at: Timestamp(row.created_at),
        })
    }
}

const SELECT_SUMMARY: &str =
    "select checkpoint_id, seq, segment, {parent} as parent_id, step, source, run_id, created_at from checkpoints";

/// Returns a checkpoint of a lane without its writes.
pub async fn load_summary(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    id: CheckpointId,
) -> DbResult<Option<CheckpointSummary>> {
    // Compared by `=`, the lane could have Postgres look for the checkpoint in the index of lanes, among all of this one.
    const SQL: &str = concatcp!(
        SELECT_SUMMARY,
        " where checkpoint_id = $1 and thread_id = $2 and lane is not distinct from $3"
    );
    let sql = with_parents!(tx, SQL);
    let statement = tx.statement(sql).bind(id.0).bind(thread.0).bind(IdColumn(lane));
    let row: Option<SummaryRow> = statement.fetch_optional().await?;
    row.as_ref().map(CheckpointSummary::try_from).transpose()
}

/// Returns the newest checkpoint of a lane without its writes.
pub async fn newest_summary(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<CheckpointSummary>> {
    newest_summary_later(tx, thread, lane).await?.read(tx).await
}

/// A checkpoint without its writes that is read later in its transaction.
pub struct LaterSummary(LaterRows<SummaryRow>);

/// Returns the newest checkpoint of a lane without its writes, to be read later in the transaction, which must store nothing in the
/// lane meanwhile. It is read together with other rows.
pub async fn newest_summary_later(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<LaterSummary> {
    const SQL: &str = concatcp!(
        SELECT_SUMMARY,
        " where thread_id = $1 and lane = $2 order by seq desc limit 1"
    );
    let sql = with_parents!(tx, SQL);
    let statement = tx.statement(sql).bind(thread.0).bind(IdColumn(lane));
    statement.fetch_later().await.map(LaterSummary)
}

impl LaterSummary {
    /// Reads the checkpoint.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Option<CheckpointSummary>> {
        let row = self.0.fetch_optional(tx).await?;
        row.as_ref().map(CheckpointSummary::try_from).transpose()
    }
}

/// Returns up to `limit` checkpoints of a lane with numbers below `before`, newest first, without their writes.
pub async fn load_summaries(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    before: i64,
    limit: i64,
) -> DbResult<Vec<CheckpointSummary>> {
    const SQL: &str = concatcp!(
        SELECT_SUMMARY,
        " where thread_id = $1 and lane = $2 and seq < $3 order by seq desc limit $4"
    );
    let sql = with_parents!(tx, SQL);
    let statement = tx.statement(sql).bind(thread.0).bind(IdColumn(lane));
    let rows: Vec<SummaryRow> = statement.bind(before).bind(limit).fetch_all().await?;
    rows.iter().map(CheckpointSummary::try_from).collect()
}
