//! The batch of a commit: pending writes with their numbers in the log, as one transaction stores them.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::LaneJournal;
use super::child::PreparedChild;
use crate::agent::PendingWrite;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult};
use crate::domain::checkpoint::{Entry, Lane};
use crate::domain::delivery::Delivery;
use crate::domain::event::{Event, EventBody, Fact};
use crate::domain::id::CheckpointId;
use crate::domain::interrupt::Interrupt;
use crate::domain::item::ItemChange;
use crate::domain::limits::{Totals, Usage};
use crate::domain::machine::{Failure, Machine, Position};
use crate::domain::run::{Run, RunStatus};
use crate::domain::time::Timestamp;
use crate::runtime::run_context::RunContext;
use crate::runtime::webhooks::Report;
use crate::tool::budget::{Budget, Meter};

/// The writes of one transaction.
#[derive(Clone)]
pub(super) struct CommitBatch {
    pub(super) first: i64,
    pub(super) count: usize,
    pub(super) at: Timestamp,
    /// New child runs.
    pub(super) children: Vec<NewChild>,
    pub(super) entries: Vec<PlacedStep>,
    pub(super) facts: Vec<PlacedFact>,
    pub(super) items: Vec<ItemChange>,
    /// The positions of older checkpoints whose steps were carried on.
    pub(super) left: Vec<(CheckpointId, Position)>,
    pub(super) asked: Vec<InterruptRecord>,
    pub(super) head: Option<(CheckpointId, Position)>,
    pub(super) ended: Option<RunEnd>,
    /// The report for webhooks.
    pub(super) report: Option<Delivery>,
    /// The usage of the run, if the batch stores it.
    pub(super) used: Option<Usage>,
    /// The usage besides that of the meter, when a run ends.
    pub(super) rest: Option<Rest>,
    pub(super) events: Vec<Arc<Event>>,
}

/// A new child run of a batch, with its first writes if it begins at once. Their numbers follow those of the batch.
#[derive(Clone)]
pub(super) struct NewChild {
    pub(super) prepared: Arc<PreparedChild>,
    pub(super) first: Option<CommitBatch>,
}

/// The end of a run.
#[derive(Clone)]
pub(super) struct RunEnd {
    pub(super) status: RunStatus,
    pub(super) error: Option<Failure>,
    /// True if the run ends waiting, for answers or at a breakpoint.
    pub(super) waits: bool,
    /// True if queued messages of the thread are looked for, which may have to be held or let go.
    pub(super) looks_for_messages: bool,
}

/// A step with its number and segment.
#[derive(Clone)]
pub(super) struct PlacedStep {
    pub(super) seq: i64,
    pub(super) segment: i64,
    pub(super) entry: Arc<Entry>,
    pub(super) position: Position,
}

/// An event that is no step, with its number and the history that it belongs to: that of a subagent if it repeats what
/// the subagent has asked.
#[derive(Clone)]
pub(super) struct PlacedFact {
    pub(super) seq: i64,
    pub(super) lane: Lane,
    pub(super) fact: Fact,
}

/// The stored usage of a run and of the runs below it.
#[derive(Clone, Copy, Default)]
pub(super) struct Rest {
    pub(super) own: Option<Usage>,
    pub(super) others: Usage,
    /// The subagents that wait.
    pub(super) under_way: u64,
}

impl CommitBatch {
    /// Returns the number of the batch's events, with those of new child runs.
    pub(super) fn total(&self) -> usize {
        let firsts = self.children.iter().filter_map(|child| child.first.as_ref());
        self.count + firsts.map(Self::total).sum::<usize>()
    }

    /// Returns the numbers of the batch's events, with those of new child runs.
    pub(super) fn numbers(&self) -> Range<i64> {
        self.first
            ..self
                .first
                .saturating_add(i64::try_from(self.total()).unwrap_or(i64::MAX))
    }

    /// Returns the same batch with numbers from `first` on.
    pub(super) fn renumbered(&self, first: i64) -> Self {
        let own = self.numbers();
        let moved = |seq: i64| {
            if own.contains(&seq) {
                seq - own.start + first
            } else {
                seq
            }
        };
        let mut new = Self { first, ..self.clone() };
        for laid in &mut new.entries {
            laid.seq = moved(laid.seq);
            laid.segment = moved(laid.segment);
        }
        for child in &mut new.children {
            child.first = child.first.take().map(|batch| batch.renumbered(moved(batch.first)));
        }
        new.facts.iter_mut().for_each(|placed| placed.seq = moved(placed.seq));
        new.asked.iter_mut().for_each(|asked| asked.seq = moved(asked.seq));
        for event in &mut new.events {
            *event = Arc::new(Event {
                seq: moved(event.seq),
                ..Event::clone(event)
            });
        }
        new
    }

    /// Returns the same batch, whose end looks for queued messages; none if it does that already, or has no end.
    pub(super) fn looking_for_messages(&self) -> Option<Self> {
        let end = self.ended.as_ref().filter(|end| !end.looks_for_messages)?;
        let ended = Some(RunEnd {
            looks_for_messages: true,
            ..end.clone()
        });
        Some(Self { ended, ..self.clone() })
    }

    /// Returns whether the batch is progress: a step was made, or a call answered. A restart is no progress.
    pub(super) fn makes_progress(&self) -> bool {
        let is_answer = |placed: &PlacedFact| matches!(placed.fact, Fact::Answered { .. });
        !self.entries.is_empty() || self.facts.iter().any(is_answer)
    }

    /// Returns whether an agent begins or continues with the batch.
    pub(super) fn begins(&self) -> bool {
        let is_start = |placed: &PlacedFact| matches!(placed.fact, Fact::Started { .. });
        self.facts.iter().any(is_start)
    }
}

/// Pending writes by kind.
#[derive(Default)]
pub(super) struct SplitWrites {
    /// The writes that are events of the thread.
    pub(super) events: Vec<PendingWrite>,
    items: Vec<ItemChange>,
    left: Vec<(CheckpointId, Position)>,
}

impl SplitWrites {
    pub(super) fn of(notes: Vec<PendingWrite>) -> Self {
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

impl LaneJournal {
    /// Numbers the pending writes from `first` on and builds the batch.
    pub(super) fn build_step(
        &self,
        machine: &Machine,
        writes: SplitWrites,
        rest: Option<Rest>,
        first: i64,
    ) -> CommitBatch {
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
    pub(super) fn used(&self, at: Timestamp) -> Option<Usage> {
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
    pub(super) async fn rest(&self) -> DbResult<Rest> {
        let run = self.run;
        let now = self.run_context.core.clock.now();
        let whole = self.budget.as_ref().map(Budget::whole);
        let under_way = whole.map_or(0, Meter::under_way);
        let others = match self.origin.lane {
            Lane::Main => whole.and_then(|whole| self.run_context.subagents_used.of_all(whole.usage(now).children)),
            Lane::Child(_) => Some(Usage::default()),
        };
        if let Some(others) = others {
            return Ok(Rest {
                own: None,
                others,
                under_way,
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
}
