//! The place where API keys and stream tickets are stored, as this room sees it.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::domain::api_key::{ApiKey, ApiKeyId, KeyRef, KeyRotation, SecretDigest, StoredApiKey, StoredTicket};
use crate::domain::identity::Tenant;
use crate::domain::time::Timestamp;

/// The database of API keys and stream tickets. It is a trait, since this room knows no SQL.
#[async_trait]
pub trait CredentialStore: Send + Sync {
    /// Returns the key with this id.
    async fn find_key(&self, id: ApiKeyId) -> Result<Option<StoredApiKey>, CredentialStoreError>;

    /// Stores a new key, unless its tenant has as many as allowed. Returns whether it was stored.
    async fn insert_key(&self, key: StoredApiKey, now: Timestamp) -> Result<bool, CredentialStoreError>;

    /// Returns a page of keys, newest first.
    async fn list_keys(&self, search: KeySearch) -> Result<KeyPage, CredentialStoreError>;

    /// Replaces the secret of a key, unless it was revoked. Returns the changed key.
    async fn rotate_key(&self, rotation: KeyRotation) -> Result<Option<ApiKey>, CredentialStoreError>;

    /// Revokes a key. Returns the key; it stays as it was if it was revoked before.
    async fn revoke_key(&self, key: KeyRef, now: Timestamp) -> Result<Option<ApiKey>, CredentialStoreError>;

    /// Stores the times of the last uses of keys together, except where a use within
    /// [`USE_INTERVAL`](crate::domain::api_key::USE_INTERVAL) before is stored.
    async fn record_uses(&self, uses: BTreeMap<ApiKeyId, Timestamp>) -> Result<(), CredentialStoreError>;

    /// Stores a ticket, unless its user has as many as allowed. Returns whether it was stored.
    async fn insert_ticket(&self, ticket: StoredTicket, now: Timestamp) -> Result<bool, CredentialStoreError>;

    /// Removes a ticket and returns it. The same ticket is returned once.
    async fn take_ticket(&self, digest: SecretDigest) -> Result<Option<StoredTicket>, CredentialStoreError>;
}

/// The database of credentials cannot be read or written. The text is for the log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct CredentialStoreError(pub String);

/// A query for keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySearch {
    /// The tenant; `None` for all, which only operators on the command line may ask for.
    pub tenant: Option<Tenant>,
    /// The maximum number of results.
    pub limit: i64,
    /// The number of results to skip.
    pub offset: i64,
}

/// A page of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<ApiKey>,
    /// The number of keys on all pages.
    pub total: i64,
}
