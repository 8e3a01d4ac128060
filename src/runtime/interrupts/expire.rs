//! Interrupts without an answer of a client: they have expired, the thread continues without an answer, or the agent
//! that asked was cancelled.

use super::branches::{open_at, place_of};
use super::deliver::LanePositions;
use super::{continue_thread, lanes_of, pending};
use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::id::{CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::run::Resume;
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;
use crate::runtime::admission::{AdmissionContext, Admitted};
use crate::runtime::new_run::Resolution;

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
    let is_due = |record: &InterruptRecord| record.expires_at().is_some_and(|at| at <= context.now);
    let mut due = pending(tx, thread).await?;
    due.retain(is_due);
    if due.is_empty() {
        return Ok((ExpiredInterrupts::Nothing, None));
    }
    // A run at work, or one that brings an answer, may carry a branch on; the job tries again when it has ended. Other
    // queued runs may wait for just this expiry.
    let in_flight = db::runs::count_in_flight(tx, thread).await?;
    if in_flight.at_work > 0 || db::runs::has_queued_answer(tx, thread).await? {
        return Ok((ExpiredInterrupts::NotNow, None));
    }
    let mut here = open_at(tx, thread, None).await?;
    here.retain(is_due);
    due.retain(|record| here.iter().all(|other| other.interrupt.id != record.interrupt.id));
    end_left_interrupts(tx, &due, context.now).await?;
    if !due.is_empty() && in_flight.waiting > 0 && pending(tx, thread).await?.is_empty() {
        // The runs that waited for them begin.
        let change = db::threads::ThreadChange {
            status: Some(ThreadStatus::Busy),
            ..Default::default()
        };
        db::threads::set(tx, thread, change, context.now).await?;
        db::notifications::notify(tx, db::Notification::Queue).await?;
    }
    let due = here;
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

/// Ends expired interrupts of branches that the thread has left. No run continues there for that, but their decisions are
/// stored: they hold when another interrupt of the same step is answered.
async fn end_left_interrupts(tx: &mut Tx<'_>, expired: &[InterruptRecord], now: Timestamp) -> DbResult<()> {
    for record in expired {
        let Some(expiry) = &record.interrupt.question.expiry else {
            continue;
        };
        let place = place_of(tx, record).await?;
        db::interrupts::expire(tx, record.thread, &record.interrupt.id, &expiry.answer, None, now).await?;
        if place.is_some() {
            let positions = LanePositions::at(record.thread, place);
            let id = &record.interrupt.id;
            positions.give(tx, record.lane, id, &expiry.answer, record.run).await?;
        }
    }
    Ok(())
}

/// Returns the answers that expired interrupts get. They are not checked against the questions: a rule may reject on
/// expiry what its reviewers can only approve.
pub(super) async fn answers(tx: &mut Tx<'_>, thread: ThreadId, ids: &[InterruptId]) -> DbResult<Resume> {
    let open = pending(tx, thread).await?;
    let expired = open.into_iter().filter(|record| ids.contains(&record.interrupt.id));
    let answered = |record: InterruptRecord| {
        let answer = record.interrupt.question.expiry.as_ref()?.answer.clone();
        Some((record.interrupt.id, answer))
    };
    Ok(expired.filter_map(answered).collect())
}

/// Drops the open interrupts at the checkpoint from which a run goes on without answers, the newest or `branch`, and stops
/// the subagents that waited. Answers that came meanwhile, with runs that are queued behind it, are not used either.
pub(in crate::runtime) async fn drop_for_input(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    branch: Option<CheckpointId>,
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    // No answer is accepted in between.
    db::threads::lock(tx, thread).await?;
    // The answers of queued runs are not at the positions yet.
    let waiting = LanePositions::at(thread, branch).waiting(tx).await?;
    for (late, answered) in db::interrupts::queued_answers(tx, thread).await? {
        if waiting.contains(&answered) {
            db::interrupts::restore(tx, thread, late).await?;
        }
    }
    let all = pending(tx, thread).await?.len();
    let open = open_at(tx, thread, branch).await?;
    db::interrupts::abandon_these(tx, thread, &open, by, now).await?;
    if open.len() == all {
        // Rows that cannot be read are in neither list.
        db::interrupts::drop_pending(tx, thread, None, now).await?;
    }
    db::runs::stop_children(tx, thread, Some(by), now).await
}

/// Drops the open interrupts at the newest checkpoint of a thread, after which a client writes another one. Interrupts on
/// branches that the thread has left stay open.
pub(in crate::runtime) async fn drop_for_update(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<()> {
    let here = open_at(tx, thread, None).await?;
    let mut kept = pending(tx, thread).await?;
    kept.retain(|record| here.iter().all(|other| other.interrupt.id != record.interrupt.id));
    let kept: Vec<String> = kept.into_iter().map(|record| record.interrupt.id.0).collect();
    db::interrupts::drop_others(tx, thread, &kept, now).await
}

/// Drops all open interrupts of a thread whose turn a client has ended, and stops the subagents that waited.
pub(in crate::runtime) async fn drop_for_end(tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<()> {
    db::interrupts::drop_pending(tx, thread, None, now).await?;
    db::runs::stop_children(tx, thread, None, now).await
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
    db::interrupts::abandon(tx, thread, &lanes, by, now).await
}
