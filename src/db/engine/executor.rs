//! Queries of the driver on the connection of a transaction, behind the statements that wait.

use futures::future::BoxFuture;
use futures::{StreamExt, TryFutureExt};
use sqlx::{Database, Execute, Executor, SqlStr};

use super::batch::{BatchConn, BatchSession, StatementSteps, failed, first_row};

impl<'c, S: BatchSession> Executor<'c> for &'c mut BatchConn<S> {
    type Database = S::Database;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> StatementSteps<'e, S::Database>
    where
        'c: 'e,
        E: 'q + Execute<'q, S::Database>,
    {
        if self.has_not_begun() {
            return failed::<S::Database>(sqlx::Error::BeginFailed);
        }
        if !self.has_unsent() {
            return self.session.fetch_many(query);
        }
        let sent = async move {
            self.send_waiting().await?;
            Ok::<_, sqlx::Error>(self.session.fetch_many(query))
        };
        sent.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, sqlx::Result<Option<<S::Database as Database>::Row>>>
    where
        'c: 'e,
        E: 'q + Execute<'q, S::Database>,
    {
        if self.has_unsent() || self.has_not_begun() {
            return Box::pin(first_row::<S::Database>(self.fetch_many(query)));
        }
        self.session.fetch_optional(query)
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [<S::Database as Database>::TypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<<S::Database as Database>::Statement>>
    where
        'c: 'e,
    {
        self.session.prepare_with(sql, parameters)
    }
}
