//! The largest messages that WebSockets take.
//!
//! A message is in memory from its first piece on, and counts among the bodies only when it is complete. The buffer of a socket
//! stays as large as its largest message was. So a limited number of sockets may take messages as large as bodies; those that
//! are opened beyond it take small ones.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::user_budgets::{UserBudgets, budget_of};
use crate::domain::identity::Identity;

/// The number of sockets that may take messages as large as bodies.
const LARGE: u32 = 64;
/// The number of those that may be of one user.
const LARGE_OF_USER: u32 = 16;
/// The largest message of all other sockets, in bytes.
const SMALL_MESSAGE: usize = 64 * 1024;

/// Gives sockets their limits of messages.
#[derive(Debug)]
pub(super) struct SocketMessages {
    largest: usize,
    large: Arc<Semaphore>,
    of_users: UserBudgets,
}

impl SocketMessages {
    /// Creates limits of at most `largest` bytes.
    pub(super) fn new(largest: usize) -> Self {
        Self {
            largest,
            large: budget_of(LARGE),
            of_users: UserBudgets::new(LARGE_OF_USER),
        }
    }

    /// Returns the limit of a new socket of this caller.
    pub(super) fn limit(&self, caller: &Identity) -> MessageLimit {
        let permits = self.permits(caller);
        let bytes = match permits {
            Some(_) => self.largest,
            None => self.largest.min(SMALL_MESSAGE),
        };
        MessageLimit {
            bytes,
            _permits: permits,
        }
    }

    /// Returns the permits of a socket with large messages, if there may be one more.
    fn permits(&self, caller: &Identity) -> Option<Vec<OwnedSemaphorePermit>> {
        let of_user = self.of_users.of(caller);
        let budgets = of_user.into_iter().chain([Arc::clone(&self.large)]);
        budgets.map(|budget| budget.try_acquire_owned().ok()).collect()
    }
}

/// The limit of the messages of one socket, held for as long as the socket is open.
#[derive(Debug)]
pub(super) struct MessageLimit {
    bytes: usize,
    _permits: Option<Vec<OwnedSemaphorePermit>>,
}

impl MessageLimit {
    /// Returns the largest message, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::user_budgets::user;

    const LARGEST: usize = 4 << 20;

    #[test]
    fn a_user_and_all_users_have_a_limited_number_of_sockets_with_large_messages() {
        let messages = SocketMessages::new(LARGEST);
        let mut open = vec![];
        for name in ["ann", "bob", "carl", "dora"] {
            for _ in 0..LARGE_OF_USER {
                open.push(messages.limit(&user(name)));
            }
            assert_eq!(messages.limit(&user(name)).bytes(), SMALL_MESSAGE, "{name}");
        }
        assert!(open.iter().all(|limit| limit.bytes() == LARGEST));
        assert_eq!(messages.limit(&user("eve")).bytes(), SMALL_MESSAGE);
        assert_eq!(messages.limit(&Identity::unauthenticated()).bytes(), SMALL_MESSAGE);
        open.pop();
        assert_eq!(messages.limit(&user("eve")).bytes(), LARGEST);
    }

    #[test]
    fn no_socket_takes_larger_messages_than_bodies() {
        let messages = SocketMessages::new(1024);
        let open: Vec<MessageLimit> = (0..=LARGE)
            .map(|_| messages.limit(&Identity::unauthenticated()))
            .collect();
        assert!(open.iter().all(|limit| limit.bytes() == 1024));
    }
}
