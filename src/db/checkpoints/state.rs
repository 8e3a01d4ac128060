//! The state at a checkpoint: its writes and those of its ancestors, folded.

use std::sync::Arc;

use const_format::concatcp;
use sqlx::query_as;
use uuid::Uuid;

use super::{Head, Span, cell, missing_ancestor};
use crate::db::codec::blobs::{self, StoredText};
use crate::db::engine::{IdColumn, on_engine};
use crate::db::fold::StateFold;
use crate::db::row::from_row;
use crate::db::{DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::state::State;

/// Returns the state at `head`: the sum of its own writes and those of its ancestors.
///
/// # Errors
/// [`crate::db::DbError::Corrupt`] when an ancestor is missing.
pub async fn load_state(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, head: &Head) -> DbResult<State> {
    Ok(State::clone(&*state_at(tx, thread, lane, head.id).await?))
}

/// Returns the newest state of a lane, shared with the cache; none if the lane has no checkpoint.
///
/// # Errors
/// As [`load_state`].
pub async fn newest_state(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<Arc<State>>> {
    let Some(newest) = super::newest_id(tx, thread, lane).await? else {
        return Ok(None);
    };
    state_at(tx, thread, lane, newest).await.map(Some)
}

/// Returns the state at a checkpoint of any lane, shared with the cache; none if the thread has no such checkpoint.
///
/// # Errors
/// As [`load_state`].
pub async fn find_state(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<Arc<State>>> {
    const SQL: &str = "select lane from checkpoints where checkpoint_id = $1 and thread_id = $2";
    let statement = tx.statement(SQL).bind(checkpoint.0).bind(thread.0);
    let found: Option<(IdColumn<Lane>,)> = statement.fetch_optional().await?;
    match found {
        Some((IdColumn(lane),)) => state_at(tx, thread, lane, checkpoint).await.map(Some),
        None => Ok(None),
    }
}

from_row! {
    /// A step to be folded.
    struct StepRow {
        checkpoint_id: Uuid,
        parent_id: Option<Uuid>,
        seq: i64,
        segment: i64,
        writes: String,
    }
}

from_row! {
    /// A step whose writes are not read yet.
    struct StepId {
        checkpoint_id: Uuid,
        parent_id: Option<Uuid>,
        seq: i64,
    }
}

/// Steps of one segment to be folded.
enum Steps {
    /// Some steps, oldest first.
    Read(Vec<StepRow>),
    /// Steps whose writes are not read yet.
    Unread(UnreadSteps),
}

/// The steps of a segment in a part of a lane.
#[derive(Clone, Copy)]
struct UnreadSteps {
    segment: i64,
    span: Span,
    count: usize,
}

/// The maximum number of steps whose writes, or ids, are in memory at once.
const MAX_STEPS: i64 = 256;
/// The maximum size of the texts of steps with their blobs in memory at once, in bytes. A larger text is read alone.
const MAX_RESTORED_BYTES: usize = 4 << 20;

/// Returns the state at a checkpoint from the cache, or folds and caches it.
pub(super) async fn state_at(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    checkpoint: CheckpointId,
) -> DbResult<Arc<State>> {
    if let Some(state) = tx.states.get(checkpoint) {
        return Ok(state);
    }
    let (base, parts) = steps_to(tx, thread, lane, checkpoint).await?;
    let mut fold = base.map_or_else(StateFold::default, |state| StateFold::from(State::clone(&state)));
    for steps in parts {
        match steps {
            Steps::Read(rows) => add_steps(tx, thread, &mut fold, rows).await?,
            Steps::Unread(steps) => {
                if !add_unread(tx, &mut fold, steps).await? {
                    return Err(missing_ancestor(checkpoint));
                }
            }
        }
    }
    let state = Arc::new(fold.finish());
    tx.states.put(checkpoint, Arc::clone(&state));
    Ok(state)
}

/// Adds the writes of steps. Of their blobs, only some are in memory at once.
async fn add_steps(tx: &mut Tx<'_>, thread: ThreadId, fold: &mut StateFold, mut rows: Vec<StepRow>) -> DbResult<()> {
    for row in &mut rows {
        blobs::open(&cell("writes", &row.checkpoint_id), &mut row.writes);
    }
    while !rows.is_empty() {
        let later = rows.split_off(steps_at_once(&rows));
        let texts = rows.iter_mut().map(|row| StoredText {
            cell: cell("writes", &row.checkpoint_id),
            text: &mut row.writes,
        });
        blobs::restore(tx, thread, texts.collect()).await?;
        for row in std::mem::replace(&mut rows, later) {
            fold.add(cell("writes", &row.checkpoint_id).decode(&row.writes)?);
        }
    }
    Ok(())
}

/// Returns the number of the first of these steps whose blobs are put back at once: at least one.
fn steps_at_once(rows: &[StepRow]) -> usize {
    let mut bytes = 0_usize;
    let fitting = rows.iter().take_while(|row| {
        bytes = bytes.saturating_add(blobs::restored_len(&row.writes));
        bytes <= MAX_RESTORED_BYTES
    });
    fitting.count().max(1)
}

/// Adds the writes of steps that are not read yet, some at a time. Returns whether all of them were found: unlike a read, a
/// transaction that writes may see that one was deleted meanwhile.
async fn add_unread(tx: &mut Tx<'_>, fold: &mut StateFold, steps: UnreadSteps) -> DbResult<bool> {
    let mut left = steps;
    while left.count > 0 {
        let rows = first_of(tx, left).await?;
        let Some(newest) = rows.last() else { return Ok(false) };
        left.span.first = newest.seq + 1;
        left.count = left.count.saturating_sub(rows.len());
        add_steps(tx, left.span.thread, fold, rows).await?;
    }
    Ok(true)
}

/// Returns the state of the nearest cached ancestor of a checkpoint, and the steps from there to the checkpoint, oldest
/// first. Without a cached ancestor there is no state, and the steps begin with the first of the lane.
async fn steps_to(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    checkpoint: CheckpointId,
) -> DbResult<(Option<Arc<State>>, Vec<Steps>)> {
    let mut parts: Vec<Steps> = vec![];
    let mut base = None;
    let mut last = Some(checkpoint);
    while let Some(id) = last {
        let mut rows = newest_steps(tx, thread, lane, id).await?;
        let Some(first) = rows.first() else {
            return Err(missing_ancestor(id));
        };
        let segment = first.segment;
        let seq = first.seq;
        // Of the steps of a segment, only the first one has a parent in its row for sure.
        last = first.parent_id.map(CheckpointId);
        let lacks_first = last.is_none() && seq > segment;
        let is_full = rows.len() >= usize::try_from(MAX_STEPS).unwrap_or(usize::MAX);
        base = nearest_state(tx, &rows, |row| row.checkpoint_id).map(|(at, state)| {
            rows.drain(..=at);
            state
        });
        if base.is_none() && lacks_first && !is_full {
            return Err(missing_ancestor(id));
        }
        parts.push(Steps::Read(rows));
        if base.is_none() && is_full {
            let before = Span {
                thread,
                lane,
                first: segment,
                last: seq - 1,
            };
            let older = older_steps(tx, before).await?;
            if older.is_any {
                last = older.parent;
            } else if lacks_first {
                return Err(missing_ancestor(id));
            }
            base = older.base;
            parts.extend(older.unread.map(Steps::Unread));
        }
        if base.is_some() {
            break;
        }
    }
    parts.reverse();
    Ok((base, parts))
}

/// Returns the newest of these steps, oldest first, whose state is cached: its index and the state.
fn nearest_state<T>(tx: &Tx<'_>, steps: &[T], id_of: impl Fn(&T) -> Uuid) -> Option<(usize, Arc<State>)> {
    let mut newest_first = steps.iter().enumerate().rev();
    newest_first.find_map(|(at, step)| Some((at, tx.states.get(CheckpointId(id_of(step)))?)))
}

/// Returns a checkpoint and the steps of its segment before it, oldest first: the newest ones, if they are many.
async fn newest_steps(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    checkpoint: CheckpointId,
) -> DbResult<Vec<StepRow>> {
    // Subqueries instead of a join: Postgres could begin the join with the steps, and look for the checkpoint among all
    // steps for each of them. Compared by `=`, the lane could have it look for the checkpoint in the index of lanes.
    const OF_CHECKPOINT: &str = " from checkpoints upto where upto.thread_id = $2 and upto.checkpoint_id = $1 \
        and upto.lane is not distinct from $3)";
    const SQL: &str = concatcp!(
        "select step.checkpoint_id, step.parent_id, step.seq, step.segment, step.writes from checkpoints step \
         where step.thread_id = $2 and step.lane = $3 and step.seq >= (select upto.segment",
        OF_CHECKPOINT,
        " and step.seq <= (select upto.seq",
        OF_CHECKPOINT,
        " and step.segment = (select upto.segment",
        OF_CHECKPOINT,
        " order by step.seq desc limit $4"
    );
    let statement = tx.statement(SQL).bind(checkpoint.0).bind(thread.0);
    let statement = statement.bind(IdColumn(lane)).bind(MAX_STEPS);
    let mut rows: Vec<StepRow> = statement.fetch_all().await?;
    rows.reverse();
    Ok(rows)
}

/// The steps of a segment before those that were read.
#[derive(Default)]
struct OlderSteps {
    /// True if there are any.
    is_any: bool,
    /// The checkpoint before the oldest of them that was looked at.
    parent: Option<CheckpointId>,
    /// The nearest state in the cache.
    base: Option<Arc<State>>,
    /// The steps after that state, or all.
    unread: Option<UnreadSteps>,
}

/// Returns the steps in a part of a lane that belong to the segment with which the part begins, back to the nearest state in
/// the cache. A lane may have tens of thousands of steps, so only some of their ids are in memory at once.
async fn older_steps(tx: &mut Tx<'_>, span: Span) -> DbResult<OlderSteps> {
    let mut older = OlderSteps::default();
    let mut left = span;
    // The oldest step so far, if its row has no parent and is not the first of the segment.
    let mut without_parent = None;
    loop {
        let mut ids = newest_ids(tx, left).await?;
        let Some(oldest) = ids.first() else {
            return without_parent.map_or(Ok(older), |id| Err(missing_ancestor(id)));
        };
        older.is_any = true;
        older.parent = oldest.parent_id.map(CheckpointId);
        let lacks_first = older.parent.is_none() && oldest.seq > span.first;
        without_parent = lacks_first.then_some(CheckpointId(oldest.checkpoint_id));
        left.last = oldest.seq - 1;
        let is_full = ids.len() >= usize::try_from(MAX_STEPS).unwrap_or(usize::MAX);
        older.base = nearest_state(tx, &ids, |row| row.checkpoint_id).map(|(at, state)| {
            ids.drain(..=at);
            state
        });
        if let (Some(oldest), Some(newest)) = (ids.first(), ids.last()) {
            let unread = older.unread.get_or_insert(UnreadSteps {
                segment: span.first,
                span: Span {
                    last: newest.seq,
                    ..span
                },
                count: 0,
            });
            unread.span.first = oldest.seq;
            unread.count += ids.len();
        }
        if older.base.is_some() {
            return Ok(older);
        }
        if !is_full {
            return without_parent.map_or(Ok(older), |id| Err(missing_ancestor(id)));
        }
    }
}

/// Returns the newest of the steps in a part of a lane that belong to the segment with which the part begins, oldest first.
async fn newest_ids(tx: &mut Tx<'_>, span: Span) -> DbResult<Vec<StepId>> {
    const SQL: &str = "select checkpoint_id, parent_id, seq from checkpoints \
        where thread_id = $1 and lane = $2 and segment = $3 and seq >= $3 and seq <= $4 order by seq desc limit $5";
    let mut ids: Vec<StepId> = on_engine!(tx, |conn| query_as(SQL)
        .bind(span.thread.0)
        .bind(IdColumn(span.lane))
        .bind(span.first)
        .bind(span.last)
        .bind(MAX_STEPS)
        .fetch_all(conn)
        .await)?;
    ids.reverse();
    Ok(ids)
}

/// Returns the first of these steps, oldest first.
async fn first_of(tx: &mut Tx<'_>, steps: UnreadSteps) -> DbResult<Vec<StepRow>> {
    const SQL: &str = "select checkpoint_id, parent_id, seq, segment, writes from checkpoints \
        where thread_id = $1 and lane = $2 and segment = $3 and seq >= $4 and seq <= $5 order by seq limit $6";
    Ok(on_engine!(tx, |conn| query_as(SQL)
        .bind(steps.span.thread.0)
        .bind(IdColumn(steps.span.lane))
        .bind(steps.segment)
        .bind(steps.span.first)
        .bind(steps.span.last)
        .bind(MAX_STEPS)
        .fetch_all(conn)
        .await)?)
}
