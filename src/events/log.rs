//! The newest part of a thread's log, in memory.
//!
//! While a run is active in this process, only this process numbers the events of the thread. Stored events get their
//! number before they are stored and become visible afterwards; chunks of answers are visible at once. A reader never
//! passes a number that is not visible yet, so the order is the same for all readers.
//!
//! While a run is active in another process, [`ThreadLog::follow`] adds the chunks that the process has sent, and marks
//! which numbers are stored: readers read those from the database, in the same order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::open_answers::OpenAnswers;
use super::slot::{Slot, SlotContent};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{Event, EventBody, Fact};
use crate::domain::id::RunId;

/// The number of events in memory. Readers that fall further behind read stored events, without the chunks of answers.
const CAPACITY: usize = 1024;
/// The number of events after which those who wait for the end of a run are woken, too. They read them before memory drops them:
/// it has room for twice as many, see [`CAPACITY`].
const WAKE_EVERY: i64 = 512;
/// The time for which readers rely on the process that has sent the last chunk, instead of polling the database.
const POLLING_PAUSE: Duration = Duration::from_secs(2);

/// The newest part of one thread's log.
pub struct ThreadLog {
    // A std mutex, since no task waits while it is held.
    ring: Mutex<RingBuffer>,
    // It carries no events: a reader only needs to know that there is more.
    changes: Arc<Notify>,
    /// For readers that wait for the end of a run: they are woken by fewer changes.
    ends: Arc<Notify>,
    /// The version of the thread at the last check for changes by other processes.
    version: AtomicI64,
    /// True if the other processes know that readers here wait for chunks.
    announced: AtomicBool,
    /// Wakes the task that announces it.
    wanted: Arc<Notify>,
}

#[derive(Default)]
struct RingBuffer {
    /// True if a run is active here, or about to start.
    active: bool,
    /// The number of runs that were active here; only the last of them may end the activity.
    holder: u64,
    /// The run that is, or was last, active here.
    run: Option<RunId>,
    /// True if the run is about to start and has no events yet.
    expected: bool,
    /// True if the run may number events.
    open: bool,
    /// The run that started here from the beginning, and the number before its first event.
    started: Option<(RunId, i64)>,
    /// The number of the next event.
    next: i64,
    /// The number up to which all events are stored, or were volatile.
    floor: i64,
    slots: VecDeque<Slot>,
    /// The beginnings of the answers that were being given at `floor`.
    begun: OpenAnswers,
    /// The time of the last events of another process, if the newest ones are of another process.
    followed: Option<Instant>,
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
        Self::new(Arc::default())
    }
}

impl ThreadLog {
    /// Creates an empty log. It notifies `wanted` when readers wait for chunks of other processes.
    pub(super) fn new(wanted: Arc<Notify>) -> Self {
        Self {
            ring: Mutex::default(),
            changes: Arc::default(),
            ends: Arc::default(),
            version: AtomicI64::new(i64::MIN),
            announced: AtomicBool::new(false),
            wanted,
        }
    }

    /// Announces a run, so that its readers wait for it instead of polling the database; `fresh` for a run that has
    /// never started. Returns the holder for [`ThreadLog::close`].
    pub fn expect_run(&self, run: RunId, fresh: bool) -> u64 {
        let mut ring = self.ring();
        if ring.followed.is_some() {
            // Entries that another process has sent are not in the log of this one.
            *ring = RingBuffer {
                holder: ring.holder,
                ..RingBuffer::default()
            };
        }
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
            begun: OpenAnswers::default(),
            followed: None,
        };
        drop(ring);
        self.notify();
    }

    /// Returns true if the active run may number events: [`ThreadLog::open`] was called.
    pub fn is_open(&self) -> bool {
        self.ring().open
    }

    /// Ends the activity of the run with this `holder`. The events in memory stay for readers, unless some were being stored.
    /// Has no effect if the next run was already announced.
    pub fn close(&self, holder: u64) {
        let mut ring = self.ring();
        if ring.holder != holder {
            return;
        }
        ring.active = false;
        ring.expected = false;
        if ring.slots.iter().any(Slot::is_reserved) {
            // The run was left while it stored these. Readers find in the database which of them are stored.
            ring.evict();
        }
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
            ring.slots.push_back(Slot {
                seq,
                content: SlotContent::Reserved,
            });
        }
        first
    }

    /// Makes stored events with reserved numbers visible.
    pub fn publish(&self, events: impl IntoIterator<Item = Arc<Event>>) {
        let mut ring = self.ring();
        let mut wakes_all = false;
        for event in events {
            wakes_all |= wakes_at_end(&event);
            if let Ok(at) = ring.slots.binary_search_by_key(&event.seq, |slot| slot.seq) {
                ring.slots[at].content = SlotContent::Visible(event);
            }
        }
        ring.trim();
        drop(ring);
        self.notify_some(wakes_all);
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
        let event = make(seq);
        let wakes_all = wakes_at_end(&event);
        ring.slots.push_back(Slot {
            seq,
            content: SlotContent::Visible(Arc::new(event)),
        });
        ring.trim();
        drop(ring);
        self.notify_some(wakes_all);
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

    /// The pieces of the answers of `run` that were being given after the event `at`, from their beginnings; `None` if
    /// memory does not reach to there.
    pub(super) fn answers_at(&self, run: RunId, at: i64) -> Option<Vec<Arc<Event>>> {
        let ring = self.ring();
        if ring.expected || at < ring.floor || at >= ring.next {
            return None;
        }
        let mut answers = ring.begun.clone();
        let upto = ring.slots.partition_point(|slot| slot.seq <= at);
        ring.slots.range(..upto).for_each(|slot| answers.add(&slot.content));
        drop(ring);
        Some(answers.into_events(run))
    }

    /// Adds the events with the numbers after `after` up to `upto`, which another process has sent. Numbers without a
    /// slot were never used. Has no effect while a run is active here. Pieces of answers wake nobody who waits for the end of a
    /// run; a stored event does, since it may be that end.
    ///
    /// If events before `after` are missing, readers continue with the stored ones up to there.
    pub(super) fn follow(&self, after: i64, upto: i64, slots: impl IntoIterator<Item = Slot>) {
        let mut ring = self.ring();
        if ring.active {
            return;
        }
        // Events that are missing may have been stored.
        let mut wakes_all = ring.next == 0 || after >= ring.next;
        if wakes_all {
            *ring = RingBuffer {
                holder: ring.holder,
                next: after + 1,
                floor: after,
                ..RingBuffer::default()
            };
        }
        ring.followed = Some(Instant::now());
        let known = ring.next;
        for slot in slots.into_iter().filter(|slot| slot.seq >= known) {
            wakes_all |= matches!(slot.content, SlotContent::Stored(_));
            ring.slots.push_back(slot);
        }
        ring.next = known.max(upto + 1);
        ring.trim();
        drop(ring);
        self.notify_some(wakes_all);
    }

    /// Prepares for events that another process sends again from the number `after` on: if events before those in memory
    /// are among them, they replace what is in memory. Has no effect while a run is active here.
    pub(super) fn follow_again(&self, after: i64) {
        let mut ring = self.ring();
        if ring.active || ring.next == 0 || after >= ring.floor {
            return;
        }
        *ring = RingBuffer {
            holder: ring.holder,
            next: after + 1,
            floor: after,
            followed: ring.followed,
            ..RingBuffer::default()
        };
    }

    /// Returns true if another process sends the newest events, so that readers need not poll the database.
    pub(super) fn is_followed(&self) -> bool {
        self.reliance().is_some()
    }

    /// Returns for how much longer readers rely on another process that sends the newest events; none if no process
    /// does.
    pub(super) fn reliance(&self) -> Option<Duration> {
        let followed = self.ring().followed?;
        let left = POLLING_PAUSE.checked_sub(followed.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// Has the other processes know that readers here wait for chunks, unless they know.
    pub(super) fn want_chunks(&self) {
        if !self.announced.load(Ordering::Relaxed) {
            self.wanted.notify_one();
        }
    }

    /// Sets whether the other processes know that readers here wait for chunks. Returns whether they did before.
    pub(super) fn set_announced(&self, announced: bool) -> bool {
        self.announced.swap(announced, Ordering::Relaxed)
    }

    /// Frees events that readers can read from the database, if no run is active here. Readers that still wait for
    /// chunks of answers get the whole answers instead.
    pub(super) fn evict(&self) {
        let mut ring = self.ring();
        if !ring.active && ring.followed.is_none() {
            ring.evict();
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
            .find(|slot| slot.is_reserved())
            .map_or(ring.next, |slot| slot.seq);
        Some(expected - 1)
    }

    /// Returns true if a run is active here.
    pub(super) fn is_active(&self) -> bool {
        self.ring().active
    }

    /// Returns true if this run is active here, or about to start.
    pub(super) fn is_running(&self, run: RunId) -> bool {
        let ring = self.ring();
        ring.active && ring.run == Some(run)
    }

    /// Returns true if a reader waits for changes.
    pub(super) fn has_readers(&self) -> bool {
        Arc::strong_count(&self.changes) > 1 || Arc::strong_count(&self.ends) > 1
    }

    /// Returns a future of the next change after this call: new events, and the start and end of runs.
    pub(super) fn next_change(&self) -> OwnedNotified {
        Arc::clone(&self.changes).notified_owned()
    }

    /// Returns a future of the next change after this call that concerns a reader which waits for the end of a run: the start
    /// and end of the main agent, and of runs here, and what other processes store. Of the other events of a run here, one in
    /// [`WAKE_EVERY`] is such a change.
    pub(super) fn next_end(&self) -> OwnedNotified {
        Arc::clone(&self.ends).notified_owned()
    }

    /// Wakes all readers, which look into the database: a run has ended in another process.
    pub(super) fn wake(&self) {
        self.ring().followed = None;
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
        self.notify_some(true);
    }

    /// Wakes the readers, but those who wait for the end of a run only if the change `wakes_all`.
    fn notify_some(&self, wakes_all: bool) {
        self.changes.notify_waiters();
        if wakes_all {
            self.ends.notify_waiters();
        }
    }

    fn ring(&self) -> MutexGuard<'_, RingBuffer> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether an event wakes those who wait for the end of a run: the main agent starts or ends with it, or they have many
/// to read. At the start they read the state at which the run begins, which may be gone or deleted at its end.
fn wakes_at_end(event: &Event) -> bool {
    let is_edge = matches!(event.body, EventBody::Fact(Fact::Started { .. } | Fact::Ended { .. }));
    is_edge && event.origin.lane == Lane::Main || event.seq % WAKE_EVERY == 0
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
        let is_stored = |slot: &&Slot| matches!(slot.content, SlotContent::Stored(_));
        if let Some(last) = self.slots.range(from..).take_while(is_stored).last() {
            return Buffered::Stored(Some(last.seq));
        }
        let visible = self.slots.range(from..).map_while(|slot| match &slot.content {
            SlotContent::Visible(event) => Some(Arc::clone(event)),
            SlotContent::Reserved | SlotContent::Stored(_) => None,
        });
        Buffered::Events(visible.collect())
    }

    /// Drops all events: readers read the stored ones from the database.
    fn evict(&mut self) {
        self.slots = VecDeque::new();
        self.begun = OpenAnswers::default();
        self.floor = self.next - 1;
    }

    /// Drops the oldest events beyond [`CAPACITY`], but for the texts of answers that go on.
    fn trim(&mut self) {
        while self.slots.len() > CAPACITY && self.slots.front().is_some_and(|slot| !slot.is_reserved()) {
            if let Some(slot) = self.slots.pop_front() {
                self.begun.join(&slot.content);
                self.floor = slot.seq;
            }
        }
    }
}

#[cfg(test)]
mod tests;
