//! The queues of operations on the database, and how an operation is run and answered.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use futures::future::Either;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::Tx;
use super::error::{DbError, DbResult};
use super::operation::DbOperation;
use super::pending_entries::PendingEntries;
use super::row_security::RowAccess;
use crate::domain::panic::panic_text;

/// The capacity of the queue. When the queue is full, callers wait.
const WAITING: usize = 1024;

/// The sender of a queue.
pub(in crate::db) struct TransactionQueue(mpsc::Sender<QueuedOperation>);

/// The receiver of a queue.
pub(in crate::db) type OperationReceiver = mpsc::Receiver<QueuedOperation>;

/// Returns a queue and its receiver.
pub(in crate::db) fn new() -> (TransactionQueue, OperationReceiver) {
    let (sender, inbox) = mpsc::channel(WAITING);
    (TransactionQueue(sender), inbox)
}

/// An operation that waits in a queue.
pub(in crate::db) struct QueuedOperation {
    operation: DbOperation,
    /// For whom the operation works.
    pub(in crate::db) access: RowAccess,
    /// The span of the caller.
    span: Span,
    /// The entries of the request for which the caller works.
    entries: Option<PendingEntries>,
    /// Cancelled when nobody waits for the answer any more.
    pub(in crate::db) caller: CancellationToken,
    answer: oneshot::Sender<DbResult<()>>,
}

/// An operation that ran and now waits for the end of its transaction.
pub(in crate::db) struct CompletedOperation {
    /// True if the writes of the operation are kept; an error is what failed beside the operation.
    pub(in crate::db) kept: DbResult<bool>,
    answer: oneshot::Sender<DbResult<()>>,
}

impl QueuedOperation {
    /// Creates an operation of the current task that works for whom `access` says, and the receiver of its answer.
    pub(in crate::db) fn new(access: RowAccess, operation: DbOperation) -> (Self, oneshot::Receiver<DbResult<()>>) {
        let (answer, outcome) = oneshot::channel();
        let queued = Self {
            operation,
            access,
            span: Span::current(),
            entries: PendingEntries::current(),
            caller: CancellationToken::new(),
            answer,
        };
        (queued, outcome)
    }

    /// Runs the operation, without ending the transaction.
    pub(in crate::db) async fn run(self, tx: &mut Tx<'_>) -> CompletedOperation {
        CompletedOperation {
            kept: run_to_end(self.operation, self.entries, tx).instrument(self.span).await,
            answer: self.answer,
        }
    }

    /// Runs the operation like [`Self::run`]; none if its caller is gone before the end.
    pub(in crate::db) async fn run_while_awaited(self, tx: &mut Tx<'_>) -> Option<CompletedOperation> {
        let caller = self.caller.clone();
        tokio::select! {
            // An operation whose caller is gone already does not begin.
            biased;
            () = caller.cancelled() => None,
            completed = self.run(tx) => Some(completed),
        }
    }

    /// Refuses the operation with this error.
    pub(in crate::db) fn refuse(self, error: DbError) {
        let _ = self.answer.send(Err(error));
    }
}

impl CompletedOperation {
    /// Returns whether the writes of the operation are kept.
    pub(in crate::db) fn is_kept(&self) -> bool {
        matches!(self.kept, Ok(true))
    }

    /// Tells the caller how the transaction has ended.
    pub(in crate::db) fn report(self, ended: DbResult<()>) {
        // An error of the transaction precedes a refusal of the operation, since the refusal may depend on writes of other
        // operations in the same transaction. The caller may be gone; the operation is done all the same.
        let _ = self.answer.send(ended.and(self.kept.map(drop)));
    }
}

/// Runs an operation and returns whether its writes are to be kept.
async fn run_to_end(operation: DbOperation, entries: Option<PendingEntries>, tx: &mut Tx<'_>) -> DbResult<bool> {
    let work = match entries {
        Some(entries) => Either::Left(entries.scope(operation.run(tx))),
        None => Either::Right(operation.run(tx)),
    };
    // Everything that a panic left unfinished in the database is rolled back, and the operation shares nothing else.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(kept) => kept,
        Err(panic) => Err(DbError::Panicked(panic_text(panic.as_ref()))),
    }
}

impl TransactionQueue {
    /// Queues an operation that works for whom `access` says, and waits for its answer.
    pub(in crate::db) async fn run(&self, access: RowAccess, operation: DbOperation) -> DbResult<()> {
        let (queued, outcome) = QueuedOperation::new(access, operation);
        let waits = queued.caller.clone().drop_guard();
        self.0.send(queued).await.map_err(|_| DbError::Closed)?;
        let answer = outcome.await;
        drop(waits.disarm());
        // A dropped operation took too long. The queue is closed only when the database is closed.
        answer.map_err(|_| {
            if self.0.is_closed() {
                DbError::Closed
            } else {
                DbError::late()
            }
        })?
    }
}

/// Takes the next operation of a queue that several tasks share; none when the queue is closed and empty.
pub(in crate::db) async fn next(
    inbox: &Mutex<OperationReceiver>,
    closing: &CancellationToken,
) -> Option<QueuedOperation> {
    let mut inbox = inbox.lock().await;
    tokio::select! {
        operation = inbox.recv() => return operation,
        () = closing.cancelled() => inbox.close(),
    }
    inbox.recv().await
}
