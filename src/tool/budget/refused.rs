//! The reasons why an action of a run was not charged.

use super::LimitReached;
use crate::domain::machine::Failure;
use crate::domain::quota::QuotaReached;
use crate::tool::halt::Halt;

/// The class of the error that ends a run at a quota of its account.
const QUOTA_EXCEEDED: &str = "QuotaExceededError";

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
