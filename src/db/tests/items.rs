//! Items: addresses, filters, TTLs and namespaces.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{object, on_both, read, write};
use crate::db::Db;
use crate::db::items::{self, FileFactLimits, NamespaceSearch};
use crate::domain::access::Ownership;
use crate::domain::identity::UserId;
use crate::domain::item::{Item, ItemAddress, ItemFilter, ItemSearch, Namespace, PreparedItem};
use crate::domain::state::{Encoding, FileFacts};
use crate::domain::time::Timestamp;

on_both! {
    items_are_written_read_and_deleted,
    files_in_items_are_described,
    files_behind_the_limit_of_what_is_read_are_not_described,
    keys_of_a_path_and_below_it_are_listed_in_order,
    a_search_covers_a_namespace_and_those_below_it,
    searches_are_paged,
    filters_find_items_by_value,
    expired_items_are_not_found,
    refreshing_restarts_the_ttl,
    expired_items_are_swept_once,
    namespaces_are_listed,
    namespaces_are_listed_across_batches,
}

fn namespace(text: &str) -> Namespace {
    Namespace::prefix("n", text.split_terminator('.').map(str::to_owned).collect()).expect("a namespace")
}

fn address(labels: &str, key: &str) -> ItemAddress {
    ItemAddress::new(namespace(labels), key).expect("an address")
}

fn draft(labels: &str, key: &str, value: Value) -> PreparedItem {
    PreparedItem::new(address(labels, key), object(value), None).expect("a draft")
}

async fn put(db: &Db, draft: PreparedItem, now: i64) {
    write!(db, |tx| items::put(tx, &Ownership::default(), &draft, Timestamp(now)));
}

async fn find(db: &Db, labels: &str, key: &str, now: i64) -> Option<Item> {
    let address = address(labels, key);
    read!(db, |tx| items::find(
        tx,
        &Ownership::default(),
        &address,
        Timestamp(now)
    ))
}

/// Returns the keys that a search finds, in order.
async fn keys(db: &Db, prefix: &str, filter: Value, limit: u32, offset: u32) -> Vec<String> {
    let filter = ItemFilter::read("filter", &object(filter)).expect("a filter");
    let wanted = ItemSearch {
        prefix: namespace(prefix),
        filter,
        limit,
        offset,
    };
    let found = read!(db, |tx| items::search(
        tx,
        &Ownership::default(),
        &wanted,
        usize::MAX,
        Timestamp(100)
    ))
    .into_items();
    found.into_iter().map(|item| item.address.key).collect()
}

async fn items_are_written_read_and_deleted(db: Db) {
    put(&db, draft("a.b", "k", json!({"x": {"y": [1, 2.5, null]}, "ü": "π"})), 1).await;
    put(&db, draft("a", "k", json!({"other": true})), 2).await;
    let expected = Item {
        address: address("a.b", "k"),
        value: object(json!({"x": {"y": [1, 2.5, null]}, "ü": "π"})),
        expires_at: None,
        created_at: Timestamp(1),
        updated_at: Timestamp(1),
    };
    assert_eq!(find(&db, "a.b", "k", 5).await, Some(expected.clone()));
    put(&db, draft("a.b", "k", json!({"x": 2})), 3).await;
    let newer = Item {
        value: object(json!({"x": 2})),
        updated_at: Timestamp(3),
        ..expected
    };
    assert_eq!(find(&db, "a.b", "k", 5).await, Some(newer));
    let deleted = address("a.b", "k");
    let forget = async || {
        let deleted = deleted.clone();
        write!(db, |tx| items::delete(
            tx,
            &Ownership::default(),
            &deleted,
            Timestamp(4)
        ))
    };
    assert!(forget().await);
    assert!(!forget().await);
    assert_eq!(find(&db, "a.b", "k", 5).await, None);
    assert!(find(&db, "a", "k", 5).await.is_some());
}

async fn files_in_items_are_described(db: Db) {
    for (key, value) in [
        ("/bytes", json!({"content": "AAEC/w==", "encoding": "base64"})),
        ("/byte", json!({"content": "AA==", "encoding": "base64"})),
        ("/empty", json!({"content": ""})),
        ("/lines", json!({"content": ["one", "zwö"], "encoding": "utf-8"})),
        ("/mixed", json!({"content": ["one", 2]})),
        ("/none", json!({"encoding": "base64"})),
        ("/number", json!({"content": 5})),
        ("/text", json!({"content": "x"})),
    ] {
        put(&db, draft("n", key, value), 1).await;
    }
    put(&db, draft("n.below", "/below", json!({"content": "x"})), 1).await;
    let content = object(json!({"content": "x"}));
    let expired = PreparedItem {
        value: content,
        ..short_lived("n", "/expired")
    };
    put(&db, expired, 1).await;
    let text = json!({"content": "größer==", "encoding": ["base64"]});
    put(&db, draft("n", "/text", text), 2).await;
    let names = "/below /byte /bytes /empty /expired /lines /mixed /missing /none /number /text";
    let keys: Vec<String> = names.split(' ').map(str::to_owned).collect();
    let described = async |space: Ownership| {
        let place = namespace("n");
        let keys = keys.clone();
        read!(db, |tx| items::file_facts(tx, &space, &place, &keys, Timestamp(100)))
    };
    let facts = |size, encoding, modified| FileFacts {
        size: Some(size),
        encoding: Some(encoding),
        created_at: Some(Timestamp(1).to_string()),
        modified_at: Some(Timestamp(modified).to_string()),
    };
    let expected = [
        ("/byte", facts(1, Encoding::Base64, 1)),
        ("/bytes", facts(4, Encoding::Base64, 1)),
        ("/empty", facts(0, Encoding::Utf8, 1)),
        ("/lines", facts(8, Encoding::Utf8, 1)),
        ("/text", facts(10, Encoding::Utf8, 2)),
    ];
    let expected = BTreeMap::from(expected.map(|(key, facts)| (key.to_owned(), facts)));
    assert_eq!(described(Ownership::default()).await, expected);
    let elsewhere = Ownership {
        owner: UserId::stored("someone else".to_owned()),
        ..Ownership::default()
    };
    assert_eq!(described(elsewhere).await, BTreeMap::new());
}

async fn files_behind_the_limit_of_what_is_read_are_not_described(db: Db) {
    let content = "x".repeat(1000);
    let keys: Vec<String> = (0..70).map(|number| format!("/{number:02}")).collect();
    for key in &keys {
        put(&db, draft("n", key, json!({"content": content})), 1).await;
    }
    let described = async |bytes: usize| {
        let space = Ownership::default();
        let place = namespace("n");
        let keys = keys.clone();
        let limits = FileFactLimits {
            opened: bytes,
            measured: bytes,
        };
        let facts = read!(db, |tx| items::file_facts_within(
            tx,
            &space,
            &place,
            &keys,
            Timestamp(100),
            limits
        ));
        facts.into_keys().collect::<Vec<String>>()
    };
    assert_eq!(described(usize::MAX).await, keys);
    // A batch has 32 items.
    assert_eq!(described(55_000).await, keys[..64]);
    assert_eq!(described(1).await, keys[..32]);
}

async fn keys_of_a_path_and_below_it_are_listed_in_order(db: Db) {
    for key in [
        "/a", "/a!", "/a-b/c", "/a.md", "/a/b", "/a/b/c", "/a/é", "/a0", "/b", "0", "a/b", "/A/b",
    ] {
        put(&db, draft("n", key, json!({"content": "x"})), 1).await;
    }
    put(&db, draft("n.below", "/a/below", json!({"content": "x"})), 1).await;
    put(&db, short_lived("n", "/a/expired"), 1).await;
    let listed = async |at: &'static str, most: usize| {
        let space = Ownership::default();
        let place = namespace("n");
        read!(db, |tx| items::keys(
            tx,
            &space,
            &place,
            at,
            most,
            Timestamp(100_000_000)
        ))
    };
    assert_eq!(listed("/a", 9).await, ["/a", "/a/b", "/a/b/c", "/a/é"]);
    assert_eq!(listed("/a", 2).await, ["/a", "/a/b"]);
    assert_eq!(listed("/a/b", 9).await, ["/a/b", "/a/b/c"]);
    assert_eq!(listed("/a.md", 9).await, ["/a.md"]);
    assert_eq!(listed("/none", 9).await, [""; 0]);
    let all = [
        "/A/b", "/a", "/a!", "/a-b/c", "/a.md", "/a/b", "/a/b/c", "/a/é", "/a0", "/b",
    ];
    assert_eq!(listed("/", 99).await, all);
}

async fn a_search_covers_a_namespace_and_those_below_it(db: Db) {
    for (labels, key) in [
        ("a", "1"),
        ("a.b", "2"),
        ("a.b.c", "3"),
        ("a-b", "4"),
        ("ab", "5"),
        ("b.a", "6"),
        ("é", "7"),
    ] {
        put(&db, draft(labels, key, json!({})), 1).await;
    }
    assert_eq!(keys(&db, "a", json!({}), 10, 0).await, ["1", "2", "3"]);
    assert_eq!(keys(&db, "a.b", json!({}), 10, 0).await, ["2", "3"]);
    assert_eq!(keys(&db, "é", json!({}), 10, 0).await, ["7"]);
    assert_eq!(
        keys(&db, "", json!({}), 10, 0).await,
        ["4", "1", "2", "3", "5", "6", "7"]
    );
    assert_eq!(keys(&db, "c", json!({}), 10, 0).await, [""; 0]);
}

async fn searches_are_paged(db: Db) {
    for key in ["b", "a", "C", "d"] {
        put(&db, draft("n", key, json!({})), 1).await;
    }
    assert_eq!(keys(&db, "n", json!({}), 2, 0).await, ["C", "a"]);
    assert_eq!(keys(&db, "n", json!({}), 2, 2).await, ["b", "d"]);
    assert_eq!(keys(&db, "n", json!({}), 2, 4).await, [""; 0]);
}

async fn filters_find_items_by_value(db: Db) {
    let values = [
        ("int", json!({"v": 2, "o": {"i": 1}})),
        ("float", json!({"v": 2.0, "o": {"i": 1, "j": 2}})),
        ("half", json!({"v": 2.5})),
        ("text", json!({"v": "2"})),
        ("long", json!({"v": "zebra"})),
        ("upper", json!({"v": "Zebra"})),
        ("yes", json!({"v": true})),
        ("null", json!({"v": null})),
        ("none", json!({})),
        ("list", json!({"v": [1, {"a": [null]}]})),
        ("object", json!({"v": {"a": 1, "b": {"c": "x"}}})),
        ("dotted", json!({"v.w": 1, "\"q'": 2, "0": 3})),
    ];
    for (key, value) in &values {
        put(&db, draft("n", key, value.clone()), 1).await;
    }
    let cases: [(Value, &[&str]); 23] = [
        (json!({"v": 2}), &["float", "int"]),
        (json!({"v": "2"}), &["text"]),
        (json!({"v": true}), &["yes"]),
        (json!({"v": 1}), &[]),
        (json!({"v": null}), &["dotted", "none", "null"]),
        (
            json!({"v": {"$ne": null}, "o": null}),
            &["half", "list", "long", "object", "text", "upper", "yes"],
        ),
        (json!({"v": {"$eq": 2.5}}), &["half"]),
        (json!({"v": {"$gt": 2}}), &["half"]),
        (json!({"v": {"$gte": 2, "$lt": 2.5}}), &["float", "int"]),
        (json!({"v": {"$lte": 2}}), &["float", "int"]),
        (json!({"v": {"$gt": "a"}}), &["long"]),
        (json!({"v": {"$gte": "Zebra"}}), &["long", "upper"]),
        (json!({"v": {"$lt": "3"}}), &["text"]),
        (json!({"v": [1, {"a": [null]}]}), &["list"]),
        (json!({"v": [1]}), &[]),
        (json!({"v": [{"a": [null]}, 1]}), &[]),
        (json!({"v": {"$eq": {"b": {"c": "x"}, "a": 1}}}), &["object"]),
        (json!({"v": {"$eq": {"a": 1}}}), &[]),
        (json!({"v": {"b": {"c": {"$gt": "a"}}}}), &["object"]),
        (json!({"o": {"$eq": {"i": 1}}}), &["int"]),
        (json!({"o": {"i": 1}}), &["float", "int"]),
        (json!({"v.w": 1, "\"q'": {"$lt": 3}, "0": {"$ne": 4}}), &["dotted"]),
        (json!({"v": {"0": 1}}), &[]),
    ];
    for (filter, expected) in cases {
        assert_eq!(keys(&db, "n", filter.clone(), 100, 0).await, expected, "{filter}");
    }
}

/// Returns an item with a TTL of ten microseconds.
fn short_lived(labels: &str, key: &str) -> PreparedItem {
    PreparedItem {
        ttl: Some(Duration::from_micros(10)),
        ..draft(labels, key, json!({}))
    }
}

async fn expired_items_are_not_found(db: Db) {
    put(&db, short_lived("n", "k"), 90).await;
    put(&db, short_lived("n", "l"), 91).await;
    assert_eq!(
        find(&db, "n", "k", 99).await.and_then(|item| item.expires_at),
        Some(Timestamp(100))
    );
    assert_eq!(find(&db, "n", "k", 100).await, None);
    assert_eq!(keys(&db, "n", json!({}), 10, 0).await, ["l"]);
    let deleted = address("n", "k");
    assert!(!write!(db, |tx| items::delete(
        tx,
        &Ownership::default(),
        &deleted,
        Timestamp(100)
    )));
    put(&db, short_lived("n", "l"), 200).await;
    let anew = find(&db, "n", "l", 201).await.expect("it is there again");
    assert_eq!(anew.created_at, Timestamp(200));
    assert_eq!(anew.expires_at, Some(Timestamp(210)));
    put(&db, draft("n", "l", json!({})), 205).await;
    let lasting = find(&db, "n", "l", 1000).await.expect("it stays");
    assert_eq!(lasting.created_at, Timestamp(200));
    assert_eq!(lasting.expires_at, None);
}

async fn refreshing_restarts_the_ttl(db: Db) {
    put(&db, short_lived("n", "k"), 0).await;
    put(&db, draft("n", "l", json!({})), 0).await;
    let both = [address("n", "k"), address("n", "l")];
    let again = both.clone();
    write!(db, |tx| items::refresh(tx, &Ownership::default(), &again, Timestamp(9)));
    let found = find(&db, "n", "k", 18).await.expect("it stays longer");
    assert_eq!(found.expires_at, Some(Timestamp(19)));
    assert_eq!(found.updated_at, Timestamp(0));
    write!(db, |tx| items::refresh(tx, &Ownership::default(), &both, Timestamp(19)));
    assert_eq!(find(&db, "n", "k", 19).await, None);
    assert_eq!(find(&db, "n", "l", 19).await.and_then(|item| item.expires_at), None);
    write!(db, |tx| items::refresh(tx, &Ownership::default(), &[], Timestamp(19)));
}

async fn expired_items_are_swept_once(db: Db) {
    for at in 0..50 {
        put(&db, short_lived("n", &format!("{at:02}")), at).await;
    }
    put(&db, draft("n", "stays", json!({})), 0).await;
    let sweepers = (0..4).map(|_| {
        let db = db.clone();
        async move { write!(db, |tx| items::sweep(tx, Timestamp(49), 8)) }
    });
    let swept: u64 = futures::future::join_all(sweepers).await.into_iter().sum();
    assert!(swept <= 32, "{swept}");
    let mut left = 40 - swept;
    while left > 0 {
        let more = write!(db, |tx| items::sweep(tx, Timestamp(49), 8));
        assert!(more > 0, "{left} are left");
        left -= more;
    }
    assert_eq!(write!(db, |tx| items::sweep(tx, Timestamp(49), 8)), 0);
    assert!(find(&db, "n", "stays", 49).await.is_some() && find(&db, "n", "40", 49).await.is_some());
}

/// Returns a page of the namespaces with this prefix and suffix, cut to a depth, as texts.
async fn listed(db: &Db, ends: [&str; 2], max_depth: Option<usize>, limit: usize, offset: usize) -> Vec<String> {
    let [prefix, suffix] = ends.map(namespace);
    let wanted = NamespaceSearch {
        prefix,
        suffix,
        max_depth,
        limit,
        offset,
    };
    let found = read!(db, |tx| items::list_namespaces(
        tx,
        &Ownership::default(),
        &wanted,
        Timestamp(100)
    ));
    found.iter().map(ToString::to_string).collect()
}

async fn namespaces_are_listed(db: Db) {
    for labels in ["a", "a.b.c", "a.b.d", "a.x.c", "b.c", "c"] {
        for key in ["1", "2"] {
            put(&db, draft(labels, key, json!({})), 1).await;
        }
    }
    put(&db, short_lived("a.deleted", "1"), 90).await;
    let all = ["a", "a.b.c", "a.b.d", "a.x.c", "b.c", "c"];
    assert_eq!(listed(&db, ["", ""], None, 100, 0).await, all);
    assert_eq!(listed(&db, ["", ""], None, 2, 3).await, ["a.x.c", "b.c"]);
    assert_eq!(listed(&db, ["a.b", ""], None, 100, 0).await, ["a.b.c", "a.b.d"]);
    assert_eq!(
        listed(&db, ["", "c"], None, 100, 0).await,
        ["a.b.c", "a.x.c", "b.c", "c"]
    );
    assert_eq!(listed(&db, ["a", "c"], Some(2), 100, 0).await, ["a.b", "a.x"]);
    assert_eq!(
        listed(&db, ["", ""], Some(2), 100, 0).await,
        ["a", "a.b", "a.x", "b.c", "c"]
    );
    assert_eq!(listed(&db, ["a.*.c", ""], None, 100, 0).await, ["a.b.c", "a.x.c"]);
    assert_eq!(listed(&db, ["", "b.*"], None, 100, 0).await, ["a.b.c", "a.b.d", "b.c"]);
}

async fn namespaces_are_listed_across_batches(db: Db) {
    db.write(|tx| {
        Box::pin(async move {
            for user in 0..3 {
                for note in 0..200 {
                    let labels = format!("users.{user}.{note:03}");
                    items::put(tx, &Ownership::default(), &draft(&labels, "k", json!({})), Timestamp(1)).await?;
                }
            }
            crate::db::DbResult::Ok(())
        })
    })
    .await
    .expect("a write");
    assert_eq!(
        listed(&db, ["users", ""], Some(2), 100, 0).await,
        ["users.0", "users.1", "users.2"]
    );
    let all = listed(&db, ["users", ""], None, 1000, 0).await;
    assert_eq!(all.len(), 600);
    assert_eq!(all[0].as_str(), "users.0.000");
    assert_eq!(all[599].as_str(), "users.2.199");
    assert_eq!(
        listed(&db, ["users", "128"], None, 2, 1).await,
        ["users.1.128", "users.2.128"]
    );
    assert_eq!(listed(&db, ["users", ""], None, 1, 128).await, ["users.0.128"]);
}
