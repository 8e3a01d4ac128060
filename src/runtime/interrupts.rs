//! Interrupts: questions of agents to people, and the runs that continue a thread once they are resolved.
//!
//! An interrupt is resolved by an answer (`answer.rs`) of those to whom it is assigned (`approvers.rs`), by the server
//! of the remote agent that raised it (`remote.rs`), or by the cancellation of the subagent that raised it
//! (`cancel.rs`), or by its expiry (`expire.rs`). It is dropped when the thread continues without an answer. On a branch
//! that the thread has left it waits on (`branches.rs`).
//!
//! Every resolution is a [`Resolution`] that a new run brings. The transaction that admits the run stores it in the
//! rows of the interrupts. The positions of the agents change when the run begins (`deliver.rs`): in the same transaction,
//! if it begins at once and only the main agent has asked. That step can be repeated, so a crash in between loses nothing,
//! and a run that is cancelled before it begins leaves the interrupts open. Such a run begins before all others that are
//! queued on the thread, so that an answer is used once it is accepted. Only a run that is at work by then, and has not
//! begun to write, may go on without it: the interrupts are dropped then, and the run with the answer fails.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::admission::{self, AdmissionContext, Admitted};
use super::audit;
use super::background::BackgroundTasks;
use super::error::StartError;
use super::new_run::{AssistantRef, NewRun, Resolution, Target, streamed_request};
use super::runs::Runs;
use super::shared::Core;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, RunId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::run::{Command, Multitask, Run, RunRequest};

mod answer;
mod approvers;
mod branches;
mod cancel;
mod deliver;
mod expire;
mod remember;
mod remote;

use answer::MatchedAnswer;

pub use answer::{InterruptReply, RespondError};
pub use branches::open_interrupts;

pub(super) use approvers::{check_way, goes_around, record_attempt};
pub(super) use branches::{LaterOpen, can_be_answered, hold_messages, open_at};
pub(super) use cancel::{CallerNotice, cancel_waiting, report_cancelled};
pub(super) use deliver::{AnswerDelivery, Delivered, DeliveredEnd, deliver, is_late, waiting_agents};
pub(super) use expire::{
    ExpiredInterrupts, drop_for_end, drop_for_input, drop_for_update, drop_of_subagents, resume_expired,
};
pub(super) use remember::StoredDecisions;
pub(super) use remote::{is_answered_remotely, pending_of_subagent, resume_answered_remotely};

/// The handle for interrupts: reads and answers them. Cheap to clone.
#[derive(Clone)]
pub struct Interrupts {
    pub(super) core: Arc<Core>,
    pub(super) runs: Runs,
    pub(super) tasks: BackgroundTasks,
}

impl Interrupts {
    pub(super) fn new(runs: Runs, tasks: BackgroundTasks) -> Self {
        Self {
            core: Arc::clone(&runs.core),
            runs,
            tasks,
        }
    }
}

/// Stores a resolution in the rows of the interrupts, on behalf of the run that brings it, and puts it into the command
/// of the run. `open` are the open interrupts, if they are to be read already.
///
/// # Errors
/// Returns the refusal of an answer that does not fit the open interrupts.
pub(super) async fn resolve(
    tx: &mut Tx<'_>,
    run: &mut Run,
    resolution: &Resolution,
    caller: &Identity,
    open: Option<LaterOpen>,
) -> Result<(), StartError> {
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
            remember::remember(tx, run, record, answer, caller).await?;
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
    Ok(())
}

/// Starts a run that continues a thread with a resolution that did not come from a client. Returns none if the run is
/// refused; then nothing is stored, and the transaction can continue.
async fn continue_thread(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    assistant: AssistantId,
    resolution: Resolution,
    context: &AdmissionContext,
) -> DbResult<Option<Admitted>> {
    let (request, metadata) = match &resolution {
        Resolution::Answered(_) | Resolution::AnsweredAlone(..) => (RunRequest::default(), Map::new()),
        Resolution::AnsweredRemotely(child) => {
            let request = RunRequest {
                // Another run may be at work on the thread; then there is nothing to continue.
                multitask: Multitask::Reject,
                ..streamed_request()
            };
            (request, metadata("settled_elsewhere", &[*child]))
        }
        Resolution::Expired(ids) => {
            let request = RunRequest {
                // Another run may be at work on the thread; the job tries again when it has ended.
                multitask: Multitask::Reject,
                ..streamed_request()
            };
            (request, metadata("expired_interrupt_ids", ids))
        }
        Resolution::Cancelled(children) => {
            let request = RunRequest {
                stream_mode: vec!["values".to_owned()],
                ..RunRequest::default()
            };
            (request, metadata("cancelled_run_ids", children))
        }
    };
    let new_run = NewRun {
        target: Target::Thread(thread),
        assistant: AssistantRef::Id(assistant),
        caller: Arc::new(Identity::server()),
        request,
        resume: Some(resolution),
        metadata,
        after: Duration::ZERO,
    };
    match admission::try_start(tx, &new_run, context).await? {
        Ok(admitted) => Ok(Some(admitted)),
        Err(refusal) => {
            tracing::warn!(%thread, %refusal, "no run could be started after an interrupt was resolved");
            Ok(None)
        }
    }
}

fn metadata<T: Serialize>(key: &str, ids: &[T]) -> Map<String, Value> {
    Map::from_iter([(key.to_owned(), json!(ids))])
}

/// Returns the open interrupts of a thread, in the order in which they were raised.
pub(super) async fn pending(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<InterruptRecord>> {
    db::interrupts::of_thread(tx, thread, Some(InterruptState::Pending)).await
}

/// Returns the histories of a subagent and of all agents below it.
async fn lanes_of(tx: &mut Tx<'_>, child: RunId) -> DbResult<Vec<Lane>> {
    let members = db::runs::members(tx, child).await?;
    Ok(members.into_iter().map(Lane::Child).collect())
}
