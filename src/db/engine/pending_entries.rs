//! The entries of the audit that a request has made and that are not stored yet.
//!
//! A change and its entry are committed together: every write of a request stores what is pending in its own
//! transaction. So an entry costs a statement and no transaction, and no crash separates a change from its entry. An
//! entry stays pending until a transaction with it was committed; a write that is rolled back, or whose outcome is
//! unknown, loses none. Two writes of a request that store the same entry store one row, since the id of an entry is its
//! key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::Either;

use crate::domain::audit::AuditEntry;

tokio::task_local! {
    /// The entries of the request for which the current task works.
    static CURRENT: PendingEntries;
}

/// Takes over the entries that are pending when nothing works for their request any more.
type TakeOver = Box<dyn Fn(Vec<Arc<AuditEntry>>) + Send + Sync>;

/// The entries of one request that are not stored yet. Clones share the entries.
#[derive(Clone)]
pub struct PendingEntries(Arc<RequestEntries>);

struct RequestEntries {
    pending: Mutex<Vec<Arc<AuditEntry>>>,
    take_over: TakeOver,
}

impl Drop for RequestEntries {
    fn drop(&mut self) {
        let left = std::mem::take(self.pending.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !left.is_empty() {
            (self.take_over)(left);
        }
    }
}

impl PendingEntries {
    /// Begins the entries of a request. `take_over` gets those that are pending when the last clone is dropped: a client
    /// that disconnects ends its request at any point.
    pub fn new(take_over: impl Fn(Vec<Arc<AuditEntry>>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(RequestEntries {
            pending: Mutex::default(),
            take_over: Box::new(take_over),
        }))
    }

    /// Returns the entries of the request for which the current task works; `None` if it works for the server itself.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Runs work for the request. Tasks that the work starts are no part of it, unless they are started with
    /// [`Self::in_current`].
    pub fn scope<W: Future>(self, work: W) -> impl Future<Output = W::Output> {
        CURRENT.scope(self, work)
    }

    /// Returns work for a task of its own, as a part of the request for which the current task works.
    pub fn in_current<W: Future>(work: W) -> impl Future<Output = W::Output> {
        match Self::current() {
            Some(entries) => Either::Left(entries.scope(work)),
            None => Either::Right(work),
        }
    }

    /// Adds an entry.
    pub fn add(&self, entry: AuditEntry) {
        self.pending().push(Arc::new(entry));
    }

    /// Returns whether everything is stored.
    pub fn is_empty(&self) -> bool {
        self.pending().is_empty()
    }

    /// Returns what is pending now. It stays pending until [`PendingEntries::remove`].
    pub(in crate::db) fn not_stored(&self) -> Vec<Arc<AuditEntry>> {
        self.pending().clone()
    }

    /// Removes entries whose transaction was committed.
    pub(in crate::db) fn remove(&self, stored: &[Arc<AuditEntry>]) {
        if !stored.is_empty() {
            self.pending()
                .retain(|entry| !stored.iter().any(|stored| stored.id == entry.id));
        }
    }

    fn pending(&self) -> MutexGuard<'_, Vec<Arc<AuditEntry>>> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
