//! The errors of the runtime, one enum for each operation.

use crate::db;
use crate::domain::Invalid;
use crate::domain::access::Action;
use crate::domain::approvers::Approvers;
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::quota::QuotaReached;
use crate::model::ModelError;
use crate::tool::files::FileRefusal;

/// An open interrupt that is assigned to others than the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the interrupt {interrupt} is assigned to {approvers}; only they and the admins of the tenant can answer it")]
pub struct AssignedToOthers {
    /// The interrupt.
    pub interrupt: InterruptId,
    /// The approvers who can answer it.
    pub approvers: Approvers,
}

impl AssignedToOthers {
    /// The refusal that names this interrupt.
    pub(super) fn of(record: &db::interrupts::InterruptRecord) -> Self {
        Self {
            interrupt: record.interrupt.id.clone(),
            approvers: record.interrupt.question.approvers.clone(),
        }
    }
}

/// The refusal to start a run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The thread does not exist.
    #[error("there is no thread {0}")]
    NoThread(ThreadId),
    /// No role or scope of the caller allows the action at all.
    #[error("the caller may not do `{0}`")]
    Forbidden(Action),
    /// An access policy forbids the action, which would be allowed without it.
    #[error("an access policy forbids `{0}` here")]
    ForbiddenByPolicy(Action),
    /// The assistant or the graph does not exist.
    #[error("there is no assistant {0}")]
    NoAssistant(String),
    /// The definition of the assistant is not configured any more.
    #[error("the agent {graph_id} of assistant {assistant} is not configured")]
    NoAgent {
        /// The assistant.
        assistant: AssistantId,
        /// The definition that it names.
        graph_id: String,
    },
    /// The tenant may not use a model of the agent.
    #[error("{0}")]
    ModelNotAllowed(String),
    /// The priority is above 0, and no role of the caller allows that.
    #[error("no role of the caller allows a priority above 0")]
    PriorityNotAllowed,
    /// The thread has no such checkpoint.
    #[error("there is no checkpoint {0} on this thread")]
    NoCheckpoint(CheckpointId),
    /// The thread is busy, and the strategy of the request is to refuse.
    #[error("the thread is busy")]
    Busy,
    /// The queue of all threads together is full.
    #[error("{0} runs wait for their turn, and more are not taken")]
    QueueFull(u64),
    /// The queue of the thread is full.
    #[error("{0} runs wait for their turn on this thread, and more are not taken")]
    ThreadFull(u64),
    /// An interrupt waits for its answer, and the definition of the agent refuses ordinary messages meanwhile.
    #[error("{} questions wait for an answer", .0.len())]
    QuestionPending(Vec<InterruptId>),
    /// The request brings an answer, but the thread has no open interrupt.
    #[error("the thread has no open interrupt")]
    NoOpenInterrupt,
    /// The request answers an interrupt that has an answer, was dropped, or has expired.
    #[error("the interrupt {0} is {1}")]
    StaleInterrupt(InterruptId, &'static str),
    /// The request answers an interrupt that is assigned to others.
    #[error(transparent)]
    AssignedToOthers(#[from] AssignedToOthers),
    /// The request would continue the thread beside an open interrupt that is assigned to others.
    #[error("the thread waits for an answer: {0}")]
    WaitsForApprovers(AssignedToOthers),
    /// Several interrupts are open, and the answer does not name one of them.
    #[error("{} questions wait for an answer", .0.len())]
    AmbiguousAnswer(Vec<InterruptId>),
    /// A quota of the account is used up.
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    /// A part of the request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A resume without a thread.
    #[error("a resume needs a thread")]
    ResumeNeedsThread,
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The refusal of a batch: the refusal of its first refused request.
#[derive(Debug, thiserror::Error)]
#[error("request {at}: {error}")]
pub struct BatchError {
    /// The position of the request, counted from 0.
    pub at: usize,
    /// The refusal.
    pub error: StartError,
}

impl From<db::DbError> for BatchError {
    fn from(error: db::DbError) -> Self {
        Self {
            at: 0,
            error: error.into(),
        }
    }
}

/// The refusal to cancel a run.
#[derive(Debug, thiserror::Error)]
pub enum CancelError {
    /// The run does not exist.
    #[error("run not found")]
    NoRun,
    /// The run is over.
    #[error("the run is over")]
    Over,
    /// The run of a subagent is part of its caller's work and cannot be undone by itself.
    #[error("the work of a subagent cannot be undone by itself")]
    NoUndo,
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The refusal to delete a run.
#[derive(Debug, thiserror::Error)]
pub enum DeleteRunError {
    /// The run does not exist, or is the run of a subagent.
    #[error("run not found")]
    NoRun,
    /// An interrupt of the run, or of a run below it, waits for an answer.
    #[error("the interrupt {0} of the run waits for an answer")]
    Waits(InterruptId),
    /// Another run, which is pending or at work, continues its work.
    #[error("the run {0} continues its work")]
    Continued(RunId),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The refusal of an answer to an interrupt.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The interrupt does not exist.
    #[error("interrupt not found")]
    NoInterrupt,
    /// The assistant that asked was deleted, or its definition is not configured any more.
    #[error("the agent that asked is gone")]
    NoAgent,
    /// The tenant may not use a model of the agent any more.
    #[error("{0}")]
    ModelNotAllowed(String),
    /// The interrupt has another answer, was dropped, or has expired.
    #[error("the interrupt is {0}")]
    Stale(&'static str),
    /// The interrupt is assigned to others.
    #[error(transparent)]
    AssignedToOthers(#[from] AssignedToOthers),
    /// The answer is not one of the allowed answers.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The thread is busy.
    #[error("the thread is busy")]
    Busy,
    /// A quota of the account is used up.
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    /// The interrupt is of a remote agent, and the answer could not be passed on to its server.
    #[error("{0}")]
    Elsewhere(String),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The refusal to revoke a remembered decision.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// The thread has no such decision.
    #[error("remembered decision not found")]
    NoDecision,
    /// The decision is one of these approvers.
    #[error("the decision is for {0} to revoke")]
    AssignedToOthers(String),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The refusal to write into a state.
#[derive(Debug, thiserror::Error)]
pub enum StateWriteError {
    /// The thread does not exist.
    #[error("there is no thread {0}")]
    NoThread(ThreadId),
    /// The thread has no such checkpoint.
    #[error("there is no checkpoint {0} on this thread")]
    NoCheckpoint(CheckpointId),
    /// The agent has no such node.
    #[error("node {0} does not exist")]
    NoNode(String),
    /// Runs are at work on the thread.
    #[error("the thread has in-flight runs")]
    InFlight(Vec<RunId>),
    /// The thread waits for the answer to an interrupt that is assigned to others.
    #[error("the thread waits for an answer: {0}")]
    WaitsForApprovers(AssignedToOthers),
    /// The values are invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The refusal to create a thread.
#[derive(Debug, thiserror::Error)]
pub enum CreateThreadError {
    /// A thread with this id exists and stays as it is.
    #[error("there is a thread {0}")]
    Exists(ThreadId),
    /// The given history cannot be written, or the server failed.
    #[error(transparent)]
    Write(#[from] StateWriteError),
}

impl From<db::DbError> for CreateThreadError {
    fn from(error: db::DbError) -> Self {
        Self::Write(error.into())
    }
}

/// The refusal to create or change a cron.
#[derive(Debug, thiserror::Error)]
pub enum CronError {
    /// The cron does not exist.
    #[error("cron not found")]
    NoCron,
    /// The thread does not exist.
    #[error("there is no thread {0}")]
    NoThread(ThreadId),
    /// Another client has changed the cron meanwhile.
    #[error("the cron was changed by another request")]
    Stale,
    /// A part of the request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The runs of the cron could never be started.
    #[error(transparent)]
    Refused(#[from] StartError),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

impl CronError {
    /// Returns the refusal of a cron, given the refusal of its run.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are refusals of the run")]
    pub(super) fn of_check(refusal: StartError) -> Self {
        match refusal {
            StartError::Invalid(invalid) => invalid.into(),
            StartError::Fault(error) => error.into(),
            refusal => refusal.into(),
        }
    }
}

/// The reason for which a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This agent of a file cannot be assembled.
    #[error("could not assemble the agent {0}: {1}")]
    Agent(String, ModelError),
    /// The database failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The refusal to create, change or delete an assistant.
#[derive(Debug, thiserror::Error)]
pub enum AssistantError {
    /// The assistant does not exist.
    #[error("there is no assistant {0}")]
    NoAssistant(AssistantId),
    /// The assistant has no version with this number.
    #[error("assistant {0} has no version {1}")]
    NoVersion(AssistantId, i64),
    /// An assistant with this id exists.
    #[error("there is an assistant {0}")]
    Exists(AssistantId),
    /// The definition does not exist.
    #[error("there is no agent {graph_id}")]
    NoGraph {
        /// The requested definition.
        graph_id: String,
        /// The existing definitions.
        known: Vec<String>,
    },
    /// The assistant is the default assistant of the definition with this key.
    #[error("the assistant belongs to the definition of {0}")]
    Automatic(String),
    /// `config.configurable` and `context` are both given, and differ.
    #[error("config.configurable and context differ")]
    TwoContexts,
    /// A part of the request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// The reason why a tool cannot read files of the agent that calls it.
#[derive(Debug, thiserror::Error)]
pub enum CallFileError {
    /// The file at this path is not among those that the tool may read.
    #[error("the tool may not read {0}")]
    NotReadable(String),
    /// The permissions of the agent refuse it.
    #[error("{0}")]
    Forbidden(String),
    /// The workspace refuses it or has failed.
    #[error("{0}")]
    Failed(String),
    /// The agent that makes the call is not configured on this server.
    #[error("the agent that makes the call is not configured")]
    NoAgent,
    /// The database failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

impl From<FileRefusal> for CallFileError {
    fn from(refusal: FileRefusal) -> Self {
        match refusal {
            FileRefusal::NotReadable(path) => Self::NotReadable(path),
            FileRefusal::Forbidden(reason) => Self::Forbidden(reason),
            FileRefusal::Failed(reason) => Self::Failed(reason),
        }
    }
}
