//! The recorder of the audit.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::resource_ref::ResourceRef;
use super::shared::Core;
use crate::db::{self, Db, DbResult, PendingEntries, RowAccess, Tx};
use crate::domain::access::Action;
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::id::{InterruptId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::time::Timestamp;

/// Records the audit. Cheap to clone.
#[derive(Clone)]
pub struct Audit {
    core: Arc<Core>,
}

impl Audit {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Returns whether the audit contains such requests. Without authentication there is no caller to record.
    pub fn contains(&self, caller: &Identity, action: Action, outcome: AuditOutcome) -> bool {
        let is_recorded = outcome == AuditOutcome::Denied || !action.is_read() || self.core.audit.reads;
        !caller.is_unrestricted() && is_recorded
    }

    /// Runs the work of one request of this caller. The entries that are [recorded](Self::record) meanwhile are stored
    /// with the first write of the request, and at its end if it writes nothing more; so they are durable when this
    /// returns. If the request is dropped before, they are stored all the same.
    ///
    /// # Errors
    /// When the entries cannot be stored.
    pub async fn run_request<W: Future>(&self, caller: Option<&Identity>, work: W) -> DbResult<W::Output> {
        if caller.is_none_or(Identity::is_unrestricted) {
            return Ok(work.await);
        }
        let core = Arc::clone(&self.core);
        let entries = PendingEntries::new(move |left| store_soon(&core, left));
        let output = entries.clone().scope(work).await;
        entries.scope(store_pending(&self.core.db)).await?;
        Ok(output)
    }

    /// Records an entry about the request for which the current task works. Without a request it is stored soon.
    pub fn record(&self, entry: AuditEntry) {
        record(&self.core, entry);
    }

    /// Returns the time.
    pub fn now(&self) -> Timestamp {
        self.core.clock.now()
    }
}

fn record(core: &Arc<Core>, entry: AuditEntry) {
    match PendingEntries::current() {
        Some(entries) => entries.add(entry),
        None => store_soon(core, vec![Arc::new(entry)]),
    }
}

/// Stores entries for which nobody waits.
fn store_soon(core: &Arc<Core>, entries: Vec<Arc<AuditEntry>>) {
    let db = core.db.clone();
    let storing = async move {
        let write = db.write(move |tx| Box::pin(async move { db::audit::insert_all(tx, &entries).await }));
        if let Err(error) = write.await {
            tracing::error!(%error, "an entry of the audit cannot be stored");
        }
    };
    // The request is over, and the entries say for whom they are.
    drop(core.spawn("audit", RowAccess::Server.scope(storing)));
}

/// Stores the pending entries of the request for which the current task works, before it does something that is no write
/// of the database.
pub(super) async fn store_pending(db: &Db) -> DbResult<()> {
    match PendingEntries::current() {
        // Every write stores them, so one that does nothing else is enough.
        Some(entries) if !entries.is_empty() => db.write(|_| Box::pin(async { Ok(()) })).await,
        Some(_) | None => Ok(()),
    }
}

/// Records that a caller was refused, because of these policies if there are any.
pub(super) fn record_refusal(
    core: &Arc<Core>,
    caller: &Identity,
    action: Action,
    resource: String,
    policies: &[String],
) {
    tracing::debug!(user = %caller.user, tenant = %caller.tenant, %action, %resource, ?policies, "refused");
    let entry = AuditEntry::new(caller, action, resource, AuditOutcome::Denied, core.clock.now());
    record(core, entry.because_of(policies));
}

/// Returns an interrupt as the audit shows it.
pub fn interrupt_text(thread: ThreadId, interrupt: &InterruptId) -> String {
    format!("{}/interrupt:{interrupt}", ResourceRef::Thread(thread))
}

/// Records the answer to an interrupt, in the transaction that stores the answer.
pub(super) async fn record_answer(
    tx: &mut Tx<'_>,
    caller: &Identity,
    thread: ThreadId,
    interrupt: &InterruptId,
    answer: &Value,
    now: Timestamp,
) -> DbResult<()> {
    match answer_entry(caller, thread, interrupt, answer, now) {
        Some(entry) => db::audit::insert(tx, &entry).await,
        None => Ok(()),
    }
}

/// Records the answer to an interrupt of a task on another server. It is stored before that server gets the answer.
pub(super) fn record_remote_answer(
    core: &Arc<Core>,
    caller: &Identity,
    task: ThreadId,
    interrupt: &InterruptId,
    answer: &Value,
) {
    if let Some(entry) = answer_entry(caller, task, interrupt, answer, core.clock.now()) {
        record(core, entry);
    }
}

/// Returns the entry about an answer; none without authentication. Of decisions only the types are recorded: arguments and
/// messages may be private.
fn answer_entry(
    caller: &Identity,
    thread: ThreadId,
    interrupt: &InterruptId,
    answer: &Value,
    now: Timestamp,
) -> Option<AuditEntry> {
    if caller.is_unrestricted() {
        return None;
    }
    let resource = interrupt_text(thread, interrupt);
    let entry = AuditEntry::new(caller, Action::InterruptsResolve, resource, AuditOutcome::Allowed, now);
    let list = answer.get("decisions").and_then(Value::as_array);
    let single = || answer.get("type").map(|_| std::slice::from_ref(answer));
    let decisions = list.map(Vec::as_slice).or_else(single);
    let all_of = |key: &str| -> Vec<Value> {
        let decisions = decisions.into_iter().flatten();
        decisions.filter_map(|decision| decision.get(key).cloned()).collect()
    };
    let mut detail = Map::new();
    if decisions.is_some() {
        detail.insert("decisions".to_owned(), json!(all_of("type")));
    }
    let scopes = all_of("scope");
    if !scopes.is_empty() {
        detail.insert("scopes".to_owned(), json!(scopes));
    }
    Some(AuditEntry { detail, ..entry })
}
