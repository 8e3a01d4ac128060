//! The durable journal: one transaction per commit, fenced by the lease. The first commit of a run that begins where it is
//! admitted is a part of the admission.
//!
//! `batch` makes a batch of pending writes, `commit` is its transaction, and the journal repeats that until the database has
//! answered. `child_runs` are the journal's child runs, and `child` admits one of them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::children::RegisteredChild;
use super::retry::{WHILE_UNAVAILABLE, retry_until_available};
use super::run_context::{RunContext, exit_reason_of};
use super::{interrupts, log_lines};
use crate::agent::{
    Child, ChildAdmission, ChildRecord, ChildStart, ExitReason, Journal, NewChildRun, PendingWrite, WaitingAgent,
};
use crate::db::{self, DbError, DbResult, warn_of};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{AgentWork, Delta, Event, EventBody, Fact, Origin};
use crate::domain::id::RunId;
use crate::domain::limits::Usage;
use crate::domain::machine::Machine;
use crate::domain::run::Lineage;
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceScope;
use crate::tool::budget::{Budget, Meter};

mod batch;
mod child;
mod child_runs;
mod commit;
mod first_commit;
mod spans;

use batch::{CommitBatch, SplitWrites};
use child_runs::UnstoredChild;
use commit::{CommitOutcome, write_batch};

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
    /// True for a subagent in the tree of the run. One that an earlier run began, and that continues, is in the tree of that one.
    is_in_tree: bool,
    /// The time at which the run of a subagent was created; the main agent has none.
    created: Option<Timestamp>,
    /// True once the end of the agent is stored, and before its run is.
    ended: AtomicBool,
    /// Its entry among the subagents at work; the main agent has none.
    _at_work: Option<RegisteredChild>,
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
            is_in_tree: false,
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

    /// Removes interrupts that are no longer open from the interrupts that a step repeats. An answer for the next run may
    /// have come while this run was at work.
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
            if let Some(used) = stored.used.filter(|_| self.is_in_tree) {
                self.run_context.subagents_used.record_end(self.run, used);
            }
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

    /// Writes a batch. An earlier attempt may have stored the batch already; `before` has the numbers of these attempts.
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
        let _under_way = self.run_context.under_way.next_turn();
        let write = self.run_context.core.db.write(move |tx| {
            Box::pin(async move {
                let written = write_batch(tx, &run_context, lane, &batch, turn, &before).await?;
                if matches!(written, CommitOutcome::Now) && run_context.has_other_workers && ends {
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

impl Journal for LaneJournal {
    fn commit<'a>(&'a self, machine: &'a Machine, notes: Vec<PendingWrite>) -> BoxFuture<'a, Result<(), ExitReason>> {
        Box::pin(async move { self.commit_with(machine, notes, &[]).await.map(drop) })
    }

    fn wait_for_commits(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run_context.under_way.next_turn().wait().await })
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
        Box::pin(self.admit_child(parent, new_run))
    }

    fn new_children<'a>(
        &'a self,
        parent: &'a Machine,
        pending: Vec<PendingWrite>,
        requests: Vec<(NewChildRun, Option<ChildStart>)>,
    ) -> BoxFuture<'a, Result<Option<Vec<Child>>, ExitReason>> {
        Box::pin(self.admit_children(parent, pending, requests))
    }

    fn run(&self) -> RunId {
        self.run
    }

    fn find_child<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<(Lineage, Child)>, ExitReason>> {
        Box::pin(self.take_up_child(child))
    }

    fn child_record<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<ChildRecord>, ExitReason>> {
        Box::pin(self.read_child(child))
    }

    fn child_cancelled<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<(), ExitReason>> {
        Box::pin(self.wait_for_cancellation(child))
    }

    fn waiting_agents<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Vec<WaitingAgent>, ExitReason>> {
        Box::pin(self.read_waiting_agents(child))
    }
}
