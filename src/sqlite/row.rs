//! Rows and their columns.

use std::sync::Arc;

use sqlx::{Column, ColumnIndex, Row};

use super::{Sqlite, SqliteTypeInfo, SqliteValue, SqliteValueRef};

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteColumn {
    pub(super) name: Box<str>,
    pub(super) ordinal: usize,
}

impl Column for SqliteColumn {
    type Database = Sqlite;

    fn ordinal(&self) -> usize {
        self.ordinal
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// Each value has a type of its own, so a column has none.
    fn type_info(&self) -> &SqliteTypeInfo {
        &SqliteTypeInfo::Null
    }
}

/// A row of a result, with copies of its values.
#[derive(Debug)]
pub struct SqliteRow {
    pub(super) values: Box<[SqliteValue]>,
    pub(super) columns: Arc<[SqliteColumn]>,
}

impl Row for SqliteRow {
    type Database = Sqlite;

    fn columns(&self) -> &[SqliteColumn] {
        &self.columns
    }

    fn try_get_raw<I>(&self, index: I) -> sqlx::Result<SqliteValueRef<'_>>
    where
        I: ColumnIndex<Self>,
    {
        Ok(SqliteValueRef(&self.values[index.index(self)?]))
    }
}

impl ColumnIndex<SqliteRow> for usize {
    fn index(&self, row: &SqliteRow) -> sqlx::Result<usize> {
        let len = row.values.len();
        match *self < len {
            true => Ok(*self),
            false => Err(sqlx::Error::ColumnIndexOutOfBounds { index: *self, len }),
        }
    }
}

impl ColumnIndex<SqliteRow> for &'_ str {
    fn index(&self, row: &SqliteRow) -> sqlx::Result<usize> {
        let found = row.columns.iter().position(|column| *column.name == **self);
        found.ok_or_else(|| sqlx::Error::ColumnNotFound((*self).to_owned()))
    }
}
