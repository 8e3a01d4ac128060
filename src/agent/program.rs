//! The work of an agent that is a program: begun, and written down when it comes to its end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::future::FutureExt;
use serde_json::{Map, Value};

use tokio::sync::mpsc;

use super::answer::AnswerStream;
use super::calls::{UNKNOWN_OUTCOME, unknown_outcome};
use super::driver::{PendingWrites, StepError, changed, mint_answer_id, next_step, with_ids};
use super::journal::PendingWrite;
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

/// The decision about work that may have been begun before the server died.
enum Restart {
    /// It is begun again.
    Run,
    /// This is its result.
    Result(Update),
    /// Its outcome is unknown, and it is not begun again.
    Lost(Failure),
    /// Somebody has to decide.
    Ask,
}

/// The output of a program that is at work.
struct WorkOutput<'a> {
    /// The stream of its answer, if it has one: a remote agent.
    answer: Option<AnswerStream<'a>>,
    /// The writes before its result.
    writes: Update,
}

impl Loop<'_> {
    /// Runs the program of this agent to its end, or until it waits for somebody.
    pub(super) async fn work(&self, machine: &mut Machine, notes: &mut PendingWrites) -> Result<(), StepError> {
        let Some(program) = self.agent.program() else {
            return Err(changed("it is no program any more"));
        };
        let mut writes = Update::none();
        let update = match self.decide_restart(machine, program.runnable.after_crash()) {
            Restart::Result(update) => update,
            Restart::Lost(failure) => return Err(Halt::Fail(failure).into()),
            Restart::Ask => {
                let interrupts = machine.program_asked(vec![unknown_outcome(&self.as_call())]);
                notes.push(PendingWrite::asked(machine, interrupts));
                return Ok(());
            }
            Restart::Run => match self.run(machine, notes, program, &mut writes).await? {
                Err(Halt::Ask(questions)) if !questions.is_empty() => {
                    let interrupts = machine.program_asked(questions);
                    notes.push(PendingWrite::asked(machine, interrupts));
                    return Ok(());
                }
                update => update?,
            },
        };
        let update = self.checked(program, update).map_err(Halt::Fail)?;
        if !writes.is_empty() {
            self.check_fields(&writes).map_err(Halt::Fail)?;
            let entry = machine.program_wrote(with_ids(writes).ruled(&self.plan.rules), CheckpointId::mint());
            notes.push(PendingWrite::entry(entry, machine));
        }
        let entry = machine.program_done(with_ids(update).ruled(&self.plan.rules), CheckpointId::mint());
        notes.push(PendingWrite::entry(entry, machine));
        Ok(())
    }

    /// What to do first, in view of what happened before.
    fn decide_restart(&self, machine: &mut Machine, after_crash: AfterCrash) -> Restart {
        if let Some(verdict) = machine.take_program_decision() {
            return decided(&verdict);
        }
        match after_crash {
            AfterCrash::Ask if machine.program_was_started() => Restart::Ask,
            AfterCrash::Fail if machine.program_was_started() => Restart::Lost(unknown()),
            AfterCrash::Repeat | AfterCrash::Ask | AfterCrash::Fail => Restart::Run,
        }
    }

    /// Runs the program. That it begins is durable first, where it matters.
    async fn run(
        &self,
        machine: &mut Machine,
        notes: &mut PendingWrites,
        program: &AgentProgram,
        writes: &mut Update,
    ) -> Result<Result<Update, Halt>, StepError> {
        let repeats = program.runnable.after_crash() == AfterCrash::Repeat;
        if repeats {
            self.flush(machine, notes).await?;
        } else {
            machine.program_started();
            self.journal.commit(machine, std::mem::take(notes)).await?;
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
        let work = output.take_while(receiver, work);
        let work = self.scope.stop.run_until_cancelled(work);
        let work = async {
            // A server that leaves waits for work whose outcome nobody would know otherwise.
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
        let result = match self.with_progress(machine, notes, limited).await? {
            Ok(Some(Ok(result))) => result,
            Ok(Some(Err(_))) => {
                tracing::error!(agent = %self.scope.agent, run = %self.scope.run, "the program of a subagent panicked");
                Err(Failure::new("RunnablePanicError", "the program of the subagent broke off").into())
            }
            Ok(None) => Err(Halt::Stopped),
            Err(late) => Err(late.into()),
        };
        notes.extend(output.end(&result, self.leave.is_cancelled()));
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

    /// The stream of the answer of a remote agent.
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

    /// The work as a call, for those who are asked about it.
    fn as_call(&self) -> ToolCall {
        ToolCall::new(
            self.lineage.cause.clone().unwrap_or_default(),
            self.agent.name.clone(),
            Map::new(),
        )
    }

    /// Refuses fields that a program must not write.
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

    /// What the program wrote, if it may write that.
    fn checked(&self, program: &AgentProgram, mut update: Update) -> Result<Update, Failure> {
        if update.messages.is_empty() {
            return Err(wrong_result("has no `messages`"));
        }
        self.check_fields(&update)?;
        if let Some(form) = &program.form {
            let unfit = |problem: String| {
                Failure::new(
                    structured::FAILURE,
                    format!("what it gave back does not fit: {problem}"),
                )
            };
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
    /// Does `work`, and takes what the program gives out meanwhile.
    async fn take_while<T>(&mut self, mut receiver: mpsc::Receiver<ProgramOutput>, work: impl Future<Output = T>) -> T {
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

    /// Ends the stream of the answer as the work ended; returns what there is to remember of it.
    fn end(&mut self, result: &Result<Update, Halt>, is_leaving: bool) -> Option<PendingWrite> {
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
            // Who leaves only has the answer asked for anew, by the next process.
            Err(Halt::Stopped) if is_leaving => return None,
            Err(Halt::Stopped) => answer.break_off(false),
            Err(Halt::Fail(_)) => answer.break_off(true),
        };
        broken.map(PendingWrite::Fact)
    }
}

/// The result of a program is none.
fn wrong_result(how: &str) -> Failure {
    Failure::new("RunnableResultError", format!("what it gave back {how}"))
}

/// What a human decided about work of unknown outcome.
fn decided(verdict: &Value) -> Restart {
    let decisions = serde_json::from_value(verdict.clone()).map(|Decisions { decisions }| decisions);
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
