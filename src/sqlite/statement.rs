//! Prepared statements.

use std::sync::Arc;

use sqlx::{ColumnIndex, Either, SqlStr, Statement};
use sqlx_core::impl_statement_query;

use super::{Sqlite, SqliteArguments, SqliteColumn, SqliteTypeInfo};

/// A statement that was prepared. The connection keeps what SQLite has made of its text.
#[derive(Debug, Clone)]
pub struct SqliteStatement {
    pub(super) sql: SqlStr,
    pub(super) parameters: usize,
    pub(super) columns: Arc<[SqliteColumn]>,
}

impl Statement for SqliteStatement {
    type Database = Sqlite;

    fn into_sql(self) -> SqlStr {
        self.sql
    }

    fn sql(&self) -> &SqlStr {
        &self.sql
    }

    fn parameters(&self) -> Option<Either<&[SqliteTypeInfo], usize>> {
        Some(Either::Right(self.parameters))
    }

    fn columns(&self) -> &[SqliteColumn] {
        &self.columns
    }

    impl_statement_query!(SqliteArguments);
}

impl ColumnIndex<SqliteStatement> for usize {
    fn index(&self, statement: &SqliteStatement) -> sqlx::Result<usize> {
        let len = statement.columns.len();
        match *self < len {
            true => Ok(*self),
            false => Err(sqlx::Error::ColumnIndexOutOfBounds { index: *self, len }),
        }
    }
}
