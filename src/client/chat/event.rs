//! The events of a thread's stream, as far as a chat shows them.

use serde_json::Value;

/// An event of a thread.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ThreadFrame {
    /// The number, which grows.
    pub(super) seq: i64,
    /// The name, by which a repeated event is recognized.
    pub(super) id: String,
    /// The time in milliseconds.
    pub(super) at: i64,
    /// The agent that caused it.
    pub(super) source: EventAgent,
    /// The kind, with its data.
    pub(super) kind: FrameKind,
}

/// The agent that caused an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct EventAgent {
    /// The namespace; empty for the main agent.
    pub(super) namespace: String,
    /// The names of the agents from the main agent down to this one.
    pub(super) path: Vec<String>,
}

impl EventAgent {
    /// Returns the name of the agent.
    pub(super) fn name(&self) -> &str {
        self.path.last().map_or("agent", String::as_str)
    }
}

/// The kind of an event, with its data.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FrameKind {
    /// A model begins an answer.
    MessageStarted { message: String },
    /// A piece of an answer.
    Text { block: u64, text: String },
    /// A block of text of an answer is complete.
    TextFinished { block: u64, text: String },
    /// An answer is complete.
    MessageFinished,
    /// An answer broke off.
    MessageFailed { reason: String },
    /// A tool is called.
    ToolStarted { call: String, tool: String, args: Value },
    /// A tool has answered.
    ToolFinished {
        call: String,
        output: String,
        is_error: bool,
    },
    /// A run of the main agent begins.
    RunStarted { run: String },
    /// A run of the main agent has ended.
    RunEnded { run: String, end: RunSummary },
    /// A subagent failed.
    SubagentFailed { reason: String },
    /// A human is asked.
    Requested { interrupt: String, question: Value },
    /// A tool tells something.
    Custom { data: Value },
    /// Anything else.
    Other,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunSummary {
    /// The outcome.
    pub(super) outcome: Outcome,
    /// The reason of a failure.
    pub(super) reason: String,
    /// The usage of the run and all runs below it.
    pub(super) usage: Value,
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The run is done.
    Completed,
    /// The run failed.
    Failed,
    /// The run waits for a human, or was cancelled.
    Interrupted,
}

impl ThreadFrame {
    /// Reads an event; `None` if it is none.
    pub(super) fn read(event: &Value) -> Option<Self> {
        let params = &event["params"];
        let id = event["event_id"].as_str()?.to_owned();
        let mut segments = texts(&params["namespace"]);
        let data = &params["data"];
        let path = texts(&params["agent_path"]);
        // The namespace of a tool's message is one below that of the agent.
        let is_tool_message = data["role"] == "tool" || (!path.is_empty() && segments.len() >= path.len());
        let kind = match event["method"].as_str()? {
            // The results of tools come on the channel `tools`, too.
            "messages" if is_tool_message => FrameKind::Other,
            "messages" => message(data),
            "tools" => tool(data),
            "lifecycle" => lifecycle(&id, segments.is_empty(), data),
            "input.requested" | "input" => requested(data),
            "custom" => FrameKind::Custom { data: data.clone() },
            _ => FrameKind::Other,
        };
        segments.retain(|segment| !segment.is_empty());
        Some(Self {
            seq: event["seq"].as_i64()?,
            at: params["timestamp"].as_i64().unwrap_or_default(),
            source: EventAgent {
                namespace: segments.join("|"),
                path,
            },
            id,
            kind,
        })
    }

    /// Returns whether the event is stored under its number. Pieces of answers are not: after a crash, other events may
    /// have their numbers.
    pub(super) fn is_stored(&self) -> bool {
        match &self.kind {
            FrameKind::ToolStarted { .. }
            | FrameKind::ToolFinished { .. }
            | FrameKind::MessageFinished
            | FrameKind::RunStarted { .. }
            | FrameKind::RunEnded { .. }
            | FrameKind::SubagentFailed { .. }
            | FrameKind::Requested { .. } => true,
            FrameKind::MessageStarted { .. }
            | FrameKind::Text { .. }
            | FrameKind::TextFinished { .. }
            | FrameKind::MessageFailed { .. }
            | FrameKind::Custom { .. }
            | FrameKind::Other => false,
        }
    }
}

fn texts(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

fn owned(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn message(data: &Value) -> FrameKind {
    let block = data["index"].as_u64().unwrap_or_default();
    match data["event"].as_str().unwrap_or_default() {
        "message-start" => FrameKind::MessageStarted {
            message: owned(&data["id"]),
        },
        "content-block-delta" if data["delta"]["type"] == "text-delta" => FrameKind::Text {
            block,
            text: owned(&data["delta"]["text"]),
        },
        "content-block-finish" if data["content"]["type"] == "text" => FrameKind::TextFinished {
            block,
            text: owned(&data["content"]["text"]),
        },
        "message-finish" => FrameKind::MessageFinished,
        "error" => FrameKind::MessageFailed {
            reason: owned(&data["message"]),
        },
        _ => FrameKind::Other,
    }
}

fn tool(data: &Value) -> FrameKind {
    let call = owned(&data["tool_call_id"]);
    match data["event"].as_str().unwrap_or_default() {
        "tool-started" => FrameKind::ToolStarted {
            call,
            tool: owned(&data["tool_name"]),
            args: data["input"].clone(),
        },
        "tool-finished" => {
            let messages = data["output"]["update"]["messages"].as_array();
            let message = messages.and_then(|all| all.last()).unwrap_or(&data["output"]);
            FrameKind::ToolFinished {
                call,
                output: crate::client::resources::content_text(&message["content"]),
                is_error: message["status"] == "error",
            }
        }
        "tool-error" => FrameKind::ToolFinished {
            call,
            output: owned(&data["message"]),
            is_error: true,
        },
        _ => FrameKind::Other,
    }
}

/// The id of a run is the second part of the name of its events.
fn lifecycle(id: &str, is_main: bool, data: &Value) -> FrameKind {
    let run = id.split(':').nth(1).unwrap_or_default().to_owned();
    let outcome = match data["event"].as_str().unwrap_or_default() {
        "running" if is_main => return FrameKind::RunStarted { run },
        "completed" => Outcome::Completed,
        "failed" => Outcome::Failed,
        "interrupted" => Outcome::Interrupted,
        _ => return FrameKind::Other,
    };
    let reason = owned(&data["error"]);
    match (is_main, outcome) {
        (true, outcome) => {
            let tree = &data["tree_usage"];
            let usage = if tree.is_object() { tree } else { &data["usage"] };
            FrameKind::RunEnded {
                run,
                end: RunSummary {
                    outcome,
                    reason,
                    usage: usage.clone(),
                },
            }
        }
        (false, Outcome::Failed) => FrameKind::SubagentFailed { reason },
        (false, Outcome::Completed | Outcome::Interrupted) => FrameKind::Other,
    }
}

fn requested(data: &Value) -> FrameKind {
    let value = &data["value"];
    FrameKind::Requested {
        interrupt: owned(&data["interrupt_id"]),
        question: if value.is_null() {
            data["payload"].clone()
        } else {
            value.clone()
        },
    }
}
