//! A reader of a thread's events by number, from any number on. [`RunSequence`](super::RunSequence) reads a thread run
//! by run instead.

use std::collections::VecDeque;
use std::pin::pin;
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

/// The time without events after which a thread counts as quiet.
const QUIET: Duration = Duration::from_millis(500);

/// The next event of a thread, or the reason why there is none.
#[derive(Debug, Clone)]
pub enum ThreadEvent {
    /// An event.
    Event(Arc<Event>),
    /// No event for some time. It is reported once, before the next event.
    Quiet,
    /// The server shuts down.
    Shutdown,
}

/// A reader of a thread's events. It pulls, so a slow reader costs the others nothing; a reader that falls behind gets
/// stored events.
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

    /// Waits for the next event.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn next(&mut self) -> DbResult<ThreadEvent> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.quiet = false;
                return Ok(ThreadEvent::Event(event));
            }
            let change = pin!(self.log.next_change());
            let active = self.log.is_active();
            if self.fill().await? {
                continue;
            }
            if active {
                change.await;
                continue;
            }
            self.log.want_chunks();
            // The database is not read while a run is active here: its parallel writes may be stored out of order. Nor
            // while another process sends what it does: stored events would overtake chunks.
            let reliance = self.log.reliance();
            if reliance.is_none() && Box::pin(self.read_stored(None)).await? {
                continue;
            }
            if self.shutdown.is_cancelled() {
                return Ok(ThreadEvent::Shutdown);
            }
            // Changes by other processes wake the reader, too.
            let count = self.shutdown.run_until_cancelled(change);
            if let Some(left) = reliance {
                // The last events of a run may be stored without a word of the other process: the database is read in
                // the end, even if nothing changes any more.
                let _ = timeout(left, count).await;
            } else if self.quiet {
                count.await;
            } else if timeout(QUIET, count).await.is_err() {
                self.quiet = true;
                // A waiting reader frees its buffers.
                self.waiting = VecDeque::new();
                self.agents = None;
                self.log.evict();
                return Ok(ThreadEvent::Quiet);
            }
        }
    }

    /// The number of the next buffered event.
    pub fn peek(&self) -> Option<i64> {
        self.waiting.front().map(|event| event.seq)
    }

    /// Takes the next buffered event.
    pub fn take(&mut self) -> Option<Arc<Event>> {
        self.waiting.pop_front()
    }

    /// The number up to which all events are read or buffered.
    pub fn position(&self) -> i64 {
        self.after
    }

    /// Buffers further events. False if there are none yet.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn fetch(&mut self) -> DbResult<bool> {
        Ok(self.fill().await? || !self.log.is_active() && Box::pin(self.read_stored(None)).await?)
    }

    /// Buffers events from memory, or stored events before them. False if there are none yet.
    async fn fill(&mut self) -> DbResult<bool> {
        match self.log.buffered_of_thread(self.after) {
            Buffered::Events(events) => {
                let Some(last) = events.last() else { return Ok(false) };
                self.after = last.seq;
                self.waiting.extend(events);
                Ok(true)
            }
            // Boxed, because it is rare: it must not make a waiting reader larger.
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
            // State updates by clients belong to no run. They are part of the state from which the next run starts.
            let Some(run) = logged.run else { continue };
            if let Some(agents) = self.agents_of(run).await? {
                let event = agents.event(logged).await?;
                self.waiting.extend(event.map(Arc::new));
            }
        }
        self.after = last;
        Ok(self.after != after)
    }

    /// The agents of a run; `None` if the run was deleted.
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
