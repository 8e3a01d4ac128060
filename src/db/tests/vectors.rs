//! Semantic search of items, with and without pgvector.

use serde_json::{Value, json};

use super::{object, on_both, read, write};
use crate::db::items::{self, VectorQuery, VectorSearch, nearest};
use crate::db::{Db, Engine};
use crate::domain::access::Ownership;
use crate::domain::item::{ItemAddress, ItemFilter, ItemSearch, ItemVector, Namespace, PreparedItem};
use crate::domain::time::Timestamp;

on_both! {
    the_closest_items_come_first,
    vectors_are_replaced_and_deleted_with_their_items,
    pages_are_right_among_many_vectors,
}

/// The environment variable that requires the extension pgvector.
const REQUIRE_PGVECTOR: &str = "ADJUTANT_TEST_REQUIRE_PGVECTOR";

fn namespace(text: &str) -> Namespace {
    Namespace::prefix("n", text.split_terminator('.').map(str::to_owned).collect()).expect("a namespace")
}

async fn put(db: &Db, labels: &str, key: &str, vectors: &[[f32; 2]], value: Value) {
    let address = ItemAddress::new(namespace(labels), key).expect("an address");
    let vector = |(at, vector): (usize, &[f32; 2])| ItemVector {
        path: format!("t[{at}]"),
        vector: vector.to_vec(),
    };
    let vectors = vectors.iter().enumerate().map(vector).collect();
    let draft = PreparedItem {
        vectors,
        ..PreparedItem::new(address, object(value), None).expect("a draft")
    };
    write!(db, |tx| items::put(tx, &Ownership::default(), &draft, Timestamp(1)));
}

/// Returns keys and scores of the items nearest to the vector (1, 0), and checks that all methods of this database
/// agree.
async fn nearest_keys(db: &Db, labels: &str, filter: Value, limit: u32, offset: u32) -> Vec<(String, f32)> {
    let by = db.vector_search().await.expect("the database answers");
    let is_needed = db.engine() == Engine::Postgres && std::env::var_os(REQUIRE_PGVECTOR).is_some();
    assert!(
        by == VectorSearch::Extension || !is_needed,
        "the extension pgvector is not installed"
    );
    let mut lists = vec![];
    for by in [VectorSearch::Scan, by] {
        let filter = ItemFilter::read("filter", &object(filter.clone())).expect("a filter");
        let wanted = ItemSearch {
            prefix: namespace(labels),
            filter,
            limit,
            offset,
        };
        let near = VectorQuery {
            vector: vec![1.0, 0.0],
            by,
        };
        let found = read!(db, |tx| nearest(
            tx,
            &Ownership::default(),
            &wanted,
            &near,
            Timestamp(5)
        ))
        .expect("few enough");
        let scores = found
            .into_iter()
            .map(|found| (found.item.address.key, found.score.unwrap_or(9.0)));
        lists.push(scores.collect::<Vec<_>>());
    }
    assert_eq!(lists[0], lists[1], "both methods give the same result");
    lists.swap_remove(0)
}

async fn the_closest_items_come_first(db: Db) {
    put(&db, "n", "far", &[[-1.0, 0.0]], json!({"k": 1})).await;
    put(&db, "n", "near", &[[1.0, 0.0]], json!({"k": 1})).await;
    put(
        &db,
        "n.below",
        "middle",
        &[[-1.0, 0.0], [0.6, 0.8], [0.0, 1.0]],
        json!({"k": 2}),
    )
    .await;
    put(&db, "n", "nothing", &[[0.0, 0.0]], json!({"k": 2})).await;
    put(&db, "n", "unindexed", &[], json!({"k": 1})).await;
    put(&db, "m", "outside", &[[1.0, 0.0]], json!({"k": 1})).await;
    let pair = |key: &str, score: f32| (key.to_owned(), score);
    let all = [
        pair("near", 1.0),
        pair("middle", 0.6),
        pair("nothing", 0.0),
        pair("far", -1.0),
    ];
    assert_eq!(nearest_keys(&db, "n", json!({}), 10, 0).await, all);
    assert_eq!(nearest_keys(&db, "n", json!({}), 2, 1).await, all[1..3]);
    assert_eq!(
        nearest_keys(&db, "n", json!({"k": {"$lt": 2}}), 10, 0).await,
        [all[0].clone(), all[3].clone()]
    );
    assert_eq!(nearest_keys(&db, "n.below", json!({}), 10, 0).await, all[1..2]);
}

async fn vectors_are_replaced_and_deleted_with_their_items(db: Db) {
    put(&db, "n", "a", &[[1.0, 0.0], [0.0, 1.0]], json!({})).await;
    put(&db, "n", "a", &[[0.6, 0.8]], json!({})).await;
    assert_eq!(nearest_keys(&db, "n", json!({}), 10, 0).await, [("a".to_owned(), 0.6)]);
    put(&db, "n", "a", &[], json!({})).await;
    assert_eq!(nearest_keys(&db, "n", json!({}), 10, 0).await, []);
    put(&db, "n", "a", &[[1.0, 0.0]], json!({})).await;
    let deleted = ItemAddress::new(namespace("n"), "a").expect("an address");
    write!(db, |tx| items::delete(
        tx,
        &Ownership::default(),
        &deleted,
        Timestamp(2)
    ));
    put(&db, "n", "a", &[], json!({})).await;
    assert_eq!(nearest_keys(&db, "n", json!({}), 10, 0).await, []);
}

async fn pages_are_right_among_many_vectors(db: Db) {
    db.write(|tx| {
        Box::pin(async move {
            for number in 0..1500_u16 {
                let angle = f32::from(number) / 1000.0;
                let vectors = [[angle.cos(), angle.sin()], [-1.0, 0.0]].into_iter().enumerate();
                let vectors = vectors.map(|(at, v)| ItemVector {
                    path: format!("t[{at}]"),
                    vector: v.to_vec(),
                });
                // The order of the keys differs from that of the scores.
                let key = format!("{:04}", (u32::from(number) * 7) % 1500);
                let address = ItemAddress::new(namespace("n"), key).expect("an address");
                let draft = PreparedItem::new(address, object(json!({"number": number})), None).expect("a draft");
                items::put(
                    tx,
                    &Ownership::default(),
                    &PreparedItem {
                        vectors: vectors.collect(),
                        ..draft
                    },
                    Timestamp(1),
                )
                .await?;
            }
            crate::db::DbResult::Ok(())
        })
    })
    .await
    .expect("a write");
    let expected = |from: u32, to: u32| (from..to).map(|n| format!("{:04}", (n * 7) % 1500)).collect::<Vec<_>>();
    let keys = async |limit: u32, offset: u32| {
        nearest_keys(&db, "n", json!({}), limit, offset)
            .await
            .into_iter()
            .map(|(key, _)| key)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(3, 0).await, expected(0, 3));
    assert_eq!(keys(5, 700).await, expected(700, 705));
}
