//! Items by what they are about: their texts as directions, compared with that of a question.
//!
//! Every search is exact. Where Postgres has the extension pgvector it compares the vectors itself; otherwise they are read,
//! some hundred at a time, and compared here, which is why their number is bounded then.

use std::cmp::Ordering;
use std::collections::HashMap;

use sqlx::{QueryBuilder, query, query_scalar};

use super::{ItemRow, namespace_of, range, text_of};
use crate::db::engine::{Engine, Matches, Vector, on_engine};
use crate::db::json::{readable_with, unless_corrupt};
use crate::db::{Db, DbResult, Tx};
use crate::domain::item::{FoundItem, Item, ItemAddress, ItemDraft, ItemSearch};
use crate::domain::time::Timestamp;

/// How many vectors are read at a time.
const BATCH: i64 = 256;
/// How many vectors are compared for one search when the database does not do it.
pub const MOST_COMPARED: usize = 100_000;

/// Who compares vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorSearch {
    /// Postgres, by the extension pgvector.
    Extension,
    /// This program.
    Scan,
}

/// What is looked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Near {
    /// The direction of the question, a unit vector.
    pub vector: Vec<f32>,
    /// Who compares.
    pub by: VectorSearch,
}

impl Db {
    /// Who compares vectors in this database: Postgres if it has the extension pgvector, or can have it from us.
    ///
    /// # Errors
    /// [`DbError`](crate::db::DbError) when the database does not answer.
    pub async fn vector_search(&self) -> DbResult<VectorSearch> {
        const OFFERED: &str = "select count(*) from pg_available_extensions where name = 'vector'";
        const INSTALLED: &str = "select count(*) from pg_extension where extname = 'vector'";
        if self.engine() == Engine::Sqlite {
            return Ok(VectorSearch::Scan);
        }
        if self.has(INSTALLED).await? {
            return Ok(VectorSearch::Extension);
        }
        if self.has(OFFERED).await? {
            // It may be forbidden to us, or somebody else may do it at this moment; what counts is what is there then.
            let made = self.write(|tx| {
                Box::pin(async move {
                    const CREATE: &str = "create extension if not exists vector";
                    on_engine!(tx, |conn| query(CREATE).execute(conn).await.map(drop))?;
                    Ok(())
                })
            });
            if let Err(error) = made.await {
                tracing::warn!(%error, "could not install the extension pgvector");
            }
        }
        let found = self.has(INSTALLED).await?;
        Ok(if found {
            VectorSearch::Extension
        } else {
            VectorSearch::Scan
        })
    }

    async fn has(&self, sql: &'static str) -> DbResult<bool> {
        self.read(move |tx| {
            Box::pin(async move {
                let count: i64 = on_engine!(tx, |conn| query_scalar(sql).fetch_one(conn).await)?;
                Ok(count > 0)
            })
        })
        .await
    }
}

/// Replaces the vectors of an item that is there.
pub(super) async fn replace(tx: &mut Tx<'_>, draft: &ItemDraft) -> DbResult<()> {
    const FORGET: &str = "delete from item_vectors where namespace = $1 and key = $2";
    let namespace = text_of(&draft.address.namespace);
    let key = draft.address.key.as_str();
    on_engine!(tx, |conn| query(FORGET)
        .bind(&namespace)
        .bind(key)
        .execute(conn)
        .await
        .map(drop))?;
    if draft.vectors.is_empty() {
        return Ok(());
    }
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("insert into item_vectors (namespace, key, path, vector) ");
        sql.push_values(&draft.vectors, |mut row, found_by| {
            row.push_bind(&namespace).push_bind(key).push_bind(&found_by.path);
            row.push_bind(Vector(found_by.vector.clone()));
        });
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// The items that are wanted and have vectors, the closest first. None if there are too many to be compared.
pub async fn nearest(
    tx: &mut Tx<'_>,
    wanted: &ItemSearch,
    near: &Near,
    now: Timestamp,
) -> DbResult<Option<Vec<FoundItem>>> {
    match near.by {
        VectorSearch::Extension => compared_there(tx, wanted, near, now).await.map(Some),
        VectorSearch::Scan => compared_here(tx, wanted, near, now).await,
    }
}

#[derive(sqlx::FromRow)]
struct ScoredRow {
    #[sqlx(flatten)]
    item: ItemRow,
    score: f64,
}

/// Lets Postgres compare. For unit vectors the inner product is the cosine; the operator gives it with the other sign.
async fn compared_there(tx: &mut Tx<'_>, wanted: &ItemSearch, near: &Near, now: Timestamp) -> DbResult<Vec<FoundItem>> {
    let (from, to) = range(&wanted.prefix);
    let length = i32::try_from(near.vector.len()).unwrap_or(i32::MAX);
    let rows: Vec<ScoredRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(
            "with near as (select namespace, key, max(-(vector::vector <#> question::vector)) as score \
             from item_vectors, (select ",
        );
        sql.push_bind(Vector(near.vector.clone()))
            .push("::real[] as question) asked where namespace >= ");
        sql.push_bind(from).push(" and namespace < ").push_bind(to);
        sql.push(" and cardinality(vector) = ")
            .push_bind(length)
            .push(" group by namespace, key) ");
        sql.push(
            "select i.namespace, i.key, cast(i.value as text) as value, i.expires_at, i.created_at, i.updated_at, ",
        );
        sql.push("near.score from near join items i on i.namespace = near.namespace and i.key = near.key ");
        sql.push("where (i.expires_at is null or i.expires_at > ")
            .push_bind(now.0)
            .push(")");
        sql.push_matches("i.value", &wanted.filter);
        sql.push(" order by near.score desc, i.namespace, i.key limit ")
            .push_bind(i64::from(wanted.limit));
        sql.push(" offset ").push_bind(i64::from(wanted.offset));
        sql.build_query_as().fetch_all(conn).await
    })?;
    readable_with(rows, |row| Ok(found(row.item.try_into()?, narrow(row.score))))
}

#[derive(sqlx::FromRow)]
struct VectorRow {
    namespace: String,
    key: String,
    path: String,
    vector: Vector,
}

/// How close an item is.
struct Scored {
    namespace: String,
    key: String,
    score: f32,
}

impl Scored {
    /// The closest first, then by place.
    fn order(&self, other: &Self) -> Ordering {
        let places = || (&self.namespace, &self.key).cmp(&(&other.namespace, &other.key));
        other.score.total_cmp(&self.score).then_with(places)
    }
}

async fn compared_here(
    tx: &mut Tx<'_>,
    wanted: &ItemSearch,
    near: &Near,
    now: Timestamp,
) -> DbResult<Option<Vec<FoundItem>>> {
    let (from, to) = range(&wanted.prefix);
    let most = wanted.offset as usize + wanted.limit as usize;
    let mut position = (from, String::new(), String::new());
    let mut compared = 0;
    let mut best = Vec::<Scored>::new();
    loop {
        let rows = vectors_after(tx, wanted, (&position, &to), now).await?;
        compared += rows.len();
        if compared > MOST_COMPARED {
            return Ok(None);
        }
        let is_last = i64::try_from(rows.len()) != Ok(BATCH);
        for VectorRow {
            namespace,
            key,
            path,
            vector,
        } in rows
        {
            position = (namespace.clone(), key.clone(), path);
            let Some(score) = cosine(&vector.0, &near.vector) else {
                continue;
            };
            match best
                .last_mut()
                .filter(|last| last.namespace == namespace && last.key == key)
            {
                Some(same) => same.score = same.score.max(score),
                None => best.push(Scored { namespace, key, score }),
            }
        }
        // The item looked at last may have more vectors: it stays at the end.
        if is_last || best.len() > 4 * most + 1024 {
            let last = best.pop();
            best.sort_by(Scored::order);
            best.truncate(most);
            best.extend(last);
        }
        if is_last {
            break;
        }
    }
    best.sort_by(Scored::order);
    let page = best
        .into_iter()
        .skip(wanted.offset as usize)
        .take(wanted.limit as usize)
        .collect();
    with_items(tx, page).await.map(Some)
}

/// The next vectors behind a position.
async fn vectors_after(
    tx: &mut Tx<'_>,
    wanted: &ItemSearch,
    ((namespace, key, path), to): (&(String, String, String), &str),
    now: Timestamp,
) -> DbResult<Vec<VectorRow>> {
    let rows = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(
            "select v.namespace, v.key, v.path, v.vector from item_vectors v \
             join items i on i.namespace = v.namespace and i.key = v.key where (v.namespace, v.key, v.path) > (",
        );
        sql.push_bind(namespace)
            .push(", ")
            .push_bind(key)
            .push(", ")
            .push_bind(path);
        sql.push(") and v.namespace < ").push_bind(to);
        sql.push(" and (i.expires_at is null or i.expires_at > ")
            .push_bind(now.0)
            .push(")");
        sql.push_matches("i.value", &wanted.filter);
        sql.push(" order by v.namespace, v.key, v.path limit ").push_bind(BATCH);
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows)
}

/// The items of a page, in its order.
async fn with_items(tx: &mut Tx<'_>, page: Vec<Scored>) -> DbResult<Vec<FoundItem>> {
    if page.is_empty() {
        return Ok(vec![]);
    }
    let rows: Vec<ItemRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(concat!(super::select!(), " where (namespace, key) in ("));
        sql.push_values(&page, |mut row, scored| {
            row.push_bind(&scored.namespace).push_bind(&scored.key);
        });
        sql.push(")").build_query_as().fetch_all(conn).await
    })?;
    let mut items: HashMap<ItemAddress, Item> = HashMap::new();
    for row in rows {
        let Some(item) = unless_corrupt(Item::try_from(row))? else {
            continue;
        };
        items.insert(item.address.clone(), item);
    }
    let take = |scored: Scored| {
        let address = ItemAddress {
            namespace: namespace_of(&scored.namespace),
            key: scored.key,
        };
        Some(found(items.remove(&address)?, scored.score))
    };
    Ok(page.into_iter().filter_map(take).collect())
}

fn found(item: Item, score: f32) -> FoundItem {
    FoundItem {
        item,
        score: Some(score),
    }
}

/// The cosine of two unit vectors; none if they are not of one length, so not of one model.
fn cosine(one: &[f32], other: &[f32]) -> Option<f32> {
    (one.len() == other.len()).then(|| one.iter().zip(other).map(|(a, b)| a * b).sum())
}

#[expect(clippy::cast_possible_truncation, reason = "a score needs no more than seven digits")]
fn narrow(score: f64) -> f32 {
    score as f32
}
