//! An MCP server that requires a login, with its authorization server, on one address.
//!
//! The authorization server keeps the rules of OAuth 2.1: codes and refresh tokens work once, and a second use of a refresh
//! token ends the login.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::TestServer;

/// The fields of a form or a query.
type Fields = BTreeMap<String, String>;

/// An MCP server and its authorization server.
#[derive(Clone)]
pub(crate) struct AuthorizationServer {
    pub(crate) base: String,
    state: Arc<Mutex<Issued>>,
    /// Notified when a refresh has come that is held back.
    pub(crate) refresh_came: Arc<Notify>,
    /// Lets a refresh go on that is held back.
    pub(crate) refresh_may_go_on: Arc<Notify>,
}

/// The requests and the tokens so far, and the choices of the servers.
#[derive(Default)]
pub(crate) struct Issued {
    /// The bodies of registrations.
    pub(crate) registrations: Vec<Value>,
    /// The queries of logins.
    pub(crate) logins: Vec<Fields>,
    /// The forms of requests for tokens, each with the header `authorization`.
    pub(crate) token_requests: Vec<(Option<String>, Fields)>,
    /// The forms of revocations.
    pub(crate) revocations: Vec<Fields>,
    /// The values of the header `authorization` of tool calls that were accepted.
    pub(crate) calls: Vec<String>,
    /// The number of tool calls that were refused since their token lacks a scope.
    pub(crate) refused_calls: usize,
    /// The access tokens that the MCP server accepts, with their scopes.
    valid: BTreeMap<String, String>,
    /// The scopes that the last login was asked for with, which its tokens have.
    scopes: String,
    /// The refresh tokens that were not used yet.
    refresh: BTreeSet<String>,
    /// The code challenges of codes that were not used yet.
    codes: BTreeMap<String, String>,
    /// The number of issued tokens.
    count: usize,
    /// True if a refresh token was used twice, which has ended the login.
    pub(crate) was_reused: bool,
    /// The choices of the servers.
    pub(crate) manners: Manners,
}

/// The ways in which the servers answer, where they have a choice.
pub(crate) struct Manners {
    /// The seconds for which an access token is said to be valid.
    pub(crate) expires_in: Option<u64>,
    /// False if there are no refresh tokens.
    pub(crate) gives_refresh_tokens: bool,
    /// Fields of the metadata of the authorization server that replace its own; null removes one.
    pub(crate) metadata: Value,
    /// Fields of the metadata of the MCP server that replace its own.
    pub(crate) resource: Value,
    /// The body of the metadata of the authorization server, instead of these.
    pub(crate) raw_metadata: Option<Vec<u8>>,
    /// Parameters of the redirect that replace its own; null removes one.
    pub(crate) redirect: Value,
    /// True if a refresh is held back.
    pub(crate) holds_refreshes: bool,
    /// The status of a refusal of each refresh that is none of the token.
    pub(crate) refresh_fails: Option<u16>,
    /// The scope that tool calls need.
    pub(crate) call_needs: Option<&'static str>,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            expires_in: Some(3600),
            gives_refresh_tokens: true,
            metadata: json!({}),
            resource: json!({}),
            raw_metadata: None,
            redirect: json!({}),
            holds_refreshes: false,
            refresh_fails: None,
            call_needs: None,
        }
    }
}

impl AuthorizationServer {
    /// Starts both servers.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let server = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            state: Arc::default(),
            refresh_came: Arc::default(),
            refresh_may_go_on: Arc::default(),
        };
        let router = Router::new()
            .route("/mcp", post(answer))
            .route("/metadata-of-mcp", get(resource))
            .route("/.well-known/oauth-authorization-server/login", get(issuer))
            .route("/register", post(register))
            .route("/authorize", get(authorize))
            .route("/token", post(issue))
            .route("/revoke", post(revoke))
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    /// Starts both servers, and configures an agent that uses the tools, without a restart. `more` is added to the section of
    /// OAuth.
    pub(crate) async fn start_for(server: &TestServer, more: &str) -> Self {
        let started = Self::start().await;
        let base = &started.base;
        server
            .is_configured_with(&format!(
                r#"
[mcp_servers.vault]
url = "{base}/mcp"

[mcp_servers.vault.oauth]
grant = "authorization_code"
{more}

[agents.treasurer]
model = "scripted:lab"
tools = ["vault/*"]
"#
            ))
            .await;
        started
    }

    /// Returns what was asked and issued.
    pub(crate) fn state(&self) -> MutexGuard<'_, Issued> {
        self.state.lock().expect("the lock is never poisoned")
    }

    /// Changes how the servers answer.
    pub(crate) fn behaves(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut self.state().manners);
    }

    /// Has the MCP server refuse all access tokens so far.
    pub(crate) fn revokes_access_tokens(&self) {
        self.state().valid.clear();
    }

    /// Has the authorization server refuse all refresh tokens so far.
    pub(crate) fn ends_logins(&self) {
        let mut state = self.state();
        state.valid.clear();
        state.refresh.clear();
    }

    /// Returns the number of requests for tokens with this grant.
    pub(crate) fn count_of(&self, grant: &str) -> usize {
        let state = self.state();
        let is_of_grant = |request: &&(Option<String>, Fields)| request.1["grant_type"] == grant;
        state.token_requests.iter().filter(is_of_grant).count()
    }

    /// Returns all secrets that were issued so far.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let count = self.state().count;
        let texts = ["access-t0ken", "refresh-t0ken"].map(|kind| (1..=count).map(move |at| format!("{kind}-{at}-x")));
        texts.into_iter().flatten().collect()
    }
}

impl Issued {
    /// Issues tokens.
    fn tokens(&mut self) -> Response {
        self.count += 1;
        let access = format!("access-t0ken-{}-x", self.count);
        let refresh = format!("refresh-t0ken-{}-x", self.count);
        self.valid.insert(format!("Bearer {access}"), self.scopes.clone());
        let mut answer = json!({"access_token": access, "token_type": "Bearer"});
        if let Some(seconds) = self.manners.expires_in {
            answer["expires_in"] = json!(seconds);
        }
        if self.manners.gives_refresh_tokens {
            answer["refresh_token"] = json!(refresh);
            self.refresh.insert(refresh);
        }
        Json(answer).into_response()
    }

    /// Returns the refusal of a tool call with this header `authorization`, if its token lacks a scope.
    fn refusal_for_lack_of_scopes(&mut self, sent: &str) -> Option<Response> {
        let needed = self.manners.call_needs?;
        if self.valid[sent].split(' ').any(|scope| scope == needed) {
            return None;
        }
        self.refused_calls += 1;
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{needed}\"");
        let challenge = HeaderValue::from_str(&challenge).expect("a header");
        Some((StatusCode::FORBIDDEN, [(header::WWW_AUTHENTICATE, challenge)]).into_response())
    }
}

/// Puts the fields of `changes` over those of `value`; null removes one.
fn change(value: &mut Value, changes: &Value) {
    for (name, changed) in changes.as_object().expect("an object") {
        if changed.is_null() {
            value.as_object_mut().expect("an object").shift_remove(name);
        } else {
            value[name.as_str()] = changed.clone();
        }
    }
}

fn refusal(code: &str) -> Response {
    let body = json!({"error": code, "error_description": "the token refresh-t0ken-1-x is not accepted"});
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

async fn resource(State(server): State<AuthorizationServer>) -> Json<Value> {
    let base = &server.base;
    let mut metadata = json!({
        "resource": format!("{base}/mcp"),
        "authorization_servers": [format!("{base}/login")],
        "scopes_supported": ["vault:open", "vault:close"],
    });
    change(&mut metadata, &server.state().manners.resource);
    Json(metadata)
}

async fn issuer(State(server): State<AuthorizationServer>) -> Response {
    let base = &server.base;
    let mut metadata = json!({
        "issuer": format!("{base}/login"),
        "authorization_endpoint": format!("{base}/authorize"),
        "token_endpoint": format!("{base}/token"),
        "registration_endpoint": format!("{base}/register"),
        "revocation_endpoint": format!("{base}/revoke"),
        "code_challenge_methods_supported": ["plain", "S256"],
        "authorization_response_iss_parameter_supported": true,
    });
    let state = server.state();
    if let Some(raw) = &state.manners.raw_metadata {
        return Body::from(raw.clone()).into_response();
    }
    change(&mut metadata, &state.manners.metadata);
    Json(metadata).into_response()
}

async fn register(State(server): State<AuthorizationServer>, Json(body): Json<Value>) -> Response {
    server.state().registrations.push(body);
    let client = json!({"client_id": "registered-1", "token_endpoint_auth_method": "none"});
    (StatusCode::CREATED, Json(client)).into_response()
}

/// Agrees to each login at once, as a browser shows a user who has agreed before.
async fn authorize(State(server): State<AuthorizationServer>, Query(query): Query<Fields>) -> Redirect {
    let mut state = server.state();
    let code = format!("c0de-{}-x", state.logins.len() + 1);
    state.codes.insert(code.clone(), query["code_challenge"].clone());
    let mut fields = json!({"code": code, "state": query["state"], "iss": format!("{}/login", server.base)});
    change(&mut fields, &state.manners.redirect);
    let mut address = reqwest::Url::parse(&query["redirect_uri"]).expect("an address");
    for (name, value) in fields.as_object().expect("an object") {
        let value = value.as_str().expect("a text");
        address.query_pairs_mut().append_pair(name, value);
    }
    state.scopes = query.get("scope").cloned().unwrap_or_default();
    state.logins.push(query);
    Redirect::to(address.as_str())
}

async fn issue(State(server): State<AuthorizationServer>, headers: HeaderMap, Form(form): Form<Fields>) -> Response {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    let is_refresh = form["grant_type"] == "refresh_token";
    let is_held = {
        let mut state = server.state();
        state
            .token_requests
            .push((authorization.map(str::to_owned), form.clone()));
        is_refresh && state.manners.holds_refreshes
    };
    if is_held {
        server.refresh_came.notify_one();
        server.refresh_may_go_on.notified().await;
    }
    let mut state = server.state();
    if !is_refresh {
        let challenge = state.codes.remove(&form["code"]);
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
        return match challenge == Some(digest) {
            true => state.tokens(),
            false => refusal("invalid_grant"),
        };
    }
    if let Some(status) = state.manners.refresh_fails {
        return StatusCode::from_u16(status).expect("a status").into_response();
    }
    if state.refresh.remove(&form["refresh_token"]) {
        return state.tokens();
    }
    state.was_reused = true;
    state.refresh.clear();
    state.valid.clear();
    refusal("invalid_grant")
}

async fn revoke(State(server): State<AuthorizationServer>, Form(form): Form<Fields>) -> StatusCode {
    let mut state = server.state();
    state.refresh.clear();
    state.valid.clear();
    state.revocations.push(form);
    StatusCode::OK
}

/// Answers a message of the MCP client.
async fn answer(State(server): State<AuthorizationServer>, headers: HeaderMap, Json(message): Json<Value>) -> Response {
    let sent = headers.get("authorization").and_then(|value| value.to_str().ok());
    let sent = sent.unwrap_or_default().to_owned();
    if !server.state().valid.contains_key(&sent) {
        let metadata = format!(
            "Bearer error=\"invalid_token\", resource_metadata=\"{}/metadata-of-mcp\", scope=\"vault:open\"",
            server.base
        );
        let challenge = HeaderValue::from_str(&metadata).expect("a header");
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response();
    }
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "vault", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "open", "inputSchema": {"type": "object"}}]}),
        "tools/call" => {
            let mut state = server.state();
            if let Some(refusal) = state.refusal_for_lack_of_scopes(&sent) {
                return refusal;
            }
            state.calls.push(sent);
            json!({"content": [{"type": "text", "text": "open"}]})
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
}
