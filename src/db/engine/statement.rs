//! A statement that can be sent together with others.
//!
//! Each exchange with a Postgres costs more than most statements. So in a write, statements whose results nothing needs wait for
//! the next one of their transaction, and so do those whose [rows](LaterRows) are needed later. SQLite executes each one at once.

use std::borrow::Cow;
use std::marker::PhantomData;

use futures::TryStreamExt;
use sqlx::postgres::PgRow;
use sqlx::{Either, Encode, FromRow, Postgres, Type};

use super::error::{DbError, DbResult};
use super::{
    BatchConn, BatchSession, Conn, Engine, PostgresConn, PostgresValues, SqliteConn, SqliteValues, Tx, on_engine,
    push_number,
};
use crate::sqlite::{Sqlite, SqliteRow};

/// The most values of a statement with rows on SQLite, which searches the place of each value by its number.
const MOST_VALUES: usize = 60;
/// The most values of a statement with rows on Postgres, which takes 65,535.
const MOST_VALUES_ON_POSTGRES: usize = 5_000;

/// A value of a statement on either engine.
pub(in crate::db) trait SqlValue<'q>:
    Encode<'q, Sqlite> + Type<Sqlite> + Encode<'q, Postgres> + Type<Postgres>
{
}

impl<'q, T> SqlValue<'q> for T where T: Encode<'q, Sqlite> + Type<Sqlite> + Encode<'q, Postgres> + Type<Postgres> {}

/// A row of a result on either engine.
pub(in crate::db) trait ReadRow:
    for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin
{
}

impl<T> ReadRow for T where T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin {}

/// A statement under construction. Its values are numbered in the order in which they are bound: `$1`, `$2`.
pub(in crate::db) struct Statement<'t, 'c> {
    target: Target<'t, 'c>,
    sql: Cow<'static, str>,
    /// The number of values so far.
    bound: usize,
}

enum Target<'t, 'c> {
    Sqlite {
        conn: &'t mut SqliteConn<'c>,
        values: SqliteValues,
    },
    Postgres {
        conn: &'t mut PostgresConn<'c>,
        values: PostgresValues,
    },
}

impl<'c> Tx<'c> {
    /// Begins a statement.
    pub(in crate::db) fn statement<'t>(&'t mut self, sql: &'static str) -> Statement<'t, 'c> {
        let target = match &mut self.conn {
            Conn::Sqlite(conn) => Target::Sqlite {
                conn,
                values: SqliteValues::default(),
            },
            Conn::Postgres(conn) => Target::Postgres {
                conn,
                values: PostgresValues::default(),
            },
        };
        Statement {
            target,
            sql: Cow::Borrowed(sql),
            bound: 0,
        }
    }

    /// Stores rows by [`Statement::execute_later`]. `insert` is the text before the rows, up to `values`, and `end` that behind
    /// them. `bind` binds the `width` values of a row.
    ///
    /// # Errors
    /// As [`Statement::execute_later`].
    pub(in crate::db) async fn insert_later<I>(
        &mut self,
        insert: &'static str,
        end: &'static str,
        width: usize,
        rows: Vec<I>,
        bind: impl Fn(&mut RowValues<'_, '_, '_>, I),
    ) -> DbResult<()> {
        let values = match self.engine() {
            Engine::Sqlite => MOST_VALUES,
            Engine::Postgres => MOST_VALUES_ON_POSTGRES,
        };
        let most = (values / width).max(1);
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let mut statement = self.statement(insert);
            statement.push_rows(rows.by_ref().take(most), &bind);
            statement.sql.to_mut().push_str(end);
            statement.execute_later().await?;
        }
        Ok(())
    }
}

/// Runs the same body on the connection of either engine, with the text and the values of a statement. Like [`on_engine`], a macro
/// since the connections have different types.
macro_rules! send {
    ($statement:expr, |$conn:ident, $sql:ident, $values:ident| $body:expr) => {{
        let $sql = $statement.sql;
        match $statement.target {
            Target::Sqlite {
                conn: $conn,
                values: $values,
            } => $body,
            Target::Postgres {
                conn: $conn,
                values: mut $values,
            } => {
                $values.take_error()?;
                $body
            }
        }
    }};
}

impl Statement<'_, '_> {
    /// Binds the next value.
    pub(in crate::db) fn bind<'q>(mut self, value: impl SqlValue<'q>) -> Self {
        self.add(value);
        self
    }

    /// Binds values, and appends them to the text as a list in brackets.
    pub(in crate::db) fn bind_list<'q, V: SqlValue<'q>>(mut self, values: impl Iterator<Item = V>) -> Self {
        self.push_rows(std::iter::once(values), |row, values| {
            for value in values {
                row.push_bind(value);
            }
        });
        self
    }

    fn add<'q>(&mut self, value: impl SqlValue<'q>) {
        self.bound += 1;
        match &mut self.target {
            Target::Sqlite { values, .. } => values.add(value),
            Target::Postgres { values, .. } => values.add(value),
        }
    }

    /// Adds rows to an `insert`: lists of values in brackets, separated by commas.
    fn push_rows<I: Iterator>(&mut self, rows: I, bind: impl Fn(&mut RowValues<'_, '_, '_>, I::Item)) {
        for (index, item) in rows.enumerate() {
            let before = if index == 0 { "(" } else { ", (" };
            self.sql.to_mut().push_str(before);
            let mut row = RowValues {
                statement: self,
                is_empty: true,
            };
            bind(&mut row, item);
            self.sql.to_mut().push(')');
        }
    }

    /// Executes the statement and returns the number of rows that it has changed.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn execute(self) -> DbResult<u64> {
        send!(self, |conn, sql, values| execute(conn, sql, values).await)
    }

    /// Executes the statement by the end of the transaction at the latest, and before any that follows. If it fails then,
    /// the error is that of a later statement, or of the transaction: so this is for statements whose errors the operation does
    /// not handle.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn execute_later(self) -> DbResult<()> {
        send!(self, |conn, sql, values| Ok(conn.send_later(sql, values).await?))
    }

    /// Executes the statement like [`Self::execute_later`]. If it changes no row, nothing of the transaction is stored: it fails
    /// as if the database had refused the statement.
    ///
    /// # Errors
    /// [`DbError::NoRow`] if it changed no row, those of the statement, and of others that waited.
    pub(in crate::db) async fn change_later(self) -> DbResult<()> {
        send!(self, |conn, sql, values| Ok(conn.change_later(sql, values).await?))
    }

    /// Executes the statement before its rows are [read](LaterRows::fetch_all), and before any statement that follows. So the
    /// transaction may change what the statement reads.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn fetch_later<R: ReadRow>(self) -> DbResult<LaterRows<R>> {
        let number = send!(self, |conn, sql, values| conn.fetch_later(sql, values).await)?;
        let rows = PhantomData;
        Ok(LaterRows { number, rows })
    }

    /// Executes the statement and returns its first row.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn fetch_optional<R: ReadRow>(self) -> DbResult<Option<R>> {
        send!(self, |conn, sql, values| {
            let row = conn.fetch_first(sql, values).await?;
            Ok(row.map(|row| R::from_row(&row)).transpose()?)
        })
    }

    /// Executes a statement that always has a row, and returns the first one.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn fetch_one<R: ReadRow>(self) -> DbResult<R> {
        Ok(self.fetch_optional().await?.ok_or(sqlx::Error::RowNotFound)?)
    }

    /// Executes the statement and returns all rows.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn fetch_all<R: ReadRow>(self) -> DbResult<Vec<R>> {
        send!(self, |conn, sql, values| {
            let mut rows = vec![];
            let mut steps = conn.send_now(sql, values).await?;
            while let Some(step) = steps.try_next().await? {
                if let Either::Right(row) = step {
                    rows.push(R::from_row(&row)?);
                }
            }
            Ok(rows)
        })
    }
}

/// Executes a statement and returns the number of rows that it has changed.
async fn execute<S: BatchSession>(conn: &mut BatchConn<S>, sql: Cow<'static, str>, values: S::Values) -> DbResult<u64> {
    let mut changed = 0;
    let mut steps = conn.send_now(sql, values).await?;
    while let Some(step) = steps.try_next().await? {
        if let Either::Left(done) = step {
            changed = S::changed_rows(&done);
        }
    }
    Ok(changed)
}

/// The rows of a statement that are read later in its transaction.
pub(in crate::db) struct LaterRows<R> {
    /// The number under which the connection keeps the rows.
    number: usize,
    rows: PhantomData<fn() -> R>,
}

impl<R: ReadRow> LaterRows<R> {
    /// Returns all rows. `tx` is the transaction of the statement.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn fetch_all(self, tx: &mut Tx<'_>) -> DbResult<Vec<R>> {
        on_engine!(tx, |conn| {
            let rows = conn.take_kept(self.number).await?;
            rows.iter().map(|row| R::from_row(row).map_err(DbError::from)).collect()
        })
    }

    /// Returns the first row, like [`Self::fetch_all`].
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn fetch_optional(self, tx: &mut Tx<'_>) -> DbResult<Option<R>> {
        Ok(self.fetch_all(tx).await?.into_iter().next())
    }
}

/// The values of a row under construction.
pub(in crate::db) struct RowValues<'r, 't, 'c> {
    statement: &'r mut Statement<'t, 'c>,
    is_empty: bool,
}

impl RowValues<'_, '_, '_> {
    /// Binds the next value of the row.
    pub(in crate::db) fn push_bind<'q>(&mut self, value: impl SqlValue<'q>) -> &mut Self {
        self.statement.add(value);
        let number = self.statement.bound;
        let separator = if self.is_empty { "" } else { ", " };
        let sql = self.statement.sql.to_mut();
        sql.push_str(separator);
        sql.push('$');
        push_number(sql, number);
        self.is_empty = false;
        self
    }
}
