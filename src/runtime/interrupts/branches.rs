//! Interrupts of branches: a thread may be continued from an older checkpoint, and what waited on the branch that it left
//! waits on there.
//!
//! An answer goes to the branch on which the question was asked, and continues that branch: a client names the checkpoint,
//! or the interrupt. Answers without either are for what waits at the newest checkpoint, so that nobody approves a call
//! that the thread does not show. The row of an interrupt says whether it is open; a checkpoint says what waits at it.

use super::pending;
use super::positions::LanePositions;
use crate::db::checkpoints::{CheckpointSummary, Head, LaterSummary};
use crate::db::interrupts::{InterruptRecord, InterruptState, LaterInterrupts};
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::{CheckpointSource, Lane};
use crate::domain::id::{CheckpointId, InterruptId, StepBase, ThreadId};

/// The most checkpoints at which an interrupt of a branch is looked for.
const MOST_CARRIED: i64 = 64;

/// Returns the open interrupts that wait at a checkpoint of a thread, or at its newest one, in the order in which they
/// were raised.
pub(in crate::runtime) async fn open_at(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    checkpoint: Option<CheckpointId>,
) -> DbResult<Vec<InterruptRecord>> {
    let later = LaterOpen::begin(tx, thread).await?;
    Ok(later.read(tx).await?.at(tx, checkpoint).await?.open)
}

/// The open interrupts of a thread, to be read later in the transaction.
pub(in crate::runtime) struct LaterOpen {
    thread: ThreadId,
    pending: LaterInterrupts,
    newest: LaterSummary,
}

/// The open interrupts that wait at a checkpoint of a thread.
pub(super) struct OpenAt {
    /// The interrupts, in the order in which they were raised.
    pub(super) open: Vec<InterruptRecord>,
    /// The newest checkpoint of the thread, if there are any.
    pub(super) newest: Option<CheckpointId>,
}

impl LaterOpen {
    /// Begins to look for the open interrupts of a thread. The transaction must change nothing of the thread before they are
    /// read. They are read together with other rows.
    pub(in crate::runtime) async fn begin(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Self> {
        let status = Some(InterruptState::Pending);
        Ok(Self {
            thread,
            pending: db::interrupts::of_thread_later(tx, thread, status).await?,
            newest: db::checkpoints::newest_summary_later(tx, thread, Lane::Main).await?,
        })
    }

    /// Reads the interrupts.
    pub(in crate::runtime) async fn read(self, tx: &mut Tx<'_>) -> DbResult<OpenInterrupts> {
        let Self {
            thread,
            pending,
            newest,
        } = self;
        let pending = pending.read(tx).await?;
        let newest = match pending.is_empty() {
            true => None,
            false => newest.read(tx).await?.map(NumberedCheckpoint::from),
        };
        Ok(OpenInterrupts {
            thread,
            pending,
            newest,
        })
    }
}

/// A checkpoint with its number in the log of its thread.
#[derive(Clone, Copy)]
pub(super) struct NumberedCheckpoint {
    id: CheckpointId,
    seq: i64,
}

impl From<CheckpointSummary> for NumberedCheckpoint {
    fn from(summary: CheckpointSummary) -> Self {
        Self {
            id: summary.id,
            seq: summary.seq,
        }
    }
}

impl From<&Head> for NumberedCheckpoint {
    fn from(head: &Head) -> Self {
        Self {
            id: head.id,
            seq: head.seq,
        }
    }
}

/// The open interrupts of a thread.
pub(in crate::runtime) struct OpenInterrupts {
    pub(super) thread: ThreadId,
    /// The interrupts, on all branches.
    pub(super) pending: Vec<InterruptRecord>,
    /// The newest checkpoint of the main agent, if there are interrupts.
    pub(super) newest: Option<NumberedCheckpoint>,
}

impl OpenInterrupts {
    /// Returns those that wait at a checkpoint, or at the newest one.
    pub(super) async fn at(self, tx: &mut Tx<'_>, checkpoint: Option<CheckpointId>) -> DbResult<OpenAt> {
        let Self {
            thread,
            pending: mut open,
            newest,
        } = self;
        if open.is_empty() {
            return Ok(OpenAt { open, newest: None });
        }
        let positions = LanePositions::at(thread, checkpoint);
        retain_those_at(tx, positions, newest, &mut open).await?;
        let newest = newest.map(|newest| newest.id);
        Ok(OpenAt { open, newest })
    }
}

/// Removes those of the open interrupts of a thread that wait elsewhere than at these positions. `newest` is its newest
/// checkpoint.
async fn retain_those_at(
    tx: &mut Tx<'_>,
    positions: LanePositions,
    newest: Option<NumberedCheckpoint>,
    open: &mut Vec<InterruptRecord>,
) -> DbResult<()> {
    let positions = positions.or_newest(newest.map(|newest| newest.id));
    let last = newest.map_or(i64::MIN, |newest| newest.seq);
    // An interrupt that was raised after the newest checkpoint waits there, even if the positions above it are not
    // stored yet.
    let is_later = |record: &InterruptRecord| positions.are_newest() && record.seq > last;
    if !open.iter().all(is_later) {
        let waiting = positions.waiting(tx).await?;
        open.retain(|record| is_later(record) || waiting.contains(&record.interrupt.id));
    }
    Ok(())
}

/// Returns the open interrupts of a thread that can be answered at its `newest` checkpoint, in the order in which they were
/// raised; all open ones if it is not known where they wait.
///
/// # Errors
/// Returns an error when the database fails.
pub async fn open_interrupts(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    newest: Option<CheckpointSummary>,
) -> DbResult<Vec<InterruptRecord>> {
    let open = pending(tx, thread).await?;
    open_among(tx, thread, open, newest).await
}

/// Returns the interrupts of [`open_interrupts`], which are among the `open` ones of the thread.
///
/// # Errors
/// Returns an error when the database fails.
pub async fn open_among(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    mut open: Vec<InterruptRecord>,
    newest: Option<CheckpointSummary>,
) -> DbResult<Vec<InterruptRecord>> {
    if !open.is_empty() {
        let newest = newest.map(NumberedCheckpoint::from);
        let retained = retain_those_at(tx, LanePositions::at(thread, None), newest, &mut open).await;
        db::unless_corrupt(retained)?;
    }
    Ok(open)
}

/// Returns whether a step waits at a checkpoint of a thread, or at its newest one, and everything for which it waits is
/// open. A step may wait for what was dropped or answered elsewhere; nothing continues it then.
pub(in crate::runtime) async fn can_be_answered(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    checkpoint: Option<CheckpointId>,
) -> DbResult<bool> {
    let waiting = LanePositions::at(thread, checkpoint).waiting(tx).await?;
    let open = pending(tx, thread).await?;
    let is_open = |id: &InterruptId| open.iter().any(|record| record.interrupt.id == *id);
    Ok(!waiting.is_empty() && waiting.iter().all(is_open))
}

/// Returns the older checkpoint at which an open interrupt waits; none if it waits at none. Of several it is the newest,
/// to which clients have carried the step on.
pub(in crate::runtime) async fn place_of(tx: &mut Tx<'_>, record: &InterruptRecord) -> DbResult<Option<CheckpointId>> {
    let thread = record.thread;
    let mut places = db::checkpoints::carried_since(tx, thread, record.seq, MOST_CARRIED).await?;
    let raised_at = db::checkpoints::load_summaries(tx, thread, Lane::Main, record.seq, 1).await?;
    places.extend(raised_at.first().map(|raised_at| raised_at.id));
    for place in places {
        let waiting = LanePositions::at(thread, Some(place)).waiting(tx).await?;
        if waiting.contains(&record.interrupt.id) {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Holds the queued messages of a thread that wait for answers while an interrupt waits at its newest checkpoint, and lets
/// them begin otherwise: what waits on a branch that the thread has left is not in their way. Returns whether this changes
/// anything. No run is at work on the thread, or it ends in the same transaction.
pub(in crate::runtime) async fn hold_messages(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<bool> {
    let are_held = !open_at(tx, thread, None).await?.is_empty();
    db::runs::hold_messages(tx, thread, are_held).await
}

/// Returns the older checkpoint from which a run continues that answers interrupts of `branch`. None if it continues
/// from the `newest` one: `branch` is the newest, or another run has carried its step on meanwhile.
pub(super) async fn branch_to_continue(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    branch: Option<CheckpointId>,
    newest: Option<&Head>,
) -> DbResult<Option<CheckpointId>> {
    let Some(branch) = branch.filter(|branch| newest.is_none_or(|newest| newest.id != *branch)) else {
        return Ok(None);
    };
    let found = db::checkpoints::find_head(tx, thread, branch).await?;
    let waits = found.filter(|found| found.lane == Lane::Main && found.position.has_waited());
    let Some(found) = waits else { return Ok(None) };
    let is_here = match newest {
        Some(newest) => was_step_carried(tx, thread, &found, newest).await?,
        None => false,
    };
    Ok((!is_here).then_some(found.id))
}

/// Returns whether compactions, or writes into the state, have taken the step that waits at `found` along to the `newest`
/// checkpoint. A write at an older checkpoint takes it along to a branch of its own.
async fn was_step_carried(tx: &mut Tx<'_>, thread: ThreadId, found: &Head, newest: &Head) -> DbResult<bool> {
    let base = |head: &Head| StepBase::after(Some(head.id), head.position.carried_from);
    // Former servers have not stored from where a compaction has carried the step on.
    if base(newest) != base(found) && !newest.position.waits_like(&found.position) {
        return Ok(false);
    }
    let mut at = newest.id;
    for _ in 0..MOST_CARRIED {
        let Some(summary) = db::checkpoints::load_summary(tx, thread, Lane::Main, at).await? else {
            return Ok(false);
        };
        let carries = matches!(summary.source, CheckpointSource::Fork | CheckpointSource::Update);
        match summary.parent.filter(|_| carries) {
            Some(parent) if parent == found.id => return Ok(true),
            Some(parent) => at = parent,
            None => return Ok(false),
        }
    }
    Ok(false)
}
