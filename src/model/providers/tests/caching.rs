//! Tests of what requests say to the cache of a provider, and of the tokens that it had.

use super::*;

/// An answer of a chat with this usage.
fn answer(usage: &Value) -> Reply {
    let text = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1",
        "choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": null}]});
    let end = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let last = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [],
        "usage": usage});
    let frames = [text, end, last].map(|chunk| format!("data: {chunk}"));
    Reply::stream(&[
        frames[0].as_str(),
        frames[1].as_str(),
        frames[2].as_str(),
        "data: [DONE]",
    ])
}

fn plain() -> Reply {
    answer(&json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}))
}

/// An answer of Anthropic.
fn claude_says_hello() -> Reply {
    let start = json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant",
        "model": "m-1", "content": [], "stop_reason": null, "usage": {"input_tokens": 4, "output_tokens": 1}}});
    let events = [
        start,
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": 4}}),
        json!({"type": "message_stop"}),
    ];
    let frames = events.map(|event| format!("event: {}\ndata: {event}", event["type"].as_str().unwrap_or_default()));
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    Reply::stream(&frames)
}

fn refusal(message: &str) -> Reply {
    Reply::error(
        400,
        &[],
        json!({"error": {"message": message, "type": "invalid_request_error"}}),
    )
}

fn with(setting: PromptCaching) -> RequestSettings {
    RequestSettings {
        prompt_caching: Some(setting),
        ..RequestSettings::default()
    }
}

fn marked(text: &str) -> Value {
    json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}})
}

fn hello() -> ModelRequest {
    request(vec![Message::human("hello").with_id("h1")])
}

#[tokio::test]
async fn claude_behind_a_gateway_caches_the_instructions_and_the_conversation() {
    let (model, fake) = fake_with(ProviderKind::OpenAi, with(PromptCaching::Markers), vec![plain()]).await;
    let system = json!([{"text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"text": "today"}]);
    let request = ModelRequest {
        system: serde_json::from_value(system.clone()).expect("instructions"),
        ..hello()
    };
    ask(&model, request).await.1.expect("an answer");
    let sent = fake.last().body;
    let mut first = json!({"type": "text", "text": "be brief"});
    first["cache_control"] = system[0]["cache_control"].clone();
    assert_eq!(
        sent["messages"],
        json!([{"role": "system", "content": [first, marked("today")]},
            {"role": "user", "content": [marked("hello")]}])
    );
    assert_eq!(sent["tools"].as_array().map(Vec::len), Some(1), "{sent}");
}

#[tokio::test]
async fn a_gateway_that_refuses_markers_is_asked_again_without_and_gets_no_more() {
    let replies = vec![
        refusal("messages[0].content[0].cache_control: extra field"),
        plain(),
        plain(),
    ];
    let (model, fake) = fake_with(ProviderKind::OpenAi, with(PromptCaching::Markers), replies).await;
    assert_eq!(ask(&model, hello()).await.1.expect("an answer").content.text(), "hello");
    assert_eq!(fake.count(), 2);
    let without = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]);
    assert_eq!(fake.last().body["messages"], without);
    ask(&model, hello()).await.1.expect("an answer");
    assert_eq!(fake.last().body["messages"], without, "the refusal is remembered");
}

#[tokio::test]
async fn a_request_that_is_refused_for_another_reason_is_not_repeated() {
    let (model, fake) = fake_with(
        ProviderKind::OpenAi,
        with(PromptCaching::Markers),
        vec![refusal("no such model")],
    )
    .await;
    let refused = ask(&model, hello()).await.1.expect_err("a refusal");
    assert!(refused.to_string().contains("no such model"), "{refused}");
    assert_eq!(fake.count(), 1);
}

#[tokio::test]
async fn a_refusal_without_markers_is_told_and_leaves_the_next_request_marked() {
    let replies = vec![refusal("no cache_control"), refusal("too bad"), plain()];
    let (model, fake) = fake_with(ProviderKind::OpenAi, with(PromptCaching::Markers), replies).await;
    let refused = ask(&model, hello()).await.1.expect_err("a refusal");
    assert!(refused.to_string().contains("too bad"), "{refused}");
    assert_eq!(fake.count(), 2);
    ask(&model, hello()).await.1.expect("an answer");
    assert_eq!(fake.last().body["messages"][1]["content"], json!([marked("hello")]));
}

#[tokio::test]
async fn a_conversation_has_a_key_where_the_provider_takes_one_unless_a_setting_gives_another() {
    for kind in [ProviderKind::OpenAi, ProviderKind::OpenAiResponses] {
        let replies = vec![plain(), refusal("Unknown parameter: 'prompt_cache_key'"), plain()];
        let (model, fake) = fake_with(kind, with(PromptCaching::Key), replies).await;
        let mut own = hello();
        own.settings.insert("prompt_cache_key".to_owned(), json!("mine"));
        let _ = ask(&model, own).await;
        assert_eq!(fake.last().body["prompt_cache_key"], "mine", "{kind}");
        let _ = ask(&model, hello()).await;
        let without = fake.last().body;
        assert_eq!(without.get("prompt_cache_key"), None, "{kind}");
        let key = fake.last().body["prompt_cache_key"].clone();
        assert_eq!(key.as_str().map(str::len), Some(32), "{kind}: {key}");
    }
    let (model, fake) = fake(ProviderKind::OpenAi, vec![plain()]).await;
    ask(&model, hello()).await.1.expect("an answer");
    assert_eq!(fake.last().body.get("prompt_cache_key"), None, "a server of another");
}

#[tokio::test]
async fn anthropic_gets_no_markers_when_caching_is_off_and_again_without_those_it_refuses() {
    let (model, fake) = fake_with(
        ProviderKind::Anthropic,
        with(PromptCaching::Off),
        vec![claude_says_hello()],
    )
    .await;
    ask(&model, hello()).await.1.expect("an answer");
    let sent = fake.last().body.to_string();
    assert!(!sent.contains("cache_control"), "{sent}");
    let replies = vec![refusal("cache_control is not permitted"), claude_says_hello()];
    let (model, fake) = super::fake(ProviderKind::Anthropic, replies).await;
    ask(&model, hello()).await.1.expect("an answer");
    let without = fake.last().body.to_string();
    assert!(!without.contains("cache_control"), "{without}");
    let before = fake.last().body.to_string();
    assert!(before.contains("cache_control"), "{before}");
}

#[tokio::test]
async fn cached_tokens_are_counted_by_whatever_name_a_gateway_has_for_them() {
    let usages = [
        json!({"prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3}}),
        json!({"prompt_tokens_details": {"cached_tokens": 5}, "cache_creation_input_tokens": 3}),
        json!({"prompt_tokens_details": null, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}),
        json!({"prompt_tokens_details": {"cached_tokens": 0, "cache_creation_tokens": 3}, "cached_tokens": 5}),
        json!({"prompt_cache_hit_tokens": 5, "cache_creation_input_tokens": 3}),
    ];
    for mut usage in usages {
        let counts = json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13});
        for (name, count) in counts.as_object().expect("an object") {
            usage[name] = count.clone();
        }
        let (model, _) = fake(ProviderKind::OpenAi, vec![answer(&usage)]).await;
        let message = ask(&model, hello()).await.1.expect("an answer");
        let Role::Ai {
            usage_metadata: Some(counted),
            ..
        } = &message.role
        else {
            panic!("no usage for {usage}")
        };
        assert_eq!(counted["input_tokens"], 9, "{usage}");
        assert_eq!(
            counted["input_token_details"],
            json!({"cache_read": 5, "cache_creation": 3}),
            "{usage}"
        );
    }
}
