//! Encodes and decodes JSON in text columns, and handles rows that cannot be decoded. Sealed values are opened here, and
//! those in the short form are expanded.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{DbError, DbResult, corrupt};
use super::{sealing, short_form};
use crate::domain::json_limits::parsed_bytes;

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

    /// Returns the error that this server does not have the key of this column.
    pub(super) fn sealed(&self) -> DbError {
        let id = self.id.to_string();
        DbError::Sealed(format!(
            "{}.{} of {id} is encrypted under a key that this server does not have",
            self.table, self.column
        ))
    }

    /// Returns the associated data to which sealed values of this column are bound.
    pub(super) fn associated_data(&self) -> Vec<u8> {
        format!("{}\n{}\n{}", self.table, self.column, self.id.to_string()).into_bytes()
    }

    /// Returns a text of this column, opened if it is sealed, and in the long form.
    pub(super) fn open<'t>(&self, text: &'t str) -> DbResult<Cow<'t, str>> {
        let opened = sealing::open(self, text)?;
        if short_form::is_short(&opened) {
            let expanded = short_form::expand(&opened).ok_or_else(|| self.corrupt())?;
            return Ok(Cow::Owned(expanded));
        }
        Ok(opened)
    }

    /// Returns a text of this column like [`ColumnRef::open`], without copying a plain one.
    pub(super) fn open_owned(&self, text: String) -> DbResult<String> {
        if let Cow::Owned(plain) = self.open(&text)? {
            return Ok(plain);
        }
        Ok(text)
    }

    /// Decodes a text of this column.
    pub(super) fn decode<T: DeserializeOwned>(&self, text: &str) -> DbResult<T> {
        serde_json::from_str(&self.open(text)?).map_err(|_| self.corrupt())
    }

    /// Returns about how many bytes of memory the parsed text of this column takes.
    pub(super) fn weigh(&self, text: &str) -> usize {
        // A value that cannot be opened is not parsed either.
        self.open(text).map_or(text.len(), |text| parsed_bytes(&text))
    }

    /// Decodes a text of this column, or logs that it cannot be read and returns the default. For rows that must not
    /// block others.
    pub(super) fn decode_or_default<T: DeserializeOwned + Default>(&self, text: &str) -> T {
        self.decode_or_log(text).unwrap_or_default()
    }

    /// Decodes a text of this column, or logs that it cannot be read.
    pub(super) fn decode_or_log<T: DeserializeOwned>(&self, text: &str) -> Option<T> {
        self.decode(text).inspect_err(log_unreadable).ok()
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
