//! Encodes and decodes JSON in text columns, and handles rows that cannot be decoded.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{DbError, DbResult, corrupt};

/// Returns `value` as JSON text.
pub(super) fn encode<T: Serialize + ?Sized>(value: &T) -> DbResult<String> {
    serde_json::to_string(value).map_err(|error| DbError::Unfit(error.to_string()))
}

/// The column of a row from which a text was read.
#[derive(Clone, Copy)]
pub(super) struct ColumnRef<'a, I: ToString> {
    /// The table.
    pub(super) table: &'static str,
    /// The column.
    pub(super) column: &'static str,
    /// The id of the row.
    pub(super) id: &'a I,
}

impl<I: ToString> ColumnRef<'_, I> {
    /// Returns the error that this column cannot be read.
    pub(super) fn corrupt(&self) -> DbError {
        corrupt(self.table, self.column, self.id.to_string())
    }

    /// Decodes a text of this column.
    pub(super) fn decode<T: DeserializeOwned>(&self, text: &str) -> DbResult<T> {
        serde_json::from_str(text).map_err(|_| self.corrupt())
    }

    /// Decodes a text of this column, or logs that it cannot be read and returns the default. For rows that must not
    /// block others.
    pub(super) fn decode_or_default<T: DeserializeOwned + Default>(&self, text: &str) -> T {
        self.decode(text).unwrap_or_else(|error| {
            log_unreadable(&error);
            T::default()
        })
    }
}

/// Decodes rows. Rows that cannot be read are logged and left out, so that the others stay readable.
///
/// # Errors
/// Any error but [`DbError::Corrupt`].
pub(super) fn readable<R, T>(rows: impl IntoIterator<Item = R>) -> DbResult<Vec<T>>
where
    T: TryFrom<R, Error = DbError>,
{
    readable_with(rows, T::try_from)
}

/// Decodes rows with `read`, like [`readable`].
///
/// # Errors
/// Any error but [`DbError::Corrupt`].
pub(super) fn readable_with<R, T>(
    rows: impl IntoIterator<Item = R>,
    read: impl Fn(R) -> DbResult<T>,
) -> DbResult<Vec<T>> {
    let mut found = vec![];
    for row in rows {
        found.extend(unless_corrupt(read(row))?);
    }
    Ok(found)
}

/// Turns the error [`DbError::Corrupt`] into none, and logs it.
///
/// # Errors
/// Any error but [`DbError::Corrupt`].
pub fn unless_corrupt<T>(read: DbResult<T>) -> DbResult<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_corrupt() => {
            log_unreadable(&error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Logs that a row cannot be read and is skipped.
pub(super) fn log_unreadable(error: &DbError) {
    tracing::warn!(%error, "skipped a row that cannot be read");
}
