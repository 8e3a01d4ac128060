//! The graph and the JSON Schemas of an agent, as clients read them. The agent's loop does not use them.

use serde_json::{Map, Value};

/// The loop of an agent as nodes and edges.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// The nodes: the model, the tools, the hooks of policies, the start and the end.
    pub nodes: Vec<Node>,
    /// The edges.
    pub edges: Vec<Edge>,
}

/// A node of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The id, unique within the graph: `model`, or `researcher:model` inside a subagent.
    pub id: String,
    /// The public name of the node, as streams show it.
    pub name: String,
    /// Additional metadata.
    pub notes: Map<String, Value>,
}

/// An edge: `target` may follow `source`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The id of the first node.
    pub source: String,
    /// The id of the second node.
    pub target: String,
    /// True if the edge is taken only under a condition.
    pub conditional: bool,
}

/// JSON Schemas of the objects that an agent reads, stores and returns.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Schemas {
    /// The schema of `input`.
    pub input: Value,
    /// The schema of the thread's values at the end of a run.
    pub output: Value,
    /// The schema of the thread's values at any time.
    pub state: Value,
    /// The schema of `config.configurable`.
    pub config: Value,
    /// The schema of `context`, if the definition gives one.
    pub context: Option<Value>,
}

/// A state field that a policy declares.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The name.
    pub name: &'static str,
    /// The JSON Schema of the value.
    pub schema: Value,
}
