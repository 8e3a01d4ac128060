use std::time::Duration;

use super::{Db, on_both, read, run_at, saying, stored_thread, texts, thread_at, write};
use crate::db::checkpoints::{self, HistoryQuery, NewCheckpoint};
use crate::db::events::{self, NewEvent};
use crate::db::retention::DuePosition;
use crate::db::{DbResult, Tx, retention, runs, threads};
use crate::domain::checkpoint::{Entry, Lane};
use crate::domain::event::Fact;
use crate::domain::id::ThreadId;
use crate::domain::machine::{Phase, Position};
use crate::domain::run::RunStatus;
use crate::domain::thread::{Thread, ThreadStatus, Ttl, TtlStrategy};
use crate::domain::time::Timestamp;

on_both!(
    expired_threads_are_found,
    every_change_restarts_the_ttl,
    unpruned_threads_are_found,
    pruning_keeps_the_newest_state,
    a_thread_with_a_running_run_is_not_pruned,
    the_storage_of_a_thread_is_measured
);

fn with_ttl(now: i64, micros: u64) -> Thread {
    let ttl = Ttl {
        after: Duration::from_micros(micros),
        strategy: TtlStrategy::KeepLatest,
    };
    thread_at(now).with_ttl(Some(ttl))
}

async fn put(db: &Db, thread: ThreadId, seq: i64, entry: &Entry) {
    let entry = entry.clone();
    write!(db, |tx| async {
        let placed = NewCheckpoint {
            thread,
            lane: Lane::Main,
            seq,
            segment: None,
            run: None,
            entry: &entry,
            position: &Position {
                phase: Phase::Ended,
                ..Position::default()
            },
            at: Timestamp(seq),
        };
        checkpoints::insert(tx, &placed).await
    });
}

async fn expired_threads_are_found(db: Db) {
    let first = with_ttl(1, 10);
    let second = with_ttl(2, 5);
    let busy = Thread {
        status: ThreadStatus::Busy,
        ..with_ttl(1, 1)
    };
    let one = first.id;
    let two = second.id;
    for thread in [first, second, busy, thread_at(1)] {
        write!(db, |tx| threads::insert(tx, &thread));
    }
    let found = async |now, behind, limit| read!(db, |tx| retention::expired(tx, Timestamp(now), behind, limit));
    let first = DuePosition {
        at: Timestamp(7),
        thread: two,
    };
    let second = DuePosition {
        at: Timestamp(11),
        thread: one,
    };
    assert_eq!(found(6, DuePosition::START, 9).await, []);
    assert_eq!(found(7, DuePosition::START, 9).await, [first]);
    assert_eq!(found(11, DuePosition::START, 9).await, [first, second]);
    assert_eq!(found(11, DuePosition::START, 1).await, [first]);
    assert_eq!(found(11, first, 9).await, [second]);
    assert_eq!(found(11, second, 9).await, []);
    write!(db, |tx| retention::clear_expiry(tx, two));
    assert_eq!(found(11, DuePosition::START, 9).await, [second]);
}

async fn every_change_restarts_the_ttl(db: Db) {
    let thread = with_ttl(1, 10);
    let id = thread.id;
    let ttl = thread.ttl;
    write!(db, |tx| threads::insert(tx, &thread));
    let expires = async || read!(db, |tx| threads::find(tx, id)).and_then(|thread| thread.expires_at);
    assert_eq!(expires().await, Some(Timestamp(11)));
    write!(db, |tx| threads::set(
        tx,
        id,
        threads::ThreadChange::default(),
        Timestamp(20)
    ));
    assert_eq!(expires().await, Some(Timestamp(30)));
    let run = run_at(id, 1);
    let left = threads::ThreadAfterRun {
        run: run.id,
        status: ThreadStatus::Idle,
        error: None,
    };
    write!(db, |tx| threads::leave(tx, id, &left, Timestamp(40)));
    assert_eq!(expires().await, Some(Timestamp(50)));
    let nothing = serde_json::Map::new();
    let patched = write!(db, |tx| threads::patch(tx, id, &nothing, None, Timestamp(60))).expect("the thread");
    assert_eq!(patched.ttl, ttl);
    assert_eq!(patched.expires_at, Some(Timestamp(70)));
    let other = stored_thread(&db).await;
    write!(db, |tx| threads::set(
        tx,
        other,
        threads::ThreadChange::default(),
        Timestamp(20)
    ));
    assert_eq!(
        read!(db, |tx| threads::find(tx, other)).and_then(|thread| thread.expires_at),
        None
    );
}

async fn unpruned_threads_are_found(db: Db) {
    let old = thread_at(1);
    let young = thread_at(9);
    let id = old.id;
    let other = young.id;
    for thread in [old, young] {
        write!(db, |tx| threads::insert(tx, &thread));
    }
    let place = |at, thread| DuePosition {
        at: Timestamp(at),
        thread,
    };
    let found = async |until, behind| read!(db, |tx| retention::unpruned(tx, Timestamp(until), behind, 9));
    assert_eq!(found(5, DuePosition::START).await, [place(1, id)]);
    assert_eq!(found(9, place(1, id)).await, [place(9, other)]);
    assert!(write!(db, |tx| retention::keep_latest(tx, id, Timestamp(6))));
    assert_eq!(found(5, DuePosition::START).await, []);
    let change = threads::ThreadChange {
        state_changed: true,
        ..Default::default()
    };
    write!(db, |tx| threads::set(tx, id, change, Timestamp(7)));
    assert_eq!(found(7, DuePosition::START).await, [place(7, id)]);
}

/// Counts the indexes of SQLite by which unpruned threads are found.
async fn count_indexes(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select count(*) from sqlite_master where type = 'index' and name = 'threads_unpruned'";
    let counted: Option<(i64,)> = tx.statement(SQL).fetch_optional().await?;
    Ok(counted.map_or(0, |(count,)| count))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_has_the_index_of_unpruned_threads_only_if_it_is_used() {
    super::on_server(async {
        let db = super::open("sqlite::memory:").await;
        for is_used in [false, false, true, true, false] {
            write!(db, |tx| retention::set_index_of_unpruned(tx, is_used));
            assert_eq!(read!(db, |tx| count_indexes(tx)), i64::from(is_used));
        }
        db.close().await;
    })
    .await;
}

async fn pruning_keeps_the_newest_state(db: Db) {
    let id = stored_thread(&db).await;
    let mut steps = vec![saying("s0", None, 0)];
    for at in 1..5 {
        let parent = steps.last().map(|step| step.id);
        steps.push(saying(&format!("s{at}"), parent, at));
    }
    for (seq, step) in (1..).zip(&steps) {
        put(&db, id, seq, step).await;
    }
    let run = run_at(id, 1);
    let run_id = run.id;
    let fact = Fact::Paused;
    write!(db, |tx| runs::insert(tx, &run, None));
    write!(db, |tx| runs::set_status(
        tx,
        run_id,
        RunStatus::Success,
        None,
        Timestamp(2)
    ));
    write!(db, |tx| async {
        let placed = NewEvent {
            thread: id,
            seq: 9,
            run: run_id,
            lane: Lane::Main,
            fact: &fact,
            at: Timestamp(9),
        };
        events::insert(tx, &[placed]).await
    });
    assert!(write!(db, |tx| retention::keep_latest(tx, id, Timestamp(20))));
    db.states().clear();
    let all = HistoryQuery {
        limit: 99,
        before: None,
    };
    let history = read!(db, |tx| checkpoints::history(tx, id, Lane::Main, all));
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].entry.id, steps[4].id);
    assert_eq!(history[0].entry.parent, None);
    assert_eq!(texts(&history[0].state), ["s0", "s1", "s2", "s3", "s4"]);
    // No number of the log is used twice.
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, id)), 9);
    let next = saying("s5", Some(steps[4].id), 5);
    put(&db, id, 10, &next).await;
    db.states().clear();
    let found = read!(db, |tx| checkpoints::get(tx, id, next.id)).expect("the checkpoint");
    assert_eq!(texts(&found.state), ["s0", "s1", "s2", "s3", "s4", "s5"]);
}

async fn a_thread_with_a_running_run_is_not_pruned(db: Db) {
    let id = stored_thread(&db).await;
    let first = saying("s0", None, 0);
    put(&db, id, 1, &first).await;
    put(&db, id, 2, &saying("s1", Some(first.id), 1)).await;
    let run = run_at(id, 1);
    write!(db, |tx| runs::insert(tx, &run, None));
    assert!(!write!(db, |tx| retention::keep_latest(tx, id, Timestamp(20))));
    let all = HistoryQuery {
        limit: 99,
        before: None,
    };
    assert_eq!(read!(db, |tx| checkpoints::history(tx, id, Lane::Main, all)).len(), 2);
    assert!(!write!(db, |tx| retention::keep_latest(
        tx,
        ThreadId::mint(),
        Timestamp(20)
    )));
}

async fn the_storage_of_a_thread_is_measured(db: Db) {
    let id = stored_thread(&db).await;
    put(&db, id, 1, &saying("hello", None, 0)).await;
    let shares = read!(db, |tx| retention::storage(tx, id)).expect("the thread");
    let rows: Vec<_> = shares
        .iter()
        .map(|share| (share.table, share.rows, share.bytes > 0))
        .collect();
    let expected = [
        ("checkpoints", 1, true),
        ("events", 0, false),
        ("runs", 0, false),
        ("interrupts", 0, false),
        ("blobs", 0, false),
    ];
    assert_eq!(rows, expected);
    assert_eq!(read!(db, |tx| retention::storage(tx, ThreadId::mint())), None);
}
