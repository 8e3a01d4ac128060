//! The budget with which a run begins: its limits, without what its earlier attempts and the runs that it continues have used.

use std::sync::Arc;

use super::earlier_runs::{EarlierRuns, UsedSoFar};
use crate::agent::assemble::RegisteredAgent;
use crate::db::DbResult;
use crate::definition::builtins::{BACKGROUND, Builtin};
use crate::domain::background::BudgetScope;
use crate::domain::id::RunId;
use crate::domain::limits::Limits;
use crate::domain::run::Command;
use crate::runtime::ledger::BudgetLedger;
use crate::runtime::quotas::RunAccount;
use crate::runtime::run_context::RunContext;
use crate::tool::budget::{Budget, Meter, SharedBudget};

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
pub(super) async fn remaining_budget(
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
