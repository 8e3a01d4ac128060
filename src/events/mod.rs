//! The log of a thread, and who is listening.
//!
//! Live streams, joins and replays are one thing: a [`Tail`] that reads the log from a position. It reads what is stored,
//! then what is in memory, then waits. What is in memory is the same log, only newer.
//!
//! | Reader | Reads | For |
//! |---|---|---|
//! | [`Tail`] | one run with all below it, to its end | streams of runs |
//! | [`RunSequence`] | the runs of a thread, each from its beginning to its end, and what clients write in between | `GET /threads/{id}/stream` |
//! | [`ThreadTail`] | the events of a thread, by number, whatever run they belong to | the stream of a thread |
//!
//! This is not where events are made ([`crate::domain::event`]), stored ([`crate::db::events`]) or given a shape
//! (`http::stream`). Whoever has stored a step tells it here, and after that only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio_util::sync::CancellationToken;

use crate::db::{self, Db, DbResult};
use crate::domain::checkpoint::Entry;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::run::Run;
use crate::domain::state::State;

mod agent_cache;
mod log;
mod page;
mod run_sequence;
mod tail;
mod thread_tail;
mod watch;

pub use log::ThreadLog;
pub use run_sequence::{RunSequence, ThreadItem};
pub use tail::{After, Tail};
pub use thread_tail::{ThreadEvent, ThreadTail};

/// The logs of all threads.
#[derive(Clone)]
pub struct Events {
    db: Db,
    // Weak: a log stays in memory only while a run writes it or somebody reads it.
    logs: Arc<Mutex<HashMap<ThreadId, Weak<ThreadLog>>>>,
    shutdown: CancellationToken,
}

impl Events {
    /// The logs that `db` stores. Once the server is `shutdown`, nobody waits for events that others write.
    pub fn new(db: Db, shutdown: CancellationToken) -> Self {
        Self {
            db,
            logs: Arc::default(),
            shutdown,
        }
    }

    /// The newest part of a thread's log.
    pub fn log(&self, thread: ThreadId) -> Arc<ThreadLog> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = logs.get(&thread).and_then(Weak::upgrade) {
            return log;
        }
        // Now and then the dead are swept out; half of the map at worst.
        if logs.len() >= 64 && logs.len().is_power_of_two() {
            logs.retain(|_, log| log.strong_count() > 0);
        }
        let log = Arc::new(ThreadLog::default());
        logs.insert(thread, Arc::downgrade(&log));
        log
    }

    /// Something has happened on this thread in another process: those who read it here look at once.
    pub fn wake(&self, thread: ThreadId) {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = logs.get(&thread).and_then(Weak::upgrade) {
            log.wake();
        }
    }

    /// Reads the events of a run of the main agent, those of its children included.
    pub fn tail(&self, run: &Run, after: After) -> Tail {
        Tail::new(self, run, after)
    }

    /// Reads, from its beginning, what happened in the run of a subagent and in those below it in the course of the run
    /// `main` of the main agent, to the end of the subagent's run.
    pub fn tail_of_child(&self, main: &Run, child: &Run) -> Tail {
        self.tail(main, After::Start).of_child(child)
    }

    /// Reads the events of a thread, of all its runs and those that are still to come, from the one after number `after` on.
    pub fn tail_of_thread(&self, thread: ThreadId, after: i64) -> ThreadTail {
        ThreadTail::new(self, thread, after)
    }

    /// The run at work, if there still is such a run.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn run(&self, run: RunId) -> DbResult<Option<Run>> {
        self.db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, run).await }))
            .await
    }

    /// The number before the first event of the run in whose course number `seq` was given out; 0 before all runs. Whoever
    /// takes a stream up again at `seq` has to read from there to understand what follows.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn run_start(&self, thread: ThreadId, seq: i64) -> DbResult<i64> {
        let read = self
            .db
            .read(move |tx| Box::pin(async move { db::runs::begun_by(tx, thread, seq).await }));
        Ok(read.await?.map_or(0, |(_, first)| first - 1))
    }

    /// The number up to which everything that happened on a thread can be read by now.
    ///
    /// # Errors
    /// When the database fails.
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

    /// Waits until the server leaves.
    pub async fn shutdown_started(&self) {
        self.shutdown.cancelled().await;
    }

    /// The numbers of the first and of the last stored event of a thread; none when nothing is stored.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn bounds(&self, thread: ThreadId) -> DbResult<Option<(i64, i64)>> {
        self.db
            .read(move |tx| Box::pin(async move { db::events::reach(tx, thread).await }))
            .await
    }

    /// The number at which what is left of a thread's log begins, if that is behind `seq`: what came after `seq` was taken
    /// away, at least in part. None for a log that reaches back far enough.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn gap(&self, thread: ThreadId, seq: i64) -> DbResult<Option<i64>> {
        let read = self.db.read(move |tx| Box::pin(db::retention::pruned_to(tx, thread)));
        Ok(read.await?.filter(|first| *first > 1 && *first > seq))
    }

    /// The state at a checkpoint, from memory if possible; empty if there is no such checkpoint.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn state_at(&self, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Arc<State>> {
        if let Some(state) = self.db.states().get(checkpoint) {
            return Ok(state);
        }
        self.db
            .read(move |tx| {
                Box::pin(async move {
                    let found = db::checkpoints::get(tx, thread, checkpoint).await?;
                    Ok(Arc::new(found.map(|checkpoint| checkpoint.state).unwrap_or_default()))
                })
            })
            .await
    }

    /// How an agent stood at a checkpoint; none if there is no such checkpoint.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot(&self, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<AgentSnapshot>> {
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                let Some(found) = db::checkpoints::get(tx, thread, checkpoint).await? else {
                    return Ok(None);
                };
                let interrupts = db::interrupts::of_thread(tx, thread, None).await?;
                let own = interrupts.into_iter().filter(|record| record.lane == found.lane);
                let interrupts = own.map(|record| record.interrupt).collect();
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

/// How an agent stands at a checkpoint.
#[derive(Debug, Clone)]
pub struct AgentSnapshot {
    /// The step that left it.
    pub entry: Arc<Entry>,
    /// The run of the main agent in whose course it was taken.
    pub run: Option<RunId>,
    /// What the agent has asked so far, here and before; the tasks tell which of it is asked here.
    pub interrupts: Vec<Interrupt>,
}
