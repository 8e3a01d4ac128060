//! A connection to Postgres, and how it takes statements that are sent together.
//!
//! The protocol takes several statements in one message only as a text without values. So a batch has values as literals, and
//! executes statements that were prepared by name: Postgres does not plan them anew. Behind a pooler, which gives each transaction
//! another session, their texts are in the batch.

use std::borrow::Cow;

use futures::StreamExt;
use futures::future::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{AssertSqlSafe, Either, Execute, Executor, PgConnection, Postgres, SqlStr, TypeInfo, query_with, raw_sql};

use super::prepared::{PreparedStatement, PreparedStatements};
use super::values::PostgresValues;
use crate::db::engine::batch::{
    Batch, BatchConn, BatchSession, PlainStatements, SentValues, StatementSteps, failed, push_number, push_with_values,
};
use crate::db::engine::{has_code, is_read_only};

/// The most statements that wait to be sent together.
const MOST_WAITING: usize = 64;
/// The length of a text, in bytes, to which no more statements are added.
const MOST_TEXT: usize = 256 * 1024;

/// The code of Postgres for a division by zero.
const DIVISION_BY_ZERO: &str = "22012";

/// The connection of a transaction on Postgres.
pub(in crate::db) type PostgresConn<'c> = BatchConn<PostgresSession<'c>>;

/// A connection to Postgres.
pub(in crate::db) struct PostgresSession<'c> {
    conn: &'c mut PgConnection,
    /// True if statements that are sent alone are prepared once for each connection.
    prepares: bool,
    batching: Batching<'c>,
    failures: StatementFailures,
}

/// The failures of the statements of a transaction so far.
#[derive(Debug, Default)]
struct StatementFailures {
    /// True if a statement was refused since the session is read-only.
    is_refused: bool,
    /// True if a statement has failed, after which Postgres takes no more in the transaction.
    has_failed: bool,
}

impl StatementFailures {
    /// Notes the result of a statement, or a step of it.
    fn note<T>(&mut self, result: &sqlx::Result<T>) {
        if let Err(error) = result {
            self.has_failed = true;
            self.is_refused |= is_read_only(error);
        }
    }
}

/// The way in which statements are sent together.
pub(in crate::db) enum Batching<'c> {
    /// Each statement is sent alone.
    Never,
    /// Statements are executed by name.
    Prepared(&'c mut PreparedStatements),
    /// Statements are sent as texts.
    Texts,
}

/// The cause of an error: an operation went on after a failed statement.
#[derive(Debug, thiserror::Error)]
#[error("a statement of the transaction has failed, and the operation has ignored that")]
struct IgnoredFailure;

/// Statements that are sent together, as one text.
#[derive(Default)]
pub(in crate::db) struct PostgresBatch {
    text: String,
    count: usize,
    /// The statements that the batch prepares, in their order.
    preparations: Vec<Preparation>,
    /// The texts of the statements without their values, if statements are logged.
    logged: Vec<Cow<'static, str>>,
}

/// A statement that a batch prepares.
struct Preparation {
    /// The number of statements before it in the batch.
    position: usize,
    sql: Cow<'static, str>,
    statement: PreparedStatement,
}

impl PostgresBatch {
    /// Begins the next statement.
    fn begin_statement(&mut self) {
        if self.count > 0 {
            self.text.push_str("; ");
        }
        self.count += 1;
    }

    /// Returns the number in the name of a statement, which the batch prepares if it is not prepared yet.
    fn prepare(&mut self, prepared: &mut PreparedStatements, sql: Cow<'static, str>, values: &PostgresValues) -> usize {
        let is_same = |preparation: &&Preparation| preparation.sql == sql && preparation.statement.fits(values);
        if let Some(preparation) = self.preparations.iter().find(is_same) {
            return preparation.statement.name;
        }
        if let Some(name) = prepared.find(&sql, values) {
            return name;
        }
        if let Some(replaced) = prepared.take_replaced(&sql) {
            self.begin_statement();
            self.text.push_str("deallocate adjutant_");
            push_number(&mut self.text, replaced);
        }
        let position = self.count;
        let statement = prepared.name(values);
        let name = statement.name;
        self.begin_statement();
        self.text.push_str("prepare adjutant_");
        push_number(&mut self.text, name);
        for (index, type_info) in values.types().enumerate() {
            self.text.push_str(if index == 0 { " (" } else { ", " });
            self.text.push_str(type_info.name());
        }
        self.text.push_str(if values.is_empty() { " as " } else { ") as " });
        self.text.push_str(&sql);
        self.preparations.push(Preparation {
            position,
            sql,
            statement,
        });
        name
    }

    /// Adds the execution of a prepared statement.
    fn push_execution(&mut self, name: usize, values: &PostgresValues) {
        self.begin_statement();
        self.text.push_str("execute adjutant_");
        push_number(&mut self.text, name);
        if !values.is_empty() {
            self.text.push('(');
            values.push_literals(&mut self.text);
            self.text.push(')');
        }
    }

    /// Adds the text of a statement.
    fn push_text(&mut self, sql: &str, values: &PostgresValues) {
        self.begin_statement();
        push_with_values(&mut self.text, sql, |text, number| {
            values.push_typed_literal(text, number);
        });
    }
}

impl Batch for PostgresBatch {
    fn count(&self) -> usize {
        self.count
    }

    fn is_full(&self) -> bool {
        self.count >= MOST_WAITING || self.text.len() >= MOST_TEXT
    }

    fn push_plain(&mut self, statements: &PlainStatements) {
        if statements.is_empty() {
            return;
        }
        self.begin_statement();
        self.text.push_str(statements.text());
        self.count += statements.count() - 1;
        if are_statements_logged() {
            self.logged.push(statements.text().to_owned().into());
        }
    }
}

impl BatchSession for PostgresSession<'_> {
    type Database = Postgres;
    type Batch = PostgresBatch;
    type Values = PostgresValues;
    type BatchValues = PostgresValues;

    /// A statement that is sent alone has its values and rows in binary form.
    fn sent_values(&self, values: PostgresValues, is_single: bool) -> SentValues<Self> {
        match is_single || matches!(self.batching, Batching::Never) || !values.can_be_literals() {
            true => SentValues::Alone(values),
            false => SentValues::InBatch(values),
        }
    }

    fn push(&mut self, batch: &mut PostgresBatch, sql: Cow<'static, str>, mut values: PostgresValues) {
        if are_statements_logged() {
            batch.logged.push(sql.clone());
        }
        match &mut self.batching {
            Batching::Prepared(prepared) => {
                let sql = values.move_into_text(&sql).map_or(sql, Cow::Owned);
                let name = batch.prepare(prepared, sql, &values);
                batch.push_execution(name, &values);
            }
            Batching::Texts | Batching::Never => batch.push_text(&sql, &values),
        }
    }

    fn push_change(&mut self, batch: &mut PostgresBatch, sql: Cow<'static, str>, values: PostgresValues) {
        let sql = format!("with changed as ({sql} returning 1) select 1 / count(*) from changed");
        self.push(batch, sql.into(), values);
    }

    fn has_changed_nothing(error: &sqlx::Error) -> bool {
        has_code(error, DIVISION_BY_ZERO)
    }

    fn send(&mut self, opening: PlainStatements, batch: PostgresBatch) -> StatementSteps<'_, Postgres> {
        let mut ended = 0;
        let openings = opening.count();
        if are_statements_logged() {
            log_statements(&opening.clone().before(&batch.logged.join("; ")));
        }
        let text = opening.before(&batch.text);
        let mut preparations = batch.preparations.into_iter().peekable();
        let Self {
            conn,
            batching,
            failures,
            ..
        } = self;
        let steps = conn.fetch_many(raw_sql(AssertSqlSafe(text)));
        let noted = steps.inspect(move |step| {
            failures.note(step);
            if !matches!(step, Ok(Either::Left(_))) {
                return;
            }
            let is_prepared = |preparation: &Preparation| preparation.position + openings == ended;
            if let Some(Preparation { sql, statement, .. }) = preparations.next_if(is_prepared)
                && let Batching::Prepared(prepared) = batching
            {
                prepared.insert(sql, statement);
            }
            ended += 1;
        });
        noted.boxed()
    }

    fn send_alone(&mut self, sql: Cow<'static, str>, values: PostgresValues) -> StatementSteps<'_, Postgres> {
        match values.into_arguments() {
            Ok(arguments) => self.fetch_many(query_with(AssertSqlSafe(sql), arguments)),
            Err(error) => failed::<Postgres>(sqlx::Error::Encode(error)),
        }
    }

    fn fetch_many<'e, 'q: 'e, E>(&'e mut self, query: E) -> StatementSteps<'e, Postgres>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        let query = self.prepared_on_request(query);
        let failures = &mut self.failures;
        let steps = self.conn.fetch_many(query);
        steps.inspect(move |step| failures.note(step)).boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(&'e mut self, query: E) -> BoxFuture<'e, sqlx::Result<Option<PgRow>>>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move {
            let query = self.prepared_on_request(query);
            let row = self.conn.fetch_optional(query).await;
            self.failures.note(&row);
            row
        })
    }

    fn prepare_with<'e>(
        &'e mut self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<PgStatement>> {
        self.conn.prepare_with(sql, parameters)
    }

    fn changed_rows(done: &PgQueryResult) -> u64 {
        done.rows_affected()
    }
}

impl PostgresSession<'_> {
    fn prepared_on_request<E>(&self, query: E) -> PreparedOnRequest<E> {
        PreparedOnRequest {
            query,
            prepares: self.prepares,
        }
    }
}

impl<'c> PostgresConn<'c> {
    /// Takes a connection whose transaction has begun, or which needs none. Each statement is sent at once.
    pub(in crate::db) fn new(conn: &'c mut PgConnection, prepares: bool) -> Self {
        Self::of_session(PostgresSession {
            conn,
            prepares,
            batching: Batching::Never,
            failures: StatementFailures::default(),
        })
    }

    /// Takes a connection whose transaction begins with `opening`, which is sent with the first statement. Other statements are sent
    /// at once.
    pub(in crate::db) fn opened(
        conn: &'c mut PgConnection,
        prepares: bool,
        batching: Batching<'c>,
        opening: PlainStatements,
    ) -> Self {
        let mut conn = Self::new(conn, prepares).with_opening(opening);
        conn.session.batching = batching;
        conn
    }

    /// Returns whether a statement was refused since the session is read-only.
    pub(in crate::db) fn is_refused(&self) -> bool {
        self.session.failures.is_refused
    }

    /// Notes that the transaction was rolled back to a savepoint, so that Postgres takes statements again.
    pub(in crate::db) fn clear_failure(&mut self) {
        self.session.failures.has_failed = false;
    }

    /// Returns an error if a statement has failed. Postgres would answer `commit` with a rollback, which is no error to the driver.
    ///
    /// # Errors
    /// If a statement has failed.
    pub(in crate::db) fn check_not_failed(&self) -> sqlx::Result<()> {
        match self.session.failures.has_failed {
            true => Err(sqlx::Error::Decode(Box::new(IgnoredFailure))),
            false => Ok(()),
        }
    }
}

/// A query that is prepared by name only if that is wanted.
struct PreparedOnRequest<E> {
    query: E,
    prepares: bool,
}

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for PreparedOnRequest<E> {
    fn sql(self) -> SqlStr {
        let sql = self.query.sql();
        log_statements(sql.as_str());
        sql
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.query.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        self.query.take_arguments()
    }

    fn persistent(&self) -> bool {
        self.prepares && self.query.persistent()
    }
}

/// Returns whether statements are logged.
fn are_statements_logged() -> bool {
    tracing::enabled!(target: "sqlx::query", tracing::Level::DEBUG)
}

/// Logs a text with statements. The driver would log their values, too.
fn log_statements(text: &str) {
    tracing::debug!(target: "sqlx::query", { db.statement = text }, "statements were sent");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &[i64]) -> PostgresValues {
        let mut numbers = PostgresValues::default();
        values.iter().for_each(|value| numbers.add(*value));
        numbers
    }

    #[test]
    fn a_batch_prepares_a_statement_once() {
        let mut prepared = PreparedStatements::default();
        let mut batch = PostgresBatch::default();
        let sql = "insert into a values ($1, $2)";
        for value in [1, 2] {
            let values = numbers(&[value, 7]);
            let name = batch.prepare(&mut prepared, sql.into(), &values);
            batch.push_execution(name, &values);
        }
        batch.push_plain(&PlainStatements::new("commit", 1));
        assert_eq!(
            batch.text,
            "prepare adjutant_1 (INT8, INT8) as insert into a values ($1, $2); execute adjutant_1(e'1', e'7'); \
             execute adjutant_1(e'2', e'7'); commit"
        );
        assert_eq!(batch.count(), 4);
    }

    #[test]
    fn a_statement_without_values_has_no_brackets() {
        let mut prepared = PreparedStatements::default();
        let mut batch = PostgresBatch::default();
        let values = numbers(&[]);
        let name = batch.prepare(&mut prepared, "delete from a".into(), &values);
        batch.push_execution(name, &values);
        assert_eq!(batch.text, "prepare adjutant_1 as delete from a; execute adjutant_1");
    }

    #[test]
    fn a_batch_behind_a_pooler_has_texts() {
        let mut batch = PostgresBatch::default();
        batch.push_text("update a set b = $2 where c = $1", &numbers(&[1, -2]));
        assert_eq!(
            batch.text,
            "update a set b = cast(e'-2' as INT8) where c = cast(e'1' as INT8)"
        );
    }
}
