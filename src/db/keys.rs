//! The tables of API keys and stream tickets.

use const_format::concatcp;
use sqlx::{QueryBuilder, query, query_as, query_scalar};

use super::codec::json::{ColumnRef, encode, readable, unless_corrupt};
use super::engine::on_engine;
use super::row::from_row;
use super::{DbError, DbResult, Tx};
use crate::domain::api_key::{
    ApiKey, ApiKeyId, KeyRef, KeyRotation, PreviousSecret, SecretDigest, StoredApiKey, StoredTicket, USE_INTERVAL,
};
use crate::domain::identity::{Tenant, UserId};
use crate::domain::time::Timestamp;

const TABLE: &str = "api_keys";

/// The most API keys of one tenant, revoked ones included.
pub const MAX_KEYS_OF_TENANT: i64 = 10_000;
/// The most unused tickets of one user.
pub const MAX_TICKETS_OF_USER: i64 = 1_000;
/// The most expired tickets that are deleted when another one is stored.
const SWEPT_TICKETS: i64 = 100;

const SELECT: &str = "\
    select key_id, name, tenant, user_id, roles, scopes, digest, previous_digest, previous_until, created_at, \
    expires_at, last_used_at, rotated_at, revoked_at from api_keys";

from_row! {
    struct ApiKeyRow {
        key_id: String,
        name: String,
        tenant: String,
        user_id: String,
        roles: String,
        scopes: Option<String>,
        digest: Vec<u8>,
        previous_digest: Option<Vec<u8>>,
        previous_until: Option<i64>,
        created_at: i64,
        expires_at: Option<i64>,
        last_used_at: Option<i64>,
        rotated_at: Option<i64>,
        revoked_at: Option<i64>,
    }
}

impl TryFrom<ApiKeyRow> for StoredApiKey {
    type Error = DbError;

    fn try_from(row: ApiKeyRow) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.key_id,
        };
        let scopes = row.scopes.as_deref().map(|scopes| at("scopes").decode(scopes));
        let digest = SecretDigest::stored(&row.digest).ok_or_else(|| at("digest").corrupt())?;
        let previous = match (row.previous_digest, row.previous_until) {
            (Some(digest), Some(until)) => Some(PreviousSecret {
                digest: SecretDigest::stored(&digest).ok_or_else(|| at("previous_digest").corrupt())?,
                valid_until: Timestamp(until),
            }),
            (Some(_) | None, None) | (None, Some(_)) => None,
        };
        let key = ApiKey {
            roles: at("roles").decode(&row.roles)?,
            scopes: scopes.transpose()?,
            id: ApiKeyId::stored(row.key_id),
            name: row.name,
            tenant: Tenant::stored(row.tenant),
            user: UserId::stored(row.user_id),
            created_at: Timestamp(row.created_at),
            expires_at: row.expires_at.map(Timestamp),
            last_used_at: row.last_used_at.map(Timestamp),
            rotated_at: row.rotated_at.map(Timestamp),
            revoked_at: row.revoked_at.map(Timestamp),
        };
        Ok(Self { key, digest, previous })
    }
}

impl TryFrom<ApiKeyRow> for ApiKey {
    type Error = DbError;

    fn try_from(row: ApiKeyRow) -> DbResult<Self> {
        Ok(StoredApiKey::try_from(row)?.key)
    }
}

/// Returns the key with this id.
pub async fn find(tx: &mut Tx<'_>, id: &ApiKeyId) -> DbResult<Option<StoredApiKey>> {
    const SQL: &str = concatcp!(SELECT, " where key_id = $1");
    let row: Option<ApiKeyRow> = tx.statement(SQL).bind(id.as_str()).fetch_optional().await?;
    row.map(StoredApiKey::try_from).transpose()
}

/// Stores a new key, unless its tenant has [`MAX_KEYS_OF_TENANT`]. Deletes keys of the tenant that were revoked before
/// `forgotten`. Returns whether the key was stored.
pub async fn insert(tx: &mut Tx<'_>, stored: &StoredApiKey, forgotten: Timestamp) -> DbResult<bool> {
    const FORGET: &str = "delete from api_keys where tenant = $1 and revoked_at is not null and revoked_at < $2";
    const COUNT: &str = "select count(*) from api_keys where tenant = $1";
    const INSERT: &str = "insert into api_keys (key_id, name, tenant, user_id, roles, scopes, digest, created_at, expires_at) \
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let key = &stored.key;
    let tenant = key.tenant.as_str();
    on_engine!(tx, |conn| query(FORGET)
        .bind(tenant)
        .bind(forgotten.0)
        .execute(conn)
        .await
        .map(drop))?;
    let count: i64 = on_engine!(tx, |conn| query_scalar(COUNT).bind(tenant).fetch_one(conn).await)?;
    if count >= MAX_KEYS_OF_TENANT {
        return Ok(false);
    }
    let roles = encode(&key.roles)?;
    let scopes = key.scopes.as_ref().map(encode).transpose()?;
    on_engine!(tx, |conn| query(INSERT)
        .bind(key.id.as_str())
        .bind(&key.name)
        .bind(tenant)
        .bind(key.user.as_str())
        .bind(&roles)
        .bind(&scopes)
        .bind(stored.digest.bytes().as_slice())
        .bind(key.created_at.0)
        .bind(key.expires_at.map(|at| at.0))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(true)
}

/// Returns the keys of a tenant, or of all tenants, newest first.
pub async fn list(tx: &mut Tx<'_>, tenant: Option<&Tenant>, limit: i64, offset: i64) -> DbResult<Vec<ApiKey>> {
    let rows: Vec<ApiKeyRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SELECT);
        if let Some(tenant) = tenant {
            sql.push(" where tenant = ").push_bind(tenant.as_str());
        }
        sql.push(" order by created_at desc, key_id desc limit ")
            .push_bind(limit);
        sql.push(" offset ").push_bind(offset);
        sql.build_query_as().fetch_all(conn).await
    })?;
    readable(rows)
}

/// Counts the keys of a tenant, or of all tenants.
pub async fn count(tx: &mut Tx<'_>, tenant: Option<&Tenant>) -> DbResult<i64> {
    let count = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select count(*) from api_keys");
        if let Some(tenant) = tenant {
            sql.push(" where tenant = ").push_bind(tenant.as_str());
        }
        sql.build_query_scalar().fetch_one(conn).await
    })?;
    Ok(count)
}

/// Returns the key of a tenant.
async fn find_of(tx: &mut Tx<'_>, key: &KeyRef) -> DbResult<Option<ApiKey>> {
    let found = find(tx, &key.id).await?.map(|stored| stored.key);
    Ok(found.filter(|found| key.names(found)))
}

/// Gives a key that is not revoked a new secret. Returns the changed key, if there is such a key.
pub async fn rotate(tx: &mut Tx<'_>, rotation: &KeyRotation) -> DbResult<Option<ApiKey>> {
    const SQL: &str = "update api_keys set previous_digest = digest, previous_until = $2, digest = $3, rotated_at = $4 \
        where key_id = $1 and revoked_at is null";
    let wanted = &rotation.key;
    if find_of(tx, wanted).await?.is_none() {
        return Ok(None);
    }
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(wanted.id.as_str())
        .bind(rotation.previous_until.0)
        .bind(rotation.digest.bytes().as_slice())
        .bind(rotation.now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    match changed {
        0 => Ok(None),
        _ => find_of(tx, wanted).await,
    }
}

/// Revokes a key and returns it, if there is such a key. A key that was revoked before stays as it is.
pub async fn revoke(tx: &mut Tx<'_>, wanted: &KeyRef, now: Timestamp) -> DbResult<Option<ApiKey>> {
    const SQL: &str = "update api_keys set revoked_at = $2, previous_digest = null, previous_until = null \
        where key_id = $1 and revoked_at is null";
    if find_of(tx, wanted).await?.is_none() {
        return Ok(None);
    }
    on_engine!(tx, |conn| query(SQL)
        .bind(wanted.id.as_str())
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    find_of(tx, wanted).await
}

/// Stores the time of a key's last use, unless one within [`USE_INTERVAL`] before is stored.
pub async fn record_use(tx: &mut Tx<'_>, id: &ApiKeyId, at: Timestamp) -> DbResult<()> {
    const SQL: &str = "update api_keys set last_used_at = $2 where key_id = $1 \
        and (last_used_at is null or last_used_at <= $3)";
    on_engine!(tx, |conn| query(SQL)
        .bind(id.as_str())
        .bind(at.0)
        .bind(at.minus(USE_INTERVAL).0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Stores a ticket, unless its user has [`MAX_TICKETS_OF_USER`]. Deletes some expired ones. Returns whether the ticket
/// was stored.
pub async fn insert_ticket(tx: &mut Tx<'_>, ticket: &StoredTicket, now: Timestamp) -> DbResult<bool> {
    const SWEEP: &str = "delete from auth_tickets where digest in \
        (select digest from auth_tickets where expires_at <= $1 order by expires_at limit $2)";
    const COUNT: &str = "select count(*) from auth_tickets where tenant = $1 and user_id = $2";
    const INSERT: &str =
        "insert into auth_tickets (digest, tenant, user_id, identity, expires_at) values ($1, $2, $3, $4, $5)";
    on_engine!(tx, |conn| query(SWEEP)
        .bind(now.0)
        .bind(SWEPT_TICKETS)
        .execute(conn)
        .await
        .map(drop))?;
    let tenant = ticket.identity.tenant.as_str();
    let user = ticket.identity.user.as_str();
    let count: i64 = on_engine!(tx, |conn| query_scalar(COUNT)
        .bind(tenant)
        .bind(user)
        .fetch_one(conn)
        .await)?;
    if count >= MAX_TICKETS_OF_USER {
        return Ok(false);
    }
    let identity = encode(&ticket.identity)?;
    on_engine!(tx, |conn| query(INSERT)
        .bind(ticket.digest.bytes().as_slice())
        .bind(tenant)
        .bind(user)
        .bind(&identity)
        .bind(ticket.expires_at.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(true)
}

/// Returns whether there is a ticket with this digest.
pub async fn has_ticket(tx: &mut Tx<'_>, digest: &SecretDigest) -> DbResult<bool> {
    const SQL: &str = "select count(*) from auth_tickets where digest = $1";
    let statement = tx.statement(SQL).bind(digest.bytes().as_slice());
    let (count,): (i64,) = statement.fetch_one().await?;
    Ok(count > 0)
}

/// Deletes a ticket and returns it. Of several that do so at once, one gets the ticket.
pub async fn take_ticket(tx: &mut Tx<'_>, digest: &SecretDigest) -> DbResult<Option<StoredTicket>> {
    const SQL: &str = "delete from auth_tickets where digest = $1 returning identity, expires_at";
    let row: Option<(String, i64)> = on_engine!(tx, |conn| query_as(SQL)
        .bind(digest.bytes().as_slice())
        .fetch_optional(conn)
        .await)?;
    let Some((identity, expires_at)) = row else {
        return Ok(None);
    };
    let column = ColumnRef {
        table: "auth_tickets",
        column: "identity",
        id: &"a ticket",
    };
    // A ticket that cannot be read, perhaps of another release, is refused.
    let identity = unless_corrupt(column.decode(&identity))?;
    Ok(identity.map(|identity| StoredTicket {
        digest: *digest,
        identity,
        expires_at: Timestamp(expires_at),
    }))
}
