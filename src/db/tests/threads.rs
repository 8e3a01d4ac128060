use serde_json::{Value, json};

use super::{Db, object, on_both, read, run_at, saying, stored_thread, thread_at, write};
use crate::db::checkpoints::{self, NewCheckpoint};
use crate::db::events::{self, NewEvent};
use crate::db::thread_search::{self, ThreadOrder, ThreadQuery};
use crate::db::threads::{self, ThreadChange};
use crate::db::{DbError, DbResult, Tx, runs};
use crate::domain::access::AccessScope;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::{Failure, Position};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

on_both!(
    a_thread_is_stored_once,
    a_patch_merges_the_metadata,
    a_change_sets_only_its_fields,
    the_end_of_a_run_sets_the_status_of_its_thread,
    a_search_filters_sorts_and_pages,
    a_search_matches_contained_metadata,
    a_search_matches_the_present_metadata_only,
    a_search_matches_metadata_that_follow_known_ones,
    deleting_a_thread_deletes_everything_on_it,
    every_change_has_a_new_version,
    an_unreadable_thread_can_be_read_and_deleted
);

async fn a_thread_is_stored_once(db: Db) {
    let mut thread = thread_at(7);
    thread.metadata = object(json!({"a": {"b": [1, "x", null, true]}}));
    thread.error = Some(Failure::new("Class", "text"));
    let same = thread.clone();
    assert!(write!(db, |tx| threads::insert(tx, &thread)));
    let again = same.clone();
    assert!(!write!(db, |tx| threads::insert(tx, &again)));
    let id = same.id;
    assert_eq!(read!(db, |tx| threads::find(tx, id)), Some(same.clone()));
    assert_eq!(write!(db, |tx| threads::lock(tx, id)), Some(same));
    assert_eq!(read!(db, |tx| threads::find(tx, ThreadId::mint())), None);
}

async fn a_patch_merges_the_metadata(db: Db) {
    let id = stored_thread(&db).await;
    let patch = |value: Value| object(value);
    let first = patch(json!({"a": {"x": 1}, "b": 1}));
    write!(db, |tx| threads::patch(tx, id, &first, None, Timestamp(2)));
    let second = patch(json!({"a": {"y": null}}));
    let thread = write!(db, |tx| threads::patch(tx, id, &second, None, Timestamp(3))).expect("the thread");
    assert_eq!(
        Value::Object(thread.metadata.clone()),
        json!({"a": {"y": null}, "b": 1})
    );
    assert_eq!(thread.updated_at, Timestamp(3));
    assert_eq!(read!(db, |tx| threads::find(tx, id)), Some(thread));
}

async fn a_change_sets_only_its_fields(db: Db) {
    let id = stored_thread(&db).await;
    let change = ThreadChange {
        status: Some(ThreadStatus::Error),
        config: Some(object(json!({"c": 1}))),
        error: Some(Some(Failure::new("E", "m"))),
        metadata: Some(object(json!({"k": "v"}))),
        former_metadata: None,
        state_changed: true,
    };
    write!(db, |tx| threads::set(tx, id, change, Timestamp(5)));
    let thread = read!(db, |tx| threads::find(tx, id)).expect("the thread");
    assert_eq!(thread.status, ThreadStatus::Error);
    assert_eq!(Value::Object(thread.config), json!({"c": 1}));
    assert_eq!(thread.error, Some(Failure::new("E", "m")));
    assert_eq!(Value::Object(thread.metadata), json!({"k": "v"}));
    assert_eq!(thread.updated_at, Timestamp(5));
    assert_eq!(thread.state_updated_at, Timestamp(5));

    write!(db, |tx| threads::set(tx, id, ThreadChange::default(), Timestamp(6)));
    let thread = read!(db, |tx| threads::find(tx, id)).expect("the thread");
    assert_eq!(thread.error, Some(Failure::new("E", "m")));
    assert_eq!(thread.updated_at, Timestamp(6));
    assert_eq!(thread.state_updated_at, Timestamp(5));
    let forget = ThreadChange {
        error: Some(None),
        ..ThreadChange::default()
    };
    write!(db, |tx| threads::set(tx, id, forget, Timestamp(7)));
    assert_eq!(
        read!(db, |tx| threads::find(tx, id)).and_then(|thread| thread.error),
        None
    );
    let nobody = ThreadId::mint();
    write!(db, |tx| threads::set(tx, nobody, ThreadChange::default(), Timestamp(7)));
    assert!(read!(db, |tx| threads::find(tx, nobody)).is_none());
}

async fn the_end_of_a_run_sets_the_status_of_its_thread(db: Db) {
    let id = stored_thread(&db).await;
    let ending = run_at(id, 1);
    let waiting = run_at(id, 2);
    let run = ending.id;
    let error = Some(Failure::new("E", "m"));
    write!(db, |tx| runs::insert(tx, &ending, None));
    let left = threads::ThreadAfterRun {
        run,
        status: ThreadStatus::Error,
        error,
    };
    assert!(write!(db, |tx| threads::leave(tx, id, &left, Timestamp(5))).is_some());
    let thread = read!(db, |tx| threads::find(tx, id)).expect("the thread");
    assert_eq!(thread.status, ThreadStatus::Error);
    assert_eq!(thread.error, Some(Failure::new("E", "m")));
    assert_eq!(thread.updated_at, Timestamp(5));
    assert_eq!(thread.state_updated_at, Timestamp(5));
    write!(db, |tx| runs::insert(tx, &waiting, None));
    let left = threads::ThreadAfterRun {
        run,
        status: ThreadStatus::Idle,
        error: None,
    };
    assert!(write!(db, |tx| threads::leave(tx, id, &left, Timestamp(6))).is_some());
    let thread = read!(db, |tx| threads::find(tx, id)).expect("the thread");
    assert_eq!(thread.status, ThreadStatus::Busy);
    assert_eq!(thread.error, None);
}

fn filter(wanted: Value) -> MetadataFilter {
    MetadataFilter::new("metadata", object(wanted)).expect("a filter")
}

async fn a_search_filters_sorts_and_pages(db: Db) {
    let mut ids = vec![];
    for n in 0..5 {
        let mut thread = thread_at(10 + n);
        thread.updated_at = Timestamp(100 - n);
        thread.status = if n % 2 == 0 {
            ThreadStatus::Idle
        } else {
            ThreadStatus::Busy
        };
        thread.metadata = object(json!({"n": n}));
        ids.push(thread.id);
        write!(db, |tx| threads::insert(tx, &thread));
    }
    let found = async |wanted: ThreadQuery| {
        let counted = wanted.clone();
        let page = read!(db, |tx| thread_search::search(tx, &wanted));
        let places: Vec<usize> = page
            .threads
            .iter()
            .filter_map(|thread| ids.iter().position(|id| *id == thread.id))
            .collect();
        assert_eq!(read!(db, |tx| thread_search::count(tx, &counted)), page.total);
        (places, page.total)
    };
    let all = ThreadQuery::within(AccessScope::Server);
    assert_eq!(found(all.clone()).await, (vec![4, 3, 2, 1, 0], 5));
    assert_eq!(
        found(ThreadQuery {
            limit: 2,
            offset: 1,
            ..all.clone()
        })
        .await,
        (vec![3, 2], 5)
    );
    let updated = ThreadQuery {
        sort: ThreadOrder::UpdatedAt,
        ascending: true,
        ..all.clone()
    };
    assert_eq!(found(updated).await, (vec![4, 3, 2, 1, 0], 5));
    for sort in [ThreadOrder::Id, ThreadOrder::StateUpdatedAt, ThreadOrder::CreatedAt] {
        assert_eq!(
            found(ThreadQuery {
                sort,
                ascending: true,
                ..all.clone()
            })
            .await,
            (vec![0, 1, 2, 3, 4], 5)
        );
    }
    let by_status = ThreadQuery {
        sort: ThreadOrder::Status,
        ascending: true,
        ..all.clone()
    };
    assert_eq!(found(by_status).await, (vec![3, 1, 4, 2, 0], 5));
    assert_eq!(
        found(ThreadQuery {
            status: Some(ThreadStatus::Busy),
            ..all.clone()
        })
        .await,
        (vec![3, 1], 2)
    );
    let some = Some(vec![ids[2], ids[0], ThreadId::mint()]);
    assert_eq!(
        found(ThreadQuery {
            ids: some,
            ..all.clone()
        })
        .await,
        (vec![2, 0], 2)
    );
    assert_eq!(
        found(ThreadQuery {
            ids: Some(vec![]),
            ..all.clone()
        })
        .await,
        (vec![], 0)
    );
    assert_eq!(
        found(ThreadQuery {
            metadata: filter(json!({"n": 3})),
            ..all
        })
        .await,
        (vec![3], 1)
    );
}

async fn a_search_matches_contained_metadata(db: Db) {
    let mut thread = thread_at(1);
    thread.metadata = object(json!({
        "text": "x", "one": 1, "half": 0.5, "yes": true, "nothing": null, "odd \"key\".$[0]": 1,
        "deep": {"a": {"b": [1, {"c": "d", "e": 2}, [3]]}, "z": 1}
    }));
    write!(db, |tx| threads::insert(tx, &thread));
    let cases = [
        (json!({}), true),
        (json!({"text": "x", "one": 1}), true),
        (json!({"one": 1.0, "half": 0.5}), true),
        (json!({"text": "y"}), false),
        (json!({"one": "1"}), false),
        (json!({"one": true}), false),
        (json!({"yes": 1}), false),
        (json!({"yes": true, "nothing": null}), true),
        (json!({"absent": null}), false),
        (json!({"odd \"key\".$[0]": 1}), true),
        (json!({"deep": {}}), true),
        (json!({"deep": []}), false),
        (json!({"deep": {"z": 1}}), true),
        (json!({"deep": {"z": 2}}), false),
        (json!({"deep": {"a": {"b": []}}}), true),
        (json!({"deep": {"a": {"b": [{"e": 2}, 1]}}}), true),
        (json!({"deep": {"a": {"b": [{"e": 2, "c": "x"}]}}}), false),
        (json!({"deep": {"a": {"b": [[3]]}}}), true),
        (json!({"deep": {"a": {"b": [3]}}}), false),
    ];
    for (wanted, expected) in cases {
        let text = wanted.to_string();
        let wanted = ThreadQuery {
            metadata: filter(wanted.clone()),
            ..ThreadQuery::within(AccessScope::Server)
        };
        assert_eq!(
            read!(db, |tx| thread_search::count(tx, &wanted)) == 1,
            expected,
            "{text}"
        );
    }
}

async fn a_search_matches_metadata_that_follow_known_ones(db: Db) {
    let id = stored_thread(&db).await;
    let finds = async |wanted: Value| {
        let wanted = ThreadQuery {
            metadata: filter(wanted),
            ..ThreadQuery::within(AccessScope::Server)
        };
        read!(db, |tx| thread_search::count(tx, &wanted)) == 1
    };
    // A value is added, then one is gone.
    for (metadata, has_a, has_b) in [
        (json!({"a": 1}), true, false),
        (json!({"a": 1, "b": 1}), true, true),
        (json!({"b": 1}), false, true),
    ] {
        let former = read!(db, |tx| threads::find(tx, id)).expect("the thread").metadata;
        let change = ThreadChange {
            metadata: Some(object(metadata)),
            former_metadata: Some(former),
            ..ThreadChange::default()
        };
        write!(db, |tx| threads::set(tx, id, change, Timestamp(2)));
        assert_eq!(finds(json!({"a": 1})).await, has_a);
        assert_eq!(finds(json!({"b": 1})).await, has_b);
    }
}

async fn a_search_matches_the_present_metadata_only(db: Db) {
    let id = stored_thread(&db).await;
    // Few values replace few ones, then many do, and are replaced.
    let many: Value = (0..20).map(|number| (format!("k{number}"), json!(1))).collect();
    let steps = [
        (json!({"a": 1, "b": 1}), vec![json!({"a": 1}), json!({"b": 1})], vec![]),
        (
            json!({"a": 2}),
            vec![json!({"a": 2}), json!({"b": 1})],
            vec![json!({"a": 1})],
        ),
        (many, vec![json!({"a": 2}), json!({"k19": 1})], vec![json!({"a": 1})]),
        (
            json!({"a": 3, "k0": 2}),
            vec![json!({"a": 3}), json!({"k0": 2}), json!({"k1": 1})],
            vec![json!({"a": 2}), json!({"k0": 1})],
        ),
    ];
    for (patch, found, gone) in steps {
        let patch = object(patch);
        write!(db, |tx| threads::patch(tx, id, &patch, None, Timestamp(2)));
        let found = found.into_iter().map(|wanted| (wanted, true));
        let gone = gone.into_iter().map(|wanted| (wanted, false));
        for (wanted, expected) in found.chain(gone) {
            let text = wanted.to_string();
            let wanted = ThreadQuery {
                metadata: filter(wanted),
                ..ThreadQuery::within(AccessScope::Server)
            };
            assert_eq!(
                read!(db, |tx| thread_search::count(tx, &wanted)) == 1,
                expected,
                "{text}"
            );
        }
    }
}

/// Counts the terms of all threads.
async fn count_terms(tx: &mut Tx<'_>) -> DbResult<i64> {
    let (count,): (i64,) = tx.statement("select count(*) from thread_terms").fetch_one().await?;
    Ok(count)
}

async fn deleting_a_thread_deletes_everything_on_it(db: Db) {
    let id = stored_thread(&db).await;
    let run = run_at(id, 1);
    let run_id = run.id;
    let entry = saying("a", None, -1);
    let checkpoint = entry.id;
    db.write(move |tx| {
        Box::pin(async move {
            runs::insert(tx, &run, None).await?;
            let position = Position::default();
            let lane = Lane::Main;
            let at = Timestamp(1);
            let run = Some(run_id);
            let placed = NewCheckpoint {
                thread: id,
                lane,
                seq: 1,
                segment: None,
                run,
                entry: &entry,
                position: &position,
                at,
            };
            checkpoints::insert(tx, &placed).await?;
            let fact = NewEvent {
                thread: id,
                seq: 2,
                run: run_id,
                lane,
                fact: &Fact::Paused,
                at,
            };
            events::insert(tx, &[fact]).await
        })
    })
    .await
    .expect("a write");
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, id)), 2);
    let metadata = object(json!({"of": "it"}));
    write!(db, |tx| threads::patch(tx, id, &metadata, None, Timestamp(2)));
    assert!(read!(db, |tx| count_terms(tx)) > 0);
    assert!(write!(db, |tx| threads::delete(tx, id)));
    assert!(!write!(db, |tx| threads::delete(tx, id)));
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, id)), 0);
    assert_eq!(read!(db, |tx| count_terms(tx)), 0);
    assert_eq!(read!(db, |tx| runs::get_by_id(tx, run_id)), None);
    assert!(read!(db, |tx| checkpoints::get(tx, id, checkpoint)).is_none());
    let late = run_at(id, 2);
    let refused = db
        .write(move |tx| Box::pin(async move { runs::insert(tx, &late, None).await }))
        .await;
    assert!(matches!(refused, Err(DbError::Conflict(_))), "{refused:?}");
}

async fn an_unreadable_thread_can_be_read_and_deleted(db: Db) {
    let id = stored_thread(&db).await;
    db.write(move |tx| {
        Box::pin(async move {
            let sql = "update threads set status = 'asleep' where thread_id = $1";
            crate::db::engine::on_engine!(tx, |conn| sqlx::query(sql).bind(id.0).execute(conn).await.map(drop))?;
            DbResult::Ok(())
        })
    })
    .await
    .expect("a write");
    let found = read!(db, |tx| threads::find(tx, id)).expect("the thread is there");
    assert_eq!(found.status, ThreadStatus::Error);
    assert!(write!(db, |tx| threads::delete(tx, id)));
}

async fn every_change_has_a_new_version(db: Db) {
    let old = thread_at(7);
    let new = thread_at(9);
    let ids = [old.id, new.id];
    assert!(write!(db, |tx| threads::insert(tx, &old)));
    assert!(write!(db, |tx| threads::insert(tx, &new)));
    let id = ids[1];
    let version = |found: Vec<threads::ThreadVersion>| {
        let one = found
            .into_iter()
            .find(|found| found.thread == id)
            .expect("the thread is there");
        assert!(!one.is_at_work);
        one.version
    };
    let before = version(read!(db, |tx| threads::versions(tx, &ids)));
    assert_eq!(version(read!(db, |tx| threads::versions(tx, &ids))), before);
    // A change by a server whose clock is behind.
    assert!(
        write!(db, |tx| threads::patch(
            tx,
            id,
            &object(json!({"a": 1})),
            None,
            Timestamp(3)
        ))
        .is_some()
    );
    assert_ne!(version(read!(db, |tx| threads::versions(tx, &ids))), before);
    assert_eq!(read!(db, |tx| events::bounds(tx, id)), None);
    let run = RunId::mint();
    let lane = Lane::Main;
    let at = Timestamp(9);
    write!(db, |tx| {
        let facts = [3, 5].map(|seq| NewEvent {
            thread: id,
            seq,
            run,
            lane,
            fact: &Fact::Undone,
            at,
        });
        async move { events::insert(tx, &facts).await }
    });
    assert_eq!(read!(db, |tx| events::bounds(tx, id)), Some((3, 5)));
}
