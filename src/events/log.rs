//! The newest part of a thread's log, in memory.
//!
//! While a run is active in this process, only this process numbers the events of the thread. Stored events get their
//! number before they are stored and become visible afterwards; chunks of answers are visible at once. A reader never
//! passes a number that is not visible yet, so the order is the same for all readers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::domain::event::Event;
use crate::domain::id::RunId;

/// The number of events in memory. Readers that fall further behind read stored events, without the chunks of answers.
const CAPACITY: usize = 1024;

/// The newest part of one thread's log.
pub struct ThreadLog {
    // A std mutex, since no task waits while it is held.
    ring: Mutex<RingBuffer>,
    // A watch and not a broadcast: a reader only needs to know that there is more.
    changes: watch::Sender<u64>,
    /// The version of the thread at the last check for changes by other processes.
    version: AtomicI64,
}

#[derive(Default)]
struct RingBuffer {
    /// Whether a run is active here, or about to start.
    active: bool,
    /// The number of runs that were active here; only the last of them may end the activity.
    holder: u64,
    /// The run that is, or was last, active here.
    run: Option<RunId>,
    /// Whether the run is about to start and has no events yet.
    expected: bool,
    /// Whether the run may number events.
    open: bool,
    /// The run that started here from the beginning, and the number before its first event.
    started: Option<(RunId, i64)>,
    /// The number of the next event.
    next: i64,
    /// The number up to which all events are stored, or were volatile.
    floor: i64,
    slots: VecDeque<Slot>,
}

struct Slot {
    seq: i64,
    /// The event; `None` while it is being stored.
    event: Option<Arc<Event>>,
}

/// The part of the log that memory has for a reader.
pub(super) enum Buffered {
    /// The events after the reader's position, possibly none.
    Events(Vec<Arc<Event>>),
    /// The reader must first read stored events up to this number; `None` means all.
    Stored(Option<i64>),
}

impl Default for ThreadLog {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            changes: watch::Sender::new(0),
            version: AtomicI64::new(i64::MIN),
        }
    }
}

impl ThreadLog {
    /// Announces a run, so that its readers wait for it instead of polling the database; `fresh` for a run that has
    /// never started. Returns the holder for [`ThreadLog::close`].
    pub fn expect_run(&self, run: RunId, fresh: bool) -> u64 {
        let mut ring = self.ring();
        ring.active = true;
        ring.holder += 1;
        ring.run = Some(run);
        ring.expected = fresh;
        ring.open = false;
        ring.holder
    }

    /// Starts the announced run. The next event has the number `next`; all earlier ones are stored.
    pub fn open(&self, next: i64) {
        let mut ring = self.ring();
        let started = ring.run.filter(|_| ring.expected).map(|run| (run, next - 1));
        let holder = ring.holder;
        let run = ring.run;
        let slots = VecDeque::new();
        *ring = RingBuffer {
            active: true,
            holder,
            run,
            expected: false,
            open: true,
            started,
            next,
            floor: next - 1,
            slots,
        };
        drop(ring);
        self.notify();
    }

    /// Whether the active run may number events: [`ThreadLog::open`] was called.
    pub fn is_open(&self) -> bool {
        self.ring().open
    }

    /// Ends the activity of the run with this `holder`. The events in memory stay for readers. Has no effect if the
    /// next run was already announced.
    pub fn close(&self, holder: u64) {
        let mut ring = self.ring();
        if ring.holder != holder {
            return;
        }
        ring.active = false;
        ring.expected = false;
        ring.slots.retain(|slot| slot.event.is_some());
        drop(ring);
        self.notify();
    }

    /// Reserves numbers for `count` events that are about to be stored. Returns the first.
    pub fn reserve(&self, count: usize) -> i64 {
        let mut ring = self.ring();
        let first = ring.next;
        for _ in 0..count {
            let seq = ring.next;
            ring.next += 1;
            ring.slots.push_back(Slot { seq, event: None });
        }
        first
    }

    /// Makes stored events with reserved numbers visible.
    pub fn publish(&self, events: impl IntoIterator<Item = Arc<Event>>) {
        let mut ring = self.ring();
        for event in events {
            if let Ok(at) = ring.slots.binary_search_by_key(&event.seq, |slot| slot.seq) {
                ring.slots[at].event = Some(event);
            }
        }
        ring.trim();
        drop(ring);
        self.notify();
    }

    /// Releases reserved numbers whose events were not stored.
    pub fn abandon(&self, first: i64, count: usize) {
        let last = first + i64::try_from(count).unwrap_or(i64::MAX);
        self.ring().slots.retain(|slot| slot.seq < first || slot.seq >= last);
        self.notify();
    }

    /// Publishes an event that is not stored; `make` gets its number.
    pub fn publish_volatile(&self, make: impl FnOnce(i64) -> Event) {
        let mut ring = self.ring();
        let seq = ring.next;
        ring.next += 1;
        ring.slots.push_back(Slot {
            seq,
            event: Some(Arc::new(make(seq))),
        });
        ring.trim();
        drop(ring);
        self.notify();
    }

    /// The events in memory after `after`, for a reader of `run`.
    pub(super) fn buffered(&self, run: RunId, after: i64) -> Buffered {
        let ring = self.ring();
        if ring.expected && ring.run == Some(run) {
            return Buffered::Events(vec![]);
        }
        ring.buffered(
            ring.started
                .filter(|(started, _)| *started == run)
                .map_or(after, |(_, before)| after.max(before)),
        )
    }

    /// The events in memory after `after`, of any run.
    pub(super) fn buffered_of_thread(&self, after: i64) -> Buffered {
        self.ring().buffered(after)
    }

    /// Frees events that readers can read from the database, if no run is active here. Readers that still wait for
    /// chunks of answers get the whole answers instead.
    pub(super) fn evict(&self) {
        let mut ring = self.ring();
        if !ring.active {
            ring.slots = VecDeque::new();
            ring.floor = ring.next - 1;
        }
    }

    /// The number up to which all events are visible; `None` if only the database knows.
    pub(super) fn newest(&self) -> Option<i64> {
        let ring = self.ring();
        if !ring.active || ring.next == 0 {
            return None;
        }
        let expected = ring
            .slots
            .iter()
            .find(|slot| slot.event.is_none())
            .map_or(ring.next, |slot| slot.seq);
        Some(expected - 1)
    }

    /// Whether a run is active here.
    pub(super) fn is_active(&self) -> bool {
        self.ring().active
    }

    /// Whether this run is active here, or about to start.
    pub(super) fn is_running(&self, run: RunId) -> bool {
        let ring = self.ring();
        ring.active && ring.run == Some(run)
    }

    /// Whether a reader waits for changes.
    pub(super) fn has_readers(&self) -> bool {
        self.changes.receiver_count() > 0
    }

    /// Subscribes to changes: new events, and the start and end of runs.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Wakes all readers.
    pub(super) fn wake(&self) {
        self.notify();
    }

    /// Wakes all readers if another process is working on the thread, or has changed it since the last check.
    pub(super) fn wake_if_changed(&self, version: i64, is_at_work: bool) {
        let before = self.version.swap(version, Ordering::Relaxed);
        if is_at_work || before != version {
            self.notify();
        }
    }

    fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn ring(&self) -> MutexGuard<'_, RingBuffer> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RingBuffer {
    /// The events after `after`.
    fn buffered(&self, after: i64) -> Buffered {
        if self.next == 0 {
            return Buffered::Stored(None);
        }
        if after < self.floor {
            return Buffered::Stored(Some(self.floor));
        }
        let from = self.slots.partition_point(|slot| slot.seq <= after);
        Buffered::Events(self.slots.range(from..).map_while(|slot| slot.event.clone()).collect())
    }

    /// Drops the oldest events beyond [`CAPACITY`].
    fn trim(&mut self) {
        while self.slots.len() > CAPACITY && self.slots.front().is_some_and(|slot| slot.event.is_some()) {
            if let Some(slot) = self.slots.pop_front() {
                self.floor = slot.seq;
            }
        }
    }
}

#[cfg(test)]
mod tests;
