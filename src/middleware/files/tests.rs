use std::sync::Arc;

use futures::FutureExt;
use serde_json::{Map, json};
use uuid::Uuid;

use super::*;
use crate::definition::AgentDefinition;
use crate::domain::id::TaskId;
use crate::domain::message::{Content, Role, ToolStatus};
use crate::domain::time::Timestamp;
use crate::tool::Scope;
use crate::tool::files::StateFiles;

const NOW: Timestamp = Timestamp(7);
/// The maximum length of a result by default.
const MAX_RESULT_CHARS: usize = 80_000;

fn write(id: &str, name: &str, path: &str) -> ToolCall {
    ToolCall::new(id, name, Map::from_iter([("file_path".to_owned(), json!(path))]))
}

fn saying(calls: Vec<ToolCall>) -> State {
    let role = Role::Ai {
        tool_calls: calls,
        invalid_tool_calls: vec![],
        usage_metadata: None,
    };
    State {
        messages: vec![Arc::new(Message::new(role, ""))].into(),
        ..State::default()
    }
}

/// Passes the call through the middleware; the innermost layer answers with `text`.
async fn through(state: &State, call: ToolCall, text: &str) -> ToolOutput {
    let make = |call: ToolCall| {
        let answer = ToolOutput::message(Message::tool(&call, ToolStatus::Success, text));
        async move { Ok(CallOutcome::Answer(answer)) }.boxed()
    };
    let scope = Scope::sample(NOW);
    let next = NextCall {
        rest: &[],
        make: &make,
        scope: &scope,
        state,
        may_repeat: true,
        spec: None,
    };
    let policy = FileTools::new(Arc::new(StateFiles), &AgentDefinition::default().spec("a"));
    match policy.wrap_tool_call(call.clone(), next).await {
        Ok(CallOutcome::Answer(answer)) => policy.receive(&scope, state, &call, answer),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_the_first_of_two_calls_that_change_one_file_runs() {
    let calls = [
        write("a", "write_file", "/x"),
        write("b", "edit_file", "x/"),
        write("c", "delete", "/y"),
    ];
    let state = saying(calls.to_vec());
    let mut ran = vec![];
    for call in calls {
        let id = call.id.clone();
        let answer = through(&state, call, "ran").await;
        ran.push((id, answer.writes.messages[0].content == Content::from("ran")));
    }
    assert_eq!(
        ran,
        [("a".to_owned(), true), ("b".to_owned(), false), ("c".to_owned(), true)]
    );
}

#[tokio::test]
async fn an_answered_call_does_not_collide() {
    let calls = [write("a", "write_file", "/x"), write("b", "write_file", "/x")];
    let mut state = saying(calls.to_vec());
    state
        .messages
        .push(Arc::new(Message::tool(&calls[0], ToolStatus::Error, "rejected")));
    let answer = through(&state, calls[1].clone(), "ran").await;
    assert_eq!(answer.writes.messages[0].content, Content::from("ran"));
}

#[tokio::test]
async fn a_long_result_becomes_a_file_and_a_notice() {
    let lines: Vec<String> = (1..=20).map(|n| format!("line {n} {}", "x".repeat(5_000))).collect();
    let text = lines.join("\n");
    let call = ToolCall::new("call/1", "big", Map::new());
    let answer = through(&saying(vec![call.clone()]), call, &text).await;
    let file = Some(Arc::new(File::text(text.clone(), NOW)));
    assert_eq!(
        answer.writes.files,
        [("/large_tool_results/call_1".to_owned(), file)].into()
    );
    let notice = answer.writes.messages[0].content.text();
    for fact in [
        "/large_tool_results/call_1",
        "\n5: line 5 ",
        "\n[10 lines left out]\n16: line 16 ",
        "\n20: line 20 ",
    ] {
        assert!(notice.contains(fact), "{fact}");
    }
    assert!(notice.len() < 11_000, "{}", notice.len());
}

#[tokio::test]
async fn long_results_of_calls_that_a_client_sends_have_files_of_their_own() {
    let text = "x".repeat(MAX_RESULT_CHARS + 1);
    // One call is of the model.
    let answered = ToolCall::new("a:b", "big", Map::new());
    let state = saying(vec![answered.clone()]);
    let mut paths = BTreeSet::new();
    for id in ["a/b", "a_b", "a?b"] {
        let answer = through(&state, ToolCall::new(id, "big", Map::new()), &text).await;
        paths.extend(answer.writes.files.into_keys());
    }
    paths.extend(through(&state, answered, &text).await.writes.files.into_keys());
    assert_eq!(paths.len(), 4, "{paths:?}");
}

#[tokio::test]
async fn a_long_result_replaces_no_file_that_is_there() {
    let text = "x".repeat(MAX_RESULT_CHARS + 1);
    let call = ToolCall::new("c", "big", Map::new());
    let mut state = saying(vec![call.clone()]);
    for path in ["/large_tool_results/c", "/large_tool_results/c-2"] {
        let earlier = Arc::new(File::text("earlier", NOW));
        state.files.insert(path.to_owned(), earlier);
    }
    let answer = through(&state, call, &text).await;
    let paths: Vec<&String> = answer.writes.files.keys().collect();
    assert_eq!(paths, ["/large_tool_results/c-3"]);
    let notice = answer.writes.messages[0].content.text();
    assert!(notice.contains("/large_tool_results/c-3."), "{notice}");
}

#[tokio::test]
async fn long_results_of_one_answer_have_a_file_each() {
    let text = "x".repeat(MAX_RESULT_CHARS + 1);
    let ids = ["a/1", "a_1", "a_1-2", "a.1"];
    let calls = ids.map(|id| ToolCall::new(id, "big", Map::new()));
    let mut state = saying(calls.to_vec());
    let earlier = Arc::new(File::text("earlier", NOW));
    state.files.insert("/large_tool_results/a_1".to_owned(), earlier);
    let mut paths = vec![];
    for call in calls {
        let answer = through(&state, call, &text).await;
        let path = answer.writes.files.keys().next().cloned().expect("a file");
        let notice = answer.writes.messages[0].content.text();
        assert!(notice.contains(&format!("in the file {path}.")), "{notice}");
        paths.push(path);
    }
    let expected = ["a_1-2", "a_1-3", "a_1-2-2", "a_1-4"].map(|name| format!("/large_tool_results/{name}"));
    assert_eq!(paths, expected);
}

#[test]
fn long_results_of_subagents_that_work_at_the_same_time_have_different_files() {
    let text = "x".repeat(MAX_RESULT_CHARS + 1);
    let main = Scope::sample(NOW);
    main.files.begin_step(2);
    let mut paths = vec![];
    for task in [1, 2] {
        let scope = Scope {
            files: main.files.of_call(TaskId(Uuid::from_u128(task << 64)), "researcher"),
            ..main.clone()
        };
        let message = Message::tool(
            &ToolCall::new("call_0", "big", Map::new()),
            ToolStatus::Success,
            text.as_str(),
        );
        let answer = shorten(
            ToolOutput::message(message),
            &scope,
            &State::default(),
            MAX_RESULT_CHARS,
        );
        let notice = answer.writes.messages[0].content.text();
        let path = answer.writes.files.into_keys().next().expect("a file");
        assert!(notice.contains(&path), "{notice}");
        paths.push(path);
    }
    assert_eq!(
        paths,
        [
            "/large_tool_results/call_0-0000000000000001",
            "/large_tool_results/call_0-0000000000000002"
        ]
    );
}

#[test]
fn a_result_that_is_larger_than_a_file_may_be_has_several_files() {
    let mut scope = Scope::sample(NOW);
    scope.sizes.file = 99;
    let text = "é".repeat(120);
    let message = Message::tool(
        &ToolCall::new("c", "big", Map::new()),
        ToolStatus::Success,
        text.as_str(),
    );
    let answer = shorten(ToolOutput::message(message), &scope, &State::default(), 100);
    let files: Vec<(&String, String)> = answer
        .writes
        .files
        .iter()
        .filter_map(|(path, file)| Some((path, file.as_ref()?.content.text().into_owned())))
        .collect();
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let expected = ["c", "c.part2", "c.part3"].map(|name| format!("/large_tool_results/{name}"));
    assert_eq!(paths, expected);
    assert!(files.iter().all(|(_, part)| part.len() <= 99));
    assert_eq!(files.iter().map(|(_, part)| part.as_str()).collect::<String>(), text);
    let notice = answer.writes.messages[0].content.text();
    assert!(
        notice.contains(&format!("in 3 files, one after the other: {}.", expected.join(", "))),
        "{notice}"
    );
}

#[test]
fn of_many_files_of_one_result_the_first_and_the_last_are_named() {
    let mut scope = Scope::sample(NOW);
    scope.sizes.file = 1;
    let call = ToolCall::new("c", "big", Map::new());
    let message = Message::tool(&call, ToolStatus::Success, "x".repeat(101));
    let answer = shorten(ToolOutput::message(message), &scope, &State::default(), 100);
    assert_eq!(answer.writes.files.len(), 101);
    let notice = answer.writes.messages[0].content.text();
    let path = |part: &str| format!("/large_tool_results/c{part}");
    let named = format!("{}, {} and so on to {}.", path(""), path(".part2"), path(".part101"));
    assert!(
        notice.contains(&format!("in 101 files, one after the other: {named}")),
        "{notice}"
    );
}

#[test]
fn the_report_of_a_subagent_replaces_no_result_of_the_subagent() {
    let text = "x".repeat(MAX_RESULT_CHARS + 1);
    let message = Message::tool(&ToolCall::new("c", "task", Map::new()), ToolStatus::Success, text);
    let mut answer = ToolOutput::message(message);
    let result = Some(Arc::new(File::text("its result", NOW)));
    answer
        .writes
        .files
        .insert("/large_tool_results/c".to_owned(), result.clone());
    let shortened = shorten(answer, &Scope::sample(NOW), &State::default(), MAX_RESULT_CHARS);
    assert_eq!(shortened.writes.files["/large_tool_results/c"], result);
    assert!(shortened.writes.files.contains_key("/large_tool_results/c-2"));
}

#[tokio::test]
async fn file_tools_and_short_results_stay_as_they_are() {
    let long = "x".repeat(MAX_RESULT_CHARS + 1);
    let short = "é".repeat(MAX_RESULT_CHARS);
    for (name, text) in [("read_file", &long), ("grep", &long), ("big", &short)] {
        let call = ToolCall::new("c", name, Map::new());
        let answer = through(&saying(vec![call.clone()]), call, text).await;
        assert!(answer.writes.files.is_empty(), "{name}");
    }
}

#[test]
fn blocks_that_are_not_text_stay() {
    let image = json!({"type": "image", "base64": "aGk="});
    let text = json!({"type": "text", "text": "x".repeat(MAX_RESULT_CHARS + 1)});
    let call = ToolCall::new("c", "task", Map::new());
    let message = Message::tool(&call, ToolStatus::Success, Content::Blocks(vec![text, image.clone()]));
    let shortened = shorten(
        ToolOutput::message(message),
        &Scope::sample(NOW),
        &State::default(),
        MAX_RESULT_CHARS,
    );
    let Content::Blocks(blocks) = &shortened.writes.messages[0].content else {
        panic!("no blocks")
    };
    assert_eq!(blocks.len(), 2);
    assert_eq!(&blocks[1], &image);
}
