//! The errors of the database. A missing row is not an error: functions return none.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

/// The result of a database function.
pub type DbResult<T> = Result<T, DbError>;

/// An error of the database. Clone, since it can be reported to several waiting operations.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DbError {
    /// A unique key is taken, or a referenced row does not exist.
    #[error("in conflict with what is stored: {0}")]
    Conflict(String),
    /// A row that the transaction had to change does not exist, or not as it has to be. Nothing of the transaction is stored.
    #[error("a row that was to be changed does not exist")]
    NoRow,
    /// The transaction lost a race; a retry may succeed.
    #[error("the database is busy")]
    Busy,
    /// A stored value cannot be decoded.
    #[error("{table}.{column} of {id} cannot be read")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The id of the row.
        id: String,
    },
    /// A value is encrypted under a key that this server does not have. The text says which.
    #[error("{0}")]
    Sealed(String),
    /// A value that cannot be stored, such as a text with the character U+0000, or a search that is too expensive.
    #[error("cannot be stored: {0}")]
    Unfit(String),
    /// The task does not say for which tenant it works, see [`RowAccess`](super::RowAccess). It is a fault of the program.
    #[error("a task used the database without saying for which tenant")]
    Unbound,
    /// The operation panicked. Its transaction was rolled back.
    #[error("a database operation panicked: {0}")]
    Panicked(String),
    /// The database file, or a directory of its path, cannot be opened.
    #[error("{0}")]
    CannotOpen(String),
    /// Another server has the SQLite file open.
    #[error(
        "{} is in use by another server{by}. A SQLite database serves one process: stop the other one first, \
         name another file in `storage.url`, or use Postgres for several",
        file.display()
    )]
    InUse {
        /// The file.
        file: PathBuf,
        /// The process, in brackets, if it is known.
        by: String,
    },
    /// The database was closed by this server.
    #[error("the database is closed")]
    Closed,
    /// The database does not answer, or answers with an unexpected error.
    #[error("the database is unavailable: {}", without_source_line(.0))]
    Unavailable(Arc<sqlx::Error>),
}

impl DbError {
    /// Returns whether a retry may succeed: the database is busy, unreachable or out of a resource. The cause of the
    /// other errors is the request itself.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy | Self::Sealed(_) => true,
            Self::Unavailable(error) => super::is_transient(error),
            Self::Conflict(_)
            | Self::NoRow
            | Self::Corrupt { .. }
            | Self::Unfit(_)
            | Self::Unbound
            | Self::Panicked(_)
            | Self::CannotOpen(_)
            | Self::InUse { .. }
            | Self::Closed => false,
        }
    }

    /// Returns whether the work can go on later, here or at another server: the error is transient, or this server stops
    /// and has closed the database.
    pub fn is_resumable(&self) -> bool {
        self.is_transient() || matches!(self, Self::Closed)
    }

    /// Returns whether the connection to the database cannot be made or has broken. That is no fault of the statement, and
    /// [`super::reachability`] logs its cause.
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self, Self::Unavailable(error) if super::is_out_of_reach(error))
    }

    /// Returns whether the disk of SQLite has refused a write: it is full, or fails.
    pub fn is_refused_by_disk(&self) -> bool {
        // Full; the log cannot be written, or not as far as the disk; nor can its index in shared memory. Codes of Postgres have
        // five characters.
        const CODES: [&str; 4] = ["13", "778", "1034", "4874"];
        matches!(self, Self::Unavailable(error) if CODES.iter().any(|code| super::has_code(error, code)))
    }

    /// Returns whether the transaction that failed with this error may be committed all the same, now or later.
    pub fn may_be_committed(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Returns the error of a timeout. The write may have been committed.
    pub fn late() -> Self {
        let error = io::Error::new(ErrorKind::TimedOut, "it did not answer in time");
        Self::Unavailable(Arc::new(sqlx::Error::Io(error)))
    }

    /// Returns what an operator can do about a Postgres that could not be opened, if that is known.
    pub fn advice(&self) -> Option<&'static str> {
        const ADDRESS: &str = "start Postgres there, or correct the host and the port in [storage]";
        const HOSTS: &str = "see to it that one of them is a primary that can be reached, or correct them in [storage]";
        const PRIMARY: &str = "name the primary in [storage]";
        const LOGIN: &str =
            "correct the role and the password in [storage], or `sslmode` there, or let the role in (pg_hba.conf)";
        const DATABASE: &str = "create the database, or correct its name in [storage]";
        const RIGHTS: &str =
            "run `adjutant migrate` as the role that owns the tables, and give this one the rights to use them";
        const CONNECTIONS: &str = "raise `max_connections` of Postgres, or lower `connections` in [storage]";
        const TLS: &str = "correct `sslmode` and `sslrootcert` in [storage], or the certificate of Postgres";
        const FILES: &str = "correct the path in [storage]: of `sslrootcert`, `sslcert`, `sslkey` or the socket";
        const BY_KIND: [(ErrorKind, &str); 5] = [
            (ErrorKind::ReadOnlyFilesystem, PRIMARY),
            // The error of several hosts.
            (ErrorKind::NotConnected, HOSTS),
            // The error of a pool without a free connection.
            (ErrorKind::ResourceBusy, CONNECTIONS),
            // A certificate that one side refuses.
            (ErrorKind::InvalidData, TLS),
            (ErrorKind::NotFound, FILES),
        ];
        let Self::Unavailable(error) = self else {
            return None;
        };
        let error = without_migration(error);
        if let Some(told) = error.as_database_error() {
            return match told.code().as_deref() {
                Some("28000" | "28P01") => Some(LOGIN),
                Some("3D000") => Some(DATABASE),
                Some("42501") => Some(RIGHTS),
                Some("53300") => Some(CONNECTIONS),
                Some(_) | None => None,
            };
        }
        let sqlx::Error::Io(error) = error else {
            return matches!(error, sqlx::Error::Tls(_)).then_some(TLS);
        };
        let known = BY_KIND.into_iter().find(|(kind, _)| *kind == error.kind());
        Some(known.map_or(ADDRESS, |(_, advice)| advice))
    }

    /// Returns whether a stored value cannot be read: a retry does not help, and other rows are not affected.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}

/// Returns the error of the statement in which a migration has failed; other errors as they are.
fn without_migration(error: &sqlx::Error) -> &sqlx::Error {
    if let sqlx::Error::Migrate(error) = error
        && let MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) = &**error
    {
        return error;
    }
    error
}

/// Returns the text of an error without the line in the source code of Postgres, which `sqlx` adds to it.
fn without_source_line(error: &sqlx::Error) -> String {
    let text = error.to_string();
    let told = without_migration(error).as_database_error();
    let told = told.and_then(|told| told.try_downcast_ref::<PgDatabaseError>());
    let line = told.and_then(PgDatabaseError::line);
    match line.and_then(|line| text.strip_suffix(&format!(" at line {line}"))) {
        Some(plain) => plain.to_owned(),
        None => text,
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        super::classify_error(error)
    }
}

impl From<MigrateError> for DbError {
    fn from(error: MigrateError) -> Self {
        Self::Unavailable(Arc::new(error.into()))
    }
}

/// Returns the error that a column of a row cannot be read.
pub(in crate::db) fn corrupt(table: &'static str, column: &'static str, id: impl ToString) -> DbError {
    DbError::Corrupt {
        table,
        column,
        id: id.to_string(),
    }
}
