//! Expiry of interrupts: a run continues the thread with the answers that their questions name for that.

use super::continue_thread;
use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::id::ThreadId;
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;
use crate::runtime::admission::{AdmissionContext, Admitted};
use crate::runtime::interrupts::{LanePositions, open_at, pending, place_of};
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
