//! A reader of one run's events.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::sync::futures::OwnedNotified;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Events;
use super::agent_cache::AgentCache;
use super::log::{Buffered, ThreadLog};
use super::page::{PAGE, limit_page};
use super::poll::POLL_INTERVAL;
use crate::db::{self, Db, DbResult};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{Event, EventBody, Fact};
use crate::domain::id::{RunId, TaskId, ThreadId};
use crate::domain::run::Run;

/// The start position of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The run's first event.
    Start,
    /// The event after this number.
    Seq(i64),
    /// The next event from now on. The pieces of the answers that are being given come first, from their beginnings.
    Now,
    /// The same from this number on, which was the newest.
    Joined(i64),
}

/// A child run and the runs below it.
struct Branch {
    run: RunId,
    namespace: Vec<TaskId>,
}

impl Branch {
    fn is_own(&self, event: &Event) -> bool {
        event.origin.lane == Lane::Child(self.run)
    }

    fn contains(&self, event: &Event) -> bool {
        event.origin.namespace.starts_with(&self.namespace)
    }
}

/// A reader of the events of one run. It pulls, so a slow reader costs the others nothing.
pub struct Tail {
    db: Db,
    log: Arc<ThreadLog>,
    thread: ThreadId,
    run: RunId,
    /// The child run whose events are read, if not all.
    branch: Option<Branch>,
    after: Option<i64>,
    /// True if the reader waits for the beginnings of the answers that were being given when it joined.
    joins: bool,
    /// True if the reader is woken at the end of the run, and not by each event.
    wakes_at_end: bool,
    waiting: VecDeque<Arc<Event>>,
    agents: AgentCache,
    /// True if events of the run came from memory: the run is active here, or in a process that sends them.
    live: bool,
    ended: bool,
    shutdown: CancellationToken,
    is_cut: bool,
}

impl Tail {
    pub(super) fn new(events: &Events, run: &Run, after: After) -> Self {
        let db = events.db.clone();
        let log = events.log(run.thread);
        let shutdown = events.shutdown.clone();
        let joins = matches!(after, After::Now | After::Joined(_)) && !run.status.is_final();
        let after = match after {
            After::Start => Some(0),
            After::Seq(seq) => Some(seq.max(0)),
            // Stored events may not be visible yet.
            After::Joined(seq) => Some(log.newest().map_or(seq, |newest| newest.min(seq)).max(0)),
            After::Now => None,
        };
        let agents = AgentCache::new(db.clone(), run);
        let waiting = VecDeque::new();
        Self {
            db,
            log,
            thread: run.thread,
            run: run.id,
            branch: None,
            after,
            joins,
            wakes_at_end: false,
            waiting,
            agents,
            live: false,
            ended: false,
            shutdown,
            is_cut: false,
        }
    }

    /// Restricts the reader to the child run `child` and the runs below it, up to its end.
    pub(super) fn of_child(self, child: &Run) -> Self {
        Self {
            branch: Some(Branch {
                run: child.id,
                namespace: child.lineage.namespace.clone(),
            }),
            wakes_at_end: false,
            ..self
        }
    }

    /// Returns the reader for one who needs nothing before the end of the run. It gets the same events, but is woken only when
    /// the main agent starts or ends, and for events that memory would drop before. Of a run in another process it is woken for
    /// what that process stores.
    #[must_use]
    pub fn waking_at_end(self) -> Self {
        let wakes_at_end = self.branch.is_none();
        Self { wakes_at_end, ..self }
    }

    /// Waits for the next event. `None` after the main agent's [`Fact::Ended`], when the run has ended and everything
    /// was read, or when the server shuts down while the run continues elsewhere ([`Tail::is_cut`]).
    ///
    /// # Errors
    /// If the database fails.
    pub async fn next(&mut self) -> DbResult<Option<Arc<Event>>> {
        loop {
            if let Some(event) = self.ready() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            let mut change = pin!(match self.wakes_at_end {
                true => self.log.next_end(),
                false => self.log.next_change(),
            });
            let active = self.log.is_active();
            // If another run is active here, this one has ended, perhaps without a last event: it may have been rolled back.
            let ours = self.log.is_running(self.run);
            let after = match self.after {
                Some(after) => after,
                None => Box::pin(self.start_from_now()).await?,
            };
            if self.fill(after).await? {
                continue;
            }
            if ours {
                change.await;
                continue;
            }
            if !active {
                self.log.want_chunks();
                // Events of the other process are read as soon as it notifies this one: an earlier look would find
                // stored events whose chunks are still on their way.
                if self.live && self.log.is_followed() && !self.shutdown.is_cancelled() {
                    self.wait(change.as_mut()).await;
                    continue;
                }
            }
            // The status is read before the last look at the log, so that no event in between is missed. The database
            // is not read while a run is active here: its parallel writes may be stored out of order.
            let over = Box::pin(self.is_over()).await?;
            if (over || !active) && Box::pin(self.read_stored(after, None)).await? {
                continue;
            }
            if over {
                self.ended = true;
            } else if self.shutdown.is_cancelled() {
                self.ended = true;
                self.is_cut = true;
            } else {
                self.wait(change.as_mut()).await;
            }
        }
    }

    /// Waits for a change, the next poll or the shutdown. The run may be active in another process, or may have been
    /// cancelled before it started.
    async fn wait(&self, change: Pin<&mut OwnedNotified>) {
        self.shutdown.run_until_cancelled(timeout(POLL_INTERVAL, change)).await;
    }

    /// Returns true if the reader ended before the run because the server shuts down.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The next event, if there is one without waiting.
    pub fn ready(&mut self) -> Option<Arc<Event>> {
        while let Some(event) = self.waiting.pop_front() {
            let is_last = event.origin.lane == Lane::Main || self.branch.as_ref().is_some_and(|b| b.is_own(&event));
            if is_last && matches!(event.body, EventBody::Fact(Fact::Ended { .. })) {
                self.ended = true;
                self.waiting.clear();
            }
            if self.branch.as_ref().is_none_or(|branch| branch.contains(&event)) {
                return Some(event);
            }
        }
        None
    }

    /// Buffers events after `after`. False if there are none yet.
    async fn fill(&mut self, after: i64) -> DbResult<bool> {
        if self.joins && self.take_beginnings(after) {
            return Ok(true);
        }
        match self.log.buffered(self.run, after) {
            Buffered::Events(events) => {
                let Some(last) = events.last() else {
                    return Ok(false);
                };
                self.after = Some(last.seq);
                self.joins = false;
                let run = self.run;
                let before = self.waiting.len();
                self.waiting.extend(events.into_iter().filter(|event| event.run == run));
                self.live |= self.waiting.len() > before;
                Ok(true)
            }
            // Boxed, because it is rare: it must not make a waiting reader larger.
            Buffered::Stored(floor) => Box::pin(self.read_stored(after, floor)).await,
        }
    }

    /// Buffers the pieces of the answers that were being given after the event `after`, as soon as memory has them: those
    /// of another process come later. False if there are none.
    fn take_beginnings(&mut self, after: i64) -> bool {
        let Some(beginnings) = self.log.answers_at(self.run, after) else {
            return false;
        };
        self.joins = false;
        self.live |= !beginnings.is_empty();
        self.waiting.extend(beginnings);
        !self.waiting.is_empty()
    }

    /// Reads a page of stored events up to `floor`, where memory takes over.
    async fn read_stored(&mut self, after: i64, floor: Option<i64>) -> DbResult<bool> {
        let thread = self.thread;
        let run = self.run;
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                // The runs of a thread follow each other, so events before this run are skipped.
                let before = if after == 0 {
                    db::runs::first_seq(tx, run).await?
                } else {
                    None
                };
                db::events::read(tx, thread, before.map_or(after, |first| after.max(first - 1)), PAGE).await
            })
        });
        let (page, last) = limit_page(floor, after, read.await?);
        for logged in page.into_iter().filter(|logged| logged.run == Some(run)) {
            let event = self.agents.event(logged).await?;
            self.waiting.extend(event.map(Arc::new));
        }
        self.after = Some(last);
        Ok(self.after != Some(after))
    }

    async fn start_from_now(&mut self) -> DbResult<i64> {
        let thread = self.thread;
        let now = match self.log.newest() {
            Some(newest) => newest,
            None => {
                self.db
                    .read(move |tx| Box::pin(async move { db::checkpoints::max_seq(tx, thread).await }))
                    .await?
            }
        };
        self.after = Some(now);
        Ok(now)
    }

    /// Returns true if the run has ended or was deleted.
    async fn is_over(&self) -> DbResult<bool> {
        let run = self.run;
        let found = self
            .db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, run).await }))
            .await?;
        Ok(found.is_none_or(|run| run.status.is_final()))
    }
}

#[cfg(test)]
mod tests;
