//! Background tasks in a run's budget. They count as subagents of the run and continue after its end.

use super::{Budget, LimitReached, TreeBudget, UNLIMITED_DEPTH};
use crate::domain::limits::Limits;
use crate::domain::time::Timestamp;

impl Budget {
    /// Counts a background task of an agent at level `depth` before it starts; `not_over` is the number of unfinished
    /// tasks.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn spend_background(&self, depth: u32, not_over: u64, now: Timestamp) -> Result<(), LimitReached> {
        self.in_background(not_over);
        self.spend_child(depth + 1, now)?;
        // The task runs on its own thread, so it is not counted as a running subagent here.
        self.child_stopped();
        self.in_background(not_over + 1);
        Ok(())
    }

    /// Reverts the count of a background task that could not be started.
    pub fn not_begun(&self, not_over: u64) {
        for meter in [&*self.meter, &self.tree.meter] {
            let mut counts = meter.counts();
            counts.used.children = counts.used.children.saturating_sub(1);
        }
        self.in_background(not_over);
    }

    /// Checks that one more background task may run besides the `not_over` unfinished ones.
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub fn room_in_background(&self, not_over: u64) -> Result<(), LimitReached> {
        self.in_background(not_over);
        let check = |of_tree, limits: &Limits, under_way: u64| match limits.children_at_once {
            Some(limit) if under_way >= limit => Err(LimitReached {
                limit: "children_at_once",
                value: limit.to_string(),
                of_tree,
            }),
            Some(_) | None => Ok(()),
        };
        let TreeBudget {
            limits,
            meter: whole,
            pool: _,
        } = &*self.tree;
        let own = self.meter.counts().under_way;
        let all = whole.counts().under_way;
        check(false, &self.limits, own + not_over)?;
        check(true, limits, all + not_over)
    }

    /// Sets the number of unfinished background tasks.
    pub fn in_background(&self, not_over: u64) {
        self.meter.counts().in_background = not_over;
    }

    /// Returns the number of delegation levels allowed below an agent at level `depth`; `None` if there is no limit.
    pub fn levels_below(&self, depth: u32) -> Option<u32> {
        (self.max_depth != UNLIMITED_DEPTH).then(|| self.max_depth.saturating_sub(depth))
    }
}
