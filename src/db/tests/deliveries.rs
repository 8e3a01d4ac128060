use std::time::Duration;

use super::{Db, on_both, read, write};
use crate::db::deliveries::{self, Attempt, DeliverySearch};
use crate::db::workers;
use crate::domain::delivery::{Delivery, DeliveryStatus};
use crate::domain::id::{DeliveryId, RunId, ThreadId, WorkerId};
use crate::domain::time::Timestamp;

on_both!(
    come_back_as_they_went,
    are_claimed_by_one,
    are_freed_when_their_worker_dies,
    are_settled_by_who_has_them,
    are_forgotten
);

async fn stored(db: &Db, now: i64) -> Delivery {
    let new = Delivery::new(
        RunId::mint(),
        ThreadId::mint(),
        "https://example.org/",
        "{}".to_owned(),
        Timestamp(now),
    );
    let delivery = new.clone();
    write!(db, |tx| deliveries::insert(tx, &delivery));
    new
}

async fn claim(db: &Db, worker: WorkerId, now: i64) -> Vec<DeliveryId> {
    let claimed = write!(db, |tx| deliveries::claim(
        tx,
        worker,
        Timestamp(now),
        Timestamp(now + 100),
        10
    ));
    claimed.into_iter().map(|delivery| delivery.id).collect()
}

fn attempt(status: DeliveryStatus, due: i64) -> Attempt {
    Attempt {
        status,
        answer: Some(503),
        error: Some("no".to_owned()),
        due_at: Timestamp(due),
    }
}

async fn come_back_as_they_went(db: Db) {
    let first = stored(&db, 1).await;
    let second = stored(&db, 2).await;
    let id = first.id;
    let run = first.run;
    let thread = second.thread;
    assert_eq!(read!(db, |tx| deliveries::find(tx, id)), Some(first.clone()));
    for (wanted, expected) in [
        (
            DeliverySearch {
                limit: 10,
                ..DeliverySearch::default()
            },
            vec![second.clone(), first.clone()],
        ),
        (
            DeliverySearch {
                limit: 1,
                offset: 1,
                ..DeliverySearch::default()
            },
            vec![first.clone()],
        ),
        (
            DeliverySearch {
                run: Some(run),
                limit: 10,
                ..DeliverySearch::default()
            },
            vec![first.clone()],
        ),
        (
            DeliverySearch {
                thread: Some(thread),
                limit: 10,
                ..DeliverySearch::default()
            },
            vec![second.clone()],
        ),
        (
            DeliverySearch {
                status: Some(DeliveryStatus::Dead),
                limit: 10,
                ..DeliverySearch::default()
            },
            vec![],
        ),
    ] {
        let count = wanted.clone();
        let offset = wanted.offset;
        assert_eq!(
            read!(db, |tx| deliveries::search(tx, &wanted, usize::MAX)).into_items(),
            expected
        );
        let count = read!(db, |tx| deliveries::count(tx, &count));
        assert_eq!(count, i64::try_from(expected.len()).unwrap_or(0) + offset);
    }
}

async fn are_claimed_by_one(db: Db) {
    let first = stored(&db, 1).await;
    let second = stored(&db, 5).await;
    let one = WorkerId::mint();
    let other = WorkerId::mint();
    assert_eq!(claim(&db, one, 4).await, [first.id]);
    assert_eq!(claim(&db, other, 6).await, [second.id]);
    assert_eq!(claim(&db, other, 50).await, []);
    assert_eq!(claim(&db, other, 104).await, [first.id], "the claim has run out");
    let id = first.id;
    let found = read!(db, |tx| deliveries::find(tx, id)).expect("it is there");
    assert_eq!(found.attempts, 2);
    assert_eq!(found.fence, 2);
    assert_eq!(found.worker, Some(other));
}

async fn are_freed_when_their_worker_dies(db: Db) {
    let delivery = stored(&db, 1).await;
    let one = WorkerId::mint();
    let other = WorkerId::mint();
    write!(db, |tx| workers::beat(tx, one, Duration::from_secs(1000)));
    assert_eq!(claim(&db, one, 4).await, [delivery.id]);
    // By whatever clock the other one lives: what counts is that of the database.
    let later = Timestamp(i64::MAX / 2);
    assert_eq!(write!(db, |tx| deliveries::free_orphans(tx, other, later)), 0);
    assert_eq!(claim(&db, other, later.0).await, []);
    write!(db, |tx| workers::beat(tx, one, Duration::ZERO));
    assert_eq!(
        write!(db, |tx| deliveries::free_orphans(tx, one, Timestamp(11))),
        0,
        "it is at it itself"
    );
    assert_eq!(write!(db, |tx| deliveries::free_orphans(tx, other, Timestamp(11))), 1);
    assert_eq!(claim(&db, other, 11).await, [delivery.id]);
}

async fn are_settled_by_who_has_them(db: Db) {
    let delivery = stored(&db, 1).await;
    let id = delivery.id;
    let worker = WorkerId::mint();
    claim(&db, worker, 2).await;
    let again = attempt(DeliveryStatus::Pending, 60);
    assert!(!write!(db, |tx| deliveries::settle(tx, (id, 0), &again, Timestamp(3))));
    let again = attempt(DeliveryStatus::Pending, 60);
    assert!(write!(db, |tx| deliveries::settle(tx, (id, 1), &again, Timestamp(3))));
    let found = read!(db, |tx| deliveries::find(tx, id)).expect("it is there");
    assert_eq!(found.due_at, Timestamp(60));
    assert_eq!(found.answer, Some(503));
    assert_eq!(found.error.as_deref(), Some("no"));
    assert_eq!(found.worker, None);
    assert_eq!(found.finished_at, None);
    claim(&db, worker, 60).await;
    let dead = attempt(DeliveryStatus::Dead, 60);
    assert!(write!(db, |tx| deliveries::settle(tx, (id, 2), &dead, Timestamp(61))));
    assert_eq!(claim(&db, worker, 1000).await, []);
    let renewed = write!(db, |tx| deliveries::renew(tx, id, Timestamp(70))).expect("it is there");
    assert_eq!(renewed.status, DeliveryStatus::Pending);
    assert_eq!(renewed.attempts, 0);
    assert_eq!(renewed.finished_at, None);
    assert_eq!(claim(&db, worker, 70).await, [id]);
    assert_eq!(
        write!(db, |tx| deliveries::renew(tx, DeliveryId::mint(), Timestamp(70))),
        None
    );
}

async fn are_forgotten(db: Db) {
    let old = stored(&db, 1).await;
    let new = stored(&db, 1).await;
    let pending = stored(&db, 1).await;
    claim(&db, WorkerId::mint(), 2).await;
    for (id, now) in [(old.id, 10), (new.id, 20)] {
        let done = attempt(DeliveryStatus::Delivered, 1);
        assert!(write!(db, |tx| deliveries::settle(tx, (id, 1), &done, Timestamp(now))));
    }
    assert_eq!(write!(db, |tx| deliveries::sweep(tx, Timestamp(20), 10)), 1);
    let old = old.id;
    let thread = new.thread;
    assert_eq!(read!(db, |tx| deliveries::find(tx, old)), None);
    write!(db, |tx| deliveries::forget_thread(tx, thread));
    let thread = pending.thread;
    write!(db, |tx| deliveries::forget_thread(tx, thread));
    let all = DeliverySearch {
        limit: 10,
        ..DeliverySearch::default()
    };
    let left = read!(db, |tx| deliveries::search(tx, &all, usize::MAX)).into_items();
    assert_eq!(
        left.into_iter().map(|delivery| delivery.id).collect::<Vec<_>>(),
        [pending.id]
    );
}
