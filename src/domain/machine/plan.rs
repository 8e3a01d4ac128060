//! Which hooks an agent has, at which moments, and the names of the nodes beside them.

use serde::{Deserialize, Serialize};

use crate::domain::field::Rules;

/// The node that writes the input.
pub const START: &str = "__start__";
/// What comes after the last node.
pub const END: &str = "__end__";
/// The node that asks the model.
pub const MODEL: &str = "model";
/// The node that runs tool calls.
pub const TOOLS: &str = "tools";

/// The node of a registered program that does the whole work. A remote agent works at [`MODEL`].
pub const RUNNABLE: &str = "runnable";

/// The moments at which policies act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// Once, when a run begins.
    BeforeAgent,
    /// Before each question to the model.
    BeforeModel,
    /// After each answer, before its calls run.
    AfterModel,
    /// Once, when the agent is done.
    AfterAgent,
}

impl HookPoint {
    /// The name in the names of nodes.
    pub fn word(self) -> &'static str {
        match self {
            Self::BeforeAgent => "before_agent",
            Self::BeforeModel => "before_model",
            Self::AfterModel => "after_model",
            Self::AfterAgent => "after_agent",
        }
    }
}

/// The public names of an agent's hooks, in the order in which each moment runs them, and its step limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Hooks of [`HookPoint::BeforeAgent`].
    pub before_agent: Vec<String>,
    /// Hooks of [`HookPoint::BeforeModel`].
    pub before_model: Vec<String>,
    /// Hooks of [`HookPoint::AfterModel`].
    pub after_model: Vec<String>,
    /// Hooks of [`HookPoint::AfterAgent`].
    pub after_agent: Vec<String>,
    /// How many steps one run may take; hooks, model calls and tool steps count one each.
    pub step_limit: u32,
    /// How the declared fields are merged.
    pub rules: Rules,
    /// The node of the program that does the whole work, when there is one in the place of hooks and a model.
    pub program: Option<&'static str>,
}

impl Plan {
    /// The hooks of one moment.
    pub fn hooks(&self, point: HookPoint) -> &[String] {
        match point {
            HookPoint::BeforeAgent => &self.before_agent,
            HookPoint::BeforeModel => &self.before_model,
            HookPoint::AfterModel => &self.after_model,
            HookPoint::AfterAgent => &self.after_agent,
        }
    }

    /// The moment and the index of the hook of this name.
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
