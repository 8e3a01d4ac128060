//! Runs on a thread: create, wait, stream, join, cancel, delete.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::body_guard::hold_until_sent;
use super::client::ClientId;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, Params, RunPath, Select, ThreadPath, no_content};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::origins;
use super::run_stream::{ChildReader, check_gap, last_event_id, requested_modes, stream_child, stream_request};
use super::stream::{self, MetadataDetail, MetadataDetailHeader, MetadataDetailParameter, StreamRequest};
use super::wait::{self, CancelOnDisconnect, WaitTimes};
use super::wire::child_run::AnyRunView;
use super::wire::run::{COLUMNS, CheckedRun, RunCreate, RunScope, RunView};
use super::wire::server_sent_event::ServerSentEvent;
use super::wire::{json, json_text};
use super::{Api, JsonResult};
use crate::db::runs::RunList;
use crate::db::{runs, threads};
use crate::domain::access::Action;
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};
use crate::domain::run::{Run, RunStatus};
use crate::domain::visibility::Visibility;
use crate::events::After;
use crate::runtime::{AssistantRef, CancelAction, FollowingClient, ResourceRef, RunResponse};

/// Creates a run and returns without waiting for it.
#[utoipa::path(post, path = "/threads/{thread_id}/runs", tag = "Runs", params(ThreadPath, KeyHeader),
    request_body = RunCreate,
    responses((status = 200, description = "The run", body = RunView, headers(("content-location" = String))),
        (status = 400, description = "Two fields cannot be combined", body = ErrorBody),
        (status = 404, description = "Thread, assistant or checkpoint not found", body = ErrorBody),
        (status = 409, description = "The thread is busy or has an open interrupt, or the interrupt of an answer is no longer open", body = ErrorBody)))]
pub(super) async fn create(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    let checked = body.check(RunScope::Thread(path.thread_id), &api.caller)?;
    start_in_background(&api, checked, key, |runs| created_response(runs, run_path)).await
}

/// The response to a request that creates a run: the run and its location.
pub(super) fn created_response(runs: &[Run], path: fn(&Run) -> String) -> StoredResponse {
    let body = runs.first().map(|run| RunView::created(run.clone()));
    // A temporary thread is deleted with its run, but the answer is kept: a repeated request must not start another run.
    let kept = runs.first().filter(|run| !run.request.temporary);
    StoredResponse::Answer {
        status: 200,
        body: json_text(&body),
        location: runs.first().map(path),
        thread: kept.map(|run| run.thread),
    }
}

/// The path of a run.
fn run_path(run: &Run) -> String {
    format!("/threads/{}/runs/{}", run.thread, run.id)
}

/// Creates a run, waits for its end and returns the final values. Newlines keep the connection alive meanwhile.
///
/// A failed run returns 200 with `__error__`; an interrupted run returns its values with `__interrupt__`, a list of its
/// interrupts as streams show them. Several interrupts are returned without the values.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/wait", tag = "Runs", params(ThreadPath, KeyHeader),
    request_body = RunCreate,
    responses((status = 200, description = "The final values", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields cannot be combined", body = ErrorBody),
        (status = 404, description = "Thread, assistant or checkpoint not found", body = ErrorBody),
        (status = 409, description = "The thread is busy or has an open interrupt, or the interrupt of an answer is no longer open", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn wait(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    client: ClientId,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    // Boxed, since the layers around a handler copy its future.
    Box::pin(start_and_wait(api, RunScope::Thread(path.thread_id), client, body, key)).await
}

/// Creates a run and streams its events.
///
/// The first event is `metadata`. The stream ends with the run; if the run fails, the last event is `error`.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/stream", tag = "Runs",
    params(ThreadPath, KeyHeader, MetadataDetailParameter, MetadataDetailHeader),
    request_body = RunCreate,
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream",
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields cannot be combined", body = ErrorBody),
        (status = 404, description = "Thread, assistant or checkpoint not found", body = ErrorBody),
        (status = 409, description = "The thread is busy or has an open interrupt, or the interrupt of an answer is no longer open", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn stream(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    reader: StreamReader,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    start_and_stream(api, RunScope::Thread(path.thread_id), reader, body, key).await
}

/// A run that was started by this request, or by an earlier one with the same idempotency key.
pub(super) struct StartedRun {
    pub(super) run: Run,
    cancel_on_disconnect: bool,
    /// True if an earlier request with the same key started the run.
    pub(super) is_replay: bool,
}

/// Starts a run without waiting for it, and responds with what `response_of` makes of it.
pub(super) async fn start_in_background(
    api: &Api,
    mut checked: CheckedRun,
    key: Option<IdempotencyKey>,
    response_of: RunResponse,
) -> Result<Response, ApiError> {
    check_graph(api, &checked.new_run.assistant)?;
    continue_with_program(api, &mut checked).await?;
    let Some(key) = key else {
        let run = api.runs.start(checked.new_run).await?;
        return Ok(idempotency::response(response_of(&[run])));
    };
    let once = api.runs.start_once(checked.new_run, key, Some(response_of)).await?;
    idempotency::respond(once, |run| idempotency::response(response_of(&[run])))
}

/// Starts a run, or finds the run of an earlier request with the same key.
pub(super) async fn start(
    api: &Api,
    mut checked: CheckedRun,
    key: Option<IdempotencyKey>,
) -> Result<StartedRun, ApiError> {
    check_graph(api, &checked.new_run.assistant)?;
    continue_with_program(api, &mut checked).await?;
    let cancel_on_disconnect = checked.cancel_on_disconnect;
    let Some(key) = key else {
        let run = match cancel_on_disconnect {
            true => api.runs.start_followed(checked.new_run).await?,
            false => api.runs.start(checked.new_run).await?,
        };
        return Ok(StartedRun {
            run,
            cancel_on_disconnect,
            is_replay: false,
        });
    };
    match api.runs.start_once(checked.new_run, key, None).await? {
        IdempotentOutcome::First(run) => Ok(StartedRun {
            run,
            cancel_on_disconnect,
            is_replay: false,
        }),
        IdempotentOutcome::Replayed(StoredResponse::Run { thread, run }) => {
            let found = api.db.read(move |tx| Box::pin(runs::find(tx, thread, run))).await?;
            let run = found.ok_or_else(|| ApiError::not_found("run_not_found"))?;
            // No admission has decided: the thread may be shared with the caller no more, or a policy may hide it now.
            api.check(Action::ThreadsCreateRun, ResourceRef::Thread(thread)).await?;
            Ok(StartedRun {
                run,
                cancel_on_disconnect,
                is_replay: true,
            })
        }
        // The path is part of the key, so the stored response was also of a waiting or streaming endpoint.
        IdempotentOutcome::Replayed(StoredResponse::Answer { .. }) | IdempotentOutcome::KeyReused => {
            Err(ApiError::key_reused())
        }
    }
}

/// Lets the agent of a run continue if it has stopped and the program whose node it is continues: the program sends its
/// input again, and the answers that it was given.
pub(super) async fn continue_with_program(api: &Api, checked: &mut CheckedRun) -> Result<(), ApiError> {
    if let Some(answers) = &checked.program_answers {
        api.interrupts.continue_turn(&mut checked.new_run, answers).await?;
    }
    Ok(())
}

/// Refuses a graph that does not exist, and lists the existing ones.
pub(super) fn check_graph(api: &Api, assistant: &AssistantRef) -> Result<(), ApiError> {
    let AssistantRef::Graph(graph) = assistant else {
        return Ok(());
    };
    let tenant = &api.caller.tenant;
    if api.assistants.has_graph(tenant, graph) {
        return Ok(());
    }
    // An agent that only other tenants have is refused like one that does not exist, but that is recorded.
    drop(api.check_agent(Action::ThreadsCreateRun, graph));
    let known = api.assistants.default_assistants(tenant);
    Err(ApiError::no_graph(
        graph,
        known.iter().map(|card| card.graph_id.as_str()),
    ))
}

/// Starts a run and responds with its final values.
pub(super) async fn start_and_wait(
    api: Api,
    scope: RunScope,
    client: ClientId,
    body: RunCreate,
    key: Option<IdempotencyKey>,
) -> Result<Response, ApiError> {
    let checked = body.check(scope, &api.caller)?;
    let permit = api.open_stream(scope.thread(), client)?;
    let StartedRun {
        run,
        cancel_on_disconnect,
        is_replay,
    } = start(&api, checked, key).await?;
    let headers = location_headers(&run, Some("join"));
    let guard = CancelOnDisconnect::new(cancel_on_disconnect, &api.runs, &run);
    let times = WaitTimes::of(&api.settings);
    let result = Box::pin(wait::run_result(api, run));
    let response = (headers, wait::respond_when_done(result, times, guard).await).into_response();
    Ok(permit.hold(mark_if_replayed(response, is_replay)))
}

/// The reader of a run's stream.
#[derive(FromRequestParts)]
pub(super) struct StreamReader {
    client: ClientId,
    detail: MetadataDetail,
}

/// Starts a run and responds with its events.
pub(super) async fn start_and_stream(
    api: Api,
    scope: RunScope,
    reader: StreamReader,
    body: RunCreate,
    key: Option<IdempotencyKey>,
) -> Result<Response, ApiError> {
    let checked = body.check(scope, &api.caller)?;
    let permit = api.open_stream(scope.thread(), reader.client)?;
    let started = start(&api, checked, key).await?;
    let mut headers = location_headers(&started.run, Some("stream"));
    if scope == RunScope::Stateless
        && let Ok(path) = HeaderValue::from_str(&short_run_path(&started.run))
    {
        headers.insert(header::CONTENT_LOCATION, path);
    }
    let request = StreamRequest {
        detail: reader.detail,
        ..stream_request(&api, &started.run, started.cancel_on_disconnect)
    };
    let tail = api.events.tail(&started.run, After::Start);
    let response = stream::stream_run(api.events.clone(), tail, request);
    Ok(permit.hold((headers, mark_if_replayed(response, started.is_replay)).into_response()))
}

/// Marks a response to a repeated request.
pub(super) fn mark_if_replayed(response: Response, is_replay: bool) -> Response {
    if is_replay {
        idempotency::mark_replayed(response)
    } else {
        response
    }
}

/// The path of a run without its thread.
pub(super) fn short_run_path(run: &Run) -> String {
    format!("/runs/{}", run.id)
}

/// The header `Content-Location` with the run, and `Location` with the endpoint (`join`, `stream`) that continues the
/// response.
pub(super) fn location_headers(run: &Run, tail: Option<&str>) -> HeaderMap {
    let path = run_path(run);
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(header::CONTENT_LOCATION, &path);
    if let Some(tail) = tail {
        put(header::LOCATION, &format!("{path}/{tail}"));
    }
    headers
}

/// Lists the runs of a thread, newest first.
///
/// If a page would exceed the maximum response size, it has fewer items than `limit`, and `x-pagination-next` holds the
/// `offset` of the first item that was left out.
#[utoipa::path(get, path = "/threads/{thread_id}/runs", tag = "Runs",
    params(ThreadPath,
        ("limit" = Option<u32>, Query, description = "The maximum number of items; 10 by default"),
        ("offset" = Option<u32>, Query, description = "The number of items to skip"),
        ("status" = Option<String>, Query, description = "The status of the runs"),
        ("select" = Option<Vec<String>>, Query, description = "The columns to return")),
    responses((status = 200, description = "The runs", body = Vec<RunView>, headers(("x-pagination-next" = u64))),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn list(api: Api, ApiPath(path): ApiPath<ThreadPath>, params: Params) -> Result<Response, ApiError> {
    let thread = path.thread_id;
    let page = params.page(10)?;
    let status = params.word(
        "status",
        None,
        RunStatus::ALL.map(|status| (status.word(), Some(status))),
    )?;
    let select = Select::checked(params.texts("select"), &COLUMNS)?;
    let permit = api.answer_permit().await?;
    let bytes = api.answers.bytes();
    let query = RunList {
        thread,
        status,
        limit: page.limit.into(),
        offset: page.offset.into(),
        bytes,
    };
    let read = api.search(move |tx| {
        Box::pin(async move {
            if threads::find(tx, thread).await?.is_none() {
                return Ok(None);
            }
            runs::list(tx, &query).await.map(Some)
        })
    });
    let found = read.await?.ok_or_else(|| ApiError::no_thread(thread))?;
    permit.page(page, None, found, |run| {
        (run.lineage.visibility > Visibility::Hidden).then(|| select.pick(json(&RunView::from(run))))
    })
}

/// Shows a run of the main agent or of a subagent.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The run", body = AnyRunView),
        (status = 404, description = "Thread or run not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<RunPath>) -> JsonResult<AnyRunView> {
    let run = find(&api, path).await?;
    let root = run.lineage.root;
    let used = api
        .db
        .read(move |tx| Box::pin(runs::usages_with_background(tx, root)))
        .await?;
    Ok(Json(AnyRunView::of(run, &used)))
}

/// Finds the run of a path.
pub(super) async fn find(api: &Api, path: RunPath) -> Result<Run, ApiError> {
    let RunPath { thread_id, run_id } = path;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let run = runs::find(tx, thread_id, run_id).await?;
            Ok((threads::find(tx, thread_id).await?.is_some(), run))
        })
    });
    let (is_thread, run) = read.await?;
    let missing = || {
        if is_thread {
            ApiError::not_found("run_not_found")
        } else {
            ApiError::no_thread(thread_id)
        }
    };
    run.filter(|run| run.lineage.visibility > Visibility::Hidden)
        .ok_or_else(missing)
}

/// Deletes a run and the runs of its subagents. An active run is cancelled first.
///
/// A run that waits for an answer, itself or in a subagent, cannot be deleted, nor one whose work another active run
/// continues. Runs of subagents from which the thread continues stay.
#[utoipa::path(delete, path = "/threads/{thread_id}/runs/{run_id}", tag = "Runs", params(RunPath),
    responses((status = 204, description = "The run is deleted"),
        (status = 404, description = "Run not found", body = ErrorBody),
        (status = 409, description = "The run has an open interrupt, or another active run continues its work", body = ErrorBody)))]
pub(super) async fn delete(api: Api, ApiPath(path): ApiPath<RunPath>) -> Result<Response, ApiError> {
    api.runs.delete_run(path.thread_id, path.run_id).await?;
    Ok(no_content())
}

/// A request to join a run that was started earlier.
#[derive(FromRequestParts)]
pub(super) struct JoinRequest {
    path: ApiPath<RunPath>,
    params: Params,
    headers: HeaderMap,
    client: ClientId,
}

impl JoinRequest {
    /// Returns true if the client wants the run cancelled when it disconnects. Such a GET changes data: callers who may
    /// only read the thread are refused, and so are foreign pages, since a browser would send it for any link.
    async fn cancel_on_disconnect(&self, api: &Api) -> Result<bool, ApiError> {
        let is_wanted = self.params.flag("cancel_on_disconnect")?;
        if is_wanted {
            origins::check_read_with_effect(&api.settings.cors.origins, &self.headers)?;
            let thread = self.path.0.thread_id;
            api.check_and_record(Action::ThreadsUpdate, ResourceRef::Thread(thread), thread)
                .await?;
        }
        Ok(is_wanted)
    }

    /// Notes that the client follows the run, until the follower is dropped. Such a GET changes data, too, so it is not noted
    /// for foreign pages.
    async fn note_follower(&self, api: &Api, run: &Run) -> Result<Option<FollowingClient>, ApiError> {
        match origins::check_read_with_effect(&api.settings.cors.origins, &self.headers) {
            Ok(()) => Ok(api.runs.follow(run).await?),
            Err(_) => Ok(None),
        }
    }
}

/// Waits for the end of a run and returns the thread's values, `__interrupt__` or `__error__`; for a child run, the
/// subagent's values.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/join", tag = "Runs",
    params(RunPath, ("cancel_on_disconnect" = Option<bool>, Query, description = "Whether the run is cancelled if the client disconnects")),
    responses((status = 200, description = "The final values", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 403, description = "A page of a foreign origin requests `cancel_on_disconnect`", body = ErrorBody),
        (status = 404, description = "Thread or run not found", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn join(api: Api, request: JoinRequest) -> Result<Response, ApiError> {
    let cancel_on_disconnect = request.cancel_on_disconnect(&api).await?;
    let run = find(&api, request.path.0).await?;
    let follower = request.note_follower(&api, &run).await?;
    let permit = api.open_stream(Some(run.thread), request.client)?;
    let guard = CancelOnDisconnect::new(cancel_on_disconnect, &api.runs, &run);
    let headers = location_headers(&run, Some("join"));
    let times = WaitTimes::of(&api.settings);
    let response = wait::respond_when_done(Box::pin(wait::join_run(api, run)), times, guard).await;
    let response = (headers, response).into_response();
    Ok(permit.hold(hold_until_sent(response, follower)))
}

/// Streams the events of a run.
///
/// A run that was created with `stream_resumable` can be resumed after any event, named by `Last-Event-ID`; `-1` starts
/// at the beginning. Without the header, only new events are sent. The stream of a child run contains its own events
/// and those of the runs below it, under its namespace.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/stream", tag = "Runs",
    params(RunPath,
        ("stream_mode" = Option<String>, Query, description = "A mode of the run, or a JSON array of modes"),
        ("cancel_on_disconnect" = Option<bool>, Query, description = "Whether the run is cancelled if the client disconnects"),
        ("last-event-id" = Option<String>, Header, description = "The id of the last event that the client has received"),
        MetadataDetailParameter, MetadataDetailHeader),
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream",
            headers(("location" = String), ("content-location" = String))),
        (status = 403, description = "A page of a foreign origin requests `cancel_on_disconnect`", body = ErrorBody),
        (status = 404, description = "Thread or run not found", body = ErrorBody),
        (status = 409, description = "The log no longer contains the last event", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn join_stream(api: Api, request: JoinRequest, detail: MetadataDetail) -> Result<Response, ApiError> {
    let filter = requested_modes(&request.params)?;
    let cancel_on_disconnect = request.cancel_on_disconnect(&api).await?;
    let resume_from = last_event_id(&request.headers)?;
    let run = find(&api, request.path.0).await?;
    let follower = request.note_follower(&api, &run).await?;
    let resume_from = resume_from.filter(|_| run.lineage.depth > 0 || run.request.stream_resumable);
    check_gap(&api, run.thread, resume_from.as_ref()).await?;
    let permit = api.open_stream(Some(run.thread), request.client)?;
    if run.lineage.depth > 0 {
        let reader = ChildReader {
            resume_from,
            filter,
            detail,
            cancel_on_disconnect,
        };
        let answer = stream_child(&api, &run, reader).await?;
        let response = (location_headers(&run, Some("stream")), answer).into_response();
        return Ok(permit.hold(hold_until_sent(response, follower)));
    }
    let after = if resume_from.is_some() {
        After::Start
    } else {
        After::Now
    };
    let request = StreamRequest {
        resume_from,
        filter,
        detail,
        ..stream_request(&api, &run, cancel_on_disconnect)
    };
    let answer = stream::stream_run(api.events.clone(), api.events.tail(&run, after), request);
    let response = (location_headers(&run, Some("stream")), answer).into_response();
    Ok(permit.hold(hold_until_sent(response, follower)))
}

/// Cancels a run and all runs below it. `action=rollback` also undoes its changes and deletes it.
///
/// The caller of a cancelled child run gets an error result and continues, as do the other child runs. A child run
/// cannot be rolled back. A rollback needs the right to delete the thread.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/{run_id}/cancel", tag = "Runs",
    params(RunPath,
        ("wait" = Option<bool>, Query, description = "Whether to wait until the run has ended"),
        ("action" = Option<String>, Query, description = "interrupt (changes are kept, the default) or rollback")),
    responses((status = 200, description = "The run was cancelled", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 202, description = "The run is being cancelled"),
        (status = 404, description = "Run not found, or it has ended", body = ErrorBody),
        (status = 422, description = "A child run cannot be rolled back", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn cancel(
    api: Api,
    ApiPath(path): ApiPath<RunPath>,
    params: Params,
    client: ClientId,
) -> Result<Response, ApiError> {
    let action = cancel_action(&params)?;
    let wait = params.flag("wait")?;
    let RunPath { thread_id, run_id } = path;
    if action == CancelAction::Rollback {
        api.check(Action::ThreadsDelete, ResourceRef::Thread(thread_id)).await?;
    }
    let permit = if wait {
        Some(api.open_stream(Some(thread_id), client)?)
    } else {
        None
    };
    let read = api
        .db
        .read(move |tx| Box::pin(runs::find(tx, thread_id, run_id)))
        .await?;
    if read
        .as_ref()
        .is_some_and(|run| run.lineage.visibility == Visibility::Hidden)
    {
        return Err(ApiError::not_found("run_not_found"));
    }
    api.runs.cancel(thread_id, run_id, action).await?;
    let (Some(run), Some(permit)) = (read, permit) else {
        return Ok(StatusCode::ACCEPTED.into_response());
    };
    let headers = location_headers(&run, Some("join"));
    let times = WaitTimes::of(&api.settings);
    let end = Box::pin(async move {
        wait::wait_for_end(&api, &run).await?;
        Ok::<_, ApiError>(serde_json::json!({}))
    });
    let response = wait::respond_when_done(end, times, CancelOnDisconnect::default()).await;
    Ok(permit.hold((headers, response).into_response()))
}

/// The action of a cancel request.
pub(super) fn cancel_action(params: &Params) -> Result<CancelAction, ApiError> {
    let words = [
        ("interrupt", CancelAction::Interrupt),
        ("rollback", CancelAction::Rollback),
    ];
    params.word("action", CancelAction::Interrupt, words)
}
