use std::time::Duration;

use uuid::Uuid;

use super::{Db, on_both, read, stored_thread, write};
use crate::db::jobs::{self, JobOwner};
use crate::db::{threads, workers};
use crate::domain::id::WorkerId;
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::time::Timestamp;

on_both!(
    are_claimed_by_one_the_longest_due_first,
    are_claimed_by_kind,
    are_freed_when_their_worker_dies,
    are_given_back_by_a_worker_that_does_not_work_on_them,
    are_settled_by_who_has_them,
    are_not_given_back_once_they_are_settled,
    are_made_sure_of_without_being_disturbed,
    go_with_their_owner
);

async fn scheduled(db: &Db, kind: JobKind, now: i64) -> Uuid {
    let key = WorkerId::mint().0;
    write!(db, |tx| jobs::schedule(
        tx,
        kind,
        key,
        JobOwner::default(),
        Timestamp(now)
    ));
    key
}

async fn claim(db: &Db, worker: WorkerId, kind: JobKind, now: i64) -> Vec<ClaimedJob> {
    write!(db, |tx| jobs::claim(
        tx,
        worker,
        kind,
        Timestamp(now),
        Timestamp(now + 100),
        2
    ))
}

fn keys(claimed: &[ClaimedJob]) -> Vec<Uuid> {
    claimed.iter().map(|job| job.key).collect()
}

async fn are_claimed_by_one_the_longest_due_first(db: Db) {
    let one = WorkerId::mint();
    let other = WorkerId::mint();
    let third = scheduled(&db, JobKind::Cron, 3).await;
    let second = scheduled(&db, JobKind::Cron, 2).await;
    let first = scheduled(&db, JobKind::Cron, 1).await;
    assert_eq!(claim(&db, one, JobKind::Cron, 0).await, []);
    let claimed = claim(&db, one, JobKind::Cron, 5).await;
    assert_eq!(keys(&claimed), [first, second]);
    assert!(
        claimed.iter().all(|job| (job.attempts, job.fence) == (1, 1)),
        "{claimed:?}"
    );
    assert_eq!(keys(&claim(&db, other, JobKind::Cron, 5).await), [third]);
    assert_eq!(claim(&db, other, JobKind::Cron, 104).await, []);
    let again = claim(&db, other, JobKind::Cron, 105).await;
    assert_eq!(keys(&again).len(), 2, "the claims of who is not alive have run out");
    assert!(again.iter().all(|job| job.fence == 2), "{again:?}");
}

async fn are_claimed_by_kind(db: Db) {
    let worker = WorkerId::mint();
    let webhook = scheduled(&db, JobKind::Webhook, 1).await;
    let cron = scheduled(&db, JobKind::Cron, 2).await;
    let mut due = read!(db, |tx| jobs::next_due(tx));
    due.sort();
    assert_eq!(due, [(JobKind::Webhook, Timestamp(1)), (JobKind::Cron, Timestamp(2))]);
    let mut count = read!(db, |tx| jobs::count(tx));
    count.sort();
    assert_eq!(count, [(JobKind::Webhook, 1), (JobKind::Cron, 1)]);
    assert_eq!(keys(&claim(&db, worker, JobKind::Cron, 5).await), [cron]);
    assert_eq!(keys(&claim(&db, worker, JobKind::Webhook, 5).await), [webhook]);
}

async fn are_freed_when_their_worker_dies(db: Db) {
    let key = scheduled(&db, JobKind::Webhook, 1).await;
    let one = WorkerId::mint();
    let other = WorkerId::mint();
    write!(db, |tx| workers::renew_lease(tx, one, Duration::from_secs(1000), None));
    assert_eq!(keys(&claim(&db, one, JobKind::Webhook, 4).await), [key]);
    // The clock of the other worker does not matter, only that of the database.
    let later = Timestamp(i64::MAX / 2);
    assert!(!read!(db, |tx| jobs::any_orphans(tx, other)));
    assert_eq!(write!(db, |tx| jobs::free_orphans(tx, other, later)), 0);
    assert_eq!(claim(&db, other, JobKind::Webhook, later.0).await, []);
    write!(db, |tx| workers::renew_lease(tx, one, Duration::ZERO, None));
    assert!(!read!(db, |tx| jobs::any_orphans(tx, one)), "it is at it itself");
    assert_eq!(write!(db, |tx| jobs::free_orphans(tx, one, Timestamp(11))), 0);
    assert!(read!(db, |tx| jobs::any_orphans(tx, other)));
    assert_eq!(write!(db, |tx| jobs::free_orphans(tx, other, Timestamp(11))), 1);
    assert_eq!(keys(&claim(&db, other, JobKind::Webhook, 11).await), [key]);
}

async fn are_given_back_by_a_worker_that_does_not_work_on_them(db: Db) {
    let worker = WorkerId::mint();
    let other = WorkerId::mint();
    let first = scheduled(&db, JobKind::Webhook, 1).await;
    let second = scheduled(&db, JobKind::Webhook, 2).await;
    let of_other = scheduled(&db, JobKind::Cron, 3).await;
    write!(db, |tx| workers::renew_lease(
        tx,
        other,
        Duration::from_secs(1000),
        None
    ));
    assert_eq!(keys(&claim(&db, other, JobKind::Cron, 5).await), [of_other]);
    let claimed = claim(&db, worker, JobKind::Webhook, 5).await;
    assert_eq!(keys(&claimed), [first, second]);
    let at_work = [claimed[0].id];
    let freed = write!(db, |tx| jobs::free_left(tx, worker, &at_work, Timestamp(6)));
    assert_eq!(freed, 1);
    assert_eq!(keys(&claim(&db, worker, JobKind::Webhook, 6).await), [second]);
    assert_eq!(write!(db, |tx| jobs::free_left(tx, worker, &[], Timestamp(7))), 2);
    assert_eq!(keys(&claim(&db, worker, JobKind::Webhook, 7).await), [first, second]);
    assert_eq!(claim(&db, worker, JobKind::Cron, 7).await, [], "it is not its own");
}

async fn are_settled_by_who_has_them(db: Db) {
    let worker = WorkerId::mint();
    let key = scheduled(&db, JobKind::Webhook, 1).await;
    let lost = claim(&db, worker, JobKind::Webhook, 2).await.remove(0);
    // A worker that reschedules the job takes it from the worker that has claimed it.
    write!(db, |tx| jobs::schedule(
        tx,
        JobKind::Webhook,
        key,
        JobOwner::default(),
        Timestamp(3)
    ));
    let job = lost.clone();
    assert!(!write!(db, |tx| jobs::put_off(tx, &job, Timestamp(50))));
    let job = lost.clone();
    assert!(!write!(db, |tx| jobs::finish(tx, &job)));
    let held = claim(&db, worker, JobKind::Webhook, 3).await.remove(0);
    assert_eq!(held.attempts, 1, "the attempts are counted anew");
    let job = held.clone();
    assert!(write!(db, |tx| jobs::put_off(tx, &job, Timestamp(50))));
    assert_eq!(claim(&db, worker, JobKind::Webhook, 49).await, []);
    let held = claim(&db, worker, JobKind::Webhook, 50).await.remove(0);
    assert_eq!(held.attempts, 2);
    let job = held.clone();
    assert!(write!(db, |tx| jobs::finish(tx, &job)));
    // The same key again is another job.
    write!(db, |tx| jobs::schedule(
        tx,
        JobKind::Webhook,
        key,
        JobOwner::default(),
        Timestamp(3)
    ));
    assert_eq!(claim(&db, worker, JobKind::Webhook, 60).await.len(), 1);
    assert!(!write!(db, |tx| jobs::finish(tx, &lost)));
    assert!(!write!(db, |tx| jobs::finish(tx, &held)));
    write!(db, |tx| jobs::delete(tx, JobKind::Webhook, key));
    assert_eq!(read!(db, |tx| jobs::count(tx)), []);
}

async fn are_not_given_back_once_they_are_settled(db: Db) {
    let worker = WorkerId::mint();
    let key = scheduled(&db, JobKind::Cron, 1).await;
    let held = claim(&db, worker, JobKind::Cron, 2).await.remove(0);
    let job = held.clone();
    write!(db, |tx| jobs::give_back(tx, &job, Timestamp(3)));
    assert_eq!(read!(db, |tx| jobs::next_due(tx)), [(JobKind::Cron, Timestamp(3))]);
    let held = claim(&db, worker, JobKind::Cron, 3).await.remove(0);
    assert_eq!(held.key, key);
    let job = held.clone();
    assert!(write!(db, |tx| jobs::put_off(tx, &job, Timestamp(50))));
    // The worker was not told that the job was put off.
    write!(db, |tx| jobs::give_back(tx, &held, Timestamp(4)));
    assert_eq!(read!(db, |tx| jobs::next_due(tx)), [(JobKind::Cron, Timestamp(50))]);
}

async fn are_made_sure_of_without_being_disturbed(db: Db) {
    let worker = WorkerId::mint();
    let ensure = async |now: i64| {
        write!(db, |tx| jobs::ensure(
            tx,
            JobKind::Sweep,
            Uuid::nil(),
            JobOwner::default(),
            Timestamp(now)
        ));
        read!(db, |tx| jobs::next_due(tx))
    };
    assert_eq!(ensure(10).await, [(JobKind::Sweep, Timestamp(10))]);
    assert_eq!(ensure(20).await, [(JobKind::Sweep, Timestamp(10))]);
    assert_eq!(ensure(5).await, [(JobKind::Sweep, Timestamp(5))]);
    let job = claim(&db, worker, JobKind::Sweep, 5).await.remove(0);
    assert_eq!(ensure(6).await, [(JobKind::Sweep, Timestamp(105))]);
    assert!(write!(db, |tx| jobs::finish(tx, &job)));
}

async fn go_with_their_owner(db: Db) {
    let thread = stored_thread(&db).await;
    let owner = JobOwner {
        thread: Some(thread),
        assistant: None,
    };
    write!(db, |tx| jobs::schedule(
        tx,
        JobKind::NotifyParent,
        thread.0,
        owner,
        Timestamp(1)
    ));
    assert_eq!(read!(db, |tx| jobs::count(tx)), [(JobKind::NotifyParent, 1)]);
    assert!(write!(db, |tx| threads::delete(tx, thread)));
    assert_eq!(read!(db, |tx| jobs::count(tx)), []);
}
