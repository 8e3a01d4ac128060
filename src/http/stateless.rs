//! Stateless runs, and cancelling several runs.

use axum::response::Response;

use super::Api;
use super::client::ClientId;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiList, Params, no_content};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::runs::{
    StreamReader, cancel_action, check_graph, created_response, short_run_path, start_and_stream, start_and_wait,
    start_in_background,
};
use super::stream::{MetadataDetailHeader, MetadataDetailParameter};
use super::wire::run::{MAX_BATCH, RunCreate, RunScope, RunView, RunsCancel};
use super::wire::server_sent_event::ServerSentEvent;
use super::wire::{read_id, word};
use crate::domain::Invalid;
use crate::domain::access::Action;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::idempotency::StoredResponse;
use crate::domain::run::Run;
use crate::runtime::{CancelAction, CancelError, ResourceRef};

/// Creates a run on a new thread and returns without waiting for it.
#[utoipa::path(post, path = "/runs", tag = "Stateless runs", request_body = RunCreate,
    params(KeyHeader),
    responses((status = 200, description = "The run", body = RunView, headers(("content-location" = String))),
        (status = 400, description = "Two fields cannot be combined, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "Assistant not found", body = ErrorBody)))]
pub(super) async fn create(
    api: Api,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    start_in_background(&api, body.check(RunScope::Stateless, &api.caller)?, key, |runs| {
        created_response(runs, short_run_path)
    })
    .await
}

/// Creates a run on a new thread, waits for its end and returns the final values.
#[utoipa::path(post, path = "/runs/wait", tag = "Stateless runs", request_body = RunCreate,
    params(KeyHeader),
    responses((status = 200, description = "The final values", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields cannot be combined, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "Assistant not found", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn wait(
    api: Api,
    client: ClientId,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    // Boxed, since the layers around a handler copy its future.
    Box::pin(start_and_wait(api, RunScope::Stateless, client, body, key)).await
}

/// Creates a run on a new thread and streams its events.
#[utoipa::path(post, path = "/runs/stream", tag = "Stateless runs", request_body = RunCreate,
    params(KeyHeader, MetadataDetailParameter, MetadataDetailHeader),
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream",
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields cannot be combined, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "Assistant not found", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn stream(
    api: Api,
    reader: StreamReader,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    start_and_stream(api, RunScope::Stateless, reader, body, key).await
}

/// Creates several runs, each on a new thread, without waiting for them. Either all are created or none.
#[utoipa::path(post, path = "/runs/batch", tag = "Stateless runs", request_body = Vec<RunCreate>,
    params(KeyHeader),
    responses((status = 200, description = "The runs, in the order of the requests", body = Vec<RunView>),
        (status = 400, description = "Two fields cannot be combined, or a resume names no thread", body = ErrorBody),
        (status = 404, description = "Assistant not found", body = ErrorBody)))]
pub(super) async fn batch(
    api: Api,
    Idempotent(key, ApiList(bodies)): Idempotent<ApiList<RunCreate>>,
) -> Result<Response, ApiError> {
    if bodies.is_empty() || bodies.len() > MAX_BATCH {
        return Err(Invalid::new("body", format!("must be a list of 1 to {MAX_BATCH} requests")).into());
    }
    let mut new_runs = vec![];
    for (at, body) in bodies.into_iter().enumerate() {
        let new_run = body
            .check(RunScope::Stateless, &api.caller)
            .map_err(|error| error.of_item(at))?
            .new_run;
        check_graph(&api, &new_run.assistant).map_err(|error| error.of_item(at))?;
        new_runs.push(new_run);
    }
    let started = api.runs.start_all(new_runs, key, batch_response).await;
    let once = started.map_err(|refused| ApiError::from(refused.error).of_item(refused.at))?;
    idempotency::respond(once, |runs| idempotency::response(batch_response(&runs)))
}

fn batch_response(runs: &[Run]) -> StoredResponse {
    let runs: Vec<RunView> = runs.iter().cloned().map(RunView::created).collect();
    idempotency::stored_response(&runs, None)
}

/// Cancels several runs: listed runs of a thread, or all runs of a status.
#[utoipa::path(post, path = "/runs/cancel", tag = "Stateless runs", request_body = RunsCancel,
    params(("action" = Option<String>, Query, description = "interrupt (changes are kept, the default) or rollback")),
    responses((status = 204, description = "The active and queued runs are being cancelled"),
        (status = 404, description = "No run to cancel", body = ErrorBody)))]
pub(super) async fn cancel(api: Api, params: Params, ApiJson(body): ApiJson<RunsCancel>) -> Result<Response, ApiError> {
    let action = cancel_action(&params)?;
    let status = word(
        "status",
        body.status.as_deref(),
        &[
            ("pending", (true, false)),
            ("running", (false, true)),
            ("all", (true, true)),
        ],
    )?;
    let any_cancelled = match (status, &body.thread_id, &body.run_ids) {
        (Some((pending, running)), None, None) => {
            let scope = match action {
                CancelAction::Interrupt => api.scope(Action::ThreadsUpdate),
                // A rollback deletes runs.
                CancelAction::Rollback => {
                    api.check(Action::ThreadsDelete, ResourceRef::Collection).await?;
                    api.scope(Action::ThreadsDelete)
                }
            };
            api.runs.cancel_all(scope, pending, running, action).await?
        }
        (None, Some(thread), Some(ids)) => cancel_listed(&api, thread, ids, action).await?,
        (Some(_), _, _) => {
            return Err(Invalid::new("status", "cannot be combined with thread_id and run_ids").into());
        }
        (None, _, _) => return Err(Invalid::new("body", "must have thread_id and run_ids, or status").into()),
    };
    if any_cancelled {
        Ok(no_content())
    } else {
        Err(CancelError::NoRun.into())
    }
}

/// Cancels the listed runs of a thread. False if none of them could be cancelled.
async fn cancel_listed(api: &Api, thread: &str, ids: &[String], action: CancelAction) -> Result<bool, ApiError> {
    if ids.len() > MAX_BATCH {
        return Err(Invalid::new("run_ids", format!("names more than {MAX_BATCH} runs")).into());
    }
    let thread: ThreadId = read_id(thread, "thread")?;
    // The entry of the request does not name the thread.
    let resource = ResourceRef::Thread(thread);
    api.check_and_record(Action::ThreadsUpdate, resource, thread).await?;
    if action == CancelAction::Rollback {
        api.check(Action::ThreadsDelete, resource).await?;
    }
    let ids = ids
        .iter()
        .map(|id| read_id(id, "run"))
        .collect::<Result<Vec<RunId>, _>>()?;
    let mut any_cancelled = false;
    for id in ids {
        match api.runs.cancel(thread, id, action).await {
            Ok(()) => any_cancelled = true,
            Err(CancelError::NoRun | CancelError::Over) => {}
            Err(error @ (CancelError::NoUndo | CancelError::Fault(_))) => return Err(error.into()),
        }
    }
    Ok(any_cancelled)
}
