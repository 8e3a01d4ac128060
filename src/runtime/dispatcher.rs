//! The dispatcher: claims runs that are due, drives them to their end, and releases them when the server stops.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::cancel_action::CancelAction;
use super::children::Children;
use super::commit_order::CommitOrder;
use super::interrupts::StoredDecisions;
use super::journal::LaneJournal;
use super::prepare::{self, BegunRun, ContinuedWork, FirstStep, ReadyMachine};
use super::retry::retry_until_available;
use super::run_context::{RunContext, exit_reason_of};
use super::shared::Core;
use super::shared::job_queue::JobQueue;
use super::shared::parts::RuntimeParts;
use super::store::Store;
use super::trace;
use super::turns::QueueLook;
use crate::agent::assemble::RegisteredAgent;
use crate::agent::{Breakpoints, ExitReason, Journal, Loop, LoopOutcome, PendingWrite};
use crate::db::runs::Claim;
use crate::db::workers::LostWorkers;
use crate::db::{self, DbError, DbResult, Engine, RowAccess, warn_of};
use crate::domain::backoff::Backoff;
use crate::domain::event::Fact;
use crate::domain::id::RunId;
use crate::domain::machine::{Failure, Machine};
use crate::domain::run::RunStatus;
use crate::domain::state_size::StateSize;
use crate::domain::time::Timestamp;
use crate::tool::background::Tasks;

mod scope;
mod uncertain_claims;

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

/// The warning about a run for which this process may store nothing more.
const LOST: &str = "another process has taken the run over, or has deleted it";

/// The number of crashes in a row without progress after which a run is not retried.
const MAX_CRASHES: u32 = 8;

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
    active: Mutex<HashMap<RunId, Active>>,
    /// The runs of subagents at work in this process, and of subagents that wait while their callers are at work.
    pub(super) children: Arc<Children>,
    pub(super) parked: Arc<Children>,
    /// Notified when a run has left `active`.
    left: Notify,
    /// True when a run may be queued, so that the queue is read when another run ends.
    queued: AtomicBool,
    /// True when other processes use the same database.
    pub(super) has_company: AtomicBool,
    /// True when another process has given a run back, so that the next look finds it.
    pub(super) has_orphans: AtomicBool,
    /// The claims of this process that may be stored without an answer.
    pub(super) uncertain_claims: Arc<UncertainClaims>,
    /// Held while the lease is renewed or released. True once it is released: it must not come back then.
    pub(super) lease_released: tokio::sync::Mutex<bool>,
}

/// The part of the work on a run that the transaction that admitted it has done.
#[derive(Default)]
struct AdmittedWork {
    /// The first step, if it is stored.
    first_step: Option<Box<FirstStep>>,
    /// The work that the run continues, if the answers to it are delivered.
    continued: Option<Box<ContinuedWork>>,
}

/// A run at work in this process.
pub(super) struct Active {
    pub(super) stop: CancellationToken,
    /// Cancelled when this process leaves the run to the next one, as it also does on shutdown.
    leave: CancellationToken,
    wanted: Option<CancelAction>,
}

impl Active {
    /// Stops the work on the run in this process, which has lost the run: another one goes on with it, and with what was begun
    /// for it elsewhere.
    pub(super) fn lose(&self) {
        self.leave.cancel();
        self.stop.cancel();
    }
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
            active: Mutex::default(),
            children: Arc::default(),
            parked: Arc::default(),
            left: Notify::new(),
            queued: AtomicBool::new(true),
            has_company: AtomicBool::new(false),
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
        match self.has_company.load(Ordering::Acquire) {
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
    pub(super) fn has_queued(&self) {
        self.queued.store(true, Ordering::Release);
        self.wakeup.notify_one();
    }

    /// Wakes the dispatch loop and that of the jobs: a run may begin, and there may be reports to send, or work on other
    /// servers to end.
    pub(super) fn wake_loops(&self) {
        self.wakeup.notify_one();
        self.core.jobs.discover();
    }

    /// Wakes the dispatch loop after the end of a run, if another one may be queued, or if that run was given back. On
    /// Postgres, other processes may have queued one.
    fn look_for_next(&self) {
        let may_be_queued = self.queued.load(Ordering::Acquire) || self.core.db.engine() == Engine::Postgres;
        if may_be_queued || self.has_orphans.load(Ordering::Acquire) {
            self.wakeup.notify_one();
        }
    }

    /// Wakes the dispatch loop when a slot is free again in which no run has started: the loop may have found all of them
    /// taken.
    pub(super) fn slot_is_free(&self) {
        if self.queued.load(Ordering::Acquire) || self.has_orphans.load(Ordering::Acquire) {
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
        let (lost, orphans) = write.await.inspect_err(|error| self.uncertain_claims.note(error))?;
        if lost.has_ended {
            tracing::info!("another process has ended: its lease is over");
            // Its jobs are due again, too.
            self.core.jobs.wake();
        }
        if i64::try_from(orphans.len()).is_ok_and(|taken| taken >= free) {
            // There may be more than free slots: the end of a run makes room for the next.
            self.has_orphans.store(true, Ordering::Release);
        }
        for claim in orphans {
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
            // A run that is queued meanwhile sets it again.
            self.queued.store(false, Ordering::Release);
            let core = Arc::clone(&self.core);
            let looked = self
                .core
                .db
                .write(move |tx| Box::pin(async move { core.turns.claim_next(tx, &core.quotas, core.id, now).await }))
                .await;
            let looked = looked.inspect_err(|error| {
                self.queued.store(true, Ordering::Release);
                self.uncertain_claims.note(error);
            })?;
            let claim = match looked {
                QueueLook::Empty => return Ok(None),
                QueueLook::Waiting(next) => {
                    self.queued.store(true, Ordering::Release);
                    return Ok(next);
                }
                QueueLook::Claimed(claim) => claim,
            };
            self.queued.store(true, Ordering::Release);
            self.begin(*claim, true, Some(permit));
        }
        // All slots are taken, and more runs may be queued. The end of a run wakes the loop.
        self.queued.store(true, Ordering::Release);
        if self.slots.available_permits() > 0 {
            // A run has ended just before `queued` was set.
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

    fn start_driving(
        self: &Arc<Self>,
        run_context: Arc<RunContext>,
        fresh: bool,
        admitted: AdmittedWork,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let run = &run_context.run;
        let AdmittedWork {
            mut first_step,
            continued,
        } = admitted;
        let stop = self.core.shutdown.hard().child_token();
        let leave = self.core.shutdown.soft().child_token();
        let active = Active {
            stop: stop.clone(),
            leave: leave.clone(),
            wanted: None,
        };
        let late = self.register(run.id, active);
        if fresh {
            self.core
                .metrics
                .work()
                .run_started(run.lineage.agent(), self.core.clock.now().since(run.due_at));
        }
        let this = Arc::clone(self);
        let id = run.id;
        let holder = run_context.log.expect_run(id, fresh);
        // Here already, so that a stream of the run begins with these events.
        let mut begun = match &late {
            Some(_) => None,
            None => first_step.take().map(|step| Box::new(step.publish())),
        };
        // Whoever starts the run, it works for the tenant of its thread.
        let access = RowAccess::of_owner(&run_context.ownership);
        // Boxed at once: what carries it to its task would copy its ten thousand bytes again and again.
        let driving = Box::pin(async move {
            if let Some(active) = late {
                this.at_rest(|other| other == id).await;
                this.active().insert(id, active);
                begun = first_step.map(|step| Box::new(step.publish()));
            }
            let work = AssertUnwindSafe(this.work(&run_context, begun, continued, stop, leave)).catch_unwind();
            if work.await.is_err() {
                tracing::error!(run = %id, "a run panicked");
                let text = format!("The server failed. Its log has the cause under the id of the run, {id}.");
                let failure = Failure::new("InternalError", text);
                this.fail(&run_context, &Machine::default(), failure).await;
            }
            run_context.log.close(holder);
            drop(permit);
            this.active().remove(&id);
            this.left.notify_waiters();
            this.look_for_next();
            this.core.jobs.run_ended(run_context.run.request.background.is_some());
            this.delete_temporary_thread(&run_context).await;
        });
        drop(self.core.spawn("run", access.scope(driving)));
    }

    /// Registers a run that is at work in this process. Returns `new` if the run is still registered under an earlier
    /// claim: another process took the run and lost it again before the loop in this process noticed. The earlier loop
    /// is cancelled then.
    fn register(&self, run: RunId, new: Active) -> Option<Active> {
        let mut active = self.active();
        if let Some(old) = active.get(&run) {
            old.lose();
            return Some(new);
        }
        active.insert(run, new);
        None
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
            has_company: self.has_company.load(Ordering::Acquire),
            turns: CommitOrder::default(),
            children: Arc::clone(&self.children),
            parked: Arc::clone(&self.parked),
            ledger: OnceLock::new(),
            has_first_seq: AtomicBool::new(false),
        }
    }

    /// Drives a run to its end and stores the end, unless the loop itself did.
    async fn work(
        self: &Arc<Self>,
        run_context: &Arc<RunContext>,
        begun: Option<Box<BegunRun>>,
        continued: Option<Box<ContinuedWork>>,
        stop: CancellationToken,
        leave: CancellationToken,
    ) {
        let run = &run_context.run;
        // The crashes are checked before anything is loaded, since loading may be the cause of the crash.
        if run_context.crashes >= MAX_CRASHES {
            let text = format!("The server stopped {MAX_CRASHES} times while it ran this run; it is not tried again.");
            return self
                .fail(
                    run_context,
                    &Machine::default(),
                    Failure::new("TooManyAttemptsError", text),
                )
                .await;
        }
        let Some(ready) = self.make_ready(run_context, begun.map(|begun| *begun), continued).await else {
            return;
        };
        let ReadyMachine {
            known,
            mut machine,
            notes,
            segment,
            plan,
            only_notes,
            budget,
            remembers,
            origin,
        } = ready;
        let journal = LaneJournal::main(Arc::clone(run_context), segment, stop.clone(), Some(budget.clone()));
        let agent = if run.levels() == Some(0) {
            known.without_delegations()
        } else {
            Arc::clone(known.agent())
        };
        let mut scope = self.scope(run_context, &known, origin, stop, budget);
        if remembers {
            scope.remembered = Arc::new(StoredDecisions(self.core.db.clone()));
        }
        let driving = Loop {
            state_size: StateSize::new(self.core.sizes),
            agent: &agent,
            plan,
            lineage: &run.lineage,
            scope,
            journal: &journal,
            breakpoints: Breakpoints {
                before: run.request.interrupt_before.clone(),
                after: run.request.interrupt_after.clone(),
            },
            leave,
            base: 0,
        };
        let driven = if only_notes {
            driving.close(&machine, notes).await
        } else if let Some(request) = run.request.compaction {
            Box::pin(driving.compact(&mut machine, notes, request)).await
        } else {
            driving.drive(&mut machine, notes).await
        };
        match driven {
            Ok(LoopOutcome::Done | LoopOutcome::Failed(_) | LoopOutcome::Parked(_) | LoopOutcome::Paused) => {}
            Err(ExitReason::LeaseLost) => tracing::warn!(run = %run.id, "{LOST}"),
            Err(ExitReason::Unavailable) => self.give_back(run_context).await,
            Err(ExitReason::Fault(failure)) => self.fail(run_context, &machine, failure).await,
            Err(ExitReason::Cancelled) => self.cancelled(run_context, &machine, &journal).await,
        }
    }

    /// Makes a run ready to be driven. If that fails, the run is ended, or released when the database did not answer.
    async fn make_ready(
        &self,
        run_context: &Arc<RunContext>,
        begun: Option<BegunRun>,
        continued: Option<Box<ContinuedWork>>,
    ) -> Option<ReadyMachine> {
        let opened = match begun {
            Some(begun) => prepare::go_on(run_context, begun).await,
            None => {
                let known = self.load_agent(run_context).await?;
                match prepare::find_obstacle(run_context).await {
                    Ok(None) => {}
                    Ok(Some(obstacle)) => {
                        self.fail(run_context, &Machine::default(), obstacle).await;
                        return None;
                    }
                    Err(error) => {
                        self.not_loaded(run_context, "could not read the interrupts of a thread", &error)
                            .await;
                        return None;
                    }
                }
                prepare::open(run_context, known, continued).await
            }
        };
        match opened {
            Ok(ready) => Some(ready),
            Err(error) => {
                self.not_loaded(run_context, "could not load the state of a run", &error)
                    .await;
                None
            }
        }
    }

    /// Returns the agent of a run. Without one the run is ended, or released when the database did not answer.
    async fn load_agent(&self, run_context: &Arc<RunContext>) -> Option<Arc<RegisteredAgent>> {
        let run = &run_context.run;
        let tenant = &run_context.ownership.tenant;
        match self.core.registry.of_run_of_tenant(run, tenant).await {
            Ok(Some(known)) => return Some(known),
            Ok(None) => {
                let text = "The agent of this run is not configured on this server any more.".to_owned();
                let failure = Failure::new("AgentNotFoundError", text);
                self.fail(run_context, &Machine::default(), failure).await;
            }
            Err(error) => {
                let what = "could not load the definition of the agent of a run";
                self.not_loaded(run_context, what, &error).await;
            }
        }
        None
    }

    /// Ends a run that cannot be read, or releases it when the database did not answer. `what` says what has failed.
    async fn not_loaded(&self, run_context: &Arc<RunContext>, what: &'static str, error: &DbError) {
        if !error.is_out_of_reach() {
            tracing::error!(run = %run_context.run.id, %error, "{what}");
        }
        if error.is_corrupt() {
            return self
                .fail(run_context, &Machine::default(), db::runs::unreadable(error))
                .await;
        }
        match exit_reason_of(run_context.run.id, error) {
            ExitReason::Fault(failure) => self.fail(run_context, &Machine::default(), failure).await,
            ExitReason::Unavailable | ExitReason::LeaseLost | ExitReason::Cancelled => {
                self.give_back(run_context).await;
            }
        }
    }

    async fn fail(&self, run_context: &Arc<RunContext>, machine: &Machine, failure: Failure) {
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
    async fn cancelled(&self, run_context: &Arc<RunContext>, machine: &Machine, journal: &LaneJournal) {
        let wanted = self.active().get(&run_context.run.id).and_then(|active| active.wanted);
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
    async fn give_back(&self, run_context: &Arc<RunContext>) {
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

    /// Stops a run of the main agent or of a subagent. Returns false if it is not at work in this process.
    pub(super) fn stop(&self, run: RunId, action: CancelAction) -> bool {
        let mut active = self.active();
        let Some(active) = active.get_mut(&run) else {
            return self.children.stop(run);
        };
        active.wanted.get_or_insert(action);
        active.stop.cancel();
        true
    }

    /// Waits until none of these runs is at work in this process.
    pub(super) async fn at_rest(&self, concerns: impl Fn(RunId) -> bool) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            // Registered before the check: a run that ends right after the check would be missed otherwise.
            left.as_mut().enable();
            if !self.active().keys().any(|run| concerns(*run)) {
                return;
            }
            left.await;
        }
    }

    pub(super) fn active(&self) -> MutexGuard<'_, HashMap<RunId, Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
