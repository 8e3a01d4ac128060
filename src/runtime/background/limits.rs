//! The limits of background tasks: those of the calling run and of its whole tree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{MAX_NESTING, TaskError};
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{TaskLineage, TaskRecord};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::limits::{Spending, UsageChange};
use crate::domain::run::Run;
use crate::domain::time::Timestamp;
use crate::runtime::ledger::{self, BudgetCharge, ChargeError};
use crate::tool::Scope;
use crate::tool::budget::{Budget, LimitReached};

/// The run that starts a task by a call. Clones are of the same call.
#[derive(Clone)]
pub(super) struct TaskParent {
    pub(super) run: RunId,
    pub(super) thread: ThreadId,
    pub(super) depth: u32,
    pub(super) budget: Budget,
    /// True while the budget counts a task of this call.
    is_counted: Arc<AtomicBool>,
}

impl TaskParent {
    pub(super) fn of(scope: &Scope) -> Self {
        Self {
            run: scope.run,
            thread: scope.thread,
            depth: scope.depth,
            budget: scope.budget.clone(),
            is_counted: Arc::default(),
        }
    }

    /// Returns the reservation of a task that was not started to the budget, if there is one. `not_over` is the number of
    /// other unfinished tasks.
    pub(super) fn not_begun(&self, not_over: u64) {
        if self.is_counted.swap(false, Ordering::Relaxed) {
            self.budget.not_begun(not_over);
        }
    }
}

/// Reserves one more task, if the limits allow it. Returns its lineage and the number of other unfinished tasks.
///
/// If the task is not started after all, the writes are rolled back with the transaction, and the caller has to return
/// the reservation to the budget, see [`TaskParent::not_begun`]. The thread that asks is locked during all checks and
/// counts, so that parallel calls see each other. Trees whose limits reach this far have a lock of their own.
pub(super) async fn admit(
    tx: &mut Tx<'_>,
    parent: &TaskParent,
    record: &TaskRecord,
    now: Timestamp,
) -> Result<(TaskLineage, u64), TaskError> {
    let locked = db::threads::lock(tx, parent.thread).await?;
    let launcher = db::runs::get_by_id(tx, parent.run).await?;
    let (Some(_), Some(launcher)) = (locked, launcher) else {
        return Err(TaskError::Refused(
            "The conversation is being deleted; nothing was started.".to_owned(),
        ));
    };
    let ancestry = lineage_below(&launcher, parent, &record.ancestry).map_err(TaskError::Refused)?;
    let not_over = count(db::background::not_over(tx, parent.thread).await?);
    // An earlier try of the call may have ended with a commit that was lost.
    parent.not_begun(not_over);
    let spent = parent.budget.spend_background(parent.depth, not_over, now);
    spent.map_err(|exceeded| limit_refusal(&exceeded))?;
    parent.is_counted.store(true, Ordering::Relaxed);
    let charge = BudgetCharge {
        noted: UsageChange::default(),
        spending: Some(Spending::Child),
        in_background: true,
        since: now,
    };
    if let Some(pool) = parent.budget.pool() {
        let enter = async {
            let charged = ledger::charge(tx, pool.trees(), pool.share(), charge, now).await;
            charged.map_err(|error| match error {
                ChargeError::Exceeded(exceeded) => limit_refusal(&exceeded),
                ChargeError::Fault(error) => error.into(),
            })?;
            ledger::ensure_shares(tx, pool.trees(), RunId(record.task.0), record.task, now).await?;
            Ok::<_, TaskError>(())
        };
        // The transaction may be repeated.
        let entered = enter.await;
        entered.inspect_err(|_| parent.not_begun(not_over))?;
    }
    Ok((ancestry, not_over))
}

/// Returns the reservation of a task that was not started. `not_over` is the number of other unfinished tasks.
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
            since: now,
        };
        // Nothing is spent, so no limit can forbid the charge.
        if let Err(ChargeError::Fault(error)) = ledger::charge(tx, pool.trees(), pool.share(), charge, now).await {
            return Err(error);
        }
    }
    Ok(())
}

/// Checks whether a finished task may continue.
pub(super) async fn check_restart(
    tx: &mut Tx<'_>,
    parent: &TaskParent,
    ancestry: &TaskLineage,
) -> Result<(), TaskError> {
    let not_over = count(db::background::not_over(tx, parent.thread).await?);
    let room = parent.budget.room_in_background(not_over);
    room.map_err(|exceeded| limit_refusal(&exceeded))?;
    match ledger::exceeded_limit(tx, &ancestry.trees).await? {
        Some(exceeded) => Err(limit_refusal(&exceeded)),
        None => Ok(()),
    }
}

/// Returns the lineage of a task below the calling run; `draft` names the agent that started the task.
fn lineage_below(launcher: &Run, parent: &TaskParent, draft: &TaskLineage) -> Result<TaskLineage, String> {
    let above = launcher.request.background.as_ref();
    let nesting = above.map_or(0, |above| above.nesting) + 1;
    let levels = parent.budget.levels_below(parent.depth);
    if levels.is_none() && nesting > MAX_NESTING {
        return Err(format!(
            "Background tasks nest at most {MAX_NESTING} deep, and this one would be number {nesting}. Nothing was started; \
             do the work yourself."
        ));
    }
    Ok(TaskLineage {
        top: above.map_or(launcher.id, |above| above.top),
        nesting,
        levels: levels.map(|levels| levels.saturating_sub(1)),
        trees: parent.budget.pool().map_or_else(Vec::new, |pool| pool.trees().to_vec()),
        ..draft.clone()
    })
}

pub(super) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn limit_refusal(exceeded: &LimitReached) -> TaskError {
    TaskError::Refused(format!(
        "{exceeded} Nothing was started; do the work yourself, or wait until a task is over."
    ))
}
