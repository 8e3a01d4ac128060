//! The approvals of calls, and the questions about calls that were not reviewed after the model's answer.
//!
//! An approval applies to the content of a call: its id, tool and arguments. It is valid until the end of the step,
//! on this thread only. A run that starts from an older checkpoint asks again.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Interrupt, InterruptSource, Machine, Phase, Position, Question, QuestionKind};
use crate::domain::call::{Call, CallStatus};
use crate::domain::id::{InterruptId, RunId};
use crate::domain::interrupt::ReviewAction;
use crate::domain::message::ToolCall;

impl Machine {
    /// Records that a human has approved these calls.
    pub fn mark_reviewed(&mut self, calls: &[ToolCall]) {
        self.position
            .reviewed
            .extend(calls.iter().map(|call| (call.id.clone(), digest(call))));
    }

    /// Returns whether a human has approved exactly this call.
    pub fn is_reviewed(&self, call: &ToolCall) -> bool {
        self.position
            .reviewed
            .get(&call.id)
            .is_some_and(|reviewed| *reviewed == digest(call))
    }

    /// Removes and returns the answer to `question` about the call, if there is one. An answer to another question,
    /// about a call that has changed since, is not valid.
    pub fn take_review(&mut self, call: &str, question: &Question) -> Option<Value> {
        let at = self.position.asked.iter().position(|asked| {
            let is_review = asked.question.kind == QuestionKind::ToolApproval && asked.answer.is_some();
            is_review && matches!(&asked.asker, InterruptSource::Call(id) if id == call)
        })?;
        let asked = self.position.asked.remove(at);
        let is_same = asked.question.value == question.value && asked.question.approvers == question.approvers;
        asked.answer.filter(|_| is_same)
    }

    /// Replaces the call at `at` by `action`.
    pub fn edit_call(&mut self, at: usize, action: ReviewAction) {
        if let Phase::Tools { calls } = &mut self.position.phase
            && let Some(call) = calls.get_mut(at)
        {
            call.edited = Some(action);
        }
    }
}

impl Position {
    /// Returns the position for a run that starts from an older checkpoint. Interrupts, approvals and started calls
    /// are dropped: they belong to the run that continued from the checkpoint before.
    #[must_use]
    pub fn replayed(mut self) -> Self {
        self.asked.clear();
        self.outdated.clear();
        self.reviewed.clear();
        self.carried_from = None;
        if let Phase::Tools { calls } = &mut self.phase {
            let begun = calls
                .iter_mut()
                .filter(|call| matches!(call.status, CallStatus::Asking | CallStatus::Started));
            begun.for_each(|call| call.status = CallStatus::Ready);
        }
        self
    }

    /// Returns the position that stays behind when the step is carried on to another checkpoint: nothing waits at it any
    /// more, so no answer can continue the step a second time. A run without an answer begins the step anew.
    #[must_use]
    pub fn released(self) -> Self {
        let mut left = self.replayed();
        if let Phase::Tools { calls } = &mut left.phase {
            let delegated = calls
                .iter_mut()
                .filter(|call| matches!(call.status, CallStatus::Delegated { .. }));
            delegated.for_each(|call| call.status = CallStatus::Ready);
        }
        left
    }

    /// Removes the answers whose questions cannot be read, and returns the ids of their interrupts. An approval may have been for
    /// anything, so the asker asks again. A call counts as started, since the answer may have been that it must not be repeated.
    pub fn remove_lost_answers(&mut self) -> Vec<InterruptId> {
        let is_lost = |asked: &Interrupt| asked.answer.is_some() && asked.lacks_question();
        if !self.asked.iter().any(is_lost) {
            return vec![];
        }
        let (lost, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.asked).into_iter().partition(is_lost);
        self.asked = left;
        if let Phase::Tools { calls } = &mut self.phase {
            for call in calls {
                let is_own = |asked: &Interrupt| matches!(&asked.asker, InterruptSource::Call(id) if *id == call.id);
                let waits = self.asked.iter().any(|asked| asked.answer.is_none() && is_own(asked));
                let is_open = matches!(call.status, CallStatus::Ready | CallStatus::Asking);
                if is_open && !waits && lost.iter().any(is_own) {
                    call.status = CallStatus::Started;
                }
            }
        }
        lost.into_iter().map(|asked| asked.id).collect()
    }

    /// Returns whether an interrupt of the step has no answer.
    pub(super) fn has_open_question(&self) -> bool {
        self.asked.iter().any(|asked| asked.answer.is_none())
    }

    /// Returns whether the step waits for answers: to interrupts of its own, or of its child runs.
    pub fn waits_for_answers(&self) -> bool {
        let is_parked = |call: &Call| matches!(call.status, CallStatus::Delegated { parked: true, .. });
        self.has_open_question() || matches!(&self.phase, Phase::Tools { calls } if calls.iter().any(is_parked))
    }

    /// Returns whether the step waits, or has waited, for answers: to interrupts of its own, or of its child runs.
    pub fn has_waited(&self) -> bool {
        !self.asked.is_empty() || !self.delegated().is_empty()
    }

    /// Returns whether the same interrupts and child runs belong to the steps at both positions.
    pub fn waits_like(&self, other: &Self) -> bool {
        let asked = self.asked.iter().map(|asked| &asked.id);
        asked.eq(other.asked.iter().map(|asked| &asked.id)) && self.delegated() == other.delegated()
    }

    /// Returns the child runs to which calls of the step are delegated, in the order of the calls.
    pub fn delegated(&self) -> Vec<RunId> {
        let Phase::Tools { calls } = &self.phase else {
            return vec![];
        };
        calls.iter().filter_map(|call| call.status.child()).collect()
    }
}

/// Returns the digest to which an approval is bound, in addition to the call's id.
fn digest(call: &ToolCall) -> String {
    let mut hash = Sha256::new();
    hash.update(&call.name);
    hash.update([0]);
    hash.update(Value::Object(call.args.clone()).to_string());
    hex::encode(hash.finalize())
}
