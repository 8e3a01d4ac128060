//! Events: the entries of a thread's log.
//!
//! Each thread has one log with one sequence of numbers. Checkpoints are entries of it; the other kinds are in
//! [`EventBody`]. Everything that clients stream is a projection of this log.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::checkpoint::Lane;
use super::entry::Entry;
use super::failure::Failure;
use super::id::{CheckpointId, RunId, TaskId};
use super::interrupt::Interrupt;
use super::limits::Totals;
use super::message::{Message, ToolCall};
use super::run::{Run, RunStatus};
use super::state::Update;
use super::stored;
use super::stored_update;
use super::time::Timestamp;
use super::visibility::Visibility;

mod visible;

/// The name of the custom event that says how far a tool call is.
pub const TOOL_PROGRESS: &str = "tool_progress";

/// Returns what a custom event says about how far a tool call is; `None` if it is about something else.
pub fn tool_progress(custom: &Value) -> Option<&Value> {
    let is_progress = custom.get("name").and_then(Value::as_str) == Some(TOOL_PROGRESS);
    custom.get("payload").filter(|_| is_progress)
}

/// An event, with its number, its run and its agent.
#[derive(Debug, Clone)]
pub struct Event {
    /// The number: strictly increasing within the thread, with gaps.
    pub seq: i64,
    /// The run of the main agent that the event belongs to.
    pub run: RunId,
    /// The time.
    pub at: Timestamp,
    /// The agent that caused the event.
    pub origin: Arc<Origin>,
    /// The content.
    pub body: EventBody,
}

/// The agent that an event is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The agent's history.
    pub lane: Lane,
    /// The tasks of the callers, outermost first; empty for the main agent.
    pub namespace: Vec<TaskId>,
    /// The agent's name: `lc_agent_name`.
    pub agent: String,
    /// The names of the agents from the main agent down to this one.
    pub path: Vec<String>,
    /// The tool call that started the agent; none for the main agent.
    pub cause: Option<String>,
    /// The visibility of the agent to clients.
    pub visibility: Visibility,
    /// The text that user interfaces show while the agent runs.
    pub display_text: Option<String>,
}

impl Origin {
    /// Returns the agent of a run, of the main agent or of a child.
    pub fn of(run: &Run) -> Self {
        Self {
            lane: if run.lineage.parent.is_none() {
                Lane::Main
            } else {
                Lane::Child(run.id)
            },
            namespace: run.lineage.namespace.clone(),
            agent: run.lineage.agent().to_owned(),
            path: run.lineage.path.clone(),
            cause: run.lineage.cause.clone(),
            visibility: run.lineage.visibility,
            display_text: run.display_text().map(str::to_owned),
        }
    }
}

/// The content of an event.
#[derive(Debug, Clone)]
pub enum EventBody {
    /// A step was committed: there is a new checkpoint.
    Entry(Arc<Entry>),
    /// Any other event that is stored.
    Fact(Fact),
    /// A piece of a model's answer. Not stored: the checkpoint of the step supersedes it, or [`Fact::BrokenOff`] does.
    Delta(Delta),
    /// A step starts. Not stored: the checkpoint of the step implies it.
    Begun(AgentWork),
    /// A piece of the output of a tool call. Not stored: the result of the call supersedes it.
    Output {
        /// The id of the call.
        call: String,
        /// The text of the piece.
        text: String,
    },
}

impl EventBody {
    /// Returns whether the event is stored. Ephemeral events reach live subscribers only.
    pub fn is_stored(&self) -> bool {
        match self {
            Self::Entry(_) | Self::Fact(_) => true,
            Self::Delta(_) | Self::Begun(_) | Self::Output { .. } => false,
        }
    }
}

/// The kind of a step that starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentWork {
    /// A call of the model.
    Model,
    /// The execution of a program.
    Program,
}

/// The events that are stored beside checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// An agent started or resumed, with the state of checkpoint `base`.
    Started {
        /// The checkpoint that the agent starts from; none on an empty lane.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<CheckpointId>,
        /// The checkpoint after which the step at `base` began, if it was carried on to there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried_from: Option<CheckpointId>,
        /// The attempt of the run, from 1.
        attempt: u32,
        /// True if the run continues where an earlier run stopped.
        resumed: bool,
        /// The calls of the tool step that follows, each with its index in it, if a client has sent one of them: no answer of
        /// the model contains it. Empty otherwise.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<(usize, ToolCall)>,
    },
    /// Calls of the last answer started or resumed, delegated ones included. Calls that are answered without being
    /// executed are not listed.
    Calling {
        /// The checkpoint that the step follows.
        head: Option<CheckpointId>,
        /// The checkpoint after which the step began, if it was carried on to `head`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried_from: Option<CheckpointId>,
        /// The calls: their index in the step and their id.
        calls: Vec<(usize, String)>,
    },
    /// One of several parallel calls was answered while others still run.
    Answered {
        /// The checkpoint that the step follows.
        head: CheckpointId,
        /// The checkpoint after which the step began, if it was carried on to `head`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried_from: Option<CheckpointId>,
        /// The index of the call in the step.
        call: usize,
        /// The writes of the call.
        #[serde(serialize_with = "stored_update::serialize")]
        writes: Update,
    },
    /// A model's answer ended early, after pieces of it were streamed. It is part of no state and is not sent to a
    /// model; clients that connect later read it here.
    BrokenOff {
        /// The text received so far; tool calls as far as their arguments were received.
        message: Box<Message>,
        /// True if the model failed; otherwise the call was cancelled.
        failed: bool,
    },
    /// A model failed, and the next one of the agent was asked.
    FellBack {
        /// The model that failed, as `provider:model-name`.
        from: String,
        /// The model that was asked next.
        to: String,
        /// The class of the error.
        error: String,
    },
    /// The agent raised interrupts and waits for their answers.
    Asked {
        /// The newest checkpoint of the agent, from which clients that connect later read its state.
        #[serde(default)]
        head: Option<CheckpointId>,
        /// The checkpoint after which the step began, if it was carried on to `head`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried_from: Option<CheckpointId>,
        /// The interrupts. A parent repeats those of its children.
        #[serde(deserialize_with = "read_interrupts")]
        interrupts: Vec<Interrupt>,
    },
    /// A breakpoint of the client was reached.
    Paused,
    /// The run was undone (multitask `rollback`). The entry keeps its numbers from being used again.
    Undone,
    /// A tool or policy sent a custom event to clients.
    Custom {
        /// The content.
        value: Value,
    },
    /// The agent stopped: it is complete, waits, failed or was cancelled.
    Ended {
        /// The status.
        status: RunStatus,
        /// The failure, if it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
        /// True if the agent waits for answers, or stopped at a breakpoint of the client.
        #[serde(default, skip_serializing_if = "stored::is_default")]
        waits: bool,
        /// The usage up to here; set when the event is stored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<Box<Totals>>,
    },
}

/// Reads the interrupts of an event, which a former release has stored with their questions. Schemas are not read from the form in
/// which the fields of a variant are kept until its tag is known, but from values.
fn read_interrupts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Interrupt>, D::Error> {
    let stored = Vec::<Value>::deserialize(deserializer)?;
    let read = stored.into_iter().map(serde_json::from_value::<Interrupt>);
    read.collect::<Result<Vec<_>, _>>().map_err(D::Error::custom)
}

impl Fact {
    /// Creates the event for an agent that starts for the first time in its run, at the checkpoint `base` and with its next step.
    pub fn started_anew(base: Option<CheckpointId>) -> Self {
        Self::Started {
            base,
            carried_from: None,
            attempt: 1,
            resumed: false,
            calls: vec![],
        }
    }

    /// Creates the event for an agent that stopped and does not wait.
    pub fn over(status: RunStatus, error: Option<Failure>) -> Self {
        Self::Ended {
            status,
            error,
            waits: false,
            used: None,
        }
    }
}

/// A piece of a model's answer.
#[derive(Debug, Clone)]
pub struct Delta {
    /// The answer that the piece belongs to.
    pub answer: Arc<AnswerHead>,
    /// The number of the piece within the answer, from 0. A gap tells the reader that pieces are missing.
    pub ordinal: u32,
    /// The content.
    pub chunk: Chunk,
}

/// The properties shared by all pieces of one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerHead {
    /// The id of the message that the answer becomes.
    pub message: String,
    /// The task that calls the model.
    pub task: TaskId,
    /// The number of the step.
    pub step: i64,
    /// The provider's name for itself.
    pub provider: String,
    /// The model's name.
    pub model: String,
}

/// The content of a piece.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunk {
    /// The start of the answer.
    Begin,
    /// Text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A part of a tool call.
    Call {
        /// The index of the call in the answer.
        index: usize,
        /// The id of the call, on the first piece.
        id: Option<String>,
        /// The name of the tool, on the first piece.
        name: Option<String>,
        /// A part of the JSON text of the arguments.
        args: String,
    },
    /// The end of the answer, with the provider's metadata and the token usage.
    End {
        /// `finish_reason` and similar fields.
        response_metadata: Map<String, Value>,
        /// `input_tokens` and similar fields.
        usage: Option<Value>,
    },
    /// The call of the model failed and is repeated; the pieces so far are void.
    Void,
}
