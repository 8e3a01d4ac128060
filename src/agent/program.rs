//! The execution of an agent that is a program.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::future::FutureExt;
use serde_json::{Map, Value};

use tokio::sync::mpsc;

use super::answer::AnswerStream;
use super::calls::{UNKNOWN_OUTCOME, unknown_outcome};
use super::journal::PendingWrite;
use super::step::{PendingWrites, StepError, definition_changed, mint_answer_id, next_step, with_ids};
use super::{AgentProgram, Loop};
use crate::definition::AfterCrash;
use crate::domain::event::{AgentWork, AnswerHead};
use crate::domain::id::CheckpointId;
use crate::domain::interrupt::{Decision, Decisions};
use crate::domain::machine::{Failure, Machine};
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::{Update, is_private};
use crate::middleware::structured;
use crate::middleware::structured::native::NativeAnswer;
use crate::tool::program::{ProgramOutput, ProgramScope};
use crate::tool::{Halt, Scope};

/// The decision about a program that may have been started before the server stopped.
enum Restart {
    /// The program is run again.
    Run,
    /// The result is this update.
    Result(Update),
    /// The outcome is unknown, and the program is not run again.
    Lost(Failure),
    /// A human has to decide.
    Ask,
}

/// The output of a running program.
struct WorkOutput<'a> {
    /// The stream of the answer, for a remote agent.
    answer: Option<AnswerStream<'a>>,
    /// The writes before its result.
    writes: Update,
}

impl Loop<'_> {
    /// Runs the program of this agent until it ends or waits.
    pub(super) async fn run_program(
        &self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
    ) -> Result<(), StepError> {
        let Some(program) = self.agent.program() else {
            return Err(definition_changed("it is not a program any more"));
        };
        let mut writes = Update::none();
        let update = match self.decide_restart(machine, program.runnable.after_crash()) {
            Restart::Result(update) => update,
            Restart::Lost(failure) => return Err(Halt::Fail(failure).into()),
            Restart::Ask => {
                let interrupts = machine.program_asked(self.assigned(vec![unknown_outcome(&self.as_call())]));
                pending.push(PendingWrite::asked(machine, interrupts));
                return Ok(());
            }
            Restart::Run => match self.run(machine, pending, program, &mut writes).await? {
                Err(Halt::Ask(questions)) if !questions.is_empty() => {
                    let interrupts = machine.program_asked(self.assigned(questions));
                    pending.push(PendingWrite::asked(machine, interrupts));
                    return Ok(());
                }
                update => update?,
            },
        };
        let update = self.check_result(program, update).map_err(Halt::Fail)?;
        if !writes.is_empty() {
            self.check_fields(&writes).map_err(Halt::Fail)?;
            let entry = machine.program_wrote(with_ids(writes).ruled(&self.plan.rules), CheckpointId::mint());
            pending.push(PendingWrite::entry(entry, machine));
        }
        let entry = machine.program_done(with_ids(update).ruled(&self.plan.rules), CheckpointId::mint());
        pending.push(PendingWrite::entry(entry, machine));
        Ok(())
    }

    /// Returns what to do first, depending on what happened before.
    fn decide_restart(&self, machine: &mut Machine, after_crash: AfterCrash) -> Restart {
        if let Some(decision) = machine.take_program_decision() {
            return restart_after_decision(&decision);
        }
        match after_crash {
            AfterCrash::Ask if machine.program_was_started() => Restart::Ask,
            AfterCrash::Fail if machine.program_was_started() => Restart::Lost(unknown()),
            AfterCrash::Repeat | AfterCrash::Ask | AfterCrash::Fail => Restart::Run,
        }
    }

    /// Runs the program. If it cannot be repeated, its start is committed first.
    async fn run(
        &self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        program: &AgentProgram,
        writes: &mut Update,
    ) -> Result<Result<Update, Halt>, StepError> {
        let repeats = program.runnable.after_crash() == AfterCrash::Repeat;
        if repeats {
            self.flush(machine, pending).await?;
        } else {
            machine.program_started();
            self.journal.commit(machine, std::mem::take(pending)).await?;
        }
        self.journal.publish_start(match program.remote {
            Some(_) => AgentWork::Model,
            None => AgentWork::Program,
        });
        let (own, receiver) = ProgramScope::new(machine.position.questions, self.leave.clone());
        let scope = self.program_scope(machine, program, own);
        let mut output = WorkOutput {
            answer: self.answer_stream(machine, program),
            writes: Update::none(),
        };
        let work = AssertUnwindSafe(program.runnable.run(&scope, machine.state.clone())).catch_unwind();
        let work = output.record_while(receiver, work);
        let work = self.scope.stop.run_until_cancelled(work);
        let work = async {
            // A server that shuts down waits for a program that cannot be repeated, since its outcome would be
            // unknown.
            if repeats {
                self.leave.run_until_cancelled(work).await.flatten()
            } else {
                work.await
            }
        };
        let limited = async {
            if program.runnable.keeps_time() {
                Ok(work.await)
            } else {
                self.scope.budget.in_time(self.scope.now(), work).await
            }
        };
        let result = match self.with_progress(machine, pending, limited).await? {
            Ok(Some(Ok(result))) => result,
            Ok(Some(Err(_))) => {
                tracing::error!(agent = %self.scope.agent, run = %self.scope.run, "the program of an agent panicked");
                Err(Failure::new("RunnablePanicError", "the program of the agent panicked").into())
            }
            Ok(None) => Err(Halt::Stopped),
            Err(late) => Err(late.into()),
        };
        pending.extend(output.end(&result, self.leave.is_cancelled()));
        *writes = output.writes;
        Ok(result)
    }

    fn program_scope(&self, machine: &Machine, program: &AgentProgram, own: ProgramScope) -> Scope {
        Scope {
            task: Some(machine.program_task()),
            form: program.form.as_ref().map(NativeAnswer::schema),
            program: Arc::new(own),
            ..self.scope.answered(machine.answers_to(&machine.program_source()))
        }
    }

    /// Returns the stream for the answer of a remote agent.
    fn answer_stream(&self, machine: &Machine, program: &AgentProgram) -> Option<AnswerStream<'_>> {
        let remote = program.remote.as_ref()?;
        let head = AnswerHead {
            message: mint_answer_id(),
            task: machine.program_task(),
            step: next_step(machine),
            provider: "agent".to_owned(),
            model: remote.graph_id.clone(),
        };
        Some(AnswerStream::new(head, self.journal))
    }

    /// Returns the program's execution in the form of a tool call, for questions to humans.
    fn as_call(&self) -> ToolCall {
        ToolCall::new(
            self.lineage.cause.clone().unwrap_or_default(),
            self.agent.name.clone(),
            Map::new(),
        )
    }

    /// Validates that the program writes no reserved fields.
    fn check_fields(&self, update: &Update) -> Result<(), Failure> {
        if let Some(field) = update.fields.keys().find(|field| is_private(field)) {
            return Err(wrong_result(&format!(
                "writes the field `{field}`, which belongs to the server"
            )));
        }
        self.agent.declared.check(update).map_err(|invalid| {
            wrong_result(&format!(
                "writes the state field `{}`, which {}",
                invalid.field, invalid.reason
            ))
        })
    }

    /// Validates the result of the program.
    fn check_result(&self, program: &AgentProgram, mut update: Update) -> Result<Update, Failure> {
        if update.messages.is_empty() {
            return Err(wrong_result("has no `messages`"));
        }
        self.check_fields(&update)?;
        if let Some(form) = &program.form {
            let unfit =
                |problem: String| Failure::new(structured::FAILURE, format!("its result does not match: {problem}"));
            let response = form.of_program(&update).map_err(unfit)?;
            update.fields.insert(structured::FIELD.to_owned(), response);
        }
        for message in update
            .messages
            .iter_mut()
            .filter(|message| message.is_ai() && message.name.is_none())
        {
            Arc::make_mut(message).name = Some(self.agent.name.clone());
        }
        Ok(update)
    }
}

impl WorkOutput<'_> {
    /// Runs `work` and records the output of the program meanwhile.
    async fn record_while<T>(
        &mut self,
        mut receiver: mpsc::Receiver<ProgramOutput>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                biased;
                Some(output) = receiver.recv() => self.take(output),
                done = &mut work => break done,
            }
        };
        while let Ok(output) = receiver.try_recv() {
            self.take(output);
        }
        done
    }

    fn take(&mut self, output: ProgramOutput) {
        match (output, &mut self.answer) {
            (ProgramOutput::Piece { message, chunk }, Some(answer)) => {
                answer.switch_to(&message);
                if let Some(chunk) = chunk {
                    answer.push(chunk);
                }
            }
            (ProgramOutput::Piece { .. }, None) => {}
            (ProgramOutput::Write(update), _) => self.writes.merge(update),
        }
    }

    /// Ends the stream of the answer; returns the event to store, if any.
    fn end(&mut self, result: &Result<Update, Halt>, is_shutting_down: bool) -> Option<PendingWrite> {
        let mut answer = self.answer.take()?;
        let broken = match result {
            Ok(update) => {
                if let Some(last) = update.messages.last() {
                    answer.complete(last);
                }
                return None;
            }
            Err(Halt::Ask(_)) => {
                answer.end();
                return None;
            }
            // On shutdown nothing is stored: the next process asks for the answer again.
            Err(Halt::Stopped) if is_shutting_down => return None,
            Err(Halt::Stopped) => answer.abort(false),
            Err(Halt::Fail(_)) => answer.abort(true),
        };
        broken.map(PendingWrite::Fact)
    }
}

/// Creates the failure for an invalid result.
fn wrong_result(how: &str) -> Failure {
    Failure::new("RunnableResultError", format!("its result {how}"))
}

/// Returns the decision of a human about an unknown outcome.
fn restart_after_decision(decision: &Value) -> Restart {
    let decisions = serde_json::from_value(decision.clone()).map(|Decisions { decisions }| decisions);
    match decisions.unwrap_or_default().into_iter().next() {
        Some(Decision::Approve | Decision::Edit { .. }) => Restart::Run,
        Some(Decision::Respond { message }) => Restart::Result(Update::messages([Message::ai(message)])),
        Some(Decision::Reject { message: Some(message) }) => {
            Restart::Lost(Failure::new("UnknownOutcomeError", message))
        }
        Some(Decision::Reject { message: None }) | None => Restart::Lost(unknown()),
    }
}

fn unknown() -> Failure {
    Failure::new("UnknownOutcomeError", UNKNOWN_OUTCOME)
}
