//! Tokens of tool calls: with one, a tool reads what it may of the run that calls it, for as long as the call takes.

use super::access::Ownership;
use super::checkpoint::Lane;
use super::id::{RunId, TaskId, ThreadId};
use super::read_access::ReadAccess;

/// The path of the endpoints that take such tokens.
pub const CALL_PATH: &str = "/call";

/// The call to which a token is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallBinding {
    /// The call: the same when it is repeated after a crash.
    pub task: TaskId,
    /// To whom the thread belongs.
    pub ownership: Ownership,
    /// The thread.
    pub thread: ThreadId,
    /// The run of the main agent.
    pub run: RunId,
    /// The run of the subagent that makes the call; `None` for the main agent.
    pub child: Option<RunId>,
    /// The name under which models know the tool.
    pub tool: String,
    /// The parts of the run that the call may read. The namespaces have no placeholders.
    pub access: ReadAccess,
}

impl CallBinding {
    /// Returns the lane of the agent that makes the call.
    pub fn lane(&self) -> Lane {
        self.child.map_or(Lane::Main, Lane::Child)
    }
}
