//! The reasons why a tool, a hook or a model call does not run to its end.

use crate::domain::interrupt::Question;
use crate::domain::machine::Failure;

/// The classes of failures after which nobody knows whether a call took effect.
pub const UNCERTAIN: [&str; 5] = [
    "ToolTimeoutError",
    "ToolConnectionError",
    "McpConnectionError",
    "ToolAnswerError",
    "ToolPanicError",
];

/// The reason why a tool, a hook or a model call did not run to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Halt {
    /// Humans have to answer all of these questions first; there is at least one.
    Ask(Vec<Question>),
    /// A failure.
    Fail(Failure),
    /// The run has to stop.
    Stopped,
}

impl Halt {
    /// Returns whether this is a failure: the only kind of halt that a policy may catch or retry.
    pub fn is_failure(&self) -> bool {
        self.failure().is_some()
    }

    /// Returns the failure, if this is one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Fail(failure) => Some(failure),
            Self::Ask(_) | Self::Stopped => None,
        }
    }
}

impl From<Question> for Halt {
    fn from(question: Question) -> Self {
        Self::Ask(vec![question])
    }
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Fail(failure)
    }
}
