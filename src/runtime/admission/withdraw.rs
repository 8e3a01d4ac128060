//! Runs that do not begin, or are undone, and the status of the thread that a run leaves.

use crate::db::events::NewEvent;
use crate::db::threads::ThreadAfterRun;
use crate::db::{self, DbResult, Notification, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::{Failure, Phase, Position};
use crate::domain::run::{Run, RunStatus};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;
use crate::runtime::background::{self, UndoneTasks};
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::ledger::RemainingShare;
use crate::runtime::shared::Core;
use crate::runtime::{interrupts, log_lines, prepare, reports};

/// Stores the status of a thread after a run: busy, if other runs are queued that may begin.
pub(in crate::runtime) async fn leave_thread(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    left: &ThreadAfterRun,
    now: Timestamp,
) -> DbResult<()> {
    let found = db::threads::leave(tx, thread, left, now).await?;
    let may_hold_messages = found.is_some_and(|found| found.may_hold_messages);
    if may_hold_messages && interrupts::hold_messages(tx, thread).await? {
        db::threads::leave(tx, thread, left, now).await?;
    }
    Ok(())
}

/// Cancels a run that has not begun, whose thread is locked. Its webhook is called, unless the run is undone. Runs that
/// waited for it may begin.
pub(in crate::runtime) async fn withdraw(
    tx: &mut Tx<'_>,
    run: &Run,
    action: CancelAction,
    core: &Core,
    now: Timestamp,
) -> DbResult<()> {
    // The interrupts that the run would have resolved are open again.
    db::interrupts::restore(tx, run.thread, run.id).await?;
    match action {
        CancelAction::Interrupt => {
            db::runs::set_status(tx, run.id, RunStatus::Interrupted, None, now).await?;
            reports::report_withdrawn(tx, core, run, now).await?;
            log_lines::run_withdrawn(run, RunStatus::Interrupted.word());
        }
        CancelAction::Rollback => {
            db::runs::delete(tx, run.thread, run.id).await?;
            log_lines::run_withdrawn(run, log_lines::ROLLED_BACK);
        }
    }
    let (status, error) = thread_status(tx, run.thread).await?;
    let left = ThreadAfterRun {
        run: run.id,
        status,
        error,
    };
    leave_thread(tx, run.thread, &left, now).await?;
    db::notifications::notify(tx, Notification::Queue).await
}

/// The outcome of undoing a run.
pub(in crate::runtime) struct Undone {
    /// The runs of background tasks that are to stop where they are at work: they are deleted.
    pub(in crate::runtime) stopped: Vec<RunId>,
    /// The share that is left to the run in the trees that counted it.
    pub(in crate::runtime) share: RemainingShare,
}

/// Undoes the work of a run with the background tasks that it started, and deletes the run. Its thread is locked, and has
/// its former state afterwards. The numbers in its log continue, from `last` on, if that is higher, since clients know the numbers.
///
/// The trees are left to the caller, see [`take_back`](crate::runtime::ledger::take_back): they are locked after all
/// runs.
pub(in crate::runtime) async fn undo(
    tx: &mut Tx<'_>,
    run: &Run,
    last: Option<i64>,
    now: Timestamp,
) -> DbResult<Undone> {
    let UndoneTasks {
        tasks,
        mut trees,
        stopped,
    } = background::undo_tasks(tx, run, now).await?;
    let seq = (db::checkpoints::max_seq(tx, run.thread).await? + 1).max(last.unwrap_or(0));
    db::checkpoints::delete_of_run(tx, run.thread, run.id).await?;
    let thread = run.thread;
    let lane = Lane::Main;
    let fact = &Fact::Undone;
    db::events::insert(
        tx,
        &[NewEvent {
            thread,
            seq,
            run: run.id,
            lane,
            fact,
            at: now,
        }],
    )
    .await?;
    db::checkpoints::restore_positions(tx, run.id).await?;
    db::runs::restore_children(tx, run.id).await?;
    // The answers say which runs it continues, so they are read before they are withdrawn.
    let (used, first) = prepare::usage_before(tx, run.thread, run.id).await?;
    db::interrupts::restore(tx, run.thread, run.id).await?;
    let waiting = match first == run.id {
        true => 0,
        false => db::runs::count_waiting(tx, run.thread).await?,
    };
    db::runs::delete(tx, run.thread, run.id).await?;
    let error = Failure::new("UserRollback", "The run was cancelled by request and undone.");
    let (status, _) = thread_status(tx, run.thread).await?;
    let left = ThreadAfterRun {
        run: run.id,
        status,
        error: Some(error),
    };
    leave_thread(tx, thread, &left, now).await?;
    let above = run.request.background.iter().flat_map(|lineage| &lineage.trees);
    trees.extend(above.map(|tree| tree.top));
    trees.insert(first);
    Ok(Undone {
        stopped,
        share: RemainingShare {
            trees,
            share: first,
            used,
            waiting,
            tasks,
        },
    })
}

/// Returns the status of a thread on which no run is at work, and the failure of its last step.
pub(in crate::runtime) async fn thread_status(
    tx: &mut Tx<'_>,
    thread: ThreadId,
) -> DbResult<(ThreadStatus, Option<Failure>)> {
    let (status, error, was_left) = match db::checkpoints::head(tx, thread, Lane::Main).await {
        Ok(Some(head)) => status_at(head.position),
        Ok(None) => (ThreadStatus::Idle, None, false),
        Err(error) if error.is_corrupt() => (ThreadStatus::Error, Some(db::runs::unreadable(&error)), false),
        Err(error) => return Err(error),
    };
    let error = match was_left {
        true => Box::pin(cancellation(tx, thread)).await?,
        false => error,
    };
    Ok((status, error))
}

/// Returns the status of a thread that is at this position, the failure of the step, and whether a run left the step without
/// a question to answer: it was cancelled, or stopped at a breakpoint.
fn status_at(position: Position) -> (ThreadStatus, Option<Failure>, bool) {
    let was_left = !position.waits_for_answers();
    match (position.failure, position.phase) {
        (Some(failure), _) => (ThreadStatus::Error, Some(failure), false),
        (None, Phase::Ended) => (ThreadStatus::Idle, None, false),
        (None, Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Tools { .. } | Phase::Work { .. }) => {
            (ThreadStatus::Interrupted, None, was_left)
        }
    }
}

/// Returns the failure of the run that made the newest step of a thread, if that run was cancelled.
async fn cancellation(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<Failure>> {
    let later = db::runs::of_newest_step_later(tx, thread).await?;
    let run = db::unless_corrupt(later.read(tx).await)?.flatten();
    let cancelled = run.filter(|run| run.status == RunStatus::Interrupted);
    Ok(cancelled.and_then(|run| run.error))
}
