//! Identities: who sends a request, to which tenant they belong, and which roles they have.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::Invalid;
use super::time::Timestamp;

/// The longest name of a tenant, in characters.
const MAX_TENANT_CHARS: usize = 64;
/// The longest identity of a user, in bytes. The `sub` claim of OpenID Connect has at most 255 ASCII characters
/// (OpenID Connect Core 1.0, section 2).
const MAX_USER_BYTES: usize = 255;

/// The name of a tenant: an organisation or team whose resources are invisible to all others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// The tenant of resources that were created without authentication, and of identities that name no tenant.
    pub const DEFAULT: &str = "default";

    /// Validates a name: 1 to 64 lower-case letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
    ///
    /// # Errors
    /// Returns an error for `field` that states the rule.
    pub fn new(field: &str, name: &str) -> Result<Self, Invalid> {
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        let begins_well = name
            .chars()
            .next()
            .is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if begins_well && name.len() <= MAX_TENANT_CHARS && name.chars().all(is_allowed) {
            return Ok(Self(name.into()));
        }
        Err(Invalid::new(
            field,
            format!(
                "must be the name of a tenant: 1 to {MAX_TENANT_CHARS} lower-case letters, digits, `-`, `_` and `.`, \
                 beginning with a letter or a digit"
            ),
        ))
    }

    /// Reads a name from the database. It is not validated again.
    pub fn stored(name: String) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Tenant {
    type Error = Invalid;

    fn try_from(name: String) -> Result<Self, Invalid> {
        Self::new("tenant", &name)
    }
}

impl Serialize for Tenant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> Self {
        tenant.0.to_string()
    }
}

/// The identity of a user within a tenant, as the authentication names it: the `sub` of a token, or the name of an API
/// key's owner. The empty identity owns what belongs to the tenant as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct UserId(Arc<str>);

impl UserId {
    /// Validates an identity: 1 to 255 bytes without control characters.
    ///
    /// # Errors
    /// Returns an error for `field` that states the rule.
    pub fn new(field: &str, identity: &str) -> Result<Self, Invalid> {
        if !identity.is_empty() && identity.len() <= MAX_USER_BYTES && !identity.chars().any(char::is_control) {
            return Ok(Self(identity.into()));
        }
        Err(Invalid::new(
            field,
            format!("must be an identity: 1 to {MAX_USER_BYTES} bytes without control characters"),
        ))
    }

    /// Reads an identity from the database. It is not validated again.
    pub fn stored(identity: String) -> Self {
        Self(identity.into())
    }

    /// Returns the identity; empty if this is nobody in particular.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for UserId {
    type Error = Invalid;

    fn try_from(identity: String) -> Result<Self, Invalid> {
        Self::new("identity", &identity)
    }
}

impl Serialize for UserId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl From<UserId> for String {
    fn from(user: UserId) -> Self {
        user.0.to_string()
    }
}

/// A role of an identity within its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserRole {
    /// May do everything in the tenant, manage its API keys and read its audit.
    Admin,
    /// May define agents, besides what a user may do.
    Developer,
    /// May read and change all resources of the tenant, but neither agents nor API keys.
    Operator,
    /// May use agents, and read and change what the user owns.
    User,
    /// May read and answer the interrupts that are assigned to the user or to one of the user's roles.
    Approver,
}

impl UserRole {
    /// All roles.
    pub const ALL: [Self; 5] = [Self::Admin, Self::Developer, Self::Operator, Self::User, Self::Approver];

    /// Returns the name of the role in settings, tokens and the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Developer => "developer",
            Self::Operator => "operator",
            Self::User => "user",
            Self::Approver => "approver",
        }
    }

    /// Reads a list of roles. Returns each of them once, in their order.
    ///
    /// # Errors
    /// Names the entry of `field` that is not a role.
    pub fn read_all(field: &str, words: &[String]) -> Result<Vec<Self>, Invalid> {
        let roles = words.iter().enumerate().map(|(at, word)| {
            let read = word.parse::<Self>();
            read.map_err(|invalid| Invalid::new(format!("{field}[{at}]"), invalid.reason))
        });
        Ok(Self::distinct(roles.collect::<Result<_, _>>()?))
    }

    /// Returns each of these roles once, in their order.
    pub fn distinct(mut roles: Vec<Self>) -> Vec<Self> {
        roles.sort_unstable();
        roles.dedup();
        roles
    }
}

impl FromStr for UserRole {
    type Err = Invalid;

    fn from_str(word: &str) -> Result<Self, Invalid> {
        let found = Self::ALL.into_iter().find(|role| role.word() == word);
        found.ok_or_else(|| {
            let words = Self::ALL.map(|role| format!("`{}`", role.word())).join(", ");
            Invalid::new("roles", format!("`{word}` is not a role; the roles are {words}"))
        })
    }
}

/// The credential by which an identity was proved.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credential {
    /// By nothing, on a server without authentication.
    None,
    /// By nothing, on a server with authentication: the caller of a public endpoint.
    Anonymous,
    /// By the server itself, which acts for a user: a cron, or a background task.
    Server,
    /// By the token of a tool call, which reads what the call may read, and nothing else.
    Call,
    /// By the API key with this id.
    ApiKey(String),
    /// By a token of this issuer.
    Jwt(String),
    /// By the HTTP hook.
    Hook,
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The tenant. All resources that the caller creates belong to it.
    pub tenant: Tenant,
    /// The user. Empty without authentication.
    pub user: UserId,
    /// The name for people; the user's identity when none.
    pub display_name: Option<String>,
    /// The roles, without repetition.
    pub roles: Vec<UserRole>,
    /// The permissions that limit what the roles allow, such as `threads:read` or `threads:*`; `None` for no limit.
    pub scopes: Option<Vec<String>>,
    /// Further fields that the authentication knows of the user. Agents and tools see them.
    pub claims: Map<String, Value>,
    /// The credential by which the identity was proved.
    pub credential: Credential,
    /// The time from which the identity must be proved again.
    pub expires_at: Option<Timestamp>,
}

impl Credential {
    /// Returns the kind of the credential, for logs and clients.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Anonymous => "anonymous",
            Self::Server => "server",
            Self::Call => "call",
            Self::ApiKey(_) => "api_key",
            Self::Jwt(_) => "jwt",
            Self::Hook => "hook",
        }
    }

    /// Returns the id of the API key, if it is one.
    pub fn api_key(&self) -> Option<&str> {
        match self {
            Self::ApiKey(id) => Some(id),
            Self::None | Self::Anonymous | Self::Server | Self::Call | Self::Jwt(_) | Self::Hook => None,
        }
    }

    /// Returns whether the identity was proved by the caller.
    pub fn is_verified(&self) -> bool {
        matches!(self, Self::ApiKey(_) | Self::Jwt(_) | Self::Hook)
    }
}

impl Identity {
    /// The identity of every caller of a server without authentication. It may do everything.
    pub fn unauthenticated() -> Self {
        Self {
            tenant: Tenant::default(),
            user: UserId::default(),
            display_name: None,
            roles: vec![UserRole::Admin],
            scopes: None,
            claims: Map::new(),
            credential: Credential::None,
            expires_at: None,
        }
    }

    /// The identity of a caller without a credential, on a server with authentication. It may do nothing.
    pub fn anonymous() -> Self {
        Self {
            roles: vec![],
            credential: Credential::Anonymous,
            ..Self::unauthenticated()
        }
    }

    /// The identity with which the server continues work on a thread.
    pub fn server() -> Self {
        Self::server_for(&Ownership::default())
    }

    /// The identity with which the server works for a user: what it creates belongs to them.
    pub fn server_for(owner: &Ownership) -> Self {
        Self {
            tenant: owner.tenant.clone(),
            user: owner.owner.clone(),
            credential: Credential::Server,
            ..Self::unauthenticated()
        }
    }

    /// The identity of a tool that reads for a call on a thread of this owner. It has no roles: what it may read, its token
    /// says.
    pub fn of_call(owner: &Ownership) -> Self {
        Self {
            tenant: owner.tenant.clone(),
            user: owner.owner.clone(),
            roles: vec![],
            credential: Credential::Call,
            ..Self::unauthenticated()
        }
    }

    /// Returns whether the caller may do everything: on a server without authentication, or as the server itself.
    pub fn is_unrestricted(&self) -> bool {
        matches!(self.credential, Credential::None | Credential::Server)
    }

    /// Returns whether the caller has this role.
    pub fn has(&self, role: UserRole) -> bool {
        self.roles.contains(&role)
    }
}

/// To whom a resource belongs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ownership {
    /// The tenant.
    pub tenant: Tenant,
    /// The user; empty if the resource belongs to the tenant as a whole.
    pub owner: UserId,
}

impl Ownership {
    /// The word in the place of a tenant for what belongs to the server and is there for all tenants: the default
    /// assistants. It is no valid name of a tenant.
    const SERVER: &str = "*";

    /// The ownership of what belongs to the server itself. All tenants can read it.
    pub fn of_server() -> Self {
        Self {
            tenant: Tenant::stored(Self::SERVER.to_owned()),
            owner: UserId::default(),
        }
    }

    /// The ownership of what this identity creates.
    pub fn of(identity: &Identity) -> Self {
        Self {
            tenant: identity.tenant.clone(),
            owner: identity.user.clone(),
        }
    }

    /// Returns whether the resource belongs to the server itself.
    pub fn is_of_server(&self) -> bool {
        self.tenant.as_str() == Self::SERVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_name_that_urls_and_logs_can_hold() {
        for name in ["acme", "a-team_2.eu", "7"] {
            assert_eq!(Tenant::new("tenant", name).map(String::from), Ok(name.to_owned()));
        }
        for name in ["", "Acme", "-a", "a b", "ä", &"a".repeat(65)] {
            assert!(Tenant::new("tenant", name).is_err(), "{name}");
        }
    }

    #[test]
    fn an_identity_has_no_control_characters_and_a_limit() {
        assert!(UserId::new("sub", "auth0|5f7c").is_ok());
        for identity in ["", "a\nb", &"a".repeat(256)] {
            assert!(UserId::new("sub", identity).is_err(), "{identity}");
        }
    }

    #[test]
    fn an_unknown_role_is_refused_with_the_list_of_roles() {
        let refusal = "root".parse::<UserRole>().expect_err("no such role");
        assert!(refusal.reason.contains("`admin`"), "{refusal}");
    }

    #[test]
    fn a_list_of_roles_has_each_of_them_once() {
        let words = ["user", "admin", "user"].map(str::to_owned);
        assert_eq!(
            UserRole::read_all("roles", &words),
            Ok(vec![UserRole::Admin, UserRole::User])
        );
        let words = ["user", "root"].map(str::to_owned);
        let refusal = UserRole::read_all("roles", &words).expect_err("no such role");
        assert_eq!(refusal.field, "roles[1]");
    }
}
