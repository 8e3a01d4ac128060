//! The tool `ask_user`: typed questions to the user.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use serde_json::{Value, json};

use crate::support::{TestServer, call, eventually, on_both_engines, script, task};

on_both_engines! {
    the_answers_become_the_result_of_the_tool,
    a_wrong_answer_is_refused_and_the_question_stays,
    an_answer_does_not_reach_a_call_that_is_changed_meanwhile,
    cancelling_is_an_answer,
    a_subagent_asks_and_a_restart_does_not_matter,
    the_stream_shows_the_questions_with_their_schema,
    questions_expire_with_an_answer_that_says_so,
    an_agent_has_the_tool_only_if_it_is_switched_on,
}

const AGENTS: &str = r#"
[agents.curious]
name = "curious-agent"
model = "scripted:lab"
system_prompt = "x"
ask_user = true

[[agents.curious.subagents]]
name = "helper"
description = "Helps with whatever there is to do."
system_prompt = "x"
ask_user = true

[agents.hasty]
model = "scripted:lab"
system_prompt = "x"
middleware = [{ name = "AskUserMiddleware", expires_after_s = 60 }]
"#;

fn asks(id: &str) -> Value {
    call(
        id,
        "ask_user",
        json!({"questions": [
            {"question": "Which colour?", "type": "multiple_choice", "allow_other": false,
                "choices": [{"value": "red"}, {"value": "blue"}]},
            {"question": "Why?", "type": "text", "required": false},
        ]}),
    )
}

async fn the_answers_become_the_result_of_the_tool(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("curious").await;
    alice.says(script().calls(asks("q1")).says("thanks")).await;
    let question = alice.question().await;
    let value = &question.0["value"];
    assert_eq!(question.0["kind"], "question");
    assert_eq!(value["type"], "ask_user");
    assert_eq!(value["tool_call_id"], "q1");
    assert_eq!(
        value["questions"][0]["choices"],
        json!([{"value": "red"}, {"value": "blue"}])
    );
    let answer = json!({"type": "answered", "answers": ["blue", "It is calm."]});
    alice.resumes(answer).await.finishes().await;
    let messages = alice.state().await["values"]["messages"].clone();
    let told = "Question: Which colour?\nAnswer: blue\nQuestion: Why?\nAnswer: It is calm.";
    assert_eq!(messages[2]["content"], told);
    assert_eq!(messages[2]["status"], "success");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: thanks");
}

async fn a_wrong_answer_is_refused_and_the_question_stays(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("curious").await;
    alice.says(script().calls(asks("q1")).says("thanks")).await;
    let question = alice.question().await;
    for answer in [
        json!({"answers": ["green", null]}),
        json!({"answers": ["red"]}),
        json!({"type": "later"}),
        json!({}),
    ] {
        alice
            .resolves(&question, json!({"response": answer}))
            .await
            .refused(422);
        let asked = alice.tries_to_resume(json!({question.id(): answer})).await;
        assert_eq!(asked.status, 422, "{asked:?}");
    }
    assert_eq!(alice.question().await, question);
    let answered = alice
        .resolves(&question, json!({"response": {"answers": ["red", null]}}))
        .await
        .ok();
    alice.run(&answered).finishes().await;
    assert_eq!(alice.status().await, "idle");
}

/// Asks only for a reason.
fn asks_why(id: &str) -> Value {
    call(
        id,
        "ask_user",
        json!({"questions": [{"question": "Why?", "type": "text"}]}),
    )
}

async fn an_answer_does_not_reach_a_call_that_is_changed_meanwhile(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    for is_one_request in [true, false] {
        let alice = server.human("curious").await;
        alice.says(script().calls(asks("q1")).says("thanks")).await;
        let first = alice.question().await;
        let messages = alice.state().await["values"]["messages"].clone();
        let changed =
            json!({"role": "assistant", "content": "", "id": messages[1]["id"], "tool_calls": [asks_why("q1")]});
        let update = json!({"messages": [changed]});
        let answer = json!({(first.id()): {"answers": ["blue", "It is calm."]}});
        let commands = match is_one_request {
            true => vec![json!({"update": update, "resume": answer})],
            false => vec![json!({"update": update}), json!({"resume": answer})],
        };
        for command in commands {
            alice.starts(json!({"command": command})).await.finishes().await;
        }
        let second = alice.question().await;
        assert_ne!(second.id(), first.id());
        assert_eq!(second.0["value"]["questions"].as_array().map(Vec::len), Some(1));
        let answer = json!({"answers": ["It is deep."]});
        alice.resumes(answer).await.finishes().await;
        let said = alice.transcript().await;
        assert_eq!(said[2], "ask_user: Question: Why?\nAnswer: It is deep.");
        assert_eq!(said[3], "ai: thanks");
    }
}

async fn cancelling_is_an_answer(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("curious").await;
    alice.says(script().calls(asks("q1")).says("I choose myself")).await;
    let cancelled = json!({"response": {"type": "cancelled"}});
    let answered = alice.resolves(&alice.question().await, cancelled).await.ok();
    alice.run(&answered).finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("ask_user: The user has cancelled"), "{said:#?}");
    assert_eq!(said[3], "ai: I choose myself");
}

async fn a_subagent_asks_and_a_restart_does_not_matter(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("curious").await;
    let child = script().calls(asks("q1")).says("blue it is");
    alice
        .says(script().calls(task("t1", "helper", child)).says("done"))
        .await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "helper");
    server.is_stopped_and_started_again().await;
    let answered = alice
        .resolves(&question, json!({"response": {"answers": ["blue", null]}}))
        .await
        .ok();
    alice.run(&answered).finishes().await;
    assert_eq!(alice.transcript().await[2..], ["task: blue it is", "ai: done"]);
}

async fn the_stream_shows_the_questions_with_their_schema(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("curious").await;
    let more = json!({"stream_mode": ["updates"]});
    let frames = alice
        .streams(script().calls(asks("q1")).says("thanks"), more)
        .await
        .rest()
        .await;
    let asked = frames.iter().find_map(|frame| frame.data.get("__interrupt__"));
    let asked = &asked.expect("an interrupt")[0];
    assert_eq!(asked["value"]["questions"][1]["question"], "Why?");
    assert_eq!(asked["response_schema"]["properties"]["answers"]["minItems"], 2);
}

async fn questions_expire_with_an_answer_that_says_so(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    server.is_configured_with(AGENTS).await;
    let alice = server.human("hasty").await;
    alice.says(script().calls(asks("q1")).says("then without")).await;
    clock.advance(Duration::from_secs(61));
    eventually(async || alice.status().await == "idle").await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("ask_user: Nobody has answered in time"),
        "{said:#?}"
    );
}

async fn an_agent_has_the_tool_only_if_it_is_switched_on(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(asks("q1")).says("alone then")).await;
    assert!(alice.questions().await.is_empty());
    assert!(alice.transcript().await[2].starts_with("ask_user failed:"));
    let taken = json!({"model": "scripted:lab", "system_prompt": "x", "ask_user": true,
        "middleware": ["AskUserMiddleware"]});
    let checked = server
        .client()
        .post("/agents/validate", json!({"definition": taken}))
        .await
        .body;
    assert!(
        checked.to_string().contains("also given as the field `ask_user`"),
        "{checked}"
    );
}
