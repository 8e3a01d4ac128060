//! Metrics of requests and responses, by route template.

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use super::body_guard::hold_until_sent;
use crate::metrics::{Metrics, OpenStream};

/// The label of requests without a route. Their paths are chosen by clients and must not become labels.
const NO_ROUTE: &str = "none";

/// Measures a request. Most responses end with their last byte; a stream counts as answered when it starts, and as open
/// until it ends.
pub(super) async fn measure(metrics: &Metrics, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let response = next.run(request).await;
    let request = MeasuredRequest {
        metrics: metrics.clone(),
        method,
        route,
        status: response.status(),
        started,
    };
    let kind = response.headers().get(header::CONTENT_TYPE);
    let guard = if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        TrafficGuard {
            _stream: Some(request.metrics.traffic().stream()),
            _request: None,
        }
    } else {
        TrafficGuard {
            _stream: None,
            _request: Some(request),
        }
    };
    hold_until_sent(response, guard)
}

/// The guard that ends with the response body.
struct TrafficGuard {
    _stream: Option<OpenStream>,
    _request: Option<MeasuredRequest>,
}

/// A request and its response, counted when dropped.
struct MeasuredRequest {
    metrics: Metrics,
    method: Method,
    route: Option<MatchedPath>,
    status: StatusCode,
    started: Instant,
}

impl Drop for MeasuredRequest {
    fn drop(&mut self) {
        let route = self.route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
        let duration = self.started.elapsed();
        self.metrics
            .traffic()
            .record_response(self.method.as_str(), route, self.status.as_u16(), duration);
    }
}
