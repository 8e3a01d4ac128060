//! The transaction that admits a run: it checks the request against the thread and stores the run.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::target::{TargetLookup, TargetThread};
use super::{AdmissionContext, Admitted};
use crate::agent::Agent;
use crate::agent::assemble::RegisteredAgent;
use crate::db::checkpoints::LaterLogEnd;
use crate::db::runs::{InFlight, LaterRunBefore, RunBefore};
use crate::db::{self, DbResult, Tx};
use crate::definition::OnPendingInterrupt;
use crate::domain::Invalid;
use crate::domain::access::{Action, Ownership, ResourceFacts};
use crate::domain::account::{Account, RunQueue};
use crate::domain::assistant::{Assistant, AssistantSettings, RunSettings};
use crate::domain::goto::Destination;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::idempotency::REMEMBERED;
use crate::domain::identity::{Credential, Identity, Tenant};
use crate::domain::input::{read_input, read_update};
use crate::domain::metadata;
use crate::domain::run::{
    AssignedAgent, Command, Lineage, Multitask, QueueTurn, Run, RunCaller, RunRequest, RunStatus, SERVER_KEYS,
};
use crate::domain::run_config::{CONFIGURABLE, configurable, set_configurable};
use crate::domain::size::SizeLimits;
use crate::domain::thread::{Thread, ThreadStatus, Ttl, TtlStrategy};
use crate::domain::time::Timestamp;
use crate::runtime::access::{self, Denial};
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::error::StartError;
use crate::runtime::interrupts::{self, LaterOpen};
use crate::runtime::new_run::{AssistantRef, NewRun, PARENT_RUN, Resolution, Target};
use crate::runtime::registry::{PinnedLookup, ResolvedAssistant};
use crate::runtime::resource_ref::ResourceRef;
use crate::runtime::shared::Core;
use crate::runtime::{audit, quotas, trace};

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
    /// Its thread, as it was before.
    thread: Thread,
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
            thread,
            known,
            worker,
            may_hold_messages,
            keeps_thread,
            now,
        } = self;
        let run = &admitted.run;
        db::runs::insert_begun(tx, run, worker, first_seq).await?;
        if may_hold_messages {
            interrupts::hold_messages(tx, thread.id).await?;
        }
        if !admitted.claimed {
            db::notifications::notify(tx, db::Notification::Queue).await?;
        }
        enter_thread(tx, &thread, run, &known, now).await?;
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
        in_flight,
        log_end,
        resumption,
    } = target.find_or_make(tx, new_run, context).await?;
    check_thread(tx, &thread, new_run, &context.core).await?;
    let settings = settings(new_run, &resolved, &thread);
    if is_configurable {
        resolved.known = with_choices(new_run, &resolved.known, Some(&thread), &settings.context)?;
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
    let in_flight = match in_flight {
        Some(in_flight) => in_flight.count(tx).await?,
        None => InFlight::default(),
    };
    check_room(new_run, in_flight, context.most_waiting)?;
    if action_on_displaced(new_run.request.multitask).is_some() && in_flight.at_work > 0 {
        check_by_policies(tx, &thread, new_run, Action::ThreadsUpdate, &context.core).await?;
    }
    check_checkpoint(tx, new_run, thread.id).await?;
    let before = find_before(tx, new_run, thread.id, resumption.before).await?;
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
    // A compaction is no part of a background task, and its end is not that of the task.
    if run.request.compaction.is_none() {
        inherit_task_lineage(tx, &thread, &mut run).await?;
    }
    // The run at work is locked before interrupts, in the order of its commits.
    let displaced = displace(tx, new_run.request.multitask, thread.id).await?;
    let settled = settle_questions(tx, new_run, &resolved.known, &mut run, in_flight, resumption.open).await;
    if let Err(StartError::AssignedToOthers(assigned) | StartError::WaitsForApprovers(assigned)) = &settled {
        interrupts::record_attempt(&context.core, &new_run.caller, thread.id, assigned);
    }
    settled?;
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
        first_step: None,
        continued: None,
        displaced,
    };
    Ok(UnstoredRun {
        admitted,
        log_end,
        thread,
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
    let pinned = PinnedLookup::begin(tx, new_run).await?;
    let target = TargetLookup::begin(tx, new_run, context).await?;
    let found = match assistant {
        Ok(assistant) => assistant.resolve(tx).await,
        Err(refusal) => Err(refusal),
    };
    let mut resolved = match new_run.resume {
        // Approvers do not choose the assistant: they answer the agent that has asked.
        Some(Resolution::AnsweredAlone(..)) => found?,
        Some(_) | None => check_assistant(found, &new_run.assistant, &new_run.caller, &context.core)?,
    };
    resolved.known = registry.pinned(tx, pinned, resolved.known).await?;
    Ok(LookedUp { resolved, target })
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

/// Gives a run the priority and the user of the run whose work it continues.
fn take_over(run: &mut Run, before: RunBefore, new_run: &NewRun, thread: &Thread) {
    run.queue.priority = run.queue.priority.max(before.queue.priority);
    // The server continues work on the thread, or an approver has decided: on behalf of the same user as before.
    if !is_on_behalf_of_caller(new_run, thread) && run.request.caller.is_none() {
        run.request.caller = before.caller;
    }
}

/// Returns the account on whose behalf a run works: that of the run which it continues, else that of the caller, or of
/// the owner of the thread if the server itself starts the run.
fn account_of(new_run: &NewRun, before: Option<&RunBefore>, thread: &Thread) -> Account {
    match before {
        Some(before) => before.queue.account.clone(),
        None if new_run.caller.credential == Credential::Server => Account::of_owner(&thread.ownership),
        None => Account::of(&new_run.caller),
    }
}

/// Returns whether the server itself continues work that was admitted before. Quotas do not hold that up; its model
/// calls are checked like all others.
fn is_continuation(new_run: &NewRun) -> bool {
    new_run.caller.credential == Credential::Server && new_run.request.input.is_none()
}

/// Returns the assistant that a request names, if it exists for the caller. Otherwise the refusal is recorded: an
/// assistant of another tenant is not even read where the database guards its rows.
pub(in crate::runtime) async fn find_assistant(
    tx: &mut Tx<'_>,
    wanted: &AssistantRef,
    caller: &Identity,
    core: &Arc<Core>,
) -> Result<ResolvedAssistant, StartError> {
    let resolved = core.registry.resolve(tx, wanted).await;
    check_assistant(resolved, wanted, caller, core)
}

/// Returns the assistant that a request names as [`find_assistant`] does, after it was looked for.
fn check_assistant(
    resolved: Result<ResolvedAssistant, StartError>,
    wanted: &AssistantRef,
    caller: &Identity,
    core: &Arc<Core>,
) -> Result<ResolvedAssistant, StartError> {
    if caller.is_unrestricted() {
        return resolved;
    }
    if let (Err(StartError::NoAssistant(_)), AssistantRef::Id(id)) = (&resolved, wanted) {
        let resource = ResourceRef::Assistant(*id).to_string();
        audit::record_refusal(core, caller, Action::AssistantsRead, resource, &[]);
    }
    let resolved = resolved?;
    let assistant = &resolved.assistant;
    let facts = facts_of(assistant);
    let action = Action::AssistantsRead;
    let decided = access::decide(core, caller, action, &facts);
    decided.map_err(|denial| {
        record_denial(core, caller, action, ResourceRef::Assistant(assistant.id), &denial);
        let agents = core.registry.agents_of(&caller.tenant);
        StartError::NoAssistant(match wanted {
            // The same as for a name that no tenant has.
            AssistantRef::Graph(graph_id) if !agents.contains(graph_id) => graph_id.clone(),
            AssistantRef::Graph(_) | AssistantRef::Id(_) => assistant.id.to_string(),
        })
    })?;
    Ok(resolved)
}

/// Checks whether a tenant may run the agent of an assistant, with all of its models. A refusal of a user is recorded.
pub(in crate::runtime) fn check_tenant(
    resolved: &ResolvedAssistant,
    tenant: &Tenant,
    user: &Identity,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let assistant = resolved.assistant.id;
    let refused = || {
        if !user.is_unrestricted() {
            let resource = ResourceRef::Assistant(assistant).to_string();
            audit::record_refusal(core, user, Action::ThreadsCreateRun, resource, &[]);
        }
    };
    let known = core.registry.for_tenant(&resolved.known, tenant);
    let Some(known) = known.filter(|_| !resolved.is_of_another(tenant)) else {
        refused();
        return Err(StartError::NoAgent {
            assistant,
            graph_id: resolved.known.graph_id.clone(),
        });
    };
    known.check_models().map_err(|error| {
        refused();
        StartError::ModelNotAllowed(error.to_string())
    })
}

/// Records that a caller was refused.
fn record_denial(core: &Arc<Core>, caller: &Identity, action: Action, resource: ResourceRef, denial: &Denial) {
    audit::record_refusal(core, caller, action, resource.to_string(), &denial.policies);
}

/// Returns whether a run works on behalf of its caller. An approver of another user's thread decides, and the agent
/// goes on working on behalf of the owner.
fn is_on_behalf_of_caller(new_run: &NewRun, thread: &Thread) -> bool {
    let caller = &new_run.caller;
    match new_run.resume {
        Some(Resolution::AnsweredAlone(..)) => thread.ownership == Ownership::of(caller),
        Some(_) | None => caller.credential != Credential::Server,
    }
}

/// Checks whether the caller may start a run on a thread, or answer its interrupts.
async fn check_thread(tx: &mut Tx<'_>, thread: &Thread, new_run: &NewRun, core: &Arc<Core>) -> Result<(), StartError> {
    let caller = &new_run.caller;
    if caller.is_unrestricted() {
        return Ok(());
    }
    let action = match new_run.resume {
        Some(_) => Action::InterruptsResolve,
        None => Action::ThreadsCreateRun,
    };
    let is_assigned = match &new_run.resume {
        Some(Resolution::AnsweredAlone(id, _)) => {
            let found = db::interrupts::find(tx, thread.id, id).await?;
            found.is_some_and(|record| {
                let approvers = &record.interrupt.question.approvers;
                approvers.contains(&caller.user, &caller.roles)
            })
        }
        Some(_) | None => false,
    };
    let decided = access::decide_about_thread(tx, core, caller, action, thread, is_assigned).await?;
    decided.map_err(|denial| {
        record_denial(core, caller, action, ResourceRef::Thread(thread.id), &denial);
        refusal(&denial, action, thread.id)
    })
}

/// Returns the refusal of a run because of a denial on its thread.
fn refusal(denial: &Denial, action: Action, thread: ThreadId) -> StartError {
    match denial.is_by_policy {
        true => StartError::ForbiddenByPolicy(action),
        false => StartError::NoThread(thread),
    }
}

/// Checks that no policy forbids the caller what a run does besides: it creates its thread, or cancels other runs.
pub(super) async fn check_by_policies(
    tx: &mut Tx<'_>,
    thread: &Thread,
    new_run: &NewRun,
    action: Action,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let caller = &new_run.caller;
    if caller.is_unrestricted() {
        return Ok(());
    }
    refuse_by_policies(tx, thread, caller, action, core).await
}

/// Refuses to run an assistant for a user who may not read it, and records it.
pub(in crate::runtime) fn refuse_assistant(
    assistant: &Assistant,
    user: &RunCaller,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let action = Action::AssistantsRead;
    let decided = access::decide(core, &user.to_restricted_identity(), action, &facts_of(assistant));
    decided.map_err(|denial| {
        let resource = ResourceRef::Assistant(assistant.id);
        record_denial(core, &user.to_identity(), action, resource, &denial);
        StartError::NoAssistant(assistant.id.to_string())
    })
}

fn facts_of(assistant: &Assistant) -> ResourceFacts {
    ResourceFacts {
        ownership: assistant.ownership.clone(),
        metadata: assistant.settings.metadata.clone(),
        graph_id: Some(assistant.settings.graph_id.clone()),
        ..ResourceFacts::default()
    }
}

/// Refuses what policies forbid a user to do on a thread, and records it.
pub(in crate::runtime) async fn refuse_by_policies(
    tx: &mut Tx<'_>,
    thread: &Thread,
    user: &Identity,
    action: Action,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let Some(denial) = access::denial_about_thread(tx, core, user, action, thread).await? else {
        return Ok(());
    };
    record_denial(core, user, action, ResourceRef::Thread(thread.id), &denial);
    Err(refusal(&denial, action, thread.id))
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

/// Returns the settings of the run: those of the request, and the assistant's settings where the request has none. An
/// answer without a context keeps the context of the thread's last run; one with a context keeps what that run has
/// chosen, unless it chooses anew.
pub(in crate::runtime) fn settings(new_run: &NewRun, resolved: &ResolvedAssistant, thread: &Thread) -> RunSettings {
    let RunRequest { config, context, .. } = &new_run.request;
    let assistant = &resolved.assistant.settings;
    let before = configurable(&thread.config);
    let Some(before) = before.filter(|_| resumes_work(new_run)) else {
        return assistant.as_defaults_for(config, context);
    };
    if context.is_empty() && !before.is_empty() {
        let mut config = config.clone();
        set_configurable(&mut config, before.clone());
        return assistant.as_defaults_for(&config, before);
    }
    let mut settings = assistant.as_defaults_for(config, context);
    // The work goes on with the model, the tools and the instructions with which it began.
    for name in resolved
        .known
        .choice_names()
        .filter(|name| !context.contains_key(*name))
    {
        settings.put(name, before.get(name));
    }
    settings
}

/// Returns whether a request continues the work that waits on its thread.
fn resumes_work(new_run: &NewRun) -> bool {
    let is_resumed = new_run.resume.is_some() || new_run.request.command.as_ref().is_some_and(Command::resumes);
    is_resumed || new_run.request.compaction.is_some()
}

/// Returns an agent with what the run of a request chooses. The run of a background task chooses nothing: its context is
/// that of the agent that started it.
///
/// # Errors
/// Names the entry of the context that chooses something that is not allowed.
pub(in crate::runtime) fn with_choices(
    new_run: &NewRun,
    known: &Arc<RegisteredAgent>,
    thread: Option<&Thread>,
    context: &Map<String, Value>,
) -> Result<Arc<RegisteredAgent>, Invalid> {
    let is_task_thread = thread.is_some_and(|thread| thread.metadata.contains_key("parent_thread_id"));
    match new_run.request.background.is_some() || is_task_thread {
        true => Ok(Arc::clone(known)),
        false => known.configured(context),
    }
}

/// Returns the metadata of a run: the entries of its assistant, of its thread, of its `config` and of the request. A
/// later entry replaces an earlier one.
fn metadata_of(new_run: &NewRun, assistant: &AssistantSettings, thread: &Thread) -> Map<String, Value> {
    let in_config = |config: &Map<String, Value>| match config.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        Some(_) | None => Map::new(),
    };
    let with = |of_thread: Map<String, Value>| {
        let mut metadata = in_config(&assistant.config);
        metadata.extend(assistant.metadata.clone());
        metadata.extend(of_thread);
        metadata.extend(in_config(&new_run.request.config));
        metadata.extend(new_run.metadata.clone());
        metadata
    };
    let of_thread = thread.metadata.iter().filter(|(key, _)| is_for_runs(key));
    let of_thread: Map<String, Value> = of_thread.map(|(key, value)| (key.clone(), value.clone())).collect();
    if of_thread.is_empty() {
        return with(of_thread);
    }
    let whole = with(of_thread);
    // The metadata are stored with every run and sent with every piece of an answer.
    match metadata::check(&whole) {
        Ok(()) => whole,
        Err(_) => with(Map::new()),
    }
}

/// Returns whether runs have a key of the metadata of their thread. Those by which servers know the runs that they have
/// started themselves are not for other runs on the thread.
fn is_for_runs(key: &str) -> bool {
    key != PARENT_RUN && !key.starts_with(SERVER_KEYS)
}

/// Returns the run of a request.
fn build_run(
    id: RunId,
    new_run: &NewRun,
    resolved: &ResolvedAssistant,
    thread: &Thread,
    run_settings: RunSettings,
    now: Timestamp,
) -> Run {
    let Assistant {
        id: assistant,
        version,
        settings,
        ..
    } = &resolved.assistant;
    let mut metadata = metadata_of(new_run, settings, thread);
    let own = [
        ("graph_id", settings.graph_id.clone()),
        ("assistant_id", assistant.to_string()),
    ];
    metadata.extend(own.map(|(key, value)| (key.to_owned(), value.into())));
    let RunSettings { config, context } = run_settings;
    let mut request = RunRequest {
        temporary: new_run.target == Target::Stateless { keep: false },
        config,
        context,
        agent: Some(AssignedAgent {
            graph_id: settings.graph_id.clone(),
            version: *version,
            definition: Some(resolved.known.digest.clone()),
        }),
        ..new_run.request.clone()
    };
    if is_on_behalf_of_caller(new_run, thread) {
        request.assign_to(&new_run.caller);
    }
    Run {
        id,
        thread: thread.id,
        assistant: *assistant,
        lineage: Lineage::root(id, &resolved.known.name),
        status: RunStatus::Pending,
        request,
        metadata,
        error: None,
        attempt: 1,
        created_at: now,
        updated_at: now,
        due_at: now.plus(new_run.after),
        queue: RunQueue::default(),
    }
}

/// Sets the lineage of a run on the thread of a background task to that of the task.
async fn inherit_task_lineage(tx: &mut Tx<'_>, thread: &Thread, run: &mut Run) -> DbResult<()> {
    if run.request.background.is_none() && thread.metadata.contains_key("parent_thread_id") {
        run.request.background = db::background::find(tx, thread.id).await?.map(|record| record.ancestry);
    }
    if let Some(above) = &run.request.background {
        run.lineage.visibility = above.visibility;
    }
    Ok(())
}

/// Stores the resolution that a run brings, or refuses a run that would leave interrupts unanswered. If the thread is to
/// go on before it, such a run waits until none is pending. Interrupts on branches that the thread has left do not count. `open`
/// are the open ones, if they are to be read already.
async fn settle_questions(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    known: &RegisteredAgent,
    run: &mut Run,
    in_flight: InFlight,
    open: Option<LaterOpen>,
) -> Result<(), StartError> {
    if interrupts::goes_around(&run.request) {
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
        return Ok(());
    }
    run.request.after_answers = true;
    if in_flight.at_work > 0 || db::runs::has_queued_answer(tx, run.thread).await? {
        return Ok(());
    }
    let open = interrupts::open_at(tx, run.thread, None).await?;
    if open.is_empty() {
        return Ok(());
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

async fn enter_thread(
    tx: &mut Tx<'_>,
    thread: &Thread,
    run: &Run,
    known: &RegisteredAgent,
    now: Timestamp,
) -> DbResult<()> {
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
    let change = db::threads::ThreadChange {
        status: Some(ThreadStatus::Busy),
        config: Some(config),
        metadata: (metadata != thread.metadata).then_some(metadata),
        ..Default::default()
    };
    db::threads::set(tx, thread.id, change, now).await?;
    Ok(())
}

/// Checks a request that is admitted later, possibly more than once, as far as that is possible in advance. Checks that
/// were made before the write are not repeated.
pub(in crate::runtime) fn check_ahead(
    new_run: &NewRun,
    resolved: &ResolvedAssistant,
    context: &AdmissionContext,
) -> Result<(), Invalid> {
    let settings = resolved
        .assistant
        .settings
        .as_defaults_for(&new_run.request.config, &new_run.request.context);
    let known = with_choices(new_run, &resolved.known, None, &settings.context)?;
    if !context.has_checked(0, &known.digest) {
        check(new_run, known.agent(), context.core.sizes)?;
    }
    match known.agent().context() {
        Some(schema) if !context.has_checked_context(0, &known.digest, &settings.context) => {
            schema.check(&settings.context)
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks a request against the agent alone.
pub(in crate::runtime) fn check(new_run: &NewRun, agent: &Agent, sizes: SizeLimits) -> Result<(), Invalid> {
    if let Some(input) = &new_run.request.input {
        let input = read_input(input)?;
        sizes.check_brought(&input, "input")?;
        agent.declared.check_input(&input)?;
        agent.check_content(&input)?;
    }
    if new_run.request.compaction.is_some() && agent.model_loop().is_none_or(|own| own.summarization.is_none()) {
        let reason = "is of an agent whose conversation is not summarised (`summarization = false`)";
        return Err(Invalid::new("thread_id", reason));
    }
    if let Some(command) = &new_run.request.command {
        if let Some(update) = &command.update {
            read_update(update)
                .and_then(|update| {
                    sizes.check_brought(&update, "values")?;
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
