//! What can go wrong with the database. Absence is no error; see [`Option`].

use std::path::PathBuf;
use std::sync::Arc;

/// What a function of this module returns.
pub type DbResult<T> = Result<T, DbError>;

/// What can go wrong with the database. It can be told to several, hence cloned.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DbError {
    /// Something like it exists already, or what it refers to is gone.
    #[error("in conflict with what is stored: {0}")]
    Conflict(String),
    /// Somebody else was faster; trying again may help.
    #[error("the database is busy")]
    Busy,
    /// A row that was read makes no sense.
    #[error("{table}.{column} of {id} cannot be read")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row.
        id: String,
    },
    /// A value that no database of ours can hold, such as a text with the character U+0000.
    #[error("cannot be stored: {0}")]
    Unfit(String),
    /// The job panicked. It left no trace.
    #[error("a database job panicked: {0}")]
    Panicked(String),
    /// The file of the database cannot be opened, or a folder on the way to it.
    #[error("{0}")]
    CannotOpen(String),
    /// Another process has the file, and a file serves one process.
    #[error(
        "{} is in use by another server{by}. A SQLite database serves one process: stop the other one first, \
         name another file in `storage.url`, or use Postgres for several",
        file.display()
    )]
    InUse {
        /// The file.
        file: PathBuf,
        /// The process, in brackets, when it is known.
        by: String,
    },
    /// The database was closed by us.
    #[error("the database is closed")]
    Closed,
    /// The database does not answer, or not as it should.
    #[error("the database is unavailable: {0}")]
    Unavailable(Arc<sqlx::Error>),
}

impl DbError {
    /// Whether the very same may succeed later: the database is busy, out of reach, or short of something. The other errors
    /// lie in what was asked for.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Unavailable(error) => super::engine::is_transient(error),
            Self::Conflict(_)
            | Self::Corrupt { .. }
            | Self::Unfit(_)
            | Self::Panicked(_)
            | Self::CannotOpen(_)
            | Self::InUse { .. }
            | Self::Closed => false,
        }
    }

    /// The database did not answer within its time. What was to be written may have been written.
    pub(super) fn late() -> Self {
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "it did not answer in time");
        Self::Unavailable(Arc::new(sqlx::Error::Io(error)))
    }

    /// Whether something that is stored cannot be read: trying again does not help, and others are not concerned.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        super::engine::tell_apart(error)
    }
}

impl From<sqlx::migrate::MigrateError> for DbError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        Self::Unavailable(Arc::new(error.into()))
    }
}

/// Says that a row makes no sense.
pub(super) fn corrupt(table: &'static str, column: &'static str, id: impl ToString) -> DbError {
    DbError::Corrupt {
        table,
        column,
        id: id.to_string(),
    }
}
