//! May it start? Busy threads, strategies, depth: every run of every kind is admitted here.

use std::sync::Arc;

use serde_json::Value;

use super::ahead::Checked;
use super::assistants::{self, ResolvedAssistant};
use super::registry::Registry;
use super::sweeper::{HELD, TEMPORARY};
use super::{CancelAction, NewRun, StartError, Target, Webhooks, background, log_lines, resume};
use crate::agent::assemble::RegisteredAgent;
use crate::agent::{Agent, NewChildRun};
use crate::db::events::NewEvent;
use crate::db::runs::InFlight;
use crate::db::{self, DbResult, Tx};
use crate::definition::OnPendingInterrupt;
use crate::domain::Invalid;
use crate::domain::assistant::{Assistant, RunSettings};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::goto::Destination;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::input::{read_input, read_update};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::{Failure, Machine, Phase};
use crate::domain::run::{AssignedAgent, Command, Lineage, Multitask, Run, RunRequest, RunStatus};
use crate::domain::size::SizeLimits;
use crate::domain::thread::{Thread, ThreadStatus, Ttl};
use crate::domain::time::Timestamp;

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
        db::threads::patch(tx, run.thread, &serde_json::Map::new(), Some(HELD), now).await?;
    }
    Ok(())
}

/// Who there is to run, and who tells others that they have.
pub(super) struct AdmissionDeps {
    pub(super) registry: Arc<Registry>,
    pub(super) webhooks: Arc<Webhooks>,
    /// How large the files may be that a request brings.
    pub(super) sizes: SizeLimits,
    /// What was checked before the write.
    pub(super) checked: Vec<Checked>,
}

/// What does not depend on the wish.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdmissionContext {
    /// Who may take the run at once.
    pub(super) worker: Option<WorkerId>,
    /// When it is.
    pub(super) now: Timestamp,
    /// How long a thread is kept that is made for the run.
    pub(super) ttl: Option<Ttl>,
    /// How many runs may wait on one thread.
    pub(super) most_waiting: u64,
    /// Which of the requests that are admitted together.
    pub(super) number: usize,
}

/// Admits a run of the main agent; writes it, and what its answers change, or nothing.
pub(super) async fn start(
    tx: &mut Tx<'_>,
    wish: &NewRun,
    house: &AdmissionDeps,
    occasion: AdmissionContext,
) -> DbResult<Result<Admitted, StartError>> {
    start_as(tx, RunId::mint(), wish, house, occasion).await
}

/// The same under a given id, which no run has.
pub(super) async fn start_as(
    tx: &mut Tx<'_>,
    id: RunId,
    wish: &NewRun,
    house: &AdmissionDeps,
    AdmissionContext {
        worker,
        now,
        ttl,
        most_waiting,
        number,
    }: AdmissionContext,
) -> DbResult<Result<Admitted, StartError>> {
    let mut cast = match assistants::cast(tx, &house.registry.agents(), &wish.assistant).await? {
        Ok(cast) => cast,
        Err(refusal) => return Ok(Err(refusal)),
    };
    cast.known = house.registry.bound(tx, wish, cast.known).await?;
    if !house.has_checked(number, &cast.known.digest)
        && let Err(invalid) = check(wish, &cast.known.agent, house.sizes)
    {
        return Ok(Err(invalid.into()));
    }
    let (thread, is_new) = match find_thread(tx, wish, ttl, now).await? {
        Ok(found) => found,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let in_flight = db::runs::count_in_flight(tx, thread.id).await?;
    if let Some(refusal) = no_room(wish, in_flight, most_waiting) {
        return Ok(Err(refusal));
    }
    if let Some(checkpoint) = wish.request.checkpoint
        && db::checkpoints::find_head(tx, thread.id, checkpoint).await?.is_none()
    {
        return Ok(Err(StartError::NoCheckpoint(checkpoint)));
    }
    let settings = settings(wish, &cast, &thread);
    if !house.has_checked_context(number, &cast.known.digest, &settings.context)
        && let Some(Err(invalid)) = cast.known.agent.context().map(|schema| schema.check(&settings.context))
    {
        return Ok(Err(invalid.into()));
    }
    let mut run = lay_out(id, wish, &cast, (&thread, settings), now);
    background::place(tx, &thread, &mut run).await?;
    if let Err(refusal) = settle_questions(tx, wish, &cast.known, &mut run, in_flight).await? {
        return Ok(Err(refusal));
    }
    let displaced = displace(
        tx,
        wish.request.multitask,
        (thread.id, in_flight),
        (&*house.webhooks, now),
    )
    .await?;
    // Those that waited are withdrawn; those at work take their time to stop.
    let is_busy = in_flight.at_work > 0 || in_flight.waiting > 0 && displaced.is_empty();
    let claimed = worker.is_some() && !is_busy && run.due_at <= now;
    if claimed {
        run.status = RunStatus::Running;
    }
    // Not before all refusals: they leave nothing behind.
    if is_new {
        db::threads::insert(tx, &thread).await?;
    }
    db::runs::insert(tx, &run, worker.filter(|_| claimed)).await?;
    if !claimed {
        db::rings::ring(tx, db::Notification::Queue).await?;
    }
    enter_thread(tx, &thread, &run, &cast.known, now).await?;
    Ok(Ok(Admitted {
        run,
        claimed,
        displaced,
    }))
}

/// Why a run may not even wait on its thread, if it may not.
fn no_room(wish: &NewRun, in_flight: InFlight, most_waiting: u64) -> Option<StartError> {
    match wish.request.multitask {
        Multitask::Reject if !in_flight.is_none() => Some(StartError::Busy),
        Multitask::Enqueue if wish.resume.is_none() && in_flight.waiting >= most_waiting => {
            Some(StartError::ThreadFull(most_waiting))
        }
        Multitask::Reject | Multitask::Enqueue | Multitask::Interrupt | Multitask::Rollback => None,
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

/// The thread of a wish, and whether it is still to be made.
async fn find_thread(
    tx: &mut Tx<'_>,
    wish: &NewRun,
    ttl: Option<Ttl>,
    now: Timestamp,
) -> DbResult<Result<(Thread, bool), StartError>> {
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
    let ttl = if wish.target == (Target::Stateless { keep: false }) {
        Some(TEMPORARY)
    } else {
        ttl
    };
    Ok(Ok((Thread::new(id, wish.metadata.clone(), now).with_ttl(ttl), true)))
}

/// The settings of the run: the wish's own, and the assistant's where it says nothing. An answer goes on with the context
/// of the thread's last run, where it brings none.
pub(super) fn settings(wish: &NewRun, cast: &ResolvedAssistant, thread: &Thread) -> RunSettings {
    let RunRequest { config, context, .. } = &wish.request;
    let assistant = &cast.assistant.settings;
    match thread.config.get("configurable") {
        Some(Value::Object(before)) if goes_on(wish) && context.is_empty() && !before.is_empty() => {
            let mut config = config.clone();
            config.insert("configurable".to_owned(), before.clone().into());
            assistant.as_defaults_for(&config, before)
        }
        Some(_) | None => assistant.as_defaults_for(config, context),
    }
}

/// Whether a wish goes on with what waits.
fn goes_on(wish: &NewRun) -> bool {
    wish.resume.is_some() || wish.request.command.as_ref().is_some_and(Command::resumes)
}

/// The run that is wished for, on this thread and with these settings.
fn lay_out(
    id: RunId,
    wish: &NewRun,
    cast: &ResolvedAssistant,
    (thread, run): (&Thread, RunSettings),
    now: Timestamp,
) -> Run {
    let Assistant {
        id: assistant,
        version,
        settings,
        ..
    } = &cast.assistant;
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
            definition: Some(cast.known.digest.clone()),
        }),
        ..wish.request.clone()
    };
    Run {
        id,
        thread: thread.id,
        assistant: *assistant,
        lineage: Lineage::root(id, &cast.known.agent.name),
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

/// Answers the thread's open questions with the wish, or drops them for it, or refuses it.
async fn settle_questions(
    tx: &mut Tx<'_>,
    wish: &NewRun,
    known: &RegisteredAgent,
    run: &mut Run,
    in_flight: InFlight,
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
    if !begins_anew || !in_flight.is_none() {
        return Ok(Ok(()));
    }
    if known.on_pending_interrupt == OnPendingInterrupt::Reject {
        let open = resume::pending(tx, run.thread).await?;
        if !open.is_empty() {
            return Ok(Err(StartError::QuestionPending(
                open.into_iter().map(|asked| asked.interrupt.id).collect(),
            )));
        }
    }
    Ok(Ok(()))
}

async fn enter_thread(
    tx: &mut Tx<'_>,
    thread: &Thread,
    run: &Run,
    known: &RegisteredAgent,
    now: Timestamp,
) -> DbResult<()> {
    let mut config = serde_json::Map::new();
    for key in ["configurable", "tags", "metadata", "recursion_limit"] {
        if let Some(value) = run.request.config.get(key) {
            config.insert(key.to_owned(), value.clone());
        }
    }
    config
        .entry("configurable")
        .or_insert_with(|| Value::Object(serde_json::Map::new()));
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

/// Admits a child run, or says why not. A child that was admitted before is found again.
pub(super) async fn child(
    tx: &mut Tx<'_>,
    (root, registry): (&Run, &Registry),
    wish: &NewChildRun,
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
    let agent = match &wish.graph_id {
        None => None,
        Some(graph_id) => match registry.agents().of_graph(graph_id) {
            Some(known) => {
                if let Some(refusal) = wish.incompatibility(&known.agent) {
                    return Ok(Err(refusal));
                }
                let graph_id = graph_id.clone();
                let definition = Some(known.digest.clone());
                Some(AssignedAgent {
                    graph_id,
                    version: 1,
                    definition,
                })
            }
            None => {
                return Ok(Err(format!(
                    "The agent `{graph_id}` is not defined on this server. Do the work yourself."
                )));
            }
        },
    };
    let request = RunRequest {
        input: serde_json::to_value(&wish.order).ok(),
        agent,
        ..RunRequest::default()
    };
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
    background::note_remote_run(tx, &run, wish.url.as_deref()).await?;
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
pub(super) fn check_ahead(wish: &NewRun, cast: &ResolvedAssistant, house: &AdmissionDeps) -> Result<(), Invalid> {
    let known = &cast.known;
    if !house.has_checked(0, &known.digest) {
        check(wish, &known.agent, house.sizes)?;
    }
    let settings = cast
        .assistant
        .settings
        .as_defaults_for(&wish.request.config, &wish.request.context);
    match known.agent.context() {
        Some(schema) if !house.has_checked_context(0, &known.digest, &settings.context) => {
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
