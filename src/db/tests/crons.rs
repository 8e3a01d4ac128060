use super::{Db, object, on_both, read, stored_thread, thread_at, write};
use crate::db::crons::{self, CronSearch, CronSort};
use crate::db::{DbError, assistants, threads};
use crate::domain::assistant::Assistant;
use crate::domain::cron::{Cron, Schedule};
use crate::domain::filter::Filter;
use crate::domain::id::{AssistantId, CronId, ThreadId};
use crate::domain::run::RunRequest;
use crate::domain::time::Timestamp;

on_both!(
    come_back_as_they_went,
    are_due_until_they_are_moved_on,
    are_claimed_by_one,
    go_with_what_they_are_for,
    are_sorted
);

fn cron_at(thread: Option<ThreadId>, now: i64) -> Cron {
    Cron {
        id: CronId::mint(),
        assistant: AssistantId::of_graph("agent"),
        thread,
        schedule: Schedule::read("*/5 * * * *", Some("Europe/Paris")).expect("a schedule"),
        end: Some(Timestamp(1000)),
        enabled: true,
        keep_threads: true,
        due_at: Some(Timestamp(now)),
        request: RunRequest {
            input: Some(serde_json::json!({"messages": ["hi"]})),
            ..RunRequest::default()
        },
        payload: object(serde_json::json!({"schedule": "*/5 * * * *", "odd": null})),
        metadata: object(serde_json::json!({"who": "me"})),
        created_at: Timestamp(now),
        updated_at: Timestamp(now),
    }
}

async fn stored(db: &Db, cron: &Cron) -> CronId {
    let mut of = Assistant::automatic("agent", "agent", None, Timestamp(1));
    of.id = cron.assistant;
    write!(db, |tx| assistants::insert(tx, &of));
    let stored = cron.clone();
    write!(db, |tx| crons::insert(tx, &stored));
    cron.id
}

async fn come_back_as_they_went(db: Db) {
    let thread = stored_thread(&db).await;
    let cron = cron_at(Some(thread), 5);
    let id = stored(&db, &cron).await;
    assert_eq!(read!(db, |tx| crons::find(tx, id)), Some(cron.clone()));
    let changed = Cron {
        schedule: Schedule::read("0 9 * * *", None).expect("a schedule"),
        end: None,
        enabled: false,
        keep_threads: false,
        due_at: None,
        updated_at: Timestamp(9),
        ..cron
    };
    let new = changed.clone();
    assert!(write!(db, |tx| crons::update(tx, &new)));
    assert_eq!(write!(db, |tx| crons::lock(tx, id)), Some(changed));
    let homeless = cron_at(Some(ThreadId::mint()), 5);
    let refused = db
        .write(move |tx| Box::pin(async move { crons::insert(tx, &homeless).await }))
        .await;
    assert!(matches!(refused, Err(DbError::Conflict(_))), "{refused:?}");
    assert!(write!(db, |tx| crons::delete(tx, id)));
    assert!(!write!(db, |tx| crons::delete(tx, id)));
    let gone = cron_at(None, 5);
    assert!(!write!(db, |tx| crons::update(tx, &gone)));
}

async fn are_due_until_they_are_moved_on(db: Db) {
    let thread = stored_thread(&db).await;
    let first = stored(&db, &cron_at(Some(thread), 5)).await;
    let second = stored(&db, &cron_at(None, 6)).await;
    stored(&db, &cron_at(None, 8)).await;
    stored(
        &db,
        &Cron {
            enabled: false,
            ..cron_at(None, 1)
        },
    )
    .await;
    stored(
        &db,
        &Cron {
            due_at: None,
            ..cron_at(None, 1)
        },
    )
    .await;
    let due = read!(db, |tx| crons::due(tx, Timestamp(7), None, 10));
    assert_eq!(
        due.iter().map(|due| (due.id, due.thread)).collect::<Vec<_>>(),
        [(first, Some(thread)), (second, None)]
    );
    let after = Some(due[0]);
    let rest = read!(db, |tx| crons::due(tx, Timestamp(7), after, 10));
    assert_eq!(rest, due[1..]);
    write!(db, |tx| crons::set_due(tx, first, Some(Timestamp(20))));
    write!(db, |tx| crons::set_due(tx, second, None));
    assert_eq!(read!(db, |tx| crons::due(tx, Timestamp(7), None, 10)), []);
    assert_eq!(
        read!(db, |tx| crons::find(tx, first)).and_then(|cron| cron.due_at),
        Some(Timestamp(20))
    );
}

async fn are_claimed_by_one(db: Db) {
    let id = stored(&db, &cron_at(None, 5)).await;
    assert_eq!(write!(db, |tx| crons::claim(tx, id, Timestamp(4))), None);
    let claims = (0..8).map(|_| {
        let db = db.clone();
        async move {
            let claim = db.write(move |tx| {
                Box::pin(async move {
                    let claimed = crons::claim(tx, id, Timestamp(6)).await?.is_some();
                    if claimed {
                        crons::set_due(tx, id, Some(Timestamp(60))).await?;
                    }
                    Ok(claimed)
                })
            });
            claim.await.expect("a write")
        }
    });
    let claimed = futures::future::join_all(claims).await;
    assert_eq!(claimed.iter().filter(|claimed| **claimed).count(), 1);
}

async fn go_with_what_they_are_for(db: Db) {
    let thread = stored_thread(&db).await;
    let on_thread = stored(&db, &cron_at(Some(thread), 5)).await;
    let other = Cron {
        assistant: AssistantId::of_graph("other"),
        ..cron_at(None, 5)
    };
    let of_other = stored(&db, &other).await;
    assert!(write!(db, |tx| threads::delete(tx, thread)));
    assert_eq!(read!(db, |tx| crons::find(tx, on_thread)), None);
    assert!(write!(db, |tx| assistants::delete(tx, AssistantId::of_graph("other"))));
    assert_eq!(read!(db, |tx| crons::find(tx, of_other)), None);
}

async fn are_sorted(db: Db) {
    let mut ids = vec![];
    for now in 1..=3 {
        let thread = thread_at(now);
        let id = thread.id;
        let thread_is = now != 2;
        assert!(write!(db, |tx| threads::insert(tx, &thread)));
        let end = (now != 1).then_some(Timestamp(10 - now));
        let due_at = (now != 3).then_some(Timestamp(10 - now));
        let cron = Cron {
            end,
            due_at,
            ..cron_at(thread_is.then_some(id), now)
        };
        ids.push(stored(&db, &cron).await);
    }
    let expected = [
        (CronSort::Id, [0, 1, 2]),
        (CronSort::Assistant, [0, 1, 2]),
        (CronSort::Thread, [1, 0, 2]),
        (CronSort::CreatedAt, [0, 1, 2]),
        (CronSort::UpdatedAt, [0, 1, 2]),
        (CronSort::Due, [2, 1, 0]),
        (CronSort::End, [0, 2, 1]),
    ];
    for (sort, order) in expected {
        for ascending in [true, false] {
            let wanted = CronSearch {
                sort,
                ascending,
                limit: 10,
                ..CronSearch::default()
            };
            let mut found: Vec<CronId> = read!(db, |tx| crons::search(tx, &wanted, usize::MAX))
                .into_items()
                .into_iter()
                .map(|cron| cron.id)
                .collect();
            if !ascending {
                found.reverse();
            }
            assert_eq!(found, order.map(|at: usize| ids[at]), "{sort:?} {ascending}");
        }
    }
    let who = Filter::new("metadata", object(serde_json::json!({"who": "me"}))).expect("a filter");
    let wanted = CronSearch {
        metadata: who,
        ..CronSearch::default()
    };
    assert_eq!(read!(db, |tx| crons::count(tx, &wanted)), 3);
}
