//! Web pages of other origins: content types, `Origin`, `Host`, CORS, and the headers of pages.

use std::process::{Command, Stdio};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Error;

use crate::support::client::{Client, Reply, reply};
use crate::support::process::{Process, server_in};
use crate::support::viewer::Viewer;
use crate::support::{Engine, TestServer, eventually, lookup, on_both_engines, script};

const EVIL: &str = "https://evil.example";

/// An endpoint of the OpenAPI document that may change something.
struct Endpoint {
    method: Method,
    path: String,
    takes_body: bool,
}

impl Endpoint {
    /// Returns whether the body of a request of anybody is looked at. Without the token of a call, the endpoints of calls
    /// refuse a request before.
    fn looks_at_body(&self) -> bool {
        self.takes_body && !self.path.starts_with("/call/")
    }
}

/// Returns every endpoint of the OpenAPI document with a method that may change something; ids in paths are made up.
async fn unsafe_endpoints(client: &Client) -> Vec<Endpoint> {
    let document = client.get("/openapi.json").await.ok();
    let mut endpoints = vec![];
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let operation = &item[method.as_str().to_lowercase()];
            if operation.is_object() {
                let takes_body = operation["requestBody"].is_object();
                endpoints.push(Endpoint {
                    method,
                    path: made_up(path),
                    takes_body,
                });
            }
        }
    }
    assert!(endpoints.len() > 30, "the document has lost endpoints");
    endpoints
}

/// Returns the path with made-up ids for its parameters.
fn made_up(path: &str) -> String {
    let id = uuid::Uuid::new_v4().to_string();
    path.split('/')
        .map(|part| if part.starts_with('{') { id.as_str() } else { part })
        .collect::<Vec<_>>()
        .join("/")
}

async fn send(client: &Client, endpoint: &Endpoint, headers: &[(&str, &str)], body: &'static str) -> Reply {
    let mut request = client.request(endpoint.method.clone(), &endpoint.path).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    reply(request).await
}

async fn get(client: &Client, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = client.request(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    reply(request).await
}

/// Returns the status of an HTTP/2 request with this `:authority`.
async fn status_by_http2(client: &Client, authority: &str) -> u16 {
    let address = client.base().replacen("http://", "", 1);
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (mut sender, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
    let request = http::Request::get(format!("http://{authority}/assistants/none/schemas"))
        .body(())
        .expect("a request");
    let asks = async {
        let (answer, _) = sender.send_request(request, true).expect("the connection is open");
        answer.await.expect("an answer").status().as_u16()
    };
    tokio::select! {
        status = asks => status,
        ended = connection => panic!("the connection is over: {ended:?}"),
    }
}

/// Opens the WebSocket of a thread from a page of this origin. Returns the status of a refusal.
async fn socket_refused(client: &Client, origin: &str) -> Option<u16> {
    let mut request = client.socket_request(&uuid::Uuid::new_v4().to_string());
    request
        .headers_mut()
        .insert("origin", origin.parse().expect("a header"));
    match connect_async(request).await {
        Ok(_) => None,
        Err(Error::Http(response)) => Some(response.status().as_u16()),
        Err(other) => panic!("{other}"),
    }
}

on_both_engines! {
    a_body_that_is_not_json_by_its_content_type_is_refused_by_every_endpoint,
    a_compressed_body_is_refused_by_every_endpoint,
    json_has_many_content_types_and_an_empty_body_needs_none,
    a_name_in_the_authority_of_http2_is_checked_like_any_other,
    a_page_of_another_origin_can_change_nothing,
    a_foreign_page_cannot_cancel_a_run_by_get,
    a_websocket_opens_for_pages_of_this_machine_only,
    a_chat_page_of_this_machine_is_allowed,
}

async fn a_body_that_is_not_json_by_its_content_type_is_refused_by_every_endpoint(server: TestServer) {
    let client = server.client();
    let before = client.post("/assistants/count", json!({})).await.ok();
    let all = unsafe_endpoints(&client).await;
    for endpoint in all.iter().filter(|endpoint| endpoint.looks_at_body()) {
        for kind in [
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data; boundary=x"),
            None,
        ] {
            let headers: Vec<(&str, &str)> = kind.map(|kind| ("content-type", kind)).into_iter().collect();
            let reply = send(&client, endpoint, &headers, r#"{"status": "all"}"#).await;
            assert_eq!(
                reply.body["code"], "unsupported_media_type",
                "{} {} {kind:?}",
                endpoint.method, endpoint.path
            );
            assert!(reply.refused(415).starts_with("Content-Type: must be application/json"));
        }
    }
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 0);
    assert_eq!(client.post("/assistants/count", json!({})).await.ok(), before);
}

async fn a_compressed_body_is_refused_by_every_endpoint(server: TestServer) {
    let client = server.client();
    let all = unsafe_endpoints(&client).await;
    for endpoint in all.iter().filter(|endpoint| endpoint.looks_at_body()) {
        for encoding in ["gzip", "br", "deflate", "zstd", "identity, gzip"] {
            let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
            let reply = send(&client, endpoint, &headers, r#"{"status": "all"}"#).await;
            let detail = reply.refused(415);
            assert!(
                detail.starts_with("Content-Encoding: must be absent"),
                "{}: {detail}",
                endpoint.path
            );
        }
    }
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 0);
    let plain = client.request(Method::POST, "/threads");
    let plain = plain
        .header("content-type", "application/json")
        .header("content-encoding", "identity");
    assert_eq!(reply(plain.body("{}")).await.status, 200);
}

async fn json_has_many_content_types_and_an_empty_body_needs_none(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    for kind in [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/merge-patch+json",
    ] {
        let request = client
            .request(Method::PATCH, &alice.path(""))
            .header("content-type", kind);
        assert_eq!(reply(request.body(r#"{"metadata": {}}"#)).await.status, 200, "{kind}");
    }
    assert_eq!(
        reply(client.request(Method::POST, &alice.path("/copy"))).await.status,
        200,
        "it needs no body"
    );
    assert_eq!(
        reply(client.request(Method::POST, "/threads")).await.status,
        422,
        "it needs a body"
    );
}

async fn a_name_in_the_authority_of_http2_is_checked_like_any_other(server: TestServer) {
    let client = server.client();
    for foreign in [
        "rebind.evil.example",
        "rebind.evil.example:8123",
        "localhost.evil.example",
        "user@localhost",
    ] {
        assert_eq!(status_by_http2(&client, foreign).await, 421, "{foreign}");
    }
    for own in ["localhost", "localhost:8123", "127.0.0.1:1", "[::1]"] {
        assert_ne!(status_by_http2(&client, own).await, 421, "{own}");
    }
}

async fn a_page_of_another_origin_can_change_nothing(server: TestServer) {
    let client = server.client();
    for endpoint in unsafe_endpoints(&client).await {
        for origin in [EVIL, "null", "http://localhost.evil.example"] {
            let headers = [("origin", origin), ("content-type", "application/json")];
            let reply = send(&client, &endpoint, &headers, "{}").await;
            assert_eq!(
                reply.body["code"], "foreign_origin",
                "{} {} {origin}",
                endpoint.method, endpoint.path
            );
            assert_eq!(reply.header("access-control-allow-origin"), None);
            let text = reply.refused(403);
            assert!(text.contains("cors_origins"), "{text}");
            assert!(text.contains(origin), "{text}");
        }
    }
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 0);
}

async fn a_foreign_page_cannot_cancel_a_run_by_get(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let run = alice.asks(script().calls(lookup("c1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    let client = server.client();
    for path in [
        format!("{}/join?cancel_on_disconnect=true", run.path),
        format!("{}/stream?cancel_on_disconnect=1", run.path),
    ] {
        for headers in [
            &[("origin", EVIL)][..],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ] {
            let reply = get(&client, &path, headers).await;
            assert_eq!(reply.body["code"], "foreign_origin", "{path} {headers:?}");
            reply.refused(403);
        }
    }
    assert_eq!(run.status().await, "running");
    // A page of this machine, and a program: they look and leave, which is what stops the run.
    let page = client.request(Method::GET, &format!("{}/stream?cancel_on_disconnect=true", run.path));
    let page = page
        .header("origin", "http://localhost:3000")
        .header("sec-fetch-site", "cross-site");
    let page = page.send().await.expect("an answer");
    assert_eq!(page.status(), StatusCode::OK);
    drop(page);
    eventually(async || run.status().await == "interrupted").await;
    server.tools.let_go("lookup");
}

async fn a_websocket_opens_for_pages_of_this_machine_only(server: TestServer) {
    let client = server.client();
    assert_eq!(socket_refused(&client, EVIL).await, Some(403));
    assert_eq!(socket_refused(&client, "null").await, Some(403));
    assert_eq!(socket_refused(&client, "http://localhost:3000").await, None);
    server.is_configured("cors_origins = [\"https://evil.example\"]").await;
    assert_eq!(socket_refused(&client, EVIL).await, None);
    assert_eq!(socket_refused(&client, "http://localhost:3000").await, Some(403));
}

async fn a_chat_page_of_this_machine_is_allowed(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let path = format!("/threads/{}/commands", viewer.thread);
    let start = json!({"id": 1, "method": "run.start", "params":
            {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}}});
    let command = |origin: &str| {
        server
            .client()
            .request(Method::POST, &path)
            .header("origin", origin)
            .json(&start)
    };
    reply(command(EVIL)).await.refused(403);
    assert_eq!(server.client().post("/threads/count", json!({})).await.ok(), 0);
    assert_eq!(reply(command("http://localhost:3000")).await.ok()["type"], "success");
    let runs = format!("/threads/{}/runs", viewer.thread);
    eventually(async || {
        let found: Value = server.client().get(&runs).await.ok();
        found[0]["status"] == "success"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_this_machine_and_of_the_server_are_allowed() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let own = client.base();
    for origin in [
        "http://localhost:3000",
        "http://app.localhost",
        "http://127.0.0.1:5173",
        "http://[::1]:1",
        own.as_str(),
    ] {
        let request = client
            .request(Method::POST, "/threads")
            .header("origin", origin)
            .json(&json!({}));
        let made = reply(request).await;
        assert_eq!(made.header("access-control-allow-origin"), Some(origin));
        made.ok();
    }
    server.is_configured("cors_origins = []").await;
    let own = client.base();
    let request = client
        .request(Method::POST, "/threads")
        .header("origin", &own)
        .json(&json!({}));
    assert_eq!(reply(request).await.status, 200, "its own pages always may");
    let request = client
        .request(Method::POST, "/threads")
        .header("origin", "http://localhost:1")
        .json(&json!({}));
    reply(request).await.refused(403);
    server
        .is_reconfigured("cors_origins = []", "cors_origins = [\"*\"]")
        .await;
    let request = client
        .request(Method::POST, "/threads")
        .header("origin", "null")
        .json(&json!({}));
    assert_eq!(reply(request).await.status, 200, "the owner lets everybody in");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_answers_under_its_own_names_only() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    for path in ["/ok", "/threads/count", "/docs", "/no/such/path"] {
        let reply = get(&client, path, &[("host", "rebind.evil.example:8123")]).await;
        assert_eq!(reply.body["code"], "unknown_host", "{path}");
        let text = reply.refused(421);
        assert!(text.contains("`hosts`"), "{text}");
        assert!(text.contains("rebind.evil.example:8123"), "{text}");
    }
    for host in ["localhost:8123", "app.localhost", "127.0.0.1", "[::1]:9"] {
        get(&client, "/ok", &[("host", host)]).await.ok();
    }
    get(&client, "/ok", &[("host", "10.0.0.7")]).await.refused(421);
    server
        .is_configured("hosts = [\"agents.example.org\", \"*.internal\"]")
        .await;
    get(&client, "/ok", &[("host", "agents.example.org")]).await.ok();
    get(&client, "/ok", &[("host", "a.b.internal:80")]).await.ok();
    get(&client, "/ok", &[("host", "evil.example.org")]).await.refused(421);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_names_no_server_is_refused() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let address = server.client().base().replacen("http://", "", 1);
    for request in [
        "GET /ok HTTP/1.0\r\n\r\n",
        "GET /ok HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
        "GET http://evil.example/ok HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("the server listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(matches!(status, "421" | "400"), "{request}{answer}");
        if request.contains("HTTP/1.0") {
            assert!(answer.contains("The request names no host"), "{answer}");
        }
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_have_security_headers_for_browsers() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let client = server.client();
    let refused = get(&client, "/ok", &[("host", "evil.example")]).await;
    for reply in [
        client.get("/ok").await,
        client.get("/no/such/path").await,
        client.get("/threads/nope").await,
        refused,
    ] {
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{reply:?}");
    }
    for path in ["/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-initializer.js"] {
        let page = client.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(page.header("x-frame-options"), Some("DENY"));
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
        let policy = page.header("content-security-policy").expect("a policy");
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(
                policy.split(';').any(|part| part.trim() == rule),
                "{rule} is not in {policy}"
            );
        }
    }
    let page = client.get("/docs").await.ok();
    let scripts_in_page: Vec<&str> = page.as_str().expect("a page").split("<script").skip(1).collect();
    assert!(!scripts_in_page.is_empty(), "{page}");
    for script in scripts_in_page {
        assert!(
            script.contains("src="),
            "the policy allows no script in the page itself: {script}"
        );
    }
    server.finish().await;
}

#[test]
fn a_public_address_needs_an_explicit_flag() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command
        .args(["--listen", "0.0.0.0:0"])
        .current_dir(folder.path())
        .stdin(Stdio::null());
    let output = command.output().expect("it ends");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "server.listen",
        "0.0.0.0:0",
        "--insecure-no-auth",
        "ADJUTANT_INSECURE_NO_AUTH",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!folder.path().join("adjutant.db").exists(), "nothing was opened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_all_addresses_refuses_unknown_host_names() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut command = server_in(folder.path());
    command.args(["--listen", "0.0.0.0:0", "--insecure-no-auth"]);
    let server = Process::start(command).await;
    let client = Client::new(&server.base().await);
    get(&client, "/ok", &[("host", "192.168.0.7:8123")]).await.ok();
    get(&client, "/ok", &[("host", "rebind.evil.example")])
        .await
        .refused(421);
    let origin = [("origin", "https://evil.example"), ("content-type", "application/json")];
    let endpoint = Endpoint {
        method: Method::POST,
        path: "/threads".to_owned(),
        takes_body: true,
    };
    send(&client, &endpoint, &origin, "{}").await.refused(403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedding_program_needs_the_flag_for_a_public_address() {
    let folder = tempfile::tempdir().expect("a directory");
    let configuration = format!(
        "[storage]\nurl = \"sqlite://{}/adjutant.db\"\n",
        folder.path().display()
    );
    let app = adjutant::Adjutant::builder()
        .config_text(configuration)
        .start()
        .await
        .expect("it starts");
    let shutdown = app.shutdown().clone();
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.expect("a free port");
    let error = app.serve(listener).await.expect_err("it does not serve");
    assert!(error.to_string().contains("--insecure-no-auth"), "{error:#}");
    shutdown.force();
    let _ = shutdown.finished().await;
}
