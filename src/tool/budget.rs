//! The budget of a run: its own limits and those of the whole tree of agents. Every agent counts an action here before
//! it performs it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::halt::Halt;
use crate::domain::limits::{Limits, Spending, Usage, UsageChange};
use crate::domain::machine::Failure;
use crate::domain::message::{Message, Role};
use crate::domain::time::Timestamp;

mod account;
mod background;
mod pool;
mod refused;

pub use account::AccountLimits;
pub use pool::SharedBudget;
pub use refused::Refused;

/// The class of the error that ends a run at a limit.
pub const LIMIT_EXCEEDED: &str = "LimitExceededError";

/// The maximum depth of a tree without a depth limit.
const UNLIMITED_DEPTH: u32 = u32::MAX;

/// The usage counters of one run, or of a tree of runs. They are stored with the run.
#[derive(Debug)]
pub struct Meter {
    counts: Mutex<Counts>,
    /// The time at which the run started in this process; earlier usage is in `counts`.
    since: Timestamp,
}

#[derive(Debug, Default)]
struct Counts {
    used: Usage,
    /// The usage of earlier runs that this one continues. It counts towards the limits, but is stored with those runs.
    before: Usage,
    /// The running subagents.
    under_way: u64,
    /// The background tasks that were unfinished at the last check.
    in_background: u64,
}

impl Meter {
    /// Creates a meter that starts from `used`.
    pub fn new(used: Usage, since: Timestamp) -> Self {
        Self {
            counts: Mutex::new(Counts {
                used,
                ..Counts::default()
            }),
            since,
        }
    }

    /// Returns the time at which the run started in this process.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Sets the usage of the earlier runs that this one continues.
    #[must_use]
    pub fn after(self, before: Usage) -> Self {
        self.counts().before = before;
        self
    }

    /// Returns the number of running subagents.
    pub fn under_way(&self) -> u64 {
        self.counts().under_way
    }

    /// Returns the usage up to `now`, without that of earlier runs.
    pub fn usage(&self, now: Timestamp) -> Usage {
        self.at(self.counts().used, now)
    }

    fn at(&self, used: Usage, now: Timestamp) -> Usage {
        Usage {
            seconds: used.seconds + now.since(self.since).as_secs_f64(),
            ..used
        }
    }

    /// Returns the usage up to `now`, with that of earlier runs.
    fn with_before(&self, counts: &Counts, now: Timestamp) -> Usage {
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

    fn refund(&mut self, spending: Spending) {
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

/// The limits and usage of one agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Budget {
    limits: Arc<Limits>,
    meter: Arc<Meter>,
    /// The maximum depth of agents below this one.
    max_depth: u32,
    tree: Arc<TreeBudget>,
    /// The limits of the account on whose behalf the run works, if it has any.
    account: Option<Arc<dyn AccountLimits>>,
}

/// The limits and usage that a main agent shares with all agents below it.
#[derive(Debug)]
struct TreeBudget {
    limits: Limits,
    meter: Meter,
    /// The counters that are shared with runs on other threads.
    pool: Option<Arc<dyn SharedBudget>>,
}

/// The limit that an action would exceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReached {
    /// The name of the limit.
    pub limit: &'static str,
    /// The value.
    pub value: String,
    /// True if the limit is that of the whole tree.
    pub of_tree: bool,
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.of_tree {
            "this run and its subagents together"
        } else {
            "this run"
        };
        write!(f, "The limit `{}` = {} of {whose} is reached.", self.limit, self.value)
    }
}

/// Ends a run at a limit.
impl From<LimitReached> for Halt {
    fn from(exceeded: LimitReached) -> Self {
        Self::Fail(Failure::new(LIMIT_EXCEEDED, exceeded.to_string()))
    }
}

impl Budget {
    /// Creates the budget of a main agent; `whole` counts the usage of the whole tree.
    pub fn of_main(limits: Limits, meter: Arc<Meter>, whole: Meter) -> Self {
        Self::of_member(limits, meter, whole, None)
    }

    /// Creates the budget of a main agent that shares `pool` with runs on other threads.
    pub fn of_member(limits: Limits, meter: Arc<Meter>, whole: Meter, pool: Option<Arc<dyn SharedBudget>>) -> Self {
        let of_tree = limits.tree.as_deref().cloned().unwrap_or_default();
        let max_depth = limits
            .depth
            .unwrap_or(UNLIMITED_DEPTH)
            .min(of_tree.depth.unwrap_or(UNLIMITED_DEPTH));
        Self {
            limits: Arc::new(limits),
            meter,
            max_depth,
            tree: Arc::new(TreeBudget {
                limits: of_tree,
                meter: whole,
                pool,
            }),
            account: None,
        }
    }

    /// Adds the limits of the account on whose behalf the run works.
    #[must_use]
    pub fn with_account(self, account: Option<Arc<dyn AccountLimits>>) -> Self {
        Self { account, ..self }
    }

    /// Creates the budget of a subagent at level `depth`, below an agent with this budget.
    #[must_use]
    pub fn below(&self, limits: Limits, meter: Arc<Meter>, depth: u32) -> Self {
        let own = limits
            .depth
            .map_or(UNLIMITED_DEPTH, |levels| depth.saturating_add(levels));
        Self {
            limits: Arc::new(limits),
            meter,
            max_depth: self.max_depth.min(own),
            tree: Arc::clone(&self.tree),
            account: self.account.clone(),
        }
    }

    /// Counts an action before it is performed.
    ///
    /// # Errors
    /// The limit that the action would exceed; nothing is counted then.
    pub fn spend(&self, spending: Spending, now: Timestamp) -> Result<(), LimitReached> {
        let TreeBudget {
            limits,
            meter: whole,
            pool: _,
        } = &*self.tree;
        let mut own = self.meter.counts();
        let mut all = whole.counts();
        let check = |of_tree, limits: &Limits, used: Usage, under_way| {
            let exceeded = limits.exceeded_by(spending, &used, under_way);
            exceeded.map_or(Ok(()), |(limit, value)| Err(LimitReached { limit, value, of_tree }))
        };
        let in_background = own.in_background;
        check(
            false,
            &self.limits,
            self.meter.with_before(&own, now),
            own.under_way + in_background,
        )?;
        check(
            true,
            limits,
            whole.with_before(&all, now),
            all.under_way + in_background,
        )?;
        own.spend(spending);
        all.spend(spending);
        Ok(())
    }

    /// Counts a subagent at level `depth` before it starts.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn spend_child(&self, depth: u32, now: Timestamp) -> Result<(), LimitReached> {
        if depth > self.max_depth {
            return Err(LimitReached {
                limit: "depth",
                value: self.max_depth.to_string(),
                of_tree: true,
            });
        }
        self.spend(Spending::Child, now)
    }

    /// Returns the remaining running time by the limits of the run and of the tree, and the limit to report when it is
    /// used up; `None` if there is no limit.
    pub fn time_left(&self, now: Timestamp) -> Option<(Duration, LimitReached)> {
        let remaining = |of_tree: bool, limits: &Limits, meter: &Meter| {
            let limit = limits.wall_s?;
            let seconds = (limit - meter.with_before(&meter.counts(), now).seconds).max(0.0);
            Some((Duration::try_from_secs_f64(seconds).ok()?, limit, of_tree))
        };
        let own = [
            remaining(false, &self.limits, &self.meter),
            remaining(true, &self.tree.limits, &self.tree.meter),
        ];
        let own = own.into_iter().flatten().min_by_key(|(time, ..)| *time);
        let own = own.map(|(time, limit, of_tree)| {
            let exceeded = LimitReached {
                limit: "wall_s",
                value: limit.to_string(),
                of_tree,
            };
            (time, exceeded)
        });
        let together = self.pool().and_then(|pool| pool.time_left(now));
        own.into_iter().chain(together).min_by_key(|(time, _)| *time)
    }

    /// Runs `work` within the remaining time.
    ///
    /// # Errors
    /// The limit, if the time is used up; `work` is dropped then.
    pub async fn in_time<T>(&self, now: Timestamp, work: impl Future<Output = T>) -> Result<T, LimitReached> {
        match self.time_left(now) {
            None => Ok(work.await),
            Some((time, exceeded)) => tokio::time::timeout(time, work).await.map_err(|_| exceeded),
        }
    }

    /// The maximum depth of agents below this one.
    pub fn max_depth(&self) -> u32 {
        self.max_depth
    }

    /// Adds the tokens that messages took, as far as they say, and their cost.
    pub fn add_tokens_of<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) {
        for message in messages {
            let (input_tokens, output_tokens) = tokens(message);
            let cost_micros = self.account.as_ref().map_or(0, |account| account.cost_of(message));
            self.add(&Usage {
                input_tokens,
                output_tokens,
                cost_micros,
                ..Usage::default()
            });
        }
    }

    /// Adds usage.
    fn add(&self, usage: &Usage) {
        for meter in [&*self.meter, &self.tree.meter] {
            let mut counts = meter.counts();
            counts.used = counts.used.plus(*usage);
        }
        self.record(UsageChange::from(usage));
    }

    /// Counts a subagent that resumes after an earlier start, maybe in another process.
    pub fn child_goes_on(&self) {
        for meter in [&*self.meter, &self.tree.meter] {
            meter.counts().under_way += 1;
        }
        self.record(UsageChange {
            under_way: 1,
            ..UsageChange::default()
        });
    }

    /// Counts the end of a subagent.
    pub fn child_done(&self) {
        self.child_stopped();
        self.record(UsageChange {
            under_way: -1,
            ..UsageChange::default()
        });
    }

    fn record(&self, change: UsageChange) {
        if let Some(pool) = self.pool() {
            pool.note(change);
        }
    }

    fn child_stopped(&self) {
        for meter in [&*self.meter, &self.tree.meter] {
            let mut counts = meter.counts();
            counts.under_way = counts.under_way.saturating_sub(1);
        }
    }

    /// Returns the meter of the run itself.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Returns the meter of the whole tree.
    pub fn whole(&self) -> &Meter {
        &self.tree.meter
    }
}

/// Returns the tokens that an answer has used according to the provider, of input and of output.
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
    /// Creates a budget without limits, for tests.
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
    fn usage_counts_for_the_tree_and_a_refused_action_is_not_counted() {
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
    fn usage_of_earlier_runs_counts_and_is_not_reported_again() {
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
    async fn work_that_takes_too_long_is_dropped() {
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
    fn running_time_continues_from_earlier_usage() {
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
