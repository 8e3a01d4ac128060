use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sqlx::{Connection, query_scalar, raw_sql};
use tokio::sync::Semaphore;

use super::runs::claimed_run;
use super::{Db, Refusal, on_both, read, run_at, saying, stored_thread, thread_at, write};
use crate::db::engine::on_engine;
use crate::db::runs::{self, EndOfRun, LeaseHolder, RunRowUpdate};
use crate::db::threads::ThreadChange;
use crate::db::{DbError, DbResult, Tx, checkpoints, events, thread_search, threads};
use crate::domain::access::AccessScope;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::machine::Position;
use crate::domain::run::RunStatus;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;
use crate::sqlite::SqliteConnection;

on_both!(
    concurrent_writes_all_succeed,
    a_failed_job_does_not_affect_others,
    a_refused_job_leaves_nothing_behind,
    a_job_whose_last_statement_fails_fails_alone,
    a_statement_sees_those_before_it,
    rows_that_are_read_later_are_those_of_their_statements,
    nothing_is_stored_with_a_thread_whose_id_is_taken,
    nothing_is_stored_on_behalf_of_a_claim_that_is_lost,
    a_lost_claim_is_told_by_the_next_statement,
    a_row_that_is_not_found_is_no_lost_claim,
    a_savepoint_undoes_one_part,
    a_panicking_job_does_not_affect_others,
    a_job_finishes_without_its_caller,
    cancelled_reads_do_not_block_writes,
    reads_without_a_caller_hold_nothing_up,
    slow_searches_leave_connections_for_reads,
    writes_after_closing_are_refused,
);

async fn concurrent_writes_all_succeed(db: Db) {
    let writes = (0..64).map(|n| {
        let db = db.clone();
        async move {
            let thread = thread_at(n);
            let id = thread.id;
            assert!(write!(db, |tx| threads::insert(tx, &thread)));
            assert!(
                read!(db, |tx| threads::find(tx, id)).is_some(),
                "what was reported can be read"
            );
        }
    });
    join_all(writes).await;
    assert_eq!(
        read!(db, |tx| thread_search::count(
            tx,
            &thread_search::ThreadQuery::within(AccessScope::Server)
        )),
        64
    );
}

async fn a_failed_job_does_not_affect_others(db: Db) {
    let writes = (0..64).map(|n| {
        let db = db.clone();
        async move {
            let thread = thread_at(n);
            let outcome = db
                .write(move |tx| {
                    Box::pin(async move {
                        threads::insert(tx, &thread).await?;
                        if n % 3 == 0 {
                            Err(DbError::Conflict("on purpose".to_owned()))
                        } else {
                            Ok(n)
                        }
                    })
                })
                .await;
            match outcome {
                Ok(value) => assert_eq!(value, n),
                Err(DbError::Conflict(why)) => {
                    assert_eq!(why, "on purpose");
                    assert_eq!(n % 3, 0);
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
    join_all(writes).await;
    assert_eq!(
        read!(db, |tx| thread_search::count(
            tx,
            &thread_search::ThreadQuery::within(AccessScope::Server)
        )),
        42
    );
}

/// Runs a numbered operation alone, and then together with others in one transaction.
async fn alone_and_together<F: Future<Output = ()>>(operation: impl Fn(i64) -> F) {
    for together in [1, 16] {
        join_all((0..together).map(&operation)).await;
    }
}

async fn a_refused_job_leaves_nothing_behind(db: Db) {
    alone_and_together(|n| {
        let db = db.clone();
        async move {
            let thread = thread_at(n);
            let id = thread.id;
            let is_refused = n % 2 == 0;
            let expected = if is_refused { Err(Refusal) } else { Ok(()) };
            let outcome = db
                .write(move |tx| {
                    Box::pin(async move {
                        threads::insert(tx, &thread).await?;
                        expected
                    })
                })
                .await;
            assert_eq!(outcome, expected);
            let found = read!(db, |tx| threads::find(tx, id));
            assert_eq!(found.is_none(), is_refused);
        }
    })
    .await;
}

/// Stores an event with this number, by a statement that may wait for the next one.
async fn store_event(tx: &mut Tx<'_>, thread: ThreadId, seq: i64) -> DbResult<()> {
    let event = events::NewEvent {
        thread,
        seq,
        run: RunId::mint(),
        lane: Lane::Main,
        fact: &Fact::Undone,
        at: Timestamp(1),
    };
    events::insert(tx, &[event]).await
}

async fn a_job_whose_last_statement_fails_fails_alone(db: Db) {
    alone_and_together(|n| {
        let db = db.clone();
        async move {
            let thread = thread_at(n);
            let id = thread.id;
            let fails = n % 3 == 0;
            let second = if fails { 1 } else { 2 };
            let written = db
                .write(move |tx| {
                    Box::pin(async move {
                        threads::insert(tx, &thread).await?;
                        store_event(tx, id, 1).await?;
                        // A number is taken once.
                        store_event(tx, id, second).await
                    })
                })
                .await;
            assert_eq!(matches!(written, Err(DbError::Conflict(_))), fails, "{written:?}");
            assert_eq!(written.is_err(), fails, "{written:?}");
            let found = read!(db, |tx| threads::find(tx, id));
            assert_eq!(found.is_none(), fails);
        }
    })
    .await;
}

async fn a_statement_sees_those_before_it(db: Db) {
    let id = stored_thread(&db).await;
    let seen = db
        .write(move |tx| {
            Box::pin(async move {
                let mut seen = vec![];
                for seq in 1..=100 {
                    store_event(tx, id, seq).await?;
                    if seq % 30 == 0 {
                        seen.push(checkpoints::max_seq(tx, id).await?);
                    }
                }
                DbResult::Ok(seen)
            })
        })
        .await;
    assert_eq!(seen.expect("a write"), [30, 60, 90]);
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, id)), 100);
}

async fn a_savepoint_undoes_one_part(db: Db) {
    let kept = [thread_at(1), thread_at(2), thread_at(3)];
    let undone = thread_at(4);
    let ids = kept.each_ref().map(|thread| thread.id);
    let id = undone.id;
    let write = db.write(move |tx| {
        Box::pin(async move {
            threads::insert(tx, &kept[0]).await?;
            tx.savepoint().await?;
            threads::insert(tx, &undone).await?;
            tx.roll_back_to_savepoint().await?;
            tx.savepoint().await?;
            threads::insert(tx, &kept[1]).await?;
            tx.release_savepoint().await?;
            threads::insert(tx, &kept[2]).await?;
            DbResult::Ok(())
        })
    });
    write.await.expect("a write");
    assert!(read!(db, |tx| threads::find(tx, id)).is_none());
    for id in ids {
        assert!(read!(db, |tx| threads::find(tx, id)).is_some());
    }
}

async fn a_panicking_job_does_not_affect_others(db: Db) {
    let panics = db.write::<(), DbError, _>(|_| panic!("at once"));
    let later = db.write::<(), DbError, _>(|tx| {
        Box::pin(async move {
            threads::insert(tx, &thread_at(1)).await?;
            panic!("in the middle")
        })
    });
    let fine = stored_thread(&db);
    let (at_once, later, fine) = futures::join!(panics, later, fine);
    assert!(
        matches!(&at_once, Err(DbError::Panicked(text)) if text == "at once"),
        "{at_once:?}"
    );
    assert!(
        matches!(&later, Err(DbError::Panicked(text)) if text == "in the middle"),
        "{later:?}"
    );
    let found = read!(db, |tx| thread_search::search(
        tx,
        &thread_search::ThreadQuery::within(AccessScope::Server)
    ));
    assert_eq!(found.threads.iter().map(|thread| thread.id).collect::<Vec<_>>(), [fine]);
}

async fn a_job_finishes_without_its_caller(db: Db) {
    let thread = thread_at(1);
    let id = thread.id;
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let write = db.write(move |tx| {
        Box::pin(async move {
            let _ = begun.send(());
            tokio::time::sleep(Duration::from_millis(50)).await;
            threads::insert(tx, &thread).await
        })
    });
    tokio::select! {
        _ = write => panic!("the operation takes longer than that"),
        begun = has_begun => begun.expect("the operation begins"),
    }
    db.close().await;
    let again = db
        .read(move |tx| Box::pin(async move { threads::find(tx, id).await }))
        .await;
    assert!(matches!(again, Err(DbError::Closed)), "{again:?}");
}

async fn writes_after_closing_are_refused(db: Db) {
    stored_thread(&db).await;
    db.close().await;
    db.close().await;
    let late = db
        .write(|tx| Box::pin(async move { threads::insert(tx, &thread_at(1)).await }))
        .await;
    assert!(matches!(late, Err(DbError::Closed)), "{late:?}");
}

#[tokio::test]
async fn closing_finishes_accepted_writes() {
    super::on_server(async {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}/a.db", directory.path().display());
        let db = super::open(&url).await;
        let id = stored_thread(&db).await;
        let writes = (0..20).map(|n| {
            let db = db.clone();
            async move { write!(db, |tx| threads::insert(tx, &thread_at(n))) }
        });
        join_all(writes).await;
        db.close().await;
        let db = super::open(&url).await;
        assert!(read!(db, |tx| threads::find(tx, id)).is_some());
        assert_eq!(
            read!(db, |tx| thread_search::count(
                tx,
                &thread_search::ThreadQuery::within(AccessScope::Server)
            )),
            21
        );
        db.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_database_has_no_write_ahead_log() {
    super::on_server(async {
        let directory = tempfile::tempdir().expect("a directory");
        let folder = directory.path();
        for n in 0..40 {
            let db = super::open(&format!("sqlite://{}/a.db", folder.display())).await;
            let thread = thread_at(n);
            let id = thread.id;
            write!(db, |tx| threads::insert(tx, &thread));
            let reads = (0..4).map(|_| async { assert!(read!(db, |tx| threads::find(tx, id)).is_some()) });
            join_all(reads).await;
            db.close().await;
            assert!(!folder.join("a.db-wal").exists());
        }
    })
    .await;
}

/// Returns the number of pages that a write adds to the write-ahead log of the SQLite database in a folder.
async fn pages_of(folder: &Path, write: impl Future<Output = ()>) -> u64 {
    const HEADER: u64 = 32;
    const PAGE: u64 = 24 + 4_096;
    let url = format!("sqlite://{}/a.db", folder.display());
    let mut conn = SqliteConnection::connect(&url).await.expect("a connection");
    raw_sql("pragma wal_checkpoint(truncate)")
        .execute(&mut conn)
        .await
        .expect("an empty log");
    write.await;
    let log = std::fs::metadata(folder.join("a.db-wal")).expect("the log");
    conn.close().await.expect("a clean close");
    (log.len() - HEADER) / PAGE
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_writes_no_index_of_columns_that_keep_their_values() {
    super::on_server(async {
        let directory = tempfile::tempdir().expect("a directory");
        let folder = directory.path();
        let db = super::open(&format!("sqlite://{}/a.db", folder.display())).await;
        let thread = stored_thread(&db).await;
        let mut run = run_at(thread, 1);
        run.status = RunStatus::Running;
        let worker = WorkerId::mint();
        let holder = LeaseHolder {
            thread: run.thread,
            run: run.id,
            worker,
            fence: 0,
        };
        write!(db, |tx| runs::insert(tx, &run, Some(worker)));
        // The row, and with the number of its first event the index of these numbers.
        // Each time differs: SQLite writes no page for a row that stays the same.
        for (seq, at, pages) in [(Some(1), 2, 2), (None, 3, 1)] {
            let trace = RunRowUpdate {
                seq,
                ..RunRowUpdate::at(Timestamp(at))
            };
            let step = async { write!(db, |tx| runs::store_fenced(tx, holder, trace)) };
            assert_eq!(pages_of(folder, step).await, pages, "{seq:?}");
        }
        // The row and two indexes, and two more of the time at which the state changed.
        for (state_changed, pages) in [(false, 3), (true, 5)] {
            let change = ThreadChange {
                status: Some(ThreadStatus::Busy),
                state_changed,
                ..ThreadChange::default()
            };
            let step = async { write!(db, |tx| threads::set(tx, thread, change, Timestamp(3))) };
            assert_eq!(pages_of(folder, step).await, pages, "{state_changed}");
        }
        db.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_begins_at_once_enters_one_index_of_runs_at_work_and_none_of_those_that_wait() {
    super::on_server(Box::pin(async {
        let directory = tempfile::tempdir().expect("a directory");
        let folder = directory.path();
        let db = super::open(&format!("sqlite://{}/a.db", folder.display())).await;
        let mut run = run_at(stored_thread(&db).await, 1);
        run.status = RunStatus::Running;
        let worker = WorkerId::mint();
        let holder = LeaseHolder {
            thread: run.thread,
            run: run.id,
            worker,
            fence: 0,
        };
        // The row, its key, the runs of its thread, and those at work.
        let begins = async { write!(db, |tx| runs::insert(tx, &run, Some(worker))) };
        assert_eq!(pages_of(folder, begins).await, 4);
        let end = EndOfRun {
            status: RunStatus::Success,
            error: None,
            waits: false,
        };
        let ends = async {
            write!(db, |tx| runs::end_fenced(
                tx,
                holder,
                end,
                RunRowUpdate::at(Timestamp(2))
            ));
        };
        assert_eq!(pages_of(folder, ends).await, 2);
        db.close().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_with_the_event_behind_it_writes_its_row_and_two_indexes() {
    super::on_server(async {
        let directory = tempfile::tempdir().expect("a directory");
        let folder = directory.path();
        let db = super::open(&format!("sqlite://{}/a.db", folder.display())).await;
        let thread = stored_thread(&db).await;
        let run = RunId::mint();
        let step = saying("a", None, -1);
        let writes = async {
            write!(db, |tx| async {
                let lane = Lane::Main;
                let at = Timestamp(2);
                let placed = checkpoints::NewCheckpoint {
                    thread,
                    lane,
                    seq: 1,
                    segment: None,
                    run: Some(run),
                    entry: &step,
                    position: &Position::default(),
                    at,
                };
                let event = events::NewEvent {
                    thread,
                    seq: 2,
                    run,
                    lane,
                    fact: &Fact::Paused,
                    at,
                };
                events::insert_with_steps(tx, &[placed], &[event]).await
            });
        };
        assert_eq!(pages_of(folder, writes).await, 3);
        db.close().await;
    })
    .await;
}

async fn rows_that_are_read_later_are_those_of_their_statements(db: Db) {
    let id = stored_thread(&db).await;
    let unknown = ThreadId::mint();
    let run = run_at(id, 1);
    let written = run.clone();
    let found = db.write(move |tx| {
        Box::pin(async move {
            let thread = threads::lock_later(tx, id).await?;
            let none = threads::lock_later(tx, unknown).await?;
            let in_flight = runs::count_in_flight_later(tx, id).await?;
            let _unread = checkpoints::log_end_later(tx, id).await?;
            runs::insert(tx, &written, None).await?;
            // The last one is asked for first.
            let log = checkpoints::log_end_later(tx, id).await?.read(tx).await?;
            let in_flight = in_flight.count(tx).await?;
            let none = none.lock(tx).await?;
            let thread = thread.lock(tx).await?;
            DbResult::Ok((log.summary.max_seq, in_flight.at_work, none, thread))
        })
    });
    let (max_seq, at_work, none, thread) = found.await.expect("a write");
    assert_eq!(max_seq, 0);
    assert_eq!(at_work, 0);
    assert!(none.is_none());
    assert_eq!(thread.map(|thread| thread.id), Some(id));
    let id = run.id;
    assert!(read!(db, |tx| runs::get_by_id(tx, id)).is_some());
}

async fn nothing_is_stored_with_a_thread_whose_id_is_taken(db: Db) {
    alone_and_together(|n| {
        let db = db.clone();
        async move {
            let first = thread_at(n);
            let taken = first.id;
            assert!(write!(db, |tx| threads::insert(tx, &first)));
            let free = ThreadId::mint();
            let is_taken = n % 2 == 0;
            let second = Thread {
                id: if is_taken { taken } else { free },
                ..thread_at(n + 100)
            };
            let of_run = run_at(taken, n);
            let run = of_run.id;
            let written = db.write(move |tx| {
                Box::pin(async move {
                    runs::insert(tx, &of_run, None).await?;
                    threads::insert_later(tx, &second).await
                })
            });
            let written: DbResult<()> = written.await;
            assert_eq!(matches!(written, Err(DbError::Conflict(_))), is_taken, "{written:?}");
            assert_eq!(written.is_err(), is_taken, "{written:?}");
            assert_eq!(read!(db, |tx| threads::find(tx, free)).is_none(), is_taken);
            assert_eq!(read!(db, |tx| runs::get_by_id(tx, run)).is_none(), is_taken);
            let stays = read!(db, |tx| threads::find(tx, taken)).expect("the first thread");
            assert_eq!(stays.created_at, Timestamp(n));
        }
    })
    .await;
}

/// Stores an event on behalf of a claim of a run.
async fn store_event_of(tx: &mut Tx<'_>, thread: ThreadId, holder: LeaseHolder) -> DbResult<()> {
    runs::store_fenced(tx, holder, RunRowUpdate::at(Timestamp(3))).await?;
    store_event(tx, thread, 1).await
}

async fn nothing_is_stored_on_behalf_of_a_claim_that_is_lost(db: Db) {
    alone_and_together(|n| {
        let db = db.clone();
        async move {
            let thread = stored_thread(&db).await;
            let holder = claimed_run(&db, run_at(thread, n), 2).await;
            let is_lost = n % 2 == 0;
            let fence = if is_lost { holder.fence - 1 } else { holder.fence };
            let holder = LeaseHolder { fence, ..holder };
            let written = db.write(move |tx| Box::pin(store_event_of(tx, thread, holder))).await;
            assert_eq!(matches!(written, Err(DbError::NoRow)), is_lost, "{written:?}");
            assert_eq!(written.is_err(), is_lost, "{written:?}");
            let last = read!(db, |tx| checkpoints::max_seq(tx, thread));
            assert_eq!(last, i64::from(!is_lost));
            let id = holder.run;
            let run = read!(db, |tx| runs::get_by_id(tx, id)).expect("the run");
            assert_eq!(run.updated_at, Timestamp(if is_lost { 2 } else { 3 }));
        }
    })
    .await;
}

/// Stores a run on a thread that a worker has claimed, and returns the claim of another worker, which does not hold it.
async fn lost_claim(db: &Db, thread: ThreadId) -> LeaseHolder {
    let holder = claimed_run(db, run_at(thread, 1), 2).await;
    LeaseHolder {
        worker: WorkerId::mint(),
        ..holder
    }
}

async fn a_lost_claim_is_told_by_the_next_statement(db: Db) {
    let thread = stored_thread(&db).await;
    let lost = lost_claim(&db, thread).await;
    let written = db.write(move |tx| {
        Box::pin(async move {
            store_event_of(tx, thread, lost).await?;
            checkpoints::max_seq(tx, thread).await
        })
    });
    assert!(matches!(written.await, Err(DbError::NoRow)));
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, thread)), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_on_sqlite_that_ignores_that_its_claim_is_lost_stores_nothing() {
    super::on_server(async {
        let db = super::open("sqlite::memory:").await;
        let thread = stored_thread(&db).await;
        let lost = lost_claim(&db, thread).await;
        let written = db.write(move |tx| {
            Box::pin(async move {
                runs::store_fenced(tx, lost, RunRowUpdate::at(Timestamp(3))).await?;
                let told = checkpoints::max_seq(tx, thread).await;
                assert!(matches!(told, Err(DbError::NoRow)), "{told:?}");
                store_event(tx, thread, 1).await
            })
        });
        assert!(matches!(written.await, Err(DbError::NoRow)));
        assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, thread)), 0);
        db.close().await;
    })
    .await;
}

async fn a_row_that_is_not_found_is_no_lost_claim(db: Db) {
    let found = db.read(|tx| {
        Box::pin(async move {
            const NONE: &str = "select 1 from threads where 1 = 0";
            Ok::<i32, DbError>(on_engine!(tx, |conn| query_scalar(NONE).fetch_one(conn).await)?)
        })
    });
    assert!(matches!(found.await, Err(DbError::Unavailable(_))));
}

async fn reads_without_a_caller_hold_nothing_up(db: Db) {
    let id = stored_thread(&db).await;
    // More than there are connections.
    for _ in 0..40 {
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let read = db.read::<(), _>(move |tx| {
            Box::pin(async move {
                threads::find(tx, id).await?;
                let _ = begun.send(());
                std::future::pending().await
            })
        });
        tokio::select! {
            _ = read => panic!("the read does not end"),
            begun = has_begun => begun.expect("the read begins"),
        }
    }
    assert!(read!(db, |tx| threads::find(tx, id)).is_some());
}

async fn cancelled_reads_do_not_block_writes(db: Db) {
    let id = stored_thread(&db).await;
    for turn in 0..300_u64 {
        let read = db.read(move |tx| Box::pin(async move { threads::find(tx, id).await }));
        // The timeout cancels the read at some point between its first statement and the last answer.
        let _ = tokio::time::timeout(Duration::from_micros(turn * 5), read).await;
    }
    let writes = (0..64).map(|n| {
        let db = db.clone();
        async move {
            let thread = thread_at(n);
            assert!(write!(db, |tx| threads::insert(tx, &thread)));
        }
    });
    join_all(writes).await;
}

async fn slow_searches_leave_connections_for_reads(db: Db) {
    let gate = Arc::new(Semaphore::new(0));
    let searches = (0..32).map(|_| {
        let gate = Arc::clone(&gate);
        db.search(move |_| {
            Box::pin(async move {
                drop(gate.acquire().await);
                Ok(())
            })
        })
    });
    let reading = async {
        let everything = thread_search::ThreadQuery::within(AccessScope::Server);
        let count = read!(db, |tx| thread_search::count(tx, &everything));
        gate.close();
        count
    };
    let (searched, count) = tokio::join!(join_all(searches), reading);
    assert_eq!(count, 0);
    assert!(searched.iter().all(Result::is_ok), "{searched:?}");
}
