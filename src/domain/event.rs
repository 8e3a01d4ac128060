//! Facts in the log of a thread.
//!
//! The log has one number line per thread. Checkpoints are facts of it, the others are in [`EventBody`]. Everything that
//! clients stream is a projection of this log; nothing is streamed that is not in it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::checkpoint::{Entry, Lane};
use super::id::{CheckpointId, RunId, TaskId};
use super::interrupt::Interrupt;
use super::limits::Totals;
use super::machine::Failure;
use super::message::Message;
use super::run::{Run, RunStatus};
use super::state::Update;
use super::time::Timestamp;
use super::visibility::Visibility;

/// A fact, where it happened, and its place in the log.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its number: strictly increasing within the thread, with gaps.
    pub seq: i64,
    /// The run of the main agent in whose course it happened.
    pub run: RunId,
    /// When.
    pub at: Timestamp,
    /// Which agent.
    pub origin: Arc<Origin>,
    /// What.
    pub body: EventBody,
}

/// Which agent an event is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// Its history.
    pub lane: Lane,
    /// The tasks of the callers, outermost first; empty for the main agent.
    pub namespace: Vec<TaskId>,
    /// Its name: `lc_agent_name`.
    pub agent: String,
    /// The names from the main agent down to it.
    pub path: Vec<String>,
    /// The tool call that caused it; none for the main agent.
    pub cause: Option<String>,
    /// How much clients see of it.
    pub visibility: Visibility,
    /// What a user interface shows while it works.
    pub display_text: Option<String>,
}

impl Origin {
    /// The agent of a run, be it the main agent's or a child's.
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

/// What happened.
#[derive(Debug, Clone)]
pub enum EventBody {
    /// A step was taken: a checkpoint was left.
    Entry(Arc<Entry>),
    /// Anything else that is stored.
    Fact(Fact),
    /// A piece of an answer that is still being given. Not stored: the entry of the step supersedes it, or the fact that it
    /// broke off.
    Delta(Delta),
    /// A step begins. Not stored: what comes of the step tells later that it did.
    Begun(Work),
    /// A piece of what a call that is being made will come to. Not stored: the result supersedes it.
    Output {
        /// The call's id.
        call: String,
        /// More text.
        text: String,
    },
}

impl EventBody {
    /// Whether it is stored; if not, only those who are there when it happens hear of it.
    pub fn is_stored(&self) -> bool {
        match self {
            Self::Entry(_) | Self::Fact(_) => true,
            Self::Delta(_) | Self::Begun(_) | Self::Output { .. } => false,
        }
    }
}

/// What an agent sets about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It asks its model.
    Model,
    /// It is a program, and runs.
    Program,
}

/// What is stored in the log beside checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// An agent began, or went on, with the state of checkpoint `base`.
    Started {
        /// The state it begins with; none on a fresh lane.
        base: Option<CheckpointId>,
        /// Which attempt of the run this is, from 1.
        attempt: u32,
        /// Whether it goes on where an earlier run stopped.
        resumed: bool,
    },
    /// Calls of the last answer begin, or go on: tools are called, subagents set to work. Calls that are answered without
    /// being made are not among them.
    Calling {
        /// The step's checkpoint.
        head: Option<CheckpointId>,
        /// The calls: their index in the step and their id.
        calls: Vec<(usize, String)>,
    },
    /// One of several parallel calls was answered while others still run.
    Answered {
        /// The step's checkpoint.
        head: CheckpointId,
        /// The call's index in the step.
        call: usize,
        /// What it wrote.
        writes: Update,
    },
    /// An answer of the model broke off, after pieces of it were shown. It is part of no state and no model is shown it;
    /// this is for clients who come later.
    BrokenOff {
        /// What was said of it; calls as far as their arguments came.
        message: Box<Message>,
        /// Whether the model failed; it was stopped otherwise.
        failed: bool,
    },
    /// The agent asks, and waits.
    Asked {
        /// The newest checkpoint of the agent; who joins late finds its state there.
        #[serde(default)]
        head: Option<CheckpointId>,
        /// What it asks. A parent repeats the questions of its children.
        interrupts: Vec<Interrupt>,
    },
    /// A breakpoint of the client was reached.
    Paused,
    /// The run was undone. Nothing else is left of it; this keeps its numbers from being given out again.
    Undone,
    /// A tool or policy tells clients something.
    Custom {
        /// What.
        value: Value,
    },
    /// The agent stopped: it is done, waits, failed or was cancelled.
    Ended {
        /// How.
        status: RunStatus,
        /// Why, when it failed.
        error: Option<Failure>,
        /// Whether it stopped to wait: for answers, or at a breakpoint of the client.
        #[serde(default)]
        waits: bool,
        /// What was used by then; who stores it fills it in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<Box<Totals>>,
    },
}

impl Fact {
    /// That an agent stopped and does not wait for anything.
    pub fn over(status: RunStatus, error: Option<Failure>) -> Self {
        Self::Ended {
            status,
            error,
            waits: false,
            used: None,
        }
    }
}

/// A piece of an answer.
#[derive(Debug, Clone)]
pub struct Delta {
    /// The answer it belongs to.
    pub answer: Arc<AnswerHead>,
    /// Its number among the pieces of the answer, from 0. A reader who misses one sees it by the gap.
    pub ordinal: u32,
    /// The piece.
    pub chunk: Chunk,
}

/// What all pieces of one answer have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerHead {
    /// The id of the message to come.
    pub message: String,
    /// The task that asks the model.
    pub task: TaskId,
    /// The number of the step.
    pub step: i64,
    /// The provider's word for itself.
    pub provider: String,
    /// The model's name.
    pub model: String,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Chunk {
    /// The answer begins.
    Begin,
    /// More text.
    Text(String),
    /// More reasoning.
    Reasoning(String),
    /// More of a tool call.
    Call {
        /// Which call of the answer.
        index: usize,
        /// Its id, on the first piece.
        id: Option<String>,
        /// Its tool, on the first piece.
        name: Option<String>,
        /// More of the JSON text of its arguments.
        args: String,
    },
    /// The answer is complete; what the provider told about it, and the tokens.
    End {
        /// `finish_reason` and the like.
        response_metadata: Map<String, Value>,
        /// `input_tokens` and the like.
        usage: Option<Value>,
    },
    /// The answer broke off and is asked for again; its pieces so far are void.
    Void,
}
