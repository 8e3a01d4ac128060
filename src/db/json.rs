//! JSON on its way into and out of columns of text.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{DbError, DbResult, corrupt};

/// The text of `value`.
pub(super) fn encode<T: Serialize + ?Sized>(value: &T) -> DbResult<String> {
    serde_json::to_string(value).map_err(|error| DbError::Unfit(error.to_string()))
}

/// Where a text was found.
#[derive(Clone, Copy)]
pub(super) struct Cell<'a, I: ToString> {
    /// The table.
    pub(super) table: &'static str,
    /// The column.
    pub(super) column: &'static str,
    /// The row.
    pub(super) id: &'a I,
}

impl<I: ToString> Cell<'_, I> {
    /// Says that what was found here makes no sense.
    pub(super) fn corrupt(&self) -> DbError {
        corrupt(self.table, self.column, self.id.to_string())
    }

    /// The value of a text that was found here.
    pub(super) fn decode<T: DeserializeOwned>(&self, text: &str) -> DbResult<T> {
        serde_json::from_str(text).map_err(|_| self.corrupt())
    }

    /// The same, or the default in place of a text that cannot be read, which is logged: for what others wait for.
    pub(super) fn decode_or_default<T: DeserializeOwned + Default>(&self, text: &str) -> T {
        self.decode(text).unwrap_or_else(|error| {
            log_unreadable(&error);
            T::default()
        })
    }
}

/// The rows that can be read. One that cannot be read is logged and left out: it must not take the others with it.
///
/// # Errors
/// Any other than [`DbError::Corrupt`].
pub(super) fn readable<R, T>(rows: impl IntoIterator<Item = R>) -> DbResult<Vec<T>>
where
    T: TryFrom<R, Error = DbError>,
{
    readable_with(rows, T::try_from)
}

/// As [`readable`], for rows that `read` reads.
///
/// # Errors
/// Any other than [`DbError::Corrupt`].
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

/// What was read; none if it cannot be read, which is logged.
///
/// # Errors
/// Any other than [`DbError::Corrupt`].
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

/// Says in the log that something stored cannot be read, and is passed over.
pub(super) fn log_unreadable(error: &DbError) {
    tracing::warn!(%error, "a row that cannot be read was passed over");
}
