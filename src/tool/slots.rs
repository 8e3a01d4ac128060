//! Limits on the number of simultaneous calls.
//!
//! One answer of a model may request any number of calls, and each needs a connection. A slot is held only during a
//! tool call over the network or a model request. An agent that waits for its subagents holds none, so slots cannot
//! deadlock.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The call slots of one run with its subagents, and of the whole process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CallSlots {
    of_run: Arc<Semaphore>,
    of_process: Arc<Semaphore>,
}

/// An acquired slot; dropping it releases the slot.
#[derive(Debug)]
pub struct CallSlot {
    _of_run: Option<OwnedSemaphorePermit>,
    _of_process: Option<OwnedSemaphorePermit>,
}

impl CallSlots {
    /// Creates the slots of a run that may make `per_run` calls at once.
    pub fn new(per_run: usize, of_process: Arc<Semaphore>) -> Self {
        Self {
            of_run: Arc::new(Semaphore::new(per_run.min(Semaphore::MAX_PERMITS))),
            of_process,
        }
    }

    /// Acquires a slot for a tool call.
    pub async fn for_tool(&self) -> CallSlot {
        // The semaphores are never closed, so acquiring cannot fail.
        let of_run = Arc::clone(&self.of_run).acquire_owned().await.ok();
        let of_process = Arc::clone(&self.of_process).acquire_owned().await.ok();
        CallSlot {
            _of_run: of_run,
            _of_process: of_process,
        }
    }

    /// Acquires a slot for a model request. Each agent makes one at a time, so the limit only concerns subagents.
    pub async fn for_model(&self) -> CallSlot {
        CallSlot {
            _of_run: Arc::clone(&self.of_run).acquire_owned().await.ok(),
            _of_process: None,
        }
    }
}

impl Default for CallSlots {
    /// Creates unlimited slots.
    fn default() -> Self {
        Self::new(Semaphore::MAX_PERMITS, Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)))
    }
}
