use futures::FutureExt;
use serde_json::{Map, Value, json};

use super::*;
use crate::domain::message::{Content, REMOVE_ALL, ToolCall, ToolStatus};
use crate::domain::message_list::size_of_media;
use crate::domain::size;
use crate::domain::state_size::StateSize;
use crate::domain::time::Timestamp;
use crate::model::providers::scripted::Scripted;
use crate::model::{Model, ToolSpec};

/// A prompt on which the scripted model answers `SUMMARY`.
const PROMPT: &str = r#"{"script": [{"text": "SUMMARY"}]}"#;

fn policy(settings: Value) -> Summarization {
    let mut settings: SummarizationSettings = serde_json::from_value(settings).expect("settings");
    settings.summary_prompt.get_or_insert_with(|| PROMPT.to_owned());
    let model: Arc<dyn Model> = Arc::new(Scripted::new("lab"));
    Summarization::new(&settings, &Ok(model).into(), None, true)
}

fn conversation(turns: usize, text: &str) -> Vec<Arc<Message>> {
    (0..turns)
        .flat_map(|turn| {
            let asked = Message::human(format!("question {turn} {text}")).with_id(format!("h{turn}"));
            let answer = Message::ai(format!("answer {turn} {text}")).with_id(format!("a{turn}"));
            [asked, answer]
        })
        .map(Arc::new)
        .collect()
}

fn state_of(messages: Vec<Arc<Message>>) -> State {
    State {
        messages: messages.into(),
        ..State::default()
    }
}

/// The requests that the agent's model got for a state, and the outcome. `refused` requests are too long for it.
async fn ask(policy: &Summarization, state: &State, refused: usize) -> (Vec<Vec<String>>, Result<ModelAnswer, Halt>) {
    ask_about(policy, state, state.messages.recent().to_vec(), refused).await
}

/// The same for a request with these messages.
async fn ask_about(
    policy: &Summarization,
    state: &State,
    messages: Vec<Arc<Message>>,
    refused: usize,
) -> (Vec<Vec<String>>, Result<ModelAnswer, Halt>) {
    ask_in(&Scope::sample(Timestamp(7)), policy, state, messages, refused).await
}

/// The same in a scope.
async fn ask_in(
    scope: &Scope,
    policy: &Summarization,
    state: &State,
    messages: Vec<Arc<Message>>,
    refused: usize,
) -> (Vec<Vec<String>>, Result<ModelAnswer, Halt>) {
    let seen = std::sync::Mutex::new(vec![]);
    let ask = |request: ModelRequest| {
        let texts: Vec<String> = request.messages.iter().map(|message| message.content.text()).collect();
        let mut seen = seen.lock().expect("no panic");
        seen.push(texts);
        let answer = match seen.len() <= refused {
            true => Err(overflow("by the provider")),
            false => Ok(ModelAnswer {
                message: Message::ai("done"),
                extra: Update::none(),
            }),
        };
        async move { answer }.boxed()
    };
    let next = NextModel {
        rest: &[],
        ask: &ask,
        scope,
        state,
        size: &StateSize::default(),
    };
    let request = ModelRequest {
        messages,
        ..ModelRequest::default()
    };
    let answer = policy.wrap_model_call(request, next).await;
    (seen.into_inner().expect("no panic"), answer)
}

#[tokio::test]
async fn a_short_conversation_is_sent_as_it_is() {
    let state = state_of(conversation(3, ""));
    let (seen, answer) = ask(&policy(json!({"trigger": {"messages": 7}})), &state, 0).await;
    assert_eq!(seen[0].len(), 6);
    assert_eq!(answer.expect("an answer").extra, Update::none());
}

#[tokio::test]
async fn a_summary_stands_for_the_older_messages_and_the_next_one_for_it_too() {
    let settings = json!({"trigger": {"messages": 6}, "keep": {"messages": 2}});
    let mut state = state_of(conversation(3, ""));
    let (seen, answer) = ask(&policy(settings.clone()), &state, 0).await;
    assert_eq!(seen[0].len(), 3);
    assert!(seen[0][0].contains("SUMMARY"), "{seen:?}");
    assert_eq!(seen[0][1..], ["question 2 ", "answer 2 "]);
    let update = answer.expect("an answer").extra;
    let path = update.fields[STATUS]["file_path"].as_str().expect("a file").to_owned();
    let file = update.files[&path].as_ref().expect("a file").content.text();
    assert!(file.contains("question 1") && !file.contains("question 2"), "{file}");
    state.apply(&update);
    assert_eq!(state.messages.len(), 6, "the history is whole");
    // Three more messages: the request has the summary and five messages.
    state.messages.extend(conversation(5, "").into_iter().skip(6).take(3));
    let (seen, answer) = ask(&policy(settings), &state, 0).await;
    assert_eq!(seen[0].len(), 3);
    assert!(seen[0][0].contains("first 7 messages"), "{seen:?}");
    let update = answer.expect("an answer").extra;
    assert_eq!(update.fields[STATUS]["count"], 2);
    let path = update.fields[STATUS]["file_path"].as_str().expect("a file");
    let file = update.files[path].as_ref().expect("a file").content.text();
    assert!(file.contains("question 2") && !file.contains("question 1"), "{file}");
}

#[tokio::test]
async fn files_that_subagents_have_left_make_room_for_earlier_messages() {
    let mut state = state_of(conversation(3, ""));
    for (name, time) in [("a", 3), ("b", 1), ("c", 2)] {
        let file = File::text("x".repeat(3_900_000), Timestamp(time));
        let path = format!("/conversation_history/session_{name}_0001.md");
        state.files.insert(path, Arc::new(file));
    }
    let settings = json!({"trigger": {"messages": 6}, "keep": {"messages": 2}});
    let (_, answer) = ask(&policy(settings), &state, 0).await;
    let update = answer.expect("an answer").extra;
    let deleted = update.files.iter().filter(|(_, file)| file.is_none());
    let deleted: Vec<&String> = deleted.map(|(path, _)| path).collect();
    assert_eq!(deleted, ["/conversation_history/session_b_0001.md"]);
    assert_eq!(update.files.len(), 2, "and the new one");
}

/// Compacts the conversation of a state of at most `most` bytes, if it has to be. Returns the request, and the writes.
async fn compacted_within(most: usize, state: &State) -> (Vec<String>, Update) {
    let mut scope = Scope::sample(Timestamp(7));
    scope.sizes.state = most;
    let messages = state.messages.recent().to_vec();
    let (mut seen, answer) = ask_in(&scope, &policy(json!({})), state, messages, 0).await;
    (seen.remove(0), answer.expect("an answer").extra)
}

#[tokio::test]
async fn the_oldest_media_leave_a_state_that_becomes_too_large() {
    let mut messages = vec![Arc::new(Message::human("look").with_id("h0"))];
    for number in 0..20 {
        let call = ToolCall::new(format!("c{number}"), "look", Map::new());
        let image = json!({"type": "image", "base64": "A".repeat(4_000), "mime_type": "image/png"});
        let result = Message::tool(&call, ToolStatus::Success, Content::Blocks(vec![image]));
        messages.push(Arc::new(Message::calling([call]).with_id(format!("a{number}"))));
        messages.push(Arc::new(result.with_id(format!("r{number}"))));
    }
    let mut state = state_of(messages);
    let (_, update) = compacted_within(180_000, &state).await;
    assert_eq!(update, Update::none(), "it is not half full");
    let (seen, update) = compacted_within(120_000, &state).await;
    assert_eq!(seen.len(), 7, "the summary and the newest messages");
    state.apply(&update);
    assert!(size::of_state(&state) <= 60_000);
    assert_eq!(state.messages.len(), 41, "the texts stay");
    let all = state.messages.all();
    let with_media = all.iter().filter(|message| size_of_media(message) > 0);
    let with_media: Vec<&str> = with_media.filter_map(|message| message.id.as_deref()).collect();
    assert!((3..12).contains(&with_media.len()), "{with_media:?}");
    assert!(with_media.ends_with(&["r17", "r18", "r19"]));
    assert!(update.fields[STATUS].get("left_messages").is_none());
}

#[tokio::test]
async fn the_oldest_messages_leave_a_state_that_has_no_room_for_their_texts() {
    let text = "word ".repeat(200);
    let mut state = state_of(conversation(100, &text));
    for (turns, summarized) in [(100, 194), (200, 394)] {
        let known = state.messages.left_len() + state.messages.len();
        state
            .messages
            .extend(conversation(turns, &text).into_iter().skip(known));
        let (seen, update) = compacted_within(200_000, &state).await;
        assert_eq!(seen.len(), 7);
        assert!(seen[0].contains(&format!("first {summarized} messages")), "{}", seen[0]);
        state.apply(&update);
        let left = state.messages.left_len();
        assert!(left > summarized / 2, "{left}");
        assert_eq!(left + state.messages.len(), 2 * turns);
        assert_eq!(update.fields[STATUS]["left_messages"], left);
        assert_eq!(update.fields[STATUS]["summarized_messages"], summarized);
        assert!(size::of_state(&state) <= 100_000);
        assert!(state.messages.all()[0].answers().is_none());
    }
}

#[tokio::test]
async fn a_call_leaves_the_state_only_with_its_results() {
    let looked = calls(0..2).into_iter().map(|message| match message.answers() {
        None => message,
        Some(_) => Arc::new(Message {
            content: "x".repeat(60_000).into(),
            ..Message::clone(&message)
        }),
    });
    let mut state = state_of(vec![Arc::new(Message::human("look").with_id("h0"))]);
    state.messages.extend(looked);
    let (_, update) = compacted_within(200_000, &state).await;
    state.apply(&update);
    assert!(state.messages.has_left("h0"));
    assert_eq!(state.messages.recent()[0].id.as_deref(), Some("a0"));
}

#[tokio::test]
async fn a_request_that_is_too_long_is_summarised_even_if_that_makes_little_room() {
    let image = json!({"type": "image", "base64": "A".repeat(600_000), "mime_type": "image/png"});
    let last = Message {
        content: Content::Blocks(vec![image]),
        ..Message::human("").with_id("last")
    };
    let mut state = state_of(conversation(3, &"word ".repeat(1_000)));
    state.messages.push(Arc::new(last));
    let mut scope = Scope::sample(Timestamp(7));
    scope.sizes.state = 1_000_000;
    let settings = json!({"trigger": {"messages": 6}, "keep": {"messages": 1}});
    let messages = state.messages.recent().to_vec();
    let (seen, _) = ask_in(&scope, &policy(settings), &state, messages, 0).await;
    assert_eq!(seen[0].len(), 2, "the summary and the image");
}

#[tokio::test]
async fn messages_leave_a_state_that_is_too_large_even_if_most_of_it_is_files() {
    let mut state = state_of(conversation(20, &"word ".repeat(100)));
    let file = File::text("x".repeat(185_000), Timestamp(1));
    state.files.insert("/notes".to_owned(), Arc::new(file));
    let mut scope = Scope::sample(Timestamp(7));
    scope.sizes.state = 200_000;
    assert!(size::of_state(&state) > 200_000);
    let settings = policy(json!({"keep": {"messages": 2}}));
    let made = settings.make_room(&scope, &state).await.expect("a summary");
    state.apply(&made.expect("messages can leave").update());
    assert!(state.messages.left_len() > 0);
}

#[tokio::test]
async fn messages_that_a_client_has_removed_do_not_count_as_left() {
    let text = "word ".repeat(200);
    let mut state = state_of(conversation(100, &text));
    let (_, update) = compacted_within(200_000, &state).await;
    state.apply(&update);
    assert!(state.messages.left_len() > 0);
    let removal = Message::new(Role::Remove, "").with_id(REMOVE_ALL);
    state.apply(&Update::messages([removal]));
    state.messages.extend(conversation(4, ""));
    let settings = json!({"trigger": {"messages": 6}, "keep": {"messages": 2}});
    let (_, answer) = ask(&policy(settings), &state, 0).await;
    let update = answer.expect("an answer").extra;
    assert_eq!(update.fields[STATUS]["summarized_messages"], 6);
    assert!(update.fields[STATUS].get("left_messages").is_none());
}

#[tokio::test]
async fn a_conversation_with_many_long_results_is_summarised_before_their_files_fill_the_state() {
    let mut state = state_of(vec![Arc::new(Message::human("look").with_id("h0"))]);
    for number in 0..3 {
        let path = format!("/large_tool_results/c{number}");
        let call = ToolCall::new(format!("c{number}"), "look", Map::new());
        let notice = Message::tool(&call, ToolStatus::Success, format!("All of it is in the file {path}."));
        state
            .messages
            .push(Arc::new(Message::calling([call]).with_id(format!("a{number}"))));
        state.messages.push(Arc::new(notice.with_id(format!("r{number}"))));
        let file = File::text("x".repeat(40_000), Timestamp(number));
        state.files.insert(path, Arc::new(file));
    }
    let (seen, update) = compacted_within(200_000, &state).await;
    assert_eq!(seen.len(), 3, "the summary and the last result with its call");
    let deleted = update.files.iter().filter(|(_, file)| file.is_none());
    let deleted: Vec<&String> = deleted.map(|(path, _)| path).collect();
    assert_eq!(deleted, ["/large_tool_results/c0", "/large_tool_results/c1"]);
}

#[tokio::test]
async fn a_subagent_does_not_delete_the_results_of_its_caller() {
    for is_fork in [false, true] {
        let mut state = state_of(vec![Arc::new(Message::human("look").with_id("h0"))]);
        for (number, name) in ["c1-2", "c2"].into_iter().enumerate() {
            let call = ToolCall::new(format!("c{}", number + 1), "look", Map::new());
            let notice = format!("All of it is in the file /large_tool_results/{name}. Read it.");
            let notice = Message::tool(&call, ToolStatus::Success, notice).with_id(format!("r{number}"));
            let calling = Message::calling([call]).with_id(format!("a{number}"));
            state.messages.extend([calling, notice].map(Arc::new));
        }
        for (name, time) in [("c1", 1), ("c1-2", 2), ("c2", 3)] {
            let file = File::text("x".repeat(3_900_000), Timestamp(time));
            state
                .files
                .insert(format!("/large_tool_results/{name}"), Arc::new(file));
        }
        if is_fork {
            state.fields = state.fields_for_fork();
        }
        let mut scope = Scope::sample(Timestamp(7));
        scope.subagent = Some(scope.run);
        let policy = policy(json!({"trigger": {"messages": 4}, "keep": {"messages": 2}}));
        let messages = state.messages.recent().to_vec();
        let (_, answer) = ask_in(&scope, &policy, &state, messages, 0).await;
        let update = answer.expect("an answer").extra;
        let deleted = update.files.iter().filter(|(_, file)| file.is_none());
        let deleted: Vec<&String> = deleted.map(|(path, _)| path).collect();
        let expected: &[&str] = if is_fork { &[] } else { &["/large_tool_results/c1-2"] };
        assert_eq!(deleted, expected);
    }
}

#[tokio::test]
async fn long_results_that_the_model_does_not_read_any_more_make_room() {
    let mut state = state_of(conversation(3, ""));
    for (name, time) in [("a", 1), ("b", 2), ("c", 3)] {
        let file = File::text("x".repeat(3_900_000), Timestamp(time));
        state
            .files
            .insert(format!("/large_tool_results/{name}"), Arc::new(file));
    }
    let kept = Message::human("see /large_tool_results/a").with_id("kept");
    state.messages.push(Arc::new(kept));
    let settings = json!({"trigger": {"messages": 6}, "keep": {"messages": 2}});
    let (_, answer) = ask(&policy(settings), &state, 0).await;
    let update = answer.expect("an answer").extra;
    let deleted = update.files.iter().filter(|(_, file)| file.is_none());
    let deleted: Vec<&String> = deleted.map(|(path, _)| path).collect();
    assert_eq!(deleted, ["/large_tool_results/b"]);
}

#[tokio::test]
async fn a_request_that_is_too_long_is_made_again_once_with_a_summary() {
    let state = state_of(conversation(4, "words"));
    let (seen, answer) = ask(&policy(json!({})), &state, 1).await;
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].len(), 8);
    assert!(seen[1].len() < 5 && seen[1][0].contains("SUMMARY"), "{seen:?}");
    assert!(answer.expect("an answer").extra.fields.contains_key(EVENT));
    let (seen, answer) = ask(&policy(json!({})), &state, 2).await;
    assert_eq!(seen.len(), 2);
    let failure = answer.expect_err("too long").failure().cloned().expect("a failure");
    assert_eq!(failure.class, CONTEXT_OVERFLOW);
    assert!(failure.message.contains("still too long"), "{}", failure.message);
}

#[tokio::test]
async fn a_request_that_is_too_long_goes_on_without_the_older_part_if_that_cannot_be_summarised() {
    for prompt in [r#"{"script": [{"error": 400}]}"#, r#"{"script": [{"text": " "}]}"#] {
        let state = state_of(conversation(4, "words"));
        let (seen, answer) = ask(&policy(json!({"summary_prompt": prompt})), &state, 1).await;
        assert!(seen[1].len() < 5 && seen[1][0].contains("No summary"), "{seen:?}");
        let update = answer.expect("an answer").extra;
        let path = update.fields[STATUS]["file_path"].as_str().expect("a file");
        assert!(update.files[path].is_some());
    }
}

#[tokio::test]
async fn the_last_summary_is_kept_if_what_came_since_cannot_be_summarised() {
    let settings = json!({"trigger": {"messages": 6}, "keep": {"messages": 2}});
    let mut state = state_of(conversation(3, "words"));
    let answer = ask(&policy(settings), &state, 0).await.1.expect("an answer");
    state.apply(&answer.extra);
    let refusing = json!({"summary_prompt": r#"{"script": [{"error": 400}]}"#});
    for turns in [8, 12] {
        let known = state.messages.len();
        state
            .messages
            .extend(conversation(turns, "words").into_iter().skip(known));
        let (seen, answer) = ask(&policy(refusing.clone()), &state, 1).await;
        let shown = &seen[1][0];
        assert_eq!(
            shown.matches("SUMMARY\n\nNo summary of the messages since").count(),
            1,
            "{shown}"
        );
        assert_eq!(shown.matches("No summary").count(), 1, "{shown}");
        state.apply(&answer.expect("an answer").extra);
    }
}

#[tokio::test]
async fn a_request_that_is_too_long_fails_if_the_summary_fails_for_a_passing_reason() {
    let prompt = r#"{"script": [{"error": 503}]}"#;
    let state = state_of(conversation(4, "words"));
    let (seen, answer) = ask(&policy(json!({"summary_prompt": prompt})), &state, 1).await;
    assert_eq!(seen.len(), 1);
    let failure = answer.expect_err("too long").failure().cloned().expect("a failure");
    assert_eq!(failure.class, CONTEXT_OVERFLOW);
    assert!(failure.message.contains("Its summary failed"), "{}", failure.message);
}

#[tokio::test]
async fn a_message_that_is_too_long_alone_is_shortened_and_kept_in_a_file() {
    let mut messages = conversation(1, "");
    messages.push(Arc::new(Message::human("x".repeat(50_000)).with_id("long/1")));
    let state = state_of(messages);
    let (seen, answer) = ask(&policy(json!({})), &state, 1).await;
    assert!(seen[1].last().expect("a message").len() < 3_000);
    let update = answer.expect("an answer").extra;
    let file = update.files["/large_messages/long_1"].as_ref().expect("a file");
    assert_eq!(file.content.len(), 50_000);
    let mut after = state.clone();
    after.apply(&update);
    let (seen, _) = ask(&policy(json!({})), &after, 0).await;
    assert!(seen[0].last().expect("a message").len() < 3_000, "it stays short");
}

#[tokio::test]
async fn long_arguments_of_older_calls_are_shortened_before_anything_is_summarised() {
    let args = Map::from_iter([("content".to_owned(), json!("y".repeat(40_000)))]);
    let call = ToolCall::new("c1", "write_file", args);
    let result = Message::tool(&call, ToolStatus::Success, "written").with_id("r1");
    let mut messages = vec![Arc::new(Message::calling([call]).with_id("w1")), Arc::new(result)];
    messages.extend(conversation(2, ""));
    let state = state_of(messages);
    let settings = json!({"trigger": {"tokens": 5_000}, "keep": {"messages": 2}});
    let (seen, answer) = ask(&policy(settings), &state, 0).await;
    assert_eq!(seen[0].len(), 6, "nothing is summarised");
    let update = answer.expect("an answer").extra;
    let event: SummarizationEvent = serde_json::from_value(update.fields[EVENT].clone()).expect("an event");
    let shown = event.view(state.messages.recent());
    let text = shown[0].tool_calls()[0].args["content"].as_str().expect("a text");
    assert!(text.starts_with("yyyy") && text.len() < 100, "{text}");
}

#[tokio::test]
async fn a_summary_that_fails_leaves_the_request_as_it_is() {
    let prompt = r#"{"script": [{"error": 400}]}"#;
    let settings = json!({"trigger": {"messages": 4}, "keep": {"messages": 1}, "summary_prompt": prompt});
    let state = state_of(conversation(3, ""));
    let (seen, answer) = ask(&policy(settings), &state, 0).await;
    assert_eq!(seen[0].len(), 6);
    assert_eq!(answer.expect("an answer").extra, Update::none());
}

#[test]
fn an_earlier_summary_is_in_the_transcript_whole_where_that_leaves_room() {
    let text = format!("{}MIDDLE{}", "a".repeat(10_000), "z".repeat(10_000));
    let other = Arc::new(Message::human(text.clone()));
    let mut summary = Message::human(text);
    summary.set_source(wording::SOURCE);
    let messages = [Arc::new(summary), other];
    let request = wording::summary_request("Summarise.", &messages, 100_000);
    assert_eq!(request.matches("MIDDLE").count(), 1, "other messages are cut");
    let request = wording::summary_request("Summarise.", &messages, 10_000);
    assert_eq!(request.matches("MIDDLE").count(), 0);
    assert!(request.len() < 10_000, "{}", request.len());
}

#[test]
fn an_earlier_summary_leaves_room_for_later_messages_in_every_script() {
    let mut summary = Message::human("要".repeat(20_000));
    summary.set_source(wording::SOURCE);
    let messages = [Arc::new(summary), Arc::new(Message::human("the next step"))];
    let request = wording::summary_request("Summarise.", &messages, 30_000);
    assert!(request.contains("the next step"), "{}", request.len());
    assert!(request.len() > 15_000 && request.len() < 16_000, "{}", request.len());
}

#[test]
fn a_summary_has_room_where_the_answers_of_the_agent_are_short() {
    let settings = json!({"max_tokens": 300, "max_completion_tokens": 9_000, "stop": ["x"], "temperature": 0,
        "text": {"format": {"type": "json_object"}}});
    let own = ModelWithSettings {
        model: Ok(Arc::new(Scripted::new("lab"))),
        settings: settings.as_object().cloned().expect("settings"),
    };
    let made = for_summaries(&MiddlewareModel::new([own]), 2_000);
    let expected = json!({"max_tokens": 2_000, "max_completion_tokens": 9_000, "temperature": 0});
    assert_eq!(Value::Object(made.models()[0].settings.clone()), expected);
}

#[test]
fn a_summary_gets_no_more_room_than_a_small_window_has() {
    let short = ModelWithSettings {
        model: Ok(Arc::new(Scripted::new("lab"))),
        settings: Map::from_iter([("max_tokens".to_owned(), json!(300))]),
    };
    let settings: SummarizationSettings = serde_json::from_value(json!({"max_input_tokens": 4_000})).expect("settings");
    let made = Summarization::new(&settings, &MiddlewareModel::new([short]), None, true);
    assert_eq!(made.0.summarizer.models()[0].settings["max_tokens"], 800);
}

#[test]
fn a_file_in_a_summarised_message_is_named() {
    let blocks = json!([
        {"type": "text", "text": "Read this."},
        {"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf", "filename": "report.pdf"},
        {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
    ]);
    let blocks = blocks.as_array().expect("blocks").clone();
    let message = Arc::new(Message::human(Content::Blocks(blocks)));
    let text = wording::history_text(&[message], 1, 10_000);
    assert!(text.contains("Read this.\n[file \"report.pdf\"]\n[image]\n"), "{text}");
}

#[test]
fn the_provider_counts_and_what_came_since_is_estimated() {
    let usage = json!({"input_tokens": 1_000, "output_tokens": 10});
    let role = Role::Ai {
        tool_calls: vec![],
        invalid_tool_calls: vec![],
        usage_metadata: Some(usage),
    };
    let view: Vec<Arc<Message>> = vec![
        Arc::new(Message::human("long ago")),
        Arc::new(Message::new(role, "counted").with_id("counted")),
        Arc::new(Message::human("x".repeat(400)).with_id("new")),
    ];
    let known = ToolTokens::default();
    let request = ModelRequest::default();
    let tokens = |request: &ModelRequest, after| length::of_request(request, &view, after, &known).tokens;
    assert_eq!(tokens(&request, None), 1_010 + 104);
    let since = tokens(&request, Some("new"));
    assert!(since < 200, "a count from before the compaction does not hold: {since}");
    let tool = |name: &str, described: usize| {
        Arc::new(ToolSpec {
            name: name.to_owned(),
            description: "x".repeat(described),
            parameters: json!({}),
        })
    };
    let with_tools = |tools: Vec<Arc<ToolSpec>>| {
        let request = ModelRequest {
            tools,
            ..ModelRequest::default()
        };
        tokens(&request, Some("new")) - since
    };
    let [short, long] = [tool("look", 396), tool("look", 796)];
    assert_eq!(with_tools(vec![Arc::clone(&short)]), 100);
    assert_eq!(with_tools(vec![short, long]), 300, "other tools are estimated anew");
    assert_eq!(with_tools(vec![]), 0);
}

#[test]
fn the_lengths_follow_the_smallest_known_window_of_the_models() {
    let model = |window: Option<u64>| ModelWithSettings {
        model: Ok(Arc::new(Scripted::new("lab").with_max_input_tokens(window))),
        settings: Map::new(),
    };
    let small = MiddlewareModel::new([Some(90_000), None, Some(10_000)].map(model));
    let of = |tokens| length::RequestLength { tokens, messages: 2 };
    let lengths = Lengths::new(&SummarizationSettings::default(), &small);
    assert!(!lengths.is_reached(of(8_499), 0) && lengths.is_reached(of(8_500), 0));
    assert!(lengths.is_reached(of(7_000), 3_000), "the answer needs room");
    assert_eq!(lengths.tokens_of(&lengths.keep()), Some(1_000));
    let unknown = MiddlewareModel::new([model(None)]);
    let lengths = Lengths::new(&SummarizationSettings::default(), &unknown);
    assert!(!lengths.is_reached(of(169_999), 0) && lengths.is_reached(of(170_000), 0));
    assert_eq!(lengths.keep().messages, Some(6));
}

/// Calls with their results, as those of one long turn.
fn calls(numbers: std::ops::Range<usize>) -> Vec<Arc<Message>> {
    numbers
        .flat_map(|number| {
            let call = ToolCall::new(format!("c{number}"), "lookup", Map::new());
            let result = Message::tool(&call, ToolStatus::Success, "found").with_id(format!("r{number}"));
            [Message::calling([call]).with_id(format!("a{number}")), result]
        })
        .map(Arc::new)
        .collect()
}

/// A long turn for a task, after its first summary.
async fn summarized(settings: &Value) -> State {
    let mut messages = vec![Arc::new(Message::human("the task").with_id("h0"))];
    messages.extend(calls(0..150));
    let mut state = state_of(messages);
    let (_, answer) = ask(&policy(settings.clone()), &state, 0).await;
    state.apply(&answer.expect("an answer").extra);
    state
}

#[tokio::test]
async fn a_reminder_is_not_taken_for_the_request_of_the_user() {
    let mut reminder = Message::human("go on").with_id("n0");
    reminder.set_source("until_tool");
    let mut messages = vec![Arc::new(Message::human("the task").with_id("h0"))];
    messages.extend(calls(0..2));
    messages.push(Arc::new(reminder));
    messages.extend(calls(2..5));
    let settings = json!({"trigger": {"messages": 6}, "keep": {"messages": 2}});
    let (seen, _) = ask(&policy(settings), &state_of(messages), 0).await;
    let summary = &seen[0][0];
    assert!(summary.contains("word for word:\nthe task"), "{summary}");
}

#[tokio::test]
async fn messages_that_are_compressed_count_and_the_last_request_is_found_among_them() {
    let settings = json!({"trigger": {"messages": 200}, "keep": {"messages": 10}});
    let mut state = summarized(&settings).await;
    assert_eq!(state.messages.len(), 301);
    assert_eq!(state.messages.earlier_len(), 237, "all but the newest");
    state.messages.extend(calls(150..250));
    let (seen, answer) = ask(&policy(settings), &state, 0).await;
    assert_eq!(seen[0].len(), 11, "the summary and the newest messages");
    let summary = &seen[0][0];
    assert!(
        summary.contains("first 491 messages") && summary.contains("the task"),
        "{summary}"
    );
    let update = answer.expect("an answer").extra;
    assert_eq!(update.fields[STATUS]["summarized_messages"], 491);
    let event: SummarizationEvent = serde_json::from_value(update.fields[EVENT].clone()).expect("an event");
    let summary = event.summary_message.expect("a summary");
    assert_eq!(summary.additional_kwargs[SUMMARIZED_ANSWERS], 245);
    state.apply(&update);
    assert_eq!(state.messages.earlier().len(), 2);
    assert_eq!(state.messages.all().len(), 501);
}

#[tokio::test]
async fn the_request_of_the_user_is_repeated_after_it_has_left_the_state() {
    let looked = |numbers| {
        calls(numbers).into_iter().map(|message| {
            if message.answers().is_none() {
                return message;
            }
            Arc::new(Message {
                content: "x".repeat(1_000).into(),
                ..Message::clone(&message)
            })
        })
    };
    let mut state = state_of(vec![Arc::new(Message::human("the task").with_id("h0"))]);
    for (numbers, answers) in [(0..150, 147), (150..300, 297)] {
        state.messages.extend(looked(numbers));
        let (seen, update) = compacted_within(200_000, &state).await;
        assert!(seen[0].contains("word for word:\nthe task"), "{}", seen[0]);
        let summary = &update.fields[EVENT]["summary_message"];
        assert_eq!(summary["additional_kwargs"][SUMMARIZED_ANSWERS], answers);
        state.apply(&update);
        assert!(state.messages.has_left("h0"));
    }
}

#[tokio::test]
async fn messages_that_are_compressed_do_not_count_in_a_request_with_other_messages() {
    let settings = json!({"trigger": {"messages": 200}, "keep": {"messages": 10}});
    let state = summarized(&settings).await;
    assert_eq!(state.messages.earlier_len(), 237);
    let (seen, answer) = ask_about(&policy(settings), &state, calls(300..425), 0).await;
    let summary = &seen[0][0];
    assert!(
        summary.contains("first 240 messages") && !summary.contains("the task"),
        "{summary}"
    );
    assert_eq!(answer.expect("an answer").extra, Update::none());
}
