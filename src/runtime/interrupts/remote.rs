//! Interrupts of awaited subagents on other servers. `jobs/watch_interrupt.rs` polls whether they are still open there. If
//! not, a run continues with the subagent; the interrupt gets a placeholder as its answer, and the call reads the result from
//! the other server.

use super::pending;
use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{TaskSnapshot, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::RunId;
use crate::domain::interrupt::answered_remotely;
use crate::domain::run::Resume;
use crate::peer::is_asked;

/// Returns the open interrupts that the run of a subagent or of a main agent has raised.
pub(in crate::runtime) async fn pending_of_subagent(tx: &mut Tx<'_>, child: RunId) -> DbResult<Vec<InterruptRecord>> {
    let Some(run) = db::runs::get_by_id(tx, child).await? else {
        return Ok(vec![]);
    };
    let mut open = pending(tx, run.thread).await?;
    let is_main = run.lineage.depth == 0;
    open.retain(|record| match record.lane {
        Lane::Main => is_main && record.run == child,
        Lane::Child(lane) => lane == child,
    });
    Ok(open)
}

/// Returns whether one of these interrupts is not open any more on the server where it was raised.
pub(in crate::runtime) fn is_answered_remotely(open: &[InterruptRecord], seen: Option<&TaskSnapshot>) -> bool {
    let Some(seen) = seen.filter(|seen| seen.status == TaskStatus::Waiting) else {
        return true;
    };
    let is_open = |record: &InterruptRecord| {
        let question = &record.interrupt.question;
        seen.interrupts
            .iter()
            .any(|there| is_asked(there["id"].as_str(), question))
    };
    !open.iter().all(is_open)
}

/// Returns a placeholder as the answer to each open interrupt of a subagent. It is not checked against the question.
pub(super) async fn placeholders(tx: &mut Tx<'_>, child: RunId) -> DbResult<Resume> {
    let open = pending_of_subagent(tx, child).await?;
    Ok(open
        .into_iter()
        .map(|record| (record.interrupt.id, answered_remotely()))
        .collect())
}
