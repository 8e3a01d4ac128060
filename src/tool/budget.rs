//! What a run may still use: its own limits, and those of the whole tree. Every agent of a run counts here before it acts.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::domain::limits::{Change, Limits, Spending, Usage};
use crate::domain::machine::Failure;
use crate::domain::message::{Message, Role};
use crate::domain::time::Timestamp;
use crate::tool::Halt;

mod background;
mod pool;

pub use pool::{Pool, Refused};

/// The class of the error that ends a run at a limit.
pub const LIMIT_EXCEEDED: &str = "LimitExceededError";

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
    /// What earlier runs used whose work this one goes on with. It counts, but is stored with them.
    before: Usage,
    /// Subagents under way.
    under_way: u64,
    /// Background tasks that were not over when it was looked last.
    in_background: u64,
}

impl Meter {
    /// Goes on from what was `used` before.
    pub fn new(used: Usage, since: Timestamp) -> Self {
        Self {
            counts: Mutex::new(Counts {
                used,
                ..Counts::default()
            }),
            since,
        }
    }

    /// The same after what earlier runs used, whose work this one goes on with.
    #[must_use]
    pub fn after(self, before: Usage) -> Self {
        self.counts().before = before;
        self
    }

    /// How many subagents are under way.
    pub fn under_way(&self) -> u64 {
        self.counts().under_way
    }

    /// What was used by `now`.
    pub fn usage(&self, now: Timestamp) -> Usage {
        self.at(self.counts().used, now)
    }

    fn at(&self, used: Usage, now: Timestamp) -> Usage {
        Usage {
            seconds: used.seconds + now.since(self.since).as_secs_f64(),
            ..used
        }
    }

    /// What was used by `now`, with what was used before.
    fn in_all(&self, counts: &Counts, now: Timestamp) -> Usage {
        self.at(counts.used, now).plus(counts.before)
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

    fn take_back(&mut self, spending: Spending) {
        let less = |count: &mut u64| *count = count.saturating_sub(1);
        match spending {
            Spending::ModelCall => less(&mut self.used.model_calls),
            Spending::ToolCall => less(&mut self.used.tool_calls),
            Spending::Child => {
                less(&mut self.used.children);
                less(&mut self.under_way);
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
    tree: Arc<Whole>,
}

/// What a main agent and all below it may still use together.
#[derive(Debug)]
struct Whole {
    limits: Limits,
    meter: Meter,
    /// Where it is counted together with runs on other threads.
    pool: Option<Arc<dyn Pool>>,
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
        let whose = if self.of_tree {
            "this run and its subagents together"
        } else {
            "this run"
        };
        write!(f, "The limit `{}` = {} of {whose} is reached.", self.limit, self.value)
    }
}

/// A run ends that may not go on.
impl From<Exceeded> for Halt {
    fn from(exceeded: Exceeded) -> Self {
        Self::Fail(Failure::new(LIMIT_EXCEEDED, exceeded.to_string()))
    }
}

impl Budget {
    /// The budget of a main agent; `whole` counts what the whole tree uses.
    pub fn of_main(limits: Limits, meter: Arc<Meter>, whole: Meter) -> Self {
        Self::of_member(limits, meter, whole, None)
    }

    /// The same for one that works together with other runs, and counts what it uses there, too.
    pub fn of_member(limits: Limits, meter: Arc<Meter>, whole: Meter, pool: Option<Arc<dyn Pool>>) -> Self {
        let of_tree = limits.tree.as_deref().cloned().unwrap_or_default();
        let floor = limits.depth.unwrap_or(NO_FLOOR).min(of_tree.depth.unwrap_or(NO_FLOOR));
        Self {
            limits: Arc::new(limits),
            meter,
            floor,
            tree: Arc::new(Whole {
                limits: of_tree,
                meter: whole,
                pool,
            }),
        }
    }

    /// The budget of a subagent at level `depth` below an agent with this one.
    #[must_use]
    pub fn below(&self, limits: Limits, meter: Arc<Meter>, depth: u32) -> Self {
        let own = limits.depth.map_or(NO_FLOOR, |levels| depth.saturating_add(levels));
        Self {
            limits: Arc::new(limits),
            meter,
            floor: self.floor.min(own),
            tree: Arc::clone(&self.tree),
        }
    }

    /// Counts what is about to be done.
    ///
    /// # Errors
    /// The limit that forbids it; nothing was counted then.
    pub fn spend(&self, spending: Spending, now: Timestamp) -> Result<(), Exceeded> {
        let Whole {
            limits,
            meter: whole,
            pool: _,
        } = &*self.tree;
        let mut own = self.meter.counts();
        let mut all = whole.counts();
        let broken = |of_tree, limits: &Limits, used: Usage, under_way| {
            let broken = limits.broken_by(spending, &used, under_way);
            broken.map_or(Ok(()), |(limit, value)| Err(Exceeded { limit, value, of_tree }))
        };
        let in_background = own.in_background;
        broken(
            false,
            &self.limits,
            self.meter.in_all(&own, now),
            own.under_way + in_background,
        )?;
        broken(true, limits, whole.in_all(&all, now), all.under_way + in_background)?;
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
            return Err(Exceeded {
                limit: "depth",
                value: self.floor.to_string(),
                of_tree: true,
            });
        }
        self.spend(Spending::Child, now)
    }

    /// How long the run may still be at work, by its own limits and those of the tree, and what is to be said when that is
    /// over; as long as it likes when absent.
    pub fn time_left(&self, now: Timestamp) -> Option<(Duration, Exceeded)> {
        let left = |of_tree: bool, limits: &Limits, meter: &Meter| {
            let most = limits.wall_s?;
            let left = (most - meter.in_all(&meter.counts(), now).seconds).max(0.0);
            let exceeded = Exceeded {
                limit: "wall_s",
                value: most.to_string(),
                of_tree,
            };
            Some((Duration::try_from_secs_f64(left).ok()?, exceeded))
        };
        let together = self.pool().and_then(|pool| pool.time_left(now));
        let all = [
            left(false, &self.limits, &self.meter),
            left(true, &self.tree.limits, &self.tree.meter),
            together,
        ];
        all.into_iter().flatten().min_by_key(|(left, _)| *left)
    }

    /// Does `work`, for as long as there is time.
    ///
    /// # Errors
    /// That the time is over; `work` was dropped then.
    pub async fn in_time<T>(&self, now: Timestamp, work: impl Future<Output = T>) -> Result<T, Exceeded> {
        match self.time_left(now) {
            None => Ok(work.await),
            Some((left, exceeded)) => tokio::time::timeout(left, work).await.map_err(|_| exceeded),
        }
    }

    /// The deepest level at which there may be an agent below this one.
    pub fn floor(&self) -> u32 {
        self.floor
    }

    /// Counts the tokens that messages took, as far as they tell.
    pub fn add_tokens_of<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) {
        for message in messages {
            let (input, output) = tokens(message);
            self.add_tokens(input, output);
        }
    }

    /// Counts tokens that were used.
    pub fn add_tokens(&self, input: u64, output: u64) {
        for meter in [&*self.meter, &self.tree.meter] {
            let mut counts = meter.counts();
            counts.used.input_tokens = counts.used.input_tokens.saturating_add(input);
            counts.used.output_tokens = counts.used.output_tokens.saturating_add(output);
        }
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let input_tokens = whole(input);
        let output_tokens = whole(output);
        self.note(Change {
            input_tokens,
            output_tokens,
            ..Change::default()
        });
    }

    /// Notes that a subagent goes on that was set to work earlier, maybe by another process.
    pub fn child_goes_on(&self) {
        for meter in [&*self.meter, &self.tree.meter] {
            meter.counts().under_way += 1;
        }
        self.note(Change {
            under_way: 1,
            ..Change::default()
        });
    }

    /// Notes that a subagent has come to its end.
    pub fn child_done(&self) {
        self.leaves();
        self.note(Change {
            under_way: -1,
            ..Change::default()
        });
    }

    fn note(&self, change: Change) {
        if let Some(pool) = self.pool() {
            pool.note(change);
        }
    }

    fn leaves(&self) {
        for meter in [&*self.meter, &self.tree.meter] {
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
        &self.tree.meter
    }
}

/// The tokens that the provider says an answer took, of input and of output.
fn tokens(message: &Message) -> (u64, u64) {
    let Role::Ai {
        usage_metadata: Some(usage),
        ..
    } = &message.role
    else {
        return (0, 0);
    };
    let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
    (count("input_tokens"), count("output_tokens"))
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
        let tree = Limits {
            tool_calls: Some(3),
            ..Limits::default()
        };
        let limits = Limits {
            tool_calls: Some(1),
            tree: Some(Box::new(tree)),
            ..Limits::default()
        };
        let main = Budget::of_main(limits, Arc::new(meter()), meter());
        let below = main.below(Limits::default(), Arc::new(meter()), 1);
        assert_eq!(main.spend(Spending::ToolCall, NOW), Ok(()));
        let refused = main.spend(Spending::ToolCall, NOW).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "The limit `tool_calls` = 1 of this run is reached."
        );
        assert_eq!(below.spend(Spending::ToolCall, NOW), Ok(()));
        assert_eq!(below.spend(Spending::ToolCall, NOW), Ok(()));
        let refused = below.spend(Spending::ToolCall, NOW).unwrap_err();
        assert!(refused.of_tree, "{refused}");
        let used = |meter: &Meter| meter.usage(NOW).tool_calls;
        assert_eq!(used(main.meter()), 1);
        assert_eq!(used(below.meter()), 2);
        assert_eq!(used(main.whole()), 3);
    }

    #[test]
    fn what_earlier_runs_used_counts_and_is_not_told_again() {
        let before = Usage {
            tool_calls: 2,
            seconds: 1.0,
            ..Usage::default()
        };
        let limits = Limits {
            tool_calls: Some(3),
            wall_s: Some(2.5),
            ..Limits::default()
        };
        let main = Budget::of_main(limits, Arc::new(meter().after(before)), meter());
        assert_eq!(main.spend(Spending::ToolCall, NOW), Ok(()));
        assert_eq!(
            main.spend(Spending::ToolCall, NOW).map_err(|refused| refused.limit),
            Err("tool_calls")
        );
        assert_eq!(main.meter().usage(NOW).tool_calls, 1);
        let (left, exceeded) = main.time_left(Timestamp(500_000)).unwrap();
        assert_eq!(left, Duration::from_secs(1));
        assert_eq!(exceeded.limit, "wall_s");
    }

    #[tokio::test]
    async fn what_takes_too_long_is_dropped() {
        let limits = Limits {
            wall_s: Some(0.001),
            ..Limits::default()
        };
        let main = Budget::of_main(limits, Arc::new(meter()), meter());
        let refused = main.in_time(NOW, std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "The limit `wall_s` = 0.001 of this run is reached."
        );
        assert_eq!(Budget::endless(NOW).in_time(NOW, async { 1 }).await, Ok(1));
    }

    #[test]
    fn levels_are_counted_from_the_agent_that_limits_them() {
        let main = Budget::of_main(Limits::default(), Arc::new(meter()), meter());
        let first = main.below(
            Limits {
                depth: Some(1),
                ..Limits::default()
            },
            Arc::new(meter()),
            1,
        );
        let second = first.below(
            Limits {
                depth: Some(9),
                ..Limits::default()
            },
            Arc::new(meter()),
            2,
        );
        assert_eq!(main.spend_child(1, NOW), Ok(()));
        assert_eq!(first.spend_child(2, NOW), Ok(()));
        assert_eq!(
            second.spend_child(3, NOW).map_err(|refused| refused.limit),
            Err("depth")
        );
    }

    #[test]
    fn time_at_work_goes_on_from_what_was_used_before() {
        let before = Usage {
            seconds: 2.0,
            ..Usage::default()
        };
        let limits = Limits {
            wall_s: Some(3.0),
            ..Limits::default()
        };
        let main = Budget::of_main(limits, Arc::new(Meter::new(before, NOW)), meter());
        assert_eq!(main.spend(Spending::ModelCall, Timestamp(999_999)), Ok(()));
        let refused = main.spend(Spending::ModelCall, Timestamp(1_000_000));
        assert_eq!(refused.map_err(|refused| refused.limit), Err("wall_s"));
    }
}
