//! The endpoints for health, capabilities and the API document.

use reqwest::Method;
use reqwest::redirect::Policy;
use serde_json::json;

use crate::support::client::reply;
use crate::support::{Engine, TestServer, on_both_engines};

/// Returns the addresses of the scripts, styles and pictures of a page.
fn parts(page: &str) -> Vec<&str> {
    let after = ["src=\"", "href=\""]
        .into_iter()
        .flat_map(|attribute| page.split(attribute).skip(1));
    after.filter_map(|text| text.split('"').next()).collect()
}

on_both_engines! {
    the_health_check_covers_server_and_database,
    wrong_parameters_are_told_what_is_allowed,
}

async fn the_health_check_covers_server_and_database(server: TestServer) {
    let client = server.client();
    for path in ["/ok", "/ok?check_db=1"] {
        assert_eq!(
            client.get(path).await.ok(),
            json!({"ok": true, "services": {}}),
            "{path}"
        );
    }
    assert_eq!(
        client.get("/ok?check_db=perhaps").await.refused(422),
        "Invalid check_db perhaps: must be true or false"
    );
}

async fn wrong_parameters_are_told_what_is_allowed(server: TestServer) {
    let client = server.client();
    let alice = server.human("plain").await;
    let thread = format!("/threads/{}", alice.thread);
    for (path, told) in [
        (
            "/metrics?format=xml".to_owned(),
            "Invalid format xml: allowed are: prometheus, json",
        ),
        (
            format!("{thread}/runs?limit=ten"),
            "Invalid limit ten: must be a whole number",
        ),
        (
            format!("{thread}/runs?status=odd"),
            "Invalid status odd: allowed are: pending, running, success, error, timeout, interrupted",
        ),
        (
            format!("{thread}/interrupts?status=odd"),
            "Invalid status odd: allowed are: pending, resolved, expired, dropped",
        ),
        (format!("{thread}?include=odd"), "Invalid include odd: allowed is ttl"),
        (
            "/webhooks/deliveries?status=odd".to_owned(),
            "Invalid status odd: allowed are: pending, delivered, dead",
        ),
    ] {
        assert_eq!(client.get(&path).await.refused(422), told);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_lists_its_capabilities() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let info = server.client().get("/info").await.ok();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    for (flag, expected) in [("assistants", true), ("crons", true), ("langsmith", false)] {
        assert_eq!(info["flags"][flag], expected, "{flag}");
    }
    assert_eq!(info["host"]["kind"], "self-hosted");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_page_loads_nothing_from_other_servers() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let page = client.get("/docs").await;
    assert!(
        page.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/html")),
        "{page:?}"
    );
    let page = page.ok();
    let page = page.as_str().expect("a page");
    let parts: Vec<&str> = parts(page).into_iter().filter(|part| !part.ends_with('/')).collect();
    assert!(parts.len() > 2, "{page}");
    for part in parts {
        assert!(!part.contains("//"), "{part} comes from elsewhere");
        client
            .get(&format!("/docs/{}", part.trim_start_matches("./")))
            .await
            .ok();
    }
    let document = client.get("/openapi.json").await.ok();
    assert!(document["paths"]["/threads/{thread_id}/runs/stream"]["post"].is_object());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_with_a_slash_at_its_end_leads_to_the_one_without() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let http = adjutant::net::client_builder()
        .no_proxy()
        .redirect(Policy::none())
        .build()
        .expect("a client");
    for (method, path, place) in [
        (Method::POST, "/threads/", "../threads"),
        (Method::GET, "/assistants/x/graph/?xray=1", "../graph?xray=1"),
        // No other host is in the answer.
        (Method::GET, "//elsewhere.example/", "../elsewhere.example"),
        (Method::HEAD, "/%5Celsewhere.example/", "../%5Celsewhere.example"),
    ] {
        let request = http.request(method, format!("{}{path}", client.base()));
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 307, "{path}");
        assert_eq!(answer.headers()["location"], place, "{path}");
    }
    for path in ["//", "/no/such/path/", "/no/such/path//"] {
        assert_eq!(client.get(path).await.refused(404), "Not Found", "{path}");
    }
    let thread = client.post("/threads/", json!({})).await.ok();
    assert!(thread["thread_id"].is_string(), "{thread}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_path_is_not_found_for_every_method() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    for (method, path) in [
        (Method::GET, "/no/such/path"),
        (Method::DELETE, "/ok"),
        (Method::PUT, "/threads"),
    ] {
        let answer = reply(server.client().request(method, path)).await;
        assert_eq!(answer.refused(404), "Not Found", "{path}");
    }
    server.finish().await;
}
