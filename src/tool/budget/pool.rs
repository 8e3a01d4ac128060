//! Usage that a run shares with runs in other processes: those of its background tasks.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::refused::Refused;
use super::{Budget, LimitReached};
use crate::domain::background::BudgetScope;
use crate::domain::id::RunId;
use crate::domain::limits::{Spending, UsageChange};
use crate::domain::time::Timestamp;

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
