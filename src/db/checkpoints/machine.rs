//! Checkpoints read back as machines, ready to go on.

use sqlx::query_scalar;

use super::super::engine::on_engine;
use super::super::json::Cell;
use super::{DbResult, Head, TABLE, Tx, find_head, head, lane_id, load_state};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::machine::{Machine, START};
use crate::domain::state::Update;

/// Where a lane stands, and the segment that its next checkpoint continues; a fresh machine if it has no checkpoint.
pub async fn machine(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<(Machine, Option<i64>)> {
    let newest = head(tx, thread, lane).await?;
    machine_of(tx, thread, newest).await
}

/// As [`machine`], when the newest checkpoint of the lane has been read already.
pub async fn machine_of(tx: &mut Tx<'_>, thread: ThreadId, newest: Option<Head>) -> DbResult<(Machine, Option<i64>)> {
    match newest {
        Some(head) => {
            let segment = head.segment;
            Ok((revive(tx, thread, head).await?, Some(segment)))
        }
        None => Ok((Machine::default(), None)),
    }
}

/// Where a lane stood at one of its checkpoints; a fresh machine if there is no such checkpoint.
pub async fn machine_at(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Machine> {
    match find_head(tx, thread, checkpoint).await? {
        Some(head) => {
            let machine = revive(tx, thread, head).await?;
            Ok(Machine {
                position: machine.position.replayed(),
                ..machine
            })
        }
        None => Ok(Machine::default()),
    }
}

async fn revive(tx: &mut Tx<'_>, thread: ThreadId, head: Head) -> DbResult<Machine> {
    let state = load_state(tx, thread, head.lane, &head).await?;
    Ok(Machine {
        state,
        head: Some(head.id),
        step: Some(head.step),
        position: head.position,
    })
}

/// What a child's lane began with, if it has begun.
pub async fn input_of(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<Update>> {
    const SQL: &str = "select writes from checkpoints \
        where thread_id = $1 and lane = $2 and node = $3 and source = 'loop' order by seq limit 1";
    let lane = lane_id(lane);
    let writes: Option<String> = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .bind(lane)
        .bind(START)
        .fetch_optional(conn)
        .await)?;
    let Some(writes) = writes else {
        return Ok(None);
    };
    let updates: Vec<Update> = Cell {
        table: TABLE,
        column: "writes",
        id: &lane,
    }
    .decode(&writes)?;
    Ok(Some(updates.into_iter().fold(Update::none(), |mut sum, update| {
        sum.merge(update);
        sum
    })))
}

/// The node that left a checkpoint of a thread.
pub async fn node_of(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<String>> {
    const SQL: &str = "select node from checkpoints where checkpoint_id = $1 and thread_id = $2";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(checkpoint.0)
        .bind(thread.0)
        .fetch_optional(conn)
        .await)?)
}
