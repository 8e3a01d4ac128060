//! Preparation of a run: with new input, with answers, from an older checkpoint, or where a crash left it.
//!
//! A run that has waited in the queue may not begin any more if there is an [`obstacle`]. Otherwise the answers that it brings
//! are delivered ([`continued_work`]), the state of the thread is read ([`load_state`]), the remaining [`budget`] is opened, and
//! what it requests is applied ([`apply_request`]). [`first_step`] does the same where a run is admitted, if it is simple.

use std::sync::Arc;

use super::remote_runs::insert_remote_run_of_main;
use super::run_context::RunContext;
use crate::agent::PendingWrite;
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult};
use crate::domain::event::Fact;
use crate::domain::machine::{Machine, Plan};
use crate::domain::run::{Run, RunOrigin};
use crate::tool::budget::Budget;

mod apply_request;
mod budget;
mod continued_work;
mod earlier_runs;
mod first_step;
mod load_state;
mod obstacle;

use budget::remaining_budget;
use continued_work::{continue_work, continues_work};
use earlier_runs::EarlierRuns;
use load_state::{Found, LoadedMachine, load};

pub(super) use continued_work::{ContinuedWork, continue_at_once};
pub(super) use earlier_runs::usage_before;
pub(super) use first_step::{BegunRun, FirstStep, PlannedStep};
pub(super) use obstacle::find_obstacle;

/// A machine that is ready to be driven.
pub(super) struct ReadyMachine {
    /// The agent that is driven.
    pub(super) known: Arc<RegisteredAgent>,
    pub(super) machine: Machine,
    /// The writes that led to the machine and are still to be stored.
    pub(super) notes: Vec<PendingWrite>,
    /// The segment of history that the next checkpoint continues.
    pub(super) segment: Option<i64>,
    pub(super) plan: Plan,
    /// True if there is nothing to drive: the request only writes to the state.
    pub(super) only_notes: bool,
    /// The remaining budget.
    pub(super) budget: Budget,
    /// True if decisions are remembered for the thread.
    pub(super) remembers: bool,
    /// The origin of the work of the run.
    pub(super) origin: RunOrigin,
}

/// The gap in the numbers of the log after a crash. Pieces of answers that were streamed but never stored cannot share
/// a number with anything later.
pub(super) const CRASH_GAP: i64 = 1 << 20;

/// Loads the machine of a run, applies the request to it and opens the log. `continued` is the work that the run continues, if
/// what the run brings was delivered when it was admitted.
pub(super) async fn open(
    run_context: &RunContext,
    known: Arc<RegisteredAgent>,
    continued: Option<Box<ContinuedWork>>,
) -> DbResult<ReadyMachine> {
    let run = &run_context.run;
    let goes_on = (run.attempt > 1 || continues_work(&run.request)) && run.request.compaction.is_none();
    let ContinuedWork { branch, found, earlier } = match continued {
        Some(continued) => *continued,
        None if goes_on => continue_work(run_context).await?,
        None => ContinuedWork::default(),
    };
    let found = match found {
        Some(found) => found,
        None => load(run_context, run, branch).await?,
    };
    let Found {
        loaded,
        own,
        start,
        input,
        max_seq,
    } = found;
    run_context.log.open(next_seq(run, max_seq));
    let resumed = own || loaded.machine.head.is_some() && continues_work(&run.request) && input.is_none();
    let notes = vec![started(run, &loaded.machine, resumed)];
    let mut ready = ReadyMachine::of(run_context, known, loaded, notes, earlier).await?;
    let is_begun = own || run.request.compaction.is_some();
    if !is_begun {
        ready.begin(run_context, &start, input).await?;
    }
    ready.note_sent_calls();
    Ok(ready)
}

/// Continues a run whose first step is stored.
pub(super) async fn go_on(run_context: &RunContext, begun: BegunRun) -> DbResult<ReadyMachine> {
    let BegunRun { known, loaded } = begun;
    ReadyMachine::of(run_context, known, loaded, vec![], None).await
}

/// Returns the write that a run starts at the checkpoint of its machine.
pub(super) fn started(run: &Run, machine: &Machine, resumed: bool) -> PendingWrite {
    PendingWrite::Fact(Fact::Started {
        base: machine.head,
        carried_from: machine.position.carried_from,
        attempt: run.attempt,
        resumed,
        calls: vec![],
    })
}

/// Returns the plan of an agent, with the step limit of a run.
fn plan_of(run: &Run, known: &RegisteredAgent) -> Plan {
    let plan = known.agent().plan.clone();
    Plan {
        step_limit: run.request.step_limit().unwrap_or(plan.step_limit),
        ..plan
    }
}

impl ReadyMachine {
    /// Opens the budget of a run whose machine is loaded. `notes` are the writes that are still to be stored. `earlier` are the
    /// runs that it continues, if they were read already.
    async fn of(
        run_context: &RunContext,
        known: Arc<RegisteredAgent>,
        loaded: LoadedMachine,
        notes: Vec<PendingWrite>,
        earlier: Option<EarlierRuns>,
    ) -> DbResult<Self> {
        let run = &run_context.run;
        let plan = plan_of(run, &known);
        let (budget, first) = remaining_budget(run_context, &known, earlier).await?;
        let origin = RunOrigin {
            first,
            hops: run.hops(),
        };
        insert_remote_run_of_main(run_context, &known, first).await?;
        let LoadedMachine {
            machine,
            segment,
            remembers,
        } = loaded;
        Ok(Self {
            known,
            machine,
            notes,
            segment,
            plan,
            only_notes: false,
            budget,
            remembers,
            origin,
        })
    }

    /// Adds the calls that a client has sent to the first write, that the run starts: streams show them from there.
    fn note_sent_calls(&mut self) {
        if let Some(PendingWrite::Fact(Fact::Started { calls, .. })) = self.notes.first_mut() {
            *calls = self.machine.calls_with_sent();
        }
    }
}

/// Opens the log for a run that ends before its agent could be loaded. Returns false if it is open already.
pub(super) async fn open_log(run_context: &RunContext) -> DbResult<bool> {
    if run_context.log.is_open() {
        return Ok(false);
    }
    let thread = run_context.run.thread;
    let max_seq = run_context
        .core
        .db
        .read(move |tx| Box::pin(db::checkpoints::max_seq(tx, thread)))
        .await?;
    run_context.log.open(next_seq(&run_context.run, max_seq));
    Ok(true)
}

fn next_seq(run: &Run, max_seq: i64) -> i64 {
    max_seq + if run.attempt > 1 { CRASH_GAP } else { 1 }
}
