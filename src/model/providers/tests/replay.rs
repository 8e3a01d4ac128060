//! Tests of the messages that are sent back to the provider in the next turn.

use super::*;

const THINKING: [&str; 10] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m-1\",\"content\":[],\"stop_reason\":null,\"usage\":{\"input_tokens\":4,\"output_tokens\":1}}}",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"SIG\"}}",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"call_a\",\"name\":\"look\",\"input\":{}}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"q\\\":\\\"a\\\"}\"}}",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":4}}",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}",
];

/// Returns a message after a round trip through its stored form.
fn stored(message: &Message) -> Message {
    serde_json::from_str(&serde_json::to_string(message).unwrap()).unwrap()
}

fn called(args: Value) -> (Message, Message) {
    let Value::Object(args) = args else { panic!("no object") };
    let call = ToolCall::new("call_a", "look", args);
    let result = Message::tool(&call, ToolStatus::Error, "nothing there");
    let role = Role::Ai {
        tool_calls: vec![call],
        invalid_tool_calls: vec![],
        usage_metadata: None,
    };
    (Message::new(role, "I look"), result)
}

#[tokio::test]
async fn signed_thinking_goes_back_unchanged_and_edited_calls_win() {
    let (model, server) = fake(ProviderKind::Anthropic, vec![Reply::stream(&THINKING)]).await;
    let (events, answer) = ask(&model, request(vec![Message::human("hi")])).await;
    let answer = stored(&answer.unwrap());
    assert!(events.contains(&ModelEvent::Reasoning("hm".to_owned())));
    assert_eq!(answer.additional_kwargs["reasoning_content"], "hm");
    assert_eq!(answer.additional_kwargs["native"]["provider"], "anthropic");
    let result = Message::tool(&answer.tool_calls()[0], ToolStatus::Success, "found");
    let mut edited = answer.clone();
    if let Role::Ai { tool_calls, .. } = &mut edited.role {
        tool_calls[0].args.insert("q".to_owned(), json!("edited"));
    }
    for (turn, q) in [(answer.clone(), "a"), (edited, "edited")] {
        server.prepare(Reply::stream(&THINKING));
        let _ = ask(&model, request(vec![Message::human("hi"), turn, result.clone()])).await;
        let sent = server.last().body;
        let blocks = &sent["messages"][1]["content"];
        assert_eq!(&blocks[0]["type"], &json!("thinking"), "{sent}");
        assert_eq!(&blocks[0]["signature"], &json!("SIG"), "{sent}");
        assert_eq!(&blocks[1]["id"], &json!("call_a"), "{sent}");
        assert_eq!(&blocks[1]["input"]["q"], &json!(q), "{sent}");
        assert_eq!(sent["messages"][2]["content"][0]["tool_use_id"], "call_a", "{sent}");
    }
    let (other, server) = fake(ProviderKind::OpenAi, vec![Reply::stream(&[])]).await;
    let _ = ask(&other, request(vec![Message::human("hi"), answer, result])).await;
    let sent = server.last().body;
    assert!(!sent.to_string().contains("SIG"), "{sent}");
    assert_eq!(sent["messages"][2]["tool_calls"][0]["id"], "call_a", "{sent}");
}

#[tokio::test]
async fn google_thought_signatures_go_back() {
    let frame = r#"data: {"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"look","args":{"q":"a"}},"thoughtSignature":"U0lH"}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":4,"totalTokenCount":13},"modelVersion":"m-1"}"#;
    let (model, server) = fake(
        ProviderKind::GoogleGenAi,
        vec![Reply::stream(&[frame]), Reply::stream(&[frame])],
    )
    .await;
    let answer = stored(&ask(&model, request(vec![Message::human("hi")])).await.1.unwrap());
    let result = Message::tool(&answer.tool_calls()[0], ToolStatus::Success, "found");
    let _ = ask(&model, request(vec![Message::human("hi"), answer, result])).await;
    let sent = server.last().body;
    assert_eq!(sent["contents"][1]["parts"][0]["thoughtSignature"], "U0lH", "{sent}");
    assert_eq!(
        sent["contents"][2]["parts"][0]["functionResponse"]["name"], "look",
        "{sent}"
    );
}

#[tokio::test]
async fn turns_are_rebuilt_from_their_fields() {
    let (turn, result) = called(json!({"q": "a"}));
    let history = || {
        vec![
            Message::human("hi"),
            turn.clone(),
            result.clone(),
            Message::human("and?"),
        ]
    };
    let (model, server) = fake(ProviderKind::Anthropic, vec![Reply::stream(&[])]).await;
    let _ = ask(&model, request(history())).await;
    let sent = server.last().body;
    assert_eq!(sent["messages"][1]["content"][1]["input"]["q"], "a", "{sent}");
    assert_eq!(sent["messages"][2]["content"][0]["is_error"], true, "{sent}");
    let (model, server) = fake(ProviderKind::OpenAi, vec![Reply::stream(&[]), Reply::stream(&[])]).await;
    let _ = ask(&model, request(history())).await;
    let sent = server.last().body;
    assert_eq!(sent["messages"][3]["tool_call_id"], "call_a", "{sent}");
    // A request without tools still declares the called tool, but disables calling.
    let mut bare = request(history());
    bare.tools.clear();
    let _ = ask(&model, bare).await;
    let sent = server.last().body;
    assert_eq!(
        sent["messages"][2]["tool_calls"][0]["function"]["name"], "look",
        "{sent}"
    );
    assert_eq!(&sent["tools"][0]["function"]["name"], &json!("look"), "{sent}");
    assert_eq!(&sent["tool_choice"], &json!("none"), "{sent}");
}

#[tokio::test]
async fn images_and_files_are_sent_and_unknown_blocks_are_named() {
    let png = "data:image/png;base64,iVBORw0KGgo=";
    let blocks = json!([
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": png}},
        {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": "iVBORw0KGgo="},
        {"type": "image", "url": "https://example.com/a.png"},
        {"type": "file", "mime_type": "application/pdf", "base64": "JVBERi0="},
    ]);
    let Value::Array(blocks) = blocks else {
        panic!("no list")
    };
    let human = Message::new(Role::Human, "");
    let human = |blocks: Vec<Value>| Message {
        content: crate::domain::message::Content::Blocks(blocks),
        ..human.clone()
    };
    let (model, server) = fake(ProviderKind::Anthropic, vec![Reply::stream(&[])]).await;
    let _ = ask(&model, request(vec![human(blocks)])).await;
    let sent = server.last().body["messages"][0]["content"].clone();
    assert_eq!(sent[1]["source"]["data"], "iVBORw0KGgo=", "{sent}");
    assert_eq!(sent[2]["source"]["media_type"], "image/png", "{sent}");
    assert_eq!(sent[3]["source"]["url"], "https://example.com/a.png", "{sent}");
    assert_eq!(&sent[4]["type"], &json!("document"), "{sent}");
    assert_eq!(&sent[4]["source"]["data"], &json!("JVBERi0="), "{sent}");
    let strange = human(vec![json!({"type": "hologram", "data": "x"})]);
    let strange = Message {
        id: Some("h1".to_owned()),
        ..strange
    };
    match ask(&model, request(vec![Message::human("hi"), strange])).await.1 {
        Err(ModelError::UnsupportedContent { message }) => {
            let place = "`messages[1].content[0]`, in the message `h1`";
            assert!(message.contains("`hologram`") && message.contains(place), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn reasoning_of_compatible_servers_is_kept_and_sent_back() {
    let frames = [
        r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"hm"},"finish_reason":null}]}"#,
        r#"data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":null}]}"#,
        "data: {\"id\":\"c\",\"model\":\"m-1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]",
    ];
    let (model, server) = fake(
        ProviderKind::OpenAi,
        vec![Reply::stream(&frames), Reply::stream(&frames)],
    )
    .await;
    let (events, answer) = ask(&model, request(vec![Message::human("hi")])).await;
    let answer = stored(&answer.unwrap());
    assert_eq!(
        events,
        [
            ModelEvent::Reasoning("hm".to_owned()),
            ModelEvent::Text("yes".to_owned())
        ]
    );
    assert_eq!(answer.additional_kwargs["reasoning_content"], "hm");
    let _ = ask(
        &model,
        request(vec![Message::human("hi"), answer, Message::human("sure?")]),
    )
    .await;
    let sent = server.last().body;
    assert_eq!(sent["messages"][2]["reasoning_content"], "hm", "{sent}");
}

#[tokio::test]
async fn server_tools_citations_and_redacted_thinking_go_back() {
    let mut frames: Vec<String> = THINKING[..1].iter().map(|frame| (*frame).to_owned()).collect();
    let blocks = [
        json!({"type": "redacted_thinking", "data": "SECRET"}),
        json!({"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}),
        json!({"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result", "url": "https://example.com", "title": "t", "encrypted_content": "E"}]}),
        json!({"type": "text", "text": "cited", "citations": [{"type": "web_search_result_location", "url": "https://example.com", "title": "t", "cited_text": "c", "encrypted_index": "I"}]}),
    ];
    for (index, block) in blocks.iter().enumerate() {
        let start = json!({"type": "content_block_start", "index": index, "content_block": block});
        frames.push(format!("event: content_block_start\ndata: {start}"));
        frames.push(format!(
            "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}"
        ));
    }
    frames.extend(THINKING[8..].iter().map(|frame| frame.replace("tool_use", "end_turn")));
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let (model, server) = fake(
        ProviderKind::Anthropic,
        vec![Reply::stream(&frames), Reply::stream(&frames)],
    )
    .await;
    let answer = stored(&ask(&model, request(vec![Message::human("hi")])).await.1.unwrap());
    assert_eq!(answer.content.text(), "cited");
    assert!(answer.tool_calls().is_empty(), "the provider ran its own tool");
    let _ = ask(
        &model,
        request(vec![Message::human("hi"), answer, Message::human("more")]),
    )
    .await;
    let sent = server.last().body["messages"][1]["content"].clone();
    assert_eq!(&sent[0]["data"], &json!("SECRET"), "{sent}");
    assert_eq!(&sent[1]["id"], &json!("srv_1"), "{sent}");
    assert_eq!(sent[2]["content"][0]["encrypted_content"], "E", "{sent}");
    assert_eq!(sent[3]["citations"][0]["encrypted_index"], "I", "{sent}");
}
