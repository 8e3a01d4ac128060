//! Cancellation of runs: of one run, or of all runs with a status.

use std::sync::Arc;

use super::admission::{AdmissionContext, Admitted};
use super::cancel_action::CancelAction;
use super::dispatcher::Dispatcher;
use super::error::CancelError;
use super::resumption::{CallerNotice, cancel_waiting};
use super::retry::write_while_busy;
use super::run_context::RunContext;
use super::runs::Runs;
use super::shared::Core;
use super::undo::{UndoOutcome, undo};
use super::withdraw::withdraw;
use super::{ledger, log_lines};
use crate::db::{self, DbResult, Notification, Tx, notifications};
use crate::domain::access::AccessScope;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{Run, RunStatus};
use crate::domain::time::Timestamp;

impl Runs {
    /// Cancels a run and all runs below it. The caller of a cancelled subagent gets an error result and continues. A
    /// subagent that waits for a human ends at once. Returns when the cancellation is requested, not when the run has
    /// stopped; the events of the run report its end.
    ///
    /// # Errors
    /// See [`CancelError`].
    pub async fn cancel(&self, thread: ThreadId, run: RunId, action: CancelAction) -> Result<(), CancelError> {
        let runs = self.clone();
        let work = self.core.run_detached(async move {
            let write = runs.admission.admit(vec![], move |tx, context| {
                Box::pin(async move {
                    // A queued run does not begin in between.
                    db::threads::lock(tx, thread).await?;
                    let found = db::runs::find(tx, thread, run).await?;
                    Box::pin(request(tx, &found.ok_or(CancelError::NoRun)?, action, &context)).await
                })
            });
            let (notice, _started) = write.await?;
            match notice {
                Some(CallerNotice::AtWork(hears)) => drop(runs.dispatcher.parked.stop(hears)),
                Some(CallerNotice::Started | CallerNotice::Next) => {}
                None => drop(runs.dispatcher.stop(run, action)),
            }
            runs.dispatcher.wake_loops();
            Ok(())
        });
        work.await
    }

    /// Cancels a run without waiting, for a client that has disconnected. The work of the run is kept.
    pub fn cancel_soon(&self, thread: ThreadId, run: RunId) {
        let runs = self.clone();
        // No client is left for the result.
        drop(self.core.spawn("cancel", async move {
            runs.cancel(thread, run, CancelAction::Interrupt).await.err()
        }));
    }

    /// Cancels all runs on the threads in a scope that are queued by now (`pending`), that are at work (`running`), or
    /// both. Returns false if there were none.
    ///
    /// # Errors
    /// Returns an error when the database fails; some runs may be cancelled already.
    pub async fn cancel_all(
        &self,
        scope: AccessScope,
        pending: bool,
        running: bool,
        action: CancelAction,
    ) -> DbResult<bool> {
        let runs = self.clone();
        let work = self.core.run_detached(async move {
            let stopped = running && runs.stop_all(&scope, action).await?;
            let withdrawn = pending && runs.withdraw_all(&scope, action).await?;
            runs.dispatcher.wake_loops();
            Ok(stopped || withdrawn)
        });
        work.await
    }

    /// Cancels all runs that are at work in a scope. Returns false if there are none.
    async fn stop_all(&self, scope: &AccessScope, action: CancelAction) -> DbResult<bool> {
        let mut last = None;
        loop {
            let scope = scope.clone();
            let write = write_while_busy(&self.core.db, move |tx| {
                Box::pin(async move { some_running(tx, &scope, last, action).await })
            });
            let page = write.await?;
            let Some((thread, _)) = page.last() else {
                return Ok(last.is_some());
            };
            last = Some(*thread);
            for (_, run) in page {
                self.dispatcher.stop(run, action);
            }
        }
    }

    /// Withdraws all runs that are queued by now in a scope. Returns false if there are none.
    async fn withdraw_all(&self, scope: &AccessScope, action: CancelAction) -> DbResult<bool> {
        let now = self.core.clock.now();
        let mut any = false;
        loop {
            let core = Arc::clone(&self.core);
            let scope = scope.clone();
            let write = write_while_busy(&self.core.db, move |tx| {
                Box::pin(async move { some_pending(tx, &scope, action, &core, now).await })
            });
            match write.await? {
                true => any = true,
                false => return Ok(any),
            }
        }
    }
}

impl Dispatcher {
    /// Undoes the work of a run. Background tasks that it started are gone, and their runs stop.
    pub(super) async fn roll_back(&self, run_context: &Arc<RunContext>) -> DbResult<()> {
        let log = Arc::clone(&run_context.log);
        let now = self.core.clock.now();
        let last = log.is_open().then(|| log.reserve(1));
        let run = run_context.run.clone();
        let run_context = Arc::clone(run_context);
        let undone = self
            .core
            .db
            .write(move |tx| {
                Box::pin(async move {
                    // A call of the run may still be about to start a task. It waits for this lock, and then finds no run.
                    db::threads::lock(tx, run_context.run.thread).await?;
                    if !run_context.holds_lease(tx, now).await? {
                        return Ok(None);
                    }
                    let undone = undo(tx, &run_context.run, last, now).await?;
                    if let Some(ledger) = run_context.ledger.get() {
                        ledger.close(tx, now, 0).await?;
                    }
                    ledger::take_back(tx, &undone.share).await?;
                    DbResult::Ok(Some(undone))
                })
            })
            .await;
        if let Some(last) = last {
            log.abandon(last, 1);
        }
        let undone = undone?;
        self.core
            .metrics
            .work()
            .run_ended_without_worker(run.lineage.agent(), log_lines::ROLLED_BACK);
        log_lines::run_withdrawn(&run, log_lines::ROLLED_BACK);
        if let Some(undone) = undone {
            self.stop_undone(&undone);
        }
        Ok(())
    }

    /// Stops the runs of background tasks that were undone, and wakes the jobs that cancel the work of the others on
    /// their servers.
    fn stop_undone(&self, undone: &UndoOutcome) {
        for run in &undone.stopped {
            self.stop(*run, CancelAction::Rollback);
        }
        if !undone.share.tasks.is_empty() {
            self.core.jobs.discover();
        }
    }
}

/// Requests that a run stops, whose thread is locked. For a subagent that waits, also returns the way in which its caller
/// is notified, and the admission of the run that was started for the notification, if any.
async fn request(
    tx: &mut Tx<'_>,
    run: &Run,
    action: CancelAction,
    context: &AdmissionContext,
) -> Result<(Option<CallerNotice>, Option<Admitted>), CancelError> {
    let is_child = run.lineage.depth > 0;
    match run.status {
        RunStatus::Pending => {
            withdraw(tx, run, action, &context.core, context.now).await?;
            Ok((None, None))
        }
        RunStatus::Running if is_child && action == CancelAction::Rollback => Err(CancelError::NoUndo),
        RunStatus::Running => {
            db::runs::request_cancel(tx, run.id, action.word()).await?;
            Ok((None, None))
        }
        RunStatus::Interrupted if is_child => {
            let (notice, admitted) = Box::pin(cancel_waiting(tx, run, action, context)).await?;
            // A message that waited for its answer may begin, in whatever process.
            notifications::notify(tx, Notification::Queue).await?;
            Ok((Some(notice), admitted))
        }
        RunStatus::Success | RunStatus::Error | RunStatus::Timeout | RunStatus::Interrupted => Err(CancelError::Over),
    }
}

/// The most runs that one transaction cancels.
const AT_ONCE: i64 = 100;

/// Requests that some runs at work in a scope stop: those on threads after `after`. Returns these runs.
async fn some_running(
    tx: &mut Tx<'_>,
    scope: &AccessScope,
    after: Option<ThreadId>,
    action: CancelAction,
) -> DbResult<Vec<(ThreadId, RunId)>> {
    let page = db::runs::some_running(tx, scope, after, AT_ONCE).await?;
    for (_, run) in &page {
        db::runs::request_cancel(tx, *run, action.word()).await?;
    }
    Ok(page)
}

/// Withdraws some of the runs that were queued by `now` in a scope. Returns false if there are none.
async fn some_pending(
    tx: &mut Tx<'_>,
    scope: &AccessScope,
    action: CancelAction,
    core: &Core,
    now: Timestamp,
) -> DbResult<bool> {
    let page = db::runs::some_pending(tx, scope, now, AT_ONCE).await?;
    let threads: Vec<ThreadId> = page.iter().map(|run| run.thread).collect();
    db::threads::lock_all(tx, &threads).await?;
    for known in &page {
        // It may have begun before its thread was locked.
        let found = db::runs::get_by_id(tx, known.id).await?;
        if let Some(run) = found.filter(|run| run.status == RunStatus::Pending) {
            withdraw(tx, &run, action, core, now).await?;
        }
    }
    Ok(!page.is_empty())
}
