//! The settings of the database: its address and its limits.

use std::time::Duration;

/// The address of the database.
#[derive(Clone)]
pub struct DbAddress {
    /// The URL: `sqlite://file`, `sqlite::memory:` or `postgres://…`, which may list several hosts.
    pub url: String,
    /// The URL of Postgres itself, if `url` leads to a pooler that shares sessions between transactions.
    pub direct_url: Option<String>,
    /// True if statements of Postgres are prepared once for each connection. A pooler may not keep them.
    pub prepared_statements: bool,
}

impl From<&str> for DbAddress {
    fn from(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            direct_url: None,
            prepared_statements: true,
        }
    }
}

impl DbAddress {
    /// Returns the URL for work that needs a session for longer than a transaction.
    pub(in crate::db) fn session_url(&self) -> &str {
        self.direct_url.as_deref().unwrap_or(&self.url)
    }
}

/// The limits of the database: timeouts, connections and sizes.
#[derive(Debug, Clone, Copy)]
pub struct DbLimits {
    /// The timeout of one statement, including its wait for locks.
    pub statement: Duration,
    /// The timeout of a connection to a host of Postgres, but for those of the pool.
    pub connect: Duration,
    /// The number of connections to Postgres, besides the one that listens and the one of the lease.
    pub connections: u32,
    /// The number of characters from which base64 content is stored as a blob.
    pub blob_min_chars: usize,
}

impl Default for DbLimits {
    fn default() -> Self {
        Self {
            statement: Duration::from_secs(10),
            connect: Duration::from_secs(5),
            connections: 16,
            blob_min_chars: 16 << 10,
        }
    }
}

impl DbLimits {
    /// Returns the timeout of a whole transaction, including the network. The timeout detects a database that does not
    /// answer at all.
    pub(in crate::db) fn transaction(self) -> Duration {
        self.statement * 3
    }

    /// Returns the number of searches on Postgres at the same time. It is so low that slow ones leave connections for reads.
    pub(in crate::db) fn searches(self) -> u32 {
        (self.connections / 4).max(1)
    }

    /// Returns the number of writers. It is lower than the number of connections, so that reads find a free one.
    pub(in crate::db) fn writers(self) -> usize {
        usize::try_from(self.connections / 2).unwrap_or(1).max(1)
    }
}
