//! The state machine of a run.
//!
//! [`Machine::next`] returns the next action, the driver performs it, and one of the `…_done` methods records the
//! outcome and advances. Nothing here does I/O or waits, so a stored machine can be loaded by another process, days
//! later, and continues from there.
//!
//! ```text
//!  before_agent ─► before_model ─► model ─► after_model ─┬─► tools ─┐
//!                       ▲                                │          │
//!                       └────────────────────────────────┼──────────┘
//!                                                        └─► after_agent ─► ended
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::{Call, CallStatus, DelegationResult, ToolOutput, pending_calls};
use super::entry::{CheckpointSource, Entry};
use super::id::{CheckpointId, InterruptId, RunId, StepBase, TaskId};
use super::interrupt::{Interrupt, InterruptSource, Question, QuestionKind};
use super::message::{Message, ToolCall};
use super::state::{State, Update};
use super::stored;

pub use super::failure::Failure;

mod copied;
mod destination;
mod external;
mod overwrites;
mod plan;
mod program;
mod review;

pub use copied::{CopiedChild, CopiedStep};
pub use destination::Destination;
pub use plan::{END, HookPoint, MODEL, Plan, RUNNABLE, START, TOOLS};

/// The state of a run between two commits. Its position is stored with the newest checkpoint; its state is the sum of
/// the checkpoints' writes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Machine {
    /// The state of the thread.
    pub state: State,
    /// The newest checkpoint of this lane.
    pub head: Option<CheckpointId>,
    /// The number of the newest checkpoint; the first one is -1.
    pub step: Option<i64>,
    /// The progress of the step after it.
    pub position: Position,
}

/// The part of a [`Machine`] that is stored with its newest checkpoint and updated as the step proceeds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Position {
    /// The current phase.
    pub phase: Phase,
    /// The interrupts of the current step, open or answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Interrupt>,
    /// The open interrupts about calls or messages that have changed since they were raised: their answers are for those
    /// before.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub outdated: BTreeSet<InterruptId>,
    /// The number of questions that were asked since the checkpoint at which the current step began. Their ids are derived from
    /// it, and from the branch of a step that was carried on, so none is used twice: the row of an interrupt never gets another
    /// question.
    #[serde(default, skip_serializing_if = "stored::is_default")]
    pub questions: u32,
    /// The number of steps that this run has taken, including hooks.
    #[serde(default, skip_serializing_if = "stored::is_default")]
    pub taken: u32,
    /// The failure of the current step, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The failures of the calls of the current step that have failed, by call id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_calls: BTreeMap<String, Failure>,
    /// The messages for the next model call instead of the conversation, if a client's command gave them.
    #[serde(default, rename = "shown", skip_serializing_if = "Option::is_none")]
    pub model_input: Option<Vec<Message>>,
    /// True if the checkpoint was copied with its thread, so that the current step has the same task ids as in the
    /// original. A run that continues from here starts a new branch first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
    /// The checkpoint after which the current step began, if a run carried the step on to a checkpoint of its own. The
    /// tasks, and with them the keys of calls, stay the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried_from: Option<CheckpointId>,
    /// The calls of the current step that a human has approved: a digest of each, by call id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reviewed: BTreeMap<String, String>,
}

/// The phases of the loop.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The input is stored but not yet written to the state.
    #[default]
    Start,
    /// The hooks of one hook point; those before `next` have run.
    Hooks {
        /// The hook point.
        point: HookPoint,
        /// The index of the next hook in the [`Plan`].
        next: usize,
    },
    /// The model is called next.
    Model,
    /// The calls of the last answer, each with its status.
    Tools {
        /// The calls, in the model's order.
        calls: Vec<Call>,
    },
    /// The program that does all of the run's work.
    Work {
        /// The public name of the program's node.
        node: String,
        /// True if the program was started. Read back after a crash: its outcome is unknown.
        #[serde(default)]
        begun: bool,
    },
    /// The run is complete.
    Ended,
}

/// The next action of the driver.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Run one hook.
    RunHook(HookPoint, usize),
    /// Call the model.
    AskModel,
    /// Run these calls, by their index in the phase.
    RunCalls(Vec<usize>),
    /// Run the program.
    Work,
    /// Wait for the answers to interrupts.
    Park,
    /// End the run.
    End,
    /// End the run with a failure.
    Fail(Failure),
}

/// The targets of a jump by a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jump {
    /// The hooks before the model.
    Model,
    /// The calls of the last answer.
    Tools,
    /// The hooks after the agent, and then the end.
    End,
}

impl Machine {
    /// Returns the next action.
    pub fn next(&self, plan: &Plan) -> Step {
        let step = match &self.position.phase {
            Phase::Start => Step::Fail(Failure::new(
                "EmptyInputError",
                "there is nothing to run: no input was given",
            )),
            Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } if self.position.has_open_question() => Step::Park,
            Phase::Hooks { point, next } => Step::RunHook(*point, *next),
            Phase::Model => Step::AskModel,
            Phase::Tools { calls } => Self::next_calls(calls),
            Phase::Work { .. } => Step::Work,
            Phase::Ended => Step::End,
        };
        let takes_a_step = matches!(
            step,
            Step::RunHook(..) | Step::AskModel | Step::RunCalls(_) | Step::Work
        );
        if takes_a_step && self.position.taken >= plan.step_limit {
            let message = format!(
                "Recursion limit of {} reached without hitting a stop condition. \
                 Raise `recursion_limit` in the run's config if the agent needs more steps.",
                plan.step_limit
            );
            return Step::Fail(Failure::new("GraphRecursionError", message));
        }
        step
    }

    fn next_calls(calls: &[Call]) -> Step {
        let runnable: Vec<usize> = (0..calls.len()).filter(|at| calls[*at].may_run()).collect();
        // Without an open call there is nothing to run, but the step has to be finished.
        let waits = runnable.is_empty() && calls.iter().any(|call| call.answer().is_none());
        if waits { Step::Park } else { Step::RunCalls(runnable) }
    }

    /// Starts a new turn: drops the current step, writes the input, and advances to the first hook.
    ///
    /// Creates two checkpoints, as LangGraph clients expect: one before the input and one after it.
    pub fn begin(&mut self, plan: &Plan, input: Update, ids: [CheckpointId; 2]) -> [Entry; 2] {
        self.position = Position::default();
        let before = self.append_entry(ids[0], CheckpointSource::Input, START, vec![]);
        let after = self.begin_again(plan, input.ruled(&plan.rules), ids[1]);
        [before, after]
    }

    /// Starts the turn of an input checkpoint: writes its stored input, and advances to the first hook.
    pub fn begin_again(&mut self, plan: &Plan, input: Update, id: CheckpointId) -> Entry {
        self.position = Position::default();
        self.state.apply(&input);
        let entry = self.append_entry(id, CheckpointSource::Loop, START, vec![input]);
        self.advance_to(plan, HookPoint::BeforeAgent, 0);
        entry
    }

    /// Returns true if a step is left to do. A history without a checkpoint has none.
    pub fn has_work_left(&self) -> bool {
        self.head.is_some() && self.position.phase != Phase::Ended
    }

    /// Prepares a stored machine for another run: resets the number of steps and the failures.
    pub fn prepare_for_run(&mut self) {
        self.position.taken = 0;
        self.position.failure = None;
        self.position.failed_calls.clear();
    }

    /// Records that a hook ran and wrote `update`. Creates a checkpoint only if it wrote something.
    pub fn hook_done(&mut self, plan: &Plan, update: Update, jump: Option<Jump>, id: CheckpointId) -> Option<Entry> {
        let Phase::Hooks { point, next } = self.position.phase else {
            return None;
        };
        self.position.taken += 1;
        if update.is_empty() {
            self.clear_questions();
        } else {
            self.end_questions();
        }
        let entry = (!update.is_empty()).then(|| {
            self.state.apply(&update);
            let node = plan.hooks(point).get(next).map_or("", String::as_str);
            self.append_entry(id, CheckpointSource::Loop, node, vec![update])
        });
        match jump {
            None => self.advance_to(plan, point, next + 1),
            Some(Jump::Model) => self.advance_to(plan, HookPoint::BeforeModel, 0),
            Some(Jump::Tools) => self.advance_to_tools(plan),
            Some(Jump::End) if point == HookPoint::AfterAgent => self.position.phase = Phase::Ended,
            Some(Jump::End) => self.advance_to(plan, HookPoint::AfterAgent, 0),
        }
        entry
    }

    /// Records that the current hook raised interrupts. It runs again when all of them are answered.
    pub fn hook_asked(&mut self, plan: &Plan, questions: Vec<Question>) -> Vec<Interrupt> {
        let Phase::Hooks { point, next } = self.position.phase else {
            return vec![];
        };
        let Some(node) = plan.hooks(point).get(next).cloned() else {
            return vec![];
        };
        let task = self.task(&node);
        self.ask(task, InterruptSource::Hook(node), questions)
    }

    /// Records the model's answer; `extra` are the writes of the middleware around the call.
    pub fn model_done(&mut self, plan: &Plan, message: Message, extra: Update, id: CheckpointId) -> Entry {
        self.position.taken += 1;
        self.position.model_input = None;
        self.position.reviewed.clear();
        self.end_questions();
        let mut update = Update::messages([message]);
        update.merge(extra);
        self.state.apply(&update);
        let entry = self.append_entry(id, CheckpointSource::Loop, MODEL, vec![update]);
        self.advance_to(plan, HookPoint::AfterModel, 0);
        entry
    }

    /// Sets the status of a call.
    pub fn set_call_status(&mut self, at: usize, status: CallStatus) {
        if let Phase::Tools { calls } = &mut self.position.phase
            && let Some(call) = calls.get_mut(at)
        {
            call.status = status;
        }
    }

    /// Records that a call failed. Its outcome is known, so a later run can repeat it.
    pub fn call_failed(&mut self, at: usize, failure: Failure) {
        if let Phase::Tools { calls } = &mut self.position.phase
            && let Some(call) = calls.get_mut(at)
        {
            call.status = CallStatus::Ready;
            self.position.failed_calls.insert(call.id.clone(), failure);
        }
    }

    /// Records the result of a delegation after which the tool of the call at `at` is called again.
    pub fn delegation_done(&mut self, at: usize, result: DelegationResult) {
        if let Phase::Tools { calls } = &mut self.position.phase
            && let Some(call) = calls.get_mut(at)
        {
            call.status = CallStatus::Ready;
            call.delegations.push(result);
        }
    }

    /// Returns the results of the delegations of the call at `at` after which its tool is called again.
    pub fn delegations(&self, at: usize) -> &[DelegationResult] {
        match &self.position.phase {
            Phase::Tools { calls } => calls.get(at).map_or(&[], |call| &call.delegations),
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => &[],
        }
    }

    /// Returns what the delegations of the call at `at` have written so far.
    pub fn delegated_writes(&self, at: usize) -> Update {
        let mut writes = Update::none();
        for result in self.delegations(at) {
            writes.merge(result.writes.clone());
        }
        writes
    }

    /// Returns the state from which a subagent of the call at `at` starts: with the writes of the subagents before it.
    pub fn state_for_child(&self, at: usize) -> Cow<'_, State> {
        if self.delegations(at).is_empty() {
            return Cow::Borrowed(&self.state);
        }
        let mut state = self.state.clone();
        state.apply(&self.delegated_writes(at));
        Cow::Owned(state)
    }

    /// Records that a call raised interrupts. It runs again when all of them are answered.
    pub fn call_asked(&mut self, at: usize, questions: Vec<Question>) -> Vec<Interrupt> {
        let task = self.call_task(at);
        let Phase::Tools { calls } = &mut self.position.phase else {
            return vec![];
        };
        let Some(call) = calls.get_mut(at) else {
            return vec![];
        };
        call.status = CallStatus::Asking;
        let asker = InterruptSource::Call(call.id.clone());
        self.ask(task, asker, questions)
    }

    /// Returns the last questions of this asker with their answers. They are kept until the step is done, so that an
    /// asker that runs again after a crash need not ask again.
    pub fn answers_to(&self, asker: &InterruptSource) -> Vec<(Arc<Question>, Value)> {
        let own = |i: &&Interrupt| i.asker == *asker && i.question.kind != QuestionKind::UnknownOutcome;
        let answered = |i: &Interrupt| Some((Arc::clone(&i.question), i.answer.clone()?));
        self.position.asked.iter().filter(own).filter_map(answered).collect()
    }

    /// Removes and returns the decision about the unknown outcome of a call, if there is one. It is valid for this
    /// outcome only.
    pub fn take_decision(&mut self, call: &str) -> Option<Value> {
        let about = |i: &Interrupt| matches!(&i.asker, InterruptSource::Call(id) if id == call) && i.answer.is_some();
        let is_verdict = |i: &Interrupt| i.question.kind == QuestionKind::UnknownOutcome && about(i);
        let at = self.position.asked.iter().position(is_verdict)?;
        self.position.asked.remove(at).answer
    }

    /// Answers an open interrupt. The asker runs again when none of its interrupts is open. It does not get the answer
    /// if what it asked about has changed since: it asks again. Returns false if the interrupt is not open here.
    pub fn resolve(&mut self, id: &InterruptId, answer: Value) -> bool {
        let Some(asked) = self
            .position
            .asked
            .iter_mut()
            .find(|i| i.id == *id && i.answer.is_none())
        else {
            return false;
        };
        asked.answer = Some(answer);
        let asker = asked.asker.clone();
        let mut status = CallStatus::Ready;
        if self.position.outdated.remove(id) {
            if asked.question.kind == QuestionKind::UnknownOutcome {
                status = CallStatus::Started;
            }
            self.position.asked.retain(|asked| asked.id != *id);
        }
        if self.open_questions().any(|open| open.asker == asker) {
            return true;
        }
        if let InterruptSource::Call(asker) = asker
            && let Phase::Tools { calls } = &mut self.position.phase
        {
            calls
                .iter_mut()
                .filter(|call| call.id == asker)
                .for_each(|call| call.status = status.clone());
        }
        true
    }

    /// Lets the delegated call continue whose child run is `child`. Returns false if there is none.
    pub fn unpark(&mut self, child: RunId) -> bool {
        let Phase::Tools { calls } = &mut self.position.phase else {
            return false;
        };
        let parked = CallStatus::Delegated { child, parked: true };
        let Some(call) = calls.iter_mut().find(|call| call.status == parked) else {
            return false;
        };
        call.status = CallStatus::Delegated { child, parked: false };
        true
    }

    /// Finishes the tool step if every call is answered: writes the results in the order of the calls, and advances. Calls
    /// that a client has taken out of the conversation have no results.
    pub fn tools_done(&mut self, plan: &Plan, id: CheckpointId) -> Option<Entry> {
        let Phase::Tools { calls } = &self.position.phase else {
            return None;
        };
        let known = self.ids_of_answer();
        let is_gone = |call: &Call| call.edited.is_none() && !known.contains(&call.id);
        let gone: Vec<bool> = calls.iter().map(is_gone).collect();
        let answers: Vec<ToolOutput> = calls.iter().filter_map(Call::answer).cloned().collect();
        if answers.len() < calls.len() {
            return None;
        }
        self.position.taken += 1;
        self.position.reviewed.clear();
        self.end_questions();
        let ends = answers.iter().any(|answer| answer.ends);
        let logged = (0..answers.len()).filter(|at| answers[*at].is_logged).collect();
        let mut writes: Vec<Update> = answers
            .into_iter()
            .zip(gone)
            .map(|(ToolOutput { mut writes, .. }, is_gone)| {
                if is_gone {
                    // A result without its call would make every further request to the model invalid.
                    writes.messages.retain(|message| message.answers().is_none());
                }
                writes.ruled(&plan.rules)
            })
            .collect();
        overwrites::report(&mut writes);
        writes.iter().for_each(|update| self.state.apply(update));
        let mut entry = self.append_entry(id, CheckpointSource::Loop, TOOLS, writes);
        entry.logged_writes = logged;
        self.advance_to(
            plan,
            if ends {
                HookPoint::AfterAgent
            } else {
                HookPoint::BeforeModel
            },
            0,
        );
        Some(entry)
    }

    /// Advances to hook `next` of `point`, or beyond that hook point if it has no more hooks.
    fn advance_to(&mut self, plan: &Plan, point: HookPoint, next: usize) {
        if let Some(node) = plan.program {
            let node = node.to_owned();
            self.position.phase = Phase::Work { node, begun: false };
            return;
        }
        if next < plan.hooks(point).len() {
            self.position.phase = Phase::Hooks { point, next };
            return;
        }
        match point {
            HookPoint::BeforeAgent => self.advance_to(plan, HookPoint::BeforeModel, 0),
            HookPoint::BeforeModel => self.position.phase = Phase::Model,
            HookPoint::AfterModel => self.advance_to_tools(plan),
            HookPoint::AfterAgent => self.position.phase = Phase::Ended,
        }
    }

    /// Advances to the calls without a result. If hooks have answered all calls, advances to the model; without
    /// calls, to the end.
    fn advance_to_tools(&mut self, plan: &Plan) {
        let Some((answer, later)) = self.state.messages.last_answer() else {
            return self.advance_to(plan, HookPoint::AfterAgent, 0);
        };
        let has_calls = !answer.tool_calls().is_empty() || answer.invalid_tool_calls().iter().any(|c| c.id.is_some());
        let calls = pending_calls(answer, later, &self.state);
        if !calls.is_empty() {
            self.position.phase = Phase::Tools { calls };
        } else if has_calls {
            self.advance_to(plan, HookPoint::BeforeModel, 0);
        } else {
            self.advance_to(plan, HookPoint::AfterAgent, 0);
        }
    }

    /// Removes the interrupts of the step. Those that follow at the same checkpoint have other ids.
    fn clear_questions(&mut self) {
        self.position.asked.clear();
        self.position.outdated.clear();
    }

    /// Removes the interrupts of a step that a checkpoint ends. The tasks of the next step, and with them the ids of its
    /// interrupts, are others.
    fn end_questions(&mut self) {
        self.clear_questions();
        self.position.questions = 0;
    }

    /// Raises interrupts. They replace the asker's earlier ones, unless they are about an unknown outcome. A call that
    /// asks one question after the other keeps the answers to those with other keys.
    fn ask(&mut self, task: TaskId, asker: InterruptSource, questions: Vec<Question>) -> Vec<Interrupt> {
        if questions
            .iter()
            .any(|question| question.kind != QuestionKind::UnknownOutcome)
        {
            let is_call = matches!(asker, InterruptSource::Call(_));
            let is_asked_again = |key: &Option<String>| questions.iter().any(|question| question.key == *key);
            self.position.asked.retain(|asked| {
                let has_key = asked.question.kind == QuestionKind::Question && asked.question.key.is_some();
                let is_kept = is_call && has_key && asked.answer.is_some() && !is_asked_again(&asked.question.key);
                asked.asker != asker || is_kept
            });
        }
        let first = self.position.questions;
        let carried_to = self.head.filter(|_| self.position.carried_from.is_some());
        let interrupts: Vec<Interrupt> = questions
            .into_iter()
            .zip(first..)
            .map(|(question, number)| Interrupt {
                id: match carried_to {
                    Some(head) => InterruptId::of_carried_task(task, head, number),
                    None => InterruptId::of_task(task, number),
                },
                task,
                asker: asker.clone(),
                question: Arc::new(question),
                answer: None,
                is_inline: false,
            })
            .collect();
        self.position.questions += u32::try_from(interrupts.len()).unwrap_or(u32::MAX);
        self.position.asked.extend_from_slice(&interrupts);
        interrupts
    }

    /// Adds a checkpoint to the history.
    fn append_entry(&mut self, id: CheckpointId, source: CheckpointSource, node: &str, writes: Vec<Update>) -> Entry {
        let step = self.step.map_or(-1, |step| step + 1);
        let ends_step = source == CheckpointSource::Loop;
        let entry = Entry {
            id,
            parent: self.head,
            step,
            source,
            node: node.to_owned(),
            writes,
            logged_writes: vec![],
            carried_from: self.position.carried_from.filter(|_| ends_step),
        };
        self.head = Some(id);
        self.step = Some(step);
        self.position.copied = false;
        self.position.carried_from = None;
        entry
    }

    /// Returns the call at `at` as it runs: the model's, or the reviewer's edit.
    pub fn call(&self, at: usize) -> Option<ToolCall> {
        let call = self.call_of_step(at)?;
        match &call.edited {
            Some(edited) => Some(ToolCall::new(call.id.clone(), edited.name.clone(), edited.args.clone())),
            None => self.call_of_model(&call.id).cloned(),
        }
    }

    /// Returns the id of the call at `at`; none if there is no such [call](Self::call).
    pub fn call_id(&self, at: usize) -> Option<&str> {
        let call = self.call_of_step(at)?;
        let is_known = call.edited.is_some() || self.call_of_model(&call.id).is_some();
        is_known.then_some(call.id.as_str())
    }

    fn call_of_step(&self, at: usize) -> Option<&Call> {
        match &self.position.phase {
            Phase::Tools { calls } => calls.get(at),
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => None,
        }
    }

    fn call_of_model(&self, id: &str) -> Option<&ToolCall> {
        self.state.last_ai()?.tool_calls().iter().find(|call| call.id == id)
    }

    /// Returns the calls of the current step without a result, each with its index in the step, if a client has sent one of
    /// them: no answer of the model contains it. Empty otherwise.
    pub fn calls_with_sent(&self) -> Vec<(usize, ToolCall)> {
        let Phase::Tools { calls } = &self.position.phase else {
            return vec![];
        };
        let answer = self.ids_of_answer();
        let open = calls.iter().enumerate().filter(|(_, call)| call.answer().is_none());
        if !open
            .clone()
            .any(|(_, call)| call.edited.is_some() && !answer.contains(&call.id))
        {
            return vec![];
        }
        open.filter_map(|(at, _)| Some((at, self.call(at)?))).collect()
    }

    /// Returns the ids of the calls of the last answer, also of those that cannot be read.
    fn ids_of_answer(&self) -> BTreeSet<String> {
        let Some(answer) = self.state.last_ai() else {
            return BTreeSet::new();
        };
        let readable = answer.tool_calls().iter().map(|call| call.id.clone());
        let unreadable = answer.invalid_tool_calls().iter().filter_map(|call| call.id.clone());
        readable.chain(unreadable).collect()
    }

    /// Returns the status of the call at `at`.
    pub fn call_status(&self, at: usize) -> Option<&CallStatus> {
        self.call_of_step(at).map(|call| &call.status)
    }

    /// Returns the task of the call at `at`.
    pub fn call_task(&self, at: usize) -> TaskId {
        self.step_base().task(TOOLS, at)
    }

    /// Returns the task of a node of the current step that is executed once.
    pub fn task(&self, node: &str) -> TaskId {
        self.step_base().task(node, 0)
    }

    /// Returns the base of the current step.
    fn step_base(&self) -> StepBase {
        StepBase::after(self.head, self.position.carried_from)
    }

    /// Returns the calls of the step.
    fn calls(&self) -> &[Call] {
        match &self.position.phase {
            Phase::Tools { calls } => calls,
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => &[],
        }
    }

    /// Returns the number of calls of the step, answered ones as well.
    pub fn call_count(&self) -> usize {
        self.calls().len()
    }

    /// Returns what the answered calls of the step have written.
    pub fn answered_writes(&self) -> impl Iterator<Item = &Update> {
        let answers = self.calls().iter().filter_map(Call::answer);
        answers.map(|answer| &answer.writes)
    }

    /// Returns what the calls of the step have written so far, with the indexes of the calls. Of calls that are not
    /// answered these are the writes of their delegations.
    pub fn writes_so_far(&self) -> impl Iterator<Item = (usize, &Update)> {
        self.calls().iter().enumerate().flat_map(|(at, call)| {
            let delegated = call.delegations.iter().map(|result| &result.writes);
            let answered = call.answer().map(|answer| &answer.writes);
            delegated.chain(answered).map(move |writes| (at, writes))
        })
    }

    /// Returns the child runs that execute calls of the step, with the indexes of the calls.
    pub fn child_runs(&self) -> Vec<(usize, RunId)> {
        let calls = self.calls().iter().enumerate();
        calls
            .filter_map(|(at, call)| Some((at, call.status.child()?)))
            .collect()
    }

    /// Returns whether every call of the step is answered.
    pub fn all_answered(&self) -> bool {
        match &self.position.phase {
            Phase::Tools { calls } => calls.iter().all(|call| call.answer().is_some()),
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => false,
        }
    }

    /// Returns the parked child runs, in the order of their calls.
    pub fn parked_children(&self) -> Vec<RunId> {
        self.parked_calls().into_iter().map(|(_, child)| child).collect()
    }

    /// Returns the parked child runs with the indexes of their calls.
    pub fn parked_calls(&self) -> Vec<(usize, RunId)> {
        let Phase::Tools { calls } = &self.position.phase else {
            return vec![];
        };
        let parked = |(at, call): (usize, &Call)| match call.status {
            CallStatus::Delegated { child, parked: true } => Some((at, child)),
            CallStatus::Ready
            | CallStatus::Started
            | CallStatus::Asking
            | CallStatus::Delegated { .. }
            | CallStatus::Answered(_) => None,
        };
        calls.iter().enumerate().filter_map(parked).collect()
    }

    /// Returns the open interrupts.
    pub fn open_questions(&self) -> impl Iterator<Item = &Interrupt> {
        self.position
            .asked
            .iter()
            .filter(|interrupt| interrupt.answer.is_none())
    }
}

#[cfg(test)]
mod tests;
