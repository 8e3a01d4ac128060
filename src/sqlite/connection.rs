//! Connections, and how statements are executed.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, lazy};
use futures::stream::{self, BoxStream};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::{Batch, CachedStatement, Row, Statement};
use sqlx::{Acquire, Arguments, Connection, Either, Execute, Executor, SqlStr, Transaction};
use sqlx_core::connection::LogSettings;
use sqlx_core::logger::QueryLogger;

use super::error::sqlx_error;
use super::{
    Sqlite, SqliteArguments, SqliteColumn, SqliteConnectOptions, SqliteQueryResult, SqliteRow, SqliteStatement,
    SqliteTypeInfo, SqliteValue,
};

/// The most texts of statements whose forms are known.
const MOST_FORMS: usize = 1_024;

/// A connection to SQLite. Its statements run on the thread that polls their futures.
pub struct SqliteConnection {
    conn: rusqlite::Connection,
    /// The forms of statements, by their texts.
    forms: HashMap<Box<str>, StatementForm>,
    log_settings: LogSettings,
    /// The number of open transactions, each within the one before.
    pub(super) depth: usize,
}

/// The places of the values of a statement, and the columns of its rows.
#[derive(Debug, Default)]
struct StatementForm {
    /// The number of the value of each parameter.
    parameters: Box<[usize]>,
    /// The columns; none before the first row.
    columns: Arc<[SqliteColumn]>,
}

/// A step of a statement: a row, or its end.
type Step = Either<SqliteQueryResult, SqliteRow>;

/// The most rows that a query returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MostRows {
    All,
    One,
}

impl fmt::Debug for SqliteConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteConnection").finish_non_exhaustive()
    }
}

impl SqliteConnection {
    pub(super) fn of(conn: rusqlite::Connection, log_settings: LogSettings) -> Self {
        Self {
            conn,
            forms: HashMap::new(),
            log_settings,
            depth: 0,
        }
    }

    /// Calls `is_over` after each `instructions` instructions of SQLite's virtual machine. A statement fails with the code 9 when
    /// the answer is true.
    ///
    /// # Errors
    /// When SQLite refuses it.
    pub fn interrupt_when<F>(&mut self, instructions: i32, is_over: F) -> sqlx::Result<()>
    where
        F: FnMut() -> bool + Send + 'static,
    {
        self.conn
            .progress_handler(instructions, Some(is_over))
            .map_err(sqlx_error)
    }

    /// Executes statements without values, whose rows nobody reads.
    pub(super) fn run_plain(&mut self, sql: SqlStr) -> sqlx::Result<()> {
        self.run(sql, None, MostRows::All, &mut vec![])
    }

    /// Executes a statement with values, or statements without, and adds their steps.
    fn run(
        &mut self,
        sql: SqlStr,
        arguments: Option<SqliteArguments>,
        most_rows: MostRows,
        steps: &mut Vec<Step>,
    ) -> sqlx::Result<()> {
        let mut logger = QueryLogger::new(sql, self.log_settings.clone());
        let before = steps.len();
        let ran = self.run_text(logger.sql().as_str(), arguments, most_rows, steps);
        for step in &steps[before..] {
            match step {
                Either::Left(ended) => logger.increase_rows_affected(ended.rows_affected()),
                Either::Right(_) => logger.increment_rows_returned(),
            }
        }
        ran
    }

    fn run_text(
        &mut self,
        sql: &str,
        arguments: Option<SqliteArguments>,
        most_rows: MostRows,
        steps: &mut Vec<Step>,
    ) -> sqlx::Result<()> {
        if arguments.is_none() && (sql.contains(';') || sql.is_empty()) {
            return self.run_several(sql, steps);
        }
        let mut statement = self.conn.prepare_cached(sql).map_err(sqlx_error)?;
        let form = match self.forms.get_mut(sql) {
            Some(form) => form,
            None => {
                if self.forms.len() >= MOST_FORMS {
                    self.forms.clear();
                }
                self.forms.entry(sql.into()).or_insert(StatementForm::of(&statement)?)
            }
        };
        form.bind(&mut statement, &arguments.unwrap_or_default())?;
        let has_ended = step(&mut statement, form, most_rows, steps).map_err(sqlx_error)?;
        if has_ended {
            steps.push(self.end());
        }
        Ok(())
    }

    /// Executes the statements of a text, which have no values. A later one may need what an earlier one creates.
    fn run_several(&mut self, sql: &str, steps: &mut Vec<Step>) -> sqlx::Result<()> {
        let mut statements = Batch::new(&self.conn, sql);
        while let Some(mut statement) = statements.next().map_err(sqlx_error)? {
            let mut form = StatementForm::default();
            step(&mut statement, &mut form, MostRows::All, steps).map_err(sqlx_error)?;
            steps.push(self.end());
        }
        Ok(())
    }

    /// Returns the end of the statement that was executed last.
    fn end(&self) -> Step {
        Either::Left(SqliteQueryResult {
            changed: self.conn.changes(),
        })
    }

    /// Executes a query, and adds its steps.
    fn run_into<'q, E>(&mut self, mut query: E, most_rows: MostRows, steps: &mut Vec<Step>) -> sqlx::Result<()>
    where
        E: Execute<'q, Sqlite>,
    {
        let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?;
        self.run(query.sql(), arguments, most_rows, steps)
    }
}

/// Reads rows of a statement, and returns whether it has ended.
fn step(
    statement: &mut Statement<'_>,
    form: &mut StatementForm,
    most_rows: MostRows,
    steps: &mut Vec<Step>,
) -> rusqlite::Result<bool> {
    let mut rows = statement.raw_query();
    let mut is_first = true;
    while let Some(row) = rows.next()? {
        if is_first {
            form.update_columns(row)?;
            is_first = false;
        }
        steps.push(Either::Right(form.copy(row)?));
        if most_rows == MostRows::One {
            return Ok(false);
        }
    }
    Ok(true)
}

impl StatementForm {
    fn of(statement: &CachedStatement<'_>) -> sqlx::Result<Self> {
        let mut last = 0;
        let parameters = (1..=statement.parameter_count()).map(|index| {
            last = match statement.parameter_name(index) {
                Some(name) => number_of(name)?,
                None => last + 1,
            };
            Ok(last)
        });
        Ok(Self {
            parameters: parameters.collect::<sqlx::Result<_>>()?,
            columns: Arc::default(),
        })
    }

    fn bind(&self, statement: &mut CachedStatement<'_>, arguments: &SqliteArguments) -> sqlx::Result<()> {
        for (index, number) in self.parameters.iter().enumerate() {
            let Some(value) = arguments.get(*number) else {
                let count = arguments.len();
                let error = format!("a statement has the value ${number}, but {count} were bound");
                return Err(sqlx::Error::Protocol(error));
            };
            statement.raw_bind_parameter(index + 1, value).map_err(sqlx_error)?;
        }
        Ok(())
    }

    /// Takes the columns from a row, unless they are known. A statement that reads all columns of a table has others after a
    /// migration.
    fn update_columns(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let statement = row.as_ref();
        let count = statement.column_count();
        let mut are_known = self.columns.len() == count;
        for column in self.columns.iter() {
            are_known = are_known && statement.column_name(column.ordinal)? == &*column.name;
        }
        if !are_known {
            self.columns = columns_of(statement)?;
        }
        Ok(())
    }

    fn copy(&self, row: &Row<'_>) -> rusqlite::Result<SqliteRow> {
        let values = (0..self.columns.len()).map(|index| Ok(SqliteValue::of(row.get_ref(index)?)));
        Ok(SqliteRow {
            values: values.collect::<rusqlite::Result<_>>()?,
            columns: Arc::clone(&self.columns),
        })
    }
}

fn columns_of(statement: &Statement<'_>) -> rusqlite::Result<Arc<[SqliteColumn]>> {
    let columns = (0..statement.column_count()).map(|ordinal| {
        Ok(SqliteColumn {
            name: statement.column_name(ordinal)?.into(),
            ordinal,
        })
    });
    columns.collect()
}

/// Returns the number of a value in the text of a statement: 3 for `$3`.
fn number_of(name: &str) -> sqlx::Result<usize> {
    let number = name.strip_prefix(['$', '?']).and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| sqlx::Error::Protocol(format!("the value {name} of a statement has no number")))
}

impl<'c> Executor<'c> for &'c mut SqliteConnection {
    type Database = Sqlite;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<Step>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        let ran = lazy(move |_| {
            let mut steps = vec![];
            let ran = self.run_into(query, MostRows::All, &mut steps);
            // An error comes behind the steps before it.
            stream::iter(steps.into_iter().map(Ok).chain(ran.err().map(Err)))
        });
        ran.flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<SqliteRow>>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        Box::pin(lazy(move |_| {
            let mut steps = vec![];
            self.run_into(query, MostRows::One, &mut steps)?;
            Ok(steps.into_iter().find_map(Either::right))
        }))
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        _parameters: &'e [SqliteTypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<SqliteStatement>>
    where
        'c: 'e,
    {
        Box::pin(lazy(move |_| {
            let statement = self.conn.prepare_cached(sql.as_str()).map_err(sqlx_error)?;
            let parameters = statement.parameter_count();
            let columns = columns_of(&statement).map_err(sqlx_error)?;
            drop(statement);
            Ok(SqliteStatement {
                sql,
                parameters,
                columns,
            })
        }))
    }
}

impl Connection for SqliteConnection {
    type Database = Sqlite;
    type Options = SqliteConnectOptions;

    async fn close(self) -> sqlx::Result<()> {
        self.conn.close().map_err(|(_, error)| sqlx_error(error))
    }

    async fn close_hard(self) -> sqlx::Result<()> {
        drop(self);
        Ok(())
    }

    /// SQLite is in this process.
    async fn ping(&mut self) -> sqlx::Result<()> {
        Ok(())
    }

    fn begin(&mut self) -> impl Future<Output = sqlx::Result<Transaction<'_, Sqlite>>> + Send + '_ {
        Transaction::begin(self, None)
    }

    fn shrink_buffers(&mut self) {}

    async fn flush(&mut self) -> sqlx::Result<()> {
        Ok(())
    }

    fn should_flush(&self) -> bool {
        false
    }
}

impl<'c> Acquire<'c> for &'c mut SqliteConnection {
    type Database = Sqlite;
    type Connection = Self;

    fn acquire(self) -> BoxFuture<'c, sqlx::Result<Self>> {
        Box::pin(ready(Ok(self)))
    }

    fn begin(self) -> BoxFuture<'c, sqlx::Result<Transaction<'c, Sqlite>>> {
        Transaction::begin(self, None)
    }
}
