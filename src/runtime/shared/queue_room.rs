//! The room in the queue of runs.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::db::{self, Db, RowAccess};
use crate::runtime::error::StartError;

/// The time after which a full queue is counted again.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The free places in the queue, as far as they have been counted.
#[derive(Debug)]
pub(in crate::runtime) struct QueueRoom {
    most: u64,
    counted: Mutex<QueueCount>,
}

#[derive(Debug, Default)]
struct QueueCount {
    /// The number of queued runs at the last count.
    waiting: Option<u64>,
    /// The number of runs admitted since. Some of them have begun meanwhile.
    since: u64,
    /// The time until which the queue counts as full.
    full_until: Option<Instant>,
}

/// The room that is known without counting.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Enough,
    None,
    Unknown,
}

impl QueueRoom {
    pub(in crate::runtime) fn new(most: u64) -> Self {
        Self {
            most,
            counted: Mutex::default(),
        }
    }

    /// Takes the places of `wanted` runs, if that many places are known to be free.
    fn take(&self, wanted: u64, now: Instant) -> Room {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.full_until.is_some_and(|until| now < until) {
            return Room::None;
        }
        let since = counted.since.saturating_add(wanted);
        match counted.waiting {
            Some(waiting) if since <= self.most / 10 && waiting.saturating_add(since) <= self.most => {
                counted.since = since;
                Room::Enough
            }
            Some(_) | None => Room::Unknown,
        }
    }

    /// Stores the number of waiting runs, and takes the places of `wanted` more. Returns false if there are too few
    /// places.
    fn recount(&self, waiting: u64, wanted: u64, now: Instant) -> bool {
        let has_room = waiting.saturating_add(wanted) <= self.most;
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = QueueCount {
            waiting: Some(waiting),
            since: if has_room { wanted } else { 0 },
            full_until: (!has_room).then(|| now + COUNT_INTERVAL),
        };
        has_room
    }

    /// Reserves room for `wanted` runs in the queue.
    ///
    /// # Errors
    /// [`StartError::QueueFull`] when there are too few places.
    pub(in crate::runtime) async fn take_places(&self, db: &Db, wanted: usize) -> Result<(), StartError> {
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        match self.take(wanted, Instant::now()) {
            Room::Enough => Ok(()),
            Room::None => Err(StartError::QueueFull(self.most)),
            Room::Unknown => {
                let most = i64::try_from(self.most).unwrap_or(i64::MAX);
                let read = db.read(move |tx| Box::pin(db::runs::count_pending(tx, most)));
                // The bound is one of all tenants together.
                let waiting = RowAccess::Server.scope(read).await?;
                match self.recount(waiting, wanted, Instant::now()) {
                    true => Ok(()),
                    false => Err(StartError::QueueFull(self.most)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_again_after_a_tenth_and_when_it_seems_full() {
        let queue = QueueRoom::new(100);
        let now = Instant::now();
        assert_eq!(queue.take(1, now), Room::Unknown);
        assert!(queue.recount(85, 1, now));
        for _ in 0..9 {
            assert_eq!(queue.take(1, now), Room::Enough);
        }
        assert_eq!(queue.take(1, now), Room::Unknown, "a tenth was admitted since");
        assert!(queue.recount(96, 1, now));
        assert_eq!(queue.take(3, now), Room::Enough);
        assert_eq!(queue.take(1, now), Room::Unknown, "it seems full");
        assert!(!queue.recount(100, 1, now));
        assert_eq!(queue.take(1, now), Room::None, "and is not counted for each request");
        assert_eq!(queue.take(1, now + COUNT_INTERVAL), Room::Unknown);
        assert!(queue.recount(7, 1, now));
    }
}
