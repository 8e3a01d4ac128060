//! A tool behind HTTP: the smallest service that an agent can call.
//!
//! ```text
//! cargo run --example tool_server -- 127.0.0.1:9300
//! ```
//!
//! Declare it in `adjutant.toml`:
//!
//! ```toml
//! [tools.lookup]
//! kind = "http"
//! description = "Look a fact up."
//! url = "http://127.0.0.1:9300/tools/lookup"
//! parameters = { type = "object", properties = { query = { type = "string" } }, required = ["query"] }
//! after_crash = "repeat"
//! ```

use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

/// The request body that the server sends for every call. The header `Idempotency-Key` has the id of the call: a
/// service with side effects stores it and performs each call once.
#[derive(Deserialize)]
struct Call {
    args: Value,
    agent_name: String,
    context: Option<Value>,
}

/// Handles a call. The response is the result: a string, or an object with `content`. The model reads any status but
/// 200 as an error.
async fn call(Path(tool): Path<String>, Json(call): Json<Call>) -> (StatusCode, Json<Value>) {
    let args = &call.args;
    let agent = &call.agent_name;
    match tool.as_str() {
        "lookup" => {
            let context = call
                .context
                .map_or_else(|| "None".to_owned(), |context| context.to_string());
            let query = args["query"].as_str().unwrap_or_default();
            (
                StatusCode::OK,
                Json(json!(format!("lookup({query}) by {agent} context={context}"))),
            )
        }
        "send_email" => {
            let to = args["to"].as_str().unwrap_or_default();
            let body = args["body"].as_str().unwrap_or_default();
            (
                StatusCode::OK,
                Json(json!({ "content": format!("sent to {to}: {body}") })),
            )
        }
        _ => (
            StatusCode::NOT_FOUND,
            Json(json!({ "detail": format!("no tool {tool}") })),
        ),
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9300".to_owned());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("tools at http://{address}/tools/");
    axum::serve(listener, Router::new().route("/tools/{tool}", post(call))).await
}
