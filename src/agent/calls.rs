//! The tool step: runs the calls of one answer in parallel and records each result.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Loop;
use super::journal::{ExitReason, PendingWrite};
use super::step::{PendingWrites, StepError, unanswerable_question, with_ids};
use super::subagent::ChildResult;
use crate::definition::{AfterCrash, OnError};
use crate::domain::Invalid;
use crate::domain::approvers::Approvers;
use crate::domain::call::{CallStatus, DelegationResult, ToolOutput};
use crate::domain::event::Fact;
use crate::domain::foreign::{admit_message, admit_result};
use crate::domain::id::{CheckpointId, RunId};
use crate::domain::interrupt::{Decision, Decisions, InterruptSource, Question, QuestionKind};
use crate::domain::json_limits::{LimitExceeded, admit, replace_nul};
use crate::domain::machine::{Failure, Machine};
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::remembered::RememberedDecision;
use crate::domain::size;
use crate::domain::state::{State, Update};
use crate::middleware::approval::ApprovalCheck;
use crate::middleware::{Middleware, NextCall};
use crate::tool::arguments::run_blocking;
use crate::tool::{self, CallOutcome, Halt, Scope};

/// A call to run.
pub(super) struct PreparedCall {
    pub(super) at: usize,
    pub(super) call: ToolCall,
    pub(super) scope: Scope,
}

/// The result of a call, or of the child run that executes it.
pub(super) enum CallResult {
    Returned(Result<CallOutcome, Halt>),
    Child(Result<ChildResult, ExitReason>),
}

impl CallResult {
    /// Returns whether the call is answered. One that delegates, asks, fails or stops is not, or not yet.
    fn is_answer(&self) -> bool {
        match self {
            Self::Returned(Ok(CallOutcome::Answer(_))) | Self::Child(Ok(ChildResult::Answer(_))) => true,
            Self::Returned(Ok(CallOutcome::Delegate(_)) | Err(_))
            | Self::Child(Ok(ChildResult::ForTool(_) | ChildResult::Parked { .. }) | Err(_)) => false,
        }
    }
}

/// The running calls and child runs of one tool step.
type Running<'a> = FuturesUnordered<BoxFuture<'a, (usize, CallResult)>>;

/// Results that have arrived and are not recorded yet.
type ReadyResults = VecDeque<(usize, CallResult)>;

/// Futures that resolve when a parked child is cancelled.
type Parked<'a> = FuturesUnordered<BoxFuture<'a, (usize, RunId, Result<(), ExitReason>)>>;

/// The most results that share a commit, and the most delegations that are admitted in one.
const MOST_TOGETHER: usize = 32;

/// The reason why the step ends early, once all of its other calls have finished.
#[derive(Default)]
struct StepFailure {
    failure: Option<Failure>,
    stopped: bool,
}

impl Loop<'_> {
    /// Runs the calls at `ready` in parallel and records their results.
    pub(super) async fn run_calls(
        &self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        ready: &[usize],
    ) -> Result<(), StepError> {
        self.scope.files.begin_step(machine.call_count());
        self.state_size
            .begin_step(machine.answered_writes().map(size::of_update).sum());
        self.claim_changed_files(machine, ready).await?;
        // Calls that cannot be made say so in their results.
        let _ = self.tools_ready().await;
        // A process that lost the run may have left some.
        machine.position.failed_calls.clear();
        let state = Arc::new(machine.state.clone());
        let running: Running<'_> = FuturesUnordered::new();
        let mut jobs = vec![];
        let mut children = vec![];
        let remembered = self.remembered_for(machine, ready).await.map_err(StepError::from)?;
        for at in ready.iter().copied() {
            if let Some(CallStatus::Delegated { child, .. }) = machine.call_status(at) {
                children.push((at, *child));
            } else if let Some(job) = self.prepare(machine, pending, at, &remembered) {
                jobs.push(job);
            }
        }
        self.record_start(machine, pending, &jobs, &children).await?;
        for (at, child) in children {
            let work = self.continue_child(machine, at, child).await?;
            running.push(work);
        }
        for job in jobs {
            running.push(self.start_call(job, &state));
        }
        let outcome = self.collect(machine, pending, running, &state, &remembered).await?;
        if let Some(failure) = outcome.failure {
            return Err(Halt::Fail(failure).into());
        }
        if outcome.stopped {
            return Err(Halt::Stopped.into());
        }
        let entry = machine.tools_done(&self.plan, CheckpointId::mint());
        pending.extend(entry.map(|entry| PendingWrite::entry(entry, machine)));
        Ok(())
    }

    fn start_call<'a>(&'a self, job: PreparedCall, state: &Arc<State>) -> BoxFuture<'a, (usize, CallResult)> {
        let state = Arc::clone(state);
        Box::pin(async move { (job.at, CallResult::Returned(self.make_in_span(job, &state).await)) })
    }

    /// Prepares a call: answers it at once, asks about it, or returns it to be run.
    fn prepare(
        &self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        at: usize,
        remembered: &[RememberedDecision],
    ) -> Option<PreparedCall> {
        let Some(call) = machine.call(at) else {
            record_answer(machine, at, ToolOutput::default());
            return None;
        };
        if let Some(decision) = machine.take_decision(&call.id) {
            if let Some(answer) = answer_of_decision(&call, &decision) {
                self.receive(machine, pending, at, answer);
                return None;
            }
        } else if machine.call_status(at) == Some(&CallStatus::Started) {
            let policy = self
                .agent
                .tool(&call.name)
                .map(|tool| tool.after_crash())
                .unwrap_or_default();
            match policy {
                AfterCrash::Repeat => {}
                AfterCrash::Fail => {
                    record_answer(machine, at, ToolOutput::error(&call, UNKNOWN_OUTCOME));
                    return None;
                }
                AfterCrash::Ask => {
                    let question = Question {
                        approvers: self.approvers_of_call(&call),
                        ..unknown_outcome(&call)
                    };
                    let interrupts = machine.call_asked(at, self.assigned(vec![question]));
                    pending.push(PendingWrite::asked(machine, interrupts));
                    return None;
                }
            }
        }
        let call = self.apply_approvals(machine, pending, at, call, remembered)?;
        let answers = machine.answers_to(&InterruptSource::Call(call.id.clone()));
        let task = machine.call_task(at);
        let scope = Scope {
            task: Some(task),
            files: self.scope.files.of_call(task, &self.scope.agent),
            delegations: machine.delegations(at).into(),
            ..self.scope.answered(answers)
        };
        Some(PreparedCall { at, call, scope })
    }

    /// Applies the approval policies to the call at `at`. Returns the call to run; none if a human has to approve it
    /// first, which raises an interrupt, or has rejected it. A hook reviews all calls of a model's answer together;
    /// this covers calls from elsewhere: a client's command or state update, an edit, or an older checkpoint.
    fn apply_approvals(
        &self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        at: usize,
        mut call: ToolCall,
        remembered: &[RememberedDecision],
    ) -> Option<ToolCall> {
        loop {
            let Some(policy) = self.approval_policies(&call).next() else {
                return Some(call);
            };
            if machine.is_reviewed(&call) {
                return Some(call);
            }
            let question = self.assigned(vec![policy.approval_question(&call)?]).pop()?;
            let answer = machine.take_review(&call.id, &question);
            let answer = answer.or_else(|| policy.remembered_answer(&self.scope, &call, remembered));
            match answer.and_then(|answer| ApprovalCheck::of(&call, &answer)) {
                Some(ApprovalCheck::Answer(answer)) => {
                    self.receive(machine, pending, at, answer);
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
                    pending.push(PendingWrite::asked(machine, interrupts));
                    return None;
                }
            }
        }
    }

    /// Returns the decisions for the rest of the thread, if one of these calls needs approval and has none.
    async fn remembered_for(&self, machine: &Machine, ready: &[usize]) -> Result<Arc<[RememberedDecision]>, Halt> {
        let mut calls = ready.iter().filter_map(|at| machine.call(*at));
        if !calls.any(|call| self.needs_approval(&call) && !machine.is_reviewed(&call)) {
            return Ok(Arc::default());
        }
        Ok(self.scope.remembered.of_thread(self.scope.thread).await?)
    }

    /// Returns those who approve a call: they also decide about its unknown outcome.
    fn approvers_of_call(&self, call: &ToolCall) -> Approvers {
        let question = self
            .approval_policies(call)
            .find_map(|policy| policy.approval_question(call));
        question.map(|question| question.approvers).unwrap_or_default()
    }

    /// Returns whether a human has to approve a call.
    pub(super) fn needs_approval(&self, call: &ToolCall) -> bool {
        self.approval_policies(call).next().is_some()
    }

    /// Returns the policies by which a human has to approve a call.
    fn approval_policies(&self, call: &ToolCall) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        let stack = self.agent.stack().iter();
        stack.filter(move |policy| policy.needs_approval(&self.scope, call))
    }

    /// Records that these calls start and that these children continue. Commits if it matters: if a crash would leave
    /// the outcome of a call unknown from here on, or if the next commit may be far away.
    async fn record_start(
        &self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        jobs: &[PreparedCall],
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
            .filter_map(|at| Some((at, machine.call_id(at)?.to_owned())))
            .collect();
        if !calls.is_empty() {
            pending.push(PendingWrite::Fact(Fact::Calling {
                head: machine.head,
                carried_from: machine.position.carried_from,
                calls,
            }));
        }
        let tool = |job: &PreparedCall| self.agent.tool(&job.call.name);
        let reach_out = jobs.iter().any(|job| tool(job).is_some_and(|tool| tool.has_effects()));
        let mut marked = false;
        for job in jobs {
            let once = tool(job).is_some_and(|t| t.has_effects() && t.after_crash() != AfterCrash::Repeat);
            if once {
                machine.set_call_status(job.at, CallStatus::Started);
                marked = true;
            }
        }
        if marked {
            return self.journal.commit(machine, std::mem::take(pending)).await;
        }
        if reach_out || !children.is_empty() {
            self.flush(machine, pending).await
        } else {
            Ok(())
        }
    }

    /// Runs one call through the middleware.
    pub(super) async fn make(&self, job: PreparedCall, state: &State) -> Result<CallOutcome, Halt> {
        let scope = &job.scope;
        let make = |call: ToolCall| -> BoxFuture<'_, Result<CallOutcome, Halt>> {
            Box::pin(async move { self.call_tool(scope, state, &call).await })
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
            spec: tool.as_ref().map(|tool| &**tool.spec()),
            may_repeat: repeats,
        };
        let call = job.call.clone();
        let called = scope.stop.run_until_cancelled(next.call(job.call));
        // A server that shuts down waits for a call that cannot be repeated, since its outcome would be unknown.
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

    /// Runs the tool: the innermost layer. An unknown tool or invalid arguments give an error result.
    async fn call_tool(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let Some(tool) = self.agent.tool(&call.name) else {
            let own = self.agent.model_loop();
            if let Some(problem) = own.and_then(|own| own.toolbox.problem_with(&call.name)) {
                return Ok(CallOutcome::Answer(report(call, problem)));
            }
            let names = self.agent.tool_names();
            let text = tool::unknown(&call.name, names.iter().map(String::as_str));
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        };
        if let Some(Err(text)) = self.agent.check_of(&call.name).map(|check| check.check(&call.args)) {
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        }
        // Calls without effects outside the server are fast, so only the others need a slot.
        let slot = if tool.has_effects() {
            Some(scope.slots.for_tool().await)
        } else {
            None
        };
        let begun = Instant::now();
        let called = AssertUnwindSafe(tool.call(scope, state, call)).catch_unwind().await;
        drop(slot);
        let outcome = match &called {
            Ok(Ok(CallOutcome::Answer(_))) => "answer",
            Ok(Ok(CallOutcome::Delegate(_))) => "delegation",
            Ok(Err(Halt::Ask(_))) => "question",
            Ok(Err(Halt::Stopped)) => "stopped",
            Ok(Err(Halt::Fail(_))) | Err(_) => "error",
        };
        tracing::debug!(
            run = %scope.subagent.unwrap_or(scope.run),
            agent = scope.agent,
            tool = %call.name,
            outcome,
            duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "tool call ended"
        );
        let outcome = called.unwrap_or_else(|_| {
            tracing::error!(tool = %call.name, run = %scope.run, "a tool panicked");
            Err(Failure::new("ToolPanicError", "the tool panicked").into())
        });
        match outcome.and_then(within_limits) {
            Err(Halt::Fail(failure)) if tool.on_error() == OnError::Report => {
                Ok(CallOutcome::Answer(report(call, failure)))
            }
            outcome => outcome,
        }
    }

    /// Receives results in the order of completion, and stores them while other calls are still running.
    async fn collect<'a>(
        &'a self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        mut running: Running<'a>,
        state: &Arc<State>,
        remembered: &[RememberedDecision],
    ) -> Result<StepFailure, StepError> {
        let mut outcome = StepFailure::default();
        let mut parked: Parked<'_> = machine
            .parked_calls()
            .into_iter()
            .map(|(at, child)| self.child_cancellation(at, child))
            .collect();
        // The results that are there at the same time are stored together, and so are the delegations.
        let mut delegations = vec![];
        let mut received = vec![];
        let mut ready = ReadyResults::new();
        let mut together = 0;
        loop {
            let next = if ready.is_empty() {
                tokio::select! {
                    biased;
                    Some(event) = self.scope.progress.recv() => {
                        let stored = self.commit_progress(machine, pending, event).boxed();
                        wait_while_receiving(&mut running, &mut ready, stored).await?;
                        continue;
                    }
                    Some((at, child, cancelled)) = parked.next(), if !running.is_empty() => {
                        cancelled?;
                        let resumed = self.resume_and_store(machine, pending, at, child).boxed();
                        let work = wait_while_receiving(&mut running, &mut ready, resumed).await?;
                        running.push(work);
                        continue;
                    }
                    next = running.next() => next,
                }
            } else {
                ready.pop_front()
            };
            // Progress that the call reported before it returned.
            self.record_pending_progress(pending);
            let Some((at, result)) = next else { break };
            if !result.is_answer() {
                // The step may wait or end here, and what follows must come later than these answers.
                publish_answers(machine, pending, &mut received);
            }
            match result {
                CallResult::Returned(Ok(CallOutcome::Delegate(delegation))) => delegations.push((at, delegation)),
                CallResult::Returned(Ok(CallOutcome::Answer(answer)))
                | CallResult::Child(Ok(ChildResult::Answer(answer))) => {
                    self.receive(machine, pending, at, answer);
                }
                CallResult::Returned(Err(Halt::Ask(questions))) => {
                    halt_call(machine, pending, at, Halt::Ask(self.assigned(questions)), &mut outcome);
                }
                CallResult::Returned(Err(halt)) => halt_call(machine, pending, at, halt, &mut outcome),
                CallResult::Child(Ok(ChildResult::ForTool(result))) => {
                    machine.delegation_done(at, self.admitted(machine, result));
                    if let Some(job) = self.prepare(machine, pending, at, remembered) {
                        let jobs = std::slice::from_ref(&job);
                        let stored = self.record_start(machine, pending, jobs, &[]).boxed();
                        wait_while_receiving(&mut running, &mut ready, stored).await?;
                        running.push(self.start_call(job, state));
                    }
                }
                CallResult::Child(Ok(ChildResult::Parked { child, questions })) => {
                    machine.set_call_status(at, CallStatus::Delegated { child, parked: true });
                    parked.push(self.child_cancellation(at, child));
                    pending.push(PendingWrite::asked(machine, questions));
                }
                CallResult::Child(Err(ExitReason::Cancelled)) => outcome.stopped = true,
                CallResult::Child(Err(stop)) => {
                    // The results that came with it.
                    wait_while_receiving(&mut running, &mut ready, self.flush(machine, pending).boxed()).await?;
                    return Err(stop.into());
                }
            }
            received.push(at);
            together += 1;
            if ready.is_empty() {
                ready.extend(running.next().now_or_never().flatten());
            }
            if ready.is_empty() && delegations.is_empty() {
                self.receive_from_commits(&mut running, &mut ready).await;
            }
            if !ready.is_empty() && together < MOST_TOGETHER {
                continue;
            }
            together = 0;
            if !delegations.is_empty() {
                publish_answers(machine, pending, &mut received);
                // Those that are refused are answered.
                received.extend(delegations.iter().map(|(at, _)| *at));
                let delegations = std::mem::take(&mut delegations);
                let admitted = Box::pin(self.delegate_all(machine, pending, delegations));
                let started = wait_while_receiving(&mut running, &mut ready, admitted).await?;
                running.extend(started);
            }
            if !running.is_empty() || !ready.is_empty() {
                publish_answers(machine, pending, &mut received);
                wait_while_receiving(&mut running, &mut ready, self.flush(machine, pending).boxed()).await?;
            }
        }
        // The checkpoint of a complete step publishes the answers that came last.
        if !machine.all_answered() {
            publish_answers(machine, pending, &mut received);
        }
        Ok(outcome)
    }

    /// Receives the results of the subagents whose commits are under way: most store their ends. A commit before those would have to
    /// wait for them as well, and after it there would be another one with their results.
    async fn receive_from_commits(&self, running: &mut Running<'_>, ready: &mut ReadyResults) {
        if running.is_empty() {
            return;
        }
        wait_while_receiving(running, ready, self.journal.wait_for_commits()).await;
        ready.extend(running.next().now_or_never().flatten());
    }

    /// Continues a parked child run that was cancelled, and stores the position of the caller before the child runs. The end of
    /// the child removes the mark of its cancellation, which a later run looks for. Without the stored position, a crash after
    /// that end would leave a caller that waits for a child run that has ended.
    async fn resume_and_store<'a>(
        &'a self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        at: usize,
        child: RunId,
    ) -> Result<BoxFuture<'a, (usize, CallResult)>, ExitReason> {
        let work = self.resume_child(machine, at, child).await?;
        self.journal.commit(machine, std::mem::take(pending)).await?;
        Ok(work)
    }

    /// Passes a result through the middleware and records it. Store items of the result are written in the same
    /// transaction. A call that is no longer in the conversation has no result.
    fn receive(&self, machine: &mut Machine, pending: &mut PendingWrites, at: usize, answer: ToolOutput) {
        let Some(call) = machine.call(at) else {
            record_answer(machine, at, ToolOutput::default());
            return;
        };
        let answer = self.agent.stack().iter().rev().fold(answer, |answer, policy| {
            policy.receive(&self.scope, &machine.state, &call, answer)
        });
        // A tool's writes must match the declared fields. A subagent's writes were checked call by call.
        let declared = &self.agent.declared;
        let accepted = run_blocking(declared.takes_long(&answer.writes), || declared.check(&answer.writes));
        let accepted = accepted.map_err(|wrong| Invalid {
            field: format!("the state field `{}`", wrong.field),
            ..wrong
        });
        let accepted = accepted.and_then(|()| self.state_size.admit(&machine.state, &answer.writes));
        let mut answer = match accepted {
            Err(wrong) => ToolOutput::error(
                &call,
                format!(
                    "The result of `{}` was not taken: it writes {}, which {}.",
                    call.name, wrong.field, wrong.reason
                ),
            ),
            Ok(()) => answer,
        };
        let changes = std::mem::take(&mut answer.changes);
        if !changes.is_empty() {
            pending.push(PendingWrite::Items(changes));
        }
        record_answer(machine, at, answer);
    }

    /// Returns the result of a delegation without its writes if they are too large for the state; the tool reads the
    /// reason.
    fn admitted(&self, machine: &Machine, result: DelegationResult) -> DelegationResult {
        match self.state_size.admit(&machine.state, &result.writes) {
            Ok(()) => result,
            Err(wrong) => DelegationResult {
                content: format!(
                    "The result was not taken: it writes {}, which {}.",
                    wrong.field, wrong.reason
                )
                .into(),
                status: ToolStatus::Error,
                writes: Update::none(),
                ..result
            },
        }
    }
}

/// Publishes the answers to those of the `received` calls that have one, before a commit in the middle of the step. The step's
/// checkpoint publishes those that come later.
fn publish_answers(machine: &mut Machine, pending: &mut PendingWrites, received: &mut Vec<usize>) {
    for at in received.drain(..) {
        publish_answer(machine, pending, at);
    }
}

/// Publishes the answer to one of several calls. That to a call that is no longer in the conversation is not published.
fn publish_answer(machine: &mut Machine, pending: &mut PendingWrites, at: usize) {
    let Some(CallStatus::Answered(answer)) = machine.call_status(at) else {
        return;
    };
    let Some(head) = machine.head else {
        return;
    };
    if answer.is_logged || machine.call_id(at).is_none() {
        return;
    }
    let answer = answer.clone();
    pending.push(PendingWrite::Fact(Fact::Answered {
        head,
        carried_from: machine.position.carried_from,
        call: at,
        writes: answer.writes.clone(),
    }));
    machine.set_call_status(
        at,
        CallStatus::Answered(Box::new(ToolOutput {
            is_logged: true,
            ..*answer
        })),
    );
}

/// Waits for `work` while the calls go on, and keeps the results that arrive meanwhile. A subagent does not wait for a commit of
/// its caller; and the commit may have to wait for one of the subagent, whose turn is first and which is not queued yet.
async fn wait_while_receiving<T>(running: &mut Running<'_>, ready: &mut ReadyResults, mut work: BoxFuture<'_, T>) -> T {
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            Some(next) = running.next() => ready.push_back(next),
        }
    }
}

/// Records that a call ended without a result.
fn halt_call(machine: &mut Machine, pending: &mut PendingWrites, at: usize, halt: Halt, outcome: &mut StepFailure) {
    match halt {
        Halt::Ask(questions) if !questions.is_empty() => {
            let interrupts = machine.call_asked(at, questions);
            pending.push(PendingWrite::asked(machine, interrupts));
        }
        Halt::Ask(_) => fail_call(machine, at, unanswerable_question(), outcome),
        Halt::Fail(failure) => fail_call(machine, at, failure, outcome),
        Halt::Stopped => outcome.stopped = true,
    }
}

/// Records that a call failed. The run ends with the first failure of the step.
fn fail_call(machine: &mut Machine, at: usize, failure: Failure, outcome: &mut StepFailure) {
    outcome.failure.get_or_insert_with(|| failure.clone());
    machine.call_failed(at, failure);
}

/// Returns the result that reports the failure of a call to the model.
fn report(call: &ToolCall, failure: Failure) -> ToolOutput {
    let text = format!("The call to `{}` failed: {}", call.name, failure.message);
    ToolOutput::error(call, text).with_failure(failure)
}

/// Records the answer of a call, with what the subagents have written that its tool has delegated to.
pub(super) fn record_answer(machine: &mut Machine, at: usize, answer: ToolOutput) {
    let mut writes = machine.delegated_writes(at);
    writes.merge(answer.writes);
    let answer = ToolOutput {
        writes: with_ids(writes),
        failure: None,
        ..answer
    };
    machine.set_call_status(at, CallStatus::Answered(Box::new(answer)));
}

pub(super) const UNKNOWN_OUTCOME: &str = "The server stopped while this call was running, so its outcome is unknown. \
     It may or may not have taken effect; it was not repeated.";

const CUT_OFF: &str = "The call was cut off before it had answered; whether it took effect is not known.";

/// Creates the question about a call that was started before the server stopped.
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
        })
        .into(),
        calls: vec![call.id.clone()],
        key: None,
        approvers: Approvers::default(),
        ..Question::default()
    }
}

/// Returns the result that a human's decision about an unknown outcome gives; none to repeat the call.
fn answer_of_decision(call: &ToolCall, decision: &Value) -> Option<ToolOutput> {
    let Decisions { decisions } = serde_json::from_value(decision.clone()).ok()?;
    match decisions.into_iter().next()? {
        Decision::Approve | Decision::Edit { .. } => None,
        Decision::Respond { message } => Some(ToolOutput::message(Message::tool(call, ToolStatus::Success, message))),
        Decision::Reject { message } => Some(ToolOutput::error(
            call,
            message.unwrap_or_else(|| UNKNOWN_OUTCOME.to_owned()),
        )),
    }
}

/// Applies the limits for JSON from outside to the outcome of a call.
fn within_limits(outcome: CallOutcome) -> Result<CallOutcome, Halt> {
    let too_much = |exceeded: LimitExceeded| Failure::new("ToolAnswerError", format!("its answer {exceeded}"));
    match outcome {
        CallOutcome::Answer(mut answer) => {
            admit_result(&mut answer).map_err(too_much)?;
            Ok(CallOutcome::Answer(answer))
        }
        CallOutcome::Delegate(mut delegation) => {
            delegation
                .order
                .initial_messages
                .iter_mut()
                .try_for_each(admit_message)
                .map_err(too_much)?;
            delegation
                .order
                .response_format
                .iter_mut()
                .try_for_each(admit)
                .map_err(too_much)?;
            [&mut delegation.subagent, &mut delegation.order.description]
                .into_iter()
                .for_each(replace_nul);
            Ok(CallOutcome::Delegate(delegation))
        }
    }
}
