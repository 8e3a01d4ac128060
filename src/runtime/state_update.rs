//! Writes into the state of a thread from outside the loop.

use std::sync::Arc;

use serde_json::Value;

use super::error::StateWriteError;
use super::interrupts;
use super::registry::Registry;
use super::shared::Core;
use crate::agent::Agent;
use crate::db::checkpoints::NewCheckpoint;
use crate::db::{self, DbResult, Tx};
use crate::definition::DefinitionDigest;
use crate::domain::Invalid;
use crate::domain::checkpoint::Entry;
use crate::domain::checkpoint::{CheckpointSource, Lane};
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::input::read_update;
use crate::domain::machine::{Destination, END, MODEL, Machine, Phase, Plan, Position, START, TOOLS};
use crate::domain::run::RunCaller;
use crate::domain::size::{self, SizeLimits};
use crate::domain::state::{State, Update};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// A write into the state of a thread from outside the loop.
#[derive(Debug, Clone)]
pub struct StateWrite {
    /// The values: an object, a list of objects, or null.
    pub values: Value,
    /// The node on whose behalf the values are written.
    pub as_node: Option<String>,
    /// The checkpoint to write onto, when not the newest.
    pub checkpoint: Option<CheckpointId>,
    /// The caller who writes.
    pub caller: Arc<Identity>,
}

/// A step of a history from a client.
#[derive(Debug, Clone)]
pub struct Superstep {
    /// The writes, one for each node.
    pub updates: Vec<NodeWrite>,
}

/// The write of a node, in a history from a client.
#[derive(Debug, Clone)]
pub struct NodeWrite {
    /// An object, a list of objects, or null.
    pub values: Value,
    /// The node; `__input__` for the input of a turn. When none, the node of the write before, or the input for the
    /// first write.
    pub node: Option<String>,
}

/// A write into the state of a thread that was read and checked before the transaction.
pub(super) struct CheckedWrite {
    update: Update,
    as_node: Option<String>,
    checkpoint: Option<CheckpointId>,
    /// The caller who writes; none without authentication.
    caller: Option<RunCaller>,
    /// The definition by which the write was checked; none if the thread has no agent.
    digest: Option<DefinitionDigest>,
    sizes: SizeLimits,
}

/// Reads and checks a write into the state of a thread, outside of the threads that serve requests.
///
/// # Errors
/// Returns the refusal of the write.
pub(super) async fn precheck(
    core: &Core,
    thread: ThreadId,
    write: StateWrite,
) -> Result<CheckedWrite, StateWriteError> {
    let registry = Arc::clone(&core.registry);
    let found = core.db.read(move |tx| {
        Box::pin(async move {
            match db::threads::find(tx, thread).await? {
                Some(found) => registry.of_thread(tx, &found).await.map(Some),
                None => Ok(None),
            }
        })
    });
    let known = found.await?.ok_or(StateWriteError::NoThread(thread))?;
    let sizes = core.sizes;
    let checking = db::off_thread(move |_| -> Result<CheckedWrite, Invalid> {
        let StateWrite {
            values,
            as_node,
            checkpoint,
            caller,
        } = write;
        let update = crate::agent::identified(read_update(&values)?);
        sizes.check_files(&update)?;
        if let Some(known) = &known {
            known.agent().check_update(&update)?;
        }
        let digest = known.map(|known| known.digest.clone());
        Ok(CheckedWrite {
            update,
            as_node,
            checkpoint,
            caller: RunCaller::of(&caller),
            digest,
            sizes,
        })
    });
    Ok(checking.await??)
}

/// Writes a checkpoint with the source `update`, or refuses.
pub(super) async fn write(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    write: CheckedWrite,
    registry: &Registry,
    now: Timestamp,
) -> Result<CheckpointId, StateWriteError> {
    let Some(found) = db::threads::lock(tx, thread).await? else {
        return Err(StateWriteError::NoThread(thread));
    };
    let in_flight = db::runs::ids_in_flight(tx, thread).await?;
    if !in_flight.is_empty() {
        return Err(StateWriteError::InFlight(in_flight));
    }
    let CheckedWrite {
        update,
        as_node,
        checkpoint,
        caller,
        digest,
        sizes,
    } = write;
    // An update as the node of the input is written as the start of a turn.
    let as_node = as_node.map(|node| if node == INPUT { START.to_owned() } else { node });
    let ends = as_node.as_deref() == Some(END);
    // The end alone withdraws open questions, which needs no approver.
    if !ends || !update.is_empty() {
        let way = interrupts::check_way(tx, thread, caller.as_ref(), None).await?;
        way.map_err(StateWriteError::WaitsForApprovers)?;
    }
    let known = registry.of_thread(tx, &found).await?;
    if let Some(known) = &known
        && digest.as_ref() != Some(&known.digest)
    {
        known.agent().check_update(&update)?;
    }
    // Without an agent there are no hooks.
    let plan = known.map(|known| known.agent().plan.clone()).unwrap_or_default();
    let Base {
        mut machine,
        segment,
        fork,
        last,
    } = load_base(tx, thread, checkpoint).await?;
    if is_too_large(&machine.state, &update, sizes.state) {
        let reason = format!("would make the state of the thread larger than {} bytes", sizes.state);
        return Err(Invalid::new("values", reason).into());
    }
    let node = as_node.as_deref().unwrap_or(&last);
    if !ends && !has_node(&plan, node) {
        return Err(StateWriteError::NoNode(node.to_owned()));
    }
    let seq = db::checkpoints::max_seq(tx, thread).await? + 1;
    let is_kept = !ends
        && machine.is_kept_by(&plan, as_node.as_deref(), &update)
        && interrupts::can_be_answered(tx, thread, fork).await?;
    match (ends, fork) {
        (true, _) => interrupts::drop_for_end(tx, thread, now).await?,
        (false, None) if !is_kept => interrupts::drop_for_update(tx, thread, now).await?,
        // Interrupts on other branches stay open, as after a run from an older checkpoint.
        (false, _) => {}
    }
    // Without `as_node` on a finished thread, no node follows.
    let is_aside = as_node.is_none() && machine.head.is_some() && machine.position.phase == Phase::Ended;
    let entry = if is_kept {
        machine.prepare_for_run();
        machine.carry_update(&plan, node, update, CheckpointId::mint())
    } else if is_aside {
        machine.append_update(&plan, update, CheckpointId::mint())
    } else {
        apply_as(&mut machine, &plan, node, update)
    };
    let placed = NewCheckpoint {
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
    let change = db::threads::ThreadChange {
        status: Some(match machine.position.phase == Phase::Ended {
            true => ThreadStatus::Idle,
            false => ThreadStatus::Interrupted,
        }),
        error: Some(None),
        state_changed: true,
        ..Default::default()
    };
    db::threads::set(tx, thread, change, now).await?;
    Ok(entry.id)
}

/// Returns whether a write would make a state larger than `most` bytes. One that is larger already may be made smaller.
fn is_too_large(state: &State, update: &Update, most: usize) -> bool {
    let before = size::of_state(state);
    if before.saturating_add(size::of_update(update)) <= most {
        return false;
    }
    // Messages and files that the update replaces or removes do not count any more.
    let mut after = state.clone();
    after.apply(update);
    let size = size::of_state(&after);
    size > most && size >= before
}

/// The checkpoint onto which a write goes.
struct Base {
    /// The agent there, with its interrupts and answers.
    machine: Machine,
    segment: Option<i64>,
    /// The checkpoint, if it is not the newest one.
    fork: Option<CheckpointId>,
    /// The node that took the last step.
    last: String,
}

async fn load_base(tx: &mut Tx<'_>, thread: ThreadId, from: Option<CheckpointId>) -> Result<Base, StateWriteError> {
    let newest = db::checkpoints::head(tx, thread, Lane::Main).await?;
    let fork = from.filter(|from| newest.as_ref().is_none_or(|head| head.id != *from));
    let found = match fork {
        Some(fork) => {
            let found = db::checkpoints::find_head(tx, thread, fork).await?;
            Some(found.ok_or(StateWriteError::NoCheckpoint(fork))?)
        }
        None => newest,
    };
    let (machine, continued) = db::checkpoints::machine_of(tx, thread, found).await?;
    // A fork begins a segment of its own.
    let segment = continued.filter(|_| fork.is_none());
    let last = match machine.head {
        Some(head) => db::checkpoints::last_node(tx, thread, head).await?,
        None => None,
    };
    Ok(Base {
        machine,
        segment,
        fork,
        last: last.unwrap_or_else(|| START.to_owned()),
    })
}

/// Applies an update as if `node` had written it. After the end nothing is left to do, like after a command with `goto` to
/// the end.
fn apply_as(machine: &mut Machine, plan: &Plan, node: &str, update: Update) -> Entry {
    let id = CheckpointId::mint();
    if node != END {
        return machine.apply_external(plan, CheckpointSource::Update, node, update, id);
    }
    machine.prepare_for_run();
    machine.jump_to(plan, &Destination::End);
    machine.append_update(plan, update, id)
}

fn has_node(plan: &Plan, node: &str) -> bool {
    if let Some(program) = plan.program {
        return [START, program].contains(&node);
    }
    let hooks = [
        &plan.before_agent,
        &plan.before_model,
        &plan.after_model,
        &plan.after_agent,
    ];
    [START, MODEL, TOOLS].contains(&node) || hooks.into_iter().flatten().any(|hook| hook == node)
}

/// The node under which clients write the input of a turn.
const INPUT: &str = "__input__";

/// Returns whether two steps are the two checkpoints of one input, as a history shows them: before and after the input
/// is written. The second step holds the values that are written.
fn repeats_input(superstep: &Superstep, next: &Superstep) -> bool {
    is_by_node(superstep, INPUT) && is_by_node(next, START) && !is_empty_step(next)
}

/// Returns whether all writes of a step are those of this node.
fn is_by_node(superstep: &Superstep, node: &str) -> bool {
    !superstep.updates.is_empty()
        && superstep
            .updates
            .iter()
            .all(|write| write.node.as_deref() == Some(node))
}

fn is_empty_step(superstep: &Superstep) -> bool {
    superstep.updates.iter().all(|write| write.values.is_null())
}

/// A history that a client brings for a new thread.
pub(super) struct History {
    steps: Vec<(Entry, Position)>,
    is_done: bool,
}

impl History {
    /// Applies the steps one after the other, as if the nodes had written them.
    ///
    /// # Errors
    /// Returns the refusal, which names the write that cannot be accepted, or the node that the agent does not have.
    pub(super) fn replayed(
        agent: Option<&Agent>,
        supersteps: &[Superstep],
        sizes: SizeLimits,
    ) -> Result<Self, StateWriteError> {
        // Without an agent there are no hooks.
        let plan = &agent.map(|agent| agent.plan.clone()).unwrap_or_default();
        let mut machine = Machine::default();
        let mut steps = vec![];
        let mut last = INPUT.to_owned();
        for (at, superstep) in supersteps.iter().enumerate() {
            if supersteps
                .get(at + 1)
                .is_some_and(|next| repeats_input(superstep, next))
            {
                continue;
            }
            if is_by_node(superstep, START)
                && at > 0
                && is_by_node(&supersteps[at - 1], INPUT)
                && is_empty_step(superstep)
            {
                continue;
            }
            let mut update = Update::none();
            for (number, write) in superstep.updates.iter().enumerate() {
                let wrong = |invalid: Invalid| {
                    let field = format!("supersteps[{at}].updates[{number}].values.{}", invalid.field);
                    Invalid { field, ..invalid }
                };
                let written = read_update(&write.values).map_err(wrong)?;
                sizes.check_files(&written).map_err(wrong)?;
                agent
                    .map_or(Ok(()), |agent| agent.check_update(&written))
                    .map_err(wrong)?;
                update.merge(written.ruled(&plan.rules));
                last = write.node.clone().unwrap_or(last);
            }
            let update = crate::agent::identified(update);
            if last == INPUT || last == START {
                let ids = [CheckpointId::mint(), CheckpointId::mint()];
                let [before, after] = machine.begin(plan, update, ids);
                steps.push((before, Position::default()));
                steps.push((after, machine.position.clone()));
                continue;
            }
            if last != END && !has_node(plan, &last) {
                return Err(StateWriteError::NoNode(last));
            }
            let entry = apply_as(&mut machine, plan, &last, update);
            steps.push((entry, machine.position.clone()));
        }
        if size::of_state(&machine.state) > sizes.state {
            let reason = format!("would make the state of the thread larger than {} bytes", sizes.state);
            return Err(Invalid::new("supersteps", reason).into());
        }
        let is_done = steps.is_empty() || machine.position.phase == Phase::Ended;
        Ok(Self { steps, is_done })
    }

    /// Returns whether the history is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Stores the history as that of a new thread.
    pub(super) async fn store(&self, tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<()> {
        let placed = self
            .steps
            .iter()
            .zip(1..)
            .map(|((entry, position), seq)| NewCheckpoint {
                thread,
                lane: Lane::Main,
                seq,
                segment: None,
                run: None,
                entry,
                position,
                at: now,
            });
        db::checkpoints::insert_all(tx, &placed.collect::<Vec<_>>()).await?;
        let status = (!self.is_done).then_some(ThreadStatus::Interrupted);
        db::threads::set(
            tx,
            thread,
            db::threads::ThreadChange {
                status,
                ..Default::default()
            },
            now,
        )
        .await?;
        Ok(())
    }
}
