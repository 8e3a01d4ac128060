//! What a run may still use: its own limits, and those of the whole tree. Every agent of a run counts here before it acts.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::domain::limits::{Limits, Spending, Usage};
use crate::domain::time::Timestamp;

/// The deepest level of a tree that nobody limits.
const NO_FLOOR: u32 = u32::MAX;

/// Counts what one run uses, or a tree of them. What it says is stored with the run.
#[derive(Debug)]
pub struct Meter {
    counts: Mutex<Counts>,
    /// Since when it is at work in this process; what was used before is in `counts`.
    since: Timestamp,
}

#[derive(Debug, Default)]
struct Counts {
    used: Usage,
    /// Subagents under way.
    under_way: u64,
    /// Background tasks that were not over when it was looked last.
    in_background: u64,
}

impl Meter {
    /// Goes on from what was `used` before.
    pub fn new(used: Usage, since: Timestamp) -> Self {
        Self { counts: Mutex::new(Counts { used, ..Counts::default() }), since }
    }

    /// What was used by `now`.
    pub fn usage(&self, now: Timestamp) -> Usage {
        self.at(self.counts().used, now)
    }

    fn at(&self, used: Usage, now: Timestamp) -> Usage {
        Usage { seconds: used.seconds + now.since(self.since).as_secs_f64(), ..used }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn spend(&mut self, spending: Spending) {
        match spending {
            Spending::ModelCall => self.used.model_calls += 1,
            Spending::ToolCall => self.used.tool_calls += 1,
            Spending::Child => {
                self.used.children += 1;
                self.under_way += 1;
            }
        }
    }
}

/// What one agent may still use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Budget {
    limits: Arc<Limits>,
    meter: Arc<Meter>,
    /// The deepest level at which there may be an agent below this one.
    floor: u32,
    tree: Arc<(Limits, Meter)>,
}

/// Why something was not done: a limit forbids it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    /// The name of the limit.
    pub limit: &'static str,
    /// Its value.
    pub value: String,
    /// Whether it is that of the whole tree.
    pub of_tree: bool,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.of_tree { "this run and its subagents together" } else { "this run" };
        write!(f, "The limit `{}` = {} of {whose} is reached.", self.limit, self.value)
    }
}

impl Budget {
    /// The budget of a main agent; `whole` counts what the whole tree uses.
    pub fn of_main(limits: Limits, meter: Arc<Meter>, whole: Meter) -> Self {
        let of_tree = limits.tree.as_deref().cloned().unwrap_or_default();
        let floor = limits.depth.unwrap_or(NO_FLOOR).min(of_tree.depth.unwrap_or(NO_FLOOR));
        Self { limits: Arc::new(limits), meter, floor, tree: Arc::new((of_tree, whole)) }
    }

    /// The budget of a subagent at level `depth` below an agent with this one.
    #[must_use]
    pub fn below(&self, limits: Limits, meter: Arc<Meter>, depth: u32) -> Self {
        let own = limits.depth.map_or(NO_FLOOR, |levels| depth.saturating_add(levels));
        Self { limits: Arc::new(limits), meter, floor: self.floor.min(own), tree: Arc::clone(&self.tree) }
    }

    /// Counts what is about to be done.
    ///
    /// # Errors
    /// The limit that forbids it; nothing was counted then.
    pub fn spend(&self, spending: Spending, now: Timestamp) -> Result<(), Exceeded> {
        let (limits, whole) = &*self.tree;
        let (mut own, mut all) = (self.meter.counts(), whole.counts());
        let broken = |of_tree, limits: &Limits, used: Usage, under_way| {
            let broken = limits.broken_by(spending, &used, under_way);
            broken.map_or(Ok(()), |(limit, value)| Err(Exceeded { limit, value, of_tree }))
        };
        let in_background = own.in_background;
        broken(false, &self.limits, self.meter.at(own.used, now), own.under_way + in_background)?;
        broken(true, limits, whole.at(all.used, now), all.under_way + in_background)?;
        own.spend(spending);
        all.spend(spending);
        Ok(())
    }

    /// Counts a subagent that is about to be set to work at level `depth`.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn spend_child(&self, depth: u32, now: Timestamp) -> Result<(), Exceeded> {
        if depth > self.floor {
            return Err(Exceeded { limit: "depth", value: self.floor.to_string(), of_tree: true });
        }
        self.spend(Spending::Child, now)
    }

    /// Counts a background task that an agent at level `depth` is about to begin, besides those that are not over.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn spend_background(&self, depth: u32, not_over: u64, now: Timestamp) -> Result<(), Exceeded> {
        self.in_background(not_over);
        self.spend_child(depth + 1, now)?;
        // It goes on by itself, and its thread says for how long.
        self.child_done();
        self.in_background(not_over + 1);
        Ok(())
    }

    /// Takes back that a background task was counted: it was not begun.
    pub fn not_begun(&self, not_over: u64) {
        for meter in [&*self.meter, &self.tree.1] {
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
            Some(limit) if under_way >= limit => {
                Err(Exceeded { limit: "children_at_once", value: limit.to_string(), of_tree })
            }
            Some(_) | None => Ok(()),
        };
        let (limits, whole) = &*self.tree;
        let (own, all) = (self.meter.counts().under_way, whole.counts().under_way);
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

    /// What the whole tree may use.
    pub fn of_tree(&self) -> &Limits {
        &self.tree.0
    }

    /// How long the run may still be at work, by its own limits and those of the tree; as long as it likes when absent.
    pub fn time_left(&self, now: Timestamp) -> Option<Duration> {
        let left = |limits: &Limits, used: Usage| limits.wall_s.map(|most| (most - used.seconds).max(0.0));
        let (own, whole) = (left(&self.limits, self.meter.usage(now)), left(&self.tree.0, self.tree.1.usage(now)));
        let least = own.into_iter().chain(whole).reduce(f64::min)?;
        Duration::try_from_secs_f64(least).ok()
    }

    /// The deepest level at which there may be an agent below this one.
    pub fn floor(&self) -> u32 {
        self.floor
    }

    /// Counts tokens that were used.
    pub fn add_tokens(&self, input: u64, output: u64) {
        for meter in [&*self.meter, &self.tree.1] {
            let mut counts = meter.counts();
            counts.used.input_tokens = counts.used.input_tokens.saturating_add(input);
            counts.used.output_tokens = counts.used.output_tokens.saturating_add(output);
        }
    }

    /// Notes that a subagent goes on that was set to work earlier, maybe by another process.
    pub fn child_goes_on(&self) {
        for meter in [&*self.meter, &self.tree.1] {
            meter.counts().under_way += 1;
        }
    }

    /// Notes that a subagent has come to its end.
    pub fn child_done(&self) {
        for meter in [&*self.meter, &self.tree.1] {
            let mut counts = meter.counts();
            counts.under_way = counts.under_way.saturating_sub(1);
        }
    }

    /// What the run itself has used.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// What the whole tree has used.
    pub fn whole(&self) -> &Meter {
        &self.tree.1
    }
}

#[cfg(test)]
impl Budget {
    /// A budget without limits, for tests.
    pub(crate) fn endless(now: Timestamp) -> Self {
        let meter = || Meter::new(Usage::default(), now);
        Self::of_main(Limits::default(), Arc::new(meter()), meter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(0);

    fn meter() -> Meter {
        Meter::new(Usage::default(), NOW)
    }

    #[test]
    fn what_one_uses_counts_for_all_and_what_is_refused_for_nobody() {
        let tree = Limits { tool_calls: Some(3), ..Limits::default() };
        let limits = Limits { tool_calls: Some(1), tree: Some(Box::new(tree)), ..Limits::default() };
        let main = Budget::of_main(limits, Arc::new(meter()), meter());
        let below = main.below(Limits::default(), Arc::new(meter()), 1);
        assert_eq!(main.spend(Spending::ToolCall, NOW), Ok(()));
        let refused = main.spend(Spending::ToolCall, NOW).unwrap_err();
        assert_eq!(refused.to_string(), "The limit `tool_calls` = 1 of this run is reached.");
        assert_eq!(below.spend(Spending::ToolCall, NOW), Ok(()));
        assert_eq!(below.spend(Spending::ToolCall, NOW), Ok(()));
        let refused = below.spend(Spending::ToolCall, NOW).unwrap_err();
        assert!(refused.of_tree, "{refused}");
        let used = |meter: &Meter| meter.usage(NOW).tool_calls;
        assert_eq!((used(main.meter()), used(below.meter()), used(main.whole())), (1, 2, 3));
    }

    #[test]
    fn levels_are_counted_from_the_agent_that_limits_them() {
        let main = Budget::of_main(Limits::default(), Arc::new(meter()), meter());
        let first = main.below(Limits { depth: Some(1), ..Limits::default() }, Arc::new(meter()), 1);
        let second = first.below(Limits { depth: Some(9), ..Limits::default() }, Arc::new(meter()), 2);
        assert_eq!((main.spend_child(1, NOW), first.spend_child(2, NOW)), (Ok(()), Ok(())));
        assert_eq!(second.spend_child(3, NOW).map_err(|refused| refused.limit), Err("depth"));
    }

    #[test]
    fn time_at_work_goes_on_from_what_was_used_before() {
        let before = Usage { seconds: 2.0, ..Usage::default() };
        let limits = Limits { wall_s: Some(3.0), ..Limits::default() };
        let main = Budget::of_main(limits, Arc::new(Meter::new(before, NOW)), meter());
        assert_eq!(main.spend(Spending::ModelCall, Timestamp(999_999)), Ok(()));
        let refused = main.spend(Spending::ModelCall, Timestamp(1_000_000));
        assert_eq!(refused.map_err(|refused| refused.limit), Err("wall_s"));
    }
}
