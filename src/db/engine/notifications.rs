//! Notifications between the servers on one Postgres (`LISTEN`/`NOTIFY`), so that they react before their next poll.
//!
//! A notification is sent when its transaction commits. It carries only an id: the receiver reads the rest from the
//! database. Notifications can be lost with a connection, so every receiver also polls, though rarely. A SQLite database
//! has one server, which needs no notifications.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, Connection};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::error::DbResult;
use super::hosts::PostgresHosts;
use super::live_notice::{LiveAddress, LiveNotice};
use super::reachability::{Reachability, check_writable, warn_of};
use super::session_lock::{HeldLock, SessionLock};
use super::settings::DbLimits;
use super::{Engine, PostgresPool, Tx};
use crate::domain::id::{RunId, ThreadId};

/// The name of the channel in the database.
const CHANNEL: &str = "adjutant";
/// The number of notifications buffered for a slow receiver; beyond it, the receiver loses the oldest.
pub(in crate::db) const CAPACITY: usize = 1024;
/// The delay before reconnecting after the connection broke.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// The time without notifications after which the connection is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The timeout for connecting and for that check.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A notification to the other servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    /// A run is pending.
    Queue,
    /// The cancellation of this run was requested.
    Cancel(RunId),
    /// A run has ended on this thread.
    Ended(ThreadId),
    /// A process that stops has given runs back.
    Released,
    /// A process that does no jobs has scheduled some, or caused facts because of which jobs are due.
    Jobs,
    /// A client has changed the definition of an agent.
    Definitions,
}

impl Notification {
    fn text(self) -> String {
        match self {
            Self::Queue => "queue".to_owned(),
            Self::Released => "released".to_owned(),
            Self::Jobs => "jobs".to_owned(),
            Self::Definitions => "definitions".to_owned(),
            Self::Cancel(run) => format!("cancel {run}"),
            Self::Ended(thread) => format!("ended {thread}"),
        }
    }

    /// Parses a notification; none if it is unknown, such as a notification of a newer release.
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None if text == "queue" => Some(Self::Queue),
            None if text == "released" => Some(Self::Released),
            None if text == "jobs" => Some(Self::Jobs),
            None if text == "definitions" => Some(Self::Definitions),
            Some(("cancel", id)) => id.parse().ok().map(Self::Cancel),
            Some(("ended", id)) => id.parse().ok().map(Self::Ended),
            None | Some(_) => None,
        }
    }
}

/// Sends a notification when the transaction commits. Nothing is sent if the transaction is rolled back.
pub async fn notify(tx: &mut Tx<'_>, notify: Notification) -> DbResult<()> {
    const SQL: &str = "select pg_notify($1, $2)";
    match tx.engine() {
        Engine::Sqlite => Ok(()),
        Engine::Postgres => {
            let statement = tx.statement(SQL).bind(CHANNEL).bind(notify.text());
            statement.execute_later().await
        }
    }
}

/// The parts of the listener.
#[derive(Clone)]
pub(in crate::db) struct Listening {
    /// The sender of the notifications that the listener receives.
    pub(in crate::db) notifications: broadcast::Sender<Notification>,
    /// The sender of the live notices that the listener receives.
    pub(in crate::db) live: broadcast::Sender<LiveNotice>,
    /// The address of this process for live notices.
    pub(in crate::db) live_address: LiveAddress,
    /// The lock that the listener holds.
    pub(in crate::db) session_lock: watch::Sender<Option<SessionLock>>,
    /// The reachability of the database, which the listener finds out.
    pub(in crate::db) reach: Arc<Reachability>,
}

/// The servers to which a listener connects.
pub(in crate::db) struct ListenerTargets {
    /// Postgres itself, for the connection that listens.
    pub(in crate::db) direct: Arc<PostgresHosts>,
    /// The pool of the other connections, which may lead to a pooler. The database is in reach only if both are.
    pub(in crate::db) pool: PostgresPool,
}

impl ListenerTargets {
    /// Makes a connection to each, and so finds the hosts that take writes.
    async fn check_reach(&self, limits: DbLimits) -> DbResult<()> {
        let pooler = Some(&self.pool.hosts).filter(|hosts| !Arc::ptr_eq(hosts, &self.direct));
        for hosts in pooler.into_iter().chain([&self.direct]) {
            let conn = hosts.connect(limits).await?;
            conn.close().await?;
        }
        Ok(())
    }
}

/// Listens until the database is `closing`, and forwards what arrives. The connection also holds the lock by which other
/// processes know that this one is alive.
pub(in crate::db) fn listen(
    targets: ListenerTargets,
    listening: Listening,
    limits: DbLimits,
    closing: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        while let Some(ended) = closing
            .run_until_cancelled(connect_and_forward(&targets, &listening, limits))
            .await
        {
            if let Err(error) = ended {
                warn_of!(
                    error,
                    "LISTEN failed: no notifications from other servers until the next attempt"
                );
            }
            closing.run_until_cancelled(tokio::time::sleep(RECONNECT_DELAY)).await;
        }
    })
}

/// Forwards notifications if a connection can be made, until it breaks.
async fn connect_and_forward(targets: &ListenerTargets, listening: &Listening, limits: DbLimits) -> DbResult<()> {
    // Without a pool, which would retry until its timeout and then report nothing else.
    if let Err(error) = look_for_hosts(targets, listening, limits).await {
        listening.reach.record_unreachable(&error);
        return Ok(());
    }
    listening.reach.record_reachable();
    let ended = forward(targets, listening, limits).await;
    listening.reach.connection_is_lost();
    ended
}

/// Looks which hosts take writes, and has new connections lead to them.
async fn look_for_hosts(targets: &ListenerTargets, listening: &Listening, limits: DbLimits) -> DbResult<()> {
    let hosts = &targets.pool.hosts;
    let before = hosts.latest_index();
    let looked = targets.check_reach(limits).await;
    targets.pool.follow_host();
    if hosts.latest_index() != before {
        tracing::info!(host = %hosts.latest_name(), "connections to the database lead to another host");
    }
    listening.reach.record_host_lookup();
    looked
}

/// Looks again while the listener is connected. If no host can be used, its connection may still lead to one that takes
/// writes, as when the server has no more connections: it is kept, with its lock, and another look follows.
async fn look_again(
    targets: &ListenerTargets,
    listening: &Listening,
    limits: DbLimits,
    listener: &mut PgListener,
) -> DbResult<()> {
    let reach = &listening.reach;
    let Err(error) = look_for_hosts(targets, listening, limits).await else {
        if reach.is_out_of_reach() {
            reach.record_reachable();
        }
        return Ok(());
    };
    let still_takes_writes = async {
        let conn = listener.acquire().await?;
        check_writable(conn, targets.direct.target).await
    };
    match timeout(ANSWER_TIMEOUT, still_takes_writes).await {
        Ok(Ok(())) => {
            reach.record_unreachable(&error);
            reach.want_look();
            Ok(())
        }
        Ok(Err(_)) | Err(_) => Err(error),
    }
}

/// Forwards notifications until the connection breaks, or the other connections lead to another host.
async fn forward(targets: &ListenerTargets, listening: &Listening, limits: DbLimits) -> DbResult<()> {
    let host = targets.direct.latest_index();
    // A pool of its own: a dropped listener sends `UNLISTEN` without a timeout, and would occupy a shared connection
    // meanwhile.
    let own = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(ANSWER_TIMEOUT);
    let own = own.connect_lazy_with(targets.direct.latest_options());
    let mut listener = PgListener::connect_with(&own).await?;
    // A reconnect must not go unnoticed: notifications may have been missed.
    listener.eager_reconnect(false);
    let live_channels = listening.live_address.channels();
    let channels = [CHANNEL].into_iter().chain(live_channels.iter().map(String::as_str));
    listener.listen_all(channels).await?;
    let _held = HeldLock::take(&mut listener, &listening.session_lock).await?;
    for missed in [Notification::Queue, Notification::Jobs, Notification::Definitions] {
        let _ = listening.notifications.send(missed);
    }
    let _ = listening.live.send(LiveNotice::Connected);
    let mut check_at = Instant::now() + CHECK_INTERVAL;
    loop {
        // A look does not put off the check: it is made with other connections.
        let received = tokio::select! {
            received = timeout_at(check_at, listener.try_recv()) => received,
            () = listening.reach.look_is_wanted() => {
                look_again(targets, listening, limits, &mut listener).await?;
                if targets.direct.latest_index() != host {
                    return Ok(());
                }
                continue;
            }
        };
        check_at = Instant::now() + CHECK_INTERVAL;
        let Ok(received) = received else {
            // A second `LISTEN` changes nothing, but the database must answer it.
            let answers = timeout(ANSWER_TIMEOUT, listener.listen(CHANNEL)).await;
            answers.map_err(|_| sqlx::Error::PoolTimedOut)??;
            continue;
        };
        let Some(notification) = received? else { return Ok(()) };
        // An error of sending only means that there is no receiver yet.
        if let Some(notice) = LiveNotice::of(notification.channel(), notification.payload()) {
            let _ = listening.live.send(notice);
        } else if let Some(notify) = Notification::parse(notification.payload()) {
            let _ = listening.notifications.send(notify);
        }
    }
}
