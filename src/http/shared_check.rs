//! Checks of the database for whoever asks whether the server is well.
//!
//! These endpoints are public and have no quotas. So one check runs at a time, however many ask for it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::db::DbResult;

/// A check of which one runs at a time. Requests share the outcome of the first one that begins after they have come.
#[derive(Default)]
pub(super) struct SharedCheck {
    /// The number of checks that have begun.
    begun: AtomicU64,
    /// The last check that has ended. It is locked while one runs.
    last: Mutex<Option<EndedCheck>>,
}

/// A check that has ended.
struct EndedCheck {
    /// Its number: the first one is 1.
    number: u64,
    outcome: DbResult<()>,
}

impl SharedCheck {
    /// Runs the check, unless another request has begun one meanwhile, and returns its outcome.
    ///
    /// # Errors
    /// Those of the check.
    pub(super) async fn run<F>(&self, check: impl FnOnce() -> F) -> DbResult<()>
    where
        F: Future<Output = DbResult<()>>,
    {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some(ended) = last.as_ref().filter(|ended| ended.number > begun_before) {
            return ended.outcome.clone();
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let outcome = check().await;
        *last = Some(EndedCheck {
            number,
            outcome: outcome.clone(),
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::sync::oneshot;

    use super::*;
    use crate::db::DbError;

    #[tokio::test]
    async fn one_check_runs_at_a_time_and_all_learn_of_one_that_began_after_they_came() {
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
                Ok(())
            }
        });
        let others = async {
            // The first one has begun, since it was asked first.
            assert_eq!(begun.load(Ordering::SeqCst), 1);
            let asked = (0..50).map(|_| {
                check.run(|| {
                    count();
                    async { Err(DbError::Busy) }
                })
            });
            let all_have_come = async {
                tokio::task::yield_now().await;
                end_first.send(()).expect("the first one waits");
            };
            futures::join!(join_all(asked), all_have_come).0
        };
        let done = futures::join!(first, others);
        assert!(done.0.is_ok());
        assert!(done.1.iter().all(|outcome| matches!(outcome, Err(DbError::Busy))));
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
