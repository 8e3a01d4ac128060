//! The request of a run, applied to the machine with which it begins: input, a command, or neither.

use serde_json::Value;

use super::ReadyMachine;
use super::load_state::StartingCheckpoint;
use crate::agent::PendingWrite;
use crate::db::DbResult;
use crate::domain::id::CheckpointId;
use crate::domain::input::{read_input, read_update};
use crate::domain::machine::{Destination, Machine, Phase, Plan, START};
use crate::domain::run::{Command, RunRequest};
use crate::domain::state::Update;
use crate::runtime::interrupts;
use crate::runtime::run_context::RunContext;

impl ReadyMachine {
    /// Applies the request of a run that has not stored a step yet.
    pub(super) async fn begin(
        &mut self,
        run_context: &RunContext,
        start: &StartingCheckpoint,
        stored: Option<Update>,
    ) -> DbResult<()> {
        let run = &run_context.run;
        self.begin_branch(&run.request, start);
        let Self {
            machine, notes, plan, ..
        } = self;
        if let Some(command) = &run.request.command {
            // The form was checked when the run was admitted. Nodes that the agent has lost since are ignored.
            let place = Destination::of(&command.goto, plan).unwrap_or_default();
            if place.as_ref().is_some_and(|place| abandons(machine, place)) {
                drop_waiting(run_context, start, machine).await?;
            }
            self.only_notes = apply_command(command, place.as_ref(), machine, plan, notes);
            return Ok(());
        }
        match (&run.request.input, stored) {
            (Some(input), _) => {
                drop_waiting(run_context, start, machine).await?;
                notes.extend(give_input(machine, plan, input));
            }
            (None, Some(stored)) => {
                let entry = machine.begin_again(plan, stored, CheckpointId::mint());
                notes.push(PendingWrite::entry(entry, machine));
            }
            (None, None) => machine.prepare_for_run(),
        }
        Ok(())
    }

    /// Begins a branch, if the run needs a checkpoint of its own before its first step.
    fn begin_branch(&mut self, request: &RunRequest, start: &StartingCheckpoint) {
        let machine = &mut self.machine;
        let goes_on_in_copy = machine.position.copied && request.input.is_none();
        let may_ask = match start {
            StartingCheckpoint::Newest => false,
            StartingCheckpoint::Older => {
                machine.repeat_program();
                may_ask_first(request, machine)
            }
            StartingCheckpoint::Branch(left) => {
                let stays = machine.position.clone().released();
                let entry = machine.carry_step(CheckpointId::mint());
                self.notes.push(PendingWrite::entry(entry, machine));
                // In the transaction that stores the branch, so that the step never waits at both.
                self.notes.push(PendingWrite::Left(*left, stays));
                return;
            }
        };
        if may_ask || goes_on_in_copy {
            let entry = machine.fork(CheckpointId::mint());
            self.notes.push(PendingWrite::entry(entry, machine));
        }
    }
}

/// Gives a machine the input of a run, whose form was checked when the run was admitted. Returns the writes.
pub(super) fn give_input(machine: &mut Machine, plan: &Plan, input: &Value) -> [PendingWrite; 2] {
    let input = crate::agent::identified(read_input(input).unwrap_or_default());
    let ids = [CheckpointId::mint(), CheckpointId::mint()];
    PendingWrite::input(machine, plan, input, ids)
}

/// Returns whether a run may raise an interrupt before it has stored a step of its own.
fn may_ask_first(request: &RunRequest, machine: &Machine) -> bool {
    match (&request.command, &request.input) {
        (Some(command), _) => command.update.is_none(),
        (None, Some(_)) => false,
        (None, None) => matches!(
            machine.position.phase,
            Phase::Hooks { .. } | Phase::Tools { .. } | Phase::Work { .. }
        ),
    }
}

/// Returns whether a jump to `place` abandons the work in progress.
fn abandons(machine: &Machine, place: &Destination) -> bool {
    !matches!(
        (&machine.position.phase, place),
        (Phase::Tools { .. }, Destination::Tools { own: true, .. })
    )
}

/// Applies a command. Returns true if there is nothing to drive after it.
fn apply_command(
    command: &Command,
    place: Option<&Destination>,
    machine: &mut Machine,
    plan: &Plan,
    notes: &mut Vec<PendingWrite>,
) -> bool {
    let update = command
        .update
        .as_ref()
        .and_then(|update| read_update(update).ok())
        .unwrap_or_default();
    let update = crate::agent::identified(update);
    // No later step could store the position: after the end none follows, and on a new thread the run may stop before
    // its first one.
    let ends = place == Some(&Destination::End);
    let begins = place.is_some() && machine.head.is_none();
    if ends {
        machine.jump_to(plan, &Destination::End);
    }
    if ends || begins || update != Update::none() {
        let id = CheckpointId::mint();
        // A jump elsewhere leaves the step that waits.
        let goes_on = place.is_none_or(|place| !abandons(machine, place));
        let entry = match goes_on {
            true => machine.carry_update(plan, START, update, id),
            false => machine.append_update(plan, update, id),
        };
        notes.push(PendingWrite::entry(entry, machine));
    }
    machine.prepare_for_run();
    if let Some(place) = place {
        machine.jump_to(plan, place);
    }
    place.is_none() && !command.resumes()
}

/// Drops the open interrupts and waiting subagents of the step at which a run begins, since new input abandons it. What
/// waits elsewhere waits on: a run that begins at an older checkpoint leaves a branch, and answers can continue it.
async fn drop_waiting(run_context: &RunContext, start: &StartingCheckpoint, machine: &Machine) -> DbResult<()> {
    let branch = match start {
        StartingCheckpoint::Newest => None,
        StartingCheckpoint::Older => return Ok(()),
        StartingCheckpoint::Branch(left) => Some(*left),
    };
    if matches!(machine.position.phase, Phase::Start | Phase::Ended) {
        return Ok(());
    }
    let thread = run_context.run.thread;
    let by = run_context.run.id;
    let now = run_context.core.clock.now();
    run_context
        .core
        .db
        .write(move |tx| Box::pin(interrupts::drop_for_input(tx, thread, branch, by, now)))
        .await
}
