//! Access tokens for servers that require OAuth 2.1, by the grant *client credentials*.
//!
//! The address for tokens is the configured one, or else the one that the server's metadata (RFC 9728) and the metadata
//! of its authorization server (RFC 8414) name. A token is asked for when a message is to be sent, is used until shortly
//! before it expires, and is replaced once when the server refuses it.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::connection::ConnectionError;
use crate::definition::mcp::{ClientAuthentication, McpOAuth};
use crate::domain::Invalid;
use crate::domain::json_limits::read_foreign;
use crate::net::{describe_error, read_bounded};

/// The time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The maximum length of a token, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// The maximum number of characters of an error code that are shown.
const MAX_CODE_CHARS: usize = 100;
/// The time for which a token is used that does not say when it expires.
const DEFAULT_LIFETIME: Duration = Duration::from_mins(5);
/// The longest time for which a token is used.
const MAX_LIFETIME: Duration = Duration::from_hours(24);

/// The access tokens for one server.
pub(super) struct AccessTokens {
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

impl AccessTokens {
    /// Creates the tokens of a server. Nothing is sent yet.
    ///
    /// # Errors
    /// The field of the settings that is invalid.
    pub(super) fn new(client: Client, server: Url, settings: McpOAuth) -> Result<Self, Invalid> {
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
            None => self.discover().await?,
        };
        let response = send(self.token_request(endpoint)).await?;
        let status = response.status();
        let body = read_bounded(response, MAX_ANSWER_BYTES).await.map_err(invalid)?;
        if status != StatusCode::OK {
            let refusal: Option<Refusal> = parse(&body).ok();
            let code = refusal.map(|refusal| refusal.error).unwrap_or_default();
            // The description of an error may repeat what was sent, so only its code is shown.
            let is_code = |character: &char| character.is_ascii_alphanumeric() || *character == '_';
            let code: String = code.chars().filter(is_code).take(MAX_CODE_CHARS).collect();
            let about = if code.is_empty() {
                String::new()
            } else {
                format!(": {code}")
            };
            let status = status.as_u16();
            return Err(invalid(format!(
                "its authorization server answered with status {status}{about}"
            )));
        }
        let answer: TokenAnswer = parse(&body)?;
        if !answer.token_type.eq_ignore_ascii_case("bearer") {
            return Err(invalid("its authorization server gave no bearer token"));
        }
        if answer.access_token.is_empty() || answer.access_token.len() > MAX_TOKEN_BYTES {
            return Err(invalid(format!(
                "its authorization server gave a token that has not 1 to {MAX_TOKEN_BYTES} bytes"
            )));
        }
        let header = HeaderValue::from_str(&format!("Bearer {}", answer.access_token));
        let mut header =
            header.map_err(|_| invalid("its authorization server gave a token that no header can have"))?;
        header.set_sensitive(true);
        let lifetime = answer
            .expires_in
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let lifetime = lifetime.unwrap_or(DEFAULT_LIFETIME).min(MAX_LIFETIME);
        Ok(AccessToken {
            header,
            // A message that is sent now may arrive later.
            replaced_at: Instant::now() + lifetime.mul_f64(0.9),
        })
    }

    fn token_request(&self, endpoint: Url) -> RequestBuilder {
        let settings = &self.settings;
        let scopes = settings.scopes.join(" ");
        let mut form = vec![("grant_type", "client_credentials")];
        if !scopes.is_empty() {
            form.push(("scope", &scopes));
        }
        form.push(("resource", settings.resource.as_deref().unwrap_or(self.server.as_str())));
        let post = self.client.post(endpoint).header(ACCEPT, "application/json");
        match settings.client_authentication {
            ClientAuthentication::Basic => {
                let encoded = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
                let id = encoded(&settings.client_id);
                with_form(post.basic_auth(id, Some(encoded(&settings.client_secret.0))), &form)
            }
            ClientAuthentication::Post => {
                form.push(("client_id", &settings.client_id));
                form.push(("client_secret", &settings.client_secret.0));
                with_form(post, &form)
            }
        }
    }

    /// Finds the address for tokens in the metadata of the server.
    async fn discover(&self) -> Result<Url, ConnectionError> {
        let mut issuer = self.origin();
        for place in well_known(&self.server, "oauth-protected-resource") {
            if let Some(resource) = self.metadata::<ResourceMetadata>(place).await? {
                let named = resource.authorization_servers.into_iter().next();
                let named = named.ok_or_else(|| invalid("its metadata names no authorization server"))?;
                issuer = self.allowed(&named)?;
                break;
            }
        }
        let places = well_known(&issuer, "oauth-authorization-server");
        let places = places.into_iter().chain(well_known(&issuer, "openid-configuration"));
        for place in places.chain(openid_below(&issuer)) {
            let Some(metadata) = self.metadata::<IssuerMetadata>(place).await? else {
                continue;
            };
            if metadata.issuer.trim_end_matches('/') != issuer.as_str().trim_end_matches('/') {
                return Err(invalid(
                    "the metadata of its authorization server are those of another one",
                ));
            }
            return self.allowed(&metadata.token_endpoint);
        }
        Err(invalid("it has no metadata for OAuth; set `oauth.token_url`"))
    }

    /// Reads a document of metadata; `None` if there is none.
    async fn metadata<T: DeserializeOwned>(&self, place: Url) -> Result<Option<T>, ConnectionError> {
        let response = send(self.client.get(place).header(ACCEPT, "application/json")).await?;
        if response.status() != StatusCode::OK {
            return Ok(None);
        }
        let body = read_bounded(response, MAX_ANSWER_BYTES).await.map_err(invalid)?;
        parse(&body).map(Some)
    }

    fn origin(&self) -> Url {
        let mut origin = self.server.clone();
        origin.set_path("");
        origin.set_query(None);
        origin.set_fragment(None);
        origin
    }

    /// Returns an address from metadata. The secret of the client must not be sent without encryption, unless the server
    /// itself is reached so.
    fn allowed(&self, address: &str) -> Result<Url, ConnectionError> {
        let url = Url::parse(address).ok().filter(|url| {
            let is_secure = url.scheme() == "https" || url.scheme() == "http" && self.server.scheme() == "http";
            is_secure && url.has_host()
        });
        url.ok_or_else(|| invalid("its metadata name an address that does not begin with https://"))
    }
}

fn with_form(post: RequestBuilder, form: &[(&str, &str)]) -> RequestBuilder {
    let body = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(form)
        .finish();
    post.header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(body)
}

/// Returns the places of a document of metadata about `url`: with its path, and without.
fn well_known(url: &Url, name: &str) -> Vec<Url> {
    let path = url.path().trim_end_matches('/');
    let place = |path: &str| {
        let mut place = url.clone();
        place.set_path(&format!("/.well-known/{name}{path}"));
        place.set_query(None);
        place.set_fragment(None);
        place
    };
    match path {
        "" => vec![place("")],
        path => vec![place(path), place("")],
    }
}

/// Returns the place at which OpenID Connect Discovery puts the metadata of an issuer with a path.
fn openid_below(issuer: &Url) -> Option<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut place = issuer.clone();
    place.set_path(&format!("{path}/.well-known/openid-configuration"));
    (!path.is_empty()).then_some(place)
}

async fn send(request: RequestBuilder) -> Result<reqwest::Response, ConnectionError> {
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

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: String,
    expires_in: Option<f64>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

#[derive(Deserialize)]
struct ResourceMetadata {
    #[serde(default)]
    authorization_servers: Vec<String>,
}

#[derive(Deserialize)]
struct IssuerMetadata {
    issuer: String,
    token_endpoint: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("an address")
    }

    #[test]
    fn metadata_are_looked_for_with_the_path_first() {
        let texts = |places: Vec<Url>| places.into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(
            texts(well_known(&url("https://a.test/x/mcp?q=1"), "oauth-protected-resource")),
            [
                "https://a.test/.well-known/oauth-protected-resource/x/mcp",
                "https://a.test/.well-known/oauth-protected-resource"
            ]
        );
        assert_eq!(
            texts(well_known(&url("https://a.test/"), "oauth-authorization-server")),
            ["https://a.test/.well-known/oauth-authorization-server"]
        );
        let below = openid_below(&url("https://a.test/tenant")).map(String::from);
        assert_eq!(
            below.as_deref(),
            Some("https://a.test/tenant/.well-known/openid-configuration")
        );
    }

    #[test]
    fn a_server_with_encryption_cannot_name_an_address_without() {
        let tokens = |server: &str| {
            let settings = McpOAuth {
                client_id: "adjutant".to_owned(),
                ..McpOAuth::default()
            };
            AccessTokens::new(Client::new(), url(server), settings).expect("valid settings")
        };
        assert!(tokens("https://a.test/mcp").allowed("http://b.test/token").is_err());
        assert!(tokens("https://a.test/mcp").allowed("file:///token").is_err());
        assert!(tokens("https://a.test/mcp").allowed("https://b.test/token").is_ok());
        assert!(
            tokens("http://127.0.0.1:1/mcp")
                .allowed("http://127.0.0.1:2/token")
                .is_ok()
        );
    }
}
