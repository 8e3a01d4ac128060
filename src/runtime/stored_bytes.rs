//! The quotas for stored bytes: checked before a client stores more, against sums that are measured in the background.
//!
//! A sum is at most a minute older than the last request that stored something, so that a quota may be exceeded by what
//! is written in a minute. Nothing is measured for owners without such a quota.

use std::sync::Arc;

use super::shared::Core;
use crate::db::stored_bytes::{self, StorageOwner};
use crate::db::{DbError, DbResult, RowAccess};
use crate::domain::access::Ownership;
use crate::domain::account::{Account, QuotaLevel};
use crate::domain::quota::{QuotaKind, QuotaReached};

/// The most threads that are measured at once.
const AT_ONCE: i64 = 500;

/// The quotas for stored bytes. Cheap to clone.
#[derive(Clone)]
pub struct StoredBytes {
    core: Arc<Core>,
}

impl StoredBytes {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Checks whether an owner may store more.
    ///
    /// # Errors
    /// The quota that is used up.
    pub fn check(&self, owner: &Ownership) -> Result<(), QuotaReached> {
        check(&self.core, owner)
    }
}

/// Checks whether an owner may store more, and measures again in the background what is stored.
///
/// # Errors
/// The quota that is used up.
pub(super) fn check(core: &Arc<Core>, owner: &Ownership) -> Result<(), QuotaReached> {
    if !core.quotas.has_limit(|rule| rule.stored_bytes.is_some()) {
        return Ok(());
    }
    let account = Account::of_owner(owner);
    for applied in core.quotas.rules_for(&account) {
        if applied.rule.stored_bytes.is_none() {
            continue;
        }
        let (bytes, is_due) = core.stored.last_sum(applied.subject, core.clock.now());
        if is_due {
            let by = StorageOwner {
                tenant: owner.tenant.clone(),
                owner: (applied.level == QuotaLevel::User).then(|| owner.owner.clone()),
            };
            start_measuring(core, applied.subject.to_owned(), by);
        }
        applied.check_count(QuotaKind::StoredBytes, bytes.unwrap_or(0))?;
    }
    Ok(())
}

fn start_measuring(core: &Arc<Core>, subject: String, by: StorageOwner) {
    let core_of_task = Arc::clone(core);
    let access = RowAccess::Tenant(by.tenant.clone());
    let measuring = async move {
        let measured = measure(&core_of_task, by).await;
        if let Err(error) = &measured {
            tracing::warn!(%error, "could not measure what an owner stores");
        }
        core_of_task.stored.record(&subject, measured.ok());
    };
    drop(core.spawn("measuring of stored bytes", access.scope(measuring)));
}

/// Measures what has changed, and returns the sum.
async fn measure(core: &Core, by: StorageOwner) -> DbResult<u64> {
    let now = core.clock.now();
    let wanted = by.clone();
    let read = core
        .db
        .read(move |tx| Box::pin(async move { stored_bytes::changed_threads(tx, &wanted, AT_ONCE).await }));
    for thread in read.await? {
        // Each thread has a transaction of its own, since others wait for writes to end.
        let write = core
            .db
            .write(move |tx| Box::pin(stored_bytes::measure(tx, thread, now)));
        match write.await {
            // The thread was deleted meanwhile.
            Ok(()) | Err(DbError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let read = core
        .db
        .read(move |tx| Box::pin(async move { stored_bytes::stored(tx, &by).await }));
    read.await
}
