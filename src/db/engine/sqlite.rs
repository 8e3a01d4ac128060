//! SQLite. It is in this process, so each statement is executed at once.

use std::borrow::Cow;
use std::convert::Infallible;

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use sqlx::error::BoxDynError;
use sqlx::{Arguments, AssertSqlSafe, Encode, Execute, Executor, SqlStr, Type, query_with, raw_sql};

use super::batch::{Batch, BatchConn, BatchSession, PlainStatements, SentValues, StatementSteps, failed};
use crate::sqlite::{
    Sqlite, SqliteArguments, SqliteConnection, SqliteQueryResult, SqliteRow, SqliteStatement, SqliteTypeInfo,
};

/// The connection of a transaction on SQLite.
pub(in crate::db) type SqliteConn<'c> = BatchConn<SqliteSession<'c>>;

/// A connection to SQLite.
pub(in crate::db) struct SqliteSession<'c> {
    conn: &'c mut SqliteConnection,
}

/// The values of a statement.
#[derive(Default)]
pub(in crate::db) struct SqliteValues {
    arguments: SqliteArguments,
    /// A value that could not be encoded.
    error: Option<BoxDynError>,
}

impl SqliteValues {
    /// Adds a value.
    pub(in crate::db) fn add<'q, T>(&mut self, value: T)
    where
        T: Encode<'q, Sqlite> + Type<Sqlite>,
    {
        if let Err(error) = self.arguments.add(value) {
            self.error = Some(error);
        }
    }
}

/// Statements with values are executed at once, so those without are the only ones that are sent together.
impl Batch for PlainStatements {
    fn count(&self) -> usize {
        PlainStatements::count(self)
    }

    fn is_full(&self) -> bool {
        false
    }

    fn push_plain(&mut self, statements: &PlainStatements) {
        self.push_all(statements.text(), PlainStatements::count(statements));
    }
}

impl BatchSession for SqliteSession<'_> {
    type Database = Sqlite;
    type Batch = PlainStatements;
    type Values = SqliteValues;
    type BatchValues = Infallible;

    fn sent_values(&self, values: SqliteValues, _is_single: bool) -> SentValues<Self> {
        SentValues::Alone(values)
    }

    fn push(&mut self, _batch: &mut PlainStatements, _sql: Cow<'static, str>, values: Infallible) {
        match values {}
    }

    fn push_change(&mut self, _batch: &mut PlainStatements, _sql: Cow<'static, str>, values: Infallible) {
        match values {}
    }

    fn has_changed_nothing(_error: &sqlx::Error) -> bool {
        false
    }

    fn send(&mut self, opening: PlainStatements, batch: PlainStatements) -> StatementSteps<'_, Sqlite> {
        if opening.is_empty() && batch.is_empty() {
            return stream::empty().boxed();
        }
        self.conn
            .fetch_many(raw_sql(AssertSqlSafe(opening.before(batch.text()))))
    }

    fn send_alone(&mut self, sql: Cow<'static, str>, values: SqliteValues) -> StatementSteps<'_, Sqlite> {
        match values.error {
            Some(error) => failed::<Sqlite>(sqlx::Error::Encode(error)),
            None => self.conn.fetch_many(query_with(AssertSqlSafe(sql), values.arguments)),
        }
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
    /// Takes a connection whose transaction has begun, or which needs none.
    pub(in crate::db) fn new(conn: &'c mut SqliteConnection) -> Self {
        Self::of_session(SqliteSession { conn })
    }

    /// Takes a connection whose transaction begins with `opening`, which is executed with the first statement.
    pub(in crate::db) fn opened(conn: &'c mut SqliteConnection, opening: PlainStatements) -> Self {
        Self::new(conn).with_opening(opening)
    }
}
