//! SQLite. The driver runs each connection in a thread of its own. Statements that are sent together are one text with one
//! numbering of their values.

use std::borrow::Cow;
use std::convert::Infallible;

use futures::future::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArguments, SqliteQueryResult, SqliteRow, SqliteStatement, SqliteTypeInfo};
use sqlx::{Arguments, AssertSqlSafe, Encode, Execute, Executor, SqlStr, Sqlite, SqliteConnection, Type, query_with};

use super::batch::{
    Batch, BatchConn, BatchSession, PlainStatements, SentValues, StatementSteps, failed, push_number, push_with_values,
};
use super::has_code;

/// The most statements that wait to be sent together.
const MOST_WAITING: usize = 64;

/// A statement that fails with the code [`FAILED`] if the one before it has changed no row. SQLite can raise an error only in
/// triggers, but what is no JSON is an error everywhere. It has no row, which would be copied for nobody.
const FAIL_UNLESS_CHANGED: &str = "select 1 where json(iif(changes() = 0, '', '0')) is null";
/// The code of an error that a function of SQLite reports.
const FAILED: &str = "1";

/// The connection of a transaction on SQLite.
pub(in crate::db) type SqliteConn<'c> = BatchConn<SqliteSession<'c>>;

/// A connection to SQLite.
pub(in crate::db) struct SqliteSession<'c> {
    conn: &'c mut SqliteConnection,
}

/// Statements that are sent together, as one text with one numbering of their values.
#[derive(Default)]
pub(in crate::db) struct SqliteBatch {
    sql: String,
    arguments: SqliteArguments,
    /// A value that could not be encoded.
    error: Option<BoxDynError>,
    count: usize,
}

impl SqliteBatch {
    /// Adds a statement whose values are those behind the first `offset` ones.
    fn push(&mut self, sql: &str, offset: usize) {
        if !self.sql.is_empty() {
            self.sql.push_str("; ");
        }
        self.count += 1;
        if offset == 0 {
            self.sql.push_str(sql);
            return;
        }
        // Some numbers get more digits.
        self.sql.reserve(sql.len() + 16);
        push_with_values(&mut self.sql, sql, |text, number| {
            text.push('$');
            push_number(text, number + offset);
        });
    }
}

impl Batch for SqliteBatch {
    fn count(&self) -> usize {
        self.count
    }

    fn is_full(&self) -> bool {
        self.count >= MOST_WAITING
    }

    fn push_plain(&mut self, statements: &PlainStatements) {
        if statements.is_empty() {
            return;
        }
        self.push(statements.text(), 0);
        self.count += statements.count() - 1;
    }
}

/// The place of a statement's values in its batch: the number of those before them.
#[derive(Debug, Clone, Copy)]
pub(in crate::db) struct ValueOffset(usize);

impl BatchSession for SqliteSession<'_> {
    type Database = Sqlite;
    type Batch = SqliteBatch;
    type Values = ValueOffset;
    /// None: the values of every statement are in a batch already.
    type LoneValues = Infallible;

    const OPENS_WITH_QUERIES: bool = true;

    fn sent_values(&self, values: ValueOffset, _is_single: bool) -> SentValues<Self> {
        SentValues::InBatch(values)
    }

    fn push(&mut self, batch: &mut SqliteBatch, sql: Cow<'static, str>, values: ValueOffset) {
        batch.push(&sql, values.0);
    }

    fn push_change(&mut self, batch: &mut SqliteBatch, sql: Cow<'static, str>, values: ValueOffset) {
        batch.push(&sql, values.0);
        batch.push(FAIL_UNLESS_CHANGED, 0);
    }

    fn has_changed_nothing(error: &sqlx::Error) -> bool {
        has_code(error, FAILED)
    }

    fn send(&mut self, opening: PlainStatements, mut batch: SqliteBatch) -> StatementSteps<'_, Sqlite> {
        if let Some(error) = batch.error.take() {
            return failed::<Sqlite>(sqlx::Error::Encode(error));
        }
        let sql = AssertSqlSafe(opening.before(&batch.sql));
        self.conn.fetch_many(query_with(sql, batch.arguments))
    }

    fn send_alone(&mut self, _sql: Cow<'static, str>, values: Infallible) -> StatementSteps<'_, Sqlite> {
        match values {}
    }

    fn fetch_many<'e, 'q: 'e, E>(&'e mut self, query: E) -> StatementSteps<'e, Sqlite>
    where
        E: 'q + Execute<'q, Sqlite>,
    {
        self.conn.fetch_many(query)
    }

    fn fetch_optional<'e, 'q: 'e, E>(&'e mut self, query: E) -> BoxFuture<'e, sqlx::Result<Option<SqliteRow>>>
    where
        E: 'q + Execute<'q, Sqlite>,
    {
        self.conn.fetch_optional(query)
    }

    fn prepare_with<'e>(
        &'e mut self,
        sql: SqlStr,
        parameters: &'e [SqliteTypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<SqliteStatement>> {
        self.conn.prepare_with(sql, parameters)
    }

    fn changed_rows(done: &SqliteQueryResult) -> u64 {
        done.rows_affected()
    }
}

impl<'c> SqliteConn<'c> {
    /// Takes a connection whose transaction has begun, or which needs none. Each statement is sent at once.
    pub(in crate::db) fn new(conn: &'c mut SqliteConnection) -> Self {
        Self::of_session(SqliteSession { conn })
    }

    /// Takes a connection whose transaction begins with `opening`, which is sent with the first statement. Each statement
    /// is sent at once.
    pub(in crate::db) fn opened(conn: &'c mut SqliteConnection, opening: PlainStatements) -> Self {
        Self::new(conn).with_opening(opening)
    }

    /// Takes a connection for an operation of the writer, like [`Self::opened`]. Statements may wait.
    pub(in crate::db) fn of_operation(conn: &'c mut SqliteConnection, opening: PlainStatements) -> Self {
        Self::opened(conn, opening).with_waiting()
    }

    /// Returns the place of the values that are bound next.
    pub(in crate::db) fn next_values(&self) -> ValueOffset {
        ValueOffset(self.waiting.batch.arguments.len())
    }

    /// Binds a value of the statement that is sent next, or waits next.
    pub(in crate::db) fn bind<'q, T>(&mut self, value: T)
    where
        T: Encode<'q, Sqlite> + Type<Sqlite>,
    {
        let batch = &mut self.waiting.batch;
        if let Err(error) = Arguments::add(&mut batch.arguments, value) {
            batch.error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_wait_are_one_text() {
        let mut batch = SqliteBatch::default();
        batch.push("insert into a values ($1, $2)", 0);
        batch.push("update b set c = $1", 2);
        batch.push_plain(&PlainStatements::new("release operation; savepoint operation", 2));
        assert_eq!(
            batch.sql,
            "insert into a values ($1, $2); update b set c = $3; release operation; savepoint operation"
        );
        assert_eq!(batch.count, 4);
    }
}
