//! Connections, transactions and statements, and the few places where the two engines differ.
//!
//! The engine imports no table. Those that it knows by name are its own: the data keys, which each transaction reads where it begins,
//! and the tables whose constraints an [`upgrade`] changes.
//!
//! | Subject | Modules |
//! |---|---|
//! | the database is opened | `settings`, `lock`, `hosts`, [`migration`], [`upgrade`], `row_security` |
//! | operations wait for a connection and run | `operation`, [`queue`], `reader`, [`writer`], `own_thread`, `pending_entries` |
//! | statements | `statement`, `batch`, `executor`, `sqlite`, `postgres` |
//! | values of statements | `id_column`, `lanes`, `vector`, `matches`, `clock` |
//! | encryption | [`sealing`], `column` |
//! | servers notice each other | [`notifications`], `live_notice`, [`session_lock`], `reachability` |
//! | a transaction remembers | `known_questions` |

use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use sqlx::pool::PoolOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres, QueryBuilder, raw_sql};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::TaskTracker;

use super::states::StateCache;
use crate::domain::id::WorkerId;
use crate::sqlite::{Sqlite, SqliteConnectOptions};

mod batch;
mod clock;
mod column;
mod error;
mod executor;
mod hosts;
mod id_column;
mod known_questions;
mod lanes;
mod live_notice;
mod lock;
mod matches;
pub mod migration;
pub mod notifications;
mod operation;
mod own_thread;
mod pending_entries;
mod postgres;
pub(super) mod queue;
mod reachability;
mod reader;
mod row_security;
pub(super) mod sealing;
pub(super) mod session_lock;
mod settings;
mod sqlite;
mod statement;
pub(super) mod upgrade;
mod vector;
pub(super) mod writer;

use batch::NothingChanged;
pub(super) use batch::{BatchConn, BatchSession, EndError, FailedPart, PlainStatements, push_number};
pub(super) use clock::{NOW_POSTGRES, NOW_SQLITE};
pub(super) use column::{ColumnRef, encode};
pub(super) use error::corrupt;
pub use error::{DbError, DbResult};
pub(super) use hosts::PostgresHosts;
pub(super) use id_column::IdColumn;
use known_questions::KnownQuestions;
pub(super) use lanes::{OF_MAIN_AGENTS, OF_SUBAGENTS, lane_id, lane_of};
pub(super) use live_notice::{LIVE_CAPACITY, LIVE_CHANNEL};
pub use live_notice::{LiveAddress, LiveNotice};
pub(super) use lock::FileLock;
pub(super) use matches::Matches;
pub(super) use operation::DbOperation;
use own_thread::on_own_thread;
pub use pending_entries::PendingEntries;
use postgres::SessionSettings;
pub(super) use postgres::{Batching, PooledConnection, PostgresConn, PostgresPool, PostgresValues, pool_hosts};
use queue::TransactionQueue;
pub(super) use reachability::Reachability;
use reachability::check_writable;
pub(crate) use reachability::warn_of;
use reader::SqliteReaders;
pub(super) use reader::{PostgresReader, SQLITE_READERS};
pub use row_security::RowAccess;
#[cfg(test)]
pub(super) use row_security::exempt_role;
use sealing::{Sealing, TxKeys};
pub use session_lock::SessionLock;
pub use settings::{DbAddress, DbLimits};
pub(super) use sqlite::{SqliteConn, SqliteValues};
pub(super) use statement::{LaterRows, Statement};
pub(super) use vector::Vector;
use writer::WriterParts;

/// A database system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Embedded; one file, one process.
    Sqlite,
    /// A server; any number of processes.
    Postgres,
}

/// The name of the database system.
impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "Postgres",
        })
    }
}

/// A transaction. Only [`super::Db::read`] and [`super::Db::write`] begin and end one.
pub struct Tx<'c> {
    pub(super) conn: Conn<'c>,
    pub(super) states: &'c StateCache,
    pub(super) sealing: &'c Sealing,
    pub(super) keys: TxKeys,
    /// For whom the transaction works.
    pub(super) access: RowAccess,
    /// The number of characters from which base64 content is stored as a blob.
    pub(super) blob_min_chars: usize,
    /// The number of the forms in which new rows are stored.
    forms: u32,
    /// The questions that the transaction has read.
    pub(super) questions: KnownQuestions,
    has_erased: &'c AtomicBool,
}

/// The parts of a database that all its transactions share.
#[derive(Clone)]
pub(super) struct TxParts {
    pub(super) states: Arc<StateCache>,
    pub(super) sealing: Sealing,
    /// True after a deletion whose traces are not yet removed from the write-ahead log of SQLite.
    pub(super) has_erased: Arc<AtomicBool>,
    /// The number of the forms in which new rows are stored: on Postgres those that every server reads, see [`upgrade`].
    pub(super) forms: Arc<AtomicU32>,
    /// The number of characters from which base64 content is stored as a blob.
    pub(super) blob_min_chars: usize,
    /// True if statements of Postgres are prepared once for each connection.
    pub(super) prepares: bool,
}

/// The connection of a transaction.
pub(super) enum Conn<'c> {
    Sqlite(SqliteConn<'c>),
    Postgres(PostgresConn<'c>),
}

impl<'c> Tx<'c> {
    pub(super) fn sqlite(conn: SqliteConn<'c>, parts: &'c TxParts, access: &RowAccess) -> Self {
        Self::of(Conn::Sqlite(conn), parts, access)
    }

    /// Returns the opening of an operation if it was not sent, since the operation has no statement.
    pub(super) fn unsent_opening(&self) -> &PlainStatements {
        match &self.conn {
            Conn::Sqlite(conn) => conn.unsent_opening(),
            Conn::Postgres(conn) => conn.unsent_opening(),
        }
    }

    /// Returns why an operation has no transaction, if it could not begin.
    pub(super) fn take_opening_error(&mut self) -> Option<sqlx::Error> {
        match &mut self.conn {
            Conn::Sqlite(conn) => conn.take_opening_error(),
            Conn::Postgres(conn) => conn.take_opening_error(),
        }
    }

    /// Ends an operation with these statements, see [`BatchConn::end_operation`].
    pub(super) async fn end_operation(&mut self, end: &PlainStatements) -> Result<(), EndError> {
        match &mut self.conn {
            Conn::Sqlite(conn) => conn.end_operation(end).await,
            Conn::Postgres(conn) => {
                conn.check_not_failed().map_err(|error| EndError {
                    part: FailedPart::Operation,
                    error,
                })?;
                conn.end_operation(end).await
            }
        }
    }

    /// Takes a connection to Postgres whose transaction has begun. Each statement is sent at once.
    pub(super) fn postgres(conn: &'c mut PgConnection, parts: &'c TxParts, access: &RowAccess) -> Self {
        Self::of(Conn::Postgres(PostgresConn::new(conn, parts.prepares)), parts, access)
    }

    /// Takes a connection for a write on Postgres, which begins with the statements of the pool.
    pub(super) fn write_on_postgres(
        conn: &'c mut PooledConnection,
        pool: &PostgresPool,
        parts: &'c TxParts,
        access: &RowAccess,
    ) -> Self {
        let conn = opened_on_postgres(conn, pool, parts, access.begin(&pool.begin_write));
        Self::of(Conn::Postgres(conn.with_waiting()), parts, access)
    }

    /// Takes a connection for a read on Postgres, which begins with the statements of the pool.
    pub(super) fn read_on_postgres(
        conn: &'c mut PooledConnection,
        pool: &PostgresPool,
        parts: &'c TxParts,
        access: &RowAccess,
    ) -> Self {
        let conn = opened_on_postgres(conn, pool, parts, access.begin(&pool.begin_read));
        Self::of(Conn::Postgres(conn), parts, access)
    }

    fn of(conn: Conn<'c>, parts: &'c TxParts, access: &RowAccess) -> Self {
        Self {
            access: access.clone(),
            conn,
            states: &parts.states,
            sealing: &parts.sealing,
            keys: TxKeys::default(),
            blob_min_chars: parts.blob_min_chars,
            forms: parts.forms.load(Ordering::Relaxed),
            questions: KnownQuestions::default(),
            has_erased: &parts.has_erased,
        }
    }

    /// Returns whether new texts are stored in the [short form](super::codec::short_form).
    pub(super) fn shortens(&self) -> bool {
        self.forms >= upgrade::SHORT_TEXTS
    }

    /// Returns whether new positions and events are stored without the [questions](super::questions) of their interrupts.
    pub(super) fn stores_questions_once(&self) -> bool {
        self.forms >= upgrade::QUESTIONS_ONCE
    }

    /// Returns whether new events before an input and behind a step are stored in the [rows of the steps](super::events).
    pub(super) fn stores_events_in_steps(&self) -> bool {
        self.forms >= upgrade::EVENTS_IN_STEPS
    }

    /// Returns whether Postgres has refused a statement of this transaction since the session is read-only.
    pub(super) fn is_refused(&self) -> bool {
        match &self.conn {
            Conn::Sqlite(_) => false,
            Conn::Postgres(conn) => conn.is_refused(),
        }
    }

    /// Asks for the removal of what this transaction deletes from the write-ahead log of SQLite, soon after its end.
    pub(super) fn erase_traces(&self) {
        self.has_erased.store(true, Ordering::Relaxed);
    }

    /// Returns the engine.
    pub fn engine(&self) -> Engine {
        match self.conn {
            Conn::Sqlite(_) => Engine::Sqlite,
            Conn::Postgres(_) => Engine::Postgres,
        }
    }

    /// Returns the text of a statement, or those of several ones, in which the engines differ by a clause: a hint, or a
    /// lock. SQLite has one writer at a time and no locks of rows.
    pub(super) fn either<T>(&self, sqlite: T, postgres: T) -> T {
        match self.conn {
            Conn::Sqlite(_) => sqlite,
            Conn::Postgres(_) => postgres,
        }
    }

    /// Sets a savepoint. It ends with [`Tx::release_savepoint`] or [`Tx::roll_back_to_savepoint`]; there is one at a
    /// time.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn savepoint(&mut self) -> DbResult<()> {
        self.control("savepoint part").await
    }

    /// Ends the savepoint and keeps the writes since.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn release_savepoint(&mut self) -> DbResult<()> {
        self.control("release savepoint part").await
    }

    /// Ends the savepoint and undoes the writes since.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn roll_back_to_savepoint(&mut self) -> DbResult<()> {
        self.control("rollback to savepoint part; release savepoint part")
            .await?;
        if let Conn::Postgres(conn) = &mut self.conn {
            conn.clear_failure();
        }
        Ok(())
    }

    async fn control(&mut self, statement: &'static str) -> DbResult<()> {
        match &mut self.conn {
            Conn::Sqlite(conn) => raw_sql(statement).execute(conn).await.map(drop)?,
            Conn::Postgres(conn) => raw_sql(statement).execute(conn).await.map(drop)?,
        }
        Ok(())
    }
}

/// Takes a connection for a transaction that begins with `opening`.
fn opened_on_postgres<'c>(
    conn: &'c mut PooledConnection,
    pool: &PostgresPool,
    parts: &TxParts,
    opening: PlainStatements,
) -> PostgresConn<'c> {
    let (conn, prepared) = conn.parts();
    let batching = match parts.prepares && pool.keeps_sessions {
        true => Batching::Prepared(prepared),
        false => Batching::Texts,
    };
    PostgresConn::opened(conn, parts.prepares, batching, opening)
}

/// Runs the same body on the connection of either engine. A macro, since the connections have different types and a closure
/// cannot be generic: the body is written once and type-checked twice.
macro_rules! on_engine {
    ($tx:expr, |$conn:ident| $body:expr) => {
        match &mut $tx.conn {
            $crate::db::engine::Conn::Sqlite(conn) => {
                let $conn = &mut *conn;
                $body
            }
            $crate::db::engine::Conn::Postgres(conn) => {
                let $conn = &mut *conn;
                $body
            }
        }
    };
}
pub(super) use on_engine;

/// The source of reads.
pub(super) enum Readers {
    /// The writer, for a database in memory: it has a single connection.
    Writer,
    Sqlite {
        /// The queue of reads.
        queue: TransactionQueue,
        /// The queue of searches.
        searches: TransactionQueue,
    },
    Postgres(PostgresPool),
}

/// The number of prepared statements of a connection.
const STATEMENTS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(10);
/// The time in which a connection has to answer when it is checked before its next use.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// The wait for a connection after which the listener looks for the host that takes writes.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// The code of Postgres for a write in a session that is read-only, as on a standby.
const READ_ONLY: &str = "25006";

/// Starts a task of the database, given its name.
pub type SpawnWriter<'a> = &'a (dyn Fn(&'static str, BoxFuture<'static, ()>) + Send + Sync);

/// Opens the database, brings its tables up to date, and starts the tasks that write.
pub(super) async fn open(
    address: &DbAddress,
    outfit: WriterParts,
    spawn: SpawnWriter<'_>,
) -> DbResult<(Engine, Readers)> {
    let url = address.url.as_str();
    if is_postgres(url) {
        let limits = outfit.limits;
        let direct = Arc::new(PostgresHosts::of(address.session_url())?);
        let pool = open_postgres(address, &direct, &outfit).await?;
        let targets = notifications::ListenerTargets {
            direct,
            pool: pool.clone(),
        };
        spawn(
            "database listener",
            notifications::listen(targets, outfit.listening.clone(), limits, outfit.closing.clone()),
        );
        for writer in writer::on_postgres(outfit, &pool, limits.writers()) {
            spawn("database writer", writer);
        }
        return Ok((Engine::Postgres, Readers::Postgres(pool)));
    }
    let options = sqlite_options(url)?.busy_timeout(outfit.limits.statement);
    let lock = match options.file() {
        None => None,
        Some(file) => {
            make_directory(file)?;
            // The lock comes before the file is opened: opening would take the locks of SQLite from another server in this
            // process.
            let lock = FileLock::take(file)?;
            check_file(file)?;
            Some(lock)
        }
    };
    let mut conn = match lock {
        None => options.open()?,
        Some(_) => options.clone().pragma("journal_mode", "wal").open()?,
    };
    migration::migrate_sqlite(&mut conn).await?;
    // There is no other server.
    outfit.parts.forms.store(WorkerId::FORMS_READ, Ordering::Relaxed);
    outfit
        .parts
        .sealing
        .check(&mut Tx::sqlite(
            SqliteConn::new(&mut conn),
            &outfit.parts,
            &RowAccess::Server,
        ))
        .await?;
    let running_readers = TaskTracker::new();
    let readers = match lock {
        None => Readers::Writer,
        Some(_) => {
            let options = options.create_if_missing(false).pragma("query_only", "on");
            let start = |name: &'static str, limit: Option<Duration>| {
                let (queue, inbox) = queue::new();
                let readers = reader::on_sqlite(SqliteReaders {
                    inbox,
                    parts: &outfit.parts,
                    options: &options,
                    limit,
                    closing: &outfit.closing,
                });
                for reader in readers {
                    let reading = running_readers.track_future(on_own_thread(name, reader));
                    spawn(name, Box::pin(reading));
                }
                queue
            };
            Readers::Sqlite {
                queue: start("database reader", None),
                searches: start("database search", Some(outfit.limits.statement)),
            }
        }
    };
    let writing = on_own_thread(
        "database writer",
        writer::on_sqlite(outfit, conn, lock, running_readers),
    );
    spawn("database writer", Box::pin(writing));
    Ok((Engine::Sqlite, readers))
}

pub(super) fn sqlite_options(url: &str) -> DbResult<SqliteConnectOptions> {
    Ok(SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        // A commit that was reported must survive a loss of power.
        .pragma("synchronous", "full")
        .statement_cache_capacity(STATEMENTS)
        .pragma("mmap_size", "268435456")
        .pragma("cache_size", "-32768")
        .pragma("temp_store", "memory")
        // Deleted content is overwritten.
        .pragma("secure_delete", "on")
        .pragma("journal_size_limit", "67108864"))
}

/// Creates the folder of the file if it is missing, but only below the working directory. A missing folder elsewhere is
/// likely a typing mistake, or a disk that is not mounted.
fn make_directory(file: &Path) -> DbResult<()> {
    check_folder(file)?;
    match missing_folder(file) {
        Some(folder) => std::fs::create_dir_all(folder).map_err(|error| cannot_open("the folder", folder, &error)),
        None => Ok(()),
    }
}

fn missing_folder(file: &Path) -> Option<&Path> {
    file.parent()
        .filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
}

/// Checks that the folder of a file exists, or may be created.
fn check_folder(file: &Path) -> DbResult<()> {
    let Some(folder) = missing_folder(file) else {
        return Ok(());
    };
    if !is_below_working_directory(folder) {
        let shown = folder.display();
        return Err(DbError::CannotOpen(match folder.exists() {
            true => format!("{shown} is not a folder: name another file"),
            false => format!("there is no folder {shown}: create it, or name another file"),
        }));
    }
    Ok(())
}

/// Checks that a file which is missing can be created: in its folder, or in the one in which the folder would be.
pub(super) fn check_new_file(file: &Path) -> DbResult<()> {
    check_folder(file)?;
    let here = Path::new(".");
    let mut folders = file
        .ancestors()
        .skip(1)
        .map(|folder| match folder.as_os_str().is_empty() {
            true => here,
            false => folder,
        });
    let folder = folders.find(|folder| folder.is_dir()).unwrap_or(here);
    let probe = folder.join(format!(".adjutant-{}.check", std::process::id()));
    let created = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe);
    match created {
        // An empty file that cannot be removed does no harm.
        Ok(_) => drop(std::fs::remove_file(&probe)),
        // Such a file was left by a process with the same number, which could create it.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            let folder = folder.display();
            let reason = format!("no file can be created in the folder {folder}: {error}");
            return Err(DbError::CannotOpen(reason));
        }
    }
    Ok(())
}

fn is_below_working_directory(folder: &Path) -> bool {
    let leads_up = folder.components().any(|component| component == Component::ParentDir);
    let here = std::env::current_dir();
    !leads_up && (folder.is_relative() || here.is_ok_and(|here| folder.starts_with(here)))
}

/// Opens the file once, so that the error of the operating system says why it cannot be opened. SQLite reports no
/// reason.
pub(super) fn check_file(file: &Path) -> DbResult<()> {
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(file);
    opened.map(drop).map_err(|error| cannot_open("the file", file, &error))
}

fn cannot_open(what: &str, path: &Path, error: &std::io::Error) -> DbError {
    DbError::CannotOpen(format!(
        "{what} {} cannot be opened for writing: {error}",
        path.display()
    ))
}

/// Returns whether a URL is that of a Postgres.
pub(super) fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres:") || url.starts_with("postgresql:")
}

pub(super) fn postgres_options(url: &str) -> DbResult<PgConnectOptions> {
    Ok(PgConnectOptions::from_str(url)?
        .statement_cache_capacity(STATEMENTS)
        // Statements that are sent together have their values in the text.
        .disable_statement_logging()
        .application_name("adjutant"))
}

async fn open_postgres(
    address: &DbAddress,
    direct: &Arc<PostgresHosts>,
    outfit: &WriterParts,
) -> DbResult<PostgresPool> {
    let parts = &outfit.parts;
    let limits = outfit.limits;
    // This connection is made without the pool, which would retry until its timeout and then report nothing else. The
    // migrations may also take longer than other statements.
    let mut first = direct.connect(limits).await?;
    migration::migrate_postgres(&mut first).await?;
    let forms = upgrade::forms_read(&mut first).await?;
    parts.forms.store(forms, Ordering::Relaxed);
    let sealing = &parts.sealing;
    sealing
        .check(&mut Tx::postgres(&mut first, parts, &RowAccess::Server))
        .await?;
    row_security::warn_without_effect(&mut first).await?;
    let settings = SessionSettings::new(limits);
    let is_pooled = address.direct_url.is_some();
    let hosts = match is_pooled {
        true => Arc::new(pool_hosts(address)?),
        false => Arc::clone(direct),
    };
    if is_pooled {
        let mut pooled = hosts.connect(limits).await?;
        session_lock::check_same_database(&mut first, &mut pooled).await?;
        pooled.close().await?;
    }
    first.close().await?;
    // A pooler gives the session to others after this statement.
    let session = (!is_pooled).then(|| settings.of_session());
    let reach = &outfit.listening.reach;
    let connections = postgres_pool(limits.connections, &hosts, session.clone());
    let lease = postgres_pool(1, &hosts, session);
    let settings = is_pooled.then_some(&settings);
    Ok(PostgresPool::new(
        connections,
        lease,
        hosts,
        Arc::clone(reach),
        settings,
    ))
}

/// Returns a pool whose connections begin with the statements `session`, if there are any. It only makes connections: those that
/// are not in use are in [`Connections`](postgres::Connections).
fn postgres_pool(size: u32, hosts: &PostgresHosts, session: Option<String>) -> PgPool {
    let target = hosts.target;
    let pool = pool::<Postgres>(size).after_connect(move |conn, _| {
        let session = session.clone();
        Box::pin(async move {
            if let Some(session) = session {
                raw_sql(AssertSqlSafe(session)).execute(&mut *conn).await?;
            }
            check_writable(conn, target).await
        })
    });
    pool.connect_lazy_with(hosts.latest_options())
}

fn pool<DB: sqlx::Database>(size: u32) -> PoolOptions<DB> {
    PoolOptions::new()
        .max_connections(size)
        .acquire_timeout(PATIENCE)
        // A check before each use would cost every transaction a round trip to the server.
        .test_before_acquire(false)
}

/// Takes the connection to Postgres that was used last and still answers, or makes one.
pub(super) async fn acquire(pool: &PostgresPool) -> DbResult<PooledConnection> {
    let acquired = match pool.hosts.are_several() {
        true => acquire_at_one_of_several(pool).await,
        false => take_or_make(pool).await,
    };
    acquired.map_err(not_acquired)
}

/// Takes a connection like [`acquire`], for a read. The read has its turn until the connection is free.
pub(super) async fn acquire_to_read(pool: &PostgresPool) -> DbResult<(PooledConnection, OwnedSemaphorePermit)> {
    let turn = tokio::time::timeout(PATIENCE, pool.read_turn()).await;
    let turn = turn.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(not_acquired)?;
    Ok((acquire(pool).await?, turn))
}

/// Returns the error about a connection that was not acquired.
fn not_acquired(error: sqlx::Error) -> DbError {
    // It hides why no connection could be made; the listener finds that out.
    if matches!(error, sqlx::Error::PoolTimedOut) {
        let text = "no connection was free, or could be made in time";
        return sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::ResourceBusy, text)).into();
    }
    error.into()
}

/// Takes the connection that was used last, or makes one if that does not answer, or none is idle.
async fn take_or_make(pool: &PostgresPool) -> sqlx::Result<PooledConnection> {
    let connections = &pool.connections;
    let taken = async {
        let permit = connections.permit().await?;
        let Some(mut idle) = connections.take() else {
            return connections.make(permit).await;
        };
        let age = idle.age();
        let idle_for = idle.idle_for();
        if is_usable(&pool.hosts, &pool.reach, age, idle_for, &mut idle).await {
            return Ok(idle.with_permit(permit));
        }
        drop(idle);
        connections.make(permit).await
    };
    let taken = tokio::time::timeout(PATIENCE, taken).await;
    taken.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// Returns whether a connection of this age leads to the latest host. If it was idle for long, it has to answer.
async fn is_usable(
    hosts: &PostgresHosts,
    reach: &Reachability,
    age: Duration,
    idle_for: Duration,
    conn: &mut PgConnection,
) -> bool {
    let is_of_earlier_host = hosts.have_moved_within(age);
    if is_of_earlier_host || reach.needs_no_check(idle_for) {
        return !is_of_earlier_host;
    }
    let checked = tokio::time::timeout(CHECK_TIMEOUT, check_writable(conn, hosts.target)).await;
    matches!(checked, Ok(Ok(())))
}

/// Takes a connection, or makes one at the latest host. If that fails or takes long, the listener first looks for the host that takes
/// writes.
async fn acquire_at_one_of_several(pool: &PostgresPool) -> sqlx::Result<PooledConnection> {
    let host = pool.hosts.latest_index();
    let mut acquiring = Box::pin(take_or_make(pool));
    match tokio::time::timeout(LOOK_AFTER, &mut acquiring).await {
        Ok(Ok(conn)) => return Ok(conn),
        Ok(Err(sqlx::Error::PoolClosed)) => return Err(sqlx::Error::PoolClosed),
        Ok(Err(_)) => {
            pool.reach.wait_for_look().await;
            return take_or_make(pool).await;
        }
        Err(_) => {}
    }
    // Either all connections are in use, or the host is silent.
    tokio::select! {
        acquired = &mut acquiring => return acquired,
        () = pool.reach.wait_for_look() => {}
    }
    if pool.hosts.latest_index() == host {
        return acquiring.await;
    }
    // It has the permission to use a connection, of which there may be no other.
    drop(acquiring);
    take_or_make(pool).await
}

/// Converts an error of the driver into an error of this module.
pub(super) fn classify_error(error: sqlx::Error) -> DbError {
    if matches!(error, sqlx::Error::PoolClosed) {
        return DbError::Closed;
    }
    if NothingChanged::is_cause_of(&error) {
        return DbError::NoRow;
    }
    let Some(told) = error.as_database_error() else {
        return DbError::Unavailable(Arc::new(error));
    };
    if told.is_unique_violation() || told.is_foreign_key_violation() {
        return DbError::Conflict(told.message().to_owned());
    }
    match told.code().as_deref() {
        // SQLite: busy and locked, with their extended codes. Postgres: serialization failure, deadlock, lock timeout.
        Some("5" | "6" | "261" | "517" | "773" | "262" | "40001" | "40P01" | "55P03") => DbError::Busy,
        // The statement was cancelled by a timeout. SQLite: interrupted. Postgres: query cancelled.
        Some("9" | "57014") => DbError::late(),
        // Postgres: the character U+0000, in text and in JSON.
        Some("22021" | "22P05") => DbError::Unfit(told.message().to_owned()),
        Some(_) | None => DbError::Unavailable(Arc::new(error)),
    }
}

/// Returns whether a statement that failed may succeed later, unchanged.
pub(super) fn is_transient(error: &sqlx::Error) -> bool {
    // SQLite: error, too big, constraint, mismatch, misuse, range. Postgres, by class: cardinality, data, integrity,
    // limits.
    const SQLITE: [u32; 6] = [1, 18, 19, 20, 21, 25];
    const POSTGRES: [&str; 4] = ["21", "22", "23", "54"];
    if let Some(told) = error.as_database_error() {
        let code = told.code().unwrap_or_default();
        return match code.parse::<u32>() {
            // The codes of Postgres have five characters; the lower byte of those of SQLite is the kind of error.
            Ok(number) if code.len() < 5 => !SQLITE.contains(&(number & 0xff)),
            Ok(_) | Err(_) => !POSTGRES.contains(&code.get(..2).unwrap_or_default()),
        };
    }
    matches!(
        error,
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut
    ) || matches!(error, sqlx::Error::BeginFailed | sqlx::Error::WorkerCrashed)
}

/// Returns whether Postgres refused a write since the session is read-only.
fn is_read_only(error: &sqlx::Error) -> bool {
    has_code(error, READ_ONLY)
}

/// Returns whether an error of the database has this code.
pub(super) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.code().as_deref() == Some(code))
}

/// Returns whether an error is about the connection, and not about a statement. SQLite has none of these.
pub(super) fn is_out_of_reach(error: &sqlx::Error) -> bool {
    // Postgres: connection exceptions; the server ends or begins; it is a standby.
    const CLASS: &str = "08";
    const POSTGRES: [&str; 4] = ["57P01", "57P02", "57P03", READ_ONLY];
    if let Some(told) = error.as_database_error() {
        let code = told.code().unwrap_or_default();
        return code.len() == 5 && (code.starts_with(CLASS) || POSTGRES.contains(&&*code));
    }
    if let sqlx::Error::Io(error) = error {
        // A timeout is a statement that takes too long.
        return error.kind() != std::io::ErrorKind::TimedOut;
    }
    matches!(error, sqlx::Error::Tls(_) | sqlx::Error::Protocol(_))
}

/// Metadata filters that are nested deeper than this are refused.
const DEEPEST_FILTER: usize = 16;

/// A query under construction, on either engine.
pub(super) trait Contains {
    /// The word before a column that keeps the planner from using an index of that column. SQLite has no statistics, so
    /// it takes any index of a column that must equal a value for a good one.
    const WITHOUT_INDEX: &'static str;

    /// Adds the condition that the JSON object in `column` contains `filter`: every key of the filter is there, with an
    /// equal scalar, an object that contains the filter's, or an array in which every item of the filter's has a match.
    fn push_contains(&mut self, column: &str, filter: &Map<String, Value>) -> DbResult<()>;

    /// Adds the condition that `column` holds a JSON object.
    fn push_is_object(&mut self, column: &str);

    /// Adds a text as a bound value.
    fn push_text(&mut self, text: &str);
}

impl Contains for QueryBuilder<Postgres> {
    const WITHOUT_INDEX: &'static str = "";

    fn push_contains(&mut self, column: &str, filter: &Map<String, Value>) -> DbResult<()> {
        self.push(column).push(" @> ").push_bind(Json(filter.clone()));
        Ok(())
    }

    fn push_is_object(&mut self, column: &str) {
        self.push(format!("jsonb_typeof({column}) = 'object'"));
    }

    fn push_text(&mut self, text: &str) {
        self.push_bind(text.to_owned());
    }
}

impl Contains for QueryBuilder<Sqlite> {
    const WITHOUT_INDEX: &'static str = "+";

    /// The operator `@>` of Postgres spelled out: an `exists` over `json_each` for each key and item of the filter. As
    /// in Postgres, an empty filter matches everything and numbers are compared by value.
    fn push_contains(&mut self, column: &str, filter: &Map<String, Value>) -> DbResult<()> {
        push_keys(self, column, filter, 1)
    }

    fn push_is_object(&mut self, column: &str) {
        self.push(format!(
            "case when json_valid({column}) then json_type({column}) = 'object' else false end"
        ));
    }

    fn push_text(&mut self, text: &str) {
        self.push_bind(text.to_owned());
    }
}

fn push_keys(query: &mut QueryBuilder<Sqlite>, json: &str, filter: &Map<String, Value>, depth: usize) -> DbResult<()> {
    if depth > DEEPEST_FILTER {
        return Err(DbError::Unfit(format!(
            "a metadata filter nested deeper than {DEEPEST_FILTER}"
        )));
    }
    query.push("true");
    for (key, value) in filter {
        // A column that holds no JSON is an error in SQLite, for all rows.
        let json = if depth == 1 { valid_json(json) } else { json.to_owned() };
        query.push(format!(
            " and exists (select 1 from json_each({json}) j{depth} where j{depth}.key = "
        ));
        query.push_bind(key.clone());
        push_match(query, value, depth)?;
        query.push(")");
    }
    Ok(())
}

/// Returns the argument of `json_each` of SQLite for a column: nothing if the column holds no JSON.
fn valid_json(column: &str) -> String {
    format!("case when json_valid({column}) then {column} end")
}

/// Adds the condition that row `j{depth}` of a `json_each` matches `value`.
fn push_match(query: &mut QueryBuilder<Sqlite>, value: &Value, depth: usize) -> DbResult<()> {
    let row = format!("j{depth}");
    match value {
        Value::Null => query.push(format!(" and {row}.type = 'null'")),
        Value::Bool(truth) => query.push(format!(" and {row}.type = '{truth}'")),
        Value::String(text) => query
            .push(format!(" and {row}.type = 'text' and {row}.value = "))
            .push_bind(text.clone()),
        Value::Number(number) => {
            query.push(format!(" and {row}.type in ('integer', 'real') and {row}.value = "));
            match number.as_i64() {
                Some(whole) => query.push_bind(whole),
                None => query.push_bind(number.as_f64()),
            }
        }
        Value::Object(inner) => {
            query.push(format!(" and {row}.type = 'object' and "));
            return push_keys(query, &format!("{row}.value"), inner, depth + 1);
        }
        Value::Array(items) => {
            query.push(format!(" and {row}.type = 'array'"));
            let inner = depth + 1;
            for item in items {
                if inner > DEEPEST_FILTER {
                    return Err(DbError::Unfit(format!(
                        "a metadata filter nested deeper than {DEEPEST_FILTER}"
                    )));
                }
                query.push(format!(
                    " and exists (select 1 from json_each({row}.value) j{inner} where true"
                ));
                push_match(query, item, inner)?;
                query.push(")");
            }
            return Ok(());
        }
    };
    Ok(())
}
