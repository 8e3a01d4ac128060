//! Work that another server does for a subagent, while the run of the subagent waits for it.

use super::id::{Digest, RunId};
use super::time::Timestamp;

/// What is kept of such work, so that nothing is left of it when nobody wants it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRun {
    /// The run of the subagent.
    pub run: RunId,
    /// The agent whose definition names it.
    pub graph_id: String,
    /// That definition.
    pub definition: Option<Digest>,
    /// The name of the subagent in it.
    pub agent: String,
    /// The server that does the work.
    pub url: String,
    /// Since when that is out of reach.
    pub lost_since: Option<Timestamp>,
}
