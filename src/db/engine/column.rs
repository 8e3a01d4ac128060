//! The columns from which texts are read, and to which sealed values are bound.

use serde::Serialize;

use super::error::{DbError, DbResult, corrupt};

/// Returns `value` as JSON text.
pub(in crate::db) fn encode<T: Serialize + ?Sized>(value: &T) -> DbResult<String> {
    serde_json::to_string(value).map_err(|error| DbError::Unfit(error.to_string()))
}

/// The column of a row from which a text was read.
#[derive(Clone, Copy)]
pub(in crate::db) struct ColumnRef<'a, I: ToString> {
    /// The table.
    pub(in crate::db) table: &'static str,
    /// The column.
    pub(in crate::db) column: &'static str,
    /// The id of the row.
    pub(in crate::db) id: &'a I,
}

impl<I: ToString> ColumnRef<'_, I> {
    /// Returns the error that this column cannot be read.
    pub(in crate::db) fn corrupt(&self) -> DbError {
        corrupt(self.table, self.column, self.id.to_string())
    }

    /// Returns the error that this server does not have the key of this column.
    pub(in crate::db) fn sealed(&self) -> DbError {
        let id = self.id.to_string();
        DbError::Sealed(format!(
            "{}.{} of {id} is encrypted under a key that this server does not have",
            self.table, self.column
        ))
    }

    /// Returns the associated data to which sealed values of this column are bound.
    pub(in crate::db) fn associated_data(&self) -> Vec<u8> {
        format!("{}\n{}\n{}", self.table, self.column, self.id.to_string()).into_bytes()
    }
}
