//! The conversion of a `tools/call` result into an outcome: a result for the model or a delegation. Pure functions.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::domain::call::ToolOutput;
use crate::domain::input::read_initial;
use crate::domain::machine::Failure;
use crate::domain::message::{Content, Message, Role, ToolCall, ToolStatus};
use crate::domain::run::AfterDelegation;
use crate::tool::outcome::{CallOutcome, Delegation};

/// The key in `_meta` under which a result may request a delegation.
pub(super) const DELEGATE: &str = "adjutant/delegate";

/// Converts the result of `call`.
pub(super) fn outcome(call: &ToolCall, result: Value) -> Result<CallOutcome, Failure> {
    let Value::Object(mut result) = result else {
        return Err(invalid_result("the result is not an object"));
    };
    let structured = result.remove("structuredContent").filter(|value| !value.is_null());
    if let Some(delegation) = delegation(&result, structured.as_ref())? {
        return Ok(CallOutcome::Delegate(delegation));
    }
    let blocks = match result.remove("content") {
        Some(Value::Array(blocks)) => blocks.into_iter().filter_map(block).collect(),
        Some(_) => return Err(invalid_result("`content` is not a list")),
        None => vec![],
    };
    let content = match (content(blocks), &structured) {
        (None, Some(structured)) => structured.to_string().into(),
        (content, _) => content.unwrap_or_default(),
    };
    if result.get("isError").and_then(Value::as_bool) == Some(true) {
        let text = content.text();
        let text = if text.trim().is_empty() {
            "it gives no reason".to_owned()
        } else {
            text
        };
        return Err(Failure::new("McpToolError", text));
    }
    let role = Role::Tool {
        tool_call_id: call.id.clone(),
        artifact: structured,
        status: ToolStatus::Success,
    };
    let message = Message {
        name: Some(call.name.clone()),
        ..Message::new(role, content)
    };
    Ok(CallOutcome::Answer(ToolOutput::message(message)))
}

/// Returns the delegation that a result requests in `structuredContent.delegate` or in `_meta`.
fn delegation(result: &Map<String, Value>, structured: Option<&Value>) -> Result<Option<Delegation>, Failure> {
    let in_meta = || result.get("_meta")?.get(DELEGATE);
    let Some(request) = structured
        .and_then(|structured| structured.get("delegate"))
        .or_else(in_meta)
    else {
        return Ok(None);
    };
    let text_of = |name: &str| request.get(name).and_then(Value::as_str);
    match (text_of("subagent_type"), text_of("description")) {
        (Some(subagent), Some(work)) => {
            let format = request
                .get("response_format")
                .filter(|format| !format.is_null())
                .cloned();
            let initial = request.get("initial_messages").filter(|initial| !initial.is_null());
            let no_list = || invalid_result("`delegate.initial_messages` is not a list");
            let initial = initial
                .map(|initial| initial.as_array().ok_or_else(no_list))
                .transpose()?;
            let initial = initial.map_or(&[][..], Vec::as_slice);
            let initial = read_initial(initial)
                .map_err(|(at, why)| invalid_result(&format!("`delegate.initial_messages[{at}]`: {why}")))?;
            let prompt = match request.get("system_prompt") {
                None | Some(Value::Null) => None,
                Some(Value::String(prompt)) => Some(prompt.clone()),
                Some(_) => return Err(invalid_result("`delegate.system_prompt` is not a text")),
            };
            let then = match request.get("then") {
                None | Some(Value::Null) => AfterDelegation::default(),
                Some(then) => AfterDelegation::deserialize(then)
                    .map_err(|_| invalid_result("`delegate.then` is neither `answer` nor `call_again`"))?,
            };
            let delegation = Delegation::to(subagent, work)
                .with_response_format(format)
                .with_initial_messages(initial)
                .then(then);
            Ok(Some(delegation.with_system_prompt(prompt)))
        }
        _ => Err(invalid_result(
            "`delegate` is not an object with the texts `description` and `subagent_type`",
        )),
    }
}

fn invalid_result(why: &str) -> Failure {
    Failure::new("ToolAnswerError", format!("its answer is invalid: {why}"))
}

/// Converts a content block into the form of model messages; `None` if it has no content.
fn block(block: Value) -> Option<Value> {
    let text = |text: &str| json!({"type": "text", "text": text});
    let text_of = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    match block.get("type").and_then(Value::as_str)? {
        "text" => text_of(&block, "text").map(|content| text(&content)),
        kind @ ("image" | "audio") => {
            let mime = text_of(&block, "mimeType").unwrap_or_else(|| format!("{kind}/*"));
            Some(json!({"type": kind, "base64": text_of(&block, "data")?, "mime_type": mime}))
        }
        "resource_link" => {
            let uri = text_of(&block, "uri")?;
            let name = text_of(&block, "name").unwrap_or_default();
            Some(text(format!("{name} {uri}").trim()))
        }
        "resource" => {
            let resource = block.get("resource")?;
            match (text_of(resource, "text"), text_of(resource, "blob")) {
                (Some(content), _) => Some(text(&content)),
                (None, Some(data)) => {
                    let mime = text_of(resource, "mimeType").unwrap_or_else(|| "application/octet-stream".to_owned());
                    if mime.starts_with("image/") {
                        return Some(json!({"type": "image", "base64": data, "mime_type": mime}));
                    }
                    let mut file = json!({"type": "file", "base64": data, "mime_type": mime});
                    let uri = text_of(resource, "uri").unwrap_or_default();
                    if let Some(name) = name_in(&uri) {
                        file["filename"] = name.into();
                    }
                    Some(file)
                }
                (None, None) => None,
            }
        }
        _ => Some(text(&block.to_string())),
    }
}

/// Returns the name of the file at an address, if there is one.
fn name_in(uri: &str) -> Option<&str> {
    let path = uri.split(['?', '#']).next()?;
    path.rsplit('/').next().filter(|name| !name.is_empty())
}

/// Joins blocks into one text if all are texts.
fn content(blocks: Vec<Value>) -> Option<Content> {
    if blocks.is_empty() {
        return None;
    }
    let texts: Option<Vec<&str>> = blocks
        .iter()
        .map(|block| block.get("text").filter(|_| block["type"] == "text")?.as_str())
        .collect();
    match texts {
        Some(texts) => Some(texts.join("\n").into()),
        None => Some(Content::Blocks(blocks)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> ToolCall {
        ToolCall::new("c1", "docs__search", Map::new())
    }

    fn message_of(result: Value) -> Value {
        match outcome(&call(), result) {
            Ok(CallOutcome::Answer(answer)) => {
                let message = serde_json::to_value(&answer.writes.messages[0]).expect("a message");
                json!([message["content"], message["artifact"], message["status"]])
            }
            other => json!(format!("{other:?}")),
        }
    }

    #[test]
    fn texts_are_one_text_and_images_stay_blocks() {
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(
            message_of(json!({"content": [text("a"), text("b")]})),
            json!(["a\nb", null, "success"])
        );
        let image = json!({"type": "image", "data": "AAAA", "mimeType": "image/png"});
        let shown = json!({"type": "image", "base64": "AAAA", "mime_type": "image/png"});
        assert_eq!(
            message_of(json!({"content": [text("a"), image]})),
            json!([[text("a"), shown], null, "success"])
        );
        let linked = json!({"type": "resource_link", "uri": "file:///x", "name": "x"});
        let inside = json!({"type": "resource", "resource": {"uri": "file:///y", "text": "why"}});
        assert_eq!(
            message_of(json!({"content": [linked, inside]})),
            json!(["x file:///x\nwhy", null, "success"])
        );
        let resource = json!({"uri": "file:///reports/may.pdf?v=1", "mimeType": "application/pdf", "blob": "JVBERi0="});
        let file = json!({"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf", "filename": "may.pdf"});
        assert_eq!(
            message_of(json!({"content": [{"type": "resource", "resource": resource}]})),
            json!([[file], null, "success"])
        );
        assert_eq!(message_of(json!({})), json!(["", null, "success"]));
    }

    #[test]
    fn structured_content_is_the_artifact_and_the_text_if_there_is_no_other() {
        let structured = json!({"n": 1});
        assert_eq!(
            message_of(json!({"content": [], "structuredContent": structured})),
            json!(["{\"n\":1}", {"n": 1}, "success"])
        );
    }

    #[test]
    fn a_result_may_be_an_error_or_request_a_delegation() {
        let failed = outcome(
            &call(),
            json!({"isError": true, "content": [{"type": "text", "text": "no"}]}),
        );
        assert_eq!(failed, Err(Failure::new("McpToolError", "no")));
        let request = json!({"description": "d", "subagent_type": "s"});
        let delegated = Ok(CallOutcome::Delegate(Delegation::to("s", "d")));
        assert_eq!(
            outcome(&call(), json!({"structuredContent": {"delegate": request}})),
            delegated
        );
        assert_eq!(
            outcome(&call(), json!({"content": [], "_meta": {DELEGATE: request}})),
            delegated
        );
        assert!(outcome(&call(), json!({"structuredContent": {"delegate": 1}})).is_err());
        let request = |prompt: Value| json!({"description": "d", "subagent_type": "s", "system_prompt": prompt});
        let instructed = Delegation::to("s", "d").with_system_prompt(Some("You count.".to_owned()));
        let read = |prompt: Value| outcome(&call(), json!({"structuredContent": {"delegate": request(prompt)}}));
        assert_eq!(read(json!("You count.")), Ok(CallOutcome::Delegate(instructed)));
        assert_eq!(read(json!(null)), delegated);
        let then = |then: &str| {
            let request = json!({"description": "d", "subagent_type": "s", "then": then});
            outcome(&call(), json!({"structuredContent": {"delegate": request}}))
        };
        let again = Delegation::to("s", "d").then(AfterDelegation::CallAgain);
        assert_eq!(then("call_again"), Ok(CallOutcome::Delegate(again)));
        assert_eq!(then("answer"), delegated);
        assert!(then("later").is_err_and(|failure| failure.message.contains("`delegate.then`")));
        assert!(read(json!(7)).is_err_and(|failure| failure.message.contains("`delegate.system_prompt`")));
    }
}
