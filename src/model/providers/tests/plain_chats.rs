//! Tests of conversations that are encoded without rig-core.

use super::*;
use crate::domain::message::Content;
use crate::domain::recent_texts::RecentTexts;

fn is_plain(request: &ModelRequest) -> bool {
    plain_chat::encode(request, &RecentTexts::default()).is_some()
}

/// Returns the message with its text in a block, which is left to rig-core.
fn in_block(mut message: Message) -> Message {
    let text = message.content.text();
    let is_empty = text.is_empty();
    let block = json!({"type": "text", "text": text});
    message.content = Content::Blocks(if is_empty { vec![] } else { vec![block] });
    message
}

#[tokio::test]
async fn a_plain_conversation_is_sent_as_rig_core_sends_it() {
    let Value::Object(args) = json!({"q": "a \"b\"\n", "list": [1, 2.5, null, true], "object": {"ä": {}}}) else {
        panic!("an object")
    };
    let calls = ["call_a", "call-b", "C3"].map(|id| ToolCall::new(id, "look", args.clone()));
    let [first, second, third] = &calls;
    let role = Role::Ai {
        tool_calls: vec![first.clone(), second.clone()],
        invalid_tool_calls: vec![],
        usage_metadata: None,
    };
    let conversation = vec![
        Message::human("find \"it\"\n"),
        Message::new(role, "I look"),
        Message::tool(first, ToolStatus::Success, " found\t"),
        Message::tool(second, ToolStatus::Error, "nothing"),
        Message::calling([third.clone()]),
        Message::tool(third, ToolStatus::Success, "€"),
        Message::ai("there"),
        Message::human("thanks"),
    ];
    let plain = request(conversation.clone());
    let other = request(conversation.into_iter().map(in_block).collect());
    assert!(is_plain(&plain));
    assert!(!is_plain(&other));
    let replies = vec![Reply::stream(&[]), Reply::stream(&[])];
    let (model, server) = fake(ProviderKind::OpenAi, replies).await;
    let mut sent = vec![];
    for asked in [plain, other] {
        let _ = ask(&model, asked).await;
        sent.push(server.last().body);
    }
    assert_eq!(sent[0]["messages"].as_array().map(Vec::len), Some(9), "{}", sent[0]);
    assert_eq!(sent[0], sent[1]);
}

#[tokio::test]
async fn a_request_like_an_earlier_one_is_sent_as_a_model_sends_its_first_one() {
    let call = ToolCall::new("call_a", "look", Default::default());
    let found = |text: &str| {
        vec![
            Message::human("find it"),
            Message::calling([call.clone()]),
            Message::tool(&call, ToolStatus::Success, text),
        ]
    };
    let schema = json!({"type": "object", "properties": {"answer": {"type": "string"}}});
    let format: crate::definition::AnswerFormat = serde_json::from_value(json!({"schema": schema})).expect("a format");
    let with_settings = |settings: Value| ModelRequest {
        settings: settings.as_object().cloned().unwrap_or_default(),
        ..request(found("settings"))
    };
    let other_tool = ToolSpec {
        name: "ask".to_owned(),
        ..ToolSpec::clone(&request(vec![]).tools[0])
    };
    let asked = [
        request(vec![Message::human("hello")]),
        request(found("it")),
        ModelRequest {
            system: "be long".into(),
            ..request(found("more"))
        },
        ModelRequest {
            system: " ".into(),
            ..request(found("without instructions"))
        },
        ModelRequest {
            tools: vec![],
            ..request(vec![Message::human("without tools")])
        },
        ModelRequest {
            tools: vec![Arc::new(other_tool)],
            ..request(found("with another tool"))
        },
        ModelRequest {
            tool_choice: crate::model::ToolChoice::Any,
            ..request(found("with a call"))
        },
        ModelRequest {
            answer_format: Some(Arc::new(format)),
            ..request(found("in a form"))
        },
        with_settings(json!({"temperature": 0.5, "max_tokens": 10, "top_p": 0.1, "user": "ada"})),
        with_settings(json!({"temperature": 0.25})),
    ];
    for caching in [PromptCaching::Off, PromptCaching::Key, PromptCaching::Markers] {
        let settings = || RequestSettings {
            prompt_caching: Some(caching),
            ..RequestSettings::default()
        };
        let replies = (0..2 * asked.len()).map(|_| Reply::stream(&[]));
        let (model, server) = fake_with(ProviderKind::OpenAi, settings(), replies.collect()).await;
        for request in &asked {
            assert!(is_plain(request));
            let (other_model, other_server) =
                fake_with(ProviderKind::OpenAi, settings(), vec![Reply::stream(&[])]).await;
            let _ = ask(&other_model, request.clone()).await;
            let first = other_server.last();
            for _ in 0..2 {
                let _ = ask(&model, request.clone()).await;
                let sent = server.last();
                assert_eq!(sent.body, first.body);
                assert_eq!(sent.uri, first.uri);
                for (name, value) in first.headers.iter().filter(|(name, _)| *name != "host") {
                    assert_eq!(sent.headers.get(name), Some(value), "{name}");
                }
            }
            let has_key = first.body.get("prompt_cache_key").is_some();
            assert_eq!(has_key, caching == PromptCaching::Key, "{}", first.body);
        }
    }
}
