//! Assigned interrupts: only their approvers answer them, and until then nobody else gets around them.
//!
//! All answers of clients pass [`check_answers`]. A request that would continue a thread beside an open interrupt (a
//! write into its state, a jump, or a run from a checkpoint) passes [`check_way`]. New input, cancellations and the end
//! of the turn (`__end__`) withdraw the question instead: what waited for the approval is not done then, and it is
//! asked again before it ever is. On a branch that the thread has left, a question waits for the same approvers as before.

use std::sync::Arc;

use super::pending;
use crate::db::interrupts::InterruptRecord;
use crate::db::{DbResult, Tx};
use crate::domain::access::{Action, is_entitled};
use crate::domain::goto::Goto;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::machine::END;
use crate::domain::run::{Command, RunCaller, RunRequest};
use crate::runtime::audit;
use crate::runtime::error::AssignedToOthers;
use crate::runtime::shared::Core;

/// Checks that the caller may answer these interrupts.
///
/// # Errors
/// Returns the first one that is assigned to others.
pub(in crate::runtime) fn check_answers<'a>(
    caller: &Identity,
    answered: impl IntoIterator<Item = &'a InterruptRecord>,
) -> Result<(), AssignedToOthers> {
    let is_for_others =
        |record: &&InterruptRecord| !is_entitled(&caller.user, &caller.roles, &record.interrupt.question.approvers);
    match answered.into_iter().find(is_for_others) {
        Some(record) => Err(AssignedToOthers::of(record)),
        None => Ok(()),
    }
}

/// Records that a caller tried to answer, or to get around, an interrupt that is assigned to others.
pub(in crate::runtime) fn record_attempt(
    core: &Arc<Core>,
    caller: &Identity,
    thread: ThreadId,
    assigned: &AssignedToOthers,
) {
    let resource = audit::interrupt_text(thread, &assigned.interrupt);
    audit::record_refusal(core, caller, Action::InterruptsResolve, resource, &[]);
}

/// Checks that no open interrupt of a thread is assigned to others than the user for whom a request continues the
/// thread. Interrupts that run `own` has raised itself are not in its way. Without authentication there is no user, and
/// nothing is in the way.
pub(in crate::runtime) async fn check_way(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    user: Option<&RunCaller>,
    own: Option<RunId>,
) -> DbResult<Result<(), AssignedToOthers>> {
    let Some(user) = user else { return Ok(Ok(())) };
    let open = pending(tx, thread).await?;
    let is_in_way = |record: &&InterruptRecord| {
        own != Some(record.run) && !is_entitled(&user.identity, &user.roles, &record.interrupt.question.approvers)
    };
    Ok(match open.iter().find(is_in_way) {
        Some(record) => Err(AssignedToOthers::of(record)),
        None => Ok(()),
    })
}

/// Returns whether a request would continue a thread beside its open interrupts. A jump to the end withdraws them.
pub(in crate::runtime) fn bypasses_interrupts(request: &RunRequest) -> bool {
    let is_end = |goto: &Goto| matches!(goto, Goto::Node(node) if node == END);
    let jumps = |command: &Command| command.update.is_some() || !command.goto.iter().all(is_end);
    request.checkpoint.is_some() || request.command.as_ref().is_some_and(jumps)
}
