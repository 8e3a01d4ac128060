//! The first step of a run that begins where it is admitted: its start and its input.
//!
//! The transaction that admits the run stores it, too, so it needs none of its own. Other writes wait for that transaction,
//! so this is for runs whose first step takes nothing but what is in memory. All others begin with [`super::open`].

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::apply_request::give_input;
use super::load_state::{LoadedMachine, is_unreadable};
use super::{next_seq, plan_of, started};
use crate::agent::PendingWrite;
use crate::agent::assemble::RegisteredAgent;
use crate::db::checkpoints::{LaterLogEnd, LogEnd};
use crate::db::{self, DbResult, Tx};
use crate::domain::machine::{Machine, Phase};
use crate::runtime::journal::{FirstCommit, LaneJournal};
use crate::runtime::run_context::RunContext;

/// The first step of a run, as a part of the transaction that admits it. Readers see nothing of it before
/// [`FirstStep::publish`].
pub(in crate::runtime) struct FirstStep {
    /// The context of the run.
    pub(in crate::runtime) run_context: Arc<RunContext>,
    begun: BegunRun,
    commit: FirstCommit,
}

/// A run whose first step is stored.
pub(in crate::runtime) struct BegunRun {
    pub(super) known: Arc<RegisteredAgent>,
    pub(super) loaded: LoadedMachine,
}

/// The first step of a run that is still to be stored, after the run itself.
pub(in crate::runtime) struct PlannedStep {
    run_context: Arc<RunContext>,
    begun: BegunRun,
    notes: Vec<PendingWrite>,
    /// The number of its first event in the log of the thread.
    pub(in crate::runtime) first: i64,
}

/// The place in the log of its thread after which a run goes on.
struct StartingPoint {
    loaded: LoadedMachine,
    max_seq: i64,
}

impl FirstStep {
    /// Makes the step visible, once the transaction is durable.
    pub(in crate::runtime) fn publish(self) -> BegunRun {
        self.commit.publish();
        self.begun
    }
}

impl PlannedStep {
    /// Plans the first step of a run for the transaction that admits it. None if the agent or the state of the thread is not
    /// in memory, or if the input abandons a step of the thread. `log_end` is that of the thread, if it is to be read already.
    pub(in crate::runtime) async fn plan(
        tx: &mut Tx<'_>,
        run_context: Arc<RunContext>,
        is_thread_new: bool,
        log_end: Option<LaterLogEnd>,
    ) -> DbResult<Option<Self>> {
        let run = &run_context.run;
        let registry = &run_context.core.registry;
        let Some(input) = &run.request.input else {
            return Ok(None);
        };
        let Some(known) = registry.in_memory(run, &run_context.ownership.tenant) else {
            return Ok(None);
        };
        let point = match (is_thread_new, log_end) {
            (true, _) => Some(StartingPoint::of_empty(false)),
            (false, Some(log_end)) => StartingPoint::find(tx, log_end).await?,
            (false, None) => {
                let log_end = db::checkpoints::log_end_later(tx, run.thread).await?;
                StartingPoint::find(tx, log_end).await?
            }
        };
        let Some(StartingPoint { mut loaded, max_seq }) = point else {
            return Ok(None);
        };
        let plan = plan_of(run, &known);
        let mut notes = vec![started(run, &loaded.machine, false)];
        notes.extend(give_input(&mut loaded.machine, &plan, input));
        let first = next_seq(run, max_seq);
        Ok(Some(Self {
            run_context,
            begun: BegunRun { known, loaded },
            notes,
            first,
        }))
    }

    /// Stores the step of a run that the transaction has stored with the number [`Self::first`].
    pub(in crate::runtime) async fn store(self, tx: &mut Tx<'_>) -> DbResult<FirstStep> {
        let Self {
            run_context,
            mut begun,
            notes,
            first,
        } = self;
        let loaded = &mut begun.loaded;
        let stop = CancellationToken::new();
        let journal = LaneJournal::main(Arc::clone(&run_context), loaded.segment, stop, None);
        let commit = Box::pin(journal.commit_first(tx, &loaded.machine, notes, first)).await?;
        loaded.segment = commit.segment;
        Ok(FirstStep {
            run_context,
            begun,
            commit,
        })
    }
}

impl StartingPoint {
    /// Returns the point in an empty log.
    fn of_empty(remembers: bool) -> Self {
        let loaded = LoadedMachine {
            machine: Machine::default(),
            segment: None,
            remembers,
        };
        Self { loaded, max_seq: 0 }
    }

    /// Returns the point at the end of a log. None if a step waits there, or if the state is not in memory.
    async fn find(tx: &mut Tx<'_>, log_end: LaterLogEnd) -> DbResult<Option<Self>> {
        let LogEnd { summary, newest } = log_end.read(tx).await?;
        if summary.max_seq == 0 {
            return Ok(Some(Self::of_empty(summary.has_decisions)));
        }
        let found = match newest {
            Ok(newest) => db::checkpoints::machine_in_memory(tx, newest),
            // The driver of the run meets the error again, and ends the run or gives it back. The request is not
            // refused.
            Err(error) if is_unreadable(&error) => None,
            Err(error) => return Err(error),
        };
        let is_between_turns = |machine: &Machine| matches!(machine.position.phase, Phase::Start | Phase::Ended);
        let Some((machine, segment)) = found.filter(|(machine, _)| is_between_turns(machine)) else {
            return Ok(None);
        };
        let loaded = LoadedMachine {
            machine,
            segment,
            remembers: summary.has_decisions,
        };
        let max_seq = summary.max_seq;
        Ok(Some(Self { loaded, max_seq }))
    }
}
