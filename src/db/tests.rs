//! Tests of the database. Each runs on SQLite and, where the tests have one, on Postgres.

mod assistants;
mod audit;
mod background;
mod batches;
mod blobs;
mod checkpoints;
mod copies;
mod crons;
mod definitions;
mod deliveries;
mod hosts;
mod idempotency;
mod interrupts;
mod items;
mod jobs;
mod lean_log;
mod locks;
mod mcp_logins;
mod notifications;
mod ownership;
mod plans;
#[path = "../../tests/support/postgres.rs"]
mod postgres;
mod questions;
mod questions_of_threads;
mod reads;
mod retention;
mod row_security;
mod runs;
mod sealing;
mod short_texts;
mod tables;
mod threads;
mod upgrade;
mod vectors;
mod writes;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio_util::task::TaskTracker;

use super::runs::{EndOfRun, LeaseHolder, RunRowUpdate};
use super::{Db, DbError, DbLimits, DbResult, MasterKeys, RowAccess};
use crate::domain::access::Ownership;
use crate::domain::account::RunQueue;
use crate::domain::checkpoint::{CheckpointSource, Entry};
use crate::domain::id::{AssistantId, CheckpointId, RunId, ThreadId, WorkerId};
use crate::domain::message::Message;
use crate::domain::run::{Lineage, Run, RunRequest, RunStatus};
use crate::domain::state::{State, Update};
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

/// Defines a test per engine for each `async fn name(db: Db)`, with plain values and with sealed ones.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::db::tests::with_sqlite(None, |db| Box::pin(super::$name(db))).await;
            })*
        }
        mod sealed_on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let keys = crate::db::tests::master_keys("test");
                crate::db::tests::with_sqlite(Some(keys), |db| Box::pin(super::$name(db))).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::db::tests::with_postgres(None, |db| Box::pin(super::$name(db))).await;
            })*
        }
        mod sealed_on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let keys = crate::db::tests::master_keys("test");
                crate::db::tests::with_postgres(Some(keys), |db| Box::pin(super::$name(db))).await;
            })*
        }
    };
}
use on_both;

async fn open(url: &str) -> Db {
    open_with(url, None).await.expect("a database")
}

/// Opens the database with a timeout that large statements of tests keep on a slow machine, too.
async fn open_with(url: &str, keys: Option<MasterKeys>) -> DbResult<Db> {
    let tasks = TaskTracker::new();
    let limits = DbLimits {
        statement: Duration::from_secs(120),
        ..DbLimits::default()
    };
    let spawn = move |_, task| drop(tasks.spawn(task));
    Db::open_with_keys(&url.into(), limits, keys, &spawn).await
}

/// Returns master keys with these names, separated by spaces. Equal names have equal keys.
fn master_keys(names: &str) -> MasterKeys {
    let line = |name: &str| {
        let key: Vec<u8> = name.bytes().cycle().take(32).collect();
        format!("{name}:{}\n", STANDARD.encode(key))
    };
    let text: String = names.split(' ').map(line).collect();
    MasterKeys::read(&text).expect("keys")
}

async fn with_sqlite(keys: Option<MasterKeys>, test: impl FnOnce(Db) -> BoxFuture<'static, ()>) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}/adjutant.db", directory.path().display());
    let db = open_with(&url, keys).await.expect("a database");
    on_server(test(db.clone())).await;
    db.close().await;
}

/// Runs a test with access to the rows of all tenants.
async fn on_server<T>(test: impl Future<Output = T>) -> T {
    RowAccess::Server.scope(test).await
}

async fn with_postgres(keys: Option<MasterKeys>, test: impl FnOnce(Db) -> BoxFuture<'static, ()>) {
    if let Some(database) = postgres::fresh_database().await {
        let db = open_with(&database.url, keys).await.expect("a database");
        on_server(test(db.clone())).await;
        db.close().await;
        database.discard().await;
    }
}

/// The refusal of an operation whose writes are rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refusal;

impl From<DbError> for Refusal {
    fn from(error: DbError) -> Self {
        panic!("{error}")
    }
}

/// Runs a write that must succeed.
macro_rules! write {
    ($db:expr, |$tx:ident| $body:expr) => {
        $db.write(move |$tx| Box::pin(async move { $body.await }))
            .await
            .expect("a write")
    };
}
use write;

/// Runs a read that must succeed.
macro_rules! read {
    ($db:expr, |$tx:ident| $body:expr) => {
        $db.read(move |$tx| Box::pin(async move { $body.await }))
            .await
            .expect("a read")
    };
}
use read;

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

/// Returns a page of a list, whatever its size in memory.
fn page(limit: i64, offset: i64) -> super::PageQuery {
    super::PageQuery {
        limit,
        offset,
        bytes: usize::MAX,
    }
}

fn thread_at(now: i64) -> Thread {
    Thread {
        id: ThreadId::mint(),
        ownership: Ownership::default(),
        status: ThreadStatus::Idle,
        metadata: Map::new(),
        config: Map::new(),
        error: None,
        created_at: Timestamp(now),
        updated_at: Timestamp(now),
        state_updated_at: Timestamp(now),
        ttl: None,
        expires_at: None,
    }
}

/// Stores a new thread.
async fn stored_thread(db: &Db) -> ThreadId {
    let thread = thread_at(1);
    let id = thread.id;
    assert!(write!(db, |tx| crate::db::threads::insert(tx, &thread)));
    id
}

fn run_at(thread: ThreadId, now: i64) -> Run {
    let id = RunId::mint();
    Run {
        id,
        thread,
        assistant: AssistantId::of_graph("agent"),
        lineage: Lineage::root(id, "agent"),
        status: RunStatus::Pending,
        request: RunRequest {
            input: Some(json!({"messages": ["hi"]})),
            ..RunRequest::default()
        },
        metadata: object(json!({"who": "me"})),
        error: None,
        attempt: 1,
        created_at: Timestamp(now),
        updated_at: Timestamp(now),
        due_at: Timestamp(now),
        queue: RunQueue::default(),
    }
}

/// Returns a step that adds the message `text` with the id `text`.
fn saying(text: &str, parent: Option<CheckpointId>, step: i64) -> Entry {
    Entry {
        id: CheckpointId::mint(),
        parent,
        step,
        source: CheckpointSource::Loop,
        node: "model".to_owned(),
        writes: vec![Update::messages([Message::human(text).with_id(text)])],
        logged_writes: vec![],
        carried_from: None,
    }
}

/// Returns the texts of the messages of a state.
fn texts(state: &State) -> Vec<String> {
    state.messages.texts()
}

#[tokio::test]
async fn a_database_in_memory_reads_what_it_wrote() -> DbResult<()> {
    on_server(async {
        let db = open("sqlite::memory:").await;
        let id = stored_thread(&db).await;
        let found = db
            .read(move |tx| Box::pin(async move { crate::db::threads::find(tx, id).await }))
            .await?;
        assert_eq!(found.map(|thread| thread.id), Some(id));
        db.close().await;
        Ok(())
    })
    .await
}

/// Claims a pending run and ends it with success. `waits` says whether work is left.
async fn end_run(db: &Db, id: RunId, waits: bool) {
    let worker = WorkerId::mint();
    let claim = write!(db, |tx| super::runs::claim(tx, id, worker, Timestamp(2))).expect("a claim");
    let holder = LeaseHolder {
        thread: claim.run.thread,
        run: id,
        worker,
        fence: claim.fence,
    };
    let end = EndOfRun {
        status: RunStatus::Success,
        error: None,
        waits,
    };
    let at = RunRowUpdate::at(Timestamp(3));
    write!(db, |tx| super::runs::end_fenced(tx, holder, end, at));
}
