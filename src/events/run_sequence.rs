//! A reader of a thread run by run: the start of each run, its events, its end, and state updates by clients in
//! between. [`ThreadTail`](super::ThreadTail) reads a thread by event numbers instead.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::poll::POLL_INTERVAL;
use super::{After, Events, Tail, ThreadLog};
use crate::db::{self, Db, DbResult};
use crate::domain::event::Event;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::run::Run;

/// An item in the sequence of a thread's runs.
#[derive(Debug, Clone)]
pub enum ThreadItem {
    /// A run starts; its events follow.
    RunStarted(Box<Run>),
    /// An event of the run.
    Event(Arc<Event>),
    /// The run has ended. Its last event had this number.
    RunEnded(RunId, i64),
    /// A client updated the state. The update created this checkpoint with this number.
    StateUpdated(CheckpointId, i64),
}

/// A reader of one thread. Like a [`Tail`] it pulls, and costs nothing while it waits.
pub struct RunSequence {
    events: Events,
    db: Db,
    log: Arc<ThreadLog>,
    thread: ThreadId,
    /// The number up to which everything was read.
    after: i64,
    ready: VecDeque<ThreadItem>,
    current: Option<(RunId, Tail)>,
    shutdown: CancellationToken,
}

impl RunSequence {
    /// Reads from now on: the rest of the active run, and what follows.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn from_now(events: &Events, thread: ThreadId) -> DbResult<Self> {
        let read = events.db.read(move |tx| {
            Box::pin(async move {
                let newest = db::checkpoints::max_seq(tx, thread).await?;
                let run = db::runs::begun_by(tx, thread, newest).await?;
                Ok((newest, run.map(|(run, _)| run).filter(|run| !run.status.is_final())))
            })
        });
        let (newest, run) = read.await?;
        let mut sequence = Self::new(events, thread, newest);
        if let Some(run) = run {
            sequence.begin(run, After::Now);
        }
        Ok(sequence)
    }

    /// Reads from the start of the run to which the event `seq` belongs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn from_seq(events: &Events, thread: ThreadId, seq: i64) -> DbResult<Self> {
        let read = events
            .db
            .read(move |tx| Box::pin(async move { db::runs::begun_by(tx, thread, seq).await }));
        let mut sequence = Self::new(events, thread, seq);
        if let Some((run, first)) = read.await? {
            sequence.after = first;
            sequence.begin(run, After::Start);
        }
        Ok(sequence)
    }

    fn new(events: &Events, thread: ThreadId, after: i64) -> Self {
        let db = events.db.clone();
        let log = events.log(thread);
        let shutdown = events.shutdown.clone();
        let events = events.clone();
        let ready = VecDeque::new();
        let current = None;
        Self {
            events,
            db,
            log,
            thread,
            after,
            ready,
            current,
            shutdown,
        }
    }

    fn begin(&mut self, run: Run, after: After) {
        self.current = Some((run.id, self.events.tail(&run, after)));
        self.ready.push_back(ThreadItem::RunStarted(Box::new(run)));
    }

    /// Waits for the next item. `None` when the thread was deleted or the server shuts down.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn next(&mut self) -> DbResult<Option<ThreadItem>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if let Some((run, tail)) = &mut self.current {
                let run = *run;
                match tail.next().await? {
                    Some(event) => {
                        self.after = self.after.max(event.seq);
                        return Ok(Some(ThreadItem::Event(event)));
                    }
                    None if tail.is_cut() => return Ok(None),
                    None => {
                        self.current = None;
                        return Ok(Some(ThreadItem::RunEnded(run, self.after)));
                    }
                }
            }
            let change = pin!(self.log.next_change());
            if self.poll().await? {
                continue;
            }
            if self.shutdown.is_cancelled() || !self.thread_exists().await? {
                return Ok(None);
            }
            self.shutdown.run_until_cancelled(timeout(POLL_INTERVAL, change)).await;
        }
    }

    /// Returns true if the sequence ended because the server shuts down.
    pub fn is_cut(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Looks for the next run or state update. False if there is none yet.
    async fn poll(&mut self) -> DbResult<bool> {
        let thread = self.thread;
        let after = self.after;
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                let run = db::runs::begun_after(tx, thread, after).await?;
                // An update after the beginning of the next run has its turn after that run.
                let end = run.as_ref().map_or(i64::MAX, |(_, first)| *first);
                Ok((run, db::checkpoints::update_between(tx, thread, after, end).await?))
            })
        });
        match read.await? {
            (Some((run, first)), update) if update.is_none_or(|(_, seq)| first < seq) => {
                self.after = first;
                self.begin(run, After::Start);
                Ok(true)
            }
            (_, Some((checkpoint, seq))) => {
                self.after = seq;
                self.ready.push_back(ThreadItem::StateUpdated(checkpoint, seq));
                Ok(true)
            }
            (_, None) => Ok(false),
        }
    }

    async fn thread_exists(&self) -> DbResult<bool> {
        let thread = self.thread;
        let found = self
            .db
            .read(move |tx| Box::pin(async move { db::threads::find(tx, thread).await }));
        Ok(found.await?.is_some())
    }
}
