//! The positions of the agents of a thread that wait.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::db::runs::LaterUnreported;
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::machine::Machine;

/// The positions of the agents of a thread.
#[derive(Debug, Clone, Copy)]
pub(in crate::runtime) struct LanePositions {
    pub(super) thread: ThreadId,
    /// The checkpoint at which the main agent is; none for its newest.
    pub(super) branch: Option<CheckpointId>,
}

impl LanePositions {
    /// The positions with the main agent at `branch`, or at its newest checkpoint.
    pub(in crate::runtime) fn at(thread: ThreadId, branch: Option<CheckpointId>) -> Self {
        Self { thread, branch }
    }

    /// The same positions, without the checkpoint of the main agent if that is its newest one.
    pub(super) fn or_newest(self, newest: Option<CheckpointId>) -> Self {
        let branch = self
            .branch
            .filter(|branch| newest.is_some_and(|newest| newest != *branch));
        Self { branch, ..self }
    }

    /// Returns whether the main agent is at its newest checkpoint.
    pub(super) fn are_newest(self) -> bool {
        self.branch.is_none()
    }

    /// Returns the ids of the interrupts without an answer, of the main agent and of the subagents for which it waits.
    pub(super) async fn waiting(self, tx: &mut Tx<'_>) -> DbResult<BTreeSet<InterruptId>> {
        let mut waiting = BTreeSet::new();
        let mut lanes = vec![Lane::Main];
        while let Some(lane) = lanes.pop() {
            let machine = self.read(tx, lane).await?;
            waiting.extend(machine.open_questions().map(|asked| asked.id.clone()));
            lanes.extend(machine.position.delegated().into_iter().map(Lane::Child));
        }
        Ok(waiting)
    }

    /// Stores the answer to an interrupt with the agent that waits for it, on behalf of run `by`, and lets the agents above it
    /// continue.
    pub(in crate::runtime) async fn give(
        self,
        tx: &mut Tx<'_>,
        lane: Lane,
        id: &InterruptId,
        answer: &Value,
        by: RunId,
    ) -> DbResult<()> {
        let mut machine = self.read(tx, lane).await?;
        if machine.resolve(id, answer.clone()) {
            self.write(tx, &machine, by).await?;
            self.unpark_ancestors(tx, lane, by).await?;
        }
        Ok(())
    }

    /// Returns the machine of an agent with its position, without its state.
    pub(super) async fn read(self, tx: &mut Tx<'_>, lane: Lane) -> DbResult<Machine> {
        let head = match (lane, self.branch) {
            (Lane::Main, Some(branch)) => {
                let found = db::checkpoints::find_head(tx, self.thread, branch).await?;
                found.filter(|found| found.lane == Lane::Main)
            }
            (Lane::Main, None) | (Lane::Child(_), _) => db::checkpoints::head(tx, self.thread, lane).await?,
        };
        Ok(head.map_or_else(Machine::default, |head| Machine {
            head: Some(head.id),
            step: Some(head.step),
            position: head.position,
            ..Machine::default()
        }))
    }

    /// Stores the position of an agent on behalf of run `by`.
    pub(super) async fn write(self, tx: &mut Tx<'_>, machine: &Machine, by: RunId) -> DbResult<()> {
        if let Some(head) = machine.head {
            db::checkpoints::set_position(tx, self.thread, head, &machine.position, by).await?;
        }
        Ok(())
    }

    /// Lets the agent of `lane` continue with `child`.
    pub(in crate::runtime) async fn unpark(self, tx: &mut Tx<'_>, lane: Lane, child: RunId, by: RunId) -> DbResult<()> {
        let mut machine = self.read(tx, lane).await?;
        machine.unpark(child);
        self.write(tx, &machine, by).await
    }

    /// Lets all agents above `lane` that wait for it continue.
    pub(super) async fn unpark_ancestors(self, tx: &mut Tx<'_>, mut lane: Lane, by: RunId) -> DbResult<()> {
        while let Lane::Child(child) = lane {
            lane = caller_lane(tx, child).await?;
            self.unpark(tx, lane, child, by).await?;
        }
        Ok(())
    }
}

/// Returns those of the cancelled subagents of a thread whose callers still wait for them.
pub(in crate::runtime) async fn waited_for(
    tx: &mut Tx<'_>,
    positions: LanePositions,
    cancelled: LaterUnreported,
) -> DbResult<Vec<RunId>> {
    let mut unreported = vec![];
    for child in cancelled.read(tx).await? {
        let caller = caller_lane(tx, child).await?;
        if positions.read(tx, caller).await?.waits_for(child) {
            unreported.push(child);
        }
    }
    Ok(unreported)
}

/// Returns the history of the agent that delegated to `child`.
pub(in crate::runtime) async fn caller_lane(tx: &mut Tx<'_>, child: RunId) -> DbResult<Lane> {
    let run = db::runs::get_by_id(tx, child).await?;
    let caller = run.and_then(|run| run.lineage.calling_subagent());
    Ok(caller.map_or(Lane::Main, Lane::Child))
}
