//! Tests of every wire format: text, parallel calls, invalid arguments and failures.

use super::*;

const OPENAI: [&str; 8] = [
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m-1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
    r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}"#,
    r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}"#,
    r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"look","arguments":""}}]},"finish_reason":null}]}"#,
    r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"q\":\"a\"}"}}]},"finish_reason":null}]}"#,
    r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_b","type":"function","function":{"name":"look","arguments":"{broken"}}]},"finish_reason":null}]}"#,
    r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
    "data: {\"id\":\"c\",\"model\":\"m-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"total_tokens\":13,\"prompt_tokens_details\":{\"cached_tokens\":5},\"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\ndata: [DONE]",
];

const ANTHROPIC: [&str; 13] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m-1\",\"content\":[],\"stop_reason\":null,\"usage\":{\"input_tokens\":4,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hel\"}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"lo\"}}",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"call_a\",\"name\":\"look\",\"input\":{}}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"q\\\":\\\"a\\\"}\"}}",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"call_b\",\"name\":\"look\",\"input\":{}}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{broken\"}}",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":2}",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":4}}",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}",
];

const GOOGLE: [&str; 3] = [
    r#"data: {"candidates":[{"content":{"role":"model","parts":[{"text":"Hel"}]},"index":0}],"modelVersion":"m-1"}"#,
    r#"data: {"candidates":[{"content":{"role":"model","parts":[{"text":"lo"}]},"index":0}],"modelVersion":"m-1"}"#,
    r#"data: {"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"look","args":{"q":"a"}}},{"functionCall":{"name":"look","args":{"q":"b"}}}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":4,"totalTokenCount":13,"cachedContentTokenCount":5},"modelVersion":"m-1"}"#,
];

/// Returns the beginning of a valid answer: two pieces of text.
fn beginning(kind: ProviderKind) -> &'static [&'static str] {
    match kind {
        ProviderKind::Anthropic => &ANTHROPIC[..4],
        ProviderKind::GoogleGenAi => &GOOGLE[..2],
        _ => &OPENAI[..3],
    }
}

const WIRES: [ProviderKind; 4] = [
    ProviderKind::OpenAi,
    ProviderKind::Anthropic,
    ProviderKind::GoogleGenAi,
    ProviderKind::Ollama,
];

fn hello() -> ModelRequest {
    request(vec![Message::human("hello")])
}

#[tokio::test]
async fn text_and_parallel_calls_arrive_with_ids_usage_and_metadata() {
    for kind in WIRES {
        let frames: &[&str] = match kind {
            ProviderKind::Anthropic => &ANTHROPIC,
            ProviderKind::GoogleGenAi => &GOOGLE,
            _ => &OPENAI,
        };
        let (model, _) = fake(kind, vec![Reply::stream(frames)]).await;
        let (events, answer) = ask(&model, hello()).await;
        let answer = answer.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(text_of(&events), "Hello", "{kind}");
        assert_eq!(answer.content.text(), "Hello");
        let calls = calls_of(&events);
        assert_eq!(calls.len(), 2, "{kind}: {events:?}");
        assert_eq!(calls[0].2, r#"{"q":"a"}"#, "{kind}");
        assert_eq!(answer.tool_calls()[0].args["q"], "a");
        assert_eq!(answer.tool_calls()[0].id, calls[0].0);
        if kind == ProviderKind::GoogleGenAi {
            assert_eq!(answer.tool_calls()[1].id, calls[1].0);
            assert_ne!(calls[0].0, calls[1].0);
        } else {
            assert_eq!(calls[0].0.as_str(), "call_a");
            assert_eq!(calls[1].0.as_str(), "call_b");
            let broken = &answer.invalid_tool_calls()[0];
            assert_eq!(broken.args.as_deref(), Some("{broken"));
            assert_eq!(broken.id.as_deref(), Some("call_b"));
            let why = broken.error.as_deref().unwrap_or_default();
            assert!(why.contains("key must be a string at line 1"), "{kind}: {why}");
        }
        let Role::Ai {
            usage_metadata: Some(usage),
            ..
        } = &answer.role
        else {
            panic!("{kind}: no usage")
        };
        assert_eq!(&usage["input_tokens"], &json!(9), "{kind}");
        assert_eq!(&usage["output_tokens"], &json!(4), "{kind}");
        assert_eq!(usage["input_token_details"]["cache_read"], 5, "{kind}");
        let metadata = json!({"finish_reason": "tool_calls", "model_name": "m-1", "model_provider": kind.as_str()});
        for (name, value) in metadata.as_object().expect("an object") {
            assert_eq!(&answer.response_metadata[name], value, "{kind}");
        }
        let extra = match kind == ProviderKind::OpenAi {
            true => json!({"refusal": null}),
            false => json!({}),
        };
        assert_eq!(json!(answer.additional_kwargs), extra, "{kind}");
    }
}

/// Returns the frames of an answer with these chunks: their deltas, and what else they have.
fn frames_of_chat(chunks: &[(Value, Value)]) -> Vec<String> {
    let frame = |(delta, more): &(Value, Value)| {
        let mut chunk = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1"});
        chunk["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": more["finish_reason"]}]);
        for name in ["id", "citations", "unknown"] {
            if let Some(value) = more.get(name) {
                chunk[name] = value.clone();
            }
        }
        format!("data: {chunk}")
    };
    chunks.iter().map(frame).chain(["data: [DONE]".to_owned()]).collect()
}

/// Returns the answer with these chunks, which is the same whether pieces are read alone or with whole chunks.
async fn read_in_both_ways(mut chunks: Vec<(Value, Value)>) -> (Vec<ModelEvent>, Message) {
    let alone = frames_of_chat(&chunks);
    // With a key that is not known, a chunk is left to rig-core.
    for (_, more) in &mut chunks {
        more["unknown"] = json!(1);
    }
    let whole = frames_of_chat(&chunks);
    let mut answers = vec![];
    for frames in [alone, whole] {
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        let (model, _) = fake(ProviderKind::OpenAi, vec![Reply::stream(&frames)]).await;
        let (events, answer) = ask(&model, hello()).await;
        answers.push((events, answer.expect("an answer")));
    }
    assert_eq!(answers[0], answers[1], "{chunks:?}");
    answers.swap_remove(0)
}

#[tokio::test]
async fn an_answer_of_a_chat_is_the_same_whether_its_texts_are_read_alone_or_with_whole_chunks() {
    let text = |text: &str| (json!({"content": text}), json!({}));
    let call = json!({"index": 0, "id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let annotation = json!({"type": "url_citation", "url_citation": {"url": "https://example.org/b", "title": "b"}});
    let chunks = vec![
        (json!({"role": "assistant", "content": ""}), json!({})),
        text("a"),
        text(""),
        text("b"),
        (json!({"content": null}), json!({})),
        (json!({"reasoning_content": "r"}), json!({})),
        text("c"),
        text("d"),
        (json!({"content": "e"}), json!({"id": "d"})),
        text("f"),
        (json!({"content": [{"type": "text", "text": "g"}]}), json!({})),
        text("h"),
        (json!({"tool_calls": [call]}), json!({})),
        text("i"),
        text("j"),
        (json!({}), json!({"finish_reason": "tool_calls"})),
        text("k"),
        text("l"),
        (json!({"content": "m"}), json!({"citations": ["https://example.org/a"]})),
        text("n"),
        text("o \"p\"\n"),
        text("q"),
        text("r"),
        (json!({"content": null, "refusal": "s"}), json!({})),
        text("t\u{1f600}\u{7f}"),
        text("u"),
        (json!({"content": "v", "annotations": [annotation]}), json!({})),
        text("w"),
        text("x"),
    ];
    let (events, answer) = read_in_both_ways(chunks).await;
    let whole = "abcdefghijklmno \"p\"\nqrst\u{1f600}\u{7f}uvwx";
    assert_eq!(text_of(&events), whole);
    assert_eq!(answer.content.text(), whole);
    assert_eq!(answer.response_metadata["id"], "c");
}

/// Returns the chunk that a line describes: `text` or `end` with their words, or calls, each with its index, its id and its
/// arguments. A call without an id is a piece of one.
fn chunk_of(line: &str) -> (Value, Value) {
    let call = |words: &str| {
        let mut words = words.splitn(3, ' ');
        let mut next = || words.next().expect("a word");
        let mut call = match next() {
            "-" => json!({}),
            index => json!({"index": index.parse::<u64>().expect("an index")}),
        };
        match next() {
            "-" => {}
            id => {
                call["id"] = id.into();
                call["type"] = "function".into();
                call["function"]["name"] = "look".into();
            }
        }
        call["function"]["arguments"] = next().into();
        call
    };
    match line.split_once(' ') {
        Some(("text", text)) => (json!({"content": text}), json!({})),
        Some(("end", reason)) => (json!({}), json!({"finish_reason": reason})),
        Some(_) | None => {
            let calls: Vec<Value> = line.split('|').map(call).collect();
            (json!({"content": null, "tool_calls": calls}), json!({}))
        }
    }
}

#[tokio::test]
async fn a_call_of_a_chat_is_the_same_whether_its_arguments_are_read_alone_or_with_whole_chunks() {
    let answers: [(&[&str], &[&str]); 18] = [
        (
            &["0 a ", r#"0 - {"q""#, "0 - ", r#"0 - :"ä \"b\""}"#],
            &[r#"{"q":"ä \"b\""}"#],
        ),
        // Several calls, after one another and at the same time.
        (
            &["0 a ", "0 - {}", "1 b {", r#"1 - "q":"#, "1 - 1}"],
            &["{}", r#"{"q":1}"#],
        ),
        (
            &["0 a {", "1 b ", r#"0 - "q":"#, "1 - {", "0 - 1}", "1 - }"],
            &[r#"{"q":1}"#, "{}"],
        ),
        (
            &["0 a {|1 b ", "1 - {}", r#"0 - "q":1"#, "0 - }"],
            &[r#"{"q":1}"#, "{}"],
        ),
        // Texts between the pieces.
        (
            &["text a", "0 a ", r#"0 - {"q":"#, "text b", "0 - 1", "0 - }", "text c"],
            &[r#"{"q":1}"#],
        ),
        // The word for none.
        (&["0 a null", r#"0 - {"q":"#, "0 - 1}"], &[r#"{"q":1}"#]),
        (&["0 a ", "0 - null", r#"0 - {"q":"#, "0 - 1}"], &[r#"{"q":1}"#]),
        // The whole arguments once more, and the id with each piece.
        (&["0 a ", "0 - {}", "0 - {}"], &["{}{}"]),
        (&["0 a {", r#"0 a "q":1"#, "0 - }"], &[r#"{"q":1}"#]),
        // Another call with the index of the one before.
        (
            &["0 a ", "0 - {}", "0 b ", r#"0 - {"q":1"#, "0 - }"],
            &["{}", r#"{"q":1}"#],
        ),
        // Calls and pieces without an index.
        (&["- a {", r#"- - "q":"#, "- - 1}"], &[r#"{"q":1}"#]),
        (&["0 a ", r#"0 - {"q":"#, "- - 1", "0 - }"], &[r#"{"q":1}"#]),
        (&["0 a ", "0 - {}", "- b {", "- - }"], &["{}", "{}"]),
        (&["0 a ", "0 - {}", "1 b ", "1 - {", "- - }"], &["{}", "{}"]),
        // Calls that go on after the end.
        (&["0 a {", "end tool_calls", "0 - }"], &["{}"]),
        (
            &["0 a {}", "end tool_calls", "1 b {", r#"1 - "q":"#, "1 - 1}"],
            &["{}", r#"{"q":1}"#],
        ),
        // Calls that were cut.
        (&["0 a ", r#"0 - {"q":"#, "0 - [1,", "end length"], &[r#"{"q":[1,"#]),
        (&["0 a ", "0 - null", "0 - {}", "end length"], &["{}"]),
    ];
    for (lines, expected) in answers {
        let mut chunks: Vec<(Value, Value)> = lines.iter().map(|line| chunk_of(line)).collect();
        if !lines.iter().any(|line| line.starts_with("end")) {
            chunks.push(chunk_of("end tool_calls"));
        }
        let (events, _) = read_in_both_ways(chunks).await;
        let arguments: Vec<String> = calls_of(&events).into_iter().map(|(_, _, args)| args).collect();
        assert_eq!(arguments, expected, "{lines:?}");
    }
}

#[tokio::test]
async fn requests_carry_key_system_tools_and_settings() {
    for kind in WIRES {
        let (model, server) = fake(kind, vec![Reply::stream(beginning(kind))]).await;
        let mut asked = hello();
        asked.tool_choice = crate::model::ToolChoice::Any;
        asked.settings.extend([
            ("temperature".to_owned(), json!(0.5)),
            ("max_tokens".to_owned(), json!(77)),
        ]);
        let _ = ask(&model, asked).await;
        let received = server.last();
        assert!(
            !received.uri.to_string().contains("sk-secret"),
            "{kind}: {}",
            received.uri
        );
        let header = |name: &str| {
            received
                .headers
                .get(name)
                .map(|value| value.to_str().expect("a text").to_owned())
        };
        let body = received.body;
        match kind {
            ProviderKind::Anthropic => {
                assert_eq!(header("x-api-key").as_deref(), Some("sk-secret"));
                assert_eq!(&body["max_tokens"], &json!(77));
                assert_eq!(&body["tool_choice"]["type"], &json!("any"));
                assert_eq!(&body["tools"][0]["name"], &json!("look"));
                assert_eq!(&body["temperature"], &json!(0.5));
            }
            ProviderKind::GoogleGenAi => {
                assert_eq!(header("x-goog-api-key").as_deref(), Some("sk-secret"));
                assert_eq!(body["generationConfig"]["maxOutputTokens"], 77);
                assert_eq!(body["toolConfig"]["functionCallingConfig"]["mode"], "ANY");
            }
            _ => {
                assert_eq!(header("authorization").as_deref(), Some("Bearer sk-secret"));
                assert_eq!(&body["max_tokens"], &json!(77));
                assert_eq!(&body["messages"][0]["content"], &json!("be brief"));
                assert_eq!(&body["tool_choice"], &json!("required"));
                assert_eq!(&body["stream"], &json!(true));
            }
        }
    }
}

#[tokio::test]
async fn each_request_has_the_tools_and_the_instructions_that_it_was_given() {
    let words = ["looks", "looks", "sees \"more\"", ""];
    for kind in [ProviderKind::OpenAi, ProviderKind::Ollama] {
        let replies = words.map(|_| Reply::stream(beginning(kind)));
        let (model, server) = fake(kind, replies.into()).await;
        for text in words {
            let mut asked = request(vec![Message::human("hello"), Message::new(Role::System, "later")]);
            let parameters = asked.tools[0].parameters.clone();
            let names = ["look", "listen"];
            let tool = |name: &str| ToolSpec {
                name: name.to_owned(),
                description: text.to_owned(),
                parameters: parameters.clone(),
            };
            asked.tools = names.map(|name| Arc::new(tool(name))).into();
            asked.system = text.into();
            let _ = ask(&model, asked).await;
            let body = server.last().body;
            let function = |name: &str| json!({"name": name, "description": text, "parameters": parameters});
            let tools = names.map(|name| json!({"type": "function", "function": function(name)}));
            assert_eq!(body["tools"], json!(tools), "{kind}");
            let mut messages = vec![
                json!({"role": "user", "content": "hello"}),
                json!({"role": "system", "content": "later"}),
            ];
            if !text.is_empty() {
                messages.insert(0, json!({"role": "system", "content": text}));
            }
            assert_eq!(body["messages"], json!(messages), "{kind}");
        }
    }
}

/// Claude refuses a request that forces a call while it thinks. Newer models refuse every such request.
#[tokio::test]
async fn a_model_that_refuses_to_be_forced_to_a_call_is_not_forced() {
    let thinks = |kind: &str| json!({"thinking": {"type": kind, "budget_tokens": 1024}, "max_tokens": 4096});
    let cases = [
        ("claude-sonnet-4-5", json!({}), "any"),
        ("claude-sonnet-4-5", thinks("disabled"), "any"),
        ("claude-sonnet-4-5", thinks("enabled"), "auto"),
        ("claude-fable-5-1", json!({}), "auto"),
    ];
    for (name, settings, expected) in cases {
        let kind = ProviderKind::Anthropic;
        let replies = vec![Reply::stream(beginning(kind))];
        let (providers, server) = fake_provider(kind, RequestSettings::default(), replies).await;
        let model = providers.model(&format!("lab:{name}")).expect("a model");
        let mut asked = hello();
        asked.tool_choice = crate::model::ToolChoice::Any;
        asked.settings = settings.as_object().cloned().expect("settings");
        let _ = ask(&model, asked).await;
        let body = server.last().body;
        assert_eq!(body["tools"][0]["name"], "look", "{name}: {body}");
        let choice = body["tool_choice"]["type"].as_str().unwrap_or("auto");
        assert_eq!(choice, expected, "{name}: {body}");
    }
}

#[tokio::test]
async fn a_request_without_tools_does_not_say_whether_they_are_called_in_parallel() {
    let kind = ProviderKind::OpenAi;
    for has_tools in [true, false] {
        let (model, server) = fake(kind, vec![Reply::stream(beginning(kind))]).await;
        let mut asked = hello();
        asked.settings.insert("parallel_tool_calls".to_owned(), json!(false));
        if !has_tools {
            asked.tools.clear();
        }
        let _ = ask(&model, asked).await;
        let sent = server.last().body.get("parallel_tool_calls").cloned();
        assert_eq!(sent, has_tools.then(|| json!(false)));
    }
}

#[tokio::test]
async fn limits_say_how_long_to_wait_and_do_not_repeat_the_key() {
    for kind in WIRES {
        let body = json!({"error": {"message": "slow down, sk-secret", "type": "rate_limit_error", "code": "slow"}});
        let (model, _) = fake(kind, vec![Reply::error(429, &[("retry-after", "3")], body)]).await;
        match ask(&model, hello()).await.1 {
            Err(ModelError::RateLimited { retry_after, message }) => {
                assert_eq!(retry_after, Some(Duration::from_secs(3)), "{kind}");
                assert_eq!(message, "slow down, [key]");
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn statuses_have_their_own_errors() {
    for kind in WIRES {
        let reply = |status, text: &str| Reply::error(status, &[], json!({"error": {"message": text}}));
        let long = reply(400, "This model's maximum context length is 8 tokens");
        let replies = vec![
            reply(500, "oops"),
            reply(401, "who are you"),
            long,
            reply(400, "no such thing"),
        ];
        let (model, _) = fake(kind, replies).await;
        assert!(
            matches!(ask(&model, hello()).await.1, Err(ModelError::Unavailable { .. })),
            "{kind}"
        );
        assert!(
            matches!(
                ask(&model, hello()).await.1,
                Err(ModelError::Refused { status: 401, .. })
            ),
            "{kind}"
        );
        assert!(
            matches!(ask(&model, hello()).await.1, Err(ModelError::TooLong { .. })),
            "{kind}"
        );
        assert!(
            matches!(
                ask(&model, hello()).await.1,
                Err(ModelError::Refused { status: 400, .. })
            ),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn every_way_to_say_too_long_is_recognised() {
    let texts = [
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "the request exceeds the available context size. try increasing the context size",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "input length exceeds the context length",
        "This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
        "Please reduce the length of the messages or completion.",
    ];
    let reply = |text: &&str| Reply::error(400, &[], json!({"error": {"message": text}}));
    for kind in WIRES {
        let (model, _) = fake(kind, texts.iter().map(reply).collect()).await;
        for text in texts {
            let answer = ask(&model, hello()).await.1;
            assert!(
                matches!(answer, Err(ModelError::TooLong { .. })),
                "{kind}: {text}: {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_request_that_a_rate_limit_never_admits_is_too_long() {
    let text = "Request too large for m-1 in organization org-1 on tokens per min (TPM): Limit 30000, Requested 38513. \
        The input or output tokens must be reduced in order to run successfully.";
    let body = json!({"error": {"message": text, "type": "tokens", "code": "rate_limit_exceeded"}});
    for kind in WIRES {
        let (model, _) = fake(kind, vec![Reply::error(429, &[("retry-after", "3")], body.clone())]).await;
        let answer = ask(&model, hello()).await.1;
        assert!(matches!(answer, Err(ModelError::TooLong { .. })), "{kind}: {answer:?}");
    }
}

#[tokio::test]
async fn a_cut_stream_is_no_answer() {
    for kind in WIRES {
        let (model, _) = fake(kind, vec![Reply::cut(beginning(kind)), Reply::stream(beginning(kind))]).await;
        for how in ["broken connection", "missing end"] {
            let (events, end) = ask(&model, hello()).await;
            assert_eq!(text_of(&events), "Hello", "{kind}, {how}");
            assert!(
                matches!(end, Err(ModelError::Interrupted { .. })),
                "{kind}, {how}: {end:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_error_inside_the_stream_is_no_answer() {
    for kind in WIRES {
        let error = match kind {
            ProviderKind::Anthropic => {
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too busy\"}}"
            }
            ProviderKind::GoogleGenAi => r#"data: {"error":{"code":503,"message":"too busy","status":"UNAVAILABLE"}}"#,
            _ => r#"data: {"error":{"message":"too busy","type":"server_error","code":503}}"#,
        };
        let late: Vec<&str> = beginning(kind).iter().copied().chain([error]).collect();
        let (model, _) = fake(kind, vec![Reply::stream(&late), Reply::stream(&[error])]).await;
        let (events, end) = ask(&model, hello()).await;
        assert_eq!(text_of(&events), "Hello", "{kind}");
        assert!(
            matches!(&end, Err(ModelError::Interrupted { message }) if message.contains("too busy")),
            "{kind}: {end:?}"
        );
        let (_, end) = ask(&model, hello()).await;
        assert!(matches!(&end, Err(ModelError::Unavailable { .. })), "{kind}: {end:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let config = ProviderConfig {
        kind: ProviderKind::OpenAi,
        base_url: Some("http://127.0.0.1:9".to_owned()),
        api_key: ApiKeySource::None,
        windows: ContextWindows::default(),
        requests: RequestSettings::default(),
    };
    let none = RetryPolicy {
        max_retries: 0,
        ..RetryPolicy::default()
    };
    let providers = Providers::new([("lab".to_owned(), config)].into(), |_| None).with_retries(none);
    let end = ask(&providers.model("lab:m").expect("a model"), hello()).await.1;
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
}

#[tokio::test]
async fn a_blocked_prompt_is_refused_and_not_tried_again() {
    let frame = r#"data: {"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":9,"totalTokenCount":9},"modelVersion":"m-1"}"#;
    let (model, _) = fake(ProviderKind::GoogleGenAi, vec![Reply::stream(&[frame])]).await;
    let end = ask(&model, hello()).await.1;
    assert!(matches!(end, Err(ModelError::Refused { .. })), "{end:?}");
}

#[tokio::test]
async fn an_answer_cut_by_its_length_keeps_what_came() {
    let frames: Vec<String> = OPENAI
        .iter()
        .map(|frame| frame.replace(r#""tool_calls"}"#, r#""length"}"#))
        .collect();
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let (model, _) = fake(ProviderKind::OpenAi, vec![Reply::stream(&frames)]).await;
    let answer = ask(&model, hello()).await.1.expect("an answer");
    assert_eq!(answer.response_metadata["finish_reason"], "length");
    assert_eq!(answer.tool_calls().len(), 1);
    assert_eq!(answer.invalid_tool_calls().len(), 1);
}

/// Returns the user messages of a request, each with its blocks.
fn user_messages(kind: ProviderKind, body: &Value) -> Vec<Vec<String>> {
    let (messages, blocks) = match kind {
        ProviderKind::GoogleGenAi => (&body["contents"], "parts"),
        _ => (&body["messages"], "content"),
    };
    let text = |block: &Value| block["text"].as_str().unwrap_or_default().to_owned();
    let texts = |message: &Value| match &message[blocks] {
        Value::String(text) => vec![text.clone()],
        Value::Array(blocks) => blocks.iter().map(text).collect(),
        other => panic!("{kind}: {other}"),
    };
    messages
        .as_array()
        .expect("messages")
        .iter()
        .filter(|message| message["role"] == "user")
        .map(texts)
        .collect()
}

#[tokio::test]
async fn messages_of_the_user_that_follow_one_another_stay_apart_where_the_protocol_takes_them() {
    for kind in WIRES {
        let (model, server) = fake(kind, vec![Reply::stream(beginning(kind))]).await;
        let messages = ["one", "two", "three"].map(Message::human);
        let _ = ask(&model, request(messages.to_vec())).await;
        let body = server.last().body;
        let sent = user_messages(kind, &body);
        let expected = match kind {
            ProviderKind::OpenAi | ProviderKind::Ollama => vec![vec!["one"], vec!["two"], vec!["three"]],
            _ => vec![vec!["one", "two", "three"]],
        };
        assert_eq!(sent, expected, "{kind}: {body}");
        assert!(!body.to_string().contains("separator"), "{kind}: {body}");
    }
}

#[tokio::test]
async fn a_message_after_a_tools_result_is_one_of_its_own() {
    for kind in [ProviderKind::OpenAi, ProviderKind::Ollama] {
        let (model, server) = fake(kind, vec![Reply::stream(beginning(kind))]).await;
        let call = ToolCall::new("call_1", "look", serde_json::Map::new());
        let role = Role::Ai {
            tool_calls: vec![call.clone()],
            invalid_tool_calls: vec![],
            usage_metadata: None,
        };
        let messages = vec![
            Message::human("one"),
            Message::new(role, ""),
            Message::tool(&call, ToolStatus::Success, "found"),
            Message::human("two"),
            Message::human("three"),
        ];
        let _ = ask(&model, request(messages)).await;
        let body = server.last().body;
        let roles: Vec<&str> = body["messages"]
            .as_array()
            .expect("messages")
            .iter()
            .filter_map(|m| m["role"].as_str())
            .collect();
        assert_eq!(
            roles,
            ["system", "user", "assistant", "tool", "user", "user"],
            "{kind}: {body}"
        );
    }
}

#[tokio::test]
async fn a_file_in_the_result_of_a_tool_follows_the_results() {
    for kind in [
        ProviderKind::OpenAi,
        ProviderKind::OpenAiResponses,
        ProviderKind::Anthropic,
        ProviderKind::GoogleGenAi,
    ] {
        let (model, server) = fake(kind, vec![Reply::stream(beginning(kind))]).await;
        let calls = ["call_1", "call_2"].map(|id| ToolCall::new(id, "look", serde_json::Map::new()));
        let role = Role::Ai {
            tool_calls: calls.to_vec(),
            invalid_tool_calls: vec![],
            usage_metadata: None,
        };
        let file =
            json!({"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf", "filename": "report.pdf"});
        let found = crate::domain::message::Content::Blocks(vec![file]);
        let messages = vec![
            Message::human("one"),
            Message::new(role, ""),
            Message::tool(&calls[0], ToolStatus::Success, found),
            Message::tool(&calls[1], ToolStatus::Success, "nothing more"),
            Message::human("go on"),
        ];
        let _ = ask(&model, request(messages)).await;
        let body = server.last().body;
        if kind == ProviderKind::OpenAi {
            let sent = body["messages"].as_array().expect("messages").iter();
            let roles: Vec<&str> = sent.filter_map(|message| message["role"].as_str()).collect();
            let expected = ["system", "user", "assistant", "tool", "tool", "user", "user"];
            assert_eq!(roles, expected, "{body}");
        }
        let body = body.to_string();
        let parts = [
            "report.pdf",
            "follows after the results",
            "nothing more",
            "that a tool has returned",
            "JVBERi0=",
            "go on",
        ];
        let places = parts.map(|part| {
            body.find(part)
                .unwrap_or_else(|| panic!("{kind}: {part} is not in {body}"))
        });
        assert!(places.is_sorted(), "{kind}: {places:?} in {body}");
        assert_eq!(body.matches("JVBERi0=").count(), 1, "{kind}: {body}");
    }
}
