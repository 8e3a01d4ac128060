//! Runs on other servers that a subagent's run waits for.

use super::id::{Digest, RunId};
use super::time::Timestamp;

/// A run on another server, stored so that it can be cancelled when its result is not needed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRun {
    /// The run of the subagent.
    pub run: RunId,
    /// The `graph_id` of the definition that contains the subagent.
    pub graph_id: String,
    /// The digest of that definition.
    pub definition: Option<Digest>,
    /// The name of the subagent in the definition.
    pub agent: String,
    /// The address of the other server.
    pub url: String,
    /// The time since which that server is unreachable.
    pub lost_since: Option<Timestamp>,
}
