//! Encodes and decodes JSON in text columns, and handles rows that cannot be decoded. Sealed values are opened here, and
//! those in the short form are expanded.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use super::short_form;
use crate::db::engine::sealing;
pub(in crate::db) use crate::db::engine::{ColumnRef, encode};
use crate::db::{DbError, DbResult};
use crate::domain::json_limits::parsed_bytes;

impl<I: ToString> ColumnRef<'_, I> {
    /// Returns a text of this column, opened if it is sealed, and in the long form.
    pub(in crate::db) fn open<'t>(&self, text: &'t str) -> DbResult<Cow<'t, str>> {
        let opened = sealing::open(self, text)?;
        if short_form::is_short(&opened) {
            let expanded = short_form::expand(&opened).ok_or_else(|| self.corrupt())?;
            return Ok(Cow::Owned(expanded));
        }
        Ok(opened)
    }

    /// Returns a text of this column like [`ColumnRef::open`], without copying a plain one.
    pub(in crate::db) fn open_owned(&self, text: String) -> DbResult<String> {
        if let Cow::Owned(plain) = self.open(&text)? {
            return Ok(plain);
        }
        Ok(text)
    }

    /// Decodes a text of this column.
    pub(in crate::db) fn decode<T: DeserializeOwned>(&self, text: &str) -> DbResult<T> {
        serde_json::from_str(&self.open(text)?).map_err(|_| self.corrupt())
    }

    /// Returns about how many bytes of memory the parsed text of this column takes.
    pub(in crate::db) fn weigh(&self, text: &str) -> usize {
        // A value that cannot be opened is not parsed either.
        self.open(text).map_or(text.len(), |text| parsed_bytes(&text))
    }

    /// Decodes a text of this column, or logs that it cannot be read and returns the default. For rows that must not
    /// block others.
    pub(in crate::db) fn decode_or_default<T: DeserializeOwned + Default>(&self, text: &str) -> T {
        self.decode_or_log(text).unwrap_or_default()
    }

    /// Decodes a text of this column, or logs that it cannot be read.
    pub(in crate::db) fn decode_or_log<T: DeserializeOwned>(&self, text: &str) -> Option<T> {
        self.decode(text).inspect_err(log_unreadable).ok()
    }
}

/// Decodes rows. Rows that cannot be read are logged and left out, so that the others stay readable.
///
/// # Errors
/// Any error but [`DbError::Corrupt`].
pub(in crate::db) fn readable<R, T>(rows: impl IntoIterator<Item = R>) -> DbResult<Vec<T>>
where
    T: TryFrom<R, Error = DbError>,
{
    readable_with(rows, T::try_from)
}

/// Decodes rows with `read`, like [`readable`].
///
/// # Errors
/// Any error but [`DbError::Corrupt`].
pub(in crate::db) fn readable_with<R, T>(
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
pub(in crate::db) fn log_unreadable(error: &DbError) {
    tracing::warn!(%error, "skipped a row that cannot be read");
}
