//! Limits on what a run may use, and counters of what it has used.

use serde::{Deserialize, Serialize};

use super::quota::millionths;
use super::stored;

/// The default of `repeated_failures`.
pub const REPEATED_FAILURES: u32 = 5;

/// The limits of a run. Absent values mean no limit, except for `repeated_failures`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The maximum number of delegation levels below the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// The maximum number of delegations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children_total: Option<u64>,
    /// The maximum number of subagents at the same time, those that wait for a human included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children_at_once: Option<u64>,
    /// The maximum number of model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_calls: Option<u64>,
    /// The maximum number of tool calls, delegations included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// The number of tokens, input and output together, from which no further model call starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The cost of the answers of models, in the currency of the prices on this server, from which no further model
    /// call starts. Models without a price cost nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The running time in seconds from which nothing further starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
    /// The number of failures in a row of the same call after which the model gets a warning. After as many again, the
    /// run ends. 0 disables the check; absent means [`REPEATED_FAILURES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated_failures: Option<u32>,
    /// The limits for the run of the main agent together with all runs below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<Box<Limits>>,
}

/// The usage of a run, or the sum of several runs, as it is stored: counters that are 0 are left out.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Model calls.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub model_calls: u64,
    /// Tool calls, delegations included.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub tool_calls: u64,
    /// Input tokens.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub input_tokens: u64,
    /// Output tokens.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub output_tokens: u64,
    /// Delegations.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub children: u64,
    /// The cost of the answers of models that have a price, in millionths.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub cost_micros: u64,
    /// Running time in seconds; for several runs, the sum.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub seconds: f64,
}

/// Returns whether a cost is zero, as it is without prices. Usage is shown without such a cost.
pub fn is_free(cost_micros: &u64) -> bool {
    *cost_micros == 0
}

impl Usage {
    /// Returns the sum of input and output tokens.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            model_calls: self.model_calls.saturating_add(other.model_calls),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            children: self.children.saturating_add(other.children),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
            seconds: self.seconds + other.seconds,
        }
    }

    /// Returns the maximum of both, counter by counter; the time stays as it is.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        Self {
            model_calls: self.model_calls.max(other.model_calls),
            tool_calls: self.tool_calls.max(other.tool_calls),
            input_tokens: self.input_tokens.max(other.input_tokens),
            output_tokens: self.output_tokens.max(other.output_tokens),
            children: self.children.max(other.children),
            cost_micros: self.cost_micros.max(other.cost_micros),
            ..self
        }
    }
}

/// A change of usage counters, without running time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageChange {
    /// Model calls.
    pub model_calls: i64,
    /// Tool calls.
    pub tool_calls: i64,
    /// Input tokens.
    pub input_tokens: i64,
    /// Output tokens.
    pub output_tokens: i64,
    /// The cost of answers, in millionths.
    pub cost_micros: i64,
    /// Delegations.
    pub children: i64,
    /// Subagents that run or wait.
    pub under_way: i64,
}

impl UsageChange {
    /// Returns the change caused by this operation.
    pub fn of(spending: Spending) -> Self {
        match spending {
            Spending::ModelCall => Self {
                model_calls: 1,
                ..Self::default()
            },
            Spending::ToolCall => Self {
                tool_calls: 1,
                ..Self::default()
            },
            Spending::Child => Self {
                children: 1,
                under_way: 1,
                ..Self::default()
            },
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, i64::saturating_add)
    }

    /// Returns the difference between this change and `other`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, i64::saturating_sub)
    }

    fn with(self, other: Self, join: fn(i64, i64) -> i64) -> Self {
        Self {
            model_calls: join(self.model_calls, other.model_calls),
            tool_calls: join(self.tool_calls, other.tool_calls),
            input_tokens: join(self.input_tokens, other.input_tokens),
            output_tokens: join(self.output_tokens, other.output_tokens),
            cost_micros: join(self.cost_micros, other.cost_micros),
            children: join(self.children, other.children),
            under_way: join(self.under_way, other.under_way),
        }
    }

    /// Returns the counters as usage, without running time.
    pub fn usage(&self) -> Usage {
        let whole = |count: i64| u64::try_from(count).unwrap_or(0);
        Usage {
            model_calls: whole(self.model_calls),
            tool_calls: whole(self.tool_calls),
            input_tokens: whole(self.input_tokens),
            output_tokens: whole(self.output_tokens),
            children: whole(self.children),
            cost_micros: whole(self.cost_micros),
            seconds: 0.0,
        }
    }
}

impl From<&Usage> for UsageChange {
    fn from(used: &Usage) -> Self {
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            model_calls: whole(used.model_calls),
            tool_calls: whole(used.tool_calls),
            input_tokens: whole(used.input_tokens),
            output_tokens: whole(used.output_tokens),
            cost_micros: whole(used.cost_micros),
            children: whole(used.children),
            under_way: 0,
        }
    }
}

/// The usage of an agent up to the time it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// The usage of the agent's own run.
    pub own: Usage,
    /// The usage of the run and all runs below it, with background tasks as far as they have run. Given for the main
    /// agent only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Usage>,
}

/// An operation that counts against the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spending {
    /// A model call.
    ModelCall,
    /// A tool call.
    ToolCall,
    /// A delegation.
    Child,
}

impl Limits {
    /// Returns the name and value of the limit that `spending` would exceed, given the usage and the number of
    /// subagents that run or wait.
    pub fn exceeded_by(&self, spending: Spending, used: &Usage, under_way: u64) -> Option<(&'static str, String)> {
        let whole = |name, limit: Option<u64>, used: u64| {
            limit
                .filter(|limit| used >= *limit)
                .map(|limit| (name, limit.to_string()))
        };
        let wall = || {
            let over = self.wall_s.filter(|limit| used.seconds >= *limit);
            over.map(|limit| ("wall_s", limit.to_string()))
        };
        let own = match spending {
            Spending::ModelCall => whole("model_calls", self.model_calls, used.model_calls)
                .or_else(|| whole("tokens", self.tokens, used.tokens()))
                .or_else(|| self.exceeded_cost(used)),
            Spending::ToolCall => whole("tool_calls", self.tool_calls, used.tool_calls),
            Spending::Child => whole("children_total", self.children_total, used.children)
                .or_else(|| whole("children_at_once", self.children_at_once, under_way)),
        };
        own.or_else(wall)
    }

    fn exceeded_cost(&self, used: &Usage) -> Option<(&'static str, String)> {
        let limit = self.cost?;
        let is_reached = used.cost_micros >= millionths(limit);
        is_reached.then(|| ("cost", limit.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_beyond_a_limit_is_refused() {
        let limits = Limits {
            children_total: Some(2),
            children_at_once: Some(1),
            model_calls: Some(3),
            tool_calls: Some(0),
            tokens: Some(10),
            cost: Some(0.25),
            wall_s: Some(1.5),
            ..Limits::default()
        };
        let broken =
            |spending, used: Usage, under_way| limits.exceeded_by(spending, &used, under_way).map(|(name, _)| name);
        let none = Usage::default();
        assert_eq!(
            broken(
                Spending::ModelCall,
                Usage {
                    model_calls: 2,
                    input_tokens: 4,
                    output_tokens: 5,
                    ..none
                },
                9
            ),
            None
        );
        assert_eq!(
            broken(Spending::ModelCall, Usage { model_calls: 3, ..none }, 0),
            Some("model_calls")
        );
        assert_eq!(
            broken(
                Spending::ModelCall,
                Usage {
                    input_tokens: 4,
                    output_tokens: 6,
                    ..none
                },
                0
            ),
            Some("tokens")
        );
        let costs = |cost_micros| Usage { cost_micros, ..none };
        assert_eq!(broken(Spending::ModelCall, costs(249_999), 0), None);
        assert_eq!(broken(Spending::ModelCall, costs(250_000), 0), Some("cost"));
        assert_eq!(broken(Spending::ToolCall, costs(250_000), 0), Some("tool_calls"));
        assert_eq!(
            broken(Spending::ModelCall, Usage { seconds: 1.5, ..none }, 0),
            Some("wall_s")
        );
        assert_eq!(broken(Spending::ToolCall, none, 0), Some("tool_calls"));
        assert_eq!(broken(Spending::Child, Usage { children: 1, ..none }, 0), None);
        assert_eq!(
            broken(Spending::Child, Usage { children: 2, ..none }, 0),
            Some("children_total")
        );
        assert_eq!(
            broken(Spending::Child, Usage { children: 1, ..none }, 1),
            Some("children_at_once")
        );
        assert_eq!(
            Limits::default().exceeded_by(
                Spending::Child,
                &Usage {
                    children: u64::MAX,
                    ..none
                },
                9
            ),
            None
        );
    }
}
