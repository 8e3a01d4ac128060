//! Sees to it that every request is counted, under the template of its route.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use super::guarded::guarded;
use crate::metrics::{Metrics, OpenStream};

/// The label of what has no route: what a client asked for there is its own choice.
const NO_ROUTE: &str = "none";

/// Counts a request. The answer of most is over with its last byte; a stream is answered when it begins, and open from
/// then on.
pub(super) async fn measure(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let response = next.run(request).await;
    let exchange = Exchange {
        metrics,
        method,
        route,
        status: response.status(),
        begun,
    };
    let kind = response.headers().get(header::CONTENT_TYPE);
    let watch = if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        Watch {
            _stream: Some(exchange.metrics.traffic().stream()),
            _exchange: None,
        }
    } else {
        Watch {
            _stream: None,
            _exchange: Some(exchange),
        }
    };
    guarded(response, watch)
}

/// What ends with the body of an answer.
struct Watch {
    _stream: Option<OpenStream>,
    _exchange: Option<Exchange>,
}

/// A request and its answer; counted when dropped.
struct Exchange {
    metrics: Metrics,
    method: Method,
    route: Option<MatchedPath>,
    status: StatusCode,
    begun: Instant,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let route = self.route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
        let took = self.begun.elapsed();
        self.metrics
            .traffic()
            .record_response(self.method.as_str(), route, self.status.as_u16(), took);
    }
}
