//! About the server itself.

use axum::Json;
use serde_json::{Value, json};

/// Whether the server is there.
#[utoipa::path(get, path = "/ok", tag = "Server",
    responses((status = 200, description = "It is", body = Value, example = json!({"ok": true, "services": {}}))))]
pub(super) async fn ok() -> Json<Value> {
    Json(json!({"ok": true, "services": {}}))
}

/// What the server is and what it can do.
#[utoipa::path(get, path = "/info", tag = "Server",
    responses((status = 200, description = "Its version and what it can do", body = Value)))]
pub(super) async fn info() -> Json<Value> {
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "server": "adjutant",
        "langgraph_py_version": null,
        "flags": {
            "assistants": true,
            "crons": false,
            "langsmith": false,
            "langsmith_tracing_replicas": false,
            "langsmith_tracing_session_on_runs": false,
        },
        "host": {
            "kind": "self-hosted",
            "project_id": null,
            "host_revision_id": null,
            "revision_id": null,
            "tenant_id": null,
        },
    }))
}
