//! The metadata of streamed messages: their source.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::RunInfo;
use crate::domain::event::Origin;
use crate::domain::id::TaskId;
use crate::domain::machine::{MODEL, TOOLS};
use crate::domain::run::namespace_text;
use crate::http::stream::frame::json;

/// The source of a message.
pub(super) struct MessageSource<'a> {
    /// The agent.
    pub origin: &'a Origin,
    /// The node: `model`, `tools`, or a hook.
    pub node: &'a str,
    /// The task.
    pub task: TaskId,
    /// The number of the step, if it is known.
    pub step: Option<i64>,
    /// The index of the call, for tool results.
    pub call: usize,
    /// The provider and name of the model.
    pub model: Option<(&'a str, &'a str)>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    lc_agent_name: &'a str,
    agent_path: &'a [String],
    tool_call_id: Option<&'a str>,
    created_by: &'a str,
    graph_id: &'a str,
    assistant_id: String,
    run_attempt: u32,
    run_id: String,
    thread_id: String,
    langgraph_step: Option<i64>,
    langgraph_node: &'a str,
    langgraph_triggers: [String; 1],
    langgraph_path: Value,
    langgraph_checkpoint_ns: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint_ns: Option<String>,
    #[serde(flatten)]
    model: Option<ModelMetadata<'a>>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

/// The metadata that clients read of every piece of a message: its agent, and the namespace, by which they assign the
/// piece to a subagent.
#[derive(Serialize)]
struct LeanMetadata<'a> {
    lc_agent_name: &'a str,
    langgraph_node: &'a str,
    langgraph_checkpoint_ns: String,
    run_id: String,
}

#[derive(Serialize)]
struct ModelMetadata<'a> {
    ls_provider: &'a str,
    ls_model_name: &'a str,
    ls_model_type: &'a str,
    ls_temperature: Option<f64>,
}

impl MessageSource<'_> {
    /// Encodes the metadata. It is the same for all chunks of a message.
    pub(super) fn encode(&self, info: &RunInfo) -> Arc<str> {
        let inside = namespace_text(&self.origin.namespace);
        let full = self.namespace();
        let is_call = self.node == TOOLS;
        let checkpoint_ns = match (inside.is_empty(), is_call) {
            (false, _) => Some(inside),
            (true, false) => Some(full.clone()),
            (true, true) => None,
        };
        let metadata = Metadata {
            lc_agent_name: &self.origin.agent,
            agent_path: &self.origin.path,
            tool_call_id: self.origin.cause.as_deref(),
            created_by: "system",
            graph_id: &info.graph_id,
            assistant_id: info.assistant.to_string(),
            run_attempt: info.attempt,
            run_id: info.run.to_string(),
            thread_id: info.thread.to_string(),
            langgraph_step: self.step,
            langgraph_node: self.node,
            langgraph_triggers: [triggers(self.node)],
            langgraph_path: if is_call {
                json!(["__pregel_push", self.call, false])
            } else {
                json!(["__pregel_pull", self.node])
            },
            langgraph_checkpoint_ns: full,
            checkpoint_ns,
            model: self.model.map(|(provider, name)| ModelMetadata {
                ls_provider: provider,
                ls_model_name: name,
                ls_model_type: "chat",
                ls_temperature: None,
            }),
            extra: &info.metadata,
        };
        Arc::from(String::from_utf8(json(&metadata)).unwrap_or_default())
    }

    /// Encodes the part of the metadata that clients read of every piece of a message.
    pub(super) fn encode_lean(&self, info: &RunInfo) -> Arc<str> {
        let metadata = LeanMetadata {
            lc_agent_name: &self.origin.agent,
            langgraph_node: self.node,
            langgraph_checkpoint_ns: self.namespace(),
            run_id: info.run.to_string(),
        };
        Arc::from(String::from_utf8(json(&metadata)).unwrap_or_default())
    }

    /// The namespace of the task: that of the agent, then the node with the task.
    fn namespace(&self) -> String {
        let inside = namespace_text(&self.origin.namespace);
        let own = format!("{}:{}", self.node, self.task);
        if inside.is_empty() {
            own
        } else {
            format!("{inside}|{own}")
        }
    }

    /// Returns true if the message comes from the model node.
    pub(super) fn is_model(&self) -> bool {
        self.node == MODEL
    }
}

/// The metadata of an agent, for tasks and records.
pub(super) fn of_agent(info: &RunInfo, origin: &Origin) -> Map<String, Value> {
    let own = json!({
        "lc_agent_name": origin.agent,
        "agent_path": origin.path,
        "tool_call_id": origin.cause,
        "created_by": "system",
        "graph_id": info.graph_id,
        "assistant_id": info.assistant,
        "run_attempt": info.attempt,
        "run_id": info.run,
    });
    let mut metadata = info.metadata.clone();
    if let Value::Object(own) = own {
        metadata.extend(own);
    }
    metadata
}

/// The metadata of a run as messages and tasks show them: with the tags, and without the keys that say where a message
/// comes from.
pub(super) fn client_metadata(mut extra: Map<String, Value>, tags: &[String]) -> Map<String, Value> {
    const OWN: [&str; 9] = [
        "lc_agent_name",
        "agent_path",
        "tool_call_id",
        "created_by",
        "graph_id",
        "assistant_id",
        "run_attempt",
        "run_id",
        "thread_id",
    ];
    let is_own = |name: &str| OWN.contains(&name) || name.starts_with("langgraph_") || name.starts_with("ls_");
    extra.retain(|name, _| !is_own(name) && name != "checkpoint_ns");
    if !tags.is_empty() {
        extra.insert("tags".to_owned(), json!(tags));
    }
    extra
}

/// The trigger of a task of `node`, as clients expect it.
pub(super) fn triggers(node: &str) -> String {
    if node == TOOLS {
        "__pregel_push".to_owned()
    } else {
        format!("branch:to:{node}")
    }
}
