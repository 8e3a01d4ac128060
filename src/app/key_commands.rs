//! `adjutant keys`: API keys for operators, directly in the configured database.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures::future::LocalBoxFuture;
use secrecy::ExposeSecret;

use super::builder::Prepared;
use super::credentials::StoredCredentials;
use crate::auth::{ApiKeys, IssuedKey, KeySearch};
use crate::config::KeysCommand;
use crate::db::Db;
use crate::domain::api_key::{ApiKey, ApiKeyId, KeyRef, NewApiKey};
use crate::domain::identity::{Tenant, UserId, UserRole};
use crate::domain::time::{Clock, SystemClock};

/// The time for tasks of the database to finish.
const DEADLINE: Duration = Duration::from_secs(10);
/// The number of keys that are read at once.
const PAGE: i64 = 500;

/// The hint for operators of a SQLite database, which has one process at a time.
const IN_USE: &str = "A server is using the database. While it runs, an admin manages keys over HTTP: POST /auth/keys, \
    GET /auth/keys, POST /auth/keys/{key_id}/rotate, DELETE /auth/keys/{key_id}. For the first key, stop the server, or \
    give it a key in [[auth.keys]] of its configuration";

/// Runs a command and returns the text to print.
///
/// # Errors
/// Returns an error if an argument is invalid, if there is no such key, or if the database cannot be opened.
pub fn run<'a>(prepared: &'a Prepared, command: &'a KeysCommand) -> LocalBoxFuture<'a, anyhow::Result<String>> {
    let config = &prepared.loaded().config;
    Box::pin(super::with_database(config, DEADLINE, IN_USE, async move |db| {
        run_on(db, command).await
    }))
}

async fn run_on(db: &Db, command: &KeysCommand) -> anyhow::Result<String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let keys = ApiKeys::new(Arc::new(StoredCredentials(db.clone())), Arc::clone(&clock));
    match command {
        KeysCommand::Create {
            settings: _,
            name,
            tenant,
            user,
            roles,
            scopes,
            expires_in_days,
        } => {
            let lifetime = expires_in_days.map(|days| Duration::from_hours(u64::from(days) * 24));
            let new = NewApiKey {
                name: name.clone(),
                tenant: Tenant::new("--tenant", tenant)?,
                user: UserId::new("--user", user.as_ref().unwrap_or(name))?,
                roles: UserRole::read_all("--role", roles)?,
                scopes: Some(scopes.clone()).filter(|scopes| !scopes.is_empty()),
                expires_at: lifetime.map(|lifetime| clock.now().plus(lifetime)),
            };
            Ok(describe_issued(&keys.create(None, new).await?))
        }
        KeysCommand::List { settings: _, tenant } => {
            let tenant = tenant.as_ref().map(|tenant| Tenant::new("--tenant", tenant));
            list(&keys, tenant.transpose()?).await
        }
        KeysCommand::Rotate {
            settings: _,
            key_id,
            grace_hours,
        } => {
            let grace = Duration::from_hours((*grace_hours).into());
            let issued = keys.rotate(None, reference(key_id)?, grace).await;
            Ok(describe_issued(
                &issued.with_context(|| format!("cannot rotate {key_id}"))?,
            ))
        }
        KeysCommand::Revoke { settings: _, key_id } => {
            let revoked = keys.revoke(reference(key_id)?).await;
            let revoked = revoked.with_context(|| format!("cannot revoke {key_id}"))?;
            Ok(format!(
                "{} ({}) is revoked. Running servers refuse it within seconds.\n",
                revoked.id, revoked.name
            ))
        }
    }
}

fn reference(key_id: &str) -> anyhow::Result<KeyRef> {
    let id = ApiKeyId::read(key_id);
    let id = id.ok_or_else(|| anyhow!("{key_id:?} is no id of a key: it must be the 16 digits after `adj_`"))?;
    Ok(KeyRef { id, tenant: None })
}

/// Returns the text about a new secret: the secret alone on the first line, so that a script can read it.
fn describe_issued(issued: &IssuedKey) -> String {
    let IssuedKey { key, text } = issued;
    let ApiKey {
        id, name, tenant, user, ..
    } = key;
    let secret = text.expose_secret();
    format!(
        "{secret}\n\nThis is the key {id} ({name}) of {user} in the tenant {tenant}. It is not stored and cannot be shown \
         again.\n"
    )
}

async fn list(keys: &ApiKeys, tenant: Option<Tenant>) -> anyhow::Result<String> {
    let mut text =
        "id                tenant            user              roles             status            name\n".to_owned();
    let mut offset = 0;
    loop {
        let search = KeySearch {
            tenant: tenant.clone(),
            limit: PAGE,
            offset,
        };
        let page = keys.list(search).await?;
        for key in &page.keys {
            add_line(&mut text, key)?;
        }
        offset += PAGE;
        if offset >= page.total {
            return Ok(text);
        }
    }
}

fn add_line(text: &mut String, key: &ApiKey) -> std::fmt::Result {
    let roles = key.roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(",");
    let status = match (key.revoked_at, key.expires_at) {
        (Some(_), _) => "revoked".to_owned(),
        (None, Some(end)) => format!("until {}", end.to_second()),
        (None, None) => "valid".to_owned(),
    };
    let ApiKey {
        id, name, tenant, user, ..
    } = key;
    // The fields of the head of the table have 18 characters.
    writeln!(
        text,
        "{:<17} {:<17} {:<17} {roles:<17} {status:<17} {name}",
        id.as_str(),
        tenant.as_str(),
        user.as_str()
    )
}
