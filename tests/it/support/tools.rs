//! The tools that the agents of the tests call over HTTP. They remember every call, and can be held back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A server of tools.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    /// Where it is.
    pub(crate) base: String,
    desk: Arc<Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    calls: watch::Sender<Vec<Value>>,
    held: watch::Sender<BTreeSet<String>>,
}

impl Tools {
    /// Starts one.
    pub(crate) async fn start(shutdown: &Shutdown) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().unwrap());
        let desk = Arc::new(Desk::default());
        let router = Router::new()
            .route("/{tool}", post(serve))
            .with_state(Arc::clone(&desk));
        shutdown.spawn("tools", async move { axum::serve(listener, router).await });
        Self { base, desk }
    }

    /// The calls of this tool so far: what was sent, and the `key`.
    pub(crate) fn calls_of(&self, tool: &str) -> Vec<Value> {
        self.desk
            .calls
            .borrow()
            .iter()
            .filter(|call| call["name"] == tool)
            .cloned()
            .collect()
    }

    /// The idempotency keys of the calls of this tool, in the order in which they came.
    pub(crate) fn keys_of(&self, tool: &str) -> Vec<String> {
        self.calls_of(tool)
            .iter()
            .map(|call| call["key"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// The calls of this tool do not come to an end until [`Tools::let_go`].
    pub(crate) fn hold(&self, tool: &str) {
        self.desk.held.send_modify(|held| held.extend([tool.to_owned()]));
    }

    /// The calls of this tool come to an end, those that were held back too.
    pub(crate) fn let_go(&self, tool: &str) {
        self.desk.held.send_modify(|held| held.retain(|other| other != tool));
    }

    /// Returns as soon as this tool has been called so often.
    pub(crate) async fn called(&self, tool: &str, times: usize) {
        let count = |calls: &Vec<Value>| calls.iter().filter(|call| call["name"] == tool).count() >= times;
        let wait = async { self.desk.calls.subscribe().wait_for(count).await.map(drop) };
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        waited
            .unwrap_or_else(|_| panic!("{tool} was not called {times} times"))
            .expect("the tools are there");
    }
}

async fn serve(
    State(desk): State<Arc<Desk>>,
    Path(tool): Path<String>,
    headers: HeaderMap,
    Json(mut body): Json<Value>,
) -> Response {
    body["key"] = json!(headers.get("idempotency-key").and_then(|key| key.to_str().ok()));
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    let args = body["args"].clone();
    let key = body["key"].clone();
    desk.calls.send_modify(|calls| calls.push(body));
    if tool == "progress" {
        return progress(desk, &args["name"]);
    }
    let mut held = desk.held.subscribe();
    held.wait_for(|held| !held.contains(&name))
        .await
        .expect("the desk is there");
    let text = |name: &str| args[name].as_str().unwrap_or_default();
    match tool.as_str() {
        "lookup" => Json(json!(format!("found {}", text("query")))).into_response(),
        "send_email" => Json(json!(format!("sent to {}: {}", text("to"), text("body")))).into_response(),
        "fail" => (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({"detail": text("why")}))).into_response(),
        "busy" => {
            let calls = desk.calls.borrow().iter().filter(|call| call["key"] == key).count();
            match calls {
                1 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
                2 => StatusCode::TOO_MANY_REQUESTS.into_response(),
                _ => Json(json!("free again")).into_response(),
            }
        }
        "slow" => Json(json!("at last")).into_response(),
        "big" => {
            let size = args["chars"]
                .as_u64()
                .and_then(|size| usize::try_from(size).ok())
                .unwrap_or(0);
            Json(json!("x".repeat(size))).into_response()
        }
        "spawn" => {
            let subagent = args["subagent_type"].as_str().unwrap_or("researcher");
            let format = &args["response_format"];
            let initial = args.get("initial_messages").cloned().unwrap_or(json!([]));
            let wish = json!({"description": text("description"), "subagent_type": subagent, "response_format": format,
                "initial_messages": initial, "system_prompt": args["system_prompt"]});
            Json(json!({"delegate": wish})).into_response()
        }
        "nested" => {
            let levels = args["levels"]
                .as_u64()
                .and_then(|levels| usize::try_from(levels).ok())
                .unwrap_or(0);
            let nested = format!("{}\"a\\u0000b\"{}", "[".repeat(levels), "]".repeat(levels));
            let answer = format!("{{\"content\": \"made\\u0000\", \"artifact\": {nested}}}");
            ([("content-type", "application/json")], answer).into_response()
        }
        "note" => Json(json!({"content": "noted", "update": args["update"]})).into_response(),
        _ => (StatusCode::NOT_FOUND, Json(json!({"detail": "no such tool"}))).into_response(),
    }
}

/// An answer in lines: one at once, which tells something under `name` if that is a text, the others when it is no longer
/// held back.
fn progress(desk: Arc<Desk>, name: &Value) -> Response {
    let mut told = json!({"done": 0.5});
    if name.is_string() {
        told["name"] = name.clone();
    }
    let first = format!("{}\n", json!({"custom": [told], "output": "all "}));
    let first = Ok::<_, std::convert::Infallible>(first);
    let rest = async move {
        let mut held = desk.held.subscribe();
        held.wait_for(|held| !held.contains("progress"))
            .await
            .expect("the desk is there");
        let rest = "{\"custom\": [\"almost\", 1]}\n{\"output\": \"done\"}\n{\"content\": \"all done\"}\n";
        Ok(rest.to_owned())
    };
    let lines = futures::stream::iter([first]).chain(futures::stream::once(rest));
    ([("content-type", "application/x-ndjson")], Body::from_stream(lines)).into_response()
}
