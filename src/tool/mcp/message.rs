//! The messages of the Model Context Protocol: JSON-RPC 2.0. Pure functions.

use serde_json::{Map, Value, json};

/// The protocol version that is requested. Servers answer with their own; the parts used here are the same in all
/// versions.
pub(super) const VERSION: &str = "2025-06-18";

/// A message from a server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Incoming {
    /// The answer to a request.
    Answer(u64, Result<Value, RpcError>),
    /// A request from the server; the value is the reply to send.
    Request(Value),
    /// The notification that the list of tools has changed.
    ToolsChanged,
    /// Any other message; it is ignored.
    Other,
}

/// The JSON-RPC error of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
}

/// Builds a request.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Builds a notification.
pub(super) fn notification(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// Builds the notification that cancels request `id`.
pub(super) fn cancelled(id: u64) -> Value {
    notification(
        "notifications/cancelled",
        &json!({"requestId": id, "reason": "the call was cancelled"}),
    )
}

/// Returns the parameters of `initialize`.
pub(super) fn initialize_params() -> Value {
    let own = json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
    json!({"protocolVersion": VERSION, "capabilities": {}, "clientInfo": own})
}

/// Parses a message from a server. Anything invalid is `Other`, since some programs print logs to standard output.
pub(super) fn read(message: &Value) -> Incoming {
    let Some(fields) = message.as_object() else {
        return Incoming::Other;
    };
    match (fields.get("method").and_then(Value::as_str), fields.get("id")) {
        (Some("notifications/tools/list_changed"), None) => Incoming::ToolsChanged,
        (Some("ping"), Some(id)) => Incoming::Request(json!({"jsonrpc": "2.0", "id": id, "result": {}})),
        (Some(_), Some(id)) => {
            let error = json!({"code": -32601, "message": "this client does not support the method"});
            Incoming::Request(json!({"jsonrpc": "2.0", "id": id, "error": error}))
        }
        (None, Some(id)) => id
            .as_u64()
            .map_or(Incoming::Other, |id| Incoming::Answer(id, result(fields))),
        (_, None) => Incoming::Other,
    }
}

fn result(fields: &Map<String, Value>) -> Result<Value, RpcError> {
    match fields.get("error") {
        None => Ok(fields.get("result").cloned().unwrap_or_default()),
        Some(error) => Err(RpcError {
            code: error.get("code").and_then(Value::as_i64).unwrap_or_default(),
            message: error
                .get("message")
                .and_then(Value::as_str)
                .unwrap_or("it gives no reason")
                .to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_requests_and_notifications_are_distinguished() {
        let error = RpcError {
            code: -1,
            message: "no".to_owned(),
        };
        let cases = [
            (
                json!({"jsonrpc": "2.0", "id": 3, "result": {"a": 1}}),
                Incoming::Answer(3, Ok(json!({"a": 1}))),
            ),
            (
                json!({"id": 3, "error": {"code": -1, "message": "no"}}),
                Incoming::Answer(3, Err(error)),
            ),
            (
                json!({"method": "notifications/tools/list_changed"}),
                Incoming::ToolsChanged,
            ),
            (
                json!({"method": "notifications/message", "params": {}}),
                Incoming::Other,
            ),
            (
                json!({"method": "ping", "id": "x"}),
                Incoming::Request(json!({"jsonrpc": "2.0", "id": "x", "result": {}})),
            ),
            (json!("hello"), Incoming::Other),
        ];
        for (message, incoming) in cases {
            assert_eq!(read(&message), incoming, "{message}");
        }
        let request = read(&json!({"method": "sampling/createMessage", "id": 1, "params": {}}));
        assert!(matches!(request, Incoming::Request(answer) if answer["error"]["code"] == -32601));
    }
}
