//! The HTTP tools of the test agents. They record every call, and can be held back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::starts_service;

/// A tool server.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    /// The address of the server.
    pub(crate) base: String,
    state: Arc<ServerState>,
}

#[derive(Debug, Default)]
struct ServerState {
    calls: watch::Sender<Vec<Value>>,
    /// The number of responses of the tools with effects.
    answered: watch::Sender<usize>,
    held: watch::Sender<Held>,
    /// The names of the tools whose callers have hung up before the response.
    abandoned: watch::Sender<Vec<String>>,
}

/// A call in progress. Dropping it notes that its caller has hung up, unless it has a response.
struct OpenCall<'a> {
    tool: &'a str,
    abandoned: &'a watch::Sender<Vec<String>>,
    is_answered: bool,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.abandoned.send_modify(|tools| tools.push(self.tool.to_owned()));
        }
    }
}

/// The calls whose responses are held back.
#[derive(Debug, Default)]
struct Held {
    /// All calls of these tools.
    tools: BTreeSet<String>,
    /// This call of any tool, counted from 1, and all later ones.
    from: Option<usize>,
}

impl Held {
    fn has(&self, tool: &str, number: usize) -> bool {
        self.tools.contains(tool) || self.from.is_some_and(|from| number >= from)
    }
}

impl Tools {
    /// Starts a tool server.
    pub(crate) async fn start(shutdown: &Shutdown) -> Self {
        let state = Arc::new(ServerState::default());
        let router = Router::new()
            .route("/{tool}", post(serve))
            .route("/tools", get(list))
            .route("/tools/{tool}", post(serve))
            .with_state(Arc::clone(&state));
        let base = starts_service("tools", router, shutdown).await;
        Self { base, state }
    }

    /// Returns the calls of this tool so far: their bodies with the idempotency `key`.
    pub(crate) fn calls_of(&self, tool: &str) -> Vec<Value> {
        self.state
            .calls
            .borrow()
            .iter()
            .filter(|call| call["name"] == tool)
            .cloned()
            .collect()
    }

    /// Returns to whom mails were sent.
    pub(crate) fn recipients(&self) -> Vec<Value> {
        let calls = self.calls_of("send_email");
        calls.iter().map(|call| call["args"]["to"].clone()).collect()
    }

    /// Returns the idempotency keys of the calls of this tool, in order of arrival.
    pub(crate) fn keys_of(&self, tool: &str) -> Vec<String> {
        self.calls_of(tool)
            .iter()
            .map(|call| call["key"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Holds the responses of this tool back until [`Tools::let_go`].
    pub(crate) fn hold(&self, tool: &str) {
        self.state.held.send_modify(|held| held.tools.extend([tool.to_owned()]));
    }

    /// Releases the responses of this tool.
    pub(crate) fn let_go(&self, tool: &str) {
        self.state
            .held
            .send_modify(|held| held.tools.retain(|other| other != tool));
    }

    /// Holds the response of this call and of all later ones back until [`Tools::let_all_go`]; the first call since
    /// [`Tools::forget`] has the number 1.
    pub(crate) fn hold_from_call(&self, number: usize) {
        self.state.held.send_modify(|held| held.from = Some(number));
    }

    /// Releases all responses.
    pub(crate) fn let_all_go(&self) {
        self.state.held.send_replace(Held::default());
    }

    /// Forgets all calls and answers.
    pub(crate) fn forget(&self) {
        self.state.calls.send_modify(Vec::clear);
        self.state.answered.send_replace(0);
    }

    /// Returns all calls so far, in order of arrival.
    pub(crate) fn calls(&self) -> Vec<Value> {
        self.state.calls.borrow().clone()
    }

    /// Returns the number of responses of the tools with effects.
    pub(crate) fn answers(&self) -> usize {
        *self.state.answered.borrow()
    }

    /// Returns how many callers of this tool have hung up before it was released.
    pub(crate) fn hung_up(&self, tool: &str) -> usize {
        self.state
            .abandoned
            .borrow()
            .iter()
            .filter(|name| *name == tool)
            .count()
    }

    /// Waits, without a limit, until any tools have been called `times` times.
    pub(crate) async fn any_called(&self, times: usize) {
        let mut calls = self.state.calls.subscribe();
        let waited = calls.wait_for(|calls| calls.len() >= times).await;
        waited.expect("the tools are running");
    }

    /// Waits, without a limit, until the tools with effects have answered `times` times.
    pub(crate) async fn any_answered(&self, times: usize) {
        let mut answered = self.state.answered.subscribe();
        let waited = answered.wait_for(|answered| *answered >= times).await;
        waited.expect("the tools are running");
    }

    /// Waits until this tool has been called `times` times.
    pub(crate) async fn called(&self, tool: &str, times: usize) {
        let count = |calls: &Vec<Value>| calls.iter().filter(|call| call["name"] == tool).count() >= times;
        let wait = async { self.state.calls.subscribe().wait_for(count).await.map(drop) };
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        waited
            .unwrap_or_else(|_| panic!("{tool} was not called {times} times"))
            .expect("the tools are there");
    }
}

/// Returns the answer of a tool with effects: `record`, `charge`, `notify`, `send` or `pay`.
pub(crate) fn answer_with_effect(tool: &str, args: &Value) -> String {
    format!("{tool}: {}", args["note"].as_str().unwrap_or_default())
}

/// Returns the base64 of the screenshot with this number and size in bytes.
pub(crate) fn screenshot(number: u64, bytes: usize) -> String {
    let pixels = number.to_string().into_bytes().into_iter().cycle();
    STANDARD.encode(pixels.take(bytes).collect::<Vec<u8>>())
}

/// Shows a screenshot of the size in `bytes`.
fn look(args: &Value) -> Response {
    let number = args["number"].as_u64().unwrap_or(0);
    let bytes = args["bytes"].as_u64().and_then(|bytes| usize::try_from(bytes).ok());
    let image = screenshot(number, bytes.unwrap_or(0));
    let image = json!({"type": "image", "base64": image, "mime_type": "image/png"});
    let text = json!({"type": "text", "text": format!("screen {number}")});
    Json(json!({"content": [text, image]})).into_response()
}

async fn serve(
    State(state): State<Arc<ServerState>>,
    Path(tool): Path<String>,
    headers: HeaderMap,
    Json(mut body): Json<Value>,
) -> Response {
    body["key"] = json!(headers.get("idempotency-key").and_then(|key| key.to_str().ok()));
    if let Some(key) = headers.get("x-key").and_then(|key| key.to_str().ok()) {
        body["x_key"] = json!(key);
    }
    if let Some(parent) = headers.get("traceparent").and_then(|parent| parent.to_str().ok()) {
        body["traceparent"] = json!(parent);
    }
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    let args = body["args"].clone();
    let key = body["key"].clone();
    let delegations = body["delegations"].as_array().cloned().unwrap_or_default();
    let mut number = 0;
    let sent = body.to_string();
    state.calls.send_modify(|calls| {
        calls.push(body);
        number = calls.len();
    });
    if tool == "progress" {
        return progress(state, &args["name"]);
    }
    let mut open = OpenCall {
        tool: &name,
        abandoned: &state.abandoned,
        is_answered: false,
    };
    let mut held = state.held.subscribe();
    held.wait_for(|held| !held.has(&name, number))
        .await
        .expect("the tools are running");
    open.is_answered = true;
    drop(open);
    let text = |name: &str| args[name].as_str().unwrap_or_default();
    match tool.as_str() {
        "lookup" => Json(json!(format!("found {}", text("query")))).into_response(),
        "send_email" => Json(json!(format!("sent to {}: {}", text("to"), text("body")))).into_response(),
        "fail" => (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({"detail": text("why")}))).into_response(),
        "busy" => {
            let calls = state.calls.borrow().iter().filter(|call| call["key"] == key).count();
            match calls {
                1 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
                2 => StatusCode::TOO_MANY_REQUESTS.into_response(),
                _ => Json(json!("free again")).into_response(),
            }
        }
        "slow" => Json(json!("at last")).into_response(),
        "record" | "charge" | "notify" | "send" | "pay" => {
            // A tool that takes its time, so that kills land inside the call.
            tokio::time::sleep(Duration::from_millis(args["ms"].as_u64().unwrap_or(0))).await;
            state.answered.send_modify(|answered| *answered += 1);
            Json(json!(answer_with_effect(&tool, &args))).into_response()
        }
        "big" => {
            let size = args["chars"]
                .as_u64()
                .and_then(|size| usize::try_from(size).ok())
                .unwrap_or(0);
            Json(json!("x".repeat(size))).into_response()
        }
        "screenshot" => look(&args),
        "spawn" => {
            let subagent = args["subagent_type"].as_str().unwrap_or("researcher");
            let format = &args["response_format"];
            let initial = args.get("initial_messages").cloned().unwrap_or(json!([]));
            let delegate = json!({"description": text("description"), "subagent_type": subagent,
                "response_format": format, "initial_messages": initial, "system_prompt": args["system_prompt"]});
            Json(json!({"delegate": delegate})).into_response()
        }
        "investigate" => match args["steps"].get(delegations.len()) {
            Some(step) => {
                let mut delegate = json!({"then": "call_again"});
                let given = step.as_object().cloned().unwrap_or_default();
                delegate.as_object_mut().expect("an object").extend(given);
                Json(json!({"delegate": delegate})).into_response()
            }
            None => {
                let found = delegations.iter().map(|done| {
                    let status = done["status"].as_str().unwrap_or_default();
                    format!("{status}: {}", done["content"].as_str().unwrap_or_default())
                });
                Json(json!(found.collect::<Vec<_>>().join(" | "))).into_response()
            }
        },
        "nested" => {
            let levels = args["levels"]
                .as_u64()
                .and_then(|levels| usize::try_from(levels).ok())
                .unwrap_or(0);
            let nested = format!("{}\"a\\u0000b\"{}", "[".repeat(levels), "]".repeat(levels));
            let answer = format!("{{\"content\": \"made\\u0000\", \"artifact\": {nested}}}");
            ([("content-type", "application/json")], answer).into_response()
        }
        "echo" => echo(text("how"), sent),
        // A tool of a service that lists its tools.
        "peek" => Json(json!("seen")).into_response(),
        "note" => Json(json!({"content": "noted", "update": args["update"]})).into_response(),
        _ => (StatusCode::NOT_FOUND, Json(json!({"detail": "no such tool"}))).into_response(),
    }
}

/// Returns what was sent, in each place of an answer that clients or models may see.
fn echo(how: &str, sent: String) -> Response {
    match how {
        "lines" => {
            let line = json!({"custom": [sent], "output": sent}).to_string();
            let last = json!({"content": sent, "artifact": {"sent": sent}}).to_string();
            let kind = [("content-type", "application/x-ndjson")];
            (kind, format!("{line}\n{last}")).into_response()
        }
        "error" => (StatusCode::BAD_REQUEST, sent).into_response(),
        _ => Json(json!({"content": sent, "custom": [sent], "update": {"sent": sent}})).into_response(),
    }
}

/// Lists one tool, as a service of tools does.
async fn list() -> Json<Value> {
    let peek = json!({"name": "peek", "description": "Looks into the run.", "parameters": {"type": "object"}});
    Json(json!({"version": 1, "tools": [peek]}))
}

/// Returns a response of several lines: the first at once, whose progress has `name` if that is a text, the others when
/// the tool is released.
fn progress(state: Arc<ServerState>, name: &Value) -> Response {
    let mut custom = json!({"done": 0.5});
    if name.is_string() {
        custom["name"] = name.clone();
    }
    let first = format!("{}\n", json!({"custom": [custom], "output": "all "}));
    let first = Ok::<_, std::convert::Infallible>(first);
    let rest = async move {
        let mut held = state.held.subscribe();
        held.wait_for(|held| !held.tools.contains("progress"))
            .await
            .expect("the tools are running");
        let rest = "{\"custom\": [\"almost\", 1]}\n{\"output\": \"done\"}\n{\"content\": \"all done\"}\n";
        Ok(rest.to_owned())
    };
    let lines = futures::stream::iter([first]).chain(futures::stream::once(rest));
    ([("content-type", "application/x-ndjson")], Body::from_stream(lines)).into_response()
}
