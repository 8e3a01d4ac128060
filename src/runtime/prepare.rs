//! Preparation of a run: with new input, with answers, from an older checkpoint, or where a crash left it.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::access;
use super::interrupts::{self, AnswerDelivery, Delivered, DeliveredEnd};
use super::ledger::BudgetLedger;
use super::quotas::RunAccount;
use super::remote_runs::insert_remote_run_of_main;
use super::resource_ref::ResourceRef;
use super::run_context::RunContext;
use crate::agent::PendingWrite;
use crate::agent::assemble::RegisteredAgent;
use crate::db::checkpoints::LogEnd;
use crate::db::{self, DbError, DbResult, Tx};
use crate::definition::builtins::{BACKGROUND, Builtin};
use crate::domain::access::Action;
use crate::domain::background::BudgetScope;
use crate::domain::event::Fact;
use crate::domain::goto::Destination;
use crate::domain::id::{CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::input::{read_input, read_update};
use crate::domain::limits::{Limits, Usage};
use crate::domain::machine::{Failure, Machine, Phase, Plan, START};
use crate::domain::run::{Command, Run, RunOrigin, RunRequest};
use crate::domain::state::Update;
use crate::tool::budget::{Budget, Meter, SharedBudget};

mod first_step;

pub(super) use first_step::{BegunRun, FirstStep, PlannedStep};

/// A machine that is ready to be driven.
pub(super) struct ReadyMachine {
    /// The agent that is driven.
    pub(super) known: Arc<RegisteredAgent>,
    pub(super) machine: Machine,
    /// The writes that led to the machine and are still to be stored.
    pub(super) notes: Vec<PendingWrite>,
    /// The segment of history that the next checkpoint continues.
    pub(super) segment: Option<i64>,
    pub(super) plan: Plan,
    /// True if there is nothing to drive: the request only writes to the state.
    pub(super) only_notes: bool,
    /// The remaining budget.
    pub(super) budget: Budget,
    /// True if decisions are remembered for the thread.
    pub(super) remembers: bool,
    /// The origin of the work of the run.
    pub(super) origin: RunOrigin,
}

/// A machine of a thread, with what the log says besides.
struct LoadedMachine {
    machine: Machine,
    /// The segment of history that the next checkpoint continues; none if it begins a new one.
    segment: Option<i64>,
    /// True if decisions are remembered for the thread.
    remembers: bool,
}

/// The state of the thread at which a run begins.
struct Found {
    loaded: LoadedMachine,
    /// True if the newest checkpoint is this run's own: the run was at work before.
    own: bool,
    start: Start,
    /// The stored input of the turn, if the run begins at the checkpoint before an input and brings none itself.
    input: Option<Update>,
    max_seq: i64,
}

impl Found {
    /// Returns the state at the end of a log for run `run`, which brings answers, if that state is in memory.
    fn in_memory(tx: &Tx<'_>, end: DeliveredEnd, run: RunId) -> Option<Self> {
        let DeliveredEnd { summary, newest } = end;
        let own = newest.run == Some(run);
        let (machine, segment) = db::checkpoints::machine_in_memory(tx, Some(newest))?;
        let loaded = LoadedMachine {
            machine,
            segment,
            remembers: summary.has_decisions,
        };
        Some(Self {
            loaded,
            own,
            start: Start::Newest,
            input: None,
            max_seq: summary.max_seq,
        })
    }
}

/// The checkpoint at which a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The newest one.
    Newest,
    /// An older one, whose step is run again.
    Older,
    /// An older one, whose step continues with the answers that the run brings.
    Branch(CheckpointId),
}

/// The gap in the numbers of the log after a crash. Pieces of answers that were streamed but never stored cannot share
/// a number with anything later.
pub(super) const CRASH_GAP: i64 = 1 << 20;

/// Returns the reason why a run that waited in the queue may not begin any more: the interrupts that it answers were
/// dropped, the run was delayed and its user has lost the right to it, or the thread has an open interrupt that is assigned to
/// others, and the run would continue beside it.
pub(super) async fn find_obstacle(run_context: &RunContext) -> DbResult<Option<Failure>> {
    let run = &run_context.run;
    // A run that was claimed where it was admitted has not waited: the admission has found no obstacle.
    if run_context.fence == 0 {
        return Ok(None);
    }
    if is_late(run_context).await? {
        let text = "The thread went on without this answer before the run began: the question was dropped, and the answer \
            had no effect.";
        return Ok(Some(Failure::new("AnswerTooLateError", text)));
    }
    if may_begin_no_more(run_context).await? {
        let text = "The user who has started this run may not start it any more: the thread or the assistant is not shared \
            with the user now, or a policy forbids the run.";
        return Ok(Some(Failure::new("PermissionError", text)));
    }
    if !interrupts::goes_around(&run.request) {
        return Ok(None);
    }
    let thread = run.thread;
    let own = run.id;
    let user = run.request.caller.clone();
    let read = run_context
        .core
        .db
        .read(move |tx| Box::pin(async move { interrupts::check_way(tx, thread, user.as_ref(), Some(own)).await }));
    let obstacle = read.await?.err();
    Ok(obstacle.map(|assigned| Failure::new("PermissionError", format!("the thread waits for an answer: {assigned}"))))
}

/// Returns whether a delayed run may begin no more: its thread or its assistant is shared no more with its user, or a policy forbids
/// the run.
async fn may_begin_no_more(run_context: &RunContext) -> DbResult<bool> {
    let RunContext { core, run, .. } = run_context;
    let is_delayed = run.due_at > run.created_at && run.attempt == 1 && run.request.background.is_none();
    let Some(user) = run.request.caller.as_ref().filter(|_| is_delayed).cloned() else {
        return Ok(false);
    };
    let thread = ResourceRef::Thread(run.thread);
    let assistant = ResourceRef::Assistant(run.assistant);
    let of_read = Arc::clone(core);
    let read = core.db.read(move |tx| {
        Box::pin(async move {
            let may_run = access::may_user(tx, &of_read, &user, &[Action::ThreadsCreateRun], thread).await?;
            Ok(may_run && access::may_user(tx, &of_read, &user, &[Action::AssistantsRead], assistant).await?)
        })
    });
    Ok(!read.await?)
}

/// Returns whether a run brings answers of which none can be used any more.
async fn is_late(run_context: &RunContext) -> DbResult<bool> {
    let run = &run_context.run;
    let answers = run.request.command.as_ref().and_then(|command| command.resume.as_ref());
    let ids: Vec<InterruptId> = answers
        .into_iter()
        .flat_map(|answers| answers.keys().cloned())
        .collect();
    if ids.is_empty() {
        return Ok(false);
    }
    let thread = run.thread;
    let own = run.id;
    let read = run_context
        .core
        .db
        .read(move |tx| Box::pin(async move { interrupts::is_late(tx, thread, own, &ids).await }));
    read.await
}

/// Loads the machine of a run, applies the request to it and opens the log. `continued` is the work that the run continues, if
/// what the run brings was delivered when it was admitted.
pub(super) async fn open(
    run_context: &RunContext,
    known: Arc<RegisteredAgent>,
    continued: Option<Box<ContinuedWork>>,
) -> DbResult<ReadyMachine> {
    let run = &run_context.run;
    let goes_on = (run.attempt > 1 || continues_work(&run.request)) && run.request.compaction.is_none();
    let ContinuedWork { branch, found, earlier } = match continued {
        Some(continued) => *continued,
        None if goes_on => continue_work(run_context).await?,
        None => ContinuedWork::default(),
    };
    let found = match found {
        Some(found) => found,
        None => load(run_context, run, branch).await?,
    };
    let Found {
        loaded,
        own,
        start,
        input,
        max_seq,
    } = found;
    run_context.log.open(next_seq(run, max_seq));
    let resumed = own || loaded.machine.head.is_some() && continues_work(&run.request) && input.is_none();
    let notes = vec![started(run, &loaded.machine, resumed)];
    let mut ready = ReadyMachine::of(run_context, known, loaded, notes, earlier).await?;
    let is_begun = own || run.request.compaction.is_some();
    if !is_begun {
        ready.begin(run_context, &start, input).await?;
    }
    ready.note_sent_calls();
    Ok(ready)
}

/// The work that a run continues, after what it brings was delivered.
#[derive(Default)]
pub(super) struct ContinuedWork {
    /// The older checkpoint from which the run continues, if it does not continue from the newest.
    branch: Option<CheckpointId>,
    /// The state at which it begins, if it was read already.
    found: Option<Found>,
    /// The runs that it continues, if they were read already.
    earlier: Option<EarlierRuns>,
}

/// Delivers the answers that a run brings in the transaction that admits it for this process, and reads what else it needs, as
/// far as that is in memory or small. None if the driver of the run has to do that: an agent besides the main one gets something,
/// the run continues an older checkpoint, or what is stored cannot be read, which ends the run but does not refuse the request.
pub(super) async fn continue_at_once(tx: &mut Tx<'_>, run: &Run) -> DbResult<Option<Box<ContinuedWork>>> {
    let Some(command) = run.request.command.as_ref().filter(|command| command.resumes()) else {
        return Ok(None);
    };
    let Some(asked_at) = command.continuation.branch else {
        return Ok(None);
    };
    let resumed = db::interrupts::few_resumed_later(tx, run.thread).await?;
    let answers = command.resume.as_ref();
    let delivery = match AnswerDelivery::find(tx, run.thread, run.id, Some(asked_at), answers).await {
        Ok(delivery) if delivery.is_for_newest() => delivery,
        Ok(_) => return Ok(None),
        Err(error) if is_unreadable(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let resumed = resumed.read(tx).await?;
    let end = delivery.give_to_newest(tx).await?;
    Ok(Some(Box::new(ContinuedWork {
        branch: None,
        found: end.and_then(|end| Found::in_memory(tx, end, run.id)),
        earlier: EarlierRuns::along_few(tx, resumed, run.id).await?,
    })))
}

/// Returns whether an error is that something stored cannot be read.
fn is_unreadable(error: &DbError) -> bool {
    error.is_corrupt() || matches!(error, DbError::Sealed(_))
}

/// Delivers what a run brings. If it brings answers, and begins for the first time, the same transaction reads what else it needs,
/// as far as that is in memory or small: other writes wait for it.
async fn continue_work(run_context: &RunContext) -> DbResult<ContinuedWork> {
    let run = &run_context.run;
    let thread = run.thread;
    let id = run.id;
    let command = run.request.command.as_ref();
    let answers = command.and_then(|command| command.resume.clone());
    let asked_at = command.and_then(|command| command.continuation.branch);
    let reads_on = run.attempt == 1 && asked_at.is_some() && command.is_some_and(Command::resumes);
    let write = run_context.core.db.write(move |tx| {
        Box::pin(async move {
            let resumed = match reads_on {
                true => Some(db::interrupts::few_resumed_later(tx, thread).await?),
                false => None,
            };
            let Delivered { branch, end } = interrupts::deliver(tx, thread, id, asked_at, answers.as_ref()).await?;
            let Some(resumed) = resumed else {
                return DbResult::Ok(ContinuedWork {
                    branch,
                    ..ContinuedWork::default()
                });
            };
            let resumed = resumed.read(tx).await?;
            Ok(ContinuedWork {
                branch,
                found: end.and_then(|end| Found::in_memory(tx, end, id)),
                earlier: EarlierRuns::along_few(tx, resumed, id).await?,
            })
        })
    });
    write.await
}

/// Continues a run whose first step is stored.
pub(super) async fn go_on(run_context: &RunContext, begun: BegunRun) -> DbResult<ReadyMachine> {
    let BegunRun { known, loaded } = begun;
    ReadyMachine::of(run_context, known, loaded, vec![], None).await
}

/// Returns the write that a run starts at the checkpoint of its machine.
pub(super) fn started(run: &Run, machine: &Machine, resumed: bool) -> PendingWrite {
    PendingWrite::Fact(Fact::Started {
        base: machine.head,
        carried_from: machine.position.carried_from,
        attempt: run.attempt,
        resumed,
        calls: vec![],
    })
}

/// Returns the plan of an agent, with the step limit of a run.
fn plan_of(run: &Run, known: &RegisteredAgent) -> Plan {
    let plan = known.agent().plan.clone();
    Plan {
        step_limit: run.request.step_limit().unwrap_or(plan.step_limit),
        ..plan
    }
}

/// Gives a machine the input of a run, whose form was checked when the run was admitted. Returns the writes.
fn give_input(machine: &mut Machine, plan: &Plan, input: &Value) -> [PendingWrite; 2] {
    let input = crate::agent::identified(read_input(input).unwrap_or_default());
    let ids = [CheckpointId::mint(), CheckpointId::mint()];
    PendingWrite::input(machine, plan, input, ids)
}

impl ReadyMachine {
    /// Opens the budget of a run whose machine is loaded. `notes` are the writes that are still to be stored. `earlier` are the
    /// runs that it continues, if they were read already.
    async fn of(
        run_context: &RunContext,
        known: Arc<RegisteredAgent>,
        loaded: LoadedMachine,
        notes: Vec<PendingWrite>,
        earlier: Option<EarlierRuns>,
    ) -> DbResult<Self> {
        let run = &run_context.run;
        let plan = plan_of(run, &known);
        let (budget, first) = budget(run_context, &known, earlier).await?;
        let origin = RunOrigin {
            first,
            hops: run.hops(),
        };
        insert_remote_run_of_main(run_context, &known, first).await?;
        let LoadedMachine {
            machine,
            segment,
            remembers,
        } = loaded;
        Ok(Self {
            known,
            machine,
            notes,
            segment,
            plan,
            only_notes: false,
            budget,
            remembers,
            origin,
        })
    }

    /// Adds the calls that a client has sent to the first write, that the run starts: streams show them from there.
    fn note_sent_calls(&mut self) {
        if let Some(PendingWrite::Fact(Fact::Started { calls, .. })) = self.notes.first_mut() {
            *calls = self.machine.calls_with_sent();
        }
    }

    /// Applies the request of a run that has not stored a step yet.
    async fn begin(&mut self, run_context: &RunContext, start: &Start, stored: Option<Update>) -> DbResult<()> {
        let run = &run_context.run;
        self.begin_branch(&run.request, start);
        let Self {
            machine, notes, plan, ..
        } = self;
        if let Some(command) = &run.request.command {
            // The form was checked when the run was admitted. Nodes that the agent has lost since are ignored.
            let place = Destination::of(&command.goto, plan).unwrap_or_default();
            if place.as_ref().is_some_and(|place| abandons(machine, place)) {
                drop_waiting(run_context, start, machine).await?;
            }
            self.only_notes = apply_command(command, place.as_ref(), machine, plan, notes);
            return Ok(());
        }
        match (&run.request.input, stored) {
            (Some(input), _) => {
                drop_waiting(run_context, start, machine).await?;
                notes.extend(give_input(machine, plan, input));
            }
            (None, Some(stored)) => {
                let entry = machine.begin_again(plan, stored, CheckpointId::mint());
                notes.push(PendingWrite::entry(entry, machine));
            }
            (None, None) => machine.prepare_for_run(),
        }
        Ok(())
    }

    /// Begins a branch, if the run needs a checkpoint of its own before its first step.
    fn begin_branch(&mut self, request: &RunRequest, start: &Start) {
        let machine = &mut self.machine;
        let goes_on_in_copy = machine.position.copied && request.input.is_none();
        let may_ask = match start {
            Start::Newest => false,
            Start::Older => {
                machine.repeat_program();
                may_ask_first(request, machine)
            }
            Start::Branch(left) => {
                let stays = machine.position.clone().released();
                let entry = machine.carry_on(CheckpointId::mint());
                self.notes.push(PendingWrite::entry(entry, machine));
                // In the transaction that stores the branch, so that the step never waits at both.
                self.notes.push(PendingWrite::Left(*left, stays));
                return;
            }
        };
        if may_ask || goes_on_in_copy {
            let entry = machine.fork(CheckpointId::mint());
            self.notes.push(PendingWrite::entry(entry, machine));
        }
    }
}

/// The usage of the main agent and of all runs together. Parallel runs work at the same time, so the time of all is
/// that of the main agent.
#[derive(Clone, Copy, Default)]
struct UsedSoFar {
    own: Usage,
    whole: Usage,
}

impl UsedSoFar {
    async fn in_tree(tx: &mut Tx<'_>, run: RunId) -> DbResult<Self> {
        let used = db::runs::usages_later(tx, run).await?;
        let begun = db::trees::delegations_later(tx, run).await?;
        let used = used.read(tx).await?;
        let stored = used.get(&run).copied().unwrap_or_default();
        // A task may have begun although its call has not returned.
        let begun = begun.count(tx).await?;
        let own = Usage {
            children: stored.children.max(begun),
            ..stored
        };
        let whole = used.into_values().fold(Usage::default(), Usage::plus);
        let children = whole.children + (own.children - stored.children);
        Ok(Self {
            own,
            whole: Usage {
                seconds: own.seconds,
                children,
                ..whole
            },
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            own: self.own.plus(other.own),
            whole: self.whole.plus(other.whole),
        }
    }
}

/// The earlier runs that a run continues with answers.
#[derive(Clone, Copy)]
struct EarlierRuns {
    used: UsedSoFar,
    /// The first of them, which brought the input; the run itself if it continues none.
    first: RunId,
}

impl EarlierRuns {
    /// Returns those of a run that continues none.
    fn none(run: RunId) -> Self {
        Self {
            used: UsedSoFar::default(),
            first: run,
        }
    }

    async fn of(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<Self> {
        let resumed = db::interrupts::resumed(tx, thread).await?;
        Self::along(tx, resumed, run).await
    }

    /// Returns the earlier runs like [`Self::along`]; none if the runs that brought answers are many.
    async fn along_few(tx: &mut Tx<'_>, resumed: Option<HashMap<RunId, RunId>>, run: RunId) -> DbResult<Option<Self>> {
        match resumed {
            Some(resumed) => Self::along(tx, resumed, run).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the earlier runs by the [runs that brought answers](db::interrupts::resumed).
    async fn along(tx: &mut Tx<'_>, mut resumed: HashMap<RunId, RunId>, run: RunId) -> DbResult<Self> {
        let mut earlier = Self::none(run);
        // The entry is removed, so that two runs that refer to each other end the loop.
        while let Some(before) = resumed.remove(&earlier.first) {
            earlier.used = earlier.used.plus(UsedSoFar::in_tree(tx, before).await?);
            earlier.first = before;
        }
        Ok(earlier)
    }
}

/// Returns the usage of the earlier runs that a run continues with answers, with all below them, and the first of these
/// runs.
pub(super) async fn usage_before(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<(Usage, RunId)> {
    let EarlierRuns { used, first } = EarlierRuns::of(tx, thread, run).await?;
    Ok((used.whole, first))
}

/// Returns the usage of the earlier attempts of a run, and the earlier runs that it continues.
async fn spent_before(run_context: &RunContext, known: Option<EarlierRuns>) -> DbResult<(UsedSoFar, EarlierRuns)> {
    let run = run_context.run.id;
    let thread = run_context.run.thread;
    let again = run_context.run.attempt > 1;
    let command = run_context.run.request.command.as_ref();
    let resumes = known.is_none() && command.is_some_and(Command::resumes);
    let known = known.unwrap_or_else(|| EarlierRuns::none(run));
    if !again && !resumes {
        return Ok((UsedSoFar::default(), known));
    }
    let read = run_context.core.db.read(move |tx| {
        Box::pin(async move {
            let spent = match again {
                true => UsedSoFar::in_tree(tx, run).await?,
                false => UsedSoFar::default(),
            };
            let earlier = match resumes {
                true => EarlierRuns::of(tx, thread, run).await?,
                false => known,
            };
            Ok((spent, earlier))
        })
    });
    read.await
}

/// Returns the remaining budget of the run and the first run that it continues. The usage of the run's earlier attempts
/// and of all continued runs is subtracted. `earlier` are the continued runs, if they were read already.
async fn budget(
    run_context: &RunContext,
    known: &RegisteredAgent,
    earlier: Option<EarlierRuns>,
) -> DbResult<(Budget, RunId)> {
    let now = run_context.core.clock.now();
    let (spent, earlier) = spent_before(run_context, earlier).await?;
    let EarlierRuns { used: before, first } = earlier;
    let meter = Arc::new(Meter::new(spent.own, now).after(before.own));
    let mut limits = known.agent().limits.clone();
    limits.depth = limits.depth.into_iter().chain(run_context.run.levels()).min();
    // The server bounds the time of every run.
    let mut tree = limits.tree.take().unwrap_or_default();
    tree.wall_s = tree
        .wall_s
        .into_iter()
        .chain([run_context.core.bounds.at_work.as_secs_f64()])
        .reduce(f64::min);
    limits.tree = Some(tree);
    let ledger = BudgetLedger::open(
        &run_context.core.db,
        run_context.run.thread,
        trees(run_context, known, first),
        first,
        &spent.whole.plus(before.whole),
        run_context.core.clock.now(),
    )
    .await?;
    if let Some(ledger) = &ledger {
        // The first ledger stays: a run is opened once under a claim.
        drop(run_context.ledger.set(Arc::clone(ledger)));
    }
    let pool = ledger.map(|ledger| ledger as Arc<dyn SharedBudget>);
    let whole = Meter::new(spent.whole, now).after(before.whole);
    let budget = Budget::of_member(limits, meter, whole, pool).with_account(RunAccount::of(run_context));
    Ok((budget, first))
}

/// Returns the limited trees that the run shares with runs on other threads: those above it, and its own if it may
/// start background tasks. All runs lock them in the same order.
fn trees(run_context: &RunContext, known: &RegisteredAgent, first: RunId) -> Vec<BudgetScope> {
    let mut trees = run_context
        .run
        .request
        .background
        .as_ref()
        .map(|lineage| lineage.trees.clone())
        .unwrap_or_default();
    let has_others = known.agent().subagents().is_some_and(|roster| roster.has_references());
    let begins_tasks = has_others
        || Builtin::tools_of(BACKGROUND)
            .first()
            .is_some_and(|tool| known.agent().tool(tool).is_some());
    let own = known
        .agent()
        .limits
        .tree
        .as_deref()
        .filter(|tree| begins_tasks && **tree != Limits::default());
    trees.extend(own.map(|limits| BudgetScope {
        top: first,
        limits: limits.clone(),
    }));
    trees.sort_by_key(|tree| tree.top);
    trees
}

/// Opens the log for a run that ends before its agent could be loaded. Returns false if it is open already.
pub(super) async fn open_log(run_context: &RunContext) -> DbResult<bool> {
    if run_context.log.is_open() {
        return Ok(false);
    }
    let thread = run_context.run.thread;
    let max_seq = run_context
        .core
        .db
        .read(move |tx| Box::pin(db::checkpoints::max_seq(tx, thread)))
        .await?;
    run_context.log.open(next_seq(&run_context.run, max_seq));
    Ok(true)
}

fn next_seq(run: &Run, max_seq: i64) -> i64 {
    max_seq + if run.attempt > 1 { CRASH_GAP } else { 1 }
}

/// Returns whether a request continues the work in progress rather than beginning anew.
fn continues_work(request: &RunRequest) -> bool {
    match &request.command {
        Some(command) => command.resumes(),
        None => request.input.is_none(),
    }
}

/// Returns whether a run may raise an interrupt before it has stored a step of its own.
fn may_ask_first(request: &RunRequest, machine: &Machine) -> bool {
    match (&request.command, &request.input) {
        (Some(command), _) => command.update.is_none(),
        (None, Some(_)) => false,
        (None, None) => matches!(
            machine.position.phase,
            Phase::Hooks { .. } | Phase::Tools { .. } | Phase::Work { .. }
        ),
    }
}

/// Returns whether a jump to `place` abandons the work in progress.
fn abandons(machine: &Machine, place: &Destination) -> bool {
    !matches!(
        (&machine.position.phase, place),
        (Phase::Tools { .. }, Destination::Tools { own: true, .. })
    )
}

/// Applies a command. Returns true if there is nothing to drive after it.
fn apply_command(
    command: &Command,
    place: Option<&Destination>,
    machine: &mut Machine,
    plan: &Plan,
    notes: &mut Vec<PendingWrite>,
) -> bool {
    let update = command
        .update
        .as_ref()
        .and_then(|update| read_update(update).ok())
        .unwrap_or_default();
    let update = crate::agent::identified(update);
    // No later step could store the position: after the end none follows, and on a new thread the run may stop before
    // its first one.
    let ends = place == Some(&Destination::End);
    let begins = place.is_some() && machine.head.is_none();
    if ends {
        machine.jump_to(plan, &Destination::End);
    }
    if ends || begins || update != Update::none() {
        let id = CheckpointId::mint();
        // A jump elsewhere leaves the step that waits.
        let goes_on = place.is_none_or(|place| !abandons(machine, place));
        let entry = match goes_on {
            true => machine.carry_update(plan, START, update, id),
            false => machine.append_update(plan, update, id),
        };
        notes.push(PendingWrite::entry(entry, machine));
    }
    machine.prepare_for_run();
    if let Some(place) = place {
        machine.jump_to(plan, place);
    }
    place.is_none() && !command.resumes()
}

/// Reads the state of the thread at which the run begins. `branch` is the older checkpoint from which it continues with
/// answers, if it does.
async fn load(run_context: &RunContext, run: &Run, branch: Option<CheckpointId>) -> DbResult<Found> {
    let thread = run.thread;
    let id = run.id;
    let from = run.request.checkpoint;
    let command = run.request.command.as_ref();
    let has_answers = command.is_some_and(|command| command.continuation.branch.is_some());
    let repeats = command.is_none() && run.request.input.is_none();
    run_context
        .core
        .db
        .read(move |tx| {
            Box::pin(async move {
                let log_end = db::checkpoints::log_end_later(tx, thread).await?;
                let LogEnd { summary: log, newest } = log_end.read(tx).await?;
                let newest = newest?;
                let own = newest.as_ref().is_some_and(|head| head.run == Some(id));
                // A run with answers begins where they wait.
                let older = match has_answers {
                    true => None,
                    false => from.filter(|from| !own && newest.as_ref().is_some_and(|head| head.id != *from)),
                };
                let branch = branch.filter(|_| !own);
                let start = match (branch, older) {
                    (Some(branch), _) => Start::Branch(branch),
                    (None, Some(_)) => Start::Older,
                    (None, None) => Start::Newest,
                };
                let (machine, segment) = match (branch, older) {
                    (Some(branch), _) => (db::checkpoints::machine_as_left(tx, thread, branch).await?, None),
                    (None, Some(older)) => (db::checkpoints::machine_at(tx, thread, older).await?, None),
                    (None, None) => db::checkpoints::machine_of(tx, thread, newest).await?,
                };
                let input = match (&machine.position.phase, machine.head) {
                    (Phase::Start, Some(head)) if repeats => db::checkpoints::input_after(tx, thread, head).await?,
                    (_, _) => None,
                };
                let loaded = LoadedMachine {
                    machine,
                    segment,
                    remembers: log.has_decisions,
                };
                Ok(Found {
                    loaded,
                    own,
                    start,
                    input,
                    max_seq: log.max_seq,
                })
            })
        })
        .await
}

/// Drops the open interrupts and waiting subagents of the step at which a run begins, since new input abandons it. What
/// waits elsewhere waits on: a run that begins at an older checkpoint leaves a branch, and answers can continue it.
async fn drop_waiting(run_context: &RunContext, start: &Start, machine: &Machine) -> DbResult<()> {
    let branch = match start {
        Start::Newest => None,
        Start::Older => return Ok(()),
        Start::Branch(left) => Some(*left),
    };
    if matches!(machine.position.phase, Phase::Start | Phase::Ended) {
        return Ok(());
    }
    let thread = run_context.run.thread;
    let by = run_context.run.id;
    let now = run_context.core.clock.now();
    run_context
        .core
        .db
        .write(move |tx| Box::pin(interrupts::drop_for_input(tx, thread, branch, by, now)))
        .await
}
