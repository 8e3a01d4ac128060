//! Tests of texts without content, which providers refuse in requests.

use super::*;
use crate::domain::message::Content;

const PROTOCOLS: [ProviderKind; 5] = [
    ProviderKind::OpenAi,
    ProviderKind::OpenAiResponses,
    ProviderKind::Anthropic,
    ProviderKind::GoogleGenAi,
    ProviderKind::Ollama,
];

/// Returns the body of the request for this conversation. The provider refuses it, which is no matter here.
async fn encoded(kind: ProviderKind, messages: Vec<Message>) -> Value {
    let (model, server) = fake(kind, vec![Reply::error(400, &[], json!({}))]).await;
    let _ = ask(&model, request(messages)).await;
    server.last().body
}

/// Returns the text of the user at the beginning of a request.
fn first_of_user(kind: ProviderKind, body: &Value) -> &Value {
    match kind {
        ProviderKind::OpenAiResponses => &body["input"][0]["content"][0]["text"],
        ProviderKind::Anthropic => &body["messages"][0]["content"][0]["text"],
        ProviderKind::GoogleGenAi => &body["contents"][0]["parts"][0]["text"],
        _ => &body["messages"][1]["content"],
    }
}

/// Returns what a request has of result number `at`, after a message of the user and the calls.
fn result(kind: ProviderKind, calls: usize, at: usize, body: &Value) -> &Value {
    match kind {
        ProviderKind::OpenAiResponses => &body["input"][1 + calls + at]["output"],
        ProviderKind::Anthropic => &body["messages"][2]["content"][at]["content"],
        ProviderKind::GoogleGenAi => &body["contents"][2]["parts"][at]["functionResponse"]["response"]["result"],
        _ => &body["messages"][3 + at]["content"],
    }
}

fn block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[tokio::test]
async fn a_message_without_text_says_so() {
    for kind in PROTOCOLS {
        for content in [
            Content::Text(String::new()),
            Content::Text(" \n".to_owned()),
            Content::Blocks(vec![]),
            Content::Blocks(vec![block("")]),
        ] {
            let mut message = Message::human("");
            message.content = content;
            let body = encoded(kind, vec![message]).await;
            assert_eq!(first_of_user(kind, &body), "(empty message)", "{kind}: {body}");
        }
    }
}

#[tokio::test]
async fn a_result_of_a_tool_has_no_empty_text() {
    let contents = [
        Content::Text(String::new()),
        Content::Blocks(vec![]),
        Content::Blocks(vec![block(""), block("\n")]),
        Content::Blocks(vec![block(""), block("found"), block("")]),
    ];
    let calls = ["a", "b", "c", "d"].map(|id| ToolCall::new(id, "look", serde_json::Map::new()));
    let role = Role::Ai {
        tool_calls: calls.to_vec(),
        invalid_tool_calls: vec![],
        usage_metadata: None,
    };
    let mut messages = vec![Message::human("find it"), Message::new(role, "")];
    for (call, content) in calls.iter().zip(contents) {
        messages.push(Message::tool(call, ToolStatus::Success, content));
    }
    for kind in PROTOCOLS {
        let body = encoded(kind, messages.clone()).await;
        for (at, text) in [
            (0, "(no tool output)"),
            (1, "(no tool output)"),
            (2, "(no tool output)"),
            (3, "found"),
        ] {
            let expected = match kind {
                ProviderKind::Anthropic => json!([block(text)]),
                _ => json!(text),
            };
            assert_eq!(result(kind, calls.len(), at, &body), &expected, "{kind}: {body}");
        }
    }
}
