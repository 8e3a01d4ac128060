//! A thread to which a client brings answers: its rows, which the transaction reads together that admits the run with the answers.

use std::collections::{BTreeMap, HashMap};

use super::branches::{NumberedCheckpoint, OpenInterrupts};
use crate::db::checkpoints::{Head, LaterLogEnd, LogEnd, LogSummary};
use crate::db::interrupts::{InterruptRecord, InterruptState, LaterInterrupts, LaterResumed};
use crate::db::runs::{LaterRunBefore, LaterUnreported, RunBefore, UsedAlone};
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, ThreadId};
use crate::domain::machine::Phase;

/// The rows of a thread, to be read later in the transaction.
pub(in crate::runtime) struct LaterAnsweredThread {
    thread: ThreadId,
    pending: LaterInterrupts,
    log_end: LaterLogEnd,
    before: LaterRunBefore,
    cancelled: LaterUnreported,
    resumed: LaterResumed,
}

impl LaterAnsweredThread {
    /// Begins to look for the rows of a thread. The transaction must change nothing of the thread before they are read. They are read
    /// together with other rows.
    pub(in crate::runtime) async fn begin(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Self> {
        let pending = Some(InterruptState::Pending);
        Ok(Self {
            thread,
            pending: db::interrupts::of_thread_later(tx, thread, pending).await?,
            log_end: db::checkpoints::log_end_later(tx, thread).await?,
            before: db::runs::find_before_later(tx, thread).await?,
            cancelled: db::runs::unreported_later(tx, thread).await?,
            resumed: db::interrupts::few_resumed_later(tx, thread).await?,
        })
    }

    /// Reads the rows. None if the newest checkpoint is corrupt.
    pub(in crate::runtime) async fn read(self, tx: &mut Tx<'_>) -> DbResult<Option<AnsweredThread>> {
        let Self {
            thread,
            pending,
            log_end,
            before,
            cancelled,
            resumed,
        } = self;
        // Before the position of the checkpoint, which gets their questions.
        let pending = pending.read(tx).await?;
        let LogEnd { summary, newest } = log_end.read(tx).await?;
        let newest = match newest {
            Ok(newest) => newest,
            Err(error) if error.is_corrupt() || matches!(error, DbError::Sealed(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let before = before.find(tx).await?;
        let used = before.as_ref().and_then(UsedRun::of);
        Ok(Some(AnsweredThread {
            before,
            open: OpenInterrupts {
                thread,
                pending,
                newest: newest.as_ref().map(NumberedCheckpoint::from),
            },
            waiting: Box::new(WaitingWork {
                summary,
                newest,
                cancelled,
                resumed: resumed.read(tx).await?,
                used,
            }),
        }))
    }
}

/// The rows of a thread.
pub(in crate::runtime) struct AnsweredThread {
    /// The run whose work the new one continues.
    pub(in crate::runtime) before: Option<RunBefore>,
    pub(in crate::runtime) open: OpenInterrupts,
    pub(in crate::runtime) waiting: Box<WaitingWork>,
}

/// The work that waits on a thread.
pub(in crate::runtime) struct WaitingWork {
    pub(super) summary: LogSummary,
    /// The newest checkpoint of the main agent.
    pub(super) newest: Option<Head>,
    /// The cancelled subagents whose callers may not know of it.
    pub(super) cancelled: LaterUnreported,
    /// The runs that brought answers before, each with the run that has asked; none if they are many.
    pub(super) resumed: Option<HashMap<RunId, RunId>>,
    /// The usage of the run before, if that has no runs below it.
    pub(super) used: Option<UsedRun>,
}

/// A run without runs below it, and its usage.
#[derive(Clone, Copy)]
pub(in crate::runtime) struct UsedRun {
    pub(in crate::runtime) run: RunId,
    pub(in crate::runtime) used: UsedAlone,
}

impl UsedRun {
    fn of(before: &RunBefore) -> Option<Self> {
        let run = before.run;
        before.used.map(|used| Self { run, used })
    }
}

impl WaitingWork {
    /// Returns the run that made the newest checkpoint; none if its work has ended, or a client made the checkpoint.
    pub(in crate::runtime) fn run(&self) -> Option<RunId> {
        let is_over = |head: &&Head| matches!(head.position.phase, Phase::Start | Phase::Ended);
        self.newest.as_ref().filter(|head| !is_over(head))?.run
    }
}

/// The work on a thread for which a client has brought answers, which are stored in the rows of the interrupts.
pub(in crate::runtime) struct AnsweredWork {
    pub(in crate::runtime) waiting: Box<WaitingWork>,
    pub(in crate::runtime) answered: AnsweredInterrupts,
}

/// The interrupts that a client has answered.
#[derive(Default)]
pub(in crate::runtime) struct AnsweredInterrupts {
    /// The histories of the agents that have raised them.
    pub(super) lanes: BTreeMap<InterruptId, Lane>,
    /// The last one.
    pub(super) last: Option<RaisedInterrupt>,
    /// True if decisions are remembered that came with the answers.
    pub(super) remembers: bool,
}

/// The place at which an interrupt was raised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RaisedInterrupt {
    /// The number of the interrupt among those of the thread.
    seq: i64,
    /// The run of the main agent during which it was raised.
    pub(super) run: RunId,
}

impl AnsweredInterrupts {
    /// Adds an interrupt.
    pub(super) fn add(&mut self, record: &InterruptRecord) {
        self.lanes.insert(record.interrupt.id.clone(), record.lane);
        let raised = RaisedInterrupt {
            seq: record.seq,
            run: record.run,
        };
        self.last = self.last.max(Some(raised));
    }
}
