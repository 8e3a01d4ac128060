//! What clients do to a machine that no run moves: they write into its state, or send it elsewhere.

use super::{
    Call, CheckpointId, CheckpointSource, Entry, HookPoint, InterruptSource, MODEL, Machine, Phase, Plan, Position,
    START, TOOLS, Update,
};
use crate::domain::call::CallStatus;
use crate::domain::goto::Destination;
use crate::domain::id::RunId;
use crate::domain::interrupt::Action;
use crate::domain::message::ToolCall;

impl Machine {
    /// Whether a call of the step under way is the work of `child`, and not answered.
    pub fn waits_for(&self, child: RunId) -> bool {
        let Phase::Tools { calls } = &self.position.phase else {
            return false;
        };
        calls
            .iter()
            .any(|call| matches!(call.status, CallStatus::Delegated { child: of, .. } if of == child))
    }

    /// Writes `update` from outside the loop, as if `node` had written it.
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

    /// Writes `update` from outside the loop and stays where the run stands.
    pub fn append_update(&mut self, plan: &Plan, update: Update, id: CheckpointId) -> Entry {
        let update = update.ruled(&plan.rules);
        self.state.apply(&update);
        self.append_entry(id, CheckpointSource::Update, START, vec![update])
    }

    /// Begins a history of its own at an older checkpoint, and stands where that stands. A run that asks before it takes a step
    /// needs a checkpoint at which its question waits.
    pub fn fork(&mut self, id: CheckpointId) -> Entry {
        self.append_entry(id, CheckpointSource::Fork, START, vec![])
    }

    /// Goes to where the loop goes after `node`.
    fn advance_after(&mut self, plan: &Plan, node: &str) {
        match node {
            // What a program writes is the end of the run.
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

    /// Goes straight to a place in the loop. Questions that are not asked there are left behind.
    pub fn jump_to(&mut self, plan: &Plan, place: &Destination) {
        match place {
            Destination::Model(shown) => {
                self.clear_questions();
                self.position.phase = Phase::Model;
                self.position.model_input = shown.clone();
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
        // What has begun must not begin once more, as when a client's command is obeyed again after a crash.
        if let (Phase::Tools { calls: known }, Phase::Tools { calls }) = (before, &mut self.position.phase) {
            for call in calls {
                if let Some(begun) = known.iter().find(|other| other.id == call.id) {
                    call.clone_from(begun);
                }
            }
        }
    }
}

/// A call that a client brings: it says itself what runs, as no answer of the model does.
fn sent_call(call: &ToolCall) -> Call {
    let action = Action {
        name: call.name.clone(),
        args: call.args.clone(),
    };
    Call {
        id: call.id.clone(),
        edited: Some(action),
        status: CallStatus::Ready,
    }
}
