//! Every request needs a caller, except for a few public pages.

use std::process::Command;

use reqwest::Method;
use serde_json::json;

use crate::compat::sdk::{python, runs_to_its_end};
use crate::support::client::{Client, Reply, reply};
use crate::support::{TestServer, lookup, on_both_engines, script};

on_both_engines! {
    only_public_pages_are_shown_without_credentials,
    a_key_of_the_configuration_is_accepted_in_both_headers,
    all_wrong_credentials_are_refused_alike,
    credentials_that_are_given_twice_are_refused,
    the_caller_is_shown_to_itself,
    the_user_of_a_run_is_in_its_context_and_no_client_can_set_it,
    without_the_section_everything_is_open,
    a_preflight_needs_no_credentials,
    the_python_sdk_sends_its_key,
}

/// Sends a request with this header.
pub(super) async fn with_header(client: &Client, path: &str, header: &str, value: &str) -> Reply {
    reply(client.request(Method::GET, path).header(header, value)).await
}

/// Sends a request with this bearer token.
pub(super) async fn with_bearer(client: &Client, token: &str) -> Reply {
    with_header(client, "/auth/me", "authorization", &format!("Bearer {token}")).await
}

async fn only_public_pages_are_shown_without_credentials(server: TestServer) {
    let nobody = server.is_protected().await.nobody();
    for path in ["/ok", "/openapi.json", "/docs", "/docs/swagger-ui.css", "/console"] {
        assert_eq!(nobody.get(path).await.status, 200, "{path}");
    }
    for path in [
        "/",
        "/info",
        "/metrics",
        "/auth/me",
        "/auth/keys",
        "/interrupts",
        "/nosuch",
        "/ok/more",
        "/threads/00000000-0000-0000-0000-000000000000",
    ] {
        let refused = nobody.get(path).await;
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.body["code"], "unauthenticated", "{path}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"adjutant\""));
    }
    assert_eq!(nobody.post("/ok", json!({})).await.status, 401);
    // A body that is not JSON is not even read.
    let request = nobody.request(Method::POST, "/threads").body("{");
    assert_eq!(reply(request).await.status, 401);
    let browser = with_header(&nobody, "/", "accept", "text/html").await;
    assert_eq!(browser.status, 200, "a browser gets the console");
}

async fn a_key_of_the_configuration_is_accepted_in_both_headers(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann").get("/auth/me").await.ok();
    assert_eq!(ann["identity"], "ann");
    let nobody = keys.nobody();
    let key = "the-secret-key-of-ann-0123456789abcdef";
    assert_eq!(with_bearer(&nobody, key).await.ok(), ann);
    let lower = with_header(&nobody, "/auth/me", "authorization", &format!("bearer {key}")).await;
    assert_eq!(lower.ok(), ann);
}

async fn all_wrong_credentials_are_refused_alike(server: TestServer) {
    let keys = server.is_protected().await;
    let missing = keys.nobody().get("/auth/me").await;
    let secret = "0".repeat(64);
    for wrong in [
        "x",
        "the-secret-key-of-ann-0123456789abcdeg",
        "adj_0011223344556677_0",
        &format!("adj_0011223344556677_{secret}"),
        "a.b.c",
    ] {
        for refused in [
            keys.with(wrong).get("/auth/me").await,
            with_bearer(&keys.nobody(), wrong).await,
        ] {
            assert_eq!(refused.status, 401, "{wrong}");
            assert_eq!(refused.body, missing.body, "{wrong}");
        }
    }
    assert_eq!(keys.client("expired").get("/auth/me").await.body, missing.body);
    let basic = with_header(&keys.nobody(), "/auth/me", "authorization", "Basic YW5uOmFubg==").await;
    assert_eq!(basic.body, missing.body);
}

async fn credentials_that_are_given_twice_are_refused(server: TestServer) {
    let keys = server.is_protected().await;
    let request = keys.client("ann").request(Method::GET, "/auth/me");
    let twice = request.header("x-api-key", "the-secret-key-of-bob-0123456789abcdef");
    assert_eq!(reply(twice).await.status, 401);
}

async fn the_caller_is_shown_to_itself(server: TestServer) {
    let keys = server.is_protected().await;
    let caller = keys.client("operator").get("/auth/me").await.ok();
    let expected = json!({
        "identity": "operator",
        "display_name": null,
        "tenant": "acme",
        "roles": ["operator"],
        "scopes": null,
        "credential": "api_key",
        "claims": {},
        "expires_at": null,
    });
    assert_eq!(caller, expected);
}

async fn the_user_of_a_run_is_in_its_context_and_no_client_can_set_it(server: TestServer) {
    let ann = server.is_protected().await.client("ann");
    let forged = json!({
        "tone": "kind",
        "langgraph_auth_user": {"identity": "root", "roles": ["admin"], "tenant": "other"},
        "langgraph_auth_user_id": "root",
        "langgraph_auth_permissions": ["*"],
    });
    let assistant = json!({"graph_id": "agent", "context": forged});
    let assistant = ann.post("/assistants", assistant).await.ok()["assistant_id"].clone();
    let text = script().calls(lookup("l1", "x")).says("done").to_string();
    let input = json!({"messages": [{"role": "user", "content": text}]});
    for body in [
        json!({"assistant_id": "agent", "input": input, "context": forged}),
        json!({"assistant_id": "agent", "input": input, "config": {"configurable": forged}}),
        json!({"assistant_id": assistant, "input": input}),
    ] {
        ann.post("/runs/wait", body).await.ok();
    }
    let calls = server.tools.calls_of("lookup");
    assert_eq!(calls.len(), 3);
    let user = json!({"identity": "ann", "display_name": "ann", "is_authenticated": true, "permissions": ["user"],
        "roles": ["user"], "tenant": "acme"});
    for call in calls {
        let context = &call["context"];
        assert_eq!(context["tone"], "kind", "{call}");
        assert_eq!(context["langgraph_auth_user"], user, "{call}");
        assert_eq!(context["langgraph_auth_user_id"], "ann", "{call}");
        assert_eq!(context["langgraph_auth_permissions"], json!(["user"]), "{call}");
    }
}

async fn without_the_section_everything_is_open(server: TestServer) {
    let client = server.client();
    let caller = client.get("/auth/me").await.ok();
    assert_eq!(caller["credential"], "none");
    assert_eq!(client.with_key("whatever").get("/info").await.status, 200);
    for path in ["/auth/keys", "/auth/tickets"] {
        let refused = client.post(path, json!({"name": "ci"})).await;
        assert_eq!(refused.body["code"], "auth_disabled", "{path}");
        assert_eq!(refused.status, 409, "{path}");
    }
}

async fn a_preflight_needs_no_credentials(server: TestServer) {
    let nobody = server.is_protected().await.nobody();
    let preflight = nobody
        .request(Method::OPTIONS, "/threads")
        .header("origin", "http://localhost:3000")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "x-api-key");
    let preflight = reply(preflight).await;
    assert_eq!(preflight.status, 200);
    assert_eq!(
        preflight.header("access-control-allow-origin"),
        Some("http://localhost:3000")
    );
    let refused = with_header(&nobody, "/info", "origin", "http://localhost:3000").await;
    assert_eq!(refused.status, 401);
    assert_eq!(
        refused.header("access-control-allow-origin"),
        Some("http://localhost:3000"),
        "a page can read that it must log in"
    );
}

async fn the_python_sdk_sends_its_key(server: TestServer) {
    let keys = server.is_protected().await;
    let Some(python) = python() else { return };
    let created = keys
        .client("root")
        .post("/auth/keys", json!({"name": "sdk"}))
        .await
        .ok();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/python/api_key.py");
    let mut command = Command::new(python);
    command.args(["-B", script, &server.client().base()]);
    command.arg(created["api_key"].as_str().expect("a key"));
    let said = runs_to_its_end(command).await;
    assert!(said.contains("the key lets in"), "{said}");
}
