//! The time limit of a request, until its response starts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::body_guard::observe;
use super::error::ApiError;

/// Answers 503 if the handler has not started its response within `limit`.
///
/// The time starts with the last byte of the request; bodies have a limit of their own in `bodies.rs`. Waiting
/// responses and streams start at once, so the limit does not affect them. The handler is dropped, as when the client
/// disconnects; a transaction that was already submitted runs to its end.
pub(super) async fn limit(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    let is_safe = request.method().is_safe();
    let last_byte = Arc::new(Mutex::new(Instant::now()));
    let last_byte_of_body = Arc::clone(&last_byte);
    let on_frame = move || *last_byte.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let answer = next.run(request.map(|body| observe(body, on_frame)));
    tokio::pin!(answer);
    loop {
        let end = *last_byte_of_body.lock().unwrap_or_else(PoisonError::into_inner) + limit;
        if end <= Instant::now() {
            return ApiError::deadline_exceeded(limit.as_secs_f64(), !is_safe).into_response();
        }
        if let Ok(response) = tokio::time::timeout_at(end, &mut answer).await {
            return response;
        }
    }
}
