//! MCP servers that require access tokens.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
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
    /// The tokens that the MCP server accepts.
    valid: BTreeSet<String>,
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

    fn revokes_all(&self) {
        self.state().valid.clear();
    }
}

async fn issue(State(protected): State<Protected>, headers: HeaderMap, Form(form): Form<Value>) -> Response {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    let mut state = protected.state();
    state.asked.push((authorization.map(str::to_owned), form));
    if state.refuses {
        let refusal = json!({"error": "invalid_client", "error_description": format!("not {SECRET}")});
        return (StatusCode::UNAUTHORIZED, Json(refusal)).into_response();
    }
    let token = format!("token-{}", state.asked.len());
    state.valid.insert(format!("Bearer {token}"));
    let expires_in = state.expires_in;
    Json(json!({"access_token": token, "token_type": "bearer", "expires_in": expires_in})).into_response()
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
    if !protected.state().valid.contains(sent.unwrap_or_default()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "vault", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "open", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "open"}]}),
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
    assert_eq!(
        [&form["client_id"], &form["client_secret"]],
        [&json!("adj utant"), &json!(SECRET)]
    );
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
