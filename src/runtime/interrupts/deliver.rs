//! Delivery of resolutions: a run that continues a thread brings them to the agents that raised the interrupts.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::answered::{AnsweredWork, UsedRun, WaitingWork};
use super::branches::branch_to_continue;
use super::positions::{LanePositions, waited_for};
use crate::agent::WaitingAgent;
use crate::db::checkpoints::{Head, LogEnd, LogSummary};
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Origin;
use crate::domain::id::{CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::machine::Machine;
use crate::domain::run::Resume;

/// Prepares the agents of a thread for run `by`, before it loads them: the callers of cancelled subagents continue,
/// answers are stored with the agents that wait for them, and all agents above those continue. Repeating it after a
/// crash changes nothing. An answer goes only to the interrupt for which it was given, not to one that was raised again
/// since. `branch` is the checkpoint at which the interrupts wait, if that need not be the newest.
pub(in crate::runtime) async fn deliver(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    by: RunId,
    branch: Option<CheckpointId>,
    answers: Option<&Resume>,
) -> DbResult<Delivered> {
    let delivery = AnswerDelivery::find(tx, thread, by, branch, answers).await?;
    let branch = delivery.positions.branch;
    let end = match delivery.is_for_newest() {
        true => delivery.give_to_newest(tx).await?,
        false => {
            delivery.give(tx).await?;
            None
        }
    };
    Ok(Delivered { branch, end })
}

/// The answers and cancellations that a run brings, with the agents that wait for them.
pub(in crate::runtime) struct AnswerDelivery<'a> {
    by: RunId,
    positions: LanePositions,
    /// The cancelled subagents whose callers wait for them.
    cancelled: Vec<RunId>,
    answers: Vec<AnswerToGive<'a>>,
    summary: LogSummary,
    /// The newest checkpoint of the main agent.
    newest: Option<Head>,
}

/// The runs that a run with answers continues.
pub(in crate::runtime) struct ResumedRuns {
    /// The runs that brought answers, each with the run that has asked; none if they are many.
    pub(in crate::runtime) resumed: Option<HashMap<RunId, RunId>>,
    /// The usage of one of them, if that was read already.
    pub(in crate::runtime) used: Option<UsedRun>,
}

/// An answer with the history of the agent that waits for it.
struct AnswerToGive<'a> {
    lane: Lane,
    id: &'a InterruptId,
    answer: &'a Value,
}

impl<'a> AnswerDelivery<'a> {
    /// Looks for those to whom run `by` brings something, as [`deliver`] does. Nothing is changed.
    pub(in crate::runtime) async fn find(
        tx: &mut Tx<'_>,
        thread: ThreadId,
        by: RunId,
        branch: Option<CheckpointId>,
        answers: Option<&'a Resume>,
    ) -> DbResult<Self> {
        let log_end = db::checkpoints::log_end_later(tx, thread).await?;
        let cancelled = db::runs::unreported_later(tx, thread).await?;
        let mut recipients = vec![];
        for (id, answer) in answers.into_iter().flatten() {
            let recipient = db::interrupts::recipient_later(tx, thread, id).await?;
            recipients.push((id, answer, recipient));
        }
        let LogEnd { summary, newest } = log_end.read(tx).await?;
        let newest = newest?;
        let branch = branch_to_continue(tx, thread, branch, newest.as_ref()).await?;
        let positions = LanePositions::at(thread, branch);
        let cancelled = waited_for(tx, positions, cancelled).await?;
        let mut answers = vec![];
        for (id, answer, recipient) in recipients {
            let found = recipient.read(tx).await?;
            let found = found.filter(|found| found.resumed_by == Some(by));
            answers.extend(found.map(|found| AnswerToGive {
                lane: found.lane,
                id,
                answer,
            }));
        }
        Ok(Self {
            by,
            positions,
            cancelled,
            answers,
            summary,
            newest,
        })
    }

    /// Looks for those to whom run `by` brings the answers of a client, in the transaction that has stored them. Returns the runs that
    /// it continues, too. Nothing is changed.
    pub(in crate::runtime) async fn of_answered(
        tx: &mut Tx<'_>,
        thread: ThreadId,
        by: RunId,
        branch: Option<CheckpointId>,
        answers: Option<&'a Resume>,
        work: AnsweredWork,
    ) -> DbResult<(Self, ResumedRuns)> {
        let AnsweredWork { waiting, answered } = work;
        let WaitingWork {
            mut summary,
            newest,
            cancelled,
            mut resumed,
            used,
        } = *waiting;
        if let (Some(resumed), Some(last)) = (&mut resumed, answered.last) {
            resumed.insert(by, last.run);
        }
        summary.has_decisions |= answered.remembers;
        let branch = branch_to_continue(tx, thread, branch, newest.as_ref()).await?;
        let positions = LanePositions::at(thread, branch);
        let cancelled = waited_for(tx, positions, cancelled).await?;
        let given = answers.into_iter().flatten();
        let answers = given.filter_map(|(id, answer)| {
            let lane = *answered.lanes.get(id)?;
            Some(AnswerToGive { lane, id, answer })
        });
        let delivery = Self {
            by,
            positions,
            cancelled,
            answers: answers.collect(),
            summary,
            newest,
        };
        Ok((delivery, ResumedRuns { resumed, used }))
    }

    /// Returns whether only the main agent gets something, and the run continues from its newest checkpoint.
    pub(in crate::runtime) fn is_for_newest(&self) -> bool {
        let is_for_main = self.answers.iter().all(|given| given.lane == Lane::Main);
        self.positions.are_newest() && self.cancelled.is_empty() && is_for_main
    }

    /// Gives the answers to the main agent at its newest checkpoint. Returns the end of the log; none if the log is empty.
    pub(in crate::runtime) async fn give_to_newest(self, tx: &mut Tx<'_>) -> DbResult<Option<DeliveredEnd>> {
        let Some(head) = self.newest else { return Ok(None) };
        let mut machine = Machine {
            head: Some(head.id),
            step: Some(head.step),
            position: head.position,
            ..Machine::default()
        };
        let mut is_changed = false;
        for given in &self.answers {
            is_changed |= machine.resolve(given.id, given.answer.clone());
        }
        if is_changed {
            self.positions.write(tx, &machine, self.by).await?;
        }
        let newest = Head {
            position: machine.position,
            ..head
        };
        let summary = self.summary;
        Ok(Some(DeliveredEnd { summary, newest }))
    }

    /// Gives each agent what it gets.
    async fn give(self, tx: &mut Tx<'_>) -> DbResult<()> {
        for child in self.cancelled {
            self.positions.unpark_ancestors(tx, Lane::Child(child), self.by).await?;
        }
        for AnswerToGive { lane, id, answer } in self.answers {
            self.positions.give(tx, lane, id, answer, self.by).await?;
        }
        Ok(())
    }
}

/// The agents of a thread after what a run brings was delivered.
pub(in crate::runtime) struct Delivered {
    /// The older checkpoint from which the run continues, if it does not continue from the newest.
    pub(in crate::runtime) branch: Option<CheckpointId>,
    /// The end of the log from which it continues, if nothing but that was changed.
    pub(in crate::runtime) end: Option<DeliveredEnd>,
}

/// The end of the log of a thread.
pub(in crate::runtime) struct DeliveredEnd {
    pub(in crate::runtime) summary: LogSummary,
    /// The newest checkpoint of the main agent, with the answers that it has got.
    pub(in crate::runtime) newest: Head,
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
        let found = db::interrupts::recipient_later(tx, thread, id).await?;
        let found = found.read(tx).await?;
        if found.is_some_and(|found| found.resumed_by == Some(by)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns a subagent that waits and the subagents below for which it waits. A caller comes before those.
pub(in crate::runtime) async fn waiting_agents(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    child: RunId,
) -> DbResult<Vec<WaitingAgent>> {
    let mut waiting = vec![];
    let mut rest = vec![child];
    while let Some(id) = rest.pop() {
        let machine = LanePositions::at(thread, None).read(tx, Lane::Child(id)).await?;
        rest.extend(machine.parked_children().into_iter().rev());
        let Some(run) = db::runs::get_by_id(tx, id).await? else {
            continue;
        };
        waiting.push(WaitingAgent {
            origin: Arc::new(Origin::of(&run)),
            head: machine.head,
            carried_from: machine.position.carried_from,
            open: machine.open_questions().cloned().collect(),
        });
    }
    Ok(waiting)
}
