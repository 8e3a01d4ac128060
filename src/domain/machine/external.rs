//! Changes to a machine by clients while no run drives it: state updates and jumps.

use super::{
    Call, CheckpointId, CheckpointSource, Entry, HookPoint, InterruptSource, MODEL, Machine, Phase, Plan, Position,
    START, TOOLS, Update,
};
use crate::domain::call::CallStatus;
use crate::domain::goto::Destination;
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

    /// Applies an update without changing the position.
    pub fn append_update(&mut self, plan: &Plan, update: Update, id: CheckpointId) -> Entry {
        let update = update.ruled(&plan.rules);
        self.state.apply(&update);
        self.append_entry(id, CheckpointSource::Update, START, vec![update])
    }

    /// Applies an update of `node`, which is no step of the loop, without changing the position.
    pub fn append_aside(&mut self, plan: &Plan, node: &str, update: Update, id: CheckpointId) -> Entry {
        let update = update.ruled(&plan.rules);
        self.state.apply(&update);
        self.append_entry(id, CheckpointSource::Update, node, vec![update])
    }

    /// Starts a new branch at an older checkpoint, with the same position. A run that raises an interrupt before its
    /// first step needs a checkpoint of its own for it.
    pub fn fork(&mut self, id: CheckpointId) -> Entry {
        self.append_entry(id, CheckpointSource::Fork, START, vec![])
    }

    /// Carries the current step on to a checkpoint of its own, with its interrupts, answers and tasks. A run that brings
    /// answers to an older checkpoint continues from it in this way, on a branch that is the newest from then on.
    pub fn carry_on(&mut self, id: CheckpointId) -> Entry {
        let base = self.step_base();
        let entry = self.append_entry(id, CheckpointSource::Fork, START, vec![]);
        self.position.carried_from = base;
        entry
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
