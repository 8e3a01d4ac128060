//! Writes into the state of a thread from outside the loop.

use std::sync::Arc;

use serde_json::Value;

use super::{StateWrite, StateWriteError};
use crate::agent::assemble::Agents;
use crate::db::checkpoints::Placed;
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::{Lane, Source};
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::input::read_input;
use crate::domain::machine::{MODEL, Machine, Phase, Plan, START, TOOLS};
use crate::domain::state::Update;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

/// Writes, as one checkpoint with the source `update`, or refuses.
pub(super) async fn write(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    write: &StateWrite,
    (agents, now): (&Arc<Agents>, Timestamp),
) -> DbResult<Result<CheckpointId, StateWriteError>> {
    let Some(found) = db::threads::lock(tx, thread).await? else {
        return Ok(Err(StateWriteError::NoThread(thread)));
    };
    let in_flight = db::runs::in_flight(tx, thread).await?;
    if !in_flight.is_empty() {
        return Ok(Err(StateWriteError::InFlight(in_flight.iter().map(|run| run.id).collect())));
    }
    let update = match read_values(&write.values) {
        Ok(update) => crate::agent::identified(update),
        Err(invalid) => return Ok(Err(invalid.into())),
    };
    let plan = plan_of(agents, &found);
    let base = match base(tx, thread, write.checkpoint).await? {
        Ok(base) => base,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Base { mut machine, segment, last } = base;
    let node = write.as_node.clone().unwrap_or(last);
    if !knows(&plan, &node) {
        return Ok(Err(StateWriteError::NoNode(node)));
    }
    let seq = db::checkpoints::max_seq(tx, thread).await? + 1;
    // Nobody is named and nobody was at work: then nobody goes on because of it.
    let is_aside = write.as_node.is_none() && machine.head.is_some() && machine.position.phase == Phase::Ended;
    let entry = if is_aside {
        machine.noted(update, CheckpointId::mint())
    } else {
        machine.written(&plan, Source::Update, &node, update, CheckpointId::mint())
    };
    let placed = Placed {
        thread,
        lane: Lane::Main,
        seq,
        segment,
        run: None,
        entry: &entry,
        position: &machine.position,
        at: now,
    };
    db::checkpoints::insert(tx, &placed).await?;
    db::interrupts::drop_pending(tx, thread, None, now).await?;
    let done = machine.position.phase == Phase::Ended;
    let change = db::threads::ThreadChange {
        status: Some(if done { ThreadStatus::Idle } else { ThreadStatus::Interrupted }),
        error: Some(None),
        state_changed: true,
        ..Default::default()
    };
    db::threads::set(tx, thread, change, now).await?;
    Ok(Ok(entry.id))
}

/// What a write is written onto.
struct Base {
    machine: Machine,
    segment: Option<i64>,
    /// The node that wrote last.
    last: String,
}

async fn base(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    from: Option<CheckpointId>,
) -> DbResult<Result<Base, StateWriteError>> {
    let newest = db::checkpoints::head(tx, thread, Lane::Main).await?;
    let fork = from.filter(|from| newest.as_ref().is_none_or(|head| head.id != *from));
    let (machine, segment) = match fork {
        Some(fork) if db::checkpoints::find_head(tx, thread, fork).await?.is_none() => {
            return Ok(Err(StateWriteError::NoCheckpoint(fork)));
        }
        Some(fork) => (db::checkpoints::machine_at(tx, thread, fork).await?, None),
        None => db::checkpoints::machine(tx, thread, Lane::Main).await?,
    };
    let last = match machine.head {
        Some(head) => db::checkpoints::node_of(tx, head).await?.unwrap_or_else(|| START.to_owned()),
        None => START.to_owned(),
    };
    Ok(Ok(Base { machine, segment, last }))
}

/// The values of a write: an object, a list of objects, or nothing.
fn read_values(values: &Value) -> Result<Update, crate::domain::Invalid> {
    match values {
        Value::Null => Ok(Update::none()),
        Value::Array(list) => list.iter().try_fold(Update::none(), |mut sum, values| {
            sum.merge(read_input(values)?);
            Ok(sum)
        }),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => read_input(values),
    }
}

/// The hooks of the agent that last worked on the thread; without one, those of no agent.
fn plan_of(agents: &Agents, thread: &Thread) -> Plan {
    let graph = thread.metadata.get("graph_id").and_then(Value::as_str);
    graph.and_then(|graph| agents.of_graph(graph)).map(|known| known.agent.plan.clone()).unwrap_or_default()
}

fn knows(plan: &Plan, node: &str) -> bool {
    let hooks = [&plan.before_agent, &plan.before_model, &plan.after_model, &plan.after_agent];
    [START, MODEL, TOOLS].contains(&node) || hooks.into_iter().flatten().any(|hook| hook == node)
}
