//! The shape of an agent: what it is made of, and what goes in and out. For those who look at it; nothing runs by it.

use serde_json::{Map, Value};

/// The loop of an agent as nodes and edges.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// What does something: the model, the tools, the hooks of policies; and where it begins and ends.
    pub nodes: Vec<Node>,
    /// What may follow on what.
    pub edges: Vec<Edge>,
}

/// Something that does something.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Unique within the graph: `model`, or `researcher:model` inside a subagent.
    pub id: String,
    /// The public name of the node, as streams show it.
    pub name: String,
    /// What else there is to say about it.
    pub notes: Map<String, Value>,
}

/// That one node may follow on another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The id of the first.
    pub source: String,
    /// The id of the second.
    pub target: String,
    /// Whether it depends on what happened.
    pub conditional: bool,
}

/// What an agent takes, keeps and gives: JSON Schemas of objects.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Schemas {
    /// What may be given as `input`.
    pub input: Value,
    /// What the values of a thread can hold at the end of a run.
    pub output: Value,
    /// What they can hold at any time.
    pub state: Value,
    /// What `config.configurable` may hold.
    pub config: Value,
    /// What `context` may hold, when the definition says so.
    pub context: Option<Value>,
}

/// A field of the state that a policy keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// JSON Schema of its value.
    pub schema: Value,
}
