//! The tables of the database: which ones there are, and how they are brought up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use rust_embed::RustEmbed;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, PgConnection, SqlSafeStr, query_as, query_scalar, raw_sql};

use super::error::{DbError, DbResult};
use super::row_security::RowAccess;
use crate::sqlite::SqliteConnection;

/// The files with the tables of SQLite.
#[derive(RustEmbed)]
#[folder = "migrations/sqlite/"]
struct SqliteFiles;

/// The files with the tables of Postgres.
#[derive(RustEmbed)]
#[folder = "migrations/postgres/"]
struct PostgresFiles;

static SQLITE_TABLES: LazyLock<Migrator> = LazyLock::new(migrator::<SqliteFiles>);
static POSTGRES_TABLES: LazyLock<Migrator> = LazyLock::new(migrator::<PostgresFiles>);

/// The statement that reads which migrations have been applied.
const APPLIED: &str = "select version, checksum from _sqlx_migrations";

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

/// Returns the migrations in files. sqlx has a macro for it, which would compile the drivers of both databases a second time.
fn migrator<Files: RustEmbed>() -> Migrator {
    let migrations = Files::iter().filter_map(|name| {
        let file = Files::get(&name)?;
        migration(&name, file.data.into_owned())
    });
    Migrator::with_migrations(migrations.collect())
}

/// Reads a migration as sqlx does: `0002_mcp_logins.sql` has the version 2 and the description `mcp logins`.
fn migration(name: &str, content: Vec<u8>) -> Option<Migration> {
    let (version, rest) = name.split_once('_')?;
    let description = rest.strip_suffix(".sql")?.replace('_', " ");
    let sql = String::from_utf8(content).ok()?;
    let without_transaction = sql.starts_with("-- no-transaction");
    Some(Migration::new(
        version.parse().ok()?,
        description.into(),
        MigrationType::Simple,
        AssertSqlSafe(sql).into_sql_str(),
        without_transaction,
    ))
}

/// Returns the names of the tables, which are the same on both engines, as the migrations create them.
pub(in crate::db) fn table_names() -> BTreeSet<String> {
    let lines = POSTGRES_TABLES
        .iter()
        .flat_map(|migration| migration.sql.as_str().lines());
    let names = lines.filter_map(|line| line.strip_prefix("create table ")?.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// Brings the tables of SQLite up to date. The commits of the connection wait for the disk before and after that.
pub(in crate::db) async fn migrate_sqlite(conn: &mut SqliteConnection) -> DbResult<()> {
    // Tables of a newer version are named as such.
    if sqlite_state(conn).await? == TableState::Current {
        return Ok(());
    }
    // To wait for the disk after each migration is most of the first start. Migrations that a loss of power takes away are
    // applied at the next start; the first commit after them makes them durable, too.
    raw_sql("pragma synchronous = normal").execute(&mut *conn).await?;
    SQLITE_TABLES.run(&mut *conn).await?;
    raw_sql("pragma synchronous = full").execute(&mut *conn).await?;
    Ok(())
}

/// Brings the tables of Postgres up to date. If they are, nothing is written, so that a role which may not create tables
/// can serve. Returns the state before.
pub(in crate::db) async fn migrate_postgres(conn: &mut PgConnection) -> DbResult<TableState> {
    // Migrations change the rows of all tenants.
    raw_sql(RowAccess::Server.set_session()).execute(&mut *conn).await?;
    let before = postgres_state(conn).await?;
    if before != TableState::Current {
        POSTGRES_TABLES.run(&mut *conn).await?;
    }
    Ok(before)
}

/// Returns the state of the tables of SQLite.
pub(in crate::db) async fn sqlite_state(conn: &mut SqliteConnection) -> DbResult<TableState> {
    const HAS_TABLES: &str = "select count(*) > 0 from sqlite_master where name = '_sqlx_migrations'";
    let has_tables: bool = query_scalar(HAS_TABLES).fetch_one(&mut *conn).await?;
    let applied = match has_tables {
        true => query_as(APPLIED).fetch_all(&mut *conn).await?,
        false => vec![],
    };
    state_of(&SQLITE_TABLES, has_tables, &applied)
}

/// Returns the state of the tables of Postgres.
pub(in crate::db) async fn postgres_state(conn: &mut PgConnection) -> DbResult<TableState> {
    const HAS_TABLES: &str = "select to_regclass('_sqlx_migrations') is not null";
    let has_tables: bool = query_scalar(HAS_TABLES).fetch_one(&mut *conn).await?;
    let applied = match has_tables {
        true => query_as(APPLIED).fetch_all(&mut *conn).await?,
        false => vec![],
    };
    state_of(&POSTGRES_TABLES, has_tables, &applied)
}

/// Compares the migrations that have been applied, with their checksums, to those of this program.
fn state_of(migrator: &Migrator, has_tables: bool, applied: &[(i64, Vec<u8>)]) -> DbResult<TableState> {
    let known: BTreeMap<i64, &[u8]> = migrator
        .iter()
        .map(|migration| (migration.version, &*migration.checksum))
        .collect();
    for (version, checksum) in applied {
        match known.get(version) {
            None => {
                return Err(DbError::CannotOpen(format!(
                    "the tables are those of a newer version of the server: this one does not know the migration \
                     {version}. Start the newer version, or restore a backup from before the upgrade"
                )));
            }
            Some(own) if own != checksum => {
                return Err(DbError::CannotOpen(format!(
                    "the tables are those of another build of the server, whose migration {version} was different: use \
                     that build, or a new database"
                )));
            }
            Some(_) => {}
        }
    }
    let missing = known.len() - applied.len();
    Ok(match (has_tables, missing) {
        (false, _) => TableState::None,
        (true, 0) => TableState::Current,
        (true, missing) => TableState::Behind(missing),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sqlite::SqliteConnectOptions;

    #[tokio::test]
    async fn commits_wait_for_the_disk_when_the_tables_are_current() {
        let mut conn = SqliteConnectOptions::in_memory().open().expect("a connection");
        for tables in ["new", "known"] {
            migrate_sqlite(&mut conn).await.expect("the tables are current");
            let synchronous = query_scalar::<_, i64>("pragma synchronous").fetch_one(&mut conn).await;
            assert_eq!(synchronous.expect("a number"), 2, "{tables} tables: `full`");
        }
    }

    #[tokio::test]
    async fn the_tables_of_a_newer_version_are_named_as_such() {
        let mut conn = SqliteConnectOptions::in_memory().open().expect("a connection");
        migrate_sqlite(&mut conn).await.expect("the tables are created");
        let newer = "insert into _sqlx_migrations values (99999, 'newer', current_timestamp, true, x'00', 1)";
        raw_sql(newer).execute(&mut conn).await.expect("a row");
        let error = migrate_sqlite(&mut conn).await.expect_err("it is newer").to_string();
        assert!(error.contains("a newer version of the server"), "{error}");
        assert!(error.contains("migration 99999"), "{error}");
    }

    #[tokio::test]
    async fn the_migrations_are_those_that_sqlx_reads_from_the_folders() {
        let migrations = |migrator: &Migrator| {
            let known = migrator.iter().map(|migration| {
                (
                    migration.version,
                    migration.description.to_string(),
                    migration.migration_type,
                    migration.checksum.to_vec(),
                    migration.sql.as_str().to_owned(),
                    migration.no_tx,
                )
            });
            known.collect::<Vec<_>>()
        };
        for (embedded, folder) in [(&*SQLITE_TABLES, "sqlite"), (&*POSTGRES_TABLES, "postgres")] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(folder);
            let read = Migrator::new(folder.as_path()).await.expect("the folder can be read");
            assert!(read.iter().count() > 10, "{folder:?}");
            assert_eq!(migrations(embedded), migrations(&read), "{folder:?}");
        }
    }
}
