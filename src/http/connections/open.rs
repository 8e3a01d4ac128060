//! Which connections are open, and what each of them is doing.
//!
//! There are never more than the process has file descriptors for. When one more client connects, the connection that has
//! been idle for longest is closed in its favour; one with a request under way is closed only while the client still owes
//! the body of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The open connections. Cloning copies a pointer.
#[derive(Clone)]
pub(super) struct OpenConnections(Arc<Inner>);

struct Inner {
    max: usize,
    /// Counts what happens, so that it can be told what happened before what.
    ticks: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Activity>>>,
}

/// What one connection is doing.
#[derive(Default)]
struct Activity {
    /// Requests that are not answered to the end.
    requests: AtomicUsize,
    /// Those of them whose body has not come.
    receiving: AtomicUsize,
    /// Whether there was a request.
    used: AtomicBool,
    /// The moment since which it is idle.
    since: AtomicU64,
    close: Notify,
}

/// How well a connection can be spared; the smallest goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Spare {
    /// It never sent a request.
    Unused,
    /// It lies between two requests.
    Idle,
    /// The client owes the body of a request.
    Receiving,
}

impl OpenConnections {
    /// None is open, and never more than `max` will be.
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Inner {
            max: max.max(1),
            ticks: AtomicU64::new(0),
            open: Mutex::default(),
        }))
    }

    /// Takes a connection in; the one that can best be spared goes for it. None when all are busy.
    pub(super) fn admit(&self, peer: SocketAddr) -> Option<ConnectionHandle> {
        let has_room = self.lock().len() < self.0.max || self.close_one();
        if !has_room {
            return None;
        }
        let id = self.next_tick();
        let activity = Arc::new(Activity {
            since: AtomicU64::new(id),
            ..Activity::default()
        });
        self.lock().insert(id, Arc::clone(&activity));
        let connection = Connection {
            id,
            peer,
            activity,
            open: self.clone(),
        };
        Some(ConnectionHandle(Arc::new(connection)))
    }

    /// Closes the connection that can best be spared. False when all are busy.
    pub(super) fn close_one(&self) -> bool {
        let mut open = self.lock();
        let spared = open
            .iter()
            .filter_map(|(id, activity)| Some((activity.spare()?, *id)))
            .min();
        let Some((_, id)) = spared else { return false };
        if let Some(activity) = open.remove(&id) {
            activity.close.notify_one();
        }
        true
    }

    fn next_tick(&self) -> u64 {
        self.0.ticks.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Activity>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Activity {
    fn spare(&self) -> Option<(Spare, u64)> {
        let requests = self.requests.load(Ordering::Acquire);
        let receiving = self.receiving.load(Ordering::Acquire);
        let kind = match requests {
            0 if self.used.load(Ordering::Relaxed) => Spare::Idle,
            0 => Spare::Unused,
            _ if requests == receiving => Spare::Receiving,
            _ => return None,
        };
        Some((kind, self.since.load(Ordering::Relaxed)))
    }
}

/// A connection, open until its last handle is dropped.
#[derive(Clone)]
pub(in crate::http) struct ConnectionHandle(Arc<Connection>);

struct Connection {
    id: u64,
    peer: SocketAddr,
    activity: Arc<Activity>,
    open: OpenConnections,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.lock().remove(&self.id);
    }
}

impl ConnectionHandle {
    /// The other end.
    pub(super) fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// Waits until the connection has to go for another one.
    pub(super) async fn evicted(&self) {
        self.0.activity.close.notified().await;
    }

    /// Marks a request as under way.
    pub(in crate::http) fn begin(&self) -> RequestGuard {
        self.0.activity.used.store(true, Ordering::Relaxed);
        self.0.activity.requests.fetch_add(1, Ordering::AcqRel);
        RequestGuard(self.clone())
    }

    /// Marks the body of a request as awaited.
    pub(in crate::http) fn receive(&self) -> ReceiveGuard {
        self.0.activity.receiving.fetch_add(1, Ordering::AcqRel);
        ReceiveGuard(self.clone())
    }
}

/// Stands for a request that is under way.
pub(in crate::http) struct RequestGuard(ConnectionHandle);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let connection = &self.0.0;
        connection
            .activity
            .since
            .store(connection.open.next_tick(), Ordering::Relaxed);
        connection.activity.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Stands for the body of a request that is awaited.
pub(in crate::http) struct ReceiveGuard(ConnectionHandle);

impl Drop for ReceiveGuard {
    fn drop(&mut self) {
        self.0.0.activity.receiving.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How many connections fit beside what else needs file descriptors: the database, models, tools and files.
///
/// A quarter of a thousand descriptors is left for these, or half of what there is, if that is less.
pub fn max_for_descriptors() -> usize {
    /// Left for everything but connections of clients.
    const RESERVE: u64 = 256;
    /// Where there is no limit: as many as one process serves well.
    const MOST: u64 = 65_536;
    let limit = descriptor_limit().unwrap_or(MOST);
    let max = limit.saturating_sub(RESERVE.min(limit / 2)).clamp(1, MOST);
    usize::try_from(max).unwrap_or(usize::MAX)
}

#[cfg(target_os = "linux")]
fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(target_os = "linux"))]
fn descriptor_limit() -> Option<u64> {
    /// What most systems give a process.
    const USUAL: u64 = 1024;
    Some(USUAL)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn peer() -> SocketAddr {
        "192.0.2.1:1".parse().unwrap()
    }

    fn is_closed(connection: &ConnectionHandle) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    #[test]
    fn one_more_connection_takes_the_place_of_the_one_that_can_best_be_spared() {
        let open = OpenConnections::new(3);
        let used = open.admit(peer()).unwrap();
        let silent = open.admit(peer()).unwrap();
        let busy = open.admit(peer()).unwrap();
        drop(used.begin());
        let _request = busy.begin();
        let fourth = open.admit(peer()).unwrap();
        assert!(is_closed(&silent), "it never said anything");
        drop(silent);
        let _request_of_fourth = fourth.begin();
        let fifth = open.admit(peer()).unwrap();
        assert!(is_closed(&used), "it lay between two requests");
        let _request_of_fifth = fifth.begin();
        assert!(open.admit(peer()).is_none(), "all are busy");
        let receiving = fifth.receive();
        let _sixth = open.admit(peer()).unwrap();
        assert!(is_closed(&fifth), "its client owes a body");
        drop(receiving);
        assert!(!is_closed(&busy));
    }

    #[test]
    fn a_connection_that_ends_makes_room() {
        let open = OpenConnections::new(1);
        let first = open.admit(peer()).unwrap();
        let request = first.begin();
        assert!(open.admit(peer()).is_none());
        drop((first, request));
        assert!(open.admit(peer()).is_some());
        assert!(open.lock().is_empty());
    }
}
