//! Usage that a run shares with runs in other processes: those of its background tasks.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::account::QUOTA_EXCEEDED;
use super::{Budget, LimitReached};
use crate::domain::background::BudgetScope;
use crate::domain::id::RunId;
use crate::domain::limits::{Spending, UsageChange};
use crate::domain::machine::Failure;
use crate::domain::quota::QuotaReached;
use crate::domain::time::Timestamp;
use crate::tool::Halt;

/// The trees of runs that a run belongs to and whose limits apply beyond its thread. A charge counts in all of them.
#[async_trait]
pub trait SharedBudget: Send + Sync + fmt::Debug {
    /// Charges an action before it is performed, together with the recorded changes. Nothing is charged if a limit
    /// would be exceeded; without `spending`, only the recorded changes are charged.
    async fn charge(&self, spending: Option<Spending>, now: Timestamp) -> Result<(), Refused>;

    /// Records a change, which is charged together with the next charge.
    fn note(&self, change: UsageChange);

    /// Returns the remaining running time and the limit behind it.
    fn time_left(&self, now: Timestamp) -> Option<(Duration, LimitReached)>;

    /// Returns the trees.
    fn trees(&self) -> &[BudgetScope];

    /// Returns the id under which this run's share is stored.
    fn share(&self) -> RunId;
}

/// The reason why an action was not charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// A limit would be exceeded.
    Exceeded(LimitReached),
    /// A quota of the account is used up.
    Quota(QuotaReached),
    /// The shared usage cannot be read at the moment.
    Away,
}

impl From<LimitReached> for Refused {
    fn from(exceeded: LimitReached) -> Self {
        Self::Exceeded(exceeded)
    }
}

/// A run ends at a limit. It is left, and continued later, while its budget is not known.
impl From<Refused> for Halt {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Exceeded(limit) => limit.into(),
            Refused::Quota(reached) => Self::Fail(Failure::new(QUOTA_EXCEEDED, reached.to_string())),
            Refused::Away => Self::Stopped,
        }
    }
}

impl Budget {
    /// Counts an action before it is performed, here and in the shared pool.
    ///
    /// # Errors
    /// See [`Refused`]; nothing is counted then.
    pub async fn claim(&self, spending: Spending, now: Timestamp) -> Result<(), Refused> {
        if let Some(account) = self.account.as_ref().filter(|_| spending == Spending::ModelCall) {
            account.check_model_call(now).await?;
        }
        self.spend(spending, now)?;
        self.charge(spending, now).await
    }

    /// Counts a subagent at level `depth` before it starts, here and in the shared pool.
    ///
    /// # Errors
    /// As [`Budget::claim`].
    pub async fn claim_child(&self, depth: u32, now: Timestamp) -> Result<(), Refused> {
        self.spend_child(depth, now)?;
        self.charge(Spending::Child, now).await
    }

    async fn charge(&self, spending: Spending, now: Timestamp) -> Result<(), Refused> {
        let Some(pool) = self.pool() else { return Ok(()) };
        pool.charge(Some(spending), now).await.inspect_err(|_| {
            for meter in [&*self.meter, &self.tree.meter] {
                meter.counts().refund(spending);
            }
        })
    }

    /// Charges the recorded changes to the shared pool. If that fails, they stay recorded for the next charge.
    pub async fn settle(&self, now: Timestamp) {
        if let Some(pool) = self.pool() {
            drop(pool.charge(None, now).await);
        }
    }

    /// Returns the pool that is shared with other runs, if there is one.
    pub fn pool(&self) -> Option<&dyn SharedBudget> {
        self.tree.pool.as_deref()
    }
}
