//! How many calls are under way at once.
//!
//! One answer of a model may ask for any number of calls, and each takes a connection. Only what waits for nobody here holds
//! a slot: a call over the network, or a question to a model. A caller that waits for its subagents holds none, so they
//! cannot wait for it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots for calls of one run with its subagents, and of the whole process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CallSlots {
    of_run: Arc<Semaphore>,
    of_process: Arc<Semaphore>,
}

/// A slot; it is free again when this is dropped.
#[derive(Debug)]
pub struct CallSlot {
    _of_run: Option<OwnedSemaphorePermit>,
    _of_process: Option<OwnedSemaphorePermit>,
}

impl CallSlots {
    /// Slots of a run that may make so many calls at once.
    pub fn new(per_run: usize, of_process: Arc<Semaphore>) -> Self {
        Self {
            of_run: Arc::new(Semaphore::new(per_run.min(Semaphore::MAX_PERMITS))),
            of_process,
        }
    }

    /// Waits for a turn to call a tool.
    pub async fn for_tool(&self) -> CallSlot {
        // Neither is ever closed.
        let of_run = Arc::clone(&self.of_run).acquire_owned().await.ok();
        let of_process = Arc::clone(&self.of_process).acquire_owned().await.ok();
        CallSlot {
            _of_run: of_run,
            _of_process: of_process,
        }
    }

    /// Waits for a turn to ask a model. A run asks one at a time, so only its subagents can be many.
    pub async fn for_model(&self) -> CallSlot {
        CallSlot {
            _of_run: Arc::clone(&self.of_run).acquire_owned().await.ok(),
            _of_process: None,
        }
    }
}

impl Default for CallSlots {
    /// As many as anybody wants.
    fn default() -> Self {
        Self::new(Semaphore::MAX_PERMITS, Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)))
    }
}
