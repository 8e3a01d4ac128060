//! Lanes in statements and in columns besides the log.

use uuid::Uuid;

use crate::domain::checkpoint::Lane;
use crate::domain::id::RunId;

/// The condition on SQLite that a checkpoint is one of a main agent. In the order of the log, SQLite finds the
/// checkpoints of main agents in one index and those of subagents in another. So a statement about a part of the log
/// has two parts.
pub(in crate::db) const OF_MAIN_AGENTS: &str = " and lane = x''";
/// The condition on SQLite that a checkpoint is one of a subagent, see [`OF_MAIN_AGENTS`].
pub(in crate::db) const OF_SUBAGENTS: &str = " and lane <> x''";

/// Returns the id of a lane in the tables besides the log: the nil UUID for the main agent, else the run of the subagent.
pub(in crate::db) fn lane_id(lane: Lane) -> Uuid {
    match lane {
        Lane::Main => Uuid::nil(),
        Lane::Child(run) => run.0,
    }
}

/// Returns the lane with this stored id.
pub(in crate::db) fn lane_of(id: Uuid) -> Lane {
    if id.is_nil() {
        Lane::Main
    } else {
        Lane::Child(RunId(id))
    }
}
