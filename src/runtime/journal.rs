//! The durable journal: one transaction per commit, fenced by the lease. The first commit of a run that begins where it is
//! admitted is a part of the admission.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::children::AtWork;
use super::retry::{WHILE_UNAVAILABLE, retry_until_available};
use super::run_context::{RunContext, exit_reason_of};
use super::webhooks::Report;
use super::{interrupts, log_lines, quotas};
use crate::agent::assemble::RegisteredAgent;
use crate::agent::{
    Child, ChildAdmission, ChildRecord, ChildStart, ExitReason, Journal, NewChildRun, PendingWrite, WaitingAgent,
};
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbError, DbResult, Tx, warn_of};
use crate::domain::checkpoint::{Entry, Lane};
use crate::domain::delivery::Delivery;
use crate::domain::event::{AgentWork, Delta, Event, EventBody, Fact, Origin};
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::item::ItemChange;
use crate::domain::limits::{Totals, Usage};
use crate::domain::machine::{Failure, Machine, Position};
use crate::domain::run::{DelegatedTask, Lineage, Run, RunStatus};
use crate::domain::state::Update;
use crate::domain::time::Timestamp;
use crate::domain::trace::{SpanData, SpanId, TraceScope};
use crate::tool::budget::{Budget, Meter};

mod child;
mod commit;
mod first_commit;
mod spans;

use child::{AdmittedChild, PreparedChild};
use commit::{CommitBatch, CommitOutcome, NewChild, PlacedFact, PlacedStep, RunEnd, write_batch};
use spans::{AgentEnd, TracedAgent, begin_commit};

pub(super) use first_commit::FirstCommit;

/// The journal of one agent of a run.
pub(super) struct LaneJournal {
    run_context: Arc<RunContext>,
    /// The run of the agent: the main agent's, or a child's.
    run: RunId,
    origin: Arc<Origin>,
    /// The segment of history that the next checkpoint continues; none if it begins a new one.
    segment: Mutex<Option<i64>>,
    /// The time at which the agent began in this process.
    began: Timestamp,
    /// The usage of the run; none for a journal that only stores its end.
    meter: Option<Arc<Meter>>,
    /// The budget of the main agent with all below it.
    budget: Option<Budget>,
    /// The stored usage, without time.
    stored: Mutex<Usage>,
    /// Cancels the loop that writes here.
    stop: CancellationToken,
    /// The span of the agent.
    trace: TraceScope,
    /// The time at which the run of a subagent was created; the main agent has none.
    created: Option<Timestamp>,
    /// True once the end of the agent is stored, and before its run is.
    ended: AtomicBool,
    /// Its entry among the subagents at work; the main agent has none.
    _at_work: Option<AtWork>,
}

impl LaneJournal {
    /// Streams an event that is not stored.
    fn publish_event(&self, body: EventBody) {
        let at = self.run_context.core.clock.now();
        let run = self.run_context.run.id;
        let origin = Arc::clone(&self.origin);
        self.run_context.log.publish_volatile(|seq| Event {
            seq,
            run,
            at,
            origin,
            body,
        });
    }

    pub(super) fn main(
        run_context: Arc<RunContext>,
        segment: Option<i64>,
        stop: CancellationToken,
        budget: Option<Budget>,
    ) -> Self {
        let origin = Arc::new(Origin::of(&run_context.run));
        let run = run_context.run.id;
        let began = run_context.core.clock.now();
        let stored = Mutex::default();
        let meter = budget.as_ref().map(|budget| Arc::clone(budget.meter()));
        Self {
            trace: run_context.trace.clone(),
            created: None,
            ended: AtomicBool::new(false),
            run_context,
            run,
            origin,
            segment: Mutex::new(segment),
            began,
            meter,
            budget,
            stored,
            stop,
            _at_work: None,
        }
    }

    fn child_journal(&self, run: &Run, segment: Option<i64>, at_work: AtWork, meter: &Arc<Meter>) -> Self {
        let root = self.run_context.run.id;
        Self {
            trace: self.run_context.trace.at(SpanId::of_child(run.id, root)),
            created: Some(run.created_at),
            ended: AtomicBool::new(false),
            run_context: Arc::clone(&self.run_context),
            run: run.id,
            origin: Arc::new(Origin::of(run)),
            segment: Mutex::new(segment),
            began: self.run_context.core.clock.now(),
            meter: Some(Arc::clone(meter)),
            budget: None,
            stored: Mutex::default(),
            stop: at_work.stop().clone(),
            _at_work: Some(at_work),
        }
    }

    /// Registers a child before its row is written or read, since a cancellation reads the row first.
    fn register_child(&self, child: RunId) -> AtWork {
        self.run_context.children.register(child, self.stop.child_token())
    }

    /// Reads a child, with its registered agent if it has one.
    async fn stored_child(&self, child: RunId) -> Result<Option<StoredChild>, ExitReason> {
        let thread = self.run_context.run.thread;
        let find = || {
            let db = &self.run_context.core.db;
            db.read(move |tx| Box::pin(StoredChild::find(tx, thread, child)))
        };
        let mut found = retry_until_available(self.run_context.run.id, find)
            .await
            .map_err(|error| exit_reason_of(self.run_context.run.id, &error))?;
        if let Some(stored) = &mut found {
            stored.known = self.registered_agent(&stored.run).await?;
        }
        Ok(found)
    }

    /// Returns the registered agent of a child, if it has one.
    async fn registered_agent(&self, child: &Run) -> Result<Option<Arc<RegisteredAgent>>, ExitReason> {
        if child.request.agent.is_none() {
            return Ok(None);
        }
        let registry = &self.run_context.core.registry;
        let tenant = &self.run_context.ownership.tenant;
        let known = retry_until_available(self.run_context.run.id, || registry.of_run_of_tenant(child, tenant)).await;
        known.map_err(|error| exit_reason_of(self.run_context.run.id, &error))
    }

    /// Numbers the pending writes from `first` on and builds the batch.
    fn build_step(&self, machine: &Machine, writes: SplitWrites, rest: Option<Rest>, first: i64) -> CommitBatch {
        let at = self.run_context.core.clock.now();
        let SplitWrites {
            events: notes,
            items,
            left,
        } = writes;
        let count = notes.len();
        let mut batch = CommitBatch {
            first,
            count,
            at,
            children: vec![],
            entries: vec![],
            facts: vec![],
            items,
            left,
            asked: vec![],
            head: None,
            ended: None,
            report: None,
            used: self.used(at),
            rest,
            events: vec![],
        };
        for (note, seq) in notes.into_iter().zip(first..) {
            let mut origin = Arc::clone(&self.origin);
            let body = match note {
                PendingWrite::Entry { entry, position } => self.build_entry(&mut batch, machine, entry, position, seq),
                PendingWrite::Fact(fact) => self.build_fact(&mut batch, machine, fact, seq),
                PendingWrite::Repeated {
                    agent,
                    head,
                    carried_from,
                    interrupts,
                } => {
                    origin = agent.unwrap_or(origin);
                    let fact = Fact::Asked {
                        head,
                        carried_from,
                        interrupts,
                    };
                    batch.facts.push(PlacedFact {
                        seq,
                        lane: origin.lane,
                        fact: fact.clone(),
                    });
                    EventBody::Fact(fact)
                }
                PendingWrite::Items(_) | PendingWrite::Left(..) => continue,
            };
            batch.events.push(Arc::new(Event {
                seq,
                run: self.run_context.run.id,
                at,
                origin,
                body,
            }));
        }
        // The newest step is stored with its position.
        let is_stored = |head: &CheckpointId| batch.entries.iter().any(|placed| placed.entry.id == *head);
        batch.head = machine
            .head
            .filter(|head| !is_stored(head))
            .map(|head| (head, machine.position.clone()));
        batch
    }

    /// Returns the usage at `at`, unless it is stored already. A change of time alone is stored when the run ends.
    fn used(&self, at: Timestamp) -> Option<Usage> {
        let used = self.meter.as_ref()?.usage(at);
        let counted = Usage { seconds: 0.0, ..used };
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::replace(&mut *stored, counted) != counted).then_some(used)
    }

    fn build_entry(
        &self,
        batch: &mut CommitBatch,
        machine: &Machine,
        entry: Entry,
        position: Position,
        seq: i64,
    ) -> EventBody {
        let entry = Arc::new(entry);
        let mut segment = self.segment.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = machine.head == Some(entry.id);
        batch.entries.push(PlacedStep {
            seq,
            segment: *segment.get_or_insert(seq),
            entry: Arc::clone(&entry),
            position: if newest { machine.position.clone() } else { position },
        });
        EventBody::Entry(entry)
    }

    fn build_fact(&self, batch: &mut CommitBatch, machine: &Machine, mut fact: Fact, seq: i64) -> EventBody {
        match &mut fact {
            Fact::Asked { interrupts, .. } => {
                let at = batch.at;
                let open = &machine.position.asked;
                let own = interrupts.iter().filter(|i| open.iter().any(|asked| asked.id == i.id));
                let records = own.zip(0..).map(|(interrupt, ordinal)| InterruptRecord {
                    ordinal,
                    ..self.interrupt_record(interrupt, at, seq)
                });
                batch.asked.extend(records);
            }
            Fact::Ended {
                status, error, used, ..
            } => {
                *used = batch.rest.and_then(|rest| self.totals(rest, batch.at)).map(Box::new);
                batch.ended = Some(RunEnd {
                    status: *status,
                    error: error.clone(),
                    waits: machine.has_work_left(),
                    looks_for_messages: false,
                });
                batch.report = self.report(machine, *status, error.as_ref(), batch.at);
                batch.used = self.meter.as_ref().map(|meter| meter.usage(batch.at));
            }
            Fact::Started { .. }
            | Fact::Calling { .. }
            | Fact::Answered { .. }
            | Fact::BrokenOff { .. }
            | Fact::FellBack { .. }
            | Fact::Paused
            | Fact::Undone
            | Fact::Custom { .. } => {}
        }
        batch.facts.push(PlacedFact {
            seq,
            lane: self.origin.lane,
            fact: fact.clone(),
        });
        EventBody::Fact(fact)
    }

    /// Returns the usage at `at`; `rest` is the part that is not in the meter.
    fn totals(
        &self,
        Rest {
            own,
            others,
            under_way: _,
        }: Rest,
        at: Timestamp,
    ) -> Option<Totals> {
        let own = self.meter.as_ref().map(|meter| meter.usage(at)).or(own)?;
        Some(Totals {
            own,
            tree: (self.origin.lane == Lane::Main).then(|| own.plus(others)),
        })
    }

    /// Reads the usage that is not in the meter, when the run ends.
    async fn rest(&self) -> DbResult<Rest> {
        let run = self.run;
        let now = self.run_context.core.clock.now();
        let whole = self.budget.as_ref().map(Budget::whole);
        let under_way = whole.map_or(0, Meter::under_way);
        if self.origin.lane != Lane::Main || whole.is_some_and(|whole| whole.usage(now).children == 0) {
            return Ok(Rest {
                under_way,
                ..Rest::default()
            });
        }
        let read = self
            .run_context
            .core
            .db
            .read(move |tx| Box::pin(db::runs::usages_with_background(tx, run)));
        let mut used = read.await?;
        let own = used.remove(&run).unwrap_or_default();
        Ok(Rest {
            own: Some(own),
            under_way,
            others: used.into_values().fold(Usage::default(), Usage::plus),
        })
    }

    /// Leaves out of the interrupts that are repeated those that are not open any more: the answer to one may have come
    /// while the run was at work, and be that of the next run.
    async fn without_resolved(&self, mut notes: Vec<PendingWrite>) -> DbResult<Vec<PendingWrite>> {
        let thread = self.run_context.run.thread;
        let read = || {
            let db = &self.run_context.core.db;
            db.read(move |tx| Box::pin(interrupts::pending(tx, thread)))
        };
        let open = retry_until_available(self.run_context.run.id, read).await?;
        notes.retain_mut(|note| match note {
            PendingWrite::Repeated { interrupts, .. } => {
                interrupts.retain(|asked| open.iter().any(|record| record.interrupt.id == asked.id));
                !interrupts.is_empty()
            }
            PendingWrite::Entry { .. } | PendingWrite::Fact(_) | PendingWrite::Items(_) | PendingWrite::Left(..) => {
                true
            }
        });
        Ok(notes)
    }

    fn interrupt_record(&self, interrupt: &Interrupt, at: Timestamp, seq: i64) -> InterruptRecord {
        InterruptRecord {
            seq,
            ordinal: 0,
            interrupt: interrupt.clone(),
            thread: self.run_context.run.thread,
            run: self.run_context.run.id,
            lane: self.origin.lane,
            agent: self.origin.agent.clone(),
            path: self.origin.path.clone(),
            task_call_id: self.origin.cause.clone(),
            status: InterruptState::Pending,
            resolution: None,
            resumed_by: None,
            created_at: at,
            resolved_at: None,
        }
    }

    /// Returns the report for webhooks about this end of the run of the main agent.
    fn report(&self, machine: &Machine, status: RunStatus, error: Option<&Failure>, at: Timestamp) -> Option<Delivery> {
        let run = &self.run_context.run;
        if self.origin.lane != Lane::Main || run.request.webhook().is_none() {
            return None;
        }
        let run = Run {
            status,
            error: error.cloned(),
            updated_at: at,
            ..run.clone()
        };
        let values = machine.state.values();
        let report = Report {
            run: &run,
            began: Some(self.began),
            ended: at,
            values,
        };
        let RunContext { core, ownership, .. } = &*self.run_context;
        core.webhooks.delivery(&report, ownership)
    }

    /// Counts a commit and its events in the metrics and the log.
    fn count(&self, events: &[Arc<Event>], begun: Instant) {
        self.run_context.core.metrics.work().committed(begun.elapsed());
        self.count_events(events);
    }

    fn count_events(&self, events: &[Arc<Event>]) {
        let work = self.run_context.core.metrics.work();
        let age = self.run_context.core.clock.now().since(self.began);
        events.iter().for_each(|event| work.record_event(event, age));
        let main = &self.run_context.run;
        events
            .iter()
            .for_each(|event| log_lines::agent_started(event, self.run, main));
        let ends = events.iter().filter_map(|event| log_lines::finished_run(event, age));
        ends.for_each(|end| match self.origin.lane {
            Lane::Main => log_lines::run_ended(main, &end),
            Lane::Child(subagent) => log_lines::subagent_ended(subagent, &self.origin, main, &end),
        });
    }

    /// Stores writes like [`Journal::commit`], and these new child runs with their starts. Returns false if one of the child runs
    /// exists: then nothing is stored.
    async fn commit_with(
        &self,
        machine: &Machine,
        notes: Vec<PendingWrite>,
        children: &[UnstoredChild],
    ) -> Result<bool, ExitReason> {
        let ends = notes
            .iter()
            .any(|note| matches!(note, PendingWrite::Fact(Fact::Ended { .. })));
        let fault = |error: DbError| {
            self.run_context.core.metrics.work().commit_failed("database");
            exit_reason_of(self.run_context.run.id, &error)
        };
        let rest = match ends {
            true => Some(
                retry_until_available(self.run_context.run.id, || self.rest())
                    .await
                    .map_err(fault)?,
            ),
            false => None,
        };
        let repeats = |note: &PendingWrite| matches!(note, PendingWrite::Repeated { .. });
        let notes = match notes.iter().any(repeats) {
            true => self.without_resolved(notes).await.map_err(fault)?,
            false => notes,
        };
        let writes = SplitWrites::of(notes);
        let starts = children.iter().map(UnstoredChild::count).sum::<usize>();
        let first = self.run_context.log.reserve(writes.events.len() + starts);
        let segment = *self.segment.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = self.build_step(machine, writes, rest, first);
        for child in children {
            let new = child.build(batch.numbers().end);
            batch.children.push(new);
        }
        let span = self.begin_span(&batch);
        let begun = Instant::now();
        let stored = match self.store(batch).await {
            Err(DbError::Conflict(_)) if !children.is_empty() => {
                self.forget_step(segment);
                return Ok(false);
            }
            stored => stored.map_err(fault)?,
        };
        let Some(stored) = stored else {
            self.run_context.core.metrics.work().commit_failed("lease");
            return Err(ExitReason::LeaseLost);
        };
        self.trace.end(span);
        self.settle_segment(first, &stored);
        if let Some(end) = &stored.ended {
            self.record_span(end, machine);
        }
        stored.asked.iter().for_each(log_lines::interrupt_raised);
        if stored.asked.iter().any(|asked| asked.expires_at().is_some()) {
            self.run_context.core.jobs.discover();
        }
        self.count(&stored.events, begun);
        for (child, new) in children.iter().zip(&stored.children) {
            if let Some(start) = &new.first {
                child.journal.settle_segment(start.first - stored.first + first, start);
                child.journal.count_events(&start.events);
            }
        }
        let main_ended = self.origin.lane == Lane::Main && stored.ended.is_some();
        if let (true, Some(head)) = (main_ended, machine.head) {
            self.run_context.core.db.states().put_end(
                self.run_context.run.thread,
                head,
                Arc::new(machine.state.clone()),
            );
        }
        let starts = stored.children.into_iter().filter_map(|child| child.first);
        let events = stored.events.into_iter().chain(starts.flat_map(|start| start.events));
        self.run_context.log.publish(events);
        if stored.report.is_some() {
            self.run_context.core.jobs.wake();
        }
        Ok(true)
    }

    /// Undoes the preparation of a step that was not stored. `segment` is the one that the next checkpoint continued before.
    fn forget_step(&self, segment: Option<i64>) {
        *self.segment.lock().unwrap_or_else(PoisonError::into_inner) = segment;
        // The next step stores the usage again.
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = Usage::default();
    }

    /// Returns a child run that is about to be stored, or was stored just now.
    fn unstored_child(
        &self,
        prepared: PreparedChild,
        order: DelegatedTask,
        at_work: AtWork,
        start: Option<ChildStart>,
    ) -> UnstoredChild {
        let run = &prepared.run;
        let stop = at_work.stop().clone();
        let meter = Arc::new(Meter::new(Usage::default(), run.created_at));
        let journal = self.child_journal(run, None, at_work, &meter);
        // If it is never stored, nothing of it ends.
        journal.ended.store(true, Ordering::Relaxed);
        UnstoredChild {
            prepared: Arc::new(prepared),
            order,
            stop,
            meter,
            journal,
            start,
        }
    }

    /// Returns a child run that was stored just now.
    async fn new_child(&self, child: UnstoredChild) -> Result<Child, ExitReason> {
        let UnstoredChild {
            prepared,
            order,
            stop,
            meter,
            journal,
            start,
        } = child;
        journal.ended.store(false, Ordering::Relaxed);
        let known = self.registered_agent(&prepared.run).await?;
        let is_begun = start.is_some();
        let (machine, input) = match start {
            Some(start) => (start.machine, Some(start.input)),
            None => (Machine::default(), None),
        };
        Ok(Child {
            id: prepared.run.id,
            machine,
            order,
            stop,
            meter,
            known,
            input,
            is_begun,
            journal: Box::new(journal),
        })
    }

    /// Writes a batch, which may be stored already under one of the numbers that it had `before`.
    async fn write(&self, batch: Arc<CommitBatch>, before: Vec<i64>) -> DbResult<CommitOutcome> {
        let written = self.write_once(Arc::clone(&batch), before.clone()).await;
        // Either the row of the run is not as this process left it, or the thread may have queued messages. Nothing of the first
        // try is stored, and no other agent of a run that ends stores anything, so the numbers stay.
        let looking = match (&written, self.origin.lane) {
            (Err(DbError::NoRow), Lane::Main) => batch.looking_for_messages(),
            (Ok(_) | Err(_), Lane::Main | Lane::Child(_)) => None,
        };
        let written = match looking {
            Some(batch) => self.write_once(Arc::new(batch), before).await,
            None => written,
        };
        match written {
            // The row of the run is not as this process left it.
            Err(DbError::NoRow) => Ok(CommitOutcome::Lost),
            written => written,
        }
    }

    async fn write_once(&self, batch: Arc<CommitBatch>, before: Vec<i64>) -> DbResult<CommitOutcome> {
        let run_context = Arc::clone(&self.run_context);
        let lane = self.origin.lane;
        let ends = lane == Lane::Main && batch.ended.is_some();
        // This process begins no run any more, so the others begin the next one of the thread.
        let stops = self.run_context.core.shutdown.soft().is_cancelled();
        let turn = self.run_context.turns.next_turn();
        let write = self.run_context.core.db.write(move |tx| {
            Box::pin(async move {
                let written = write_batch(tx, &run_context, lane, &batch, turn, &before).await?;
                if matches!(written, CommitOutcome::Now) && run_context.has_company && ends {
                    db::notifications::notify(tx, db::Notification::Ended(run_context.run.thread)).await?;
                    if stops {
                        db::notifications::notify(tx, db::Notification::Queue).await?;
                    }
                }
                Ok(written)
            })
        });
        write.await
    }

    /// Stores a batch. While the database is unavailable the write is retried, since the work cannot be repeated.
    /// Returns the stored batch, or none if the lease is lost.
    ///
    /// Each try has new numbers. Other agents store theirs in the meantime, and readers in other processes take
    /// everything below the highest number as complete. A try without a known outcome may have succeeded, so the next
    /// try first looks for the batch.
    async fn store(&self, batch: CommitBatch) -> DbResult<Option<CommitBatch>> {
        let mut tried = vec![];
        let mut pauses = WHILE_UNAVAILABLE.pauses_with_jitter();
        let mut batch = Arc::new(batch);
        let outcome = loop {
            let before = tried
                .iter()
                .filter(|_| batch.total() > 0)
                .map(|range: &Range<i64>| range.start);
            let error = match self.write(Arc::clone(&batch), before.collect()).await {
                Ok(CommitOutcome::Now) => break Ok(Some(Arc::unwrap_or_clone(batch))),
                Ok(CommitOutcome::Before(first)) => {
                    tried.push(batch.numbers());
                    tried.retain(|range| range.start != first);
                    break Ok(Some(batch.renumbered(first)));
                }
                Ok(CommitOutcome::Lost) => {
                    tried.push(batch.numbers());
                    break Ok(None);
                }
                Err(error) => error,
            };
            tried.push(batch.numbers());
            let Some(pause) = pauses.next().filter(|_| error.is_transient()) else {
                break Err(error);
            };
            warn_of!(error, run = %self.run_context.run.id, "a step cannot be stored yet");
            tokio::time::sleep(pause).await;
            batch = Arc::new(batch.renumbered(self.run_context.log.reserve(batch.total())));
        };
        if matches!(outcome, Ok(Some(_))) {
            self.run_context.has_first_seq.store(true, Ordering::Relaxed);
        }
        for numbers in tried {
            self.run_context
                .log
                .abandon(numbers.start, usize::try_from(numbers.end - numbers.start).unwrap_or(0));
        }
        outcome
    }

    /// Begins the span of a commit.
    fn begin_span(&self, batch: &CommitBatch) -> Option<SpanData> {
        let mut span = begin_commit(&self.trace, &self.run_context.core)?;
        let size = batch.count + batch.items.len() + batch.asked.len();
        span.set("db.operation.batch.size", size);
        Some(span)
    }

    fn traced_agent(&self) -> TracedAgent<'_> {
        TracedAgent {
            context: &self.run_context,
            trace: &self.trace,
            origin: &self.origin,
            run: self.run,
            created: self.created,
        }
    }

    /// Records the span of the agent, whose end is stored.
    fn record_span(&self, end: &RunEnd, machine: &Machine) {
        self.ended.store(true, Ordering::Relaxed);
        let end = AgentEnd {
            status: end.status,
            error: end.error.as_ref(),
            waits: end.waits,
        };
        self.traced_agent().record(&end, Some(machine));
    }

    /// Records the span of a run that was cancelled and undone.
    pub(super) fn record_rollback(&self) {
        self.record_cancellation();
    }

    fn record_cancellation(&self) {
        let failure = Failure::cancelled();
        let end = AgentEnd {
            status: RunStatus::Interrupted,
            error: Some(&failure),
            waits: false,
        };
        self.traced_agent().record(&end, None);
    }

    /// Continues the history in the segment that was stored.
    fn settle_segment(&self, first: i64, stored: &CommitBatch) {
        let mut segment = self.segment.lock().unwrap_or_else(PoisonError::into_inner);
        let count = stored.numbers().end - stored.first;
        if let Some(number) = segment
            .as_mut()
            .filter(|number| (first..first + count).contains(*number))
        {
            *number += stored.first - first;
        }
    }
}

impl Drop for LaneJournal {
    /// A subagent that is cancelled together with its caller stores no end of its own.
    fn drop(&mut self) {
        let is_cut_off = self.created.is_some() && !self.ended.load(Ordering::Relaxed) && self.stop.is_cancelled();
        if is_cut_off && !self.run_context.core.shutdown.soft().is_cancelled() {
            self.record_cancellation();
        }
    }
}

/// The stored usage of a run and of the runs below it.
#[derive(Clone, Copy, Default)]
struct Rest {
    own: Option<Usage>,
    others: Usage,
    /// The subagents that wait.
    under_way: u64,
}

/// The request of a run for a new child run, with what is stored in the same transaction.
struct ChildRequest {
    new_run: NewChildRun,
    /// The newest checkpoint of the parent, with the position to store.
    head: Option<(CheckpointId, Position)>,
    parent: RunId,
    /// The usage of the parent, if it is to be stored.
    used: Option<Usage>,
    at: Timestamp,
}

impl ChildRequest {
    /// Admits the child run and stores the rest. None if another process holds the lease of the run.
    async fn admit(&self, tx: &mut Tx<'_>, run_context: &RunContext) -> DbResult<Option<AdmittedChild>> {
        if !run_context.holds_lease(tx, self.at).await? {
            return Ok(None);
        }
        let admission = child::admit(tx, run_context, &self.new_run, self.at).await?;
        if let (AdmittedChild::Admitted(_), Some((head, position))) = (&admission, &self.head) {
            let root = &run_context.run;
            db::checkpoints::set_position(tx, root.thread, *head, position, root.id).await?;
        }
        if let Some(used) = &self.used {
            let growth = quotas::count_growth(tx, run_context, self.parent, used).await?;
            db::runs::set_usage(tx, self.parent, used, run_context.run.id).await?;
            quotas::charge(tx, run_context, growth, self.at).await?;
        }
        Ok(Some(admission))
    }
}

/// A child run that is about to be stored, or was stored just now.
struct UnstoredChild {
    prepared: Arc<PreparedChild>,
    order: DelegatedTask,
    stop: CancellationToken,
    meter: Arc<Meter>,
    journal: LaneJournal,
    /// The start that is stored with it.
    start: Option<ChildStart>,
}

impl UnstoredChild {
    /// Returns the number of events of its start.
    fn count(&self) -> usize {
        self.start.as_ref().map_or(0, |start| start.pending.len())
    }

    /// Builds its part of a batch, with numbers from `first` on.
    fn build(&self, first: i64) -> NewChild {
        let start = self.start.as_ref().map(|start| {
            let writes = SplitWrites::of(start.pending.clone());
            self.journal.build_step(&start.machine, writes, None, first)
        });
        NewChild {
            prepared: Arc::clone(&self.prepared),
            first: start,
        }
    }
}

/// A child run as it is stored.
struct StoredChild {
    run: Run,
    /// The registered agent of the run, which is looked up after the run was read.
    known: Option<Arc<RegisteredAgent>>,
    machine: Machine,
    segment: Option<i64>,
    input: Option<Update>,
    is_to_stop: bool,
    used: Usage,
}

impl StoredChild {
    /// Reads a child run of a thread.
    async fn find(tx: &mut Tx<'_>, thread: ThreadId, child: RunId) -> DbResult<Option<Self>> {
        let Some(run) = db::runs::get_by_id(tx, child).await? else {
            return Ok(None);
        };
        let lane = Lane::Child(child);
        let (machine, segment) = db::checkpoints::machine(tx, thread, lane).await?;
        let input = db::checkpoints::input_of(tx, thread, lane).await?;
        Ok(Some(Self {
            run,
            known: None,
            machine,
            segment,
            input,
            is_to_stop: db::runs::is_to_stop(tx, child).await?,
            used: db::runs::usage(tx, child).await?,
        }))
    }
}

/// Pending writes by kind.
#[derive(Default)]
struct SplitWrites {
    /// The writes that are events of the thread.
    events: Vec<PendingWrite>,
    items: Vec<ItemChange>,
    left: Vec<(CheckpointId, Position)>,
}

impl SplitWrites {
    fn of(notes: Vec<PendingWrite>) -> Self {
        let mut split = Self::default();
        for note in notes {
            match note {
                PendingWrite::Items(changes) => split.items.extend(changes),
                PendingWrite::Left(checkpoint, position) => split.left.push((checkpoint, position)),
                PendingWrite::Entry { .. } | PendingWrite::Fact(_) | PendingWrite::Repeated { .. } => {
                    split.events.push(note);
                }
            }
        }
        split
    }
}

impl Journal for LaneJournal {
    fn commit<'a>(&'a self, machine: &'a Machine, notes: Vec<PendingWrite>) -> BoxFuture<'a, Result<(), ExitReason>> {
        Box::pin(async move { self.commit_with(machine, notes, &[]).await.map(drop) })
    }

    fn publish(&self, delta: Delta) {
        self.run_context.core.metrics.work().record_delta(&self.origin, &delta);
        self.publish_event(EventBody::Delta(delta));
    }

    fn publish_start(&self, work: AgentWork) {
        self.publish_event(EventBody::Begun(work));
    }

    fn publish_output(&self, call: String, text: String) {
        self.publish_event(EventBody::Output { call, text });
    }

    fn child<'a>(
        &'a self,
        parent: &'a Machine,
        new_run: NewChildRun,
    ) -> BoxFuture<'a, Result<ChildAdmission, ExitReason>> {
        Box::pin(async move {
            let run_context = Arc::clone(&self.run_context);
            let now = self.run_context.core.clock.now();
            let head = parent.head.map(|head| (head, parent.position.clone()));
            let id = new_run.id;
            let order = new_run.order.clone();
            let at_work = self.register_child(id);
            let lane = self.run;
            let used = self.used(now);
            let request = Arc::new(ChildRequest {
                new_run,
                head,
                parent: lane,
                used,
                at: now,
            });
            // A repeated call finds the child that was admitted before, with the same time.
            let admit = || {
                let run_context = Arc::clone(&run_context);
                let request = Arc::clone(&request);
                let db = &self.run_context.core.db;
                db.write(move |tx| Box::pin(async move { request.admit(tx, &run_context).await }))
            };
            let admitted = retry_until_available(self.run_context.run.id, admit)
                .await
                .map_err(|error| exit_reason_of(self.run_context.run.id, &error))?
                .ok_or(ExitReason::LeaseLost)?;
            match admitted {
                AdmittedChild::Refused(reason) => Ok(ChildAdmission::Refused(reason)),
                AdmittedChild::Admitted(run) if run.created_at == now => {
                    let child = self.unstored_child(PreparedChild::of(*run), order, at_work, None);
                    let child = self.new_child(child).await?;
                    Ok(ChildAdmission::Admitted(Box::new(child)))
                }
                AdmittedChild::Admitted(_) => match self.find_child(id).await? {
                    Some((_, child)) => Ok(ChildAdmission::Admitted(Box::new(child))),
                    None => Err(ExitReason::Fault(Failure::new("RuntimeError", "a child run vanished"))),
                },
            }
        })
    }

    fn new_children<'a>(
        &'a self,
        parent: &'a Machine,
        pending: Vec<PendingWrite>,
        requests: Vec<(NewChildRun, Option<ChildStart>)>,
    ) -> BoxFuture<'a, Result<Option<Vec<Child>>, ExitReason>> {
        Box::pin(async move {
            // Lists of child runs are in the order of their times.
            let others = u64::try_from(requests.len().saturating_sub(1)).unwrap_or_default();
            let now = self.run_context.core.clock.now();
            let mut created_at = now.minus(Duration::from_micros(others));
            let mut unstored = Vec::with_capacity(requests.len());
            for (new_run, start) in requests {
                let Ok(prepared) = child::prepare(&self.run_context, &new_run, created_at) else {
                    return Ok(None);
                };
                created_at = created_at.plus(Duration::from_micros(1));
                let at_work = self.register_child(new_run.id);
                unstored.push(self.unstored_child(prepared, new_run.order, at_work, start));
            }
            if !self.commit_with(parent, pending, &unstored).await? {
                return Ok(None);
            }
            let mut children = Vec::with_capacity(unstored.len());
            for child in unstored {
                children.push(self.new_child(child).await?);
            }
            Ok(Some(children))
        })
    }

    fn run(&self) -> RunId {
        self.run
    }

    fn find_child<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<(Lineage, Child)>, ExitReason>> {
        Box::pin(async move {
            let at_work = self.register_child(child);
            let found = self.stored_child(child).await?;
            Ok(found.map(|stored| {
                let StoredChild {
                    run,
                    known,
                    mut machine,
                    segment,
                    input,
                    is_to_stop,
                    used,
                } = stored;
                // A failed run has notified its caller, or is about to, so it is not retried.
                let answered = machine.position.asked.iter().any(|asked| asked.answer.is_some());
                if answered && machine.position.failure.is_none() {
                    machine.prepare_for_run();
                }
                let stop = at_work.stop().clone();
                if is_to_stop {
                    stop.cancel();
                }
                let meter = Arc::new(Meter::new(used, self.run_context.core.clock.now()));
                let journal = Box::new(self.child_journal(&run, segment, at_work, &meter));
                let order = run.order().unwrap_or_default();
                (
                    run.lineage,
                    Child {
                        id: child,
                        machine,
                        order,
                        stop,
                        meter,
                        known,
                        input,
                        is_begun: false,
                        journal,
                    },
                )
            }))
        })
    }

    fn child_record<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<ChildRecord>, ExitReason>> {
        Box::pin(async move {
            let found = self.stored_child(child).await?;
            Ok(found.map(|stored| ChildRecord {
                order: stored.run.order().unwrap_or_default(),
                lineage: stored.run.lineage,
                machine: stored.machine,
                known: stored.known,
                input: stored.input,
            }))
        })
    }

    fn child_cancelled<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<(), ExitReason>> {
        Box::pin(async move {
            // The child is registered before the read: a cancellation right after the read would be missed otherwise.
            let waits = self.run_context.parked.register(child, CancellationToken::new());
            let read = || {
                self.run_context
                    .core
                    .db
                    .read(move |tx| Box::pin(db::runs::is_cancelled_while_waiting(tx, child)))
            };
            if !retry_until_available(self.run_context.run.id, read)
                .await
                .map_err(|error| exit_reason_of(self.run_context.run.id, &error))?
            {
                waits.stop().cancelled().await;
            }
            Ok(())
        })
    }

    fn waiting_agents<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Vec<WaitingAgent>, ExitReason>> {
        Box::pin(async move {
            let thread = self.run_context.run.thread;
            let read = || {
                let db = &self.run_context.core.db;
                db.read(move |tx| Box::pin(async move { interrupts::waiting_agents(tx, thread, child).await }))
            };
            retry_until_available(self.run_context.run.id, read)
                .await
                .map_err(|error| exit_reason_of(self.run_context.run.id, &error))
        })
    }
}
