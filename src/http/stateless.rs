//! Runs that bring their own thread, and runs named without one.

use axum::extract::State;
use axum::response::Response;

use super::Api;
use super::client::ClientId;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiList, Params, no_content};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::runs::{action, check_graph, leave, short_place, shown, start_and_stream, start_and_wait, thread_of};
use super::wire::run::{MAX_BATCH, RunCreate, RunScope, RunView, RunsCancel};
use super::wire::server_sent_event::ServerSentEvent;
use super::wire::word;
use crate::domain::Invalid;
use crate::domain::id::RunId;
use crate::domain::idempotency::StoredResponse;
use crate::domain::run::Run;
use crate::runtime::{CancelAction, CancelError};

/// Starts a run on a thread of its own and does not wait for it.
#[utoipa::path(post, path = "/runs", tag = "Stateless runs", request_body = RunCreate,
    params(KeyHeader),
    responses((status = 200, description = "The run", body = RunView, headers(("content-location" = String))),
        (status = 400, description = "Two fields exclude each other, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "There is no such assistant", body = ErrorBody)))]
pub(super) async fn create(
    State(api): State<Api>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    leave(&api, body.check(RunScope::Stateless)?, key, |runs| {
        shown(runs, short_place)
    })
    .await
}

/// Starts a run on a thread of its own and answers with its last values, as on a thread.
#[utoipa::path(post, path = "/runs/wait", tag = "Stateless runs", request_body = RunCreate,
    params(KeyHeader),
    responses((status = 200, description = "The last values", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields exclude each other, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "There is no such assistant", body = ErrorBody),
        (status = 429, description = "The thread or the client has too many open streams", body = ErrorBody)))]
pub(super) async fn wait(
    State(api): State<Api>,
    client: ClientId,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    start_and_wait(api, RunScope::Stateless, client, body, key).await
}

/// Starts a run on a thread of its own and streams its events, as on a thread.
#[utoipa::path(post, path = "/runs/stream", tag = "Stateless runs", request_body = RunCreate,
    params(KeyHeader),
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream",
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields exclude each other, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "There is no such assistant", body = ErrorBody),
        (status = 429, description = "The thread or the client has too many open streams", body = ErrorBody)))]
pub(super) async fn stream(
    State(api): State<Api>,
    client: ClientId,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    start_and_stream(api, RunScope::Stateless, client, body, key).await
}

/// Starts several runs, each on a thread of its own, and waits for none of them. All of them are started, or none.
#[utoipa::path(post, path = "/runs/batch", tag = "Stateless runs", request_body = Vec<RunCreate>,
    params(KeyHeader),
    responses((status = 200, description = "The runs, in the order of the requests", body = Vec<RunView>),
        (status = 400, description = "Two fields exclude each other, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "There is no such assistant", body = ErrorBody)))]
pub(super) async fn batch(
    State(api): State<Api>,
    Idempotent(key, ApiList(bodies)): Idempotent<ApiList<RunCreate>>,
) -> Result<Response, ApiError> {
    if bodies.is_empty() || bodies.len() > MAX_BATCH {
        return Err(Invalid::new("body", format!("must be a list of 1 to {MAX_BATCH} requests")).into());
    }
    let mut wishes = vec![];
    for (at, body) in bodies.into_iter().enumerate() {
        let wish = body.check(RunScope::Stateless).map_err(|error| error.of_item(at))?.wish;
        check_graph(&api, &wish.assistant).map_err(|error| error.of_item(at))?;
        wishes.push(wish);
    }
    let started = api.runs.start_all(wishes, key, shown_all).await;
    let once = started.map_err(|refused| ApiError::from(refused.error).of_item(refused.at))?;
    idempotency::answer(once, |runs| idempotency::shown(shown_all(&runs)))
}

fn shown_all(runs: &[Run]) -> StoredResponse {
    let runs: Vec<RunView> = runs.iter().cloned().map(RunView::just_made).collect();
    idempotency::kept(&runs)
}

/// Stops several runs: some of a thread, or all that wait, that are at work, or both.
#[utoipa::path(post, path = "/runs/cancel", tag = "Stateless runs", request_body = RunsCancel,
    params(("action" = Option<String>, Query, description = "interrupt (their work stays) or rollback")),
    responses((status = 204, description = "The runs that had not ended are being stopped"),
        (status = 404, description = "There was no run to stop", body = ErrorBody)))]
pub(super) async fn cancel(
    State(api): State<Api>,
    params: Params,
    ApiJson(body): ApiJson<RunsCancel>,
) -> Result<Response, ApiError> {
    let action = action(&params)?;
    let status = word(
        "status",
        body.status.as_deref(),
        &[
            ("pending", (true, false)),
            ("running", (false, true)),
            ("all", (true, true)),
        ],
    )?;
    let stopped = match (status, &body.thread_id, &body.run_ids) {
        (Some((pending, running)), None, None) => api.runs.cancel_all(pending, running, action).await?,
        (None, Some(thread), Some(ids)) => cancel_some(&api, thread, ids, action).await?,
        (Some(_), _, _) => {
            return Err(Invalid::new("status", "must not come together with thread_id and run_ids").into());
        }
        (None, _, _) => return Err(Invalid::new("body", "must have thread_id and run_ids, or status").into()),
    };
    if stopped {
        Ok(no_content())
    } else {
        Err(CancelError::NoRun.into())
    }
}

/// Stops these runs of a thread. False if there were none to stop.
async fn cancel_some(api: &Api, thread: &str, ids: &[String], action: CancelAction) -> Result<bool, ApiError> {
    if ids.len() > MAX_BATCH {
        return Err(Invalid::new("run_ids", format!("names more than {MAX_BATCH} runs")).into());
    }
    let thread = thread_of(thread)?;
    let ids = ids
        .iter()
        .map(|id| id.parse().map_err(|_| ApiError::bad_id("run")))
        .collect::<Result<Vec<RunId>, _>>()?;
    let mut stopped_any = false;
    for id in ids {
        match api.runs.cancel(thread, id, action).await {
            Ok(()) => stopped_any = true,
            Err(CancelError::NoRun | CancelError::Over) => {}
            Err(error @ (CancelError::NoUndo | CancelError::Fault(_))) => return Err(error.into()),
        }
    }
    Ok(stopped_any)
}
