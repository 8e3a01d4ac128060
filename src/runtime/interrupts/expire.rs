//! Interrupts without an answer: the thread continues without one, or the agent that asked was cancelled.

use super::lanes_of;
use crate::db::{self, DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::time::Timestamp;

/// Drops all open interrupts of a thread for a run that begins with new input, and stops the subagents that waited.
pub(in crate::runtime) async fn drop_for_input(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    db::interrupts::abandon(tx, thread, None, by, now).await?;
    db::runs::stop_children(tx, thread, by, now).await
}

/// Drops all open interrupts of a thread whose state a client has changed.
pub(in crate::runtime) async fn drop_for_update(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<()> {
    db::interrupts::drop_pending(tx, thread, None, now).await.map(drop)
}

/// Drops the open interrupts of a subagent and of all agents below it, on behalf of run `by` of the main agent.
pub(in crate::runtime) async fn drop_of_subagents(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    child: RunId,
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    let lanes = lanes_of(tx, child).await?;
    db::interrupts::abandon(tx, thread, Some(&lanes), by, now).await
}
