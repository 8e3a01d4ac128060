//! Repeats transactions that the database ended because of others, and the transactions of runs while the database is
//! unavailable.
//!
//! Transactions lock rows in [one order](crate::db#the-order-of-locks), so that others are rarely in the way. Nothing is
//! stored then, and the caller does not notice.

use std::time::Duration;

use backon::Retryable;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::error::{BatchError, CancelError, DeleteRunError, StartError};
use crate::db::{Db, DbError, Tx, warn_of};
use crate::domain::backoff::Backoff;
use crate::domain::id::RunId;

/// The number of tries after the first.
const MAX_RETRIES: usize = 5;
/// The time after which no further try begins. A transaction that has waited for a lock as long as the database allows is
/// not repeated: its caller waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pauses between tries while others are in the way.
const WHILE_BUSY: Backoff = Backoff::doubling(Duration::from_millis(20), PATIENCE);
/// The pauses between tries while the database is unavailable.
pub(super) const WHILE_UNAVAILABLE: Backoff = Backoff::doubling(Duration::from_millis(50), Duration::from_secs(2));

/// An error of a transaction.
pub(super) trait TransactionError {
    /// Returns the error of the database, if it is one.
    fn db_error(&self) -> Option<&DbError>;

    /// Returns true if another transaction was in the way: nothing was stored, and another try may succeed.
    fn is_busy(&self) -> bool {
        matches!(self.db_error(), Some(DbError::Busy))
    }
}

impl TransactionError for DbError {
    fn db_error(&self) -> Option<&DbError> {
        Some(self)
    }
}

impl TransactionError for StartError {
    fn db_error(&self) -> Option<&DbError> {
        let Self::Fault(error) = self else {
            return None;
        };
        Some(error)
    }
}

impl TransactionError for BatchError {
    fn db_error(&self) -> Option<&DbError> {
        self.error.db_error()
    }
}

impl TransactionError for CancelError {
    fn db_error(&self) -> Option<&DbError> {
        let Self::Fault(error) = self else {
            return None;
        };
        Some(error)
    }
}

impl TransactionError for DeleteRunError {
    fn db_error(&self) -> Option<&DbError> {
        let Self::Fault(error) = self else {
            return None;
        };
        Some(error)
    }
}

/// Runs a transaction that writes, and a few times again while others are in its way.
///
/// # Errors
/// Returns the error of the last try.
pub(super) async fn write_while_busy<T, E, J>(db: &Db, job: J) -> Result<T, E>
where
    T: Send + 'static,
    E: From<DbError> + TransactionError + Send + 'static,
    J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, Result<T, E>> + Clone + Send + 'static,
{
    retry_while_busy(move || {
        let job = job.clone();
        async move { db.write(job).await }
    })
    .await
}

/// Tries something, and a few times again while other transactions are in its way.
///
/// # Errors
/// Returns the error of the last try.
pub(super) async fn retry_while_busy<T, E, F>(attempt: impl FnMut() -> F + Send) -> Result<T, E>
where
    E: TransactionError,
    F: Future<Output = Result<T, E>> + Send,
{
    let pauses = WHILE_BUSY.pauses_with_jitter().take(MAX_RETRIES);
    let begun = Instant::now();
    let is_in_time = |error: &E| error.is_busy() && begun.elapsed() < PATIENCE;
    attempt.retry(pauses).when(is_in_time).await
}

/// Retries while the database is unavailable. The attempt must be idempotent.
pub(super) async fn retry_until_available<T, E, F>(run: RunId, attempt: impl FnMut() -> F + Send) -> Result<T, E>
where
    E: TransactionError,
    F: Future<Output = Result<T, E>> + Send,
{
    let is_transient = |error: &E| error.db_error().is_some_and(DbError::is_transient);
    let said = |error: &E, _| {
        if let Some(fault) = error.db_error() {
            warn_of!(fault, %run, "the database failed under a run, which waits");
        }
    };
    attempt
        .retry(WHILE_UNAVAILABLE.pauses_with_jitter())
        .when(is_transient)
        .notify(said)
        .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns the result of a transaction that is in the way of others so many times, and the number of tries.
    async fn tried(busy: usize, then: Result<u8, StartError>) -> (Result<u8, StartError>, usize) {
        let tries = AtomicUsize::new(0);
        let then = std::sync::Mutex::new(Some(then));
        let attempt = || {
            let number = tries.fetch_add(1, Ordering::Relaxed);
            let outcome = match number < busy {
                true => Err(DbError::Busy.into()),
                false => then.lock().unwrap().take().expect("the last try"),
            };
            async move { outcome }
        };
        let result = retry_while_busy(attempt).await;
        (result, tries.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_is_repeated_while_others_are_in_its_way_and_for_no_other_reason() {
        let (result, tries) = tried(3, Ok(7)).await;
        assert!(matches!(result, Ok(7)), "{result:?}");
        assert_eq!(tries, 4);
        let (refused, tries) = tried(1, Err(StartError::Busy)).await;
        assert!(matches!(refused, Err(StartError::Busy)), "{refused:?}");
        assert_eq!(tries, 2, "a refusal is final");
        let (given_up, tries) = tried(usize::MAX, Ok(7)).await;
        assert!(given_up.is_err_and(|error| error.is_busy()));
        assert_eq!(tries, 1 + MAX_RETRIES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_that_has_waited_long_is_not_repeated() {
        let tries = AtomicUsize::new(0);
        let attempt = || async {
            tries.fetch_add(1, Ordering::Relaxed);
            tokio::time::advance(PATIENCE).await;
            Err::<u8, _>(DbError::Busy)
        };
        let given_up = retry_while_busy(attempt).await;
        assert!(matches!(given_up, Err(DbError::Busy)), "{given_up:?}");
        assert_eq!(tries.into_inner(), 1);
    }
}
