//! The answers of the scripted model.

use std::time::Duration;

use serde_json::Value;

/// The content of an answer and its timing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScriptedAnswer {
    /// The text.
    pub text: String,
    /// The calls, in order.
    pub calls: Vec<PlannedCall>,
    /// The size of a piece in characters; `None` means words.
    pub chunk: Option<usize>,
    /// The pause before the first piece.
    pub first: Duration,
    /// The pause between two pieces.
    pub delay: Duration,
    /// True if the answer is cut off after its first piece.
    pub drop: bool,
}

/// A tool call to make.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCall {
    /// The id; generated if absent.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments as text: usually JSON, but a script may send anything.
    pub args: String,
}

impl ScriptedAnswer {
    /// Creates an answer of text alone.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }
}

impl PlannedCall {
    /// Creates a call whose id is generated later.
    pub fn new(name: impl Into<String>, args: &Value) -> Self {
        Self {
            id: None,
            name: name.into(),
            args: args.to_string(),
        }
    }
}
