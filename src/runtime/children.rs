//! The runs of subagents at work in this process, each with its own cancellation token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::domain::id::RunId;

/// The runs of subagents at work in this process.
#[derive(Default)]
pub(super) struct Children(Mutex<HashMap<RunId, Arc<CancellationToken>>>);

/// A subagent's run among those at work, for as long as this is held.
pub(super) struct RegisteredChild {
    among: Arc<Children>,
    run: RunId,
    stop: Arc<CancellationToken>,
}

impl Children {
    /// Registers a run that is, or is about to be, at work. It can be cancelled from now on.
    pub(super) fn register(self: &Arc<Self>, run: RunId, stop: CancellationToken) -> RegisteredChild {
        let stop = Arc::new(stop);
        self.all().insert(run, Arc::clone(&stop));
        RegisteredChild {
            among: Arc::clone(self),
            run,
            stop,
        }
    }

    /// Cancels a run. Returns false if the run is not at work in this process.
    pub(super) fn stop(&self, run: RunId) -> bool {
        self.all().get(&run).map(|stop| stop.cancel()).is_some()
    }

    /// Returns whether the run is at work in this process.
    pub(super) fn has(&self, run: RunId) -> bool {
        self.all().contains_key(&run)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<RunId, Arc<CancellationToken>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegisteredChild {
    /// Returns the token that cancels the run.
    pub(super) fn stop(&self) -> &CancellationToken {
        &self.stop
    }
}

impl Drop for RegisteredChild {
    fn drop(&mut self) {
        let mut all = self.among.all();
        // Another loop may have taken up the run again, so the entry may be that of the other loop.
        if all.get(&self.run).is_some_and(|stop| Arc::ptr_eq(stop, &self.stop)) {
            all.remove(&self.run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_to_stop_for_as_long_as_it_is_at_work() {
        let children = Arc::new(Children::default());
        let run = RunId::mint();
        assert!(!children.stop(run));
        let first = children.register(run, CancellationToken::new());
        let second = children.register(run, CancellationToken::new());
        drop(first);
        assert!(children.has(run), "whoever took it up later has it still");
        assert!(children.stop(run) && second.stop().is_cancelled());
        drop(second);
        assert!(!children.has(run) && !children.stop(run));
    }
}
