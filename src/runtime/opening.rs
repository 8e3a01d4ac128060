//! How a run begins: with new input, with answers, from an older checkpoint, or where a crash left it.

use std::sync::Arc;

use super::desk::RunContext;
use super::ledger::BudgetLedger;
use super::{giving_up, resume};
use crate::agent::PendingWrite;
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult, Tx};
use crate::definition::builtins::{BACKGROUND, Builtin};
use crate::domain::background::BudgetScope;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::goto::Destination;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::input::{read_input, read_update};
use crate::domain::limits::{Limits, Usage};
use crate::domain::machine::{Machine, Phase, Plan};
use crate::domain::run::{Command, Resume, Run, RunRequest};
use crate::domain::state::Update;
use crate::tool::budget::{Budget, Meter, SharedBudget};

/// A machine that is ready to be driven.
pub(super) struct ReadyMachine {
    pub(super) machine: Machine,
    /// What led up to it and is still to be stored.
    pub(super) notes: Vec<PendingWrite>,
    /// The segment of history that its next checkpoint continues.
    pub(super) segment: Option<i64>,
    pub(super) plan: Plan,
    /// Whether there is nothing to be driven: the request only wrote something down.
    pub(super) only_notes: bool,
    /// What it may still use.
    pub(super) budget: Budget,
}

/// Where a run finds its thread.
struct Found {
    machine: Machine,
    segment: Option<i64>,
    /// Whether the newest checkpoint is this run's own: it was at work before.
    own: bool,
    /// Whether it begins at a checkpoint that is not the newest.
    forked: bool,
    max_seq: i64,
}

/// How far the numbers of the log jump after a crash, so that pieces of answers which were shown but never stored cannot
/// share a number with anything later.
const GAP: i64 = 1 << 20;

/// Loads the machine of a run, gives it what the request brings, and opens the log.
pub(super) async fn open(desk: &RunContext, known: &RegisteredAgent) -> DbResult<ReadyMachine> {
    let run = &desk.run;
    let answers = run.request.command.as_ref().and_then(|command| command.resume.clone());
    if run.attempt > 1 || goes_on(&run.request) {
        let thread = run.thread;
        let id = run.id;
        desk.db
            .write(move |tx| Box::pin(giving_up::deliver(tx, thread, id)))
            .await?;
    }
    let found = find(desk, run, answers).await?;
    desk.log.open(next_seq(run, found.max_seq));
    let mut plan = known.agent.plan.clone();
    plan.step_limit = run.request.step_limit().unwrap_or(plan.step_limit);
    let Found {
        mut machine,
        segment,
        own,
        forked,
        ..
    } = found;
    let budget = budget(desk, known).await?;
    let resumed = own || machine.head.is_some() && goes_on(&run.request);
    let mut notes = vec![PendingWrite::Fact(Fact::Started {
        base: machine.head,
        attempt: run.attempt,
        resumed,
    })];
    if own {
        return Ok(ReadyMachine {
            machine,
            notes,
            segment,
            plan,
            only_notes: false,
            budget,
        });
    }
    let goes_on_in_copy = machine.position.copied && run.request.input.is_none();
    if forked && may_ask_first(&run.request, &machine) || goes_on_in_copy {
        let entry = machine.fork(CheckpointId::mint());
        notes.push(PendingWrite::entry(entry, &machine));
    }
    if let Some(command) = &run.request.command {
        // The shape was checked when the run was admitted; what an agent that changed since does not have is nowhere.
        let place = Destination::of(&command.goto, &plan).unwrap_or_default();
        if place.as_ref().is_some_and(|place| leaves(&machine, place)) {
            abandon(desk, run, &machine).await?;
        }
        let only_notes = obey(command, place.as_ref(), &mut machine, &plan, &mut notes);
        return Ok(ReadyMachine {
            machine,
            notes,
            segment,
            plan,
            only_notes,
            budget,
        });
    }
    match &run.request.input {
        Some(input) => {
            abandon(desk, run, &machine).await?;
            // The shape was checked when the run was admitted.
            let input = crate::agent::identified(read_input(input).unwrap_or_default());
            let ids = [CheckpointId::mint(), CheckpointId::mint()];
            notes.extend(PendingWrite::input(&mut machine, &plan, input, ids));
        }
        None => machine.prepare_for_run(),
    }
    Ok(ReadyMachine {
        machine,
        notes,
        segment,
        plan,
        only_notes: false,
        budget,
    })
}

/// What was used, by the main agent and by all together. Runs side by side are at work at the same time: what counts for
/// all is the time of the main agent.
#[derive(Clone, Copy, Default)]
struct Spent {
    own: Usage,
    whole: Usage,
}

impl Spent {
    async fn in_tree(tx: &mut Tx<'_>, run: RunId) -> DbResult<Self> {
        let used = db::runs::usages(tx, run).await?;
        let stored = used.get(&run).copied().unwrap_or_default();
        // A task may have begun whose call has not come back.
        let begun = u64::try_from(db::trees::delegations(tx, run).await?).unwrap_or(0);
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

    /// What was used by the runs before this one that it goes on with by answers, back to the one that brought the input,
    /// which it is.
    async fn before(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<(Self, RunId)> {
        let mut spent = Self::default();
        let mut asked = db::interrupts::resumed(tx, thread).await?;
        let mut last = run;
        // Taken out, so that no two runs can lead to each other.
        while let Some(before) = asked.remove(&last) {
            let Self { own, whole } = Self::in_tree(tx, before).await?;
            spent = Self {
                own: spent.own.plus(own),
                whole: spent.whole.plus(whole),
            };
            last = before;
        }
        Ok((spent, last))
    }
}

/// What the run may still use. One that was at work before has used something, and so have those that it goes on with.
async fn budget(desk: &RunContext, known: &RegisteredAgent) -> DbResult<Budget> {
    let run = desk.run.id;
    let thread = desk.run.thread;
    let now = desk.clock.now();
    let (again, resumes) = (
        desk.run.attempt > 1,
        desk.run.request.command.as_ref().is_some_and(Command::resumes),
    );
    let (spent, (before, first)) = if again || resumes {
        let read = desk.db.read(move |tx| {
            Box::pin(async move {
                let spent = if again {
                    Spent::in_tree(tx, run).await?
                } else {
                    Spent::default()
                };
                let before = if resumes {
                    Spent::before(tx, thread, run).await?
                } else {
                    (Spent::default(), run)
                };
                Ok((spent, before))
            })
        });
        read.await?
    } else {
        (Spent::default(), (Spent::default(), run))
    };
    let meter = Arc::new(Meter::new(spent.own, now).after(before.own));
    let mut limits = known.agent.limits.clone();
    limits.depth = limits.depth.into_iter().chain(desk.run.levels()).min();
    // Whatever its definition says, no run is at work without end.
    let mut tree = limits.tree.take().unwrap_or_default();
    tree.wall_s = tree
        .wall_s
        .into_iter()
        .chain([desk.longest.as_secs_f64()])
        .reduce(f64::min);
    limits.tree = Some(tree);
    let ledger = BudgetLedger::open(desk, trees(desk, known, first), first, &spent.whole.plus(before.whole)).await?;
    if let Some(ledger) = &ledger {
        // The first one stays: a run is opened once under a claim.
        drop(desk.ledger.set(Arc::clone(ledger)));
    }
    let pool = ledger.map(|ledger| ledger as Arc<dyn SharedBudget>);
    Ok(Budget::of_member(
        limits,
        meter,
        Meter::new(spent.whole, now).after(before.whole),
        pool,
    ))
}

/// The trees with limits that the run works for together with runs on other threads: those above it, and its own if it may
/// begin background tasks. All runs take them in the same order.
fn trees(desk: &RunContext, known: &RegisteredAgent, first: RunId) -> Vec<BudgetScope> {
    let mut trees = desk
        .run
        .request
        .background
        .as_ref()
        .map(|lineage| lineage.trees.clone())
        .unwrap_or_default();
    let has_others = known.agent.subagents().is_some_and(|roster| roster.has_references());
    let begins_tasks = has_others
        || Builtin::tools_of(BACKGROUND)
            .first()
            .is_some_and(|tool| known.agent.tool(tool).is_some());
    let own = known
        .agent
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

/// Opens the log for a run that ends before its agent could be loaded. False if it is open already.
pub(super) async fn open_log(desk: &RunContext) -> DbResult<bool> {
    if desk.log.is_open() {
        return Ok(false);
    }
    let thread = desk.run.thread;
    let max_seq = desk
        .db
        .read(move |tx| Box::pin(async move { db::checkpoints::max_seq(tx, thread).await }))
        .await?;
    desk.log.open(next_seq(&desk.run, max_seq));
    Ok(true)
}

fn next_seq(run: &Run, max_seq: i64) -> i64 {
    max_seq + if run.attempt > 1 { GAP } else { 1 }
}

/// Whether a request goes on with what is under way, rather than beginning something.
fn goes_on(request: &RunRequest) -> bool {
    match &request.command {
        Some(command) => command.resumes(),
        None => request.input.is_none(),
    }
}

/// Whether a run may ask somebody before it has stored a step of its own.
fn may_ask_first(request: &RunRequest, machine: &Machine) -> bool {
    match (&request.command, &request.input) {
        (Some(command), _) => command.update.is_none(),
        (None, Some(_)) => false,
        (None, None) => matches!(machine.position.phase, Phase::Hooks { .. } | Phase::Tools { .. }),
    }
}

/// Whether who goes to `place` leaves behind what is under way, rather than going on with it.
fn leaves(machine: &Machine, place: &Destination) -> bool {
    !matches!(
        (&machine.position.phase, place),
        (Phase::Tools { .. }, Destination::Tools { own: true, .. })
    )
}

/// Does what a command says. True if nothing is to be driven after it.
fn obey(
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
    // No step follows on the end that could store where the run stands.
    let ends = place == Some(&Destination::End);
    if ends {
        machine.jump_to(plan, &Destination::End);
    }
    if ends || update != Update::none() {
        let entry = machine.append_update(plan, update, CheckpointId::mint());
        notes.push(PendingWrite::entry(entry, machine));
    }
    machine.prepare_for_run();
    if let Some(place) = place {
        machine.jump_to(plan, place);
    }
    place.is_none() && !command.resumes()
}

/// Reads where the thread stands, after delivering the answers that the run brings.
async fn find(desk: &RunContext, run: &Run, answers: Option<Resume>) -> DbResult<Found> {
    let thread = run.thread;
    let id = run.id;
    let from = run.request.checkpoint;
    if let Some(answers) = answers.filter(|answers| !answers.is_empty()) {
        desk.db
            .write(move |tx| Box::pin(async move { resume::deliver(tx, thread, id, &answers).await }))
            .await?;
    }
    desk.db
        .read(move |tx| {
            Box::pin(async move {
                let max_seq = db::checkpoints::max_seq(tx, thread).await?;
                let newest = db::checkpoints::head(tx, thread, Lane::Main).await?;
                let own = newest.as_ref().is_some_and(|head| head.run == Some(id));
                let fork = from.filter(|from| !own && newest.as_ref().is_some_and(|head| head.id != *from));
                let forked = fork.is_some();
                let (machine, segment) = match fork {
                    Some(fork) => (db::checkpoints::machine_at(tx, thread, fork).await?, None),
                    None => db::checkpoints::machine_of(tx, thread, newest).await?,
                };
                Ok(Found {
                    machine,
                    segment,
                    own,
                    forked,
                    max_seq,
                })
            })
        })
        .await
}

/// New input leaves what was under way behind: questions nobody will answer any more, children nobody waits for.
async fn abandon(desk: &RunContext, run: &Run, machine: &Machine) -> DbResult<()> {
    if matches!(machine.position.phase, Phase::Start | Phase::Ended) {
        return Ok(());
    }
    let thread = run.thread;
    let by = run.id;
    let now = desk.clock.now();
    desk.db
        .write(move |tx| {
            Box::pin(async move {
                db::interrupts::abandon(tx, thread, None, by, now).await?;
                db::runs::stop_children(tx, thread, by, now).await
            })
        })
        .await
}
