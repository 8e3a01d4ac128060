//! Delivery of resolutions: a run that continues a thread brings them to the agents that raised the interrupts.

use super::cancel::unreported;
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::Machine;
use crate::domain::run::Resume;

/// Prepares the agents of a thread for run `by`, before it loads them: the callers of cancelled subagents continue,
/// answers are stored with the agents that wait for them, and all agents above those continue. Repeating it after a
/// crash changes nothing. An answer goes only to the interrupt for which it was given, not to one that was raised again
/// since.
pub(in crate::runtime) async fn deliver(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    by: RunId,
    answers: Option<&Resume>,
) -> DbResult<()> {
    let positions = LanePositions(thread);
    for child in unreported(tx, thread).await? {
        positions.unpark_ancestors(tx, Lane::Child(child), by).await?;
    }
    for (id, answer) in answers.into_iter().flatten() {
        let found = db::interrupts::find(tx, thread, id).await?;
        let Some(record) = found.filter(|record| record.resumed_by == Some(by)) else {
            continue;
        };
        let mut machine = positions.read(tx, record.lane).await?;
        if machine.resolve(id, answer.clone()) {
            positions.write(tx, &machine, by).await?;
            positions.unpark_ancestors(tx, record.lane, by).await?;
        }
    }
    Ok(())
}

/// Returns whether none of these interrupts has the answer of run `by`, which has not begun: the thread went on without
/// it. Once the run has begun, it may have raised them again.
pub(in crate::runtime) async fn is_late(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    by: RunId,
    ids: &[InterruptId],
) -> DbResult<bool> {
    if db::runs::first_seq(tx, by).await?.is_some() {
        return Ok(false);
    }
    for id in ids {
        let found = db::interrupts::find(tx, thread, id).await?;
        if found.is_some_and(|record| record.resumed_by == Some(by)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the open interrupts of an agent and of the subagents for which it waits.
pub(in crate::runtime) async fn open_interrupts(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
) -> DbResult<Vec<Interrupt>> {
    let mut open = vec![];
    let mut lanes = vec![lane];
    while let Some(lane) = lanes.pop() {
        let machine = LanePositions(thread).read(tx, lane).await?;
        open.extend(machine.open_questions().cloned());
        lanes.extend(machine.parked_children().into_iter().rev().map(Lane::Child));
    }
    Ok(open)
}

/// Returns the history of the agent that delegated to `child`.
pub(super) async fn caller_lane(tx: &mut Tx<'_>, child: RunId) -> DbResult<Lane> {
    let run = db::runs::get_by_id(tx, child).await?;
    Ok(match run.map(|run| run.lineage) {
        Some(lineage) if lineage.depth > 1 => lineage.parent.map_or(Lane::Main, Lane::Child),
        Some(_) | None => Lane::Main,
    })
}

/// The positions of the agents of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct LanePositions(pub(super) ThreadId);

impl LanePositions {
    /// Returns the machine of an agent with its position, without its state.
    pub(super) async fn read(self, tx: &mut Tx<'_>, lane: Lane) -> DbResult<Machine> {
        let head = db::checkpoints::head(tx, self.0, lane).await?;
        Ok(head.map_or_else(Machine::default, |head| Machine {
            head: Some(head.id),
            step: Some(head.step),
            position: head.position,
            ..Machine::default()
        }))
    }

    /// Stores the position of an agent on behalf of run `by`.
    async fn write(self, tx: &mut Tx<'_>, machine: &Machine, by: RunId) -> DbResult<()> {
        if let Some(head) = machine.head {
            db::checkpoints::set_position(tx, self.0, head, &machine.position, by).await?;
        }
        Ok(())
    }

    /// Lets the agent of `lane` continue with `child`.
    pub(super) async fn unpark(self, tx: &mut Tx<'_>, lane: Lane, child: RunId, by: RunId) -> DbResult<()> {
        let mut machine = self.read(tx, lane).await?;
        machine.unpark(child);
        self.write(tx, &machine, by).await
    }

    /// Lets all agents above `lane` that wait for it continue.
    async fn unpark_ancestors(self, tx: &mut Tx<'_>, mut lane: Lane, by: RunId) -> DbResult<()> {
        while let Lane::Child(child) = lane {
            lane = caller_lane(tx, child).await?;
            self.unpark(tx, lane, child, by).await?;
        }
        Ok(())
    }
}
