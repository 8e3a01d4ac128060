//! A database without a server: whether it can be opened and written, whether its tables are current, and bringing them
//! up to date.

use sqlx::{Connection, query_scalar, raw_sql};
use tokio::sync::Mutex;

use super::postgres_checks;
use crate::db::engine::migration::{self, TableState, postgres_state, sqlite_state};
use crate::db::engine::sealing::MASTER_IN_USE;
use crate::db::engine::{
    Engine, FileLock, PostgresHosts, check_file, check_new_file, is_postgres, sqlite_options, upgrade,
};
use crate::db::{DbError, DbLimits, DbResult, RowAccess, mcp_logins};
use crate::domain::mcp_login::LoginStatus;

/// The state of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseState {
    /// The engine.
    pub engine: Engine,
    /// The tables.
    pub tables: TableState,
    /// True if servers of the former release cannot be at work, see [`crate::db::engine::upgrade`].
    pub is_finished: bool,
    /// The name of a master key under which values are encrypted. None if no value is, or if the tables are not current.
    pub master_key: Option<String>,
}

impl DatabaseState {
    /// Returns the state of a SQLite database, which has one server at a time.
    fn of_sqlite(tables: TableState) -> Self {
        Self {
            engine: Engine::Sqlite,
            tables,
            is_finished: true,
            master_key: None,
        }
    }
}

/// Looks at the database at `url`. Nothing is migrated, and nothing that is created stays.
///
/// # Errors
/// [`DbError::InUse`] when a server holds the SQLite file; other errors when the database cannot be opened or written, or
/// has the tables of a newer program.
pub async fn inspect(url: &str, limits: DbLimits) -> DbResult<DatabaseState> {
    if is_postgres(url) {
        return inspect_postgres(url, limits).await;
    }
    inspect_sqlite(url).await
}

async fn inspect_postgres(url: &str, limits: DbLimits) -> DbResult<DatabaseState> {
    let mut conn = postgres_checks::connect(url, limits).await?;
    let mut tx = conn.begin().await?;
    let may_create: bool = query_scalar("select has_schema_privilege(current_schema(), 'create')")
        .fetch_one(&mut *tx)
        .await?;
    let tables = postgres_state(&mut tx).await?;
    let is_finished = tables != TableState::Current || upgrade::is_finished(&mut tx).await?;
    if matches!(tables, TableState::Current | TableState::Behind(_)) {
        // Asks for locks and writes nothing: it fails on a database that cannot be written.
        let statement = "select 1 from workers where false for update";
        raw_sql(statement).execute(&mut *tx).await?;
    }
    let master_key: Option<String> = match tables == TableState::Current {
        true => query_scalar(MASTER_IN_USE).fetch_optional(&mut *tx).await?,
        false => None,
    };
    tx.rollback().await?;
    conn.close().await?;
    if !may_create && tables != TableState::Current {
        return Err(DbError::CannotOpen(
            "the role may not create tables, which this version of the server needs".to_owned(),
        ));
    }
    Ok(DatabaseState {
        engine: Engine::Postgres,
        tables,
        is_finished,
        master_key,
    })
}

/// Inspections of a file that run side by side would take each other for a server.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

async fn inspect_sqlite(url: &str) -> DbResult<DatabaseState> {
    let _only_one = ONE_AT_A_TIME.lock().await;
    let options = sqlite_options(url)?;
    let Some(file) = options.file() else {
        return Ok(DatabaseState::of_sqlite(TableState::InMemory));
    };
    if !file.exists() {
        check_new_file(file)?;
        return Ok(DatabaseState::of_sqlite(TableState::NoFile));
    }
    let lock = FileLock::take(file)?;
    check_file(file)?;
    let mut conn = options.clone().create_if_missing(false).open()?;
    // Takes the lock for writing, and writes nothing.
    raw_sql("begin immediate").execute(&mut conn).await?;
    let tables = sqlite_state(&mut conn).await?;
    let master_key: Option<String> = match tables == TableState::Current {
        true => query_scalar(MASTER_IN_USE).fetch_optional(&mut conn).await?,
        false => None,
    };
    raw_sql("rollback").execute(&mut conn).await?;
    conn.close().await?;
    drop(lock);
    Ok(DatabaseState {
        master_key,
        ..DatabaseState::of_sqlite(tables)
    })
}

/// Returns the logins to MCP servers in the database at `url`, without their secrets; none if it has no such table yet.
///
/// # Errors
/// As [`inspect`].
pub async fn inspect_logins(url: &str, limits: DbLimits) -> DbResult<Vec<LoginStatus>> {
    let state = inspect(url, limits).await?;
    if state.tables != TableState::Current {
        return Ok(vec![]);
    }
    if is_postgres(url) {
        let mut conn = postgres_checks::connect(url, limits).await?;
        raw_sql(RowAccess::Server.set_session()).execute(&mut conn).await?;
        let logins = mcp_logins::list_on_postgres(&mut conn).await?;
        conn.close().await?;
        return Ok(logins);
    }
    let _only_one = ONE_AT_A_TIME.lock().await;
    let options = sqlite_options(url)?.create_if_missing(false);
    let lock = options.file().map(FileLock::take).transpose()?;
    let mut conn = options.open()?;
    let logins = mcp_logins::list_on_sqlite(&mut conn).await?;
    conn.close().await?;
    drop(lock);
    Ok(logins)
}

/// Brings the tables of the database at `url` up to date, and creates the SQLite file if it is missing. If the command
/// `finishes` the upgrade, servers of the former release cannot work any more; it is not finished if one is at work. Returns the
/// state of the tables before, and whether the upgrade is finished.
///
/// # Errors
/// As [`inspect`].
pub async fn migrate(url: &str, limits: DbLimits, finishes: bool) -> DbResult<DatabaseState> {
    if is_postgres(url) {
        let hosts = PostgresHosts::of(url)?.with_options(|options| options.application_name("adjutant migrate"));
        let mut conn = hosts.connect(limits).await?;
        let tables = migration::migrate_postgres(&mut conn).await?;
        let is_finished = match finishes {
            true => upgrade::finish(&mut conn).await?,
            false => upgrade::is_finished(&mut conn).await?,
        };
        conn.close().await?;
        return Ok(DatabaseState {
            engine: Engine::Postgres,
            tables,
            is_finished,
            master_key: None,
        });
    }
    let state = inspect_sqlite(url).await?;
    let options = sqlite_options(url)?;
    if let Some(file) = options.file() {
        let lock = FileLock::take(file)?;
        let mut conn = options.open()?;
        migration::migrate_sqlite(&mut conn).await?;
        conn.close().await?;
        drop(lock);
    }
    Ok(state)
}
