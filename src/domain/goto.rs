//! The targets of `command.goto`, as clients write them. The machine resolves them to a
//! [`Destination`](super::machine::Destination).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The maximum number of targets in one command.
pub const MAX_TARGETS: usize = 100;

/// One target of `command.goto`, as the client wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Goto {
    /// The name of a node.
    Node(String),
    /// A node with an input that replaces the state.
    Send {
        /// The name of the node.
        node: String,
        /// The input.
        #[serde(default)]
        input: Value,
    },
}

impl Goto {
    pub(super) fn node(&self) -> &str {
        match self {
            Self::Node(node) | Self::Send { node, .. } => node,
        }
    }

    pub(super) fn input(&self) -> Option<&Value> {
        match self {
            Self::Node(_) => None,
            Self::Send { input, .. } => Some(input).filter(|input| !input.is_null()),
        }
    }
}
