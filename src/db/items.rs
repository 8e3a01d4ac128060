//! The table of items: the content of the Store.
//!
//! With encryption the values and vectors are sealed; `sealed` filters them in this process.
//!
//! Every owner has a Store of their own, its *space*: two owners can have items at the same address. Only the sweep of
//! expired items goes through all spaces.
//!
//! A namespace is stored as text, with a dot after each label. So all items in or below a namespace are one range of
//! the primary key: from that text up to the same text with a slash (the character after the dot) in place of the last
//! dot.

use const_format::concatcp;
use serde_json::{Map, Value};
use sqlx::types::Json;
use sqlx::{QueryBuilder, query, query_as, query_scalar};

use super::access::push_owner;
use super::codec::json::ColumnRef;
use super::engine::{Conn, Matches, on_engine};
use super::list_part::{ListBuilder, ListPart};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::item::{AFTER_ALL, Item, ItemAddress, ItemChange, ItemSearch, Namespace, PreparedItem};
use crate::domain::time::Timestamp;

mod files;
mod namespaces;
mod sealed;
mod vectors;

pub use files::file_facts;
#[cfg(test)]
pub(in crate::db) use files::{FileFactLimits, file_facts_within};
pub use namespaces::{NamespaceSearch, list_namespaces};
pub use vectors::{MOST_COMPARED, VectorQuery, VectorSearch, nearest};

const SELECT: &str =
    "select namespace, key, cast(value as text) as value, expires_at, created_at, updated_at, owner from items";

from_row! {
    struct ItemRow {
        namespace: String,
        key: String,
        value: String,
        expires_at: Option<i64>,
        created_at: i64,
        updated_at: i64,
        owner: String,
    }
}

/// Returns the id to which the value of an item is bound, given the owner and the address as they are stored.
pub(super) fn bound_id(owner: &str, namespace: &str, key: &str) -> String {
    format!("{owner}\n{namespace}\n{key}")
}

/// Returns the id to which a vector is bound, given that of its item.
pub(super) fn bound_id_of_vector(item: &str, path: &str) -> String {
    format!("{item}\n{path}")
}

/// Returns the column with the value of an item.
fn cell(id: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: "items",
        column: "value",
        id,
    }
}

impl ItemRow {
    /// Returns the value.
    fn value(&self) -> DbResult<Map<String, Value>> {
        cell(&bound_id(&self.owner, &self.namespace, &self.key)).decode(&self.value)
    }

    /// Returns about how many bytes of memory the row takes.
    fn weigh(&self) -> usize {
        cell(&bound_id(&self.owner, &self.namespace, &self.key)).weigh(&self.value)
    }
}

impl TryFrom<ItemRow> for Item {
    type Error = super::DbError;

    fn try_from(row: ItemRow) -> DbResult<Self> {
        let value = row.value()?;
        Ok(Self {
            address: ItemAddress {
                namespace: namespace_of(&row.namespace),
                key: row.key,
            },
            value,
            expires_at: row.expires_at.map(Timestamp),
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
        })
    }
}

/// Returns the stored text of a namespace.
fn text_of(namespace: &Namespace) -> String {
    namespace
        .labels()
        .iter()
        .flat_map(|label| [label.as_str(), "."])
        .collect()
}

/// Returns the namespace of a stored text.
fn namespace_of(text: &str) -> Namespace {
    Namespace::stored(text.split_terminator('.').map(str::to_owned).collect())
}

/// A range of the texts of namespaces.
struct NamespaceRange {
    /// The first text.
    from: String,
    /// The end, which is not part of the range.
    to: String,
}

impl NamespaceRange {
    /// Returns the range of a namespace and all below it.
    fn below(prefix: &Namespace) -> Self {
        let from = text_of(prefix);
        let to = from
            .strip_suffix('.')
            .map_or_else(|| AFTER_ALL.to_string(), |labels| format!("{labels}/"));
        Self { from, to }
    }
}

/// Applies a change in the space of an owner.
pub async fn change(tx: &mut Tx<'_>, space: &Ownership, change: &ItemChange, now: Timestamp) -> DbResult<()> {
    match change {
        ItemChange::Put(draft) => put(tx, space, draft, now).await,
        ItemChange::Delete(address) => delete(tx, space, address, now).await.map(drop),
    }
}

/// Stores an item with its vectors. An existing item keeps its creation time, unless it has expired.
pub async fn put(tx: &mut Tx<'_>, space: &Ownership, draft: &PreparedItem, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "insert into items \
        (namespace, key, value, ttl, expires_at, created_at, updated_at, tenant, owner) \
        values ($1, $2, $3, $4, $5, $6, $6, $7, $8) \
        on conflict (tenant, owner, namespace, key) do update set value = excluded.value, ttl = excluded.ttl, \
        expires_at = excluded.expires_at, updated_at = excluded.updated_at, \
        created_at = case when items.expires_at <= $6 then excluded.created_at else items.created_at end";
    let ttl = draft.ttl.map(|ttl| i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX));
    let namespace = text_of(&draft.address.namespace);
    let id = bound_id(space.owner.as_str(), &namespace, &draft.address.key);
    let sealer = tx.sealer(space.tenant.as_str()).await?;
    let value = sealer.json(&cell(&id), &draft.value)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(namespace)
        .bind(&draft.address.key)
        .bind(Json(value))
        .bind(ttl)
        .bind(draft.ttl.map(|ttl| now.plus(ttl).0))
        .bind(now.0)
        .bind(space.tenant.as_str())
        .bind(space.owner.as_str())
        .execute(conn)
        .await
        .map(drop))?;
    vectors::replace(tx, space, draft).await
}

/// Returns the item at this address, unless it has expired.
pub async fn find(tx: &mut Tx<'_>, space: &Ownership, address: &ItemAddress, now: Timestamp) -> DbResult<Option<Item>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where tenant = $4 and owner = $5 and namespace = $1 and key = $2 \
         and (expires_at is null or expires_at > $3)"
    );
    let namespace = text_of(&address.namespace);
    let statement = tx.statement(SQL).bind(&namespace).bind(&address.key).bind(now.0);
    let statement = statement.bind(space.tenant.as_str()).bind(space.owner.as_str());
    let row: Option<ItemRow> = statement.fetch_optional().await?;
    row.map(Item::try_from).transpose()
}

/// Waits until no other transaction changes the item at this address after it has read it, and lets none do so until
/// the end of this transaction. SQLite has one writer anyway.
pub async fn lock(tx: &mut Tx<'_>, space: &Ownership, address: &ItemAddress) -> DbResult<()> {
    const SQL: &str = "select pg_advisory_xact_lock(hashtextextended('adjutant: item ' || $1, 0))";
    let id = bound_id(space.owner.as_str(), &text_of(&address.namespace), &address.key);
    match &mut tx.conn {
        Conn::Sqlite(_) => Ok(()),
        Conn::Postgres(conn) => Ok(query(SQL)
            .bind(format!("{}\n{id}", space.tenant.as_str()))
            .execute(conn)
            .await
            .map(drop)?),
    }
}

/// Returns the keys of the items in exactly this namespace that are the path `at` or below it, in order, up to `most`.
/// Expired items do not count.
pub async fn keys(
    tx: &mut Tx<'_>,
    space: &Ownership,
    namespace: &Namespace,
    at: &str,
    most: usize,
    now: Timestamp,
) -> DbResult<Vec<String>> {
    // The paths below `/a` are between `/a/` and `/a0`: a zero follows the slash. Others before `/a/`, as `/a.md`, are none.
    const SQL: &str = "select key from items where tenant = $1 and owner = $2 and namespace = $3 \
        and key >= $4 and key < $5 and (key = $4 or key >= $6) \
        and (expires_at is null or expires_at > $7) order by key limit $8";
    let namespace = text_of(namespace);
    let directory = at.trim_end_matches('/');
    on_engine!(tx, |conn| query_scalar(SQL)
        .bind(space.tenant.as_str())
        .bind(space.owner.as_str())
        .bind(&namespace)
        .bind(at)
        .bind(format!("{directory}0"))
        .bind(format!("{directory}/"))
        .bind(now.0)
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await)
    .map_err(Into::into)
}

/// Deletes an item. Returns whether it existed and had not expired.
pub async fn delete(tx: &mut Tx<'_>, space: &Ownership, address: &ItemAddress, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "delete from items where tenant = $3 and owner = $4 and namespace = $1 and key = $2 \
        returning expires_at";
    tx.erase_traces();
    let namespace = text_of(&address.namespace);
    let deleted: Option<(Option<i64>,)> = on_engine!(tx, |conn| query_as(SQL)
        .bind(&namespace)
        .bind(&address.key)
        .bind(space.tenant.as_str())
        .bind(space.owner.as_str())
        .fetch_optional(conn)
        .await)?;
    Ok(deleted.is_some_and(|(expires_at,)| expires_at.is_none_or(|at| at > now.0)))
}

/// Returns the items that match a search, in the order of their addresses, up to about `bytes` of memory.
pub async fn search(
    tx: &mut Tx<'_>,
    space: &Ownership,
    wanted: &ItemSearch,
    bytes: usize,
    now: Timestamp,
) -> DbResult<ListPart<Item>> {
    if tx.sealing.is_on() && !wanted.filter.conditions().is_empty() {
        return sealed::search(tx, space, wanted, bytes, now).await;
    }
    let range = NamespaceRange::below(&wanted.prefix);
    let mut filling = ListBuilder::new(i64::from(wanted.limit), bytes);
    while let Some(next) = filling.next() {
        let offset = i64::from(wanted.offset) + filling.count();
        let rows: Vec<ItemRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(concatcp!(SELECT, " where "));
            push_owner(&mut sql, "", &space.tenant, Some(&space.owner));
            push_range(&mut sql, &range);
            push_matching(&mut sql, "items.", wanted, now);
            sql.push(" order by namespace, key limit ")
                .push_bind(next)
                .push(" offset ")
                .push_bind(offset);
            sql.build_query_as().fetch_all(conn).await
        })?;
        filling.take(next, rows, ItemRow::weigh, Item::try_from)?;
    }
    Ok(filling.finish())
}

/// Appends the condition that a namespace is in a range, after `and`.
fn push_range<DB>(sql: &mut QueryBuilder<DB>, range: &NamespaceRange)
where
    DB: sqlx::Database,
    for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    sql.push(" and namespace >= ")
        .push_bind(range.from.as_str())
        .push(" and namespace < ")
        .push_bind(range.to.as_str());
}

/// Appends the condition that an item has not expired and matches the filter of a search, after `and`. `alias` is that
/// of the table of items with a period.
fn push_matching<DB>(sql: &mut QueryBuilder<DB>, alias: &'static str, wanted: &ItemSearch, now: Timestamp)
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Matches,
    for<'q> i64: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    push_not_expired(sql, alias, now);
    sql.push_matches(&format!("{alias}value"), &wanted.filter);
}

/// Appends the condition that an item has not expired, after `and`. `alias` is as for [`push_matching`].
fn push_not_expired<DB>(sql: &mut QueryBuilder<DB>, alias: &'static str, now: Timestamp)
where
    DB: sqlx::Database,
    for<'q> i64: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    sql.push(" and (")
        .push(alias)
        .push("expires_at is null or ")
        .push(alias)
        .push("expires_at > ")
        .push_bind(now.0)
        .push(")");
}

/// Restarts the TTL of these items. Items without a TTL and expired items do not change.
pub async fn refresh(tx: &mut Tx<'_>, space: &Ownership, addresses: &[ItemAddress], now: Timestamp) -> DbResult<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update items set expires_at = ttl + ");
        sql.push_bind(now.0)
            .push(" where ttl is not null and expires_at > ")
            .push_bind(now.0)
            .push(" and ");
        push_owner(&mut sql, "", &space.tenant, Some(&space.owner));
        push_addresses(
            &mut sql,
            addresses
                .iter()
                .map(|address| (text_of(&address.namespace), address.key.clone())),
        );
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Appends the condition that an item is at one of these addresses, each the text of a namespace and a key, after
/// `and`. SQLite looks the addresses up in the primary key only if they come from a select.
fn push_addresses<DB>(sql: &mut QueryBuilder<DB>, addresses: impl Iterator<Item = (String, String)>)
where
    DB: sqlx::Database,
    for<'q> String: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    sql.push(" and (namespace, key) in (select wanted.column1, wanted.column2 from (");
    sql.push_values(addresses, |mut row, (namespace, key)| {
        row.push_bind(namespace).push_bind(key);
    });
    sql.push(") wanted)");
}

/// Deletes up to `limit` expired items of all owners, the first expired first. Returns their number. Several servers
/// can sweep at once without waiting for each other.
pub async fn sweep(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<u64> {
    const SQLITE: &str = "delete from items where (tenant, owner, namespace, key) in \
        (select tenant, owner, namespace, key from items where expires_at <= $1 order by expires_at limit $2)";
    const POSTGRES: &str = "delete from items where (tenant, owner, namespace, key) in \
        (select tenant, owner, namespace, key from items where expires_at <= $1 order by expires_at limit $2 \
        for update skip locked)";
    let sql = tx.either(SQLITE, POSTGRES);
    let swept = on_engine!(tx, |conn| query(sql)
        .bind(now.0)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(swept)
}
