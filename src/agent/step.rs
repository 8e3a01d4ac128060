//! Used by all parts of a step: its writes, the reasons why it ends early, and the ids of its messages.

use std::sync::Arc;

use uuid::Uuid;

use super::journal::{ExitReason, PendingWrite};
use crate::domain::id::CheckpointId;
use crate::domain::machine::{Failure, Machine};
use crate::domain::state::Update;
use crate::tool::Halt;

/// Writes that are not committed yet.
pub(super) type PendingWrites = Vec<PendingWrite>;

/// Creates the failure for a question that no client can answer.
pub(super) fn unanswerable_question() -> Failure {
    Failure::new("RuntimeError", "an interrupt was raised where no client can answer it")
}

/// The reason why a step ended early.
pub(super) enum StepError {
    /// A policy, tool or model halted the step.
    Halted(Halt),
    /// The loop has to be left.
    Stopped(ExitReason),
}

impl From<Halt> for StepError {
    fn from(halt: Halt) -> Self {
        Self::Halted(halt)
    }
}

impl From<ExitReason> for StepError {
    fn from(stop: ExitReason) -> Self {
        Self::Stopped(stop)
    }
}

/// Creates the failure for a run whose agent has another definition now than when its step began: another assistant goes on
/// with the step, or the definition was changed.
pub(super) fn definition_changed(how: &str) -> StepError {
    let message = format!(
        "the step began with another definition of the agent: {how}. Go on with the assistant whose agent began it, or \
         send a new message as `input`"
    );
    Halt::Fail(Failure::new("DefinitionChangedError", message)).into()
}

/// Returns the number of the current step.
pub(super) fn next_step(machine: &Machine) -> i64 {
    machine.step.map_or(0, |step| step + 1)
}

/// Creates the id of a model's message, in the form that clients expect.
pub(super) fn mint_answer_id() -> String {
    format!("lc_run--{}", CheckpointId::mint())
}

/// Gives every message of an update an id.
#[expect(
    clippy::disallowed_methods,
    reason = "clients compare messages with their own, whose ids have no order"
)]
pub fn with_ids(mut update: Update) -> Update {
    for message in update.messages.iter_mut().filter(|m| m.id.is_none()) {
        Arc::make_mut(message).id = Some(Uuid::new_v4().to_string());
    }
    update
}
