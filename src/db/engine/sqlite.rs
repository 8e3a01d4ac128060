//! SQLite. The driver runs each connection in a thread of its own, and to hand that thread a statement and to wait for
//! the result costs more than most statements do. So what can be sent together is sent together: the statements that
//! begin and end a transaction with those of its operation, and the [statements](crate::db::statement) whose results
//! nothing needs yet with the next one. Their rows are kept until they are asked for.

use std::fmt;
use std::future::ready;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArguments, SqliteQueryResult, SqliteRow, SqliteStatement, SqliteTypeInfo};
use sqlx::{
    Arguments, AssertSqlSafe, Either, Encode, Execute, Executor, SqlSafeStr, SqlStr, Sqlite, SqliteConnection, Type,
    query_with,
};

use super::has_code;

/// The most statements that wait to be sent together.
const MOST_WAITING: usize = 64;

/// A statement that fails with the code [`FAILED`] if the one before it has changed no row. SQLite can raise an error only in
/// triggers, but what is no JSON is an error everywhere. It has no row, which would be copied for nobody.
const FAIL_UNLESS_CHANGED: &str = "select 1 where json(iif(changes() = 0, '', '0')) is null";
/// The code of an error that a function of SQLite reports.
const FAILED: &str = "1";

/// The cause of an error: a statement that had to change a row has changed none. The driver has no error of its own for that,
/// and its error about a row that was not found has other causes, too.
#[derive(Debug, thiserror::Error)]
#[error("a statement that had to change a row has changed none")]
pub(in crate::db) struct NothingChanged;

impl NothingChanged {
    /// Returns the error of the driver that has this cause.
    fn error() -> sqlx::Error {
        sqlx::Error::Decode(Box::new(Self))
    }

    /// Returns whether this is the cause of an error.
    pub(in crate::db) fn is_cause_of(error: &sqlx::Error) -> bool {
        matches!(error, sqlx::Error::Decode(cause) if cause.is::<Self>())
    }
}

/// Statements without values and results, such as those that begin and end a transaction.
pub(in crate::db) type PlainStatements = &'static [&'static str];

/// A step of a statement: a row, or its end.
pub(in crate::db) type StatementStep = Either<SqliteQueryResult, SqliteRow>;

/// The connection of a transaction on SQLite.
pub(in crate::db) struct SqliteConn<'c> {
    conn: &'c mut SqliteConnection,
    /// The statements that are still to be sent before the next one.
    opening: PlainStatements,
    /// The error of the opening, if it failed.
    opening_error: Option<sqlx::Error>,
    /// The statements that wait for the next one.
    waiting: Batch,
    /// False if each statement is sent at once.
    may_wait: bool,
    /// The rows of statements that were sent with later ones.
    kept: Vec<KeptRows>,
    /// The number of the last statement whose rows are kept.
    last_kept: usize,
    /// The number of statements that have to change a row and are not known to have changed one yet.
    unconfirmed: usize,
}

/// The rows of a statement that was sent with later ones.
struct KeptRows {
    /// The number of the statement.
    number: usize,
    rows: Vec<SqliteRow>,
}

/// The use of the result of a statement that is sent together with later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultUse {
    /// Its rows are kept under this number.
    Kept(usize),
    /// The statement is [`FAIL_UNLESS_CHANGED`].
    FailsUnlessChanged,
}

/// Statements that are sent together, as one text with one numbering of their values.
#[derive(Default)]
struct Batch {
    sql: String,
    arguments: SqliteArguments,
    /// A value that could not be encoded.
    error: Option<BoxDynError>,
    count: usize,
    /// The positions of the statements whose results have a use, in their order.
    uses: Vec<(usize, ResultUse)>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of its statements that have to change a row.
    fn count_changes(&self) -> usize {
        let changes = self
            .uses
            .iter()
            .filter(|(_, usage)| *usage == ResultUse::FailsUnlessChanged);
        changes.count()
    }

    /// Adds a statement whose values are those behind the first `offset` ones.
    fn push(&mut self, sql: &str, offset: usize) {
        if !self.sql.is_empty() {
            self.sql.push_str("; ");
        }
        push_renumbered(&mut self.sql, sql, offset);
        self.count += 1;
    }
}

/// Adds a statement to a text, with `offset` added to the numbers of its values (`$1`). In a literal a dollar is no value.
fn push_renumbered(text: &mut String, sql: &str, offset: usize) {
    if offset == 0 {
        text.push_str(sql);
        return;
    }
    // Some numbers get more digits.
    text.reserve(sql.len() + 16);
    let bytes = sql.as_bytes();
    let mut is_in_literal = false;
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        at += 1;
        if byte == b'\'' {
            is_in_literal = !is_in_literal;
        }
        if byte != b'$' || is_in_literal {
            continue;
        }
        text.push_str(&sql[copied..at]);
        copied = at;
        let mut number = 0;
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            number = 10 * number + usize::from(bytes[at] - b'0');
            at += 1;
        }
        if at > copied {
            push_number(text, number + offset);
            copied = at;
        }
    }
    text.push_str(&sql[copied..]);
}

/// Adds a number to a text. Statements have many numbers, and `write!` takes several times as long.
pub(in crate::db) fn push_number(text: &mut String, number: usize) {
    const DIGITS: [char; 10] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push(DIGITS[number % 10]);
}

/// The part of what was sent together that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum FailedPart {
    /// The statements that begin the transaction.
    Opening,
    /// A statement of the operation.
    Operation,
    /// The statements that end the transaction, or the savepoint of the operation.
    End,
}

/// An error at the end of an operation.
#[derive(Debug)]
pub(in crate::db) struct EndError {
    /// The part that has failed.
    pub(in crate::db) part: FailedPart,
    /// The error of the driver.
    pub(in crate::db) error: sqlx::Error,
}

impl<'c> SqliteConn<'c> {
    /// Takes a connection whose transaction has begun, or which needs none. Each statement is sent at once.
    pub(in crate::db) fn new(conn: &'c mut SqliteConnection) -> Self {
        Self {
            conn,
            opening: &[],
            opening_error: None,
            waiting: Batch::default(),
            may_wait: false,
            kept: vec![],
            last_kept: 0,
            unconfirmed: 0,
        }
    }

    /// Takes a connection whose transaction begins with `opening`, which is sent with the first statement. Each statement
    /// is sent at once.
    pub(in crate::db) fn opened(conn: &'c mut SqliteConnection, opening: PlainStatements) -> Self {
        Self {
            opening,
            ..Self::new(conn)
        }
    }

    /// Takes a connection for an operation of the writer, like [`Self::opened`]. Unless the operation ends with
    /// [`Self::end_operation`], the statements that wait are not sent, and the transaction has to be rolled back.
    pub(in crate::db) fn of_operation(conn: &'c mut SqliteConnection, opening: PlainStatements) -> Self {
        Self {
            may_wait: true,
            ..Self::opened(conn, opening)
        }
    }

    /// Returns the opening if it was not sent, since there was no statement.
    pub(in crate::db) fn unsent_opening(&self) -> PlainStatements {
        self.opening
    }

    /// Returns why the opening has failed, if it has. The operation was told only that there is no transaction.
    pub(in crate::db) fn take_opening_error(&mut self) -> Option<sqlx::Error> {
        self.opening_error.take()
    }

    /// Sends what waits, followed by the statements `end`. If the operation has no statement, nothing is sent.
    ///
    /// # Errors
    /// Names the part that has failed. The transaction is still open if that is a statement of the operation.
    pub(in crate::db) async fn end_operation(&mut self, end: PlainStatements) -> Result<(), EndError> {
        if let Some(error) = self.take_opening_error() {
            let part = FailedPart::Opening;
            return Err(EndError { part, error });
        }
        let openings = self.opening.len();
        let mut batch = std::mem::take(&mut self.waiting);
        if self.unconfirmed > batch.count_changes() {
            // The operation has ignored the error.
            let part = FailedPart::Operation;
            let error = NothingChanged::error();
            return Err(EndError { part, error });
        }
        if openings > 0 && batch.is_empty() {
            return Ok(());
        }
        let before_end = openings + batch.count;
        let all = before_end + end.len();
        end.iter().for_each(|statement| batch.push(statement, 0));
        let mut ended = 0;
        let mut steps = self.send(batch, 0);
        let error = loop {
            match steps.try_next().await {
                Ok(None) if ended == all => return Ok(()),
                // The thread of the connection has ended before its statements.
                Ok(None) => break sqlx::Error::WorkerCrashed,
                Ok(Some(Either::Left(_))) => ended += 1,
                Ok(Some(Either::Right(_))) => {}
                Err(error) => break error,
            }
        };
        drop(steps);
        if let Some(error) = self.take_opening_error() {
            let part = FailedPart::Opening;
            return Err(EndError { part, error });
        }
        let part = match ended < before_end {
            true => FailedPart::Operation,
            false => FailedPart::End,
        };
        Err(EndError { part, error })
    }

    /// Returns the number of values that were bound before.
    pub(in crate::db) fn bound(&self) -> usize {
        self.waiting.arguments.len()
    }

    /// Binds a value of the statement that is sent next, or waits next.
    pub(in crate::db) fn bind<'q, T>(&mut self, value: T)
    where
        T: Encode<'q, Sqlite> + Type<Sqlite>,
    {
        if let Err(error) = Arguments::add(&mut self.waiting.arguments, value) {
            self.waiting.error = Some(error);
        }
    }

    /// Lets a statement wait, if statements may wait here. Its values are those behind the first `offset` ones.
    ///
    /// # Errors
    /// Those of this statement or of earlier ones, if they were sent.
    pub(in crate::db) async fn send_later(&mut self, sql: &str, offset: usize) -> sqlx::Result<()> {
        self.waiting.push(sql, offset);
        if self.may_wait && self.waiting.count < MOST_WAITING {
            return Ok(());
        }
        self.send_waiting().await
    }

    /// Lets a statement wait like [`Self::send_later`]. If it changes no row, the next one that is sent with it fails with
    /// [`NothingChanged`], none of those behind it is executed, and the operation cannot end well.
    ///
    /// # Errors
    /// As [`Self::send_later`].
    pub(in crate::db) async fn change_later(&mut self, sql: &str, offset: usize) -> sqlx::Result<()> {
        self.waiting.push(sql, offset);
        let position = self.waiting.count;
        self.waiting.uses.push((position, ResultUse::FailsUnlessChanged));
        self.unconfirmed += 1;
        self.send_later(FAIL_UNLESS_CHANGED, 0).await
    }

    /// Lets a statement wait like [`Self::send_later`], also where each other statement is sent at once. Its rows are kept
    /// under the number that is returned.
    ///
    /// # Errors
    /// Those of this statement or of earlier ones, if they were sent.
    pub(in crate::db) async fn fetch_later(&mut self, sql: &str, offset: usize) -> sqlx::Result<usize> {
        self.last_kept += 1;
        let number = self.last_kept;
        let position = self.waiting.count;
        self.waiting.uses.push((position, ResultUse::Kept(number)));
        self.waiting.push(sql, offset);
        if self.waiting.count >= MOST_WAITING {
            self.send_waiting().await?;
        }
        Ok(number)
    }

    /// Returns the rows that are kept under a number. If their statement still waits, it is sent, with all that wait.
    ///
    /// # Errors
    /// Those of the statements that are sent.
    pub(in crate::db) async fn take_kept(&mut self, number: usize) -> sqlx::Result<Vec<SqliteRow>> {
        let is_of_number = |(_, usage): &(usize, ResultUse)| *usage == ResultUse::Kept(number);
        if self.waiting.uses.iter().any(is_of_number) {
            self.send_waiting().await?;
        }
        match self.kept.iter().position(|kept| kept.number == number) {
            Some(at) => Ok(self.kept.swap_remove(at).rows),
            // The thread of the connection has ended before the statement, or an earlier one failed and the operation
            // has ignored it.
            None => Err(sqlx::Error::WorkerCrashed),
        }
    }

    /// Sends a statement with those that wait, and returns its steps. Its values are those behind the first `offset` ones.
    pub(in crate::db) fn send_now(&mut self, sql: &str, offset: usize) -> BoxStream<'_, sqlx::Result<StatementStep>> {
        let mut batch = std::mem::take(&mut self.waiting);
        let before = self.opening.len() + batch.count;
        batch.push(sql, offset);
        self.send(batch, before)
    }

    async fn send_waiting(&mut self) -> sqlx::Result<()> {
        let batch = std::mem::take(&mut self.waiting);
        self.send(batch, 0).try_for_each(|_| ready(Ok(()))).await
    }

    /// Sends statements behind the opening, and returns the steps that follow the first `skipped` statements.
    fn send(&mut self, mut batch: Batch, skipped: usize) -> BoxStream<'_, sqlx::Result<StatementStep>> {
        if let Some(error) = batch.error.take() {
            return failed(sqlx::Error::Encode(error));
        }
        if self.opening_error.is_some() {
            return failed(sqlx::Error::BeginFailed);
        }
        let opening = std::mem::take(&mut self.opening);
        let sql = AssertSqlSafe(behind(opening, &batch.sql));
        let steps = self.conn.fetch_many(query_with(sql, batch.arguments));
        let sent = SentStatements {
            openings: opening.len(),
            skipped,
            uses: batch.uses,
        };
        let results = ResultPlaces {
            opening_error: &mut self.opening_error,
            kept: &mut self.kept,
            unconfirmed: &mut self.unconfirmed,
        };
        sent.remaining_steps(steps, results)
    }
}

/// Returns the steps of statements that are not sent.
fn failed<'e>(error: sqlx::Error) -> BoxStream<'e, sqlx::Result<StatementStep>> {
    stream::once(ready(Err(error))).boxed()
}

/// Returns a statement behind the opening.
fn behind(opening: PlainStatements, sql: &str) -> String {
    let statements = opening.iter().copied().chain([sql]);
    statements.collect::<Vec<_>>().join("; ")
}

/// The statements of a text that was sent.
struct SentStatements {
    /// The number of those that begin the transaction.
    openings: usize,
    /// The number of those at the beginning whose steps nobody reads, with those that begin the transaction.
    skipped: usize,
    /// The positions, behind those that begin the transaction, of the statements whose results have a use.
    uses: Vec<(usize, ResultUse)>,
}

/// The places for the results of sent statements, in the connection.
struct ResultPlaces<'e> {
    opening_error: &'e mut Option<sqlx::Error>,
    kept: &'e mut Vec<KeptRows>,
    unconfirmed: &'e mut usize,
}

impl SentStatements {
    /// Leaves out the steps of the skipped statements, and moves rows that are to be kept to their place. If one of the
    /// statements that begin the transaction fails, its error is stored.
    fn remaining_steps<'e>(
        self,
        steps: BoxStream<'e, sqlx::Result<StatementStep>>,
        results: ResultPlaces<'e>,
    ) -> BoxStream<'e, sqlx::Result<StatementStep>> {
        let Self {
            openings,
            skipped,
            uses,
        } = self;
        let ResultPlaces {
            opening_error,
            kept,
            unconfirmed,
        } = results;
        let mut rows = vec![];
        let mut ended = 0;
        let mut used = 0;
        let remaining = steps.filter_map(move |step| {
            let is_opening = ended < openings;
            let is_skipped = ended < skipped;
            let next = uses.get(used).filter(|(position, _)| position + openings == ended);
            let usage = next.map(|(_, usage)| *usage);
            if matches!(step, Ok(Either::Left(_))) {
                ended += 1;
                used += usize::from(usage.is_some());
                match usage {
                    Some(ResultUse::Kept(number)) => {
                        let rows = std::mem::take(&mut rows);
                        kept.push(KeptRows { number, rows });
                    }
                    Some(ResultUse::FailsUnlessChanged) => *unconfirmed -= 1,
                    None => {}
                }
            }
            ready(match (step, usage) {
                (Err(error), _) if is_opening => {
                    *opening_error = Some(error);
                    Some(Err(sqlx::Error::BeginFailed))
                }
                (Err(error), Some(ResultUse::FailsUnlessChanged)) if has_code(&error, FAILED) => {
                    Some(Err(NothingChanged::error()))
                }
                (Err(error), _) => Some(Err(error)),
                (Ok(Either::Right(row)), Some(ResultUse::Kept(_))) => {
                    rows.push(row);
                    None
                }
                (Ok(_), _) if is_skipped => None,
                (Ok(step), _) => Some(Ok(step)),
            })
        });
        remaining.boxed()
    }
}

/// A query behind the opening.
struct OpenedQuery<E> {
    opening: PlainStatements,
    query: E,
}

impl<'q, E: Execute<'q, Sqlite>> Execute<'q, Sqlite> for OpenedQuery<E> {
    fn sql(self) -> SqlStr {
        AssertSqlSafe(behind(self.opening, self.query.sql().as_str())).into_sql_str()
    }

    fn statement(&self) -> Option<&SqliteStatement> {
        None
    }

    fn take_arguments(&mut self) -> Result<Option<SqliteArguments>, BoxDynError> {
        self.query.take_arguments()
    }

    fn persistent(&self) -> bool {
        self.query.persistent()
    }
}

impl fmt::Debug for SqliteConn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteConn").finish_non_exhaustive()
    }
}

impl<'c> Executor<'c> for &'c mut SqliteConn<'_> {
    type Database = Sqlite;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<StatementStep>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        if self.opening_error.is_some() {
            return failed(sqlx::Error::BeginFailed);
        }
        if !self.waiting.is_empty() {
            // Its values have numbers of their own.
            let sent = async move {
                self.send_waiting().await?;
                Ok::<_, sqlx::Error>(self.conn.fetch_many(query))
            };
            return sent.try_flatten_stream().boxed();
        }
        let opening = std::mem::take(&mut self.opening);
        if opening.is_empty() {
            return self.conn.fetch_many(query);
        }
        let steps = self.conn.fetch_many(OpenedQuery { opening, query });
        let sent = SentStatements {
            openings: opening.len(),
            skipped: opening.len(),
            uses: vec![],
        };
        let results = ResultPlaces {
            opening_error: &mut self.opening_error,
            kept: &mut self.kept,
            unconfirmed: &mut self.unconfirmed,
        };
        sent.remaining_steps(steps, results)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<SqliteRow>>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        let is_plain = self.waiting.is_empty() && self.opening.is_empty() && self.opening_error.is_none();
        if is_plain {
            return self.conn.fetch_optional(query);
        }
        let mut steps = self.fetch_many(query);
        Box::pin(async move { first_row(&mut steps).await })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [SqliteTypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<SqliteStatement>>
    where
        'c: 'e,
    {
        self.conn.prepare_with(sql, parameters)
    }
}

/// Returns the first row of a statement.
pub(in crate::db) async fn first_row(
    steps: &mut BoxStream<'_, sqlx::Result<StatementStep>>,
) -> sqlx::Result<Option<SqliteRow>> {
    while let Some(step) = steps.try_next().await? {
        if let Either::Right(row) = step {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renumbered(sql: &str, offset: usize) -> String {
        let mut text = String::new();
        push_renumbered(&mut text, sql, offset);
        text
    }

    #[test]
    fn the_values_of_a_later_statement_have_higher_numbers() {
        assert_eq!(
            renumbered("update runs set a = $1, b = coalesce($12, b) where c = $1", 3),
            "update runs set a = $4, b = coalesce($15, b) where c = $4"
        );
        assert_eq!(renumbered("values ($1, $9, $10)", 90), "values ($91, $99, $100)");
    }

    #[test]
    fn a_dollar_in_a_literal_is_no_value() {
        assert_eq!(
            renumbered("select '$1', j -> '$.a''$2', $2 from t where d = '{}'", 1),
            "select '$1', j -> '$.a''$2', $3 from t where d = '{}'"
        );
    }

    #[test]
    fn statements_that_wait_are_one_text() {
        let mut batch = Batch::default();
        batch.push("insert into a values ($1, $2)", 0);
        batch.push("update b set c = $1", 2);
        batch.push("commit", 0);
        assert_eq!(batch.sql, "insert into a values ($1, $2); update b set c = $3; commit");
        assert_eq!(
            behind(&["begin immediate", "savepoint operation"], &batch.sql),
            "begin immediate; savepoint operation; insert into a values ($1, $2); update b set c = $3; commit"
        );
    }
}
