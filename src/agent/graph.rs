//! The public description of an agent: its loop as a graph, and the schemas of its state.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Map, Value, json};

use super::{Agent, AgentKind, AgentProgram};
use crate::definition::builtins::LIMITS as COUNTED;
use crate::domain::field::FieldVisibility;
use crate::domain::graph::{Edge, Graph, Node, Schemas};
use crate::domain::input::is_output_only;
use crate::domain::machine::{MODEL, RUNNABLE, START, TOOLS};
use crate::tool::Toolbox;

/// The node at which a graph ends.
const END: &str = "__end__";
/// The maximum number of nodes of a graph, and of listed subagents. Subagents that delegate to each other multiply
/// with every level.
const MAX_NODES: usize = 1_000;

impl Agent {
    /// Returns the loop of this agent as a graph. It includes the subagents of the next `levels` levels: their nodes
    /// are named like `researcher:model`, and they are connected to the tools that delegate to them.
    pub fn graph(&self, levels: u32) -> Graph {
        let mut graph = self.loop_graph();
        for (path, agent) in self.agents_below(levels) {
            let inner = agent.loop_graph();
            if graph.nodes.len() + inner.nodes.len() > MAX_NODES {
                break;
            }
            graph.merge_subagent(inner, &path);
        }
        graph
    }

    /// Waits for the tools that [`Agent::graph`] names, as long as runs would.
    pub async fn tools_ready(&self, levels: u32) {
        let below: Vec<Arc<Self>> = self
            .agents_below(levels)
            .take(MAX_NODES)
            .map(|(_, agent)| agent)
            .collect();
        let all = below.iter().map(|agent| &**agent).chain([self]);
        let toolboxes: Vec<&Toolbox> = all.filter_map(|agent| Some(&agent.model_loop()?.toolbox)).collect();
        join_all(toolboxes.into_iter().map(Toolbox::ready)).await;
    }

    /// Returns the agents of the next `levels` levels with their paths, level by level.
    fn agents_below(&self, levels: u32) -> impl Iterator<Item = (Vec<String>, Arc<Self>)> {
        let mut queue = self.subagents_below(&[], levels);
        std::iter::from_fn(move || {
            let (path, agent) = queue.pop_front()?;
            queue.extend(agent.subagents_below(&path, levels));
            Some((path, agent))
        })
    }

    /// Returns the subagents of this agent with their paths. `path` is the agent's own; levels below `levels` are
    /// left out.
    fn subagents_below(&self, path: &[String], levels: u32) -> VecDeque<(Vec<String>, Arc<Agent>)> {
        let level = u32::try_from(path.len()).unwrap_or(u32::MAX).saturating_add(1);
        let Some(registry) = self.subagents().filter(|_| level <= levels) else {
            return VecDeque::new();
        };
        let below = |name: &str| path.iter().cloned().chain([name.to_owned()]).collect();
        registry
            .names()
            .filter_map(|name| Some((below(name), registry.get(name, level)?)))
            .collect()
    }

    fn loop_graph(&self) -> Graph {
        let plan = &self.plan;
        let own = match &self.kind {
            AgentKind::ModelLoop(own) => own,
            AgentKind::Program(program) => return program_graph(plan.program.unwrap_or(RUNNABLE), program),
        };
        let mut graph = Graph::default();
        let policies: Vec<&str> = own.stack.iter().map(|policy| policy.name()).collect();
        graph.node(START, None);
        graph.node(MODEL, Some(("__middleware", json!(policies))));
        let has_tools = !own.toolbox.is_empty();
        if has_tools {
            graph.node(TOOLS, Some(("__tools", json!(own.toolbox.names()))));
        }
        for hook in [
            &plan.before_agent,
            &plan.before_model,
            &plan.after_model,
            &plan.after_agent,
        ]
        .into_iter()
        .flatten()
        {
            graph.node(hook, None);
        }
        graph.node(END, None);

        let round = plan.before_model.first().map_or(MODEL, String::as_str);
        let leaving = plan.after_agent.first().map_or(END, String::as_str);
        let before = graph.chain(START, &plan.before_agent);
        graph.add_edge(before, round, false);
        if let Some((first, rest)) = plan.before_model.split_first() {
            let last = graph.chain(first, rest);
            graph.add_edge(last, MODEL, false);
        }
        let decides = graph.chain(MODEL, &plan.after_model);
        graph.add_edge(decides, leaving, has_tools);
        if has_tools {
            graph.add_edge(decides, TOOLS, true);
            graph.add_edge(TOOLS, round, true);
        }
        // A hook may answer every call itself; the model continues then.
        if has_tools && decides != MODEL {
            graph.add_edge(decides, round, true);
        }
        if let Some((first, rest)) = plan.after_agent.split_first() {
            let last = graph.chain(first, rest);
            graph.add_edge(last, END, false);
        }
        graph
    }

    /// Returns the schemas of the agent's input, output and state.
    pub fn schemas(&self) -> Schemas {
        let object = |title: &str, unseen: &[FieldVisibility]| {
            let with_output = !unseen.contains(&FieldVisibility::Output);
            let messages = json!({"title": "Messages", "type": "array", "items": {"$ref": "#/$defs/Message"}});
            let mut properties = Map::from_iter([("messages".to_owned(), messages)]);
            let public_fields = self
                .fields()
                .iter()
                .filter(|field| with_output || !is_output_only(field.name));
            properties.extend(public_fields.map(|field| (field.name.to_owned(), field.schema.clone())));
            let declared = self
                .declared
                .iter()
                .filter(|(_, field)| !unseen.contains(&field.visibility));
            properties
                .extend(declared.map(|(name, field)| (name.to_owned(), field.schema.clone().unwrap_or(json!({})))));
            json!({"$defs": {"Message": message(), "ToolCall": tool_call()}, "title": title, "type": "object",
                "properties": properties, "required": ["messages"]})
        };
        let title = |part: &str| format!("{}{part}", self.name);
        let context = self.model_loop().and_then(|own| own.settings_schema.clone());
        // Clients also know the context as `configurable`.
        let config = context
            .clone()
            .unwrap_or_else(|| json!({"title": title("Configurable"), "type": "object", "properties": {}}));
        Schemas {
            input: object(&title("Input"), &[FieldVisibility::Output, FieldVisibility::Private]),
            output: object(&title("Output"), &[FieldVisibility::Input, FieldVisibility::Private]),
            state: object(&title("State"), &[FieldVisibility::Private]),
            config,
            context,
        }
    }

    /// Returns the subagents with their schemas: one level, or all levels if `recurse`; only this namespace, if
    /// given.
    pub fn subagent_schemas(&self, namespace: Option<&str>, recurse: bool) -> Vec<(String, Schemas)> {
        let levels = if recurse { u32::MAX } else { 1 };
        let mut found = vec![];
        let mut queue = self.subagents_below(&[], levels);
        while let Some((path, agent)) = queue.pop_front() {
            let full = path.join("|");
            if found.len() == MAX_NODES {
                break;
            }
            match namespace {
                Some(wanted) if wanted == full => return vec![(full, agent.schemas())],
                // The wanted subagent can only be below a prefix of its path.
                Some(wanted) if !wanted.strip_prefix(&full).is_some_and(|rest| rest.starts_with('|')) => continue,
                Some(_) => {}
                None => found.push((full, agent.schemas())),
            }
            queue.extend(agent.subagents_below(&path, levels));
        }
        found
    }
}

/// Returns the graph of an agent that is a program.
fn program_graph(node: &'static str, program: &AgentProgram) -> Graph {
    let mut graph = Graph::default();
    // A remote agent counts like a model, so the graph shows the policy that counts.
    let policies = program.remote.as_ref().map(|_| ("__middleware", json!([COUNTED])));
    graph.node(START, None);
    graph.node(node, policies);
    graph.node(END, None);
    graph.add_edge(START, node, false);
    graph.add_edge(node, END, false);
    graph
}

impl Graph {
    fn node(&mut self, name: &str, entry: Option<(&str, Value)>) {
        let notes = entry.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        self.nodes.push(Node {
            id: name.to_owned(),
            name: name.to_owned(),
            notes,
        });
    }

    fn add_edge(&mut self, source: &str, target: &str, conditional: bool) {
        self.edges.push(Edge {
            source: source.to_owned(),
            target: target.to_owned(),
            conditional,
        });
    }

    /// Connects `first` with all of `rest` in a row; returns the last node.
    fn chain<'a>(&mut self, first: &'a str, rest: &'a [String]) -> &'a str {
        let mut last = first;
        for next in rest {
            self.add_edge(last, next, false);
            last = next;
        }
        last
    }

    /// Adds the loop of the subagent at this path.
    fn merge_subagent(&mut self, inner: Graph, path: &[String]) {
        let Some((agent, callers)) = path.split_last() else {
            return;
        };
        let within = |path: &[String], id: &str| {
            path.iter()
                .map(|name| format!("{name}:"))
                .chain([id.to_owned()])
                .collect()
        };
        let node_id = |id: &str| -> String {
            if matches!(id, START | END) {
                within(callers, TOOLS)
            } else {
                within(path, id)
            }
        };
        for node in inner
            .nodes
            .into_iter()
            .filter(|node| !matches!(node.id.as_str(), START | END))
        {
            let mut notes = node.notes;
            notes.insert("lc_agent_name".to_owned(), json!(agent));
            self.nodes.push(Node {
                id: node_id(&node.id),
                name: node.name,
                notes,
            });
        }
        self.edges.extend(inner.edges.into_iter().map(|edge| Edge {
            // Only some of the calls are delegated.
            conditional: edge.conditional || edge.source == START,
            source: node_id(&edge.source),
            target: node_id(&edge.target),
        }));
    }
}

fn message() -> Value {
    json!({
        "title": "Message",
        "type": "object",
        "properties": {
            "type": {"title": "Type", "enum": ["human", "ai", "tool", "system"]},
            "content": {"title": "Content", "anyOf": [{"type": "string"}, {"type": "array", "items": {
                "anyOf": [{"type": "string"}, {"type": "object"}]}}]},
            "id": {"title": "Id", "type": ["string", "null"]},
            "name": {"title": "Name", "type": ["string", "null"]},
            "additional_kwargs": {"title": "Additional Kwargs", "type": "object"},
            "response_metadata": {"title": "Response Metadata", "type": "object"},
            "tool_calls": {"title": "Tool Calls", "type": "array", "items": {"$ref": "#/$defs/ToolCall"}},
            "tool_call_id": {"title": "Tool Call Id", "type": "string"},
            "status": {"title": "Status", "enum": ["success", "error"]},
        },
        "required": ["content", "type"],
    })
}

fn tool_call() -> Value {
    json!({
        "title": "ToolCall",
        "type": "object",
        "properties": {
            "id": {"title": "Id", "type": ["string", "null"]},
            "name": {"title": "Name", "type": "string"},
            "args": {"title": "Args", "type": "object"},
            "type": {"const": "tool_call"},
        },
        "required": ["name", "args"],
    })
}
