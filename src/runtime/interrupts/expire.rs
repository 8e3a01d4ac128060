//! Interrupts without an answer of a client: they have expired, the thread continues without an answer, or the agent
//! that asked was cancelled.

use super::branches::open_at;
use super::positions::LanePositions;
use super::{lanes_of, pending};
use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::id::{CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::run::Resume;
use crate::domain::time::Timestamp;

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
