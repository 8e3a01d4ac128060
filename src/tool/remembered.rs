//! The remembered decisions of a thread, as agents read them.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::id::ThreadId;
use crate::domain::machine::Failure;
use crate::domain::remembered::RememberedDecision;

/// Read access to the decisions that reviewers have given for the rest of a thread.
#[async_trait]
pub trait RememberedDecisions: Send + Sync {
    /// Returns the decisions of a thread, oldest first. They are read each time, so that a revoked one is not applied.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn of_thread(&self, thread: ThreadId) -> Result<Arc<[RememberedDecision]>, Failure>;
}

/// No decisions are remembered: for agents without a database.
#[derive(Debug, Clone, Copy, Default)]
pub struct NothingRemembered;

#[async_trait]
impl RememberedDecisions for NothingRemembered {
    async fn of_thread(&self, _: ThreadId) -> Result<Arc<[RememberedDecision]>, Failure> {
        Ok(Arc::default())
    }
}
