//! The entries of histories: one for each step.

use serde::{Deserialize, Serialize};

use super::id::{CheckpointId, StepBase};
use super::state::Update;

/// One step of a history: its writes, and the checkpoint that they apply to.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The id of the checkpoint that the step created.
    pub id: CheckpointId,
    /// The parent checkpoint.
    pub parent: Option<CheckpointId>,
    /// The number of the step within its lane; the first one is -1.
    pub step: i64,
    /// The cause of the checkpoint.
    pub source: CheckpointSource,
    /// The node that wrote: `model`, `tools`, `__start__`, or the name of a hook.
    pub node: String,
    /// The writes: one update, or for `tools` one for each call, in the order of the calls.
    pub writes: Vec<Update>,
    /// The indexes of those `writes` that the log already has as events of their own.
    pub logged_writes: Vec<usize>,
    /// The checkpoint after which the step began that the checkpoint ends, if that is not the parent. For a fork or an
    /// update: that of the unfinished step that it carries on; none if the next step is another one.
    pub carried_from: Option<CheckpointId>,
}

impl Entry {
    /// Returns the base of the step that the checkpoint ends or carries on.
    pub fn base(&self) -> StepBase {
        StepBase::after(self.parent, self.carried_from)
    }

    /// Returns the base of the step that follows the checkpoint.
    pub fn next_base(&self) -> StepBase {
        let carried_from = match self.source {
            CheckpointSource::Fork | CheckpointSource::Update => self.carried_from,
            CheckpointSource::Input | CheckpointSource::Loop => None,
        };
        StepBase::after(Some(self.id), carried_from)
    }
}

/// The cause of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointSource {
    /// A run brought new input.
    Input,
    /// The agent's loop took a step.
    Loop,
    /// A client updated the state.
    Update,
    /// A client restarted from an older checkpoint.
    Fork,
}

impl CheckpointSource {
    /// Returns the word used in metadata and in the database.
    pub fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Loop => "loop",
            Self::Update => "update",
            Self::Fork => "fork",
        }
    }
}
