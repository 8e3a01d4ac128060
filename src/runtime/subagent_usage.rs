//! The usage of the subagents of a run that have ended in this process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::id::RunId;
use crate::domain::limits::Usage;

/// The stored usage of those subagents in the tree of a run that have ended in this process. If those are all, the run
/// does not read it from the database at its end.
#[derive(Debug, Default)]
pub(super) struct SubagentUsage(Mutex<HashMap<RunId, Usage>>);

impl SubagentUsage {
    /// Records the usage that was stored with the end of a subagent.
    pub(super) fn record_end(&self, subagent: RunId, used: Usage) {
        self.ended().insert(subagent, used);
    }

    /// Forgets the end of a subagent that continues.
    pub(super) fn forget(&self, subagent: RunId) {
        self.ended().remove(&subagent);
    }

    /// Returns the usage of all subagents together; none unless `begun` of them have ended in this process. The number of those
    /// that the run has begun counts its background tasks, whose usage is not here.
    pub(super) fn of_all(&self, begun: u64) -> Option<Usage> {
        let ended = self.ended();
        let are_all = u64::try_from(ended.len()).is_ok_and(|count| count == begun);
        are_all.then(|| ended.values().copied().fold(Usage::default(), Usage::plus))
    }

    fn ended(&self) -> MutexGuard<'_, HashMap<RunId, Usage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(tool_calls: u64) -> Usage {
        Usage {
            tool_calls,
            ..Usage::default()
        }
    }

    #[test]
    fn the_usage_of_all_is_known_when_all_have_ended() {
        let subagents = SubagentUsage::default();
        assert_eq!(subagents.of_all(0), Some(Usage::default()));
        subagents.record_end(RunId::mint(), calls(2));
        assert_eq!(
            subagents.of_all(2),
            None,
            "the other one works, or is a background task"
        );
        subagents.record_end(RunId::mint(), calls(3));
        assert_eq!(subagents.of_all(2), Some(calls(5)));
    }

    #[test]
    fn a_subagent_that_continues_has_not_ended() {
        let subagents = SubagentUsage::default();
        let waits = RunId::mint();
        subagents.record_end(waits, calls(2));
        subagents.forget(waits);
        assert_eq!(subagents.of_all(1), None);
        subagents.record_end(waits, calls(4));
        assert_eq!(subagents.of_all(1), Some(calls(4)));
    }
}
