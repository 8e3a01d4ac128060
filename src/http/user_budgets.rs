//! The parts of a budget, of memory or of connections, that single users may take, so that nobody shuts the others out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

use crate::domain::access::Ownership;
use crate::domain::identity::Identity;

/// The number of users with a part in use from which on those without one are forgotten.
const MANY_USERS: usize = 1024;

/// The parts of a budget that single users may take, all of the same size. Requests without authentication have no user.
#[derive(Debug)]
pub(super) struct UserBudgets {
    /// The size of a part in units of the budget.
    units: u32,
    /// The users who hold something of theirs.
    known: Mutex<HashMap<Ownership, Weak<Semaphore>>>,
}

impl UserBudgets {
    /// Creates parts of this size.
    pub(super) fn new(units: u32) -> Self {
        Self {
            units,
            known: Mutex::default(),
        }
    }

    /// Returns the size of a part in units of the budget.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Returns the part of a caller; none for one without authentication.
    pub(super) fn of(&self, caller: &Identity) -> Option<Arc<Semaphore>> {
        if !caller.credential.is_verified() {
            return None;
        }
        let user = Ownership::of(caller);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = known.get(&user).and_then(Weak::upgrade) {
            return Some(budget);
        }
        if known.len() >= MANY_USERS {
            known.retain(|_, budget| budget.strong_count() > 0);
        }
        let budget = budget_of(self.units);
        known.insert(user, Arc::downgrade(&budget));
        Some(budget)
    }
}

/// Returns a budget of this many units.
pub(super) fn budget_of(units: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS)))
}

/// Returns a user of this name.
#[cfg(test)]
pub(super) fn user(name: &str) -> Identity {
    use crate::domain::identity::{Credential, UserId};

    Identity {
        user: UserId::stored(name.to_owned()),
        credential: Credential::ApiKey("k".to_owned()),
        ..Identity::unauthenticated()
    }
}
