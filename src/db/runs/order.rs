//! The order of the runs of the main agent on a thread: by their first event in the thread's log, or by their end.

use sqlx::{query_as, query_scalar};
use uuid::Uuid;

use super::get_by_id;
use super::turns::no_question;
use crate::db::engine::on_engine;
use crate::db::{DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::Run;

/// Returns the first run whose events begin after number `seq` of the log, and the number of its first event.
pub async fn begun_after(tx: &mut Tx<'_>, thread: ThreadId, seq: i64) -> DbResult<Option<(Run, i64)>> {
    const SQL: &str = "select run_id, first_seq from runs where thread_id = $1 and depth = 0 and first_seq > $2 \
        order by first_seq limit 1";
    find_by_seq(tx, SQL, thread, seq).await
}

/// Returns the last run whose events begin at or before number `seq` of the log, and the number of its first event.
pub async fn begun_by(tx: &mut Tx<'_>, thread: ThreadId, seq: i64) -> DbResult<Option<(Run, i64)>> {
    const SQL: &str = "select run_id, first_seq from runs where thread_id = $1 and depth = 0 and first_seq <= $2 \
        order by first_seq desc limit 1";
    find_by_seq(tx, SQL, thread, seq).await
}

/// The SQL query for the run of the main agent that ended last on this thread. A queued run that was cancelled before it
/// began tells nothing, unless there is no other.
macro_rules! last_ended {
    ($thread:literal) => {
        concat!(
            "select ended.run_id from runs ended where ended.thread_id = ",
            $thread,
            " and ended.depth = 0 and ended.status not in ('pending', 'running') \
             order by ended.first_seq is null, ended.updated_at desc, ended.created_at desc, ended.run_id desc limit 1"
        )
    };
}

pub(in crate::db) use last_ended;

/// Returns the run that tells how the work on a thread stands: the newest one that is at work or may begin, or else the
/// one that ended last. Runs begin in another order than they were created: an answer goes before messages that wait.
pub async fn latest(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<Run>> {
    const IN_FLIGHT: &str = concat!(
        "select run_id from runs where thread_id = $1 and depth = 0 and status in ('pending', 'running') \
         and (status = 'running' or ",
        no_question!("runs"),
        ") order by created_at desc, run_id desc limit 1"
    );
    for sql in [IN_FLIGHT, last_ended!("$1")] {
        let id: Option<Uuid> = on_engine!(tx, |conn| query_scalar(sql).bind(thread.0).fetch_optional(conn).await)?;
        if let Some(id) = id {
            return get_by_id(tx, RunId(id)).await;
        }
    }
    Ok(None)
}

async fn find_by_seq(tx: &mut Tx<'_>, sql: &'static str, thread: ThreadId, seq: i64) -> DbResult<Option<(Run, i64)>> {
    let found: Option<(Uuid, i64)> = on_engine!(tx, |conn| query_as(sql)
        .bind(thread.0)
        .bind(seq)
        .fetch_optional(conn)
        .await)?;
    let Some((id, first)) = found else { return Ok(None) };
    Ok(get_by_id(tx, RunId(id)).await?.map(|run| (run, first)))
}
