//! Postgres, also behind a pooler that shares its sessions between transactions, such as PgBouncer in transaction mode.
//!
//! Behind such a pooler a session belongs to the server for one transaction only. So the settings of a session are made in
//! each transaction, statements are not prepared by name, and what lasts longer than a transaction (notifications, the
//! lock of the process, migrations) has a connection past the pooler.

use std::sync::Arc;

use sqlx::PgPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::batch::PlainStatements;
use super::error::DbResult;
use super::hosts::PostgresHosts;
use super::reachability::Reachability;
use super::settings::{DbAddress, DbLimits};

mod connections;
mod prepared;
mod session;
mod values;

pub(in crate::db) use connections::{Connections, PooledConnection};
pub(in crate::db) use session::{Batching, PostgresConn};
pub(in crate::db) use values::PostgresValues;

/// The statement that begins a write.
const BEGIN_WRITE: &str = "begin";
/// The statement that begins a read of one consistent snapshot.
const BEGIN_READ: &str = "begin isolation level repeatable read read only";

/// One of so many connections is left for writes by reads, which may be slow, and go on for a while when their callers are gone.
const LEFT_FOR_WRITES: u32 = 4;

/// The connections to a Postgres, with what a transaction on one of them begins with.
#[derive(Clone)]
pub(in crate::db) struct PostgresPool {
    pub(in crate::db) connections: Connections,
    /// One connection, which renews the lease of this process while others wait for `connections`.
    lease: Connections,
    /// The turns of reads.
    read_turns: Arc<Semaphore>,
    /// The hosts of the connections. The pool knows one at a time.
    pub(in crate::db) hosts: Arc<PostgresHosts>,
    /// The listener, which looks for the host that takes writes.
    pub(in crate::db) reach: Arc<Reachability>,
    /// The statements that begin a write.
    pub(in crate::db) begin_write: PlainStatements,
    /// The statements that begin a read.
    pub(in crate::db) begin_read: PlainStatements,
    /// False behind a pooler, which may change the session between two transactions.
    pub(in crate::db) keeps_sessions: bool,
}

impl PostgresPool {
    /// Takes pools that nobody else uses. Transactions make these settings, if there are any.
    pub(in crate::db) fn new(
        connections: PgPool,
        lease: PgPool,
        hosts: Arc<PostgresHosts>,
        reach: Arc<Reachability>,
        settings: Option<&SessionSettings>,
    ) -> Self {
        let begin = |statement| {
            let mut begin = PlainStatements::new(statement, 1);
            if let Some(settings) = settings {
                settings.push_to_transaction(&mut begin);
            }
            begin
        };
        let reads = most_reads(connections.options().get_max_connections());
        Self {
            connections: Connections::new(connections),
            lease: Connections::new(lease),
            read_turns: Arc::new(Semaphore::new(reads)),
            hosts,
            reach,
            begin_write: begin(BEGIN_WRITE),
            begin_read: begin(BEGIN_READ),
            keeps_sessions: settings.is_none(),
        }
    }

    /// Has new connections lead to the latest host.
    pub(in crate::db) fn follow_host(&self) {
        if self.hosts.are_several() {
            for connections in [&self.connections, &self.lease] {
                connections.set_options(self.hosts.latest_options());
            }
        }
    }

    /// Returns the pool with the connection of the lease alone.
    pub(in crate::db) fn of_lease(&self) -> Self {
        Self {
            connections: self.lease.clone(),
            ..self.clone()
        }
    }

    /// Waits for the turn of a read, which it has until its connection is free.
    ///
    /// # Errors
    /// [`sqlx::Error::PoolClosed`] when the connections are closed.
    pub(in crate::db) async fn read_turn(&self) -> sqlx::Result<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.read_turns).acquire_owned().await;
        turn.map_err(|_| sqlx::Error::PoolClosed)
    }

    /// Closes all connections.
    pub(in crate::db) async fn close(&self) {
        self.read_turns.close();
        self.lease.close().await;
        self.connections.close().await;
    }
}

/// Returns the number of reads that may be at work at the same time.
fn most_reads(connections: u32) -> usize {
    let left = (connections / LEFT_FOR_WRITES).max(1);
    usize::try_from(connections.saturating_sub(left)).unwrap_or(1).max(1)
}

/// The settings of the sessions of Postgres.
pub(in crate::db) struct SessionSettings(Vec<(&'static str, String)>);

impl SessionSettings {
    /// Returns the settings for these limits.
    pub(super) fn new(limits: DbLimits) -> Self {
        let millis = limits.statement.as_millis();
        let settings = [
            // A process that is suspended in a transaction must not keep its locks: other processes could not take over
            // its runs.
            ("idle_in_transaction_session_timeout", "'3s'".to_owned()),
            // Every search of the server has an index. By default the planner reads a whole table where it expects many
            // matches, since it ignores that only one page is wanted, or assumes disks on which places far apart are
            // slow. A statement without an index then has such a high estimated cost that Postgres would compile it
            // first (`jit`), which costs more than it saves.
            ("enable_seqscan", "off".to_owned()),
            ("random_page_cost", "1.1".to_owned()),
            ("jit", "off".to_owned()),
            ("statement_timeout", format!("'{millis}ms'")),
            // A little shorter than the timeout for statements, so that the two errors can be told apart.
            ("lock_timeout", format!("'{}ms'", millis * 9 / 10 + 1)),
        ];
        Self(settings.into())
    }

    /// Returns the statements that make the settings for a session.
    pub(super) fn of_session(&self) -> String {
        let statements = self.0.iter().map(|(name, value)| format!("set {name} = {value}"));
        statements.collect::<Vec<_>>().join("; ")
    }

    /// Adds the statements that make the settings for a transaction.
    fn push_to_transaction(&self, begin: &mut PlainStatements) {
        for (name, value) in &self.0 {
            begin.push(&format!("set local {name} = {value}"));
        }
    }
}

/// Returns the hosts for the connections of the pool.
pub(in crate::db) fn pool_hosts(address: &DbAddress) -> DbResult<PostgresHosts> {
    let hosts = PostgresHosts::of(&address.url)?;
    match address.direct_url {
        // Poolers refuse parameters that they do not know, and this one has no effect on values in binary form.
        Some(_) => Ok(hosts.with_options(|options| options.extra_float_digits(None))),
        None => Ok(hosts),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings() -> SessionSettings {
        SessionSettings::new(DbLimits {
            statement: Duration::from_secs(10),
            ..DbLimits::default()
        })
    }

    #[test]
    fn the_settings_of_a_session_are_one_message() {
        assert_eq!(
            settings().of_session(),
            "set idle_in_transaction_session_timeout = '3s'; set enable_seqscan = off; set random_page_cost = 1.1; \
             set jit = off; set statement_timeout = '10000ms'; set lock_timeout = '9001ms'"
        );
    }

    #[test]
    fn reads_leave_connections_for_writes_where_there_are_several() {
        assert_eq!([1, 2, 3, 16].map(most_reads), [1, 1, 2, 12]);
    }

    #[tokio::test]
    async fn transactions_make_the_settings_behind_a_pooler_only() {
        let settings = settings();
        let pool = PgPool::connect_lazy("postgres://localhost/none").expect("a pool");
        let hosts = Arc::new(PostgresHosts::of("postgres://localhost/none").expect("hosts"));
        let new =
            |settings| PostgresPool::new(pool.clone(), pool.clone(), Arc::clone(&hosts), Arc::default(), settings);
        let direct = new(None);
        assert_eq!(direct.begin_write.text(), "begin");
        assert_eq!(
            direct.begin_read.text(),
            "begin isolation level repeatable read read only"
        );
        let pooled = new(Some(&settings));
        assert!(
            pooled
                .begin_write
                .text()
                .starts_with("begin; set local idle_in_transaction_session_timeout = '3s'; set local "),
            "{}",
            pooled.begin_write.text()
        );
        assert!(
            pooled
                .begin_read
                .text()
                .ends_with("; set local lock_timeout = '9001ms'")
        );
    }
}
