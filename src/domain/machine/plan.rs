//! The hooks of an agent, and the names of the other nodes.

use serde::{Deserialize, Serialize};

use crate::domain::field::Rules;

/// The node that writes the input.
pub const START: &str = "__start__";
/// The node after the last one.
pub const END: &str = "__end__";
/// The node that calls the model.
pub const MODEL: &str = "model";
/// The node that runs tool calls.
pub const TOOLS: &str = "tools";

/// The node of a registered program. A remote agent uses [`MODEL`].
pub const RUNNABLE: &str = "runnable";

/// The points of the loop at which middleware has hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// Once, at the start of a run.
    BeforeAgent,
    /// Before each model call.
    BeforeModel,
    /// After each model call, before the tool calls run.
    AfterModel,
    /// Once, at the end of a run.
    AfterAgent,
}

impl HookPoint {
    /// Returns the word used in the names of nodes.
    pub fn word(self) -> &'static str {
        match self {
            Self::BeforeAgent => "before_agent",
            Self::BeforeModel => "before_model",
            Self::AfterModel => "after_model",
            Self::AfterAgent => "after_agent",
        }
    }
}

/// The public names of an agent's hooks in running order, and its step limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The hooks of [`HookPoint::BeforeAgent`].
    pub before_agent: Vec<String>,
    /// The hooks of [`HookPoint::BeforeModel`].
    pub before_model: Vec<String>,
    /// The hooks of [`HookPoint::AfterModel`].
    pub after_model: Vec<String>,
    /// The hooks of [`HookPoint::AfterAgent`].
    pub after_agent: Vec<String>,
    /// The maximum number of steps of a run. Each hook, model call and tool step counts as one.
    pub step_limit: u32,
    /// The merge rules of the declared fields.
    pub rules: Rules,
    /// The node of the program, for an agent that is a program.
    pub program: Option<&'static str>,
}

impl Plan {
    /// Returns the hooks of one hook point.
    pub fn hooks(&self, point: HookPoint) -> &[String] {
        match point {
            HookPoint::BeforeAgent => &self.before_agent,
            HookPoint::BeforeModel => &self.before_model,
            HookPoint::AfterModel => &self.after_model,
            HookPoint::AfterAgent => &self.after_agent,
        }
    }

    /// Returns the hook point and the index of the hook with this name.
    pub fn find(&self, name: &str) -> Option<(HookPoint, usize)> {
        let at = |point| {
            self.hooks(point)
                .iter()
                .position(|hook| hook == name)
                .map(|at| (point, at))
        };
        [
            HookPoint::BeforeAgent,
            HookPoint::BeforeModel,
            HookPoint::AfterModel,
            HookPoint::AfterAgent,
        ]
        .into_iter()
        .find_map(at)
    }
}
