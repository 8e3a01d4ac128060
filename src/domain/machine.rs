//! Where a run stands, and where it goes from there: the heart of the program.
//!
//! [`Machine::next`] says what has to be done, the driver does it, and one of the `…_done` methods writes the outcome
//! down and moves on. Nothing here waits or looks at the world, so a machine that was stored can be loaded by another
//! process, days later, and goes on as if nothing had happened.
//!
//! ```text
//!  before_agent ─► before_model ─► model ─► after_model ─┬─► tools ─┐
//!                       ▲                                │          │
//!                       └────────────────────────────────┼──────────┘
//!                                                        └─► after_agent ─► ended
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::{Call, CallStatus, ToolOutput, pending_calls};
use super::checkpoint::{CheckpointSource, Entry};
use super::id::{CheckpointId, InterruptId, RunId, TaskId};
use super::interrupt::{Interrupt, InterruptSource, Question, QuestionKind};
use super::message::{Message, ToolCall};
use super::state::{State, Update};

mod external;
mod overwrites;
mod plan;
mod program;
mod review;

pub use plan::{END, HookPoint, MODEL, Plan, RUNNABLE, START, TOOLS};

/// Where a run stands between two commits. Serialised, this is the checkpoint; the state is stored as what each
/// checkpoint wrote.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Machine {
    /// The fields of the thread.
    pub state: State,
    /// The newest checkpoint of this lane.
    pub head: Option<CheckpointId>,
    /// The number of the newest checkpoint; the first one is -1.
    pub step: Option<i64>,
    /// What is under way after it.
    pub position: Position,
}

/// The part of a [`Machine`] that is stored with its newest checkpoint, and rewritten as the step proceeds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Position {
    /// What comes next.
    pub phase: Phase,
    /// The questions of the step under way, open or answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Interrupt>,
    /// How many questions the step under way has asked; their ids differ by it.
    #[serde(default)]
    pub questions: u32,
    /// Steps that this run has taken, hooks included.
    #[serde(default)]
    pub taken: u32,
    /// Why the step under way failed, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What the model is shown instead of the conversation, when a client said so. It holds for one question.
    #[serde(default, rename = "shown", skip_serializing_if = "Option::is_none")]
    pub model_input: Option<Vec<Message>>,
    /// Whether the checkpoint came here with the copy of a thread: what is under way after it has the same tasks in the
    /// original. Whoever goes on from here begins a branch of its own first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
    /// The calls of the step under way that a human has approved: a digest of the content of each, by its id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reviewed: BTreeMap<String, String>,
}

/// The part of the loop that a run is in.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The input is stored but not yet written into the state.
    #[default]
    Start,
    /// The hooks of one moment; those before `next` have run.
    Hooks {
        /// Which hooks.
        point: HookPoint,
        /// The index of the next one in the [`Plan`].
        next: usize,
    },
    /// The model is to be asked.
    Model,
    /// The calls of the last answer, each with its own fate.
    Tools {
        /// The calls, in the model's order.
        calls: Vec<Call>,
    },
    /// A program that does the whole work of the run is to be run.
    Work {
        /// The node under which clients see it.
        node: String,
        /// Whether it was begun. Read back after a crash this means: its outcome is unknown.
        #[serde(default)]
        begun: bool,
    },
    /// Nothing remains to be done.
    Ended,
}

/// Why a run could not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The class of the error, as clients know it (`GraphRecursionError`).
    pub class: String,
    /// What is said about it; safe to show.
    pub message: String,
}

impl Failure {
    /// A failure of `class`.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class: class.into(),
            message: message.into(),
        }
    }

    /// That a client has cancelled the run.
    pub fn cancelled() -> Self {
        Self::new("UserInterrupt", "The run was cancelled by request.")
    }
}

/// What the driver has to do next. Nothing else ever has to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Run one hook.
    RunHook(HookPoint, usize),
    /// Ask the model.
    AskModel,
    /// Run these calls, by their index in the phase.
    RunCalls(Vec<usize>),
    /// Run the program that does the whole work.
    Work,
    /// Nothing can go on before somebody answers.
    Park,
    /// The run is over.
    End,
    /// The run cannot go on.
    Fail(Failure),
}

/// Where a hook or an answer may send the loop out of turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jump {
    /// To the hooks before the model.
    Model,
    /// To the calls of the last answer.
    Tools,
    /// To the hooks after the agent, then out.
    End,
}

impl Machine {
    /// What has to be done now.
    pub fn next(&self, plan: &Plan) -> Step {
        let step = match &self.position.phase {
            Phase::Start => Step::Fail(Failure::new(
                "EmptyInputError",
                "there is nothing to run: no input was given",
            )),
            Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } if self.has_open_question() => Step::Park,
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
        // Without an open call nothing runs, but the step has to be finished.
        let waits = runnable.is_empty() && calls.iter().any(|call| call.answer().is_none());
        if waits { Step::Park } else { Step::RunCalls(runnable) }
    }

    fn has_open_question(&self) -> bool {
        self.position.asked.iter().any(|interrupt| interrupt.answer.is_none())
    }

    /// Begins a new turn: leaves whatever was under way, writes the input, and goes to the first hook.
    ///
    /// Leaves two checkpoints, as clients of the field expect: one that stands before the input and one after it.
    pub fn begin(&mut self, plan: &Plan, input: Update, ids: [CheckpointId; 2]) -> [Entry; 2] {
        self.position = Position::default();
        let before = self.append_entry(ids[0], CheckpointSource::Input, START, vec![]);
        let input = input.ruled(&plan.rules);
        self.state.apply(&input);
        let after = self.append_entry(ids[1], CheckpointSource::Loop, START, vec![input]);
        self.advance_to(plan, HookPoint::BeforeAgent, 0);
        [before, after]
    }

    /// Prepares a stored machine for another run: its steps are counted anew, an old failure is forgotten.
    pub fn prepare_for_run(&mut self) {
        self.position.taken = 0;
        self.position.failure = None;
    }

    /// A hook ran and wrote `update`. Leaves a checkpoint only if it wrote something.
    pub fn hook_done(&mut self, plan: &Plan, update: Update, jump: Option<Jump>, id: CheckpointId) -> Option<Entry> {
        let Phase::Hooks { point, next } = self.position.phase else {
            return None;
        };
        self.position.taken += 1;
        self.clear_questions();
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

    /// The hook under way asks a human and will be run again when all of it is answered.
    pub fn hook_asked(&mut self, plan: &Plan, questions: Vec<Question>) -> Vec<Interrupt> {
        let Phase::Hooks { point, next } = self.position.phase else {
            return vec![];
        };
        let Some(node) = plan.hooks(point).get(next).cloned() else {
            return vec![];
        };
        let task = TaskId::of_step(self.head, &node, 0);
        self.ask(task, InterruptSource::Hook(node), questions)
    }

    /// The model answered with `message`; `extra` is what policies around it write.
    pub fn model_done(&mut self, plan: &Plan, message: Message, extra: Update, id: CheckpointId) -> Entry {
        self.position.taken += 1;
        self.position.model_input = None;
        self.position.reviewed.clear();
        self.clear_questions();
        let mut update = Update::messages([message]);
        update.merge(extra);
        self.state.apply(&update);
        let entry = self.append_entry(id, CheckpointSource::Loop, MODEL, vec![update]);
        self.advance_to(plan, HookPoint::AfterModel, 0);
        entry
    }

    /// Notes what became of a call.
    pub fn set_call_status(&mut self, at: usize, status: CallStatus) {
        if let Phase::Tools { calls } = &mut self.position.phase
            && let Some(call) = calls.get_mut(at)
        {
            call.status = status;
        }
    }

    /// The call asks a human and will be looked at again when all of it is answered.
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

    /// What the asker itself asked last, each question with its answer. They stay until the step is done, so that whoever
    /// runs again after a crash need not ask again.
    pub fn answers_to(&self, asker: &InterruptSource) -> Vec<(Question, Value)> {
        let own = |i: &&Interrupt| i.asker == *asker && i.question.kind != QuestionKind::UnknownOutcome;
        let answered = |i: &Interrupt| Some((i.question.clone(), i.answer.clone()?));
        self.position.asked.iter().filter(own).filter_map(answered).collect()
    }

    /// Takes the answer about the unknown outcome of a call, if there is one: it holds for this outcome and no later one.
    pub fn take_decision(&mut self, call: &str) -> Option<Value> {
        let about = |i: &Interrupt| matches!(&i.asker, InterruptSource::Call(id) if id == call) && i.answer.is_some();
        let is_verdict = |i: &Interrupt| i.question.kind == QuestionKind::UnknownOutcome && about(i);
        let at = self.position.asked.iter().position(is_verdict)?;
        self.position.asked.remove(at).answer
    }

    /// Gives the answer to an open question; the asker is looked at again when it waits for no other one. False if it is
    /// not open here.
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
        if self.open_questions().any(|open| open.asker == asker) {
            return true;
        }
        if let (InterruptSource::Call(asker), Phase::Tools { calls }) = (asker, &mut self.position.phase) {
            calls
                .iter_mut()
                .filter(|call| call.id == asker)
                .for_each(|call| call.status = CallStatus::Ready);
        }
        true
    }

    /// Lets the call that `child` works on go on: the child has something to do again. False if there is none.
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

    /// If every call of the step is answered: writes the answers in the order of the calls and moves on.
    pub fn tools_done(&mut self, plan: &Plan, id: CheckpointId) -> Option<Entry> {
        let Phase::Tools { calls } = &self.position.phase else {
            return None;
        };
        let answers: Vec<ToolOutput> = calls.iter().filter_map(Call::answer).cloned().collect();
        if answers.len() < calls.len() {
            return None;
        }
        self.position.taken += 1;
        self.position.reviewed.clear();
        self.clear_questions();
        let ends = answers.iter().any(|answer| answer.ends);
        let shown = (0..answers.len()).filter(|at| answers[*at].is_logged).collect();
        let mut writes: Vec<Update> = answers
            .into_iter()
            .map(|answer| answer.writes.ruled(&plan.rules))
            .collect();
        overwrites::report(&mut writes);
        writes.iter().for_each(|update| self.state.apply(update));
        let mut entry = self.append_entry(id, CheckpointSource::Loop, TOOLS, writes);
        entry.logged_writes = shown;
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

    /// Goes to hook `next` of `point`, or past the moment when it has no more hooks.
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

    /// Goes to the calls that nobody answered yet; without any, back to the model when hooks answered them all, else out.
    fn advance_to_tools(&mut self, plan: &Plan) {
        let Some((at, answer)) = self.state.messages.iter().enumerate().rev().find(|(_, m)| m.is_ai()) else {
            return self.advance_to(plan, HookPoint::AfterAgent, 0);
        };
        let later = &self.state.messages[at + 1..];
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

    fn clear_questions(&mut self) {
        self.position.asked.clear();
        self.position.questions = 0;
    }

    /// Asks in the place of what the asker asked before, unless the questions are about an unknown outcome.
    fn ask(&mut self, task: TaskId, asker: InterruptSource, questions: Vec<Question>) -> Vec<Interrupt> {
        if questions
            .iter()
            .any(|question| question.kind != QuestionKind::UnknownOutcome)
        {
            self.position.asked.retain(|asked| asked.asker != asker);
        }
        let first = self.position.questions;
        let interrupts: Vec<Interrupt> = questions
            .into_iter()
            .zip(first..)
            .map(|(question, number)| Interrupt {
                id: InterruptId::of_task(task, number),
                task,
                asker: asker.clone(),
                question,
                answer: None,
            })
            .collect();
        self.position.questions += u32::try_from(interrupts.len()).unwrap_or(u32::MAX);
        self.position.asked.extend_from_slice(&interrupts);
        interrupts
    }

    /// Adds a checkpoint to the history.
    fn append_entry(&mut self, id: CheckpointId, source: CheckpointSource, node: &str, writes: Vec<Update>) -> Entry {
        let step = self.step.map_or(-1, |step| step + 1);
        let entry = Entry {
            id,
            parent: self.head,
            step,
            source,
            node: node.to_owned(),
            writes,
            logged_writes: vec![],
        };
        self.head = Some(id);
        self.step = Some(step);
        self.position.copied = false;
        entry
    }

    /// The call at `at` as it shall run: the model's, or the reviewer's in its place.
    pub fn call(&self, at: usize) -> Option<ToolCall> {
        let Phase::Tools { calls } = &self.position.phase else {
            return None;
        };
        let call = calls.get(at)?;
        if let Some(edited) = &call.edited {
            return Some(ToolCall::new(call.id.clone(), edited.name.clone(), edited.args.clone()));
        }
        self.state
            .last_ai()?
            .tool_calls()
            .iter()
            .find(|c| c.id == call.id)
            .cloned()
    }

    /// The fate of the call at `at`.
    pub fn call_status(&self, at: usize) -> Option<&CallStatus> {
        match &self.position.phase {
            Phase::Tools { calls } => calls.get(at).map(|call| &call.status),
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => None,
        }
    }

    /// The task of the call at `at`.
    pub fn call_task(&self, at: usize) -> TaskId {
        TaskId::of_step(self.head, TOOLS, at)
    }

    /// Whether every call of the step is answered.
    pub fn all_answered(&self) -> bool {
        match &self.position.phase {
            Phase::Tools { calls } => calls.iter().all(|call| call.answer().is_some()),
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => false,
        }
    }

    /// The children that wait, in the order of their calls.
    pub fn parked_children(&self) -> Vec<RunId> {
        self.parked_calls().into_iter().map(|(_, child)| child).collect()
    }

    /// The same, each with the place of its call.
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

    /// The questions that wait for an answer.
    pub fn open_questions(&self) -> impl Iterator<Item = &Interrupt> {
        self.position
            .asked
            .iter()
            .filter(|interrupt| interrupt.answer.is_none())
    }
}

#[cfg(test)]
mod tests;
