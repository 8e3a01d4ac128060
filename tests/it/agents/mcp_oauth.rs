//! MCP servers that require access tokens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::client::Client;
use crate::support::{Human, TestServer, call, eventually, on_both_engines, script};

on_both_engines! {
    a_server_gets_a_token_of_the_configured_address,
    the_address_for_tokens_is_found_in_the_metadata,
    a_token_that_the_server_refuses_is_replaced_once,
    one_token_serves_many_calls,
    a_token_that_has_expired_is_replaced,
    the_client_may_prove_its_identity_in_the_form,
    a_refusal_of_the_authorization_server_shows_no_secret,
    a_token_gets_the_scopes_that_calls_lack_and_the_calls_are_made_again,
    the_scopes_that_a_token_had_are_not_lost,
    configured_scopes_are_a_limit,
    a_call_that_always_lacks_a_scope_is_made_twice,
    a_server_stays_usable_when_its_authorization_server_refuses_a_scope,
    a_call_that_is_forbidden_for_another_reason_is_made_once,
}

/// The secret of the client.
const SECRET: &str = "s3cret";

/// An MCP server and its authorization server, on one address.
#[derive(Clone)]
struct Protected {
    base: String,
    state: Arc<Mutex<ProtectedState>>,
}

#[derive(Default)]
struct ProtectedState {
    /// The requests for tokens, each with the header `authorization`.
    asked: Vec<(Option<String>, Value)>,
    /// The tokens that the MCP server accepts, with their scopes.
    valid: BTreeMap<String, String>,
    /// The scopes of tokens that are asked for without any, which the authorization server names.
    default_scopes: Option<&'static str>,
    /// True if no token gets the scopes that it is asked for with.
    gives_no_scopes: bool,
    /// The scope that tool calls need.
    call_needs: Option<&'static str>,
    /// True if tool calls are forbidden for a reason that is none of scopes.
    forbids_calls: bool,
    /// The number of tool calls that were refused.
    refused_calls: usize,
    /// The seconds for which a token is said to be valid.
    expires_in: Option<u64>,
    /// True if the authorization server refuses the client.
    refuses: bool,
}

impl Protected {
    /// Starts both servers, and configures an agent that uses the tools; `more` is added to the section of OAuth.
    async fn start(server: &TestServer, more: impl FnOnce(&str) -> String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let protected = Self {
            base: base.clone(),
            state: Arc::default(),
        };
        let router = Router::new()
            .route("/mcp", post(answer))
            .route("/token", post(issue))
            .route("/.well-known/oauth-protected-resource/mcp", get(resource))
            .route("/.well-known/oauth-authorization-server", get(issuer))
            .with_state(protected.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let oauth = more(&base);
        server
            .is_configured_with(&format!(
                r#"
[mcp_servers.vault]
url = "{base}/mcp"

[mcp_servers.vault.oauth]
client_id = "adj utant"
client_secret = "${{ADJUTANT_TEST_NOTHING:-{SECRET}}}"
{oauth}

[agents.treasurer]
model = "scripted:lab"
tools = ["vault/*"]
"#
            ))
            .await;
        protected
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ProtectedState> {
        self.state.lock().expect("the lock is never poisoned")
    }

    fn asked(&self) -> Vec<(Option<String>, Value)> {
        self.state().asked.clone()
    }

    /// Returns the scopes of all requests for tokens; none for those without any.
    fn asked_scopes(&self) -> Vec<Option<String>> {
        let scope_of = |form: &Value| form["scope"].as_str().map(str::to_owned);
        self.state().asked.iter().map(|(_, form)| scope_of(form)).collect()
    }

    fn revokes_all(&self) {
        self.state().valid.clear();
    }
}

impl ProtectedState {
    /// Returns the refusal of a tool call with this header `authorization`, if there is one.
    fn refusal(&mut self, sent: &str) -> Option<Response> {
        let needed = self.call_needs.unwrap_or_default();
        let has_scope = needed.is_empty() || self.valid[sent].split(' ').any(|scope| scope == needed);
        let code = match self.forbids_calls {
            true => "invalid_request",
            false if has_scope => return None,
            false => "insufficient_scope",
        };
        self.refused_calls += 1;
        let challenge = format!("Bearer error=\"{code}\", scope=\"{needed}\"");
        Some(
            (
                StatusCode::FORBIDDEN,
                [(header::WWW_AUTHENTICATE, challenge)],
                "no entry",
            )
                .into_response(),
        )
    }
}

async fn issue(State(protected): State<Protected>, headers: HeaderMap, Form(form): Form<Value>) -> Response {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    let mut state = protected.state();
    let asked_scopes = form["scope"].as_str().map(str::to_owned);
    state.asked.push((authorization.map(str::to_owned), form));
    if state.refuses {
        let refusal = json!({"error": "invalid_client", "error_description": format!("not {SECRET}")});
        return (StatusCode::UNAUTHORIZED, Json(refusal)).into_response();
    }
    let token = format!("token-{}", state.asked.len());
    let default_scopes = state.default_scopes.filter(|_| asked_scopes.is_none());
    let scopes = match state.gives_no_scopes {
        true => String::new(),
        false => asked_scopes.unwrap_or_else(|| default_scopes.unwrap_or_default().to_owned()),
    };
    state.valid.insert(format!("Bearer {token}"), scopes);
    let mut answer = json!({"access_token": token, "token_type": "bearer", "expires_in": state.expires_in});
    if let Some(scopes) = default_scopes {
        answer["scope"] = json!(scopes);
    }
    Json(answer).into_response()
}

async fn resource(State(protected): State<Protected>) -> Json<Value> {
    Json(json!({"resource": format!("{}/mcp", protected.base), "authorization_servers": [protected.base]}))
}

async fn issuer(State(protected): State<Protected>) -> Json<Value> {
    Json(json!({"issuer": protected.base, "token_endpoint": format!("{}/token", protected.base)}))
}

/// Answers a message of the MCP client.
async fn answer(State(protected): State<Protected>, headers: HeaderMap, Json(message): Json<Value>) -> Response {
    let sent = headers.get("authorization").and_then(|value| value.to_str().ok());
    let sent = sent.unwrap_or_default();
    if !protected.state().valid.contains_key(sent) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "vault", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "open", "inputSchema": {"type": "object"}}]}),
        "tools/call" => match protected.state().refusal(sent) {
            Some(refusal) => return refusal,
            None => json!({"content": [{"type": "text", "text": "open"}]}),
        },
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
}

/// Returns the setting with the address for tokens.
fn token_url(base: &str) -> String {
    format!("token_url = \"{base}/token\"")
}

/// Calls the tool of the server once, and returns the result.
pub(super) async fn opens(server: &TestServer) -> String {
    opens_for(server.client()).await
}

/// Calls the tool of the server once for this client, and returns the result.
pub(super) async fn opens_for(client: Client) -> String {
    let alice = Human::on_new_thread(client, "treasurer").await;
    eventually(async || {
        let tools = script().turn(json!({"echo_tools": true}));
        alice.says(tools).await;
        alice
            .transcript()
            .await
            .last()
            .is_some_and(|said| said.contains("vault__open"))
    })
    .await;
    alice
        .says(script().calls(call("c1", "vault__open", json!({}))).says("done"))
        .await;
    let said = alice.transcript().await;
    said[said.len() - 2].clone()
}

async fn a_server_gets_a_token_of_the_configured_address(server: TestServer) {
    let more = |base: &str| format!("{}\nscopes = [\"a\", \"b:c\"]", token_url(base));
    let protected = Protected::start(&server, more).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    let asked = protected.asked();
    let form = json!({
        "grant_type": "client_credentials",
        "scope": "a b:c",
        "resource": format!("{}/mcp", protected.base),
    });
    // The words `adj+utant:s3cret`.
    assert_eq!(asked, [(Some("Basic YWRqK3V0YW50OnMzY3JldA==".to_owned()), form)]);
}

async fn the_address_for_tokens_is_found_in_the_metadata(server: TestServer) {
    let protected = Protected::start(&server, |_| String::new()).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(protected.asked().len(), 1);
}

async fn a_token_that_the_server_refuses_is_replaced_once(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    protected.revokes_all();
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(protected.asked().len(), 2);
}

async fn a_token_that_has_expired_is_replaced(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    opens(&server).await;
    protected.state().expires_in = Some(0);
    protected.revokes_all();
    opens(&server).await;
    let before = protected.asked().len();
    opens(&server).await;
    assert!(protected.asked().len() > before);
}

async fn one_token_serves_many_calls(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    opens(&server).await;
    opens(&server).await;
    assert_eq!(protected.asked().len(), 1);
}

async fn the_client_may_prove_its_identity_in_the_form(server: TestServer) {
    let more = |base: &str| format!("{}\nclient_authentication = \"post\"", token_url(base));
    let protected = Protected::start(&server, more).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    let (authorization, form) = protected.asked().remove(0);
    assert_eq!(authorization, None);
    assert_eq!(form["client_id"], "adj utant");
    assert_eq!(form["client_secret"], SECRET);
}

async fn a_refusal_of_the_authorization_server_shows_no_secret(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    opens(&server).await;
    protected.state().refuses = true;
    protected.revokes_all();
    let result = opens(&server).await;
    assert!(
        result.contains("its authorization server answered with status 401: invalid_client"),
        "{result}"
    );
    assert!(!result.contains(SECRET), "{result}");
}

async fn a_token_gets_the_scopes_that_calls_lack_and_the_calls_are_made_again(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    let mut asked = vec![None];
    for (needed, scopes) in [("files:write", "files:write"), ("files:read", "files:write files:read")] {
        protected.state().call_needs = Some(needed);
        protected.state().refused_calls = 0;
        assert_eq!(opens(&server).await, "vault__open: open");
        assert_eq!(protected.state().refused_calls, 1);
        asked.push(Some(scopes.to_owned()));
        assert_eq!(protected.asked_scopes(), asked);
    }
    // Later tokens have the scopes from the start.
    protected.revokes_all();
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(protected.state().refused_calls, 1);
    asked.push(Some("files:write files:read".to_owned()));
    assert_eq!(protected.asked_scopes(), asked);
}

async fn the_scopes_that_a_token_had_are_not_lost(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    protected.state().default_scopes = Some("files:list");
    protected.state().call_needs = Some("files:write");
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(
        protected.asked_scopes(),
        [None, Some("files:list files:write".to_owned())]
    );
}

async fn configured_scopes_are_a_limit(server: TestServer) {
    let more = |base: &str| format!("{}\nscopes = [\"files:read\"]", token_url(base));
    let protected = Protected::start(&server, more).await;
    protected.state().call_needs = Some("files:write");
    let result = opens(&server).await;
    let way_out = "requires scopes that its access token lacks: `files:write`; an operator has to add `files:write` to \
                   `scopes` in `[mcp_servers.vault.oauth]`";
    assert!(result.contains("the MCP server `vault`"), "{result}");
    assert!(result.contains(way_out), "{result}");
    assert_eq!(protected.state().refused_calls, 1);
    assert_eq!(protected.asked_scopes(), [Some("files:read".to_owned())]);
    // A scope that is configured and that the authorization server has not given.
    protected.state().gives_no_scopes = true;
    protected.state().call_needs = Some("files:read");
    protected.revokes_all();
    let result = opens(&server).await;
    assert!(
        result.contains("has them, so an operator has to allow them at the authorization server"),
        "{result}"
    );
}

async fn a_call_that_always_lacks_a_scope_is_made_twice(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    protected.state().gives_no_scopes = true;
    protected.state().call_needs = Some("files:write");
    let result = opens(&server).await;
    assert!(result.contains("the MCP server `vault`"), "{result}");
    assert!(result.contains("`files:write`"), "{result}");
    assert!(
        result.contains("to set `scopes` in `[mcp_servers.vault.oauth]`"),
        "{result}"
    );
    assert_eq!(protected.state().refused_calls, 2);
    let asked = [None, Some("files:write".to_owned())];
    assert_eq!(protected.asked_scopes(), asked);
    // The token was asked for with the scope already.
    let result = opens(&server).await;
    assert!(result.contains("`files:write`"), "{result}");
    assert_eq!(protected.state().refused_calls, 3);
    assert_eq!(protected.asked_scopes(), asked);
}

async fn a_server_stays_usable_when_its_authorization_server_refuses_a_scope(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    protected.state().refuses = true;
    protected.state().call_needs = Some("files:write");
    let result = opens(&server).await;
    assert!(
        result.contains("`files:write`; its authorization server answered with status 401: invalid_client"),
        "{result}"
    );
    assert!(!result.contains(SECRET), "{result}");
    assert_eq!(protected.state().refused_calls, 1);
    // The token from before is still used.
    protected.state().call_needs = None;
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(protected.asked().len(), 2);
}

async fn a_call_that_is_forbidden_for_another_reason_is_made_once(server: TestServer) {
    let protected = Protected::start(&server, token_url).await;
    protected.state().call_needs = Some("files:write");
    protected.state().forbids_calls = true;
    let result = opens(&server).await;
    assert!(result.contains("it answered with status 403: no entry"), "{result}");
    assert_eq!(protected.state().refused_calls, 1);
    assert_eq!(protected.asked().len(), 1);
}
