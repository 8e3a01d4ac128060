//! The driver: performs the steps that the machine requests and commits their results.

use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::answer::AnswerStream;
use super::fallback::{ModelAttempt, ModelStep};
use super::hook_calls::ToolsOfHook;
use super::journal::{ExitReason, PendingWrite};
use super::step::{
    PendingWrites, StepError, definition_changed, mint_answer_id, next_step, unanswerable_question, with_ids,
};
use super::waiting::WaitedFor;
use super::{Breakpoints, Loop, LoopOutcome, end_fact};
use crate::domain::call_ids::CallIdAllocator;
use crate::domain::event::{AgentWork, Chunk, Fact};
use crate::domain::foreign::admit_answer;
use crate::domain::id::CheckpointId;
use crate::domain::interrupt::{InterruptSource, Question};
use crate::domain::machine::{Failure, HookPoint, MODEL, Machine, Phase, Step, TOOLS};
use crate::domain::message::Message;
use crate::domain::run::RunStatus;
use crate::domain::state::Update;
use crate::domain::state_size::without_summaries;
use crate::domain::summarization;
use crate::middleware::{ModelAnswer, NextModel};
use crate::model::{Model, ModelError, ModelEvent, ModelRequest};
use crate::tool::Halt;

impl Loop<'_> {
    /// Drives the run until it ends or waits. `pending` holds the writes before the first step: the input, and the
    /// start.
    ///
    /// Results are committed before the next call of a model or tool, and at the end. A step that was lost in a crash
    /// is repeated by the next process; no client has seen its result.
    ///
    /// # Errors
    /// [`ExitReason`] if the loop was left early. The run can continue from what was committed.
    pub async fn drive(&self, machine: &mut Machine, mut pending: PendingWrites) -> Result<LoopOutcome, ExitReason> {
        // Parked children count as running, although no task drives them here.
        machine
            .parked_children()
            .iter()
            .for_each(|_| self.scope.budget.child_goes_on());
        let waited_for = WaitedFor::of(machine);
        // A resumed run has passed the breakpoint at its position: it stopped there before, or had left it before a
        // crash.
        let mut passes = pending
            .iter()
            .any(|write| matches!(write, PendingWrite::Fact(Fact::Started { resumed: true, .. })));
        loop {
            let step = machine.next(&self.plan);
            // The end must be recorded: a child that is found at its end has nothing left to do.
            let goes_on = matches!(
                step,
                Step::RunHook(..) | Step::AskModel | Step::RunCalls(_) | Step::Work
            );
            if goes_on && (self.scope.stop.is_cancelled() || self.leave.is_cancelled()) {
                self.flush(machine, &mut pending).await?;
                return Err(ExitReason::Cancelled);
            }
            if !passes && self.stops_at(machine, &step) {
                pending.push(PendingWrite::Fact(Fact::Paused));
                return self.end(machine, pending, LoopOutcome::Paused).await;
            }
            passes = false;
            let done = match step {
                Step::End => return self.end(machine, pending, LoopOutcome::Done).await,
                Step::Fail(failure) => return self.fail(machine, pending, failure).await,
                Step::Park => {
                    let open = self.open_questions(machine, &waited_for, &mut pending).await?;
                    return self.end(machine, pending, LoopOutcome::Parked(open)).await;
                }
                Step::RunHook(point, at) => self.run_hook(machine, &mut pending, point, at).await,
                Step::AskModel => {
                    self.flush(machine, &mut pending).await?;
                    self.ask_model(machine, &mut pending).await
                }
                Step::RunCalls(ready) => self.run_calls(machine, &mut pending, &ready).await,
                Step::Work => self.run_program(machine, &mut pending).await,
            };
            match done {
                Ok(()) => {}
                Err(StepError::Halted(Halt::Fail(failure))) => return self.fail(machine, pending, failure).await,
                Err(StepError::Halted(Halt::Stopped)) => {
                    self.flush(machine, &mut pending).await?;
                    return Err(ExitReason::Cancelled);
                }
                Err(StepError::Halted(Halt::Ask(_))) => {
                    return self.fail(machine, pending, unanswerable_question()).await;
                }
                Err(StepError::Stopped(stop)) => return Err(stop),
            }
            if self.stops_after(&pending) {
                pending.push(PendingWrite::Fact(Fact::Paused));
                return self.end(machine, pending, LoopOutcome::Paused).await;
            }
        }
    }

    /// Commits `pending` and ends the run without driving it. What waits for an answer goes on waiting for it.
    ///
    /// # Errors
    /// As [`Loop::drive`].
    pub async fn close(&self, machine: &Machine, mut pending: PendingWrites) -> Result<LoopOutcome, ExitReason> {
        let waited_for = WaitedFor::of(machine);
        let open = self.open_questions(machine, &waited_for, &mut pending).await?;
        let outcome = match open.is_empty() {
            true => LoopOutcome::Done,
            false => LoopOutcome::Parked(open),
        };
        self.end(machine, pending, outcome).await
    }

    /// Waits for the tools of servers that have not listed any yet.
    ///
    /// # Errors
    /// The run stops, or its time is used up.
    pub(super) async fn tools_ready(&self) -> Result<(), Halt> {
        let Some(own) = self.agent.model_loop() else {
            return Ok(());
        };
        if !own.toolbox.has_sources() {
            let is_stopped = self.scope.stop.is_cancelled() || self.leave.is_cancelled();
            return if is_stopped { Err(Halt::Stopped) } else { Ok(()) };
        }
        let ready = self.scope.stop.run_until_cancelled(own.toolbox.ready());
        // On shutdown the next process waits for them.
        let ready = self.leave.run_until_cancelled(ready);
        let ready = self.scope.budget.in_time(self.scope.now(), ready).await?;
        ready.flatten().ok_or(Halt::Stopped)
    }

    /// Commits the pending writes.
    pub(super) async fn flush(&self, machine: &Machine, pending: &mut PendingWrites) -> Result<(), ExitReason> {
        let pending = std::mem::take(pending);
        if pending.is_empty() {
            Ok(())
        } else {
            self.journal.commit(machine, pending).await
        }
    }

    pub(super) async fn end(
        &self,
        machine: &Machine,
        mut pending: PendingWrites,
        outcome: LoopOutcome,
    ) -> Result<LoopOutcome, ExitReason> {
        pending.push(PendingWrite::Fact(end_fact(&outcome, self.lineage.depth)));
        self.journal.commit(machine, pending).await?;
        Ok(outcome)
    }

    /// Ends the run with a failure at the current step, which a later run may repeat.
    async fn fail(
        &self,
        machine: &mut Machine,
        pending: PendingWrites,
        failure: Failure,
    ) -> Result<LoopOutcome, ExitReason> {
        if self.lineage.depth > 0 {
            self.release_parked_children(machine);
        }
        machine.position.failure = Some(failure.clone());
        self.end(machine, pending, LoopOutcome::Failed(failure)).await
    }

    /// Takes back from the budget the subagents that wait below a subagent: they end with it.
    fn release_parked_children(&self, machine: &Machine) {
        machine
            .parked_children()
            .iter()
            .for_each(|_| self.scope.budget.child_done());
    }

    /// Ends a run that was cancelled while its caller continues.
    pub(super) async fn cancel(&self, machine: &mut Machine) -> Result<LoopOutcome, ExitReason> {
        let failure = Failure::cancelled();
        self.release_parked_children(machine);
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
        !under_way && Breakpoints::contains(&self.breakpoints.before, node)
    }

    fn stops_after(&self, pending: &PendingWrites) -> bool {
        match pending.last() {
            Some(PendingWrite::Entry { entry, .. }) => Breakpoints::contains(&self.breakpoints.after, &entry.node),
            Some(
                PendingWrite::Fact(_) | PendingWrite::Repeated { .. } | PendingWrite::Items(_) | PendingWrite::Left(..),
            )
            | None => false,
        }
    }

    async fn run_hook(
        &self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        point: HookPoint,
        at: usize,
    ) -> Result<(), StepError> {
        let Some(policy) = self.agent.hook(point, at) else {
            return Err(definition_changed("the current hook does not exist any more"));
        };
        let name = self.plan.hooks(point).get(at).map_or("", String::as_str);
        let scope = self
            .scope
            .answered(machine.answers_to(&InterruptSource::Hook(name.to_owned())));
        let reaction = if policy.calls_tools(point, &machine.state) {
            self.flush(machine, pending).await?;
            let tools = ToolsOfHook::new(self, machine, name);
            let work = policy.hook_with_tools(point, &scope, &machine.state, &tools);
            // Calls may take long. On shutdown the next process runs the hook again.
            let work = async { self.leave.run_until_cancelled(work).await.unwrap_or(Err(Halt::Stopped)) };
            self.with_progress(machine, pending, work).await?
        } else {
            let work = policy.hook(point, &scope, &machine.state);
            self.with_progress(machine, pending, work).await?
        };
        match reaction {
            Ok(reaction) => {
                let update = with_ids(reaction.update);
                self.state_size.record(&update);
                machine.mark_reviewed(&reaction.reviewed);
                let entry = machine.hook_done(&self.plan, update, reaction.jump, CheckpointId::mint());
                pending.extend(entry.map(|entry| PendingWrite::entry(entry, machine)));
                Ok(())
            }
            Err(Halt::Ask(questions)) if !questions.is_empty() => {
                let interrupts = machine.hook_asked(&self.plan, self.assigned(questions));
                pending.push(PendingWrite::asked(machine, interrupts));
                Ok(())
            }
            Err(halt) => Err(halt.into()),
        }
    }

    /// Writes the path of the agent into its questions, and assigns those that name no approvers to those of the agent.
    pub(super) fn assigned(&self, mut questions: Vec<Question>) -> Vec<Question> {
        for question in &mut questions {
            question.agent_path = self.scope.path.to_vec();
            if question.approvers.is_empty() {
                question.approvers.clone_from(&self.agent.approvers);
            }
        }
        questions
    }

    async fn ask_model(&self, machine: &mut Machine, pending: &mut PendingWrites) -> Result<(), StepError> {
        let Some(own) = self.agent.model_loop() else {
            return Err(definition_changed("it has no model any more"));
        };
        if self.state_size.check(&machine.state).is_err() {
            self.make_room(machine, pending).await?;
            let checked = self.state_size.check(&machine.state);
            let checked = match own.summarization {
                Some(_) => checked,
                None => checked.map_err(without_summaries),
            };
            checked.map_err(Halt::Fail)?;
        }
        self.journal.publish_start(AgentWork::Model);
        self.tools_ready().await?;
        if let Some(problem) = own.toolbox.problem() {
            return Err(Halt::Fail(problem).into());
        }
        let request = ModelRequest {
            system: own.system_prompt.clone(),
            messages: match &machine.position.model_input {
                Some(messages) => messages.iter().cloned().map(Arc::new).collect(),
                // The earlier messages have a summary, which takes their place in the request.
                None if own.summarization.is_some() => machine.state.messages.recent().to_vec(),
                // The thread had another definition: of messages that have left the state, only the summary is there.
                None if machine.state.messages.left_len() > 0 => {
                    summarization::view(&machine.state.fields, &machine.state.messages.all())
                }
                None => machine.state.messages.all().into_owned(),
            },
            tools: own.toolbox.specs(),
            settings: own.settings.clone(),
            ..ModelRequest::default()
        };
        let step = ModelStep {
            task: machine.task(MODEL),
            number: next_step(machine),
        };
        let broken_answers = Mutex::default();
        let broken = &broken_answers;
        let ask = |request: ModelRequest| -> BoxFuture<'_, Result<ModelAnswer, Halt>> {
            Box::pin(self.ask_models(own, request, step, broken))
        };
        let next = NextModel {
            rest: &own.stack,
            ask: &ask,
            scope: &self.scope,
            state: &machine.state,
            size: &self.state_size,
        };
        // On shutdown the next process repeats the step, with all calls that middleware makes in it.
        let asked = async {
            let answer = self.leave.run_until_cancelled(next.ask(request)).await;
            answer.unwrap_or(Err(Halt::Stopped))
        };
        let answer = self.with_progress(machine, pending, asked).await?;
        pending.append(&mut broken.lock().unwrap_or_else(PoisonError::into_inner));
        let ModelAnswer { mut message, extra } = answer?;
        message.name = Some(self.lineage.agent().to_owned());
        if message.id.is_none() {
            message.id = Some(mint_answer_id());
        }
        self.state_size.record(&extra);
        self.state_size.record_message(&message);
        let entry = machine.model_done(&self.plan, message, with_ids(extra), CheckpointId::mint());
        pending.push(PendingWrite::entry(entry, machine));
        Ok(())
    }

    /// Asks a model once and streams its answer. If the answer ends early, the event to store is added to `broken`.
    pub(super) async fn stream_answer(
        &self,
        asked: &Result<Arc<dyn Model>, ModelError>,
        request: ModelRequest,
        mut answer: AnswerStream<'_>,
        broken: &mut PendingWrites,
    ) -> ModelAttempt {
        let begun = Instant::now();
        let received = self.receive_answer(asked, request, &mut answer);
        let received = self.scope.stop.run_until_cancelled(received);
        let received = self.leave.run_until_cancelled(received);
        let received = self.scope.budget.in_time(self.scope.now(), received).await;
        let outcome = match &received {
            Ok(Some(Some(Ok(_)))) => "success",
            Ok(Some(Some(Err(_)))) | Err(_) => "error",
            Ok(Some(None) | None) => "stopped",
        };
        tracing::debug!(
            run = %self.scope.subagent.unwrap_or(self.scope.run),
            agent = self.scope.agent,
            model = answer.model_name(),
            outcome,
            duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "model call ended"
        );
        let mut abort = |answer: AnswerStream<'_>, failed: bool| {
            broken.extend(answer.abort(failed).map(PendingWrite::Fact));
        };
        let mut failed_by = None;
        let answer = match received.map(Option::flatten) {
            Err(late) => {
                abort(answer, true);
                Err(late.into())
            }
            Ok(None) => {
                // On shutdown the answer is not void: the next process asks for it again.
                if !self.leave.is_cancelled() {
                    abort(answer, false);
                }
                Err(Halt::Stopped)
            }
            Ok(Some(Ok(mut message))) => {
                if let Err(failure) = answer.complete_filtered(&mut message) {
                    // The policies of the agent refuse the answer, whichever model gave it.
                    abort(answer, true);
                    Err(Halt::Fail(failure))
                } else {
                    message.id.get_or_insert_with(|| answer.message().to_owned());
                    Ok(ModelAnswer {
                        message: *message,
                        extra: Update::none(),
                    })
                }
            }
            Ok(Some(Err(error))) => {
                tracing::warn!(
                    agent = %self.scope.agent,
                    run = %self.scope.run,
                    model = answer.model_name(),
                    %error,
                    "model call failed"
                );
                abort(answer, true);
                let failure = Failure::new(error.class(), error.client_text());
                failed_by = Some(error);
                Err(Halt::Fail(failure))
            }
        };
        ModelAttempt {
            answer,
            error: failed_by,
        }
    }

    async fn receive_answer(
        &self,
        asked: &Result<Arc<dyn Model>, ModelError>,
        request: ModelRequest,
        answer: &mut AnswerStream<'_>,
    ) -> Result<Box<Message>, ModelError> {
        let slot = self.scope.slots.for_model().await;
        let model = asked.as_ref().map_err(ModelError::clone)?;
        let mut stream = model.ask(request).await?;
        answer.push(Chunk::Begin);
        while let Some(event) = stream.next().await {
            answer.push(match event? {
                ModelEvent::Text(text) => Chunk::Text(text),
                ModelEvent::Reasoning(text) => Chunk::Reasoning(text),
                ModelEvent::CallChunk { index, id, name, args } => Chunk::Call { index, id, name, args },
                ModelEvent::Done(mut message) => {
                    admit_answer(&mut message);
                    CallIdAllocator::make_unique(&mut message);
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
