//! An operation on the database: the work of one transaction.
//!
//! The result of an operation has any type. It is left in a place of its own before the operation is queued or run, so
//! that the code of the queue, the transactions and the time limits exists once and not once for each of some hundred
//! operations.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;

use super::Tx;
use super::error::{DbError, DbResult};

/// The work of one transaction. It returns whether its writes are to be kept; an error rolls them back, too.
pub(in crate::db) struct DbOperation(Box<Work>);

/// The closure of an operation.
type Work = dyn for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<bool>> + Send;

impl DbOperation {
    /// Creates an operation of work that says whether its writes are to be kept.
    pub(in crate::db) fn new<W>(work: W) -> Self
    where
        W: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<bool>> + Send + 'static,
    {
        Self(Box::new(work))
    }

    /// Creates an operation of work with any result, and the place where the operation leaves the result. Writes are
    /// kept unless the result is an error.
    pub(in crate::db) fn with_outcome<T, E, W>(work: W) -> (Self, TransactionOutcome<T, E>)
    where
        T: Send + 'static,
        E: Send + 'static,
        W: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
    {
        let outcome = TransactionOutcome(Arc::new(Mutex::new(None)));
        let place = TransactionOutcome(Arc::clone(&outcome.0));
        (Self::new(move |tx| place.keep_result_of(work(tx))), outcome)
    }

    /// Runs the operation, without ending the transaction. Returns whether its writes are to be kept.
    ///
    /// # Errors
    /// If the database failed beside the work, whose own error is its outcome.
    pub(in crate::db) async fn run(self, tx: &mut Tx<'_>) -> DbResult<bool> {
        (self.0)(tx).await
    }
}

/// The place where an operation leaves its result.
pub(in crate::db) struct TransactionOutcome<T, E>(Arc<Mutex<Option<Result<T, E>>>>);

impl<T, E> TransactionOutcome<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    fn keep_result_of(self, work: BoxFuture<'_, Result<T, E>>) -> BoxFuture<'_, DbResult<bool>> {
        Box::pin(async move {
            let result = work.await;
            let is_kept = result.is_ok();
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            Ok(is_kept)
        })
    }

    /// Returns the result of the operation, whose transaction has ended well.
    ///
    /// # Errors
    /// Those of the work.
    pub(in crate::db) fn into_result(self) -> Result<T, E>
    where
        E: From<DbError>,
    {
        let result = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A transaction that has ended well has run its operation.
        result.unwrap_or_else(|| Err(DbError::Closed.into()))
    }
}
