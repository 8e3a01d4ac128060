//! A reader of a thread run by run: it tells which run comes next, all of it from its beginning, that it is over, and what
//! clients write in between. Who wants the events by their numbers, whatever run they belong to, takes a
//! [`ThreadTail`](super::ThreadTail).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{After, Events, Tail, ThreadLog};
use crate::db::{self, Db, DbResult};
use crate::domain::event::Event;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::run::Run;

/// How often it is looked whether a run began in another process, or a client wrote.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// An item in the sequence of a thread's runs.
#[derive(Debug, Clone)]
pub enum ThreadItem {
    /// A run comes next; its events follow.
    RunStarted(Box<Run>),
    /// An event of that run.
    Event(Arc<Event>),
    /// The run is over. Its last event had this number.
    RunEnded(RunId, i64),
    /// A client wrote into the state, which left this checkpoint with this number.
    StateUpdated(CheckpointId, i64),
}

/// A reader of one thread. Like a [`Tail`] it pulls, and costs nobody anything while it waits.
pub struct RunSequence {
    events: Events,
    db: Db,
    log: Arc<ThreadLog>,
    thread: ThreadId,
    /// Everything up to here was read, of runs that are over and of clients.
    after: i64,
    ready: VecDeque<ThreadItem>,
    current: Option<(RunId, Tail)>,
    shutdown: CancellationToken,
}

impl RunSequence {
    /// Reads what happens from now on: the rest of the run that is at work, and what comes after it.
    ///
    /// # Errors
    /// When the database fails.
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

    /// Reads from the run on to which the event of this number belongs; that run from its beginning.
    ///
    /// # Errors
    /// When the database fails.
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

    /// Waits for what happens next. None when the thread is gone, or the server leaves.
    ///
    /// # Errors
    /// When the database fails.
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
            let mut changes = self.log.subscribe();
            if self.poll().await? {
                continue;
            }
            if self.shutdown.is_cancelled() || !self.thread_exists().await? {
                return Ok(None);
            }
            self.shutdown
                .run_until_cancelled(timeout(POLL_INTERVAL, changes.changed()))
                .await;
        }
    }

    /// Whether the server leaves, so that what happens next is to be read elsewhere.
    pub fn is_cut(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Looks for the run or the write that comes next. False if there is none yet.
    async fn poll(&mut self) -> DbResult<bool> {
        let thread = self.thread;
        let after = self.after;
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                let run = db::runs::begun_after(tx, thread, after).await?;
                Ok((run, db::checkpoints::update_after(tx, thread, after).await?))
            })
        });
        match read.await? {
            (Some((run, first)), written) if written.is_none_or(|(_, seq)| first < seq) => {
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
