//! Access tokens by the grant *client credentials*.
//!
//! The address for tokens is the configured one, or else the one that the metadata name. A token is asked for when a message
//! is to be sent, is used until shortly before it expires, and is replaced once when the server refuses it.

use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Client, Url};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::super::connection::ConnectionError;
use super::challenge::Challenge;
use super::metadata::MetadataSearch;
use super::token_request::{ClientIdentity, bearer, request_tokens};
use crate::definition::mcp::{ClientAuthentication, McpOAuth};
use crate::domain::Invalid;

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
    current: Mutex<Option<AccessToken>>,
}

/// A token that was received.
struct AccessToken {
    /// The value of the header `authorization`.
    header: HeaderValue,
    /// The time from which it is not used any more.
    replaced_at: Instant,
}

impl ClientTokens {
    /// Creates the tokens of a server. Nothing is sent yet.
    ///
    /// # Errors
    /// The field of the settings that is invalid.
    pub(in super::super) fn new(client: Client, server: Url, settings: McpOAuth) -> Result<Self, Invalid> {
        let endpoint = settings.token_url.as_deref().map(Url::parse).transpose();
        let endpoint = endpoint.map_err(|error| Invalid::new("oauth.token_url", error.to_string()))?;
        Ok(Self {
            client,
            server,
            endpoint,
            settings,
            current: Mutex::default(),
        })
    }

    /// Returns the value of the header `authorization`. Callers that come at the same time wait for one request.
    ///
    /// # Errors
    /// If the authorization server cannot be found or reached, or refuses the client.
    pub(super) async fn header(&self) -> Result<HeaderValue, ConnectionError> {
        let mut current = self.current.lock().await;
        if let Some(token) = current.as_ref().filter(|token| Instant::now() < token.replaced_at) {
            return Ok(token.header.clone());
        }
        let token = current.insert(self.fetch().await?);
        Ok(token.header.clone())
    }

    /// Forgets a token that the server has refused, unless it was replaced already.
    pub(super) async fn forget(&self, refused: &HeaderValue) {
        let mut current = self.current.lock().await;
        current.take_if(|token| token.header == *refused);
    }

    async fn fetch(&self) -> Result<AccessToken, ConnectionError> {
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => self.find_endpoint().await?,
        };
        let settings = &self.settings;
        let scopes = settings.scopes.join(" ");
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
        })
    }

    /// Finds the address for tokens in the metadata of the server.
    async fn find_endpoint(&self) -> Result<Url, ConnectionError> {
        let search = MetadataSearch::new(&self.client, &self.server);
        let found = search.find(&Challenge::default()).await?;
        search.allowed(&found.issuer.token_endpoint)
    }
}
