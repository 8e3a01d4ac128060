//! Filtered searches of sealed items: the database cannot look into the values, so they are opened and compared here.

use const_format::concatcp;
use sqlx::QueryBuilder;

use super::{ItemRow, NamespaceRange, SELECT, push_not_expired};
use crate::db::access::push_owner;
use crate::db::codec::json::unless_corrupt;
use crate::db::engine::on_engine;
use crate::db::list_part::{ListBuilder, ListPart};
use crate::db::{DbError, DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::item::{Item, ItemSearch};
use crate::domain::time::Timestamp;

/// The number of items read at a time.
const BATCH: i64 = 32;
/// The maximum number of items that one search opens to compare their values.
pub(super) const MOST_OPENED: usize = 10_000;

/// Returns the error of a search that would open too many items.
pub(super) fn too_many() -> DbError {
    DbError::Unfit(format!(
        "filter: the values of items are encrypted, and the search would open more than {MOST_OPENED} of them; search in \
         a narrower namespace"
    ))
}

/// Returns the items that match a search, like [`super::search`].
pub(super) async fn search(
    tx: &mut Tx<'_>,
    space: &Ownership,
    wanted: &ItemSearch,
    bytes: usize,
    now: Timestamp,
) -> DbResult<ListPart<Item>> {
    let mut page = ListBuilder::skipping(i64::from(wanted.offset), i64::from(wanted.limit), bytes);
    let NamespaceRange {
        from: mut namespace,
        to,
    } = NamespaceRange::below(&wanted.prefix);
    let mut key = String::new();
    let mut opened = 0;
    while !page.is_over() {
        let rows = items_after(tx, space, [&namespace, &key, &to], now).await?;
        let is_last = i64::try_from(rows.len()) != Ok(BATCH);
        for row in rows {
            opened += 1;
            if opened > MOST_OPENED {
                return Err(too_many());
            }
            namespace.clone_from(&row.namespace);
            key.clone_from(&row.key);
            let weight = row.weigh();
            let item = unless_corrupt(Item::try_from(row))?;
            if let Some(item) = item.filter(|item| wanted.filter.matches(&item.value)) {
                page.add(weight, item);
            }
            if page.is_over() {
                break;
            }
        }
        if is_last {
            break;
        }
    }
    Ok(page.finish())
}

/// Returns the next batch of items behind an address, given as namespace and key, and before a namespace.
async fn items_after(
    tx: &mut Tx<'_>,
    space: &Ownership,
    [namespace, key, to]: [&String; 3],
    now: Timestamp,
) -> DbResult<Vec<ItemRow>> {
    let rows = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(concatcp!(SELECT, " where "));
        push_owner(&mut sql, "", &space.tenant, Some(&space.owner));
        sql.push(" and (namespace, key) > (")
            .push_bind(namespace)
            .push(", ")
            .push_bind(key);
        sql.push(") and namespace < ").push_bind(to);
        push_not_expired(&mut sql, "", now);
        sql.push(" order by namespace, key limit ").push_bind(BATCH);
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows)
}
