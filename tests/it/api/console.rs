//! The console's files, as HTTP serves them. What its pages do is tested in `compat/console.rs`.

use std::io::Read;

use flate2::read::GzDecoder;
use reqwest::Method;
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use serde_json::json;

use crate::support::client::{Client, reply};
use crate::support::{Engine, TestServer};

/// The header `accept` of a browser that opens a page.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

/// A file of the console, as it was sent.
struct Sent {
    status: u16,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Sent {
    fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_else(|| panic!("there is no {name} in {:?}", self.headers))
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes.clone()).expect("a text")
    }
}

/// Sends a request with these headers.
async fn send(client: &Client, method: Method, path: &str, headers: &[(&str, &str)]) -> Sent {
    let mut request = client.request(method, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.expect("an answer");
    Sent {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        bytes: response.bytes().await.expect("a whole answer").to_vec(),
    }
}

async fn get(client: &Client, path: &str, headers: &[(&str, &str)]) -> Sent {
    send(client, Method::GET, path, headers).await
}

/// Returns the paths of the scripts and styles of the first page, of which there are some.
async fn assets(client: &Client) -> Vec<String> {
    let page = get(client, "/", &[("accept", BROWSER)]).await.text();
    let found = page.split('"').filter(|text| text.starts_with("/console/assets/"));
    let found: Vec<String> = found.map(str::to_owned).collect();
    assert!(!found.is_empty(), "{page}");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_gets_the_console_and_other_clients_the_index_of_the_api() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let page = get(&client, "/", &[("accept", BROWSER)]).await;
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert_eq!(page.header("cache-control"), "no-cache");
    assert!(page.header("vary").contains("accept"), "{:?}", page.headers);
    assert!(page.text().contains("<script"), "{}", page.text());
    let index = client.get("/").await;
    assert_eq!(index.body["console"], "/console");
    assert_eq!(index.header("vary"), Some("accept"));
    for path in ["/console", "/console/", "/console/index.html"] {
        let same = get(&client, path, &[]).await;
        assert_eq!(same.bytes, page.bytes, "{path}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_parts_of_the_console_come_from_the_server_itself() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let page = get(&client, "/", &[("accept", BROWSER)]).await.text();
    for attribute in ["src=\"", "href=\""] {
        for address in page.split(attribute).skip(1).filter_map(|text| text.split('"').next()) {
            assert!(address.starts_with("/console/"), "{address} comes from elsewhere");
            assert_eq!(get(&client, address, &[]).await.status, 200, "{address}");
        }
    }
    for tag in page.split("<script").skip(1) {
        assert!(tag.contains("src="), "the policy allows no script in the page: {tag}");
    }
    assert!(!page.contains("<style") && !page.contains("style="), "{page}");
    let kinds = [
        (".js", "text/javascript; charset=utf-8"),
        (".css", "text/css; charset=utf-8"),
    ];
    for path in assets(&client).await {
        let kind = kinds.iter().find(|(ending, _)| path.ends_with(ending));
        let (_, kind) = kind.unwrap_or_else(|| panic!("what is {path}?"));
        assert_eq!(get(&client, &path, &[]).await.header("content-type"), *kind, "{path}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_keeps_the_files_with_hashed_names_and_asks_for_the_page_again() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    for path in assets(&client).await {
        let file = get(&client, &path, &[]).await;
        assert_eq!(
            file.header("cache-control"),
            "public, max-age=31536000, immutable",
            "{path}"
        );
    }
    let page = get(&client, "/", &[("accept", BROWSER)]).await;
    let tag = page.header("etag");
    let weak = format!("\"other\", W/{tag}");
    for known in [tag, &weak, "*"] {
        let again = get(&client, "/", &[("accept", BROWSER), ("if-none-match", known)]).await;
        assert_eq!(again.status, 304, "{known}");
        assert_eq!(again.header("etag"), tag);
        assert_eq!(again.header("cache-control"), "no-cache");
        assert!(again.bytes.is_empty());
    }
    let changed = get(&client, "/", &[("accept", BROWSER), ("if-none-match", "\"other\"")]).await;
    assert_eq!(changed.status, 200);
    assert_eq!(changed.bytes, page.bytes);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_are_compressed_for_clients_that_accept_gzip() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let path = assets(&client).await.swap_remove(0);
    let whole = get(&client, &path, &[]).await;
    assert!(!whole.headers.contains_key("content-encoding"));
    for accepted in ["gzip", "br, GZIP;q=0.5", "deflate, gzip"] {
        let compressed = get(&client, &path, &[("accept-encoding", accepted)]).await;
        assert_eq!(compressed.header("content-encoding"), "gzip", "{accepted}");
        assert_eq!(compressed.header("content-type"), whole.header("content-type"));
        assert!(compressed.header("vary").contains("accept-encoding"));
        assert_ne!(compressed.header("etag"), whole.header("etag"));
        assert!(compressed.bytes.len() < whole.bytes.len() / 2);
        let mut text = vec![];
        let decoded = GzDecoder::new(compressed.bytes.as_slice()).read_to_end(&mut text);
        decoded.expect("it is gzip");
        assert_eq!(text, whole.bytes);
        let tag = compressed.header("etag");
        let again = get(&client, &path, &[("accept-encoding", accepted), ("if-none-match", tag)]).await;
        assert_eq!(again.status, 304, "{accepted}");
    }
    for accepted in ["br", "gzip;q=0", "identity, gzip; q=0.0"] {
        let other = get(&client, &path, &[("accept-encoding", accepted)]).await;
        assert!(!other.headers.contains_key("content-encoding"), "{accepted}");
        assert_eq!(other.bytes, whole.bytes);
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_request_gets_the_headers_of_a_file_and_no_content() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let path = assets(&client).await.swap_remove(0);
    for (path, accept) in [("/", BROWSER), (path.as_str(), "*/*")] {
        let whole = get(&client, path, &[("accept", accept)]).await;
        let head = send(&client, Method::HEAD, path, &[("accept", accept)]).await;
        assert_eq!(head.status, 200, "{path}");
        assert!(head.bytes.is_empty(), "{path}");
        for header in ["etag", "content-type", "content-length", "content-security-policy"] {
            assert_eq!(head.header(header), whole.header(header), "{path}");
        }
        assert_eq!(head.header("content-length"), whole.bytes.len().to_string());
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_may_load_and_call_nothing_but_the_server() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let asset = assets(&client).await.swap_remove(0);
    for path in ["/", "/console", asset.as_str()] {
        let file = get(&client, path, &[("accept", BROWSER)]).await;
        assert_eq!(
            file.header("content-security-policy"),
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "{path}"
        );
        assert_eq!(file.header("x-frame-options"), "DENY", "{path}");
        assert_eq!(file.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(file.header("x-content-type-options"), "nosniff", "{path}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_file_of_the_console_is_not_found() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    for path in [
        "/console/nosuch.js",
        "/console/assets/",
        "/console/assets",
        "/console/../Cargo.toml",
        "/console/..%2f..%2fCargo.toml",
        "/console/%2e%2e/%2e%2e/Cargo.toml",
        "/console//etc/passwd",
        "/console/%00",
    ] {
        client.get(path).await.refused(404);
    }
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        reply(client.request(method, "/console")).await.refused(404);
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_is_public_and_what_it_shows_is_not() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let nobody = server.is_protected().await.nobody();
    let asset = assets(&nobody).await.swap_remove(0);
    for path in ["/", "/console", "/console/", "/console/index.html", asset.as_str()] {
        let file = get(&nobody, path, &[("accept", BROWSER)]).await;
        assert_eq!(file.status, 200, "{path}");
        let wrong = get(&nobody.with_key("adj_unknown_key"), path, &[("accept", BROWSER)]).await;
        assert_eq!(wrong.status, 200, "{path}: the page asks for another key");
    }
    // Without `text/html`, `/` is the index of the API, which shows the version.
    assert_eq!(nobody.get("/").await.status, 401);
    assert_eq!(nobody.post("/console", json!({})).await.status, 401);
    assert_eq!(nobody.get("/console/nosuch.js").await.status, 404);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_is_not_shown_under_a_foreign_host() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    for path in ["/", "/console", "/console/index.html"] {
        let headers = [("host", "rebind.evil.example"), ("accept", BROWSER)];
        assert_eq!(get(&client, path, &headers).await.status, 421, "{path}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_console_redirects_browsers_to_the_api_document() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let asset = assets(&server.client()).await.swap_remove(0);
    server.is_configured("console = false").await;
    let client = server.client();
    let http = adjutant::net::client_builder()
        .redirect(Policy::none())
        .build()
        .expect("a client");
    let page = http.get(client.base()).header("accept", BROWSER).send().await;
    let page = page.expect("an answer");
    assert_eq!(page.status().as_u16(), 307);
    assert_eq!(page.headers()["location"], "/docs");
    for path in ["/console", "/console/", "/console/index.html", asset.as_str()] {
        client.get(path).await.refused(404);
    }
    let index = client.get("/").await.ok();
    assert_eq!(index.get("console"), None);
    assert_eq!(&index["docs"], &json!("/docs"));
    server.finish().await;
}
