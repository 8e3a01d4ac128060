//! A look at a database that changes nothing in it: whether it can be opened and written, and whether its tables are
//! current.

use std::collections::BTreeSet;
use std::str::FromStr;

use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, SqliteConnection, raw_sql};

use super::engine::{
    Engine, FileLock, POSTGRES_TABLES, SQLITE_TABLES, TO_CONNECT, check_file, check_folder, sqlite_options,
};
use super::error::{DbError, DbResult};

/// The state of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseState {
    /// The engine.
    pub engine: Engine,
    /// The tables.
    pub tables: TableState,
}

/// The state of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// There is no database file yet; the server creates it.
    NoFile,
    /// The database is in memory and ends with the server.
    InMemory,
    /// There are no tables yet; the server creates them.
    None,
    /// The tables are those of this program.
    Current,
    /// So many migrations have not been applied yet; the server applies them when it starts.
    Behind(usize),
}

/// Looks at the database at `url`. Nothing is created or migrated.
///
/// # Errors
/// [`DbError::InUse`] when a server holds the SQLite file; other errors when the database cannot be opened or written, or
/// has the tables of a newer program.
pub async fn inspect(url: &str) -> DbResult<DatabaseState> {
    if url.starts_with("postgres:") || url.starts_with("postgresql:") {
        let tables = inspect_postgres(url).await?;
        return Ok(DatabaseState {
            engine: Engine::Postgres,
            tables,
        });
    }
    let tables = inspect_sqlite(url).await?;
    Ok(DatabaseState {
        engine: Engine::Sqlite,
        tables,
    })
}

async fn inspect_postgres(url: &str) -> DbResult<TableState> {
    let options = PgConnectOptions::from_str(url)?.application_name("adjutant check");
    let connecting = tokio::time::timeout(TO_CONNECT, options.connect());
    let mut conn: PgConnection = connecting.await.map_err(|_| DbError::late())??;
    // Whoever can write temporary rows in a transaction is neither on a standby nor on a read-only server.
    let mut tx = conn.begin().await?;
    let may_create: bool =
        sqlx::query_scalar("select has_schema_privilege(current_schema(), 'create') and not pg_is_in_recovery()")
            .fetch_one(&mut *tx)
            .await?;
    let has_tables: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut *tx)
        .await?;
    let applied = match has_tables {
        true => {
            // Takes a row lock and writes nothing: it fails on a database that cannot be written.
            let statement = "select version from _sqlx_migrations for update";
            sqlx::query_scalar(statement).fetch_all(&mut *tx).await?
        }
        false => vec![],
    };
    tx.rollback().await?;
    conn.close().await?;
    if !may_create && (!has_tables || is_behind(&POSTGRES_TABLES, &applied)) {
        return Err(DbError::CannotOpen(
            "the role may not create tables, which this version of the server needs".to_owned(),
        ));
    }
    state_of(&POSTGRES_TABLES, has_tables, &applied)
}

async fn inspect_sqlite(url: &str) -> DbResult<TableState> {
    let options = sqlite_options(url)?;
    if url.contains(":memory:") || url.contains("mode=memory") {
        return Ok(TableState::InMemory);
    }
    let file = options.get_filename();
    if !file.exists() {
        check_folder(file)?;
        return Ok(TableState::NoFile);
    }
    let lock = FileLock::take(file)?;
    check_file(file)?;
    let mut conn: SqliteConnection = options.create_if_missing(false).connect().await?;
    // Takes the lock for writing, and writes nothing.
    raw_sql("begin immediate").execute(&mut conn).await?;
    let has_tables: bool = sqlx::query_scalar("select count(*) > 0 from sqlite_master where name = '_sqlx_migrations'")
        .fetch_one(&mut conn)
        .await?;
    let applied = match has_tables {
        true => {
            sqlx::query_scalar("select version from _sqlx_migrations")
                .fetch_all(&mut conn)
                .await?
        }
        false => vec![],
    };
    raw_sql("rollback").execute(&mut conn).await?;
    conn.close().await?;
    drop(lock);
    state_of(&SQLITE_TABLES, has_tables, &applied)
}

fn is_behind(migrator: &Migrator, applied: &[i64]) -> bool {
    migrator.iter().any(|migration| !applied.contains(&migration.version))
}

fn state_of(migrator: &Migrator, has_tables: bool, applied: &[i64]) -> DbResult<TableState> {
    let known: BTreeSet<i64> = migrator.iter().map(|migration| migration.version).collect();
    if let Some(newer) = applied.iter().find(|version| !known.contains(version)) {
        return Err(DbError::CannotOpen(format!(
            "the tables are those of a newer version of the server: this one does not know the migration {newer}"
        )));
    }
    let missing = known.len() - known.intersection(&applied.iter().copied().collect()).count();
    Ok(match (has_tables, missing) {
        (false, _) => TableState::None,
        (true, 0) => TableState::Current,
        (true, missing) => TableState::Behind(missing),
    })
}
