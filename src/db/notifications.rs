//! Notifications between the servers on one Postgres (`LISTEN`/`NOTIFY`), so that they react before their next poll.
//!
//! A notification is sent when its transaction commits. It carries only an id: the receiver reads the rest from the
//! database. Notifications can be lost with a connection, so every receiver also polls. A SQLite database has one
//! server, which needs no notifications.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{PgPool, query};
use tokio::sync::broadcast;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::engine::{Conn, Tx};
use super::error::DbResult;
use crate::domain::id::{RunId, ThreadId};

/// The name of the channel in the database.
const CHANNEL: &str = "adjutant";
/// The number of notifications buffered for a slow receiver; beyond it, the receiver loses the oldest.
pub(super) const CAPACITY: usize = 1024;
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
}

impl Notification {
    fn text(self) -> String {
        match self {
            Self::Queue => "queue".to_owned(),
            Self::Cancel(run) => format!("cancel {run}"),
            Self::Ended(thread) => format!("ended {thread}"),
        }
    }

    /// Parses a notification; none if it is unknown, such as a notification of a newer release.
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None => (text == "queue").then_some(Self::Queue),
            Some(("cancel", id)) => id.parse().ok().map(Self::Cancel),
            Some(("ended", id)) => id.parse().ok().map(Self::Ended),
            Some(_) => None,
        }
    }
}

/// Sends a notification when the transaction commits. Nothing is sent if the transaction is rolled back.
pub async fn notify(tx: &mut Tx<'_>, notify: Notification) -> DbResult<()> {
    const SQL: &str = "select pg_notify($1, $2)";
    match &mut tx.conn {
        Conn::Sqlite(_) => {}
        Conn::Postgres(conn) => {
            query(SQL)
                .bind(CHANNEL)
                .bind(notify.text())
                .execute(&mut **conn)
                .await?;
        }
    }
    Ok(())
}

/// Listens until the database is `closing`, and forwards notifications to `notifications`.
pub(super) fn listen(
    pool: PgPool,
    notifications: broadcast::Sender<Notification>,
    closing: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        while let Some(ended) = closing.run_until_cancelled(forward(&pool, &notifications)).await {
            if let Err(error) = ended {
                tracing::warn!(%error, "LISTEN failed: no notifications from other servers until the next attempt");
            }
            closing.run_until_cancelled(tokio::time::sleep(RECONNECT_DELAY)).await;
        }
    })
}

/// Forwards notifications until the connection breaks.
async fn forward(pool: &PgPool, notifications: &broadcast::Sender<Notification>) -> Result<(), sqlx::Error> {
    // A pool of its own: a dropped listener sends `UNLISTEN` without a timeout, and would occupy a shared connection
    // meanwhile.
    let own = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(ANSWER_TIMEOUT);
    let own = own.connect_lazy_with(PgConnectOptions::clone(&pool.connect_options()));
    let mut listener = PgListener::connect_with(&own).await?;
    // A reconnect must not go unnoticed: notifications may have been missed.
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    let _ = notifications.send(Notification::Queue);
    loop {
        let Ok(received) = timeout(CHECK_INTERVAL, listener.try_recv()).await else {
            // A second `LISTEN` changes nothing, but the database must answer it.
            let answers = timeout(ANSWER_TIMEOUT, listener.listen(CHANNEL)).await;
            answers.map_err(|_| sqlx::Error::PoolTimedOut)??;
            continue;
        };
        let Some(notification) = received? else { return Ok(()) };
        if let Some(notify) = Notification::parse(notification.payload()) {
            // An error only means that there is no receiver yet.
            let _ = notifications.send(notify);
        }
    }
}
