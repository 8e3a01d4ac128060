//! The failures of runs.

use serde::{Deserialize, Serialize};

/// A failure that ends a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The class, as clients know it (`GraphRecursionError`).
    pub class: String,
    /// The message, which may be shown to clients.
    pub message: String,
}

impl Failure {
    /// Creates a failure.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class: class.into(),
            message: message.into(),
        }
    }

    /// Creates the failure of a cancelled run.
    pub fn cancelled() -> Self {
        Self::new("UserInterrupt", "The run was cancelled by request.")
    }

    /// Returns the failure as the `error` of a task: `ToolError("it broke")`.
    pub fn to_task_error(&self) -> String {
        format!("{}({:?})", self.class, self.message)
    }
}
