use std::sync::Arc;

use tokio::sync::Barrier;

use super::{Db, on_both, read, run_at, stored_thread, write};
use crate::db::{idempotency, runs, threads};
use crate::domain::id::ThreadId;
use crate::domain::idempotency::{Kept, Key, Once, REMEMBERED};
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;

on_both!(
    keep_the_answer,
    are_given_back_by_who_made_nothing,
    let_the_second_wait_for_the_first,
    are_forgotten_after_a_day_with_threads_that_waited_for_it
);

const BEGIN: Timestamp = Timestamp(1_000_000);

fn key(text: &str, body: &str) -> Key {
    Key::new(text, &[b"POST", body.as_bytes()]).expect("a key")
}

fn answer() -> Kept {
    Kept::Answer { status: 200, body: "{\"a\":1}".to_owned(), location: Some("/threads/x".to_owned()) }
}

async fn claim(db: &Db, key: &Key, now: Timestamp) -> Once<()> {
    let key = key.clone();
    write!(db, |tx| idempotency::claim(tx, &key, now))
}

async fn keep_the_answer(db: Db) {
    let first = key("k", "{}");
    let kept = first.clone();
    write!(db, |tx| async {
        assert_eq!(idempotency::claim(tx, &kept, BEGIN).await?, Once::First(()));
        idempotency::keep(tx, &kept, &answer()).await
    });
    assert_eq!(claim(&db, &first, BEGIN).await, Once::Again(answer()));
    assert_eq!(claim(&db, &key("k", "[]"), BEGIN).await, Once::Reused);
    assert_eq!(claim(&db, &first, BEGIN).await, Once::Again(answer()));
}

async fn are_given_back_by_who_made_nothing(db: Db) {
    let first = key("k", "{}");
    let refused = first.clone();
    write!(db, |tx| async {
        idempotency::claim(tx, &refused, BEGIN).await?;
        idempotency::release(tx, &refused).await
    });
    assert_eq!(claim(&db, &key("k", "[]"), BEGIN).await, Once::First(()));
}

async fn let_the_second_wait_for_the_first(db: Db) {
    let begun = Arc::new(Barrier::new(2));
    let (begins, first) = (Arc::clone(&begun), key("k", "{}"));
    let slow = db.write(move |tx| {
        Box::pin(async move {
            let claimed = idempotency::claim(tx, &first, BEGIN).await?;
            begins.wait().await;
            idempotency::keep(tx, &first, &answer()).await?;
            Ok(claimed)
        })
    });
    let other = db.clone();
    let second = async {
        begun.wait().await;
        claim(&other, &key("k", "{}"), BEGIN).await
    };
    let (slow, second) = tokio::join!(slow, second);
    assert_eq!((slow.expect("a write"), second), (Once::First(()), Once::Again(answer())));
}

async fn are_forgotten_after_a_day_with_threads_that_waited_for_it(db: Db) {
    let mut kept = vec![];
    for (name, temporary) in [("stays", false), ("goes", true)] {
        let thread = stored_thread(&db).await;
        let mut run = run_at(thread, 1);
        run.status = RunStatus::Success;
        let (key, run_id) = (key(name, "{}"), run.id);
        write!(db, |tx| async {
            runs::insert(tx, &run, None).await?;
            idempotency::claim(tx, &key, BEGIN).await?;
            idempotency::keep(tx, &key, &Kept::Run { thread, run: run_id, temporary }).await
        });
        assert_eq!(
            claim(&db, &self::key(name, "{}"), BEGIN).await,
            Once::Again(Kept::Run { thread, run: run_id, temporary })
        );
        kept.push(thread);
    }
    let young = key("young", "{}");
    write!(db, |tx| async {
        idempotency::claim(tx, &young, BEGIN.plus(REMEMBERED)).await?;
        idempotency::keep(tx, &young, &answer()).await
    });
    let eve = Timestamp(BEGIN.plus(REMEMBERED).0 - 1);
    assert_eq!(write!(db, |tx| idempotency::sweep(tx, eve, 10)), 0);
    let late = BEGIN.plus(REMEMBERED);
    assert_eq!(write!(db, |tx| idempotency::sweep(tx, late, 10)), 2);
    let is_there = async |thread: ThreadId| read!(db, |tx| threads::find(tx, thread)).is_some();
    assert_eq!((is_there(kept[0]).await, is_there(kept[1]).await), (true, false));
    assert_eq!(claim(&db, &key("young", "{}"), late).await, Once::Again(answer()));
    // Without a sweep a key is as free when its time is over.
    let much_later = late.plus(REMEMBERED);
    assert_eq!(claim(&db, &key("young", "[]"), much_later).await, Once::First(()));
}
