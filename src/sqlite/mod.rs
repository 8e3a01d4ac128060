//! A driver of SQLite for sqlx, over rusqlite.
//!
//! A statement runs on the thread that polls its future, and is done when the future is. The driver of sqlx has a thread for each
//! connection, to which each statement is handed over and which hands back each row. That costs two switches between threads for
//! work that mostly takes a few microseconds. Here the caller chooses the thread: `db` has one for the writer and a few for readers.
//! Statements block: while a server is at work, none runs on the workers of the runtime.
//!
//! The types have the names of those of sqlx, and their values the same forms: a database of the one is one of the other.

mod arguments;
mod connection;
mod conversions;
mod error;
mod migrate;
mod options;
mod result;
mod row;
mod statement;
mod transaction;
mod value;

use sqlx::Database;

pub use arguments::{SqliteArgumentBuffer, SqliteArguments};
pub use connection::SqliteConnection;
pub use error::SqliteError;
pub use options::SqliteConnectOptions;
pub use result::SqliteQueryResult;
pub use row::{SqliteColumn, SqliteRow};
pub use statement::SqliteStatement;
pub use transaction::SqliteTransactionManager;
pub use value::{SqliteTypeInfo, SqliteValue, SqliteValueRef};

/// SQLite as a database of sqlx.
#[derive(Debug)]
pub struct Sqlite;

impl Database for Sqlite {
    type Connection = SqliteConnection;
    type TransactionManager = SqliteTransactionManager;
    type Row = SqliteRow;
    type QueryResult = SqliteQueryResult;
    type Column = SqliteColumn;
    type TypeInfo = SqliteTypeInfo;
    type Value = SqliteValue;
    type ValueRef<'r> = SqliteValueRef<'r>;
    type Arguments = SqliteArguments;
    type ArgumentBuffer = SqliteArgumentBuffer;
    type Statement = SqliteStatement;

    const NAME: &'static str = "SQLite";
    const URL_SCHEMES: &'static [&'static str] = &["sqlite"];
}

#[cfg(test)]
mod tests;
