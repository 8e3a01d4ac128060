//! Access tokens by the grant *client credentials*.
//!
//! The address for tokens is the configured one, or else the one that the metadata name. A token is asked for when a message
//! is to be sent, is used until shortly before it expires, and is replaced once when the server refuses it. A server that asks
//! for further scopes gets a token with them, unless the scopes are configured.

use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Client, Url};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::super::error::ConnectionError;
use super::challenge::Challenge;
use super::metadata::MetadataSearch;
use super::scope_settings::ScopeSettings;
use super::token_request::{ClientIdentity, TokenError, bearer, refusal, request_tokens};
use crate::definition::mcp::{ClientAuthentication, McpOAuth};
use crate::domain::Invalid;
use crate::domain::oauth_scopes::OAuthScopes;

/// The time for which a token is used that does not say when it expires.
const DEFAULT_LIFETIME: Duration = Duration::from_mins(5);
/// The longest time for which a token is used.
const MAX_LIFETIME: Duration = Duration::from_hours(24);

/// The access tokens for one server, which this server gets by itself.
pub(in super::super) struct ClientTokens {
    client: Client,
    /// The address of the server, for which the tokens are.
    server: Url,
    /// The configured address for tokens.
    endpoint: Option<Url>,
    settings: McpOAuth,
    scopes: ScopeSettings,
    held: Mutex<HeldToken>,
}

/// The last token, and the scopes of the next.
#[derive(Default)]
struct HeldToken {
    token: Option<AccessToken>,
    /// The scopes that tokens are asked for with, since the server has asked for them.
    scopes: OAuthScopes,
}

impl HeldToken {
    /// Returns the value of the header `authorization` with the token, if it can still be used.
    fn header(&self) -> Option<HeaderValue> {
        let token = self.token.as_ref();
        let usable = token.filter(|token| Instant::now() < token.replaced_at);
        usable.map(|token| token.header.clone())
    }
}

/// A token that was received.
struct AccessToken {
    /// The value of the header `authorization`.
    header: HeaderValue,
    /// The time from which it is not used any more.
    replaced_at: Instant,
    /// The scopes, if the authorization server named them.
    scopes: OAuthScopes,
}

impl ClientTokens {
    /// Creates the tokens of a server with this name. Nothing is sent yet.
    ///
    /// # Errors
    /// The field of the settings that is invalid.
    pub(in super::super) fn new(client: Client, server: Url, settings: McpOAuth, name: &str) -> Result<Self, Invalid> {
        let endpoint = settings.token_url.as_deref().map(Url::parse).transpose();
        let endpoint = endpoint.map_err(|error| Invalid::new("oauth.token_url", error.to_string()))?;
        Ok(Self {
            client,
            server,
            endpoint,
            scopes: ScopeSettings::of(name, &settings),
            settings,
            held: Mutex::default(),
        })
    }

    /// Returns the value of the header `authorization`. Callers that come at the same time wait for one request.
    ///
    /// # Errors
    /// If the authorization server cannot be found or reached, or refuses the client.
    pub(super) async fn header(&self) -> Result<HeaderValue, ConnectionError> {
        let mut held = self.held.lock().await;
        if let Some(header) = held.header() {
            return Ok(header);
        }
        let token = self.fetch(&held.scopes).await?;
        let header = token.header.clone();
        held.token = Some(token);
        Ok(header)
    }

    /// Forgets a token that the server has refused, unless it was replaced already.
    pub(super) async fn forget(&self, refused: &HeaderValue) {
        let mut held = self.held.lock().await;
        held.token.take_if(|token| token.header == *refused);
    }

    /// Returns the value of the header `authorization` with a token that was asked for with further scopes. Later tokens are
    /// asked for with them, too.
    ///
    /// # Errors
    /// [`ConnectionError::ScopesMissing`] if the settings do not allow further scopes, if the token was asked for with these
    /// scopes already, or if the authorization server refuses them; others if it cannot be reached.
    pub(super) async fn with_scopes(
        &self,
        refused: &HeaderValue,
        needed: &OAuthScopes,
    ) -> Result<HeaderValue, ConnectionError> {
        if needed.is_empty() || !self.scopes.allow_others() {
            return Err(self.note_missing_scopes(needed));
        }
        let mut held = self.held.lock().await;
        let is_current = held.token.as_ref().is_some_and(|token| token.header == *refused);
        let is_asked_for = needed.are_among(&held.scopes);
        if is_asked_for && is_current {
            return Err(self.note_missing_scopes(needed));
        }
        // Another call may have got a token with these scopes.
        if is_asked_for && let Some(header) = held.header() {
            return Ok(header);
        }
        // Without scopes in its request a token has those that the authorization server chooses, which must not get lost.
        let given = held.token.as_ref().map(|token| &token.scopes);
        let wanted = given.map_or_else(|| held.scopes.clone(), |given| held.scopes.with(given));
        let wanted = wanted.with(needed);
        if !needed.are_among(&wanted) {
            return Err(self.note_missing_scopes(needed));
        }
        match self.fetch(&wanted).await {
            Ok(token) => {
                tracing::info!(server = self.scopes.server, scopes = %wanted, "got an access token with further scopes");
                let header = token.header.clone();
                *held = HeldToken {
                    token: Some(token),
                    scopes: wanted,
                };
                Ok(header)
            }
            Err(TokenError::Refused { status, code }) => Err(self.scopes.not_given(needed, &refusal(status, &code))),
            Err(TokenError::Failed(error)) => Err(error),
        }
    }

    /// Returns the error that a token lacks scopes.
    pub(super) fn note_missing_scopes(&self, needed: &OAuthScopes) -> ConnectionError {
        self.scopes.client_lacks(needed)
    }

    /// Asks for a token: with the configured scopes, or with `further` ones if there are none.
    async fn fetch(&self, further: &OAuthScopes) -> Result<AccessToken, TokenError> {
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => self.find_endpoint().await?,
        };
        let settings = &self.settings;
        let scopes = match self.scopes.allow_others() {
            true => further.parameter(),
            false => settings.scopes.join(" "),
        };
        let mut form = vec![("grant_type", "client_credentials")];
        if !scopes.is_empty() {
            form.push(("scope", &scopes));
        }
        form.push(("resource", settings.resource.as_deref().unwrap_or(self.server.as_str())));
        let identity = ClientIdentity {
            id: &settings.client_id,
            secret: Some(&settings.client_secret.0),
            secret_in_form: settings.client_authentication == ClientAuthentication::Post,
        };
        let given = request_tokens(&self.client, endpoint, identity, form).await?;
        let lifetime = given.lifetime.unwrap_or(DEFAULT_LIFETIME).min(MAX_LIFETIME);
        Ok(AccessToken {
            header: bearer(&given.access)?,
            // A message that is sent now may arrive later.
            replaced_at: Instant::now() + lifetime.mul_f64(0.9),
            scopes: given.scopes,
        })
    }

    /// Finds the address for tokens in the metadata of the server.
    async fn find_endpoint(&self) -> Result<Url, ConnectionError> {
        let search = MetadataSearch::new(&self.client, &self.server);
        let found = search.find(&Challenge::default()).await?;
        search.allowed(&found.issuer.token_endpoint)
    }
}
