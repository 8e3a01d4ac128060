//! The compaction of a conversation that a client asks for, or that makes room in a state that is too large.

use super::journal::{ExitReason, PendingWrite};
use super::step::{PendingWrites, StepError, unanswerable_question, with_ids};
use super::waiting::WaitedFor;
use super::{Loop, LoopOutcome};
use crate::domain::id::CheckpointId;
use crate::domain::machine::{Failure, Machine, Phase};
use crate::domain::run::CompactionRequest;
use crate::domain::state::Update;
use crate::domain::summarization::NODE;
use crate::tool::Halt;

impl Loop<'_> {
    /// Compacts the conversation and ends the run. The position stays as it is: a thread that waits for an answer goes
    /// on waiting for it.
    ///
    /// # Errors
    /// As [`Loop::drive`]. The next process compacts the conversation again; nothing of it was stored before.
    pub async fn compact(
        &self,
        machine: &mut Machine,
        mut pending: PendingWrites,
        request: CompactionRequest,
    ) -> Result<LoopOutcome, ExitReason> {
        let written = {
            let work = Box::pin(self.compacted(machine, request));
            let work = self.leave.run_until_cancelled(work);
            self.with_progress(machine, &mut pending, work).await?
        };
        let update = match written.unwrap_or(Err(Halt::Stopped)) {
            Ok(update) => update,
            Err(Halt::Stopped) => {
                self.flush(machine, &mut pending).await?;
                return Err(ExitReason::Cancelled);
            }
            Err(halt) => {
                let failure = halt.failure().cloned().unwrap_or_else(unanswerable_question);
                let failed = LoopOutcome::Failed(failure);
                let outcome = self.waiting_or(machine, &mut pending, failed).await?;
                return self.end(machine, pending, outcome).await;
            }
        };
        if !update.is_empty() {
            let entry = machine.carry_update(&self.plan, NODE, update, CheckpointId::mint());
            pending.push(PendingWrite::entry(entry, machine));
        }
        let outcome = self.waiting_or(machine, &mut pending, LoopOutcome::Done).await?;
        self.end(machine, pending, outcome).await
    }

    /// Lets the older part of a conversation leave a state that is too large, if it can. The position stays as it is.
    pub(super) async fn make_room(&self, machine: &mut Machine, pending: &mut PendingWrites) -> Result<(), StepError> {
        let policy = self.agent.model_loop().and_then(|own| own.summarization.as_ref());
        let Some(policy) = policy else {
            return Ok(());
        };
        let made = {
            let work = Box::pin(policy.make_room(&self.scope, &machine.state));
            let work = self.leave.run_until_cancelled(work);
            self.with_progress(machine, pending, work).await?
        };
        let update = match made.unwrap_or(Err(Halt::Stopped)) {
            Ok(Some(compaction)) => with_ids(compaction.update()),
            // The state stays too large, which is the clearer failure.
            Ok(None) | Err(Halt::Fail(_)) => return Ok(()),
            Err(halt) => return Err(halt.into()),
        };
        self.state_size.record(&update);
        let entry = machine.carry_update(&self.plan, NODE, update, CheckpointId::mint());
        pending.push(PendingWrite::entry(entry, machine));
        // The model is asked next, whose step begins with what is committed.
        self.flush(machine, pending).await?;
        Ok(())
    }

    async fn compacted(&self, machine: &Machine, request: CompactionRequest) -> Result<Update, Halt> {
        let policy = self.agent.model_loop().and_then(|own| own.summarization.as_ref());
        let Some(policy) = policy else {
            let failure = Failure::new(
                "SummarizationError",
                "the agent's conversation is not summarised any more",
            );
            return Err(failure.into());
        };
        let compaction = policy
            .compact(&self.scope, &machine.state, request.keep_messages)
            .await?;
        let update = compaction.map_or_else(Update::none, |compaction| with_ids(compaction.update()));
        self.state_size.record(&update);
        Ok(update)
    }

    /// Returns the outcome of a thread that waits, or `outcome` if it waits for nothing. A failure would stop the
    /// subagents that wait.
    async fn waiting_or(
        &self,
        machine: &Machine,
        pending: &mut PendingWrites,
        outcome: LoopOutcome,
    ) -> Result<LoopOutcome, ExitReason> {
        if matches!(machine.position.phase, Phase::Start | Phase::Ended) {
            return Ok(outcome);
        }
        let open = self.open_questions(machine, &WaitedFor::of(machine), pending).await?;
        match open.is_empty() {
            true => Ok(LoopOutcome::Paused),
            false => Ok(LoopOutcome::Parked(open)),
        }
    }
}
