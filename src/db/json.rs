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
}
