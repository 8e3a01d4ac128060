//! The stream of a thread as server-sent events.

use axum::body::Bytes;
use axum::response::Response;
use serde_json::Value;

use crate::http::access::Api;
use crate::http::client::ClientId;
use crate::http::error::{ApiError, ErrorBody, Gap};
use crate::http::extract::{ApiPath, ThreadPath, within_limits};
use crate::http::stream::thread::{self, PastEvents, ThreadFrames};
use crate::http::stream::v2::{FRAMES, Filter, whole_number};
use crate::http::wire::server_sent_event::ServerSentEvent;
use crate::http::wire::thread_command::ThreadStreamRequest;

/// Streams the events of a thread.
///
/// Past events come first: those after `since`, or a bounded part of them that begins with a run. Then live ones follow. The
/// stream does not end with a run. For a thread that does not exist, the stream waits for its first run.
#[utoipa::path(post, path = "/threads/{thread_id}/stream/events", tag = "Thread stream",
    params(ThreadPath), request_body = ThreadStreamRequest,
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream"),
        (status = 400, description = "A channel does not exist", body = ErrorBody),
        (status = 409, description = "The log no longer contains the events after `since`", body = ErrorBody),
        (status = 413, description = "The body is too large", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(in crate::http) async fn post(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    client: ClientId,
    body: Bytes,
) -> Result<Response, ApiError> {
    within_limits(&body)?;
    let request: Value = serde_json::from_slice(&body).map_err(|_| ApiError::bad_command())?;
    let filter = Filter::read(&request).map_err(ApiError::bad_stream_request)?;
    let may_read = super::may_read(&api, path.thread_id).await?;
    let permit = api.open_stream(may_read.then_some(path.thread_id), client)?;
    let since = whole_number(&request, "since").unwrap_or(0);
    if since > 0
        && may_read
        && let Some(first) = api.events.gap(path.thread_id, since / FRAMES).await?
    {
        return Err(ApiError::resume_gap(
            "since",
            Gap {
                since,
                min_available_seq: first * FRAMES,
            },
        ));
    }
    let heartbeat = api.settings.heartbeat;
    let past = PastEvents {
        filter,
        since,
        may_read,
        until: None,
    };
    let replaying = ThreadFrames::replaying(api, path.thread_id, past);
    let (reader, tail) = Box::pin(replaying).await?;
    Ok(thread::respond(reader, tail, heartbeat, permit))
}
