//! Round and round: does what the machine says, and writes down what came of it.

use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use uuid::Uuid;

use super::answer::AnswerStream;
use super::call_ids::CallIdAllocator;
use super::journal::{ExitReason, PendingWrite};
use super::{Breakpoints, Loop, LoopOutcome, ModelLoop, ended};
use crate::domain::event::{AgentWork, AnswerHead, Chunk, Fact};
use crate::domain::foreign::admit_answer;
use crate::domain::id::{CheckpointId, TaskId};
use crate::domain::interrupt::InterruptSource;
use crate::domain::machine::{Failure, HookPoint, MODEL, Machine, Phase, Step, TOOLS};
use crate::domain::message::Message;
use crate::domain::run::RunStatus;
use crate::domain::state::Update;
use crate::middleware::{ModelAnswer, NextModel};
use crate::model::{ModelError, ModelEvent, ModelRequest};
use crate::tool::Halt;

/// What has been done but is not yet stored.
pub(super) type PendingWrites = Vec<PendingWrite>;

impl Loop<'_> {
    /// Goes round until the run ends or waits for somebody. `notes` is what led up to it (the input, that it began).
    ///
    /// Steps are stored before the world is touched again: before the model is asked, before a call runs, and at the end.
    /// Whatever is lost in between is done anew by the next process, and nobody has seen it.
    ///
    /// # Errors
    /// [`ExitReason`] when the loop was left early; what was stored is enough to go on.
    pub async fn drive(&self, machine: &mut Machine, mut notes: PendingWrites) -> Result<LoopOutcome, ExitReason> {
        // They are under way, although nobody works on them here.
        machine
            .parked_children()
            .iter()
            .for_each(|_| self.scope.budget.child_goes_on());
        // Who goes on has passed the breakpoint where it stands: it stopped there, or had left it before a crash.
        let mut passes = notes
            .iter()
            .any(|note| matches!(note, PendingWrite::Fact(Fact::Started { resumed: true, .. })));
        loop {
            let step = machine.next(&self.plan);
            // What is over is written down as over: nothing would be left to do that for a child found at its end.
            let goes_on = matches!(
                step,
                Step::RunHook(..) | Step::AskModel | Step::RunCalls(_) | Step::Work
            );
            if goes_on && (self.scope.stop.is_cancelled() || self.leave.is_cancelled()) {
                self.flush(machine, &mut notes).await?;
                return Err(ExitReason::Cancelled);
            }
            if !passes && self.stops_at(machine, &step) {
                notes.push(PendingWrite::Fact(Fact::Paused));
                return self.end(machine, notes, LoopOutcome::Paused).await;
            }
            passes = false;
            let done = match step {
                Step::End => return self.end(machine, notes, LoopOutcome::Done).await,
                Step::Fail(failure) => return self.fail(machine, notes, failure).await,
                Step::Park => {
                    let ending = LoopOutcome::Parked(self.open_questions(machine).await?);
                    return self.end(machine, notes, ending).await;
                }
                Step::RunHook(point, at) => self.run_hook(machine, &mut notes, point, at).await,
                Step::AskModel => {
                    self.flush(machine, &mut notes).await?;
                    self.ask_model(machine, &mut notes).await
                }
                Step::RunCalls(ready) => self.run_calls(machine, &mut notes, &ready).await,
                Step::Work => self.work(machine, &mut notes).await,
            };
            match done {
                Ok(()) => {}
                Err(StepError::Halted(Halt::Fail(failure))) => return self.fail(machine, notes, failure).await,
                Err(StepError::Halted(Halt::Stopped)) => {
                    self.flush(machine, &mut notes).await?;
                    return Err(ExitReason::Cancelled);
                }
                Err(StepError::Halted(Halt::Ask(_))) => {
                    return self.fail(machine, notes, unanswerable_question()).await;
                }
                Err(StepError::Stopped(stop)) => return Err(stop),
            }
            if self.stops_after(&notes) {
                notes.push(PendingWrite::Fact(Fact::Paused));
                return self.end(machine, notes, LoopOutcome::Paused).await;
            }
        }
    }

    /// Stores `notes` and ends the run without driving it.
    ///
    /// # Errors
    /// As [`Loop::drive`].
    pub async fn close(&self, machine: &Machine, notes: PendingWrites) -> Result<LoopOutcome, ExitReason> {
        self.end(machine, notes, LoopOutcome::Done).await
    }

    /// Stores what has been done so far.
    pub(super) async fn flush(&self, machine: &Machine, notes: &mut PendingWrites) -> Result<(), ExitReason> {
        let notes = std::mem::take(notes);
        if notes.is_empty() {
            Ok(())
        } else {
            self.journal.commit(machine, notes).await
        }
    }

    async fn end(
        &self,
        machine: &Machine,
        mut notes: PendingWrites,
        ending: LoopOutcome,
    ) -> Result<LoopOutcome, ExitReason> {
        notes.push(PendingWrite::Fact(ended(&ending, self.lineage.depth)));
        self.journal.commit(machine, notes).await?;
        Ok(ending)
    }

    /// Ends the run at the step under way, which may be tried again by a later run.
    async fn fail(
        &self,
        machine: &mut Machine,
        notes: PendingWrites,
        failure: Failure,
    ) -> Result<LoopOutcome, ExitReason> {
        machine.position.failure = Some(failure.clone());
        self.end(machine, notes, LoopOutcome::Failed(failure)).await
    }

    /// Ends a run that was cancelled while its caller goes on.
    pub(super) async fn cancel(&self, machine: &mut Machine) -> Result<LoopOutcome, ExitReason> {
        let failure = Failure::cancelled();
        machine
            .parked_children()
            .iter()
            .for_each(|_| self.scope.budget.child_done());
        machine.position.failure = Some(failure.clone());
        let over = Fact::over(RunStatus::Interrupted, Some(failure.clone()));
        self.journal.commit(machine, vec![PendingWrite::Fact(over)]).await?;
        Ok(LoopOutcome::Failed(failure))
    }

    fn stops_at(&self, machine: &Machine, step: &Step) -> bool {
        let node = match step {
            Step::AskModel => MODEL,
            Step::RunCalls(_) => TOOLS,
            Step::Work => machine.program_node(),
            Step::RunHook(point, at) => self.plan.hooks(*point).get(*at).map_or("", String::as_str),
            Step::Park | Step::End | Step::Fail(_) => return false,
        };
        let under_way =
            matches!(machine.position.phase, Phase::Tools { ref calls } if calls.iter().any(|c| c.answer().is_some()));
        !under_way && Breakpoints::hit(&self.breakpoints.before, node)
    }

    fn stops_after(&self, notes: &PendingWrites) -> bool {
        match notes.last() {
            Some(PendingWrite::Entry { entry, .. }) => Breakpoints::hit(&self.breakpoints.after, &entry.node),
            Some(PendingWrite::Fact(_) | PendingWrite::Items(_)) | None => false,
        }
    }

    async fn run_hook(
        &self,
        machine: &mut Machine,
        notes: &mut PendingWrites,
        point: HookPoint,
        at: usize,
    ) -> Result<(), StepError> {
        let Some(policy) = self.agent.hook(point, at) else {
            return Err(changed("a hook under way is gone"));
        };
        let name = self.plan.hooks(point).get(at).cloned().unwrap_or_default();
        let scope = self.scope.answered(machine.answers_to(&InterruptSource::Hook(name)));
        match self
            .with_progress(machine, notes, policy.hook(point, &scope, &machine.state))
            .await?
        {
            Ok(reaction) => {
                let update = with_ids(reaction.update);
                self.state_size.note(&update);
                machine.mark_reviewed(&reaction.reviewed);
                let entry = machine.hook_done(&self.plan, update, reaction.jump, CheckpointId::mint());
                notes.extend(entry.map(|entry| PendingWrite::entry(entry, machine)));
                Ok(())
            }
            Err(Halt::Ask(questions)) if !questions.is_empty() => {
                let interrupts = machine.hook_asked(&self.plan, questions);
                notes.push(PendingWrite::asked(machine, interrupts));
                Ok(())
            }
            Err(halt) => Err(halt.into()),
        }
    }

    async fn ask_model(&self, machine: &mut Machine, notes: &mut PendingWrites) -> Result<(), StepError> {
        let Some(own) = self.agent.model_loop() else {
            return Err(changed("it asks no model any more"));
        };
        self.state_size.check(&machine.state).map_err(Halt::Fail)?;
        self.journal.publish_start(AgentWork::Model);
        let request = ModelRequest {
            system: own.system_prompt.clone(),
            messages: match &machine.position.model_input {
                Some(shown) => shown.iter().cloned().map(Arc::new).collect(),
                None => machine.state.messages.clone(),
            },
            tools: own.toolbox.specs(),
            settings: own.settings.clone(),
            ..ModelRequest::default()
        };
        let task = TaskId::of_step(machine.head, MODEL, 0);
        let step = next_step(machine);
        let (provider, model) = own.model.as_ref().map_or(("none", "none"), |model| model.identity());
        let broken = Mutex::default();
        let ask = |request: ModelRequest| -> BoxFuture<'_, Result<ModelAnswer, Halt>> {
            let head = AnswerHead {
                message: mint_answer_id(),
                task,
                step,
                provider: provider.to_owned(),
                model: model.to_owned(),
            };
            self.stream_answer(own, request, head, &broken).boxed()
        };
        let next = NextModel {
            rest: &own.stack,
            ask: &ask,
            scope: &self.scope,
            state: &machine.state,
        };
        let answer = self.with_progress(machine, notes, next.ask(request)).await?;
        notes.append(&mut broken.lock().unwrap_or_else(PoisonError::into_inner));
        let ModelAnswer { mut message, extra } = answer?;
        message.name = Some(self.lineage.agent().to_owned());
        if message.id.is_none() {
            message.id = Some(mint_answer_id());
        }
        self.state_size.note(&extra);
        self.state_size.record_message(&message);
        let entry = machine.model_done(&self.plan, message, with_ids(extra), CheckpointId::mint());
        notes.push(PendingWrite::entry(entry, machine));
        Ok(())
    }

    /// Asks the model once and passes its answer on, piece by piece. What is to be remembered of one that breaks off is
    /// added to `broken`.
    async fn stream_answer(
        &self,
        model_loop: &ModelLoop,
        request: ModelRequest,
        head: AnswerHead,
        broken: &Mutex<PendingWrites>,
    ) -> Result<ModelAnswer, Halt> {
        let mut answer = AnswerStream::new(head, self.journal);
        let received = self.receive_answer(model_loop, request, &mut answer);
        let received = self.scope.stop.run_until_cancelled(received);
        let received = self.leave.run_until_cancelled(received);
        let received = self.scope.budget.in_time(self.scope.now(), received).await;
        let break_off = |answer: AnswerStream<'_>, failed: bool| {
            let fact = answer.break_off(failed).map(PendingWrite::Fact);
            broken.lock().unwrap_or_else(PoisonError::into_inner).extend(fact);
        };
        match received.map(Option::flatten) {
            Err(late) => {
                break_off(answer, true);
                Err(late.into())
            }
            Ok(None) => {
                // Who leaves only has the answer asked for anew, by the next process.
                if !self.leave.is_cancelled() {
                    break_off(answer, false);
                }
                Err(Halt::Stopped)
            }
            Ok(Some(Ok(mut message))) => {
                message.id.get_or_insert_with(|| answer.message().to_owned());
                Ok(ModelAnswer {
                    message: *message,
                    extra: Update::none(),
                })
            }
            Ok(Some(Err(error))) => {
                tracing::warn!(agent = %self.scope.agent, run = %self.scope.run, %error, "model call failed");
                break_off(answer, true);
                Err(Halt::Fail(Failure::new(error.class(), shown(&error))))
            }
        }
    }

    async fn receive_answer(
        &self,
        model_loop: &ModelLoop,
        request: ModelRequest,
        answer: &mut AnswerStream<'_>,
    ) -> Result<Box<Message>, ModelError> {
        let slot = self.scope.slots.for_model().await;
        let model = model_loop.model.as_ref().map_err(ModelError::clone)?;
        let mut stream = model.ask(request).await?;
        answer.push(Chunk::Begin);
        while let Some(event) = stream.next().await {
            answer.push(match event? {
                ModelEvent::Text(text) => Chunk::Text(text),
                ModelEvent::Reasoning(text) => Chunk::Reasoning(text),
                ModelEvent::CallChunk { index, id, name, args } => Chunk::Call { index, id, name, args },
                ModelEvent::Done(mut message) => {
                    admit_answer(&mut message);
                    CallIdAllocator::tell_apart(&mut message);
                    answer.complete(&message);
                    return Ok(message);
                }
            });
        }
        drop(slot);
        Err(ModelError::Interrupted {
            message: "the stream closed before the answer was complete".to_owned(),
        })
    }
}

/// A question came from where nobody can take the answer to.
pub(super) fn unanswerable_question() -> Failure {
    Failure::new("RuntimeError", "a question was asked where nobody can answer it")
}

/// Why a step was left.
pub(super) enum StepError {
    /// A policy, tool or model halted it.
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

/// What clients are told about a failing model. The provider's own words may hold what is not theirs to read; the log
/// has them.
fn shown(error: &ModelError) -> String {
    match error {
        ModelError::Refused { status, .. } => format!("The model provider refused the request (status {status})."),
        ModelError::RateLimited { .. } => "The model provider is rate limiting this server.".to_owned(),
        ModelError::TooLong { .. } => "The conversation is too long for the model.".to_owned(),
        ModelError::Unavailable { .. } => "The model provider could not be reached or failed.".to_owned(),
        ModelError::Interrupted { .. } => "The model's answer broke off before it was complete.".to_owned(),
        ModelError::TimedOut { message } => format!("The model provider takes too long: {message}."),
        ModelError::TooLarge { message } => format!("The model's answer is too large: {message}."),
        ModelError::NothingToAsk => error.to_string(),
        ModelError::UnsupportedContent { message } | ModelError::Misconfigured { message } => message.clone(),
    }
}

/// The agent of a run under way has another definition now.
pub(super) fn changed(how: &str) -> StepError {
    let message = format!("the agent's definition changed: {how}");
    Halt::Fail(Failure::new("RuntimeError", message)).into()
}

/// The number of the step that is under way.
pub(super) fn next_step(machine: &Machine) -> i64 {
    machine.step.map_or(0, |step| step + 1)
}

/// The form in which clients know the ids of models' messages.
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
