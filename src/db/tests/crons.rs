use super::{Db, object, on_both, read, stored_thread, thread_at, write};
use crate::db::crons::{self, CronOrder, CronQuery};
use crate::db::{DbError, assistants, jobs, threads};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::assistant::Assistant;
use crate::domain::cron::{Cron, Schedule};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{AssistantId, CronId, ThreadId, WorkerId};
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::run::RunRequest;
use crate::domain::time::Timestamp;

on_both!(
    come_back_as_they_went,
    are_due_until_they_are_moved_on,
    are_claimed_by_one,
    are_lost_to_who_has_claimed_them_when_they_are_changed,
    go_with_what_they_are_for,
    are_sorted
);

pub(super) fn cron_at(thread: Option<ThreadId>, now: i64) -> Cron {
    Cron {
        id: CronId::mint(),
        ownership: Ownership::default(),
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

async fn claim(db: &Db, now: i64) -> Vec<ClaimedJob> {
    let worker = WorkerId::mint();
    write!(db, |tx| jobs::claim(
        tx,
        worker,
        JobKind::Cron,
        Timestamp(now),
        Timestamp(now + 100),
        10
    ))
}

fn keys(claimed: &[ClaimedJob]) -> Vec<CronId> {
    claimed.iter().map(|job| CronId(job.key)).collect()
}

async fn are_due_until_they_are_moved_on(db: Db) {
    let thread = stored_thread(&db).await;
    let second = stored(&db, &cron_at(None, 6)).await;
    let first = stored(&db, &cron_at(Some(thread), 5)).await;
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
    let due = claim(&db, 7).await;
    assert_eq!(keys(&due), [first, second]);
    let job = due[0].clone();
    assert!(write!(db, |tx| crons::move_on(tx, first, &job, Some(Timestamp(20)))));
    let job = due[1].clone();
    assert!(write!(db, |tx| crons::move_on(tx, second, &job, None)));
    assert_eq!(
        read!(db, |tx| crons::find(tx, first)).and_then(|cron| cron.due_at),
        Some(Timestamp(20))
    );
    assert_eq!(
        read!(db, |tx| crons::find(tx, second)).and_then(|cron| cron.due_at),
        None
    );
    assert_eq!(keys(&claim(&db, 20).await).len(), 2, "the first one and the third one");
}

async fn are_claimed_by_one(db: Db) {
    let id = stored(&db, &cron_at(None, 5)).await;
    assert_eq!(claim(&db, 4).await, []);
    let claims = (0..8).map(|_| claim(&db, 6));
    let claimed = futures::future::join_all(claims).await.concat();
    assert_eq!(keys(&claimed), [id]);
}

async fn are_lost_to_who_has_claimed_them_when_they_are_changed(db: Db) {
    let cron = cron_at(None, 5);
    let id = stored(&db, &cron).await;
    let claimed = claim(&db, 6).await;
    let changed = Cron {
        due_at: Some(Timestamp(30)),
        ..cron
    };
    assert!(write!(db, |tx| crons::update(tx, &changed)));
    let job = claimed[0].clone();
    assert!(!write!(db, |tx| crons::move_on(tx, id, &job, Some(Timestamp(60)))));
    assert_eq!(
        read!(db, |tx| crons::find(tx, id)).and_then(|cron| cron.due_at),
        Some(Timestamp(30))
    );
    assert_eq!(keys(&claim(&db, 30).await), [id]);
}

async fn go_with_what_they_are_for(db: Db) {
    let thread = stored_thread(&db).await;
    let on_thread = stored(&db, &cron_at(Some(thread), 5)).await;
    let other = Cron {
        assistant: AssistantId::of_graph("other"),
        ..cron_at(None, 5)
    };
    let of_other = stored(&db, &other).await;
    let alone = stored(&db, &cron_at(None, 5)).await;
    assert!(write!(db, |tx| threads::delete(tx, thread)));
    assert_eq!(read!(db, |tx| crons::find(tx, on_thread)), None);
    assert!(write!(db, |tx| assistants::delete(tx, AssistantId::of_graph("other"))));
    assert_eq!(read!(db, |tx| crons::find(tx, of_other)), None);
    assert!(write!(db, |tx| crons::delete(tx, alone)));
    assert_eq!(read!(db, |tx| jobs::count(tx)), [], "their jobs go as well");
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
        (CronOrder::Id, [0, 1, 2]),
        (CronOrder::Assistant, [0, 1, 2]),
        (CronOrder::Thread, [1, 0, 2]),
        (CronOrder::CreatedAt, [0, 1, 2]),
        (CronOrder::UpdatedAt, [0, 1, 2]),
        (CronOrder::Due, [2, 1, 0]),
        (CronOrder::End, [0, 2, 1]),
    ];
    for (sort, order) in expected {
        for ascending in [true, false] {
            let wanted = CronQuery {
                sort,
                ascending,
                limit: 10,
                ..CronQuery::within(AccessScope::Server, 10)
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
    let who = MetadataFilter::new("metadata", object(serde_json::json!({"who": "me"}))).expect("a filter");
    let wanted = CronQuery {
        metadata: who,
        ..CronQuery::within(AccessScope::Server, 10)
    };
    assert_eq!(read!(db, |tx| crons::count(tx, &wanted)), 3);
}
