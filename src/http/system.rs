//! Endpoints about the server itself: health, version, metrics.

use std::time::Duration;

use axum::Json;
use axum::http::header::{self, HeaderMap};
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::{Value, json};

use super::Api;
use super::console;
use super::error::{ApiError, ErrorBody};
use super::extract::Params;
use crate::db::{self, RowAccess, warn_of};
use crate::metrics::{Backlog, samples};

/// Shows the addresses of the server's parts, and the console to browsers.
///
/// Without the console, a browser is redirected to the API document.
#[utoipa::path(get, path = "/", tag = "Server",
    responses((status = 200, description = "The addresses of the server's parts, or, for browsers, the console",
            content((Value = "application/json"), (String = "text/html"))),
        (status = 307, description = "With `[server] console = false`: redirects browsers to the API document")))]
pub(super) async fn root(api: Api, headers: HeaderMap) -> Result<Response, ApiError> {
    let accepted = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    if accepted.contains("text/html") {
        return match api.settings.console {
            true => console::index(&headers).await,
            false => Ok(Redirect::temporary("/docs").into_response()),
        };
    }
    let mut links = json!({
        "server": "adjutant",
        "version": env!("CARGO_PKG_VERSION"),
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/ok",
        "ready": "/ready",
        "info": "/info",
        "metrics": "/metrics",
        "assistants": "/assistants/search",
        "threads": "/threads",
    });
    if api.settings.console {
        links["console"] = json!("/console");
    }
    Ok(([(header::VARY, "accept")], Json(links)).into_response())
}

/// Checks that the server is up; with `check_db`, also that the database can be written to.
#[utoipa::path(get, path = "/ok", tag = "Server",
    params(("check_db" = Option<bool>, Query, description = "Whether to test a write to the database")),
    responses((status = 200, description = "The server is up", body = Value, example = json!({"ok": true, "services": {}})),
        (status = 503, description = "The database cannot be written to", body = ErrorBody)))]
pub(super) async fn ok(api: Api, params: Params) -> Result<Json<Value>, ApiError> {
    if params.flag("check_db")? {
        // A row is really written: a disk that is full lets an empty transaction pass.
        let now = api.clock.now();
        let write = api
            .db
            .write(move |tx| Box::pin(async move { db::workers::probe(tx, now).await }));
        // The page is public, and the row belongs to the server.
        api.write_check().run(|| RowAccess::Server.scope(write)).await?;
    }
    Ok(Json(json!({"ok": true, "services": {}})))
}

/// Checks that the server takes requests: it is not about to stop, its database answers, and its disk takes writes.
///
/// For load balancers. `GET /ok` says whether the process works at all.
#[utoipa::path(get, path = "/ready", tag = "Server",
    responses((status = 200, description = "The server takes requests", body = Value, example = json!({"ready": true})),
        (status = 503, description = "The server is about to stop, or its database does not answer or takes no writes", body = ErrorBody)))]
pub(super) async fn ready(api: Api) -> Result<Json<Value>, ApiError> {
    if api.events.is_shutting_down() {
        return Err(ApiError::not_ready("The server is about to stop."));
    }
    if !api.db.disk_takes_writes() {
        return Err(ApiError::not_ready("The disk of the database takes no writes."));
    }
    let read = api.db.read(|tx| Box::pin(db::workers::ping(tx)));
    // The page is public, and nothing of a tenant is read.
    let check = api.read_check().run(|| RowAccess::Server.scope(read));
    let answered = tokio::time::timeout(READY_TIMEOUT, check).await;
    match answered {
        Ok(Ok(())) => Ok(Json(json!({"ready": true}))),
        Ok(Err(error)) => {
            warn_of!(error, "not ready: the database cannot be read");
            Err(ApiError::not_ready("The database cannot be read."))
        }
        Err(_) => {
            // The listener logs why. A load balancer asks again every few seconds.
            tracing::debug!("not ready: the database does not answer");
            Err(ApiError::not_ready("The database does not answer."))
        }
    }
}

/// Shows the version of the server and its features.
#[utoipa::path(get, path = "/info", tag = "Server",
    responses((status = 200, description = "The version and the features", body = Value)))]
pub(super) async fn info() -> Json<Value> {
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "server": "adjutant",
        "langgraph_py_version": null,
        "flags": {
            "assistants": true,
            "crons": true,
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

/// The output format of `GET /metrics`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Prometheus,
    Json,
}

/// Shows the metrics of the server: runs, queue, streams, requests, models and tools.
///
/// The default is the Prometheus text format; `format=json` selects JSON.
#[utoipa::path(get, path = "/metrics", tag = "Server",
    params(("format" = Option<String>, Query, description = "`prometheus` (default) or `json`")),
    responses((status = 200, description = "The metrics",
        content((String = "text/plain"), (Value = "application/json")))))]
pub(super) async fn metrics(api: Api, params: Params, headers: HeaderMap) -> Result<Response, ApiError> {
    let formats = [("prometheus", Format::Prometheus), ("json", Format::Json)];
    let format = params.word("format", Format::Prometheus, formats)?;
    // The metrics of the process are shown even if the database fails: that is when an operator looks at them.
    let backlog = match tokio::time::timeout(BACKLOG_TIMEOUT, api.runs.backlog()).await {
        Ok(backlog) => backlog
            .inspect_err(|error| warn_of!(error, "could not read the queue metrics"))
            .ok(),
        Err(_) => {
            tracing::warn!("could not read the queue metrics: the database does not answer");
            None
        }
    };
    let text = api.metrics.text(backlog.as_ref());
    if format == Format::Json {
        return Ok(Json(as_json(backlog.as_ref(), &text)).into_response());
    }
    let accepted = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    let kind = if accepted.contains("application/openmetrics-text") {
        OPEN_METRICS
    } else {
        PLAIN
    };
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// The longest time to wait for the database to say that it is there.
const READY_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time to wait for the database to count the queue.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(1);
const PLAIN: &str = "text/plain; version=1.0.0; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics as JSON: the fields that LangGraph dashboards read, then all others.
fn as_json(backlog: Option<&Backlog>, text: &str) -> Value {
    json!({
        "queue": {
            "n_pending": backlog.map(|b| b.queued),
            "n_running": backlog.map(|b| b.running),
            "pending_runs_wait_time_max_secs": backlog.map(|b| b.oldest.as_secs_f64()),
        },
        "workers": {
            "max": backlog.map(|b| b.slots),
            "active": backlog.map(|b| b.at_work),
            "available": backlog.map(|b| b.slots.saturating_sub(b.at_work)),
        },
        "metrics": samples(text),
    })
}
