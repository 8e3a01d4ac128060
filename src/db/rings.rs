//! What the server processes on one Postgres tell each other, so that nobody has to wait for his next look: a ring of the
//! bell that is heard once the transaction is durable. It carries an id and nothing else; who hears it looks. Rings may
//! get lost with a connection, so everybody looks now and then anyway. SQLite has one process, which needs no bell.

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

/// The name of the bell in the database.
const BELL: &str = "adjutant";
/// How many rings wait for a listener that is slow; it loses the oldest beyond.
pub(super) const UNHEARD: usize = 1024;
/// How long to wait after the connection broke.
const PAUSE: Duration = Duration::from_secs(1);
/// After how long without a ring it is looked whether the connection still answers.
const QUIET: Duration = Duration::from_secs(10);
/// How long the answer may take.
const TO_ANSWER: Duration = Duration::from_secs(10);

/// Something that another process may want to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// A run waits for its turn.
    Queue,
    /// This run shall stop.
    Cancel(RunId),
    /// A run has ended on this thread.
    Ended(ThreadId),
}

impl Ring {
    fn text(self) -> String {
        match self {
            Self::Queue => "queue".to_owned(),
            Self::Cancel(run) => format!("cancel {run}"),
            Self::Ended(thread) => format!("ended {thread}"),
        }
    }

    /// Reads a ring; a newer server may know others.
    fn read(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None => (text == "queue").then_some(Self::Queue),
            Some(("cancel", id)) => id.parse().ok().map(Self::Cancel),
            Some(("ended", id)) => id.parse().ok().map(Self::Ended),
            Some(_) => None,
        }
    }
}

/// Rings as soon as the transaction is durable; not at all if it is undone.
pub async fn ring(tx: &mut Tx<'_>, ring: Ring) -> DbResult<()> {
    const SQL: &str = "select pg_notify($1, $2)";
    match &mut tx.conn {
        Conn::Sqlite(_) => {}
        Conn::Postgres(conn) => {
            query(SQL).bind(BELL).bind(ring.text()).execute(&mut **conn).await?;
        }
    }
    Ok(())
}

/// Listens until the database is `closing`, and passes on what it hears.
pub(super) fn listen(
    pool: PgPool,
    rings: broadcast::Sender<Ring>,
    closing: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        while let Some(heard) = closing.run_until_cancelled(hear(&pool, &rings)).await {
            if let Err(error) = heard {
                tracing::warn!(%error, "cannot hear other servers for the moment");
            }
            closing.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
        }
    })
}

async fn hear(pool: &PgPool, rings: &broadcast::Sender<Ring>) -> Result<(), sqlx::Error> {
    // With a connection of its own: a listener that is dropped takes leave of the database, however long that takes, and
    // would keep a connection of the others meanwhile.
    let own = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(TO_ANSWER);
    let own = own.connect_lazy_with(PgConnectOptions::clone(&pool.connect_options()));
    let mut listener = PgListener::connect_with(&own).await?;
    // After a break it is not known what was missed.
    listener.eager_reconnect(false);
    listener.listen(BELL).await?;
    let _ = rings.send(Ring::Queue);
    loop {
        let Ok(heard) = timeout(QUIET, listener.try_recv()).await else {
            // To listen once more changes nothing, and has to be answered.
            let answers = timeout(TO_ANSWER, listener.listen(BELL)).await;
            answers.map_err(|_| sqlx::Error::PoolTimedOut)??;
            continue;
        };
        let Some(heard) = heard? else { return Ok(()) };
        if let Some(ring) = Ring::read(heard.payload()) {
            // Nobody may be listening yet.
            let _ = rings.send(ring);
        }
    }
}
