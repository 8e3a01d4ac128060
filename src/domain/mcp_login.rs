//! Logins to MCP servers that require a user at a browser, with the tokens that they have brought.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use super::access::Ownership;
use super::id::LoginVersion;
use super::identity::Tenant;
use super::oauth_scopes::OAuthScopes;
use super::time::Timestamp;

/// The part of a token's lifetime after which it is replaced: a message that is sent then may arrive later.
const USED_PART: f64 = 0.9;
/// The longest lifetime of a token that is believed.
const MAX_LIFETIME: Duration = Duration::from_hours(24 * 366);

/// Names a login: the agents that use it, and the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginKey {
    /// The tenant whose agents use the login; that of the server itself for the agents of all tenants.
    pub tenant: Tenant,
    /// The server, as operators name it: `name`, `agent/name` or `agent/subagent/name`.
    pub server: String,
}

impl LoginKey {
    /// Creates the key of the login for the agents of a tenant; without one, of the login for all tenants that have
    /// none of their own.
    pub fn new(tenant: Option<&Tenant>, server: &str) -> Self {
        let all = || Ownership::of_server().tenant;
        Self {
            tenant: tenant.cloned().unwrap_or_else(all),
            server: server.to_owned(),
        }
    }

    /// Returns the tenant whose agents use the login; none if those of all do.
    pub fn own_tenant(&self) -> Option<&Tenant> {
        Some(&self.tenant).filter(|tenant| **tenant != Ownership::of_server().tenant)
    }

    /// Returns the command that logs in.
    pub fn login_command(&self) -> String {
        match self.own_tenant() {
            Some(tenant) => format!("adjutant mcp login {} --tenant {tenant}", self.server),
            None => format!("adjutant mcp login {}", self.server),
        }
    }
}

/// A login without its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginStatus {
    /// The key.
    pub key: LoginKey,
    /// The address of the server that the tokens are for.
    pub url: String,
    /// The authorization server.
    pub issuer: String,
    /// The time from which the access token is refused; none if the authorization server did not say.
    pub expires_at: Option<Timestamp>,
    /// True if the access token can be replaced without a user.
    pub is_renewable: bool,
    /// The time at which a user logged in.
    pub logged_in_at: Timestamp,
    /// The time at which the authorization server ended the login, if it did. A user has to log in again.
    pub ended_at: Option<Timestamp>,
}

impl LoginStatus {
    /// Returns whether the tokens are for a server at this address.
    pub fn is_for(&self, url: &str) -> bool {
        // The address that is stored is a normal form.
        Url::parse(url).is_ok_and(|url| url.as_str() == self.url)
    }

    /// Returns the reason why the login cannot be used any more, at this time and for a server at this address.
    pub fn problem(&self, url: &str, now: Timestamp) -> Option<&'static str> {
        if !self.is_for(url) {
            return Some("the login is for another address");
        }
        if self.ended_at.is_some() {
            return Some("the authorization server has ended the login");
        }
        let is_over = !self.is_renewable && self.expires_at.is_some_and(|end| end <= now);
        is_over.then_some("the login has expired")
    }
}

/// The secrets of a login. They are sealed in the database and never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginSecrets {
    /// The id of the client at the authorization server.
    pub client_id: String,
    /// The secret of the client, if it has one.
    pub client_secret: Option<String>,
    /// True if the secret is sent in the form, and not in the header `authorization`.
    pub secret_in_form: bool,
    /// The address for tokens.
    pub token_url: String,
    /// The address at which tokens are revoked (RFC 7009), if there is one.
    pub revocation_url: Option<String>,
    /// The resource that the tokens are for (RFC 8707).
    pub resource: String,
    /// The access token.
    pub access_token: String,
    /// The token that gets the next access token.
    pub refresh_token: Option<String>,
    /// The scopes that the server has asked for since the login, which the login does not have.
    #[serde(default, skip_serializing_if = "OAuthScopes::is_empty")]
    pub missing_scopes: OAuthScopes,
    /// The scopes that the login was made with because earlier logins had lacked them.
    #[serde(default, skip_serializing_if = "OAuthScopes::is_empty")]
    pub added_scopes: OAuthScopes,
}

impl LoginSecrets {
    /// Returns the scopes that the next login asks for beside those with which every login begins.
    pub fn further_scopes(&self) -> OAuthScopes {
        self.added_scopes.with(&self.missing_scopes)
    }
}

impl fmt::Debug for LoginSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<not shown>")
    }
}

/// A login with its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpLogin {
    /// The part that may be shown.
    pub status: LoginStatus,
    /// The time from which the access token is replaced before it is used; none if it is used until it is refused.
    pub refresh_at: Option<Timestamp>,
    /// The secrets.
    pub secrets: LoginSecrets,
    /// The version.
    pub version: LoginVersion,
}

/// Tokens that an authorization server has given.
#[derive(Clone, PartialEq, Eq)]
pub struct GivenTokens {
    /// The access token.
    pub access: String,
    /// The refresh token, if there is one.
    pub refresh: Option<String>,
    /// The lifetime of the access token, if the authorization server said it.
    pub lifetime: Option<Duration>,
    /// The scopes of the access token, if the authorization server named them.
    pub scopes: OAuthScopes,
}

impl fmt::Debug for GivenTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<not shown>")
    }
}

impl McpLogin {
    /// Takes over tokens that were given at this time. A refresh token that is not replaced stays valid (RFC 6749,
    /// section 6).
    pub fn take(&mut self, given: GivenTokens, now: Timestamp) {
        let lifetime = given.lifetime.map(|lifetime| lifetime.min(MAX_LIFETIME));
        self.secrets.access_token = given.access;
        if given.refresh.is_some() {
            self.secrets.refresh_token = given.refresh;
        }
        self.status.is_renewable = self.secrets.refresh_token.is_some();
        self.status.expires_at = lifetime.map(|lifetime| now.plus(lifetime));
        self.refresh_at = lifetime.map(|lifetime| now.plus(lifetime.mul_f64(USED_PART)));
        self.version = LoginVersion::mint();
    }

    /// Ends the login: its tokens are forgotten, and a user has to log in again.
    pub fn end(&mut self, now: Timestamp) {
        self.secrets.access_token.clear();
        self.secrets.refresh_token = None;
        self.status.is_renewable = false;
        self.status.ended_at = Some(now);
        self.version = LoginVersion::mint();
    }

    /// Returns whether the access token is to be replaced before it is used.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.status.is_renewable && self.refresh_at.is_some_and(|due| due <= now)
    }

    /// Returns whether the access token may still be accepted.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.status.expires_at.is_none_or(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login() -> McpLogin {
        McpLogin {
            status: LoginStatus {
                key: LoginKey::new(None, "vault"),
                url: "https://a.test/mcp".to_owned(),
                issuer: "https://login.test".to_owned(),
                expires_at: None,
                is_renewable: false,
                logged_in_at: Timestamp(0),
                ended_at: None,
            },
            refresh_at: None,
            secrets: LoginSecrets {
                client_id: "c".to_owned(),
                client_secret: Some("s3cret".to_owned()),
                secret_in_form: false,
                token_url: "https://login.test/token".to_owned(),
                revocation_url: None,
                resource: "https://a.test/mcp".to_owned(),
                access_token: String::new(),
                refresh_token: None,
                missing_scopes: OAuthScopes::default(),
                added_scopes: OAuthScopes::default(),
            },
            version: LoginVersion::mint(),
        }
    }

    fn given(refresh: Option<&str>) -> GivenTokens {
        GivenTokens {
            access: "a-t0ken".to_owned(),
            refresh: refresh.map(str::to_owned),
            lifetime: Some(Duration::from_secs(100)),
            scopes: OAuthScopes::default(),
        }
    }

    #[test]
    fn a_token_is_replaced_after_nine_tenths_of_its_lifetime() {
        let mut login = login();
        let at = |seconds: u64| Timestamp(0).plus(Duration::from_secs(seconds));
        login.take(given(Some("r-1")), at(0));
        assert!(!login.is_due(at(89)) && login.is_due(at(90)));
        assert!(login.is_valid(at(99)) && !login.is_valid(at(100)));
        assert_eq!(login.status.problem("https://a.test/mcp", at(1000)), None);
        login.take(given(None), at(90));
        assert_eq!(login.secrets.refresh_token.as_deref(), Some("r-1"), "it stays valid");
        assert!(login.status.problem("https://b.test/mcp", at(0)).is_some());
    }

    #[test]
    fn a_login_without_a_refresh_token_ends_with_its_access_token() {
        let mut login = login();
        login.take(given(None), Timestamp(0));
        let end = Timestamp(0).plus(Duration::from_secs(100));
        assert!(!login.is_due(end));
        assert_eq!(login.status.problem("https://a.test/mcp", Timestamp(0)), None);
        assert_eq!(
            login.status.problem("https://a.test/mcp", end),
            Some("the login has expired")
        );
    }

    #[test]
    fn a_login_that_has_ended_has_no_tokens() {
        let mut login = login();
        login.take(given(Some("r-1")), Timestamp(0));
        let before = login.version;
        login.end(Timestamp(1));
        assert_eq!(login.secrets.access_token, "");
        assert_eq!(login.secrets.refresh_token, None);
        assert_ne!(login.version, before);
        assert!(login.status.problem("https://a.test/mcp", Timestamp(2)).is_some());
    }

    #[test]
    fn new_tokens_keep_what_the_login_lacks() {
        let mut login = login();
        login.secrets.missing_scopes = OAuthScopes::read("close");
        login.secrets.added_scopes = OAuthScopes::read("open");
        login.take(given(Some("r-1")), Timestamp(0));
        login.end(Timestamp(1));
        assert_eq!(login.secrets.further_scopes().parameter(), "open close");
    }

    #[test]
    fn secrets_without_scopes_are_read_and_written_as_before() {
        let login = login();
        let stored = serde_json::to_value(&login.secrets).expect("JSON");
        assert_eq!(stored.get("missing_scopes"), None);
        assert_eq!(stored.get("added_scopes"), None);
        let read: LoginSecrets = serde_json::from_value(stored).expect("secrets");
        assert_eq!(read, login.secrets);
    }

    #[test]
    fn secrets_are_not_printed() {
        let mut login = login();
        login.take(given(Some("r-1")), Timestamp(0));
        let printed = format!("{login:?} {:?}", given(Some("r-1")));
        for secret in ["s3cret", "a-t0ken", "r-1"] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }
}
