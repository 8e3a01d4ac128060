//! Checks of the database for whoever asks whether the server is well.
//!
//! These endpoints are public and have no quotas. So one check runs at a time, however many ask for it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::db::DbResult;

/// A check of which one runs at a time. All requests that come before its end share its outcome: what was true at the end is
/// true for them, and none of them waits for a second check of a database that is slow.
#[derive(Default)]
pub(super) struct SharedCheck {
    /// The number of checks that have ended.
    ended: AtomicU64,
    /// The outcome of the last one. It is locked while a check runs.
    last: Mutex<Option<DbResult<()>>>,
}

impl SharedCheck {
    /// Returns the outcome of the check that runs. If none does, or the request for which it ran has left, runs one.
    ///
    /// # Errors
    /// Those of the check.
    pub(super) async fn run<F>(&self, check: impl FnOnce() -> F) -> DbResult<()>
    where
        F: Future<Output = DbResult<()>>,
    {
        let ended_before = self.ended.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        let has_ended = self.ended.load(Ordering::SeqCst) > ended_before;
        if let Some(outcome) = last.as_ref().filter(|_| has_ended) {
            return outcome.clone();
        }
        let outcome = check().await;
        *last = Some(outcome.clone());
        // The number grows before the next request gets the lock.
        self.ended.fetch_add(1, Ordering::SeqCst);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};

    use futures::future::join_all;
    use tokio::sync::oneshot;

    use super::*;
    use crate::db::DbError;

    fn succeed() -> Ready<DbResult<()>> {
        ready(Ok(()))
    }

    #[tokio::test]
    async fn one_check_runs_at_a_time_and_all_who_come_before_its_end_learn_of_it() {
        let check = SharedCheck::default();
        let (end_first, first_ends) = oneshot::channel();
        let begun = AtomicU64::new(0);
        let count = || {
            begun.fetch_add(1, Ordering::SeqCst);
        };
        let first = check.run(|| {
            count();
            async {
                first_ends.await.expect("the test goes on");
                Err(DbError::Busy)
            }
        });
        let others = async {
            let asked = (0..50).map(|_| {
                check.run(|| {
                    count();
                    succeed()
                })
            });
            let all_have_come = async {
                tokio::task::yield_now().await;
                end_first.send(()).expect("the first one waits");
            };
            futures::join!(join_all(asked), all_have_come).0
        };
        let done = futures::join!(first, others);
        assert!(matches!(done.0, Err(DbError::Busy)), "{:?}", done.0);
        assert_eq!(done.1.len(), 50);
        assert!(done.1.iter().all(|outcome| matches!(outcome, Err(DbError::Busy))));
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        let later = check.run(|| {
            count();
            succeed()
        });
        assert!(later.await.is_ok(), "it is a check of its own");
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_request_that_leaves_ends_its_check() {
        let check = SharedCheck::default();
        let never = check.run(std::future::pending);
        let left = tokio::time::timeout(std::time::Duration::ZERO, never).await;
        assert!(left.is_err());
        assert!(check.run(|| async { Ok(()) }).await.is_ok());
    }
}
