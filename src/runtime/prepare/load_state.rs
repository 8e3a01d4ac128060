//! The state of the thread at which a run begins: its newest checkpoint, or an older one.

use crate::db::checkpoints::LogEnd;
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::id::{CheckpointId, RunId};
use crate::domain::machine::{Machine, Phase};
use crate::domain::run::Run;
use crate::domain::state::Update;
use crate::runtime::interrupts::DeliveredEnd;
use crate::runtime::run_context::RunContext;

/// A machine of a thread, with what the log says besides.
pub(super) struct LoadedMachine {
    pub(super) machine: Machine,
    /// The segment of history that the next checkpoint continues; none if it begins a new one.
    pub(super) segment: Option<i64>,
    /// True if decisions are remembered for the thread.
    pub(super) remembers: bool,
}

/// The state of the thread at which a run begins.
pub(super) struct Found {
    pub(super) loaded: LoadedMachine,
    /// True if the newest checkpoint is this run's own: the run was at work before.
    pub(super) own: bool,
    pub(super) start: StartingCheckpoint,
    /// The stored input of the turn, if the run begins at the checkpoint before an input and brings none itself.
    pub(super) input: Option<Update>,
    pub(super) max_seq: i64,
}

impl Found {
    /// Returns the state at the end of a log for run `run`, which brings answers, if that state is in memory.
    pub(super) fn in_memory(tx: &Tx<'_>, end: DeliveredEnd, run: RunId) -> Option<Self> {
        let DeliveredEnd { summary, newest } = end;
        let own = newest.run == Some(run);
        let (machine, segment) = db::checkpoints::machine_in_memory(tx, Some(newest))?;
        let loaded = LoadedMachine {
            machine,
            segment,
            remembers: summary.has_decisions,
        };
        Some(Self {
            loaded,
            own,
            start: StartingCheckpoint::Newest,
            input: None,
            max_seq: summary.max_seq,
        })
    }
}

/// The checkpoint at which a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartingCheckpoint {
    /// The newest one.
    Newest,
    /// An older one, whose step is run again.
    Older,
    /// An older one, whose step continues with the answers that the run brings.
    Branch(CheckpointId),
}

/// Reads the state of the thread at which the run begins. `branch` is the older checkpoint from which it continues with
/// answers, if it does.
pub(super) async fn load(run_context: &RunContext, run: &Run, branch: Option<CheckpointId>) -> DbResult<Found> {
    let thread = run.thread;
    let id = run.id;
    let from = run.request.checkpoint;
    let command = run.request.command.as_ref();
    let has_answers = command.is_some_and(|command| command.continuation.branch.is_some());
    let repeats = command.is_none() && run.request.input.is_none();
    run_context
        .core
        .db
        .read(move |tx| {
            Box::pin(async move {
                let log_end = db::checkpoints::log_end_later(tx, thread).await?;
                let LogEnd { summary: log, newest } = log_end.read(tx).await?;
                let newest = newest?;
                let own = newest.as_ref().is_some_and(|head| head.run == Some(id));
                // A run with answers begins where they wait.
                let older = match has_answers {
                    true => None,
                    false => from.filter(|from| !own && newest.as_ref().is_some_and(|head| head.id != *from)),
                };
                let branch = branch.filter(|_| !own);
                let start = match (branch, older) {
                    (Some(branch), _) => StartingCheckpoint::Branch(branch),
                    (None, Some(_)) => StartingCheckpoint::Older,
                    (None, None) => StartingCheckpoint::Newest,
                };
                let (machine, segment) = match (branch, older) {
                    (Some(branch), _) => (db::checkpoints::machine_as_left(tx, thread, branch).await?, None),
                    (None, Some(older)) => (db::checkpoints::machine_at(tx, thread, older).await?, None),
                    (None, None) => db::checkpoints::machine_of(tx, thread, newest).await?,
                };
                let input = match (&machine.position.phase, machine.head) {
                    (Phase::Start, Some(head)) if repeats => db::checkpoints::input_after(tx, thread, head).await?,
                    (_, _) => None,
                };
                let loaded = LoadedMachine {
                    machine,
                    segment,
                    remembers: log.has_decisions,
                };
                Ok(Found {
                    loaded,
                    own,
                    start,
                    input,
                    max_seq: log.max_seq,
                })
            })
        })
        .await
}

/// Returns whether an error is that something stored cannot be read.
pub(super) fn is_unreadable(error: &DbError) -> bool {
    error.is_corrupt() || matches!(error, DbError::Sealed(_))
}
