//! Errands: work of subagents that is done on other servers while a run here waits for it.

use super::id::{Digest, RunId};
use super::time::Timestamp;

/// What the server remembers of such work, so that nothing is left of it when nobody wants it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteErrand {
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
    /// How often that was not to be reached.
    pub looks: u32,
    /// Since when.
    pub lost_since: Option<Timestamp>,
}
