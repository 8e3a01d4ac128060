//! The encoding of spans as OTLP says, in protobuf or JSON.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind as WireKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as WireSpan, Status};
use prost::Message;
use serde_json::Value;

use crate::domain::time::Timestamp;
use crate::domain::trace::{AttributeValue, SpanContext, SpanData, SpanKind};

/// The flag of a span, or of a link, whose trace is sampled.
const SAMPLED: u32 = 1;

/// The encoding of requests to a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpEncoding {
    /// Protobuf.
    Protobuf,
    /// JSON.
    Json,
}

impl OtlpEncoding {
    /// Returns the content type of requests.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }

    /// Returns the body of a request.
    pub(super) fn encode(self, spans: Vec<SpanData>, resource: &Resource) -> Vec<u8> {
        let scope = InstrumentationScope {
            name: "adjutant".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans: spans.into_iter().map(wire_span).collect(),
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }],
        };
        match self {
            Self::Protobuf => request.encode_to_vec(),
            // The messages have no keys that JSON cannot have.
            Self::Json => serde_json::to_vec(&request).unwrap_or_default(),
        }
    }

    /// Returns how many spans a collector has not taken, by its response. A body that is no such message rejects none.
    pub(super) fn rejected(self, body: &[u8]) -> u64 {
        match self {
            Self::Protobuf => {
                let response = ExportTraceServiceResponse::decode(body).ok();
                let partial = response.and_then(|response| response.partial_success);
                partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
            }
            Self::Json => {
                let response: Value = serde_json::from_slice(body).unwrap_or_default();
                let rejected = &response["partialSuccess"]["rejectedSpans"];
                // Numbers of 64 bits are texts in the JSON of protobuf, but not every collector knows that.
                let text = || rejected.as_str()?.parse().ok();
                rejected.as_u64().or_else(text).unwrap_or(0)
            }
        }
    }
}

/// Returns the description of this process.
pub(super) fn resource(attributes: &BTreeMap<String, String>) -> Resource {
    let attributes = attributes
        .iter()
        .map(|(key, value)| key_value(key, AttributeValue::Text(value.clone())));
    Resource {
        attributes: attributes.collect(),
        ..Resource::default()
    }
}

fn wire_span(span: SpanData) -> WireSpan {
    let kind = match span.kind {
        SpanKind::Internal => WireKind::Internal,
        SpanKind::Server => WireKind::Server,
        SpanKind::Client => WireKind::Client,
    };
    let mut attributes: Vec<KeyValue> = span
        .attributes
        .into_iter()
        .map(|(key, value)| key_value(key, value))
        .collect();
    let status = span.error.map(|class| {
        attributes.push(key_value("error.type", AttributeValue::Text(class.clone())));
        Status {
            message: class,
            code: StatusCode::Error.into(),
        }
    });
    WireSpan {
        trace_id: span.context.trace.0.to_vec(),
        span_id: span.context.span.0.to_vec(),
        trace_state: state_of(&span.context),
        parent_span_id: span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
        flags: SAMPLED,
        name: span.name,
        kind: kind.into(),
        start_time_unix_nano: nanoseconds(span.start),
        end_time_unix_nano: nanoseconds(span.end.max(span.start)),
        attributes,
        links: span.links.iter().map(wire_link).collect(),
        status,
        ..WireSpan::default()
    }
}

fn wire_link(context: &SpanContext) -> Link {
    Link {
        trace_id: context.trace.0.to_vec(),
        span_id: context.span.0.to_vec(),
        trace_state: state_of(context),
        flags: u32::from(context.is_sampled),
        ..Link::default()
    }
}

fn state_of(context: &SpanContext) -> String {
    context.state.as_deref().unwrap_or_default().to_owned()
}

fn nanoseconds(at: Timestamp) -> u64 {
    u64::try_from(at.0).unwrap_or(0).saturating_mul(1000)
}

fn key_value(key: &str, value: AttributeValue) -> KeyValue {
    let text = any_value::Value::StringValue;
    let value = match value {
        AttributeValue::Text(value) => text(value),
        AttributeValue::Number(value) => any_value::Value::IntValue(value),
        AttributeValue::Flag(value) => any_value::Value::BoolValue(value),
        AttributeValue::Decimal(value) => any_value::Value::DoubleValue(value),
        AttributeValue::Texts(values) => {
            let values = values.into_iter().map(|value| AnyValue {
                value: Some(text(value)),
            });
            any_value::Value::ArrayValue(ArrayValue {
                values: values.collect(),
            })
        }
    };
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::trace::SpanId;

    fn span() -> SpanData {
        let context = SpanContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=1"));
        let context = context.expect("it is valid");
        SpanData {
            parent: Some(SpanId([1; 8])),
            links: vec![context.at(SpanId([2; 8]))],
            context,
            name: "chat m".to_owned(),
            kind: SpanKind::Client,
            start: Timestamp(1_000_000),
            end: Timestamp(2_000_000),
            attributes: vec![
                ("text", "t".into()),
                ("number", AttributeValue::Number(7)),
                ("texts", AttributeValue::Texts(vec!["a".to_owned()])),
            ],
            error: Some("ModelTimeoutError".to_owned()),
        }
    }

    #[test]
    fn a_span_is_written_in_json_as_the_protocol_says() {
        let service = BTreeMap::from([("service.name".to_owned(), "s".to_owned())]);
        let body = OtlpEncoding::Json.encode(vec![span()], &resource(&service));
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(
            body["resourceSpans"][0]["resource"]["attributes"],
            json!([{"key": "service.name", "value": {"stringValue": "s"}}])
        );
        let written = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(written["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(written["parentSpanId"], "0101010101010101");
        assert_eq!(written["kind"], 3);
        assert_eq!(written["startTimeUnixNano"], "1000000000");
        assert_eq!(written["status"]["code"], 2);
        assert_eq!(written["links"][0]["spanId"], "0202020202020202");
        let kinds: Vec<&Value> = written["attributes"].as_array().expect("a list").iter().collect();
        assert_eq!(kinds[1], &json!({"key": "number", "value": {"intValue": "7"}}));
        assert_eq!(kinds[3]["key"], "error.type");
    }

    #[test]
    fn both_encodings_have_the_same_content() {
        let resource = resource(&BTreeMap::new());
        let binary = OtlpEncoding::Protobuf.encode(vec![span()], &resource);
        let binary = ExportTraceServiceRequest::decode(&binary[..]).expect("a message");
        let text = OtlpEncoding::Json.encode(vec![span()], &resource);
        let text: ExportTraceServiceRequest = serde_json::from_slice(&text).expect("the same message");
        assert_eq!(binary, text);
    }

    #[test]
    fn rejected_spans_are_read_from_the_response() {
        let body = br#"{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}}"#;
        assert_eq!(OtlpEncoding::Json.rejected(body), 3);
        assert_eq!(OtlpEncoding::Json.rejected(b"<html>"), 0);
        assert_eq!(OtlpEncoding::Protobuf.rejected(b""), 0);
        assert_eq!(OtlpEncoding::Protobuf.rejected(b"nonsense"), 0);
    }
}
