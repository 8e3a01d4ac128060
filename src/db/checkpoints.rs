//! The table of checkpoints: one row per step of an agent, with the writes of that step. Module `state` folds them to
//! states, `history` reads whole rows, `summary` their metadata, and `machine` restores machines.
//!
//! The history of an agent (a *lane*) is a tree, since a client can fork it at any checkpoint. Rows of a lane that
//! follow one another without a fork are one *segment*, named by the seq of its first row. A checkpoint whose parent is
//! the last row of its segment continues the segment, any other starts a new one. So the ancestors of a checkpoint are
//! the earlier rows of its segment, then those of the segment of the first row's parent, and so on: mostly a single
//! range of an index. No state is ever stored.

mod history;
mod machine;
mod state;
mod summary;

use std::collections::BTreeMap;

use const_format::concatcp;
use futures::future::BoxFuture;
use serde::Deserialize;
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type, query, query_as, query_scalar};
use uuid::Uuid;

pub use history::{HistoryQuery, LaterNewest, NewestCheckpoint, Visit, find, newest_later, next_after, walk};
#[cfg(test)]
pub use history::{get, history};
pub use machine::{
    input_after, input_of, last_node, machine, machine_as_left, machine_at, machine_in_memory, machine_of,
};
pub use state::{find_state, load_state, newest_state};
pub use summary::{
    CheckpointSummary, LaterSummary, load_summaries, load_summary, newest_summary, newest_summary_later,
};

use super::codec::blobs::{self, BlobReferrer, Packer, StoredText};
use super::codec::json::ColumnRef;
use super::engine::{IdColumn, LaterRows, OF_MAIN_AGENTS, OF_SUBAGENTS, Statement, corrupt, on_engine};
use super::row::from_row;
use super::{DbError, DbResult, Engine, Tx, questions};
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::machine::{Phase, Position, START};
use crate::domain::stored_update::StoredWrites;
use crate::domain::time::Timestamp;

const TABLE: &str = "checkpoints";
/// The maximum number of rows in one insert; databases limit the number of bound values.
const MAX_ROWS: usize = 200;

/// The stored source of an input before which its agent started anew. The event with the number before its checkpoint is
/// [`Fact::started_anew`](crate::domain::event::Fact::started_anew), and has no row of its own.
pub(super) const BEGIN: &str = "begin";

/// The column with the event that has the number behind its checkpoint. The event has no row of its own.
pub(super) const NEXT_EVENT: &str = "next_event";
/// The number of the last entry of the log in a row of the table.
pub(super) const LAST_SEQ: &str = "seq + case when next_event is null then 0 else 1 end";

/// The parent of a checkpoint on SQLite, where it is not stored if it is the row before in the same segment.
pub(super) const PARENT: &str = "coalesce(parent_id, case when segment < seq then (select earlier.checkpoint_id \
    from checkpoints earlier where earlier.thread_id = checkpoints.thread_id and earlier.lane = checkpoints.lane \
    and earlier.segment = checkpoints.segment and earlier.seq < checkpoints.seq order by earlier.seq desc limit 1) end)";

/// Returns the statement `$sql` of the engine of a transaction, with the parent of a checkpoint in the place of `{parent}`.
macro_rules! with_parents {
    ($tx:expr, $sql:expr) => {{
        const SQLITE: &str = ::const_format::str_replace!($sql, "{parent}", $crate::db::checkpoints::PARENT);
        const POSTGRES: &str = ::const_format::str_replace!($sql, "{parent}", "parent_id");
        $tx.either(SQLITE, POSTGRES)
    }};
}
pub(super) use with_parents;

/// The events of a commit that are stored in the rows of its steps.
#[derive(Default)]
pub(super) struct EventsOfSteps {
    /// The numbers of the inputs before which their agents started anew.
    pub(super) begun: Vec<i64>,
    /// The stored bodies of other events, by the number of the step before.
    pub(super) next: BTreeMap<i64, String>,
}

/// Returns a node as it is stored: on SQLite the first one is an empty text, since every run has two steps of it.
fn stored_node(node: &str, engine: Engine) -> &str {
    match engine {
        Engine::Sqlite if node == START => "",
        Engine::Sqlite | Engine::Postgres => node,
    }
}

/// Returns the node that is stored like this.
pub(super) fn node_of_stored(node: String) -> String {
    if node.is_empty() { START.to_owned() } else { node }
}

/// Returns the source that is stored as `word`.
pub(super) fn source_of(word: &str) -> Option<CheckpointSource> {
    if word == BEGIN {
        return Some(CheckpointSource::Input);
    }
    [
        CheckpointSource::Input,
        CheckpointSource::Loop,
        CheckpointSource::Update,
        CheckpointSource::Fork,
    ]
    .into_iter()
    .find(|source| source.word() == word)
}

/// Returns a column of a checkpoint. The column `before` holds a value of the column `position`.
pub(super) fn cell<'a, I: ToString>(column: &'static str, checkpoint: &'a I) -> ColumnRef<'a, I> {
    ColumnRef {
        table: TABLE,
        column,
        id: checkpoint,
    }
}

/// A part of a lane: an inclusive range of numbers of the thread's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The thread.
    pub thread: ThreadId,
    /// The history.
    pub lane: Lane,
    /// The number of the oldest checkpoint.
    pub first: i64,
    /// The number of the newest one.
    pub last: i64,
}

/// The columns of an [`Entry`].
pub(super) struct EntryColumns {
    pub(super) checkpoint_id: Uuid,
    pub(super) parent_id: Option<Uuid>,
    pub(super) step: i64,
    pub(super) source: String,
    pub(super) node: String,
    pub(super) writes: String,
    pub(super) shown: Option<String>,
    pub(super) carried_from: Option<Uuid>,
}

impl TryFrom<EntryColumns> for Entry {
    type Error = DbError;

    fn try_from(row: EntryColumns) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.checkpoint_id,
        };
        Ok(Self {
            id: CheckpointId(row.checkpoint_id),
            parent: row.parent_id.map(CheckpointId),
            step: row.step,
            source: source_of(&row.source).ok_or_else(|| at("source").corrupt())?,
            node: node_of_stored(row.node),
            writes: at("writes").decode(&row.writes)?,
            logged_writes: row
                .shown
                .as_deref()
                .map(|shown| at("shown").decode(shown))
                .transpose()?
                .unwrap_or_default(),
            carried_from: row.carried_from.map(CheckpointId),
        })
    }
}

/// A checkpoint to be stored: a step and its position in the thread's log.
#[derive(Debug, Clone, Copy)]
pub struct NewCheckpoint<'a> {
    /// The thread.
    pub thread: ThreadId,
    /// The history it belongs to.
    pub lane: Lane,
    /// Its number in the log of the thread: unused, and higher than all others in the lane.
    pub seq: i64,
    /// The segment it continues, if known: that of the lane's newest checkpoint ([`Head::segment`]), if that is its
    /// parent. Otherwise it is read from the database.
    pub segment: Option<i64>,
    /// The run of the main agent that made it; none for a client's update.
    pub run: Option<RunId>,
    /// The step.
    pub entry: &'a Entry,
    /// The agent's phase and pending tasks after it.
    pub position: &'a Position,
    /// The time at which it was made.
    pub at: Timestamp,
}

/// Stores a checkpoint. Returns its segment. The transaction has locked the thread, at least in the weakest way, or has stored it:
/// Postgres does not check that it exists, and without the lock the checkpoint could stay behind a thread that is deleted.
///
/// # Errors
/// [`DbError::Conflict`] when its number or id is taken, or its parent was deleted: by the end of the transaction, see
/// [`Statement::execute_later`](super::engine::Statement::execute_later). On SQLite a number that is taken by a step of
/// the other kind, main agent or subagent, is not noticed.
pub async fn insert(tx: &mut Tx<'_>, placed: &NewCheckpoint<'_>) -> DbResult<i64> {
    insert_all(tx, std::slice::from_ref(placed)).await
}

/// Stores checkpoints in the given order. A checkpoint may be the child of the one before it. Returns the segment of
/// the last one; 0 for an empty list.
///
/// # Errors
/// As [`insert`].
pub async fn insert_all(tx: &mut Tx<'_>, placed: &[NewCheckpoint<'_>]) -> DbResult<i64> {
    insert_with_events(tx, placed, EventsOfSteps::default()).await
}

/// Stores checkpoints like [`insert_all`], with events that have no rows of their own.
pub(super) async fn insert_with_events(
    tx: &mut Tx<'_>,
    placed: &[NewCheckpoint<'_>],
    mut events: EventsOfSteps,
) -> DbResult<i64> {
    let mut last = 0;
    for batch in placed.chunks(MAX_ROWS) {
        let mut rows = Vec::with_capacity(batch.len());
        let mut before: Option<(&NewCheckpoint<'_>, i64)> = None;
        for placed in batch {
            let segment = match before {
                Some((parent, segment))
                    if placed.entry.parent == Some(parent.entry.id) && placed.lane == parent.lane =>
                {
                    segment
                }
                Some(_) | None => segment_of(tx, placed).await?,
            };
            before = Some((placed, segment));
            last = segment;
            let mut packer = Packer::of_thread(tx, placed.thread).await?;
            let source = match events.begun.contains(&placed.seq) {
                true => BEGIN,
                false => placed.entry.source.word(),
            };
            let position = questions::stored_position(tx, placed.position);
            let row = NewRow::new(placed, segment, source, &position, &mut packer)?;
            drop(position);
            rows.push(NewRow {
                next_event: events.next.remove(&placed.seq),
                ..row
            });
            let referrer = BlobReferrer::Entry {
                thread: placed.thread,
                seq: placed.seq,
            };
            packer.store(tx, referrer).await?;
        }
        insert_rows(tx, rows).await?;
    }
    Ok(last)
}

/// Returns the segment of a new checkpoint whose parent is already stored.
async fn segment_of(tx: &mut Tx<'_>, placed: &NewCheckpoint<'_>) -> DbResult<i64> {
    // Compared by `=`, the lane could have Postgres look for the parent in the index of lanes, among all checkpoints of this one.
    const SQL: &str = "select segment, exists (select 1 from checkpoints later where later.thread_id = parent.thread_id \
        and later.lane = parent.lane and later.segment = parent.segment and later.seq > parent.seq) \
        from checkpoints parent where checkpoint_id = $1 and thread_id = $2 and lane is not distinct from $3";
    let Some(parent) = placed.entry.parent else {
        return Ok(placed.seq);
    };
    if let Some(segment) = placed.segment {
        return Ok(segment);
    }
    let found: Option<(i64, bool)> = on_engine!(tx, |conn| query_as(SQL)
        .bind(parent.0)
        .bind(placed.thread.0)
        .bind(IdColumn(placed.lane))
        .fetch_optional(conn)
        .await)?;
    match found {
        Some((segment, false)) => Ok(segment),
        Some((_, true)) => Ok(placed.seq),
        None => Err(DbError::Conflict(format!(
            "the parent {parent} of checkpoint {} does not exist",
            placed.entry.id
        ))),
    }
}

struct NewRow<'a> {
    placed: &'a NewCheckpoint<'a>,
    segment: i64,
    source: &'static str,
    writes: String,
    shown: Option<String>,
    position: String,
    next_event: Option<String>,
}

impl<'a> NewRow<'a> {
    /// Encodes a checkpoint with its position as it is stored.
    fn new(
        placed: &'a NewCheckpoint<'a>,
        segment: i64,
        source: &'static str,
        position: &Position,
        packer: &mut Packer,
    ) -> DbResult<Self> {
        let entry = placed.entry;
        let at = |column| cell(column, &entry.id.0);
        let shown = if entry.logged_writes.is_empty() {
            None
        } else {
            Some(packer.encode(&at("shown"), &entry.logged_writes)?)
        };
        Ok(Self {
            placed,
            segment,
            source,
            writes: packer.encode(&at("writes"), &StoredWrites(&entry.writes))?,
            shown,
            position: packer.encode(&at("position"), position)?,
            next_event: None,
        })
    }
}

async fn insert_rows(tx: &mut Tx<'_>, rows: Vec<NewRow<'_>>) -> DbResult<()> {
    const SQL: &str = "insert into checkpoints (checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, \
        node, run_id, writes, shown, position, created_at, carried_from, next_event) values ";
    let engine = tx.engine();
    tx.insert_later(SQL, "", 16, rows, |values, row| {
        let NewRow {
            placed,
            segment,
            source,
            writes,
            shown,
            position,
            next_event,
        } = row;
        let entry = placed.entry;
        let stores_parent = engine == Engine::Postgres || segment == placed.seq;
        values
            .push_bind(entry.id.0)
            .push_bind(placed.thread.0)
            .push_bind(IdColumn(placed.lane))
            .push_bind(placed.seq)
            .push_bind(segment)
            .push_bind(entry.parent.filter(|_| stores_parent).map(|parent| parent.0))
            .push_bind(entry.step)
            .push_bind(source)
            .push_bind(stored_node(&entry.node, engine))
            .push_bind(placed.run.map(|run| run.0))
            .push_bind(writes)
            .push_bind(shown)
            .push_bind(position)
            .push_bind(placed.at.0)
            .push_bind(entry.carried_from.map(|checkpoint| checkpoint.0))
            .push_bind(next_event);
    })
    .await
}

/// Sets the position of a checkpoint on behalf of run `by` of the main agent, so that [`restore_positions`] can undo
/// it. Without the checkpoint nothing happens.
pub async fn set_position(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    checkpoint: CheckpointId,
    position: &Position,
    by: RunId,
) -> DbResult<()> {
    // In SQL, the right-hand sides are the values before the update.
    const SQL: &str = "update checkpoints set position = $2, \
        before = case when run_id is distinct from $3 and touched_by is distinct from $3 then position else before end, \
        touched_by = case when run_id is distinct from $3 then $3 else touched_by end where checkpoint_id = $1 and thread_id = $4";
    const SEQ: &str = "select seq from checkpoints where checkpoint_id = $1 and thread_id = $2";
    let mut packer = Packer::of_thread(tx, thread).await?;
    let stored = questions::stored_position(tx, position);
    let position = packer.encode(&cell("position", &checkpoint.0), &*stored)?;
    drop(stored);
    if packer.has_blobs() {
        let seq: Option<i64> = on_engine!(tx, |conn| query_scalar(SEQ)
            .bind(checkpoint.0)
            .bind(thread.0)
            .fetch_optional(conn)
            .await)?;
        let Some(seq) = seq else { return Ok(()) };
        packer.store(tx, BlobReferrer::Entry { thread, seq }).await?;
    }
    tx.statement(SQL)
        .bind(checkpoint.0)
        .bind(position)
        .bind(by.0)
        .bind(thread.0)
        .execute_later()
        .await
}

/// The metadata and the position of a checkpoint, to continue from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The checkpoint.
    pub id: CheckpointId,
    /// The history it belongs to.
    pub lane: Lane,
    /// Its number in the log of the thread.
    pub seq: i64,
    /// Its segment: the part of the history without forks to which it belongs.
    pub segment: i64,
    /// Its step number in the lane; the first one is -1.
    pub step: i64,
    /// The agent's phase and pending tasks after it.
    pub position: Position,
    /// The run of the main agent that made it; none for a client's update.
    pub run: Option<RunId>,
}

from_row! {
    struct HeadRow {
        checkpoint_id: Uuid,
        lane: IdColumn<Lane>,
        seq: i64,
        segment: i64,
        step: i64,
        position: String,
        run_id: Option<Uuid>,
    }
}

impl HeadRow {
    /// Reads the checkpoint with its position. In a box, since every future that reads a checkpoint would be larger.
    fn read<'t>(mut self, tx: &'t mut Tx<'_>, thread: ThreadId) -> BoxFuture<'t, DbResult<Head>> {
        Box::pin(async move {
            let position = StoredText {
                cell: cell("position", &self.checkpoint_id),
                text: &mut self.position,
            };
            blobs::restore(tx, thread, vec![position]).await?;
            let mut head: Head = self.try_into()?;
            questions::put_back_at(tx, thread, &mut head.position).await?;
            Ok(head)
        })
    }
}

impl TryFrom<HeadRow> for Head {
    type Error = DbError;

    fn try_from(row: HeadRow) -> DbResult<Self> {
        Ok(Self {
            id: CheckpointId(row.checkpoint_id),
            lane: row.lane.0,
            seq: row.seq,
            segment: row.segment,
            step: row.step,
            position: ColumnRef {
                table: TABLE,
                column: "position",
                id: &row.checkpoint_id,
            }
            .decode(&row.position)?,
            run: row.run_id.map(RunId),
        })
    }
}

const SELECT_HEAD: &str = "select checkpoint_id, lane, seq, segment, step, position, run_id from checkpoints";

/// Returns the newest checkpoint of a lane.
pub async fn head(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<Head>> {
    let found = head_later(tx, thread, lane).await?.fetch_optional(tx).await?;
    let Some(row) = found else { return Ok(None) };
    row.read(tx, thread).await.map(Some)
}

async fn head_later(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<LaterRows<HeadRow>> {
    const SQL: &str = concatcp!(
        SELECT_HEAD,
        " where thread_id = $1 and lane = $2 order by seq desc limit 1"
    );
    let statement = tx.statement(SQL).bind(thread.0).bind(IdColumn(lane));
    statement.fetch_later().await
}

/// The work in progress on a thread, to be looked for later in its transaction.
pub struct LaterWork(LaterRows<HeadRow>);

/// Returns the work in progress at the newest checkpoint of the main agent of a thread, to be looked for later in the transaction,
/// which must store nothing in the log meanwhile. It is read together with other rows.
pub async fn work_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterWork> {
    head_later(tx, thread, Lane::Main).await.map(LaterWork)
}

impl LaterWork {
    /// Returns the run that made the newest checkpoint; none if its work has ended, or a client made the checkpoint. Nothing
    /// else of its position is read, which may have large questions.
    pub async fn run(self, tx: &mut Tx<'_>) -> DbResult<Option<RunId>> {
        #[derive(Deserialize)]
        struct OnlyPhase {
            phase: Phase,
        }
        let Some(row) = self.0.fetch_optional(tx).await? else {
            return Ok(None);
        };
        let OnlyPhase { phase } = blobs::decode_some(&cell("position", &row.checkpoint_id), &row.position)?;
        let is_over = matches!(phase, Phase::Start | Phase::Ended);
        Ok(row.run_id.filter(|_| !is_over).map(RunId))
    }
}

/// Returns the id of the newest checkpoint of a lane.
pub async fn newest_id(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<CheckpointId>> {
    const SQL: &str =
        "select checkpoint_id from checkpoints where thread_id = $1 and lane = $2 order by seq desc limit 1";
    let id: Option<Uuid> = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .bind(IdColumn(lane))
        .fetch_optional(conn)
        .await)?;
    Ok(id.map(CheckpointId))
}

/// Returns the number of the last checkpoint of a lane up to the number `until` that a run has made which was not deleted;
/// none if there is none.
pub async fn last_of_runs(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, until: i64) -> DbResult<Option<i64>> {
    // Not `exists`: Postgres could make a join of it, and begin with the runs.
    const SQL: &str = "select seq from checkpoints where thread_id = $1 and lane = $2 and seq <= $3 \
        and (select runs.run_id from runs where runs.run_id = checkpoints.run_id) is not null order by seq desc limit 1";
    let statement = tx.statement(SQL).bind(thread.0).bind(IdColumn(lane)).bind(until);
    let found: Option<(i64,)> = statement.fetch_optional().await?;
    Ok(found.map(|(seq,)| seq))
}

/// Returns the checkpoints of the main agent with the number `seq` or a higher one that may have carried an unfinished step
/// on, the newest first and at most `limit`.
pub async fn carried_since(tx: &mut Tx<'_>, thread: ThreadId, seq: i64, limit: i64) -> DbResult<Vec<CheckpointId>> {
    const SQL: &str = "select checkpoint_id from checkpoints where thread_id = $1 and lane = $2 and seq >= $3 \
        and source in ('fork', 'update') order by seq desc limit $4";
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .bind(IdColumn(Lane::Main))
        .bind(seq)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    Ok(found.into_iter().map(CheckpointId).collect())
}

/// Returns a checkpoint of a thread, of any lane.
pub async fn find_head(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<Head>> {
    const SQL: &str = concatcp!(SELECT_HEAD, " where checkpoint_id = $1 and thread_id = $2");
    let row: Option<HeadRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(checkpoint.0)
        .bind(thread.0)
        .fetch_optional(conn)
        .await)?;
    let Some(row) = row else { return Ok(None) };
    row.read(tx, thread).await.map(Some)
}

/// Returns the histories of the unfinished subagents of a thread, at any depth, each with its newest checkpoint, if it has
/// any: those for which the agents wait at their newest checkpoints.
pub async fn unfinished_lanes(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<(Lane, Option<Head>)>> {
    let mut found = vec![];
    let mut lanes = vec![Lane::Main];
    while let Some(lane) = lanes.pop() {
        let newest = head(tx, thread, lane).await?;
        let below = newest.iter().flat_map(|newest| newest.position.delegated());
        lanes.extend(below.map(Lane::Child));
        if lane != Lane::Main {
            found.push((lane, newest));
        }
    }
    Ok(found)
}

/// Returns the first checkpoint, with its number, that a client's update of the main agent's state made after `seq` and before
/// the number `end`. The steps between them are read.
pub async fn update_between(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    seq: i64,
    end: i64,
) -> DbResult<Option<(CheckpointId, i64)>> {
    const SQL: &str = "select checkpoint_id, seq from checkpoints where thread_id = $1 and lane = $2 and seq > $3 \
        and seq < $4 and source = 'update' and run_id is null order by seq limit 1";
    let found: Option<(Uuid, i64)> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(IdColumn(Lane::Main))
        .bind(seq)
        .bind(end)
        .fetch_optional(conn)
        .await)?;
    Ok(found.map(|(checkpoint, seq)| (CheckpointId(checkpoint), seq)))
}

/// Returns the highest number in the log of a thread; 0 when the log is empty.
pub async fn max_seq(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<i64> {
    Ok(log_summary(tx, thread).await?.max_seq)
}

from_row! {
    /// The summary of a thread's log, for a run that begins.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LogSummary {
        /// The highest number in the log; 0 for an empty log.
        pub max_seq: i64,
        /// True if decisions are remembered for the thread.
        pub has_decisions: bool,
    }
}

/// Returns the summary of the log of a thread.
async fn log_summary(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LogSummary> {
    const SQLITE: &str = concatcp!("select ", SUMMARY_ON_SQLITE);
    const POSTGRES: &str = concatcp!("select ", SUMMARY_ON_POSTGRES);
    let sql = tx.either(SQLITE, POSTGRES);
    tx.statement(sql).bind(thread.0).fetch_one().await
}

/// The columns of a [`LogSummary`] on SQLite.
const SUMMARY_ON_SQLITE: &str = concatcp!(
    "max(coalesce(",
    LAST_STEP,
    OF_MAIN_AGENTS,
    NEWEST_FIRST,
    "), 0), coalesce(",
    LAST_STEP,
    OF_SUBAGENTS,
    NEWEST_FIRST,
    "), 0), coalesce(",
    LAST_EVENT,
    ", 0)) as max_seq, ",
    HAS_DECISIONS
);
/// The columns of a [`LogSummary`] on Postgres, whose `greatest` leaves out what is not there.
const SUMMARY_ON_POSTGRES: &str = concatcp!(
    "greatest(",
    LAST_STEP,
    NEWEST_FIRST,
    "), ",
    LAST_EVENT,
    ", 0) as max_seq, ",
    HAS_DECISIONS
);
const LAST_STEP: &str = concatcp!("(select ", LAST_SEQ, " from checkpoints where thread_id = $1");
const LAST_EVENT: &str = "(select max(seq) from events where thread_id = $1)";
const HAS_DECISIONS: &str = "exists (select 1 from remembered_decisions where thread_id = $1) as has_decisions";
/// The end of a query for one checkpoint, or for the newest one of a lane.
const NEWEST_FIRST: &str = " order by seq desc limit 1";

/// The newest checkpoint in a row that may have none.
struct NewestHead(Option<HeadRow>);

impl<'r, R> FromRow<'r, R> for NewestHead
where
    R: Row,
    HeadRow: FromRow<'r, R>,
    &'static str: ColumnIndex<R>,
    Option<Uuid>: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> sqlx::Result<Self> {
        let id: Option<Uuid> = row.try_get("checkpoint_id")?;
        let head = id.map(|_| HeadRow::from_row(row));
        head.transpose().map(Self)
    }
}

from_row! {
    /// The end of a log, with the newest checkpoint of the main agent, or on Postgres of any agent.
    pub(super) struct LogEndRow {
        ..summary: LogSummary,
        ..newest: NewestHead,
    }
}

/// The end of a thread's log that is read later in its transaction.
pub struct LaterLogEnd {
    thread: ThreadId,
    row: LaterLogEndRow,
}

enum LaterLogEndRow {
    Later(LaterRows<LogEndRow>),
    /// Read together with other rows.
    Read(Box<LogEndRow>),
}

/// The end of a thread's log.
pub struct LogEnd {
    /// The summary of the log.
    pub summary: LogSummary,
    /// The newest checkpoint of the main agent, or why it cannot be read.
    pub newest: DbResult<Option<Head>>,
}

/// The query for the end of the log of thread `$1` on SQLite, where `$2` is the lane of main agents.
pub(super) const LOG_END_ON_SQLITE: &str = concatcp!(
    "select log.max_seq, log.has_decisions, newest.* from (select ",
    SUMMARY_ON_SQLITE,
    ") log left join (",
    SELECT_HEAD,
    " where thread_id = $1 and lane = $2",
    NEWEST_FIRST,
    ") newest on true"
);
/// The query for the end of the log of thread `$1` on Postgres. One look finds the newest step of any agent, which nearly always is one
/// of the main agent.
pub(super) const LOG_END_ON_POSTGRES: &str = concatcp!(
    "select greatest(newest.last_seq, ",
    LAST_EVENT,
    ", 0) as max_seq, ",
    HAS_DECISIONS,
    ", newest.* from (select 1) one left join (select checkpoint_id, lane, seq, segment, step, position, run_id, ",
    LAST_SEQ,
    " as last_seq from checkpoints where thread_id = $1",
    NEWEST_FIRST,
    ") newest on true"
);

/// Binds the values of a query for the end of a log.
pub(super) fn bind_log_end<'t, 'c>(
    statement: Statement<'t, 'c>,
    thread: ThreadId,
    engine: Engine,
) -> Statement<'t, 'c> {
    let statement = statement.bind(thread.0);
    match engine {
        Engine::Sqlite => statement.bind(IdColumn(Lane::Main)),
        Engine::Postgres => statement,
    }
}

/// Returns the end of the log of a thread, to be read later in the transaction, which must store nothing in the log meanwhile. It
/// is read together with other rows.
pub async fn log_end_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterLogEnd> {
    let engine = tx.engine();
    let sql = tx.either(LOG_END_ON_SQLITE, LOG_END_ON_POSTGRES);
    let rows = bind_log_end(tx.statement(sql), thread, engine).fetch_later().await?;
    let row = LaterLogEndRow::Later(rows);
    Ok(LaterLogEnd { thread, row })
}

impl LaterLogEnd {
    /// Takes a row that was read together with others.
    pub(super) fn of_row(thread: ThreadId, row: LogEndRow) -> Self {
        let row = LaterLogEndRow::Read(Box::new(row));
        Self { thread, row }
    }

    /// Reads the end of the log. Of an empty log, no checkpoint is read.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<LogEnd> {
        let Self { thread, row } = self;
        let row = match row {
            LaterLogEndRow::Later(rows) => rows.fetch_optional(tx).await?.ok_or(sqlx::Error::RowNotFound)?,
            LaterLogEndRow::Read(row) => *row,
        };
        let LogEndRow {
            summary,
            newest: NewestHead(newest),
        } = row;
        let newest = match newest {
            Some(newest) if newest.lane.0 == Lane::Main => newest.read(tx, thread).await.map(Some),
            // The newest step is one of a subagent.
            Some(_) => Box::pin(head(tx, thread, Lane::Main)).await,
            None => Ok(None),
        };
        Ok(LogEnd { summary, newest })
    }
}

/// Deletes the checkpoints and events of a run of the main agent, in all lanes. No later checkpoint may descend from
/// them.
pub async fn delete_of_run(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<()> {
    const CHECKPOINTS: &str = "delete from checkpoints where thread_id = $1 and run_id = $2 \
        and seq >= coalesce((select first_seq from runs where run_id = $2), 0)";
    const EVENTS: &str = "delete from events where thread_id = $1 and run_id = $2 \
        and seq >= coalesce((select first_seq from runs where run_id = $2), 0)";
    const SQLITE: &[&str] = &[
        concatcp!(CHECKPOINTS, OF_MAIN_AGENTS),
        concatcp!(CHECKPOINTS, OF_SUBAGENTS),
        EVENTS,
    ];
    const POSTGRES: &[&str] = &[CHECKPOINTS, EVENTS];
    let statements = tx.either(SQLITE, POSTGRES);
    for sql in statements {
        on_engine!(tx, |conn| query(*sql)
            .bind(thread.0)
            .bind(run.0)
            .execute(conn)
            .await
            .map(drop))?;
    }
    blobs::forget_deleted_entries(tx, thread).await
}

/// Restores the positions that run `by` changed on checkpoints of other runs.
pub async fn restore_positions(tx: &mut Tx<'_>, by: RunId) -> DbResult<()> {
    const SQL: &str = "update checkpoints set position = coalesce(before, position), before = null, touched_by = null \
        where touched_by = $1";
    on_engine!(tx, |conn| query(SQL).bind(by.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Returns the error for a history with a missing ancestor.
fn missing_ancestor(checkpoint: CheckpointId) -> DbError {
    corrupt(TABLE, "parent_id", checkpoint)
}
