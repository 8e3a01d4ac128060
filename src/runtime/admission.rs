//! May it start? Busy threads, strategies, depth: every run of every kind is admitted here.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::registry::{Registry, ResolvedAssistant};
use super::{CancelAction, NewRun, StartError, Target, Webhooks, log_lines, resume};
use crate::agent::Agent;
use crate::agent::assemble::RegisteredAgent;
use crate::db::events::NewEvent;
use crate::db::runs::InFlight;
use crate::db::{self, DbResult, Tx};
use crate::definition::{Digest, OnPendingInterrupt};
use crate::domain::Invalid;
use crate::domain::assistant::{Assistant, RunSettings};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::goto::Destination;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::idempotency::REMEMBERED;
use crate::domain::input::{read_input, read_update};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::{Failure, Machine, Phase};
use crate::domain::run::{AssignedAgent, Command, Lineage, Multitask, Run, RunRequest, RunStatus};
use crate::domain::size::SizeLimits;
use crate::domain::thread::{Thread, ThreadStatus, Ttl, TtlStrategy};
use crate::domain::time::Timestamp;

/// How long the thread of a stateless run is kept after its end if nobody was left to remove it.
const TEMPORARY: Ttl = Ttl {
    after: Duration::from_secs(600),
    strategy: TtlStrategy::Delete,
};

/// How long it is kept if whoever asked for the run may ask again what came of it.
const HELD: Ttl = Ttl {
    after: REMEMBERED,
    strategy: TtlStrategy::Delete,
};

/// A run that was admitted.
pub(super) struct Admitted {
    pub(super) run: Run,
    /// Whether it is at work already, under fence 1, and only has to be driven.
    pub(super) claimed: bool,
    /// Runs that it displaces, and what becomes of their work. They were told, those at work in this process excepted.
    pub(super) displaced: Vec<(RunId, CancelAction)>,
}

/// Keeps the thread of a stateless run for as long as its key is remembered: who asks again follows the same run.
pub(super) async fn hold(tx: &mut Tx<'_>, run: &mut Run, now: Timestamp) -> DbResult<()> {
    if run.request.temporary {
        run.request.held = true;
        db::runs::set_request(tx, run.id, &run.request, now).await?;
        db::threads::patch(tx, run.thread, &Map::new(), Some(HELD), now).await?;
    }
    Ok(())
}

/// What runs are admitted with: the agents that there are, the bounds, and the time.
pub(super) struct AdmissionContext {
    pub(super) registry: Arc<Registry>,
    /// Reports of runs that are withdrawn.
    pub(super) webhooks: Arc<Webhooks>,
    /// How large the files may be that a request brings.
    pub(super) sizes: SizeLimits,
    /// What was checked before the write.
    pub(super) checked: Vec<Checked>,
    /// The process that may claim the run at once, if it has a free slot.
    pub(super) worker: Option<WorkerId>,
    pub(super) now: Timestamp,
    /// How long a thread is kept that is made for the run.
    pub(super) ttl: Option<Ttl>,
    /// How many runs may wait on one thread.
    pub(super) most_waiting: u64,
}

/// What was checked ahead.
pub(super) struct Checked {
    /// Which of the requests that are admitted together.
    pub(super) number: usize,
    /// By which definition.
    pub(super) digest: Digest,
    pub(super) context: Map<String, Value>,
}

impl AdmissionContext {
    /// Whether the input of a request was checked by this definition.
    pub(super) fn has_checked(&self, number: usize, digest: &Digest) -> bool {
        self.checked
            .iter()
            .any(|checked| checked.number == number && checked.digest == *digest)
    }

    /// Whether this is the context that was checked, by this definition.
    pub(super) fn has_checked_context(&self, number: usize, digest: &Digest, context: &Map<String, Value>) -> bool {
        let is_this = |checked: &Checked| checked.number == number && checked.digest == *digest;
        self.checked
            .iter()
            .any(|checked| is_this(checked) && checked.context == *context)
    }
}

/// Admits a run of the main agent and writes it, with what its answers change. What was written before a refusal has to be
/// rolled back.
pub(super) async fn start(tx: &mut Tx<'_>, wish: &NewRun, context: &AdmissionContext) -> Result<Admitted, StartError> {
    start_as(tx, RunId::mint(), wish, 0, context).await
}

/// The same in a transaction that goes on after a refusal: nothing of the run is left then, all else is kept.
pub(super) async fn try_start(
    tx: &mut Tx<'_>,
    wish: &NewRun,
    context: &AdmissionContext,
) -> DbResult<Result<Admitted, StartError>> {
    tx.savepoint().await?;
    match start(tx, wish, context).await {
        Ok(admitted) => {
            tx.release_savepoint().await?;
            Ok(Ok(admitted))
        }
        Err(StartError::Fault(error)) => Err(error),
        Err(refusal) => {
            tx.roll_back_to_savepoint().await?;
            Ok(Err(refusal))
        }
    }
}

/// The same under a given id, which no run has. `number` says which of the requests that are admitted together it is.
pub(super) async fn start_as(
    tx: &mut Tx<'_>,
    id: RunId,
    wish: &NewRun,
    number: usize,
    context: &AdmissionContext,
) -> Result<Admitted, StartError> {
    let now = context.now;
    let mut resolved = context.registry.resolve(tx, &wish.assistant).await?;
    resolved.known = context.registry.bound(tx, wish, resolved.known).await?;
    if !context.has_checked(number, &resolved.known.digest) {
        check(wish, &resolved.known.agent, context.sizes)?;
    }
    let thread = find_or_make_thread(tx, wish, context.ttl, now).await?;
    let in_flight = db::runs::count_in_flight(tx, thread.id).await?;
    check_room(wish, in_flight, context.most_waiting)?;
    if let Some(checkpoint) = wish.request.checkpoint
        && db::checkpoints::find_head(tx, thread.id, checkpoint).await?.is_none()
    {
        return Err(StartError::NoCheckpoint(checkpoint));
    }
    let settings = settings(wish, &resolved, &thread);
    if let Some(schema) = resolved.known.agent.context()
        && !context.has_checked_context(number, &resolved.known.digest, &settings.context)
    {
        schema.check(&settings.context)?;
    }
    let mut run = lay_out(id, wish, &resolved, (&thread, settings), now);
    inherit_task_lineage(tx, &thread, &mut run).await?;
    settle_questions(tx, wish, &resolved.known, &mut run, in_flight).await?;
    let displaced = displace(
        tx,
        wish.request.multitask,
        (thread.id, in_flight),
        (&*context.webhooks, now),
    )
    .await?;
    // Those that waited are withdrawn; those at work take their time to stop.
    let is_busy = in_flight.at_work > 0 || in_flight.waiting > 0 && displaced.is_empty();
    let claimed = context.worker.is_some() && !is_busy && run.due_at <= now;
    if claimed {
        run.status = RunStatus::Running;
    }
    db::runs::insert(tx, &run, context.worker.filter(|_| claimed)).await?;
    if !claimed {
        db::rings::ring(tx, db::Notification::Queue).await?;
    }
    enter_thread(tx, &thread, &run, &resolved.known, now).await?;
    Ok(Admitted {
        run,
        claimed,
        displaced,
    })
}

/// Checks whether a run may at least wait on its thread.
fn check_room(wish: &NewRun, in_flight: InFlight, most_waiting: u64) -> Result<(), StartError> {
    match wish.request.multitask {
        Multitask::Reject if !in_flight.is_none() => Err(StartError::Busy),
        Multitask::Enqueue if wish.resume.is_none() && in_flight.waiting >= most_waiting => {
            Err(StartError::ThreadFull(most_waiting))
        }
        Multitask::Reject | Multitask::Enqueue | Multitask::Interrupt | Multitask::Rollback => Ok(()),
    }
}

/// What a run that brings its own thread cannot ask for, since there is nothing on that thread yet.
pub(super) fn check_stateless(wish: &NewRun) -> Result<(), StartError> {
    match (&wish.resume, wish.request.checkpoint) {
        (Some(_), _) => Err(StartError::ResumeNeedsThread),
        (None, Some(checkpoint)) => Err(StartError::NoCheckpoint(checkpoint)),
        (None, None) => Ok(()),
    }
}

/// Stops the runs in flight for one that displaces them: those that wait at once, those at work by telling their worker.
async fn displace(
    tx: &mut Tx<'_>,
    strategy: Multitask,
    (thread, in_flight): (ThreadId, InFlight),
    (webhooks, now): (&Webhooks, Timestamp),
) -> DbResult<Vec<(RunId, CancelAction)>> {
    let action = match strategy {
        Multitask::Rollback => CancelAction::Rollback,
        Multitask::Interrupt => CancelAction::Interrupt,
        Multitask::Enqueue | Multitask::Reject => return Ok(vec![]),
    };
    if in_flight.is_none() {
        return Ok(vec![]);
    }
    // One after the other: together they may be large.
    let all = db::runs::ids_in_flight(tx, thread).await?;
    for id in &all {
        let Some(old) = db::runs::get_by_id(tx, *id).await? else {
            continue;
        };
        if old.status == RunStatus::Pending {
            withdraw(tx, &old, action, (webhooks, now)).await?;
        } else {
            db::runs::request_cancel(tx, old.id, action.word()).await?;
        }
    }
    Ok(all.into_iter().map(|old| (old, action)).collect())
}

/// The thread of a wish, locked, and made if need be.
async fn find_or_make_thread(
    tx: &mut Tx<'_>,
    wish: &NewRun,
    ttl: Option<Ttl>,
    now: Timestamp,
) -> Result<Thread, StartError> {
    let (id, may_make) = match wish.target {
        Target::Thread(id) => (id, false),
        Target::ThreadOrNew(id) => (id, true),
        Target::Stateless { .. } => (ThreadId::mint(), true),
    };
    if let Some(thread) = db::threads::lock(tx, id).await? {
        return Ok(thread);
    }
    if !may_make {
        return Err(StartError::NoThread(id));
    }
    // Should nobody be left to remove it, the thread of a stateless run goes when its time is over.
    let ttl = if wish.target == (Target::Stateless { keep: false }) {
        Some(TEMPORARY)
    } else {
        ttl
    };
    let thread = Thread::new(id, wish.metadata.clone(), now).kept_for(ttl);
    if db::threads::insert(tx, &thread).await? {
        return Ok(thread);
    }
    // Somebody else has made it since the look.
    let made = db::threads::lock(tx, id).await?;
    made.ok_or(StartError::NoThread(id))
}

/// The settings of the run: the wish's own, and the assistant's where it says nothing. An answer goes on with the context
/// of the thread's last run, where it brings none.
pub(super) fn settings(wish: &NewRun, resolved: &ResolvedAssistant, thread: &Thread) -> RunSettings {
    let RunRequest { config, context, .. } = &wish.request;
    let assistant = &resolved.assistant.settings;
    match thread.config.get("configurable") {
        Some(Value::Object(before)) if goes_on(wish) && context.is_empty() && !before.is_empty() => {
            let mut config = config.clone();
            config.insert("configurable".to_owned(), before.clone().into());
            assistant.laid_under(&config, before)
        }
        Some(_) | None => assistant.laid_under(config, context),
    }
}

/// Whether a wish goes on with what waits.
fn goes_on(wish: &NewRun) -> bool {
    wish.resume.is_some() || wish.request.command.as_ref().is_some_and(Command::goes_on)
}

/// The run that is wished for, on this thread and with these settings.
fn lay_out(
    id: RunId,
    wish: &NewRun,
    resolved: &ResolvedAssistant,
    (thread, run): (&Thread, RunSettings),
    now: Timestamp,
) -> Run {
    let Assistant {
        id: assistant,
        version,
        settings,
        ..
    } = &resolved.assistant;
    let mut metadata = settings.metadata.clone();
    metadata.extend(wish.metadata.clone());
    if let Some(Value::Object(more)) = wish.request.config.get("metadata") {
        metadata.extend(more.clone());
    }
    let own = [
        ("graph_id", settings.graph_id.clone()),
        ("assistant_id", assistant.to_string()),
    ];
    metadata.extend(own.map(|(key, value)| (key.to_owned(), value.into())));
    let RunSettings { config, context } = run;
    let request = RunRequest {
        temporary: wish.target == Target::Stateless { keep: false },
        config,
        context,
        agent: Some(AssignedAgent {
            graph_id: settings.graph_id.clone(),
            version: *version,
            definition: Some(resolved.known.digest.clone()),
        }),
        ..wish.request.clone()
    };
    Run {
        id,
        thread: thread.id,
        assistant: *assistant,
        lineage: Lineage::root(id, &resolved.known.agent.name),
        status: RunStatus::Pending,
        request,
        metadata,
        error: None,
        attempt: 1,
        created_at: now,
        updated_at: now,
        due_at: now.plus(wish.after),
    }
}

/// Gives a run its place, if it is on the thread of a task: that of the task, whoever asks for it.
async fn inherit_task_lineage(tx: &mut Tx<'_>, thread: &Thread, run: &mut Run) -> DbResult<()> {
    if run.request.background.is_none() && thread.metadata.contains_key("parent_thread_id") {
        run.request.background = db::background::find(tx, thread.id).await?.map(|record| record.ancestry);
    }
    if let Some(above) = &run.request.background {
        run.lineage.visibility = above.visibility;
    }
    Ok(())
}

/// Answers the thread's open questions with the wish, or drops them for it, or refuses it.
async fn settle_questions(
    tx: &mut Tx<'_>,
    wish: &NewRun,
    known: &RegisteredAgent,
    run: &mut Run,
    in_flight: InFlight,
) -> Result<(), StartError> {
    if let Some(answer) = &wish.resume {
        if matches!(wish.target, Target::Stateless { .. }) {
            return Err(StartError::ResumeNeedsThread);
        }
        let answers = resume::answer(tx, run, answer).await?;
        run.request.command.get_or_insert_with(Command::default).resume = Some(answers);
        return Ok(());
    }
    let begins_anew = wish.request.input.is_some() && wish.request.command.is_none();
    if !begins_anew || !in_flight.is_none() {
        return Ok(());
    }
    if known.on_pending_interrupt == OnPendingInterrupt::Reject {
        let open = resume::pending(tx, run.thread).await?;
        if !open.is_empty() {
            return Err(StartError::QuestionPending(
                open.into_iter().map(|asked| asked.interrupt.id).collect(),
            ));
        }
    }
    Ok(())
}

async fn enter_thread(
    tx: &mut Tx<'_>,
    thread: &Thread,
    run: &Run,
    known: &RegisteredAgent,
    now: Timestamp,
) -> DbResult<()> {
    let mut config = Map::new();
    for key in ["configurable", "tags", "metadata", "recursion_limit"] {
        if let Some(value) = run.request.config.get(key) {
            config.insert(key.to_owned(), value.clone());
        }
    }
    config
        .entry("configurable")
        .or_insert_with(|| Value::Object(Map::new()));
    let mut metadata = thread.metadata.clone();
    for (key, value) in [
        ("graph_id", known.graph_id.clone()),
        ("assistant_id", run.assistant.to_string()),
    ] {
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
    let left = db::threads::ThreadAfterRun {
        run: run.id,
        status,
        error,
    };
    db::threads::leave(tx, run.thread, &left, now).await?;
    Ok(())
}

/// The open questions of a lane and of the children it waits for.
pub(super) async fn open_questions(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Vec<Interrupt>> {
    let mut open = vec![];
    let mut lanes = vec![lane];
    while let Some(lane) = lanes.pop() {
        let Some(head) = db::checkpoints::head(tx, thread, lane).await? else {
            continue;
        };
        let machine = Machine {
            position: head.position,
            ..Machine::default()
        };
        open.extend(machine.open_questions().cloned());
        lanes.extend(machine.parked_children().into_iter().rev().map(Lane::Child));
    }
    Ok(open)
}

/// Cancels a run that has not begun. Whoever wanted to hear of its end does, unless it is undone.
pub(super) async fn withdraw(
    tx: &mut Tx<'_>,
    run: &Run,
    action: CancelAction,
    (webhooks, now): (&Webhooks, Timestamp),
) -> DbResult<()> {
    // Answers that it would have brought were not given.
    db::interrupts::restore(tx, run.thread, run.id).await?;
    match action {
        CancelAction::Interrupt => {
            db::runs::set_status(tx, run.id, RunStatus::Interrupted, None, now).await?;
            webhooks.tell_withdrawn(tx, run, now).await?;
            log_lines::run_withdrawn(run, RunStatus::Interrupted.word());
        }
        CancelAction::Rollback => {
            db::runs::delete(tx, run.thread, run.id).await?;
            log_lines::run_withdrawn(run, log_lines::ROLLED_BACK);
        }
    }
    let (status, error) = standing(tx, run.thread).await?;
    leave_thread(tx, run, status, error, now).await
}

/// Undoes what a run did, and deletes it: the thread stands where it stood before. Only the numbers in its log go on, from
/// `last` on, if that is higher: clients know them.
pub(super) async fn undo(tx: &mut Tx<'_>, run: &Run, last: Option<i64>, now: Timestamp) -> DbResult<()> {
    let seq = (db::checkpoints::max_seq(tx, run.thread).await? + 1).max(last.unwrap_or(0));
    db::checkpoints::delete_of_run(tx, run.thread, run.id).await?;
    let thread = run.thread;
    let lane = Lane::Main;
    let fact = &Fact::Undone;
    db::events::insert(
        tx,
        &[NewEvent {
            thread,
            seq,
            run: run.id,
            lane,
            fact,
            at: now,
        }],
    )
    .await?;
    db::checkpoints::restore_positions(tx, run.id).await?;
    db::interrupts::restore(tx, run.thread, run.id).await?;
    db::runs::restore_children(tx, run.id).await?;
    db::runs::delete(tx, run.thread, run.id).await?;
    let error = Failure::new("UserRollback", "The run was cancelled by request and undone.");
    let (status, _) = standing(tx, run.thread).await?;
    leave_thread(tx, run, status, Some(error), now).await
}

/// What a thread is doing on which nothing is at work, and why its last step failed, when it did.
async fn standing(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<(ThreadStatus, Option<Failure>)> {
    let head = match db::checkpoints::head(tx, thread, Lane::Main).await {
        Ok(Some(head)) => head,
        Ok(None) => return Ok((ThreadStatus::Idle, None)),
        Err(error) if error.is_corrupt() => return Ok((ThreadStatus::Error, Some(db::runs::unreadable(&error)))),
        Err(error) => return Err(error),
    };
    Ok(match (head.position.failure, head.position.phase) {
        (Some(failure), _) => (ThreadStatus::Error, Some(failure)),
        (None, Phase::Ended) => (ThreadStatus::Idle, None),
        (None, Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Tools { .. } | Phase::Work { .. }) => {
            (ThreadStatus::Interrupted, None)
        }
    })
}

/// Checks a wish that is to be granted later, and more than once, as far as can be told ahead, unless that was done before
/// the write.
pub(super) fn check_ahead(
    wish: &NewRun,
    resolved: &ResolvedAssistant,
    context: &AdmissionContext,
) -> Result<(), Invalid> {
    let known = &resolved.known;
    if !context.has_checked(0, &known.digest) {
        check(wish, &known.agent, context.sizes)?;
    }
    let settings = resolved
        .assistant
        .settings
        .laid_under(&wish.request.config, &wish.request.context);
    match known.agent.context() {
        Some(schema) if !context.has_checked_context(0, &known.digest, &settings.context) => {
            schema.check(&settings.context)
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks what a wish brings, as far as the agent alone tells.
pub(super) fn check(wish: &NewRun, agent: &Agent, sizes: SizeLimits) -> Result<(), Invalid> {
    if let Some(input) = &wish.request.input {
        let input = read_input(input)?;
        sizes.check_files(&input)?;
        agent.declared.check_input(&input)?;
        agent.check_content(&input)?;
    }
    if let Some(command) = &wish.request.command {
        if let Some(update) = &command.update {
            read_update(update)
                .and_then(|update| {
                    sizes.check_files(&update)?;
                    agent.check_update(&update)
                })
                .map_err(|error| Invalid {
                    field: format!("command.update.{}", error.field),
                    ..error
                })?;
        }
        Destination::of(&command.goto, &agent.plan)?;
    }
    Ok(())
}
