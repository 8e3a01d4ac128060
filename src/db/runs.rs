//! Runs: who works on what, and who waits for it. The functions that hand runs to workers are in `claims`.

mod below;
mod claims;
mod order;
mod queue;
mod usage;

use serde::de::DeserializeOwned;
use sqlx::types::Json;
use sqlx::{query, query_as};
use uuid::Uuid;

pub use below::{members, tree};
pub use claims::{
    Claim, Holder, Trace, adopt_orphans, any_pending, caller_told, cancels_of, check_fence, claim, end_fenced,
    first_seq, give_up, given_up, is_given_up, is_to_stop, next_due, next_due_at, release, release_all, request_cancel,
    restore_children, set_child_status, some_pending, some_running, stop_below, stop_children,
};
pub use order::{begun_after, begun_by};
pub use queue::{Queue, queue};
pub use usage::{set_usage, usage, usages, usages_with_background};

use super::engine::on_engine;
use super::json::{Cell, encode, log_unreadable};
use super::part::{Filling, ListPart};
use super::{DbError, DbResult, Tx};
use crate::domain::id::{AssistantId, RunId, TaskId, ThreadId, WorkerId};
use crate::domain::json_limits::parsed_bytes;
use crate::domain::machine::Failure;
use crate::domain::run::{Lineage, Run, RunRequest, RunStatus};
use crate::domain::time::Timestamp;
use crate::domain::visibility::Visibility;

const TABLE: &str = "runs";

macro_rules! columns {
    () => {
        "run_id, thread_id, assistant_id, root_id, parent_id, depth, cause, namespace, cast(path as text) as path, \
         status, request, cast(metadata as text) as metadata, error, attempt, fence, created_at, updated_at, due_at, \
         visibility, crashes"
    };
}
use columns;

macro_rules! select {
    () => {
        concat!("select ", columns!(), " from runs")
    };
}

#[derive(sqlx::FromRow)]
struct RunRow {
    run_id: Uuid,
    thread_id: Uuid,
    assistant_id: Uuid,
    root_id: Uuid,
    parent_id: Option<Uuid>,
    depth: i32,
    cause: Option<String>,
    namespace: String,
    path: String,
    status: String,
    request: String,
    metadata: String,
    error: Option<String>,
    attempt: i32,
    fence: i64,
    created_at: i64,
    updated_at: i64,
    due_at: i64,
    visibility: Option<String>,
    crashes: i32,
}

/// A run as far as it can be read.
struct ReadRun {
    /// What cannot be read has its default here, and `error` says so.
    run: Run,
    /// The first column that cannot be read.
    trouble: Option<DbError>,
}

/// Reads the columns of a run, and keeps the first error.
struct Columns<'a> {
    id: &'a Uuid,
    trouble: Option<DbError>,
}

impl<'a> Columns<'a> {
    fn at(&self, column: &'static str) -> Cell<'a, Uuid> {
        Cell {
            table: TABLE,
            column,
            id: self.id,
        }
    }

    fn take<T: Default>(&mut self, read: DbResult<T>) -> T {
        read.unwrap_or_else(|error| {
            self.trouble.get_or_insert(error);
            T::default()
        })
    }

    fn json<T: DeserializeOwned + Default>(&mut self, column: &'static str, text: &str) -> T {
        let read = self.at(column).decode(text);
        self.take(read)
    }

    fn number(&mut self, column: &'static str, number: i32) -> u32 {
        let read = u32::try_from(number).map_err(|_| self.at(column).corrupt());
        self.take(read)
    }
}

impl From<RunRow> for ReadRun {
    fn from(row: RunRow) -> Self {
        let mut columns = Columns {
            id: &row.run_id,
            trouble: None,
        };
        let namespace = read_namespace(&row.namespace).ok_or_else(|| columns.at("namespace").corrupt());
        let visibility = match &row.visibility {
            None => Some(Visibility::Full),
            Some(word) => Visibility::from_word(word),
        };
        let visibility = visibility.ok_or_else(|| columns.at("visibility").corrupt());
        let status = RunStatus::from_word(&row.status).ok_or_else(|| columns.at("status").corrupt());
        let lineage = Lineage {
            root: RunId(row.root_id),
            parent: row.parent_id.map(RunId),
            depth: columns.number("depth", row.depth),
            namespace: columns.take(namespace),
            path: columns.json("path", &row.path),
            // Nothing is shown of a run of which it is not known how much may be seen.
            visibility: columns.take(visibility.map(Some)).unwrap_or(Visibility::Hidden),
            cause: row.cause,
        };
        let error = row
            .error
            .as_deref()
            .map(|error| columns.at("error").decode(error))
            .transpose();
        let mut run = Run {
            id: RunId(row.run_id),
            thread: ThreadId(row.thread_id),
            assistant: AssistantId(row.assistant_id),
            lineage,
            status: columns.take(status.map(Some)).unwrap_or(RunStatus::Error),
            request: columns.json("request", &row.request),
            metadata: columns.json("metadata", &row.metadata),
            error: columns.take(error),
            attempt: columns.number("attempt", row.attempt),
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
            due_at: Timestamp(row.due_at),
        };
        let trouble = columns.trouble;
        if let Some(trouble) = &trouble {
            run.error.get_or_insert_with(|| unreadable(trouble));
        }
        Self { run, trouble }
    }
}

/// What is said of a run that cannot go on because what is stored of it cannot be read.
pub fn unreadable(trouble: &DbError) -> Failure {
    let text = format!("What is stored of this run cannot be read: {trouble}. It was ended; others are not concerned.");
    Failure::new("UnreadableRunError", text)
}

/// As far as it can be read: runs are looked at in order to end, delete and list them, and one that cannot be read must
/// not be in the way of that. Those that are to be driven are read by [`Claim`].
impl From<RunRow> for Run {
    fn from(row: RunRow) -> Self {
        let ReadRun { run, trouble } = row.into();
        if let Some(trouble) = &trouble {
            log_unreadable(trouble);
        }
        run
    }
}

/// The tasks of a namespace as clients write it; none when it is not one.
fn read_namespace(text: &str) -> Option<Vec<TaskId>> {
    if text.is_empty() {
        return Some(vec![]);
    }
    text.split('|')
        .map(|part| part.strip_prefix("tools:")?.parse().ok().map(TaskId))
        .collect()
}

/// Stores a new run; one that begins at once belongs to `worker`.
///
/// # Errors
/// [`super::DbError::Conflict`] when its thread is gone, or when it would be the second run of the main agent at work on it.
pub async fn insert(tx: &mut Tx<'_>, run: &Run, worker: Option<WorkerId>) -> DbResult<()> {
    const SQL: &str = "insert into runs (run_id, thread_id, assistant_id, root_id, parent_id, depth, cause, namespace, \
        path, status, request, metadata, error, attempt, worker, fence, cancel, created_at, updated_at, due_at, \
        visibility, crashes) \
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 0, null, $16, $17, $18, $19, 0)";
    let visibility = Some(run.lineage.visibility).filter(|visibility| *visibility != Visibility::Full);
    let request = encode(&run.request)?;
    let error = run.error.as_ref().map(encode).transpose()?;
    on_engine!(tx, |conn| query(SQL)
        .bind(run.id.0)
        .bind(run.thread.0)
        .bind(run.assistant.0)
        .bind(run.lineage.root.0)
        .bind(run.lineage.parent.map(|parent| parent.0))
        .bind(i32::try_from(run.lineage.depth).unwrap_or(i32::MAX))
        .bind(run.lineage.cause.as_deref())
        .bind(run.lineage.checkpoint_ns())
        .bind(Json(&run.lineage.path))
        .bind(run.status.word())
        .bind(request)
        .bind(Json(&run.metadata))
        .bind(error)
        .bind(i32::try_from(run.attempt).unwrap_or(i32::MAX))
        .bind(worker.map(|worker| worker.0))
        .bind(run.created_at.0)
        .bind(run.updated_at.0)
        .bind(run.due_at.0)
        .bind(visibility.map(Visibility::word))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The run of this id on this thread.
pub async fn find(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<Option<Run>> {
    Ok(get_by_id(tx, run).await?.filter(|found| found.thread == thread))
}

/// The run of this id, on whichever thread.
pub async fn get_by_id(tx: &mut Tx<'_>, run: RunId) -> DbResult<Option<Run>> {
    const SQL: &str = concat!(select!(), " where run_id = $1");
    let row: Option<RunRow> = on_engine!(tx, |conn| query_as(SQL).bind(run.0).fetch_optional(conn).await)?;
    Ok(row.map(Run::from))
}

/// Which runs of a thread are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunList {
    /// Their thread.
    pub thread: ThreadId,
    /// Only those that are doing this.
    pub status: Option<RunStatus>,
    /// How many at most.
    pub limit: i64,
    /// How many to pass over before.
    pub offset: i64,
    /// How much memory they may take, roughly, in bytes.
    pub bytes: usize,
}

/// The newest run of the main agent on a thread.
pub async fn newest(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<Run>> {
    let wanted = RunList {
        thread,
        status: None,
        limit: 1,
        offset: 0,
        bytes: usize::MAX,
    };
    Ok(list(tx, &wanted).await?.into_items().pop())
}

/// The runs of the main agent on a thread, the newest first.
pub async fn list(tx: &mut Tx<'_>, wanted: &RunList) -> DbResult<ListPart<Run>> {
    const ALL: &str = concat!(
        select!(),
        " where thread_id = $1 and depth = 0 order by created_at desc, run_id desc limit $2 offset $3"
    );
    const SOME: &str = concat!(
        select!(),
        " where thread_id = $1 and depth = 0 and status = $4 order by created_at desc, run_id desc limit $2 offset $3"
    );
    let sql = if wanted.status.is_some() { SOME } else { ALL };
    let weigh = |row: &RunRow| parsed_bytes(&row.request) + parsed_bytes(&row.metadata);
    let mut filling = Filling::new(wanted.limit, wanted.bytes);
    while let Some(next) = filling.next() {
        let offset = wanted.offset + filling.count();
        let rows: Vec<RunRow> = on_engine!(tx, |conn| {
            let query = query_as(sql).bind(wanted.thread.0).bind(next).bind(offset);
            match wanted.status {
                Some(status) => query.bind(status.word()).fetch_all(conn).await,
                None => query.fetch_all(conn).await,
            }
        })?;
        filling.take(next, rows, weigh, |row| Ok(Run::from(row)))?;
    }
    Ok(filling.finish())
}

/// The runs that a run delegated to, the oldest first.
pub async fn children(tx: &mut Tx<'_>, parent: RunId) -> DbResult<Vec<Run>> {
    const SQL: &str = concat!(select!(), " where parent_id = $1 order by created_at, run_id");
    many(tx, SQL, parent.0).await
}

/// The runs below a run of the main agent, at any depth, the oldest first.
pub async fn descendants(tx: &mut Tx<'_>, root: RunId) -> DbResult<Vec<Run>> {
    const SQL: &str = concat!(
        select!(),
        " where root_id = $1 and depth > 0 order by created_at, run_id"
    );
    many(tx, SQL, root.0).await
}

/// The runs of the main agent on a thread that are at work or wait for their turn, the oldest first.
pub async fn in_flight(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<Run>> {
    const SQL: &str = concat!(
        select!(),
        " where thread_id = $1 and depth = 0 and status in ('pending', 'running') order by created_at, run_id"
    );
    many(tx, SQL, thread.0).await
}

/// How many runs of the main agent are in flight on a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Those that wait for their turn.
    pub waiting: u64,
    /// Those at work.
    pub at_work: u64,
}

impl InFlight {
    /// Whether there are none.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Counts the runs of [`in_flight`] without reading them.
pub async fn count_in_flight(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<InFlight> {
    const SQL: &str = "select status, count(*) from runs \
        where thread_id = $1 and depth = 0 and status in ('pending', 'running') group by status";
    let rows: Vec<(String, i64)> = on_engine!(tx, |conn| query_as(SQL).bind(thread.0).fetch_all(conn).await)?;
    let count = |status: RunStatus| {
        let found = rows.iter().find(|(word, _)| word == status.word());
        found.and_then(|(_, count)| u64::try_from(*count).ok()).unwrap_or(0)
    };
    Ok(InFlight {
        waiting: count(RunStatus::Pending),
        at_work: count(RunStatus::Running),
    })
}

/// The ids of the runs of [`in_flight`], in the same order.
pub async fn ids_in_flight(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<RunId>> {
    const SQL: &str = "select run_id from runs \
        where thread_id = $1 and depth = 0 and status in ('pending', 'running') order by created_at, run_id";
    let rows: Vec<(Uuid,)> = on_engine!(tx, |conn| query_as(SQL).bind(thread.0).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(|(id,)| RunId(id)).collect())
}

/// How many runs of main agents wait on all threads; what is beyond `most` is not counted.
pub async fn count_pending(tx: &mut Tx<'_>, most: i64) -> DbResult<u64> {
    const SQL: &str =
        "select count(*) from (select 1 from runs where depth = 0 and status = 'pending' limit $1) as waiting";
    let (count,): (i64,) = on_engine!(tx, |conn| query_as(SQL).bind(most).fetch_one(conn).await)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

async fn many(tx: &mut Tx<'_>, sql: &'static str, id: Uuid) -> DbResult<Vec<Run>> {
    let rows: Vec<RunRow> = on_engine!(tx, |conn| query_as(sql).bind(id).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(Run::from).collect())
}

/// Sets what a run is doing, and why it failed, when it did. Returns whether there is such a run.
pub async fn set_status(
    tx: &mut Tx<'_>,
    run: RunId,
    status: RunStatus,
    error: Option<&Failure>,
    now: Timestamp,
) -> DbResult<bool> {
    const SQL: &str = "update runs set status = $2, error = $3, updated_at = $4 where run_id = $1";
    let error = error.map(encode).transpose()?;
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(status.word())
        .bind(error)
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Changes what a run was asked to do. Returns whether there is such a run.
pub async fn set_request(tx: &mut Tx<'_>, run: RunId, request: &RunRequest, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "update runs set request = $2, updated_at = $3 where run_id = $1";
    let request = encode(request)?;
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(request)
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Deletes a run of the main agent and those below it. What they did to the thread stays; see
/// [`super::checkpoints::delete_of_run`]. Returns whether there was one.
pub async fn delete(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<bool> {
    const SQL: &str = "delete from runs where root_id = $2 and thread_id = $1";
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(thread.0)
        .bind(run.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(deleted > 0)
}
