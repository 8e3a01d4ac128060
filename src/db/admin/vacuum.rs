//! Rewrites the files of a database, so that rows which were deleted are in none of them any more.
//!
//! Postgres leaves deleted rows in the files of tables and indexes until something else is written to the same place. Only
//! `vacuum (full)` writes new files. It keeps rows that an older transaction may still read, so the end of such transactions
//! is awaited first. The planner's statistics are samples of rows, and they are in a table of Postgres itself.

use std::path::Path;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, query_as, query_scalar, raw_sql};
use tokio::time::Instant;

use crate::db::engine::migration::{TableState, postgres_state, sqlite_state, table_names};
use crate::db::engine::{Engine, FileLock, PostgresHosts, check_file, has_code, is_postgres, sqlite_options};
use crate::db::{DbError, DbLimits, DbResult};

/// The time between two looks whether older transactions have ended.
const POLL: Duration = Duration::from_millis(100);

/// The table with the planner's statistics.
const STATISTICS: &str = "pg_catalog.pg_statistic";

/// The tables with these names: the quoted name, the number of the file, and the bytes with indexes and long values.
const TABLES: &str = "select format('%I.%I', n.nspname, c.relname), pg_relation_filenode(c.oid)::bigint, \
        pg_total_relation_size(c.oid) \
    from unnest($1::text[]) as named (name) join pg_class c on c.oid = to_regclass(quote_ident(named.name)) \
    join pg_namespace n on n.oid = c.relnamespace order by c.relname";

/// The number of the file of a table, which is another one after the table was rewritten.
const FILE: &str = "select pg_relation_filenode($1::text::regclass)::bigint";

/// The transactions, sessions and replication slots that may still read rows which were deleted before the transaction `$1`. The
/// oldest transaction is looked up first, since no new snapshot is older than it. `$2`: tables of Postgres itself count, too.
///
/// A session that executes a plain `vacuum`, such as one of autovacuum, may have an old snapshot, too, but it holds nothing up: by
/// the flag `PROC_IN_VACUUM` Postgres leaves it out when it looks what must be kept (`ComputeXidHorizons`, from Postgres 14 on). It
/// has the flag as long as it is in `pg_stat_progress_vacuum`. Sessions with `vacuum (full)` or `analyze`, also those of autovacuum,
/// have no such flag, and count.
const OLDER: &str = "with mark as (select ($1::bigint % 4294967296)::text::xid as xid) \
    select format('transaction %s', txid_snapshot_xmin(txid_current_snapshot())) \
        where txid_snapshot_xmin(txid_current_snapshot()) < $1::bigint \
    union all select format('session %s (%s)', pid, coalesce(nullif(application_name, ''), usename::text, 'of Postgres')) \
        from pg_stat_activity, mark where pid <> pg_backend_pid() and coalesce(datname = current_database(), true) \
        and age(backend_xmin) > age(mark.xid) and pid not in (select pid from pg_stat_progress_vacuum) \
    union all select format('replication slot %s', slot_name) from pg_replication_slots, mark \
        where age(xmin) > age(mark.xid) or ($2::boolean and age(catalog_xmin) > age(mark.xid))";

/// The statement that removes the planner's statistics of a table, if the table is empty: `analyze` leaves the old ones there
/// then. Columns get the type that they have. Those that a policy or a trigger uses cannot, but they are ids and names of
/// tenants.
const FORGET_STATISTICS: &str = "select 'alter table ' || $1::text || ' ' || string_agg( \
        format('alter column %I type %s', a.attname, format_type(a.atttypid, a.atttypmod)) \
        || case when a.attcollation <> t.typcollation then format(' collate %I.%I', n.nspname, l.collname) else '' end \
        || case when a.attstorage <> t.typstorage then format(', alter column %I set storage %s', a.attname, \
            case a.attstorage when 'p' then 'plain' when 'e' then 'external' when 'm' then 'main' else 'extended' end) \
            else '' end, ', ') \
    from pg_class c join pg_attribute a on a.attrelid = c.oid join pg_type t on t.oid = a.atttypid \
    left join pg_collation l on l.oid = a.attcollation left join pg_namespace n on n.oid = l.collnamespace \
    where c.oid = $1::text::regclass and c.reltuples <= 0 and a.attnum > 0 and not a.attisdropped \
    and not exists (select from pg_depend d where d.classid in ('pg_policy'::regclass, 'pg_trigger'::regclass) \
        and d.refclassid = 'pg_class'::regclass and d.refobjid = a.attrelid and d.refobjsubid = a.attnum)";

/// The outcome of rewriting a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VacuumReport {
    /// The engine.
    pub engine: Engine,
    /// The number of tables that were rewritten.
    pub tables: usize,
    /// The bytes of all tables before.
    pub bytes_before: u64,
    /// The bytes of all tables afterwards.
    pub bytes_after: u64,
    /// True if a checkpoint was made, false if the role may not make one; none if there was nothing to do for it.
    pub has_checkpoint: Option<bool>,
    /// The reasons why something was not rewritten.
    pub problems: Vec<VacuumProblem>,
}

/// The reason why something was not rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VacuumProblem {
    /// Transactions, sessions and replication slots that may still read what was deleted.
    StillVisible(Vec<String>),
    /// A table that others held for longer than the timeout of a statement.
    Locked(String),
    /// A table that others held while they waited for this session, twice.
    Deadlocked(String),
    /// A table that the role may not rewrite.
    NotOwned(String),
    /// The write-ahead log of SQLite, which another program reads.
    LogInUse,
}

/// A function that is called with the name and the bytes of each table before the table is rewritten.
pub type Announce<'a> = &'a mut (dyn FnMut(&str, u64) + 'a);

/// Rewrites the files of the database at `url`, which on Postgres must not be that of a pooler.
///
/// # Errors
/// [`DbError::InUse`] when a server holds the SQLite file, [`DbError::CannotOpen`] when there is no database or it has no
/// tables, and other errors when the database fails. The report says what could not be rewritten for other reasons.
pub async fn vacuum(url: &str, limits: DbLimits, announce: Announce<'_>) -> DbResult<VacuumReport> {
    match is_postgres(url) {
        true => vacuum_postgres(url, limits, announce).await,
        false => vacuum_sqlite(url, announce).await,
    }
}

async fn vacuum_sqlite(url: &str, announce: Announce<'_>) -> DbResult<VacuumReport> {
    let options = sqlite_options(url)?;
    let Some(file) = options.file().map(Path::to_owned) else {
        return Err(DbError::CannotOpen("a database in memory has no files".to_owned()));
    };
    if !file.exists() {
        return Err(DbError::CannotOpen(format!("there is no database {}", file.display())));
    }
    let lock = FileLock::take(&file)?;
    check_file(&file)?;
    let bytes_before = bytes_of(&file);
    // The new file is first written to a temporary one, which may be larger than the memory.
    let options = options.create_if_missing(false).pragma("temp_store", "file");
    let mut conn = options.open()?;
    require_tables(sqlite_state(&mut conn).await?)?;
    announce(&file.display().to_string(), bytes_before);
    let tables: i64 =
        query_scalar("select count(*) from sqlite_master where type = 'table' and name not like 'sqlite%'")
            .fetch_one(&mut conn)
            .await?;
    raw_sql("vacuum").execute(&mut conn).await?;
    let busy: i64 = query_scalar("pragma wal_checkpoint(truncate)")
        .fetch_one(&mut conn)
        .await?;
    conn.close().await?;
    drop(lock);
    Ok(VacuumReport {
        engine: Engine::Sqlite,
        tables: usize::try_from(tables).unwrap_or(0),
        bytes_before,
        bytes_after: bytes_of(&file),
        has_checkpoint: None,
        problems: match busy {
            0 => vec![],
            _ => vec![VacuumProblem::LogInUse],
        },
    })
}

/// Returns the bytes of a SQLite file with its write-ahead log.
fn bytes_of(file: &Path) -> u64 {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let sizes = [file, Path::new(&log)].map(|path| std::fs::metadata(path).map_or(0, |found| found.len()));
    sizes.into_iter().sum()
}

fn require_tables(state: TableState) -> DbResult<()> {
    match state {
        TableState::Current | TableState::Behind(_) => Ok(()),
        TableState::None | TableState::NoFile | TableState::InMemory => Err(DbError::CannotOpen(
            "the database has no tables of this program".to_owned(),
        )),
    }
}

async fn vacuum_postgres(url: &str, limits: DbLimits, announce: Announce<'_>) -> DbResult<VacuumReport> {
    let hosts = PostgresHosts::of(url)?.with_options(|options| options.application_name("adjutant vacuum"));
    let mut conn = hosts.connect(limits).await?;
    require_tables(postgres_state(&mut conn).await?)?;
    // Large tables take their time. The wait for a table is limited, since all others who want the table wait behind it.
    let millis = limits.statement.as_millis();
    let settings = format!("set statement_timeout = 0; set lock_timeout = '{millis}ms'");
    raw_sql(AssertSqlSafe(settings)).execute(&mut conn).await?;
    let mut vacuum = PostgresVacuum {
        conn,
        limits,
        rewritten: 0,
        problems: vec![],
    };
    let tables = vacuum.tables().await?;
    let mut has_checkpoint = None;
    if vacuum.has_no_older(false).await? {
        for table in &tables {
            announce(&table.name, table.bytes);
            vacuum.rewrite(table).await?;
        }
        vacuum.rewrite_statistics().await?;
        has_checkpoint = Some(vacuum.make_checkpoint().await?);
    }
    let afterwards = vacuum.tables().await?;
    vacuum.conn.close().await?;
    Ok(VacuumReport {
        engine: Engine::Postgres,
        tables: vacuum.rewritten,
        bytes_before: tables.iter().map(|table| table.bytes).sum(),
        bytes_after: afterwards.iter().map(|table| table.bytes).sum(),
        has_checkpoint,
        problems: vacuum.problems,
    })
}

/// A table of Postgres.
struct PostgresTable {
    /// The name with the schema, quoted.
    name: String,
    /// The number of its file.
    file: i64,
    /// The bytes of it, its indexes and its long values.
    bytes: u64,
}

/// A Postgres whose tables are rewritten.
struct PostgresVacuum {
    conn: PgConnection,
    limits: DbLimits,
    rewritten: usize,
    problems: Vec<VacuumProblem>,
}

impl PostgresVacuum {
    /// Returns the tables of this program.
    async fn tables(&mut self) -> DbResult<Vec<PostgresTable>> {
        let names: Vec<String> = table_names().into_iter().collect();
        let rows: Vec<(String, i64, i64)> = query_as(TABLES).bind(names).fetch_all(&mut self.conn).await?;
        let table = |(name, file, bytes): (String, i64, i64)| PostgresTable {
            name,
            file,
            bytes: u64::try_from(bytes).unwrap_or(0),
        };
        Ok(rows.into_iter().map(table).collect())
    }

    async fn file_of(&mut self, table: &str) -> DbResult<i64> {
        Ok(query_scalar(FILE).bind(table).fetch_one(&mut self.conn).await?)
    }

    /// Waits until no transaction can read what was deleted until now. Returns false, and notes which still can, after the
    /// longest time that a transaction of a server takes.
    async fn has_no_older(&mut self, with_catalog: bool) -> DbResult<bool> {
        let mark: i64 = query_scalar("select txid_current()").fetch_one(&mut self.conn).await?;
        let deadline = Instant::now() + self.limits.transaction();
        let mut pause = tokio::time::interval(POLL);
        loop {
            pause.tick().await;
            let looked_at = Instant::now();
            let older: Vec<String> = query_scalar(OLDER)
                .bind(mark)
                .bind(with_catalog)
                .fetch_all(&mut self.conn)
                .await?;
            if older.is_empty() {
                return Ok(true);
            }
            if looked_at >= deadline {
                self.problems.push(VacuumProblem::StillVisible(older));
                return Ok(false);
            }
        }
    }

    /// Executes a statement on a table, and once more after a deadlock, whose other side has gone on meanwhile. Returns false, and
    /// notes why, if others hold the table or the role may not change it.
    async fn execute(&mut self, table: &str, statement: &str) -> DbResult<bool> {
        let mut done = raw_sql(AssertSqlSafe(statement)).execute(&mut self.conn).await;
        if done.as_ref().is_err_and(is_deadlock) {
            done = raw_sql(AssertSqlSafe(statement)).execute(&mut self.conn).await;
        }
        let Err(error) = done else {
            return Ok(true);
        };
        let table = table.to_owned();
        if is_forbidden(&error) {
            self.problems.push(VacuumProblem::NotOwned(table));
            return Ok(false);
        }
        if is_deadlock(&error) {
            self.problems.push(VacuumProblem::Deadlocked(table));
            return Ok(false);
        }
        let error = DbError::from(error);
        if matches!(error, DbError::Busy) {
            self.problems.push(VacuumProblem::Locked(table));
            return Ok(false);
        }
        Err(error)
    }

    /// Writes a table and its indexes to new files. Returns whether that was done, and notes why not.
    async fn write_anew(&mut self, table: &str, file: i64, options: &str) -> DbResult<bool> {
        if !self.execute(table, &format!("vacuum ({options}) {table}")).await? {
            return Ok(false);
        }
        // Postgres passes over tables that the role does not own, with a warning only.
        let is_rewritten = self.file_of(table).await? != file;
        if !is_rewritten {
            self.problems.push(VacuumProblem::NotOwned(table.to_owned()));
        }
        Ok(is_rewritten)
    }

    async fn rewrite(&mut self, table: &PostgresTable) -> DbResult<()> {
        if !self.write_anew(&table.name, table.file, "full, analyze").await? {
            return Ok(());
        }
        self.rewritten += 1;
        let forget: Option<String> = query_scalar(FORGET_STATISTICS)
            .bind(&table.name)
            .fetch_one(&mut self.conn)
            .await?;
        if let Some(statement) = forget {
            self.execute(&table.name, &statement).await?;
        }
        Ok(())
    }

    /// Rewrites the planner's statistics, which have been replaced by those of the rows that are left.
    async fn rewrite_statistics(&mut self) -> DbResult<()> {
        if self.has_no_older(true).await? {
            let file = self.file_of(STATISTICS).await?;
            self.write_anew(STATISTICS, file, "full").await?;
        }
        Ok(())
    }

    /// Makes a checkpoint, after which Postgres needs the older parts of its write-ahead log no more. Returns false if the role
    /// may not.
    async fn make_checkpoint(&mut self) -> DbResult<bool> {
        match raw_sql("checkpoint").execute(&mut self.conn).await {
            Ok(_) => Ok(true),
            Err(error) if is_forbidden(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns whether the role has no right to execute a statement.
fn is_forbidden(error: &sqlx::Error) -> bool {
    has_code(error, "42501")
}

/// Returns whether a statement was ended because of a deadlock.
fn is_deadlock(error: &sqlx::Error) -> bool {
    has_code(error, "40P01")
}
