//! A reader of a thread event by event, in the order of their numbers, from any number on. Who wants to know where runs
//! begin and end takes a [`RunSequence`](super::RunSequence).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Events;
use super::agent_cache::AgentCache;
use super::log::{Buffered, ThreadLog};
use super::page::{PAGE, limit_page};
use crate::db::{self, Db, DbResult};
use crate::domain::event::Event;
use crate::domain::id::{RunId, ThreadId};

/// How long nothing has to happen until a reader takes the thread to be quiet.
const QUIET: Duration = Duration::from_millis(500);

/// The next event of a thread, or why there is none yet.
#[derive(Debug, Clone)]
pub enum ThreadEvent {
    /// Something happened.
    Event(Arc<Event>),
    /// Nothing happens for the time being. Told once; what comes next is the next thing that happens.
    Quiet,
    /// The server leaves: nothing more will be heard here.
    Shutdown,
}

/// A reader of the events of a thread. It pulls: a reader that is slow, or gone, costs nobody anything, and one that falls
/// behind is served from what is stored.
pub struct ThreadTail {
    db: Db,
    log: Arc<ThreadLog>,
    thread: ThreadId,
    /// The number of the last event that was read.
    after: i64,
    waiting: VecDeque<Arc<Event>>,
    /// The agents of the run whose stored events were read last.
    agents: Option<AgentCache>,
    quiet: bool,
    shutdown: CancellationToken,
}

impl ThreadTail {
    pub(super) fn new(events: &Events, thread: ThreadId, after: i64) -> Self {
        let db = events.db.clone();
        let log = events.log(thread);
        let shutdown = events.shutdown.clone();
        Self {
            db,
            log,
            thread,
            after,
            waiting: VecDeque::new(),
            agents: None,
            quiet: false,
            shutdown,
        }
    }

    /// Waits for what comes next.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn next(&mut self) -> DbResult<ThreadEvent> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.quiet = false;
                return Ok(ThreadEvent::Event(event));
            }
            let mut changes = self.log.subscribe();
            let active = self.log.is_active();
            if self.fill().await? {
                continue;
            }
            if active {
                // A sender lives as long as the log, and the log as long as this reader.
                let _ = changes.changed().await;
                continue;
            }
            // Not while a run is at work here: of what it stores side by side, the later number may be stored first.
            if Box::pin(self.read_stored(None)).await? {
                continue;
            }
            if self.shutdown.is_cancelled() {
                return Ok(ThreadEvent::Shutdown);
            }
            // What other processes do makes the bell ring, too.
            let count = self.shutdown.run_until_cancelled(changes.changed());
            if self.quiet {
                count.await;
            } else if timeout(QUIET, count).await.is_err() {
                self.quiet = true;
                // Who waits needs no room for what he has read.
                (self.waiting, self.agents) = (VecDeque::new(), None);
                self.log.evict();
                return Ok(ThreadEvent::Quiet);
            }
        }
    }

    /// The number of the next event that can be had without waiting.
    pub fn peek(&self) -> Option<i64> {
        self.waiting.front().map(|event| event.seq)
    }

    /// That event.
    pub fn take(&mut self) -> Option<Arc<Event>> {
        self.waiting.pop_front()
    }

    /// Everything up to this number was read, or can be had without waiting.
    pub fn position(&self) -> i64 {
        self.after
    }

    /// Reads what there is. False if there is nothing yet.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn fetch(&mut self) -> DbResult<bool> {
        Ok(self.fill().await? || !self.log.is_active() && Box::pin(self.read_stored(None)).await?)
    }

    /// Reads what memory has, or stored events up to there. False if there is nothing yet.
    async fn fill(&mut self) -> DbResult<bool> {
        match self.log.buffered_of_thread(self.after) {
            Buffered::Events(events) => {
                let Some(last) = events.last() else { return Ok(false) };
                self.after = last.seq;
                self.waiting.extend(events);
                Ok(true)
            }
            // Boxed, like all that is seldom: a reader is no larger while it waits.
            Buffered::Stored(floor) => Box::pin(self.read_stored(floor)).await,
        }
    }

    /// Reads a page of stored events up to `floor`, where memory takes over.
    async fn read_stored(&mut self, floor: Option<i64>) -> DbResult<bool> {
        let thread = self.thread;
        let after = self.after;
        let page = self
            .db
            .read(move |tx| Box::pin(async move { db::events::read(tx, thread, after, PAGE).await }))
            .await?;
        let (page, last) = limit_page(floor, after, page);
        for logged in page {
            // What a client wrote outside of all runs is part of the state from which the next run begins.
            let Some(run) = logged.run else { continue };
            if let Some(agents) = self.agents_of(run).await? {
                let event = agents.event(logged).await?;
                self.waiting.push_back(Arc::new(event));
            }
        }
        self.after = last;
        Ok(self.after != after)
    }

    /// The agents of a run; none if the run is gone, and with it whatever is told of it.
    async fn agents_of(&mut self, run: RunId) -> DbResult<Option<&mut AgentCache>> {
        if self.agents.as_ref().is_none_or(|agents| agents.run() != run) {
            let found = self
                .db
                .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, run).await }))
                .await?;
            self.agents = found.map(|run| AgentCache::new(self.db.clone(), &run));
        }
        Ok(self.agents.as_mut())
    }
}
