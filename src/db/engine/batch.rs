//! The connection of a transaction, which sends together what can be sent together.
//!
//! To send a statement to a Postgres and to wait for the result costs more than most statements do. So the statements that begin and
//! end a transaction are sent with those of its operation, and the [statements](crate::db::engine::statement) whose results nothing
//! needs yet with the next one. Their rows are kept until they are asked for. SQLite is in this process: it executes each statement at
//! once.

use std::borrow::Cow;
use std::fmt;
use std::future::ready;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use memchr::memchr2_iter;
use sqlx::{Database, Either, Execute, SqlStr};

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
#[derive(Debug, Clone, Default)]
pub(in crate::db) struct PlainStatements {
    text: Cow<'static, str>,
    count: usize,
}

impl PlainStatements {
    /// No statements.
    pub(in crate::db) const NONE: Self = Self::new("", 0);

    /// Takes a text with `count` statements, which are separated by semicolons.
    pub(in crate::db) const fn new(text: &'static str, count: usize) -> Self {
        let text = Cow::Borrowed(text);
        Self { text, count }
    }

    /// Adds a statement.
    pub(in crate::db) fn push(&mut self, statement: &str) {
        self.push_all(statement, 1);
    }

    /// Adds a text with `count` statements.
    pub(super) fn push_all(&mut self, statements: &str, count: usize) {
        let text = self.text.to_mut();
        if self.count > 0 && count > 0 {
            text.push_str("; ");
        }
        text.push_str(statements);
        self.count += count;
    }

    /// Returns the text.
    pub(in crate::db) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the number of the statements.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns whether there is no statement.
    pub(in crate::db) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns these statements and the text of those that follow.
    pub(super) fn before(self, following: &str) -> String {
        match (self.is_empty(), following.is_empty()) {
            (true, _) => following.to_owned(),
            (false, true) => self.text.into_owned(),
            (false, false) => format!("{}; {following}", self.text),
        }
    }
}

/// A step of a statement: a row, or its end.
pub(in crate::db) type StatementStep<D> = Either<<D as Database>::QueryResult, <D as Database>::Row>;

/// The steps of statements, in their order.
pub(in crate::db) type StatementSteps<'e, D> = BoxStream<'e, sqlx::Result<StatementStep<D>>>;

/// Statements with values that are sent together, as one text.
pub(in crate::db) trait Batch: Default + Send {
    /// Returns the number of statements.
    fn count(&self) -> usize;

    /// Returns whether no other statement should be added.
    fn is_full(&self) -> bool;

    /// Adds statements.
    fn push_plain(&mut self, statements: &PlainStatements);
}

/// The values of a statement, by the way in which it is sent.
pub(in crate::db) enum SentValues<S: BatchSession> {
    /// The statement is sent with others, as a part of a batch.
    InBatch(S::BatchValues),
    /// The statement is sent alone.
    Alone(S::Values),
}

/// A connection to a database, and how it takes statements that are sent together.
pub(in crate::db) trait BatchSession: Send + Sized {
    /// The database.
    type Database: Database;
    /// Statements that are sent together.
    type Batch: Batch;
    /// The values of a statement.
    type Values: Send;
    /// The values of a statement in a batch. A database that takes every statement alone has none.
    type BatchValues: Send;

    /// Returns the values by the way in which their statement is sent. `is_single` tells that no other statement waits for it.
    fn sent_values(&self, values: Self::Values, is_single: bool) -> SentValues<Self>;

    /// Adds a statement to a batch, as its last one.
    fn push(&mut self, batch: &mut Self::Batch, sql: Cow<'static, str>, values: Self::BatchValues);

    /// Adds a statement to a batch like [`Self::push`]. If it changes no row, the last statement of the batch fails with an error
    /// for which [`Self::has_changed_nothing`] is true.
    fn push_change(&mut self, batch: &mut Self::Batch, sql: Cow<'static, str>, values: Self::BatchValues);

    /// Returns whether an error at the end of [`Self::push_change`] says that no row was changed.
    fn has_changed_nothing(error: &sqlx::Error) -> bool;

    /// Sends a batch behind the opening, and returns the steps of both.
    fn send(&mut self, opening: PlainStatements, batch: Self::Batch) -> StatementSteps<'_, Self::Database>;

    /// Sends a statement that is in no batch.
    fn send_alone(&mut self, sql: Cow<'static, str>, values: Self::Values) -> StatementSteps<'_, Self::Database>;

    /// Sends a query of the driver.
    fn fetch_many<'e, 'q: 'e, E>(&'e mut self, query: E) -> StatementSteps<'e, Self::Database>
    where
        E: 'q + Execute<'q, Self::Database>;

    /// Sends a query of the driver, and returns its first row.
    fn fetch_optional<'e, 'q: 'e, E>(
        &'e mut self,
        query: E,
    ) -> BoxFuture<'e, sqlx::Result<Option<<Self::Database as Database>::Row>>>
    where
        E: 'q + Execute<'q, Self::Database>;

    /// Prepares a query of the driver.
    fn prepare_with<'e>(
        &'e mut self,
        sql: SqlStr,
        parameters: &'e [<Self::Database as Database>::TypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<<Self::Database as Database>::Statement>>;

    /// Returns the number of rows that a statement has changed.
    fn changed_rows(done: &<Self::Database as Database>::QueryResult) -> u64;
}

/// The connection of a transaction.
pub(in crate::db) struct BatchConn<S: BatchSession> {
    pub(super) session: S,
    /// The statements that are still to be sent before the next one.
    pub(super) opening: PlainStatements,
    /// The error of the opening, if it failed.
    opening_error: Option<sqlx::Error>,
    /// The statements that wait for the next one.
    pub(super) waiting: Waiting<S::Batch>,
    /// False if each statement is sent at once.
    may_wait: bool,
    /// The rows of statements that were sent with later ones.
    kept: Vec<KeptRows<S::Database>>,
    /// The number of the last statement whose rows are kept.
    last_kept: usize,
    /// The number of statements that have to change a row and are not known to have changed one yet.
    unconfirmed: usize,
}

/// Statements that wait to be sent together.
#[derive(Default)]
pub(super) struct Waiting<B> {
    pub(super) batch: B,
    /// The positions of the statements whose results have a use, in their order.
    uses: Vec<(usize, ResultUse)>,
}

impl<B: Batch> Waiting<B> {
    /// Gives the result of the last statement a use.
    fn use_last(&mut self, usage: ResultUse) {
        self.uses.push((self.batch.count() - 1, usage));
    }

    /// Returns the number of statements that have to change a row.
    fn count_changes(&self) -> usize {
        let changes = self
            .uses
            .iter()
            .filter(|(_, usage)| *usage == ResultUse::FailsUnlessChanged);
        changes.count()
    }
}

/// The rows of a statement that was sent with later ones.
struct KeptRows<D: Database> {
    /// The number of the statement.
    number: usize,
    rows: Vec<D::Row>,
}

/// The use of the result of a statement that is sent together with later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultUse {
    /// Its rows are kept under this number.
    Kept(usize),
    /// The statement fails if no row was changed.
    FailsUnlessChanged,
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

impl<S: BatchSession> BatchConn<S> {
    /// Takes a session whose transaction has begun, or which needs none. Each statement is sent at once.
    pub(super) fn of_session(session: S) -> Self {
        Self {
            session,
            opening: PlainStatements::NONE,
            opening_error: None,
            waiting: Waiting::default(),
            may_wait: false,
            kept: vec![],
            last_kept: 0,
            unconfirmed: 0,
        }
    }

    /// Has the transaction begin with `opening`, which is sent with the first statement.
    pub(super) fn with_opening(self, opening: PlainStatements) -> Self {
        Self { opening, ..self }
    }

    /// Lets statements wait. Unless the operation ends with [`Self::end_operation`], the statements that wait are not sent, and
    /// the transaction has to be rolled back.
    pub(super) fn with_waiting(self) -> Self {
        Self { may_wait: true, ..self }
    }

    /// Returns the opening if it was not sent, since there was no statement.
    pub(in crate::db) fn unsent_opening(&self) -> &PlainStatements {
        &self.opening
    }

    /// Returns why the opening has failed, if it has. The operation was told only that there is no transaction.
    pub(in crate::db) fn take_opening_error(&mut self) -> Option<sqlx::Error> {
        self.opening_error.take()
    }

    /// Returns whether the opening has failed.
    pub(super) fn has_not_begun(&self) -> bool {
        self.opening_error.is_some()
    }

    /// Returns whether there are statements that are still to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.opening.is_empty() || self.waiting.batch.count() > 0
    }

    /// Sends what waits, followed by the statements `end`. If the operation has no statement, nothing is sent.
    ///
    /// # Errors
    /// Names the part that has failed. The transaction is still open if that is a statement of the operation.
    pub(in crate::db) async fn end_operation(&mut self, end: &PlainStatements) -> Result<(), EndError> {
        if let Some(error) = self.take_opening_error() {
            let part = FailedPart::Opening;
            return Err(EndError { part, error });
        }
        let openings = self.opening.count();
        let mut waiting = std::mem::take(&mut self.waiting);
        if self.unconfirmed > waiting.count_changes() {
            // The operation has ignored the error.
            let part = FailedPart::Operation;
            let error = NothingChanged::error();
            return Err(EndError { part, error });
        }
        if openings > 0 && waiting.batch.count() == 0 {
            return Ok(());
        }
        let before_end = openings + waiting.batch.count();
        waiting.batch.push_plain(end);
        let all = before_end + end.count();
        let mut ended = 0;
        let mut steps = self.send(waiting, 0);
        let error = loop {
            match steps.try_next().await {
                Ok(None) if ended == all => return Ok(()),
                // The connection has ended before its statements.
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

    /// Lets a statement wait, if statements may wait here.
    ///
    /// # Errors
    /// Those of this statement or of earlier ones, if they were sent.
    pub(in crate::db) async fn send_later(&mut self, sql: Cow<'static, str>, values: S::Values) -> sqlx::Result<()> {
        match self.session.sent_values(values, false) {
            SentValues::InBatch(values) => self.session.push(&mut self.waiting.batch, sql, values),
            SentValues::Alone(values) => {
                let steps = self.send_alone(sql, values).await?;
                return read_to_end::<S::Database>(steps).await.map(drop);
            }
        }
        self.send_if_due().await
    }

    /// Lets a statement wait like [`Self::send_later`]. If it changes no row, the next one that is sent with it fails with
    /// [`NothingChanged`], none of those behind it is executed, and the operation cannot end well.
    ///
    /// # Errors
    /// As [`Self::send_later`].
    pub(in crate::db) async fn change_later(&mut self, sql: Cow<'static, str>, values: S::Values) -> sqlx::Result<()> {
        self.unconfirmed += 1;
        match self.session.sent_values(values, false) {
            SentValues::InBatch(values) => self.session.push_change(&mut self.waiting.batch, sql, values),
            SentValues::Alone(values) => {
                let changed = read_to_end::<S::Database>(self.send_alone(sql, values).await?).await?;
                if changed.map_or(0, |done| S::changed_rows(&done)) == 0 {
                    return Err(NothingChanged::error());
                }
                self.unconfirmed -= 1;
                return Ok(());
            }
        }
        self.waiting.use_last(ResultUse::FailsUnlessChanged);
        self.send_if_due().await
    }

    /// Lets a statement wait like [`Self::send_later`], also where each other statement is sent at once. Its rows are kept
    /// under the number that is returned.
    ///
    /// # Errors
    /// Those of this statement or of earlier ones, if they were sent.
    pub(in crate::db) async fn fetch_later(
        &mut self,
        sql: Cow<'static, str>,
        values: S::Values,
    ) -> sqlx::Result<usize> {
        self.last_kept += 1;
        let number = self.last_kept;
        match self.session.sent_values(values, false) {
            SentValues::InBatch(values) => self.session.push(&mut self.waiting.batch, sql, values),
            SentValues::Alone(values) => {
                let steps = self.send_alone(sql, values).await?;
                let rows = steps.try_filter_map(|step| ready(Ok(step.right())));
                let rows = rows.try_collect().await?;
                self.kept.push(KeptRows { number, rows });
                return Ok(number);
            }
        }
        self.waiting.use_last(ResultUse::Kept(number));
        if self.waiting.batch.is_full() {
            self.send_waiting().await?;
        }
        Ok(number)
    }

    /// Returns the rows that are kept under a number. If their statement still waits, it is sent, with all that wait.
    ///
    /// # Errors
    /// Those of the statements that are sent.
    pub(in crate::db) async fn take_kept(
        &mut self,
        number: usize,
    ) -> sqlx::Result<Vec<<S::Database as Database>::Row>> {
        let is_of_number = |(_, usage): &(usize, ResultUse)| *usage == ResultUse::Kept(number);
        if self.waiting.uses.iter().any(is_of_number) {
            self.send_waiting().await?;
        }
        match self.kept.iter().position(|kept| kept.number == number) {
            Some(at) => Ok(self.kept.swap_remove(at).rows),
            // The connection has ended before the statement, or an earlier one failed and the operation has ignored it.
            None => Err(sqlx::Error::WorkerCrashed),
        }
    }

    /// Sends a statement with those that wait, and returns its steps.
    ///
    /// # Errors
    /// Those of statements that wait, if they are sent before.
    pub(in crate::db) async fn send_now(
        &mut self,
        sql: Cow<'static, str>,
        values: S::Values,
    ) -> sqlx::Result<StatementSteps<'_, S::Database>> {
        let values = match self.session.sent_values(values, !self.has_unsent()) {
            SentValues::InBatch(values) => values,
            SentValues::Alone(values) => return self.send_alone(sql, values).await,
        };
        let mut waiting = std::mem::take(&mut self.waiting);
        self.session.push(&mut waiting.batch, sql, values);
        let before = self.opening.count() + waiting.batch.count() - 1;
        Ok(self.send(waiting, before))
    }

    /// Sends a statement like [`Self::send_now`], and returns its first row.
    ///
    /// # Errors
    /// Those of the statement, and of others that waited.
    pub(in crate::db) async fn fetch_first(
        &mut self,
        sql: Cow<'static, str>,
        values: S::Values,
    ) -> sqlx::Result<Option<<S::Database as Database>::Row>> {
        first_row::<S::Database>(self.send_now(sql, values).await?).await
    }

    async fn send_alone(
        &mut self,
        sql: Cow<'static, str>,
        values: S::Values,
    ) -> sqlx::Result<StatementSteps<'_, S::Database>> {
        if self.has_unsent() {
            self.send_waiting().await?;
        }
        if self.has_not_begun() {
            return Err(sqlx::Error::BeginFailed);
        }
        Ok(self.session.send_alone(sql, values))
    }

    async fn send_if_due(&mut self) -> sqlx::Result<()> {
        if self.may_wait && !self.waiting.batch.is_full() {
            return Ok(());
        }
        self.send_waiting().await
    }

    /// Sends the opening and what waits.
    ///
    /// # Errors
    /// Those of the statements.
    pub(super) async fn send_waiting(&mut self) -> sqlx::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        read_to_end::<S::Database>(self.send(waiting, 0)).await.map(drop)
    }

    /// Sends statements behind the opening, and returns the steps that follow the first `skipped` statements.
    fn send(&mut self, waiting: Waiting<S::Batch>, skipped: usize) -> StatementSteps<'_, S::Database> {
        if self.has_not_begun() {
            return failed::<S::Database>(sqlx::Error::BeginFailed);
        }
        let opening = std::mem::take(&mut self.opening);
        let sent = SentStatements {
            openings: opening.count(),
            skipped,
            uses: waiting.uses,
        };
        let results = ResultPlaces {
            opening_error: &mut self.opening_error,
            kept: &mut self.kept,
            unconfirmed: &mut self.unconfirmed,
        };
        let steps = self.session.send(opening, waiting.batch);
        sent.remaining_steps::<S>(steps, results)
    }
}

impl<S: BatchSession> fmt::Debug for BatchConn<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchConn").finish_non_exhaustive()
    }
}

/// Returns the steps of statements that are not sent.
pub(super) fn failed<'e, D: Database>(error: sqlx::Error) -> StatementSteps<'e, D> {
    stream::once(ready(Err(error))).boxed()
}

/// Reads all steps, and returns the result of the last statement.
async fn read_to_end<D: Database>(mut steps: StatementSteps<'_, D>) -> sqlx::Result<Option<D::QueryResult>> {
    let mut last = None;
    while let Some(step) = steps.try_next().await? {
        last = step.left().or(last);
    }
    Ok(last)
}

/// Returns the first row of a statement.
pub(super) async fn first_row<D: Database>(mut steps: StatementSteps<'_, D>) -> sqlx::Result<Option<D::Row>> {
    let mut first = None;
    while let Some(step) = steps.try_next().await? {
        first = first.or(step.right());
    }
    Ok(first)
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
struct ResultPlaces<'e, D: Database> {
    opening_error: &'e mut Option<sqlx::Error>,
    kept: &'e mut Vec<KeptRows<D>>,
    unconfirmed: &'e mut usize,
}

impl SentStatements {
    /// Leaves out the steps of the skipped statements, and moves rows that are to be kept to their place. If one of the
    /// statements that begin the transaction fails, its error is stored.
    fn remaining_steps<'e, S: BatchSession>(
        self,
        steps: StatementSteps<'e, S::Database>,
        results: ResultPlaces<'e, S::Database>,
    ) -> StatementSteps<'e, S::Database> {
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
                (Err(error), Some(ResultUse::FailsUnlessChanged)) if S::has_changed_nothing(&error) => {
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

/// Adds a statement to a text. Each number of a value (`$1`) is replaced by what `push_value` adds for it. In a literal a dollar is no
/// value.
pub(super) fn push_with_values(text: &mut String, sql: &str, mut push_value: impl FnMut(&mut String, usize)) {
    let bytes = sql.as_bytes();
    let mut is_in_literal = false;
    let mut copied = 0;
    for at in memchr2_iter(b'$', b'\'', bytes) {
        if bytes[at] == b'\'' {
            is_in_literal = !is_in_literal;
            continue;
        }
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits
            .clone()
            .fold(0, |number, digit| 10 * number + usize::from(digit - b'0'));
        let end = at + 1 + digits.count();
        if is_in_literal || end == at + 1 {
            continue;
        }
        text.push_str(&sql[copied..at]);
        push_value(text, number);
        copied = end;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn renumbered(sql: &str, offset: usize) -> String {
        let mut text = String::new();
        push_with_values(&mut text, sql, |text, number| {
            text.push('$');
            push_number(text, number + offset);
        });
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
    fn plain_statements_come_before_others() {
        let mut opening = PlainStatements::new("begin immediate", 1);
        opening.push("savepoint operation");
        assert_eq!(opening.count(), 2);
        assert_eq!(
            opening.clone().before("select 1"),
            "begin immediate; savepoint operation; select 1"
        );
        assert_eq!(opening.before(""), "begin immediate; savepoint operation");
        assert_eq!(PlainStatements::NONE.before("select 1"), "select 1");
    }
}
