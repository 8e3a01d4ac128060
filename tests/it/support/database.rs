//! Statements on the database of a server, beside the server.

use sqlx::{AssertSqlSafe, Connection, SqliteConnection, query_scalar, raw_sql};

use super::{Engine, TestServer, postgres};

impl TestServer {
    /// Returns the number that a query finds in the database.
    pub(crate) async fn number_in_database(&self, sql: &str) -> i64 {
        let url = self.database_url();
        let sql = AssertSqlSafe(sql.to_owned());
        match self.engine {
            Engine::Sqlite => {
                let mut conn = SqliteConnection::connect(&url).await.expect("a connection");
                query_scalar(sql).fetch_one(&mut conn).await.expect("a number")
            }
            Engine::Postgres => {
                let mut conn = postgres::connect(&url).await;
                query_scalar(sql).fetch_one(&mut conn).await.expect("a number")
            }
        }
    }

    /// Executes statements on the database.
    pub(crate) async fn executes_sql(&self, sql: &str) {
        let url = self.database_url();
        let sql = AssertSqlSafe(sql.to_owned());
        match self.engine {
            Engine::Sqlite => {
                let mut conn = SqliteConnection::connect(&url).await.expect("a connection");
                raw_sql(sql).execute(&mut conn).await.expect("the statements");
                conn.close().await.expect("a clean close");
            }
            Engine::Postgres => {
                let mut conn = postgres::connect(&url).await;
                raw_sql(sql).execute(&mut conn).await.expect("the statements");
                conn.close().await.expect("a clean close");
            }
        }
    }
}
