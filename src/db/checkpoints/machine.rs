//! Restores machines from checkpoints: the state, phase and pending tasks of an agent.

use sqlx::{query_as, query_scalar};
use uuid::Uuid;

use super::super::engine::{IdColumn, on_engine};
use super::{DbResult, Head, Tx, cell, find_head, head, load_state, node_of_stored, with_parents};
use crate::db::codec::blobs::{self, StoredText};
use crate::db::row::from_row;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::machine::{Machine, START};
use crate::domain::state::{State, Update};
use crate::domain::summarization;

/// Returns the machine at the newest checkpoint of a lane, and the segment that its next checkpoint continues. A lane
/// without checkpoints has a new machine.
pub async fn machine(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<(Machine, Option<i64>)> {
    let newest = head(tx, thread, lane).await?;
    machine_of(tx, thread, newest).await
}

/// Returns the same as [`machine`] at a checkpoint that was already read, if there is one.
pub async fn machine_of(tx: &mut Tx<'_>, thread: ThreadId, found: Option<Head>) -> DbResult<(Machine, Option<i64>)> {
    match found {
        Some(head) => {
            let segment = head.segment;
            Ok((restore(tx, thread, head).await?, Some(segment)))
        }
        None => Ok((Machine::default(), None)),
    }
}

/// Returns the machine at a checkpoint, ready to replay from it; a new machine if the checkpoint does not exist.
pub async fn machine_at(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Machine> {
    let machine = machine_as_left(tx, thread, checkpoint).await?;
    Ok(Machine {
        position: machine.position.replayed(),
        ..machine
    })
}

/// Returns the machine at a checkpoint as its step was left, with its interrupts and answers; a new machine if the
/// checkpoint does not exist.
pub async fn machine_as_left(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Machine> {
    match find_head(tx, thread, checkpoint).await? {
        Some(head) => restore(tx, thread, head).await,
        None => Ok(Machine::default()),
    }
}

/// Returns the same as [`machine_of`], if the state at the checkpoint is in memory; none otherwise.
pub fn machine_in_memory(tx: &Tx<'_>, found: Option<Head>) -> Option<(Machine, Option<i64>)> {
    let Some(head) = found else {
        return Some((Machine::default(), None));
    };
    let segment = head.segment;
    let state = tx.states.get(head.id)?;
    Some((at(head, State::clone(&state)), Some(segment)))
}

async fn restore(tx: &mut Tx<'_>, thread: ThreadId, head: Head) -> DbResult<Machine> {
    let state = load_state(tx, thread, head.lane, &head).await?;
    Ok(at(head, state))
}

/// Returns the machine at a checkpoint with this state.
fn at(head: Head, state: State) -> Machine {
    Machine {
        state,
        head: Some(head.id),
        step: Some(head.step),
        position: head.position,
    }
}

from_row! {
    /// A step that wrote an input.
    struct InputRow {
        checkpoint_id: Uuid,
        writes: String,
    }
}

/// Returns the input of a subagent's lane; none if the lane has no checkpoint yet.
pub async fn input_of(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<Update>> {
    const SQL: &str = "select checkpoint_id, writes from checkpoints \
        where thread_id = $1 and lane = $2 and node in ($3, '') and source = 'loop' order by seq limit 1";
    let row: Option<InputRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(IdColumn(lane))
        .bind(START)
        .fetch_optional(conn)
        .await)?;
    read_input(tx, thread, row).await
}

/// Returns the input of the turn that begins after the checkpoint `before` of the main agent; none if the checkpoint is
/// not that before an input.
pub async fn input_after(tx: &mut Tx<'_>, thread: ThreadId, before: CheckpointId) -> DbResult<Option<Update>> {
    // The step is mostly the next one, so the search by number ends at once.
    const SQL: &str = "select checkpoint_id, writes from checkpoints \
        where thread_id = $1 and lane = $2 and node in ($4, '') and source = 'loop' \
        and seq > (select first.seq from checkpoints first where first.thread_id = $1 and first.checkpoint_id = $3) \
        and {parent} = $3 order by seq limit 1";
    let sql = with_parents!(tx, SQL);
    let row: Option<InputRow> = on_engine!(tx, |conn| query_as(sql)
        .bind(thread.0)
        .bind(IdColumn(Lane::Main))
        .bind(before.0)
        .bind(START)
        .fetch_optional(conn)
        .await)?;
    read_input(tx, thread, row).await
}

async fn read_input(tx: &mut Tx<'_>, thread: ThreadId, row: Option<InputRow>) -> DbResult<Option<Update>> {
    let Some(mut row) = row else {
        return Ok(None);
    };
    let writes = StoredText {
        cell: cell("writes", &row.checkpoint_id),
        text: &mut row.writes,
    };
    blobs::restore(tx, thread, vec![writes]).await?;
    let updates: Vec<Update> = cell("writes", &row.checkpoint_id).decode(&row.writes)?;
    Ok(Some(updates.into_iter().fold(Update::none(), |mut sum, update| {
        sum.merge(update);
        sum
    })))
}

/// Returns the node that took the last step up to a checkpoint of a thread; none if no checkpoint of a step is left. A fork and a
/// compaction are no steps.
pub async fn last_node(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<String>> {
    const SQL: &str = "with recursive way(parent, node, is_step) as (\
        select {parent}, node, source <> 'fork' and node <> $3 from checkpoints \
        where checkpoint_id = $1 and thread_id = $2 \
        union all select {parent}, checkpoints.node, checkpoints.source <> 'fork' and checkpoints.node <> $3 \
        from way join checkpoints on checkpoints.checkpoint_id = way.parent \
        where checkpoints.thread_id = $2 and not way.is_step) \
        select node from way where is_step";
    let sql = with_parents!(tx, SQL);
    let stored: Option<String> = on_engine!(tx, |conn| query_scalar(sql)
        .bind(checkpoint.0)
        .bind(thread.0)
        .bind(summarization::NODE)
        .fetch_optional(conn)
        .await)?;
    Ok(stored.map(node_of_stored))
}
