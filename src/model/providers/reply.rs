//! The conversion of a provider's response into a message.

use rig_core::completion::{CompletionResponse, FinishReason, Usage};
use rig_core::message::{AssistantContent, DocumentSourceKind, MimeType};
use serde_json::{Map, Value, json};

use super::{Protocol, native};
use crate::domain::message::{Content, InvalidToolCall, Message, Role, ToolCall};
use crate::model::ModelError;

/// Converts the whole answer into a message without an id. Reasoning is in `additional_kwargs.reasoning_content`.
pub(super) fn message(response: &CompletionResponse, kind: Protocol, model: &str) -> Result<Message, ModelError> {
    let finish = response.finish_reason();
    if finish.is_none()
        && let Some(error) = &response.error
    {
        // Without a finish reason the answer may be incomplete.
        return Err(ModelError::Interrupted { message: error.clone() });
    }
    let (calls, invalid) = calls(response);
    let role = Role::Ai {
        tool_calls: calls,
        invalid_tool_calls: invalid,
        usage_metadata: usage(&response.usage),
    };
    let mut message = Message::new(role, content(response));
    let reasoning = response.reasoning();
    if !reasoning.is_empty() {
        message
            .additional_kwargs
            .insert("reasoning_content".to_owned(), reasoning.into());
    }
    // LangChain's messages of OpenAI's chat completions always have it.
    if kind == Protocol::OpenAi || response.error.is_some() {
        let refusal = response.error.as_deref();
        message.additional_kwargs.insert("refusal".to_owned(), json!(refusal));
    }
    if let Some(native) = native::keep(response, kind) {
        message.additional_kwargs.insert(native::KEY.to_owned(), native);
    }
    let metadata = &mut message.response_metadata;
    // OpenAI's responses only say that they are complete.
    let ends_with_calls = kind == Protocol::OpenAiResponses && response.tool_calls().next().is_some();
    let finish = finish.map(|finish| match ends_with_calls && matches!(finish, FinishReason::Stop) {
        true => FinishReason::ToolCalls,
        false => finish,
    });
    if let Some(finish) = finish {
        metadata.insert("finish_reason".to_owned(), finish_reason(&finish).into());
    }
    metadata.insert("model_name".to_owned(), response.model().unwrap_or(model).into());
    metadata.insert("model_provider".to_owned(), kind.as_str().into());
    if let Some(id) = response.response_id() {
        metadata.insert("id".to_owned(), id.into());
    }
    Ok(message)
}

fn finish_reason(finish: &FinishReason) -> &str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Other(word) => word,
        _ => "unknown",
    }
}

/// Returns plain text, or blocks if the model also generated images.
fn content(response: &CompletionResponse) -> Content {
    let images: Vec<Value> = response.choice.iter().filter_map(image).collect();
    let text = response.text();
    if images.is_empty() {
        return Content::Text(text);
    }
    let text = (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
    Content::Blocks(text.into_iter().chain(images).collect())
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum of rig-core is not exhaustive; other forms cannot be shown"
)]
fn image(block: &AssistantContent) -> Option<Value> {
    let AssistantContent::Image(image) = block else {
        return None;
    };
    let mime = image.media_type.as_ref().map(MimeType::to_mime_type);
    match &image.data {
        DocumentSourceKind::Base64(data) => Some(json!({"type": "image", "base64": data, "mime_type": mime})),
        DocumentSourceKind::Url(url) => Some(json!({"type": "image", "url": url, "mime_type": mime})),
        _ => None,
    }
}

fn calls(response: &CompletionResponse) -> (Vec<ToolCall>, Vec<InvalidToolCall>) {
    let mut calls = Vec::new();
    let mut invalid = Vec::new();
    for call in response.tool_calls() {
        let id = call.id.wire().into_owned();
        let name = call.function.name.as_str().to_owned();
        match &call.function.invalid_arguments {
            None => calls.push(ToolCall::new(id, name, call.function.arguments.clone())),
            Some(text) => invalid.push(InvalidToolCall {
                name: Some(name),
                args: Some(text.clone()),
                id: Some(id),
                error: Some(why_unreadable(text)),
                kind: "invalid_tool_call".to_owned(),
            }),
        }
    }
    (calls, invalid)
}

/// Returns the reason why the text of a call's arguments is not a JSON object.
fn why_unreadable(text: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(text) {
        Err(error) => error.to_string(),
        Ok(_) => "they could not be read".to_owned(),
    }
}

fn usage(usage: &Usage) -> Option<Value> {
    let input = usage.input_tokens;
    let output = usage.output_tokens;
    if input.is_none() && output.is_none() {
        return None;
    }
    let details = |parts: &[(&str, Option<u64>)]| {
        parts
            .iter()
            .filter_map(|(name, count)| Some(((*name).to_owned(), Value::from((*count)?))))
            .collect::<Map<_, _>>()
    };
    let input = input.unwrap_or(0);
    let output = output.unwrap_or(0);
    Some(json!({
        "input_tokens": input,
        "output_tokens": output,
        "total_tokens": usage.total_tokens.unwrap_or(input + output),
        "input_token_details":
            details(&[("cache_read", usage.cached_input_tokens), ("cache_creation", usage.cache_creation_input_tokens)]),
        "output_token_details": details(&[("reasoning", usage.reasoning_tokens)]),
    }))
}
