//! The order of the runs of the main agent on a thread: by their first event in the thread's log, or by their end.

use std::collections::BTreeSet;

use const_format::{concatcp, str_replace};
use sqlx::{QueryBuilder, query_scalar};
use uuid::Uuid;

use super::get_by_id;
use crate::db::engine::{OF_MAIN_AGENTS, OF_SUBAGENTS, on_engine};
use crate::db::interrupts::NO_QUESTION;
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

/// Returns the number of the first event of the run that began as the last but `others` on a thread; none if there are not
/// that many.
pub async fn begun_before_last(tx: &mut Tx<'_>, thread: ThreadId, others: i64) -> DbResult<Option<i64>> {
    const SQL: &str = "select first_seq from runs where thread_id = $1 and depth = 0 and first_seq is not null \
        order by first_seq desc limit 1 offset $2";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .bind(others)
        .fetch_optional(conn)
        .await)?)
}

/// Returns the number of the first event of the first run of a thread in which one of these subagents of the main agent
/// worked; none if there is no such subagent. Subagents are named by their checkpoint namespaces.
pub async fn begun_with(tx: &mut Tx<'_>, thread: ThreadId, namespaces: &[String]) -> DbResult<Option<i64>> {
    const SQL: &str = "select min(top.first_seq) from runs child join runs top on top.run_id = child.root_id \
        where child.depth = 1 and child.thread_id = ";
    if namespaces.is_empty() {
        return Ok(None);
    }
    let first: Option<i64> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        sql.push_bind(thread.0).push(" and child.namespace in (");
        let mut list = sql.separated(", ");
        for namespace in namespaces {
            list.push_bind(namespace.clone());
        }
        sql.push(")");
        sql.build_query_scalar().fetch_one(conn).await
    })?;
    Ok(first)
}

/// The SQL query for the run of the main agent that ended last on the thread `{thread}`; its result is null if none has ended. Two
/// kinds of runs are passed over, unless there is no other: a queued run that was cancelled before it began, and one whose answer
/// came too late. The latter has failed before its first step, and no interrupt has its answer.
///
/// Runs of a thread do not overlap, so that which began last has ended last. They are read in the index of their first events, from
/// the newest one to the first that is not passed over. Only where each is passed over, all of them are read. `offset 0` keeps
/// Postgres from reading the interrupts of all threads.
pub(in crate::db) const LAST_ENDED_ON_POSTGRES: &str = concatcp!(ENDED, OR_A_STEP, FOUND, OR_ANY);
/// The same on SQLite, see [`OF_MAIN_AGENTS`].
pub(in crate::db) const LAST_ENDED_ON_SQLITE: &str = concatcp!(
    ENDED,
    OR_A_STEP,
    OF_MAIN_AGENTS,
    FOUND,
    OR_A_STEP,
    OF_SUBAGENTS,
    FOUND,
    OR_ANY
);
const ENDED: &str = "select coalesce((select ended.run_id from runs ended where ended.thread_id = {thread} \
    and ended.depth = 0 and ended.first_seq is not null and ended.status not in ('pending', 'running') \
    and (coalesce(ended.turn, '') <> 'answer' or ended.status <> 'error' \
    or exists (select 1 from interrupts answered where answered.thread_id = ended.thread_id \
    and answered.resumed_by = ended.run_id limit 1 offset 0)";
const OR_A_STEP: &str = " or exists (select 1 from checkpoints step where step.thread_id = ended.thread_id \
    and step.seq >= ended.first_seq and step.run_id = ended.run_id";
const FOUND: &str = " limit 1 offset 0)";
const OR_ANY: &str = ") order by ended.first_seq desc limit 1), (select ended.run_id from runs ended \
    where ended.thread_id = {thread} and ended.depth = 0 and ended.status not in ('pending', 'running') \
    order by ended.updated_at desc, ended.created_at desc, ended.run_id desc limit 1))";

/// Returns the run whose status is that of the work on a thread: the newest one that is at work or may begin, or else the
/// one that ended last. Runs begin in another order than they were created: an answer goes before messages that wait.
pub async fn latest(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<Run>> {
    const RUNNING_OR_FREE_ON_SQLITE: &str = concatcp!(
        "select run_id, created_at from runs where thread_id = $1 and depth = 0 and status = 'running' \
         union all select run_id, created_at from runs where thread_id = $1 and depth = 0 and status = 'pending' and ",
        str_replace!(NO_QUESTION, "{run}", "runs"),
        " order by created_at desc, run_id desc limit 1"
    );
    const RUNNING_OR_FREE_ON_POSTGRES: &str = concatcp!(
        "select run_id, created_at from runs where thread_id = $1 and depth = 0 and status in ('pending', 'running') \
         and (status = 'running' or ",
        str_replace!(NO_QUESTION, "{run}", "runs"),
        ") order by created_at desc, run_id desc limit 1"
    );
    const ON_SQLITE: &str = str_replace!(LAST_ENDED_ON_SQLITE, "{thread}", "$1");
    const ON_POSTGRES: &str = str_replace!(LAST_ENDED_ON_POSTGRES, "{thread}", "$1");
    let in_flight = tx.either(RUNNING_OR_FREE_ON_SQLITE, RUNNING_OR_FREE_ON_POSTGRES);
    let last_ended = tx.either(ON_SQLITE, ON_POSTGRES);
    for sql in [in_flight, last_ended] {
        let found: Option<Option<Uuid>> =
            on_engine!(tx, |conn| query_scalar(sql).bind(thread.0).fetch_optional(conn).await)?;
        if let Some(id) = found.flatten() {
            return get_by_id(tx, RunId(id)).await;
        }
    }
    Ok(None)
}

/// Returns the runs among these that have begun and ended by themselves, in the order in which they began, each with
/// the number of its first event. With `after`, only runs that began after that one are returned.
pub async fn ended_among(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    these: &BTreeSet<RunId>,
    after: Option<RunId>,
) -> DbResult<Vec<(Run, i64)>> {
    const SQL: &str = "select run_id, first_seq from runs where depth = 0 and status in ('success', 'error', 'timeout') \
        and first_seq is not null and thread_id = ";
    if these.is_empty() {
        return Ok(vec![]);
    }
    let found: Vec<(Uuid, i64)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        sql.push_bind(thread.0).push(" and run_id in (");
        let mut list = sql.separated(", ");
        for run in these {
            list.push_bind(run.0);
        }
        sql.push(")");
        if let Some(after) = after {
            sql.push(" and first_seq > (select earlier.first_seq from runs earlier where earlier.run_id = ")
                .push_bind(after.0)
                .push(")");
        }
        sql.push(" order by first_seq");
        sql.build_query_as().fetch_all(conn).await
    })?;
    let mut runs = vec![];
    for (id, first_seq) in found {
        runs.extend(get_by_id(tx, RunId(id)).await?.map(|run| (run, first_seq)));
    }
    Ok(runs)
}

async fn find_by_seq(tx: &mut Tx<'_>, sql: &'static str, thread: ThreadId, seq: i64) -> DbResult<Option<(Run, i64)>> {
    let found: Option<(Uuid, i64)> = tx.statement(sql).bind(thread.0).bind(seq).fetch_optional().await?;
    let Some((id, first)) = found else { return Ok(None) };
    Ok(get_by_id(tx, RunId(id)).await?.map(|run| (run, first)))
}
