//! The shared budgets of trees of runs whose limits reach beyond one thread: those of a conversation with its
//! background tasks.
//!
//! Each run of the main agent in such a tree, on any server, charges its usage in advance, in one short transaction
//! with constant cost. The share of the run is stored beside the sum. After a crash the share is set to the stored
//! usage of the run, so that nothing counts twice and nothing is lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::db::trees::{self, TreeUsed};
use crate::db::{self, Db, DbError, DbResult, Tx};
use crate::domain::background::BudgetScope;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::limits::{Spending, Usage, UsageChange};
use crate::domain::time::Timestamp;
use crate::tool::budget::{LimitReached, Refused, SharedBudget};

/// The ledger of one run of the main agent.
pub(super) struct BudgetLedger {
    db: Db,
    trees: Vec<BudgetScope>,
    share: RunId,
    local: Mutex<LocalTally>,
}

/// The usage that is not stored yet, and the last stored state.
#[derive(Debug, Default)]
struct LocalTally {
    noted: UsageChange,
    /// The time up to which the time of this run is charged.
    since: Timestamp,
    left: Option<RemainingTime>,
}

/// The remaining time at an instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RemainingTime {
    at: Timestamp,
    seconds: f64,
    limit: f64,
}

/// A charge.
#[derive(Debug, Clone, Copy)]
pub(super) struct BudgetCharge {
    /// The usage since the last charge.
    pub(super) noted: UsageChange,
    /// The expense that the run is about to make, if any.
    pub(super) spending: Option<Spending>,
    /// True for a background task.
    pub(super) in_background: bool,
    /// The time from which on the run was at work; the time of the charge if it was not.
    pub(super) since: Timestamp,
}

impl BudgetLedger {
    /// Opens the ledger of a run on a thread, with the share `share` and this stored usage.
    pub(super) async fn open(
        db: &Db,
        thread: ThreadId,
        trees: Vec<BudgetScope>,
        share: RunId,
        used: &Usage,
        now: Timestamp,
    ) -> DbResult<Option<Arc<Self>>> {
        if trees.is_empty() {
            return Ok(None);
        }
        let used = UsageChange::from(used);
        let all = trees.clone();
        let write = db.write(move |tx| {
            Box::pin(async move {
                ensure_shares(tx, &all, share, thread, now).await?;
                for tree in &all {
                    set_share(tx, tree, share, &used).await?;
                }
                DbResult::Ok(())
            })
        });
        write.await?;
        let local = Mutex::new(LocalTally {
            since: now,
            ..LocalTally::default()
        });
        Ok(Some(Arc::new(Self {
            db: db.clone(),
            trees,
            share,
            local,
        })))
    }

    /// Stores the end of the run. `waiting` subagents stay counted, since they wait for an answer.
    pub(super) async fn close(&self, tx: &mut Tx<'_>, now: Timestamp, waiting: u64) -> DbResult<()> {
        // The noted usage is not reset: the transaction may be retried, and nothing follows it.
        let (noted, since) = {
            let local = self.tally();
            (local.noted, local.since)
        };
        for tree in &self.trees {
            let Some(mut used) = trees::lock(tx, tree.top).await? else {
                continue;
            };
            let share = trees::share(tx, tree.top, self.share).await?.unwrap_or_default();
            let under_way = i64::try_from(waiting)
                .unwrap_or(i64::MAX)
                .saturating_sub(share.under_way);
            let change = UsageChange { under_way, ..noted };
            used.busy.add(since, now);
            used.sum = used.sum.plus(change);
            trees::set(tx, tree.top, &used).await?;
            trees::add_to_share(tx, tree.top, self.share, &change).await?;
        }
        Ok(())
    }

    /// Takes the noted usage, and returns it with the time of the last charge.
    fn take_noted(&self) -> (UsageChange, Timestamp) {
        let mut local = self.tally();
        (std::mem::take(&mut local.noted), local.since)
    }

    fn tally(&self) -> MutexGuard<'_, LocalTally> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for BudgetLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BudgetLedger")
            .field("trees", &self.trees)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl SharedBudget for BudgetLedger {
    async fn charge(&self, spending: Option<Spending>, now: Timestamp) -> Result<(), Refused> {
        let (noted, since) = self.take_noted();
        if spending.is_none() && noted == UsageChange::default() {
            return Ok(());
        }
        let trees = self.trees.clone();
        let share = self.share;
        let charge = BudgetCharge {
            noted,
            spending,
            in_background: false,
            since,
        };
        let write = self
            .db
            .write(move |tx| Box::pin(async move { self::charge(tx, &trees, share, charge, now).await }));
        let refused = match write.await {
            Ok(left) => {
                let mut local = self.tally();
                local.since = local.since.max(now);
                local.left = left;
                return Ok(());
            }
            Err(ChargeError::Exceeded(exceeded)) => exceeded.into(),
            Err(ChargeError::Fault(error)) => unavailable(self.share, &error),
        };
        self.note(noted);
        Err(refused)
    }

    fn note(&self, change: UsageChange) {
        let mut local = self.tally();
        local.noted = local.noted.plus(change);
    }

    fn time_left(&self, now: Timestamp) -> Option<(Duration, LimitReached)> {
        let RemainingTime { at, seconds, limit } = self.tally().left?;
        let left = (seconds - now.since(at).as_secs_f64()).max(0.0);
        Some((
            Duration::try_from_secs_f64(left).ok()?,
            exceeded("wall_s", limit.to_string()),
        ))
    }

    fn trees(&self) -> &[BudgetScope] {
        &self.trees
    }

    fn share(&self) -> RunId {
        self.share
    }
}

/// The refusal of a charge.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChargeError {
    /// A limit of one of the trees forbids the charge.
    #[error("{0}")]
    Exceeded(LimitReached),
    /// The database failed.
    #[error(transparent)]
    Fault(#[from] DbError),
}

/// Charges all of these trees with the usage of the run of the share `share`, or none of them if a limit of a tree
/// forbids it. Returns the remaining time.
pub(super) async fn charge(
    tx: &mut Tx<'_>,
    trees: &[BudgetScope],
    share: RunId,
    BudgetCharge {
        noted,
        spending,
        in_background,
        since,
    }: BudgetCharge,
    now: Timestamp,
) -> Result<Option<RemainingTime>, ChargeError> {
    let mut all: Vec<(RunId, TreeUsed)> = vec![];
    let mut left: Option<RemainingTime> = None;
    for tree in trees {
        let Some(mut used) = trees::lock(tx, tree.top).await? else {
            continue;
        };
        used.busy.add(since, now);
        used.sum = used.sum.plus(noted);
        if let Some(spending) = spending {
            let under_way = under_way(tx, tree, &used).await?;
            if let Some((limit, value)) = tree.limits.exceeded_by(spending, &usage_of(&used), under_way) {
                return Err(ChargeError::Exceeded(exceeded(limit, value)));
            }
        }
        if let Some(limit) = tree.limits.wall_s {
            let seconds = limit - used.busy.seconds();
            left = left.filter(|left| left.seconds <= seconds).or(Some(RemainingTime {
                at: now,
                seconds,
                limit,
            }));
        }
        all.push((tree.top, used));
    }
    let spent = match spending {
        Some(Spending::Child) if in_background => UsageChange {
            children: 1,
            ..UsageChange::default()
        },
        Some(spending) => UsageChange::of(spending),
        None => UsageChange::default(),
    };
    for (tree, used) in all {
        let used = TreeUsed {
            sum: used.sum.plus(spent),
            ..used
        };
        // Without a share the run was undone meanwhile, and counts no more.
        if trees::add_to_share(tx, tree, share, &noted.plus(spent)).await? {
            trees::set(tx, tree, &used).await?;
        }
    }
    Ok(left)
}

/// The share that is left to an undone run in the trees that counted it.
pub(super) struct RemainingShare {
    /// The trees.
    pub(super) trees: BTreeSet<RunId>,
    /// The share in which the run counted, together with the runs that it continued.
    pub(super) share: RunId,
    /// The usage of those runs.
    pub(super) used: Usage,
    /// The number of subagents that wait again.
    pub(super) waiting: i64,
    /// The background tasks that were undone with the run.
    pub(super) tasks: Vec<ThreadId>,
}

/// Takes the work of an undone run out of the trees that counted it. The time stays: it has passed for all in a tree.
pub(super) async fn take_back(tx: &mut Tx<'_>, left: &RemainingShare) -> DbResult<()> {
    let kept = UsageChange {
        under_way: left.waiting,
        ..UsageChange::from(&left.used)
    };
    // In the order in which all transactions lock trees.
    for tree in &left.trees {
        let Some(mut whole) = trees::lock(tx, *tree).await? else {
            continue;
        };
        if let Some(share) = trees::share(tx, *tree, left.share).await? {
            let change = kept.minus(share);
            trees::add_to_share(tx, *tree, left.share, &change).await?;
            whole.sum = whole.sum.plus(change);
        }
        for task in &left.tasks {
            let share = trees::remove_shares(tx, *tree, *task).await?;
            whole.sum = whole.sum.minus(share);
        }
        trees::set(tx, *tree, &whole).await?;
    }
    Ok(())
}

/// Creates the rows of the share `share` in these trees, unless they exist.
pub(super) async fn ensure_shares(
    tx: &mut Tx<'_>,
    trees: &[BudgetScope],
    share: RunId,
    thread: ThreadId,
    now: Timestamp,
) -> DbResult<()> {
    for tree in trees {
        trees::create_missing(tx, tree.top, share, thread, now).await?;
    }
    Ok(())
}

/// Sets the known usage of a remote task in these trees.
pub(super) async fn set_usage(tx: &mut Tx<'_>, trees: &[BudgetScope], share: RunId, used: &Usage) -> DbResult<()> {
    for tree in trees {
        set_share(tx, tree, share, &UsageChange::from(used)).await?;
    }
    Ok(())
}

/// Returns the limit that one more running task would exceed.
pub(super) async fn exceeded_limit(tx: &mut Tx<'_>, trees: &[BudgetScope]) -> DbResult<Option<LimitReached>> {
    for tree in trees {
        let (Some(used), Some(limit)) = (trees::lock(tx, tree.top).await?, tree.limits.children_at_once) else {
            continue;
        };
        if under_way(tx, tree, &used).await? >= limit {
            return Ok(Some(exceeded("children_at_once", limit.to_string())));
        }
    }
    Ok(None)
}

/// Counts the unfinished subagents and background tasks of a tree.
async fn under_way(tx: &mut Tx<'_>, tree: &BudgetScope, used: &TreeUsed) -> DbResult<u64> {
    if tree.limits.children_at_once.is_none() {
        return Ok(0);
    }
    let tasks = db::background::not_over_in_tree(tx, tree.top).await?;
    Ok(u64::try_from(used.sum.under_way.saturating_add(tasks)).unwrap_or(0))
}

fn usage_of(used: &TreeUsed) -> Usage {
    Usage {
        seconds: used.busy.seconds(),
        ..used.sum.usage()
    }
}

/// Sets the share of a run to its stored usage. No subagent is at work yet.
async fn set_share(tx: &mut Tx<'_>, tree: &BudgetScope, share: RunId, used: &UsageChange) -> DbResult<()> {
    let (Some(mut whole), Some(before)) = (
        trees::lock(tx, tree.top).await?,
        trees::share(tx, tree.top, share).await?,
    ) else {
        return Ok(());
    };
    let change = used.minus(before);
    if change == UsageChange::default() {
        return Ok(());
    }
    whole.sum = whole.sum.plus(change);
    trees::set(tx, tree.top, &whole).await?;
    trees::add_to_share(tx, tree.top, share, &change).await.map(drop)
}

fn exceeded(limit: &'static str, value: String) -> LimitReached {
    LimitReached {
        limit,
        value,
        of_tree: true,
    }
}

fn unavailable(run: RunId, error: &DbError) -> Refused {
    tracing::warn!(%run, %error, "could not look up what a tree of runs has used");
    Refused::Away
}
