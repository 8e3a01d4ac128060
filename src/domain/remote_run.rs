//! Runs on other servers that a run of this one waits for, and those that a deleted background task has left there.

use super::id::{DefinitionDigest, RunId};
use super::time::Timestamp;

/// A run on another server, stored so that it can be cancelled when its result is not needed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRun {
    /// The run of the agent on this server: a subagent's, or the main agent's. Of a deleted task: its id.
    pub run: RunId,
    /// The run whose work it is: the same, or the first of the runs of a main agent that continue each other.
    pub first: RunId,
    /// The `graph_id` of the definition that contains the agent.
    pub graph_id: String,
    /// The digest of that definition.
    pub definition: Option<DefinitionDigest>,
    /// The name of the agent in the definition.
    pub agent: String,
    /// The address of the other server.
    pub url: String,
    /// True if a background task has left it, whose record was deleted with its conversation: the thread there has the id of the
    /// task.
    pub of_deleted_task: bool,
    /// The time since which attempts to cancel it have not ended it.
    pub lost_since: Option<Timestamp>,
    /// True if the last attempt to cancel it did not find it there.
    pub was_missed: bool,
}
