//! The dispatcher: claims runs that are due, and starts to drive them. [`drive`] has the work on one run, and [`run_end`] its
//! end where the loop has not stored it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::active_runs::ActiveRuns;
use super::cancel_action::CancelAction;
use super::children::Children;
use super::commit_order::CommitOrder;
use super::prepare::{ContinuedWork, FirstStep};
use super::run_context::RunContext;
use super::shared::Core;
use super::shared::job_queue::JobQueue;
use super::shared::parts::RuntimeParts;
use super::store::Store;
use super::subagent_usage::SubagentUsage;
use super::trace;
use super::turns::QueueOutcome;
use crate::db::runs::Claim;
use crate::db::workers::LostWorkers;
use crate::db::{self, DbResult, warn_of};
use crate::domain::backoff::Backoff;
use crate::domain::id::RunId;
use crate::domain::time::Timestamp;
use crate::tool::scope::Tasks;

mod drive;
mod queue_state;
mod run_end;
mod scope;
mod uncertain_claims;

use drive::AdmittedWork;
use queue_state::QueueState;
use uncertain_claims::UncertainClaims;

/// The pause between two looks for runs that another process has left in a crash, while there are other processes, and the
/// pause after a look that failed.
const POLL: Duration = Duration::from_secs(1);
/// The time between the look that misses the lock of a process and the look that finds that it has ended, and between two
/// looks for claims without an answer.
const SECOND_LOOK: Duration = Duration::from_millis(500);
// Another process has the runs of one that has ended within two seconds, after two looks and a transaction.
const _: () = assert!(POLL.as_millis() + SECOND_LOOK.as_millis() < 2_000);
/// The pauses between looks at the queue while a run is due that could not be claimed: another transaction may have locked
/// its thread for a moment, or its account may have as many runs at work as its quota allows.
const BLOCKED: Backoff = Backoff::doubling(Duration::from_millis(50), POLL);

/// The dispatcher of runs. Each server process has one.
pub(super) struct Dispatcher {
    pub(super) core: Arc<Core>,
    /// The time for which a claim holds without a heartbeat.
    pub(super) lease: Duration,
    /// The pause between two heartbeats.
    pub(super) heartbeat: Duration,
    store: Store,
    /// Returns the background tasks that a run can start. They are runs, too, so their module builds on this one.
    tasks_of: fn(&Arc<Self>) -> Arc<dyn Tasks>,
    pub(super) slots: Arc<Semaphore>,
    /// The number of slots, free or not.
    pub(super) slot_count: usize,
    /// The most concurrent tool calls in this process, and of one run.
    pub(super) calls: Arc<Semaphore>,
    pub(super) calls_per_run: usize,
    /// Wakes the dispatch loop when a run may begin.
    pub(super) wakeup: Notify,
    /// The runs of main agents at work in this process.
    pub(super) active: ActiveRuns,
    /// The runs of subagents at work in this process, and of subagents that wait while their callers are at work.
    pub(super) children: Arc<Children>,
    pub(super) parked: Arc<Children>,
    /// The state of the queue, by which the end of a run causes a look at it or not.
    queue: QueueState,
    /// True when other processes use the same database.
    pub(super) has_other_workers: AtomicBool,
    /// True when another process has given a run back, so that the next look finds it.
    pub(super) has_orphans: AtomicBool,
    /// The claims of this process that may be stored without an answer.
    pub(super) uncertain_claims: Arc<UncertainClaims>,
    /// Held while the lease is renewed or released. True once it is released: it must not come back then.
    pub(super) lease_released: tokio::sync::Mutex<bool>,
}

impl Dispatcher {
    /// Returns the dispatcher of a process that has just started. `tasks_of` returns the background tasks that its runs can
    /// start.
    pub(super) fn new(parts: RuntimeParts, jobs: JobQueue, tasks_of: fn(&Arc<Self>) -> Arc<dyn Tasks>) -> Self {
        let slot_count = if parts.claims { parts.max_concurrent_runs } else { 0 };
        Self {
            lease: parts.lease,
            heartbeat: parts.heartbeat,
            store: parts.store.clone(),
            tasks_of,
            slot_count,
            slots: Arc::new(Semaphore::new(slot_count)),
            calls: Arc::new(Semaphore::new(parts.max_calls.min(Semaphore::MAX_PERMITS))),
            calls_per_run: parts.max_calls_per_run,
            core: Arc::new(Core::new(parts, jobs)),
            wakeup: Notify::new(),
            active: ActiveRuns::default(),
            children: Arc::default(),
            parked: Arc::default(),
            queue: QueueState::default(),
            has_other_workers: AtomicBool::new(false),
            has_orphans: AtomicBool::new(false),
            uncertain_claims: Arc::default(),
            lease_released: tokio::sync::Mutex::new(false),
        }
    }

    /// Starts runs as they become due. Ends with the server.
    pub(super) async fn dispatch(self: Arc<Self>) {
        let soft = self.core.shutdown.soft().clone();
        let mut orphans_at = Instant::now();
        let mut due_at = orphans_at;
        let mut blocked = 0;
        while !soft.is_cancelled() {
            // Runs that another process has left in a crash cause no wakeup.
            let is_time = orphans_at <= Instant::now();
            // While all slots are taken, wakeups are frequent, and nothing can be taken over.
            let has_room = self.slots.available_permits() > 0;
            if is_time || has_room && self.has_orphans.load(Ordering::Acquire) {
                self.has_orphans.store(false, Ordering::Release);
                let pause = match self.begin_orphans().await {
                    Ok(lost) if lost.is_missed => SECOND_LOOK,
                    Ok(_) => self.pause_between_orphans(),
                    Err(error) => {
                        warn_of!(error, "could not look for runs that other processes have left");
                        POLL
                    }
                };
                orphans_at = Instant::now() + pause;
            }
            if due_at <= Instant::now() {
                let pause = match self.begin_due().await {
                    Ok(next) => self.pause_until_due(next, &mut blocked),
                    Err(error) => {
                        warn_of!(error, "could not look for runs that are due");
                        POLL
                    }
                };
                due_at = Instant::now() + pause;
            }
            let rang = timeout_at(orphans_at.min(due_at), self.wakeup.notified());
            if let Some(Ok(())) = soft.run_until_cancelled(rang).await {
                due_at = Instant::now();
                // Another process may have started since.
                orphans_at = orphans_at.min(due_at + self.pause_between_orphans());
            }
        }
    }

    /// Returns the pause between two looks for runs that another process has left in a crash.
    fn pause_between_orphans(&self) -> Duration {
        if self.uncertain_claims.are_any() {
            return SECOND_LOOK;
        }
        match self.has_other_workers.load(Ordering::Acquire) {
            true => POLL,
            false => self.core.longest_sleep(),
        }
    }

    /// Returns the pause until the time `next` at which a queued run is due. `blocked` counts the looks that found one that is
    /// due and could not be claimed.
    fn pause_until_due(&self, next: Option<Timestamp>, blocked: &mut u32) -> Duration {
        let now = self.core.clock.now();
        let longest = self.core.longest_sleep();
        *blocked = match next {
            Some(at) if at <= now => blocked.saturating_add(1),
            Some(_) | None => 0,
        };
        match next {
            Some(_) if *blocked > 0 => BLOCKED.pause(*blocked),
            Some(at) => at.since(now).min(longest),
            None => longest,
        }
    }

    /// Marks that a run is queued, and wakes the dispatch loop.
    pub(super) fn wake_for_queued(&self) {
        self.queue.note_queued();
        self.wakeup.notify_one();
    }

    /// Wakes the dispatch loop and that of the jobs: a run may begin, and there may be reports to send, or work on other
    /// servers to end.
    pub(super) fn wake_loops(&self) {
        self.wakeup.notify_one();
        self.core.jobs.discover();
    }

    /// Wakes the dispatch loop when the slot of a run is free: a run may wait for a slot, or for the end of that run. The loop is
    /// not woken if its last look has found no queued run: each run that is queued later wakes the loop, on Postgres by a
    /// notification.
    pub(super) fn wake_for_slot(&self) {
        let may_be_queued = self.queue.note_free_slot();
        if may_be_queued || self.has_orphans.load(Ordering::Acquire) {
            self.wakeup.notify_one();
        }
    }

    /// Takes over the runs of processes that have ended.
    async fn begin_orphans(self: &Arc<Self>) -> DbResult<LostWorkers> {
        let worker = self.core.id;
        let now = self.core.clock.now();
        // After a failover of the database all processes have lost their locks, though they live.
        let is_settled = self.core.db.is_settled();
        let free = i64::try_from(self.slots.available_permits()).unwrap_or(i64::MAX);
        let this = Arc::clone(self);
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                this.release_undriven(tx).await?;
                let lost = match is_settled {
                    true => db::workers::end_lost(tx, worker).await?,
                    false => LostWorkers::default(),
                };
                DbResult::Ok((lost, db::runs::adopt_orphans(tx, worker, now, free).await?))
            })
        });
        let (lost, adopted) = write.await.inspect_err(|error| self.uncertain_claims.note(error))?;
        if lost.has_ended {
            tracing::info!("another process has ended: its lease is over");
            // Its jobs are due again, too.
            self.core.jobs.wake();
        }
        if adopted.ended > 0 {
            // Other runs may wait for them, and an agent for the outcome of its task.
            self.wake_loops();
        }
        if i64::try_from(adopted.claims.len() + adopted.ended).is_ok_and(|taken| taken >= free) {
            // There may be more than free slots: the end of a run makes room for the next.
            self.has_orphans.store(true, Ordering::Release);
        }
        for claim in adopted.claims {
            tracing::info!(run = %claim.run.id, attempt = claim.run.attempt, crashes = claim.crashes, "run taken over");
            let permit = Arc::clone(&self.slots).try_acquire_owned().ok();
            self.begin(claim, false, permit);
        }
        Ok(lost)
    }

    /// Starts the runs that are due, as far as there are free slots. Returns the time at which the next one is due, if it is
    /// known and there is a free slot.
    async fn begin_due(self: &Arc<Self>) -> DbResult<Option<Timestamp>> {
        while let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            let now = self.core.clock.now();
            self.queue.begin_look();
            let core = Arc::clone(&self.core);
            let looked = self
                .core
                .db
                .write(move |tx| Box::pin(async move { core.turns.claim_next(tx, &core.quotas, core.id, now).await }))
                .await;
            let looked = looked.inspect_err(|error| {
                self.queue.note_queued();
                self.uncertain_claims.note(error);
            })?;
            let claim = match looked {
                QueueOutcome::Empty => return Ok(None),
                QueueOutcome::Waiting(next) => {
                    if self.queue.note_waiting() {
                        self.wakeup.notify_one();
                    }
                    return Ok(next);
                }
                QueueOutcome::Claimed(claim) => claim,
            };
            self.queue.note_queued();
            self.begin(*claim, true, Some(permit));
        }
        // All slots are taken, and more runs may be queued. The end of a run wakes the loop.
        self.queue.note_queued();
        if self.slots.available_permits() > 0 {
            // A run has ended just before that was noted.
            self.wakeup.notify_one();
        }
        Ok(None)
    }

    /// Starts to drive a claimed run; `fresh` when no process has done so before.
    pub(super) fn begin(self: &Arc<Self>, claim: Claim, fresh: bool, permit: Option<OwnedSemaphorePermit>) {
        let followers = &claim.run.request.followers;
        if !followers.is_empty() && !followers.contains(&self.core.id) {
            self.core.unfollowed.add_left(claim.run.id);
        }
        self.start_driving(
            Arc::new(self.run_context(claim)),
            fresh,
            AdmittedWork::default(),
            permit,
        );
    }

    /// Starts to drive a run that this process has claimed when it was admitted. Its followers, if it has any, are in this
    /// process. `continued` is the work that it continues, if the answers to it are delivered.
    pub(super) fn begin_admitted(
        self: &Arc<Self>,
        claim: Claim,
        continued: Option<Box<ContinuedWork>>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let admitted = AdmittedWork {
            first_step: None,
            continued,
        };
        self.start_driving(Arc::new(self.run_context(claim)), true, admitted, permit);
    }

    /// Starts to drive a run whose first step is stored with its admission.
    pub(super) fn begin_after(self: &Arc<Self>, first_step: Box<FirstStep>, permit: Option<OwnedSemaphorePermit>) {
        let run_context = Arc::clone(&first_step.run_context);
        let admitted = AdmittedWork {
            first_step: Some(first_step),
            continued: None,
        };
        self.start_driving(run_context, true, admitted, permit);
    }

    /// Returns the context of a run that this process has claimed.
    pub(super) fn run_context(&self, claim: Claim) -> RunContext {
        let Claim {
            run,
            ownership,
            fence,
            crashes,
        } = claim;
        RunContext {
            core: Arc::clone(&self.core),
            log: self.core.events.log(run.thread),
            trace: trace::scope_of(&self.core.tracer, &run),
            run,
            ownership,
            fence,
            crashes,
            has_other_workers: self.has_other_workers.load(Ordering::Acquire),
            turns: CommitOrder::default(),
            under_way: CommitOrder::default(),
            children: Arc::clone(&self.children),
            parked: Arc::clone(&self.parked),
            subagents_used: SubagentUsage::default(),
            ledger: OnceLock::new(),
            has_first_seq: AtomicBool::new(false),
        }
    }

    /// Stops a run of the main agent or of a subagent. Returns false if it is not at work in this process.
    pub(super) fn stop(&self, run: RunId, action: CancelAction) -> bool {
        self.active.stop(run, action) || self.children.stop(run)
    }
}
