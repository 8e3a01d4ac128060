//! The newest part of a thread's log, in memory.
//!
//! While a run is at work here, its process alone numbers the events of the thread. Stored events get their number when
//! they are about to be stored and become visible when they are; pieces of answers are visible at once. A reader never
//! passes a number that is not visible yet, so the order is the same for everybody.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::domain::event::Event;
use crate::domain::id::RunId;

/// How many events stay in memory. Readers that fall further behind read stored events, without the pieces of answers.
const CAPACITY: usize = 1024;

/// The newest part of one thread's log.
pub struct ThreadLog {
    // A std mutex: nothing waits while it is held.
    ring: Mutex<RingBuffer>,
    // A watch and not a broadcast: a reader only needs to know that there is more.
    changes: watch::Sender<u64>,
    /// Which version of the thread was seen last, when it was looked whether other processes changed it.
    version: AtomicI64,
}

#[derive(Default)]
struct RingBuffer {
    /// Whether a run is at work here, or about to begin.
    active: bool,
    /// Counts the runs that were at work here; the last of them says when it is over.
    holder: u64,
    /// The run that is or was at work here, when it was expected.
    run: Option<RunId>,
    /// Whether that run is about to begin and has no events yet.
    expected: bool,
    /// Whether that run may number events.
    open: bool,
    /// The run that began here from nothing, and the number that all its events are above.
    started: Option<(RunId, i64)>,
    /// The number of the next event.
    next: i64,
    /// Everything up to this number is stored, or was never to be stored.
    floor: i64,
    slots: VecDeque<Slot>,
}

struct Slot {
    seq: i64,
    /// None while the event is being stored.
    event: Option<Arc<Event>>,
}

/// The part of the log that memory has for a reader.
pub(super) enum Buffered {
    /// The events after its position, possibly none yet.
    Events(Vec<Arc<Event>>),
    /// It has to read stored events up to this number first; none means: as far as they go.
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
    /// A run is about to begin here, so that those who want to read it wait for it rather than look for it in the
    /// database; `fresh` when it has never begun before. Returns what [`ThreadLog::close`] wants to know.
    pub fn expect_run(&self, run: RunId, fresh: bool) -> u64 {
        let mut ring = self.ring();
        ring.active = true;
        ring.holder += 1;
        ring.run = Some(run);
        ring.expected = fresh;
        ring.open = false;
        ring.holder
    }

    /// The expected run begins here; the next event has the number `next`, all before it are stored.
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

    /// Whether the run that is at work here may number events: [`ThreadLog::open`] was called for it.
    pub fn is_open(&self) -> bool {
        self.ring().open
    }

    /// The run of this `holder` is not at work here any more; what is in memory stays for those who read it. Nothing
    /// happens when the next run has come already.
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

    /// Numbers for `count` events that are about to be stored; the first of them.
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

    /// The events of reserved numbers are stored: shows them.
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

    /// The events of these numbers were not stored after all.
    pub fn abandon(&self, first: i64, count: usize) {
        let last = first + i64::try_from(count).unwrap_or(i64::MAX);
        self.ring().slots.retain(|slot| slot.seq < first || slot.seq >= last);
        self.notify();
    }

    /// Shows an event that is not to be stored; `make` gets its number.
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

    /// What memory has after `after` for a reader of `run`.
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

    /// What memory has after `after`, of whatever run.
    pub(super) fn buffered_of_thread(&self, after: i64) -> Buffered {
        self.ring().buffered(after)
    }

    /// Lets go of what readers can also read from the database, if no run is at work here. Those who still wait for
    /// pieces of answers get the answers instead.
    pub(super) fn evict(&self) {
        let mut ring = self.ring();
        if !ring.active {
            ring.slots = VecDeque::new();
            ring.floor = ring.next - 1;
        }
    }

    /// The number up to which everything is visible; none when that has to be asked of the database.
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

    /// Whether a run is at work here.
    pub(super) fn is_active(&self) -> bool {
        self.ring().active
    }

    /// Whether this run is at work here, or about to begin.
    pub(super) fn is_running(&self, run: RunId) -> bool {
        let ring = self.ring();
        ring.active && ring.run == Some(run)
    }

    /// Whether somebody waits for the log to grow.
    pub(super) fn has_readers(&self) -> bool {
        self.changes.receiver_count() > 0
    }

    /// Tells when the log has grown, or a run began or ended.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Has those who read look whether there is more.
    pub(super) fn wake(&self) {
        self.notify();
    }

    /// Has those who read look whether there is more, if another process is at work on the thread, or if this is another
    /// version of the thread than at the last look.
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
    /// What there is after `after`.
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

    /// Forgets the oldest events beyond [`CAPACITY`].
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
