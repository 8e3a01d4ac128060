//! The tool step: the calls of one answer run side by side, each with its own fate.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};

use super::Loop;
use super::delegate::ChildResult;
use super::driver::{PendingWrites, StepError, unanswerable_question, with_ids};
use super::journal::{ExitReason, PendingWrite};
use crate::definition::{AfterCrash, OnError};
use crate::domain::Invalid;
use crate::domain::call::{CallStatus, ToolOutput};
use crate::domain::event::Fact;
use crate::domain::foreign::{admit_message, admit_result};
use crate::domain::id::{CheckpointId, RunId};
use crate::domain::interrupt::{Decision, Decisions, InterruptSource, Question, QuestionKind};
use crate::domain::json_limits::{LimitExceeded, admit, replace_nul};
use crate::domain::machine::{Failure, Machine};
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::middleware::NextCall;
use crate::middleware::approval::ApprovalCheck;
use crate::tool::arguments::aside;
use crate::tool::{self, CallOutcome, Halt, Scope};

/// A call that is to be made.
struct Job {
    at: usize,
    call: ToolCall,
    scope: Scope,
}

/// The result of a call, or of the child that works on one.
pub(super) enum CallResult {
    Returned(Result<CallOutcome, Halt>),
    Child(Result<ChildResult, ExitReason>),
}

/// The work under way in one tool step.
type Running<'a> = FuturesUnordered<BoxFuture<'a, (usize, CallResult)>>;

/// Futures that resolve when a parked child is cancelled.
type Parked<'a> = FuturesUnordered<BoxFuture<'a, (usize, RunId, Result<(), ExitReason>)>>;

/// Why the step ends early, once every sibling has finished.
#[derive(Default)]
struct StepFailure {
    failure: Option<Failure>,
    stopped: bool,
}

impl Loop<'_> {
    /// Makes the calls at `ready`, together, and writes down what became of each.
    pub(super) async fn run_calls(
        &self,
        machine: &mut Machine,
        notes: &mut PendingWrites,
        ready: &[usize],
    ) -> Result<(), StepError> {
        self.growth.step_begins();
        let state = Arc::new(machine.state.clone());
        let running: Running<'_> = FuturesUnordered::new();
        let mut jobs = vec![];
        let mut children = vec![];
        for at in ready.iter().copied() {
            if let Some(CallStatus::Delegated { child, .. }) = machine.fate(at) {
                children.push((at, *child));
            } else if let Some(job) = self.prepare(machine, notes, at) {
                jobs.push(job);
            }
        }
        self.announce(machine, notes, &jobs, &children).await?;
        for (at, child) in children {
            let work = self.go_on_with_child(machine, at, child).await?;
            running.push(work);
        }
        for job in jobs {
            let state = Arc::clone(&state);
            running.push(async move { (job.at, CallResult::Returned(self.make(job, &state).await)) }.boxed());
        }
        let outcome = self.collect(machine, notes, running).await?;
        if let Some(failure) = outcome.failure {
            return Err(Halt::Fail(failure).into());
        }
        if outcome.stopped {
            return Err(Halt::Stopped.into());
        }
        let entry = machine.tools_done(&self.plan, CheckpointId::mint());
        notes.extend(entry.map(|entry| PendingWrite::entry(entry, machine)));
        Ok(())
    }

    /// Looks at one call before it is made: answers it at once, asks about it, or hands it out to be made.
    fn prepare(&self, machine: &mut Machine, notes: &mut PendingWrites, at: usize) -> Option<Job> {
        let Some(call) = machine.call(at) else {
            let lost = ToolCall::new("", "", serde_json::Map::new());
            settle(
                machine,
                at,
                ToolOutput::error(&lost, "The call is not in the conversation any more."),
            );
            return None;
        };
        if let Some(verdict) = machine.take_verdict(&call.id) {
            if let Some(answer) = decided(&call, &verdict) {
                self.receive(machine, notes, at, answer);
                return None;
            }
        } else if machine.fate(at) == Some(&CallStatus::Started) {
            let policy = self
                .agent
                .tool(&call.name)
                .map(|tool| tool.after_crash())
                .unwrap_or_default();
            match policy {
                AfterCrash::Repeat => {}
                AfterCrash::Fail => {
                    settle(machine, at, ToolOutput::error(&call, UNKNOWN_OUTCOME));
                    return None;
                }
                AfterCrash::Ask => {
                    let interrupts = machine.call_asked(at, vec![unknown_outcome(&call)]);
                    notes.push(PendingWrite::asked(machine, interrupts));
                    return None;
                }
            }
        }
        let call = self.reviewed(machine, notes, at, call)?;
        let answers = machine.answers_to(&InterruptSource::Call(call.id.clone()));
        let scope = Scope {
            task: Some(machine.call_task(at)),
            ..self.scope.answered(answers)
        };
        Some(Job { at, call, scope })
    }

    /// The call at `at` as it may be made. None if a human has to approve it first, who is asked, or has decided that it does
    /// not run. The calls of a model's answer are reviewed all together by a hook after it; here are stopped those that
    /// came any other way: by a client's command, by a write into the state, by an edit, from an older checkpoint.
    fn reviewed(
        &self,
        machine: &mut Machine,
        notes: &mut PendingWrites,
        at: usize,
        mut call: ToolCall,
    ) -> Option<ToolCall> {
        loop {
            let mut policies = self.agent.stack().iter().filter(|policy| policy.needs_approval(&call));
            let Some(policy) = policies.next() else {
                return Some(call);
            };
            if machine.is_reviewed(&call) {
                return Some(call);
            }
            let question = policy.approval_question(&call)?;
            let answer = machine.take_review(&call.id, &question);
            match answer.and_then(|answer| ApprovalCheck::of(&call, &answer)) {
                Some(ApprovalCheck::Answer(answer)) => {
                    self.receive(machine, notes, at, answer);
                    return None;
                }
                Some(ApprovalCheck::Run { action, approved }) => {
                    call = ToolCall::new(call.id, action.name.clone(), action.args.clone());
                    machine.edit_call(at, action);
                    if approved {
                        machine.mark_reviewed(std::slice::from_ref(&call));
                    }
                }
                None => {
                    let interrupts = machine.call_asked(at, vec![question]);
                    notes.push(PendingWrite::asked(machine, interrupts));
                    return None;
                }
            }
        }
    }

    /// Notes that these calls begin and that these children go on; makes it durable where it matters: where a crash
    /// leaves the outcome of a call unknown from here on, and where it will be long until the next commit.
    async fn announce(
        &self,
        machine: &mut Machine,
        notes: &mut PendingWrites,
        jobs: &[Job],
        children: &[(usize, RunId)],
    ) -> Result<(), ExitReason> {
        let mut begin: Vec<usize> = jobs
            .iter()
            .map(|job| job.at)
            .chain(children.iter().map(|(at, _)| *at))
            .collect();
        begin.sort_unstable();
        let calls: Vec<(usize, String)> = begin
            .into_iter()
            .filter_map(|at| Some((at, machine.call(at)?.id)))
            .collect();
        if !calls.is_empty() {
            notes.push(PendingWrite::Fact(Fact::Calling {
                head: machine.head,
                calls,
            }));
        }
        let tool = |job: &Job| self.agent.tool(&job.call.name);
        let reach_out = jobs.iter().any(|job| tool(job).is_some_and(|tool| tool.has_effects()));
        let mut marked = false;
        for job in jobs {
            let once = tool(job).is_some_and(|t| t.has_effects() && t.after_crash() != AfterCrash::Repeat);
            if once {
                machine.set_fate(job.at, CallStatus::Started);
                marked = true;
            }
        }
        if marked {
            return self.journal.commit(machine, std::mem::take(notes)).await;
        }
        if reach_out || !children.is_empty() {
            self.flush(machine, notes).await
        } else {
            Ok(())
        }
    }

    /// Makes one call, through the policies.
    async fn make(&self, job: Job, state: &State) -> Result<CallOutcome, Halt> {
        let scope = &job.scope;
        let make = |call: ToolCall| -> BoxFuture<'_, Result<CallOutcome, Halt>> {
            async move { self.call_tool(scope, state, &call).await }.boxed()
        };
        let tool = self.agent.tool(&job.call.name);
        let repeats = tool
            .as_ref()
            .is_none_or(|tool| tool.after_crash() == AfterCrash::Repeat);
        let next = NextCall {
            rest: self.agent.stack(),
            make: &make,
            scope,
            state,
        };
        let call = job.call.clone();
        let called = scope.stop.run_until_cancelled(next.call(job.call));
        // A server that leaves waits for a call whose outcome nobody would know otherwise.
        let called = async {
            if repeats {
                self.leave.run_until_cancelled(called).await.flatten()
            } else {
                called.await
            }
        };
        match scope.budget.in_time(scope.now(), called).await {
            Ok(outcome) => outcome.unwrap_or(Err(Halt::Stopped)),
            Err(exceeded) => Ok(CallOutcome::Answer(ToolOutput::error(
                &call,
                format!("{exceeded} {CUT_OFF}"),
            ))),
        }
    }

    /// The innermost layer: the tool itself, if there is one and it can be called so.
    async fn call_tool(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let Some(tool) = self.agent.tool(&call.name) else {
            let names = self.agent.tool_names();
            let text = tool::unknown(&call.name, names.iter().map(String::as_str));
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        };
        if let Some(Err(text)) = self.agent.check_of(&call.name).map(|check| check.check(&call.args)) {
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        }
        // What stays inside the server is fast, and may wait for others.
        let slot = if tool.has_effects() {
            Some(scope.slots.for_tool().await)
        } else {
            None
        };
        let called = AssertUnwindSafe(tool.call(scope, state, call)).catch_unwind().await;
        drop(slot);
        let outcome = called.unwrap_or_else(|_| {
            tracing::error!(tool = %call.name, run = %scope.run, "a tool panicked");
            Err(Failure::new("ToolPanicError", "the tool broke off").into())
        });
        match outcome.and_then(admitted) {
            Err(Halt::Fail(failure)) if tool.on_error() == OnError::Report => {
                let text = format!("The call to `{}` failed: {}", call.name, failure.message);
                Ok(CallOutcome::Answer(ToolOutput::error(call, text)))
            }
            outcome => outcome,
        }
    }

    /// Takes in what comes back, in the order in which it comes, and stores each answer while others are still at work.
    async fn collect<'a>(
        &'a self,
        machine: &mut Machine,
        notes: &mut PendingWrites,
        mut running: Running<'a>,
    ) -> Result<StepFailure, StepError> {
        let mut outcome = StepFailure::default();
        let mut parked: Parked<'_> = machine
            .parked_calls()
            .into_iter()
            .map(|(at, child)| self.until_given_up(at, child))
            .collect();
        loop {
            let next = tokio::select! {
                biased;
                Some(word) = self.scope.progress.recv() => {
                    self.pass_on(machine, notes, word).await?;
                    continue;
                }
                Some((at, child, told)) = parked.next(), if !running.is_empty() => {
                    told?;
                    let work = self.take_up_again(machine, at, child).await?;
                    running.push(work);
                    continue;
                }
                next = running.next() => next,
            };
            // What a call told before it came back.
            self.note_unheard(notes);
            let Some((at, result)) = next else { break };
            match result {
                CallResult::Returned(Ok(CallOutcome::Delegate(wish))) => {
                    self.flush(machine, notes).await?;
                    if let Some(child) = self.delegate(machine, at, wish).await? {
                        running.push(child);
                    }
                }
                CallResult::Returned(Ok(CallOutcome::Answer(answer)))
                | CallResult::Child(Ok(ChildResult::Answer(answer))) => {
                    self.receive(machine, notes, at, answer);
                }
                CallResult::Returned(Err(halt)) => halt_call(machine, notes, at, halt, &mut outcome),
                CallResult::Child(Ok(ChildResult::Parked { child, questions })) => {
                    machine.set_fate(at, CallStatus::Delegated { child, parked: true });
                    parked.push(self.until_given_up(at, child));
                    notes.push(PendingWrite::asked(machine, questions));
                }
                CallResult::Child(Err(ExitReason::Cancelled)) => outcome.stopped = true,
                CallResult::Child(Err(stop)) => return Err(stop.into()),
            }
            self.show_answer(machine, notes, at, running.is_empty());
            if !running.is_empty() {
                self.flush(machine, notes).await?;
            }
        }
        Ok(outcome)
    }

    /// Takes in a result, past the policies. What it wants to be remembered is stored in the same transaction as the result.
    fn receive(&self, machine: &mut Machine, notes: &mut PendingWrites, at: usize, answer: ToolOutput) {
        let answer = match machine.call(at) {
            Some(call) => self.agent.stack().iter().rev().fold(answer, |answer, policy| {
                policy.receive(&self.scope, &machine.state, &call, answer)
            }),
            None => answer,
        };
        // What a tool writes into a declared field has to fit it; a subagent's writes were checked call by call.
        let declared = &self.agent.declared;
        let admitted = aside(declared.takes_long(&answer.writes), || declared.check(&answer.writes));
        let admitted = admitted.map_err(|wrong| Invalid {
            field: format!("the state field `{}`", wrong.field),
            ..wrong
        });
        let admitted = admitted.and_then(|()| self.growth.admit(&machine.state, &answer.writes));
        let mut answer = match (admitted, machine.call(at)) {
            (Err(wrong), Some(call)) => ToolOutput::error(
                &call,
                format!(
                    "The result of `{}` was not taken: it writes {}, which {}.",
                    call.name, wrong.field, wrong.reason
                ),
            ),
            (_, _) => answer,
        };
        let changes = std::mem::take(&mut answer.changes);
        if !changes.is_empty() {
            notes.push(PendingWrite::Items(changes));
        }
        settle(machine, at, answer);
    }

    /// Announces the answer of one of several calls, unless it completes the step, which then tells it itself.
    fn show_answer(&self, machine: &mut Machine, notes: &mut PendingWrites, at: usize, last: bool) {
        let Some(CallStatus::Answered(answer)) = machine.fate(at).cloned() else {
            return;
        };
        let Some(head) = machine.head else {
            return;
        };
        if answer.shown || last && machine.all_answered() {
            return;
        }
        notes.push(PendingWrite::Fact(Fact::Answered {
            head,
            call: at,
            writes: answer.writes.clone(),
        }));
        machine.set_fate(
            at,
            CallStatus::Answered(Box::new(ToolOutput { shown: true, ..*answer })),
        );
    }
}

/// Takes in why a call came to no result.
fn halt_call(machine: &mut Machine, notes: &mut PendingWrites, at: usize, halt: Halt, outcome: &mut StepFailure) {
    match halt {
        Halt::Ask(questions) if !questions.is_empty() => {
            let interrupts = machine.call_asked(at, questions);
            notes.push(PendingWrite::asked(machine, interrupts));
        }
        Halt::Ask(_) => {
            machine.set_fate(at, CallStatus::Ready);
            outcome.failure = Some(unanswerable_question());
        }
        Halt::Fail(failure) => {
            // Its outcome is known: the next run makes the call again.
            machine.set_fate(at, CallStatus::Ready);
            outcome.failure = Some(failure);
        }
        Halt::Stopped => outcome.stopped = true,
    }
}

/// Writes an answer down.
pub(super) fn settle(machine: &mut Machine, at: usize, answer: ToolOutput) {
    let answer = ToolOutput {
        writes: with_ids(answer.writes),
        ..answer
    };
    machine.set_fate(at, CallStatus::Answered(Box::new(answer)));
}

pub(super) const UNKNOWN_OUTCOME: &str = "The server stopped while this call was running, so its outcome is unknown. \
     It may or may not have taken effect; it was not repeated.";

const CUT_OFF: &str = "The call was cut off before it had answered; whether it took effect is not known.";

/// Asks what shall become of a call that was begun before the server died.
pub(super) fn unknown_outcome(call: &ToolCall) -> Question {
    let allowed = ["approve", "respond", "reject"];
    let description = format!(
        "The server stopped while `{}` was running; nobody knows whether it took effect.\n\n\
         approve: call it again\nrespond: give its result\nreject: tell the agent that it failed",
        call.name
    );
    let decision = json!({
        "type": "object",
        "required": ["type"],
        "properties": { "type": { "enum": allowed }, "message": { "type": "string" } },
        "if": { "properties": { "type": { "const": "respond" } } },
        "then": { "required": ["message"] },
    });
    Question {
        kind: QuestionKind::UnknownOutcome,
        value: json!({
            "action_requests": [
                { "name": call.name, "args": call.args, "description": description, "tool_call_id": call.id }
            ],
            "review_configs": [{ "action_name": call.name, "allowed_decisions": allowed }],
        }),
        schema: json!({
            "type": "object",
            "required": ["decisions"],
            "properties": { "decisions": { "type": "array", "minItems": 1, "maxItems": 1, "items": decision } },
        }),
        calls: vec![call.id.clone()],
        key: None,
    }
}

/// The answer that a human's decision about an unknown outcome makes; none if the call is to be made again.
fn decided(call: &ToolCall, verdict: &Value) -> Option<ToolOutput> {
    let Decisions { decisions } = serde_json::from_value(verdict.clone()).ok()?;
    match decisions.into_iter().next()? {
        Decision::Approve | Decision::Edit { .. } => None,
        Decision::Respond { message } => Some(ToolOutput::message(Message::tool(call, ToolStatus::Success, message))),
        Decision::Reject { message } => Some(ToolOutput::error(
            call,
            message.unwrap_or_else(|| UNKNOWN_OUTCOME.to_owned()),
        )),
    }
}

/// Brings what came of a call within the limits of JSON from outside.
fn admitted(outcome: CallOutcome) -> Result<CallOutcome, Halt> {
    let too_much = |exceeded: LimitExceeded| Failure::new("ToolAnswerError", format!("its answer {exceeded}"));
    match outcome {
        CallOutcome::Answer(mut answer) => {
            admit_result(&mut answer).map_err(too_much)?;
            Ok(CallOutcome::Answer(answer))
        }
        CallOutcome::Delegate(mut wish) => {
            wish.order
                .initial_messages
                .iter_mut()
                .try_for_each(admit_message)
                .map_err(too_much)?;
            wish.order
                .response_format
                .iter_mut()
                .try_for_each(admit)
                .map_err(too_much)?;
            [&mut wish.subagent, &mut wish.order.description]
                .into_iter()
                .for_each(replace_nul);
            Ok(CallOutcome::Delegate(wish))
        }
    }
}
