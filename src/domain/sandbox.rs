//! Sandboxes of sandbox services, outside of this server.

use super::id::{SandboxId, ThreadId};

/// The purpose of a sandbox. There is one sandbox for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxKey {
    /// The thread.
    pub thread: ThreadId,
    /// The name of the sandbox service in the configuration.
    pub service: String,
    /// The names of the agents from the main agent down to the one that has the sandbox for itself, with `/` between
    /// them; empty for a sandbox of all agents of the thread.
    pub agent_path: String,
}

/// A sandbox as the server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxRecord {
    /// The id, by which the service knows it, too.
    pub id: SandboxId,
    /// True once the service has created it.
    pub is_created: bool,
}
