//! Claims runs, drives them, and gives them up again.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::admission::{AdmissionContext, AdmissionDeps};
use super::children::Children;
use super::desk::{RunContext, fault};
use super::jobs::JobQueue;
use super::journal::{LaneJournal, patiently};
use super::opening::{self, ReadyMachine};
use super::queue::{QueueRoom, RunBounds};
use super::registry::Registry;
use super::turns::CommitOrder;
use super::{CancelAction, Store, Webhooks};
use crate::agent::{Breakpoints, ExitReason, Growth, Journal, Loop, LoopOutcome, PendingWrite};
use crate::db::runs::Claim;
use crate::db::{self, Db, DbError, DbResult, Engine, Tx};
use crate::domain::event::Fact;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::machine::{Failure, Machine};
use crate::domain::run::RunStatus;
use crate::domain::size::SizeLimits;
use crate::domain::time::{Clock, Timestamp};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

mod scope;

/// How often the queue is looked at even if nobody rang: another process may have left something.
const LOOK: Duration = Duration::from_secs(1);

/// How often in a row servers may die at work on a run without that it gets on. Then it is not tried again.
const MAX_CRASHES: u32 = 8;

/// Everything that is needed to run runs. One for each server process.
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) db: Db,
    pub(super) events: Events,
    pub(super) registry: Arc<Registry>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) shutdown: Shutdown,
    /// For how long a claim holds without a heartbeat.
    pub(super) lease: Duration,
    /// How often the lease is renewed.
    pub(super) heartbeat: Duration,
    pub(super) metrics: Metrics,
    store: Store,
    /// How long threads and histories are kept.
    pub(super) retention: super::Retention,
    pub(super) webhooks: Arc<Webhooks>,
    /// What this process has at work of the job queue.
    pub(super) jobs: JobQueue,
    pub(super) slots: Arc<Semaphore>,
    /// How many runs may wait, and how long one may be at work.
    pub(super) bounds: RunBounds,
    pub(super) queue: QueueRoom,
    /// How large files and states may become.
    pub(super) sizes: SizeLimits,
    /// How many slots there are, free or not.
    pub(super) slot_count: usize,
    /// How many tools may be called at once in this process, and by one run.
    pub(super) calls: Arc<Semaphore>,
    pub(super) calls_per_run: usize,
    /// Rung when a run may begin.
    pub(super) bell: Notify,
    active: Mutex<HashMap<RunId, Active>>,
    /// The runs of subagents at work in this process, and of those that wait while their callers are.
    pub(super) children: Arc<Children>,
    pub(super) parked: Arc<Children>,
    /// Rung when a run has left `active`.
    left: Notify,
    /// Whether a run may be waiting for its turn, so that it is worth looking when another one ends.
    queued: AtomicBool,
    /// Whether other processes work on the same database.
    pub(super) has_company: AtomicBool,
}

/// A run at work in this process.
pub(super) struct Active {
    thread: ThreadId,
    pub(super) stop: CancellationToken,
    wanted: Option<CancelAction>,
}

impl Worker {
    pub(super) fn new(parts: super::RuntimeParts) -> Self {
        let super::AgentSources {
            workshop,
            around,
            files: _,
        } = parts.ground;
        let registry = Registry::new(parts.db.clone(), Arc::clone(&parts.clock), workshop, around);
        let webhooks = Arc::new(parts.webhooks);
        Self {
            id: WorkerId::mint(),
            db: parts.db,
            events: parts.events,
            registry: Arc::new(registry),
            clock: parts.clock,
            shutdown: parts.shutdown,
            lease: parts.lease,
            heartbeat: parts.heartbeat,
            metrics: parts.metrics,
            store: parts.store,
            retention: parts.retention,
            jobs: JobQueue::new(webhooks.wakeup()),
            webhooks,
            bounds: parts.bounds,
            queue: QueueRoom::new(parts.bounds.waiting),
            sizes: parts.sizes,
            slot_count: parts.max_concurrent_runs,
            slots: Arc::new(Semaphore::new(parts.max_concurrent_runs)),
            calls: Arc::new(Semaphore::new(parts.max_calls.min(Semaphore::MAX_PERMITS))),
            calls_per_run: parts.max_calls_per_run,
            bell: Notify::new(),
            active: Mutex::default(),
            children: Arc::default(),
            parked: Arc::default(),
            left: Notify::new(),
            queued: AtomicBool::new(true),
            has_company: AtomicBool::new(false),
        }
    }

    pub(super) fn house(&self) -> AdmissionDeps {
        let registry = Arc::clone(&self.registry);
        let webhooks = Arc::clone(&self.webhooks);
        AdmissionDeps {
            registry,
            webhooks,
            sizes: self.sizes,
            checked: vec![],
        }
    }

    /// How a wish is met now, if its run has to wait for its turn.
    pub(super) fn occasion(&self) -> AdmissionContext {
        let most_waiting = self.bounds.waiting_on_thread;
        let now = self.clock.now();
        let ttl = self.retention.threads;
        AdmissionContext {
            worker: None,
            now,
            ttl,
            most_waiting,
            number: 0,
        }
    }

    /// Begins runs as they become due. Ends with the server.
    pub(super) async fn dispatch(self: Arc<Self>) {
        let mut adopted: Option<Instant> = None;
        while !self.shutdown.soft().is_cancelled() {
            let mut looked = Ok(());
            // The bell does not ring for what another process has left behind.
            if adopted.is_none_or(|last| last.elapsed() >= LOOK) {
                adopted = Some(Instant::now());
                looked = self.begin_orphans().await;
            }
            if let Err(error) = looked.and(self.begin_due().await) {
                tracing::warn!(%error, "could not look for runs that are due");
            }
            let rang = timeout(LOOK, self.bell.notified());
            self.shutdown.soft().run_until_cancelled(rang).await;
        }
    }

    /// Notes that a run waits for its turn, and looks whether it has come.
    pub(super) fn has_queued(&self) {
        self.queued.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Looks for a run that may begin in place of one that has ended. Other processes may have queued one here, too.
    fn make_way(&self) {
        if self.queued.load(Ordering::Acquire) || self.db.engine() == Engine::Postgres {
            self.bell.notify_one();
        }
    }

    async fn begin_orphans(self: &Arc<Self>) -> DbResult<()> {
        let worker = self.id;
        let now = self.clock.now();
        let free = i64::try_from(self.slots.available_permits()).unwrap_or(i64::MAX);
        let orphans = self
            .db
            .write(move |tx| Box::pin(async move { db::runs::adopt_orphans(tx, worker, now, free).await }))
            .await?;
        for claim in orphans {
            tracing::info!(run = %claim.run.id, attempt = claim.run.attempt, crashes = claim.crashes, "run taken over");
            let permit = Arc::clone(&self.slots).try_acquire_owned().ok();
            self.begin(claim, false, permit);
        }
        Ok(())
    }

    async fn begin_due(self: &Arc<Self>) -> DbResult<()> {
        let worker = self.id;
        while let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            let now = self.clock.now();
            // Set again by whoever queues one while we look.
            self.queued.store(false, Ordering::Release);
            let looked = self
                .db
                .write(move |tx| Box::pin(async move { claim_next(tx, worker, now).await }))
                .await;
            let (claim, more) = looked.inspect_err(|_| self.queued.store(true, Ordering::Release))?;
            if more {
                self.queued.store(true, Ordering::Release);
            }
            let Some(claim) = claim else {
                return Ok(());
            };
            self.begin(claim, true, Some(permit));
        }
        // All slots are taken, and there may be more.
        self.queued.store(true, Ordering::Release);
        Ok(())
    }

    /// Begins to drive a claimed run; `fresh` when no process has done so before.
    pub(super) fn begin(self: &Arc<Self>, claim: Claim, fresh: bool, permit: Option<OwnedSemaphorePermit>) {
        let run = &claim.run;
        let stop = self.shutdown.hard().child_token();
        let active = Active {
            thread: run.thread,
            stop: stop.clone(),
            wanted: None,
        };
        let late = self.enter(run.id, active);
        if fresh {
            self.metrics
                .work()
                .run_began(run.lineage.agent(), self.clock.now().since(run.due_at));
        }
        let this = Arc::clone(self);
        let id = run.id;
        let desk = Arc::new(self.desk(claim));
        let holder = desk.log.expect(id, fresh);
        self.shutdown.spawn("run", async move {
            if let Some(active) = late {
                this.at_rest(|other, _| other == id).await;
                this.active().insert(id, active);
            }
            let work = AssertUnwindSafe(this.work(&desk, stop)).catch_unwind();
            if work.await.is_err() {
                tracing::error!(run = %id, "a run panicked");
                let text = format!("The server failed. Its log has the cause under the id of the run, {id}.");
                let failure = Failure::new("InternalError", text);
                this.fail(&desk, &Machine::default(), failure).await;
            }
            desk.log.close(holder);
            drop(permit);
            this.active().remove(&id);
            this.left.notify_waiters();
            this.make_way();
            this.jobs.run_ended(desk.run.request.background.is_some());
            this.clear_away(&desk).await;
        });
    }

    /// Notes that a run is at work here. Given back if it still is under an earlier claim, which another process took
    /// and lost again before the loop here heard of it; that loop is told to leave.
    fn enter(&self, run: RunId, new: Active) -> Option<Active> {
        let mut active = self.active();
        if let Some(old) = active.get(&run) {
            old.stop.cancel();
            return Some(new);
        }
        active.insert(run, new);
        None
    }

    fn desk(&self, Claim { run, fence, crashes }: Claim) -> RunContext {
        RunContext {
            db: self.db.clone(),
            log: self.events.log(run.thread),
            metrics: self.metrics.clone(),
            webhooks: Arc::clone(&self.webhooks),
            clock: Arc::clone(&self.clock),
            run,
            worker: self.id,
            fence,
            crashes,
            has_company: self.has_company.load(Ordering::Acquire),
            registry: Arc::clone(&self.registry),
            turns: CommitOrder::default(),
            children: Arc::clone(&self.children),
            parked: Arc::clone(&self.parked),
            ledger: OnceLock::new(),
            longest: self.bounds.at_work,
        }
    }

    /// Drives a run to where it ends, and writes down how, unless the loop itself did.
    async fn work(self: &Arc<Self>, desk: &Arc<RunContext>, stop: CancellationToken) {
        let run = &desk.run;
        // Before anything is loaded: a run whose load takes the server down is not tried for ever either.
        if desk.crashes >= MAX_CRASHES {
            let text = format!("The server stopped {MAX_CRASHES} times while it ran this run; it is not tried again.");
            return self
                .fail(desk, &Machine::default(), Failure::new("TooManyAttemptsError", text))
                .await;
        }
        let known = match self.registry.of_run(run).await {
            Ok(Some(known)) => known,
            Ok(None) => {
                let text = "The agent of this run is not configured on this server any more.".to_owned();
                return self
                    .fail(desk, &Machine::default(), Failure::new("AgentNotFoundError", text))
                    .await;
            }
            Err(error) => {
                tracing::error!(run = %run.id, %error, "could not load the definition of the agent of a run");
                return self.not_loaded(desk, &error).await;
            }
        };
        let opening = match opening::open(desk, &known).await {
            Ok(opening) => opening,
            Err(error) => {
                tracing::error!(run = %run.id, %error, "could not load the state of a run");
                return self.not_loaded(desk, &error).await;
            }
        };
        let ReadyMachine {
            mut machine,
            notes,
            segment,
            plan,
            only_notes,
            budget,
        } = opening;
        let journal = LaneJournal::main(Arc::clone(desk), segment, (stop.clone(), Some(budget.clone())));
        let agent = if run.levels() == Some(0) {
            known.without_delegations()
        } else {
            Arc::clone(&known.agent)
        };
        let driving = Loop {
            growth: Growth::new(self.sizes),
            agent: &agent,
            plan,
            lineage: &run.lineage,
            scope: self.scope(run, &known, (stop, budget)),
            journal: &journal,
            breakpoints: Breakpoints {
                before: run.request.interrupt_before.clone(),
                after: run.request.interrupt_after.clone(),
            },
            leave: self.shutdown.soft().clone(),
            base: 0,
        };
        let driven = if only_notes {
            driving.close(&machine, notes).await
        } else {
            driving.drive(&mut machine, notes).await
        };
        match driven {
            Ok(LoopOutcome::Done | LoopOutcome::Failed(_) | LoopOutcome::Parked(_) | LoopOutcome::Paused) => {}
            Err(ExitReason::LeaseLost) => tracing::warn!(run = %run.id, "another process has taken the run over"),
            Err(ExitReason::Away) => self.give_back(desk).await,
            Err(ExitReason::Fault(failure)) => self.fail(desk, &machine, failure).await,
            Err(ExitReason::Cancelled) => self.cancelled(desk, &machine, &journal).await,
        }
    }

    /// Ends a run for which something cannot be read, or gives it back when the database did not answer.
    async fn not_loaded(&self, desk: &Arc<RunContext>, error: &DbError) {
        if error.is_corrupt() {
            return self.fail(desk, &Machine::default(), db::runs::unreadable(error)).await;
        }
        match fault(desk.run.id, error) {
            ExitReason::Fault(failure) => self.fail(desk, &Machine::default(), failure).await,
            ExitReason::Away | ExitReason::LeaseLost | ExitReason::Cancelled => self.give_back(desk).await,
        }
    }

    async fn fail(&self, desk: &Arc<RunContext>, machine: &Machine, failure: Failure) {
        let mut notes = vec![];
        match opening::open_log(desk).await {
            Ok(true) => {
                let base = machine.head;
                let attempt = desk.run.attempt;
                notes.push(PendingWrite::Fact(Fact::Started {
                    base,
                    attempt,
                    resumed: false,
                }));
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(run = %desk.run.id, %error, "could not open the log of a run that failed");
                return self.give_back(desk).await;
            }
        }
        let journal = LaneJournal::main(Arc::clone(desk), None, (CancellationToken::new(), None));
        notes.push(PendingWrite::Fact(Fact::over(RunStatus::Error, Some(failure))));
        if let Err(stop) = journal.commit(machine, notes).await {
            tracing::error!(run = %desk.run.id, ?stop, "could not store that a run failed");
            self.give_back(desk).await;
        }
    }

    /// A loop was told to stop: by a client, or because the server goes down.
    async fn cancelled(&self, desk: &Arc<RunContext>, machine: &Machine, journal: &LaneJournal) {
        let wanted = self.active().get(&desk.run.id).and_then(|active| active.wanted);
        let done = match wanted {
            Some(CancelAction::Interrupt) => {
                let error = Some(Failure::cancelled());
                let ended = Fact::over(RunStatus::Interrupted, error);
                let stored = journal.commit(machine, vec![PendingWrite::Fact(ended)]).await;
                stored.map_err(|stop| format!("{stop:?}"))
            }
            Some(CancelAction::Rollback) => patiently(desk.run.id, || self.roll_back(desk))
                .await
                .map_err(|error| error.to_string()),
            None => self.release(desk).await.map_err(|error| error.to_string()),
        };
        if let Err(error) = done {
            tracing::error!(run = %desk.run.id, %error, "could not store that a run was cancelled");
            // Or nobody would ever go on with it, or cancel it.
            self.give_back(desk).await;
        }
    }

    /// Gives a run back that cannot go on for the moment, as soon as the database takes it. Nobody else would: a run
    /// belongs to its worker for as long as that lives.
    async fn give_back(&self, desk: &Arc<RunContext>) {
        while self
            .shutdown
            .soft()
            .run_until_cancelled(tokio::time::sleep(LOOK))
            .await
            .is_some()
        {
            match self.release(desk).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(run = %desk.run.id, %error, "could not give a run back yet"),
            }
        }
    }

    /// Gives a run back, for the next process to go on with.
    async fn release(&self, desk: &Arc<RunContext>) -> DbResult<()> {
        let run = desk.run.id;
        let worker = desk.worker;
        let fence = desk.fence;
        self.db
            .write(move |tx| Box::pin(async move { db::runs::release(tx, run, worker, fence).await }))
            .await
    }

    /// Tells a run to stop, be it the main agent's or a subagent's. False if it is not at work here.
    pub(super) fn stop(&self, run: RunId, action: CancelAction) -> bool {
        let mut active = self.active();
        let Some(active) = active.get_mut(&run) else {
            return self.children.stop(run);
        };
        active.wanted.get_or_insert(action);
        active.stop.cancel();
        true
    }

    /// Waits until no run works on `thread` in this process.
    pub(super) async fn quiet(&self, thread: ThreadId) {
        self.at_rest(|_, of| of == thread).await;
    }

    /// Waits until none of these runs, each with its thread, is at work in this process.
    pub(super) async fn at_rest(&self, concerns: impl Fn(RunId, ThreadId) -> bool) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            // Enlisted before the look, or a run that leaves right after it would not be heard.
            left.as_mut().enable();
            if !self.active().iter().any(|(run, active)| concerns(*run, active.thread)) {
                return;
            }
            left.await;
        }
    }

    pub(super) fn active(&self) -> MutexGuard<'_, HashMap<RunId, Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claims the next run that is due. None if there is none; then also whether one waits that is not due yet.
async fn claim_next(tx: &mut Tx<'_>, worker: WorkerId, now: Timestamp) -> DbResult<(Option<Claim>, bool)> {
    let mut passed = None;
    while let Some(run) = db::runs::next_due(tx, now).await?.filter(|run| passed != Some(*run)) {
        if let Some(claim) = db::runs::claim(tx, run, worker, now).await? {
            return Ok((Some(claim), true));
        }
        // It cannot be read and was ended, or its thread is not free any more.
        passed = Some(run);
    }
    Ok((None, db::runs::any_pending(tx).await?))
}
