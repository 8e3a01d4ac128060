//! Progress: what tools and policies tell clients while they work is passed on.

use super::Loop;
use super::driver::PendingWrites;
use super::journal::{ExitReason, PendingWrite};
use crate::domain::event::Fact;
use crate::domain::machine::Machine;
use crate::tool::ProgressEvent;

impl Loop<'_> {
    /// Does `work`, and stores and shows meanwhile what it tells clients.
    pub(super) async fn with_progress<T>(
        &self,
        machine: &Machine,
        notes: &mut PendingWrites,
        work: impl Future<Output = T> + Send,
    ) -> Result<T, ExitReason> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(word) = self.scope.progress.recv() => self.pass_on(machine, notes, word).await?,
                done = &mut work => {
                    self.note_unheard(notes);
                    return Ok(done);
                }
            }
        }
    }

    /// Stores and shows what a tool or policy has told, with whatever else it has told by now.
    pub(super) async fn pass_on(
        &self,
        machine: &Machine,
        notes: &mut PendingWrites,
        word: ProgressEvent,
    ) -> Result<(), ExitReason> {
        if let ProgressEvent::Output { .. } = word {
            // Clients must know of the call first.
            self.flush(machine, notes).await?;
        }
        self.note(notes, word);
        self.note_unheard(notes);
        self.flush(machine, notes).await
    }

    /// Notes what was told and not heard yet.
    pub(super) fn note_unheard(&self, notes: &mut PendingWrites) {
        self.scope
            .progress
            .drain()
            .into_iter()
            .for_each(|word| self.note(notes, word));
    }

    fn note(&self, notes: &mut PendingWrites, word: ProgressEvent) {
        match word {
            ProgressEvent::Custom(value) => notes.push(PendingWrite::Fact(Fact::Custom { value })),
            ProgressEvent::Output { call, text } => self.journal.put_out(call, text),
        }
    }
}
