//! The log of a thread: steps (rows of `checkpoints`) and other events (rows of `events`) with one sequence of numbers.

use const_format::{concatcp, str_replace};
use sqlx::query_scalar;
use uuid::Uuid;

use super::checkpoints::{self, EntryColumns, EventsOfSteps, LAST_SEQ, NEXT_EVENT, NewCheckpoint, PARENT};
use super::codec::blobs::{self, BlobReferrer, Packer, StoredText};
use super::codec::json::ColumnRef;
use super::engine::{IdColumn, OF_MAIN_AGENTS, OF_SUBAGENTS, on_engine};
use super::row::from_row;
use super::{DbResult, Tx, questions};
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::event::Fact;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::time::Timestamp;

const TABLE: &str = "events";
/// The maximum number of rows in one insert; databases limit the number of bound values.
const MAX_ROWS: usize = 500;

/// An event to be stored, with its position in the log.
#[derive(Debug, Clone, Copy)]
pub struct NewEvent<'a> {
    /// The thread.
    pub thread: ThreadId,
    /// Its unused number in the log of the thread.
    pub seq: i64,
    /// The run of the main agent during which it happened.
    pub run: RunId,
    /// The history of the agent that it belongs to.
    pub lane: Lane,
    /// The event.
    pub fact: &'a Fact,
    /// The time of the event.
    pub at: Timestamp,
}

/// Returns the id of an event in errors, and the id to which its body is bound.
fn bound_id(thread: ThreadId, seq: i64) -> String {
    format!("{thread}:{seq}")
}

/// Returns the column with the body of an event.
fn cell(id: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: TABLE,
        column: "body",
        id,
    }
}

/// Stores events.
///
/// # Errors
/// [`super::DbError::Conflict`] when a number is taken or the thread was deleted: by the end of the transaction, see
/// [`Statement::execute_later`](super::engine::Statement::execute_later).
pub async fn insert(tx: &mut Tx<'_>, facts: &[NewEvent<'_>]) -> DbResult<()> {
    const SQL: &str = "insert into events (thread_id, seq, run_id, lane, body, created_at) values ";
    for batch in facts.chunks(MAX_ROWS) {
        let mut rows = Vec::with_capacity(batch.len());
        for placed in batch {
            let mut packer = Packer::of_thread(tx, placed.thread).await?;
            let id = bound_id(placed.thread, placed.seq);
            rows.push((
                placed,
                packer.encode(&cell(&id), &*questions::stored_fact(tx, placed.fact))?,
            ));
            let referrer = BlobReferrer::Entry {
                thread: placed.thread,
                seq: placed.seq,
            };
            packer.store(tx, referrer).await?;
        }
        tx.insert_later(SQL, "", 6, rows, |row, (placed, body)| {
            row.push_bind(placed.thread.0)
                .push_bind(placed.seq)
                .push_bind(placed.run.0)
                .push_bind(IdColumn(placed.lane))
                .push_bind(body)
                .push_bind(placed.at.0);
        })
        .await?;
    }
    Ok(())
}

/// Stores the steps and the other events of a commit. Two kinds of events have no rows of their own: a start of an agent that its
/// input follows, since the row of the input says that it was there, and an event behind a step, whose body is in the row of the
/// step, unless it has blobs. On Postgres they have rows until the [upgrade](super::engine::upgrade) is finished, since servers of the
/// former release look for them.
///
/// # Errors
/// As [`insert`] and [`checkpoints::insert_all`]. The taken number of an event without a row is not noticed.
pub async fn insert_with_steps(tx: &mut Tx<'_>, steps: &[NewCheckpoint<'_>], facts: &[NewEvent<'_>]) -> DbResult<()> {
    if !tx.stores_events_in_steps() {
        checkpoints::insert_all(tx, steps).await?;
        return insert(tx, facts).await;
    }
    let mut in_rows = EventsOfSteps::default();
    let mut others = Vec::with_capacity(facts.len());
    for fact in facts {
        if let Some(input) = steps.iter().find(|step| is_start_before(fact, step)) {
            in_rows.begun.push(input.seq);
            continue;
        }
        let before = steps.iter().find(|step| is_behind(fact, step));
        let body = match before {
            Some(step) => body_in_row(tx, fact, step).await?,
            None => None,
        };
        match before.zip(body) {
            Some((step, body)) => drop(in_rows.next.insert(step.seq, body)),
            None => others.push(*fact),
        }
    }
    checkpoints::insert_with_events(tx, steps, in_rows).await?;
    insert(tx, &others).await
}

/// Returns whether an event follows a step that was made together with it.
fn is_behind(event: &NewEvent<'_>, step: &NewCheckpoint<'_>) -> bool {
    event.seq == step.seq + 1 && is_made_with(event, step)
}

/// Returns whether an event and a step have the same time and belong to the same agent and run.
fn is_made_with(event: &NewEvent<'_>, step: &NewCheckpoint<'_>) -> bool {
    (step.thread, step.lane, step.run, step.at) == (event.thread, event.lane, Some(event.run), event.at)
}

/// Returns the body of an event as the row of the step before it has it; none if it has blobs.
async fn body_in_row(tx: &mut Tx<'_>, event: &NewEvent<'_>, step: &NewCheckpoint<'_>) -> DbResult<Option<String>> {
    let mut packer = Packer::of_thread(tx, event.thread).await?;
    let column = checkpoints::cell(NEXT_EVENT, &step.entry.id.0);
    let body = packer.encode(&column, &*questions::stored_fact(tx, event.fact))?;
    Ok(Some(body).filter(|_| !packer.has_blobs()))
}

/// Returns whether an event is that an agent started anew, and all of it is in the step that follows, an input.
fn is_start_before(event: &NewEvent<'_>, step: &NewCheckpoint<'_>) -> bool {
    step.seq == event.seq + 1
        && step.entry.source == CheckpointSource::Input
        && is_made_with(event, step)
        && *event.fact == Fact::started_anew(step.entry.parent)
}

/// Returns whether the log of a thread has an event or step with this number.
pub async fn is_stored(tx: &mut Tx<'_>, thread: ThreadId, seq: i64) -> DbResult<bool> {
    const EVENTS: &str = "select exists (select 1 from events where thread_id = $1 and seq = $2)";
    const STEPS: &str = " or exists (select 1 from checkpoints where thread_id = $1 and seq >= $2 - 1 and seq <= $2 + 1 \
        and (seq = $2 or seq > $2 and source = 'begin' or seq < $2 and next_event is not null)";
    const SQLITE: &str = concatcp!(EVENTS, STEPS, OF_MAIN_AGENTS, ")", STEPS, OF_SUBAGENTS, ")");
    const POSTGRES: &str = concatcp!(EVENTS, STEPS, ")");
    let sql = tx.either(SQLITE, POSTGRES);
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(thread.0)
        .bind(seq)
        .fetch_one(conn)
        .await)?)
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedEvent {
    /// Its number.
    pub seq: i64,
    /// The run of the main agent during which it happened; none for a client's update.
    pub run: Option<RunId>,
    /// The history of the agent that it belongs to.
    pub lane: Lane,
    /// The time of the event.
    pub at: Timestamp,
    /// The content.
    pub what: Logged,
}

/// The content of a log entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Logged {
    /// A step of an agent.
    Entry(Entry),
    /// Any other event.
    Fact(Fact),
}

from_row! {
    struct EventRow {
        seq: i64,
        run_id: Option<Uuid>,
        lane: IdColumn<Lane>,
        created_at: i64,
        body: String,
        /// Null for rows of `events`, like all columns below.
        checkpoint_id: Option<Uuid>,
        parent_id: Option<Uuid>,
        step: Option<i64>,
        source: Option<String>,
        node: Option<String>,
        shown: Option<String>,
        carried_from: Option<Uuid>,
        next_event: Option<String>,
    }
}

impl EventRow {
    /// Returns the id to which `body` is bound.
    fn id_of_body(&self, thread: ThreadId) -> String {
        match self.checkpoint_id {
            Some(checkpoint) => checkpoint.to_string(),
            None => bound_id(thread, self.seq),
        }
    }

    /// Returns the event with the number before, if it has no row of its own.
    fn start(&self) -> Option<LoggedEvent> {
        let begins = self.source.as_deref() == Some(checkpoints::BEGIN);
        begins.then(|| LoggedEvent {
            seq: self.seq - 1,
            run: self.run_id.map(RunId),
            lane: self.lane.0,
            at: Timestamp(self.created_at),
            what: Logged::Fact(Fact::started_anew(self.parent_id.map(CheckpointId))),
        })
    }

    /// Returns the event with the number behind, if it has no row of its own.
    fn event_behind(&self) -> DbResult<Option<LoggedEvent>> {
        let (Some(checkpoint), Some(body)) = (&self.checkpoint_id, &self.next_event) else {
            return Ok(None);
        };
        Ok(Some(LoggedEvent {
            seq: self.seq + 1,
            run: self.run_id.map(RunId),
            lane: self.lane.0,
            at: Timestamp(self.created_at),
            what: Logged::Fact(checkpoints::cell(NEXT_EVENT, checkpoint).decode(body)?),
        }))
    }

    fn read(self, thread: ThreadId) -> DbResult<LoggedEvent> {
        let what = match (self.checkpoint_id, self.step, self.source, self.node) {
            (Some(checkpoint_id), Some(step), Some(source), Some(node)) => {
                let parent_id = self.parent_id;
                let writes = self.body;
                let shown = self.shown;
                let carried_from = self.carried_from;
                let row = EntryColumns {
                    checkpoint_id,
                    parent_id,
                    step,
                    source,
                    node,
                    writes,
                    shown,
                    carried_from,
                };
                Logged::Entry(row.try_into()?)
            }
            (_, _, _, _) => {
                let id = bound_id(thread, self.seq);
                Logged::Fact(cell(&id).decode(&self.body)?)
            }
        };
        let run = self.run_id.map(RunId);
        let lane = self.lane.0;
        let at = Timestamp(self.created_at);
        Ok(LoggedEvent {
            seq: self.seq,
            run,
            lane,
            at,
            what,
        })
    }
}

/// Returns up to `limit` entries of the log of a thread after number `after`, in order.
pub async fn read(tx: &mut Tx<'_>, thread: ThreadId, after: i64, limit: i64) -> DbResult<Vec<LoggedEvent>> {
    const STEPS: &str = "select seq, run_id, lane, created_at, writes as body, checkpoint_id, {parent} as parent_id, step, \
        source, node, shown, carried_from, next_event from checkpoints where thread_id = $1";
    // The row of the step with the number `after` may have the event behind it.
    const AFTER: &str = " and seq >= $2 and (seq > $2 or next_event is not null)";
    const EVENTS: &str = "select seq, run_id, lane, created_at, body, null, null, null, null, null, null, null, null \
        from events where thread_id = $1 and seq > $2";
    const SQLITE_STEPS: &str = concatcp!(str_replace!(STEPS, "{parent}", PARENT), AFTER);
    const SQLITE: &str = concatcp!(
        SQLITE_STEPS,
        OF_MAIN_AGENTS,
        " union all ",
        SQLITE_STEPS,
        OF_SUBAGENTS,
        " union all ",
        EVENTS,
        " order by seq limit $3"
    );
    // Postgres would read both parts to their ends, and sort them.
    const POSTGRES: &str = concatcp!(
        "(",
        str_replace!(STEPS, "{parent}", "parent_id"),
        AFTER,
        " order by seq limit $3) union all (",
        EVENTS,
        " order by seq limit $3) order by seq limit $3"
    );
    let sql = tx.either(SQLITE, POSTGRES);
    let statement = tx.statement(sql).bind(thread.0).bind(after).bind(limit);
    let mut rows: Vec<EventRow> = statement.fetch_all().await?;
    let ids: Vec<String> = rows.iter().map(|row| row.id_of_body(thread)).collect();
    let texts = rows.iter_mut().zip(&ids).map(|(row, id)| StoredText {
        cell: match row.checkpoint_id {
            Some(_) => checkpoints::cell("writes", id),
            None => cell(id),
        },
        text: &mut row.body,
    });
    blobs::restore(tx, thread, texts.collect()).await?;
    let mut log = Vec::with_capacity(rows.len());
    for row in rows {
        log.extend(row.start().filter(|start| start.seq > after));
        let behind = row.event_behind()?;
        if row.seq > after {
            log.push(row.read(thread)?);
        }
        log.extend(behind);
    }
    log.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let mut asked: Vec<&mut Interrupt> = vec![];
    for logged in &mut log {
        if let Logged::Fact(Fact::Asked { interrupts, .. }) = &mut logged.what {
            asked.extend(interrupts);
        }
    }
    questions::put_back(tx, thread, asked).await?;
    Ok(log)
}

/// Returns the lowest and the highest number in the log of a thread; none when it is empty.
pub async fn bounds(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<(i64, i64)>> {
    const FIRST: &str = "select (select seq - case source when 'begin' then 1 else 0 end from checkpoints \
        where thread_id = $1";
    const LAST: &str = concatcp!(
        " order by seq limit 1) as first, (select ",
        LAST_SEQ,
        " from checkpoints where thread_id = $1"
    );
    const NEWEST: &str = " order by seq desc limit 1";
    const EVENTS: &str = ") as last union all select (select min(seq) from events where thread_id = $1), \
        (select max(seq) from events where thread_id = $1)) as ends";
    const ENDS: &str = "select min(first), max(last) from (";
    const OF_MAIN: &str = concatcp!(FIRST, OF_MAIN_AGENTS, LAST, OF_MAIN_AGENTS, NEWEST);
    const OF_OTHERS: &str = concatcp!(FIRST, OF_SUBAGENTS, LAST, OF_SUBAGENTS, NEWEST);
    const SQLITE: &str = concatcp!(ENDS, OF_MAIN, ") as last union all ", OF_OTHERS, EVENTS);
    const POSTGRES: &str = concatcp!(ENDS, FIRST, LAST, NEWEST, EVENTS);
    let sql = tx.either(SQLITE, POSTGRES);
    let (first, last): (Option<i64>, Option<i64>) = tx.statement(sql).bind(thread.0).fetch_one().await?;
    Ok(first.zip(last))
}
