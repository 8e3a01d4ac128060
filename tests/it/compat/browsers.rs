//! CORS: web pages of other origins.

use reqwest::Method;
use reqwest::header::HeaderMap;

use crate::support::client::Client;
use crate::support::{Engine, TestServer};

/// Sends the preflight request of a browser for a page of this origin.
async fn preflight(client: &Client, origin: &str, headers: &str) -> HeaderMap {
    let request = client
        .request(Method::OPTIONS, "/threads/search")
        .header("origin", origin);
    let request = request.header("access-control-request-method", "POST");
    let request = request.header("access-control-request-headers", headers);
    let request = request.header("access-control-request-private-network", "true");
    let response = request.send().await.expect("an answer");
    assert!(response.status().is_success(), "{response:?}");
    response.headers().clone()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_any_origin_may_send_the_headers_of_the_sdk() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    server.is_configured("cors_origins = [\"*\"]").await;
    let wanted = "authorization,content-type,last-event-id,x-api-key,x-auth-scheme";
    let allowed = preflight(&server.client(), "https://chat.example.org", wanted).await;
    assert_eq!(text(&allowed, "access-control-allow-origin"), Some("*"));
    assert_eq!(text(&allowed, "access-control-allow-headers"), Some(wanted));
    assert!(text(&allowed, "access-control-allow-methods").is_some_and(|methods| methods.contains("PATCH")));
    assert_eq!(text(&allowed, "access-control-allow-credentials"), None);
    assert_eq!(text(&allowed, "access-control-allow-private-network"), None);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_may_read_the_location_and_paging_headers() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let request = server
        .client()
        .request(Method::GET, "/ok")
        .header("origin", "https://chat.example.org");
    let response = request.send().await.expect("an answer");
    let exposed = text(response.headers(), "access-control-expose-headers").expect("some are exposed");
    for header in [
        "content-location",
        "location",
        "x-pagination-total",
        "x-pagination-next",
    ] {
        assert!(
            exposed.split(',').any(|name| name == header),
            "{header} is not in {exposed}"
        );
    }
    assert!(text(response.headers(), "vary").is_some_and(|vary| vary.to_lowercase().contains("origin")));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_configured_origins_are_allowed() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    server
        .is_configured(
            "cors_origins = [\"https://chat.example.org\"]\ncors_credentials = true\ncors_private_network = true\n\
             cors_expose_headers = [\"x-trace\"]",
        )
        .await;
    let client = server.client();
    let friend = preflight(&client, "https://chat.example.org", "x-api-key").await;
    assert_eq!(
        text(&friend, "access-control-allow-origin"),
        Some("https://chat.example.org")
    );
    assert_eq!(text(&friend, "access-control-allow-credentials"), Some("true"));
    assert_eq!(text(&friend, "access-control-allow-private-network"), Some("true"));
    assert_eq!(text(&friend, "access-control-max-age"), Some("600"));
    let stranger = preflight(&client, "https://evil.example.org", "x-api-key").await;
    assert_eq!(text(&stranger, "access-control-allow-origin"), None);
    let request = client
        .request(Method::GET, "/ok")
        .header("origin", "https://chat.example.org");
    let response = request.send().await.expect("an answer");
    let exposed = text(response.headers(), "access-control-expose-headers").expect("some are exposed");
    assert!(exposed.ends_with("x-trace"), "{exposed}");
    server.finish().await;
}
