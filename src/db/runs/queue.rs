//! The length of the queue of runs, for metrics.

use const_format::{concatcp, str_replace};
use sqlx::query_as;

use super::turns::{MAY_BEGIN_ON_POSTGRES, MAY_BEGIN_ON_SQLITE};
use crate::db::engine::on_engine;
use crate::db::interrupts::NO_QUESTION;
use crate::db::{DbResult, Tx};
use crate::domain::time::Timestamp;

/// The numbers of due and running runs of main agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueDepth {
    /// The number of pending runs that are due. Those that wait for an answer of a human are left out.
    pub due: u64,
    /// The time since which the oldest of those has waited for nothing but a server: it is due, and no run of its thread is
    /// at work or goes first.
    pub oldest: Option<Timestamp>,
    /// The number of running runs.
    pub running: u64,
}

/// The query for the time since which the oldest run has waited for a server: it is due, and the last run of its thread has
/// ended. Only the hundred runs that became due first are compared, since the queue may be long.
const OLDEST_ON_SQLITE: &str = concatcp!(OLDEST, MAY_BEGIN_ON_SQLITE, FIRST_HUNDRED);
/// The query of [`OLDEST_ON_SQLITE`].
const OLDEST_ON_POSTGRES: &str = concatcp!(OLDEST, MAY_BEGIN_ON_POSTGRES, FIRST_HUNDRED);
const OLDEST: &str = "select min(case when waiting.free_at > waiting.due_at then waiting.free_at else waiting.due_at end) \
    from (select due_at, (select former.updated_at from runs former where former.thread_id = runs.thread_id \
    and former.depth = 0 and former.first_seq is not null order by former.first_seq desc limit 1) as free_at \
    from runs where depth = 0 and status = 'pending' and due_at <= $1 and ";
const FIRST_HUNDRED: &str = " order by due_at, run_id limit 100) waiting";

/// Counts the due and the running runs at `now`. Finds them by two partial indexes: pending and running runs.
pub async fn queue(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<QueueDepth> {
    const DUE: &str = concatcp!(
        "select (select count(*) from runs where depth = 0 and status = 'pending' and due_at <= $1 and ",
        str_replace!(NO_QUESTION, "{run}", "runs"),
        ") as due, ("
    );
    const RUNNING: &str = ") as oldest, (select count(*) from runs where depth = 0 and status = 'running') as running";
    const SQLITE: &str = concatcp!(DUE, OLDEST_ON_SQLITE, RUNNING);
    const POSTGRES: &str = concatcp!(DUE, OLDEST_ON_POSTGRES, RUNNING);
    let sql = tx.either(SQLITE, POSTGRES);
    let (due, oldest, running): (i64, Option<i64>, i64) =
        on_engine!(tx, |conn| query_as(sql).bind(now.0).fetch_one(conn).await)?;
    let count = |number| u64::try_from(number).unwrap_or(0);
    Ok(QueueDepth {
        due: count(due),
        oldest: oldest.map(Timestamp),
        running: count(running),
    })
}
