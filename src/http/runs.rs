//! Runs on a thread: starting them, following them, stopping them.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::client::ClientId;
use super::error::{ApiError, ErrorBody, Gap};
use super::extract::{ApiJson, ApiPath, Params, RunPath, Select, ThreadPath, no_content};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::origins;
use super::stream::{self, ResumePoint, RunInfo, StreamMode, StreamRequest};
use super::subagents;
use super::waiting::{self, CancelOnDisconnect};
use super::wire::child::AnyRunView;
use super::wire::json;
use super::wire::run::{COLUMNS, CheckedRun, RunCreate, RunScope, RunView};
use super::wire::server_sent_event::ServerSentEvent;
use super::{Api, JsonResult};
use crate::db::runs::RunList;
use crate::db::{runs, threads};
use crate::domain::id::ThreadId;
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};
use crate::domain::run::{Run, RunStatus};
use crate::domain::visibility::Visibility;
use crate::events::After;
use crate::runtime::{AssistantRef, CancelAction, RunResponse};

/// Starts a run and does not wait for it.
#[utoipa::path(post, path = "/threads/{thread_id}/runs", tag = "Runs", params(ThreadPath, KeyHeader),
    request_body = RunCreate,
    responses((status = 200, description = "The run", body = RunView, headers(("content-location" = String))),
        (status = 400, description = "Two fields exclude each other", body = ErrorBody),
        (status = 404, description = "There is no such thread, assistant or checkpoint", body = ErrorBody),
        (status = 409, description = "The thread is busy, or waits for an answer", body = ErrorBody)))]
pub(super) async fn create(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    leave(&api, body.check(RunScope::Thread(path.thread_id))?, key, |runs| {
        shown(runs, place)
    })
    .await
}

/// The answer to who does not wait for a run: the run, and its place.
pub(super) fn shown(runs: &[Run], place: fn(&Run) -> String) -> StoredResponse {
    let body = runs
        .first()
        .map(|run| json(&RunView::just_made(run.clone())))
        .unwrap_or_default();
    StoredResponse::Answer {
        status: 200,
        body: body.to_string(),
        location: runs.first().map(place),
    }
}

/// Where a run is.
fn place(run: &Run) -> String {
    format!("/threads/{}/runs/{}", run.thread, run.id)
}

/// Starts a run and answers with its last values. Newlines come before the answer while it lasts.
///
/// A run that fails answers 200 with `__error__`; one that asks a human, with its values and `__interrupt__`.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/wait", tag = "Runs", params(ThreadPath, KeyHeader),
    request_body = RunCreate,
    responses((status = 200, description = "The last values", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields exclude each other", body = ErrorBody),
        (status = 404, description = "There is no such thread, assistant or checkpoint", body = ErrorBody),
        (status = 409, description = "The thread is busy, or waits for an answer", body = ErrorBody),
        (status = 429, description = "The thread or the client has too many open streams", body = ErrorBody)))]
pub(super) async fn wait(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    client: ClientId,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    start_and_wait(api, RunScope::Thread(path.thread_id), client, body, key).await
}

/// Starts a run and streams its events.
///
/// The first event is `metadata`. The stream ends with the run; if it fails, the last event is `error`.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/stream", tag = "Runs", params(ThreadPath, KeyHeader),
    request_body = RunCreate,
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream",
            headers(("location" = String), ("content-location" = String))),
        (status = 400, description = "Two fields exclude each other", body = ErrorBody),
        (status = 404, description = "There is no such thread, assistant or checkpoint", body = ErrorBody),
        (status = 409, description = "The thread is busy, or waits for an answer", body = ErrorBody),
        (status = 429, description = "The thread or the client has too many open streams", body = ErrorBody)))]
pub(super) async fn stream(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    client: ClientId,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<RunCreate>>,
) -> Result<Response, ApiError> {
    start_and_stream(api, RunScope::Thread(path.thread_id), client, body, key).await
}

/// A run that was started by a request, now or by an earlier one under the same key.
struct StartedRun {
    run: Run,
    cancel_on_disconnect: bool,
    /// Whether an earlier request under the same key began it.
    again: bool,
}

/// Starts a run to leave it to itself, and answers with what is kept of it.
pub(super) async fn leave(
    api: &Api,
    checked: CheckedRun,
    key: Option<IdempotencyKey>,
    kept: RunResponse,
) -> Result<Response, ApiError> {
    check_graph(api, &checked.wish.assistant)?;
    let Some(key) = key else {
        let run = api.runs.start(checked.wish).await?;
        return Ok(idempotency::shown(kept(&[run])));
    };
    let once = api.runs.start_once(checked.wish, key, Some(kept)).await?;
    idempotency::answer(once, |run| idempotency::shown(kept(&[run])))
}

/// Starts a run to follow it, or finds the one that was started under the same key.
async fn begin(api: &Api, checked: CheckedRun, key: Option<IdempotencyKey>) -> Result<StartedRun, ApiError> {
    check_graph(api, &checked.wish.assistant)?;
    let cancel_on_disconnect = checked.cancel_on_disconnect;
    let Some(key) = key else {
        let run = api.runs.start(checked.wish).await?;
        return Ok(StartedRun {
            run,
            cancel_on_disconnect,
            again: false,
        });
    };
    match api.runs.start_once(checked.wish, key, None).await? {
        Once::First(run) => Ok(StartedRun {
            run,
            cancel_on_disconnect,
            again: false,
        }),
        Once::Again(StoredResponse::Run { thread, run }) => {
            let found = api.db.read(move |tx| Box::pin(runs::find(tx, thread, run))).await?;
            let run = found.ok_or_else(|| ApiError::not_found("run_not_found"))?;
            Ok(StartedRun {
                run,
                cancel_on_disconnect,
                again: true,
            })
        }
        // The path is part of what the key stands for, so what it was kept for was followed, too.
        Once::Again(StoredResponse::Answer { .. }) | Once::Reused => Err(ApiError::key_reused()),
    }
}

/// Whether there is such a graph; who asks for another one is told which there are.
pub(super) fn check_graph(api: &Api, assistant: &AssistantRef) -> Result<(), ApiError> {
    let AssistantRef::Graph(graph) = assistant else {
        return Ok(());
    };
    let known = api.assistants.default_assistants();
    if known.iter().any(|card| card.graph_id == *graph) {
        return Ok(());
    }
    Err(ApiError::no_graph(
        graph,
        known.iter().map(|card| card.graph_id.as_str()),
    ))
}

/// Starts a run and answers with its last values.
pub(super) async fn start_and_wait(
    api: Api,
    scope: RunScope,
    client: ClientId,
    body: RunCreate,
    key: Option<IdempotencyKey>,
) -> Result<Response, ApiError> {
    let checked = body.check(scope)?;
    let permit = api.streams.acquire(scope.thread(), client)?;
    let StartedRun {
        run,
        cancel_on_disconnect,
        again,
    } = begin(&api, checked, key).await?;
    let headers = located(&run, Some("join"));
    let leave = CancelOnDisconnect::new(cancel_on_disconnect, &api.runs, &run);
    let beat = api.settings.heartbeat;
    let response = (headers, waiting::respond(waiting::outcome(api, run), beat, leave)).into_response();
    Ok(permit.hold(marked(response, again)))
}

/// Starts a run and answers with its events.
pub(super) async fn start_and_stream(
    api: Api,
    scope: RunScope,
    client: ClientId,
    body: RunCreate,
    key: Option<IdempotencyKey>,
) -> Result<Response, ApiError> {
    let checked = body.check(scope)?;
    let permit = api.streams.acquire(scope.thread(), client)?;
    let begun = begin(&api, checked, key).await?;
    let mut headers = located(&begun.run, Some("stream"));
    if scope == RunScope::Stateless
        && let Ok(place) = HeaderValue::from_str(&short_place(&begun.run))
    {
        headers.insert(header::CONTENT_LOCATION, place);
    }
    let request = follow(&api, &begun.run, begun.cancel_on_disconnect);
    let tail = api.events.tail(&begun.run, After::Start);
    let response = stream::stream_run(api.events.clone(), tail, request);
    Ok(permit.hold((headers, marked(response, begun.again)).into_response()))
}

/// Marks an answer that is given once more, under the key of an earlier request.
fn marked(response: Response, again: bool) -> Response {
    if again {
        idempotency::replayed(response)
    } else {
        response
    }
}

/// Names a run without its thread, which is of no interest.
pub(super) fn short_place(run: &Run) -> String {
    format!("/runs/{}", run.id)
}

/// A client follows a run with the modes that the run was asked for.
pub(super) fn follow(api: &Api, run: &Run, cancel_on_disconnect: bool) -> StreamRequest {
    let graph = run.metadata.get("graph_id").and_then(Value::as_str).unwrap_or_default();
    let on_leave = cancel_on_disconnect.then(|| {
        let runs = api.runs.clone();
        let thread = run.thread;
        let id = run.id;
        Box::new(move || runs.cancel_soon(thread, id)) as Box<dyn FnOnce() + Send>
    });
    StreamRequest {
        info: RunInfo::of(run, graph),
        modes: run
            .request
            .stream_mode
            .iter()
            .filter_map(|word| StreamMode::from_word(word))
            .collect(),
        subgraphs: run.request.stream_subgraphs,
        resumable: run.request.stream_resumable,
        seen: None,
        filter: None,
        heartbeat: api.settings.heartbeat,
        on_leave,
    }
}

/// `Content-Location`, the run; and `Location`, where its `tail` (`join`, `stream`) can be taken up again.
fn located(run: &Run, tail: Option<&str>) -> HeaderMap {
    let place = place(run);
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(header::CONTENT_LOCATION, &place);
    if let Some(tail) = tail {
        put(header::LOCATION, &format!("{place}/{tail}"));
    }
    headers
}

/// Lists the runs of a thread, the newest first. An answer has a bound in bytes, beyond which it has fewer of them than
/// `limit`; then `x-pagination-next` is the `offset` of the first that was left out.
#[utoipa::path(get, path = "/threads/{thread_id}/runs", tag = "Runs",
    params(ThreadPath,
        ("limit" = Option<u32>, Query, description = "How many at most, 10 unless told otherwise"),
        ("offset" = Option<u32>, Query, description = "How many to pass over"),
        ("status" = Option<String>, Query, description = "Only those that are doing this"),
        ("select" = Option<Vec<String>>, Query, description = "Only these columns")),
    responses((status = 200, description = "The runs", body = Vec<RunView>, headers(("x-pagination-next" = u64))),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn list(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    params: Params,
) -> Result<Response, ApiError> {
    let thread = path.thread_id;
    let page = params.page(10)?;
    let status = params.word("status", None, |word| RunStatus::from_word(word).map(Some))?;
    let select = Select::checked(params.texts("select"), &COLUMNS)?;
    let permit = api.answers.permit().await?;
    let bytes = api.answers.bytes();
    let wanted = RunList {
        thread,
        status,
        limit: page.limit.into(),
        offset: page.offset.into(),
        bytes,
    };
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            if threads::find(tx, thread).await?.is_none() {
                return Ok(None);
            }
            runs::list(tx, &wanted).await.map(Some)
        })
    });
    let found = read.await?.ok_or_else(|| ApiError::no_thread(thread))?;
    permit.page(page, None, found, |run| {
        (run.lineage.visibility > Visibility::Hidden).then(|| select.pick(json(&RunView::from(run))))
    })
}

/// Shows a run, of the main agent or of a subagent.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The run", body = AnyRunView),
        (status = 404, description = "There is no such thread or run", body = ErrorBody)))]
pub(super) async fn get(State(api): State<Api>, ApiPath(path): ApiPath<RunPath>) -> JsonResult<AnyRunView> {
    let run = find(&api, path).await?;
    let root = run.lineage.root;
    let used = api
        .db
        .read(move |tx| Box::pin(runs::usages_with_background(tx, root)))
        .await?;
    Ok(Json(AnyRunView::of(run, &used)))
}

/// The run of this path.
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

/// Deletes a run; one at work is stopped first.
#[utoipa::path(delete, path = "/threads/{thread_id}/runs/{run_id}", tag = "Runs", params(RunPath),
    responses((status = 204, description = "The run is deleted"),
        (status = 404, description = "There is no such run", body = ErrorBody)))]
pub(super) async fn delete(State(api): State<Api>, ApiPath(path): ApiPath<RunPath>) -> Result<Response, ApiError> {
    let was_there = api.runs.delete_run(path.thread_id, path.run_id).await?;
    if was_there {
        Ok(no_content())
    } else {
        Err(ApiError::no_run_to_delete())
    }
}

/// Waits for the end of a run and answers with the thread's values, `__interrupt__` or `__error__`; for the run of a
/// subagent, with the values of that subagent.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/join", tag = "Runs",
    params(RunPath, ("cancel_on_disconnect" = Option<bool>, Query, description = "Stop the run if the client leaves")),
    responses((status = 200, description = "The last values", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 403, description = "A foreign page asks to stop the run", body = ErrorBody),
        (status = 404, description = "There is no such thread or run", body = ErrorBody),
        (status = 429, description = "The thread or the client has too many open streams", body = ErrorBody)))]
pub(super) async fn join(
    State(api): State<Api>,
    ApiPath(path): ApiPath<RunPath>,
    params: Params,
    headers: HeaderMap,
    client: ClientId,
) -> Result<Response, ApiError> {
    let cancel_on_disconnect = cancels_on_disconnect(&api, &params, &headers)?;
    let run = find(&api, path).await?;
    let permit = api.streams.acquire(Some(run.thread), client)?;
    let leave = CancelOnDisconnect::new(cancel_on_disconnect, &api.runs, &run);
    let headers = located(&run, Some("join"));
    let beat = api.settings.heartbeat;
    Ok(permit.hold((headers, waiting::respond(waiting::join(api, run), beat, leave)).into_response()))
}

/// Follows the events of a run.
///
/// A run that was asked for with `stream_resumable` can be taken up after any event, named by `Last-Event-ID`; `-1` is
/// the place before the first one. Without the header only what comes from now on is shown. The stream of a subagent's run
/// holds what happens in it and below it, under its namespace.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/stream", tag = "Runs",
    params(RunPath,
        ("stream_mode" = Option<String>, Query, description = "Only these modes of the run: a name, or a JSON array"),
        ("cancel_on_disconnect" = Option<bool>, Query, description = "Stop the run if the client leaves"),
        ("last-event-id" = Option<String>, Header, description = "The last event that the client has seen")),
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream",
            headers(("location" = String), ("content-location" = String))),
        (status = 403, description = "A foreign page asks to stop the run", body = ErrorBody),
        (status = 404, description = "There is no such thread or run", body = ErrorBody),
        (status = 409, description = "The log does not reach back to the last event any more", body = ErrorBody),
        (status = 429, description = "The thread or the client has too many open streams", body = ErrorBody)))]
pub(super) async fn join_stream(
    State(api): State<Api>,
    ApiPath(path): ApiPath<RunPath>,
    params: Params,
    headers: HeaderMap,
    client: ClientId,
) -> Result<Response, ApiError> {
    let filter = modes(&params)?;
    let cancel_on_disconnect = cancels_on_disconnect(&api, &params, &headers)?;
    let seen = last_event(&headers)?;
    let run = find(&api, path).await?;
    let seen = seen.filter(|_| run.lineage.depth > 0 || run.request.stream_resumable);
    check_gap(&api, run.thread, seen.as_ref()).await?;
    let permit = api.streams.acquire(Some(run.thread), client)?;
    if run.lineage.depth > 0 {
        let answer = subagents::follow(&api, &run, (seen, filter), cancel_on_disconnect).await?;
        return Ok(permit.hold((located(&run, Some("stream")), answer).into_response()));
    }
    let after = if seen.is_some() { After::Start } else { After::Now };
    let request = StreamRequest {
        seen,
        filter,
        ..follow(&api, &run, cancel_on_disconnect)
    };
    let answer = stream::stream_run(api.events.clone(), api.events.tail(&run, after), request);
    Ok(permit.hold((located(&run, Some("stream")), answer).into_response()))
}

/// Whether the client wants the run to stop when it leaves. That would be a GET that changes something, so a foreign page
/// may not ask for it: its visitor's browser would send that as readily as any link.
fn cancels_on_disconnect(api: &Api, params: &Params, headers: &HeaderMap) -> Result<bool, ApiError> {
    let wanted = params.flag("cancel_on_disconnect")?;
    if wanted {
        origins::check_reader(&api.settings.cors.origins, headers)?;
    }
    Ok(wanted)
}

/// The modes that a reader wants: one or several names, or JSON arrays of names.
fn modes(params: &Params) -> Result<Option<Vec<StreamMode>>, ApiError> {
    let mut modes = vec![];
    for text in params.texts("stream_mode") {
        let words = serde_json::from_str::<Vec<String>>(&text).unwrap_or_else(|_| vec![text]);
        for word in words.iter().filter(|word| !word.is_empty()) {
            modes.push(StreamMode::from_word(word).ok_or_else(|| ApiError::bad_parameter("stream_mode", word))?);
        }
    }
    Ok((!modes.is_empty()).then_some(modes))
}

/// The event named by `Last-Event-ID`.
pub(super) fn last_event(headers: &HeaderMap) -> Result<Option<ResumePoint>, ApiError> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    text.parse()
        .map(Some)
        .map_err(|_| ApiError::bad_parameter("Last-Event-ID", text))
}

/// Refuses to go on behind an event to which the log does not reach back any more.
pub(super) async fn check_gap(api: &Api, thread: ThreadId, seen: Option<&ResumePoint>) -> Result<(), ApiError> {
    let Some(since) = seen.map(|place| place.cursor.seq).filter(|seq| *seq > 0) else {
        return Ok(());
    };
    match api.events.gap(thread, since).await? {
        Some(first) => Err(ApiError::resume_gap(
            "Last-Event-ID",
            Gap {
                since,
                min_available_seq: first,
            },
        )),
        None => Ok(()),
    }
}

/// Stops a run and all below it. `action=rollback` undoes its work and deletes it.
///
/// When it is the run of a subagent, its caller gets an error result and goes on, as do the others that the caller
/// delegated to; its work cannot be undone by itself.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/{run_id}/cancel", tag = "Runs",
    params(RunPath,
        ("wait" = Option<bool>, Query, description = "Answer only when it has stopped"),
        ("action" = Option<String>, Query, description = "interrupt (its work stays) or rollback")),
    responses((status = 200, description = "The run has stopped", body = Value,
            headers(("location" = String), ("content-location" = String))),
        (status = 202, description = "The run is being stopped"),
        (status = 404, description = "There is no such run, or it is over", body = ErrorBody),
        (status = 422, description = "A subagent's run cannot be rolled back", body = ErrorBody),
        (status = 429, description = "The thread or the client has too many open streams", body = ErrorBody)))]
pub(super) async fn cancel(
    State(api): State<Api>,
    ApiPath(path): ApiPath<RunPath>,
    params: Params,
    client: ClientId,
) -> Result<Response, ApiError> {
    let action = action(&params)?;
    let wait = params.flag("wait")?;
    let RunPath { thread_id, run_id } = path;
    let permit = if wait {
        Some(api.streams.acquire(Some(thread_id), client)?)
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
    let headers = located(&run, Some("join"));
    let beat = api.settings.heartbeat;
    let stopped = async move {
        waiting::over(&api, &run).await?;
        Ok(serde_json::json!({}))
    };
    Ok(permit.hold((headers, waiting::respond(stopped, beat, CancelOnDisconnect::default())).into_response()))
}

/// What shall become of the work of a cancelled run.
pub(super) fn action(params: &Params) -> Result<CancelAction, ApiError> {
    params.word("action", CancelAction::Interrupt, |word| match word {
        "interrupt" => Some(CancelAction::Interrupt),
        "rollback" => Some(CancelAction::Rollback),
        _ => None,
    })
}

/// A thread named in a body.
pub(super) fn thread_of(text: &str) -> Result<ThreadId, ApiError> {
    text.parse().map_err(|_| ApiError::bad_id("thread"))
}
