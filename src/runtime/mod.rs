//! From a wish to a running loop: starting, resuming, cancelling.
//!
//! Whoever wants to change a run or a thread asks [`Runs`]; nobody else may. Neighbours: [`crate::http`] above asks,
//! [`crate::agent`] below runs.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::domain::Invalid;
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::run::{Run, RunRequest};

/// A wish for a run, checked for shape but not yet for sense.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Where it shall run.
    pub target: Target,
    /// Who shall run.
    pub assistant: AssistantRef,
    /// What it shall do. `command.resume` in it is empty; see `resume`.
    pub request: RunRequest,
    /// The answer to open questions, as the client wrote it: one answer, or a map by interrupt id.
    pub resume: Option<Value>,
    /// The requester's notes.
    pub metadata: Map<String, Value>,
    /// How long to wait before it begins.
    pub after: Duration,
}

/// Where a run shall run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// On this thread, which must exist.
    Thread(ThreadId),
    /// On this thread, made if need be.
    ThreadOrNew(ThreadId),
    /// On a new thread of its own, which goes away afterwards unless `keep`.
    Stateless {
        /// Whether the thread stays.
        keep: bool,
    },
}

/// Who shall run, as the client names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssistantRef {
    /// An assistant.
    Id(AssistantId),
    /// The assistant that a definition has by itself.
    Graph(String),
}

/// Why a run was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no such thread.
    #[error("there is no thread {0}")]
    NoThread(ThreadId),
    /// There is no such assistant or graph.
    #[error("there is no assistant {0}")]
    NoAssistant(String),
    /// There is no such checkpoint on the thread.
    #[error("there is no checkpoint {0} on this thread")]
    NoCheckpoint(CheckpointId),
    /// The thread is busy and the strategy is to refuse.
    #[error("the thread is busy")]
    Busy,
    /// A question waits for its answer and the agent's owner wants ordinary messages refused meanwhile.
    #[error("{} questions wait for an answer", .0.len())]
    QuestionPending(Vec<InterruptId>),
    /// Several questions wait and the answer does not say which it is for.
    #[error("{} questions wait for an answer", .0.len())]
    AmbiguousAnswer(Vec<InterruptId>),
    /// Something in the request cannot be accepted.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A resume without a thread.
    #[error("a resume needs a thread")]
    ResumeNeedsThread,
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] crate::db::DbError),
}

/// What becomes of the work of a cancelled run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAction {
    /// It stays.
    Interrupt,
    /// It is undone, and the run deleted.
    Rollback,
}

/// Why a run was not cancelled.
#[derive(Debug, thiserror::Error)]
pub enum CancelError {
    /// There is no such run.
    #[error("there is no such run")]
    NoRun,
    /// It is over already.
    #[error("the run is over")]
    Over,
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] crate::db::DbError),
}

/// Why a question was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no such question.
    #[error("there is no such interrupt")]
    NoInterrupt,
    /// It was answered otherwise, dropped, or has expired.
    #[error("the interrupt is {0}")]
    Stale(&'static str),
    /// The answer is not one of those that were asked for.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The thread is busy.
    #[error("the thread is busy")]
    Busy,
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] crate::db::DbError),
}

/// A write into the state of a thread from outside the loop.
#[derive(Debug, Clone, Default)]
pub struct StateWrite {
    /// What to write: an object, a list of such, or nothing.
    pub values: Value,
    /// The node that is to be taken for the writer.
    pub as_node: Option<String>,
    /// The checkpoint to write onto, when not the newest.
    pub checkpoint: Option<CheckpointId>,
}

/// Why a state was not written.
#[derive(Debug, thiserror::Error)]
pub enum StateWriteError {
    /// There is no such thread.
    #[error("there is no thread {0}")]
    NoThread(ThreadId),
    /// There is no such checkpoint on the thread.
    #[error("there is no checkpoint {0} on this thread")]
    NoCheckpoint(CheckpointId),
    /// The agent has no such node.
    #[error("node {0} does not exist")]
    NoNode(String),
    /// Runs are at work on the thread.
    #[error("the thread has in-flight runs")]
    InFlight(Vec<RunId>),
    /// The values cannot be accepted.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] crate::db::DbError),
}

/// Starts, resumes and cancels runs.
#[derive(Clone)]
pub struct Runs {}

#[allow(unused_variables)]
impl Runs {
    pub async fn start(&self, wish: Wish) -> Result<Run, StartError> {
        todo!()
    }
    pub async fn cancel(&self, thread: ThreadId, run: RunId, action: CancelAction) -> Result<(), CancelError> {
        todo!()
    }
    /// Gives the answer to one question; returns the run that goes on with it. The same answer again gives the same run.
    pub async fn resolve(&self, thread: ThreadId, interrupt: InterruptId, answer: Value) -> Result<RunId, ResolveError> {
        todo!()
    }
    pub async fn write_state(&self, thread: ThreadId, write: StateWrite) -> Result<CheckpointId, StateWriteError> {
        todo!()
    }
    /// Stops what works on the thread, then deletes it. False if there is none.
    pub async fn delete_thread(&self, thread: ThreadId) -> Result<bool, crate::db::DbError> {
        todo!()
    }
    /// Stops the run if it is at work, then deletes it. False if there is none.
    pub async fn delete_run(&self, thread: ThreadId, run: RunId) -> Result<bool, crate::db::DbError> {
        todo!()
    }
    /// What is known of the agents: see [`crate::agent::roster`]; assistants are answered from here.
    pub fn assistants(&self) -> &[AssistantCard] {
        todo!()
    }
    /// The hooks and the step limit of the agent that `thread` last worked with.
    pub fn plan_of(&self, graph_id: &str) -> Option<&crate::domain::machine::Plan> {
        todo!()
    }
}

/// An assistant that a definition has by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantCard {
    /// Its id, the same after every restart.
    pub id: AssistantId,
    /// The definition.
    pub graph_id: String,
    /// The agent's name.
    pub name: String,
    /// What the agent is for.
    pub description: Option<String>,
    /// When the server first saw it.
    pub created_at: crate::domain::time::Timestamp,
}
