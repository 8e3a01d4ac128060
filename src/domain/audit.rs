//! The audit: who did what to which resource, from where, and whether it was allowed.

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::access::Action;
use super::identity::{Credential, Identity, Tenant};
use super::json_limits::without_nul;
use super::time::Timestamp;

/// The outcome of a request: allowed or denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditOutcome {
    /// The request was allowed. It may still have failed, for instance because its body was invalid.
    Allowed,
    /// The request was refused because of who sent it.
    Denied,
}

impl AuditOutcome {
    /// All outcomes.
    pub const ALL: [Self; 2] = [Self::Allowed, Self::Denied];

    /// Returns the word that clients and the database use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }

    /// Parses the word that clients and the database use.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }
}

/// An entry of the audit. Entries never change.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    /// The id. Ids sort by time.
    pub id: Uuid,
    /// The tenant of the caller; the default tenant if the caller is unknown.
    pub tenant: String,
    /// The user; empty if the caller is unknown.
    pub user: String,
    /// The credential of the caller: `key:<id>`, `jwt:<issuer>`, `hook`, or `none`.
    pub credential: String,
    /// The word of the action, such as `threads:delete`.
    pub action: String,
    /// The resource, such as `thread:<id>`; empty for searches and creations.
    pub resource: String,
    /// The outcome: allowed or denied.
    pub outcome: AuditOutcome,
    /// The address of the client; none for work of this process.
    pub address: Option<IpAddr>,
    /// Further facts: the decisions of an approval, without arguments and messages, or the policies of a refusal.
    pub detail: Map<String, Value>,
    /// The time.
    pub created_at: Timestamp,
}

impl AuditEntry {
    /// Creates an entry about a request of this caller. In the resource, which clients name, U+0000 is replaced by U+FFFD: Postgres
    /// stores no text with it, and would have no entry about such a request.
    #[expect(clippy::disallowed_methods, reason = "entries are sorted by the time in their ids")]
    pub fn new(caller: &Identity, action: Action, resource: String, outcome: AuditOutcome, now: Timestamp) -> Self {
        Self {
            id: Uuid::now_v7(),
            tenant: caller.tenant.as_str().to_owned(),
            user: caller.user.as_str().to_owned(),
            credential: credential_text(&caller.credential),
            action: action.word().to_owned(),
            resource: without_nul(resource),
            outcome,
            address: None,
            detail: Map::new(),
            created_at: now,
        }
    }

    /// Creates an entry about a command of an operator on the database itself, which no policy has to allow.
    #[expect(clippy::disallowed_methods, reason = "entries are sorted by the time in their ids")]
    pub fn of_command(tenant: &Tenant, action: &str, resource: String, now: Timestamp) -> Self {
        Self {
            id: Uuid::now_v7(),
            tenant: tenant.to_string(),
            user: String::new(),
            credential: credential_text(&Credential::Server),
            action: action.to_owned(),
            resource,
            outcome: AuditOutcome::Allowed,
            address: None,
            detail: Map::new(),
            created_at: now,
        }
    }

    /// Returns the entry with the ids of the policies because of which the request was refused, if there are any.
    #[must_use]
    pub fn because_of(mut self, policies: &[String]) -> Self {
        if !policies.is_empty() {
            self.detail.insert("policies".to_owned(), json!(policies));
        }
        self
    }
}

/// Returns a credential as the audit and the log show it. Nothing in it is secret.
pub fn credential_text(credential: &Credential) -> String {
    match credential {
        Credential::None | Credential::Anonymous => "none".to_owned(),
        Credential::Server => "server".to_owned(),
        Credential::Call => "call".to_owned(),
        Credential::ApiKey(id) => ["key:", id.as_str()].concat(),
        Credential::Jwt(issuer) => format!("jwt:{issuer}"),
        Credential::Hook => "hook".to_owned(),
    }
}
