//! Access tokens of a login that an operator has made at a browser.
//!
//! The login is in the database, since several processes use it and it outlives them. A refresh token may be used once: an
//! authorization server may take a second use for theft, and end the login. So a process claims the refresh before it sends
//! it, others wait for its result, and a refresh that has begun is finished even when nobody waits for it any more.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::HeaderValue;
use reqwest::{Client, Url};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, sleep};

use super::super::SpawnServer;
use super::super::error::ConnectionError;
use super::invalid;
use super::scope_settings::ScopeSettings;
use super::token_request::{TokenError, bearer, request_tokens};
use crate::definition::mcp::McpOAuth;
use crate::domain::backoff::Backoff;
use crate::domain::id::LoginVersion;
use crate::domain::mcp_login::{GivenTokens, LoginKey, McpLogin};
use crate::domain::oauth_scopes::OAuthScopes;
use crate::domain::time::{Clock, Timestamp};

/// The time for which a login that was read is used before it is read again, so that a logout has its effect soon.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// The time for which a refresh is claimed: longer than its request may take.
const CLAIMED_FOR: Duration = Duration::from_mins(1);
/// The pauses before a login is read again whose tokens another process refreshes.
const WAITS: Backoff = Backoff::doubling(Duration::from_millis(20), Duration::from_secs(1));
/// The number of times that a login is read while another process refreshes it: more than a minute.
const MAX_READS: u32 = 80;
/// The pauses before new tokens are stored again.
const STORE_AGAIN: Backoff = Backoff::doubling(Duration::from_millis(200), Duration::from_secs(2));
/// The number of times that storing new tokens is tried.
const MAX_STORES: u32 = 6;

/// An error of the database of logins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the logins cannot be read or written: {0}")]
pub struct LoginStoreError(pub String);

/// The logins in the database.
#[async_trait]
pub trait LoginStore: Send + Sync {
    /// Returns a login.
    ///
    /// # Errors
    /// When the database fails.
    async fn find(&self, key: &LoginKey) -> Result<Option<McpLogin>, LoginStoreError>;

    /// Claims the refresh of this version of a login until a time. Returns false if it is not the current version, or if
    /// another process has claimed its refresh.
    ///
    /// # Errors
    /// When the database fails.
    async fn claim_refresh(&self, login: &McpLogin, now: Timestamp, until: Timestamp) -> Result<bool, LoginStoreError>;

    /// Replaces the tokens of a login whose version is `before`, and ends the claim. Returns false if there is no such login
    /// any more.
    ///
    /// # Errors
    /// When the database fails.
    async fn replace(&self, login: &McpLogin, before: LoginVersion) -> Result<bool, LoginStoreError>;

    /// Ends a claim after which the login is as before.
    ///
    /// # Errors
    /// When the database fails.
    async fn release_refresh(&self, login: &McpLogin) -> Result<(), LoginStoreError>;

    /// Adds scopes to those that a login lacks, unless its tokens have changed since it was read.
    ///
    /// # Errors
    /// When the database fails.
    async fn add_missing_scopes(&self, login: &McpLogin, missing: &OAuthScopes) -> Result<(), LoginStoreError>;
}

/// The dependencies of the tokens of a login.
pub(in super::super) struct LoginParts {
    /// The name of the server.
    pub(in super::super) name: String,
    pub(in super::super) client: Client,
    /// None if logins cannot be read here.
    pub(in super::super) store: Option<Arc<dyn LoginStore>>,
    pub(in super::super) clock: Arc<dyn Clock>,
    pub(in super::super) spawn: SpawnServer,
    /// The keys of the logins that may be used; the first one that exists is.
    pub(in super::super) keys: Vec<LoginKey>,
}

/// The access tokens of a login.
pub(in super::super) struct LoginTokens {
    parts: LoginParts,
    server: Url,
    scopes: ScopeSettings,
    held: Mutex<Held>,
}

/// The login as it was read.
#[derive(Default)]
struct Held {
    login: Option<HeldLogin>,
    /// The token that the server has refused last.
    refused: Option<HeaderValue>,
}

struct HeldLogin {
    login: McpLogin,
    header: HeaderValue,
    read_at: Instant,
}

impl LoginTokens {
    /// Creates the tokens for a server. Nothing is read or sent yet.
    pub(in super::super) fn new(parts: LoginParts, server: Url, settings: &McpOAuth) -> Self {
        Self {
            scopes: ScopeSettings::of(&parts.name, settings),
            parts,
            server,
            held: Mutex::default(),
        }
    }

    /// Returns the value of the header `authorization`. Callers that come at the same time wait for one refresh.
    ///
    /// # Errors
    /// [`ConnectionError::LoginRequired`] if an operator has to log in; others if the token has expired and cannot be
    /// refreshed for now.
    pub(super) async fn header(self: &Arc<Self>) -> Result<HeaderValue, ConnectionError> {
        let mut held = self.held.lock().await;
        let now = self.parts.clock.now();
        if let Some(found) = &held.login
            && found.read_at.elapsed() < READ_AGAIN_AFTER
            && !found.login.is_due(now)
            && found.login.is_valid(now)
        {
            return Ok(found.header.clone());
        }
        held.login = None;
        let login = self.usable(held.refused.as_ref()).await?;
        let header = bearer(&login.secrets.access_token)?;
        held.login = Some(HeldLogin {
            login,
            header: header.clone(),
            read_at: Instant::now(),
        });
        Ok(header)
    }

    /// Forgets a token that the server has refused, unless it was replaced already.
    pub(super) async fn forget(&self, refused: &HeaderValue) {
        let mut held = self.held.lock().await;
        held.login.take_if(|held| held.header == *refused);
        held.refused = Some(refused.clone());
    }

    /// Returns the value of the header `authorization` for a request whose token lacks scopes: that of another token, if an
    /// operator has logged in again since the token was read.
    ///
    /// # Errors
    /// [`ConnectionError::ScopesMissing`] if there is no other token; others as [`LoginTokens::header`].
    pub(super) async fn with_scopes(
        self: &Arc<Self>,
        refused: &HeaderValue,
        needed: &OAuthScopes,
    ) -> Result<HeaderValue, ConnectionError> {
        {
            let mut held = self.held.lock().await;
            held.login.take_if(|held| held.header == *refused);
        }
        let header = self.header().await?;
        match header == *refused {
            true => Err(self.note_missing_scopes(refused, needed).await),
            false => Ok(header),
        }
    }

    /// Remembers in the login that its token lacks scopes, and returns the error that says so.
    pub(super) async fn note_missing_scopes(&self, refused: &HeaderValue, needed: &OAuthScopes) -> ConnectionError {
        let login = match self.read().await {
            Ok(login) => login,
            Err(error) => return error,
        };
        let key = &login.status.key;
        let is_its_token = bearer(&login.secrets.access_token).as_ref() == Ok(refused);
        if is_its_token
            && let Some(store) = &self.parts.store
            && let Err(error) = store.add_missing_scopes(&login, needed).await
        {
            tracing::warn!(server = key.server, %error, "the scopes that a login lacks were not stored");
        }
        self.scopes.login_lacks(needed, key)
    }

    /// Returns a login whose token can be sent: not due, and not refused.
    async fn usable(self: &Arc<Self>, refused: Option<&HeaderValue>) -> Result<McpLogin, ConnectionError> {
        for reads in 1..=MAX_READS {
            let login = self.read().await?;
            let now = self.parts.clock.now();
            let is_refused = refused.is_some_and(|refused| bearer(&login.secrets.access_token).as_ref() == Ok(refused));
            if !is_refused && !login.is_due(now) {
                return Ok(login);
            }
            if !login.status.is_renewable {
                return Err(self.required("the server refuses the token of the login"));
            }
            match self.refresh(&login, is_refused).await? {
                Some(login) => return Ok(login),
                // Another process refreshes it.
                None => sleep(WAITS.pause(reads)).await,
            }
        }
        Err(invalid(
            "the refresh of its access token takes too long at another server process",
        ))
    }

    /// Reads the login.
    async fn read(&self) -> Result<McpLogin, ConnectionError> {
        let store = self.parts.store.as_ref();
        let store = store.ok_or_else(|| self.required("logins cannot be read here"))?;
        let mut found = None;
        for key in &self.parts.keys {
            found = store.find(key).await.map_err(store_failed)?;
            if found.is_some() {
                break;
            }
        }
        let login = found.ok_or_else(|| self.required("no operator has logged in"))?;
        match login.status.problem(self.server.as_str(), self.parts.clock.now()) {
            Some(problem) => Err(required_by(&login.status.key, problem)),
            None => Ok(login),
        }
    }

    /// Gets new tokens for a login, unless another process does so: then the old token is returned if it may still be
    /// accepted, and none otherwise.
    async fn refresh(
        self: &Arc<Self>,
        login: &McpLogin,
        is_refused: bool,
    ) -> Result<Option<McpLogin>, ConnectionError> {
        let old = || {
            let now = self.parts.clock.now();
            (!is_refused && login.is_valid(now)).then(|| login.clone())
        };
        let (sender, result) = oneshot::channel();
        let tokens = Arc::clone(self);
        let claimed = login.clone();
        // The caller may stop to wait at any time, and the new tokens must be stored nevertheless.
        (self.parts.spawn)(Box::pin(async move {
            let refreshed = tokens.refresh_if_claimed(claimed).await;
            // The tokens are stored: without a reader, they are read from there.
            drop(sender.send(refreshed));
        }));
        match result.await {
            Ok(Ok(Some(login))) => Ok(Some(login)),
            Ok(Ok(None)) => Ok(old()),
            Ok(Err(error @ ConnectionError::LoginRequired(_))) => Err(error),
            Ok(Err(error)) => {
                tracing::warn!(server = login.status.key.server, %error, "refreshing an access token failed");
                old().map(Some).ok_or(error)
            }
            Err(_) => Err(invalid("its access token was not refreshed, since this server stops")),
        }
    }

    /// Claims the refresh of a login and makes it. Returns none if another process has claimed it, or has changed the login.
    async fn refresh_if_claimed(&self, login: McpLogin) -> Result<Option<McpLogin>, ConnectionError> {
        let Some(store) = &self.parts.store else {
            return Ok(None);
        };
        let now = self.parts.clock.now();
        let claimed = store.claim_refresh(&login, now, now.plus(CLAIMED_FOR)).await;
        if !claimed.map_err(store_failed)? {
            return Ok(None);
        }
        let before = login.version;
        let mut new = login.clone();
        match self.request(&login).await {
            Ok(given) => {
                new.take(given, self.parts.clock.now());
                let is_current = store_new(store.as_ref(), &new, before).await;
                tracing::info!(server = login.status.key.server, "refreshed an access token");
                Ok(is_current.then_some(new))
            }
            Err(error) if error.ends_grant() => {
                new.end(self.parts.clock.now());
                store_new(store.as_ref(), &new, before).await;
                let problem = "the authorization server has ended the login";
                Err(required_by(&login.status.key, problem))
            }
            Err(error) => {
                store.release_refresh(&login).await.map_err(store_failed)?;
                Err(error.into())
            }
        }
    }

    /// Asks for new tokens.
    async fn request(&self, login: &McpLogin) -> Result<GivenTokens, TokenError> {
        let secrets = &login.secrets;
        let place = Url::parse(&secrets.token_url);
        let place = place.map_err(|error| invalid(format!("its address for tokens is invalid: {error}")))?;
        let form = vec![
            ("grant_type", "refresh_token"),
            ("refresh_token", secrets.refresh_token.as_deref().unwrap_or_default()),
            ("resource", secrets.resource.as_str()),
        ];
        request_tokens(&self.parts.client, place, secrets.into(), form).await
    }

    fn required(&self, problem: &str) -> ConnectionError {
        match self.parts.keys.last() {
            Some(key) => required_by(key, problem),
            None => ConnectionError::LoginRequired(problem.to_owned()),
        }
    }
}

/// Stores new tokens. Returns whether the login is still there. The tokens before are used up, so storing is tried again when
/// the database fails.
async fn store_new(store: &dyn LoginStore, login: &McpLogin, before: LoginVersion) -> bool {
    for failures in 1..=MAX_STORES {
        match store.replace(login, before).await {
            Ok(is_current) => return is_current,
            Err(error) => {
                tracing::warn!(server = login.status.key.server, %error, "storing new tokens of a login failed");
                sleep(STORE_AGAIN.pause(failures)).await;
            }
        }
    }
    tracing::error!(
        server = login.status.key.server,
        "the new tokens of a login were not stored; an operator may have to log in again"
    );
    // This process can use them.
    true
}

fn store_failed(error: LoginStoreError) -> ConnectionError {
    tracing::warn!(%error, "a login to an MCP server cannot be read or written");
    ConnectionError::Unreachable("the database of logins failed".to_owned())
}

fn required_by(key: &LoginKey, problem: &str) -> ConnectionError {
    ConnectionError::LoginRequired(format!("{problem}; an operator has to run `{}`", key.login_command()))
}
