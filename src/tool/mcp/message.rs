//! The messages of the Model Context Protocol: JSON-RPC 2.0. Pure.

use serde_json::{Map, Value, json};

/// The version of the protocol that is asked for. Servers answer with the one they speak, and what is used here is the
/// same in all of them.
pub(super) const VERSION: &str = "2025-06-18";

/// What a server says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Said {
    /// The answer to a request.
    Answer(u64, Result<Value, Refusal>),
    /// It asks something itself; this is to be sent back.
    Asks(Value),
    /// Its list of tools has changed.
    ToolsChanged,
    /// Something that does not matter here.
    Other,
}

/// Why a server did not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
}

/// A request.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A notification, which nobody answers.
pub(super) fn notification(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// That nobody waits for the answer to request `id` any more.
pub(super) fn cancelled(id: u64) -> Value {
    notification(
        "notifications/cancelled",
        &json!({"requestId": id, "reason": "the call was broken off"}),
    )
}

/// What this program tells of itself when it begins to talk.
pub(super) fn introduction() -> Value {
    let own = json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
    json!({"protocolVersion": VERSION, "capabilities": {}, "clientInfo": own})
}

/// Reads a message of a server. What is none is passed over: some programs print more than they should.
pub(super) fn read(message: &Value) -> Said {
    let Some(fields) = message.as_object() else {
        return Said::Other;
    };
    match (fields.get("method").and_then(Value::as_str), fields.get("id")) {
        (Some("notifications/tools/list_changed"), None) => Said::ToolsChanged,
        (Some("ping"), Some(id)) => Said::Asks(json!({"jsonrpc": "2.0", "id": id, "result": {}})),
        (Some(_), Some(id)) => {
            let error = json!({"code": -32601, "message": "this client offers nothing of the kind"});
            Said::Asks(json!({"jsonrpc": "2.0", "id": id, "error": error}))
        }
        (None, Some(id)) => id.as_u64().map_or(Said::Other, |id| Said::Answer(id, result(fields))),
        (_, None) => Said::Other,
    }
}

fn result(fields: &Map<String, Value>) -> Result<Value, Refusal> {
    match fields.get("error") {
        None => Ok(fields.get("result").cloned().unwrap_or_default()),
        Some(error) => Err(Refusal {
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
    fn answers_questions_and_changes_are_told_apart() {
        let refusal = Refusal {
            code: -1,
            message: "no".to_owned(),
        };
        let cases = [
            (
                json!({"jsonrpc": "2.0", "id": 3, "result": {"a": 1}}),
                Said::Answer(3, Ok(json!({"a": 1}))),
            ),
            (
                json!({"id": 3, "error": {"code": -1, "message": "no"}}),
                Said::Answer(3, Err(refusal)),
            ),
            (
                json!({"method": "notifications/tools/list_changed"}),
                Said::ToolsChanged,
            ),
            (json!({"method": "notifications/message", "params": {}}), Said::Other),
            (
                json!({"method": "ping", "id": "x"}),
                Said::Asks(json!({"jsonrpc": "2.0", "id": "x", "result": {}})),
            ),
            (json!("hello"), Said::Other),
        ];
        for (message, said) in cases {
            assert_eq!(read(&message), said, "{message}");
        }
        let asks = read(&json!({"method": "sampling/createMessage", "id": 1, "params": {}}));
        assert!(matches!(asks, Said::Asks(answer) if answer["error"]["code"] == -32601));
    }
}
