//! The messages of the Model Context Protocol: JSON-RPC 2.0. Pure functions.

use rmcp::model::{
    ClientJsonRpcMessage, CustomRequest, CustomResult, DiscoverResult, ElicitRequest, ErrorCode, ErrorData,
    InitializeResult, PingRequest, ProgressToken, ProtocolVersion, RequestId, ServerCapabilities, ServerJsonRpcMessage,
    ServerRequest, ServerResult,
};
use serde_json::{Map, Value};

use super::error::ConnectionError;
use super::notices::{LogLine, Notice, Progress};

/// The method of a question to a human.
pub(super) const ELICITATION: &str = "elicitation/create";

/// A message from a server.
#[derive(Debug, Clone)]
pub(super) enum Incoming {
    /// The answer to a request.
    Answer(ServerJsonRpcMessage),
    /// A request from the server.
    Request(ServerJsonRpcMessage),
    /// The notification that the list of tools has changed.
    ToolsChanged,
    /// A notification about a call.
    Notice(Notice),
    /// Any other message; it is ignored.
    Other,
}

/// Reads a message from a server. Anything invalid is `Other`, since some programs print logs to standard output.
///
/// `rmcp` could read messages, too, but it starts a task for each notification and writes a line to the log, and one
/// odd entry in a list of tools makes it lose the whole list. So it gets no notifications, and results as plain JSON.
pub(super) fn read(message: Value) -> Incoming {
    let Value::Object(mut fields) = message else {
        return Incoming::Other;
    };
    let id = fields.remove("id");
    let params = fields.remove("params");
    match (fields.get("method").and_then(Value::as_str), id) {
        (Some("notifications/tools/list_changed"), None) => Incoming::ToolsChanged,
        (Some("notifications/progress"), None) => params.and_then(progress).map_or(Incoming::Other, Incoming::Notice),
        (Some("notifications/message"), None) => {
            let line = params.and_then(|params| LogLine::read(&params));
            line.map_or(Incoming::Other, |line| Incoming::Notice(Notice::Log(line)))
        }
        (Some(method), Some(id)) => request_id(id).map_or(Incoming::Other, |id| {
            Incoming::Request(ServerJsonRpcMessage::request(request(method, params), id))
        }),
        (None, Some(id)) => request_id(id).map_or(Incoming::Other, |id| {
            Incoming::Answer(match result(fields) {
                Ok(result) => ServerJsonRpcMessage::response(result, id),
                Err(error) => ServerJsonRpcMessage::error(error, Some(id)),
            })
        }),
        (_, None) => Incoming::Other,
    }
}

/// Returns the progress of a call in the parameters of a notification.
fn progress(mut params: Value) -> Option<Notice> {
    let token = request_id(params.get_mut("progressToken")?.take())?;
    let progress = Progress::read(&params)?;
    Some(Notice::Progress(ProgressToken(token), progress))
}

fn request_id(id: Value) -> Option<RequestId> {
    match id {
        Value::Number(id) => id.as_i64().map(RequestId::Number),
        Value::String(id) => Some(RequestId::String(id.into())),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the request of this method. Only questions have parameters on which the reply depends.
fn request(method: &str, params: Option<Value>) -> ServerRequest {
    let params = params.filter(|_| method == ELICITATION);
    if let Some(Ok(params)) = params.map(serde_json::from_value) {
        return ServerRequest::ElicitRequest(ElicitRequest::new(params));
    }
    match method {
        "ping" => ServerRequest::PingRequest(PingRequest::default()),
        _ => ServerRequest::CustomRequest(CustomRequest::new(method, None)),
    }
}

/// Returns the result in an answer. That of `initialize` is the one which names a protocol version, and that of
/// `server/discover` the one which names several; nothing else in them is needed.
fn result(mut fields: Map<String, Value>) -> Result<ServerResult, ErrorData> {
    if let Some(error) = fields.get("error") {
        let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
        let message = error.get("message").and_then(Value::as_str);
        return Err(ErrorData::new(
            ErrorCode(i32::try_from(code).unwrap_or_default()),
            message.unwrap_or("it gives no reason").to_owned(),
            None,
        ));
    }
    let result = fields.remove("result").unwrap_or_default();
    if let Some(versions) = result.get("supportedVersions").and_then(Value::as_array) {
        let versions = versions
            .iter()
            .cloned()
            .filter_map(|version| serde_json::from_value(version).ok());
        let discovered = DiscoverResult::new(versions.collect(), ServerCapabilities::default());
        return Ok(ServerResult::DiscoverResult(discovered));
    }
    let version = result.get("protocolVersion").filter(|version| version.is_string());
    Ok(match version.cloned().map(serde_json::from_value::<ProtocolVersion>) {
        Some(Ok(version)) => ServerResult::InitializeResult(
            InitializeResult::new(ServerCapabilities::default()).with_protocol_version(version),
        ),
        Some(Err(_)) | None => ServerResult::CustomResult(CustomResult(result)),
    })
}

/// Returns whether a message is the answer to request `id`.
pub(super) fn is_answer(message: &ServerJsonRpcMessage, id: &RequestId) -> bool {
    match message {
        ServerJsonRpcMessage::Response(response) => response.id == *id,
        ServerJsonRpcMessage::Error(error) => error.id.as_ref() == Some(id),
        ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => false,
    }
}

/// Returns the version of the protocol that the answer to `initialize` names.
pub(super) fn protocol_version(message: &ServerJsonRpcMessage) -> Option<&ProtocolVersion> {
    let ServerJsonRpcMessage::Response(response) = message else {
        return None;
    };
    if let ServerResult::InitializeResult(result) = &response.result {
        Some(&result.protocol_version)
    } else {
        None
    }
}

/// Returns the JSON text of a message to a server.
pub(super) fn write(message: &ClientJsonRpcMessage) -> Result<String, ConnectionError> {
    serde_json::to_string(message).map_err(|error| ConnectionError::Unreachable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns what is read from this message, as the JSON that `rmcp` would write.
    fn seen(message: Value) -> Value {
        match read(message) {
            Incoming::Answer(message) | Incoming::Request(message) => serde_json::to_value(message).unwrap(),
            Incoming::ToolsChanged => json!("tools changed"),
            Incoming::Notice(Notice::Progress(token, _)) => json!({"progress of": token}),
            Incoming::Notice(Notice::Log(_)) => json!("a line"),
            Incoming::Other => json!("other"),
        }
    }

    #[test]
    fn answers_requests_and_notifications_are_distinguished() {
        let result = json!({"jsonrpc": "2.0", "id": 3, "result": {"a": 1, "content": [{"type": "odd"}]}});
        assert_eq!(seen(result.clone()), result);
        let refused = json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -1, "message": "no"}});
        assert_eq!(seen(json!({"id": 3, "error": {"code": -1, "message": "no"}})), refused);
        assert_eq!(
            seen(json!({"id": 3, "error": 7}))["error"]["message"],
            "it gives no reason"
        );
        let ping = json!({"jsonrpc": "2.0", "id": "x", "method": "ping"});
        assert_eq!(seen(ping.clone()), ping);
        let sampling = json!({"method": "sampling/createMessage", "id": 1, "params": {"messages": []}});
        assert_eq!(
            seen(sampling),
            json!({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": null})
        );
        assert_eq!(
            seen(json!({"method": "notifications/tools/list_changed"})),
            "tools changed"
        );
        let progress = json!({"progressToken": 7, "progress": 1});
        assert_eq!(
            seen(json!({"method": "notifications/progress", "params": progress})),
            json!({"progress of": 7})
        );
        let line = json!({"level": "info", "data": "hello"});
        assert_eq!(
            seen(json!({"method": "notifications/message", "params": line})),
            "a line"
        );
        let without_token = json!({"method": "notifications/progress", "params": {"progress": 1}});
        let of_no_call = json!({"method": "notifications/progress", "params": {"progressToken": [], "progress": 1}});
        for other in [
            without_token,
            of_no_call,
            json!({"method": "notifications/progress", "params": 7}),
            json!({"method": "notifications/message"}),
            json!("hello"),
            json!({}),
        ] {
            assert_eq!(seen(other), "other");
        }
    }

    #[test]
    fn the_answer_to_initialize_is_the_one_that_names_a_protocol_version() {
        let version = |result: Value| match read(json!({"id": 0, "result": result})) {
            Incoming::Answer(message) => protocol_version(&message).map(ToString::to_string),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            version(json!({"protocolVersion": "2024-11-05"})).as_deref(),
            Some("2024-11-05")
        );
        assert_eq!(version(json!({"protocolVersion": 7})), None);
        assert_eq!(version(json!({"tools": []})), None);
        assert_eq!(version(json!({"supportedVersions": ["2026-07-28"]})), None);
    }

    #[test]
    fn the_answer_to_discover_is_the_one_that_names_versions() {
        let discovered = seen(json!({"id": 0, "result": {"supportedVersions": ["2026-07-28", 7, "2099-01-01"]}}));
        let versions = &discovered["result"]["supportedVersions"];
        assert_eq!(versions, &json!(["2026-07-28", "2099-01-01"]));
    }
}
