//! Live notices between the servers on one Postgres (`NOTIFY`): chunks of answers, and who wants them.
//!
//! Chunks are not stored, and neither are these notices. They can be lost with a connection, and their receivers cope
//! with that. [`crate::events::live`] says what the texts mean.
//!
//! Every role that may connect to a database can listen there. So with master keys the chunks are sealed like stored
//! values, and bound to their thread and their place in its log.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use sqlx::{QueryBuilder, query, query_scalar};
use uuid::Uuid;

use super::codec::json::ColumnRef;
use super::engine::{Conn, LIVE_CHANNEL, LiveAddress, on_engine, sealing};
use super::{Db, DbResult, Tx};
use crate::domain::id::ThreadId;

/// Sends a text to this process, or to all. A payload is shorter than 8,000 bytes.
///
/// # Errors
/// If the database fails.
pub async fn send(tx: &mut Tx<'_>, notices: Vec<(Option<LiveAddress>, String)>) -> DbResult<()> {
    const SQL: &str =
        "select pg_notify(channel, payload) from unnest($1::text[], $2::text[]) as notice (channel, payload)";
    let Conn::Postgres(conn) = &mut tx.conn else {
        return Ok(());
    };
    let channel = |address: Option<LiveAddress>| address.map_or_else(|| LIVE_CHANNEL.to_owned(), LiveAddress::channel);
    let (channels, payloads): (Vec<String>, Vec<String>) =
        notices.into_iter().map(|(to, payload)| (channel(to), payload)).unzip();
    // Commits that notify wait for each other, so this one must not wait for the disk.
    query("set local synchronous_commit = off").execute(&mut *conn).await?;
    query(SQL).bind(channels).bind(payloads).execute(&mut *conn).await?;
    Ok(())
}

/// Returns the tenants of threads that exist.
///
/// # Errors
/// If the database fails.
pub async fn tenants_of(tx: &mut Tx<'_>, threads: &[ThreadId]) -> DbResult<HashMap<ThreadId, String>> {
    let found: Vec<(Uuid, String)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select thread_id, tenant from threads where thread_id in (");
        let mut list = sql.separated(", ");
        for thread in threads {
            list.push_bind(thread.0);
        }
        sql.push(")");
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(found.into_iter().map(|(id, tenant)| (ThreadId(id), tenant)).collect())
}

/// Returns the name of the database for messages between servers: all servers on one database have the same name, and
/// each database has another name.
///
/// # Errors
/// If the database fails.
pub async fn database_name(tx: &mut Tx<'_>) -> DbResult<String> {
    const IDENTITY: &str = "select system_identifier || '/' || (select oid from pg_database where datname = \
        current_database()) from pg_control_system()";
    const MAY_ASK: &str = "select has_function_privilege('pg_control_system()', 'execute')";
    const NAME: &str = "select current_database()::text";
    let Conn::Postgres(conn) = &mut tx.conn else {
        return Ok("sqlite".to_owned());
    };
    let may_ask: bool = query_scalar(MAY_ASK).fetch_one(&mut *conn).await?;
    let identity: String = match may_ask {
        true => query_scalar(IDENTITY).fetch_one(&mut *conn).await?,
        // Not every rented Postgres says which one it is.
        false => query_scalar(NAME).fetch_one(&mut *conn).await?,
    };
    let digest = Sha256::digest(identity.as_bytes());
    Ok(hex::encode(&digest[..8]))
}

/// The place of chunks in the log of a thread: after a number, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRange {
    /// The thread.
    pub thread: ThreadId,
    /// The number before the first.
    pub after: i64,
    /// The number of the last.
    pub upto: i64,
}

impl ChunkRange {
    /// Returns the text to which sealed chunks are bound.
    fn bound_id(self) -> String {
        format!("{}:{}:{}", self.thread, self.after, self.upto)
    }
}

fn cell(id: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: "live",
        column: "chunks",
        id,
    }
}

/// Seals the text of chunks for a tenant; without encryption, leaves it plain.
///
/// # Errors
/// If the database or the encryption fails.
pub async fn seal(tx: &mut Tx<'_>, tenant: &str, range: ChunkRange, text: String) -> DbResult<String> {
    let sealer = tx.sealer(tenant).await?;
    sealer.seal(&cell(&range.bound_id()), text)
}

impl Db {
    /// Returns the text of chunks that a process has sealed.
    ///
    /// # Errors
    /// If this server does not have the key, the text was changed, or the text is plain although this server seals.
    pub async fn open_chunks(&self, range: ChunkRange, text: String) -> DbResult<String> {
        let id = range.bound_id();
        if !self.is_sealing() {
            return cell(&id).open_owned(text);
        }
        if !sealing::is_sealed(&text) {
            // Every client of the database could have sent it.
            return Err(cell(&id).corrupt());
        }
        let opened = self
            .0
            .parts
            .sealing
            .scope(async { cell(&id).open_owned(text.clone()) })
            .await;
        if opened.is_ok() {
            return opened;
        }
        // The key may be newer than the last read.
        self.read(move |_| Box::pin(async move { cell(&id).open_owned(text) }))
            .await
    }
}
