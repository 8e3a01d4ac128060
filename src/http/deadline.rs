//! The time limit of a request, until its response starts.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use super::error::ApiError;

/// Answers 503 if the handler has not started its response within `limit`.
///
/// The body of the request has arrived before; bodies have a limit of their own in `bodies.rs`. Waiting responses and
/// streams start soon, so the limit does not affect them. The handler is dropped, as when the client disconnects; a
/// transaction that was already submitted runs to its end.
pub(super) async fn limit(limit: Duration, is_safe: bool, handling: impl Future<Output = Response>) -> Response {
    match timeout(limit, handling).await {
        Ok(response) => response,
        Err(_) => ApiError::deadline_exceeded(limit.as_secs_f64(), !is_safe).into_response(),
    }
}
