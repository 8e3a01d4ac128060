//! Authentication: from the headers of a request to an [`Identity`].
//!
//! There are several ways side by side: API keys of the database and of the configuration, JSON Web Tokens of issuers,
//! an HTTP hook that answers with an identity, and stream tickets for browsers. The form of a credential decides which
//! way is responsible, and a way that is responsible and refuses is not followed by another.
//!
//! | Credential | Way |
//! |---|---|
//! | query parameter `ticket` of a stream | the ticket; see [`tickets`] |
//! | `x-api-key` or `authorization: Bearer` with the text of a key | API keys; see [`keys`] and [`configured_keys`] |
//! | `authorization: Bearer` with a token whose `iss` is configured | the issuer; see [`jwt`] |
//! | anything else | the hook, if there is one; see [`hook`] |
//!
//! What is refused is logged with its reason at the level `debug`; the client does not learn the reason.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName};

use crate::domain::Invalid;
use crate::domain::api_key::{ApiKeyId, PresentedKey};
use crate::domain::identity::{Credential, Identity};
use crate::domain::time::Clock;

mod bounded_json;
mod cache;
pub mod configured_keys;
pub mod hook;
pub mod jwt;
pub mod keys;
mod store;
pub mod tickets;

pub use configured_keys::ConfiguredKey;
pub use hook::HookSettings;
pub use jwt::{ClaimRules, IssuerSettings, count_issuer_keys};
pub use keys::{ApiKeys, IssuedKey};
pub use store::{CredentialStore, CredentialStoreError, KeyPage, KeySearch};
pub use tickets::IssuedTicket;

use configured_keys::ConfiguredKeys;
use hook::Hook;
use jwt::{Issuer, ParsedToken};
use tickets::Tickets;

/// The header with an API key, as the SDKs send it.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The time after which the credential of an open stream is checked again. A change of a key in this process is noticed
/// at once.
pub const STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// The credentials of a request.
#[derive(Clone, Copy)]
pub struct Credentials<'r> {
    /// The method.
    pub method: &'r Method,
    /// The path, without the query.
    pub path: &'r str,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// The stream ticket, if the request is for a stream and has one.
    pub ticket: Option<&'r str>,
    /// False if the hook must not be asked, since too many authentications of the client have failed. What it answered
    /// before counts as long as it is cached.
    pub may_ask_hook: bool,
}

/// A request that is not authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthError {
    /// There are no credentials, or they are not valid. The reason is for the log.
    Refused(&'static str),
    /// Only the hook could know the credentials, and it must not be asked.
    HookNotAsked,
    /// The credentials cannot be checked now. The reason is for the log.
    Unavailable(String),
}

impl AuthError {
    /// Creates the error for credentials that are not valid.
    fn refused(reason: &'static str) -> Self {
        Self::Refused(reason)
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) => f.write_str(reason),
            Self::HookNotAsked => f.write_str("the hook is not asked after too many failed authentications"),
            Self::Unavailable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for AuthError {}

impl From<CredentialStoreError> for AuthError {
    fn from(error: CredentialStoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// An API key or a ticket that cannot be created or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KeyError {
    /// A field is invalid, or goes beyond the rights of who asks.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// There is no such key.
    #[error("API key not found")]
    NoKey,
    /// The key was revoked.
    #[error("the API key was revoked")]
    Revoked,
    /// The tenant has as many keys as allowed.
    #[error("the tenant has as many API keys as allowed; revoked keys are deleted after some time")]
    TooMany,
    /// The user has as many unused tickets as allowed.
    #[error("you have as many unused tickets as allowed; they expire within a minute")]
    TooManyTickets,
    /// The server has no authentication.
    #[error("this server runs without authentication: there is no section [auth] in its configuration")]
    Off,
    /// The database fails.
    #[error("{0}")]
    Unavailable(#[from] CredentialStoreError),
}

/// The ways in which callers prove who they are.
pub struct AuthSettings {
    /// True if the API keys of the database are accepted.
    pub stored_keys: bool,
    /// The API keys of the configuration.
    pub configured_keys: Vec<ConfiguredKey>,
    /// The issuers of tokens.
    pub issuers: Vec<IssuerSettings>,
    /// The HTTP hook.
    pub hook: Option<HookSettings>,
}

/// Finds out who sends a request. Cloning copies a pointer.
#[derive(Clone)]
pub struct Authenticator(Option<Arc<AuthMethods>>);

/// The configured ways.
struct AuthMethods {
    clock: Arc<dyn Clock>,
    keys: ApiKeys,
    accepts_stored_keys: bool,
    configured: ConfiguredKeys,
    issuers: Vec<Issuer>,
    hook: Option<Hook>,
    tickets: Tickets,
}

impl Authenticator {
    /// Creates the authenticator of a server without authentication, for which every caller may do everything.
    pub fn off() -> Self {
        Self(None)
    }

    /// Creates an authenticator with these ways.
    ///
    /// # Errors
    /// If an HTTP client cannot be created.
    pub fn new(
        settings: AuthSettings,
        store: Arc<dyn CredentialStore>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, reqwest::Error> {
        let issuers = settings.issuers.into_iter();
        let issuers = issuers.map(|issuer| Issuer::new(issuer, Arc::clone(&clock)));
        let hook = settings.hook.map(|hook| Hook::new(hook, Arc::clone(&clock)));
        Ok(Self(Some(Arc::new(AuthMethods {
            keys: ApiKeys::new(Arc::clone(&store), Arc::clone(&clock)),
            accepts_stored_keys: settings.stored_keys,
            configured: ConfiguredKeys::new(settings.configured_keys),
            issuers: issuers.collect::<Result<_, _>>()?,
            hook: hook.transpose()?,
            tickets: Tickets::new(store, Arc::clone(&clock)),
            clock,
        }))))
    }

    /// Returns whether callers must prove who they are.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether the hook is asked about credentials that no other way knows.
    pub fn has_hook(&self) -> bool {
        self.0.as_ref().is_some_and(|ways| ways.hook.is_some())
    }

    /// Returns whether a request has credentials, valid or not.
    pub fn has_credentials(&self, credentials: Credentials<'_>) -> bool {
        let Some(ways) = &self.0 else { return false };
        let is_given = |name: &HeaderName| credentials.headers.contains_key(name);
        let mut of_hook = ways.hook.iter().flat_map(Hook::headers);
        credentials.ticket.is_some() || is_given(&AUTHORIZATION) || is_given(&API_KEY) || of_hook.any(is_given)
    }

    /// Returns who sends a request.
    ///
    /// # Errors
    /// If there are no valid credentials, or if they cannot be checked now.
    pub async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Arc<Identity>, AuthError> {
        let Some(ways) = &self.0 else {
            return Ok(Arc::new(Identity::unauthenticated()));
        };
        let outcome = ways.identify(credentials).await;
        let is_current = |identity: &Arc<Identity>| identity.expires_at.is_none_or(|end| ways.clock.now() < end);
        let outcome = match outcome {
            Ok(identity) if !is_current(&identity) => Err(AuthError::refused("the credentials have expired")),
            outcome => outcome,
        };
        match &outcome {
            Ok(_) => {}
            Err(AuthError::Unavailable(reason)) => tracing::warn!(reason, "credentials cannot be checked"),
            Err(reason @ (AuthError::Refused(_) | AuthError::HookNotAsked)) => {
                tracing::debug!(%reason, method = %credentials.method, path = credentials.path, "request refused");
            }
        }
        outcome
    }

    /// Waits until the credential of a caller has become invalid: its API key is revoked, or its time is over. Waits
    /// for ever if that cannot happen.
    pub async fn credential_ended(&self, identity: &Identity) {
        match &self.0 {
            // The time that the hook names is how long its answer is cached, which is not the end of a session.
            Some(ways) if identity.credential != Credential::Hook => ways.credential_ended(identity).await,
            _ => pending().await,
        }
    }

    /// Returns the API keys of the database.
    ///
    /// # Errors
    /// If the server has no authentication.
    pub fn keys(&self) -> Result<&ApiKeys, KeyError> {
        self.0.as_ref().map(|ways| &ways.keys).ok_or(KeyError::Off)
    }

    /// Creates a stream ticket that stands for an identity.
    ///
    /// # Errors
    /// If the server has no authentication, the user has too many tickets, or the database fails.
    pub async fn issue_ticket(&self, identity: &Identity) -> Result<IssuedTicket, KeyError> {
        let ways = self.0.as_ref().filter(|_| identity.credential.is_verified());
        ways.ok_or(KeyError::Off)?.tickets.issue(identity).await
    }
}

impl AuthMethods {
    async fn credential_ended(&self, identity: &Identity) {
        let key = stored_key_of(identity);
        let mut changes = self.keys.watch_changes();
        loop {
            if identity.expires_at.is_some_and(|end| end <= self.clock.now()) {
                return;
            }
            // While the database fails, nobody knows that the key has ended.
            if let Some(key) = &key
                && let Ok(false) = self.keys.is_valid(key).await
            {
                return;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(STREAM_CHECK_INTERVAL) => {}
            }
        }
    }

    async fn identify(&self, credentials: Credentials<'_>) -> Result<Arc<Identity>, AuthError> {
        let stored_keys = Some(&self.keys).filter(|_| self.accepts_stored_keys);
        if let Some(ticket) = credentials.ticket {
            return self.tickets.redeem(ticket, stored_keys).await;
        }
        let api_key = single(credentials.headers, &API_KEY)?;
        let bearer = bearer_of(credentials.headers)?;
        for text in api_key.into_iter().chain(bearer) {
            if let Some(identity) = self.configured.find(text) {
                return Ok(identity);
            }
            if let Some(keys) = stored_keys
                && let Some(presented) = PresentedKey::read(text)
            {
                return keys.authenticate(&presented).await;
            }
        }
        if let Some(token) = bearer.and_then(ParsedToken::read)
            && let Some(issuer) = self.issuers.iter().find(|issuer| token.is_of(issuer.name()))
        {
            return issuer.verify(&token).await;
        }
        match &self.hook {
            Some(hook) => hook.ask(credentials).await,
            None => Err(AuthError::refused("there are no credentials that any way knows")),
        }
    }
}

/// Returns whether the credential of a caller may become invalid while a response is sent. A key of the configuration
/// that does not expire is valid for as long as the server runs.
pub fn may_end(identity: &Identity) -> bool {
    identity.expires_at.is_some() || stored_key_of(identity).is_some()
}

/// Returns the id of the key of the database by which an identity was proved, if it was by one.
fn stored_key_of(identity: &Identity) -> Option<ApiKeyId> {
    identity.credential.api_key().and_then(ApiKeyId::read)
}

/// Returns the value of a header that may be given once.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, AuthError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        // The header that counts would depend on the proxies in between.
        return Err(AuthError::refused("a header with credentials is given twice"));
    }
    // A value that is no text is no credential of a way that is known here; the hook does not get it either.
    Ok(first.and_then(|value| value.to_str().ok()).map(str::trim))
}

/// Returns the token of `authorization: Bearer TOKEN` in these headers, if they have exactly one.
///
/// # Errors
/// If the header is given twice.
pub fn bearer_of(headers: &HeaderMap) -> Result<Option<&str>, AuthError> {
    Ok(single(headers, &AUTHORIZATION)?.and_then(bearer_token))
}

/// Returns the token of `authorization: Bearer TOKEN`.
fn bearer_token(header: &str) -> Option<&str> {
    let parts = header.split_once(' ')?;
    let token = parts.1.trim();
    (parts.0.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
