//! Progress events of tools and middleware.

use super::Loop;
use super::journal::{ExitReason, PendingWrite};
use super::step::PendingWrites;
use crate::domain::event::Fact;
use crate::domain::machine::Machine;
use crate::tool::ProgressEvent;

impl Loop<'_> {
    /// Runs `work`, and meanwhile commits and publishes its progress events.
    pub(super) async fn with_progress<T>(
        &self,
        machine: &Machine,
        pending: &mut PendingWrites,
        work: impl Future<Output = T> + Send,
    ) -> Result<T, ExitReason> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(event) = self.scope.progress.recv() => self.commit_progress(machine, pending, event).await?,
                done = &mut work => {
                    self.record_pending_progress(pending);
                    return Ok(done);
                }
            }
        }
    }

    /// Commits and publishes a progress event, with all others that have arrived.
    pub(super) async fn commit_progress(
        &self,
        machine: &Machine,
        pending: &mut PendingWrites,
        event: ProgressEvent,
    ) -> Result<(), ExitReason> {
        if let ProgressEvent::Output { .. } = event {
            // Clients must receive the call before its output.
            self.flush(machine, pending).await?;
        }
        self.record(pending, event);
        self.record_pending_progress(pending);
        self.flush(machine, pending).await
    }

    /// Adds the progress events that have arrived to the pending writes.
    pub(super) fn record_pending_progress(&self, pending: &mut PendingWrites) {
        self.scope
            .progress
            .drain()
            .into_iter()
            .for_each(|event| self.record(pending, event));
    }

    fn record(&self, pending: &mut PendingWrites, event: ProgressEvent) {
        match event {
            // Neither pieces nor notices have passed the policies that rewrite results.
            ProgressEvent::Output { .. } | ProgressEvent::Notice(_)
                if self.agent.stack().iter().any(|policy| policy.withholds_tool_output()) => {}
            ProgressEvent::Custom(value) | ProgressEvent::Notice(value) => {
                pending.push(PendingWrite::Fact(Fact::Custom { value }));
            }
            ProgressEvent::Output { call, text } => self.journal.publish_output(call, text),
        }
    }
}
