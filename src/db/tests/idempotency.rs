use std::sync::Arc;

use tokio::sync::Barrier;

use super::{Db, Refusal, on_both, write};
use crate::db::idempotency;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, REMEMBERED, StoredResponse};
use crate::domain::time::Timestamp;

on_both!(
    a_repeated_request_gets_the_stored_response,
    a_refused_request_leaves_its_key_free,
    the_second_request_waits_for_the_first,
    keys_expire_after_a_day
);

const BEGIN: Timestamp = Timestamp(1_000_000);

fn key(text: &str, body: &str) -> IdempotencyKey {
    IdempotencyKey::new("alice", text, &[b"POST", body.as_bytes()]).expect("a key")
}

fn response(number: i32) -> StoredResponse {
    StoredResponse::Answer {
        status: 200,
        body: number.to_string(),
        location: Some("/threads/x".to_owned()),
        thread: None,
    }
}

/// Creates `number` under a key.
async fn create(
    db: &Db,
    key: IdempotencyKey,
    number: Result<i32, Refusal>,
    now: Timestamp,
) -> Result<IdempotentOutcome<i32>, Refusal> {
    let created = db.write_once(
        Some(key),
        now,
        |number| response(*number),
        move |_| Box::pin(async move { number }),
    );
    created.await
}

async fn a_repeated_request_gets_the_stored_response(db: Db) {
    assert_eq!(
        create(&db, key("k", "{}"), Ok(1), BEGIN).await,
        Ok(IdempotentOutcome::First(1))
    );
    assert_eq!(
        create(&db, key("k", "{}"), Ok(2), BEGIN).await,
        Ok(IdempotentOutcome::Replayed(response(1)))
    );
    assert_eq!(
        create(&db, key("k", "[]"), Ok(3), BEGIN).await,
        Ok(IdempotentOutcome::KeyReused)
    );
    assert_eq!(
        create(&db, key("k", "{}"), Err(Refusal), BEGIN).await,
        Ok(IdempotentOutcome::Replayed(response(1)))
    );
    let kept_run = StoredResponse::Run {
        thread: ThreadId::mint(),
        run: RunId::mint(),
    };
    for once in [
        IdempotentOutcome::First(()),
        IdempotentOutcome::Replayed(kept_run.clone()),
    ] {
        let kept = kept_run.clone();
        let operation = db.write_once(
            Some(key("r", "")),
            BEGIN,
            move |()| kept,
            |_| Box::pin(async { Ok::<_, Refusal>(()) }),
        );
        assert_eq!(operation.await, Ok(once));
    }
}

async fn a_refused_request_leaves_its_key_free(db: Db) {
    assert_eq!(create(&db, key("k", "{}"), Err(Refusal), BEGIN).await, Err(Refusal));
    assert_eq!(
        create(&db, key("k", "[]"), Ok(1), BEGIN).await,
        Ok(IdempotentOutcome::First(1))
    );
}

async fn the_second_request_waits_for_the_first(db: Db) {
    let begun = Arc::new(Barrier::new(2));
    let begins = Arc::clone(&begun);
    let slow = db.write_once(
        Some(key("k", "{}")),
        BEGIN,
        |number| response(*number),
        move |_| {
            Box::pin(async move {
                begins.wait().await;
                Ok::<_, Refusal>(1)
            })
        },
    );
    let second = async {
        begun.wait().await;
        create(&db, key("k", "{}"), Ok(2), BEGIN).await
    };
    let (slow, second) = tokio::join!(slow, second);
    assert_eq!(slow, Ok(IdempotentOutcome::First(1)));
    assert_eq!(second, Ok(IdempotentOutcome::Replayed(response(1))));
}

async fn keys_expire_after_a_day(db: Db) {
    let late = BEGIN.plus(REMEMBERED);
    for (name, at) in [("old", BEGIN), ("other", BEGIN), ("young", late)] {
        assert_eq!(
            create(&db, key(name, "{}"), Ok(1), at).await,
            Ok(IdempotentOutcome::First(1))
        );
    }
    let eve = Timestamp(late.0 - 1);
    assert_eq!(write!(db, |tx| idempotency::sweep(tx, eve, 10)), 0);
    assert_eq!(
        create(&db, key("old", "{}"), Ok(2), eve).await,
        Ok(IdempotentOutcome::Replayed(response(1)))
    );
    // An expired key is free even before it is swept.
    assert_eq!(
        create(&db, key("old", "[]"), Ok(2), late).await,
        Ok(IdempotentOutcome::First(2))
    );
    assert_eq!(write!(db, |tx| idempotency::sweep(tx, late, 10)), 1);
    assert_eq!(
        create(&db, key("young", "{}"), Ok(2), late).await,
        Ok(IdempotentOutcome::Replayed(response(1)))
    );
}
