//! Callers, stream tickets and API keys on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Object;
use crate::domain::api_key::ApiKey;
use crate::domain::identity::{Identity, UserRole};

/// The caller of a request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Caller")]
pub struct CallerView {
    /// The user; empty on a server without authentication.
    pub identity: String,
    /// The name for people.
    pub display_name: Option<String>,
    /// The tenant.
    pub tenant: String,
    /// The roles: admin, developer, operator, user, approver.
    pub roles: Vec<String>,
    /// The permissions that limit what the roles allow; null for no limit.
    pub scopes: Option<Vec<String>>,
    /// The kind of the credential: api_key, jwt, hook, or none on a server without authentication.
    pub credential: String,
    /// The further fields that the authentication knows of the user.
    pub claims: Object,
    /// The time from which the caller must authenticate anew.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

impl CallerView {
    /// Creates the view.
    pub fn of(caller: &Identity) -> Self {
        Self {
            identity: caller.user.to_string(),
            display_name: caller.display_name.clone(),
            tenant: caller.tenant.to_string(),
            roles: words(&caller.roles),
            scopes: caller.scopes.clone(),
            credential: caller.credential.kind().to_owned(),
            claims: caller.claims.clone(),
            expires_at: caller.expires_at.map(|at| at.to_string()),
        }
    }
}

fn words(roles: &[UserRole]) -> Vec<String> {
    roles.iter().map(|role| role.word().to_owned()).collect()
}

/// A stream ticket. It is a secret, so it has no `Debug`.
#[derive(Serialize, ToSchema)]
#[schema(title = "Ticket")]
pub struct TicketView {
    /// The value of the query parameter `ticket`. It can be used once.
    pub ticket: String,
    /// The time from which the ticket is refused.
    #[schema(format = DateTime)]
    pub expires_at: String,
}

/// A new API key.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(title = "KeyCreate")]
pub struct KeyCreate {
    /// The name, for people; 1 to 128 characters.
    pub name: String,
    /// The user for whom the key acts; the caller by default.
    pub user: Option<String>,
    /// The roles, all of which the caller must have, unless it is an admin; `user` by default.
    pub roles: Option<Vec<String>>,
    /// The permissions that limit what the roles allow, such as `threads:read` or `threads:*`; no limit by default.
    pub scopes: Option<Vec<String>>,
    /// The time from which the key is refused; never by default.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// A rotation of an API key.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(title = "KeyRotate")]
pub struct KeyRotate {
    /// The time for which the old secret is accepted, in seconds; a day by default, 0 for not at all.
    pub grace_s: Option<f64>,
}

/// An API key without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "ApiKey")]
pub struct ApiKeyView {
    /// The id.
    pub key_id: String,
    /// The name, for people.
    pub name: String,
    /// The tenant.
    pub tenant: String,
    /// The user for whom the key acts.
    pub user: String,
    /// The roles.
    pub roles: Vec<String>,
    /// The permissions that limit what the roles allow; null for no limit.
    pub scopes: Option<Vec<String>>,
    /// The time of its creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time from which the key is refused.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// The time of the last use, to the minute.
    #[schema(format = DateTime)]
    pub last_used_at: Option<String>,
    /// The time when the key got its present secret, if it had another.
    #[schema(format = DateTime)]
    pub rotated_at: Option<String>,
    /// The time when the key was revoked.
    #[schema(format = DateTime)]
    pub revoked_at: Option<String>,
}

impl ApiKeyView {
    /// Creates the view.
    pub fn of(key: &ApiKey) -> Self {
        Self {
            key_id: key.id.to_string(),
            name: key.name.clone(),
            tenant: key.tenant.to_string(),
            user: key.user.to_string(),
            roles: words(&key.roles),
            scopes: key.scopes.clone(),
            created_at: key.created_at.to_string(),
            expires_at: key.expires_at.map(|at| at.to_string()),
            last_used_at: key.last_used_at.map(|at| at.to_string()),
            rotated_at: key.rotated_at.map(|at| at.to_string()),
            revoked_at: key.revoked_at.map(|at| at.to_string()),
        }
    }
}

/// An API key with its secret. It has no `Debug`.
#[derive(Serialize, ToSchema)]
#[schema(title = "IssuedKey")]
pub struct IssuedKeyView {
    /// The text of the key, for the header `x-api-key`. It is not stored and cannot be shown again.
    pub api_key: String,
    /// The key.
    #[serde(flatten)]
    pub key: ApiKeyView,
}
