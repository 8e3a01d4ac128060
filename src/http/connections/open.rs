//! The set of open connections, and which of them may be evicted.
//!
//! The number of connections is limited by the file descriptors of the process. When another client connects, the
//! connection that has been idle for longest is closed. A connection with a running request is closed only while its
//! client still has to send the body.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// The open connections. Cloning copies a pointer.
#[derive(Clone)]
pub(super) struct OpenConnections(Arc<Inner>);

struct Inner {
    max: usize,
    /// A logical clock that orders the activity of connections.
    ticks: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Activity>>>,
}

/// The activity of one connection.
#[derive(Default)]
struct Activity {
    /// The number of requests that are not yet answered completely.
    requests: AtomicUsize,
    /// The number of these requests whose body has not arrived.
    receiving: AtomicUsize,
    /// True if the client has sent a request.
    used: AtomicBool,
    /// The logical time since which the connection is idle.
    since: AtomicU64,
    close: Notify,
}

/// The kinds of connections that may be evicted, first ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Evictable {
    /// The client never sent a request.
    Unused,
    /// The connection is between two requests.
    Idle,
    /// The client still has to send the body of a request.
    Receiving,
}

impl OpenConnections {
    /// Creates an empty set of up to `max` connections.
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Inner {
            max: max.max(1),
            ticks: AtomicU64::new(0),
            open: Mutex::default(),
        }))
    }

    /// Adds a connection, evicting another one if necessary. `None` if all are busy.
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

    /// Evicts one connection. False if all are busy.
    pub(super) fn close_one(&self) -> bool {
        let mut open = self.lock();
        let spared = open
            .iter()
            .filter_map(|(id, activity)| Some((activity.evictable()?, *id)))
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
    fn evictable(&self) -> Option<(Evictable, u64)> {
        let requests = self.requests.load(Ordering::Acquire);
        let receiving = self.receiving.load(Ordering::Acquire);
        let kind = match requests {
            0 if self.used.load(Ordering::Relaxed) => Evictable::Idle,
            0 => Evictable::Unused,
            _ if requests == receiving => Evictable::Receiving,
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
    /// The address of the client.
    pub(super) fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.0.activity.close.notified().await;
    }

    /// Waits until the connection has been open for `limit` without a request; for ever if there is one by then.
    pub(super) async fn unused_for(&self, limit: Duration) {
        tokio::time::sleep(limit).await;
        if self.0.activity.used.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Marks a request as running.
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

/// A running request.
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

/// A request body that is awaited.
pub(in crate::http) struct ReceiveGuard(ConnectionHandle);

impl Drop for ReceiveGuard {
    fn drop(&mut self) {
        self.0.0.activity.receiving.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The number of connections that leaves enough file descriptors for the database, models, tools and files.
///
/// These get a quarter of a thousand descriptors, or half of the limit if that is less.
pub fn max_for_descriptors() -> usize {
    /// The descriptors that are not for client connections.
    const RESERVE: u64 = 256;
    /// The number of connections if there is no limit.
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
    /// The usual limit of a process.
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
    fn a_new_connection_evicts_an_unused_then_an_idle_then_a_receiving_one() {
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
    fn a_closed_connection_frees_its_slot() {
        let open = OpenConnections::new(1);
        let first = open.admit(peer()).unwrap();
        let request = first.begin();
        assert!(open.admit(peer()).is_none());
        drop((first, request));
        assert!(open.admit(peer()).is_some());
        assert!(open.lock().is_empty());
    }
}
