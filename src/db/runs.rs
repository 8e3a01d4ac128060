//! The table of runs: stores, reads, lists and deletes them. Handing runs to workers and ending them is in `claims`.

mod below;
mod children;
mod claims;
mod implied_id;
mod order;
mod queue;
mod turns;
mod usage;

use std::borrow::Cow;

use const_format::concatcp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sqlx::types::Json;
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

pub use below::{count_waiting, members, successor, tree};
pub use children::{ChildRowUpdate, mark_begun_by, restore_children, stop_below, stop_children, update_child};
#[cfg(test)]
pub use claims::unreported;
pub use claims::{
    AdoptedRuns, Claim, EndOfRun, LaterUnreported, LeaseHolder, RunRowUpdate, adopt_orphans, cancels_of, check_fence,
    claim, end_fenced, first_seq, held_by, is_cancelled_while_waiting, is_to_stop, mark_reported, mark_unreported,
    next_due_at, release, release_all, request_cancel, some_pending, some_running, store_fenced, unreported_later,
};
pub(super) use order::{LAST_ENDED_ON_POSTGRES, LAST_ENDED_ON_SQLITE};
pub use order::{begun_after, begun_before_last, begun_by, begun_with, ended_among, latest};
pub use queue::{QueueDepth, queue};
pub use turns::{
    at_work_by_queue, count_of_subject, hold_messages, lock_claims, next_in_queue, try_lock_claims, waiting_queues,
};
pub use usage::{LaterUsages, set_usage, usage, usages, usages_later, usages_with_background};

use super::checkpoints::{LOG_END_ON_POSTGRES, LOG_END_ON_SQLITE, LaterLogEnd, LogEndRow, bind_log_end};
use super::codec::blobs::{self, BlobReferrer, Packer, StoredText};
use super::codec::json::{ColumnRef, encode, log_unreadable, unless_corrupt};
use super::codec::short_form;
use super::engine::{Engine, IdColumn, LaterRows, on_engine};
use super::list_part::{ListBuilder, ListPart};
use super::of_thread::{of_thread_on_postgres, of_thread_on_sqlite};
use super::row::from_row;
use super::{DbError, DbResult, Tx};
use crate::domain::account::RunQueue;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, RunId, TaskId, ThreadId, WorkerId};
use crate::domain::limits::Usage;
use crate::domain::machine::Failure;
use crate::domain::run::{AssignedAgent, Lineage, Run, RunCaller, RunRequest, RunStatus};
use crate::domain::time::Timestamp;
use crate::domain::trace::RunTrace;
use crate::domain::visibility::Visibility;
use implied_id::{stored_assistant, stored_root};

const TABLE: &str = "runs";

const COLUMNS: &str = "\
    run_id, thread_id, assistant_id, root_id, parent_id, depth, cause, namespace, cast(path as text) as path, \
    status, request, cast(metadata as text) as metadata, error, attempt, fence, created_at, updated_at, due_at, \
    visibility, crashes, queue";
const SELECT: &str = concatcp!("select ", COLUMNS, " from runs");

from_row! {
    struct RunRow {
        run_id: Uuid,
        thread_id: Uuid,
        assistant_id: IdColumn<Option<Uuid>>,
        root_id: IdColumn<Option<Uuid>>,
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
        queue: String,
    }
}

/// Puts the blobs of requests back.
async fn restore(tx: &mut Tx<'_>, rows: &mut [RunRow]) -> DbResult<()> {
    for rows in rows.chunk_by_mut(|one, next| one.thread_id == next.thread_id) {
        let Some(thread) = rows.first().map(|row| ThreadId(row.thread_id)) else {
            continue;
        };
        let texts = rows.iter_mut().map(|row| StoredText {
            cell: cell("request", &row.run_id),
            text: &mut row.request,
        });
        blobs::restore(tx, thread, texts.collect()).await?;
    }
    Ok(())
}

/// Reads runs leniently.
async fn read_all(tx: &mut Tx<'_>, mut rows: Vec<RunRow>) -> DbResult<Vec<Run>> {
    restore(tx, &mut rows).await?;
    Ok(rows.into_iter().map(Run::from).collect())
}

/// Returns a column of a run.
fn cell<'a, I: ToString>(column: &'static str, run: &'a I) -> ColumnRef<'a, I> {
    ColumnRef {
        table: TABLE,
        column,
        id: run,
    }
}

/// Encodes the error of a stored run, if there is one.
async fn encode_error(tx: &mut Tx<'_>, run: RunId, error: Option<&Failure>) -> DbResult<Option<String>> {
    let Some(error) = error else { return Ok(None) };
    let sealer = tx.sealer_of_run(run).await?;
    sealer.encode(&cell("error", &run), error).map(Some)
}

/// Encodes the usage of a run.
fn encode_usage(tx: &Tx<'_>, usage: &Usage) -> DbResult<String> {
    let text = encode(usage)?;
    Ok(match short_form::dictionary(tx) {
        Some(dictionary) => short_form::shorten(text, dictionary),
        None => text,
    })
}

/// The key of the metadata of a run of a main agent with the id of its assistant, which the row has in a column.
const ASSISTANT: &str = "assistant_id";
/// The key of the metadata of a run of a main agent with the name of the agent, which its request has, too.
const GRAPH: &str = "graph_id";
/// The key of the metadata that says who has created the assistant of a run.
const CREATOR: &str = "created_by";
/// The creator of the assistant that each agent has by itself.
const SYSTEM: &str = "system";

/// Returns the metadata of a run as its row has them: without the id of the assistant, if every server reads that, and on
/// SQLite without the name of the agent and the creator of its own assistant. Of a run whose metadata do not have such a key,
/// the row says so by a null.
fn stored_metadata(run: &Run, engine: Engine, shortens: bool) -> Cow<'_, Map<String, Value>> {
    if run.lineage.depth > 0 {
        return Cow::Borrowed(&run.metadata);
    }
    let mut metadata = run.metadata.clone();
    let noted = |key: &str| run.metadata.get(key).and_then(Value::as_str);
    if !metadata.contains_key(ASSISTANT) {
        metadata.insert(ASSISTANT.to_owned(), Value::Null);
    } else if shortens && noted(ASSISTANT) == Some(run.assistant.to_string().as_str()) {
        metadata.shift_remove(ASSISTANT);
    }
    let Some(agent) = &run.request.agent else {
        return Cow::Owned(metadata);
    };
    if !metadata.contains_key(GRAPH) {
        metadata.insert(GRAPH.to_owned(), Value::Null);
    } else if engine == Engine::Sqlite
        && noted(GRAPH) == Some(agent.graph_id.as_str())
        && noted(CREATOR) == Some(SYSTEM)
    {
        metadata.shift_remove(GRAPH);
        metadata.shift_remove(CREATOR);
    }
    Cow::Owned(metadata)
}

/// Returns the metadata of a run that are stored like this. `agent` is that of its request.
fn read_metadata(
    mut stored: Map<String, Value>,
    depth: i32,
    assistant: AssistantId,
    agent: Option<&AssignedAgent>,
) -> Map<String, Value> {
    if depth > 0 {
        return stored;
    }
    if let Some(agent) = agent {
        if stored.get(GRAPH).is_some_and(Value::is_null) {
            stored.shift_remove(GRAPH);
        } else if !stored.contains_key(GRAPH) {
            stored.insert(CREATOR.to_owned(), SYSTEM.into());
            stored.insert(GRAPH.to_owned(), agent.graph_id.as_str().into());
        }
    }
    if stored.get(ASSISTANT).is_some_and(Value::is_null) {
        stored.shift_remove(ASSISTANT);
    } else if !stored.contains_key(ASSISTANT) {
        stored.insert(ASSISTANT.to_owned(), assistant.to_string().into());
    }
    stored
}

/// A run of which some columns may be unreadable.
struct ReadRun {
    /// The run. Unreadable columns have their default, and `error` says so.
    run: Run,
    /// The error of the first unreadable column.
    corrupt: Option<DbError>,
}

/// A reader of a run's columns that keeps the first error.
struct Columns<'a> {
    id: &'a Uuid,
    first_error: Option<DbError>,
}

impl<'a> Columns<'a> {
    fn at(&self, column: &'static str) -> ColumnRef<'a, Uuid> {
        ColumnRef {
            table: TABLE,
            column,
            id: self.id,
        }
    }

    fn take<T: Default>(&mut self, read: DbResult<T>) -> T {
        read.unwrap_or_else(|error| {
            self.first_error.get_or_insert(error);
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
            first_error: None,
        };
        let namespace = parse_namespace(&row.namespace).ok_or_else(|| columns.at("namespace").corrupt());
        let visibility = match &row.visibility {
            None => Some(Visibility::Full),
            Some(word) => Visibility::from_word(word),
        };
        let visibility = visibility.ok_or_else(|| columns.at("visibility").corrupt());
        let status = RunStatus::from_word(&row.status).ok_or_else(|| columns.at("status").corrupt());
        let lineage = Lineage {
            root: RunId(row.root_id.0.unwrap_or(row.run_id)),
            parent: row.parent_id.map(RunId),
            depth: columns.number("depth", row.depth),
            namespace: columns.take(namespace),
            path: columns.json("path", &row.path),
            // Hides the run when its visibility is unknown.
            visibility: columns.take(visibility.map(Some)).unwrap_or(Visibility::Hidden),
            cause: row.cause,
        };
        let error = row
            .error
            .as_deref()
            .map(|error| columns.at("error").decode(error))
            .transpose();
        let request: RunRequest = columns.json("request", &row.request);
        let of_agent = request
            .agent
            .as_ref()
            .map(|agent| AssistantId::of_graph(&agent.graph_id));
        let assistant = row.assistant_id.0.map(AssistantId).or(of_agent);
        // Only of a request that cannot be read, the agent is not known.
        let assistant = assistant.unwrap_or(AssistantId(Uuid::nil()));
        let metadata = columns.at("metadata").decode(&row.metadata);
        let metadata = metadata.map(|stored| read_metadata(stored, row.depth, assistant, request.agent.as_ref()));
        let mut run = Run {
            id: RunId(row.run_id),
            thread: ThreadId(row.thread_id),
            assistant,
            lineage,
            status: columns.take(status.map(Some)).unwrap_or(RunStatus::Error),
            request,
            metadata: columns.take(metadata),
            error: columns.take(error),
            attempt: columns.number("attempt", row.attempt),
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
            due_at: Timestamp(row.due_at),
            queue: RunQueue::stored(row.queue),
        };
        let corrupt = columns.first_error;
        if let Some(error) = &corrupt {
            run.error.get_or_insert_with(|| unreadable(error));
        }
        Self { run, corrupt }
    }
}

/// Returns the failure of a run that was ended because its row cannot be read.
pub fn unreadable(error: &DbError) -> Failure {
    let text = format!("The stored run cannot be read: {error}. It was ended; other runs are not affected.");
    Failure::new("UnreadableRunError", text)
}

/// Reads a run leniently: a run with an unreadable column can still be listed, ended and deleted. Runs to be executed
/// are read strictly, by [`Claim`].
impl From<RunRow> for Run {
    fn from(row: RunRow) -> Self {
        let ReadRun { run, corrupt } = row.into();
        if let Some(error) = &corrupt {
            log_unreadable(error);
        }
        run
    }
}

/// Parses a checkpoint namespace (`tools:<id>|tools:<id>`) into its tasks; none when the text is malformed.
fn parse_namespace(text: &str) -> Option<Vec<TaskId>> {
    if text.is_empty() {
        return Some(vec![]);
    }
    text.split('|')
        .map(|part| part.strip_prefix("tools:")?.parse().ok().map(TaskId))
        .collect()
}

/// A run to be stored.
#[derive(Clone, Copy)]
struct NewRow<'a> {
    run: &'a Run,
    /// The process that holds it.
    worker: Option<WorkerId>,
    /// The number of its first event.
    first_seq: Option<i64>,
}

/// Stores a new run. A run that starts at once is held by `worker`.
///
/// # Errors
/// [`super::DbError::Conflict`] when its thread was deleted, or another run of the main agent is running on it: by the end of the transaction, see
/// [`Statement::execute_later`](super::engine::Statement::execute_later).
pub async fn insert(tx: &mut Tx<'_>, run: &Run, worker: Option<WorkerId>) -> DbResult<()> {
    insert_begun(tx, run, worker, None).await
}

/// Stores a new run like [`insert`]. `first_seq` is the number of its first event, if the same transaction stores that.
///
/// # Errors
/// As [`insert`].
pub async fn insert_begun(
    tx: &mut Tx<'_>,
    run: &Run,
    worker: Option<WorkerId>,
    first_seq: Option<i64>,
) -> DbResult<()> {
    let row = NewRow { run, worker, first_seq };
    insert_rows(tx, &[row]).await
}

/// Stores new runs of subagents like [`insert`]. The process that holds the run of the main agent holds them, too.
///
/// # Errors
/// As [`insert`], also when one of them exists.
pub async fn insert_children(tx: &mut Tx<'_>, children: &[&Run]) -> DbResult<()> {
    let rows = children.iter().map(|run| NewRow {
        run,
        worker: None,
        first_seq: None,
    });
    insert_rows(tx, &rows.collect::<Vec<_>>()).await
}

async fn insert_rows(tx: &mut Tx<'_>, new: &[NewRow<'_>]) -> DbResult<()> {
    const SQL: &str = "insert into runs (run_id, thread_id, assistant_id, root_id, parent_id, depth, cause, namespace, \
        path, status, request, metadata, error, attempt, worker, fence, created_at, updated_at, due_at, \
        visibility, crashes, queue, definition, turn, first_seq) values ";
    let engine = tx.engine();
    let shortens = tx.shortens();
    let stored_metadata = new.iter().map(|row| stored_metadata(row.run, engine, shortens));
    let stored_metadata: Vec<_> = stored_metadata.collect();
    let mut rows = Vec::with_capacity(new.len());
    let mut packers = Vec::with_capacity(new.len());
    for (row, stored_metadata) in new.iter().zip(&stored_metadata) {
        let run = row.run;
        let at = |column| cell(column, &run.id);
        let sealer = tx.sealer_of_thread(run.thread).await?;
        let mut packer = Packer::of_thread(tx, run.thread).await?;
        let request = packer.encode(&at("request"), &run.request)?;
        let metadata = sealer.json(&at("metadata"), stored_metadata)?;
        let error = run.error.as_ref().map(|error| sealer.encode(&at("error"), error));
        rows.push((*row, request, metadata, error.transpose()?));
        let referrer = BlobReferrer::Request {
            thread: run.thread,
            run: run.id,
        };
        packers.push((packer, referrer));
    }
    tx.insert_later(SQL, "", 25, rows, |values, (row, request, metadata, error)| {
        let NewRow { run, worker, first_seq } = row;
        let visibility = Some(run.lineage.visibility).filter(|visibility| *visibility != Visibility::Full);
        values
            .push_bind(run.id.0)
            .push_bind(run.thread.0)
            .push_bind(stored_assistant(run, engine))
            .push_bind(stored_root(run, engine))
            .push_bind(run.lineage.parent.map(|parent| parent.0))
            .push_bind(i32::try_from(run.lineage.depth).unwrap_or(i32::MAX))
            .push_bind(run.lineage.cause.as_deref())
            .push_bind(run.lineage.checkpoint_ns())
            .push_bind(Json(&run.lineage.path))
            .push_bind(run.status.word())
            .push_bind(request)
            .push_bind(Json(metadata))
            .push_bind(error)
            .push_bind(i32::try_from(run.attempt).unwrap_or(i32::MAX))
            .push_bind(worker.map(|worker| worker.0))
            .push_bind(0_i64)
            .push_bind(run.created_at.0)
            .push_bind(run.updated_at.0)
            .push_bind(run.due_at.0)
            .push_bind(visibility.map(Visibility::word))
            .push_bind(0_i32)
            .push_bind(run.queue.text())
            .push_bind(run.request.pinned_definition().map(|digest| digest.0.as_str()))
            .push_bind(run.request.turn().word())
            .push_bind(first_seq);
    })
    .await?;
    for (packer, referrer) in packers {
        packer.store(tx, referrer).await?;
    }
    Ok(())
}

/// Returns the run with this id on this thread.
pub async fn find(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<Option<Run>> {
    Ok(get_by_id(tx, run).await?.filter(|found| found.thread == thread))
}

const SELECT_BY_ID: &str = concatcp!(SELECT, " where run_id = $1");

/// Returns the run with this id, on any thread.
pub async fn get_by_id(tx: &mut Tx<'_>, run: RunId) -> DbResult<Option<Run>> {
    let row: Option<RunRow> = tx.statement(SELECT_BY_ID).bind(run.0).fetch_optional().await?;
    Ok(read_all(tx, row.into_iter().collect()).await?.pop())
}

/// A run that is read later in its transaction.
pub struct LaterRun(LaterRows<RunRow>);

/// Returns the run with this id, to be read later in the transaction, which must not change it meanwhile. It is read together with
/// other rows.
pub async fn get_later(tx: &mut Tx<'_>, run: RunId) -> DbResult<LaterRun> {
    let statement = tx.statement(SELECT_BY_ID).bind(run.0);
    statement.fetch_later().await.map(LaterRun)
}

/// Returns the run that made the newest checkpoint of the main agent of a thread, to be read later in the transaction, which must
/// change neither meanwhile. It is read together with other rows.
pub async fn of_newest_step_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterRun> {
    const SQL: &str = concatcp!(
        SELECT,
        " where run_id = (select newest.run_id from checkpoints newest where newest.thread_id = $1 and newest.lane = $2 \
         order by newest.seq desc limit 1)"
    );
    let statement = tx.statement(SQL).bind(thread.0).bind(IdColumn(Lane::Main));
    statement.fetch_later().await.map(LaterRun)
}

impl LaterRun {
    /// Reads the run.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Option<Run>> {
        let row = self.0.fetch_optional(tx).await?;
        Ok(read_all(tx, row.into_iter().collect()).await?.pop())
    }
}

/// A query for runs of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunList {
    /// The thread.
    pub thread: ThreadId,
    /// Only runs with this status.
    pub status: Option<RunStatus>,
    /// The maximum number of runs.
    pub limit: i64,
    /// The number of runs to skip.
    pub offset: i64,
    /// The approximate memory the runs may take, in bytes.
    pub bytes: usize,
}

/// Returns the newest run of the main agent on a thread.
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

/// The values that a run takes over from the run whose work it continues.
#[derive(Debug, Clone, PartialEq)]
pub struct RunBefore {
    /// The run.
    pub run: RunId,
    /// Its agent, if it was resolved.
    pub agent: Option<AssignedAgent>,
    /// Its place in the queue.
    pub queue: RunQueue,
    /// The user on whose behalf it worked.
    pub caller: Option<RunCaller>,
    /// Its place in a trace.
    pub trace: Option<RunTrace>,
    /// Its usage, if it has begun and there are no runs below it.
    pub used: Option<UsedAlone>,
}

/// The usage of a run without runs below it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsedAlone {
    /// Its usage.
    pub usage: Usage,
    /// The number of its [delegations](super::trees::delegations_later).
    pub delegations: u64,
}

/// Returns what a run takes over from the newest run of the main agent on a thread that has begun, or else from the
/// newest one that waits. Nothing else of that run is read, since its request may be large.
pub async fn find_before(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<RunBefore>> {
    find_before_later(tx, thread).await?.find(tx).await
}

/// The values that a run takes over, to be read later in its transaction.
pub struct LaterRunBefore {
    thread: ThreadId,
    /// The newest run that has begun.
    begun: LaterRows<BeforeRow>,
}

from_row! {
    struct BeforeRow {
        run_id: Uuid,
        queue: String,
        request: String,
        usage: Option<String>,
        delegations: i64,
        has_below: bool,
    }
}

/// Returns the values of [`find_before`], to be read later in the transaction, which must store or change no run of the thread
/// meanwhile. They are read together with other rows.
pub async fn find_before_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterRunBefore> {
    // With `depth = 0`, Postgres may read all runs of the thread in the index of their first events, and sort them.
    const BEGUN: &str = "select begun.run_id, begun.queue, begun.request, begun.usage, \
        (select count(*) from runs child where child.parent_id = begun.run_id) \
        + (select count(*) from background_tasks task where task.parent_run = begun.run_id) as delegations, \
        exists (select 1 from runs below where below.root_id = begun.run_id and below.depth > 0) as has_below \
        from (select run_id, queue, request, usage from runs where thread_id = $1 and depth < 1 \
        and status <> 'pending' order by created_at desc, run_id desc limit 1) begun";
    let begun = tx.statement(BEGUN).bind(thread.0).fetch_later().await?;
    Ok(LaterRunBefore { thread, begun })
}

impl LaterRunBefore {
    /// Reads the values.
    pub async fn find(self, tx: &mut Tx<'_>) -> DbResult<Option<RunBefore>> {
        let Self { thread, begun } = self;
        match begun.fetch_optional(tx).await? {
            Some(begun) => RunBefore::try_from(begun).map(Some),
            None => newest_before(tx, thread).await,
        }
    }
}

/// Returns what a run takes over from the newest run of the main agent on a thread.
async fn newest_before(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<RunBefore>> {
    // As in [`find_before_later`].
    const ANY: &str = "select run_id, queue, request, usage, cast(0 as bigint) as delegations, true as has_below \
        from runs where thread_id = $1 and depth < 1 order by created_at desc, run_id desc limit 1";
    let found: Option<BeforeRow> = tx.statement(ANY).bind(thread.0).fetch_optional().await?;
    found.map(RunBefore::try_from).transpose()
}

impl TryFrom<BeforeRow> for RunBefore {
    type Error = DbError;

    fn try_from(row: BeforeRow) -> DbResult<Self> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct OnlyOrigin {
            agent: Option<AssignedAgent>,
            caller: Option<RunCaller>,
            trace: Option<RunTrace>,
        }
        let run = RunId(row.run_id);
        // A request that is corrupt names no caller; one whose key is missing here may name one.
        let request: DbResult<OnlyOrigin> = blobs::decode_some(&cell("request", &run), &row.request);
        let OnlyOrigin { agent, caller, trace } = unless_corrupt(request)?.unwrap_or_default();
        Ok(Self {
            run,
            agent,
            queue: RunQueue::stored(row.queue),
            caller,
            trace,
            used: (!row.has_below).then(|| UsedAlone {
                usage: usage::decode(row.run_id, row.usage.as_deref()),
                delegations: u64::try_from(row.delegations).unwrap_or(0),
            }),
        })
    }
}

/// Returns the server processes with followers of a run, see [`RunRequest::followers`]. There are none if the run has ended, or
/// does not exist. Nothing else of its request is read, and no blobs: it may be large.
pub async fn followers(tx: &mut Tx<'_>, run: RunId) -> DbResult<Vec<WorkerId>> {
    const SQL: &str = "select request from runs where run_id = $1 and status in ('pending', 'running')";
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct OnlyFollowers {
        followers: Vec<WorkerId>,
    }
    let found: Option<String> = on_engine!(tx, |conn| query_scalar(SQL).bind(run.0).fetch_optional(conn).await)?;
    let Some(stored) = found else {
        return Ok(vec![]);
    };
    let request: DbResult<OnlyFollowers> = blobs::decode_some(&cell("request", &run), &stored);
    let OnlyFollowers { followers } = request.inspect_err(log_unreadable).unwrap_or_default();
    Ok(followers)
}

/// Returns the runs of the main agent on a thread, newest first.
pub async fn list(tx: &mut Tx<'_>, wanted: &RunList) -> DbResult<ListPart<Run>> {
    // With `depth = 0`, Postgres may read all runs of the thread in the index of their first events, and sort them.
    const ALL: &str = concatcp!(
        SELECT,
        " where thread_id = $1 and depth < 1 order by created_at desc, run_id desc limit $2 offset $3"
    );
    const SOME: &str = concatcp!(
        SELECT,
        " where thread_id = $1 and depth < 1 and status = $4 order by created_at desc, run_id desc limit $2 offset $3"
    );
    let sql = if wanted.status.is_some() { SOME } else { ALL };
    let weigh = |row: &RunRow| {
        let run = RunId(row.run_id);
        cell("request", &run).weigh(&row.request) + cell("metadata", &run).weigh(&row.metadata)
    };
    let mut filling = ListBuilder::new(wanted.limit, wanted.bytes);
    while let Some(next) = filling.next() {
        let offset = wanted.offset + filling.count();
        let mut rows: Vec<RunRow> = on_engine!(tx, |conn| {
            let query = query_as(sql).bind(wanted.thread.0).bind(next).bind(offset);
            match wanted.status {
                Some(status) => query.bind(status.word()).fetch_all(conn).await,
                None => query.fetch_all(conn).await,
            }
        })?;
        restore(tx, &mut rows).await?;
        filling.take(next, rows, weigh, |row| Ok(Run::from(row)))?;
    }
    Ok(filling.finish())
}

/// Returns the runs that a run delegated to, oldest first.
pub async fn children(tx: &mut Tx<'_>, parent: RunId) -> DbResult<Vec<Run>> {
    const SQL: &str = concatcp!(SELECT, " where parent_id = $1 order by created_at, run_id");
    select_all(tx, SQL, parent.0).await
}

/// Returns the runs of all subagents below a run of the main agent, oldest first.
pub async fn descendants(tx: &mut Tx<'_>, root: RunId) -> DbResult<Vec<Run>> {
    const SQL: &str = concatcp!(SELECT, " where root_id = $1 and depth > 0 order by created_at, run_id");
    select_all(tx, SQL, root.0).await
}

/// The end of a query for the runs in flight on thread `$1`, oldest first. On Postgres both statuses are in one index by thread; of
/// a single status, Postgres may read the runs of all threads in an index of another order.
const IN_FLIGHT_ON_POSTGRES: &str =
    " where thread_id = $1 and depth = 0 and status in ('pending', 'running') order by created_at, run_id";

/// Returns the pending and running runs of the main agent on a thread, oldest first.
pub async fn in_flight(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<Run>> {
    // On SQLite each status has an index of its own.
    const SQLITE: &str = concatcp!(
        SELECT,
        " where thread_id = $1 and depth = 0 and status = 'pending' union all ",
        SELECT,
        " where thread_id = $1 and depth = 0 and status = 'running' order by created_at, run_id"
    );
    const POSTGRES: &str = concatcp!(SELECT, IN_FLIGHT_ON_POSTGRES);
    let sql = tx.either(SQLITE, POSTGRES);
    select_all(tx, sql, thread.0).await
}

/// The numbers of pending and running runs of the main agent on a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// The pending runs.
    pub waiting: u64,
    /// The running ones.
    pub at_work: u64,
}

impl InFlight {
    /// Returns whether there are none.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Counts the runs of [`in_flight`] without reading them.
pub async fn count_in_flight(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<InFlight> {
    count_in_flight_later(tx, thread).await?.count(tx).await
}

/// A count of runs that is made later in its transaction.
pub struct LaterInFlight(LaterRows<(i64, i64)>);

/// Returns the count of [`count_in_flight`], to be made later in the transaction, which must store or change no run of the
/// thread meanwhile. It is made together with other statements.
pub async fn count_in_flight_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterInFlight> {
    let sql = tx.either(COUNT_IN_FLIGHT_ON_SQLITE, COUNT_IN_FLIGHT_ON_POSTGRES);
    let counted = tx.statement(sql).bind(thread.0).fetch_later().await?;
    Ok(LaterInFlight(counted))
}

/// The query for the numbers of the pending and the running runs on thread `$1`. On SQLite each status has an index of its own.
const COUNT_IN_FLIGHT_ON_SQLITE: &str = "select \
    (select count(*) from runs where thread_id = $1 and depth = 0 and status = 'pending') as waiting, \
    (select count(*) from runs where thread_id = $1 and depth = 0 and status = 'running') as at_work";
/// The query of [`COUNT_IN_FLIGHT_ON_SQLITE`]. On Postgres both statuses are in one index by thread, and of a single status it may read
/// all runs in the index of another order, to find those of the thread.
const COUNT_IN_FLIGHT_ON_POSTGRES: &str = "select count(*) filter (where status = 'pending') as waiting, \
    count(*) filter (where status = 'running') as at_work \
    from runs where thread_id = $1 and depth = 0 and status in ('pending', 'running')";

impl LaterInFlight {
    /// Counts the runs, and returns their numbers.
    pub async fn count(self, tx: &mut Tx<'_>) -> DbResult<InFlight> {
        let (waiting, at_work) = self.0.fetch_optional(tx).await?.ok_or(sqlx::Error::RowNotFound)?;
        Ok(InFlight::of_counts(waiting, at_work))
    }
}

impl InFlight {
    fn of_counts(waiting: i64, at_work: i64) -> Self {
        let number = |count: i64| u64::try_from(count).unwrap_or(0);
        Self {
            waiting: number(waiting),
            at_work: number(at_work),
        }
    }
}

from_row! {
    struct InFlightWithLogRow {
        waiting: i64,
        at_work: i64,
        ..log: LogEndRow,
    }
}

/// A count of runs, and the end of the log of their thread, which are read later in the transaction by one statement.
pub struct LaterInFlightWithLog {
    thread: ThreadId,
    rows: LaterRows<InFlightWithLogRow>,
}

/// Returns the count of [`count_in_flight_later`] with the end of the log of
/// [`log_end_later`](super::checkpoints::log_end_later), on the conditions of both.
pub async fn count_in_flight_with_log_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterInFlightWithLog> {
    const COUNTED: &str = "select counted.waiting, counted.at_work, log_end.* from (";
    const WITH: &str = ") counted cross join (";
    const END: &str = ") log_end";
    const SQLITE: &str = concatcp!(COUNTED, COUNT_IN_FLIGHT_ON_SQLITE, WITH, LOG_END_ON_SQLITE, END);
    const POSTGRES: &str = concatcp!(COUNTED, COUNT_IN_FLIGHT_ON_POSTGRES, WITH, LOG_END_ON_POSTGRES, END);
    let engine = tx.engine();
    let sql = tx.either(SQLITE, POSTGRES);
    let rows = bind_log_end(tx.statement(sql), thread, engine).fetch_later().await?;
    Ok(LaterInFlightWithLog { thread, rows })
}

impl LaterInFlightWithLog {
    /// Counts the runs, and returns their numbers with the end of the log.
    pub async fn count(self, tx: &mut Tx<'_>) -> DbResult<(InFlight, LaterLogEnd)> {
        let Self { thread, rows } = self;
        let row = rows.fetch_optional(tx).await?.ok_or(sqlx::Error::RowNotFound)?;
        let in_flight = InFlight::of_counts(row.waiting, row.at_work);
        Ok((in_flight, LaterLogEnd::of_row(thread, row.log)))
    }
}

/// Returns the ids of the runs of [`in_flight`], in the same order.
pub async fn ids_in_flight(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<RunId>> {
    const SQLITE: &str = "select run_id, created_at from runs where thread_id = $1 and depth = 0 and status = 'pending' \
        union all select run_id, created_at from runs where thread_id = $1 and depth = 0 and status = 'running' \
        order by created_at, run_id";
    const POSTGRES: &str = concatcp!("select run_id, created_at from runs", IN_FLIGHT_ON_POSTGRES);
    let sql = tx.either(SQLITE, POSTGRES);
    let rows: Vec<(Uuid, i64)> = on_engine!(tx, |conn| query_as(sql).bind(thread.0).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(|(id, _)| RunId(id)).collect())
}

/// Returns those of these runs that are stored, with their threads.
pub async fn threads_of(tx: &mut Tx<'_>, runs: &[RunId]) -> DbResult<Vec<(RunId, ThreadId)>> {
    if runs.is_empty() {
        return Ok(vec![]);
    }
    let rows: Vec<(Uuid, Uuid)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select run_id, thread_id from runs where run_id in (");
        let mut list = sql.separated(", ");
        for run in runs {
            list.push_bind(run.0);
        }
        sql.push(")");
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows
        .into_iter()
        .map(|(run, thread)| (RunId(run), ThreadId(thread)))
        .collect())
}

/// Returns the run of the main agent that is running on a thread.
pub async fn at_work(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<RunId>> {
    const SQL: &str = "select run_id from runs where thread_id = $1 and depth = 0 and {running}";
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    let id: Option<Uuid> = on_engine!(tx, |conn| query_scalar(sql).bind(thread.0).fetch_optional(conn).await)?;
    Ok(id.map(RunId))
}

/// Returns whether a pending run on a thread brings an answer.
pub async fn has_queued_answer(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from runs \
        where thread_id = $1 and depth = 0 and {pending} and turn = 'answer')";
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(thread.0)
        .fetch_one(conn)
        .await)?)
}

/// Counts the pending runs of main agents on all threads, up to `most`.
pub async fn count_pending(tx: &mut Tx<'_>, most: i64) -> DbResult<u64> {
    const SQL: &str =
        "select count(*) from (select 1 from runs where depth = 0 and status = 'pending' limit $1) as waiting";
    let (count,): (i64,) = on_engine!(tx, |conn| query_as(SQL).bind(most).fetch_one(conn).await)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

async fn select_all(tx: &mut Tx<'_>, sql: &'static str, id: Uuid) -> DbResult<Vec<Run>> {
    let rows: Vec<RunRow> = on_engine!(tx, |conn| query_as(sql).bind(id).fetch_all(conn).await)?;
    read_all(tx, rows).await
}

/// Sets the status of a run and its error, if it failed. Returns whether the run exists.
pub async fn set_status(
    tx: &mut Tx<'_>,
    run: RunId,
    status: RunStatus,
    error: Option<&Failure>,
    now: Timestamp,
) -> DbResult<bool> {
    const SQL: &str = "update runs set status = $2, error = $3, updated_at = $4 where run_id = $1";
    let error = encode_error(tx, run, error).await?;
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

/// Replaces the request of a run. Returns whether the run exists.
pub async fn set_request(tx: &mut Tx<'_>, run: RunId, request: &RunRequest, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "update runs set request = $2, definition = $4, updated_at = $3 where run_id = $1";
    const THREAD: &str = "select thread_id from runs where run_id = $1";
    let digest = request.pinned_definition().map(|digest| digest.0.clone());
    let thread: Option<Uuid> = on_engine!(tx, |conn| query_scalar(THREAD).bind(run.0).fetch_optional(conn).await)?;
    let Some(thread) = thread.map(ThreadId) else {
        return Ok(false);
    };
    let freed = blobs::forget_request(tx, run).await?;
    let mut packer = Packer::of_thread(tx, thread).await?;
    let request = packer.encode(&cell("request", &run), request)?;
    packer.store(tx, BlobReferrer::Request { thread, run }).await?;
    blobs::delete_unreferenced(tx, freed).await?;
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(request)
        .bind(now.0)
        .bind(digest)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Returns whether a run exists.
pub async fn exists(tx: &mut Tx<'_>, run: RunId) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from runs where run_id = $1)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}

/// Locks a run until the end of the transaction, if it exists. Its worker stores nothing for it meanwhile.
pub async fn lock(tx: &mut Tx<'_>, run: RunId) -> DbResult<()> {
    const SQL: &str = "select run_id from runs where run_id = $1 for update";
    if tx.engine() == Engine::Postgres {
        on_engine!(tx, |conn| query(SQL).bind(run.0).execute(conn).await.map(drop))?;
    }
    Ok(())
}

/// Deletes a run of the main agent and the runs below it, except for those from which the thread continues: agents wait
/// for them at their present positions. The checkpoints and events of the runs stay; see
/// [`super::checkpoints::delete_of_run`]. Returns whether a run was deleted.
pub async fn delete(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<bool> {
    let kept = below::unfinished(tx, thread, run).await?;
    let freed = blobs::of_runs(tx, run).await?;
    let deleted = on_engine!(tx, |conn| {
        // The thread is a condition of the inner queries: with an outer one SQLite looks at all runs of the thread.
        let mut sql = QueryBuilder::new("delete from runs where run_id in (select run_id from runs where run_id = ");
        sql.push_bind(run.0)
            .push(" and depth = 0 and thread_id = ")
            .push_bind(thread.0)
            .push(" union all select run_id from runs where root_id = ")
            .push_bind(run.0)
            .push(" and depth > 0 and thread_id = ")
            .push_bind(thread.0)
            .push(")");
        if !kept.is_empty() {
            sql.push(" and run_id not in (");
            let mut list = sql.separated(", ");
            for child in &kept {
                list.push_bind(child.0);
            }
            sql.push(")");
        }
        sql.build().execute(conn).await.map(|done| done.rows_affected())
    })?;
    // Blobs of the runs that stay are still referred to.
    blobs::delete_unreferenced(tx, freed).await?;
    Ok(deleted > 0)
}
