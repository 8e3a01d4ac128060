//! A program that embeds the server brings tools, policies, models and subagents of its own.

use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::{Engine, Human, TestServer, call, on_both_engines, play, program, script, task};

#[path = "../../../examples/embedding.rs"]
#[expect(dead_code, reason = "its `main` is not called here")]
mod example;

/// Returns a call that delegates `work` to `subagent` by a tool written in Rust.
fn hand_over(id: &str, subagent: &str, work: &str) -> Value {
    call(id, "hand_over", json!({"to": subagent, "work": work}))
}

/// Kills the process while the program `digger` runs, and starts it again.
async fn killed_at_work(server: &TestServer, digger: &str) -> (Human, Run) {
    server.is_embedded().await;
    server.moves_into_a_process().await;
    let alice = server.human("built").await;
    server.tools.hold("dig");
    let run = alice
        .asks(script().calls(task("t1", digger, "deep")).says("done"))
        .await;
    server.tools.called("dig", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("dig");
    (alice, run)
}

on_both_engines! {
    a_program_is_a_subagent_and_one_may_serve_several,
    a_program_streams_under_the_name_of_its_subagent,
    an_update_of_a_program_is_validated,
    a_program_reads_and_writes_what_its_caller_shares,
    a_program_may_ask_a_human_and_goes_on_with_the_answer,
    a_program_may_ask_several_questions_and_goes_on_when_all_are_answered,
    a_tool_written_in_rust_may_delegate_to_a_subagent,
    the_limits_hold_for_programs_and_for_tools_written_in_rust,
    models_and_middleware_can_be_written_in_rust,
    a_policy_with_the_name_of_one_of_the_server_is_in_its_place,
    a_policy_asks_again_about_messages_that_an_update_has_changed,
    agents_can_be_defined_in_rust,
    a_definition_of_a_client_may_name_registered_programs_only,
    a_running_program_can_be_cancelled_alone_or_with_its_run,
    a_program_that_a_crash_interrupted_raises_an_interrupt,
    a_human_can_respond_for_a_program_that_a_crash_interrupted,
    a_program_that_may_be_repeated_is_repeated_after_a_crash,
    a_program_that_must_not_be_repeated_fails_after_a_crash,
    a_program_that_has_ended_is_never_run_again,
}

async fn a_program_is_a_subagent_and_one_may_serve_several(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let calls = [task("t1", "parrot", "one"), task("t2", "magpie", "two")];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let said = [
        "task: built/parrot heard: one",
        "task: built/magpie heard: two",
        "ai: done",
    ];
    assert_eq!(alice.transcript().await[2..], said);
    let children = run.children().await;
    let told: Vec<Value> = children
        .iter()
        .map(|child| json!([child["agent_name"], child["status"], child["depth"]]))
        .collect();
    assert_eq!(told, [json!(["parrot", "success", 1]), json!(["magpie", "success", 1])]);
    let child = alice.run(&children[0]);
    let state = server.client().get(&format!("{}/state", child.path)).await.ok();
    assert_eq!(
        crate::support::transcript(&state["values"]),
        ["human: one", "ai: built/parrot heard: one"]
    );
    let body = json!({"limit": 9, "checkpoint": {"checkpoint_ns": child.record().await["checkpoint_ns"]}});
    let history = server.client().post(&alice.path("/history"), body).await.ok();
    assert_eq!(history.as_array().map(Vec::len), Some(3), "{history:#}");
    assert_eq!(history[1]["next"], json!(["runnable"]));
}

async fn a_program_streams_under_the_name_of_its_subagent(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let modes = json!({"stream_mode": ["updates", "custom", "messages-tuple", "tasks"], "stream_subgraphs": true});
    let events = alice
        .streams(script().calls(task("t1", "parrot", "one")).says("done"), modes)
        .await
        .rest()
        .await;
    let of_child = |name: &str| -> Vec<Value> {
        let start = format!("{name}|tools:");
        events
            .iter()
            .filter(|event| event.event.starts_with(&start))
            .map(|event| event.data.clone())
            .collect()
    };
    assert_eq!(of_child("custom"), [json!({"from": "parrot"})]);
    let said = "built/parrot heard: one";
    assert_eq!(of_child("updates")[0]["runnable"]["messages"][0]["content"], said);
    let [message, metadata] = [0, 1].map(|at| of_child("messages")[0][at].clone());
    assert_eq!(&message["content"], &json!(said));
    assert_eq!(&message["type"], &json!("ai"));
    assert_eq!(&message["name"], &json!("parrot"));
    assert_eq!(&metadata["lc_agent_name"], &json!("parrot"));
    assert_eq!(&metadata["langgraph_node"], &json!("runnable"));
    let tasks = of_child("tasks");
    assert_eq!(&tasks[0]["name"], &json!("runnable"), "{tasks:#?}");
    assert_eq!(&tasks[1]["name"], &json!("runnable"), "{tasks:#?}");
}

async fn an_update_of_a_program_is_validated(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let calls = [
        task("t1", "mute", "x"),
        task("t2", "wrecked", "private"),
        task("t3", "wrecked", "no luck"),
        task("t4", "wrecked", "panic"),
        task("t5", "parrot", "x"),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert!(
        said[2]
            .starts_with("task failed: The subagent `mute` failed (RunnableResultError): its result has no `messages`"),
        "{said:#?}"
    );
    assert!(
        said[3].contains("writes the field `_own`, which belongs to the server"),
        "{said:#?}"
    );
    assert!(
        said[4].starts_with("task failed: The subagent `wrecked` failed (WreckedError): no luck"),
        "{said:#?}"
    );
    assert!(
        said[5].starts_with("task failed: The subagent `wrecked` failed (RunnablePanicError)"),
        "{said:#?}"
    );
    assert_eq!(said[6..], ["task: built/parrot heard: x", "ai: done"]);
}

async fn a_program_reads_and_writes_what_its_caller_shares(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let write = call("w1", "write_file", json!({"file_path": "/old.txt", "content": "old"}));
    let text = script()
        .calls(write)
        .calls(task("t1", "scribe", "x"))
        .calls(task("t2", "scribe", "x"))
        .says("done");
    let values = alice.says(text).await;
    let said = crate::support::transcript(&values);
    assert_eq!(said[4], r#"task: seen: ["/old.txt"], notes: null"#);
    assert_eq!(said[6], r#"task: seen: ["/new.txt"], notes: ["from the scribe"]"#);
    assert_eq!(values["notes"], json!(["from the scribe", "from the scribe"]));
    assert_eq!(
        values["files"],
        json!({}),
        "the second took away what the first had written"
    );
}

async fn a_program_may_ask_a_human_and_goes_on_with_the_answer(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let run = alice
        .asks(script().calls(task("t1", "curious", "x")).says("done"))
        .await;
    run.finishes().await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "curious");
    assert_eq!(&question.0["value"], &json!("which?"));
    server.is_stopped_and_started_again().await;
    let refused = alice.resolves(&question, json!({"response": 7})).await;
    assert_eq!(refused.status, 422);
    alice.resolves(&question, json!({"response": "that one"})).await;
    crate::support::eventually(async || alice.status().await == "idle").await;
    assert_eq!(alice.transcript().await[2..], [r#"task: told: "that one""#, "ai: done"]);
}

async fn a_program_may_ask_several_questions_and_goes_on_when_all_are_answered(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let run = alice
        .asks(script().calls(task("t1", "curious", "two")).says("done"))
        .await;
    run.finishes().await;
    let questions = alice.questions().await;
    assert_eq!(questions.len(), 2);
    alice.resolves(&questions[1], json!({"response": "y"})).await;
    crate::support::eventually(async || alice.questions().await.len() == 1).await;
    server.is_stopped_and_started_again().await;
    alice.resolves(&questions[0], json!({"response": "x"})).await;
    crate::support::eventually(async || alice.status().await == "idle").await;
    let said = alice.transcript().await;
    let in_order = r#"task: told: a="x" b="y""#;
    let reversed = r#"task: told: a="y" b="x""#;
    assert!(said[2] == in_order || said[2] == reversed, "{said:#?}");
    assert_eq!(said[3], "ai: done");
}

async fn a_tool_written_in_rust_may_delegate_to_a_subagent(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let calls = [hand_over("h1", "parrot", "one"), hand_over("h2", "nobody", "two")];
    let run = alice
        .asks(
            script()
                .calls_all(calls)
                .calls(call("b1", "boom", json!({})))
                .says("done"),
        )
        .await;
    run.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(
        said[2..4],
        [
            "hand_over: built/parrot heard: one",
            "hand_over failed: There is no subagent `nobody` here."
        ]
    );
    assert!(
        said[5].starts_with("boom failed: The call to `boom` failed"),
        "{said:#?}"
    );
    assert_eq!(said[6], "ai: done");
    let children = run.children().await;
    assert_eq!(children.len(), 1);
    assert_eq!(&children[0]["task_call_id"], &json!("h1"));
}

async fn the_limits_hold_for_programs_and_for_tools_written_in_rust(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("tight").await;
    alice
        .says(
            script()
                .calls(hand_over("h1", "parrot", "one"))
                .calls(task("t1", "parrot", "two"))
                .says("done"),
        )
        .await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "hand_over: tight/parrot heard: one");
    assert!(
        said[4].starts_with("task failed: The limit `children_total` = 1 of this run is reached."),
        "{said:#?}"
    );
}

async fn models_and_middleware_can_be_written_in_rust(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    let values = alice
        .says(script().calls(task("t1", "thinker", "why")).says("done"))
        .await;
    assert_eq!(crate::support::transcript(&values)[2], "task: echo of the program: why");
    assert_eq!(values["messages"][1]["additional_kwargs"]["stamp"], "built");
}

async fn a_policy_with_the_name_of_one_of_the_server_is_in_its_place(server: TestServer) {
    server.is_embedded().await;
    let values = server.human("repaired").await.says("hello").await;
    let passed = &values["messages"][1]["additional_kwargs"]["passed"];
    assert_eq!(
        *passed,
        json!(["Innermost", "PatchToolCallsMiddleware"]),
        "from the inside"
    );
    let stack = json!({"model": "scripted:x", "middleware": ["SummarizationMiddleware"]});
    let refused = server.client().put("/agents/another", stack).await;
    let reason = refused.refused(422);
    let problem = "`SummarizationMiddleware` is not listed: it is there unless `summarization = false`";
    assert!(reason.contains(problem), "{reason}");
}

async fn a_policy_asks_again_about_messages_that_an_update_has_changed(server: TestServer) {
    server.is_embedded().await;
    for is_answered_at_once in [true, false] {
        let alice = server.human("doubter").await;
        let values = alice.says("grass is green").await;
        let question = alice.question().await;
        assert_eq!(question.0["value"], "Is it true that grass is green?");
        let message = json!({"role": "user", "content": "grass is blue", "id": values["messages"][0]["id"]});
        let update = json!({"messages": [message]});
        if is_answered_at_once {
            let command = json!({"resume": "yes", "update": update});
            alice.starts(json!({"command": command})).await.finishes().await;
        } else {
            let command = json!({"update": update});
            alice.starts(json!({"command": command})).await.finishes().await;
            assert_eq!(alice.question().await.id(), question.id());
            alice.resumes(json!("yes")).await.finishes().await;
        }
        let again = alice.question().await;
        assert_ne!(again.id(), question.id());
        assert_eq!(again.0["value"], "Is it true that grass is blue?");
        assert_eq!(alice.transcript().await, ["human: grass is blue"]);
        alice.resumes(json!("yes")).await.finishes().await;
        assert_eq!(
            alice.transcript().await,
            ["human: grass is blue", "ai: echo: grass is blue"]
        );
    }
}

async fn agents_can_be_defined_in_rust(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("coded").await;
    alice.says("hello").await;
    assert_eq!(
        alice.transcript().await,
        ["human: hello", "ai: echo of the program: hello"]
    );
    let shown = server.client().get("/agents/coded").await.ok();
    assert_eq!(shown["file"], "the program");
}

async fn a_definition_of_a_client_may_name_registered_programs_only(server: TestServer) {
    server.is_embedded().await;
    let subagent = |runnable: &str| json!({"name": "parrot", "description": "Repeats all.", "runnable": runnable});
    let body = |runnable: &str| json!({"model": "scripted:x", "subagents": [subagent(runnable)]});
    let refused = server.client().put("/agents/brought", body("ech")).await;
    assert_eq!(refused.status, 422);
    assert!(
        refused
            .body
            .to_string()
            .contains("there is no program `ech`; did you mean `echo`?"),
        "{}",
        refused.body
    );
    server.client().put("/agents/brought", body("echo")).await.ok();
    let alice = server.human("brought").await;
    alice.says(script().calls(task("t1", "parrot", "x")).says("done")).await;
    assert_eq!(alice.transcript().await[2], "task: brought/parrot heard: x");
}

async fn a_running_program_can_be_cancelled_alone_or_with_its_run(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    server.tools.hold("dig");
    let calls = [task("t1", "digger", "x"), task("t2", "parrot", "y")];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("dig", 1).await;
    let digger = run
        .children()
        .await
        .into_iter()
        .find(|child| child["agent_name"] == "digger")
        .unwrap();
    alice.run(&digger).is_cancelled("interrupt").await.ok();
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].contains("was cancelled by request"), "{said:#?}");
    assert_eq!(said[3..], ["task: built/parrot heard: y", "ai: done"]);
    let run = alice.asks(script().calls(task("t3", "digger", "x")).says("done")).await;
    server.tools.called("dig", 2).await;
    run.is_cancelled("interrupt").await.ok();
    assert_eq!(run.children().await[0]["status"], "interrupted");
    server.tools.let_go("dig");
}

async fn a_program_that_a_crash_interrupted_raises_an_interrupt(server: TestServer) {
    let (alice, run) = killed_at_work(&server, "digger").await;
    run.finishes().await;
    let question = alice.question().await;
    assert_eq!(&question.0["kind"], &json!("unknown_outcome"));
    assert_eq!(question.agent(), "digger");
    assert_eq!(&question.requests()[0]["name"], &json!("digger"));
    assert_eq!(&question.requests()[0]["tool_call_id"], &json!("t1"));
    assert_eq!(server.tools.calls_of("dig").len(), 1);
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await[2..], ["task: dug", "ai: done"]);
    let keys = server.tools.keys_of("dig");
    assert_eq!(keys.len(), 2);
    assert_eq!(&keys[0], &keys[1]);
}

async fn a_human_can_respond_for_a_program_that_a_crash_interrupted(server: TestServer) {
    let (alice, run) = killed_at_work(&server, "digger").await;
    run.finishes().await;
    let question = alice.question().await;
    let told = json!([{"type": "respond", "message": "it was dug"}]);
    alice.decides(&question, told).await.finishes().await;
    assert_eq!(alice.transcript().await[2..], ["task: it was dug", "ai: done"]);
    assert_eq!(server.tools.calls_of("dig").len(), 1);
}

async fn a_program_that_may_be_repeated_is_repeated_after_a_crash(server: TestServer) {
    let (alice, run) = killed_at_work(&server, "mole").await;
    run.finishes().await;
    assert_eq!(alice.transcript().await[2..], ["task: dug", "ai: done"]);
    assert_eq!(server.tools.calls_of("dig").len(), 2);
}

async fn a_program_that_must_not_be_repeated_fails_after_a_crash(server: TestServer) {
    let (alice, run) = killed_at_work(&server, "miner").await;
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("task failed: The subagent `miner` failed (UnknownOutcomeError)"),
        "{said:#?}"
    );
    assert_eq!(server.tools.calls_of("dig").len(), 1);
}

async fn a_program_that_has_ended_is_never_run_again(server: TestServer) {
    server.is_embedded().await;
    server.moves_into_a_process().await;
    let alice = server.human("built").await;
    server.tools.hold("lookup");
    let calls = [task("t1", "mole", "x"), crate::support::lookup("c1", "x")];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("lookup", 1).await;
    crate::support::eventually(async || run.children().await.iter().any(|child| child["status"] == "success")).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(alice.transcript().await[2], "task: dug");
    assert_eq!(server.tools.calls_of("dig").len(), 1);
}

/// Other tests run this test in another process, with a configuration in its environment: it then is that program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_runs_in_a_process_of_its_own() {
    if program::serves().await {
        return;
    }
    play(Engine::Sqlite, async |server: TestServer| {
        server.is_embedded().await;
        server.moves_into_a_process().await;
        let alice = server.human("coded").await;
        alice.says("hello").await;
        assert_eq!(
            alice.transcript().await,
            ["human: hello", "ai: echo of the program: hello"]
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_serves_over_a_socket() {
    let folder = tempfile::tempdir().expect("a directory");
    let text = example::CONFIGURATION.replace(
        "sqlite://desk.db",
        &format!("sqlite://{}/desk.db", folder.path().display()),
    );
    let server = example::desk().config_text(text).start().await.expect("it starts");
    let shutdown = server.shutdown().clone();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let client = crate::support::client::Client::new(&format!("http://{}", listener.local_addr().unwrap()));
    let serving = adjutant::Shutdown::default().spawn("server", server.serve(listener));
    let run_body = json!({"assistant_id": "desk", "input": {"messages": [{"role": "user", "content": "Count the words of this."}]}});
    let values = client.post("/runs/wait", run_body).await.ok();
    let said = crate::support::transcript(&values);
    assert_eq!(
        said[1..],
        [
            "ai calls count_words",
            "count_words: 5 words",
            "ai: That makes 5 words."
        ]
    );
    shutdown.begin();
    serving
        .await
        .expect("no panic")
        .expect("not dropped")
        .expect("a good end");
}
