//! The order of locks: transactions that meet on one thread and its run do not wait for each other. Only Postgres has locks of
//! rows.

use std::time::Duration;

use sqlx::query_scalar;
use tokio::sync::oneshot;

use super::runs::claimed_run;
use super::{Db, run_at, stored_thread, with_postgres, write};
use crate::db::engine::on_engine;
use crate::db::events::{self, NewEvent};
use crate::db::runs::{EndOfRun, LeaseHolder, RunRowUpdate};
use crate::db::{DbResult, Tx, runs, threads};
use crate::domain::account::RunQueue;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::RunStatus;
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// Stores a thread with a run at work.
async fn at_work(db: &Db) -> (ThreadId, LeaseHolder) {
    let thread = stored_thread(db).await;
    let holder = claimed_run(db, run_at(thread, 1), 2).await;
    (thread, holder)
}

/// Stores an event of a run, as its steps do.
async fn insert_event(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<()> {
    let event = NewEvent {
        thread,
        seq: 1,
        run,
        lane: Lane::Main,
        fact: &Fact::Undone,
        at: Timestamp(3),
    };
    events::insert(tx, &[event]).await
}

/// Stores a step of a run, as its journal does.
async fn store_step(tx: &mut Tx<'_>, thread: ThreadId, holder: LeaseHolder) -> DbResult<()> {
    runs::store_fenced(tx, holder, RunRowUpdate::at(Timestamp(3))).await?;
    insert_event(tx, thread, holder.run).await
}

/// Stores the end of a run, as its journal does.
async fn end_run(tx: &mut Tx<'_>, thread: ThreadId, holder: LeaseHolder) -> DbResult<Option<threads::LeftThread>> {
    let trace = RunRowUpdate::at(Timestamp(3));
    let end = EndOfRun {
        status: RunStatus::Success,
        error: None,
        waits: false,
    };
    runs::end_fenced(tx, holder, end, trace).await?;
    let left = threads::ThreadAfterRun {
        run: holder.run,
        status: ThreadStatus::Idle,
        error: None,
    };
    threads::leave(tx, thread, &left, Timestamp(3)).await
}

/// Locks a thread in a transaction, and keeps the lock during `meanwhile`, whose output is returned. Afterwards the
/// transaction locks the run `cancelled`, too, by a request to cancel it.
async fn hold_thread<T>(db: &Db, thread: ThreadId, cancelled: Option<RunId>, meanwhile: impl Future<Output = T>) -> T {
    let (locked, is_locked) = oneshot::channel();
    let (release, is_released) = oneshot::channel();
    let holds = db.write(move |tx| {
        Box::pin(async move {
            threads::lock(tx, thread).await?;
            locked.send(()).expect("the test waits for the lock");
            is_released.await.expect("the test releases the lock");
            if let Some(run) = cancelled {
                assert!(runs::request_cancel(tx, run, "rollback").await?);
            }
            DbResult::Ok(())
        })
    });
    let works = async {
        is_locked.await.expect("the thread is locked");
        let output = meanwhile.await;
        release.send(()).expect("the transaction waits");
        output
    };
    let (held, output) = tokio::join!(holds, works);
    held.expect("the transaction with the lock");
    output
}

/// Waits until a transaction waits for a lock.
async fn wait_for_blocked_transaction(db: &Db) {
    const SQL: &str =
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let looking = async {
        loop {
            let look = db.read(|tx| {
                Box::pin(async move {
                    let count: i64 = on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?;
                    Ok(count)
                })
            });
            if look.await.expect("a number") > 0 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looking)
        .await
        .expect("no transaction waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_is_stored_while_another_transaction_has_locked_its_thread() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let (thread, holder) = at_work(&db).await;
            let step = db.write(move |tx| Box::pin(store_step(tx, thread, holder)));
            let stored = hold_thread(&db, thread, Some(holder.run), step).await;
            stored.expect("the step");
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_run_waits_for_its_thread_before_it_locks_the_run() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let (thread, holder) = at_work(&db).await;
            let mut end = Box::pin(db.write(move |tx| Box::pin(end_run(tx, thread, holder))));
            let blocks = async {
                tokio::select! {
                    _ = &mut end => panic!("the end does not wait"),
                    () = wait_for_blocked_transaction(&db) => {}
                }
            };
            hold_thread(&db, thread, Some(holder.run), blocks).await;
            let left = end.await.expect("the end");
            assert!(left.is_some());
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deletion_of_a_thread_waits_for_the_step_that_has_begun() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let (thread, holder) = at_work(&db).await;
            let (begun, has_begun) = oneshot::channel();
            let (waits, is_waiting) = oneshot::channel();
            let steps = db.write(move |tx| {
                Box::pin(async move {
                    assert!(runs::check_fence(tx, holder, Timestamp(3)).await?);
                    begun.send(()).expect("the deletion waits");
                    is_waiting.await.expect("the deletion waits");
                    insert_event(tx, thread, holder.run).await
                })
            });
            let deletes = async {
                has_begun.await.expect("the step has begun");
                write!(db, |tx| threads::delete(tx, thread))
            };
            let watches = async {
                wait_for_blocked_transaction(&db).await;
                waits.send(()).expect("the step waits");
            };
            let (stored, is_deleted, ()) = tokio::join!(steps, deletes, watches);
            stored.expect("the step");
            assert!(is_deleted);
            let later = write!(db, |tx| runs::check_fence(tx, holder, Timestamp(4)));
            assert!(!later, "the run is gone");
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_run_is_skipped_while_another_transaction_has_locked_its_thread() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let held = run_at(stored_thread(&db).await, 1);
            let free = run_at(stored_thread(&db).await, 2);
            let thread = held.thread;
            let first = held.id;
            let second = free.id;
            for run in [held, free] {
                write!(db, |tx| runs::insert(tx, &run, None));
            }
            let look = async || write!(db, |tx| runs::next_in_queue(tx, &RunQueue::default(), Timestamp(9)));
            let next = hold_thread(&db, thread, None, look()).await;
            assert_eq!(next, Some(second));
            assert_eq!(look().await, Some(first));
        })
    })
    .await;
}
