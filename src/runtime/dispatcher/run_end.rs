//! The ends of runs that their loops have not stored: failures, cancellations, and releases for the next process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::{Dispatcher, POLL};
use crate::agent::{ExitReason, Journal, PendingWrite};
use crate::db::{self, DbResult, warn_of};
use crate::domain::event::Fact;
use crate::domain::machine::{Failure, Machine};
use crate::domain::run::RunStatus;
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::journal::LaneJournal;
use crate::runtime::prepare;
use crate::runtime::retry::retry_until_available;
use crate::runtime::run_context::RunContext;

/// The warning about a run for which this process may store nothing more.
pub(super) const LOST: &str = "another process has taken the run over, or has deleted it";

impl Dispatcher {
    /// Ends a run with an error.
    pub(super) async fn fail(&self, run_context: &Arc<RunContext>, machine: &Machine, failure: Failure) {
        let mut notes = vec![];
        match prepare::open_log(run_context).await {
            Ok(true) => notes.push(prepare::started(&run_context.run, machine, false)),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(run = %run_context.run.id, %error, "could not open the log of a run that failed");
                return self.give_back(run_context).await;
            }
        }
        let journal = LaneJournal::main(Arc::clone(run_context), None, CancellationToken::new(), None);
        notes.push(PendingWrite::Fact(Fact::over(RunStatus::Error, Some(failure))));
        if let Err(stop) = journal.commit(machine, notes).await {
            tracing::error!(run = %run_context.run.id, ?stop, "could not store that a run failed");
            self.give_back(run_context).await;
        }
    }

    /// Ends a run whose loop was cancelled: by a client, or because the server stops.
    pub(super) async fn cancelled(&self, run_context: &Arc<RunContext>, machine: &Machine, journal: &LaneJournal) {
        let wanted = self.active.wanted(run_context.run.id);
        let done = match wanted {
            Some(CancelAction::Interrupt) => {
                let error = Some(Failure::cancelled());
                let ended = Fact::over(RunStatus::Interrupted, error);
                let stored = journal.commit(machine, vec![PendingWrite::Fact(ended)]).await;
                if stored == Err(ExitReason::LeaseLost) {
                    tracing::warn!(run = %run_context.run.id, "{LOST}");
                    return;
                }
                stored.map_err(|stop| format!("{stop:?}"))
            }
            Some(CancelAction::Rollback) => retry_until_available(run_context.run.id, || self.roll_back(run_context))
                .await
                .map(|()| journal.record_rollback())
                .map_err(|error| error.to_string()),
            None => {
                if let Err(error) = self.release(run_context).await {
                    warn_of!(error, run = %run_context.run.id, "could not give a run back yet");
                    self.give_back(run_context).await;
                }
                return;
            }
        };
        if let Err(error) = done {
            tracing::error!(run = %run_context.run.id, %error, "could not store that a run was cancelled");
            // Otherwise no process would continue or cancel it.
            self.give_back(run_context).await;
        }
    }

    /// Releases a run that cannot continue for the moment, as soon as the database accepts that. A run belongs to its
    /// process as long as the process lives, so no other process would release the run.
    pub(super) async fn give_back(&self, run_context: &Arc<RunContext>) {
        while self
            .core
            .shutdown
            .soft()
            .run_until_cancelled(tokio::time::sleep(POLL))
            .await
            .is_some()
        {
            match self.release(run_context).await {
                Ok(()) => return,
                Err(error) => warn_of!(error, run = %run_context.run.id, "could not give a run back yet"),
            }
        }
    }

    /// Releases a run for the next process. If this process stops, the others know at once.
    async fn release(&self, run_context: &Arc<RunContext>) -> DbResult<()> {
        let run = run_context.run.id;
        let worker = run_context.core.id;
        let fence = run_context.fence;
        let stops = self.core.shutdown.soft().is_cancelled();
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                db::runs::release(tx, run, worker, fence).await?;
                if stops {
                    db::notifications::notify(tx, db::Notification::Released).await?;
                }
                DbResult::Ok(())
            })
        });
        write.await?;
        // This process may take it up again itself.
        self.has_orphans.store(true, Ordering::Release);
        Ok(())
    }
}
