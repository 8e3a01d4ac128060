//! The first commit of a run that begins where it is admitted: a part of the transaction that admits it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::LaneJournal;
use super::batch::{CommitBatch, SplitWrites};
use super::commit::write_rows;
use crate::agent::PendingWrite;
use crate::db::{DbResult, Tx};
use crate::domain::machine::Machine;
use crate::domain::trace::SpanData;

/// The first commit of a run, as a part of the transaction that admits it. Readers see nothing of it before
/// [`FirstCommit::publish`].
pub(in crate::runtime) struct FirstCommit {
    journal: LaneJournal,
    batch: CommitBatch,
    span: Option<SpanData>,
    begun: Instant,
    /// The segment of history that the next checkpoint continues.
    pub(in crate::runtime) segment: Option<i64>,
}

impl LaneJournal {
    /// Stores the first writes of a run in the transaction that admits it for this process, with numbers from `first` on, which
    /// is in the row of the run already. The log is not open yet, and no numbers are reserved there: they are used only if the
    /// transaction is stored.
    pub(in crate::runtime) async fn commit_first(
        self,
        tx: &mut Tx<'_>,
        machine: &Machine,
        notes: Vec<PendingWrite>,
        first: i64,
    ) -> DbResult<FirstCommit> {
        let batch = self.build_step(machine, SplitWrites::of(notes), None, first);
        let span = self.begin_span(&batch);
        let begun = Instant::now();
        write_rows(tx, &self.run_context, self.origin.lane, &batch).await?;
        let segment = *self.segment.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(FirstCommit {
            journal: self,
            batch,
            span,
            begun,
            segment,
        })
    }
}

impl FirstCommit {
    /// Opens the log and makes the events visible, once the transaction is durable.
    pub(in crate::runtime) fn publish(self) {
        let Self {
            journal,
            batch,
            span,
            begun,
            segment: _,
        } = self;
        journal.run_context.has_first_seq.store(true, Ordering::Relaxed);
        let log = &journal.run_context.log;
        log.open(batch.first);
        log.reserve(batch.count);
        journal.trace.end(span);
        journal.count(&batch.events, begun);
        log.publish(batch.events);
    }
}
