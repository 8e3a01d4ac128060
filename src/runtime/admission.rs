//! May it start? Busy threads, strategies, depth: every run of every kind is admitted here.

use serde_json::Value;

use super::sweeper::TEMPORARY;
use super::{CancelAction, StartError, Target, Wish, resume};
use crate::agent::ChildWish;
use crate::agent::assemble::Known;
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::checkpoint::Lane;
use crate::domain::definition::OnPendingInterrupt;
use crate::domain::goto::Destination;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::input::{read_input, read_update};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::{Failure, Machine, Plan};
use crate::domain::run::{Command, Lineage, Multitask, Run, RunRequest, RunStatus};
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

/// A run that was admitted.
pub(super) struct Admitted {
    pub(super) run: Run,
    /// Whether it is at work already, under fence 1, and only has to be driven.
    pub(super) claimed: bool,
    /// Runs that it displaces.
    pub(super) displaced: Vec<Run>,
}

/// Admits a run of the main agent; writes it, and what its answers change, or nothing.
pub(super) async fn start(
    tx: &mut Tx<'_>,
    wish: &Wish,
    known: &Known,
    worker: Option<WorkerId>,
    now: Timestamp,
) -> DbResult<Result<Admitted, StartError>> {
    let (thread, is_new) = match find_thread(tx, wish, now).await? {
        Ok(found) => found,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let in_flight = db::runs::in_flight(tx, thread.id).await?;
    if !in_flight.is_empty() && wish.request.multitask == Multitask::Reject {
        return Ok(Err(StartError::Busy));
    }
    if let Some(checkpoint) = wish.request.checkpoint
        && db::checkpoints::find_head(tx, thread.id, checkpoint).await?.is_none()
    {
        return Ok(Err(StartError::NoCheckpoint(checkpoint)));
    }
    let mut run = lay_out(wish, known, &thread, now);
    if let Err(refusal) = settle_questions(tx, wish, known, &mut run, &in_flight).await? {
        return Ok(Err(refusal));
    }
    let displaces = matches!(wish.request.multitask, Multitask::Interrupt | Multitask::Rollback);
    let displaced = if displaces { in_flight.clone() } else { vec![] };
    let claimed = worker.is_some() && in_flight.is_empty() && run.due_at <= now;
    if claimed {
        run.status = RunStatus::Running;
    }
    // Not before all refusals: they leave nothing behind.
    if is_new {
        db::threads::insert(tx, &thread).await?;
    }
    db::runs::insert(tx, &run, worker.filter(|_| claimed)).await?;
    enter_thread(tx, &thread, &run, known, now).await?;
    Ok(Ok(Admitted { run, claimed, displaced }))
}

/// What a run that brings its own thread cannot ask for, since there is nothing on that thread yet.
pub(super) fn check_stateless(wish: &Wish) -> Result<(), StartError> {
    match (&wish.resume, wish.request.checkpoint) {
        (Some(_), _) => Err(StartError::ResumeNeedsThread),
        (None, Some(checkpoint)) => Err(StartError::NoCheckpoint(checkpoint)),
        (None, None) => Ok(()),
    }
}

/// The thread of a wish, and whether it is still to be made.
async fn find_thread(tx: &mut Tx<'_>, wish: &Wish, now: Timestamp) -> DbResult<Result<(Thread, bool), StartError>> {
    let (id, may_make) = match wish.target {
        Target::Thread(id) => (id, false),
        Target::ThreadOrNew(id) => (id, true),
        Target::Stateless { .. } => (ThreadId::mint(), true),
    };
    if let Some(thread) = db::threads::lock(tx, id).await? {
        return Ok(Ok((thread, false)));
    }
    if !may_make {
        return Ok(Err(StartError::NoThread(id)));
    }
    // Should nobody be left to remove it, the thread of a stateless run goes when its time is over.
    let ttl = (wish.target == Target::Stateless { keep: false }).then_some(TEMPORARY);
    Ok(Ok((Thread::new(id, wish.metadata.clone(), now).kept_for(ttl), true)))
}

fn lay_out(wish: &Wish, known: &Known, thread: &Thread, now: Timestamp) -> Run {
    let id = RunId::mint();
    let mut metadata = wish.metadata.clone();
    if let Some(Value::Object(more)) = wish.request.config.get("metadata") {
        metadata.extend(more.clone());
    }
    let own = [("created_by", "system".to_owned()), ("graph_id", known.graph_id.clone())];
    metadata.extend(own.map(|(key, value)| (key.to_owned(), value.into())));
    metadata.insert("assistant_id".to_owned(), known.assistant.to_string().into());
    Run {
        id,
        thread: thread.id,
        assistant: known.assistant,
        lineage: Lineage::root(id, &known.agent.name),
        status: RunStatus::Pending,
        request: RunRequest { temporary: wish.target == Target::Stateless { keep: false }, ..wish.request.clone() },
        metadata,
        error: None,
        attempt: 1,
        created_at: now,
        updated_at: now,
        due_at: now.plus(wish.after),
    }
}

/// Answers the thread's open questions with the wish, or drops them for it, or refuses it.
async fn settle_questions(
    tx: &mut Tx<'_>,
    wish: &Wish,
    known: &Known,
    run: &mut Run,
    in_flight: &[Run],
) -> DbResult<Result<(), StartError>> {
    if let Some(answer) = &wish.resume {
        if matches!(wish.target, Target::Stateless { .. }) {
            return Ok(Err(StartError::ResumeNeedsThread));
        }
        let answers = match resume::answer(tx, run, answer).await? {
            Ok(answers) => answers,
            Err(refusal) => return Ok(Err(refusal)),
        };
        run.request.command.get_or_insert_with(Command::default).resume = Some(answers);
        return Ok(Ok(()));
    }
    let begins_anew = wish.request.input.is_some() && wish.request.command.is_none();
    if !begins_anew || !in_flight.is_empty() {
        return Ok(Ok(()));
    }
    if known.on_pending_interrupt == OnPendingInterrupt::Reject {
        let open = resume::pending(tx, run.thread).await?;
        if !open.is_empty() {
            return Ok(Err(StartError::QuestionPending(open.into_iter().map(|asked| asked.interrupt.id).collect())));
        }
    }
    Ok(Ok(()))
}

async fn enter_thread(tx: &mut Tx<'_>, thread: &Thread, run: &Run, known: &Known, now: Timestamp) -> DbResult<()> {
    let mut config = serde_json::Map::new();
    for key in ["configurable", "tags", "metadata", "recursion_limit"] {
        if let Some(value) = run.request.config.get(key) {
            config.insert(key.to_owned(), value.clone());
        }
    }
    config.entry("configurable").or_insert_with(|| Value::Object(serde_json::Map::new()));
    let mut metadata = thread.metadata.clone();
    for (key, value) in [("graph_id", known.graph_id.clone()), ("assistant_id", known.assistant.to_string())] {
        metadata.insert(key.to_owned(), value.into());
    }
    let change = db::threads::ThreadChange {
        status: Some(ThreadStatus::Busy),
        config: Some(config),
        metadata: (metadata != thread.metadata).then_some(metadata),
        ..Default::default()
    };
    db::threads::set(tx, thread.id, change, now).await?;
    Ok(())
}

/// Writes what a thread is doing after `run`: busy, if others wait for their turn.
pub(super) async fn leave_thread(
    tx: &mut Tx<'_>,
    run: &Run,
    status: ThreadStatus,
    error: Option<Failure>,
    now: Timestamp,
) -> DbResult<()> {
    let left = db::threads::Left { run: run.id, status, error };
    db::threads::leave(tx, run.thread, &left, now).await?;
    Ok(())
}

/// Admits a child run, or says why not. A child that was admitted before is found again.
pub(super) async fn child(
    tx: &mut Tx<'_>,
    root: &Run,
    wish: &ChildWish,
    now: Timestamp,
) -> DbResult<Result<Run, String>> {
    if let Some(run) = db::runs::get_by_id(tx, wish.id).await? {
        return Ok(Ok(run));
    }
    if wish.lineage.depth > wish.max_depth {
        return Ok(Err(format!(
            "Delegation is limited to {} levels and this one would be level {}. Do the work yourself.",
            wish.max_depth, wish.lineage.depth
        )));
    }
    let request = RunRequest { input: Some(Value::String(wish.description.clone())), ..RunRequest::default() };
    let run = Run {
        id: wish.id,
        thread: root.thread,
        assistant: root.assistant,
        lineage: wish.lineage.clone(),
        status: RunStatus::Running,
        request,
        metadata: serde_json::Map::new(),
        error: None,
        attempt: 1,
        created_at: now,
        updated_at: now,
        due_at: now,
    };
    db::runs::insert(tx, &run, None).await?;
    Ok(Ok(run))
}

/// The open questions of a lane and of the children it waits for.
pub(super) async fn open_questions(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Vec<Interrupt>> {
    let mut open = vec![];
    let mut lanes = vec![lane];
    while let Some(lane) = lanes.pop() {
        let Some(head) = db::checkpoints::head(tx, thread, lane).await? else {
            continue;
        };
        let machine = Machine { position: head.position, ..Machine::default() };
        open.extend(machine.open_questions().cloned());
        lanes.extend(machine.parked_children().into_iter().rev().map(Lane::Child));
    }
    Ok(open)
}

/// Cancels a run that has not begun.
pub(super) async fn withdraw(tx: &mut Tx<'_>, run: &Run, action: CancelAction, now: Timestamp) -> DbResult<()> {
    match action {
        CancelAction::Interrupt => {
            db::runs::set_status(tx, run.id, RunStatus::Interrupted, None, now).await?;
        }
        CancelAction::Rollback => {
            db::runs::delete(tx, run.thread, run.id).await?;
        }
    }
    leave_thread(tx, run, ThreadStatus::Idle, None, now).await
}

/// Checks what a wish brings, as far as the agent alone tells.
pub(super) fn check(wish: &Wish, plan: &Plan) -> Result<(), Invalid> {
    if let Some(input) = &wish.request.input {
        read_input(input)?;
    }
    if let Some(command) = &wish.request.command {
        if let Some(update) = &command.update {
            read_update(update)
                .map_err(|error| Invalid { field: format!("command.update.{}", error.field), ..error })?;
        }
        Destination::of(&command.goto, plan)?;
    }
    Ok(())
}
