//! Runs that are cancelled before they begin.

use super::cancel_action::CancelAction;
use super::shared::Core;
use super::thread_status::{leave_thread, thread_status};
use super::{log_lines, reports};
use crate::db::threads::ThreadAfterRun;
use crate::db::{self, DbResult, Notification, Tx};
use crate::domain::run::{Run, RunStatus};
use crate::domain::time::Timestamp;

/// Cancels a run that has not begun, whose thread is locked. Its webhook is called, unless the run is undone. Runs that
/// waited for it may begin.
pub(super) async fn withdraw(
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
