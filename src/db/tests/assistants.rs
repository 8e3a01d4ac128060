use std::collections::HashSet;

use serde_json::{Value, json};

use super::tables::plan;
use super::{Db, object, on_both, page, read, write};
use crate::db::PageQuery;
use crate::db::assistants::{self, AssistantOrder, AssistantQuery};
use crate::db::engine::Conn;
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::assistant::{Assistant, AssistantSettings};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::AssistantId;
use crate::domain::time::Timestamp;

on_both!(
    an_assistant_is_stored_once_with_its_first_version,
    of_several_assistants_those_with_free_ids_are_stored,
    every_version_is_kept,
    a_search_filters_sorts_and_pages,
    a_search_finds_any_part_of_a_name,
    deleting_an_assistant_deletes_its_versions,
    renaming_changes_the_only_version,
);

fn named(name: &str, graph_id: &str, now: i64) -> Assistant {
    let settings = AssistantSettings {
        name: name.to_owned(),
        graph_id: graph_id.to_owned(),
        ..AssistantSettings::default()
    };
    Assistant::new(AssistantId::mint(), Ownership::default(), settings, Timestamp(now))
}

fn filter(wanted: Value) -> MetadataFilter {
    MetadataFilter::new("metadata", object(wanted)).expect("a filter")
}

async fn an_assistant_is_stored_once_with_its_first_version(db: Db) {
    let settings = AssistantSettings {
        graph_id: "agent".to_owned(),
        config: object(json!({"tags": ["x"], "recursion_limit": 5})),
        context: object(json!({"who": {"is": "me"}})),
        metadata: object(json!({"a": [1, null]})),
        name: "Ä name".to_owned(),
        description: Some("what for".to_owned()),
    };
    let assistant = Assistant::new(AssistantId::mint(), Ownership::default(), settings, Timestamp(7));
    let first = assistant.clone();
    let again = assistant.clone();
    let id = assistant.id;
    assert!(write!(db, |tx| assistants::insert(tx, &first)));
    assert!(!write!(db, |tx| assistants::insert(tx, &again)));
    assert_eq!(read!(db, |tx| assistants::find(tx, id)), Some(assistant.clone()));
    assert_eq!(write!(db, |tx| assistants::lock(tx, id)), Some(assistant.clone()));
    let version = read!(db, |tx| assistants::version(tx, id, 1)).expect("a version");
    assert_eq!(version.number, 1);
    assert_eq!(version.settings, assistant.settings);
    assert_eq!(version.created_at, Timestamp(7));
    assert_eq!(read!(db, |tx| assistants::newest_version(tx, id)), 1);
    assert_eq!(read!(db, |tx| assistants::find(tx, AssistantId::mint())), None);
    assert_eq!(read!(db, |tx| assistants::newest_version(tx, AssistantId::mint())), 0);
}

async fn of_several_assistants_those_with_free_ids_are_stored(db: Db) {
    let taken = named("one", "agent", 1);
    let free = named("two", "agent", 2);
    let first = taken.clone();
    write!(db, |tx| assistants::insert(tx, &first));
    let mut again = taken.clone();
    again.settings.name = "three".to_owned();
    let all = [again, free.clone()];
    let inserted = write!(db, |tx| assistants::insert_all(tx, &all));
    assert_eq!(inserted, HashSet::from([free.id]));
    for assistant in [taken, free] {
        let id = assistant.id;
        let version = read!(db, |tx| assistants::version(tx, id, 1)).expect("a version");
        assert_eq!(version.settings, assistant.settings);
        let mut locked = write!(db, |tx| assistants::lock_all(tx, &[id]));
        let stored = locked.remove(&id).expect("the assistant");
        assert_eq!(stored.expect("it can be read"), assistant);
    }
}

async fn every_version_is_kept(db: Db) {
    let mut assistant = named("one", "agent", 1);
    let id = assistant.id;
    let first = assistant.clone();
    write!(db, |tx| assistants::insert(tx, &first));
    for (number, name) in [(2, "two"), (3, "three")] {
        assistant.version = number;
        assistant.settings.name = name.to_owned();
        assistant.settings.metadata = object(json!({"even": number % 2 == 0}));
        assistant.updated_at = Timestamp(number);
        let changed = assistant.clone();
        write!(db, |tx| assistants::update(tx, &changed));
    }
    // An older version is the current one again; the row changes, but no version is added.
    let second = read!(db, |tx| assistants::version(tx, id, 2)).expect("a version");
    assistant.take(second, Timestamp(9));
    let taken = assistant.clone();
    write!(db, |tx| assistants::update(tx, &taken));
    let found = read!(db, |tx| assistants::find(tx, id)).expect("the assistant");
    assert_eq!(found.version, 2);
    assert_eq!(found.settings.name.as_str(), "two");
    assert_eq!(found.updated_at, Timestamp(9));
    assert_eq!(read!(db, |tx| assistants::newest_version(tx, id)), 3);

    let versions = async |metadata: Value, wanted: PageQuery| {
        let metadata = filter(metadata);
        let found = read!(db, |tx| assistants::versions(tx, id, &metadata, wanted)).into_items();
        found
            .into_iter()
            .map(|version| (version.number, version.created_at.0))
            .collect::<Vec<_>>()
    };
    assert_eq!(versions(json!({}), page(10, 0)).await, [(3, 3), (2, 2), (1, 1)]);
    assert_eq!(versions(json!({}), page(1, 1)).await, [(2, 2)]);
    assert_eq!(versions(json!({"even": true}), page(10, 0)).await, [(2, 2)]);
}

async fn a_search_filters_sorts_and_pages(db: Db) {
    let mut ids = vec![];
    for (n, name) in (0..).zip(["beta", "Alpha", "gamma", "delta"]) {
        let mut assistant = named(name, if n % 2 == 0 { "agent" } else { "plain" }, 10 + n);
        assistant.updated_at = Timestamp(100 - n);
        assistant.settings.metadata = object(json!({"n": n, "team": {"lead": n < 2}}));
        ids.push(assistant.id);
        write!(db, |tx| assistants::insert(tx, &assistant));
    }
    let found = async |wanted: AssistantQuery| {
        let counted = wanted.clone();
        let found = read!(db, |tx| assistants::search(tx, &wanted, usize::MAX)).into_items();
        let places: Vec<usize> = found
            .iter()
            .filter_map(|one| ids.iter().position(|id| *id == one.id))
            .collect();
        (places, read!(db, |tx| assistants::count(tx, &counted)))
    };
    let all = AssistantQuery::within(AccessScope::Server);
    assert_eq!(found(all.clone()).await, (vec![3, 2, 1, 0], 4));
    assert_eq!(
        found(AssistantQuery {
            limit: 2,
            offset: 1,
            ..all.clone()
        })
        .await,
        (vec![2, 1], 4)
    );
    let sorted = |sort, ascending| AssistantQuery {
        sort,
        ascending,
        ..all.clone()
    };
    assert_eq!(found(sorted(AssistantOrder::Name, true)).await.0, [1, 0, 3, 2]);
    assert_eq!(found(sorted(AssistantOrder::Name, false)).await.0, [2, 3, 0, 1]);
    assert_eq!(found(sorted(AssistantOrder::UpdatedAt, true)).await.0, [3, 2, 1, 0]);
    assert_eq!(found(sorted(AssistantOrder::Graph, true)).await.0, [0, 2, 1, 3]);
    assert_eq!(found(sorted(AssistantOrder::Id, true)).await.0, [0, 1, 2, 3]);
    let plain = AssistantQuery {
        graph_id: Some("plain".to_owned()),
        ..all.clone()
    };
    assert_eq!(found(plain).await, (vec![3, 1], 2));
    let led = AssistantQuery {
        metadata: filter(json!({"team": {"lead": true}})),
        ..all.clone()
    };
    assert_eq!(found(led).await, (vec![1, 0], 2));
}

async fn a_search_finds_any_part_of_a_name(db: Db) {
    for (n, name) in (1..).zip(["Größe 100%", "a_b", "a\\b", "axb", "GRÖSSE"]) {
        let assistant = named(name, "agent", n);
        write!(db, |tx| assistants::insert(tx, &assistant));
    }
    let found = async |name: &str| {
        let wanted = AssistantQuery {
            name: Some(name.to_owned()),
            ascending: true,
            ..AssistantQuery::within(AccessScope::Server)
        };
        let found = read!(db, |tx| assistants::search(tx, &wanted, usize::MAX)).into_items();
        found.into_iter().map(|one| one.settings.name).collect::<Vec<_>>()
    };
    assert_eq!(found("GRÖ").await, ["Größe 100%", "GRÖSSE"]);
    assert_eq!(found("0%").await, ["Größe 100%"]);
    assert_eq!(found("A_B").await, ["a_b"]);
    assert_eq!(found("a\\").await, ["a\\b"]);
    assert_eq!(found("").await.len(), 5);
    assert_eq!(found("nobody").await, Vec::<String>::new());
}

async fn deleting_an_assistant_deletes_its_versions(db: Db) {
    let assistant = named("one", "agent", 1);
    let id = assistant.id;
    write!(db, |tx| assistants::insert(tx, &assistant));
    assert!(write!(db, |tx| assistants::delete(tx, id)));
    assert!(!write!(db, |tx| assistants::delete(tx, id)));
    assert_eq!(read!(db, |tx| assistants::newest_version(tx, id)), 0);
}

async fn renaming_changes_the_only_version(db: Db) {
    let assistant = named("Old", "agent", 1);
    let id = assistant.id;
    write!(db, |tx| assistants::insert(tx, &assistant));
    write!(db, |tx| assistants::rename(tx, id, "New", Some("for tests")));
    let found = read!(db, |tx| assistants::find(tx, id)).expect("the assistant");
    assert_eq!(found.settings.name.as_str(), "New");
    assert_eq!(found.version, 1);
    assert_eq!(found.updated_at, Timestamp(1));
    let version = read!(db, |tx| assistants::version(tx, id, 1)).expect("a version");
    assert_eq!(version.settings, found.settings);
    let by_name = AssistantQuery {
        name: Some("new".to_owned()),
        ..AssistantQuery::within(AccessScope::Server)
    };
    assert_eq!(read!(db, |tx| assistants::count(tx, &by_name)), 1);
}

/// Queries and the indexes they must use on SQLite.
const SEARCHES: [(&str, &str); 7] = [
    (
        "select * from assistants order by created_at desc, assistant_id desc limit 10",
        "assistants_by_created",
    ),
    (
        "select * from assistants order by updated_at, assistant_id limit 10",
        "assistants_by_updated",
    ),
    (
        "select * from assistants order by folded desc, assistant_id desc limit 10",
        "assistants_by_name",
    ),
    (
        "select * from assistants order by graph_id, created_at, assistant_id limit 10",
        "assistants_by_graph",
    ),
    (
        "select * from assistants where true and graph_id = 'g1' order by created_at desc, assistant_id desc limit 10",
        "assistants_by_graph",
    ),
    (
        "select count(*) from assistants where true and graph_id = 'g1'",
        "assistants_by_graph",
    ),
    (
        "select * from assistant_versions where assistant_id = {id} order by version desc limit 10",
        "assistant_versions",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_use_indexes_on_sqlite() {
    super::on_server(async {
        let db = super::open("sqlite::memory:").await;
        for (sql, index) in SEARCHES {
            let explained = sql.replace("{id}", "x'00'");
            let plan = read!(db, |tx| plan(tx, &explained));
            assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
        }
        db.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_use_indexes_on_postgres() {
    super::on_server(async {
        const FILL: &str = "insert into assistants select gen_random_uuid(), 'default', '', 1, 'g' || n % 50, '{}', '{}', \
        jsonb_build_object('n', n), 'name ' || n, 'name ' || n, null, n, n from generate_series(1, 5000) n; \
        insert into assistant_versions select assistant_id, 1, graph_id, config, context, metadata, name, null, 0 \
        from assistants; analyze";
        let Some(database) = super::postgres::fresh_database().await else {
            return;
        };
        let db = super::open(&database.url).await;
        db.write(|tx| {
            Box::pin(async move {
                if let Conn::Postgres(conn) = &mut tx.conn {
                    sqlx::raw_sql(FILL).execute(conn).await?;
                }
                crate::db::DbResult::Ok(())
            })
        })
        .await
        .expect("a write");
        // The index of the metadata is for roles without row-level security: `@>` is not evaluated before a policy.
        let by_metadata = (
            "select count(*) from assistants where tenant in ('*', 'acme') and metadata @> '{\"n\": 7}'",
            "assistants_by_tenant",
        );
        for (sql, index) in SEARCHES.into_iter().chain([by_metadata]) {
            let explained = sql.replace("{id}", "'00000000-0000-7000-8000-000000000000'");
            let plan = read!(db, |tx| plan(tx, &explained));
            assert!(plan.contains(index) && !plan.contains("Seq Scan"), "{sql}\n{plan}");
        }
        db.close().await;
        database.discard().await;
    })
    .await;
}
