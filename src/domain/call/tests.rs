use serde_json::{Map, json};

use super::*;
use crate::domain::message::{InvalidToolCall, Role};

fn call(id: &str) -> ToolCall {
    ToolCall::new(id, "send", Map::new())
}

fn broken(id: Option<&str>) -> InvalidToolCall {
    InvalidToolCall {
        name: Some("send".to_owned()),
        args: Some("{".to_owned()),
        id: id.map(str::to_owned),
        error: None,
        kind: "invalid_tool_call".to_owned(),
    }
}

fn answer(tool_calls: Vec<ToolCall>, invalid_tool_calls: Vec<InvalidToolCall>) -> Message {
    Message::new(
        Role::Ai {
            tool_calls,
            invalid_tool_calls,
            usage_metadata: None,
        },
        "",
    )
}

#[test]
fn calls_without_a_result_are_pending_in_the_models_order() {
    let later = [Arc::new(Message::tool(&call("b"), ToolStatus::Error, "no"))];
    let pending = pending_calls(
        &answer(vec![call("a"), call("b"), call("c")], vec![]),
        &later,
        &State::default(),
    );
    let expected = ["a", "c"].map(|id| Call {
        id: id.to_owned(),
        edited: None,
        status: CallStatus::Ready,
        delegations: vec![],
    });
    assert_eq!(pending, expected);
}

#[test]
fn an_invalid_call_is_pending_with_an_error_result() {
    let later = [Arc::new(Message::tool(&call("y"), ToolStatus::Error, "no"))];
    let answer = answer(
        vec![call("a")],
        vec![broken(Some("x")), broken(Some("y")), broken(None)],
    );
    let pending = pending_calls(&answer, &later, &State::default());
    assert_eq!(
        pending.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(),
        ["a", "x"]
    );
    let Some(ToolOutput {
        writes,
        ends: false,
        is_logged: false,
        ..
    }) = pending[1].answer()
    else {
        panic!("{pending:?}")
    };
    assert!(matches!(
        writes.messages[0].role,
        Role::Tool {
            status: ToolStatus::Error,
            ..
        }
    ));
    assert_eq!(writes.messages[0].answers(), Some("x"));
    assert_eq!(writes.messages[0].name.as_deref(), Some("send"));
}

#[test]
fn a_pending_call_contains_the_edited_call() {
    let mut state = State::default();
    state.apply(&Update::field(
        EDITED_CALLS,
        json!({"a": {"name": "other", "args": {}}, "b": "nonsense"}),
    ));
    let pending = pending_calls(&answer(vec![call("a"), call("b")], vec![]), &[], &state);
    assert_eq!(
        pending[0].edited,
        Some(ReviewAction {
            name: "other".to_owned(),
            args: Map::new()
        })
    );
    assert_eq!(pending[1].edited, None);
}
