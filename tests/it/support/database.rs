//! Statements on the database of a server, beside the server.

use std::path::PathBuf;

use adjutant::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, PgConnection, query_as, query_scalar, raw_sql};

use super::{Engine, TestServer, postgres};

/// The folders with the files of a Postgres.
pub(crate) struct PostgresFolders {
    /// The folder with the tables and indexes of this database.
    pub(crate) database: PathBuf,
    /// The folder with all files of the server, among them its write-ahead log.
    pub(crate) server: PathBuf,
}

impl TestServer {
    /// Lets Postgres write all that it has in memory to its files, and returns their folders; none on SQLite, and if this
    /// process may not read the files or the tests have no superuser.
    pub(crate) async fn postgres_folders(&self) -> Option<PostgresFolders> {
        const FOLDERS: &str = "select current_setting('data_directory'), \
            current_setting('data_directory') || '/base/' || oid::text from pg_database where datname = current_database()";
        let mut conn = PgConnection::connect(&self.admin_url()?).await.expect("a superuser");
        raw_sql("checkpoint")
            .execute(&mut conn)
            .await
            .expect("everything is written");
        let (server, database): (String, String) = query_as(FOLDERS).fetch_one(&mut conn).await.expect("the folders");
        conn.close().await.expect("a clean close");
        std::fs::read_dir(&database).is_ok().then(|| PostgresFolders {
            database: database.into(),
            server: server.into(),
        })
    }

    /// Returns the literal of an id in a statement.
    pub(crate) fn id_in_sql(&self, id: &str) -> String {
        match self.engine {
            Engine::Sqlite => format!("x'{}'", id.replace('-', "")),
            Engine::Postgres => format!("'{id}'"),
        }
    }

    /// Returns how often a text without quotes is in what is stored of threads and runs.
    pub(crate) async fn occurrences_in_database(&self, text: &str) -> i64 {
        let sql = format!(
            "select cast(coalesce(sum(length(found) - length(replace(found, '{text}', ''))), 0) / {} as bigint) from (\
             select writes || position || coalesce(before, '') || coalesce(next_event, '') as found from checkpoints \
             union all select body from events \
             union all select interrupt || coalesce(resolution, '') || coalesce(before, '') from interrupts \
             union all select request || cast(metadata as text) || coalesce(error, '') from runs) texts",
            text.len()
        );
        self.number_in_database(&sql).await
    }

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
