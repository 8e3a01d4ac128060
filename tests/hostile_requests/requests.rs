//! Hostile requests as bytes, well-formed or not.

use super::documents::{Chance, large, small};
use super::endpoints::{Operation, Places};

/// A request and the behaviour of its client.
pub(crate) struct Request {
    /// The bytes to send.
    pub(crate) bytes: Vec<u8>,
    /// The behaviour after sending.
    pub(crate) manner: Manner,
}

/// The behaviour of a client after it has sent its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The client reads the answer.
    Reads,
    /// The client sends less than the content length, waits a little and disconnects.
    Stalls,
    /// The client does not read.
    Ignores,
}

/// Generates a request to one of the operations.
pub(crate) fn request(chance: &mut Chance, places: &Places, host: &str) -> Request {
    let operation = chance.pick(&places.operations).clone();
    let target = target(chance, &operation, places);
    let body = operation
        .fields
        .as_ref()
        .map(|fields| body(chance, fields, &operation.path));
    let manner = match chance.below(20) {
        0 => Manner::Stalls,
        1 => Manner::Ignores,
        _ => Manner::Reads,
    };
    let method = if chance.once_in(100) {
        "PATCH"
    } else {
        operation.method.as_str()
    };
    let host = if chance.once_in(50) { "evil.example" } else { host };
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n").into_bytes();
    headers(chance, &mut bytes);
    if let Some(body) = body {
        let kinds = [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "application/json; charset=utf-7",
        ];
        let kind = if chance.once_in(30) {
            *chance.pick(&kinds)
        } else {
            "application/json"
        };
        let promised = if manner == Manner::Stalls {
            body.len() + 1000
        } else {
            body.len()
        };
        if chance.once_in(20) {
            bytes.extend_from_slice(format!("content-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes());
            bytes.extend_from_slice(format!("{promised:x}\r\n").as_bytes());
            bytes.extend_from_slice(&body);
            bytes.extend_from_slice(b"\r\n0\r\n\r\n");
        } else {
            bytes.extend_from_slice(format!("content-type: {kind}\r\ncontent-length: {promised}\r\n\r\n").as_bytes());
            bytes.extend_from_slice(&body);
        }
    } else {
        bytes.extend_from_slice(b"\r\n");
    }
    Request { bytes, manner }
}

fn headers(chance: &mut Chance, bytes: &mut Vec<u8>) {
    if chance.once_in(30) {
        bytes.extend_from_slice(b"origin: https://evil.example\r\n");
    }
    if chance.once_in(30) {
        let id = *chance.pick(&["-1", "99999999999999999999", "0x1", "", "1-0"]);
        bytes.extend_from_slice(format!("last-event-id: {id}\r\n").as_bytes());
    }
    if chance.once_in(30) {
        bytes.extend_from_slice(b"idempotency-key: \xff\xfe\x01\r\n");
    }
    if chance.once_in(10) {
        bytes.extend_from_slice(format!("x-api-key: {}\r\n", chance.below(1_000_000)).as_bytes());
    }
    if chance.once_in(200) {
        bytes.extend_from_slice("x-many: 1\r\n".repeat(150).as_bytes());
    }
}

/// Ids that do not exist, and texts that are not ids.
const IDS: [&str; 7] = [
    "00000000-0000-0000-0000-000000000000",
    "%00",
    "..%2f..%2fetc%2fpasswd",
    "%ff%fe",
    "99999999999999999999999999",
    "plain",
    "%F0%9F%92%A3",
];

/// Returns the path with values for its variables, and with query parameters.
fn target(chance: &mut Chance, operation: &Operation, places: &Places) -> String {
    let mut target = String::new();
    for part in operation.path.split('/').skip(1) {
        target.push('/');
        match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(variable) if !chance.once_in(4) => target.push_str(places.id(variable)),
            Some(_) => target.push_str(chance.pick::<&str>(&IDS)),
            None => target.push_str(part),
        }
    }
    let mut mark = '?';
    for name in &operation.query {
        if chance.once_in(2) {
            let value = *chance.pick(&[
                "-1",
                "0",
                "1",
                "1000",
                "99999999999999999999",
                "true",
                "%00",
                "NaN",
                "[%5B%5B",
                "%ff",
                "x",
            ]);
            target.push(mark);
            target.push_str(&format!("{name}={value}"));
            mark = '&';
        }
    }
    if chance.once_in(300) {
        target.push(mark);
        target.push_str(&"a=b&".repeat(2000));
    }
    target
}

/// Returns a body: an object with some of the known fields and hostile values, or something else.
fn body(chance: &mut Chance, fields: &[String], path: &str) -> Vec<u8> {
    if chance.once_in(200) {
        return large(chance);
    }
    if chance.once_in(10) {
        return small(chance);
    }
    let mut members = vec![];
    for name in fields {
        let plausible = plausible(name);
        // Most requests are valid except for one or two fields; others would end at the first check.
        let value = match plausible {
            Some(value) if !chance.once_in(8) => value.as_bytes().to_vec(),
            _ if chance.once_in(6) => small(chance),
            _ => continue,
        };
        members.push([format!("\"{name}\":").into_bytes(), value].concat());
    }
    if chance.once_in(100) {
        let name = format!("\"{}\":", fields.first().map_or("x", String::as_str)).into_bytes();
        members.push([name, large(chance)].concat());
    }
    let object = [b"{".to_vec(), members.join(&b","[..]), b"}".to_vec()].concat();
    if path == "/runs/batch" {
        [b"[".to_vec(), object, b"]".to_vec()].concat()
    } else {
        object
    }
}

/// Returns a valid value for a field of this name, if one is needed to pass the first checks.
fn plausible(name: &str) -> Option<&'static str> {
    match name {
        "assistant_id" | "graph_id" => Some("\"plain\""),
        "input" => Some(r#"{"messages":[{"role":"user","content":"hello"}]}"#),
        "schedule" => Some("\"0 0 1 1 *\""),
        "namespace" | "namespace_prefix" => Some("[\"hostile\"]"),
        "key" => Some("\"k\""),
        "value" => Some("{\"a\":1}"),
        "values" => Some("{\"notes\":\"x\"}"),
        "thread_ids" => Some("[]"),
        "checkpoint" => Some("{}"),
        "decisions" => Some("[{\"type\":\"approve\"}]"),
        "method" => Some("\"run.start\""),
        "id" | "version" => Some("1"),
        "definition" => Some("{\"model\":\"script:x\"}"),
        _ => None,
    }
}
