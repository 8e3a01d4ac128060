//! Responses that start before their handler has said anything.
//!
//! `rmcp` starts the response to a call with the first message of its handler. A call without progress notifications has
//! only one, at its end, so the client, and what is between it and the server, would wait for the head of the response as
//! long as the run takes.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tokio::time::timeout;

use super::has_type;

/// A comment of an event stream, which clients skip.
const COMMENT: &[u8] = b":\n\n";

/// Returns the response of a handler, or, if that takes longer than `beat`, a stream of events that starts now, has a
/// comment every `beat`, and continues with the response. The handler is dropped with the response.
pub(super) async fn start_within(beat: Duration, mut handling: BoxFuture<'static, Response>) -> Response {
    if let Ok(response) = timeout(beat, &mut handling).await {
        return response;
    }
    let waiting = stream::unfold(Some(handling), move |handling| async move {
        let mut handling = handling?;
        match timeout(beat, &mut handling).await {
            Ok(response) => Some((events_of(response).await, None)),
            Err(_) => Some((comment(), Some(handling))),
        }
    });
    let stream = stream::once(async { comment() }).chain(waiting).flatten();
    let mut response = Body::from_stream(stream).into_response();
    let event_stream = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, event_stream);
    let no_cache = HeaderValue::from_static("no-cache");
    response.headers_mut().insert(header::CACHE_CONTROL, no_cache);
    response
}

/// The pieces of a stream.
type Pieces = stream::BoxStream<'static, Result<Bytes, axum::Error>>;

fn comment() -> Pieces {
    stream::once(async { Ok(Bytes::from_static(COMMENT)) }).boxed()
}

/// Returns a response as events. One that is a single message in JSON becomes an event.
async fn events_of(response: Response) -> Pieces {
    if !has_type(response.headers(), "application/json") {
        return response.into_body().into_data_stream().boxed();
    }
    let message = to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
    let mut event = b"data: ".to_vec();
    event.extend_from_slice(&message);
    event.extend_from_slice(b"\n\n");
    stream::once(async { Ok(event.into()) }).boxed()
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use serde_json::json;

    use super::*;

    async fn body_of(response: Response) -> String {
        let body = to_bytes(response.into_body(), 1000).await.expect("it is in memory");
        String::from_utf8(body.to_vec()).expect("a text")
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_is_quick_answers_itself() {
        let handler = Box::pin(async { Json(json!({"id": 1})).into_response() });
        let response = start_within(Duration::from_secs(5), handler).await;
        assert!(has_type(response.headers(), "application/json"));
        assert_eq!(body_of(response).await, r#"{"id":1}"#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_comes_late_is_an_event_after_comments() {
        let handler = Box::pin(async {
            tokio::time::sleep(Duration::from_secs(12)).await;
            Json(json!({"id": 1})).into_response()
        });
        let response = start_within(Duration::from_secs(5), handler).await;
        assert!(has_type(response.headers(), "text/event-stream"));
        assert_eq!(body_of(response).await, ":\n\n:\n\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_come_late_follow_the_comments() {
        let handler = Box::pin(async {
            tokio::time::sleep(Duration::from_secs(6)).await;
            ([(header::CONTENT_TYPE, "text/event-stream")], "data: {}\n\n").into_response()
        });
        let response = start_within(Duration::from_secs(5), handler).await;
        assert_eq!(body_of(response).await, ":\n\ndata: {}\n\n");
    }
}
