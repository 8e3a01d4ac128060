//! The table of interrupts: questions of agents to humans, their status and answers. They outlive the runs that asked.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use const_format::concatcp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::access::{ScopedRows, push_scope_of_thread, push_unforbidden};
use super::codec::json::{ColumnRef, readable_with, unless_corrupt};
use super::engine::sealing::Sealer;
use super::engine::{Contains, LaterRows, lane_id, lane_of, on_engine};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::access::{Assignee, InterruptScope};
use crate::domain::approvers::Approvers;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::{Interrupt, Question};
use crate::domain::ruling::RowCondition;
use crate::domain::schema_text::SchemaText;
use crate::domain::time::Timestamp;

mod schemas;

pub use schemas::{delete_schemas_of_tenant, sweep_schemas};

use schemas::{KnownSchemas, LaterSchema, SchemaOfThread};

const TABLE: &str = "interrupts";
/// The maximum number of ids in one statement; databases limit the number of bound values.
const MAX_IDS: usize = 200;

/// The SQL condition on the pending run of the row `{run}` that no question of the present branch of its thread is in its
/// way. `offset 0` keeps Postgres from reading the pending interrupts of all threads.
pub(super) const NO_QUESTION: &str = "({run}.turn is null or {run}.turn <> 'after_answers' \
    or not exists (select 1 from interrupts asked where asked.thread_id = {run}.thread_id and asked.status = 'pending' \
    limit 1 offset 0))";

/// An interrupt with its source, status and answer.
#[derive(Debug, Clone, PartialEq)]
pub struct InterruptRecord {
    /// The question.
    pub interrupt: Interrupt,
    /// The thread.
    pub thread: ThreadId,
    /// The run of the main agent during which it was raised.
    pub run: RunId,
    /// The history of the agent that raised it.
    pub lane: Lane,
    /// The name of that agent.
    pub agent: String,
    /// The names of the agents from the main agent down to that agent.
    pub path: Vec<String>,
    /// The tool call that delegated to that agent; none for the main agent.
    pub task_call_id: Option<String>,
    /// The sort key among the interrupts of the thread; later ones have a higher number.
    pub seq: i64,
    /// The sort key among the interrupts with the same `seq`, which were raised together.
    pub ordinal: i32,
    /// The status.
    pub status: InterruptState,
    /// The answer.
    pub resolution: Option<Value>,
    /// The run that brought the answer.
    pub resumed_by: Option<RunId>,
    /// The time at which it was raised.
    pub created_at: Timestamp,
    /// The time at which it stopped being pending.
    pub resolved_at: Option<Timestamp>,
}

impl InterruptRecord {
    /// Returns the time at which it expires; none if it never does.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let expiry = self.interrupt.question.expiry.as_ref()?;
        Some(self.created_at.plus(Duration::from_secs(expiry.after_s)))
    }
}

/// The status of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InterruptState {
    /// Waiting for an answer.
    Pending,
    /// Answered.
    Resolved,
    /// Not answered in time.
    Expired,
    /// Obsolete: the thread continued without an answer.
    Dropped,
}

impl InterruptState {
    /// All statuses.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Resolved, Self::Expired, Self::Dropped];

    /// Returns the stored word of the status.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Resolved => "resolved",
            Self::Expired => "expired",
            Self::Dropped => "dropped",
        }
    }

    /// Returns the status with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

const SELECT: &str = "\
    select interrupt_id, thread_id, run_id, lane, agent_name, cast(path as text) as path, task_id, task_call_id, \
    status, interrupt, resolution, resumed_by, created_at, resolved_at, seq, ordinal, schema_digest from interrupts";

/// The condition on the interrupt `$2` of the thread `$1`. Compared by `=`, the thread could have Postgres look for the id among
/// all interrupts of the thread, since most threads have few. So it looks for the id, which few threads share.
const IS_FOUND: &str = " where interrupt_id = $2 and thread_id is not distinct from $1";
/// The statement for the interrupt `$2` on the thread `$1`.
const FIND: &str = concatcp!(SELECT, IS_FOUND);

from_row! {
    struct InterruptRow {
        interrupt_id: String,
        thread_id: Uuid,
        run_id: Uuid,
        lane: Uuid,
        agent_name: String,
        path: String,
        task_id: Uuid,
        task_call_id: Option<String>,
        status: String,
        interrupt: String,
        resolution: Option<String>,
        resumed_by: Option<Uuid>,
        created_at: i64,
        resolved_at: Option<i64>,
        seq: i64,
        ordinal: i32,
        schema_digest: Option<String>,
    }
}

impl InterruptRow {
    /// Returns the schema that is stored apart, if the row lacks it.
    fn schema(&self) -> Option<SchemaOfThread<'_>> {
        let thread = ThreadId(self.thread_id);
        let digest = self.schema_digest.as_deref()?;
        Some(SchemaOfThread { thread, digest })
    }
}

/// Decodes rows. Those that cannot be read are logged and left out.
///
/// # Errors
/// [`DbError::Sealed`](super::DbError::Sealed) when this server does not have the key of a value, and errors of the database.
async fn decode_all(tx: &mut Tx<'_>, rows: Vec<InterruptRow>) -> DbResult<Vec<InterruptRecord>> {
    let apart = rows.iter().filter_map(InterruptRow::schema).collect();
    let schemas = KnownSchemas::of(tx, apart).await?;
    readable_with(rows, |row| InterruptRecord::of(row, &schemas))
}

impl InterruptRecord {
    /// Decodes a row. `schemas` has the schema that the row lacks.
    fn of(row: InterruptRow, schemas: &KnownSchemas) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.interrupt_id,
        };
        let mut interrupt: Interrupt = at("interrupt").decode(&row.interrupt)?;
        // Nobody may answer a question that is not there.
        if interrupt.lacks_question() {
            return Err(at("interrupt").corrupt());
        }
        schemas.put_back(&mut interrupt, row.schema_digest.as_deref())?;
        Ok(Self {
            interrupt,
            thread: ThreadId(row.thread_id),
            run: RunId(row.run_id),
            lane: lane_of(row.lane),
            path: at("path").decode(&row.path)?,
            seq: row.seq,
            ordinal: row.ordinal,
            status: InterruptState::from_word(&row.status).ok_or_else(|| at("status").corrupt())?,
            resolution: row
                .resolution
                .as_deref()
                .map(|answer| at("resolution").decode(answer))
                .transpose()?,
            resumed_by: row.resumed_by.map(RunId),
            created_at: Timestamp(row.created_at),
            resolved_at: row.resolved_at.map(Timestamp),
            agent: row.agent_name,
            task_call_id: row.task_call_id,
        })
    }
}

/// Returns a column of an interrupt.
fn cell<'a>(column: &'static str, id: &'a InterruptId) -> ColumnRef<'a, String> {
    ColumnRef {
        table: TABLE,
        column,
        id: &id.0,
    }
}

/// Encodes the answer to an interrupt, if there is one.
fn encode_resolution(sealer: &Sealer, id: &InterruptId, answer: Option<&Value>) -> DbResult<Option<String>> {
    let encoded = answer.map(|answer| sealer.encode(&cell("resolution", id), answer));
    encoded.transpose()
}

/// Stores an interrupt. One with the id of an earlier interrupt, as servers of the former release may raise it after a jump,
/// replaces that interrupt and its answer. [`restore`] brings the earlier one back.
///
/// # Errors
/// [`DbError::Conflict`](super::DbError::Conflict) when the thread was deleted: by the end of the transaction, see
/// [`Statement::execute_later`](super::engine::Statement::execute_later).
pub async fn insert(tx: &mut Tx<'_>, record: &InterruptRecord) -> DbResult<()> {
    insert_later(tx, record).await?.save(tx).await
}

/// The interrupt that another one has replaced, if there was one. It is read later in the transaction.
pub struct ReplacedInterrupt<'a> {
    /// The other one.
    new: &'a InterruptRecord,
    rows: LaterRows<InterruptRow>,
    /// The schema of the other one, if that is stored apart.
    schema: Option<LaterSchema<'a>>,
}

impl ReplacedInterrupt<'_> {
    /// Saves the values of the interrupt, so that [`restore`] can bring it back, and stores to whom the other one is assigned, and
    /// the schema of its answer.
    pub async fn save(self, tx: &mut Tx<'_>) -> DbResult<()> {
        let Self { new, rows, schema } = self;
        let row = rows.fetch_optional(tx).await?;
        if let Some(schema) = schema {
            schema.store(tx, new.thread, new.created_at).await?;
        }
        if let Some(row) = row {
            // An unreadable row is replaced, too.
            let earlier = decode_all(tx, vec![row]).await?;
            save_before(tx, &earlier, new.run).await?;
            clear_approvers(tx, new.thread, &new.interrupt.id).await?;
        }
        let approvers = &new.interrupt.question.approvers;
        assign(tx, new.thread, &new.interrupt.id, approvers).await
    }
}

/// Stores an interrupt like [`insert`], but not to whom it is assigned, nor a schema that is stored apart. The transaction has to do
/// that, and to save what it has replaced, by [`ReplacedInterrupt::save`] after that: it can be read together with other rows.
///
/// # Errors
/// As [`insert`].
pub async fn insert_later<'a>(tx: &mut Tx<'_>, record: &'a InterruptRecord) -> DbResult<ReplacedInterrupt<'a>> {
    const SQL: &str = "insert into interrupts (interrupt_id, thread_id, run_id, lane, agent_name, path, task_id, \
        task_call_id, status, interrupt, resolution, resumed_by, created_at, resolved_at, seq, ordinal, expires_at, \
        schema_digest) \
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) \
        on conflict (thread_id, interrupt_id) do update set run_id = excluded.run_id, lane = excluded.lane, \
        agent_name = excluded.agent_name, path = excluded.path, task_id = excluded.task_id, \
        task_call_id = excluded.task_call_id, status = excluded.status, interrupt = excluded.interrupt, \
        resolution = excluded.resolution, resumed_by = excluded.resumed_by, created_at = excluded.created_at, \
        resolved_at = excluded.resolved_at, seq = excluded.seq, ordinal = excluded.ordinal, \
        expires_at = excluded.expires_at, schema_digest = excluded.schema_digest";
    let id = &record.interrupt.id;
    let earlier = tx.statement(FIND).bind(record.thread.0).bind(id.0.as_str());
    let rows = earlier.fetch_later().await?;
    let sealer = tx.sealer_of_thread(record.thread).await?;
    let apart = schemas::apart(tx, &record.interrupt.question);
    let schema = match apart {
        Some(schema) => Some(schemas::find_later(tx, record.thread, schema).await?),
        None => None,
    };
    let stored = match apart {
        Some(_) => Cow::Owned(record.interrupt.without_schema()),
        None => Cow::Borrowed(&record.interrupt),
    };
    let interrupt = sealer.encode(&cell("interrupt", id), &*stored)?;
    let resolution = encode_resolution(&sealer, id, record.resolution.as_ref())?;
    tx.statement(SQL)
        .bind(id.0.as_str())
        .bind(record.thread.0)
        .bind(record.run.0)
        .bind(lane_id(record.lane))
        .bind(record.agent.as_str())
        .bind(Json(&record.path))
        .bind(record.interrupt.task.0)
        .bind(record.task_call_id.as_deref())
        .bind(record.status.word())
        .bind(interrupt)
        .bind(resolution)
        .bind(record.resumed_by.map(|run| run.0))
        .bind(record.created_at.0)
        .bind(record.resolved_at.map(|at| at.0))
        .bind(record.seq)
        .bind(record.ordinal)
        .bind(record.expires_at().map(|at| at.0))
        .bind(apart.map(SchemaText::digest))
        .execute_later()
        .await?;
    Ok(ReplacedInterrupt {
        new: record,
        rows,
        schema,
    })
}

/// Deletes to whom an interrupt is assigned.
async fn clear_approvers(tx: &mut Tx<'_>, thread: ThreadId, id: &InterruptId) -> DbResult<()> {
    const SQL: &str = "delete from interrupt_approvers where thread_id = $1 and interrupt_id = $2";
    let statement = tx.statement(SQL).bind(thread.0).bind(id.0.as_str());
    statement.execute_later().await
}

/// Stores to whom an interrupt is assigned, besides those before.
async fn assign(tx: &mut Tx<'_>, thread: ThreadId, id: &InterruptId, approvers: &Approvers) -> DbResult<()> {
    const INSERT: &str = "insert into interrupt_approvers (thread_id, interrupt_id, kind, name) values ";
    let users = approvers.users.iter().map(|user| ["user", user.as_str()]);
    let roles = approvers.roles.iter().map(|role| ["role", role.word()]);
    let rows: Vec<[&str; 2]> = users.chain(roles).collect();
    tx.insert_later(INSERT, " on conflict do nothing", 4, rows, |row, [kind, name]| {
        row.push_bind(thread.0)
            .push_bind(id.0.as_str())
            .push_bind(kind)
            .push_bind(name);
    })
    .await
}

/// Appends the condition that an interrupt is assigned to this caller, on a thread that is not forbidden.
fn push_assigned<DB>(sql: &mut QueryBuilder<DB>, assignee: &Assignee, forbids: &RowCondition) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    let owned = ScopedRows {
        alias: "owned.",
        can_be_shared: true,
        are_threads: true,
        some_are_of_server: false,
        by_other_index: true,
    };
    sql.push(
        "exists (select 1 from interrupt_approvers assigned join threads owned on owned.thread_id = assigned.thread_id \
         where assigned.thread_id = interrupts.thread_id and assigned.interrupt_id = interrupts.interrupt_id \
         and owned.tenant = ",
    );
    sql.push_text(assignee.tenant.as_str());
    sql.push(" and (assigned.kind = 'user' and assigned.name = ");
    sql.push_text(assignee.user.as_str());
    for role in &assignee.roles {
        sql.push(" or assigned.kind = 'role' and assigned.name = ");
        sql.push_text(role.word());
    }
    sql.push(")");
    push_unforbidden(sql, forbids, owned)?;
    sql.push(")");
    Ok(())
}

/// Appends the condition that an interrupt is in the scope, after `and`.
fn push_interrupt_scope<DB>(sql: &mut QueryBuilder<DB>, scope: &InterruptScope) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    const THREAD: &str = "interrupts.thread_id";
    let Some(assignee) = &scope.assigned else {
        return push_scope_of_thread(sql, &scope.threads, THREAD);
    };
    sql.push(" and ((true");
    push_scope_of_thread(sql, &scope.threads, THREAD)?;
    sql.push(") or ");
    push_assigned(sql, assignee, &scope.forbids)?;
    sql.push(")");
    Ok(())
}

/// Returns whether an interrupt of a thread is assigned to this caller.
pub async fn is_assigned_any(tx: &mut Tx<'_>, thread: ThreadId, assignee: &Assignee) -> DbResult<bool> {
    let found: Option<i64> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select cast(1 as bigint) from interrupts where thread_id = ");
        sql.push_bind(thread.0).push(" and ");
        push_assigned(&mut sql, assignee, &RowCondition::NEVER)?;
        sql.push(" limit 1");
        sql.build_query_scalar().fetch_optional(conn).await
    })?;
    Ok(found.is_some())
}

/// The interrupts of a thread that a caller may see.
#[derive(Debug, Clone)]
pub struct VisibleInterrupts {
    /// The thread.
    pub thread: ThreadId,
    /// The scope of the caller.
    pub scope: InterruptScope,
    /// The only interrupt to return; `None` for all.
    pub id: Option<InterruptId>,
    /// The status of the interrupts to return; `None` for all.
    pub status: Option<InterruptState>,
}

/// Returns interrupts of a thread that a caller may see, in the order in which they were raised.
pub async fn visible(tx: &mut Tx<'_>, wanted: &VisibleInterrupts) -> DbResult<Vec<InterruptRecord>> {
    let rows: Vec<InterruptRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(concatcp!(SELECT, " where thread_id = "));
        sql.push_bind(wanted.thread.0);
        if let Some(id) = &wanted.id {
            sql.push(" and interrupt_id = ").push_bind(id.0.clone());
        }
        if let Some(status) = wanted.status {
            sql.push(" and status = ").push_bind(status.word());
        }
        push_interrupt_scope(&mut sql, &wanted.scope)?;
        sql.push(" order by seq, ordinal");
        sql.build_query_as().fetch_all(conn).await
    })?;
    decode_all(tx, rows).await
}

/// Returns the interrupt with this id on this thread.
pub async fn find(tx: &mut Tx<'_>, thread: ThreadId, id: &InterruptId) -> DbResult<Option<InterruptRecord>> {
    let statement = tx.statement(FIND).bind(thread.0).bind(id.0.as_str());
    let row: Option<InterruptRow> = statement.fetch_optional().await?;
    let apart = row.iter().filter_map(InterruptRow::schema).collect();
    let schemas = KnownSchemas::of(tx, apart).await?;
    let record = row.map(|row| InterruptRecord::of(row, &schemas)).transpose()?;
    keep_questions(tx, record.as_slice());
    Ok(record)
}

/// Keeps the questions of rows until the end of the transaction.
fn keep_questions(tx: &mut Tx<'_>, records: &[InterruptRecord]) {
    for InterruptRecord { interrupt, thread, .. } in records {
        tx.questions.keep(*thread, interrupt);
    }
}

from_row! {
    struct QuestionRow {
        interrupt_id: String,
        interrupt: String,
        schema_digest: Option<String>,
    }
}

impl QuestionRow {
    fn decode(&self, id: &InterruptId, schemas: &KnownSchemas) -> DbResult<Arc<Question>> {
        let mut interrupt: Interrupt = cell("interrupt", id).decode(&self.interrupt)?;
        schemas.put_back(&mut interrupt, self.schema_digest.as_deref())?;
        Ok(interrupt.question)
    }
}

/// Returns the questions of interrupts of a thread by their ids. Those that cannot be read are logged and left out.
///
/// # Errors
/// [`DbError::Sealed`](super::DbError::Sealed) when this server does not have the key of a question, and errors of the database.
pub(super) async fn questions(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    ids: BTreeSet<InterruptId>,
) -> DbResult<HashMap<InterruptId, Arc<Question>>> {
    const SQL: &str =
        "select interrupt_id, interrupt, schema_digest from interrupts where thread_id = $1 and interrupt_id in ";
    let ids: Vec<InterruptId> = ids.into_iter().collect();
    let mut found = HashMap::with_capacity(ids.len());
    for batch in ids.chunks(MAX_IDS) {
        let statement = tx.statement(SQL).bind(thread.0);
        let statement = statement.bind_list(batch.iter().map(|id| id.0.as_str()));
        let rows: Vec<QuestionRow> = statement.fetch_all().await?;
        let digests = rows.iter().filter_map(|row| row.schema_digest.as_deref());
        let apart = digests.map(|digest| SchemaOfThread { thread, digest }).collect();
        let schemas = KnownSchemas::of(tx, apart).await?;
        for row in &rows {
            let id = InterruptId(row.interrupt_id.clone());
            let read = unless_corrupt(row.decode(&id, &schemas))?;
            found.extend(read.map(|question| (id, question)));
        }
    }
    Ok(found)
}

/// Returns the interrupts of a thread in the order in which they were raised, optionally only those with one status.
pub async fn of_thread(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    status: Option<InterruptState>,
) -> DbResult<Vec<InterruptRecord>> {
    of_thread_later(tx, thread, status).await?.read(tx).await
}

/// Interrupts that are read later in their transaction.
pub struct LaterInterrupts(LaterRows<InterruptRow>);

/// Returns the interrupts of [`of_thread`], to be read later in the transaction, which must not change them meanwhile. On SQLite
/// they are read together with other rows.
pub async fn of_thread_later(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    status: Option<InterruptState>,
) -> DbResult<LaterInterrupts> {
    // The rows are sorted after they are read: a database would copy them whole to sort them.
    const ALL: &str = concatcp!(SELECT, " where thread_id = $1");
    const SOME: &str = " where thread_id = $1 and status = $2";
    // SQLite would read all interrupts of the thread in the table, whose rows are large.
    const SQLITE: &str = concatcp!(SELECT, " indexed by interrupts_by_thread", SOME);
    const POSTGRES: &str = concatcp!(SELECT, SOME);
    let some = tx.either(SQLITE, POSTGRES);
    let statement = match status {
        Some(status) => tx.statement(some).bind(thread.0).bind(status.word()),
        None => tx.statement(ALL).bind(thread.0),
    };
    statement.fetch_later().await.map(LaterInterrupts)
}

/// An interrupt whose question is not read yet, which may be large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadInterrupt {
    /// The history of the agent that raised it.
    pub lane: Lane,
    /// The task that raised it.
    pub task: TaskId,
    /// True if it is pending.
    pub is_pending: bool,
}

impl UnreadInterrupt {
    fn of(row: &InterruptRow) -> Self {
        Self {
            lane: lane_of(row.lane),
            task: TaskId(row.task_id),
            is_pending: row.status == InterruptState::Pending.word(),
        }
    }
}

impl LaterInterrupts {
    /// Reads the interrupts.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Vec<InterruptRecord>> {
        self.read_where(tx, |_| true).await
    }

    /// Reads the interrupts that are `wanted`.
    pub async fn read_where(
        self,
        tx: &mut Tx<'_>,
        wanted: impl Fn(UnreadInterrupt) -> bool + Send,
    ) -> DbResult<Vec<InterruptRecord>> {
        let rows = self.0.fetch_all(tx).await?;
        let wanted = rows.into_iter().filter(|row| wanted(UnreadInterrupt::of(row)));
        let wanted: Vec<InterruptRow> = wanted.collect();
        let mut records = decode_all(tx, wanted).await?;
        records.sort_by_key(|record| (record.seq, record.ordinal));
        keep_questions(tx, &records);
        Ok(records)
    }
}

/// Returns the first pending interrupt of a run of the main agent or of a run below it.
pub async fn pending_of_run(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<Option<InterruptId>> {
    const SQL: &str = "select interrupt_id from interrupts where thread_id = $1 and status = 'pending' \
        and (run_id = $2 or exists (select 1 from runs child where child.root_id = $2 and child.depth > 0 \
        and child.run_id = interrupts.lane)) order by seq, ordinal limit 1";
    let found: Option<String> = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .bind(run.0)
        .fetch_optional(conn)
        .await)?;
    Ok(found.map(InterruptId))
}

/// Returns the runs of a thread that brought answers, each with a run that raised an answered interrupt.
pub async fn resumed(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<HashMap<RunId, RunId>> {
    const SQL: &str = "select resumed_by, run_id from interrupts where thread_id = $1 and resumed_by is not null \
        order by seq";
    let rows = tx.statement(SQL).bind(thread.0).fetch_all().await?;
    Ok(resumed_of(rows))
}

fn resumed_of(rows: Vec<(Uuid, Uuid)>) -> HashMap<RunId, RunId> {
    let runs = rows.into_iter().map(|(by, raised_by)| (RunId(by), RunId(raised_by)));
    runs.collect()
}

/// The most answered interrupts of a thread that are read within a write. Other writes wait for it, and for each run that was
/// continued with an answer more is read.
pub(in crate::db) const FEW_ANSWERED: usize = 32;

/// The runs that brought answers, to be read later in their transaction.
pub struct LaterResumed(LaterRows<(Uuid, Uuid)>);

/// Returns the runs of [`resumed`], unless many interrupts of the thread were answered, to be read later in the transaction, which
/// must answer no interrupt meanwhile. They are read together with other rows.
pub async fn few_resumed_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterResumed> {
    // The inner order is that of the primary key, so that no more than these rows are read.
    const SQL: &str = concatcp!(
        "select resumed_by, run_id from (select resumed_by, run_id, seq from interrupts where thread_id = $1 \
         and resumed_by is not null order by interrupt_id limit ",
        FEW_ANSWERED + 1,
        ") answered order by seq"
    );
    let statement = tx.statement(SQL).bind(thread.0);
    statement.fetch_later().await.map(LaterResumed)
}

impl LaterResumed {
    /// Reads the runs; none if there are many.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Option<HashMap<RunId, RunId>>> {
        let rows = self.0.fetch_all(tx).await?;
        Ok((rows.len() <= FEW_ANSWERED).then(|| resumed_of(rows)))
    }
}

/// The recipient of the answer to an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipient {
    /// The history of the agent that raised the interrupt.
    pub lane: Lane,
    /// The run that brought the answer; none if there is none.
    pub resumed_by: Option<RunId>,
}

/// The recipient of an answer, to be read later in its transaction.
pub struct LaterRecipient(LaterRows<(Uuid, Option<Uuid>)>);

/// Returns the recipient of the answer to an interrupt of a thread, to be read later in the transaction, which must answer no
/// interrupt meanwhile. The question is not read, which may be large. It is read together with other rows.
pub async fn recipient_later(tx: &mut Tx<'_>, thread: ThreadId, id: &InterruptId) -> DbResult<LaterRecipient> {
    const SQL: &str = concatcp!("select lane, resumed_by from interrupts", IS_FOUND);
    let statement = tx.statement(SQL).bind(thread.0).bind(id.0.as_str());
    statement.fetch_later().await.map(LaterRecipient)
}

impl LaterRecipient {
    /// Reads the recipient; none if there is no such interrupt.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Option<Recipient>> {
        let row = self.0.fetch_optional(tx).await?;
        Ok(row.map(|(lane, by)| Recipient {
            lane: lane_of(lane),
            resumed_by: by.map(RunId),
        }))
    }
}

/// Returns the pending interrupts in a scope, oldest first.
pub async fn pending(
    tx: &mut Tx<'_>,
    scope: &InterruptScope,
    limit: i64,
    offset: i64,
) -> DbResult<Vec<InterruptRecord>> {
    let rows: Vec<InterruptRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(concatcp!(SELECT, " where status = 'pending'"));
        push_interrupt_scope(&mut sql, scope)?;
        sql.push(" order by created_at, seq, ordinal, interrupt_id limit ")
            .push_bind(limit)
            .push(" offset ")
            .push_bind(offset);
        sql.build_query_as().fetch_all(conn).await
    })?;
    decode_all(tx, rows).await
}

/// Returns the threads with pending interrupts that have expired, and the number of them that is at most `limit`.
pub async fn expired_threads(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<Vec<ThreadId>> {
    const SQL: &str = "select distinct thread_id from (select thread_id from interrupts where status = 'pending' \
        and expires_at is not null and expires_at <= $1 order by expires_at limit $2) due";
    let rows: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(now.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    Ok(rows.into_iter().map(ThreadId).collect())
}

/// Returns the time after `now` at which the next pending interrupt expires.
pub async fn next_expiry(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<Option<Timestamp>> {
    const SQL: &str = "select min(expires_at) from interrupts where status = 'pending' and expires_at is not null \
        and expires_at > $1";
    let next: Option<i64> = on_engine!(tx, |conn| query_scalar(SQL).bind(now.0).fetch_one(conn).await)?;
    Ok(next.map(Timestamp))
}

/// Stores the answer that run `by` brings to a pending interrupt. Returns false when there is no such pending
/// interrupt.
pub async fn resolve(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    id: &InterruptId,
    answer: &Value,
    by: RunId,
    now: Timestamp,
) -> DbResult<bool> {
    let status = InterruptState::Resolved;
    let by = Some(by);
    settle(tx, thread, id, &Settlement { status, answer, by }, now).await
}

/// Stores the answer that run `by` brings to a pending interrupt, which the transaction has read after it has locked the thread.
pub async fn resolve_found(
    tx: &mut Tx<'_>,
    found: &InterruptRecord,
    answer: &Value,
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    // As `save_before` does, in the same statement. The run that asked has ended, so it is another one.
    const SQL: &str = "update interrupts set status = $6, resolution = $3, resumed_by = $4, resolved_at = $5, \
        before = case when touched_by is distinct from $4 then $7 else before end, touched_by = $4 \
        where thread_id = $1 and interrupt_id = $2 and status = 'pending'";
    let sealer = tx.sealer_of_thread(found.thread).await?;
    let id = &found.interrupt.id;
    let answer = encode_resolution(&sealer, id, Some(answer))?;
    let before = encode_before(&sealer, found)?;
    tx.statement(SQL)
        .bind(found.thread.0)
        .bind(id.0.as_str())
        .bind(answer)
        .bind(by.0)
        .bind(now.0)
        .bind(InterruptState::Resolved.word())
        .bind(before)
        .execute_later()
        .await
}

/// Stores the answer of an interrupt that has expired. Run `by` brings it, unless no run is to continue with it. Returns
/// false when there is no such pending interrupt.
pub async fn expire(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    id: &InterruptId,
    answer: &Value,
    by: Option<RunId>,
    now: Timestamp,
) -> DbResult<bool> {
    let status = InterruptState::Expired;
    settle(tx, thread, id, &Settlement { status, answer, by }, now).await
}

/// The end of a pending interrupt.
struct Settlement<'a> {
    status: InterruptState,
    answer: &'a Value,
    /// The run that brings the answer.
    by: Option<RunId>,
}

async fn settle(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    id: &InterruptId,
    end: &Settlement<'_>,
    now: Timestamp,
) -> DbResult<bool> {
    const SQL: &str = "update interrupts set status = $6, resolution = $3, resumed_by = $4, resolved_at = $5 \
        where thread_id = $1 and interrupt_id = $2 and status = 'pending'";
    if let Some(by) = end.by {
        let open = find(tx, thread, id)
            .await?
            .filter(|record| record.status == InterruptState::Pending);
        save_before(tx, open.as_slice(), by).await?;
    }
    let sealer = tx.sealer_of_thread(thread).await?;
    let answer = encode_resolution(&sealer, id, Some(end.answer))?;
    let statement = tx.statement(SQL).bind(thread.0).bind(id.0.as_str()).bind(answer);
    let statement = statement.bind(end.by.map(|run| run.0)).bind(now.0);
    Ok(statement.bind(end.status.word()).execute().await? == 1)
}

/// Drops the pending interrupts of a thread except for these.
pub async fn drop_others(tx: &mut Tx<'_>, thread: ThreadId, kept: &[String], now: Timestamp) -> DbResult<()> {
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update interrupts set status = 'dropped', resolved_at = ");
        sql.push_bind(now.0);
        sql.push(" where status = 'pending' and thread_id = ")
            .push_bind(thread.0);
        if !kept.is_empty() {
            sql.push(" and interrupt_id not in (");
            let mut list = sql.separated(", ");
            for id in kept {
                list.push_bind(id.clone());
            }
            sql.push(")");
        }
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Drops the pending interrupts of the given lanes of a thread. The change is stored under run `by` of the main agent, so
/// that [`restore`] can undo it.
pub async fn abandon(tx: &mut Tx<'_>, thread: ThreadId, lanes: &[Lane], by: RunId, now: Timestamp) -> DbResult<()> {
    let mut open = of_thread(tx, thread, Some(InterruptState::Pending)).await?;
    open.retain(|record| lanes.contains(&record.lane));
    abandon_these(tx, thread, &open, by, now).await
}

/// Drops these interrupts, as far as they are pending. The change is stored under run `by` of the main agent, so that
/// [`restore`] can undo it.
pub async fn abandon_these(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    these: &[InterruptRecord],
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    const SQL: &str = "update interrupts set status = 'dropped', resolved_at = $3 \
        where thread_id = $1 and interrupt_id = $2 and status = 'pending'";
    save_before(tx, these, by).await?;
    for record in these {
        let id = record.interrupt.id.0.as_str();
        on_engine!(tx, |conn| query(SQL)
            .bind(thread.0)
            .bind(id)
            .bind(now.0)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Returns the pending runs of a thread that bring answers, each with an interrupt that it answers.
pub async fn queued_answers(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<(RunId, InterruptId)>> {
    // With `depth = 0`, Postgres may look for the runs among those of all threads that wait.
    const SQL: &str = "select runs.run_id, answered.interrupt_id from interrupts answered \
        join runs on runs.run_id = answered.resumed_by where answered.thread_id = $1 \
        and answered.status in ('resolved', 'expired') and runs.depth < 1 and runs.status = 'pending'";
    let found: Vec<(Uuid, String)> = on_engine!(tx, |conn| query_as(SQL).bind(thread.0).fetch_all(conn).await)?;
    Ok(found
        .into_iter()
        .map(|(run, id)| (RunId(run), InterruptId(id)))
        .collect())
}

/// Stores that run `by` continues the agents that the dropped interrupts of these lanes had stopped.
pub async fn set_resumed_by(tx: &mut Tx<'_>, thread: ThreadId, lanes: &[Lane], by: RunId) -> DbResult<()> {
    const SQL: &str = "update interrupts set resumed_by = $3 where thread_id = $1 and lane = $2 \
        and status = 'dropped' and resumed_by is null";
    for lane in lanes {
        let lane = lane_id(*lane);
        on_engine!(tx, |conn| query(SQL)
            .bind(thread.0)
            .bind(lane)
            .bind(by.0)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// The values of an interrupt before a run changed it.
#[derive(Serialize, Deserialize)]
struct Before {
    run: RunId,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolution: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_by: Option<RunId>,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_at: Option<Timestamp>,
    seq: i64,
    ordinal: i32,
}

/// Encodes the values of an interrupt, from which [`restore`] brings them back.
fn encode_before(sealer: &Sealer, record: &InterruptRecord) -> DbResult<String> {
    let before = Before {
        run: record.run,
        status: record.status.word().to_owned(),
        resolution: record.resolution.clone(),
        resumed_by: record.resumed_by,
        created_at: record.created_at,
        resolved_at: record.resolved_at,
        seq: record.seq,
        ordinal: record.ordinal,
    };
    sealer.encode(&cell("before", &record.interrupt.id), &before)
}

/// Saves the values of interrupts before run `by` changes them, unless that run raised or already changed them.
async fn save_before(tx: &mut Tx<'_>, all: &[InterruptRecord], by: RunId) -> DbResult<()> {
    const SQL: &str = "update interrupts set before = $3, touched_by = $4 \
        where thread_id = $1 and interrupt_id = $2 and touched_by is distinct from $4";
    for record in all.iter().filter(|record| record.run != by) {
        let sealer = tx.sealer_of_thread(record.thread).await?;
        let before = encode_before(&sealer, record)?;
        tx.statement(SQL)
            .bind(record.thread.0)
            .bind(record.interrupt.id.0.as_str())
            .bind(before)
            .bind(by.0)
            .execute_later()
            .await?;
    }
    Ok(())
}

/// Undoes the changes that run `by` of the main agent made to the interrupts of a thread: deletes the interrupts of the
/// run, restores the interrupts of other runs, and deletes the decisions that came with the run.
pub async fn restore(tx: &mut Tx<'_>, thread: ThreadId, by: RunId) -> DbResult<()> {
    const FIND: &str = "select interrupt_id, before from interrupts where thread_id = $1 and touched_by = $2";
    const RESTORE: &str = "update interrupts set run_id = $3, status = $4, resolution = $5, resumed_by = $6, \
        created_at = $7, expires_at = expires_at - created_at + $7, resolved_at = $8, seq = $9, ordinal = $10, before = null, touched_by = null \
        where thread_id = $1 and interrupt_id = $2";
    const DELETE: &str = "delete from interrupts where thread_id = $1 and run_id = $2";
    let touched: Vec<(String, String)> = on_engine!(tx, |conn| query_as(FIND)
        .bind(thread.0)
        .bind(by.0)
        .fetch_all(conn)
        .await)?;
    let sealer = tx.sealer_of_thread(thread).await?;
    for (id, before) in touched {
        let id = InterruptId(id);
        let Some(before) = unless_corrupt(cell("before", &id).decode::<Before>(&before))? else {
            continue;
        };
        let resolution = encode_resolution(&sealer, &id, before.resolution.as_ref())?;
        on_engine!(tx, |conn| query(RESTORE)
            .bind(thread.0)
            .bind(id.0.as_str())
            .bind(before.run.0)
            .bind(before.status)
            .bind(resolution)
            .bind(before.resumed_by.map(|run| run.0))
            .bind(before.created_at.0)
            .bind(before.resolved_at.map(|at| at.0))
            .bind(before.seq)
            .bind(before.ordinal)
            .execute(conn)
            .await
            .map(drop))?;
    }
    on_engine!(tx, |conn| query(DELETE)
        .bind(thread.0)
        .bind(by.0)
        .execute(conn)
        .await
        .map(drop))?;
    super::remembered::delete_of_run(tx, thread, by).await
}

/// Drops the pending interrupts of the given lanes of a thread, or of all lanes. Returns their number.
pub async fn drop_pending(tx: &mut Tx<'_>, thread: ThreadId, lanes: Option<&[Lane]>, now: Timestamp) -> DbResult<u64> {
    if lanes.is_some_and(<[Lane]>::is_empty) {
        return Ok(0);
    }
    let dropped = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update interrupts set status = 'dropped', resolved_at = ");
        sql.push_bind(now.0)
            .push(" where status = 'pending' and thread_id = ")
            .push_bind(thread.0);
        if let Some(lanes) = lanes {
            sql.push(" and lane in (");
            let mut list = sql.separated(", ");
            for lane in lanes {
                list.push_bind(lane_id(*lane));
            }
            sql.push(")");
        }
        sql.build().execute(conn).await.map(|done| done.rows_affected())
    })?;
    Ok(dropped)
}
