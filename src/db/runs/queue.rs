//! The length of the queue of runs, for metrics.

use const_format::{concatcp, str_replace};
use sqlx::query_as;

use super::claims::next_due_at;
use super::turns::NO_QUESTION;
use crate::db::engine::on_engine;
use crate::db::{DbResult, Tx};
use crate::domain::time::Timestamp;

/// The numbers of due and running runs of main agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueDepth {
    /// The number of pending runs that are due. Those that wait for an answer of a human are left out.
    pub due: u64,
    /// The time since which the oldest of those has been due that wait for nothing but a server: no run of their thread is
    /// at work or goes first.
    pub oldest: Option<Timestamp>,
    /// The number of running runs.
    pub running: u64,
}

/// Counts the due and the running runs at `now`. Finds them by two partial indexes: pending and running runs.
pub async fn queue(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<QueueDepth> {
    const SQL: &str = concatcp!(
        "select (select count(*) from runs where depth = 0 and status = 'pending' and due_at <= $1 and ",
        str_replace!(NO_QUESTION, "{run}", "runs"),
        ") as due, (select count(*) from runs where depth = 0 and status = 'running') as running"
    );
    let (due, running): (i64, i64) = on_engine!(tx, |conn| query_as(SQL).bind(now.0).fetch_one(conn).await)?;
    let count = |number| u64::try_from(number).unwrap_or(0);
    let next = next_due_at(tx).await?;
    Ok(QueueDepth {
        due: count(due),
        oldest: next.filter(|at| *at <= now),
        running: count(running),
    })
}
