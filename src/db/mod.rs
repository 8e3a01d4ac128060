//! The database: threads, runs, checkpoints, events, interrupts, items. One file per table.
//!
//! The database makes no decisions: its functions read and change tables. They take a [`Tx`], so several calls can
//! share one transaction; only [`Db::read`] and [`Db::write`] begin one. Rows never leave this module; the results are
//! values of [`crate::domain`].
//!
//! A step is stored as the values that it *wrote*, never as the resulting state. The state at a checkpoint is the sum
//! of the writes of its ancestors, see [`checkpoints`].
//!
//! # The rooms
//!
//! Modules import those of the rooms below them, and in each room the later ones of this table the earlier ones.
//!
//! | Room | Modules |
//! |---|---|
//! | operators | `admin`: [`inspection`], [`postgres_checks`], [`vacuum`], and new keys |
//! | several tables | [`stored_bytes`], [`copies`], [`retention`], [`erasure`], [`thread_search`] |
//! | runs and their logs | [`idempotency`], [`remembered`], [`interrupts`], `questions`, [`threads`], [`checkpoints`], [`events`], [`runs`], [`background`] |
//! | other tables | [`workers`], [`jobs`], [`crons`], [`deliveries`], [`remote_runs`], [`sandboxes`], [`trees`], [`quotas`], [`keys`], [`mcp_logins`], [`call_tokens`], [`audit`], [`items`], [`assistants`], [`definitions`] |
//! | what statements share | [`access`], `list_part`, `of_thread`, `offload`; [`live`] |
//! | `codec` | JSON, blobs, the short form, and who seals which values |
//! | `engine` | connections, transactions, queues, statements, notifications, migrations, keys, errors |
//! | values without SQL | `row`, `fold`, `states` |
//!
//! [`Db`], in this file, stands above all of them: it opens the engine, and stores the entries of the audit with each write.
//!
//! # The order of locks
//!
//! On Postgres, transactions lock rows in this order, whichever they need, so that no two of them wait for each other:
//!
//! 1. the idempotency key of the request ([`Db::write_once`]), or the lock of claims ([`runs::lock_claims`]);
//! 2. the thread ([`threads::lock`]), and that of an agent before those of its background tasks;
//! 3. the cron of the thread;
//! 4. the run of the main agent ([`runs::check_fence`], [`runs::store_fenced`], [`runs::lock`], [`runs::request_cancel`]);
//! 5. its checkpoints, the runs of its subagents, its interrupts with the schemas of their answers;
//! 6. trees, by their ids ([`trees::lock`]), then background tasks;
//! 7. jobs, then deliveries.
//!
//! A transaction that changes definitions or the agents of clients locks all of them first ([`definitions::lock_changes`]).
//!
//! A row that refers to a thread cannot be added while another transaction deletes the thread, so a step of a run locks
//! its thread in the weakest way (`key share`) before its run. On Postgres, `checkpoints` and `thread_terms` have no foreign key to
//! threads: who adds rows to them has locked the thread, or stores it. That does not wait for [`threads::lock`]. Statements with
//! `skip locked` wait for nothing. Should two transactions wait for each other all the same, Postgres ends one with
//! [`DbError::Busy`], and the runtime repeats it.

pub mod access;
mod admin;
pub mod assistants;
pub mod audit;
pub mod background;
pub mod call_tokens;
pub mod checkpoints;
mod codec;
pub mod copies;
pub mod crons;
pub mod definitions;
pub mod deliveries;
mod engine;
pub mod erasure;
pub mod events;
mod fold;
pub mod idempotency;
pub mod interrupts;
pub mod items;
pub mod jobs;
pub mod keys;
mod list_part;
pub mod live;
pub mod mcp_logins;
mod of_thread;
mod offload;
mod questions;
pub mod quotas;
pub mod remembered;
pub mod remote_runs;
pub mod retention;
mod row;
pub mod runs;
pub mod sandboxes;
mod states;
pub mod stored_bytes;
#[cfg(test)]
mod tests;
pub mod thread_search;
pub mod threads;
pub mod trees;
pub mod workers;

use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use admin::{RekeyProgress, RekeyTarget, inspection, postgres_checks, vacuum};
pub use codec::json::unless_corrupt;
pub use engine::notifications::Notification;
pub use engine::sealing::MasterKeys;
pub(crate) use engine::warn_of;
pub use engine::{
    DbAddress, DbError, DbLimits, DbResult, Engine, LiveAddress, LiveNotice, PendingEntries, RowAccess, SessionLock,
    SpawnWriter, Tx, migration, notifications,
};
pub use list_part::{ListPart, PageQuery};
pub use live::ChunkRange;
pub use offload::{CancelFlag, off_thread};
pub use states::StateCache;

use engine::queue::{self, TransactionQueue};
use engine::sealing::Sealing;
use engine::writer;
use engine::{DbOperation, PostgresReader, Reachability, Readers, TxParts};

/// The database. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Db(Arc<Inner>);

struct Inner {
    engine: Engine,
    readers: Readers,
    queue: TransactionQueue,
    /// The turns of searches that share connections with reads.
    searches: Arc<Semaphore>,
    parts: TxParts,
    notifications: broadcast::Sender<Notification>,
    live: broadcast::Sender<LiveNotice>,
    live_address: LiveAddress,
    session_lock: watch::Receiver<Option<SessionLock>>,
    reach: Arc<Reachability>,
    closing: CancellationToken,
    writers: TaskTracker,
    limits: DbLimits,
}

impl Db {
    /// Opens the database at `url` (`sqlite://file`, `sqlite::memory:`, `postgres://…`), creates the SQLite file when
    /// it is missing, and brings the tables up to date.
    ///
    /// # Errors
    /// [`DbError::Unavailable`] when the database cannot be reached or its tables are not those of this server.
    pub async fn open(url: &str, spawn: SpawnWriter<'_>) -> DbResult<Self> {
        Self::open_within(url, DbLimits::default(), spawn).await
    }

    /// Opens the database like [`Db::open`], with other timeouts.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub async fn open_within(url: &str, limits: DbLimits, spawn: SpawnWriter<'_>) -> DbResult<Self> {
        Self::open_with_keys(&url.into(), limits, None, spawn).await
    }

    /// Opens the database like [`Db::open_within`]. With master keys, new values are sealed.
    ///
    /// # Errors
    /// As [`Db::open`], and [`DbError::Sealed`] when a key is missing under which values are sealed.
    pub async fn open_with_keys(
        address: &DbAddress,
        limits: DbLimits,
        keys: Option<MasterKeys>,
        spawn: SpawnWriter<'_>,
    ) -> DbResult<Self> {
        let parts = TxParts {
            states: Arc::default(),
            sealing: Sealing::new(keys),
            has_erased: Arc::default(),
            forms: Arc::default(),
            blob_min_chars: limits.blob_min_chars,
            prepares: address.prepared_statements,
        };
        let closing = CancellationToken::new();
        let writers = TaskTracker::new();
        let tracked = |name, task: BoxFuture<'static, ()>| spawn(name, Box::pin(writers.track_future(task)));
        let (queue, inbox) = queue::new();
        let notifications = broadcast::Sender::new(notifications::CAPACITY);
        let live = broadcast::Sender::new(engine::LIVE_CAPACITY);
        let live_address = LiveAddress::mint();
        let shown_lock = watch::Sender::new(None);
        let session_lock = shown_lock.subscribe();
        let reach = Arc::new(Reachability::default());
        let outfit = writer::WriterParts {
            inbox,
            parts: parts.clone(),
            listening: notifications::Listening {
                notifications: notifications.clone(),
                live: live.clone(),
                live_address,
                session_lock: shown_lock,
                reach: Arc::clone(&reach),
            },
            closing: closing.clone(),
            limits,
        };
        let (engine, readers) = engine::open(address, outfit, &tracked).await?;
        writers.close();
        let db = Self(Arc::new(Inner {
            engine,
            readers,
            queue,
            searches: Arc::new(Semaphore::new(usize::try_from(limits.searches()).unwrap_or(1))),
            parts,
            notifications,
            live,
            live_address,
            session_lock,
            reach,
            closing,
            writers,
            limits,
        }));
        Ok(db)
    }

    /// Returns the engine.
    pub fn engine(&self) -> Engine {
        self.0.engine
    }

    /// Returns the cache of states.
    pub fn states(&self) -> &StateCache {
        &self.0.parts.states
    }

    /// Stores new rows in this number of forms, see [`engine::upgrade`].
    #[cfg(test)]
    fn set_forms(&self, forms: u32) {
        self.0.parts.forms.store(forms, std::sync::atomic::Ordering::Relaxed);
    }

    /// Returns whether new values are sealed.
    pub fn is_sealing(&self) -> bool {
        self.0.parts.sealing.is_on()
    }

    /// Returns the receiver of notifications of all processes on the same database, including this one. SQLite has
    /// none.
    pub fn notifications(&self) -> broadcast::Receiver<Notification> {
        self.0.notifications.subscribe()
    }

    /// Returns the receiver of live notices of all processes on the same database, including this one. SQLite has none.
    pub fn live_notices(&self) -> broadcast::Receiver<LiveNotice> {
        self.0.live.subscribe()
    }

    /// Returns the address of this process for live notices.
    pub fn live_address(&self) -> LiveAddress {
        self.0.live_address
    }

    /// Returns the lock by which other processes know that this one is alive, while it is held. SQLite has none.
    pub fn session_lock(&self) -> watch::Receiver<Option<SessionLock>> {
        self.0.session_lock.clone()
    }

    /// Returns whether the absence of other processes means something: this process has been connected for a while since its
    /// connection was lost, so the others have had time to connect again, too.
    pub fn is_settled(&self) -> bool {
        self.0.reach.is_settled()
    }

    /// Returns whether the disk takes the writes of this process, as far as they have shown. Of Postgres nothing is known.
    pub fn disk_takes_writes(&self) -> bool {
        self.0.reach.disk_takes_writes()
    }

    /// Runs `operation` on one consistent view of the database, with the [access](RowAccess) of the current task. The
    /// operation must not write.
    ///
    /// The caller does not wait for the end of the transaction, which keeps nothing.
    ///
    /// # Errors
    /// Those of the operation, [`DbError::Unbound`] when the task does not say for which tenant it works, and
    /// [`DbError::Unavailable`].
    pub async fn read<T, J>(&self, operation: J) -> DbResult<T>
    where
        T: Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<T>> + Send + 'static,
    {
        let (operation, outcome) = DbOperation::with_outcome(operation);
        self.run_read(operation, None).await?;
        outcome.into_result()
    }

    /// Runs a read, or a search in its turn. The future is boxed, so that its code is compiled once and not in each module that
    /// reads.
    fn run_read(&self, operation: DbOperation, search: Option<OwnedSemaphorePermit>) -> BoxFuture<'_, DbResult<()>> {
        Box::pin(async move {
            let access = RowAccess::required()?;
            match &self.0.readers {
                Readers::Writer => self.0.queue.run(access, operation).await,
                Readers::Sqlite { queue, .. } => self.in_time(queue.run(access, operation)).await,
                Readers::Postgres(pool) => {
                    let limit = self.0.limits.transaction();
                    let mut reader = self.in_time(Box::pin(PostgresReader::of(pool, limit, search))).await?;
                    let read = reader.read(&self.0.parts, &access, operation);
                    let read = Box::pin(self.0.parts.sealing.scope(read));
                    let done = tokio::time::timeout(limit, read).await;
                    done.unwrap_or_else(|_| {
                        reader.discard_connection();
                        Err(DbError::late())
                    })
                }
            }
        })
    }

    /// Runs `operation` like [`Db::read`], for statements that may be slow because of the request of a client. They are
    /// cancelled at the timeout, and when the caller is gone. A few run at the same time and others wait, so that they leave
    /// connections for reads.
    ///
    /// # Errors
    /// Those of the operation, and [`DbError::Unavailable`], also when the operation took too long.
    pub async fn search<T, J>(&self, operation: J) -> DbResult<T>
    where
        T: Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<T>> + Send + 'static,
    {
        let (operation, outcome) = DbOperation::with_outcome(operation);
        self.run_search(operation).await?;
        outcome.into_result()
    }

    /// Returns the number of searches that run at the same time.
    pub fn searches(&self) -> u32 {
        match &self.0.readers {
            Readers::Sqlite { .. } => engine::SQLITE_READERS,
            Readers::Writer | Readers::Postgres(_) => self.0.limits.searches(),
        }
    }

    /// Runs a search, in a boxed future like that of a read.
    fn run_search(&self, operation: DbOperation) -> BoxFuture<'_, DbResult<()>> {
        Box::pin(async move {
            // Postgres cancels statements at the timeout by itself.
            let Readers::Sqlite { searches, .. } = &self.0.readers else {
                let turn = async { Ok(Arc::clone(&self.0.searches).acquire_owned().await.ok()) };
                let turn = self.in_time(turn).await?;
                return self.run_read(operation, turn).await;
            };
            let access = RowAccess::required()?;
            self.in_time(searches.run(access, operation)).await
        })
    }

    async fn in_time<T>(&self, work: impl Future<Output = DbResult<T>>) -> DbResult<T> {
        let done = tokio::time::timeout(self.0.limits.transaction(), work).await;
        done.unwrap_or_else(|_| Err(DbError::late()))
    }

    /// Runs `operation` as one transaction with the [access](RowAccess) of the current task, and returns its result once the
    /// transaction is durable.
    ///
    /// An operation that returns any error is rolled back. To keep writes beside a refusal, return the refusal as a
    /// value, or use [`Tx::savepoint`]. After an error of the database the operation must return an error, since only
    /// one of the two engines could continue. An operation must wait for nothing but the database, since other
    /// operations wait behind it, and must never call [`Db::write`] itself. An operation that has begun runs to its
    /// end, even if the caller is gone.
    ///
    /// In a task that works for a request, the transaction also stores the [pending entries](PendingEntries) of the
    /// request, those that the operation adds included.
    ///
    /// # Errors
    /// Those of the operation; [`DbError::Unbound`] when the task does not say for which tenant it works;
    /// [`DbError::Busy`] when the operation lost a race and may be retried; [`DbError::Unavailable`].
    pub async fn write<T, E, J>(&self, operation: J) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
    {
        let (operation, outcome) = DbOperation::with_outcome(operation);
        self.run_write(operation).await?;
        outcome.into_result()
    }

    /// Runs a write, in a boxed future like that of a read.
    fn run_write(&self, operation: DbOperation) -> BoxFuture<'_, DbResult<()>> {
        Box::pin(async move {
            let access = RowAccess::required()?;
            let Some(entries) = PendingEntries::current() else {
                return self.queue_write(access, operation).await;
            };
            let stored = Arc::new(OnceLock::new());
            let of_operation = entries.clone();
            let stored_by_operation = Arc::clone(&stored);
            let operation_with_entries = DbOperation::new(move |tx| {
                Box::pin(async move {
                    let is_kept = operation.run(tx).await?;
                    if is_kept {
                        // After the operation, which may add entries, and which may have to begin without locks.
                        let pending = of_operation.not_stored();
                        audit::insert_all(tx, &pending).await?;
                        let _ = stored_by_operation.set(pending);
                    }
                    Ok(is_kept)
                })
            });
            self.queue_write(access, operation_with_entries).await?;
            if let Some(stored) = stored.get() {
                entries.remove(stored);
            }
            Ok(())
        })
    }

    /// Runs a write like [`Db::write`], for the lease of this process: while many writes wait, it must not wait behind them. On
    /// Postgres it has a connection of its own. On SQLite, where no other process can take the lease, it is queued.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn write_for_lease<T, J>(&self, operation: J) -> DbResult<T>
    where
        T: Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<T>> + Send + 'static,
    {
        let (operation, outcome) = DbOperation::with_outcome(operation);
        let access = RowAccess::required()?;
        match &self.0.readers {
            Readers::Writer | Readers::Sqlite { .. } => self.queue_write(access, operation).await?,
            Readers::Postgres(pool) => {
                let limit = self.0.limits.transaction();
                writer::write_for_lease(pool, &self.0.parts, access, operation, limit).await?;
            }
        }
        let renewed = outcome.into_result();
        if renewed.is_ok() {
            self.0.reach.row_was_written();
        }
        renewed
    }

    /// Queues a write, and notes it if the disk refuses it.
    async fn queue_write(&self, access: RowAccess, operation: DbOperation) -> DbResult<()> {
        let written = self.0.queue.run(access, operation).await;
        if let Err(error) = &written
            && error.is_refused_by_disk()
        {
            self.0.reach.disk_has_refused_a_write(error);
        }
        written
    }

    /// Accepts no more operations, finishes the accepted ones, and closes all connections.
    pub async fn close(&self) {
        self.0.closing.cancel();
        self.0.writers.wait().await;
        match &self.0.readers {
            Readers::Writer | Readers::Sqlite { .. } => {}
            Readers::Postgres(pool) => {
                // The timeout keeps a database that does not answer from blocking the shutdown.
                if tokio::time::timeout(self.0.limits.transaction(), pool.close())
                    .await
                    .is_err()
                {
                    tracing::warn!("the connections to the database were not closed cleanly");
                }
            }
        }
    }
}
