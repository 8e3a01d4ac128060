//! The recorder of the audit.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use super::shared::Core;
use crate::db::{self, DbResult, Tx};
use crate::domain::access::Action;
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::id::{InterruptId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::time::Timestamp;

/// What the audit contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditSettings {
    /// True to record reads as well. Changes and refusals are always recorded.
    pub reads: bool,
    /// How long entries are kept; `None` for ever.
    pub keep: Option<Duration>,
}

impl Default for AuditSettings {
    /// Changes and refusals, for a year.
    fn default() -> Self {
        Self {
            reads: false,
            keep: Some(Duration::from_secs(365 * 86_400)),
        }
    }
}

/// The outcome of storing an entry: `Some(Ok)` when it is durable.
pub type AuditReceipt = JoinHandle<Option<DbResult<()>>>;

/// Records the audit. Cheap to clone.
#[derive(Clone)]
pub struct Audit {
    core: Arc<Core>,
}

impl Audit {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Returns whether the audit contains such requests. Without authentication there is nobody to record.
    pub fn contains(&self, caller: &Identity, action: Action, outcome: AuditOutcome) -> bool {
        !caller.is_unrestricted() && (outcome == AuditOutcome::Denied || !action.is_read() || self.core.audit.reads)
    }

    /// Stores an entry. It is queued before the writes that come after this call, and the receipt says when it is
    /// durable.
    pub fn record(&self, entry: AuditEntry) -> AuditReceipt {
        record(&self.core, entry)
    }

    /// Returns the time.
    pub fn now(&self) -> Timestamp {
        self.core.clock.now()
    }
}

fn record(core: &Arc<Core>, entry: AuditEntry) -> AuditReceipt {
    let db = core.db.clone();
    core.shutdown.spawn("audit", async move {
        let write = db.write(move |tx| Box::pin(async move { db::audit::insert(tx, &entry).await }));
        write.await
    })
}

/// Records that an admission refused a caller. The refusal does not wait for it.
pub(super) fn record_refusal(core: &Arc<Core>, caller: &Identity, action: Action, resource: String) {
    tracing::debug!(user = %caller.user, tenant = %caller.tenant, %action, %resource, "refused");
    let entry = AuditEntry::new(caller, action, resource, AuditOutcome::Denied, core.clock.now());
    drop(record(core, entry));
}

/// Records the answer to an interrupt, in the transaction that stores the answer. Of decisions only the types are
/// recorded: arguments and messages may be private.
pub(super) async fn record_answer(
    tx: &mut Tx<'_>,
    caller: &Identity,
    thread: ThreadId,
    interrupt: &InterruptId,
    answer: &Value,
    now: Timestamp,
) -> DbResult<()> {
    if caller.is_unrestricted() {
        return Ok(());
    }
    let resource = format!("thread:{thread}/interrupt:{interrupt}");
    let entry = AuditEntry::new(caller, Action::InterruptsResolve, resource, AuditOutcome::Allowed, now);
    let decisions = answer.get("decisions").and_then(Value::as_array);
    let types = decisions.map(|all| all.iter().map(|decision| decision["type"].clone()).collect::<Vec<_>>());
    let detail = Map::from_iter(types.map(|types| ("decisions".to_owned(), json!(types))));
    db::audit::insert(tx, &AuditEntry { detail, ..entry }).await
}
