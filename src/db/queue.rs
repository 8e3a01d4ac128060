//! The queues of jobs on the database, and how a job is run and answered.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use futures::future::Either;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::engine::Tx;
use super::error::{DbError, DbResult};
use super::job::TransactionJob;
use super::pending_entries::PendingEntries;
use super::row_security::RowAccess;
use crate::domain::panic::panic_text;

/// The capacity of the queue. When the queue is full, callers wait.
const WAITING: usize = 1024;

/// The sender of a queue.
pub(super) struct TransactionQueue(mpsc::Sender<QueuedJob>);

/// The receiver of a queue.
pub(super) type JobReceiver = mpsc::Receiver<QueuedJob>;

/// Returns a queue and its receiver.
pub(super) fn new() -> (TransactionQueue, JobReceiver) {
    let (sender, inbox) = mpsc::channel(WAITING);
    (TransactionQueue(sender), inbox)
}

/// A job that waits in a queue.
pub(super) struct QueuedJob {
    job: TransactionJob,
    /// For whom the job works.
    pub(super) access: RowAccess,
    /// The span of the caller.
    span: Span,
    /// The entries of the request for which the caller works.
    entries: Option<PendingEntries>,
    answer: oneshot::Sender<DbResult<()>>,
}

/// A job that ran and now waits for the end of its transaction.
pub(super) struct CompletedJob {
    /// True if the writes of the job are kept; an error is what failed beside the job.
    pub(super) kept: DbResult<bool>,
    answer: oneshot::Sender<DbResult<()>>,
}

impl QueuedJob {
    /// Runs the job, without ending the transaction.
    pub(super) async fn run(self, tx: &mut Tx<'_>) -> CompletedJob {
        CompletedJob {
            kept: run_to_end(self.job, self.entries, tx).instrument(self.span).await,
            answer: self.answer,
        }
    }

    /// Runs the job like [`Self::run`]; none if its caller is gone before the end.
    pub(super) async fn run_while_awaited(self, tx: &mut Tx<'_>) -> Option<CompletedJob> {
        let mut answer = self.answer;
        let kept = tokio::select! {
            // A job whose caller is gone already does not begin.
            biased;
            () = answer.closed() => return None,
            kept = run_to_end(self.job, self.entries, tx).instrument(self.span) => kept,
        };
        Some(CompletedJob { kept, answer })
    }

    /// Refuses the job with this error.
    pub(super) fn refuse(self, error: DbError) {
        let _ = self.answer.send(Err(error));
    }
}

impl CompletedJob {
    /// Returns whether the writes of the job are kept.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.kept, Ok(true))
    }

    /// Tells the caller how the transaction has ended.
    pub(super) fn report(self, ended: DbResult<()>) {
        // An error of the transaction precedes a refusal of the job, since the refusal may depend on writes of other
        // jobs in the same transaction. The caller may be gone; the job is done all the same.
        let _ = self.answer.send(ended.and(self.kept.map(drop)));
    }
}

/// Runs a job and returns whether its writes are to be kept.
async fn run_to_end(job: TransactionJob, entries: Option<PendingEntries>, tx: &mut Tx<'_>) -> DbResult<bool> {
    let work = match entries {
        Some(entries) => Either::Left(entries.scope(job.run(tx))),
        None => Either::Right(job.run(tx)),
    };
    // Everything that a panic left unfinished in the database is rolled back, and the job shares nothing else.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(kept) => kept,
        Err(panic) => Err(DbError::Panicked(panic_text(panic.as_ref()))),
    }
}

impl TransactionQueue {
    /// Queues a job that works for whom `access` says, and waits for its answer.
    pub(super) async fn run(&self, access: RowAccess, job: TransactionJob) -> DbResult<()> {
        let (answer, outcome) = oneshot::channel();
        self.0
            .send(QueuedJob {
                job,
                access,
                span: Span::current(),
                entries: PendingEntries::current(),
                answer,
            })
            .await
            .map_err(|_| DbError::Closed)?;
        // A dropped job took too long. The queue is closed only when the database is closed.
        outcome.await.map_err(|_| {
            if self.0.is_closed() {
                DbError::Closed
            } else {
                DbError::late()
            }
        })?
    }
}

/// Takes the next job of a queue that several tasks share; none when the queue is closed and empty.
pub(super) async fn next(inbox: &Mutex<JobReceiver>, closing: &CancellationToken) -> Option<QueuedJob> {
    let mut inbox = inbox.lock().await;
    tokio::select! {
        job = inbox.recv() => return job,
        () = closing.cancelled() => inbox.close(),
    }
    inbox.recv().await
}
