//! Questions in the stream of a thread: asked, answered, refused.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::agents::delegated_interrupts::{BRITTLE, one_fails_above_a_question};
use crate::streams::v2::find;
use crate::support::sse::Frame;
use crate::support::viewer::{Viewer, data, depth, in_short, is_terminal, name, until_ends};
use crate::support::{TestServer, mail, on_both_engines, script, two_mailers};

on_both_engines! {
    an_interrupt_is_answered_from_the_stream,
    interrupts_of_subagents_keep_their_namespace,
    the_run_that_answers_one_of_two_questions_requests_the_other_again,
    input_to_an_interrupted_thread_is_the_answer,
    an_invalid_answer_is_refused_and_the_interrupt_stays_pending,
    a_refusal_of_an_answer_names_the_parameter_that_was_sent,
    an_interrupt_below_a_subagent_that_failed_is_not_pending,
}

async fn an_interrupt_is_answered_from_the_stream(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let first = viewer
        .starts("agent", script().calls(mail("m1", "bob")).says("sent"))
        .await;
    let mut stream = viewer.opens_all().await;
    let frames = until_ends(&mut stream, 1).await;
    assert_eq!(
        in_short(&frames, &["lifecycle", "input.requested", "tools"]),
        [
            "lifecycle running agent",
            "input.requested send_email",
            "lifecycle interrupted agent",
        ]
    );
    let asked = find(&frames, "input.requested");
    assert_eq!(data(asked)["payload"], data(asked)["value"]);
    let id = data(asked)["interrupt_id"].as_str().unwrap();
    assert_eq!(name(asked), format!("synth:{first}:input||{id}"));
    viewer.responds(asked, json!([{"type": "approve"}])).await;
    let frames = until_ends(&mut stream, 1).await;
    assert_eq!(
        in_short(&frames, &["lifecycle", "tools"]),
        [
            "lifecycle running agent",
            "tools tool-started m1",
            "tools tool-finished m1",
            "lifecycle completed agent",
        ]
    );
    let again = json!({"interrupt_id": id, "response": {"decisions": [{"type": "approve"}]}});
    assert_eq!(viewer.refused("input.respond", again).await, "no_such_interrupt");
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn interrupts_of_subagents_keep_their_namespace(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer
        .starts("agent", script().calls_all(two_mailers()).says("done"))
        .await;
    let mut stream = viewer.opens_all().await;
    let frames = until_ends(&mut stream, 1).await;
    let asked: Vec<&Frame> = frames.iter().filter(|frame| frame.event == "input.requested").collect();
    assert_eq!(asked.len(), 2);
    assert_eq!(depth(asked[0]), 1);
    assert_eq!(depth(asked[1]), 1);
    let places: HashSet<String> = asked
        .iter()
        .map(|frame| frame.data["params"]["namespace"].to_string())
        .collect();
    let replies: Vec<Value> = asked
            .iter()
            .map(|frame| {
                json!({"interrupt_id": data(frame)["interrupt_id"], "response": {"decisions": [{"type": "approve"}]}})
            })
            .collect();
    viewer.succeeds("input.respond", json!({"responses": replies})).await;
    let frames = until_ends(&mut stream, 1).await;
    let started = frames.iter().filter(|frame| data(frame)["event"] == "started");
    let again: HashSet<String> = started
        .map(|frame| frame.data["params"]["namespace"].to_string())
        .collect();
    assert_eq!(again, places);
    assert_eq!(data(frames.last().unwrap())["event"], "completed");
    let mut keys = server.tools.keys_of("send_email");
    keys.sort();
    assert_eq!(keys, ["m1", "m2"]);
}

async fn the_run_that_answers_one_of_two_questions_requests_the_other_again(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let first = viewer
        .starts("agent", script().calls_all(two_mailers()).says("done"))
        .await;
    let mut stream = viewer.opens_all().await;
    let frames = until_ends(&mut stream, 1).await;
    let asked: Vec<&Frame> = frames.iter().filter(|frame| frame.event == "input.requested").collect();
    viewer.responds(asked[0], json!([{"type": "approve"}])).await;
    let frames = until_ends(&mut stream, 1).await;
    let again: Vec<&Frame> = frames.iter().filter(|frame| frame.event == "input.requested").collect();
    assert_eq!(again.len(), 1, "{again:#?}");
    assert_eq!(data(again[0])["interrupt_id"], data(asked[1])["interrupt_id"]);
    assert_eq!(
        again[0].data["params"]["namespace"],
        asked[1].data["params"]["namespace"]
    );
    assert!(!name(again[0]).contains(&first), "it belongs to the new run");
    assert_eq!(data(frames.last().unwrap())["event"], "interrupted");
}

async fn input_to_an_interrupted_thread_is_the_answer(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut stream = viewer.opens_all().await;
    let asks = script().calls(mail("m1", "bob")).says("sent");
    viewer.starts("agent", &asks).await;
    until_ends(&mut stream, 1).await;
    let input = json!({"decisions": [{"type": "approve"}]});
    viewer
        .succeeds("run.start", json!({"assistant_id": "agent", "input": input}))
        .await;
    let frames = until_ends(&mut stream, 1).await;
    assert_eq!(
        in_short(&frames, &["tools"]),
        ["tools tool-started m1", "tools tool-finished m1"]
    );
    viewer.starts("agent", &asks).await;
    until_ends(&mut stream, 1).await;
    viewer.starts("agent", "never mind").await;
    let frames = until_ends(&mut stream, 1).await;
    assert_eq!(data(frames.last().unwrap())["event"], "completed");
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn an_invalid_answer_is_refused_and_the_interrupt_stays_pending(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer
        .starts("agent", script().calls(mail("m1", "bob")).says("sent"))
        .await;
    let mut stream = viewer.opens_all().await;
    let frames = until_ends(&mut stream, 1).await;
    let asked = find(&frames, "input.requested");
    let id = &data(asked)["interrupt_id"];
    for response in [
        json!(1),
        json!({"decisions": []}),
        json!({"decisions": [{"type": "respond", "message": "x"}]}),
    ] {
        let params = json!({"interrupt_id": id, "response": response});
        assert_eq!(viewer.refused("input.respond", params).await, "invalid_argument");
    }
    let approval = json!({"decisions": [{"type": "approve"}]});
    let beside_jump = json!({"interrupt_id": id, "response": approval, "goto": "model"});
    assert_eq!(viewer.refused("input.respond", beside_jump).await, "invalid_argument");
    let unknown = json!({"interrupt_id": "0".repeat(32), "response": {}});
    assert_eq!(viewer.refused("input.respond", unknown).await, "no_such_interrupt");
    viewer
        .responds(asked, json!([{"type": "reject", "message": "no"}]))
        .await;
    let frames = stream.until(is_terminal).await;
    assert_eq!(data(frames.last().unwrap())["event"], "completed");
    assert_eq!(server.tools.keys_of("send_email"), Vec::<String>::new());
}

async fn a_refusal_of_an_answer_names_the_parameter_that_was_sent(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer
        .starts("agent", script().calls(mail("m1", "bob")).says("sent"))
        .await;
    let mut stream = viewer.opens_all().await;
    let frames = until_ends(&mut stream, 1).await;
    let id = &data(find(&frames, "input.requested"))["interrupt_id"];
    let wrong = json!({"decisions": [{"type": "shrug"}]});
    let reply = json!({"interrupt_id": id, "response": wrong});
    for (method, params, field) in [
        ("input.respond", reply.clone(), "response.decisions[0].type"),
        (
            "input.respond",
            json!({"responses": [reply]}),
            "responses[0].response.decisions[0].type",
        ),
        ("input.respond", json!({"responses": [reply, reply]}), "responses[1]"),
        (
            "run.start",
            json!({"assistant_id": "agent", "input": wrong}),
            "input.decisions[0].type",
        ),
    ] {
        let answer = viewer.commands(method, params).await;
        assert_eq!(answer["error"], "invalid_argument", "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
    }
}

async fn an_interrupt_below_a_subagent_that_failed_is_not_pending(server: TestServer) {
    server.is_configured_with(BRITTLE).await;
    let viewer = Viewer::of_new(&server);
    let calls = one_fails_above_a_question();
    viewer.starts("brittle", script().calls_all(calls).says("done")).await;
    let mut stream = viewer.opens_all().await;
    let frames = until_ends(&mut stream, 1).await;
    let asked: Vec<&Frame> = frames.iter().filter(|frame| frame.event == "input.requested").collect();
    assert_eq!(asked.len(), 2);
    let of_depth = |wanted: usize| asked.iter().find(|frame| depth(frame) == wanted).expect("one");
    let gone = json!({
        "interrupt_id": data(of_depth(2))["interrupt_id"],
        "response": {"decisions": [{"type": "approve"}]},
    });
    assert_eq!(viewer.refused("input.respond", gone).await, "no_such_interrupt");
    viewer.responds(of_depth(1), json!([{"type": "approve"}])).await;
    let frames = until_ends(&mut stream, 1).await;
    assert_eq!(data(frames.last().unwrap())["event"], "completed");
    assert_eq!(server.tools.recipients(), ["bob"]);
}
