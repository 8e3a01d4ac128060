//! Stopping runs: one, or all of a kind.

use std::sync::Arc;

use super::admission::{AdmissionContext, AdmissionDeps};
use super::desk::RunContext;
use super::giving_up::{self, CallerNotice};
use super::worker::Worker;
use super::{CancelError, Runs, Webhooks, admission, log_lines};
use crate::db::{self, DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{Run, RunStatus};
use crate::domain::time::Timestamp;

/// What becomes of the work of a cancelled run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAction {
    /// It stays.
    Interrupt,
    /// It is undone, and the run deleted.
    Rollback,
}

impl CancelAction {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Rollback => "rollback",
        }
    }

    /// The action of this word; anything unknown keeps the work.
    pub fn from_word(word: &str) -> Self {
        if word == Self::Rollback.word() {
            Self::Rollback
        } else {
            Self::Interrupt
        }
    }
}

impl Runs {
    /// Stops a run: the main agent's with all below it, or a subagent's with all below that, of which its caller then gets
    /// an error result and goes on; one that waits for a human is over at once. Returns when it has been told, not when it has stopped: follow its events for that.
    ///
    /// # Errors
    /// See [`CancelError`].
    pub async fn cancel(&self, thread: ThreadId, run: RunId, action: CancelAction) -> Result<(), CancelError> {
        let work = self.seen_through(move |runs| async move {
            let now = runs.0.clock.now();
            let webhooks = Arc::clone(&runs.0.webhooks);
            let house = runs.0.house();
            let (permit, occasion) = runs.occasion();
            let write = runs.0.db.write(move |tx| {
                Box::pin(async move {
                    match db::runs::find(tx, thread, run).await? {
                        Some(found) => tell(tx, &found, action, (&*webhooks, now), (&house, occasion)).await,
                        None => Ok(Err(CancelError::NoRun)),
                    }
                })
            });
            let teller = match write.await? {
                Ok(teller) => teller,
                Err(refusal) => return Ok(Err(refusal)),
            };
            match teller {
                Some(CallerNotice::Started(admitted)) => drop(runs.take_up(*admitted, permit)),
                Some(CallerNotice::AtWork(hears)) => drop(runs.0.parked.stop(hears)),
                Some(CallerNotice::Next) => {}
                None => drop(runs.0.stop(run, action)),
            }
            runs.0.bell.notify_one();
            runs.0.webhooks.ring();
            Ok(Ok(()))
        });
        work.await?
    }

    /// Stops a run without waiting for anything, for a client that has left. What it did stays.
    pub fn cancel_soon(&self, thread: ThreadId, run: RunId) {
        let runs = self.clone();
        // Nobody is left who could be told how it went.
        drop(self.0.shutdown.spawn("cancel", async move {
            runs.cancel(thread, run, CancelAction::Interrupt).await.err()
        }));
    }

    /// Stops all runs that wait for their turn by now (`pending`), all that are at work (`running`), or both. False if
    /// there were none.
    ///
    /// # Errors
    /// When the database fails; some may have been stopped then.
    pub async fn cancel_all(&self, pending: bool, running: bool, action: CancelAction) -> DbResult<bool> {
        self.seen_through(move |runs| async move {
            let stopped = running && runs.stop_all(action).await?;
            let withdrawn = pending && runs.withdraw_all(action).await?;
            runs.0.bell.notify_one();
            runs.0.webhooks.ring();
            Ok(stopped || withdrawn)
        })
        .await
    }

    /// Stops all runs that are at work. False if there are none.
    async fn stop_all(&self, action: CancelAction) -> DbResult<bool> {
        let mut last = None;
        loop {
            let page = self
                .0
                .db
                .write(move |tx| Box::pin(some_running(tx, last, action)))
                .await?;
            let Some((thread, _)) = page.last() else {
                return Ok(last.is_some());
            };
            last = Some(*thread);
            for (_, run) in page {
                self.0.stop(run, action);
            }
        }
    }

    /// Withdraws all runs that wait for their turn by now. False if there are none.
    async fn withdraw_all(&self, action: CancelAction) -> DbResult<bool> {
        let now = self.0.clock.now();
        let mut any = false;
        loop {
            let webhooks = Arc::clone(&self.0.webhooks);
            match self
                .0
                .db
                .write(move |tx| Box::pin(some_pending(tx, action, webhooks, now)))
                .await?
            {
                true => any = true,
                false => return Ok(any),
            }
        }
    }
}

impl Worker {
    /// Undoes what a run did.
    pub(super) async fn roll_back(&self, desk: &Arc<RunContext>) -> DbResult<()> {
        self.metrics
            .work()
            .run_ended_without_worker(desk.run.lineage.agent(), log_lines::ROLLED_BACK);
        let log = Arc::clone(&desk.log);
        let now = self.clock.now();
        let last = log.is_open().then(|| log.reserve(1));
        let run = desk.run.clone();
        let desk = Arc::clone(desk);
        let undone = self
            .db
            .write(move |tx| {
                Box::pin(async move {
                    if !desk.holds_lease(tx, now).await? {
                        return Ok(());
                    }
                    if let Some(ledger) = desk.ledger.get() {
                        ledger.close(tx, now, 0).await?;
                    }
                    admission::undo(tx, &desk.run, last, now).await
                })
            })
            .await;
        if let Some(last) = last {
            log.abandon(last, 1);
        }
        if undone.is_ok() {
            log_lines::run_withdrawn(&run, log_lines::ROLLED_BACK);
        }
        undone
    }
}

/// Writes down that a run is to stop. Who tells its caller, if it is a subagent that waits.
async fn tell(
    tx: &mut Tx<'_>,
    run: &Run,
    action: CancelAction,
    (webhooks, now): (&Webhooks, Timestamp),
    (house, occasion): (&AdmissionDeps, AdmissionContext),
) -> DbResult<Result<Option<CallerNotice>, CancelError>> {
    let is_child = run.lineage.depth > 0;
    match run.status {
        RunStatus::Pending => {
            admission::withdraw(tx, run, action, (webhooks, now)).await?;
            Ok(Ok(None))
        }
        RunStatus::Running if is_child && action == CancelAction::Rollback => Ok(Err(CancelError::NoUndo)),
        RunStatus::Running => {
            db::runs::request_cancel(tx, run.id, action.word()).await?;
            Ok(Ok(None))
        }
        RunStatus::Interrupted if is_child => {
            let given_up = giving_up::give_up(tx, run, action, (house, occasion)).await?;
            Ok(given_up.map(Some))
        }
        RunStatus::Success | RunStatus::Error | RunStatus::Timeout | RunStatus::Interrupted => {
            Ok(Err(CancelError::Over))
        }
    }
}

/// How many runs one transaction stops.
const AT_ONCE: i64 = 100;

/// Tells some of the runs at work to stop, those on the threads behind `after`; returns which.
async fn some_running(
    tx: &mut Tx<'_>,
    after: Option<ThreadId>,
    action: CancelAction,
) -> DbResult<Vec<(ThreadId, RunId)>> {
    let page = db::runs::some_running(tx, after, AT_ONCE).await?;
    for (_, run) in &page {
        db::runs::request_cancel(tx, *run, action.word()).await?;
    }
    Ok(page)
}

/// Withdraws some of the runs that wait for their turn since `now` at the latest. False if there are none.
async fn some_pending(
    tx: &mut Tx<'_>,
    action: CancelAction,
    webhooks: Arc<Webhooks>,
    now: Timestamp,
) -> DbResult<bool> {
    let page = db::runs::some_pending(tx, now, AT_ONCE).await?;
    for run in &page {
        admission::withdraw(tx, run, action, (&*webhooks, now)).await?;
    }
    Ok(!page.is_empty())
}
