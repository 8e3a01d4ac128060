//! The authentication of the server, built from the configuration, with its credentials in the database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use async_trait::async_trait;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};

use crate::auth::configured_keys::MIN_KEY_BYTES;
use crate::auth::{
    AuthSettings, Authenticator, ClaimRules, ConfiguredKey, CredentialStore, CredentialStoreError, HookSettings,
    IssuerSettings, KeyPage, KeySearch,
};
use crate::config::{AuthKeySection, AuthSection, HookSection, JwtSection};
use crate::db::{Db, DbError, RowAccess, keys};
use crate::domain::api_key::{ApiKey, ApiKeyId, KeyRef, KeyRotation, SecretDigest, StoredApiKey, StoredTicket};
use crate::domain::identity::{Credential, Identity, UserRole};
use crate::domain::time::{Clock, Timestamp};

/// The time for which revoked keys are kept.
const REVOKED_FOR: Duration = Duration::from_hours(90 * 24);

/// Creates the authenticator; without a section `[auth]`, one for which every caller may do everything.
pub(super) fn authenticator(
    section: Option<&AuthSection>,
    db: &Db,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Authenticator> {
    let Some(section) = section else {
        return Ok(Authenticator::off());
    };
    let configured_keys = section.keys.iter().map(configured_key).collect::<anyhow::Result<_>>()?;
    let issuers = section.jwt.iter().map(issuer).collect::<anyhow::Result<_>>()?;
    let settings = AuthSettings {
        stored_keys: section.api_keys,
        configured_keys,
        issuers,
        hook: section.hook.as_ref().map(hook).transpose()?,
    };
    let store = Arc::new(StoredCredentials(db.clone()));
    let created = Authenticator::new(settings, store, Arc::clone(clock));
    created.context("could not create the HTTP clients of [auth]")
}

pub(super) fn configured_key(section: &AuthKeySection) -> anyhow::Result<ConfiguredKey> {
    let name = &section.name;
    let text =
        super::secret(section.key()).with_context(|| format!("cannot read the key {name:?} of [[auth.keys]]"))?;
    let text = text.ok_or_else(|| anyhow!("the key {name:?} of [[auth.keys]] has no `key_env` and no `key_file`"))?;
    if text.expose_secret().len() < MIN_KEY_BYTES {
        return Err(anyhow!(
            "the key {name:?} of [[auth.keys]] is too short: it must have at least {MIN_KEY_BYTES} random characters, as \
             `openssl rand -hex 32` prints them"
        ));
    }
    let identity = Identity {
        tenant: section.tenant()?,
        user: section.user()?,
        roles: UserRole::distinct(section.roles.clone()),
        scopes: section.scopes.clone(),
        credential: Credential::ApiKey(format!("configuration:{name}")),
        expires_at: section.expires_at(),
        ..Identity::unauthenticated()
    };
    Ok(ConfiguredKey { text, identity })
}

pub(super) fn issuer(section: &JwtSection) -> anyhow::Result<IssuerSettings> {
    let secret = match section.has_secret() {
        false => None,
        true => read_secret(section)?,
    };
    let jwks_url = section.jwks_url.as_deref().map(Url::parse).transpose();
    Ok(IssuerSettings {
        issuer: section.issuer.clone(),
        audiences: section.audience.clone(),
        jwks_url: jwks_url?,
        algorithms: section.algorithms.clone(),
        secret,
        leeway: section.leeway(),
        claims: ClaimRules {
            user: section.user_claim.clone(),
            tenant_claim: section.tenant_claim.clone(),
            tenant: section.tenant()?,
            roles_claim: section.roles_claim.clone(),
            role_words: section.role_words.clone(),
            default_roles: section.default_roles.clone(),
            display_name: section.display_name_claim.clone(),
            kept: section.claims.clone(),
        },
    })
}

fn read_secret(section: &JwtSection) -> anyhow::Result<Option<SecretString>> {
    let secret = super::secret(section.key());
    let secret = secret.with_context(|| format!("cannot read the secret of the issuer {}", section.issuer))?;
    let is_short = |secret: &SecretString| secret.expose_secret().len() < MIN_KEY_BYTES;
    if secret.as_ref().is_some_and(is_short) {
        return Err(anyhow!(
            "the secret of the issuer {} is too short: HS256 needs at least {MIN_KEY_BYTES} random characters",
            section.issuer
        ));
    }
    Ok(secret)
}

fn hook(section: &HookSection) -> anyhow::Result<HookSettings> {
    let headers = section
        .headers
        .iter()
        .map(|name| name.parse())
        .collect::<Result<_, _>>();
    Ok(HookSettings {
        url: Url::parse(&section.url)?,
        timeout: section.timeout(),
        headers: headers?,
        tenant: section.tenant()?,
    })
}

/// The API keys and tickets of the database.
pub(super) struct StoredCredentials(pub(super) Db);

impl From<DbError> for CredentialStoreError {
    fn from(error: DbError) -> Self {
        Self(error.to_string())
    }
}

#[async_trait]
impl CredentialStore for StoredCredentials {
    async fn find_key(&self, id: ApiKeyId) -> Result<Option<StoredApiKey>, CredentialStoreError> {
        let read = self
            .0
            .read(move |tx| Box::pin(async move { keys::find(tx, &id).await }));
        // The tenant is known when the key is found.
        Ok(RowAccess::Server.scope(read).await?)
    }

    async fn insert_key(&self, key: StoredApiKey, now: Timestamp) -> Result<bool, CredentialStoreError> {
        let forgotten = now.minus(REVOKED_FOR);
        let write = self
            .0
            .write(move |tx| Box::pin(async move { keys::insert(tx, &key, forgotten).await }));
        Ok(write.await?)
    }

    async fn list_keys(&self, search: KeySearch) -> Result<KeyPage, CredentialStoreError> {
        let read = self.0.read(move |tx| {
            Box::pin(async move {
                let tenant = search.tenant.as_ref();
                Ok(KeyPage {
                    total: keys::count(tx, tenant).await?,
                    keys: keys::list(tx, tenant, search.limit, search.offset).await?,
                })
            })
        });
        Ok(read.await?)
    }

    async fn rotate_key(&self, rotation: KeyRotation) -> Result<Option<ApiKey>, CredentialStoreError> {
        let write = self
            .0
            .write(move |tx| Box::pin(async move { keys::rotate(tx, &rotation).await }));
        Ok(write.await?)
    }

    async fn revoke_key(&self, key: KeyRef, now: Timestamp) -> Result<Option<ApiKey>, CredentialStoreError> {
        let write = self
            .0
            .write(move |tx| Box::pin(async move { keys::revoke(tx, &key, now).await }));
        Ok(write.await?)
    }

    async fn record_uses(&self, uses: BTreeMap<ApiKeyId, Timestamp>) -> Result<(), CredentialStoreError> {
        let write = self.0.write(move |tx| {
            Box::pin(async move {
                // All servers lock the rows in the order of their ids.
                for (id, at) in &uses {
                    keys::record_use(tx, id, *at).await?;
                }
                Ok::<_, DbError>(())
            })
        });
        Ok(write.await?)
    }

    async fn insert_ticket(&self, ticket: StoredTicket, now: Timestamp) -> Result<bool, CredentialStoreError> {
        let write = self
            .0
            .write(move |tx| Box::pin(async move { keys::insert_ticket(tx, &ticket, now).await }));
        // It also deletes expired tickets, whoever had them.
        Ok(RowAccess::Server.scope(write).await?)
    }

    async fn take_ticket(&self, digest: SecretDigest) -> Result<Option<StoredTicket>, CredentialStoreError> {
        // The tenant is known when the ticket is found. Most made-up tickets end here, without a write.
        let read = self
            .0
            .read(move |tx| Box::pin(async move { keys::has_ticket(tx, &digest).await }));
        if !RowAccess::Server.scope(read).await? {
            return Ok(None);
        }
        let write = self
            .0
            .write(move |tx| Box::pin(async move { keys::take_ticket(tx, &digest).await }));
        Ok(RowAccess::Server.scope(write).await?)
    }
}
