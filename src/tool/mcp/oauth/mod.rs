//! Access tokens for servers that require OAuth 2.1.
//!
//! | File | Content |
//! |---|---|
//! | `client_credentials` | tokens by the grant *client credentials*, which the server gets by itself |
//! | `stored_login` | tokens of a login that an operator has made at a browser: kept in the database, and refreshed |
//! | `authorization` | the login itself, by the grant *authorization code* with PKCE |
//! | `metadata` | the search for the authorization server of a server, and the rules for addresses that it names |
//! | `token_request` | a request for tokens, and its answer |
//! | `challenge` | the header `www-authenticate` |
//! | `scope_settings` | the scopes in the settings of a server, and the errors about scopes that a token lacks |
//!
//! `rmcp` has a module for OAuth, which does not fit here: it measures the lifetime of tokens by the clock of the machine, so
//! that no test could move it; it looks for the metadata anew in each process before it can refresh; it reads the store for
//! each message; and the texts of its errors repeat what the authorization server has answered, which may be a secret.

mod authorization;
mod challenge;
mod client_credentials;
mod metadata;
mod scope_settings;
mod stored_login;
mod token_request;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::HeaderValue;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;

pub use authorization::{AuthorizationCode, LoginTarget, PendingLogin, RedirectAnswer, revoke_tokens};
pub(super) use client_credentials::ClientTokens;
pub(super) use stored_login::{LoginParts, LoginTokens};
pub use stored_login::{LoginStore, LoginStoreError};

use challenge::Challenge;

use super::error::ConnectionError;
use crate::domain::json_limits::read_foreign;
use crate::domain::oauth_scopes::OAuthScopes;
use crate::net::describe_error;

/// The time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The access tokens for one server.
#[derive(Clone)]
pub(super) enum AccessTokens {
    /// Tokens that this server gets by itself.
    Client(Arc<ClientTokens>),
    /// Tokens of a login.
    Login(Arc<LoginTokens>),
}

impl AccessTokens {
    /// Returns the value of the header `authorization`. Callers that come at the same time wait for one request.
    ///
    /// The future is boxed, so that its code is compiled once and not for each transport.
    ///
    /// # Errors
    /// If nobody has logged in, or if the authorization server cannot be found or reached, or refuses the client.
    pub(super) fn header(&self) -> BoxFuture<'_, Result<HeaderValue, ConnectionError>> {
        Box::pin(async move {
            match self {
                Self::Client(tokens) => tokens.header().await,
                Self::Login(tokens) => tokens.header().await,
            }
        })
    }

    /// Forgets a token that the server has refused, unless it was replaced already.
    pub(super) async fn forget(&self, refused: &HeaderValue) {
        match self {
            Self::Client(tokens) => tokens.forget(refused).await,
            Self::Login(tokens) => tokens.forget(refused).await,
        }
    }

    /// Returns the response to a request that was sent with a token. If the server has refused the request since the token lacks
    /// scopes, the request is repeated once, with a token that has them. `head` returns the head of a response.
    ///
    /// # Errors
    /// [`ConnectionError::ScopesMissing`] if there is no token with these scopes; others if the authorization server or the
    /// server cannot be reached.
    pub(super) async fn repeat_with_scopes<R>(
        &self,
        token: &HeaderValue,
        response: R,
        head: impl Fn(&R) -> &Response,
        repeat: impl AsyncFnOnce(HeaderValue) -> Result<R, ConnectionError>,
    ) -> Result<R, ConnectionError> {
        let Some(needed) = missing_scopes(head(&response)) else {
            return Ok(response);
        };
        let token = self.with_scopes(token, &needed).await?;
        let response = repeat(token.clone()).await?;
        match missing_scopes(head(&response)) {
            Some(needed) => Err(self.note_missing_scopes(&token, &needed).await),
            None => Ok(response),
        }
    }

    /// Returns the value of the header `authorization` for a request that the server has refused, since its token lacks scopes.
    ///
    /// # Errors
    /// [`ConnectionError::ScopesMissing`] if there is no token with these scopes; others if the authorization server cannot be
    /// reached.
    async fn with_scopes(&self, refused: &HeaderValue, needed: &OAuthScopes) -> Result<HeaderValue, ConnectionError> {
        match self {
            Self::Client(tokens) => tokens.with_scopes(refused, needed).await,
            Self::Login(tokens) => tokens.with_scopes(refused, needed).await,
        }
    }

    /// Returns the error that a token lacks scopes. A login remembers them.
    async fn note_missing_scopes(&self, refused: &HeaderValue, needed: &OAuthScopes) -> ConnectionError {
        match self {
            Self::Client(tokens) => tokens.note_missing_scopes(needed),
            Self::Login(tokens) => tokens.note_missing_scopes(refused, needed).await,
        }
    }
}

/// Returns the scopes that a request needs, if a server has refused it since the access token lacks them. There may be none: a
/// server need not name them.
fn missing_scopes(response: &Response) -> Option<OAuthScopes> {
    match response.status() {
        StatusCode::FORBIDDEN => Challenge::read(response.headers()).insufficient_scope(),
        _ => None,
    }
}

async fn send(request: RequestBuilder) -> Result<Response, ConnectionError> {
    let sent = request.timeout(TIMEOUT).send().await;
    sent.map_err(|error| ConnectionError::Unreachable(format!("its authorization server: {}", describe_error(&error))))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ConnectionError> {
    let value =
        read_foreign(body).map_err(|error| invalid(format!("the answer of its authorization server {error}")))?;
    let parsed = serde_json::from_value(value);
    // The text of the error may contain a part of the answer, and so of a token.
    parsed.map_err(|_| invalid("the answer of its authorization server has an unexpected form"))
}

fn invalid(why: impl Into<String>) -> ConnectionError {
    ConnectionError::InvalidAnswer(why.into())
}
