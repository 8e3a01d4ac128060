use super::{Db, on_both, read, write};
use crate::db::deliveries::{self, Attempt, DeliverySearch};
use crate::db::jobs;
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::delivery::{Delivery, DeliveryStatus};
use crate::domain::id::{DeliveryId, RunId, ThreadId, WorkerId};
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::time::Timestamp;

on_both!(
    come_back_as_they_went,
    an_address_is_not_taken_for_a_short_text,
    are_tried_one_attempt_after_the_other,
    are_settled_by_who_has_them,
    are_forgotten
);

async fn stored(db: &Db, now: i64) -> Delivery {
    let new = Delivery::new(
        RunId::mint(),
        ThreadId::mint(),
        Ownership::default(),
        "https://example.org/",
        "{}".to_owned(),
        Timestamp(now),
    );
    let delivery = new.clone();
    write!(db, |tx| deliveries::insert(tx, &delivery));
    new
}

async fn claim(db: &Db, worker: WorkerId, now: i64) -> Vec<ClaimedJob> {
    write!(db, |tx| jobs::claim(
        tx,
        worker,
        JobKind::Webhook,
        Timestamp(now),
        Timestamp(now + 100),
        10
    ))
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
                ..DeliverySearch::within(AccessScope::Server, 10)
            },
            vec![second.clone(), first.clone()],
        ),
        (
            DeliverySearch {
                limit: 1,
                offset: 1,
                ..DeliverySearch::within(AccessScope::Server, 10)
            },
            vec![first.clone()],
        ),
        (
            DeliverySearch {
                run: Some(run),
                limit: 10,
                ..DeliverySearch::within(AccessScope::Server, 10)
            },
            vec![first.clone()],
        ),
        (
            DeliverySearch {
                thread: Some(thread),
                limit: 10,
                ..DeliverySearch::within(AccessScope::Server, 10)
            },
            vec![second.clone()],
        ),
        (
            DeliverySearch {
                status: Some(DeliveryStatus::Dead),
                limit: 10,
                ..DeliverySearch::within(AccessScope::Server, 10)
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

async fn an_address_is_not_taken_for_a_short_text(db: Db) {
    // A URL may have control characters before it.
    let new = Delivery::new(
        RunId::mint(),
        ThreadId::mint(),
        Ownership::default(),
        "\u{1}\u{2}https://example.org/",
        "{}".to_owned(),
        Timestamp(1),
    );
    let delivery = new.clone();
    write!(db, |tx| deliveries::insert(tx, &delivery));
    let found = read!(db, |tx| deliveries::find(tx, new.id)).expect("it is there");
    assert_eq!(found.url, new.url);
}

async fn are_tried_one_attempt_after_the_other(db: Db) {
    let id = stored(&db, 1).await.id;
    let worker = WorkerId::mint();
    let found = read!(db, |tx| deliveries::find(tx, id)).expect("it is there");
    assert_eq!(found.next_attempt_at, Some(Timestamp(1)));
    assert_eq!(found.attempts, 0);
    assert_eq!(claim(&db, worker, 4).await.len(), 1);
    let found = read!(db, |tx| deliveries::find(tx, id)).expect("it is there");
    assert_eq!(found.next_attempt_at, None, "it is being tried");
    assert_eq!(found.attempts, 1);
    assert_eq!(claim(&db, worker, 50).await, []);
    assert_eq!(claim(&db, worker, 104).await.len(), 1, "the claim has run out");
    let found = read!(db, |tx| deliveries::find(tx, id)).expect("it is there");
    assert_eq!(found.attempts, 2);
}

async fn are_settled_by_who_has_them(db: Db) {
    let id = stored(&db, 1).await.id;
    let worker = WorkerId::mint();
    let job = claim(&db, worker, 2).await.remove(0);
    let late = ClaimedJob {
        fence: job.fence - 1,
        ..job.clone()
    };
    let again = attempt(DeliveryStatus::Pending, 60);
    assert!(!write!(db, |tx| deliveries::settle(tx, &late, &again, Timestamp(3))));
    let again = attempt(DeliveryStatus::Pending, 60);
    assert!(write!(db, |tx| deliveries::settle(tx, &job, &again, Timestamp(3))));
    let found = read!(db, |tx| deliveries::find(tx, id)).expect("it is there");
    assert_eq!(found.next_attempt_at, Some(Timestamp(60)));
    assert_eq!(found.answer, Some(503));
    assert_eq!(found.error.as_deref(), Some("no"));
    assert_eq!(found.finished_at, None);
    let job = claim(&db, worker, 60).await.remove(0);
    assert_eq!(job.attempts, 2);
    let old = job.clone();
    let dead = attempt(DeliveryStatus::Dead, 60);
    assert!(write!(db, |tx| deliveries::settle(tx, &job, &dead, Timestamp(61))));
    assert_eq!(claim(&db, worker, 1000).await, []);
    let found = read!(db, |tx| deliveries::find(tx, id)).expect("it is there");
    assert_eq!(found.attempts, 2);
    assert_eq!(found.next_attempt_at, None);
    let renewed = write!(db, |tx| deliveries::renew(tx, id, Timestamp(70))).expect("it is there");
    assert_eq!(renewed.status, DeliveryStatus::Pending);
    assert_eq!(renewed.attempts, 0);
    assert_eq!(renewed.finished_at, None);
    let mut claimed = claim(&db, worker, 70).await;
    assert_eq!(claimed.len(), 1);
    let delivered = attempt(DeliveryStatus::Delivered, 70);
    assert!(
        !write!(db, |tx| deliveries::settle(tx, &old, &delivered, Timestamp(71))),
        "an attempt of before is not one of now"
    );
    let delivered = attempt(DeliveryStatus::Delivered, 70);
    let job = claimed.remove(0);
    assert!(write!(db, |tx| deliveries::settle(tx, &job, &delivered, Timestamp(71))));
    assert_eq!(
        write!(db, |tx| deliveries::renew(tx, DeliveryId::mint(), Timestamp(70))),
        None
    );
}

async fn are_forgotten(db: Db) {
    let old = stored(&db, 1).await;
    let new = stored(&db, 1).await;
    let pending = stored(&db, 1).await;
    let claimed = claim(&db, WorkerId::mint(), 2).await;
    for (id, now) in [(old.id, 10), (new.id, 20)] {
        let done = attempt(DeliveryStatus::Delivered, 1);
        let job = claimed.iter().find(|job| job.key == id.0).expect("its job").clone();
        assert!(write!(db, |tx| deliveries::settle(tx, &job, &done, Timestamp(now))));
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
        ..DeliverySearch::within(AccessScope::Server, 10)
    };
    let left = read!(db, |tx| deliveries::search(tx, &all, usize::MAX)).into_items();
    assert_eq!(
        left.into_iter().map(|delivery| delivery.id).collect::<Vec<_>>(),
        [pending.id]
    );
}
