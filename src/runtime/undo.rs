//! Runs whose work is undone.

use super::background::{self, UndoneTasks};
use super::ledger::RemainingShare;
use super::prepare;
use super::thread_status::{leave_thread, thread_status};
use crate::db::events::NewEvent;
use crate::db::threads::ThreadAfterRun;
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::RunId;
use crate::domain::machine::Failure;
use crate::domain::run::Run;
use crate::domain::time::Timestamp;

/// The outcome of undoing a run.
pub(super) struct UndoOutcome {
    /// The runs of background tasks that are to stop where they are at work: they are deleted.
    pub(super) stopped: Vec<RunId>,
    /// The share that is left to the run in the trees that counted it.
    pub(super) share: RemainingShare,
}

/// Undoes the work of a run with the background tasks that it started, and deletes the run. Its thread is locked, and has
/// its former state afterwards. The numbers in its log continue, from `last` on, if that is higher, since clients know the numbers.
///
/// The trees are left to the caller, see [`take_back`](super::ledger::take_back): they are locked after all
/// runs.
pub(super) async fn undo(tx: &mut Tx<'_>, run: &Run, last: Option<i64>, now: Timestamp) -> DbResult<UndoOutcome> {
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
    Ok(UndoOutcome {
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
