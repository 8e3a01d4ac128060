//! The hosts of a Postgres. Every connection is made to the first of them that takes writes, beginning with the one that
//! did so last. A pool, which knows one host, follows: the listener looks for the host and tells the pool.

use std::io::{Error, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::time::Instant;

use super::error::{DbError, DbResult};
use super::postgres_options;
use super::reachability::check_writable;
use super::settings::DbLimits;
use crate::domain::postgres_url::{PostgresUrl, TargetSessionAttrs};

/// The hosts of a URL. All have the same login and the same parameters.
pub(in crate::db) struct PostgresHosts {
    hosts: Vec<PgConnectOptions>,
    /// The demand on the server that a connection leads to.
    pub(in crate::db) target: TargetSessionAttrs,
    latest: Mutex<LatestHost>,
}

/// The host to which a connection was made last.
struct LatestHost {
    index: usize,
    /// The time at which it took the place of another host, if it did.
    since: Option<Instant>,
}

impl PostgresHosts {
    /// Reads the hosts of a URL.
    ///
    /// # Errors
    /// If the URL cannot be used. The error does not repeat it.
    pub(in crate::db) fn of(url: &str) -> DbResult<Self> {
        let url = PostgresUrl::parse(url)
            .map_err(|reason| DbError::CannotOpen(format!("the URL of the database {reason}")))?;
        let hosts: DbResult<Vec<PgConnectOptions>> = url.hosts.iter().map(|host| postgres_options(host)).collect();
        Ok(Self::new(hosts?, url.target))
    }

    pub(in crate::db) fn new(hosts: Vec<PgConnectOptions>, target: TargetSessionAttrs) -> Self {
        Self {
            hosts,
            target,
            latest: Mutex::new(LatestHost { index: 0, since: None }),
        }
    }

    /// Changes the options of connections.
    pub(in crate::db) fn with_options(mut self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        self.hosts = self.hosts.into_iter().map(change).collect();
        self
    }

    /// Returns whether there is another host to go to.
    pub(in crate::db) fn are_several(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Makes a connection to the first host that meets the demand. Each has `limits.connect` to do so.
    ///
    /// # Errors
    /// If no host meets the demand. The error names each host and the reason; that of the only host is its own.
    pub(in crate::db) async fn connect(&self, limits: DbLimits) -> DbResult<PgConnection> {
        let first = self.latest_index();
        let hosts = self.hosts.iter().enumerate().cycle().skip(first);
        let mut failures = vec![];
        for (index, options) in hosts.take(self.hosts.len()) {
            match self.connect_to(options, limits).await {
                Ok(conn) => {
                    self.leads_to(index);
                    return Ok(conn);
                }
                Err(error) => failures.push((name(options), error)),
            }
        }
        Err(unusable(failures))
    }

    async fn connect_to(&self, options: &PgConnectOptions, limits: DbLimits) -> DbResult<PgConnection> {
        let connecting = Box::pin(async {
            let mut conn = options.connect().await?;
            check_writable(&mut conn, self.target).await?;
            Ok::<_, sqlx::Error>(conn)
        });
        let connected = tokio::time::timeout(limits.connect, connecting).await;
        Ok(connected.map_err(|_| DbError::late())??)
    }

    fn leads_to(&self, index: usize) {
        let mut latest = self.latest();
        if latest.index != index {
            *latest = LatestHost {
                index,
                since: Some(Instant::now()),
            };
        }
    }

    fn latest(&self) -> MutexGuard<'_, LatestHost> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the place in the list of the host to which a connection was made last; the first one before any was made.
    pub(in crate::db) fn latest_index(&self) -> usize {
        self.latest().index
    }

    /// Returns the options for a connection to the latest host.
    pub(in crate::db) fn latest_options(&self) -> PgConnectOptions {
        self.hosts[self.latest_index()].clone()
    }

    /// Returns the name of the latest host.
    pub(in crate::db) fn latest_name(&self) -> String {
        name(&self.hosts[self.latest_index()])
    }

    /// Returns whether a connection of this age was made to an earlier host.
    pub(in crate::db) fn have_moved_within(&self, age: Duration) -> bool {
        self.latest().since.is_some_and(|since| since.elapsed() < age)
    }
}

/// Returns the name of a host for a person.
fn name(options: &PgConnectOptions) -> String {
    let host = options.get_host();
    let port = options.get_port();
    match options.get_socket() {
        Some(folder) => format!("{}:{port}", folder.display()),
        None if host.contains(':') => format!("[{host}]:{port}"),
        None => format!("{host}:{port}"),
    }
}

/// Returns the error when no host can be used.
fn unusable(mut failures: Vec<(String, DbError)>) -> DbError {
    if failures.len() == 1
        && let Some((_, error)) = failures.pop()
    {
        return error;
    }
    let reasons: Vec<String> = failures
        .iter()
        .map(|(name, error)| format!("{name}: {}", reason(error)))
        .collect();
    let text = format!("none of the hosts takes writes: {}", reasons.join("; "));
    DbError::from(sqlx::Error::Io(Error::new(ErrorKind::NotConnected, text)))
}

/// Returns the text of an error without the words with which errors of unavailability begin.
fn reason(error: &DbError) -> String {
    let DbError::Unavailable(cause) = error else {
        return error.to_string();
    };
    if let sqlx::Error::Io(error) = &**cause {
        return error.to_string();
    }
    cause.to_string()
}
