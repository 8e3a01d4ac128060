//! Tests of OpenAI's responses: what is sent, and the failures inside of streams.

use super::*;

const ADDED: &str = r#"data: {"type":"response.output_item.added","output_index":0,"item":{"id":"msg_1","type":"message","role":"assistant","status":"in_progress","content":[]}}"#;
const HEL: &str =
    r#"data: {"type":"response.output_text.delta","output_index":0,"item_id":"msg_1","content_index":0,"delta":"Hel"}"#;
const LO: &str =
    r#"data: {"type":"response.output_text.delta","output_index":0,"item_id":"msg_1","content_index":0,"delta":"lo"}"#;
const DONE: &str = r#"data: {"type":"response.output_item.done","output_index":0,"item":{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}]}}"#;
const CALLS: [&str; 6] = [
    r#"data: {"type":"response.output_item.added","output_index":1,"item":{"id":"fc_a","type":"function_call","status":"in_progress","call_id":"call_a","name":"look","arguments":""}}"#,
    r#"data: {"type":"response.function_call_arguments.delta","output_index":1,"item_id":"fc_a","delta":"{\"q\":\"a\"}"}"#,
    r#"data: {"type":"response.output_item.done","output_index":1,"item":{"id":"fc_a","type":"function_call","status":"completed","call_id":"call_a","name":"look","arguments":"{\"q\":\"a\"}"}}"#,
    r#"data: {"type":"response.output_item.added","output_index":2,"item":{"id":"fc_b","type":"function_call","status":"in_progress","call_id":"call_b","name":"look","arguments":""}}"#,
    r#"data: {"type":"response.function_call_arguments.delta","output_index":2,"item_id":"fc_b","delta":"{broken"}"#,
    r#"data: {"type":"response.output_item.done","output_index":2,"item":{"id":"fc_b","type":"function_call","status":"completed","call_id":"call_b","name":"look","arguments":"{broken"}}"#,
];
const COMPLETED: &str = r#"data: {"type":"response.completed","response":{"id":"resp_1","object":"response","status":"completed","model":"m-1","output":[],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":5},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":13}}}"#;

fn hello() -> ModelRequest {
    request(vec![Message::human("hello")])
}

#[tokio::test]
async fn text_and_parallel_calls_arrive_with_ids_usage_and_metadata() {
    let frames: Vec<&str> = [ADDED, HEL, LO, DONE]
        .into_iter()
        .chain(CALLS)
        .chain([COMPLETED])
        .collect();
    let (model, _) = fake(ProviderKind::OpenAiResponses, vec![Reply::stream(&frames)]).await;
    let (events, answer) = ask(&model, hello()).await;
    let answer = answer.expect("an answer");
    assert_eq!(text_of(&events), "Hello");
    assert_eq!(answer.content.text(), "Hello");
    let calls = calls_of(&events);
    assert_eq!(
        calls[0],
        ("call_a".to_owned(), "look".to_owned(), r#"{"q":"a"}"#.to_owned())
    );
    assert_eq!(calls[1], ("call_b".to_owned(), "look".to_owned(), "{broken".to_owned()));
    assert_eq!(answer.tool_calls()[0].args["q"], "a");
    assert_eq!(answer.invalid_tool_calls()[0].id.as_deref(), Some("call_b"));
    let Role::Ai {
        usage_metadata: Some(usage),
        ..
    } = &answer.role
    else {
        panic!("no usage")
    };
    assert_eq!(usage["input_tokens"], 9);
    assert_eq!(usage["input_token_details"]["cache_read"], 5);
    assert_eq!(usage["output_token_details"]["reasoning"], 2);
    assert_eq!(answer.response_metadata["finish_reason"], "tool_calls");
    assert_eq!(answer.response_metadata["model_provider"], "openai_responses");
    assert!(answer.additional_kwargs.is_empty(), "{:?}", answer.additional_kwargs);
}

#[tokio::test]
async fn requests_carry_key_instructions_tools_settings_and_the_form() {
    let (model, server) = fake(ProviderKind::OpenAiResponses, vec![Reply::stream(&[COMPLETED])]).await;
    let mut asked = hello();
    asked.tool_choice = crate::model::ToolChoice::Any;
    asked.settings.extend([
        ("max_tokens".to_owned(), json!(77)),
        ("text".to_owned(), json!({"verbosity": "low"})),
    ]);
    let schema = json!({"title": "Finding", "type": "object", "properties": {"a": {"type": "string"}}});
    let format =
        crate::definition::AnswerFormat::of(&json!({"schema": schema, "strategy": "provider", "strict": true}));
    asked.answer_format = Some(Arc::new(format));
    let _ = ask(&model, asked).await;
    let received = server.last();
    assert_eq!(received.uri.path(), "/responses");
    assert_eq!(received.headers["authorization"], "Bearer sk-secret");
    let body = received.body;
    assert_eq!(body["instructions"], "be brief");
    assert_eq!(body["max_output_tokens"], 77);
    assert_eq!(body["tool_choice"], "required");
    assert_eq!(body["store"], false);
    assert_eq!(body["text"]["verbosity"], "low");
    let expected = json!({"type": "json_schema", "name": "Finding", "schema": schema, "strict": true});
    assert_eq!(body["text"]["format"], expected);
}

#[tokio::test]
async fn failures_inside_of_the_stream_are_no_answer() {
    let failed = |code: &str, message: &str| {
        let error = json!({"code": code, "message": message});
        format!(
            "data: {}",
            json!({"type": "response.failed", "response": {"id": "r", "status": "failed", "error": error, "output": []}})
        )
    };
    let top = r#"data: {"type":"error","code":"server_error","message":"too busy"}"#.to_owned();
    let long = "Your input exceeds the context window of this model.";
    let limit = failed("rate_limit_exceeded", "slow down, sk-secret");
    let long = failed("context_length_exceeded", long);
    let busy = failed("server_error", "too busy");
    let replies = [&top, &busy, &limit, &long].map(|frame| Reply::stream(&[frame.as_str()]));
    let (model, server) = fake(ProviderKind::OpenAiResponses, replies.into()).await;
    for _ in 0..2 {
        let end = ask(&model, hello()).await.1;
        assert!(
            matches!(&end, Err(ModelError::Unavailable { message, .. }) if message.contains("too busy")),
            "{end:?}"
        );
    }
    let end = ask(&model, hello()).await.1;
    assert!(
        matches!(&end, Err(ModelError::RateLimited { message, .. }) if message == "slow down, [key]"),
        "{end:?}"
    );
    let end = ask(&model, hello()).await.1;
    assert!(matches!(&end, Err(ModelError::TooLong { .. })), "{end:?}");
    server.prepare(Reply::stream(&[ADDED, HEL, LO, &busy]));
    let (events, end) = ask(&model, hello()).await;
    assert_eq!(text_of(&events), "Hello");
    assert!(matches!(&end, Err(ModelError::Interrupted { .. })), "{end:?}");
    server.prepare(Reply::cut(&[ADDED, HEL, LO]));
    let (_, end) = ask(&model, hello()).await;
    assert!(matches!(&end, Err(ModelError::Interrupted { .. })), "{end:?}");
}
