//! A server that misbehaves in many ways as a model, a tool, an MCP server or a remote agent.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::schemas::doubling;

/// The running server; dropping it stops it.
pub(crate) struct MisbehavingServer {
    /// The address of the server.
    pub(crate) base: String,
    asked: Arc<Mutex<Vec<String>>>,
    shutdown: Shutdown,
}

impl MisbehavingServer {
    /// Starts a server.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let shutdown = Shutdown::new(Duration::from_secs(1));
        let router = Router::new()
            .fallback(serve)
            .with_state((base.clone(), Arc::clone(&asked)));
        shutdown.spawn("misbehaving server", async move { axum::serve(listener, router).await });
        Self { base, asked, shutdown }
    }

    /// Returns the number of requests below this path.
    pub(crate) fn asked(&self, path: &str) -> usize {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|asked| asked.starts_with(path))
            .count()
    }

    /// Returns the configuration of a provider and an agent for each kind of misbehaving model.
    pub(crate) fn models(&self, ways: &[&str]) -> String {
        let one = |way: &&str| {
            format!(
                "[providers.wild-{way}]\nkind = \"openai\"\nbase_url = \"{}/{way}\"\napi_key = \"wild-key\"\n\
                 [agents.{way}]\nmodel = \"wild-{way}:m\"\nsystem_prompt = \"Speak.\"\n",
                self.base
            )
        };
        ways.iter().map(one).collect()
    }
}

impl Drop for MisbehavingServer {
    fn drop(&mut self) {
        self.shutdown.force();
    }
}

fn chunk(delta: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
    format!(
        "data: {}\n\n",
        json!({"id": "c", "created": 1, "model": "m", "choices": [choice]})
    )
}

/// Returns an endless response: a first piece, and then the same piece again and again.
fn endless(kind: &'static str, first: String, piece: String) -> Response {
    let piece = Bytes::from(piece);
    let pieces = stream::repeat_with(move || Ok::<_, Infallible>(piece.clone()));
    let body = stream::iter([Ok(Bytes::from(first))]).chain(pieces);
    ([("content-type", kind)], Body::from_stream(body)).into_response()
}

/// Returns a response that stops after its first piece without ending.
fn stuck(first: String) -> Response {
    let body = stream::iter([Ok::<_, Infallible>(Bytes::from(first))]).chain(stream::pending());
    ([("content-type", "text/event-stream")], Body::from_stream(body)).into_response()
}

async fn serve(State((base, asked)): State<(String, Arc<Mutex<Vec<String>>>)>, uri: Uri, body: Bytes) -> Response {
    let path = uri.path().to_owned();
    asked.lock().unwrap().push(path.clone());
    let sse = "text/event-stream";
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "words" => endless(sse, String::new(), chunk(json!({"content": "word ".repeat(200)}))),
        "arguments" => {
            let function = json!({"name": "lookup", "arguments": "{\"query\": \""});
            let call = json!({"index": 0, "id": "c1", "type": "function", "function": function});
            let more = json!({"index": 0, "function": {"arguments": "x".repeat(1000)}});
            endless(
                sse,
                chunk(json!({"tool_calls": [call]})),
                chunk(json!({"tool_calls": [more]})),
            )
        }
        "line" => endless(sse, "data: ".to_owned(), "x".repeat(16_384)),
        "error" => {
            let mut answer = endless("text/plain", String::new(), "sorry ".repeat(3_000));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            answer
        }
        "signs" => endless_signs(),
        "halfway" => stuck(chunk(json!({"content": "half"}))),
        "silent" => std::future::pending().await,
        "elsewhere" => {
            let target = format!("{base}/target{path}");
            (StatusCode::TEMPORARY_REDIRECT, [("location", target)]).into_response()
        }
        "zeros" => {
            let zeros = "0,".repeat(50 * 1024 * 1024);
            let body = format!("{{\"content\": \"here\", \"artifact\": [{zeros}0]}}");
            ([("content-type", "application/json")], body).into_response()
        }
        "endless" => endless("application/json", "\"".to_owned(), "x".repeat(16_384)),
        "delegate" => {
            let delegate = json!({"subagent_type": "helper", "description": "help", "response_format": doubling(24)});
            Json(json!({"delegate": delegate})).into_response()
        }
        "mcp-silent" if is_call(&body) => std::future::pending().await,
        "mcp-halfway" if is_call(&body) => stuck(": soon\n\n".to_owned()),
        "mcp" | "mcp-silent" | "mcp-halfway" => mcp(&body),
        "run" => endless_run(&path, !body.is_empty()),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Returns an endless stream of SSE comments, one every few milliseconds.
fn endless_signs() -> Response {
    let signs = stream::unfold(
        tokio::time::interval(Duration::from_millis(20)),
        |mut interval| async move {
            interval.tick().await;
            Some((Ok::<_, Infallible>(Bytes::from(": still there\n\n")), interval))
        },
    );
    ([("content-type", "text/event-stream")], Body::from_stream(signs)).into_response()
}

/// Returns whether the request is a `tools/call`.
fn is_call(body: &[u8]) -> bool {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    request["method"] == "tools/call"
}

/// Returns the response of a remote server whose runs stream comments without end. `is_begun` says that the request
/// creates something.
fn endless_run(path: &str, is_begun: bool) -> Response {
    let id = "6f0b9c3e-2b16-4c1f-a7a5-8d1c7d0e54a2";
    let run = json!({"run_id": id, "thread_id": id, "status": "running", "metadata": {}});
    match path.rsplit('/').next().unwrap_or_default() {
        "threads" => Json(json!({"thread_id": id, "status": "idle"})).into_response(),
        "runs" if is_begun => Json(run).into_response(),
        "runs" => Json(json!([])).into_response(),
        "stream" => endless(
            "text/event-stream",
            String::new(),
            format!(": {}\n\n", "x".repeat(16_384)),
        ),
        "cancel" => Json(json!({})).into_response(),
        _ => Json(run).into_response(),
    }
}

/// Returns the response of an MCP server with one valid tool and one with a malicious schema.
fn mcp(body: &[u8]) -> Response {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let result = match request["method"].as_str().unwrap_or_default() {
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "wild", "version": "1"}}),
        "tools/list" => json!({"tools": [
            {"name": "good", "inputSchema": {"type": "object"}},
            {"name": "trap", "inputSchema": doubling(24)},
        ]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "called"}]}),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
}
