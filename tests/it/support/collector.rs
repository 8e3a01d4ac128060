//! An OpenTelemetry collector: receives traces over OTLP/HTTP and keeps their spans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::starts_service;

/// A received span.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CollectedSpan {
    /// The trace, in hexadecimal digits.
    pub(crate) trace: String,
    /// The id, in hexadecimal digits.
    pub(crate) id: String,
    /// The id of the parent; empty if there is none.
    pub(crate) parent: String,
    /// The name.
    pub(crate) name: String,
    /// The number of the kind: 1 internal, 2 server, 3 client.
    pub(crate) kind: i32,
    /// The attributes.
    pub(crate) attributes: BTreeMap<String, Value>,
    /// The traces and spans of the links.
    pub(crate) links: Vec<(String, String)>,
    /// True if the status is an error.
    pub(crate) is_error: bool,
    /// The start and the end, in nanoseconds since 1970.
    pub(crate) time: (u64, u64),
    /// The attributes of the process that sent it.
    pub(crate) resource: BTreeMap<String, Value>,
}

impl CollectedSpan {
    /// Returns an attribute; null if the span does not have it.
    pub(crate) fn attribute(&self, key: &str) -> Value {
        self.attributes.get(key).cloned().unwrap_or(Value::Null)
    }
}

/// A collector.
pub(crate) struct Collector {
    /// The address of the collector.
    pub(crate) base: String,
    state: Arc<CollectorState>,
    around: Shutdown,
}

#[derive(Default)]
struct CollectorState {
    spans: watch::Sender<Vec<CollectedSpan>>,
    /// The headers and the bodies of all requests.
    requests: watch::Sender<Vec<(HeaderMap, Bytes)>>,
    /// The status of responses, and their body; 200 and nothing if it is none.
    answer: watch::Sender<Option<(StatusCode, &'static str)>>,
    is_silent: watch::Sender<bool>,
}

impl Collector {
    /// Starts a collector.
    pub(crate) async fn start() -> Self {
        let state = Arc::new(CollectorState::default());
        let around = Shutdown::new(Duration::from_secs(1));
        let router = Router::new()
            .route("/v1/traces", post(receive))
            .with_state(Arc::clone(&state));
        let base = starts_service("collector", router, &around).await;
        Self { base, state, around }
    }

    /// Returns a section that sends traces to this collector, with further lines.
    pub(crate) fn section(&self, more: &str) -> String {
        format!(
            "[telemetry]\notlp_endpoint = \"{}\"\nexport_interval_s = 0.05\n{more}\n",
            self.base
        )
    }

    /// Answers all further requests with this status and body, and keeps none of their spans.
    pub(crate) fn answers(&self, status: u16, body: &'static str) {
        let status = StatusCode::from_u16(status).expect("a status");
        self.state.answer.send_replace(Some((status, body)));
    }

    /// Leaves all further requests without an answer.
    pub(crate) fn is_silent(&self) {
        self.state.is_silent.send_replace(true);
    }

    /// Returns the spans so far.
    pub(crate) fn spans(&self) -> Vec<CollectedSpan> {
        self.state.spans.borrow().clone()
    }

    /// Returns the headers and bodies of the requests so far.
    pub(crate) fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        self.state.requests.borrow().clone()
    }

    /// Waits until the collector has received a request.
    pub(crate) async fn is_asked(&self) {
        let mut requests = self.state.requests.subscribe();
        let asked = requests.wait_for(|requests| !requests.is_empty());
        let asked = tokio::time::timeout(Duration::from_secs(60), asked).await;
        asked.expect("it was not asked").expect("it is there");
    }

    /// Waits until there are `times` spans for which `is_wanted` holds, and returns them.
    pub(crate) async fn gets(&self, times: usize, is_wanted: impl Fn(&CollectedSpan) -> bool) -> Vec<CollectedSpan> {
        let of = |spans: &[CollectedSpan]| spans.iter().filter(|span| is_wanted(span)).cloned().collect::<Vec<_>>();
        let mut spans = self.state.spans.subscribe();
        let come = spans.wait_for(|spans| of(spans).len() >= times);
        let come = tokio::time::timeout(Duration::from_secs(60), come).await.is_ok();
        let names: Vec<String> = self.spans().into_iter().map(|span| span.name).collect();
        assert!(come, "the spans did not come; there are {names:#?}");
        of(&self.spans())
    }

    /// Waits for the only span with this name, and returns it.
    pub(crate) async fn only(&self, name: &str) -> CollectedSpan {
        let mut found = self.gets(1, |span| span.name == name).await;
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn receive(
    State(state): State<Arc<CollectorState>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    state
        .requests
        .send_modify(|requests| requests.push((headers.clone(), body.clone())));
    if *state.is_silent.borrow() {
        std::future::pending::<()>().await;
    }
    if let Some(answer) = *state.answer.borrow() {
        return answer;
    }
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok());
    let request = match kind {
        Some("application/x-protobuf") => ExportTraceServiceRequest::decode(body).ok(),
        Some("application/json") => serde_json::from_slice(&body).ok(),
        Some(_) | None => None,
    };
    let Some(request) = request else {
        return (StatusCode::BAD_REQUEST, "");
    };
    let spans: Vec<CollectedSpan> = request
        .resource_spans
        .iter()
        .flat_map(|sent| {
            let resource = sent.resource.as_ref().map(|resource| attributes(&resource.attributes));
            let resource = resource.unwrap_or_default();
            let spans = sent.scope_spans.iter().flat_map(|scope| &scope.spans);
            spans.map(move |span| collected(span, &resource)).collect::<Vec<_>>()
        })
        .collect();
    state.spans.send_modify(|all| all.extend(spans));
    (StatusCode::OK, "")
}

fn collected(span: &Span, resource: &BTreeMap<String, Value>) -> CollectedSpan {
    let links = span.links.iter();
    CollectedSpan {
        trace: digits(&span.trace_id),
        id: digits(&span.span_id),
        parent: digits(&span.parent_span_id),
        name: span.name.clone(),
        kind: span.kind,
        attributes: attributes(&span.attributes),
        links: links
            .map(|link| (digits(&link.trace_id), digits(&link.span_id)))
            .collect(),
        is_error: span.status.as_ref().is_some_and(|status| status.code == 2),
        time: (span.start_time_unix_nano, span.end_time_unix_nano),
        resource: resource.clone(),
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(all: &[KeyValue]) -> BTreeMap<String, Value> {
    let pair = |attribute: &KeyValue| (attribute.key.clone(), value(attribute.value.as_ref()));
    all.iter().map(pair).collect()
}

/// Returns a value as plain JSON. Its own JSON names the type of each value, and writes whole numbers as texts.
fn value(of: Option<&AnyValue>) -> Value {
    let typed = serde_json::to_value(of).expect("JSON");
    let items = of.and_then(|value| match &value.value {
        Some(any_value::Value::ArrayValue(list)) => Some(&list.values),
        Some(_) | None => None,
    });
    if let Some(items) = items {
        return items.iter().map(|item| value(Some(item))).collect();
    }
    if let Some(number) = typed["intValue"].as_str() {
        return json!(number.parse::<i64>().expect("a number"));
    }
    let plain = ["stringValue", "boolValue", "doubleValue"]
        .into_iter()
        .map(|kind| &typed[kind]);
    let mut plain = plain.filter(|value| !value.is_null());
    plain
        .next()
        .unwrap_or_else(|| panic!("no span has such a value: {typed}"))
        .clone()
}
