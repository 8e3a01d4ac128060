//! Which calls humans have approved, and the questions about calls that came past the review after the model's answer.
//!
//! An approval is bound to the content of a call: its id, its tool and its arguments. It holds until the step is over, and
//! on this thread only; whoever begins at an older checkpoint is asked anew.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{InterruptSource, Machine, Phase, Position, Question, QuestionKind};
use crate::domain::call::CallStatus;
use crate::domain::interrupt::Action;
use crate::domain::message::ToolCall;

impl Machine {
    /// Notes that a human has approved these calls, as they are.
    pub fn mark_reviewed(&mut self, calls: &[ToolCall]) {
        self.position
            .reviewed
            .extend(calls.iter().map(|call| (call.id.clone(), digest(call))));
    }

    /// Whether a human has approved just this call.
    pub fn is_reviewed(&self, call: &ToolCall) -> bool {
        self.position
            .reviewed
            .get(&call.id)
            .is_some_and(|reviewed| *reviewed == digest(call))
    }

    /// Takes the answer to the question whether the call may be made, if there is one and `question` is what was asked: a
    /// call that changed after it was asked about is not the one that was decided about.
    pub fn take_review(&mut self, call: &str, question: &Question) -> Option<Value> {
        let at = self.position.asked.iter().position(|asked| {
            let is_review = asked.question.kind == QuestionKind::ToolApproval && asked.answer.is_some();
            is_review && matches!(&asked.asker, InterruptSource::Call(id) if id == call)
        })?;
        let asked = self.position.asked.remove(at);
        asked.answer.filter(|_| asked.question.value == question.value)
    }

    /// Lets `action` run in place of the call at `at`.
    pub fn edit_call(&mut self, at: usize, action: Action) {
        if let Phase::Tools { calls } = &mut self.position.phase
            && let Some(call) = calls.get_mut(at)
        {
            call.edited = Some(action);
        }
    }
}

impl Position {
    /// The same place for whoever begins at a checkpoint that is not the newest: what was asked, answered, approved and begun
    /// there belongs to the run that went on from it then.
    #[must_use]
    pub fn replayed(mut self) -> Self {
        self.asked.clear();
        self.reviewed.clear();
        if let Phase::Tools { calls } = &mut self.phase {
            let begun = calls
                .iter_mut()
                .filter(|call| matches!(call.status, CallStatus::Asking | CallStatus::Started));
            begun.for_each(|call| call.status = CallStatus::Ready);
        }
        self
    }
}

/// What an approval is bound to besides the id of the call.
fn digest(call: &ToolCall) -> String {
    let mut hash = Sha256::new();
    hash.update(&call.name);
    hash.update([0]);
    hash.update(Value::Object(call.args.clone()).to_string());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
