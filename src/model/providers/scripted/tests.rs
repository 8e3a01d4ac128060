use std::sync::Arc;

use super::*;
use crate::domain::message::ToolStatus;
use crate::model::ToolSpec;

fn request_with(messages: Vec<Message>, tools: &[(&str, Value)]) -> ModelRequest {
    let spec = |(name, properties): &(&str, Value)| {
        Arc::new(ToolSpec {
            name: (*name).to_owned(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": properties}),
        })
    };
    ModelRequest {
        system: "be brief".into(),
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: tools.iter().map(spec).collect(),
        ..ModelRequest::default()
    }
}

async fn collect(model: &Scripted, request: ModelRequest) -> Result<(Vec<ModelEvent>, Option<ModelError>), ModelError> {
    let mut answer = model.ask(request).await?;
    let mut events = Vec::new();
    let mut error = None;
    while let Some(item) = answer.next().await {
        match item {
            Ok(event) => events.push(event),
            Err(found) => error = Some(found),
        }
    }
    Ok((events, error))
}

async fn answered(model: &Scripted, request: ModelRequest) -> Message {
    match collect(model, request).await.unwrap().0.pop() {
        Some(ModelEvent::Done(message)) => *message,
        other => panic!("no answer but {other:?}"),
    }
}

#[test]
fn pieces_are_words_or_of_a_size() {
    assert_eq!(pieces("ab  cd e", None), ["ab  ", "cd ", "e"]);
    assert_eq!(pieces("  ab", None), ["  ", "ab"]);
    assert_eq!(pieces("äbcde", Some(2)), ["äb", "cd", "e"]);
    assert!(pieces("", None).is_empty());
}

#[tokio::test]
async fn a_script_is_played_step_by_step_and_stays_at_the_last() {
    let model = Scripted::new("m");
    let script = r#"do: {"script": [{"text": "one", "tool_calls": [{"name": "a", "args": {"x": 1}}, {"name": "b", "id": "own", "args": "{oops"}]}, {"text": "two"}]} ok?"#;
    let first = answered(&model, request_with(vec![Message::human(script)], &[])).await;
    assert_eq!(first.content.text(), "one");
    assert_eq!(first.tool_calls().len(), 1);
    assert!(first.tool_calls()[0].id.starts_with("call_"));
    assert_eq!(first.tool_calls()[0].id.len(), 21);
    assert_eq!(first.invalid_tool_calls()[0].id.as_deref(), Some("own"));
    assert_eq!(first.response_metadata["finish_reason"], "tool_calls");
    let second = vec![Message::human(script), first.clone()];
    assert_eq!(answered(&model, request_with(second, &[])).await.content.text(), "two");
    let third = vec![Message::human(script), first.clone(), first];
    let third = answered(&model, request_with(third, &[])).await;
    assert_eq!(third.content.text(), "two");
    let Role::Ai {
        usage_metadata: Some(usage),
        ..
    } = third.role
    else {
        panic!("no usage")
    };
    assert_eq!(
        usage["total_tokens"],
        usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap()
    );
    assert_eq!(usage["input_token_details"], json!({}));
}

#[tokio::test]
async fn call_chunks_carry_id_and_name_once() {
    let model = Scripted::new("m");
    let script =
        r#"{"script": [{"tool_calls": [{"name": "a", "id": "i", "args": {"text": "a text longer than one piece"}}]}]}"#;
    let (events, _) = collect(&model, request_with(vec![Message::human(script)], &[]))
        .await
        .unwrap();
    let chunks: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            ModelEvent::CallChunk { index, id, name, args } => Some((*index, id.clone(), name.clone(), args.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(
        chunks[0],
        (0, Some("i".to_owned()), Some("a".to_owned()), String::new())
    );
    assert!(chunks.len() > 2 && chunks[1..].iter().all(|chunk| chunk.1.is_none() && chunk.2.is_none()));
    let args: String = chunks.into_iter().map(|chunk| chunk.3).collect();
    assert_eq!(
        serde_json::from_str::<Value>(&args).unwrap()["text"],
        "a text longer than one piece"
    );
}

#[tokio::test]
async fn failures_are_of_their_class() {
    let model = Scripted::new("m");
    let fail = |step: &str| request_with(vec![Message::human(format!(r#"{{"script": [{step}]}}"#))], &[]);
    let limited = collect(&model, fail(r#"{"error": 429, "retry_after": 1.5}"#))
        .await
        .unwrap_err();
    assert!(matches!(limited, ModelError::RateLimited { retry_after: Some(wait), .. } if wait.as_millis() == 1500));
    let down = collect(&model, fail(r#"{"error": 503}"#)).await.unwrap_err();
    assert!(matches!(down, ModelError::Unavailable { .. }));
    let refused = collect(&model, fail(r#"{"error": 400}"#)).await.unwrap_err();
    assert!(matches!(refused, ModelError::Refused { status: 400, .. }));
    let (events, error) = collect(&model, fail(r#"{"text": "one two", "drop": true}"#))
        .await
        .unwrap();
    assert_eq!(events, [ModelEvent::Text("one ".to_owned())]);
    assert!(matches!(error, Some(ModelError::Interrupted { .. })));
}

#[tokio::test]
async fn a_planned_failure_passes() {
    let model = Scripted::new("m");
    let request = request_with(
        vec![Message::human(
            r#"{"script": [{"fail_first": 2, "status": 503, "text": "at last"}]}"#,
        )],
        &[],
    );
    for _ in 0..2 {
        assert!(matches!(
            collect(&model, request.clone()).await,
            Err(ModelError::Unavailable { .. })
        ));
    }
    assert_eq!(answered(&model, request).await.content.text(), "at last");
}

#[tokio::test]
async fn echoes_repeat_the_request() {
    let model = Scripted::new("m");
    let script = |step: &str| Message::human(format!(r#"{{"script": [{{"{step}": true}}]}}"#));
    let call = ToolCall::new("c", "look", Map::new());
    let tools = [("zeta", json!({})), ("alpha", json!({}))];
    let history = |step: &str| {
        request_with(
            vec![
                Message::human("hi"),
                Message::ai("ho"),
                Message::tool(&call, ToolStatus::Success, "seen"),
                script(step),
            ],
            &tools,
        )
    };
    for (step, text) in [
        ("echo_system", "SYSTEM<<be brief>>"),
        ("echo_tools", "TOOLS<<alpha,zeta>>"),
        ("echo_messages", "ROLES<<user,assistant,tool,user>>"),
        ("echo_last_tool", "LAST_TOOL<<seen>>"),
    ] {
        assert_eq!(answered(&model, history(step)).await.content.text(), text);
    }
    assert_eq!(
        answered(&model, request_with(vec![Message::human("hello")], &[]))
            .await
            .content
            .text(),
        "echo: hello"
    );
}

/// Plays the demonstration to its end, answers every call, and returns the called names and the last text.
async fn demonstrate(model: &Scripted, tools: &[(&str, Value)], status: ToolStatus) -> (Vec<String>, String) {
    let mut messages = vec![Message::human("Why is the sky blue?")];
    let mut called = Vec::new();
    for _ in 0..10 {
        let answer = answered(model, request_with(messages.clone(), tools)).await;
        let calls = answer.tool_calls().to_vec();
        let text = answer.content.text();
        messages.push(answer);
        if calls.is_empty() {
            return (called, text);
        }
        for call in calls {
            messages.push(Message::tool(
                &call,
                status,
                format!("result of {} with {}", call.name, json!(call.args)),
            ));
            called.push(call.name);
        }
    }
    panic!("the demonstration does not end: {called:?}");
}

#[tokio::test]
async fn the_demonstration_of_the_main_agent() {
    let tools = [
        ("write_todos", json!({"todos": {"type": "array"}})),
        (
            "task",
            json!({"description": {"type": "string"}, "subagent_type": {"type": "string", "enum": ["general-purpose", "writer", "researcher"]}}),
        ),
        (
            "publish",
            json!({"title": {"type": "string"}, "text": {"type": "string"}}),
        ),
    ];
    let model = Scripted::new("demo");
    let (called, text) = demonstrate(&model, &tools, ToolStatus::Success).await;
    assert_eq!(called, ["write_todos", "task", "task", "publish", "write_todos"]);
    assert!(
        text.contains("Why is the sky blue?") && text.contains("result of publish"),
        "{text}"
    );
    assert!(
        text.contains(r#""subagent_type":"researcher"#) && text.contains(r#""subagent_type":"writer"#),
        "{text}"
    );
    let (_, text) = demonstrate(&model, &tools, ToolStatus::Error).await;
    assert!(text.contains("`publish` did not go through"), "{text}");
}

#[tokio::test]
async fn the_demonstration_of_a_subagent() {
    let tools = [
        ("search_notes", json!({"query": {"type": "string"}})),
        (
            "send_email",
            json!({"to": {"type": "string"}, "body": {"type": "string"}}),
        ),
    ];
    let model = Scripted::new("demo");
    let (called, text) = demonstrate(&model, &tools, ToolStatus::Success).await;
    assert_eq!(called, ["search_notes", "send_email"]);
    assert!(
        text.contains("result of search_notes") && text.contains("team@example.com"),
        "{text}"
    );
    let (called, text) = demonstrate(&model, &[], ToolStatus::Success).await;
    assert!(called.is_empty() && text.contains("Why is the sky blue?"));
}
