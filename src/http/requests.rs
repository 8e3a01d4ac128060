//! The id, the span and the line in the access log that every request gets, also one that fails.
//!
//! The id is the client's `x-request-id`, or a new one if that is missing or cannot be used. It is in the response, in
//! the lines that the server logs about the request, and nowhere else. The span is below the caller's `traceparent`.
//! Neither the log nor the span has the query, which may contain a ticket.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::USER_AGENT;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use super::body_guard::{SentBody, count_sent};
use super::client::peer_address;
use super::request_metrics::measure;
use crate::domain::identity::Identity;
use crate::domain::trace::{AttributeValue, SpanContext, SpanData, SpanKind, TraceScope, Tracer};
use crate::metrics::Metrics;
use crate::runtime::called_by;

/// The header with the id of a request.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is accepted, in bytes.
const MAX_ID_BYTES: usize = 128;
/// The longest user agent in a span, in bytes.
const MAX_AGENT_BYTES: usize = 256;
/// The routes without spans: probes and metrics, which are asked for every few seconds.
const UNTRACED: [&str; 4] = ["/ok", "/ready", "/metrics", "/info"];

/// The recorder of requests.
pub(super) struct RequestRecorder {
    pub(super) tracer: Tracer,
    pub(super) metrics: Metrics,
    pub(super) access_log: bool,
}

/// Handles a request under its id and in its span, and measures it.
pub(super) async fn record(State(recorder): State<Arc<RequestRecorder>>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let started = Instant::now();
    let entry = RequestEntry {
        route: request.extensions().get::<MatchedPath>().cloned(),
        method: request.method().clone(),
        peer: peer_address(request.extensions()),
    };
    let context = entry.begin_server_span(&recorder.tracer, request.headers());
    let trace = recorder.tracer.scope(context.clone());
    let span = entry.begin_span(&trace, &request, &id);
    let line = match &context {
        Some(context) => tracing::error_span!("request", request_id = id_text(&id), trace_id = %context.trace),
        None => tracing::error_span!("request", request_id = id_text(&id)),
    };
    if let Some(context) = context.clone() {
        // A handler may do its work in another task.
        request.extensions_mut().insert(context);
    }
    // Boxed, since the layers around it have room for it several times, and the whole is copied.
    let handling = Box::pin(measure(&recorder.metrics, request, next));
    let mut response = called_by(context, handling).instrument(line).await;
    response.headers_mut().insert(REQUEST_ID, id.clone());
    if span.is_none() && !recorder.access_log {
        return response;
    }
    let record = SentRequest {
        access_log: recorder.access_log,
        entry,
        id,
        trace,
        span,
        status: response.status(),
        caller: caller(response.extensions()),
        started,
        bytes: 0,
    };
    count_sent(response, record)
}

/// Returns the id of a request: the client's, if it is short and has only letters, digits and a few signs.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_sign = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte);
    let is_valid = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= MAX_ID_BYTES && bytes.iter().all(is_sign)
    };
    headers
        .get(REQUEST_ID)
        .filter(is_valid)
        .cloned()
        .unwrap_or_else(mint_id)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the id of a request is for logs; nothing is ordered by it"
)]
fn mint_id() -> HeaderValue {
    // A UUID has only signs that a header may have.
    HeaderValue::from_str(&Uuid::new_v4().to_string()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

fn id_text(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or_default()
}

/// Returns the caller whom the response names, if the request proved one.
fn caller(extensions: &Extensions) -> Option<Arc<Identity>> {
    let caller = extensions.get::<Arc<Identity>>();
    caller.filter(|caller| caller.credential.is_verified()).cloned()
}

/// Returns the span of the caller, if the headers name one.
fn parent_of(headers: &HeaderMap) -> Option<SpanContext> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    SpanContext::parse(text("traceparent")?, text("tracestate"))
}

/// A request, as it is logged.
struct RequestEntry {
    route: Option<MatchedPath>,
    method: Method,
    peer: Option<IpAddr>,
}

impl RequestEntry {
    fn route(&self) -> Option<&str> {
        self.route.as_ref().map(MatchedPath::as_str)
    }

    /// Returns the context of the request's span; none if it gets none.
    fn begin_server_span(&self, tracer: &Tracer, headers: &HeaderMap) -> Option<SpanContext> {
        if !tracer.is_on() || self.route().is_some_and(|route| UNTRACED.contains(&route)) {
            return None;
        }
        tracer.begin_server_span(parent_of(headers).as_ref())
    }

    fn begin_span(&self, trace: &TraceScope, request: &Request, id: &HeaderValue) -> Option<SpanData> {
        let headers = request.headers();
        let parent = parent_of(headers);
        let mut span = trace.begin_current(parent.map(|parent| parent.span), SpanKind::Server)?;
        // Clients may send any word as the method.
        let method = match self.method.as_str() {
            known @ ("GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" | "OPTIONS") => known,
            _ => "_OTHER",
        };
        let named = if method == "_OTHER" { "HTTP" } else { method };
        span.name = match self.route() {
            Some(route) => format!("{named} {route}"),
            None => named.to_owned(),
        };
        span.set("http.request.method", method);
        span.set_some("http.route", self.route());
        // A path without a route may be anything.
        span.set_some("url.path", self.route().map(|_| request.uri().path()));
        span.set("url.scheme", "http");
        span.set_some("client.address", self.peer.map(|peer| peer.to_string()));
        let version = match request.version() {
            Version::HTTP_2 => "2",
            Version::HTTP_10 => "1.0",
            _ => "1.1",
        };
        span.set("network.protocol.version", version);
        let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
        let agent = agent.and_then(|agent| agent.get(..agent.len().min(MAX_AGENT_BYTES)));
        span.set_some("user_agent.original", agent);
        let ids = AttributeValue::Texts(vec![id_text(id).to_owned()]);
        span.set("http.response.header.x-request-id", ids);
        Some(span)
    }
}

/// A request whose response is being sent. It is recorded when that ends.
struct SentRequest {
    access_log: bool,
    entry: RequestEntry,
    id: HeaderValue,
    trace: TraceScope,
    span: Option<SpanData>,
    status: StatusCode,
    caller: Option<Arc<Identity>>,
    started: Instant,
    bytes: u64,
}

impl SentBody for SentRequest {
    fn sent(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl SentRequest {
    fn log(&self) {
        tracing::info!(
            target: "adjutant::access",
            request_id = id_text(&self.id),
            method = self.entry.method.as_str(),
            route = self.entry.route(),
            status = self.status.as_u16(),
            duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            bytes = self.bytes,
            user = self.caller.as_ref().map(|caller| tracing::field::display(&caller.user)),
            tenant = self.caller.as_ref().map(|caller| tracing::field::display(&caller.tenant)),
            peer = self.entry.peer.map(tracing::field::display),
            "request"
        );
    }
}

impl Drop for SentRequest {
    fn drop(&mut self) {
        if self.access_log {
            self.log();
        }
        let span = self.span.take().map(|mut span| {
            span.set("http.response.status_code", u64::from(self.status.as_u16()));
            span.set("http.response.body.size", self.bytes);
            if let Some(caller) = &self.caller {
                span.set("user.id", caller.user.to_string());
                span.set("adjutant.tenant", caller.tenant.to_string());
            }
            if self.status.is_server_error() {
                span.fail(self.status.as_str());
            }
            span
        });
        self.trace.end(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_could_harm_a_log_is_replaced() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).expect("a header"));
            request_id(&headers)
        };
        for good in ["abc-123", "a:b/c+d=e@f~g_h.i", &"x".repeat(128)] {
            assert_eq!(of(good.as_bytes()), good);
        }
        for bad in ["", "two words", "\u{e9}", "a\"b", "<b>", &"x".repeat(129)] {
            let id = of(bad.as_bytes());
            assert_ne!(id, bad);
            assert_eq!(id.len(), 36, "{bad:?}");
        }
        assert_eq!(request_id(&HeaderMap::new()).len(), 36);
    }
}
