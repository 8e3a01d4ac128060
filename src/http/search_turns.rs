//! The connections for searches that single users may hold, so that the slow searches of one do not shut the others out.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::ApiError;
use super::user_budgets::UserBudgets;
use crate::domain::identity::Identity;

/// The longest time that a search waits for the other searches of its user.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The turns of searches: a user may hold three quarters of the connections for searches, but at least one.
#[derive(Debug)]
pub(super) struct SearchTurns {
    of_users: UserBudgets,
}

impl SearchTurns {
    /// Creates turns for a database that runs this number of searches at the same time.
    pub(super) fn new(searches: u32) -> Self {
        Self {
            of_users: UserBudgets::new((searches.saturating_mul(3) / 4).max(1)),
        }
    }

    /// Returns the connections for searches that a user may hold. Without authentication there is no user, and no limit.
    pub(super) fn of(&self, caller: &Identity) -> Option<Arc<Semaphore>> {
        self.of_users.of(caller)
    }

    /// Waits until a user may hold one more connection for a search. Without authentication there is no user, and no wait.
    ///
    /// # Errors
    /// 503 if the other searches of the user take longer than [`LONGEST_WAIT`].
    pub(super) async fn take(&self, caller: &Identity) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let Some(of_user) = self.of(caller) else {
            return Ok(None);
        };
        let turn = timeout(LONGEST_WAIT, of_user.acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok);
        turn.map(Some).ok_or_else(ApiError::searches_busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::user_budgets::user;

    #[tokio::test(start_paused = true)]
    async fn the_searches_of_one_user_leave_connections_for_those_of_others() {
        let turns = SearchTurns::new(4);
        let ann = user("ann");
        let mut held = vec![];
        for _ in 0..3 {
            held.push(turns.take(&ann).await.expect("a turn"));
        }
        let refused = turns.take(&ann).await.expect_err("ann has her part");
        assert_eq!(refused.code(), "searches_busy");
        drop(turns.take(&user("bob")).await.expect("others have turns"));
        held.pop();
        drop(turns.take(&ann).await.expect("her part has room again"));
    }

    #[tokio::test(start_paused = true)]
    async fn searches_without_authentication_and_on_one_connection_have_turns() {
        let turns = SearchTurns::new(1);
        let nobody = Identity::unauthenticated();
        assert!(turns.take(&nobody).await.expect("no wait").is_none());
        assert!(turns.take(&user("ann")).await.expect("a turn").is_some());
    }
}
