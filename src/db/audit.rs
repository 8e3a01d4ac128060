//! The table of the audit. Rows are inserted and, when they are old, deleted; no function changes one.

use std::sync::Arc;
use std::time::Duration;

use const_format::concatcp;
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::codec::json::{ColumnRef, readable};
use super::engine::on_engine;
use super::list_part::{ListBuilder, ListPart};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::access::Action;
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::identity::{Tenant, UserId};
use crate::domain::time::Timestamp;

const TABLE: &str = "audit";

const SELECT: &str = "\
    select entry_id, tenant, user_id, credential, action, resource, outcome, address, detail, created_at from audit";

from_row! {
    struct AuditRow {
        entry_id: Uuid,
        tenant: String,
        user_id: String,
        credential: String,
        action: String,
        resource: String,
        outcome: String,
        address: Option<String>,
        detail: String,
        created_at: i64,
    }
}

impl TryFrom<AuditRow> for AuditEntry {
    type Error = super::DbError;

    fn try_from(row: AuditRow) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.entry_id,
        };
        Ok(Self {
            id: row.entry_id,
            outcome: AuditOutcome::from_word(&row.outcome).ok_or_else(|| at("outcome").corrupt())?,
            address: row.address.as_deref().and_then(|address| address.parse().ok()),
            detail: at("detail").decode_or_default(&row.detail),
            tenant: row.tenant,
            user: row.user_id,
            credential: row.credential,
            action: row.action,
            resource: row.resource,
            created_at: Timestamp(row.created_at),
        })
    }
}

/// Stores an entry, unless it is stored already.
pub async fn insert(tx: &mut Tx<'_>, entry: &AuditEntry) -> DbResult<()> {
    const BEGIN: &str = "insert into audit (entry_id, tenant, user_id, credential, action, resource, address, created_at, \
        outcome, detail) values ($1, $2, $3, $4, $5, $6, $7, $8, ";
    const END: &str = ") on conflict (tenant, entry_id) do nothing";
    // Most entries are about allowed requests, without a detail, and a literal costs less than a value.
    const PLAIN: &str = concatcp!(BEGIN, "'allowed', '{}'", END);
    const FULL: &str = concatcp!(BEGIN, "$9, $10", END);
    let is_plain = entry.outcome == AuditOutcome::Allowed && entry.detail.is_empty();
    let further = match is_plain {
        true => None,
        false => Some((entry.outcome.word(), super::codec::json::encode(&entry.detail)?)),
    };
    let statement = tx
        .statement(if is_plain { PLAIN } else { FULL })
        .bind(entry.id)
        .bind(&entry.tenant)
        .bind(&entry.user)
        .bind(&entry.credential)
        .bind(&entry.action)
        .bind(&entry.resource)
        .bind(entry.address.map(|address| address.to_string()))
        .bind(entry.created_at.0);
    let statement = match further {
        None => statement,
        Some((outcome, detail)) => statement.bind(outcome).bind(detail),
    };
    statement.execute_later().await
}

/// Stores these entries, except those that are stored already.
pub async fn insert_all(tx: &mut Tx<'_>, entries: &[Arc<AuditEntry>]) -> DbResult<()> {
    for entry in entries {
        insert(tx, entry).await?;
    }
    Ok(())
}

/// The number of entries of a tenant among which those about a user are looked for at once.
pub const ENTRIES_OF_PART: i64 = 1000;

/// The most resources that one statement asks for.
const MOST_RESOURCES: usize = 500;

/// The maximum difference between the time in the id of an entry and the time of the entry. The id has the time of the
/// request, which may wait for the database.
const ID_TOLERANCE: Duration = Duration::from_hours(1);

/// Returns the smallest id of entries that are made at this time. Ids begin with their time in milliseconds, so a range of
/// times is a range of the primary key.
fn first_id_at(at: Timestamp) -> Uuid {
    const MOST_MILLIS: u128 = (1 << 48) - 1;
    let millis = u128::try_from(at.millis()).unwrap_or(0).min(MOST_MILLIS);
    Uuid::from_u128(millis << 80)
}

/// Returns the entries of a tenant about these resources with this action, from this time on, oldest first.
pub async fn of_resources(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    action: &str,
    resources: &[String],
    since: Timestamp,
) -> DbResult<Vec<AuditEntry>> {
    let mut all = vec![];
    for part in resources.chunks(MOST_RESOURCES) {
        let rows: Vec<AuditRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(concatcp!(SELECT, " where tenant = "));
            sql.push_bind(tenant.as_str());
            sql.push(" and entry_id >= ")
                .push_bind(first_id_at(since.minus(ID_TOLERANCE)));
            sql.push(" and action = ").push_bind(action);
            sql.push(" and resource in (");
            let mut list = sql.separated(", ");
            for resource in part {
                list.push_bind(resource.as_str());
            }
            sql.push(")");
            sql.build_query_as().fetch_all(conn).await
        })?;
        all.extend(readable(rows)?);
    }
    all.sort_by_key(|entry: &AuditEntry| entry.id);
    Ok(all)
}

/// A search for entries of one tenant, newest first.
#[derive(Debug, Clone)]
pub struct AuditSearch {
    /// The tenant.
    pub tenant: Tenant,
    /// Only entries of this user.
    pub user: Option<String>,
    /// Only entries about this resource.
    pub resource: Option<String>,
    /// Only entries with this action.
    pub action: Option<String>,
    /// Only entries with this outcome.
    pub outcome: Option<AuditOutcome>,
    /// Only entries from this time on.
    pub since: Option<Timestamp>,
    /// Only entries before this time.
    pub until: Option<Timestamp>,
    /// Only entries that are older than this one: the last of the page before.
    pub before: Option<Uuid>,
    /// The maximum number of entries.
    pub limit: i64,
}

/// Returns a page of entries that takes at most about `bytes` of memory.
pub async fn search(tx: &mut Tx<'_>, wanted: &AuditSearch, bytes: usize) -> DbResult<ListPart<AuditEntry>> {
    let mut page = ListBuilder::new(wanted.limit, bytes);
    let mut before = wanted.before;
    while let Some(next) = page.next() {
        let rows: Vec<AuditRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(concatcp!(SELECT, " where tenant = "));
            sql.push_bind(wanted.tenant.as_str());
            if let Some(user) = &wanted.user {
                sql.push(" and user_id = ").push_bind(user);
            }
            if let Some(resource) = &wanted.resource {
                sql.push(" and resource = ").push_bind(resource);
            }
            if let Some(action) = &wanted.action {
                sql.push(" and action = ").push_bind(action);
            }
            if let Some(outcome) = wanted.outcome {
                sql.push(" and outcome = ").push_bind(outcome.word());
            }
            if let Some(since) = wanted.since {
                sql.push(" and created_at >= ").push_bind(since.0);
                sql.push(" and entry_id >= ")
                    .push_bind(first_id_at(since.minus(ID_TOLERANCE)));
            }
            if let Some(until) = wanted.until {
                sql.push(" and created_at < ").push_bind(until.0);
                sql.push(" and entry_id < ")
                    .push_bind(first_id_at(until.plus(ID_TOLERANCE)));
            }
            if let Some(before) = before {
                sql.push(" and entry_id < ").push_bind(before);
            }
            sql.push(" order by entry_id desc limit ").push_bind(next);
            sql.build_query_as().fetch_all(conn).await
        })?;
        before = rows.last().map(|row| row.entry_id).or(before);
        page.take(next, rows, |row| row.detail.len() + 300, AuditEntry::try_from)?;
    }
    Ok(page.finish())
}

/// The entries about a user, or their ids, in a part of the audit of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct PartOfUser<T> {
    /// The entries, oldest first.
    pub found: Vec<T>,
    /// The id of the last entry of the part; none if the part goes up to the newest one.
    pub end: Option<Uuid>,
}

/// Returns the ids of entries about a user that can be erased among the next `entries` of the tenant after this one. No index finds
/// them, so that a statement looks through no more than a part. An entry that the user has deleted the data of a user stays: it
/// names who has erased entries, also their own. So does one that the user has created or changed an API key: it names who has
/// given the key to whoever erased them.
pub async fn ids_of_user(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    user: &UserId,
    after: Uuid,
    entries: i64,
) -> DbResult<PartOfUser<Uuid>> {
    const ERASABLE: &str = " and (action not in ($5, $6) or outcome <> 'allowed')";
    const SQL: &str = concatcp!("select entry_id from audit", OF_USER, ERASABLE, BY_TIME);
    let end = end_of_part(tx, tenant, after, entries).await?;
    let found = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(tenant.as_str())
        .bind(user.as_str())
        .bind(after)
        .bind(end.unwrap_or(LAST_ID))
        .bind(Action::UsersDelete.word())
        .bind(Action::KeysWrite.word())
        .fetch_all(conn)
        .await)?;
    Ok(PartOfUser { found, end })
}

/// Returns all entries about a user like [`ids_of_user`].
pub async fn of_user(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    user: &UserId,
    after: Uuid,
    entries: i64,
) -> DbResult<PartOfUser<AuditEntry>> {
    const SQL: &str = concatcp!(SELECT, OF_USER, BY_TIME);
    let end = end_of_part(tx, tenant, after, entries).await?;
    let rows: Vec<AuditRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(tenant.as_str())
        .bind(user.as_str())
        .bind(after)
        .bind(end.unwrap_or(LAST_ID))
        .fetch_all(conn)
        .await)?;
    let found = readable(rows)?;
    Ok(PartOfUser { found, end })
}

/// The condition that an entry is about a user, and between two others.
const OF_USER: &str = " where tenant = $1 and user_id = $2 and entry_id > $3 and entry_id <= $4";
const BY_TIME: &str = " order by entry_id";
/// An id that follows those of all entries.
const LAST_ID: Uuid = Uuid::from_u128(u128::MAX);

/// Returns the id of the last of the next `entries` of a tenant after this one; none if there are fewer.
async fn end_of_part(tx: &mut Tx<'_>, tenant: &Tenant, after: Uuid, entries: i64) -> DbResult<Option<Uuid>> {
    const SQL: &str =
        "select entry_id from audit where tenant = $1 and entry_id > $2 order by entry_id limit 1 offset $3";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(tenant.as_str())
        .bind(after)
        .bind(entries - 1)
        .fetch_optional(conn)
        .await)?)
}

/// Deletes these entries. Returns their number.
pub async fn delete(tx: &mut Tx<'_>, tenant: &Tenant, ids: &[Uuid]) -> DbResult<u64> {
    if ids.is_empty() {
        return Ok(0);
    }
    let deleted = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("delete from audit where tenant = ");
        sql.push_bind(tenant.as_str()).push(" and entry_id in (");
        let mut list = sql.separated(", ");
        for id in ids {
            list.push_bind(*id);
        }
        sql.push(")");
        sql.build().execute(conn).await.map(|done| done.rows_affected())
    })?;
    Ok(deleted)
}

/// Deletes up to `limit` entries that are older than `until`, tenant by tenant. Returns their number.
pub async fn sweep(tx: &mut Tx<'_>, until: Timestamp, limit: i64) -> DbResult<u64> {
    // The next tenant is found by one look into the primary key.
    const NEXT: &str = "select min(tenant) from audit where tenant > $1";
    let limit = u64::try_from(limit).unwrap_or(0);
    let mut deleted = 0;
    let mut tenant = String::new();
    while deleted < limit {
        let next: Option<String> = on_engine!(tx, |conn| query_scalar(NEXT).bind(&tenant).fetch_one(conn).await)?;
        let Some(next) = next else { break };
        deleted += sweep_tenant(tx, &next, until, limit - deleted).await?;
        tenant = next;
    }
    Ok(deleted)
}

async fn sweep_tenant(tx: &mut Tx<'_>, tenant: &str, until: Timestamp, limit: u64) -> DbResult<u64> {
    // Ids sort by time, so the oldest entries are the first of the tenant, and no further ones have to be looked at.
    const SQL: &str = "delete from audit where tenant = $3 and entry_id in (select entry_id from \
        (select entry_id, created_at from audit where tenant = $3 order by entry_id limit $2) oldest \
        where created_at < $1)";
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(until.0)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(tenant)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(deleted)
}
