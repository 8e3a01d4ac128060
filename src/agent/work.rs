//! The work of an agent that is a program: begun, and written down when it comes to its end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::future::FutureExt;
use serde_json::{Map, Value};

use super::calls::{UNKNOWN_OUTCOME, unknown_outcome};
use super::driver::{Left, Notes, with_ids};
use super::journal::Note;
use super::{Loop, Runnable};
use crate::definition::AfterCrash;
use crate::domain::event::{Fact, Work};
use crate::domain::id::CheckpointId;
use crate::domain::interrupt::{Asker, Decision, Decisions, Question};
use crate::domain::machine::{Failure, Machine, RUNNABLE};
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::{Update, is_private};
use crate::middleware::structured::native::NativeAnswer;
use crate::middleware::{limits, structured};
use crate::tool::{Halt, Scope};

/// What becomes of work that was begun before the server died.
enum Verdict {
    /// It is begun again.
    Again,
    /// This is what it came to.
    Came(Update),
    /// Nobody knows, and it is not begun again.
    Lost(Failure),
    /// Somebody has to say.
    Ask,
}

impl Loop<'_> {
    /// Runs the program of this agent to its end, or until it waits for somebody.
    pub(super) async fn work(&self, machine: &mut Machine, notes: &mut Notes) -> Result<(), Left> {
        let Some(runnable) = &self.agent.runnable else {
            let failure = Failure::new(
                "RuntimeError",
                "the agent's definition changed: it is no program any more",
            );
            return Err(Halt::Fail(failure).into());
        };
        let update = match self.verdict(machine, runnable.after_crash()) {
            Verdict::Came(update) => update,
            Verdict::Lost(failure) => return Err(Halt::Fail(failure).into()),
            Verdict::Ask => {
                self.ask_about_work(machine, notes, unknown_outcome(&self.as_call()));
                return Ok(());
            }
            Verdict::Again => match self.run(machine, notes, runnable).await? {
                Err(Halt::Ask(question)) => {
                    self.ask_about_work(machine, notes, *question);
                    return Ok(());
                }
                update => update?,
            },
        };
        let update = self.checked(update).map_err(Halt::Fail)?;
        let entry = machine.work_done(with_ids(update).ruled(&self.plan.rules), CheckpointId::mint());
        notes.push(Note::entry(entry, machine));
        Ok(())
    }

    /// What to do first, in view of what happened before.
    fn verdict(&self, machine: &mut Machine, after_crash: AfterCrash) -> Verdict {
        if let Some(verdict) = machine.take_verdict_on_work() {
            return decided(&verdict);
        }
        match after_crash {
            AfterCrash::Ask if machine.work_was_begun() => Verdict::Ask,
            AfterCrash::Fail if machine.work_was_begun() => Verdict::Lost(unknown()),
            AfterCrash::Repeat | AfterCrash::Ask | AfterCrash::Fail => Verdict::Again,
        }
    }

    /// Runs the program. That it begins is durable first, where it matters.
    async fn run(
        &self,
        machine: &mut Machine,
        notes: &mut Notes,
        runnable: &Arc<dyn Runnable>,
    ) -> Result<Result<Update, Halt>, Left> {
        let repeats = runnable.after_crash() == AfterCrash::Repeat;
        if repeats {
            self.flush(machine, notes).await?;
        } else {
            machine.work_begins();
            self.journal.commit(machine, std::mem::take(notes)).await?;
        }
        self.journal.begin(Work::Program);
        let answer = machine.answer_to(&Asker::Hook(RUNNABLE.to_owned())).cloned();
        let form = self.agent.form.as_ref().map(NativeAnswer::schema);
        let scope = Scope {
            task: Some(machine.work_task()),
            form,
            ..self.scope.answered(answer)
        };
        let work = AssertUnwindSafe(runnable.run(&scope, machine.state.clone())).catch_unwind();
        let work = self.scope.stop.run_until_cancelled(work);
        let work = async {
            // A server that leaves waits for work whose outcome nobody would know otherwise.
            if repeats {
                self.leave.run_until_cancelled(work).await.flatten()
            } else {
                work.await
            }
        };
        let work = self.scope.budget.in_time(self.scope.now(), work);
        let came = self.hearing(machine, notes, work).await?.map_err(limits::broken)?;
        Ok(match came {
            Some(Ok(came)) => came,
            Some(Err(_)) => {
                tracing::error!(agent = %self.scope.agent, run = %self.scope.run, "the program of a subagent panicked");
                Err(Failure::new("RunnablePanicError", "the program of the subagent broke off").into())
            }
            None => Err(Halt::Stopped),
        })
    }

    fn ask_about_work(&self, machine: &mut Machine, notes: &mut Notes, question: Question) {
        let asked = machine.work_asked(question).cloned();
        notes.push(Note::Fact(Fact::Asked {
            head: machine.head,
            interrupts: asked.into_iter().collect(),
        }));
    }

    /// The work as a call, for those who are asked about it.
    fn as_call(&self) -> ToolCall {
        ToolCall::new(
            self.lineage.cause.clone().unwrap_or_default(),
            self.agent.name.clone(),
            Map::new(),
        )
    }

    /// What the program wrote, if it may write that.
    fn checked(&self, mut update: Update) -> Result<Update, Failure> {
        let wrong = |what: String| Failure::new("RunnableResultError", format!("what it gave back {what}"));
        if update.messages.is_empty() {
            return Err(wrong("has no `messages`".to_owned()));
        }
        if let Some(field) = update.fields.keys().find(|field| is_private(field)) {
            return Err(wrong(format!(
                "writes the field `{field}`, which belongs to the server"
            )));
        }
        if let Err(invalid) = self.agent.declared.check(&update) {
            return Err(wrong(format!(
                "writes the state field `{}`, which {}",
                invalid.field, invalid.reason
            )));
        }
        if let Some(form) = &self.agent.form {
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

/// What a human decided about work of unknown outcome.
fn decided(verdict: &Value) -> Verdict {
    let decisions = serde_json::from_value(verdict.clone()).map(|Decisions { decisions }| decisions);
    match decisions.unwrap_or_default().into_iter().next() {
        Some(Decision::Approve | Decision::Edit { .. }) => Verdict::Again,
        Some(Decision::Respond { message }) => Verdict::Came(Update::messages([Message::ai(message)])),
        Some(Decision::Reject { message: Some(message) }) => {
            Verdict::Lost(Failure::new("UnknownOutcomeError", message))
        }
        Some(Decision::Reject { message: None }) | None => Verdict::Lost(unknown()),
    }
}

fn unknown() -> Failure {
    Failure::new("UnknownOutcomeError", UNKNOWN_OUTCOME)
}
