//! The headers that repeat parts of a request, where gateways read them. Servers behind HTTP require them from version
//! 2026-07-28 of the protocol on.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::RequestBuilder;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientRequest, GetMeta};
use serde_json::{Map, Value};

/// The header with the version of the protocol.
pub(super) const PROTOCOL: &str = "mcp-protocol-version";

/// The headers for arguments of a call: those whose schema has `x-mcp-header`. The call carries them in its extensions.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ArgumentHeaders(Vec<(HeaderName, HeaderValue)>);

impl ArgumentHeaders {
    /// Returns the headers for arguments of this schema.
    pub(super) fn of(schema: &Value, arguments: &Map<String, Value>) -> Self {
        let mut headers = Self::default();
        headers.collect(schema, arguments);
        headers
    }

    fn collect(&mut self, schema: &Value, arguments: &Map<String, Value>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            let Some(argument) = arguments.get(name) else { continue };
            let header = property.get("x-mcp-header").and_then(Value::as_str);
            self.0
                .extend(header.and_then(|header| argument_header(header, argument)));
            if let Some(inner) = argument.as_object() {
                self.collect(property, inner);
            }
        }
    }
}

/// Returns the header for an argument; `None` if the name is not one of a header, or the argument is not a plain value.
fn argument_header(header: &str, argument: &Value) -> Option<(HeaderName, HeaderValue)> {
    let text = match argument {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => argument.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    let name = HeaderName::from_bytes(format!("mcp-param-{header}").as_bytes()).ok()?;
    Some((name, HeaderValue::from_str(&encode(&text)).ok()?))
}

/// Returns a text as the value of a header. Other characters than those of ASCII need an encoding.
fn encode(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.trim() == text;
    match is_plain && !text.starts_with("=?base64?") {
        true => text.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(text)),
    }
}

/// Adds the headers of a request that names its version of the protocol itself. Other requests have none.
pub(super) fn add_request_headers(post: RequestBuilder, request: &ClientRequest) -> RequestBuilder {
    let Some(version) = request.get_meta().protocol_version() else {
        return post;
    };
    let post = post
        .header(PROTOCOL, version.as_str())
        .header("mcp-method", request.method());
    let ClientRequest::CallToolRequest(call) = request else {
        return post;
    };
    let post = post.header("mcp-name", encode(&call.params.name));
    let arguments = call.extensions.get::<ArgumentHeaders>();
    let arguments = arguments.into_iter().flat_map(|headers| &headers.0);
    arguments.fold(post, |post, (name, value)| post.header(name, value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_become_headers_as_their_schema_says() {
        let header = |name: &str| json!({"type": "string", "x-mcp-header": name});
        let inner = json!({"type": "object", "properties": {"city": header("City")}});
        let schema = json!({"properties": {
            "region": header("Region"), "count": header("Count"), "none": header("None"), "bad": header("no name"),
            "place": inner, "other": {"type": "string"},
        }});
        let arguments = json!({
            "region": "eu", "count": 3, "none": null, "bad": "x", "place": {"city": "Zürich"}, "other": "y",
        });
        let headers = ArgumentHeaders::of(&schema, arguments.as_object().expect("an object"));
        let headers: Vec<_> = headers
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
            .collect();
        let expected = [
            ("mcp-param-region", "eu"),
            ("mcp-param-count", "3"),
            ("mcp-param-city", "=?base64?WsO8cmljaA==?="),
        ];
        assert_eq!(headers, expected);
    }

    #[test]
    fn texts_that_a_header_cannot_hold_are_encoded() {
        assert_eq!(encode("a b"), "a b");
        assert_eq!(encode(" a"), "=?base64?IGE=?=");
        assert_eq!(encode("a\nb"), "=?base64?YQpi?=");
        assert_eq!(encode("=?base64?YQ==?="), "=?base64?PT9iYXNlNjQ/WVE9PT89?=");
    }
}
