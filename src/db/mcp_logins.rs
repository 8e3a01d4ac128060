//! The table of logins to MCP servers. Their secrets are sealed.
//!
//! A refresh token may be used once: a second use can end the login for good. So one server process at a time claims the
//! refresh of a login, for a limited time, and tokens are replaced only where the version is still the one that was read.

use std::collections::BTreeMap;

use sqlx::{PgConnection, query, query_as};
use uuid::Uuid;

use super::codec::json::{ColumnRef, readable};
use super::engine::on_engine;
use super::row::from_row;
use super::{DbError, DbResult, Tx};
use crate::domain::id::LoginVersion;
use crate::domain::identity::Tenant;
use crate::domain::mcp_login::{LoginKey, LoginSecrets, LoginStatus, McpLogin};
use crate::domain::oauth_scopes::OAuthScopes;
use crate::domain::time::Timestamp;
use crate::sqlite::SqliteConnection;

const TABLE: &str = "mcp_logins";

from_row! {
    struct StatusRow {
        tenant: String,
        server: String,
        url: String,
        issuer: String,
        expires_at: Option<i64>,
        renewable: bool,
        logged_in_at: i64,
        ended_at: Option<i64>,
    }
}

impl TryFrom<StatusRow> for LoginStatus {
    type Error = DbError;

    fn try_from(row: StatusRow) -> DbResult<Self> {
        Ok(Self {
            key: LoginKey {
                tenant: Tenant::stored(row.tenant),
                server: row.server,
            },
            url: row.url,
            issuer: row.issuer,
            expires_at: row.expires_at.map(Timestamp),
            is_renewable: row.renewable,
            logged_in_at: Timestamp(row.logged_in_at),
            ended_at: row.ended_at.map(Timestamp),
        })
    }
}

from_row! {
    struct LoginRow {
        secrets: String,
        version: Uuid,
        refresh_at: Option<i64>,
        ..status: StatusRow,
    }
}

impl TryFrom<LoginRow> for McpLogin {
    type Error = DbError;

    fn try_from(row: LoginRow) -> DbResult<Self> {
        let status = LoginStatus::try_from(row.status)?;
        let id = bound_id(status.key.tenant.as_str(), &status.key.server);
        Ok(Self {
            secrets: cell(&id).decode(&row.secrets)?,
            status,
            refresh_at: row.refresh_at.map(Timestamp),
            version: LoginVersion(row.version),
        })
    }
}

from_row! {
    struct SecretsRow {
        tenant: String,
        server: String,
        secrets: String,
    }
}

/// Returns the id to which the secrets of a login are bound.
pub(super) fn bound_id(tenant: &str, server: &str) -> String {
    format!("{tenant}\n{server}")
}

fn cell(id: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: TABLE,
        column: "secrets",
        id,
    }
}

/// Returns the secrets of a login as they are stored.
async fn sealed_secrets(tx: &mut Tx<'_>, login: &McpLogin) -> DbResult<String> {
    let key = &login.status.key;
    let sealer = tx.sealer(key.tenant.as_str()).await?;
    let id = bound_id(key.tenant.as_str(), &key.server);
    sealer.encode(&cell(&id), &login.secrets)
}

/// Stores a login in place of an earlier one with the same key.
pub async fn put(tx: &mut Tx<'_>, login: &McpLogin) -> DbResult<()> {
    const SQL: &str = "insert into mcp_logins (tenant, server, url, issuer, secrets, version, expires_at, refresh_at, \
        renewable, logged_in_at, ended_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    delete(tx, &login.status.key).await?;
    let secrets = sealed_secrets(tx, login).await?;
    let status = &login.status;
    on_engine!(tx, |conn| query(SQL)
        .bind(status.key.tenant.as_str())
        .bind(&status.key.server)
        .bind(&status.url)
        .bind(&status.issuer)
        .bind(&secrets)
        .bind(login.version.0)
        .bind(status.expires_at.map(|at| at.0))
        .bind(login.refresh_at.map(|at| at.0))
        .bind(status.is_renewable)
        .bind(status.logged_in_at.0)
        .bind(status.ended_at.map(|at| at.0))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Returns the login with this key.
pub async fn find(tx: &mut Tx<'_>, key: &LoginKey) -> DbResult<Option<McpLogin>> {
    const SQL: &str = "select tenant, server, url, issuer, expires_at, renewable, logged_in_at, ended_at, secrets, \
        version, refresh_at from mcp_logins where tenant = $1 and server = $2";
    let row: Option<LoginRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(key.tenant.as_str())
        .bind(&key.server)
        .fetch_optional(conn)
        .await)?;
    row.map(McpLogin::try_from).transpose()
}

/// The statement that reads what may be shown of all logins.
const LIST: &str = "select tenant, server, url, issuer, expires_at, renewable, logged_in_at, ended_at \
    from mcp_logins order by server, tenant";

/// Returns all logins without their secrets, by server and tenant.
pub async fn list(tx: &mut Tx<'_>) -> DbResult<Vec<LoginStatus>> {
    let rows: Vec<StatusRow> = on_engine!(tx, |conn| query_as(LIST).fetch_all(conn).await)?;
    readable(rows)
}

/// Returns all logins without their secrets, on a connection to SQLite.
pub(super) async fn list_on_sqlite(conn: &mut SqliteConnection) -> DbResult<Vec<LoginStatus>> {
    let rows: Vec<StatusRow> = query_as(LIST).fetch_all(conn).await?;
    readable(rows)
}

/// Returns all logins without their secrets, on a connection to Postgres.
pub(super) async fn list_on_postgres(conn: &mut PgConnection) -> DbResult<Vec<LoginStatus>> {
    let rows: Vec<StatusRow> = query_as(LIST).fetch_all(conn).await?;
    readable(rows)
}

/// Returns the scopes that logins lack, by the keys of those that lack any. Secrets that cannot be read here are logged and
/// left out.
pub async fn missing_scopes(tx: &mut Tx<'_>) -> DbResult<BTreeMap<LoginKey, OAuthScopes>> {
    const SQL: &str = "select tenant, server, secrets from mcp_logins order by server, tenant";
    let rows: Vec<SecretsRow> = on_engine!(tx, |conn| query_as(SQL).fetch_all(conn).await)?;
    let mut found = BTreeMap::new();
    for row in rows {
        let id = bound_id(&row.tenant, &row.server);
        let secrets: Option<LoginSecrets> = cell(&id).decode_or_log(&row.secrets);
        let missing = secrets.map(|secrets| secrets.missing_scopes).unwrap_or_default();
        if !missing.is_empty() {
            let key = LoginKey {
                tenant: Tenant::stored(row.tenant),
                server: row.server,
            };
            found.insert(key, missing);
        }
    }
    Ok(found)
}

/// Adds scopes to those that a login lacks. Changes nothing if the version of the login is not the current one any more: it has
/// other tokens then. The version stays, so that a refresh that has begun can store its tokens.
pub async fn add_missing_scopes(tx: &mut Tx<'_>, login: &McpLogin, missing: &OAuthScopes) -> DbResult<()> {
    const SQL: &str = "update mcp_logins set secrets = $4 where tenant = $1 and server = $2 and version = $3";
    let found = find(tx, &login.status.key).await?;
    let Some(mut current) = found.filter(|found| found.version == login.version) else {
        return Ok(());
    };
    let all = current.secrets.missing_scopes.with(missing);
    if all == current.secrets.missing_scopes {
        return Ok(());
    }
    current.secrets.missing_scopes = all;
    tx.erase_traces();
    let secrets = sealed_secrets(tx, &current).await?;
    let key = &current.status.key;
    on_engine!(tx, |conn| query(SQL)
        .bind(key.tenant.as_str())
        .bind(&key.server)
        .bind(current.version.0)
        .bind(&secrets)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Claims the refresh of a version of a login until a time. Returns false if the version is not the current one, or if another
/// claim of it is not over at `now`.
pub async fn claim_refresh(tx: &mut Tx<'_>, login: &McpLogin, now: Timestamp, until: Timestamp) -> DbResult<bool> {
    const SQL: &str = "update mcp_logins set refreshing_until = $5 where tenant = $1 and server = $2 and version = $3 \
        and (refreshing_until is null or refreshing_until <= $4)";
    let key = &login.status.key;
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(key.tenant.as_str())
        .bind(&key.server)
        .bind(login.version.0)
        .bind(now.0)
        .bind(until.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Ends the claim of a refresh that has changed nothing.
pub async fn release_refresh(tx: &mut Tx<'_>, login: &McpLogin) -> DbResult<()> {
    const SQL: &str =
        "update mcp_logins set refreshing_until = null where tenant = $1 and server = $2 and version = $3";
    let key = &login.status.key;
    on_engine!(tx, |conn| query(SQL)
        .bind(key.tenant.as_str())
        .bind(&key.server)
        .bind(login.version.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Replaces the tokens of a login whose version is `before`, and ends the claim of its refresh. Returns false, and changes
/// nothing, if there is no such login any more.
pub async fn replace(tx: &mut Tx<'_>, login: &McpLogin, before: LoginVersion) -> DbResult<bool> {
    const SQL: &str = "update mcp_logins set secrets = $4, version = $5, expires_at = $6, refresh_at = $7, renewable = $8, \
        ended_at = $9, refreshing_until = null where tenant = $1 and server = $2 and version = $3";
    tx.erase_traces();
    let secrets = sealed_secrets(tx, login).await?;
    let status = &login.status;
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(status.key.tenant.as_str())
        .bind(&status.key.server)
        .bind(before.0)
        .bind(&secrets)
        .bind(login.version.0)
        .bind(status.expires_at.map(|at| at.0))
        .bind(login.refresh_at.map(|at| at.0))
        .bind(status.is_renewable)
        .bind(status.ended_at.map(|at| at.0))
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Deletes a login. Returns whether it existed.
pub async fn delete(tx: &mut Tx<'_>, key: &LoginKey) -> DbResult<bool> {
    const SQL: &str = "delete from mcp_logins where tenant = $1 and server = $2";
    tx.erase_traces();
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(key.tenant.as_str())
        .bind(&key.server)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(deleted == 1)
}

/// Deletes the logins of a tenant.
pub(super) async fn delete_of_tenant(tx: &mut Tx<'_>, tenant: &Tenant) -> DbResult<()> {
    const SQL: &str = "delete from mcp_logins where tenant = $1";
    tx.erase_traces();
    on_engine!(tx, |conn| query(SQL)
        .bind(tenant.as_str())
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}
