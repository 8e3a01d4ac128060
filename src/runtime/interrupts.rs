//! Interrupts: questions of agents to people.
//!
//! An interrupt is resolved by an answer (`answer.rs`) of those to whom it is assigned (`approvers.rs`), by the server
//! of the remote agent that raised it (`remote.rs`), by the cancellation of the subagent that raised it, or by its expiry
//! (`expire.rs`). It is dropped when the thread continues without an answer. On a branch that the thread has left it waits
//! on (`branches.rs`).
//!
//! Every resolution is a [`Resolution`] that a new run brings. The transaction that admits the run stores it in the
//! rows of the interrupts. The positions of the agents change when the run begins (`deliver.rs`): in the same transaction,
//! if it begins at once and only the main agent has asked. That step can be repeated, so a crash in between loses nothing,
//! and a run that is cancelled before it begins leaves the interrupts open. Such a run begins before all others that are
//! queued on the thread, so that an answer is used once it is accepted. Only a run that is at work by then, and has not
//! begun to write, may go on without it: the interrupts are dropped then, and the run with the answer fails.
//!
//! The rows of a thread to which a client brings answers are read together (`answered.rs`).
//!
//! Clients answer through [`answers`](super::answers); the runs that continue without a client are in
//! [`resumption`](super::resumption).

use serde_json::json;

use super::audit;
use super::error::StartError;
use super::new_run::Resolution;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::run::{Command, Run};

mod answer;
mod answered;
mod approvers;
mod branches;
mod deliver;
mod expire;
mod positions;
mod remember;
mod remote;

use answer::MatchedAnswer;

pub use branches::{open_among, open_interrupts};

pub(super) use answer::NOT_OPEN;
pub(super) use answered::{
    AnsweredInterrupts, AnsweredThread, AnsweredWork, LaterAnsweredThread, UsedRun, WaitingWork,
};
pub(super) use approvers::{bypasses_interrupts, check_answers, check_way, record_attempt};
pub(super) use branches::{LaterOpen, OpenInterrupts, can_be_answered, hold_messages, open_at, place_of};
pub(super) use deliver::{AnswerDelivery, Delivered, DeliveredEnd, deliver, is_late, waiting_agents};
pub(super) use expire::{drop_for_end, drop_for_input, drop_for_update, drop_of_subagents};
pub(super) use positions::{LanePositions, caller_lane, waited_for};
pub(super) use remember::StoredDecisions;
pub(super) use remote::{is_answered_remotely, pending_of_subagent};

/// Stores a resolution in the rows of the interrupts, on behalf of the run that brings it, and puts it into the command
/// of the run. Returns the interrupts that are answered, if a client has answered them. `open` are the open interrupts, if they
/// were read already.
///
/// # Errors
/// Returns the refusal of an answer that does not fit the open interrupts.
pub(super) async fn resolve(
    tx: &mut Tx<'_>,
    run: &mut Run,
    resolution: &Resolution,
    caller: &Identity,
    open: Option<OpenInterrupts>,
) -> Result<AnsweredInterrupts, StartError> {
    let mut answered = AnsweredInterrupts::default();
    let MatchedAnswer { answers, open, place } = match resolution {
        Resolution::Answered(answer) => answer::match_answer(tx, run, answer, caller, open).await?,
        Resolution::AnsweredAlone(id, answer) => {
            let by_id = json!({id.0.clone(): answer});
            answer::match_answer(tx, run, &by_id, caller, open).await?
        }
        Resolution::AnsweredRemotely(child) => MatchedAnswer::of_server(remote::placeholders(tx, *child).await?),
        Resolution::Expired(ids) => MatchedAnswer::of_server(expire::answers(tx, run.thread, ids).await?),
        Resolution::Cancelled(_) => MatchedAnswer::default(),
    };
    for (id, answer) in answers.iter().flatten() {
        let found = open.iter().find(|record| record.interrupt.id == *id);
        if let Some(record) = found {
            answered.add(record);
            answered.remembers |= remember::remember(tx, run, record, answer, caller).await?;
            db::interrupts::resolve_found(tx, record, answer, run.id, run.created_at).await?;
            audit::record_answer(tx, caller, run.thread, id, answer, run.created_at).await?;
            continue;
        }
        if matches!(resolution, Resolution::Expired(_)) {
            db::interrupts::expire(tx, run.thread, id, answer, Some(run.id), run.created_at).await?;
            continue;
        }
        db::interrupts::resolve(tx, run.thread, id, answer, run.id, run.created_at).await?;
        audit::record_answer(tx, caller, run.thread, id, answer, run.created_at).await?;
    }
    // The thread may go on elsewhere before the run begins, so the place is stored even if it is the newest now.
    let branch = match place {
        Some(place) => Some(place),
        None => db::checkpoints::newest_id(tx, run.thread, Lane::Main).await?,
    };
    let command = run.request.command.get_or_insert_with(Command::default);
    command.resume = answers;
    command.continuation.branch = branch;
    if let Resolution::Cancelled(children) = resolution {
        command.continuation.cancelled.clone_from(children);
    }
    Ok(answered)
}

/// Returns the open interrupts of a thread, in the order in which they were raised.
pub(super) async fn pending(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<InterruptRecord>> {
    db::interrupts::of_thread(tx, thread, Some(InterruptState::Pending)).await
}

/// Returns the histories of a subagent and of all agents below it.
pub(super) async fn lanes_of(tx: &mut Tx<'_>, child: RunId) -> DbResult<Vec<Lane>> {
    let members = db::runs::members(tx, child).await?;
    Ok(members.into_iter().map(Lane::Child).collect())
}
