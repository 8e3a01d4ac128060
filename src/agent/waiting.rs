//! The interrupts for which an agent waits when its run ends.
//!
//! An interrupt outlives the run that raised it: a run that answers one of two, or only continues, ends waiting for the
//! others. Such a run reports the open interrupts once more, for clients that read nothing but this run.

use std::sync::Arc;

use super::Loop;
use super::journal::{ExitReason, PendingWrite, WaitingAgent};
use super::step::PendingWrites;
use crate::domain::id::{InterruptId, RunId};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::Machine;

/// The interrupts and the child runs for which an agent waited when its loop began.
pub(super) struct WaitedFor {
    /// Its own open interrupts.
    own: Vec<InterruptId>,
    /// The child runs that were parked.
    children: Vec<RunId>,
}

impl WaitedFor {
    pub(super) fn of(machine: &Machine) -> Self {
        Self {
            own: machine.open_questions().map(|asked| asked.id.clone()).collect(),
            children: machine.parked_children(),
        }
    }
}

impl Loop<'_> {
    /// Returns the open interrupts of this agent and of the subagents for which it waits. Those for which it waited
    /// `before` are added to `pending` again: nothing else in this run says that they are open.
    pub(super) async fn open_questions(
        &self,
        machine: &Machine,
        before: &WaitedFor,
        pending: &mut PendingWrites,
    ) -> Result<Vec<Interrupt>, ExitReason> {
        let mut open: Vec<Interrupt> = machine.open_questions().cloned().collect();
        let is_old = |asked: &&Interrupt| before.own.contains(&asked.id);
        let mut repeated: Vec<Interrupt> = open.iter().filter(is_old).cloned().collect();
        for child in machine.parked_children() {
            let waiting = self.journal.waiting_agents(child).await?;
            let asked: Vec<Interrupt> = waiting.iter().flat_map(|agent| agent.open.iter().cloned()).collect();
            if before.children.contains(&child) {
                pending.extend(repeated_below(&waiting));
                repeated.extend_from_slice(&asked);
            }
            open.extend(asked);
        }
        if !repeated.is_empty() {
            pending.push(PendingWrite::Repeated {
                agent: None,
                head: machine.head,
                carried_from: machine.position.carried_from,
                interrupts: repeated,
            });
        }
        Ok(open)
    }
}

/// Returns the events of subagents that wait, callers last. As when the interrupts were raised, an agent repeats those of
/// the agents below it.
fn repeated_below(waiting: &[WaitingAgent]) -> Vec<PendingWrite> {
    let event = |agent: &WaitingAgent| {
        let is_below = |other: &&WaitingAgent| other.origin.namespace.starts_with(&agent.origin.namespace);
        let below = waiting.iter().filter(is_below);
        PendingWrite::Repeated {
            agent: Some(Arc::clone(&agent.origin)),
            head: agent.head,
            carried_from: agent.carried_from,
            interrupts: below.flat_map(|other| other.open.iter().cloned()).collect(),
        }
    };
    waiting.iter().rev().map(event).collect()
}
