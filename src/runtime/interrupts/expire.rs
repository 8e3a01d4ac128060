//! Interrupts without an answer of a client: they have expired, the thread continues without an answer, or the agent
//! that asked was cancelled.

use super::{Resolution, continue_thread, lanes_of, pending};
use crate::db::{self, DbResult, Tx};
use crate::domain::id::{InterruptId, RunId, ThreadId};
use crate::domain::run::Resume;
use crate::domain::time::Timestamp;
use crate::runtime::admission::{AdmissionContext, Admitted};

/// The result of looking for expired interrupts of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum ExpiredInterrupts {
    /// There are none.
    Nothing,
    /// A run continues with their answers.
    Resumed,
    /// Another run is at work on the thread, or the run was refused.
    NotNow,
}

/// Starts a run that continues a thread with the answers of its expired interrupts.
pub(in crate::runtime) async fn resume_expired(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    context: &AdmissionContext,
) -> DbResult<(ExpiredInterrupts, Option<Admitted>)> {
    if db::threads::lock(tx, thread).await?.is_none() {
        return Ok((ExpiredInterrupts::Nothing, None));
    }
    let mut due = pending(tx, thread).await?;
    due.retain(|record| record.expires_at().is_some_and(|at| at <= context.now));
    let Some(first) = due.first() else {
        return Ok((ExpiredInterrupts::Nothing, None));
    };
    let Some(asked_by) = db::runs::get_by_id(tx, first.run).await? else {
        return Ok((ExpiredInterrupts::NotNow, None));
    };
    let ids = due.iter().map(|record| record.interrupt.id.clone()).collect();
    let started = continue_thread(tx, thread, asked_by.assistant, Resolution::Expired(ids), context).await?;
    Ok(match started {
        Some(admitted) => (ExpiredInterrupts::Resumed, Some(admitted)),
        None => (ExpiredInterrupts::NotNow, None),
    })
}

/// Returns the answers that expired interrupts get. They are not checked against the questions: a rule may reject on
/// expiry what its reviewers can only approve.
pub(super) async fn answers(tx: &mut Tx<'_>, thread: ThreadId, ids: &[InterruptId]) -> DbResult<Resume> {
    let open = pending(tx, thread).await?;
    let expired = open.into_iter().filter(|record| ids.contains(&record.interrupt.id));
    let answered = |record: db::interrupts::InterruptRecord| {
        let answer = record.interrupt.question.expiry?.answer;
        Some((record.interrupt.id, answer))
    };
    Ok(expired.filter_map(answered).collect())
}

/// Drops all open interrupts of a thread for a run that goes on without answers, and stops the subagents that waited.
/// Answers that came meanwhile, with runs that are queued behind it, are not used either.
pub(in crate::runtime) async fn drop_for_input(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    // No answer is accepted in between.
    db::threads::lock(tx, thread).await?;
    for late in db::interrupts::queued_answers(tx, thread).await? {
        db::interrupts::restore(tx, thread, late).await?;
    }
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
