//! A main agent may be a program.

use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::viewer::{Viewer, data, until_ends};
use crate::support::{Human, TestServer, eventually, on_both_engines, script, task};

/// Kills the process while the program of this agent runs, and starts it again.
async fn killed_at_work(server: &TestServer, agent: &str) -> (Human, Run) {
    server.is_embedded().await;
    server.moves_into_a_process().await;
    let alice = server.human(agent).await;
    server.tools.hold("dig");
    let run = alice.asks("deep").await;
    server.tools.called("dig", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("dig");
    (alice, run)
}

on_both_engines! {
    a_program_answers_turn_by_turn,
    a_program_streams_in_both_protocols,
    a_program_writes_files_and_state_fields,
    a_failure_of_a_program_is_the_failure_of_its_run,
    the_result_of_a_program_is_validated_by_its_form,
    a_question_of_a_program_is_answered_after_a_restart,
    a_program_can_be_cancelled_and_a_new_run_begins_it_again,
    a_program_that_a_crash_interrupted_asks_a_human,
    a_program_that_may_be_repeated_is_repeated,
    a_program_that_must_not_be_repeated_fails,
    a_conversation_with_a_program_can_be_forked_and_copied,
    the_graph_and_the_schemas_show_a_program,
    an_agent_that_is_a_program_may_be_a_subagent_of_another_agent,
    a_client_may_define_an_agent_that_is_a_program,
}

async fn a_program_answers_turn_by_turn(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("clerk").await;
    alice.says("one").await;
    alice.says("two").await;
    let said = [
        "human: one",
        "ai: clerk heard: one",
        "human: two",
        "ai: clerk heard: two",
    ];
    assert_eq!(alice.transcript().await, said);
    let state = alice.state().await;
    assert_eq!(state["next"], json!([]));
    assert_eq!(state["values"]["messages"][1]["name"], "clerk");
    let history = alice.history().await;
    let next: Vec<&Value> = history.iter().map(|state| &state["next"]).collect();
    let turn = [json!([]), json!(["runnable"]), json!(["__start__"])];
    let both: Vec<&Value> = turn.iter().chain(&turn).collect();
    assert_eq!(next, both);
}

async fn a_program_streams_in_both_protocols(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("clerk").await;
    let modes = json!({"stream_mode": ["updates", "custom", "messages-tuple", "tasks", "values"]});
    let events = alice.streams("one", modes).await.rest().await;
    let of = |name: &str| -> Vec<&Value> {
        let all = events.iter().filter(|event| event.event == name);
        all.map(|event| &event.data).collect()
    };
    assert_eq!(of("custom"), [&json!({"from": "clerk"})]);
    let said = json!("clerk heard: one");
    assert_eq!(of("updates")[0]["runnable"]["messages"][0]["content"], said);
    let message = of("messages")[0];
    assert_eq!(message[0]["content"], said);
    assert_eq!(message[1]["lc_agent_name"], "clerk");
    assert_eq!(message[1]["langgraph_node"], "runnable");
    assert_eq!(of("tasks")[0]["name"], "runnable");
    assert_eq!(of("values").last().unwrap()["messages"][1]["content"], said);

    let viewer = Viewer::of_new(&server);
    viewer.starts("clerk", "two").await;
    let live = until_ends(&mut viewer.opens_all().await, 1).await;
    for frames in [live, viewer.replays(1).await] {
        let finished = frames
            .iter()
            .filter(|frame| frame.event == "messages" && data(frame)["event"] == "message-finish");
        assert_eq!(finished.count(), 1, "{frames:#?}");
        let text: Vec<&Value> = frames
            .iter()
            .filter(|frame| data(frame)["event"] == "content-block-finish")
            .map(|frame| &data(frame)["content"]["text"])
            .collect();
        assert_eq!(text, [&json!("clerk heard: two")], "{frames:#?}");
        assert_eq!(data(frames.last().unwrap())["event"], "completed");
    }
}

async fn a_program_writes_files_and_state_fields(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("archivist").await;
    let input = json!({"messages": [{"role": "user", "content": "x"}], "notes": ["from the client"]});
    alice.starts(json!({"input": input})).await.finishes().await;
    let values = alice.state().await["values"].clone();
    assert_eq!(values["notes"], json!(["from the client", "from the scribe"]));
    assert_eq!(values["files"]["/new.txt"]["content"], json!("new"), "{values}");
    let said = values["messages"][1]["content"].as_str().unwrap();
    assert_eq!(said, r#"seen: [], notes: ["from the client"]"#);
    let wrong = alice.run_body("x", json!({"input": {"messages": [], "notes": "not a list"}}));
    let refused = alice.client().post(&alice.path("/runs"), wrong).await;
    assert_eq!(refused.status, 422, "{refused:?}");
}

async fn a_failure_of_a_program_is_the_failure_of_its_run(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("wreck").await;
    for (order, class) in [
        ("no luck", "WreckedError"),
        ("panic", "RunnablePanicError"),
        ("private", "RunnableResultError"),
    ] {
        let run = alice.asks(order).await;
        run.finishes().await;
        assert_eq!(run.status().await, "error");
        let error = alice.record().await["error"].clone();
        assert!(error.to_string().contains(class), "{error}");
    }
}

async fn the_result_of_a_program_is_validated_by_its_form(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("form").await;
    let values = alice.says(r#"{"summary": "short"}"#).await;
    assert_eq!(values["structured_response"], json!({"summary": "short"}));
    let run = alice.asks("no JSON").await;
    run.finishes().await;
    assert_eq!(run.status().await, "error");
}

async fn a_question_of_a_program_is_answered_after_a_restart(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("asker").await;
    alice.says("two").await;
    assert_eq!(alice.status().await, "interrupted");
    let questions = alice.questions().await;
    assert_eq!(questions.len(), 2);
    assert_eq!(questions[0].agent(), "asker");
    assert_eq!(questions[0].0["agent_path"], json!(["asker"]));
    server.is_stopped_and_started_again().await;
    alice.resolves(&questions[1], json!({"response": "y"})).await;
    eventually(async || alice.questions().await.len() == 1).await;
    alice.resolves(&questions[0], json!({"response": "x"})).await;
    eventually(async || alice.status().await == "idle").await;
    let said = alice.transcript().await;
    let in_order = r#"ai: told: a="x" b="y""#;
    let reversed = r#"ai: told: a="y" b="x""#;
    assert!(said[1] == in_order || said[1] == reversed, "{said:#?}");
    assert_eq!(said.len(), 2);

    let bob = server.human("asker").await;
    bob.says("one").await;
    bob.resumes(json!("that")).await.finishes().await;
    assert_eq!(bob.transcript().await[1], r#"ai: told: "that""#);
}

async fn a_program_can_be_cancelled_and_a_new_run_begins_it_again(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("digger").await;
    server.tools.hold("dig");
    let run = alice.asks("deep").await;
    server.tools.called("dig", 1).await;
    run.is_cancelled("interrupt").await.ok();
    assert_eq!(run.status().await, "interrupted");
    server.tools.let_go("dig");
    alice.says("again").await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: dug");
    assert_eq!(server.tools.calls_of("dig").len(), 2);
}

async fn a_program_that_a_crash_interrupted_asks_a_human(server: TestServer) {
    let (alice, run) = killed_at_work(&server, "digger").await;
    run.finishes().await;
    let question = alice.question().await;
    assert_eq!(question.0["kind"], "unknown_outcome");
    assert_eq!(question.agent(), "digger");
    assert_eq!(server.tools.calls_of("dig").len(), 1);
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await, ["human: deep", "ai: dug"]);
    let keys = server.tools.keys_of("dig");
    assert_eq!(keys.len(), 2);
    assert_eq!(&keys[0], &keys[1]);
}

async fn a_program_that_may_be_repeated_is_repeated(server: TestServer) {
    let (alice, run) = killed_at_work(&server, "mole").await;
    run.finishes().await;
    assert_eq!(alice.transcript().await, ["human: deep", "ai: dug"]);
    assert_eq!(server.tools.calls_of("dig").len(), 2);
}

async fn a_program_that_must_not_be_repeated_fails(server: TestServer) {
    let (alice, run) = killed_at_work(&server, "miner").await;
    run.finishes().await;
    assert_eq!(run.status().await, "error");
    let error = alice.record().await["error"].clone();
    assert!(error.to_string().contains("UnknownOutcomeError"), "{error}");
    assert_eq!(server.tools.calls_of("dig").len(), 1);
}

async fn a_conversation_with_a_program_can_be_forked_and_copied(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("clerk").await;
    alice.says("one").await;
    let first = alice.state().await["checkpoint"].clone();
    alice.says("two").await;
    let fork = alice.run_body("three", json!({"checkpoint": first}));
    alice.starts(fork).await.finishes().await;
    let forked = [
        "human: one",
        "ai: clerk heard: one",
        "human: three",
        "ai: clerk heard: three",
    ];
    assert_eq!(alice.transcript().await, forked);
    // The step of an older checkpoint runs again.
    let pending = alice.history().await[1].clone();
    assert_eq!(pending["next"], json!(["runnable"]));
    let again = json!({"checkpoint": pending["checkpoint"], "input": null});
    alice.starts(again).await.finishes().await;
    assert_eq!(alice.transcript().await, forked);
    let copy = alice.client().post(&alice.path("/copy"), json!({})).await.ok();
    let bob = alice.on(copy["thread_id"].as_str().expect("an id"));
    bob.says("four").await;
    assert_eq!(bob.transcript().await[..4], forked);
    assert_eq!(bob.transcript().await[5], "ai: clerk heard: four");
    // A client may write the result of the program.
    let written = json!({"values": {"messages": [{"role": "ai", "content": "mine"}]}, "as_node": "runnable"});
    alice.client().post(&alice.path("/state"), written).await.ok();
    assert_eq!(alice.state().await["next"], json!([]));
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: mine");
}

async fn the_graph_and_the_schemas_show_a_program(server: TestServer) {
    server.is_embedded().await;
    let client = server.client();
    let graph = client.get("/assistants/archivist/graph").await.ok();
    let nodes: Vec<&Value> = graph["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| &node["id"])
        .collect();
    assert_eq!(nodes, ["__start__", "runnable", "__end__"]);
    let schemas = client.get("/assistants/archivist/schemas").await.ok();
    for name in ["input_schema", "output_schema", "state_schema"] {
        let properties = &schemas[name]["properties"];
        assert!(properties["messages"].is_object(), "{name}: {properties}");
        assert!(properties["notes"].is_object(), "{name}: {properties}");
    }
    let subgraphs = client.get("/assistants/archivist/subgraphs").await.ok();
    assert_eq!(subgraphs, json!({}));
}

async fn an_agent_that_is_a_program_may_be_a_subagent_of_another_agent(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("desk").await;
    alice.says(script().calls(task("t1", "helper", "x")).says("done")).await;
    assert_eq!(
        alice.transcript().await[2..],
        ["task: desk/helper heard: x", "ai: done"]
    );
}

async fn a_client_may_define_an_agent_that_is_a_program(server: TestServer) {
    server.is_embedded().await;
    let client = server.client();
    let refused = client
        .put(
            "/agents/brought",
            json!({"runnable": "ech", "system_prompt": "You are nobody."}),
        )
        .await;
    assert_eq!(refused.status, 422);
    let text = refused.body.to_string();
    assert!(
        text.contains("there is no program `ech`; did you mean `echo`?"),
        "{text}"
    );
    assert!(text.contains("system_prompt"), "{text}");
    client.put("/agents/brought", json!({"runnable": "echo"})).await.ok();
    let alice = server.human("brought").await;
    alice.says("x").await;
    assert_eq!(alice.transcript().await[1], "ai: brought heard: x");
}
