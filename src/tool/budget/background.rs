//! What a run may begin in the background: its tasks count among its subagents, and go on when it is over.

use super::{Budget, Exceeded, NO_FLOOR, Whole};
use crate::domain::limits::Limits;
use crate::domain::time::Timestamp;

impl Budget {
    /// Counts a background task that an agent at level `depth` is about to begin, besides those that are not over.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn spend_background(&self, depth: u32, not_over: u64, now: Timestamp) -> Result<(), Exceeded> {
        self.in_background(not_over);
        self.spend_child(depth + 1, now)?;
        // It goes on by itself, and its thread says for how long.
        self.leaves();
        self.in_background(not_over + 1);
        Ok(())
    }

    /// Takes back that a background task was counted: it was not begun.
    pub fn not_begun(&self, not_over: u64) {
        for meter in [&*self.meter, &self.tree.meter] {
            let mut counts = meter.counts();
            counts.used.children = counts.used.children.saturating_sub(1);
        }
        self.in_background(not_over);
    }

    /// Whether one more background task may be under way, besides those that are not over.
    ///
    /// # Errors
    /// The limit that forbids it.
    pub fn room_in_background(&self, not_over: u64) -> Result<(), Exceeded> {
        self.in_background(not_over);
        let room = |of_tree, limits: &Limits, under_way: u64| match limits.children_at_once {
            Some(limit) if under_way >= limit => Err(Exceeded {
                limit: "children_at_once",
                value: limit.to_string(),
                of_tree,
            }),
            Some(_) | None => Ok(()),
        };
        let Whole {
            limits,
            meter: whole,
            pool: _,
        } = &*self.tree;
        let own = self.meter.counts().under_way;
        let all = whole.counts().under_way;
        room(false, &self.limits, own + not_over)?;
        room(true, limits, all + not_over)
    }

    /// Notes how many background tasks are not over.
    pub fn in_background(&self, not_over: u64) {
        self.meter.counts().in_background = not_over;
    }

    /// How many levels of delegations may lie below an agent at level `depth`; none if nobody limits it.
    pub fn levels_below(&self, depth: u32) -> Option<u32> {
        (self.floor != NO_FLOOR).then(|| self.floor.saturating_sub(depth))
    }
}
