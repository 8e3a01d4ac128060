//! Limits of runs, bodies and documents.

use serde_json::{Value, json};

use crate::support::client::reply;
use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task, transcript};

/// Returns a script without an end.
fn endless() -> String {
    (0..50)
        .fold(script(), |script, n| script.calls(lookup(&format!("c{n}"), "x")))
        .to_string()
}

/// Returns an agent `frugal` with these limits and those of its subagent.
fn frugal(limits: &str, of_subagent: &str) -> String {
    format!(
        r#"
        [agents.frugal]
        model = "scripted:lab"
        system_prompt = "You are frugal."
        tools = ["lookup", "spawn", "send_email"]
        interrupt_on = {{ send_email = true }}
        max_subagent_depth = 3
        limits = {{ {limits} }}

        [[agents.frugal.subagents]]
        name = "researcher"
        description = "Researches one question in depth."
        system_prompt = "You are the researcher."
        tools = ["lookup", "spawn"]
        interrupt_on = {{}}
        limits = {{ {of_subagent} }}
        "#
    )
}

on_both_engines! {
    calls_of_tools_beyond_a_limit_are_error_results,
    a_repeated_failing_call_gets_one_reminder_and_then_ends_the_run,
    a_model_that_changes_a_failing_call_goes_on,
    repeated_failures_are_not_counted_with_a_limit_of_0,
    by_default_the_tenth_repeated_failure_ends_the_run,
    delegations_beyond_a_limit_are_error_results_for_every_tool,
    model_calls_beyond_a_limit_end_the_run,
    a_resumed_run_keeps_its_usage,
    the_time_limit_aborts_running_calls,
    tokens_and_time_are_limited_for_a_whole_tree,
    usage_is_shown_for_each_run_and_for_the_tree,
    usage_survives_a_kill,
    a_run_that_takes_too_many_steps_is_ended_and_can_go_on,
    the_step_limit_applies_to_subagents,
    a_body_that_is_too_large_is_refused,
    json_that_is_too_deep_is_refused,
    arguments_that_nest_too_deeply_are_an_error_result,
    texts_of_every_script_are_stored_unchanged,
    a_text_with_a_nul_is_refused_or_kept_but_never_breaks_the_thread,
}

async fn calls_of_tools_beyond_a_limit_are_error_results(server: TestServer) {
    server.is_configured_with(&frugal("tool_calls = 2", "")).await;
    let alice = server.human("frugal").await;
    let text = script()
        .calls(lookup("c1", "a"))
        .calls_all([lookup("c2", "b"), lookup("c3", "c")])
        .says("done");
    let said = transcript(&alice.says(text).await);
    let refused = "lookup failed: The limit `tool_calls` = 2 of this run is reached. The call was not made; finish with what you have.";
    let (refusals, results): (Vec<_>, Vec<_>) = said[4..6].iter().partition(|line| *line == refused);
    assert_eq!(refusals.len(), 1, "{said:#?}");
    assert!(results[0].starts_with("lookup: found"), "{said:#?}");
    assert_eq!(said.last().unwrap(), "ai: done");
    assert_eq!(server.tools.calls_of("lookup").len(), 2);
}

async fn a_repeated_failing_call_gets_one_reminder_and_then_ends_the_run(server: TestServer) {
    server.is_configured_with(&frugal("repeated_failures = 2", "")).await;
    let alice = server.human("frugal").await;
    let wrong = |id: &str| call(id, "lookup", json!({"wrong": 1}));
    let text = (0..9)
        .fold(script(), |script, n| script.calls(wrong(&format!("c{n}"))))
        .says("never");
    let values = alice.says(text).await;
    assert_eq!(values["__error__"]["error"], "RepeatedFailureError", "{values}");
    let message = values["__error__"]["message"].as_str().unwrap();
    assert!(message.contains("`lookup` 4 times"), "{message}");
    assert!(message.contains("repeated_failures"), "{message}");
    let said = alice.transcript().await;
    let failures: Vec<&String> = said.iter().filter(|line| line.starts_with("lookup failed")).collect();
    assert_eq!(failures.len(), 4, "{said:#?}");
    let warned: Vec<bool> = failures
        .iter()
        .map(|line| line.contains("has now failed 2 times in a row"))
        .collect();
    assert_eq!(warned, [false, true, false, false], "{said:#?}");
}

async fn a_model_that_changes_a_failing_call_goes_on(server: TestServer) {
    server.is_configured_with(&frugal("repeated_failures = 1", "")).await;
    let alice = server.human("frugal").await;
    let wrong = |n: usize| call(&format!("c{n}"), "lookup", json!({"wrong": n}));
    let text = (0..6).fold(script(), |script, n| script.calls(wrong(n))).says("done");
    let said = transcript(&alice.says(text).await);
    assert_eq!(said.last().unwrap(), "ai: done", "{said:#?}");
}

async fn repeated_failures_are_not_counted_with_a_limit_of_0(server: TestServer) {
    server.is_configured_with(&frugal("repeated_failures = 0", "")).await;
    let wrong = |n: usize| call(&format!("c{n}"), "lookup", json!({"wrong": 1}));
    let text = (0..12).fold(script(), |script, n| script.calls(wrong(n))).says("done");
    let said = transcript(&server.human("frugal").await.says(text).await);
    assert_eq!(said.last().unwrap(), "ai: done", "{said:#?}");
}

async fn by_default_the_tenth_repeated_failure_ends_the_run(server: TestServer) {
    server.is_configured_with(&frugal("", "")).await;
    let alice = server.human("frugal").await;
    let wrong = |n: usize| call(&format!("c{n}"), "lookup", json!({"wrong": 1}));
    let text = (0..12).fold(script(), |script, n| script.calls(wrong(n))).says("done");
    let values = alice.says(text).await;
    assert_eq!(values["__error__"]["error"], "RepeatedFailureError", "{values}");
    let said = alice.transcript().await;
    assert_eq!(
        said.iter().filter(|line| line.starts_with("lookup failed")).count(),
        10,
        "{said:#?}"
    );
}

async fn delegations_beyond_a_limit_are_error_results_for_every_tool(server: TestServer) {
    server
        .is_configured_with(&frugal(
            "children_total = 1, tree = { children_total = 2, depth = 2 }",
            "",
        ))
        .await;
    let alice = server.human("frugal").await;
    let spawn = |id: &str, text: String| call(id, "spawn", json!({"description": text, "subagent_type": "researcher"}));
    let below = script()
        .calls(spawn("s1", "echo".to_owned()))
        .calls(task("t2", "researcher", "echo"))
        .turn(json!({"echo_last_tool": true}));
    let text = script()
        .calls(task("t1", "researcher", below))
        .calls(spawn("s2", "more".to_owned()))
        .says("done");
    let run = alice.asks(text).await;
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains("The limit `children_total` = 2 of this run and its subagents together is reached."),
        "{said:#?}"
    );
    assert!(
        said[4].starts_with("spawn failed: The limit `children_total` = 1 of this run is reached."),
        "{said:#?}"
    );
    let tree = server.client().get(&format!("{}/tree", run.path)).await.ok();
    assert_eq!(tree["children"].as_array().map(Vec::len), Some(1));
    assert_eq!(tree["children"][0]["children"].as_array().map(Vec::len), Some(1));
    assert_eq!(tree["children"][0]["children"][0]["children"], json!([]));
}

async fn model_calls_beyond_a_limit_end_the_run(server: TestServer) {
    server
        .is_configured_with(&frugal("model_calls = 3", "model_calls = 1"))
        .await;
    let alice = server.human("frugal").await;
    let long = script().calls(lookup("c1", "x")).says("found");
    let said = transcript(
        &alice
            .says(script().calls(task("t1", "researcher", long)).says("done"))
            .await,
    );
    assert!(
        said[2].starts_with("task failed: The subagent `researcher` failed (LimitExceededError)"),
        "{said:#?}"
    );
    assert_eq!(said[3], "ai: done");
    let run = alice.asks(endless()).await;
    let error = run.finishes().await["__error__"].clone();
    assert_eq!(error["error"], "LimitExceededError");
    assert_eq!(error["message"], "The limit `model_calls` = 3 of this run is reached.");
    assert_eq!(run.status().await.as_str(), "error");
    assert_eq!(alice.status().await.as_str(), "error");
    assert_eq!(run.record().await["usage"]["model_calls"], 3);
}

async fn a_resumed_run_keeps_its_usage(server: TestServer) {
    server
        .is_configured_with(&frugal("model_calls = 3, tree = { tool_calls = 2 }", ""))
        .await;
    let alice = server.human("frugal").await;
    alice
        .says(
            script()
                .calls(mail("m1", "bob"))
                .calls(lookup("c1", "x"))
                .calls(lookup("c2", "x"))
                .says("done"),
        )
        .await;
    let run = alice.approves(&alice.question().await).await;
    let error = run.finishes().await["__error__"].clone();
    assert_eq!(error["message"], "The limit `model_calls` = 3 of this run is reached.");
    assert_eq!(
        run.record().await["usage"]["model_calls"],
        2,
        "what was used before belongs to the run before"
    );
    let bob = server.human("frugal").await;
    let research = script().calls(lookup("c1", "x")).says("found");
    bob.says(
        script()
            .calls(task("t1", "researcher", research))
            .calls(mail("m1", "bob"))
            .says("done"),
    )
    .await;
    server.is_stopped_and_started_again().await;
    bob.approves(&bob.question().await).await.finishes().await;
    let said = bob.transcript().await;
    let refused = "send_email failed: The limit `tool_calls` = 2 of this run and its subagents together is reached.";
    assert!(said[2] == "task: found", "{said:#?}");
    assert!(said[4].starts_with(refused), "{said:#?}");
    assert!(said[5] == "ai: done", "{said:#?}");
    let more = script().calls(lookup("c2", "y")).says("a new message counts anew");
    assert_eq!(
        transcript(&bob.says(more).await).last().unwrap(),
        "ai: a new message counts anew"
    );
}

async fn the_time_limit_aborts_running_calls(server: TestServer) {
    server.is_configured_with(&frugal("", "wall_s = 0.4")).await;
    server.tools.hold("lookup");
    let alice = server.human("frugal").await;
    let calls = [
        task("t1", "researcher", script().calls(lookup("c1", "x")).says("found")),
        task(
            "t2",
            "researcher",
            script().turn(json!({"text": "thought", "first_ms": 60_000})),
        ),
    ];
    let said = transcript(&alice.says(script().calls_all(calls).says("done")).await);
    for told in &said[2..4] {
        assert!(
            told.starts_with("task failed: The subagent `researcher` failed (LimitExceededError)"),
            "{said:#?}"
        );
        assert!(told.contains("`wall_s` = 0.4"), "{said:#?}");
    }
    assert_eq!(said[4], "ai: done");
    server.tools.let_go("lookup");
}

async fn tokens_and_time_are_limited_for_a_whole_tree(server: TestServer) {
    server.is_configured_with(&frugal("tree = { tokens = 1 }", "")).await;
    let alice = server.human("frugal").await;
    let error = alice
        .asks(script().calls(task("t1", "researcher", "hi")).says("done"))
        .await
        .finishes()
        .await;
    let message = error["__error__"]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "The limit `tokens` = 1 of this run and its subagents together is reached."
    );
    let said = alice.transcript().await;
    assert!(said[2].starts_with("task failed:"), "{said:#?}");
    assert!(said[2].contains("`tokens`"), "{said:#?}");
}

async fn usage_is_shown_for_each_run_and_for_the_tree(server: TestServer) {
    let alice = server.human("agent").await;
    let research = script().calls(lookup("c1", "x")).says("found");
    let run = alice
        .asks(script().calls(task("t1", "researcher", research)).says("done"))
        .await;
    run.finishes().await;
    let record = run.record().await;
    let child = run.children().await.remove(0);
    let counts = |usage: &Value| ["model_calls", "tool_calls", "children"].map(|name| usage[name].as_u64().unwrap());
    assert_eq!(counts(&record["usage"]), [2, 1, 1]);
    assert_eq!(counts(&record["tree_usage"]), [4, 2, 1]);
    assert_eq!(counts(&child["usage"]), [2, 1, 0]);
    assert_eq!(alice.run(&child).record().await["usage"], child["usage"]);
    let tree = server.client().get(&format!("{}/tree", run.path)).await.ok();
    assert_eq!(&tree["usage"], &record["usage"]);
    assert_eq!(&tree["tree_usage"], &record["tree_usage"]);
    assert_eq!(tree["children"][0]["usage"], child["usage"]);
    let tokens = |usage: &Value| usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert!(tokens(&record["usage"]) > 0, "{record:#}");
    assert!(tokens(&record["tree_usage"]) > tokens(&record["usage"]), "{record:#}");
    assert!(record["usage"]["seconds"].as_f64().unwrap() > 0.0, "{record:#}");
}

async fn usage_survives_a_kill(server: TestServer) {
    server
        .is_configured_with(&frugal("tree = { tool_calls = 2 }", ""))
        .await;
    server.moves_into_a_process().await;
    let alice = server.human("frugal").await;
    server.tools.hold("lookup");
    let research = script().calls(lookup("c1", "x")).says("found");
    let run = alice
        .asks(
            script()
                .calls(task("t1", "researcher", research))
                .calls(lookup("c2", "y"))
                .says("done"),
        )
        .await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "task: found");
    assert!(
        said[4].starts_with("lookup failed: The limit `tool_calls` = 2 of this run and its subagents"),
        "{said:#?}"
    );
    assert_eq!(run.record().await["tree_usage"]["tool_calls"], 2);
}

async fn a_run_that_takes_too_many_steps_is_ended_and_can_go_on(server: TestServer) {
    let alice = server.human("agent").await;
    let body = alice.run_body(endless(), json!({"config": {"recursion_limit": 5}}));
    let run = alice.starts(body).await;
    let error = run.finishes().await["__error__"].clone();
    assert_eq!(error["error"], "GraphRecursionError");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .starts_with("Recursion limit of 5 reached"),
        "{error}"
    );
    assert_eq!(run.status().await.as_str(), "error");
    assert_eq!(alice.status().await.as_str(), "error");
    let state = alice.state().await;
    assert_eq!(state["next"], json!(["HumanInTheLoopMiddleware.after_model"]));
    assert_eq!(state["tasks"][0]["error"], Value::Null);
    assert!(!transcript(&state["values"]).is_empty());
    assert_eq!(
        transcript(&alice.says("hello").await).last().unwrap(),
        "ai: echo: hello"
    );
}

async fn the_step_limit_applies_to_subagents(server: TestServer) {
    let alice = server.human("agent").await;
    let long = |rounds: u32| {
        (0..rounds)
            .fold(script(), |script, n| script.calls(lookup(&format!("c{n}"), "x")))
            .says("found")
    };
    let calls = [task("t1", "researcher", long(10)), task("t2", "researcher", long(1))];
    let run = alice
        .starts(alice.run_body(
            script().calls_all(calls).says("done"),
            json!({"config": {"recursion_limit": 6}}),
        ))
        .await;
    let said = transcript(&run.finishes().await);
    assert!(
        said[2].starts_with("task failed: The subagent `researcher` failed (GraphRecursionError)"),
        "{said:#?}"
    );
    assert_eq!(said[3..], ["task: found", "ai: done"], "each counts its own steps");
}

async fn a_body_that_is_too_large_is_refused(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let large = alice.run_body("x".repeat(3 << 20), json!({}));
    assert_eq!(client.post(&alice.path("/runs"), large).await.status, 413);
    let fits = alice.run_body("x".repeat(1 << 20), json!({}));
    assert_eq!(client.post(&alice.path("/runs/wait"), fits).await.status, 200);
}

async fn json_that_is_too_deep_is_refused(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    for levels in [200, 100_000] {
        let body = format!(
            r#"{{"assistant_id": "agent", "input": {{"messages": [], "deep": {}}}}}"#,
            deep(levels)
        );
        let request = client.request(reqwest::Method::POST, &alice.path("/runs"));
        let reply = reply(request.header("content-type", "application/json").body(body)).await;
        assert_eq!(reply.status, 422, "{levels}: {reply:?}");
    }
    assert_eq!(alice.runs().await, Vec::<Value>::new());
}

async fn arguments_that_nest_too_deeply_are_an_error_result(server: TestServer) {
    let alice = server.human("agent").await;
    let deep = format!("{{\"query\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
    let call = json!({"id": "c1", "name": "lookup", "args": deep});
    alice.says(script().calls(call).says("sorry")).await;
    let said = alice.transcript().await;
    assert_eq!(said.last().unwrap(), "ai: sorry");
    assert!(said[2].starts_with("lookup failed:"), "{:.200}", said[2]);
}

async fn texts_of_every_script_are_stored_unchanged(server: TestServer) {
    let alice = server.human("agent").await;
    let text = "ä 漢字 🦀 \u{1F469}\u{200D}\u{1F680} \"quoted\" \\ back\r\nline\ttab \u{7f} end";
    assert_eq!(alice.says(text).await["messages"][0]["content"], text);
    assert_eq!(alice.state().await["values"]["messages"][0]["content"], text);
    let frames = alice.streams(text, json!({})).await.rest().await;
    assert_eq!(frames.last().unwrap().data["messages"][2]["content"], text);
}

async fn a_text_with_a_nul_is_refused_or_kept_but_never_breaks_the_thread(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let reply = client
        .post(&alice.path("/runs/wait"), alice.run_body("a\u{0}b", json!({})))
        .await;
    assert!(
        reply.status == 422 || (reply.status == 200 && reply.body.get("__error__").is_none()),
        "{reply:?}"
    );
    assert_eq!(
        transcript(&alice.says("hello").await).last().unwrap(),
        "ai: echo: hello"
    );
}
