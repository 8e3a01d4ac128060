//! Errors of SQLite.

use std::borrow::Cow;
use std::error::Error as StdError;

use rusqlite::ffi;
use sqlx::error::{DatabaseError, ErrorKind};

/// An error of SQLite.
#[derive(Debug, thiserror::Error)]
#[error("(code: {code}) {message}")]
pub struct SqliteError {
    /// The extended result code, see <https://www.sqlite.org/rescode.html>.
    code: i32,
    message: String,
}

impl SqliteError {
    fn of(error: ffi::Error, message: Option<String>) -> Self {
        Self {
            code: error.extended_code,
            message: message.unwrap_or_else(|| error.to_string()),
        }
    }
}

/// Returns the error of sqlx.
pub(super) fn sqlx_error(error: rusqlite::Error) -> sqlx::Error {
    if let rusqlite::Error::SqliteFailure(error, message) = error {
        return sqlx::Error::from(SqliteError::of(error, message));
    }
    if let rusqlite::Error::SqlInputError { error, msg, .. } = error {
        return sqlx::Error::from(SqliteError::of(error, Some(msg)));
    }
    // The rest are mistakes of the caller: a path or a text that SQLite cannot take.
    sqlx::Error::Protocol(error.to_string())
}

impl DatabaseError for SqliteError {
    fn message(&self) -> &str {
        &self.message
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(self.code.to_string().into())
    }

    fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        match self.code {
            ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY => ErrorKind::UniqueViolation,
            ffi::SQLITE_CONSTRAINT_FOREIGNKEY => ErrorKind::ForeignKeyViolation,
            ffi::SQLITE_CONSTRAINT_NOTNULL => ErrorKind::NotNullViolation,
            ffi::SQLITE_CONSTRAINT_CHECK => ErrorKind::CheckViolation,
            _ => ErrorKind::Other,
        }
    }
}
