//! Options of connections.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use log::LevelFilter;
use percent_encoding::percent_decode_str;
use rusqlite::{Connection, OpenFlags};
use sqlx::ConnectOptions;
use sqlx_core::connection::LogSettings;
use url::{Url, form_urlencoded};

use super::SqliteConnection;
use super::error::sqlx_error;

/// The number of prepared statements of a connection, unless another one is chosen.
const STATEMENTS: usize = 100;
/// The time for which a statement waits for a lock, unless another one is chosen.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The file of a database, and what its connection sets.
#[derive(Clone)]
pub struct SqliteConnectOptions {
    /// None for a database in memory, which ends with the connection.
    file: Option<PathBuf>,
    is_read_only: bool,
    creates_file: bool,
    busy_timeout: Duration,
    statements: usize,
    /// The settings in their order, each with its value.
    pragmas: Vec<(&'static str, String)>,
    log_settings: LogSettings,
}

impl SqliteConnectOptions {
    /// Returns the options for a database in memory. Foreign keys are checked.
    pub fn in_memory() -> Self {
        Self::of(None)
    }

    /// Returns the options for a file, which must exist. Foreign keys are checked.
    pub fn of_file(file: impl Into<PathBuf>) -> Self {
        Self::of(Some(file.into()))
    }

    fn of(file: Option<PathBuf>) -> Self {
        let options = Self {
            file,
            is_read_only: false,
            creates_file: false,
            busy_timeout: BUSY_TIMEOUT,
            statements: STATEMENTS,
            pragmas: vec![],
            log_settings: LogSettings::default(),
        };
        options.pragma("foreign_keys", "on")
    }

    /// Returns the file; none for a database in memory.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Sets whether a file that is missing is created.
    pub fn create_if_missing(self, creates_file: bool) -> Self {
        Self { creates_file, ..self }
    }

    /// Sets whether the connection only reads.
    pub fn read_only(self, is_read_only: bool) -> Self {
        Self { is_read_only, ..self }
    }

    /// Sets how long a statement waits for a lock.
    pub fn busy_timeout(self, busy_timeout: Duration) -> Self {
        Self { busy_timeout, ..self }
    }

    /// Sets the number of prepared statements that the connection keeps.
    pub fn statement_cache_capacity(self, statements: usize) -> Self {
        Self { statements, ..self }
    }

    /// Sets a [pragma](https://www.sqlite.org/pragma.html) of the connection. Those that were set first are executed first.
    pub fn pragma(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let value = value.into();
        match self.pragmas.iter_mut().find(|(known, _)| *known == name) {
            Some((_, current)) => *current = value,
            None => self.pragmas.push((name, value)),
        }
        self
    }

    /// Opens the database on this thread.
    ///
    /// # Errors
    /// When it cannot be opened, or refuses a setting.
    pub fn open(&self) -> sqlx::Result<SqliteConnection> {
        let mut flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags |= match (self.is_read_only, self.creates_file || self.file.is_none()) {
            (true, _) => OpenFlags::SQLITE_OPEN_READ_ONLY,
            (false, true) => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            (false, false) => OpenFlags::SQLITE_OPEN_READ_WRITE,
        };
        let opened = match &self.file {
            Some(file) => Connection::open_with_flags(file, flags),
            None => Connection::open_in_memory_with_flags(flags),
        };
        let conn = opened.map_err(sqlx_error)?;
        conn.set_prepared_statement_cache_capacity(self.statements);
        conn.busy_timeout(self.busy_timeout).map_err(sqlx_error)?;
        let settings: Vec<String> = self
            .pragmas
            .iter()
            .map(|(name, value)| format!("pragma {name} = {value}"))
            .collect();
        conn.execute_batch(&settings.join("; ")).map_err(sqlx_error)?;
        Ok(SqliteConnection::of(conn, self.log_settings.clone()))
    }

    /// Sets what a URL has behind its question mark.
    fn with_parameter(self, name: &str, value: &str) -> sqlx::Result<Self> {
        match (name, value) {
            ("mode", "ro") => Ok(self.read_only(true)),
            ("mode", "rw") => Ok(self.create_if_missing(false)),
            ("mode", "rwc") => Ok(self.create_if_missing(true)),
            ("mode", "memory") => Ok(Self { file: None, ..self }),
            ("cache", "private") => Ok(self),
            _ => Err(not_a_url(format!(
                "`{name}={value}` is unknown: `mode` can be `ro`, `rw`, `rwc` or `memory`, and `cache` can be `private`"
            ))),
        }
    }
}

fn not_a_url(reason: String) -> sqlx::Error {
    sqlx::Error::Configuration(reason.into())
}

/// The file and the settings, which have no secrets.
impl fmt::Debug for SqliteConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteConnectOptions")
            .field("file", &self.file)
            .field("pragmas", &self.pragmas)
            .finish_non_exhaustive()
    }
}

/// Reads `sqlite::memory:`, `sqlite:FILE` and `sqlite://FILE`, with `?mode=…` behind it. The name of the file may have
/// percent-encoded characters.
impl FromStr for SqliteConnectOptions {
    type Err = sqlx::Error;

    fn from_str(url: &str) -> sqlx::Result<Self> {
        let Some(rest) = url.strip_prefix("sqlite:") else {
            return Err(not_a_url(
                "the URL of a SQLite database begins with `sqlite:`".to_owned(),
            ));
        };
        let rest = rest.trim_start_matches("//");
        let (name, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = match name == ":memory:" {
            true => Self::in_memory(),
            false => {
                let file = percent_decode_str(name).decode_utf8();
                let file = file.map_err(|error| not_a_url(format!("the name of the file is not UTF-8: {error}")))?;
                Self::of_file(&*file)
            }
        };
        for (name, value) in form_urlencoded::parse(parameters.as_bytes()) {
            options = options.with_parameter(&name, &value)?;
        }
        Ok(options)
    }
}

impl ConnectOptions for SqliteConnectOptions {
    type Connection = SqliteConnection;

    fn from_url(url: &Url) -> sqlx::Result<Self> {
        url.as_str().parse()
    }

    async fn connect(&self) -> sqlx::Result<SqliteConnection> {
        self.open()
    }

    fn log_statements(mut self, level: LevelFilter) -> Self {
        self.log_settings.log_statements(level);
        self
    }

    fn log_slow_statements(mut self, level: LevelFilter, duration: Duration) -> Self {
        self.log_settings.log_slow_statements(level, duration);
        self
    }
}
