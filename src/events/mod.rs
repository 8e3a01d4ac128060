//! The logs of threads and their readers.
//!
//! Live streams, joins and replays are one thing: a [`Tail`] that reads the log from a position. It reads stored
//! events, then events in memory, then waits for new ones. Memory holds the newest part of the same log.
//!
//! | Reader | Reads | For |
//! |---|---|---|
//! | [`Tail`] | one run with its child runs, to its end | streams of runs |
//! | [`RunSequence`] | the runs of a thread one after the other, and state updates by clients | `GET /threads/{id}/stream` |
//! | [`ThreadTail`] | the events of all runs of a thread by number | the v2 stream of a thread |
//!
//! Chunks of answers, which are not stored, also reach the readers at other servers on the same Postgres, over `NOTIFY`
//! or NATS: [`live`].
//!
//! Events are defined in [`crate::domain::event`], stored by [`crate::db::events`] and encoded by `http::stream`. An
//! event is published here only after its step was stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::db::{self, Db, DbResult, Tx};
use crate::domain::checkpoint::{Entry, Lane};
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::message_list::MessageList;
use crate::domain::run::Run;
use crate::domain::state::State;

mod agent_cache;
pub mod live;
mod log;
mod open_answers;
mod page;
mod poll;
mod run_sequence;
mod slot;
mod tail;
mod thread_tail;

pub use log::ThreadLog;
pub use run_sequence::{RunSequence, ThreadItem};
pub use tail::{After, Tail};
pub use thread_tail::{ThreadEvent, ThreadTail};

/// The number of runs that are replayed to a new reader of a thread.
const REPLAYED_RUNS: i64 = 1000;

/// The same for a thread whose state has lost messages or media: what was before is in the state, or is not shown any more. The
/// run before the last is among them for a client whose run has ended, and another one has begun, before it came.
const REPLAYED_RUNS_WITH_GAPS: i64 = 2;

/// The number of an agent's steps among which the last one is looked for that clients see something of.
const MOST_LAST_STEPS: usize = 64;

/// The part of a thread's log that a new reader of the thread gets before what happens.
#[derive(Debug, Clone, Default)]
pub struct ReplayRange {
    /// The number before its first event.
    pub after: i64,
    /// The number of its last event; less than `after` if there is none.
    pub until: i64,
    /// The messages that have left the newest state of the main agent, see [`MessageList::without_messages`].
    pub left: MessageList,
}

/// The logs of all threads.
#[derive(Clone)]
pub struct Events {
    db: Db,
    // Weak: a log stays in memory only while it has a writer or readers.
    logs: Arc<Mutex<HashMap<ThreadId, Weak<ThreadLog>>>>,
    /// Notified when readers wait for chunks of other processes.
    wanted: Arc<Notify>,
    shutdown: CancellationToken,
}

impl Events {
    /// Opens the logs of `db`. After `shutdown`, no reader waits for events of other processes.
    pub fn new(db: Db, shutdown: CancellationToken) -> Self {
        Self {
            db,
            logs: Arc::default(),
            wanted: Arc::default(),
            shutdown,
        }
    }

    /// The newest part of a thread's log.
    pub fn log(&self, thread: ThreadId) -> Arc<ThreadLog> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = logs.get(&thread).and_then(Weak::upgrade) {
            return log;
        }
        // Unused entries are removed now and then; at worst they are half of the map.
        if logs.len() >= 64 && logs.len().is_power_of_two() {
            logs.retain(|_, log| log.strong_count() > 0);
        }
        let log = Arc::new(ThreadLog::new(Arc::clone(&self.wanted)));
        logs.insert(thread, Arc::downgrade(&log));
        log
    }

    /// The newest part of a thread's log, if it has a writer or readers here.
    fn log_in_use(&self, thread: ThreadId) -> Option<Arc<ThreadLog>> {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.get(&thread).and_then(Weak::upgrade)
    }

    /// Wakes the readers of a thread that another process has changed.
    pub fn wake(&self, thread: ThreadId) {
        if let Some(log) = self.log_in_use(thread) {
            log.wake();
        }
    }

    /// Reads the events of a run of the main agent, including its child runs.
    pub fn tail(&self, run: &Run, after: After) -> Tail {
        Tail::new(self, run, after)
    }

    /// Reads the events of a child run and the runs below it, as part of the run `main`, from its start to its end.
    pub fn tail_of_child(&self, main: &Run, child: &Run) -> Tail {
        self.tail(main, After::Start).of_child(child)
    }

    /// The same for a reader who joins after number `seq`, see [`After::Joined`].
    pub fn join_child(&self, main: &Run, child: &Run, seq: i64) -> Tail {
        self.tail(main, After::Joined(seq)).of_child(child)
    }

    /// Reads the events of all runs of a thread after number `after`, including future runs.
    pub fn tail_of_thread(&self, thread: ThreadId, after: i64) -> ThreadTail {
        ThreadTail::new(self, thread, after)
    }

    /// The run with this id.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn run(&self, run: RunId) -> DbResult<Option<Run>> {
        self.db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, run).await }))
            .await
    }

    /// The part of a thread's log that a new reader gets. It begins with a run, and with an earlier one if one of these
    /// subagents has worked in it, which are named by their namespaces, `tools:<task>`. The newest state is read, if it is not
    /// in memory: the reader must be allowed to read the thread.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn replay_range(&self, thread: ThreadId, subagents: Vec<String>) -> DbResult<ReplayRange> {
        let until = self.log(thread).newest();
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                let until = readable_until(tx, thread, until).await?;
                let newest = db::checkpoints::newest_state(tx, thread, Lane::Main).await?;
                let left = newest.map_or_else(MessageList::default, |newest| newest.messages.without_messages());
                let runs = match left.has_gaps() {
                    true => REPLAYED_RUNS_WITH_GAPS,
                    false => REPLAYED_RUNS,
                };
                let after = match db::runs::begun_before_last(tx, thread, runs - 1).await? {
                    Some(begun) => {
                        let earlier = db::runs::begun_with(tx, thread, &subagents).await?;
                        earlier.map_or(begun, |earlier| earlier.min(begun)) - 1
                    }
                    None => 0,
                };
                Ok(ReplayRange { after, until, left })
            })
        });
        read.await
    }

    /// The part of a thread's log after the event `seq`, for a reader that has what was before. To know the state, it has to
    /// read from the beginning of the run to which `seq` belongs. It gets messages that have left the newest state, too.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn range_after(&self, thread: ThreadId, seq: i64) -> DbResult<ReplayRange> {
        let until = self.log(thread).newest();
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                let until = readable_until(tx, thread, until).await?;
                let begun = db::runs::begun_by(tx, thread, seq).await?;
                let after = begun.map_or(0, |(_, first)| first - 1);
                let left = MessageList::default();
                Ok(ReplayRange { after, until, left })
            })
        });
        read.await
    }

    /// The number of the last step of an agent up to the number `until` for which `is_wanted` returns true; none if it is not
    /// among the last ones. Steps of deleted runs do not count.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn last_step(
        &self,
        thread: ThreadId,
        lane: Lane,
        until: i64,
        is_wanted: fn(&Entry) -> bool,
    ) -> DbResult<Option<i64>> {
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                let mut until = until;
                for _ in 0..MOST_LAST_STEPS {
                    let Some(seq) = db::checkpoints::last_of_runs(tx, thread, lane, until).await? else {
                        break;
                    };
                    let step = db::checkpoints::next_after(tx, thread, lane, seq - 1).await?;
                    if step.is_some_and(|step| is_wanted(&step)) {
                        return Ok(Some(seq));
                    }
                    until = seq - 1;
                }
                Ok(None)
            })
        });
        read.await
    }

    /// The number up to which all events of a thread can be read now.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn newest(&self, thread: ThreadId) -> DbResult<i64> {
        match self.log(thread).newest() {
            Some(newest) => Ok(newest),
            None => {
                self.db
                    .read(move |tx| Box::pin(async move { db::checkpoints::max_seq(tx, thread).await }))
                    .await
            }
        }
    }

    /// Returns whether the server shuts down.
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Waits until the server shuts down.
    pub async fn shutdown_started(&self) {
        self.shutdown.cancelled().await;
    }

    /// The numbers of the first and last stored event of a thread; `None` if there are none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn bounds(&self, thread: ThreadId) -> DbResult<Option<(i64, i64)>> {
        self.db
            .read(move |tx| Box::pin(async move { db::events::bounds(tx, thread).await }))
            .await
    }

    /// The first number of a pruned log, if events after `seq` were removed. `None` if the log is complete after `seq`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn gap(&self, thread: ThreadId, seq: i64) -> DbResult<Option<i64>> {
        let read = self.db.read(move |tx| Box::pin(db::retention::pruned_to(tx, thread)));
        Ok(read.await?.filter(|first| *first > 1 && *first > seq))
    }

    /// The state at a checkpoint, from memory if possible; empty if the checkpoint does not exist.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn state_at(&self, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Arc<State>> {
        if let Some(state) = self.db.states().get(checkpoint) {
            return Ok(state);
        }
        let read = self
            .db
            .read(move |tx| Box::pin(db::checkpoints::find_state(tx, thread, checkpoint)));
        Ok(read.await?.unwrap_or_default())
    }

    /// An agent at a checkpoint; `None` if the checkpoint does not exist.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn snapshot(&self, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<AgentSnapshot>> {
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                let Some(found) = db::checkpoints::find(tx, thread, checkpoint).await? else {
                    return Ok(None);
                };
                let lane = found.lane;
                let interrupts = db::interrupts::of_thread_later(tx, thread, None).await?;
                let own = interrupts.read_where(tx, move |asked| asked.lane == lane).await?;
                let interrupts = own.into_iter().map(|record| record.interrupt).collect();
                Ok(Some(AgentSnapshot {
                    entry: Arc::new(found.entry),
                    run: found.run,
                    interrupts,
                }))
            })
        });
        read.await
    }
}

/// The number up to which all events of a thread can be read: the one that memory knows, or else that of the database.
async fn readable_until(tx: &mut Tx<'_>, thread: ThreadId, known: Option<i64>) -> DbResult<i64> {
    match known {
        Some(known) => Ok(known),
        None => db::checkpoints::max_seq(tx, thread).await,
    }
}

/// An agent at a checkpoint.
#[derive(Debug, Clone)]
pub struct AgentSnapshot {
    /// The step that created the checkpoint.
    pub entry: Arc<Entry>,
    /// The run of the main agent that created it.
    pub run: Option<RunId>,
    /// The interrupts of the agent up to now. Their tasks tell which of them belong to the checkpoint.
    pub interrupts: Vec<Interrupt>,
}
