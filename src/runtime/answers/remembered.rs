//! Remembered decisions that are revoked.

use std::sync::Arc;

use serde_json::{Map, json};

use super::Interrupts;
use crate::db::{self, DbResult, Tx};
use crate::domain::access::{Action, InterruptScope, is_entitled};
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::id::{DecisionId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::remembered::RememberedDecision;
use crate::runtime::audit;
use crate::runtime::error::RevokeError;

impl Interrupts {
    /// Revokes a remembered decision of a thread. The next such call is asked about again. `scope` has the interrupts that
    /// the caller may answer.
    ///
    /// # Errors
    /// Returns the refusal; the decision stays then.
    pub async fn revoke(
        &self,
        thread: ThreadId,
        id: DecisionId,
        caller: Arc<Identity>,
        scope: InterruptScope,
    ) -> Result<(), RevokeError> {
        let now = self.core.clock.now();
        let write = self.core.db.write(move |tx| {
            let caller = Arc::clone(&caller);
            Box::pin(async move {
                let known = db::remembered::visible(tx, thread, &scope).await?;
                let Some(found) = known.iter().find(|decision| decision.id == id) else {
                    return Err(RevokeError::NoDecision);
                };
                if !is_entitled(&caller.user, &caller.roles, &found.approvers) {
                    return Err(RevokeError::AssignedToOthers(found.approvers.to_string()));
                }
                db::remembered::delete(tx, thread, id).await?;
                record_revocation(tx, &caller, found, now).await?;
                Ok(())
            })
        });
        write.await
    }
}

/// Records in the audit that a decision was revoked, in the transaction that deletes it.
async fn record_revocation(
    tx: &mut Tx<'_>,
    caller: &Identity,
    decision: &RememberedDecision,
    now: crate::domain::time::Timestamp,
) -> DbResult<()> {
    if caller.is_unrestricted() {
        return Ok(());
    }
    let resource = audit::interrupt_text(decision.thread, &decision.interrupt);
    let entry = AuditEntry::new(caller, Action::InterruptsResolve, resource, AuditOutcome::Allowed, now);
    let detail = Map::from_iter([("revoked".to_owned(), json!(decision.id))]);
    db::audit::insert(tx, &AuditEntry { detail, ..entry }).await
}
