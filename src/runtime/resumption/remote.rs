//! Interrupts of subagents that were answered on the servers where the subagents run: a run continues with the subagent.

use super::continue_thread;
use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::id::{InterruptId, RunId};
use crate::domain::run::RunStatus;
use crate::runtime::admission::{AdmissionContext, Admitted};
use crate::runtime::interrupts::{open_at, pending_of_subagent};
use crate::runtime::new_run::Resolution;

/// Starts a run that continues with a subagent whose interrupts were answered on its server. Returns none if they were
/// answered here meanwhile, a run is at work on the thread, or no run could be started; then the next poll tries again.
pub(in crate::runtime) async fn resume_answered_remotely(
    tx: &mut Tx<'_>,
    open: &[InterruptRecord],
    child: RunId,
    context: &AdmissionContext,
) -> DbResult<Option<Admitted>> {
    let Some(thread) = open.first().map(|record| record.thread) else {
        return Ok(None);
    };
    db::threads::lock(tx, thread).await?;
    // Messages may be queued behind the interrupts.
    let newest = db::runs::begun_by(tx, thread, i64::MAX).await?;
    let Some((newest, _)) = newest.filter(|(run, _)| run.status == RunStatus::Success) else {
        return Ok(None);
    };
    let ids = |all: &[InterruptRecord]| -> Vec<InterruptId> {
        all.iter().map(|record| record.interrupt.id.clone()).collect()
    };
    if ids(&pending_of_subagent(tx, child).await?) != ids(open) {
        return Ok(None);
    }
    // No run continues a branch that the thread has left, unless an interrupt is answered there.
    let here = ids(&open_at(tx, thread, None).await?);
    if !ids(open).iter().all(|id| here.contains(id)) {
        return Ok(None);
    }
    continue_thread(
        tx,
        thread,
        newest.assistant,
        Resolution::AnsweredRemotely(child),
        context,
    )
    .await
}
