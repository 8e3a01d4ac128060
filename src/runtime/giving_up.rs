//! Giving up a subagent that waits for a human: nobody is asked any more, its caller gets an error result, and everybody
//! else goes on, or keeps waiting.
//!
//! The subagent is over from the moment it is cancelled: its run has its end, its questions are dropped. A note in its row
//! stays until its caller was told: by the run at work on the thread, else by one that is started for it. A run that dies in
//! between, or ends waiting without having heard of it, leaves the note for the next one.

use std::time::Duration;

use serde_json::{Map, json};

use super::admission::{self, AdmissionContext, AdmissionDeps, Admitted};
use super::desk::RunContext;
use super::{AssistantRef, CancelAction, CancelError, NewRun, Target, resume};
use crate::db::interrupts::InterruptState;
use crate::db::{self, DbResult, Notification, Tx, rings};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, RunId, ThreadId};
use crate::domain::machine::Failure;
use crate::domain::run::{Command, Run, RunRequest, RunStatus};
use crate::domain::size::SizeLimits;
use crate::domain::time::Timestamp;

/// Who tells the caller.
pub(super) enum CallerNotice {
    /// The run at work, which hears of it under the name of this subagent: the one given up, or one above it that waits, too.
    AtWork(RunId),
    /// A run that was started for it.
    Started(Box<Admitted>),
    /// Whichever run goes on next: the last one was stopped, and did not end by waiting.
    Next,
}

/// Gives up `child`, if it waits.
pub(super) async fn give_up(
    tx: &mut Tx<'_>,
    child: &Run,
    action: CancelAction,
    (house, occasion): (&AdmissionDeps, AdmissionContext),
) -> DbResult<Result<CallerNotice, CancelError>> {
    let thread = child.thread;
    let now = occasion.now;
    db::threads::lock(tx, thread).await?;
    let lanes: Vec<Lane> = db::runs::members(tx, child.id)
        .await?
        .into_iter()
        .map(Lane::Child)
        .collect();
    let open = db::interrupts::of_thread(tx, thread, Some(InterruptState::Pending)).await?;
    if !open.iter().any(|asked| lanes.contains(&asked.lane)) {
        return Ok(Err(CancelError::Over));
    }
    if action == CancelAction::Rollback {
        return Ok(Err(CancelError::NoUndo));
    }
    let at_work = db::runs::in_flight(tx, thread)
        .await?
        .into_iter()
        .find(|run| run.status == RunStatus::Running);
    let newest = match at_work {
        Some(_) => None,
        None => db::runs::newest(tx, thread).await?,
    };
    let waits = newest
        .as_ref()
        .is_some_and(|run| matches!(run.status, RunStatus::Success | RunStatus::Pending));
    let (teller, by) = match (&at_work, newest.filter(|_| waits)) {
        (Some(run), _) => {
            let wakes = clear_way_below(tx, thread, child.id, run.id).await?;
            rings::ring(tx, Notification::Cancel(wakes)).await?;
            (CallerNotice::AtWork(wakes), run.id)
        }
        (None, Some(newest)) => match start(tx, (thread, newest.assistant), &[child.id], (house, occasion)).await? {
            Some(admitted) => {
                let by = admitted.run.id;
                (CallerNotice::Started(Box::new(admitted)), by)
            }
            None => (CallerNotice::Next, newest.id),
        },
        (None, None) => (CallerNotice::Next, child.lineage.root),
    };
    let cancelled = Failure::cancelled();
    db::runs::set_child_status(tx, child.id, (RunStatus::Interrupted, Some(&cancelled)), by, now).await?;
    db::runs::give_up(tx, child.id).await?;
    db::interrupts::abandon(tx, thread, Some(&lanes), by, now).await?;
    if let CallerNotice::Started(_) = teller {
        db::interrupts::goes_on_by(tx, thread, &lanes, by).await?;
    }
    Ok(Ok(teller))
}

/// Starts a run that tells the callers of these subagents. None if it could not be started.
async fn start(
    tx: &mut Tx<'_>,
    (thread, assistant): (ThreadId, AssistantId),
    children: &[RunId],
    (house, occasion): (&AdmissionDeps, AdmissionContext),
) -> DbResult<Option<Admitted>> {
    let command = Command {
        cancelled_children: children.to_vec(),
        ..Command::default()
    };
    let stream_mode = vec!["values".to_owned()];
    let request = RunRequest {
        command: Some(command),
        stream_mode,
        ..RunRequest::default()
    };
    let metadata = Map::from_iter([("cancelled_run_ids".to_owned(), json!(children))]);
    let target = Target::Thread(thread);
    let assistant = AssistantRef::Id(assistant);
    let wish = NewRun {
        target,
        assistant,
        request,
        resume: None,
        metadata,
        after: Duration::ZERO,
    };
    match admission::start(tx, &wish, house, occasion).await? {
        Ok(admitted) => Ok(Some(admitted)),
        Err(refusal) => {
            // The caller is told when somebody goes on with the thread.
            tracing::warn!(%thread, %refusal, "no run could be started after a subagent was cancelled");
            Ok(None)
        }
    }
}

/// After a run of the main agent ended by waiting: starts one more if subagents were given up of which it has not heard.
pub(super) async fn follow(tx: &mut Tx<'_>, desk: &RunContext, at: Timestamp) -> DbResult<()> {
    let run = &desk.run;
    let children = untold(tx, run.thread).await?;
    if children.is_empty() {
        return Ok(());
    }
    // It brings no files.
    let sizes = SizeLimits::default();
    let house = AdmissionDeps {
        registry: desk.registry.clone(),
        webhooks: desk.webhooks.clone(),
        sizes,
        checked: vec![],
    };
    let occasion = AdmissionContext {
        worker: None,
        now: at,
        ttl: None,
        most_waiting: u64::MAX,
        number: 0,
    };
    let started = start(tx, (run.thread, run.assistant), &children, (&house, occasion)).await?;
    if let Some(admitted) = started {
        for child in children {
            let lanes: Vec<Lane> = db::runs::members(tx, child)
                .await?
                .into_iter()
                .map(Lane::Child)
                .collect();
            db::interrupts::goes_on_by(tx, run.thread, &lanes, admitted.run.id).await?;
        }
    }
    Ok(())
}

/// Before a run goes on with a thread: lets the callers of subagents that were given up go on with them.
pub(super) async fn deliver(tx: &mut Tx<'_>, thread: ThreadId, by: RunId) -> DbResult<()> {
    for child in untold(tx, thread).await? {
        resume::clear_way(tx, thread, Lane::Child(child), by).await?;
    }
    Ok(())
}

/// The subagents of a thread that were given up, and whose callers still wait for them.
async fn untold(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<RunId>> {
    let mut untold = vec![];
    for child in db::runs::given_up(tx, thread).await? {
        let caller = resume::parent_lane(tx, child).await?;
        if resume::position(tx, thread, caller).await?.waits_for(child) {
            untold.push(child);
        }
    }
    Ok(untold)
}

/// Clears the way from `child` up to the first caller that is at work; the subagent by which that one hears of it.
async fn clear_way_below(tx: &mut Tx<'_>, thread: ThreadId, child: RunId, by: RunId) -> DbResult<RunId> {
    let mut at = child;
    loop {
        let Lane::Child(caller) = resume::parent_lane(tx, at).await? else {
            return Ok(at);
        };
        let is_at_work = db::runs::get_by_id(tx, caller)
            .await?
            .is_none_or(|run| run.status == RunStatus::Running);
        if is_at_work {
            return Ok(at);
        }
        resume::unpark(tx, thread, (Lane::Child(caller), at), by).await?;
        at = caller;
    }
}
