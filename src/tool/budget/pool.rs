//! What a run uses together with others that it does not share a process with: those of its background tasks.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::{Budget, Exceeded};
use crate::domain::background::LimitedTree;
use crate::domain::id::RunId;
use crate::domain::limits::{Change, Spending};
use crate::domain::time::Timestamp;
use crate::tool::Halt;

/// The trees of runs that a run belongs to and whose limits reach beyond its thread. What is charged here is charged to all
/// of them.
#[async_trait]
pub trait Pool: Send + Sync + fmt::Debug {
    /// Charges what is about to be done, together with what was noted. Nothing is charged when a limit forbids it; without
    /// `spending` only what was noted is.
    async fn charge(&self, spending: Option<Spending>, now: Timestamp) -> Result<(), Refused>;

    /// Notes what has changed; it is charged with whatever is charged next.
    fn note(&self, change: Change);

    /// How long there may be work, and the limit that says so.
    fn time_left(&self, now: Timestamp) -> Option<(Duration, Exceeded)>;

    /// The trees.
    fn trees(&self) -> &[LimitedTree];

    /// Under which name this run's share is kept.
    fn share(&self) -> RunId;
}

/// Why something was not charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// A limit forbids it.
    Exceeded(Exceeded),
    /// What was used together cannot be looked up for the moment.
    Away,
}

impl From<Exceeded> for Refused {
    fn from(exceeded: Exceeded) -> Self {
        Self::Exceeded(exceeded)
    }
}

/// A run ends at a limit. It is left, and gone on with later, while it cannot be told what it may use.
impl From<Refused> for Halt {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Exceeded(limit) => limit.into(),
            Refused::Away => Self::Stopped,
        }
    }
}

impl Budget {
    /// Counts what is about to be done, here and where it is counted together with others.
    ///
    /// # Errors
    /// See [`Refused`]; nothing was counted then.
    pub async fn claim(&self, spending: Spending, now: Timestamp) -> Result<(), Refused> {
        self.spend(spending, now)?;
        self.charge(spending, now).await
    }

    /// The same for a subagent that is about to be set to work at level `depth`.
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
                meter.counts().take_back(spending);
            }
        })
    }

    /// Tells others what was noted here. What cannot be told now is told later.
    pub async fn settle(&self, now: Timestamp) {
        if let Some(pool) = self.pool() {
            drop(pool.charge(None, now).await);
        }
    }

    /// Where what it uses is counted together with others, if it is.
    pub fn pool(&self) -> Option<&dyn Pool> {
        self.tree.pool.as_deref()
    }
}
