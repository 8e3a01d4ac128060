//! The transaction that admits a run: it checks the request against the thread and stores the run.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::build_run::{
    account_of, build_run, is_continuation, join_task, settings, take_over, task_lineage, with_choices,
};
use super::check::check;
use super::permission::{check_assistant, check_displacing, check_tenant, check_thread};
use super::target::{LaterResumption, StoredThread, TargetLookup, TargetThread};
use super::{AdmissionContext, Admitted};
use crate::agent::assemble::RegisteredAgent;
use crate::db::checkpoints::LaterLogEnd;
use crate::db::runs::{InFlight, LaterRunBefore, RunBefore};
use crate::db::{self, DbResult, Tx};
use crate::definition::OnPendingInterrupt;
use crate::domain::Invalid;
use crate::domain::account::RunQueue;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::idempotency::REMEMBERED;
use crate::domain::identity::Credential;
use crate::domain::run::{AssignedAgent, Multitask, QueueTurn, Run, RunCaller, RunStatus};
use crate::domain::run_config::CONFIGURABLE;
use crate::domain::thread::{Thread, ThreadStatus, Ttl, TtlStrategy};
use crate::domain::time::Timestamp;
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::error::StartError;
use crate::runtime::interrupts::{self, AnsweredInterrupts, AnsweredThread, AnsweredWork, OpenInterrupts, WaitingWork};
use crate::runtime::new_run::{NewRun, Resolution, Target};
use crate::runtime::registry::{PinnedLookup, ResolvedAssistant};
use crate::runtime::{quotas, trace};

/// The TTL of the thread of a stateless run if the client may repeat its request.
const HELD: Ttl = Ttl {
    after: REMEMBERED,
    strategy: TtlStrategy::Delete,
};

/// Admits a run of the main agent and stores it, with the resolution that it brings. After a refusal the transaction
/// has to be rolled back.
pub(in crate::runtime) async fn start(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    context: &AdmissionContext,
) -> Result<Admitted, StartError> {
    start_as(tx, RunId::mint(), new_run, 0, context).await
}

/// Admits a run like [`start`], in a transaction that continues after a refusal: nothing of the run is stored then, and
/// the other writes are kept.
pub(in crate::runtime) async fn try_start(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    context: &AdmissionContext,
) -> DbResult<Result<Admitted, StartError>> {
    tx.savepoint().await?;
    match start(tx, new_run, context).await {
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

/// Admits a run like [`start`], with a given run id. `number` is the position of the request among those that are
/// admitted together.
pub(in crate::runtime) async fn start_as(
    tx: &mut Tx<'_>,
    id: RunId,
    new_run: &NewRun,
    number: usize,
    context: &AdmissionContext,
) -> Result<Admitted, StartError> {
    let unstored = decide(tx, id, new_run, number, context).await?;
    Ok(unstored.store(tx, None).await?)
}

/// A run that is admitted, and is still to be stored.
pub(in crate::runtime) struct UnstoredRun {
    pub(in crate::runtime) admitted: Admitted,
    /// The end of the log of its thread, if it is to be read together with what the admission reads.
    pub(in crate::runtime) log_end: Option<LaterLogEnd>,
    /// The work that it continues with answers of a client, if it may begin at once.
    pub(in crate::runtime) answered: Option<AnsweredWork>,
    /// Its thread, as it was before.
    thread: Thread,
    stored: StoredThread,
    known: Arc<RegisteredAgent>,
    /// The process that holds the run; none if it waits.
    worker: Option<WorkerId>,
    /// True if it waits for answers, and no run is at work that looks for such runs at its end.
    may_hold_messages: bool,
    /// True if the thread is kept for a repeated request.
    keeps_thread: bool,
    now: Timestamp,
}

impl UnstoredRun {
    /// Keeps the thread of a stateless run for as long as its key is stored: a repeated request follows the same run.
    pub(in crate::runtime) fn keep_for_key(&mut self) {
        let request = &mut self.admitted.run.request;
        request.held |= request.temporary;
        self.keeps_thread = request.temporary;
    }

    /// Stores the run. `first_seq` is the number of its first event, if the same transaction stores that.
    pub(in crate::runtime) async fn store(self, tx: &mut Tx<'_>, first_seq: Option<i64>) -> DbResult<Admitted> {
        let Self {
            admitted,
            log_end: _,
            answered: _,
            thread,
            stored,
            known,
            worker,
            may_hold_messages,
            keeps_thread,
            now,
        } = self;
        let run = &admitted.run;
        let entered = entered_thread(&thread, run, &known);
        if stored == StoredThread::Nothing {
            db::threads::insert_later(tx, &entered).await?;
        }
        db::runs::insert_begun(tx, run, worker, first_seq).await?;
        if may_hold_messages {
            interrupts::hold_messages(tx, thread.id).await?;
        }
        if !admitted.claimed {
            db::notifications::notify(tx, db::Notification::Queue).await?;
        }
        if stored != StoredThread::Nothing {
            enter_thread(tx, &thread, stored, entered, now).await?;
        }
        if keeps_thread {
            db::threads::patch(tx, thread.id, &Map::new(), Some(HELD), now).await?;
        }
        Ok(admitted)
    }
}

/// Decides whether a run is admitted, like [`start_as`], and stores the resolution that it brings, but not the run.
pub(in crate::runtime) async fn decide(
    tx: &mut Tx<'_>,
    id: RunId,
    new_run: &NewRun,
    number: usize,
    context: &AdmissionContext,
) -> Result<UnstoredRun, StartError> {
    let now = context.now;
    let LookedUp { mut resolved, target } = look_up(tx, new_run, context).await?;
    // The choices of the run may change the input that the agent takes.
    let is_configurable = resolved.known.is_configurable();
    if !is_configurable && !context.has_checked(number, &resolved.known.digest) {
        check(new_run, resolved.known.agent(), context.core.sizes)?;
    }
    let TargetThread {
        thread,
        is_new,
        stored,
        in_flight,
        log_end,
        resumption,
    } = target.find_or_make(tx, new_run, context).await?;
    check_thread(tx, &thread, new_run, &context.core).await?;
    let task = task_lineage(tx, new_run, &thread).await?;
    let settings = settings(new_run, &resolved, &thread, task.is_some());
    if is_configurable {
        resolved.known = with_choices(&resolved.known, task.is_some(), &settings.context)?;
        if !context.has_checked(number, &resolved.known.digest) {
            check(new_run, resolved.known.agent(), context.core.sizes)?;
        }
    }
    let user = new_run.request.caller.as_ref().map(RunCaller::to_identity);
    check_tenant(
        &resolved,
        &thread.ownership.tenant,
        user.as_ref().unwrap_or(&new_run.caller),
        &context.core,
    )?;
    check_room(new_run, in_flight, context.most_waiting)?;
    if let Some(action) = action_on_displaced(new_run.request.multitask)
        && in_flight.at_work > 0
    {
        check_displacing(tx, &thread, new_run, action, &context.core).await?;
    }
    check_checkpoint(tx, new_run, thread.id).await?;
    let ContinuedPart { before, open, waiting } = ContinuedPart::read(tx, new_run, thread.id, resumption).await?;
    let account = account_of(new_run, before.as_ref(), &thread);
    let quotas = &context.core.quotas;
    if !is_continuation(new_run)
        && let Some(reached) = quotas::used_up(tx, quotas, &account, now).await?
    {
        return Err(reached.into());
    }
    if let Some(schema) = resolved.known.agent().context()
        && !context.has_checked_context(number, &resolved.known.digest, &settings.context)
    {
        schema.check(&settings.context)?;
    }
    let mut run = build_run(id, new_run, &resolved, &thread, settings, now);
    run.queue = RunQueue::new(account, new_run.request.priority);
    let continued = before.as_ref().filter(|_| new_run.resume.is_some());
    let continued = continued.and_then(|before| before.trace.clone());
    run.request.trace = trace::new_run_trace(&context.core.tracer, id, continued, context.caller_span.as_ref());
    if let Some(before) = before {
        take_over(&mut run, before, new_run, &thread);
    }
    join_task(&mut run, task, &resolved.known);
    // The run at work is locked before interrupts, in the order of its commits.
    let displaced = displace(tx, new_run.request.multitask, thread.id).await?;
    let settled = settle_questions(tx, new_run, &resolved.known, &mut run, in_flight, open).await;
    if let Err(StartError::AssignedToOthers(assigned) | StartError::WaitsForApprovers(assigned)) = &settled {
        interrupts::record_attempt(&context.core, &new_run.caller, thread.id, assigned);
    }
    let answered = settled?;
    // A run at work that is displaced takes some time to stop.
    let is_busy = in_flight.at_work > 0 || in_flight.waiting > 0 && run.request.turn() != QueueTurn::Answer;
    let may_claim = context.worker.is_some() && !is_busy && run.due_at <= now;
    let claimed = may_claim && quotas::may_begin(tx, quotas, &run.queue.account).await?;
    if claimed {
        run.status = RunStatus::Running;
    } else if new_run.resume.is_none() && !is_continuation(new_run) {
        quotas::check_waiting(tx, quotas, &run.queue.account).await?;
    }
    let may_hold_messages = !claimed && run.request.turn() == QueueTurn::AfterAnswers && in_flight.at_work == 0;
    let admitted = Admitted {
        run,
        ownership: thread.ownership.clone(),
        is_thread_new: is_new,
        claimed,
        displaced,
    };
    Ok(UnstoredRun {
        admitted,
        log_end,
        answered: waiting.map(|waiting| AnsweredWork { waiting, answered }),
        thread,
        stored,
        known: resolved.known,
        worker: context.worker.filter(|_| claimed),
        may_hold_messages,
        keeps_thread: false,
        now,
    })
}

/// Checks that the checkpoint from which a run is to go on exists.
async fn check_checkpoint(tx: &mut Tx<'_>, new_run: &NewRun, thread: ThreadId) -> Result<(), StartError> {
    let Some(checkpoint) = new_run.request.checkpoint else {
        return Ok(());
    };
    match db::checkpoints::find_head(tx, thread, checkpoint).await? {
        Some(_) => Ok(()),
        None => Err(StartError::NoCheckpoint(checkpoint)),
    }
}

/// The assistant and the thread that a request names.
struct LookedUp {
    resolved: ResolvedAssistant,
    target: TargetLookup,
}

/// Returns the assistant of a request with the definition of the run, and begins to look for its thread. On SQLite both are read
/// together.
async fn look_up(tx: &mut Tx<'_>, new_run: &NewRun, context: &AdmissionContext) -> Result<LookedUp, StartError> {
    let registry = &context.core.registry;
    let assistant = registry.look_up(tx, &new_run.assistant).await;
    let mut target = TargetLookup::begin(tx, new_run, context).await?;
    let answered = target.take_answered();
    let pinned = match answered {
        // The rows name it.
        Some(_) => None,
        None => Some(PinnedLookup::begin(tx, new_run).await?),
    };
    let found = match assistant {
        Ok(assistant) => assistant.resolve(tx).await,
        Err(refusal) => Err(refusal),
    };
    let mut resolved = match new_run.resume {
        // Approvers do not choose the assistant: they answer the agent that has asked.
        Some(Resolution::AnsweredAlone(..)) => found?,
        Some(_) | None => check_assistant(found, &new_run.assistant, &new_run.caller, &context.core)?,
    };
    let answered = match answered {
        Some(rows) => rows.read(tx).await?,
        None => None,
    };
    resolved.known = match (&answered, pinned) {
        (Some(answered), _) => {
            let agent = assigned_by(tx, answered).await?;
            registry.as_assigned(tx, agent, resolved.known).await?
        }
        (None, Some(pinned)) => registry.pinned(tx, pinned, resolved.known).await?,
        (None, None) => registry.pinned_definition(tx, new_run, resolved.known).await?,
    };
    target.keep_answered(answered);
    Ok(LookedUp { resolved, target })
}

/// Returns the agent of the run whose work waits on a thread, if work waits there.
async fn assigned_by(tx: &mut Tx<'_>, answered: &AnsweredThread) -> DbResult<Option<AssignedAgent>> {
    let Some(run) = answered.waiting.run() else {
        return Ok(None);
    };
    match &answered.before {
        Some(before) if before.run == run => Ok(before.agent.clone()),
        Some(_) | None => Ok(db::runs::get_by_id(tx, run).await?.and_then(|run| run.request.agent)),
    }
}

/// The part of a thread that a new run continues.
struct ContinuedPart {
    /// The run whose work it is, if the new run takes over something from that.
    before: Option<RunBefore>,
    /// The open interrupts, for the answer of a client.
    open: Option<OpenInterrupts>,
    /// The work that waits for the answer of a client, if the run may begin at once with it.
    waiting: Option<Box<WaitingWork>>,
}

impl ContinuedPart {
    /// Reads the part, unless it was read already.
    async fn read(tx: &mut Tx<'_>, new_run: &NewRun, thread: ThreadId, rows: LaterResumption) -> DbResult<Self> {
        if let Some(AnsweredThread { before, open, waiting }) = rows.answered {
            return Ok(Self {
                before,
                open: Some(open),
                waiting: Some(waiting),
            });
        }
        Ok(Self {
            before: find_before(tx, new_run, thread, rows.before).await?,
            open: match rows.open {
                Some(open) => Some(open.read(tx).await?),
                None => None,
            },
            waiting: None,
        })
    }
}

/// Returns what the new run takes over from the newest run on the thread, if it continues the work of that run. `before` is
/// that, if it is to be read already.
async fn find_before(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    thread: ThreadId,
    before: Option<LaterRunBefore>,
) -> DbResult<Option<RunBefore>> {
    if let Some(before) = before {
        return before.find(tx).await;
    }
    let is_of_server = new_run.caller.credential == Credential::Server && new_run.request.caller.is_none();
    if is_of_server || new_run.resume.is_some() {
        return db::runs::find_before(tx, thread).await;
    }
    Ok(None)
}

/// Checks whether a run may start, or at least wait, on its thread. A run that brings an answer goes before those that
/// wait.
fn check_room(new_run: &NewRun, in_flight: InFlight, most_waiting: u64) -> Result<(), StartError> {
    let before = match new_run.resume {
        Some(_) => 0,
        None => in_flight.waiting,
    };
    match new_run.request.multitask {
        Multitask::Reject if in_flight.at_work > 0 || before > 0 => Err(StartError::Busy),
        Multitask::Enqueue | Multitask::Interrupt | Multitask::Rollback
            if new_run.resume.is_none() && before >= most_waiting =>
        {
            Err(StartError::ThreadFull(most_waiting))
        }
        Multitask::Reject | Multitask::Enqueue | Multitask::Interrupt | Multitask::Rollback => Ok(()),
    }
}

/// Refuses parts of a stateless run's request that need an existing thread.
pub(in crate::runtime) fn check_stateless(new_run: &NewRun) -> Result<(), StartError> {
    match (&new_run.resume, new_run.request.checkpoint) {
        (Some(_), _) => Err(StartError::ResumeNeedsThread),
        (None, Some(checkpoint)) => Err(StartError::NoCheckpoint(checkpoint)),
        (None, None) => Ok(()),
    }
}

/// Returns what happens to the run at work, if a new run displaces it.
fn action_on_displaced(strategy: Multitask) -> Option<CancelAction> {
    match strategy {
        Multitask::Rollback => Some(CancelAction::Rollback),
        Multitask::Interrupt => Some(CancelAction::Interrupt),
        Multitask::Enqueue | Multitask::Reject => None,
    }
}

/// Stops the run at work for a run that displaces it, through its process. Queued runs stay: they were accepted, and
/// those who sent them wait for them.
async fn displace(tx: &mut Tx<'_>, strategy: Multitask, thread: ThreadId) -> DbResult<Option<(RunId, CancelAction)>> {
    let Some(action) = action_on_displaced(strategy) else {
        return Ok(None);
    };
    let Some(old) = db::runs::at_work(tx, thread).await? else {
        return Ok(None);
    };
    db::runs::request_cancel(tx, old, action.word()).await?;
    Ok(Some((old, action)))
}

/// Stores the resolution that a run brings, or refuses a run that would leave interrupts unanswered. If the thread is to
/// go on before it, such a run waits until none is pending. Interrupts on branches that the thread has left do not count. `open`
/// are the open ones, if they were read already. Returns those that a client answers with it.
async fn settle_questions(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    known: &RegisteredAgent,
    run: &mut Run,
    in_flight: InFlight,
    open: Option<OpenInterrupts>,
) -> Result<AnsweredInterrupts, StartError> {
    let none = AnsweredInterrupts::default();
    if interrupts::bypasses_interrupts(&run.request) {
        let way = interrupts::check_way(tx, run.thread, run.request.caller.as_ref(), None).await?;
        way.map_err(StartError::WaitsForApprovers)?;
    }
    if let Some(resolution) = &new_run.resume {
        if matches!(new_run.target, Target::Stateless { .. }) {
            return Err(StartError::ResumeNeedsThread);
        }
        refuse_jump(new_run)?;
        return interrupts::resolve(tx, run, resolution, &new_run.caller, open).await;
    }
    let begins_anew = new_run.request.input.is_some() && new_run.request.command.is_none();
    if !begins_anew || known.on_pending_interrupt == OnPendingInterrupt::Drop {
        return Ok(none);
    }
    run.request.after_answers = true;
    if in_flight.at_work > 0 || db::runs::has_queued_answer(tx, run.thread).await? {
        return Ok(none);
    }
    let open = interrupts::open_at(tx, run.thread, None).await?;
    if open.is_empty() {
        return Ok(none);
    }
    Err(StartError::QuestionPending(
        open.into_iter().map(|asked| asked.interrupt.id).collect(),
    ))
}

/// Refuses answers beside a jump. It would leave the step that asked, and what was approved would not happen.
fn refuse_jump(new_run: &NewRun) -> Result<(), Invalid> {
    let command = new_run.request.command.as_ref();
    if command.is_none_or(|command| command.goto.is_empty()) {
        return Ok(());
    }
    let reason = "cannot be given together with answers in `command.resume`: it would leave the step that asked";
    Err(Invalid::new("command.goto", reason))
}

/// Returns a thread as it is once a run of this agent has entered it: it begins there, or waits.
fn entered_thread(thread: &Thread, run: &Run, known: &RegisteredAgent) -> Thread {
    let mut config = Map::new();
    for key in [CONFIGURABLE, "tags", "metadata", "recursion_limit"] {
        if let Some(value) = run.request.config.get(key) {
            config.insert(key.to_owned(), value.clone());
        }
    }
    config.entry(CONFIGURABLE).or_insert_with(|| Value::Object(Map::new()));
    let mut metadata = thread.metadata.clone();
    for (key, value) in [
        ("graph_id", known.graph_id.clone()),
        ("assistant_id", run.assistant.to_string()),
    ] {
        metadata.insert(key.to_owned(), value.into());
    }
    Thread {
        ownership: thread.ownership.clone(),
        status: ThreadStatus::Busy,
        metadata,
        config,
        error: thread.error.clone(),
        ..*thread
    }
}

/// Stores what has changed of a stored thread that a run enters.
async fn enter_thread(
    tx: &mut Tx<'_>,
    thread: &Thread,
    stored: StoredThread,
    entered: Thread,
    now: Timestamp,
) -> DbResult<()> {
    let has_new_metadata = entered.metadata != thread.metadata;
    let change = db::threads::ThreadChange {
        status: Some(entered.status),
        config: Some(entered.config).filter(|config| *config != thread.config),
        metadata: has_new_metadata.then_some(entered.metadata),
        former_metadata: (has_new_metadata && stored == StoredThread::Known).then(|| thread.metadata.clone()),
        ..Default::default()
    };
    db::threads::set(tx, thread.id, change, now).await
}
