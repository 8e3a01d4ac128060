//! Agents with several models: the next one is asked when a model fails.

use serde_json::{Value, json};

use crate::support::provider::{ModelCall, Turn};
use crate::support::sse::Frame;
use crate::support::{TestServer, eventually, on_both_engines, script, transcript};

const DOUBLE: &str = r#"
[profiles."fake_anthropic:m-1"]
model_settings = { max_tokens = 77 }

[agents.double]
model = ["fake_openai:m-1", "fake_anthropic:m-1"]
model_settings = { temperature = 0.25 }

[agents.keyless_first]
model = ["keyless:m-1", "fake_openai:m-1"]

[agents.slow_first]
model = ["scripted:lab", "fake_openai:m-1"]

[agents.slow_second]
model = ["fake_openai:m-1", "scripted:lab"]

[agents.caller]
model = "scripted:lab"
[[agents.caller.subagents]]
name = "helper"
description = "Helps."
model = ["fake_openai:m-1", "fake_anthropic:m-1"]
"#;

on_both_engines! {
    the_next_model_answers_with_its_own_settings_when_one_is_refused,
    a_model_repeats_a_request_before_the_next_one_is_asked,
    an_answer_that_broke_off_is_superseded_by_that_of_the_next_model,
    a_model_without_a_key_is_passed_over,
    a_run_fails_only_when_all_models_have_failed,
    a_cancelled_run_asks_no_other_model,
    a_subagent_has_models_of_its_own,
    after_a_crash_the_failure_is_shown_once,
    a_conversation_that_is_too_long_for_all_models_is_compacted_and_asked_again,
    the_next_model_writes_the_summary_when_the_first_one_fails,
    the_smallest_window_decides_when_the_conversation_is_summarised,
    a_policy_asks_the_next_model_when_the_first_one_fails,
}

const OPENAI: &str = "/openai/v1/chat/completions";
const ANTHROPIC: &str = "/anthropic/v1/messages";

/// Returns the paths of the requests since the first `before` ones.
fn paths(server: &TestServer, before: usize) -> Vec<String> {
    server
        .models
        .asked()
        .split_off(before)
        .into_iter()
        .map(|one| one.path)
        .collect()
}

fn fell_back(from: &str, to: &str, error: &str) -> Value {
    json!({"name": "model_fallback", "payload": {"from": from, "to": to, "error": error}})
}

/// Returns the custom values of a stream.
fn custom(frames: &[Frame]) -> Vec<&Value> {
    let custom = frames.iter().filter(|frame| frame.event == "custom");
    custom.map(|frame| &frame.data).collect()
}

async fn the_next_model_answers_with_its_own_settings_when_one_is_refused(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("double").await;
    let before = server.models.asked().len();
    server.models.will([Turn::Refuses(401, None), Turn::Says("I can")]);
    let frames = alice
        .streams("who can?", json!({"stream_mode": ["custom", "values"]}))
        .await;
    let frames = frames.rest().await;
    assert_eq!(
        custom(&frames),
        [&fell_back("fake_openai:m-1", "fake_anthropic:m-1", "ModelRefusedError")]
    );
    assert_eq!(alice.transcript().await, ["human: who can?", "ai: I can"]);
    assert_eq!(paths(&server, before), [OPENAI, ANTHROPIC]);
    let asked = server.models.asked().split_off(before);
    let bodies: Vec<Value> = asked.iter().map(ModelCall::json).collect();
    assert_eq!(bodies[0]["temperature"], json!(0.25));
    assert_eq!(bodies[1]["temperature"], json!(0.25));
    assert_eq!(bodies[0]["max_tokens"], Value::Null);
    assert_eq!(bodies[1]["max_tokens"], json!(77));
    let metrics = server.client().get("/metrics?format=json").await.ok();
    let is_count = |sample: &&Value| sample["name"] == "adjutant_model_fallbacks_total";
    let counted = metrics["metrics"].as_array().unwrap().iter().find(is_count).unwrap();
    assert_eq!(counted["value"].as_f64(), Some(1.0));
    assert_eq!(counted["labels"]["to"], "fake_anthropic:m-1");
}

async fn a_model_repeats_a_request_before_the_next_one_is_asked(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("double").await;
    let before = server.models.asked().len();
    let busy = || Turn::Refuses(429, Some("0"));
    server
        .models
        .will([busy(), busy(), busy(), busy(), Turn::Says("at last")]);
    assert_eq!(transcript(&alice.says("hello").await), ["human: hello", "ai: at last"]);
    assert_eq!(paths(&server, before), [OPENAI, OPENAI, OPENAI, ANTHROPIC, ANTHROPIC]);
}

async fn an_answer_that_broke_off_is_superseded_by_that_of_the_next_model(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("double").await;
    server.models.will([Turn::BreaksOff, Turn::Says("whole answer")]);
    let frames = alice.streams("hello", json!({"stream_mode": "messages-tuple"})).await;
    let frames = frames.rest().await;
    let ids_of = |text: &str| -> Vec<&Value> {
        let has = |content: &str| !content.is_empty() && text.contains(content);
        let pieces = frames.iter().map(|frame| &frame.data[0]);
        let pieces = pieces.filter(|piece| piece["content"].as_str().is_some_and(has));
        pieces.map(|piece| &piece["id"]).collect()
    };
    let state = alice.state().await;
    let messages = state["values"]["messages"].as_array().unwrap();
    assert_eq!(alice.transcript().await, ["human: hello", "ai: whole answer"]);
    assert!(ids_of("whole answer").contains(&&messages[1]["id"]));
    assert!(!ids_of("hal").is_empty());
    assert!(
        !ids_of("hal").contains(&&messages[1]["id"]),
        "the pieces of another message"
    );
}

async fn a_model_without_a_key_is_passed_over(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("keyless_first").await;
    server.models.will([Turn::Says("here")]);
    assert_eq!(transcript(&alice.says("hello").await), ["human: hello", "ai: here"]);
}

async fn a_run_fails_only_when_all_models_have_failed(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("double").await;
    server.models.will([Turn::Refuses(400, None), Turn::Refuses(403, None)]);
    let error = alice.says("hello").await["__error__"].clone();
    assert_eq!(error["error"], "ModelRefusedError");
    assert!(error["message"].as_str().unwrap().contains("403"), "{error}");
    server.models.will([Turn::Says("again")]);
    alice.starts(json!({"input": null})).await.finishes().await;
    assert_eq!(alice.transcript().await, ["human: hello", "ai: again"]);
}

async fn a_cancelled_run_asks_no_other_model(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("slow_first").await;
    let before = server.models.asked().len();
    let slow = script().turn(json!({"text": "too late", "first_ms": 600_000}));
    let run = alice.asks(slow).await;
    eventually(async || run.status().await == "running").await;
    assert_eq!(run.is_cancelled("interrupt").await.status, 200);
    eventually(async || run.status().await == "interrupted").await;
    assert_eq!(server.models.asked().len(), before);
}

async fn a_subagent_has_models_of_its_own(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("caller").await;
    let before = server.models.asked().len();
    server.models.will([Turn::Refuses(400, None), Turn::Says("helped")]);
    let said = alice
        .says(
            script()
                .calls(crate::support::task("t1", "helper", "help"))
                .says("done"),
        )
        .await;
    assert_eq!(
        transcript(&said),
        ["human: …", "ai calls task", "task: helped", "ai: done"]
    );
    assert_eq!(paths(&server, before), [OPENAI, ANTHROPIC]);
}

async fn after_a_crash_the_failure_is_shown_once(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    server.moves_into_a_process().await;
    let alice = server.human("slow_second").await;
    let before = server.models.asked().len();
    server.models.will([Turn::BreaksOff, Turn::BreaksOff]);
    let slow = script().turn(json!({"text": "survived the crash", "first_ms": 1_500}));
    let run = alice
        .starts(alice.run_body(slow, json!({"stream_mode": ["custom"], "stream_resumable": true})))
        .await;
    // The second model is asked, or about to be, when the first has failed.
    eventually(async || server.models.asked().len() == before + 1).await;
    server.is_killed_and_started_again().await;
    run.finishes().await;
    assert_eq!(server.models.asked().len(), before + 2, "the step begins anew");
    assert_eq!(alice.transcript().await, ["human: …", "ai: survived the crash"]);
    let frames = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(
        custom(&frames),
        [&fell_back("fake_openai:m-1", "scripted:lab", "ModelInterruptedError")]
    );
    let usage = run.record().await;
    assert_eq!(usage["status"], "success", "{usage}");
}

async fn a_conversation_that_is_too_long_for_all_models_is_compacted_and_asked_again(server: TestServer) {
    server.is_configured_with(DOUBLE).await;
    let alice = server.human("double").await;
    server.models.will([Turn::Says("one")]);
    alice.says("first").await;
    let before = server.models.asked().len();
    // The second model fails for another reason; that the first one takes shorter requests matters more.
    server.models.will([
        Turn::Refuses(413, None),
        Turn::Refuses(403, None),
        Turn::Says("the summary"),
        Turn::Says("two"),
    ]);
    let values = alice.says("second").await;
    assert_eq!(transcript(&values).pop().unwrap(), "ai: two", "{values}");
    assert_eq!(values["summarization"]["count"], 1);
    assert_eq!(paths(&server, before), [OPENAI, ANTHROPIC, OPENAI, OPENAI]);
    let asked = server.models.asked();
    let last = &asked.last().unwrap().body;
    assert!(last.contains("the summary") && last.contains("second"), "{last}");
}

async fn the_next_model_writes_the_summary_when_the_first_one_fails(server: TestServer) {
    let agent =
        format!("{DOUBLE}\n[agents.double.summarization]\ntrigger = {{ messages = 4 }}\nkeep = {{ messages = 1 }}");
    server.is_configured_with(&agent).await;
    let alice = server.human("double").await;
    server.models.will([Turn::Says("one"), Turn::Says("two")]);
    alice.says("first").await;
    alice.says("second").await;
    let before = server.models.asked().len();
    server.models.will([
        Turn::Refuses(401, None),
        Turn::Says("the summary"),
        Turn::Refuses(401, None),
        Turn::Says("three"),
    ]);
    let values = alice.says("third").await;
    assert_eq!(transcript(&values).pop().unwrap(), "ai: three", "{values}");
    assert_eq!(paths(&server, before), [OPENAI, ANTHROPIC, OPENAI, ANTHROPIC]);
    let asked = server.models.asked().split_off(before);
    // 77, raised to what a summary needs.
    let summary = asked[1].json();
    assert_eq!(summary["max_tokens"], 2_000, "it has the settings of the second model");
    assert!(asked[3].body.contains("the summary"), "{}", asked[3].body);
}

async fn the_smallest_window_decides_when_the_conversation_is_summarised(server: TestServer) {
    let agent = r#"
        [providers.large]
        kind = "scripted"
        max_input_tokens = 100000

        [providers.small]
        kind = "scripted"
        max_input_tokens = 2000

        [agents.pair]
        model = ["large:lab", "small:lab"]
        summarization = { summary_prompt = '{"script": [{"text": "SUMMARY"}]}' }
    "#;
    server.is_configured_with(agent).await;
    let alice = server.human("pair").await;
    let long = "so it goes ".repeat(400);
    alice.says(long.as_str()).await;
    let values = alice.says("and now?").await;
    assert_eq!(values["summarization"]["count"], 1, "{values}");
}

async fn a_policy_asks_the_next_model_when_the_first_one_fails(server: TestServer) {
    let agent = r#"
        [agents.picky]
        model = ["fake_openai:m-1", "fake_anthropic:m-1"]
        tools = ["lookup", "send_email", "slow"]
        middleware = [{ name = "LLMToolSelectorMiddleware", max_tools = 1 }]
    "#;
    server.is_configured_with(agent).await;
    let alice = server.human("picky").await;
    let before = server.models.asked().len();
    server.models.will([
        Turn::Refuses(401, None),
        Turn::Says(r#"{"tools": ["slow"]}"#),
        Turn::Says("done"),
    ]);
    assert_eq!(transcript(&alice.says("hello").await), ["human: hello", "ai: done"]);
    assert_eq!(paths(&server, before), [OPENAI, ANTHROPIC, OPENAI]);
    let asked = server.models.asked();
    let last = &asked.last().unwrap().body;
    assert!(last.contains("slow") && !last.contains("send_email"), "{last}");
}
