//! Cancellation of a subagent that waits for an answer: its interrupts are dropped, its caller gets an error result,
//! and all other agents continue, or keep waiting.
//!
//! The subagent's run ends in the transaction that cancels it. A mark in its row says that its caller is still to be
//! notified: by the run at work on the thread, or else by a new one. A run that dies in between, or ends waiting
//! without having read the mark, leaves it for the next one.

use super::continue_thread;
use crate::db::runs::{ChildRowUpdate, LaterUnreported};
use crate::db::{self, DbResult, Notification, Tx, notifications};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::Failure;
use crate::domain::run::{Run, RunStatus};
use crate::domain::time::Timestamp;
use crate::runtime::admission::{AdmissionContext, Admitted};
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::error::CancelError;
use crate::runtime::interrupts::{LanePositions, caller_lane, lanes_of, pending, waited_for};
use crate::runtime::new_run::Resolution;
use crate::runtime::run_context::RunContext;

/// The run that notifies the caller of a cancelled subagent.
pub(in crate::runtime) enum CallerNotice {
    /// The run at work. It waits for a notification about this subagent: the cancelled one, or one above it that waits,
    /// too.
    AtWork(RunId),
    /// A run that was started for it.
    Started,
    /// The next run on the thread: the last one was stopped, and did not end by waiting.
    Next,
}

/// Cancels the subagent's run `child`, if it waits for an answer.
///
/// # Errors
/// Returns [`CancelError::Over`] if it does not wait, and [`CancelError::NoUndo`] if it is to be undone.
pub(in crate::runtime) async fn cancel_waiting(
    tx: &mut Tx<'_>,
    child: &Run,
    action: CancelAction,
    context: &AdmissionContext,
) -> Result<(CallerNotice, Option<Admitted>), CancelError> {
    let thread = child.thread;
    let now = context.now;
    db::threads::lock(tx, thread).await?;
    let lanes = lanes_of(tx, child.id).await?;
    let open = pending(tx, thread).await?;
    if !open.iter().any(|record| lanes.contains(&record.lane)) {
        return Err(CancelError::Over);
    }
    if action == CancelAction::Rollback {
        return Err(CancelError::NoUndo);
    }
    let (notice, by, started) = Box::pin(notify_caller(tx, child, context)).await?;
    let cancelled = Failure::cancelled();
    let update = ChildRowUpdate {
        status: RunStatus::Interrupted,
        error: Some(&cancelled),
        usage: None,
    };
    db::runs::update_child(tx, child.id, update, by, now).await?;
    db::runs::mark_unreported(tx, child.id).await?;
    db::interrupts::abandon(tx, thread, &lanes, by, now).await?;
    if started.is_some() {
        db::interrupts::set_resumed_by(tx, thread, &lanes, by).await?;
    }
    Ok((notice, started))
}

/// Chooses the run that notifies the caller of `child`, and starts it if need be. Returns also the run on whose behalf
/// the cancellation is stored.
async fn notify_caller(
    tx: &mut Tx<'_>,
    child: &Run,
    context: &AdmissionContext,
) -> DbResult<(CallerNotice, RunId, Option<Admitted>)> {
    let thread = child.thread;
    let in_flight = db::runs::in_flight(tx, thread).await?;
    if let Some(run) = in_flight.into_iter().find(|run| run.status == RunStatus::Running) {
        let wakes = unpark_below_caller(tx, thread, child.id, run.id).await?;
        notifications::notify(tx, Notification::Cancel(wakes)).await?;
        return Ok((CallerNotice::AtWork(wakes), run.id, None));
    }
    let newest = db::runs::newest(tx, thread).await?;
    let waits = |run: &Run| matches!(run.status, RunStatus::Success | RunStatus::Pending);
    let Some(newest) = newest.filter(waits) else {
        return Ok((CallerNotice::Next, child.lineage.root, None));
    };
    let resolution = Resolution::Cancelled(vec![child.id]);
    Ok(
        match continue_thread(tx, thread, newest.assistant, resolution, context).await? {
            Some(admitted) => (CallerNotice::Started, admitted.run.id, Some(admitted)),
            None => (CallerNotice::Next, newest.id, None),
        },
    )
}

/// Starts another run after one of the main agent ended waiting, if subagents were cancelled of which it was not
/// notified. `cancelled` are the cancelled ones of the thread.
pub(in crate::runtime) async fn report_cancelled(
    tx: &mut Tx<'_>,
    run_context: &RunContext,
    cancelled: LaterUnreported,
    at: Timestamp,
) -> DbResult<()> {
    let run = &run_context.run;
    let children = waited_for(tx, LanePositions::at(run.thread, None), cancelled).await?;
    if children.is_empty() {
        return Ok(());
    }
    let context = AdmissionContext {
        now: at,
        ..AdmissionContext::queued(&run_context.core, vec![])
    };
    let resolution = Resolution::Cancelled(children.clone());
    let Some(admitted) = continue_thread(tx, run.thread, run.assistant, resolution, &context).await? else {
        return Ok(());
    };
    for child in children {
        let lanes = lanes_of(tx, child).await?;
        db::interrupts::set_resumed_by(tx, run.thread, &lanes, admitted.run.id).await?;
    }
    Ok(())
}

/// Lets the waiting callers of `child` continue, up to the first one that is at work. Returns the subagent for which
/// that one waits.
async fn unpark_below_caller(tx: &mut Tx<'_>, thread: ThreadId, child: RunId, by: RunId) -> DbResult<RunId> {
    let mut at = child;
    loop {
        let Lane::Child(caller) = caller_lane(tx, at).await? else {
            return Ok(at);
        };
        let is_at_work = db::runs::get_by_id(tx, caller)
            .await?
            .is_none_or(|run| run.status == RunStatus::Running);
        if is_at_work {
            return Ok(at);
        }
        LanePositions::at(thread, None)
            .unpark(tx, Lane::Child(caller), at, by)
            .await?;
        at = caller;
    }
}
