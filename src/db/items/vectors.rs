//! Semantic search of items: the embeddings of their texts, compared with that of a query.
//!
//! Every search is exact. If Postgres has the extension pgvector, it compares the vectors. Otherwise they are read in
//! batches and compared here, so their number is limited.

use std::cmp::Ordering;
use std::collections::HashMap;

use const_format::concatcp;
use serde_json::{Map, Value};
use sqlx::{QueryBuilder, query, query_scalar};

use super::{
    ItemRow, NamespaceRange, SELECT, bound_id, bound_id_of_vector, namespace_of, push_addresses, push_matching,
    push_not_expired, push_range, sealed, text_of,
};
use crate::db::access::push_owner;
use crate::db::codec::json::{ColumnRef, readable_with, unless_corrupt};
use crate::db::engine::sealing::open_bytes;
use crate::db::engine::{Engine, Vector, on_engine};
use crate::db::row::from_row;
use crate::db::{Db, DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::item::{FoundItem, Item, ItemAddress, ItemFilter, ItemSearch, PreparedItem};
use crate::domain::time::Timestamp;

/// The number of vectors read at a time.
const BATCH: i64 = 256;
/// The maximum number of vectors that one search compares without pgvector.
pub const MOST_COMPARED: usize = 100_000;

/// The method of comparing vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorSearch {
    /// In Postgres, with the extension pgvector.
    Extension,
    /// In this process.
    Scan,
}

/// A query of a semantic search.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorQuery {
    /// The embedding of the query text, a unit vector.
    pub vector: Vec<f32>,
    /// The method of comparing.
    pub by: VectorSearch,
}

impl Db {
    /// Returns the method of comparing vectors in this database: pgvector, if it is installed or can be installed now.
    ///
    /// # Errors
    /// [`DbError`](crate::db::DbError) when the database does not answer.
    pub async fn vector_search(&self) -> DbResult<VectorSearch> {
        const OFFERED: &str = "select count(*) from pg_available_extensions where name = 'vector'";
        const INSTALLED: &str = "select count(*) from pg_extension where extname = 'vector'";
        // The database cannot compare vectors that are sealed.
        if self.engine() == Engine::Sqlite || self.is_sealing() {
            return Ok(VectorSearch::Scan);
        }
        if self.has_rows(INSTALLED).await? {
            return Ok(VectorSearch::Extension);
        }
        if self.has_rows(OFFERED).await? {
            // Installing it can be forbidden, or another server may do it at the same time: only the result counts.
            let created = self.write(|tx| {
                Box::pin(async move {
                    const CREATE: &str = "create extension if not exists vector";
                    on_engine!(tx, |conn| query(CREATE).execute(conn).await.map(drop))?;
                    DbResult::Ok(())
                })
            });
            if let Err(error) = created.await {
                tracing::warn!(%error, "could not install the extension pgvector");
            }
        }
        let found = self.has_rows(INSTALLED).await?;
        Ok(if found {
            VectorSearch::Extension
        } else {
            VectorSearch::Scan
        })
    }

    async fn has_rows(&self, sql: &'static str) -> DbResult<bool> {
        self.read(move |tx| {
            Box::pin(async move {
                let count: i64 = on_engine!(tx, |conn| query_scalar(sql).fetch_one(conn).await)?;
                Ok(count > 0)
            })
        })
        .await
    }
}

/// Returns the column with a sealed vector.
fn cell(id: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: "item_vectors",
        column: "sealed",
        id,
    }
}

/// A vector to be stored: plain or sealed.
struct NewVector<'a> {
    path: &'a str,
    vector: Vector,
    sealed: Option<Vec<u8>>,
}

/// Replaces the vectors of a stored item.
pub(super) async fn replace(tx: &mut Tx<'_>, space: &Ownership, draft: &PreparedItem) -> DbResult<()> {
    const DELETE: &str = "delete from item_vectors where tenant = $3 and owner = $4 and namespace = $1 and key = $2";
    let namespace = text_of(&draft.address.namespace);
    let key = draft.address.key.as_str();
    on_engine!(tx, |conn| query(DELETE)
        .bind(&namespace)
        .bind(key)
        .bind(space.tenant.as_str())
        .bind(space.owner.as_str())
        .execute(conn)
        .await
        .map(drop))?;
    if draft.vectors.is_empty() {
        return Ok(());
    }
    let item = bound_id(space.owner.as_str(), &namespace, key);
    let sealer = tx.sealer(space.tenant.as_str()).await?;
    let mut rows = Vec::with_capacity(draft.vectors.len());
    for found_by in &draft.vectors {
        let id = bound_id_of_vector(&item, &found_by.path);
        let vector = Vector(found_by.vector.clone());
        let sealed = match sealer.is_on() {
            true => sealer.seal_bytes(&cell(&id), &vector.to_bytes())?,
            false => None,
        };
        rows.push(NewVector {
            path: &found_by.path,
            vector: if sealed.is_some() { Vector(vec![]) } else { vector },
            sealed,
        });
    }
    on_engine!(tx, |conn| {
        let mut sql =
            QueryBuilder::new("insert into item_vectors (tenant, owner, namespace, key, path, vector, sealed) ");
        sql.push_values(rows, |mut values, row| {
            values.push_bind(space.tenant.as_str()).push_bind(space.owner.as_str());
            values.push_bind(&namespace).push_bind(key).push_bind(row.path);
            values.push_bind(row.vector).push_bind(row.sealed);
        });
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Returns the items that match a search and have vectors, closest first; none if there are more than [`MOST_COMPARED`]
/// vectors to compare.
pub async fn nearest(
    tx: &mut Tx<'_>,
    space: &Ownership,
    wanted: &ItemSearch,
    near: &VectorQuery,
    now: Timestamp,
) -> DbResult<Option<Vec<FoundItem>>> {
    match near.by {
        VectorSearch::Extension => search_in_postgres(tx, space, wanted, near, now).await.map(Some),
        VectorSearch::Scan => search_by_scan(tx, space, wanted, near, now).await,
    }
}

from_row! {
    struct ScoredRow {
        score: f64,
        ..item: ItemRow,
    }
}

/// Searches with pgvector. For unit vectors the inner product is the cosine; the operator `<#>` returns it negated.
async fn search_in_postgres(
    tx: &mut Tx<'_>,
    space: &Ownership,
    wanted: &ItemSearch,
    near: &VectorQuery,
    now: Timestamp,
) -> DbResult<Vec<FoundItem>> {
    let range = NamespaceRange::below(&wanted.prefix);
    let length = i32::try_from(near.vector.len()).unwrap_or(i32::MAX);
    let rows: Vec<ScoredRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(
            "with near as (select namespace, key, max(-(vector::vector <#> question::vector)) as score \
             from item_vectors, (select ",
        );
        sql.push_bind(Vector(near.vector.clone()))
            .push("::real[] as question) asked where ");
        push_owner(&mut sql, "", &space.tenant, Some(&space.owner));
        push_range(&mut sql, &range);
        sql.push(" and cardinality(vector) = ")
            .push_bind(length)
            .push(" group by namespace, key) ");
        sql.push(
            "select i.namespace, i.key, cast(i.value as text) as value, i.expires_at, i.created_at, i.updated_at, \
             i.owner, ",
        );
        sql.push("near.score from near join items i on i.namespace = near.namespace and i.key = near.key ");
        sql.push("where ");
        push_owner(&mut sql, "i.", &space.tenant, Some(&space.owner));
        push_matching(&mut sql, "i.", wanted, now);
        sql.push(" order by near.score desc, i.namespace, i.key limit ")
            .push_bind(i64::from(wanted.limit));
        sql.push(" offset ").push_bind(i64::from(wanted.offset));
        sql.build_query_as().fetch_all(conn).await
    })?;
    readable_with(rows, |row| Ok(found(row.item.try_into()?, narrow(row.score))))
}

from_row! {
    /// The place of a vector in the order of the primary key.
    struct VectorPosition {
        namespace: String,
        key: String,
        path: String,
    }
}

from_row! {
    struct VectorRow {
        vector: Vector,
        sealed: Option<Vec<u8>>,
        /// The value of the item, if the filter is to be applied here.
        value: Option<String>,
        ..position: VectorPosition,
    }
}

impl VectorRow {
    /// Returns the vector; none if it cannot be read.
    fn opened(&mut self, space: &Ownership) -> DbResult<Option<Vector>> {
        let Some(sealed) = self.sealed.take() else {
            return Ok(Some(std::mem::replace(&mut self.vector, Vector(vec![]))));
        };
        let position = &self.position;
        let item = bound_id(space.owner.as_str(), &position.namespace, &position.key);
        let id = bound_id_of_vector(&item, &position.path);
        let opened = open_bytes(&cell(&id), sealed)
            .and_then(|bytes| Vector::from_bytes(&bytes).ok_or_else(|| cell(&id).corrupt()));
        unless_corrupt(opened)
    }

    /// Returns whether the value of the item matches the filter, as far as the database has not decided that.
    fn matches(&self, space: &Ownership, filter: &ItemFilter) -> DbResult<bool> {
        let Some(text) = &self.value else { return Ok(true) };
        let position = &self.position;
        let id = bound_id(space.owner.as_str(), &position.namespace, &position.key);
        let value = unless_corrupt(super::cell(&id).decode::<Map<String, Value>>(text))?;
        Ok(value.is_some_and(|value| filter.matches(&value)))
    }
}

/// The score of an item: the highest cosine of its vectors.
struct Scored {
    namespace: String,
    key: String,
    score: f32,
}

impl Scored {
    /// Returns whether the vector at this position is of this item.
    fn has(&self, position: &VectorPosition) -> bool {
        self.namespace == position.namespace && self.key == position.key
    }

    /// Orders by score, highest first, then by address.
    fn order(&self, other: &Self) -> Ordering {
        let addresses = || (&self.namespace, &self.key).cmp(&(&other.namespace, &other.key));
        other.score.total_cmp(&self.score).then_with(addresses)
    }
}

async fn search_by_scan(
    tx: &mut Tx<'_>,
    space: &Ownership,
    wanted: &ItemSearch,
    near: &VectorQuery,
    now: Timestamp,
) -> DbResult<Option<Vec<FoundItem>>> {
    let range = NamespaceRange::below(&wanted.prefix);
    let most = wanted.offset as usize + wanted.limit as usize;
    let mut last_read = VectorPosition {
        namespace: range.from,
        key: String::new(),
        path: String::new(),
    };
    let mut compared = 0;
    let mut best = Vec::<Scored>::new();
    loop {
        let rows = vectors_after(tx, space, wanted, &last_read, &range.to, now).await?;
        compared += rows.len();
        if compared > MOST_COMPARED {
            return Ok(None);
        }
        if compared > sealed::MOST_OPENED && rows.iter().any(|row| row.value.is_some()) {
            return Err(sealed::too_many());
        }
        let is_last = i64::try_from(rows.len()) != Ok(BATCH);
        for mut row in rows {
            if row.matches(space, &wanted.filter)?
                && let Some(vector) = row.opened(space)?
                && let Some(score) = cosine(&vector.0, &near.vector)
            {
                match best.last_mut().filter(|last| last.has(&row.position)) {
                    Some(same) => same.score = same.score.max(score),
                    None => best.push(Scored {
                        namespace: row.position.namespace.clone(),
                        key: row.position.key.clone(),
                        score,
                    }),
                }
            }
            last_read = row.position;
        }
        // The next batch may have more vectors of the last item, so it stays at the end.
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
    read_items(tx, space, page).await.map(Some)
}

/// Returns the next batch of vectors after a position, of namespaces before `to`.
async fn vectors_after(
    tx: &mut Tx<'_>,
    space: &Ownership,
    wanted: &ItemSearch,
    after: &VectorPosition,
    to: &str,
    now: Timestamp,
) -> DbResult<Vec<VectorRow>> {
    // The database cannot look into sealed values.
    let filters_here = tx.sealing.is_on() && !wanted.filter.conditions().is_empty();
    let value = if filters_here { "i.value" } else { "null" };
    let rows = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select v.namespace, v.key, v.path, v.vector, v.sealed, cast(");
        sql.push(value).push(
            " as text) as value from item_vectors v \
             join items i on i.tenant = v.tenant and i.owner = v.owner and i.namespace = v.namespace and i.key = v.key \
             where ",
        );
        push_owner(&mut sql, "v.", &space.tenant, Some(&space.owner));
        sql.push(" and (v.namespace, v.key, v.path) > (")
            .push_bind(&after.namespace)
            .push(", ")
            .push_bind(&after.key)
            .push(", ")
            .push_bind(&after.path);
        sql.push(") and v.namespace < ").push_bind(to);
        match filters_here {
            true => push_not_expired(&mut sql, "i.", now),
            false => push_matching(&mut sql, "i.", wanted, now),
        }
        sql.push(" order by v.namespace, v.key, v.path limit ").push_bind(BATCH);
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows)
}

/// Reads the items of a page, in its order.
async fn read_items(tx: &mut Tx<'_>, space: &Ownership, page: Vec<Scored>) -> DbResult<Vec<FoundItem>> {
    if page.is_empty() {
        return Ok(vec![]);
    }
    let rows: Vec<ItemRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(concatcp!(SELECT, " where "));
        push_owner(&mut sql, "", &space.tenant, Some(&space.owner));
        let addresses = page.iter().map(|scored| (scored.namespace.clone(), scored.key.clone()));
        push_addresses(&mut sql, addresses);
        sql.build_query_as().fetch_all(conn).await
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

/// Returns the cosine of two unit vectors; none if their lengths differ, so that they are of different models.
fn cosine(one: &[f32], other: &[f32]) -> Option<f32> {
    (one.len() == other.len()).then(|| one.iter().zip(other).map(|(a, b)| a * b).sum())
}

#[expect(clippy::cast_possible_truncation, reason = "a score needs no more than seven digits")]
fn narrow(score: f64) -> f32 {
    score as f32
}
