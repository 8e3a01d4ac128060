//! Whether one more task may be begun: limits of the run that asks, and of the whole tree.

use super::DEEPEST;
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{TaskLineage, TaskRecord};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::limits::{Spending, UsageChange};
use crate::domain::run::Run;
use crate::domain::time::Timestamp;
use crate::runtime::ledger::{self, BudgetCharge};
use crate::tool::Scope;
use crate::tool::budget::{Budget, LimitReached};

/// Who asks, as the transactions need it.
pub(super) struct TaskParent {
    pub(super) run: RunId,
    pub(super) thread: ThreadId,
    pub(super) depth: u32,
    pub(super) budget: Budget,
}

impl TaskParent {
    pub(super) fn of(scope: &Scope) -> Self {
        Self {
            run: scope.run,
            thread: scope.thread,
            depth: scope.depth,
            budget: scope.budget.clone(),
        }
    }
}

/// Makes room for one more task, if that is allowed: its place below the run that asks, and how many others are not over.
/// Everything is checked and counted under the lock of the thread that asks, so that calls side by side see each other, and
/// for the trees whose limits reach this far under a lock of their own.
pub(super) async fn admit(
    tx: &mut Tx<'_>,
    asker: &TaskParent,
    record: &TaskRecord,
    now: Timestamp,
) -> DbResult<Result<(TaskLineage, u64), String>> {
    let locked = db::threads::lock(tx, asker.thread).await?;
    let launcher = db::runs::get_by_id(tx, asker.run).await?;
    let (Some(_), Some(launcher)) = (locked, launcher) else {
        return Ok(Err("The conversation is being deleted; nothing was started.".to_owned()));
    };
    let ancestry = match descend(&launcher, asker, &record.ancestry) {
        Ok(ancestry) => ancestry,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let not_over = count(db::background::not_over(tx, asker.thread).await?);
    if let Err(refused) = asker.budget.spend_background(asker.depth, not_over, now) {
        return Ok(Err(limited(&refused)));
    }
    let charge = BudgetCharge {
        noted: UsageChange::default(),
        spending: Some(Spending::Child),
        in_background: true,
    };
    if let Some(pool) = asker.budget.pool() {
        if let Err(refused) = ledger::charge(tx, (pool.trees(), pool.share()), charge, (now, now)).await? {
            asker.budget.not_begun(not_over);
            return Ok(Err(limited(&refused)));
        }
        ledger::enter(tx, pool.trees(), (RunId(record.task.0), record.task), now).await?;
    }
    Ok(Ok((ancestry, not_over)))
}

/// Takes back that a task was counted which was not begun; so many others are not over.
pub(super) async fn give_back(tx: &mut Tx<'_>, budget: &Budget, not_over: u64, now: Timestamp) -> DbResult<()> {
    budget.not_begun(not_over);
    if let Some(pool) = budget.pool() {
        let noted = UsageChange {
            children: -1,
            ..UsageChange::default()
        };
        let charge = BudgetCharge {
            noted,
            spending: None,
            in_background: true,
        };
        drop(ledger::charge(tx, (pool.trees(), pool.share()), charge, (now, now)).await?);
    }
    Ok(())
}

/// Makes room for a task that was over and goes on, if that is allowed.
pub(super) async fn again(tx: &mut Tx<'_>, asker: &TaskParent, ancestry: &TaskLineage) -> DbResult<Result<(), String>> {
    let not_over = count(db::background::not_over(tx, asker.thread).await?);
    if let Err(refused) = asker.budget.room_in_background(not_over) {
        return Ok(Err(limited(&refused)));
    }
    Ok(ledger::room(tx, &ancestry.trees)
        .await?
        .map_or(Ok(()), |refused| Err(limited(&refused))))
}

/// The place of a task below the run that asks for it, of which `draft` knows already who began it.
fn descend(launcher: &Run, asker: &TaskParent, draft: &TaskLineage) -> Result<TaskLineage, String> {
    let above = launcher.request.background.as_ref();
    let nesting = above.map_or(0, |above| above.nesting) + 1;
    let levels = asker.budget.levels_below(asker.depth);
    if levels.is_none() && nesting > DEEPEST {
        return Err(format!(
            "Background tasks nest at most {DEEPEST} deep, and this one would be number {nesting}. Nothing was started; \
             do the work yourself."
        ));
    }
    Ok(TaskLineage {
        top: above.map_or(launcher.id, |above| above.top),
        nesting,
        levels: levels.map(|levels| levels.saturating_sub(1)),
        trees: asker.budget.pool().map_or_else(Vec::new, |pool| pool.trees().to_vec()),
        ..draft.clone()
    })
}

pub(super) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn limited(refused: &LimitReached) -> String {
    format!("{refused} Nothing was started; do the work yourself, or wait until a task is over.")
}
