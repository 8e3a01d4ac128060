use std::collections::BTreeMap;

use futures::FutureExt;

use serde_json::json;

use super::*;
use crate::domain::message::Role;
use crate::domain::state_size::StateSize;
use crate::domain::time::Timestamp;

fn finding() -> Value {
    json!({
        "title": "Finding",
        "type": "object",
        "properties": {"summary": {"type": "string"}, "confidence": {"type": "number"}},
        "required": ["summary", "confidence"],
    })
}

fn policy() -> StructuredOutput {
    StructuredOutput::new(&AnswerFormat::of(&finding()))
}

fn answering(id: &str) -> ToolCall {
    let args = json!({"confidence": 0.5, "summary": "it is so"});
    ToolCall::new(id, "Finding", args.as_object().cloned().unwrap_or_default())
}

fn calling(calls: Vec<ToolCall>) -> Message {
    Message::new(
        Role::Ai {
            tool_calls: calls,
            invalid_tool_calls: vec![],
            usage_metadata: None,
        },
        "",
    )
}

fn state(messages: Vec<Message>) -> State {
    State {
        messages: messages.into_iter().map(Arc::new).collect::<Vec<_>>().into(),
        ..State::default()
    }
}

fn reminder() -> Message {
    let mut reminder = Message::human(
        "Your answer was plain text and nobody will read it. Give your final answer by calling `Finding`.",
    );
    reminder
        .additional_kwargs
        .insert("lc_source".to_owned(), json!("structured_output"));
    reminder
}

async fn hook(point: HookPoint, state: &State) -> Result<HookResult, Halt> {
    policy().hook(point, &Scope::sample(Timestamp(0)), state).await
}

async fn outcome(calls: Vec<ToolCall>) -> ToolOutput {
    let first = calls[0].clone();
    let state = state(vec![calling(calls)]);
    match policy().forms[0]
        .call(&Scope::sample(Timestamp(0)), &state, &first)
        .await
    {
        Ok(CallOutcome::Answer(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calling_the_answer_tool_ends_the_run() {
    let text = "Returning structured response: summary='it is so' confidence=0.5";
    let mut expected = ToolOutput::message(Message::tool(&answering("a"), ToolStatus::Success, text));
    let response = json!({"summary": "it is so", "confidence": 0.5});
    expected.writes.fields = BTreeMap::from([("structured_response".to_owned(), response.clone())]);
    expected.ends = true;
    let answer = outcome(vec![answering("a")]).await;
    assert_eq!(
        answer.writes.fields["structured_response"].to_string(),
        response.to_string()
    );
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn two_answers_in_one_message_are_both_refused() {
    let answer = outcome(vec![answering("a"), answering("b")]).await;
    assert!(!answer.ends && answer.writes.fields.is_empty());
    assert!(matches!(
        answer.writes.messages[0].role,
        Role::Tool {
            status: ToolStatus::Error,
            ..
        }
    ));
}

#[tokio::test]
async fn a_plain_answer_gets_two_reminders_and_then_fails() {
    let mut messages = vec![
        Message::human("go"),
        reminder(),
        Message::human("go on"),
        Message::ai("so"),
    ];
    let expected = HookResult {
        update: Update::messages([reminder()]),
        jump: Some(Jump::Model),
        ..HookResult::default()
    };
    for _ in 0..2 {
        assert_eq!(
            hook(HookPoint::AfterModel, &state(messages.clone())).await,
            Ok(expected.clone())
        );
        messages.extend([reminder(), Message::ai("so")]);
    }
    let failed = hook(HookPoint::AfterModel, &state(messages)).await;
    assert!(matches!(failed, Err(Halt::Fail(failure)) if failure.class == "StructuredOutputError"));
}

#[tokio::test]
async fn answers_with_calls_need_no_reminder() {
    let state = state(vec![Message::human("go"), calling(vec![answering("a")])]);
    assert_eq!(hook(HookPoint::AfterModel, &state).await, Ok(HookResult::default()));
}

#[tokio::test]
async fn the_answer_of_an_earlier_turn_is_forgotten() {
    let mut state = state(vec![Message::human("go")]);
    assert_eq!(hook(HookPoint::BeforeAgent, &state).await, Ok(HookResult::default()));
    state.fields.insert(FIELD.to_owned(), json!({"summary": "old"}));
    assert_eq!(
        hook(HookPoint::BeforeAgent, &state).await,
        Ok(Update::field(FIELD, Value::Null).into())
    );
    state.fields.insert(FIELD.to_owned(), Value::Null);
    assert_eq!(hook(HookPoint::BeforeAgent, &state).await, Ok(HookResult::default()));
}

#[tokio::test]
async fn the_model_must_call_a_tool() {
    let ask = |request: ModelRequest| {
        let text = format!("{:?}", request.tool_choice);
        async move {
            Ok(ModelAnswer {
                message: Message::ai(text),
                extra: Update::none(),
            })
        }
        .boxed()
    };
    let scope = Scope::sample(Timestamp(0));
    let state = State::default();
    let next = NextModel {
        rest: &[],
        ask: &ask,
        scope: &scope,
        state: &state,
        size: &StateSize::default(),
    };
    let answer = policy()
        .wrap_model_call(ModelRequest::default(), next)
        .await
        .expect("an answer");
    assert_eq!(answer.message.content.text(), "Any");
}

#[tokio::test]
async fn a_message_that_is_only_the_answer_is_taken_at_once() {
    let written = |calls: Vec<ToolCall>| policy().take(&calling(calls));
    let taken = written(vec![answering("a")]).expect("it is taken");
    assert_eq!(
        taken.fields[FIELD].to_string(),
        r#"{"summary":"it is so","confidence":0.5}"#
    );
    assert_eq!(taken.messages.len(), 1);
    let wrong = ToolCall::new("a", "Finding", Map::new());
    assert_eq!(written(vec![wrong]), None);
    assert_eq!(written(vec![answering("a"), answering("b")]), None);
    assert_eq!(
        written(vec![answering("a"), ToolCall::new("b", "lookup", Map::new())]),
        None
    );
    assert_eq!(written(vec![]), None);

    let mut after = state(vec![Message::human("go"), calling(vec![answering("a")])]);
    after.apply(&taken);
    let end = HookResult {
        update: Update::none(),
        jump: Some(Jump::End),
        ..HookResult::default()
    };
    assert_eq!(hook(HookPoint::AfterModel, &after).await, Ok(end));
}

#[test]
fn answer_tools_are_named_by_title_or_by_a_stable_hash() {
    let names = |schema: Value| -> Vec<String> {
        let policy = StructuredOutput::new(&AnswerFormat::of(&schema));
        policy.forms.iter().map(|form| form.spec.name.clone()).collect()
    };
    assert_eq!(names(finding()), ["Finding"]);
    assert_eq!(names(json!({"title": "My form!", "type": "object"})), ["My_form_"]);
    let generated = names(json!({"type": "object"}));
    assert_eq!(generated, names(json!({"type": "object"})));
    assert!(
        generated[0].starts_with("response_format_") && generated[0].len() == 24,
        "{generated:?}"
    );
    let either = json!({"oneOf": [{"title": "A", "type": "object"}, {"title": "B", "type": "object"}]});
    assert_eq!(names(either), ["A", "B"]);
}

/// Returns the outcome of calling the answer tool with these arguments and this handling of errors.
async fn filled_in(errors: Value, calls: Vec<ToolCall>) -> Result<CallOutcome, Halt> {
    let format = json!({"schema": finding(), "handle_errors": errors, "tool_message_content": "Kept."});
    let policy = StructuredOutput::new(&AnswerFormat::of(&format));
    let scope = Scope::sample(Timestamp(0));
    let call = calls[0].clone();
    let state = state(vec![calling(calls)]);
    let make = |call: ToolCall| {
        let policy = &policy;
        let scope = &scope;
        let state = &state;
        async move { policy.forms[0].call(scope, state, &call).await }.boxed()
    };
    policy
        .wrap_tool_call(
            call,
            NextCall {
                rest: &[],
                make: &make,
                scope: &scope,
                state: &state,
                may_repeat: true,
                spec: None,
            },
        )
        .await
}

fn error_text(outcome: Result<CallOutcome, Halt>) -> String {
    match outcome {
        Ok(CallOutcome::Answer(answer)) => answer.writes.messages[0].content.text(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_invalid_answer_is_handled_as_the_format_says() {
    let wrong = || vec![ToolCall::new("a", "Finding", Map::new())];
    assert_eq!(
        error_text(filled_in(json!("Both fields, please."), wrong()).await),
        "Both fields, please."
    );
    let twice = vec![answering("a"), answering("b")];
    assert_eq!(
        error_text(filled_in(json!("Once, please."), twice.clone()).await),
        "Once, please."
    );
    for calls in [wrong(), twice] {
        let failed = filled_in(json!(false), calls).await;
        assert!(matches!(failed, Err(Halt::Fail(failure)) if failure.class == "StructuredOutputError"));
    }
}

#[tokio::test]
async fn the_result_of_the_answer_tool_can_have_its_own_text() {
    for errors in [json!(true), json!(false), json!("No.")] {
        assert_eq!(error_text(filled_in(errors, vec![answering("a")]).await), "Kept.");
    }
}
