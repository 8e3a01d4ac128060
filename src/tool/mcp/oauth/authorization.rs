//! A login by the grant *authorization code* with PKCE (RFC 6749, section 4.1; RFC 7636; OAuth 2.1).
//!
//! The login begins with an address that a user opens in a browser, and ends when the browser is redirected to this machine.
//! What serves that redirect is not here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Client, StatusCode, Url};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::super::error::ConnectionError;
use super::challenge::Challenge;
use super::metadata::{FoundIssuer, MetadataSearch};
use super::token_request::{ClientIdentity, as_client, plain_code, request_tokens};
use super::{MAX_ANSWER_BYTES, TIMEOUT, invalid, parse, send};
use crate::definition::mcp::{ClientAuthentication, McpOAuth, McpServerDefinition};
use crate::domain::id::LoginVersion;
use crate::domain::mcp_login::{GivenTokens, LoginKey, LoginSecrets, LoginStatus, McpLogin};
use crate::domain::oauth_scopes::OAuthScopes;
use crate::domain::time::Timestamp;
use crate::net::{describe_error, read_bounded};
use crate::tool::remote;

/// The longest text about a client that an authorization server may give, in bytes.
const MAX_CLIENT_BYTES: usize = 2 * 1024;
/// The longest code, in bytes.
const MAX_CODE_BYTES: usize = 8 * 1024;
/// The name of this program at authorization servers.
const CLIENT_NAME: &str = env!("CARGO_PKG_NAME");

/// The server to which a user logs in.
#[derive(Debug)]
pub struct LoginTarget<'a> {
    /// The HTTP client, which follows no redirects.
    pub client: Client,
    /// The definition of the server.
    pub definition: &'a McpServerDefinition,
    /// The address on this machine to which the browser is redirected at the end.
    pub redirect: Url,
    /// The scopes that earlier logins have lacked. The login asks for them, unless the scopes are configured.
    pub further_scopes: OAuthScopes,
}

/// A login that waits for the user.
pub struct PendingLogin {
    client: Client,
    server: Url,
    redirect: Url,
    issuer: String,
    /// True if the authorization server says in each redirect who it is.
    sends_issuer: bool,
    token_url: Url,
    revocation_url: Option<Url>,
    resource: String,
    identity: RegisteredClient,
    state: String,
    verifier: String,
    address: Url,
    /// The further scopes that the login asks for.
    added_scopes: OAuthScopes,
    /// The further scopes that the settings do not allow.
    missing_scopes: OAuthScopes,
}

/// The client that logs in.
#[derive(Clone)]
struct RegisteredClient {
    id: String,
    secret: Option<String>,
    secret_in_form: bool,
}

impl RegisteredClient {
    fn identity(&self) -> ClientIdentity<'_> {
        ClientIdentity {
            id: &self.id,
            secret: self.secret.as_deref(),
            secret_in_form: self.secret_in_form,
        }
    }
}

/// A code, for which the authorization server gives tokens once.
pub struct AuthorizationCode(String);

/// A redirect of a browser, as the login understands it.
pub enum RedirectAnswer {
    /// The redirect belongs to another login, or is forged.
    Foreign,
    /// The login has failed, for this reason.
    Refused(String),
    /// The user has agreed.
    Granted(AuthorizationCode),
}

impl PendingLogin {
    /// Finds the authorization server, and registers a client there if none is configured.
    ///
    /// # Errors
    /// A text for the operator: there is no authorization server, or it cannot be used.
    pub async fn begin(target: LoginTarget<'_>) -> Result<Self, String> {
        Self::try_begin(target).await.map_err(reason)
    }

    async fn try_begin(target: LoginTarget<'_>) -> Result<Self, ConnectionError> {
        let LoginTarget {
            client,
            definition,
            redirect,
            further_scopes,
        } = target;
        let settings = definition.oauth.clone().unwrap_or_default();
        let server = Url::parse(definition.url.as_deref().unwrap_or_default());
        let server = server.map_err(|error| invalid(format!("its address is invalid: {error}")))?;
        let challenge = challenge_of(&client, &server, definition).await?;
        let search = MetadataSearch::new(&client, &server);
        let found = search.find(&challenge).await?;
        let metadata = &found.issuer;
        if !metadata
            .code_challenge_methods_supported
            .iter()
            .any(|method| method == "S256")
        {
            return Err(invalid(
                "its authorization server does not say that it supports PKCE with S256, without which a login is not safe",
            ));
        }
        let endpoint = metadata.authorization_endpoint.as_deref();
        let endpoint = endpoint.ok_or_else(|| invalid("its authorization server has no `authorization_endpoint`"))?;
        let endpoint = search.allowed(endpoint)?;
        let revocation = metadata.revocation_endpoint.as_deref();
        let identity = match settings.client_id.is_empty() {
            false => configured_client(&settings),
            true => register(&client, &search, &found, &redirect).await?,
        };
        let configured = settings.configured_scopes();
        let missing_scopes = match configured.is_empty() {
            true => OAuthScopes::default(),
            false => further_scopes.without(&configured),
        };
        let added_scopes = further_scopes.without(&missing_scopes);
        let scope = scope_of(&settings, &challenge, &found, &added_scopes);
        let mut pending = Self {
            token_url: search.allowed(&metadata.token_endpoint)?,
            revocation_url: revocation.map(|address| search.allowed(address)).transpose()?,
            sends_issuer: metadata.authorization_response_iss_parameter_supported,
            resource: settings
                .resource
                .or(found.resource)
                .unwrap_or_else(|| server.as_str().to_owned()),
            issuer: found.issuer.issuer,
            client,
            server,
            redirect,
            identity,
            state: random_text()?,
            verifier: random_text()?,
            address: endpoint,
            added_scopes,
            missing_scopes,
        };
        pending.complete_address(scope.as_deref());
        Ok(pending)
    }

    /// Adds the parameters of the login to the address that the user opens.
    fn complete_address(&mut self, scope: Option<&str>) {
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier));
        let mut query = self.address.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.identity.id)
            .append_pair("redirect_uri", self.redirect.as_str())
            .append_pair("state", &self.state)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256")
            .append_pair("resource", &self.resource);
        if let Some(scope) = scope {
            query.append_pair("scope", scope);
        }
    }

    /// Returns the address that the user opens in a browser.
    pub fn address(&self) -> &Url {
        &self.address
    }

    /// Returns the scopes that earlier logins have lacked and that the settings do not allow.
    pub fn missing_scopes(&self) -> &OAuthScopes {
        &self.missing_scopes
    }

    /// Reads the query of the address to which a browser was redirected.
    pub fn read_redirect(&self, query: &str) -> RedirectAnswer {
        let mut fields: BTreeMap<Cow<'_, str>, Cow<'_, str>> = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            // A parameter must not be there twice (RFC 6749, section 3.1).
            if fields.insert(name, value).is_some() {
                return RedirectAnswer::Foreign;
            }
        }
        let state = fields.get("state").map(|state| state.as_bytes()).unwrap_or_default();
        if !bool::from(state.ct_eq(self.state.as_bytes())) {
            return RedirectAnswer::Foreign;
        }
        match fields.get("iss") {
            Some(issuer) if *issuer != self.issuer => {
                return RedirectAnswer::Refused(
                    "the redirect comes from another authorization server (`iss`)".to_owned(),
                );
            }
            None if self.sends_issuer => {
                let why = "the redirect does not say from which authorization server it comes (`iss`)";
                return RedirectAnswer::Refused(why.to_owned());
            }
            Some(_) | None => {}
        }
        if let Some(code) = fields.get("error") {
            let code = plain_code(code);
            return RedirectAnswer::Refused(format!("the authorization server refused the login: {code}"));
        }
        match fields.get("code") {
            Some(code) if (1..=MAX_CODE_BYTES).contains(&code.len()) => {
                RedirectAnswer::Granted(AuthorizationCode(code.clone().into_owned()))
            }
            Some(_) | None => RedirectAnswer::Refused("the redirect has no code".to_owned()),
        }
    }

    /// Gets tokens for a code, and returns the login.
    ///
    /// # Errors
    /// A text for the operator: the authorization server cannot be reached, or refuses.
    pub async fn exchange(self, code: AuthorizationCode, key: LoginKey, now: Timestamp) -> Result<McpLogin, String> {
        let form = vec![
            ("grant_type", "authorization_code"),
            ("code", code.0.as_str()),
            ("redirect_uri", self.redirect.as_str()),
            ("code_verifier", self.verifier.as_str()),
            ("resource", self.resource.as_str()),
        ];
        let identity = self.identity.identity();
        let given = request_tokens(&self.client, self.token_url.clone(), identity, form).await;
        let given = given.map_err(|error| reason(error.into()))?;
        Ok(self.login_with(given, key, now))
    }

    fn login_with(self, given: GivenTokens, key: LoginKey, now: Timestamp) -> McpLogin {
        let mut login = McpLogin {
            status: LoginStatus {
                key,
                url: self.server.into(),
                issuer: self.issuer,
                expires_at: None,
                is_renewable: false,
                logged_in_at: now,
                ended_at: None,
            },
            refresh_at: None,
            secrets: LoginSecrets {
                client_id: self.identity.id,
                client_secret: self.identity.secret,
                secret_in_form: self.identity.secret_in_form,
                token_url: self.token_url.into(),
                revocation_url: self.revocation_url.map(String::from),
                resource: self.resource,
                access_token: String::new(),
                refresh_token: None,
                missing_scopes: self.missing_scopes,
                added_scopes: self.added_scopes,
            },
            version: LoginVersion::mint(),
        };
        login.take(given, now);
        login
    }
}

/// Returns the text of an error for the operator.
fn reason(error: ConnectionError) -> String {
    if let ConnectionError::InvalidAnswer(why) = error {
        return why;
    }
    format!("the server {error}")
}

/// Returns a random text of 256 bits.
fn random_text() -> Result<String, ConnectionError> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| ConnectionError::Unreachable("the system has no random numbers".to_owned()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Sends the first message of the protocol without a token, and returns the challenge of the refusal.
async fn challenge_of(
    client: &Client,
    server: &Url,
    definition: &McpServerDefinition,
) -> Result<Challenge, ConnectionError> {
    let headers = remote::headers(&definition.headers.0);
    let headers = headers.map_err(|error| invalid(format!("its definition is invalid: {error}")))?;
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": CLIENT_NAME, "version": env!("CARGO_PKG_VERSION")},
        },
    });
    let post = client.post(server.clone()).headers(headers);
    let post = post
        .header(ACCEPT, "application/json, text/event-stream")
        .json(&message);
    let sent = post.timeout(TIMEOUT).send().await;
    let response = sent.map_err(|error| ConnectionError::Unreachable(describe_error(&error)))?;
    match response.status() {
        StatusCode::UNAUTHORIZED => Ok(Challenge::read(response.headers())),
        // A server that answers otherwise may still have metadata: one with the older transport, for example.
        _ => Ok(Challenge::default()),
    }
}

/// Returns the scopes to ask for: the configured ones; or else those that the server needs, or all that it names, and the
/// further ones.
fn scope_of(settings: &McpOAuth, challenge: &Challenge, found: &FoundIssuer, further: &OAuthScopes) -> Option<String> {
    let configured = Some(settings.scopes.join(" ")).filter(|scopes| !scopes.is_empty());
    let named = || challenge.scope.clone().unwrap_or_else(|| found.scopes.join(" "));
    let scopes = configured.unwrap_or_else(|| further.added_to(&named()));
    Some(scopes).filter(|scopes| !scopes.is_empty())
}

fn configured_client(settings: &McpOAuth) -> RegisteredClient {
    RegisteredClient {
        id: settings.client_id.clone(),
        secret: Some(settings.client_secret.0.clone()).filter(|secret| !secret.is_empty()),
        secret_in_form: settings.client_authentication == ClientAuthentication::Post,
    }
}

/// Registers a client without a secret (RFC 7591); an authorization server may give it one nevertheless.
async fn register(
    client: &Client,
    search: &MetadataSearch<'_>,
    found: &FoundIssuer,
    redirect: &Url,
) -> Result<RegisteredClient, ConnectionError> {
    let place = found.issuer.registration_endpoint.as_deref();
    let place = place.ok_or_else(|| {
        invalid("its authorization server registers no clients: register one there, and set `oauth.client_id`")
    })?;
    let metadata = json!({
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect.as_str()],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
    });
    let post = client.post(search.allowed(place)?).header(ACCEPT, "application/json");
    let post = post.header(CONTENT_TYPE, "application/json").body(metadata.to_string());
    let response = send(post).await?;
    let status = response.status();
    if !status.is_success() {
        let status = status.as_u16();
        return Err(invalid(format!(
            "its authorization server refused to register a client (status {status}): register one there, and set \
             `oauth.client_id`"
        )));
    }
    let body = read_bounded(response, MAX_ANSWER_BYTES).await.map_err(invalid)?;
    let answer: RegistrationAnswer = parse(&body)?;
    let texts = [Some(&answer.client_id), answer.client_secret.as_ref()];
    let is_bad = |text: &String| text.is_empty() || text.len() > MAX_CLIENT_BYTES;
    if texts.into_iter().flatten().any(is_bad) {
        return Err(invalid(
            "its authorization server registered a client that cannot be used",
        ));
    }
    let method = answer.token_endpoint_auth_method.unwrap_or_default();
    Ok(RegisteredClient {
        id: answer.client_id,
        secret: answer.client_secret.filter(|_| method != "none"),
        secret_in_form: method == "client_secret_post",
    })
}

/// Revokes the tokens of a login at its authorization server (RFC 7009), if that is possible there. Returns whether it is.
///
/// # Errors
/// A text for the operator: the authorization server cannot be reached, or refuses.
pub async fn revoke_tokens(client: &Client, login: &McpLogin) -> Result<bool, String> {
    let secrets = &login.secrets;
    let Some(place) = &secrets.revocation_url else {
        return Ok(false);
    };
    let place = Url::parse(place).map_err(|error| error.to_string())?;
    // With the refresh token the access tokens end, too.
    let form = match &secrets.refresh_token {
        Some(token) => vec![("token", token.as_str()), ("token_type_hint", "refresh_token")],
        None => vec![
            ("token", secrets.access_token.as_str()),
            ("token_type_hint", "access_token"),
        ],
    };
    let response = send(as_client(client.post(place), secrets.into(), form))
        .await
        .map_err(reason)?;
    let status = response.status();
    match status.is_success() {
        true => Ok(true),
        false => Err(format!(
            "its authorization server answered with status {}",
            status.as_u16()
        )),
    }
}

#[derive(Deserialize)]
struct RegistrationAnswer {
    client_id: String,
    client_secret: Option<String>,
    token_endpoint_auth_method: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(sends_issuer: bool) -> PendingLogin {
        let url = |text: &str| Url::parse(text).expect("an address");
        let mut pending = PendingLogin {
            client: remote::client().expect("a client"),
            server: url("https://a.test/mcp"),
            redirect: url("http://127.0.0.1:1/callback"),
            issuer: "https://login.test".to_owned(),
            sends_issuer,
            token_url: url("https://login.test/token"),
            revocation_url: None,
            resource: "https://a.test/mcp".to_owned(),
            identity: RegisteredClient {
                id: "a client".to_owned(),
                secret: None,
                secret_in_form: false,
            },
            state: "s-1".to_owned(),
            // The example of RFC 7636, appendix B.
            verifier: "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned(),
            address: url("https://login.test/authorize?tenant=1"),
            added_scopes: OAuthScopes::default(),
            missing_scopes: OAuthScopes::default(),
        };
        pending.complete_address(Some("a b"));
        pending
    }

    fn read(pending: &PendingLogin, query: &str) -> String {
        match pending.read_redirect(query) {
            RedirectAnswer::Foreign => "foreign".to_owned(),
            RedirectAnswer::Refused(why) => why,
            RedirectAnswer::Granted(code) => format!("code {}", code.0),
        }
    }

    #[test]
    fn the_address_has_all_parameters_and_keeps_its_own() {
        assert_eq!(
            pending(false).address().as_str(),
            "https://login.test/authorize?tenant=1&response_type=code&client_id=a+client\
             &redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback&state=s-1\
             &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256\
             &resource=https%3A%2F%2Fa.test%2Fmcp&scope=a+b"
        );
    }

    #[test]
    fn a_redirect_counts_only_with_the_state_of_the_login() {
        let pending = pending(false);
        assert_eq!(read(&pending, "code=c&state=s-1"), "code c");
        assert_eq!(
            read(&pending, "code=c%2F1&state=s-1&iss=https%3A%2F%2Flogin.test"),
            "code c/1"
        );
        for query in [
            "",
            "code=c",
            "code=c&state=",
            "code=c&state=s-2",
            "code=c&state=s-1&state=s-1",
            "code=c&code=d&state=s-1",
            "error=access_denied",
        ] {
            assert_eq!(read(&pending, query), "foreign", "{query}");
        }
        assert_eq!(read(&pending, "state=s-1"), "the redirect has no code");
        let refused = "the authorization server refused the login: access_denied";
        assert_eq!(read(&pending, "error=access_denied%0a%1b&state=s-1"), refused);
    }

    #[test]
    fn a_redirect_of_another_authorization_server_is_refused() {
        let other = "the redirect comes from another authorization server (`iss`)";
        assert_eq!(
            read(&pending(false), "code=c&state=s-1&iss=https%3A%2F%2Fevil.test"),
            other
        );
        assert!(read(&pending(true), "code=c&state=s-1").contains("does not say"));
        assert_eq!(
            read(&pending(true), "code=c&state=s-1&iss=https%3A%2F%2Flogin.test"),
            "code c"
        );
    }

    #[test]
    fn random_texts_differ() {
        let text = || random_text().expect("a text");
        assert_eq!(text().len(), 43);
        assert_ne!(text(), text());
    }
}
