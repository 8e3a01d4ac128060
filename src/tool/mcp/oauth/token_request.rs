//! A request for tokens, and its answer.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;

use super::super::error::ConnectionError;
use super::{MAX_ANSWER_BYTES, invalid, parse, send};
use crate::domain::mcp_login::{GivenTokens, LoginSecrets};
use crate::domain::oauth_scopes::OAuthScopes;
use crate::net::read_bounded;

/// The maximum length of a token, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// The maximum number of characters of an error code that are shown.
const MAX_CODE_CHARS: usize = 100;

/// A client as the authorization server knows it.
#[derive(Clone, Copy)]
pub(super) struct ClientIdentity<'a> {
    pub(super) id: &'a str,
    /// The secret; a public client has none.
    pub(super) secret: Option<&'a str>,
    /// True if the secret is sent in the form, and not in the header `authorization`.
    pub(super) secret_in_form: bool,
}

impl<'a> From<&'a LoginSecrets> for ClientIdentity<'a> {
    fn from(secrets: &'a LoginSecrets) -> Self {
        Self {
            id: &secrets.client_id,
            secret: secrets.client_secret.as_deref(),
            secret_in_form: secrets.secret_in_form,
        }
    }
}

/// The reason why there are no tokens.
pub(super) enum TokenError {
    /// The authorization server refused with this error code (RFC 6749, section 5.2).
    Refused { status: StatusCode, code: String },
    /// There was no answer, or one that is invalid.
    Failed(ConnectionError),
}

impl TokenError {
    /// Returns whether the grant is over: asking again is of no use.
    pub(super) fn ends_grant(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "invalid_grant")
    }
}

impl From<ConnectionError> for TokenError {
    fn from(error: ConnectionError) -> Self {
        Self::Failed(error)
    }
}

impl From<TokenError> for ConnectionError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Failed(error) => error,
            TokenError::Refused { status, code } => invalid(refusal(status, &code)),
        }
    }
}

/// Returns the text about a refusal with this error code.
pub(super) fn refusal(status: StatusCode, code: &str) -> String {
    let status = status.as_u16();
    let about = match code {
        "" => String::new(),
        code => format!(": {code}"),
    };
    format!("its authorization server answered with status {status}{about}")
}

/// Asks for tokens with the fields of a form, to which those that prove the client's identity are added.
pub(super) async fn request_tokens(
    client: &Client,
    place: Url,
    identity: ClientIdentity<'_>,
    form: Vec<(&str, &str)>,
) -> Result<GivenTokens, TokenError> {
    let response = send(as_client(client.post(place), identity, form)).await?;
    let status = response.status();
    let body = read_bounded(response, MAX_ANSWER_BYTES).await.map_err(invalid)?;
    if status != StatusCode::OK {
        let code = error_code(&body);
        return Err(TokenError::Refused { status, code });
    }
    let answer: TokenAnswer = parse(&body)?;
    if !answer.token_type.eq_ignore_ascii_case("bearer") {
        return Err(invalid("its authorization server gave no bearer token").into());
    }
    let tokens = [Some(&answer.access_token), answer.refresh_token.as_ref()];
    let is_bad = |token: &&String| !(1..=MAX_TOKEN_BYTES).contains(&token.len());
    if tokens.into_iter().flatten().any(|token| is_bad(&token)) {
        let why = format!("its authorization server gave a token that has not 1 to {MAX_TOKEN_BYTES} bytes");
        return Err(invalid(why).into());
    }
    bearer(&answer.access_token)?;
    Ok(GivenTokens {
        access: answer.access_token,
        refresh: answer.refresh_token,
        lifetime: answer
            .expires_in
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        scopes: OAuthScopes::read(answer.scope.as_str().unwrap_or_default()),
    })
}

/// Returns the value of the header `authorization` with a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, ConnectionError> {
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.map_err(|_| invalid("its authorization server gave a token that no header can have"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Returns the error code of an answer that refuses; empty if it has none. The description of the error may repeat what was
/// sent, so only the code is shown.
fn error_code(body: &[u8]) -> String {
    let refusal: Option<Refusal> = parse(body).ok();
    plain_code(&refusal.map(|refusal| refusal.error).unwrap_or_default())
}

/// Returns an error code without characters that no code has.
pub(super) fn plain_code(code: &str) -> String {
    let is_code = |character: &char| character.is_ascii_alphanumeric() || *character == '_';
    code.chars().filter(is_code).take(MAX_CODE_CHARS).collect()
}

/// Adds the form, and what proves the identity of the client (RFC 6749, section 2.3.1).
pub(super) fn as_client<'a>(
    post: RequestBuilder,
    identity: ClientIdentity<'a>,
    mut form: Vec<(&'a str, &'a str)>,
) -> RequestBuilder {
    let mut post = post.header(ACCEPT, "application/json");
    match identity.secret {
        Some(secret) if !identity.secret_in_form => {
            let encoded = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            post = post.basic_auth(encoded(identity.id), Some(encoded(secret)));
        }
        secret => {
            form.push(("client_id", identity.id));
            form.extend(secret.map(|secret| ("client_secret", secret)));
        }
    }
    let body = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(form)
        .finish();
    post.header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(body)
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: String,
    expires_in: Option<f64>,
    refresh_token: Option<String>,
    /// The scopes. A server that gives them in another form than a text has given tokens nevertheless.
    #[serde(default)]
    scope: Value,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}
