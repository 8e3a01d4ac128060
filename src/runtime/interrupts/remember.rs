//! Decisions that are remembered for the rest of a thread. They are stored in the transaction that stores the answer,
//! and deleted when the run that brought them is undone.

use std::sync::Arc;

use async_trait::async_trait;

use crate::db::interrupts::InterruptRecord;
use crate::db::{self, Db, Tx};
use crate::domain::Invalid;
use crate::domain::id::{DecisionId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::machine::Failure;
use crate::domain::remembered::{DecisionToRemember, MAX_REMEMBERED, RememberedDecision, to_remember};
use crate::domain::run::Run;
use crate::runtime::error::StartError;
use crate::runtime::new_run::ANSWERS;
use crate::runtime::resource_ref::ResourceRef;
use crate::tool::remembered::RememberedDecisions;

/// Checks the parts of an answer that are to be remembered.
///
/// # Errors
/// Names the part that is wrong.
pub(super) fn check(record: &InterruptRecord, answer: &serde_json::Value) -> Result<(), Invalid> {
    to_remember(&record.interrupt.question, answer).map(drop)
}

/// Stores the decisions of an answer that are to be remembered, on behalf of the run that brings it. The answer was
/// checked. Returns whether there are any.
///
/// # Errors
/// Returns the refusal if the thread has too many.
pub(super) async fn remember(
    tx: &mut Tx<'_>,
    run: &Run,
    record: &InterruptRecord,
    answer: &serde_json::Value,
    caller: &Identity,
) -> Result<bool, StartError> {
    let given = to_remember(&record.interrupt.question, answer)?;
    if given.is_empty() {
        return Ok(false);
    }
    let known = db::remembered::of_thread(tx, run.thread).await?;
    if known.len() + given.len() > MAX_REMEMBERED {
        let reason = format!("`thread` is refused: {MAX_REMEMBERED} decisions are remembered already; revoke some");
        return Err(Invalid::new(ANSWERS, reason).into());
    }
    for decision in given {
        let decision = of_answer(decision, run, record, caller);
        // The later decision of the same approvers about the same calls replaces the earlier one.
        for earlier in known.iter().filter(|earlier| is_replaced(earlier, &decision)) {
            db::remembered::delete(tx, run.thread, earlier.id).await?;
        }
        db::remembered::insert(tx, &decision).await?;
    }
    Ok(true)
}

fn of_answer(given: DecisionToRemember, run: &Run, record: &InterruptRecord, caller: &Identity) -> RememberedDecision {
    RememberedDecision {
        id: DecisionId::mint(),
        thread: run.thread,
        run: run.id,
        interrupt: record.interrupt.id.clone(),
        path: record.path.clone(),
        tool: given.tool,
        decision: given.decision,
        message: given.message,
        condition: given.condition,
        exact: given.exact,
        approvers: record.interrupt.question.approvers.clone(),
        given_by: (!caller.is_unrestricted()).then(|| caller.user.clone()),
        created_at: run.created_at,
    }
}

fn is_replaced(earlier: &RememberedDecision, later: &RememberedDecision) -> bool {
    earlier.path == later.path
        && earlier.tool == later.tool
        && earlier.condition == later.condition
        && earlier.exact == later.exact
        && earlier.approvers == later.approvers
}

/// The remembered decisions in the database.
pub(in crate::runtime) struct StoredDecisions(pub(in crate::runtime) Db);

#[async_trait]
impl RememberedDecisions for StoredDecisions {
    async fn of_thread(&self, thread: ThreadId) -> Result<Arc<[RememberedDecision]>, Failure> {
        let read = self.0.read(move |tx| Box::pin(db::remembered::of_thread(tx, thread)));
        let found = read.await.map_err(|error| {
            tracing::error!(resource = %ResourceRef::Thread(thread), %error, "remembered decisions cannot be read");
            Failure::new("StorageError", "the remembered decisions cannot be read")
        })?;
        Ok(found.into())
    }
}
