//! Changes to a machine by clients while no run drives it: state updates and jumps.

use std::collections::BTreeSet;

use super::destination::Destination;
use super::{
    Call, CheckpointId, CheckpointSource, Entry, HookPoint, Interrupt, InterruptSource, MODEL, Machine, Phase, Plan,
    Position, QuestionKind, START, State, TOOLS, Update,
};
use crate::domain::call::{CallStatus, pending_calls};
use crate::domain::id::RunId;
use crate::domain::interrupt::ReviewAction;
use crate::domain::message::ToolCall;

impl Machine {
    /// Returns whether a call of the current step is delegated to `child` and has no result.
    pub fn waits_for(&self, child: RunId) -> bool {
        let Phase::Tools { calls } = &self.position.phase else {
            return false;
        };
        calls
            .iter()
            .any(|call| matches!(call.status, CallStatus::Delegated { child: of, .. } if of == child))
    }

    /// Applies an update as if `node` had written it, and advances beyond that node.
    pub fn apply_external(
        &mut self,
        plan: &Plan,
        source: CheckpointSource,
        node: &str,
        update: Update,
        id: CheckpointId,
    ) -> Entry {
        let update = update.ruled(&plan.rules);
        self.state.apply(&update);
        self.position = Position::default();
        let entry = self.append_entry(id, source, node, vec![update]);
        self.advance_after(plan, node);
        entry
    }

    /// Applies an update without changing the position. The tasks of the step get other ids.
    pub fn append_update(&mut self, plan: &Plan, update: Update, id: CheckpointId) -> Entry {
        let update = update.ruled(&plan.rules);
        self.state.apply(&update);
        self.append_entry(id, CheckpointSource::Update, START, vec![update])
    }

    /// Applies an update of `node` without changing the position. A step that waits, or has waited, is carried on: it
    /// keeps its interrupts, answers and tasks. Calls that the update brings into the last answer belong to the step then.
    pub fn carry_update(&mut self, plan: &Plan, node: &str, update: Update, id: CheckpointId) -> Entry {
        let update = update.ruled(&plan.rules);
        let is_carried = self.position.has_waited();
        let calls = self.calls_of_step();
        let known = self.ids_of_answer();
        // A compaction writes no messages. Those that leave the state with it are not what a hook asks about.
        let is_about_messages = self.hook_has_asked() && !update.messages.is_empty();
        let messages = is_about_messages.then(|| self.state.messages.clone());
        self.state.apply(&update);
        self.forget_edits_of_gone(&known);
        self.withdraw_answers(&calls);
        self.add_calls_beside(&known);
        if messages.is_some_and(|before| before != self.state.messages) {
            self.withdraw_answers_of_hook();
        }
        if is_carried {
            self.add_carried_checkpoint(id, CheckpointSource::Update, node, vec![update])
        } else {
            self.append_entry(id, CheckpointSource::Update, node, vec![update])
        }
    }

    /// Returns the calls of the step as they run; none for those that are no longer in the conversation.
    fn calls_of_step(&self) -> Vec<Option<ToolCall>> {
        match &self.position.phase {
            Phase::Tools { calls } => (0..calls.len()).map(|at| self.call(at)).collect(),
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => vec![],
        }
    }

    /// Takes the answers away from the calls of the step that have changed: an answer belongs to what was asked, so
    /// these calls ask again. Open interrupts of theirs stay, and have no effect when they are answered. `before` are
    /// the calls as they were.
    fn withdraw_answers(&mut self, before: &[Option<ToolCall>]) {
        let after = self.calls_of_step();
        let Phase::Tools { calls } = &mut self.position.phase else {
            return;
        };
        let changed = calls.iter_mut().zip(before.iter().zip(&after));
        for (call, _) in changed.filter(|(_, (before, after))| before != after) {
            let asker = InterruptSource::Call(call.id.clone());
            for asked in self.position.asked.iter().filter(|asked| asked.asker == asker) {
                if asked.answer.is_none() {
                    self.position.outdated.insert(asked.id.clone());
                } else if asked.question.kind == QuestionKind::UnknownOutcome {
                    call.status = CallStatus::Started;
                }
            }
            self.position
                .asked
                .retain(|asked| asked.asker != asker || asked.answer.is_none());
        }
    }

    /// Forgets how a reviewer has edited the calls that an update has taken out of the last answer: they are not made, and leave
    /// no results. `known` are the ids of the calls before.
    fn forget_edits_of_gone(&mut self, known: &BTreeSet<String>) {
        let left = self.ids_of_answer();
        let Phase::Tools { calls } = &mut self.position.phase else {
            return;
        };
        for call in calls {
            if known.contains(&call.id) && !left.contains(&call.id) {
                call.edited = None;
            }
        }
    }

    /// Adds the calls of the last answer to the step that an update has brought. `known` are the ids of those before.
    fn add_calls_beside(&mut self, known: &BTreeSet<String>) {
        let Phase::Tools { calls } = &mut self.position.phase else {
            return;
        };
        let Some((answer, later)) = self.state.messages.last_answer() else {
            return;
        };
        let mut added = pending_calls(answer, later, &self.state);
        added.retain(|call| !known.contains(&call.id) && calls.iter().all(|other| other.id != call.id));
        calls.extend(added);
    }

    /// Returns whether the hook of the step has asked anything but approvals of calls. It may be about any message.
    fn hook_has_asked(&self) -> bool {
        let is_of_policy = |asked: &Interrupt| asked.question.kind != QuestionKind::ToolApproval;
        matches!(self.position.phase, Phase::Hooks { .. }) && self.position.asked.iter().any(is_of_policy)
    }

    /// Takes the answers away from the hook of the step, as [`Machine::withdraw_answers`] does from calls.
    fn withdraw_answers_of_hook(&mut self) {
        let Position { asked, outdated, .. } = &mut self.position;
        asked.retain(|asked| asked.answer.is_none());
        outdated.extend(asked.iter().map(|asked| asked.id.clone()));
    }

    /// Returns whether the step waits, and still follows after an update, and its questions are about the same: the calls of
    /// the last answer are the same, and none of them has got a result. What else a hook asks may be about any message, so
    /// they all have to be the same then. Without `node` the update is one beside the step; otherwise it is applied as if
    /// `node` had written it.
    pub fn is_kept_by(&self, plan: &Plan, node: Option<&str>, update: &Update) -> bool {
        if !self.position.has_waited() {
            return false;
        }
        let mut after = Self {
            position: Position::default(),
            ..self.clone()
        };
        after.state.apply(&update.clone().ruled(&plan.rules));
        if asked_about(&after.state) != asked_about(&self.state) {
            return false;
        }
        if self.hook_has_asked() && after.state.messages != self.state.messages {
            return false;
        }
        let Some(node) = node else { return true };
        after.advance_after(plan, node);
        match (&self.position.phase, &after.position.phase) {
            (
                Phase::Hooks { point, next },
                Phase::Hooks {
                    point: other_point,
                    next: other_next,
                },
            ) => point == other_point && next == other_next,
            (Phase::Tools { .. }, Phase::Tools { .. }) => true,
            (_, _) => false,
        }
    }

    /// Starts a new branch at an older checkpoint, with the same position. A run that raises an interrupt before its
    /// first step needs a checkpoint of its own for it.
    pub fn fork(&mut self, id: CheckpointId) -> Entry {
        self.append_entry(id, CheckpointSource::Fork, START, vec![])
    }

    /// Carries the current step on to a checkpoint of its own, with its interrupts, answers and tasks. A run that brings
    /// answers to an older checkpoint continues from it in this way, on a branch that is the newest from then on.
    pub fn carry_step(&mut self, id: CheckpointId) -> Entry {
        self.add_carried_checkpoint(id, CheckpointSource::Fork, START, vec![])
    }

    /// Adds a checkpoint to which the current step is carried on.
    fn add_carried_checkpoint(
        &mut self,
        id: CheckpointId,
        source: CheckpointSource,
        node: &str,
        writes: Vec<Update>,
    ) -> Entry {
        let base = self.step_base().checkpoint();
        let entry = self.append_entry(id, source, node, writes);
        self.position.carried_from = base;
        Entry {
            carried_from: base,
            ..entry
        }
    }

    /// Advances to the phase after `node`.
    fn advance_after(&mut self, plan: &Plan, node: &str) {
        match node {
            // The update of a program is the end of the run.
            _ if plan.program == Some(node) => self.position.phase = Phase::Ended,
            START => self.advance_to(plan, HookPoint::BeforeAgent, 0),
            MODEL => self.advance_to(plan, HookPoint::AfterModel, 0),
            TOOLS => self.advance_to(plan, HookPoint::BeforeModel, 0),
            _ => match plan.find(node) {
                Some((point, at)) => self.advance_to(plan, point, at + 1),
                None => self.position.phase = Phase::Ended,
            },
        }
    }

    /// Jumps to a node of the loop. Interrupts of other nodes are dropped.
    pub fn jump_to(&mut self, plan: &Plan, place: &Destination) {
        match place {
            Destination::Model(messages) => {
                self.clear_questions();
                self.position.phase = Phase::Model;
                self.position.model_input = messages.clone();
            }
            Destination::Hook(point, next) => {
                self.clear_questions();
                self.position.phase = Phase::Hooks {
                    point: *point,
                    next: *next,
                };
            }
            Destination::Tools { own, sent } => self.jump_to_tools(plan, *own, sent),
            Destination::End => {
                self.clear_questions();
                self.position.phase = Phase::Ended;
            }
        }
    }

    fn jump_to_tools(&mut self, plan: &Plan, own: bool, sent: &[ToolCall]) {
        self.position
            .asked
            .retain(|asked| own && matches!(asked.asker, InterruptSource::Call(_)));
        let before = std::mem::take(&mut self.position.phase);
        if own {
            self.advance_to_tools(plan);
        }
        if !sent.is_empty() {
            let mut calls = match std::mem::take(&mut self.position.phase) {
                Phase::Tools { calls } => calls,
                Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Work { .. } | Phase::Ended => vec![],
            };
            calls.retain(|call| sent.iter().all(|other| other.id != call.id));
            calls.extend(sent.iter().map(sent_call));
            self.position.phase = Phase::Tools { calls };
        }
        // A call that was started must not start again, for example when a client's command is repeated after a
        // crash.
        if let Phase::Tools { calls: known } = before
            && let Phase::Tools { calls } = &mut self.position.phase
        {
            for call in calls {
                if let Some(begun) = known.iter().find(|other| other.id == call.id) {
                    call.clone_from(begun);
                }
            }
        }
    }
}

/// Returns what the questions of a step are about: the calls of the last answer, and the ids of the calls that have got a
/// result since.
fn asked_about(state: &State) -> (&[ToolCall], Vec<&str>) {
    let (calls, later) = match state.messages.last_answer() {
        Some((answer, later)) => (answer.tool_calls(), later),
        None => (&[][..], state.messages.recent()),
    };
    (calls, later.iter().filter_map(|message| message.answers()).collect())
}

/// Creates a call from a client's command. The call itself is stored, since no answer of the model contains it.
fn sent_call(call: &ToolCall) -> Call {
    let action = ReviewAction {
        name: call.name.clone(),
        args: call.args.clone(),
    };
    Call {
        id: call.id.clone(),
        edited: Some(action),
        status: CallStatus::Ready,
        delegations: vec![],
    }
}
