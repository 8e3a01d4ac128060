//! Tools: validation of arguments, failures, retries, and crashes during calls.

use serde_json::{Value, json};

use crate::support::{TestServer, call, eventually, lookup, on_both_engines, script, task};

/// Returns agents with a tool that is busy for two calls with the same key.
fn busy_tools(base: &str) -> String {
    let tool = |name: &str, more: &str| {
        format!(
            "[tools.{name}]\ndescription = \"Is busy twice.\"\nurl = \"{base}/busy\"\n\
             parameters = {{ type = \"object\" }}\n{more}\n"
        )
    };
    let tools = [
        tool("patient", "max_retries = 2"),
        tool("curt", "max_retries = 1"),
        tool("plainly", ""),
    ];
    let agent = "[agents.caller]\nmodel = \"scripted:x\"\ntools = [\"patient\", \"curt\", \"plainly\"]\n";
    format!("{}{agent}", tools.concat())
}

on_both_engines! {
    a_failed_call_is_retried_under_its_idempotency_key,
    context_editing_clears_old_results_for_the_model_only,
    context_editing_keeps_the_results_of_excluded_tools,
    context_editing_does_not_count_the_bytes_of_images,
    the_prompt_of_the_todo_middleware_can_be_set,
    invalid_arguments_are_refused_by_field,
    a_failing_tool_is_reported_and_its_siblings_go_on,
    a_failure_can_end_the_run,
    each_call_that_failed_has_its_own_error_in_the_state,
    a_tool_that_takes_too_long_is_reported,
    an_unknown_tool_is_answered_with_the_known_names,
    arguments_that_are_not_json_are_an_error_result,
    a_request_names_its_agent_and_its_call,
    the_calls_of_one_answer_run_side_by_side,
    a_finished_call_is_not_repeated_when_the_process_dies,
    a_call_with_an_unknown_outcome_raises_an_interrupt,
    content_blocks_and_artifacts_of_a_tool_are_stored,
}

async fn a_failed_call_is_retried_under_its_idempotency_key(server: TestServer) {
    server.is_configured_with(&busy_tools(&server.tools.base)).await;
    let alice = server.human("caller").await;
    let calls = ["patient", "curt", "plainly"].map(|name| call(name, name, json!({})));
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "patient: free again");
    assert!(said[3].contains("curt failed"), "{}", said[3]);
    assert!(said[3].contains("status 429"), "{}", said[3]);
    assert!(said[4].contains("plainly failed"), "{}", said[4]);
    assert!(said[4].contains("status 503"), "{}", said[4]);
    assert_eq!(server.tools.keys_of("patient"), ["patient"; 3]);
    assert_eq!(server.tools.keys_of("curt"), ["curt"; 2]);
    assert_eq!(server.tools.keys_of("plainly"), ["plainly"]);
}

async fn context_editing_clears_old_results_for_the_model_only(server: TestServer) {
    let agent = |name: &str, settings: &str| {
        let listed = format!("{{ name = \"ContextEditingMiddleware\", {settings} }}");
        format!("[agents.{name}]\nmodel = \"scripted:x\"\ntools = [\"lookup\"]\nmiddleware = [{listed}]\n")
    };
    let forgetful = agent("forgetful", "trigger = 1, keep = 0");
    server
        .is_configured_with(&format!("{forgetful}{}", agent("mindful", "keep = 0")))
        .await;
    let script = || {
        script()
            .calls(lookup("c1", "otters and much more"))
            .turn(json!({"echo_last_tool": true}))
    };
    let alice = server.human("forgetful").await;
    alice.says(script()).await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "lookup: found otters and much more");
    assert_eq!(said[3], "ai: LAST_TOOL<<[cleared]>>");
    let bob = server.human("mindful").await;
    bob.says(script()).await;
    assert_eq!(bob.transcript().await[3], "ai: LAST_TOOL<<found otters and much more>>");
}

async fn context_editing_keeps_the_results_of_excluded_tools(server: TestServer) {
    let settings = "trigger = 1, keep = 0, exclude_tools = [\"lookup\"]";
    let agent = format!(
        "[agents.choosy]\nmodel = \"scripted:x\"\ntools = [\"lookup\"]\n\
         middleware = [{{ name = \"ContextEditingMiddleware\", {settings} }}]\n"
    );
    server.is_configured_with(&agent).await;
    let alice = server.human("choosy").await;
    let script = script()
        .calls(lookup("c1", "otters and much more"))
        .turn(json!({"echo_last_tool": true}));
    alice.says(script).await;
    assert_eq!(
        alice.transcript().await[3],
        "ai: LAST_TOOL<<found otters and much more>>"
    );
}

async fn context_editing_does_not_count_the_bytes_of_images(server: TestServer) {
    let agent = "[agents.forgetful]\nmodel = \"scripted:x\"\ntools = [\"lookup\"]\n\
         middleware = [{ name = \"ContextEditingMiddleware\", trigger = 3000, keep = 0 }]\n";
    server.is_configured_with(agent).await;
    let alice = server.human("forgetful").await;
    let script = script()
        .calls(lookup("c1", "otters and much more"))
        .turn(json!({"echo_last_tool": true}));
    let image = json!({"type": "image", "base64": "iVBO".repeat(10_000), "mime_type": "image/png"});
    let content = json!([{"type": "text", "text": script.to_string()}, image]);
    let input = json!({"messages": [{"role": "user", "content": content}]});
    alice.starts(json!({"input": input})).await.finishes().await;
    assert_eq!(
        alice.transcript().await[3],
        "ai: LAST_TOOL<<found otters and much more>>",
        "40,000 bytes of an image are no 10,000 tokens"
    );
}

async fn the_prompt_of_the_todo_middleware_can_be_set(server: TestServer) {
    let agent =
        |name: &str, listed: &str| format!("[agents.{name}]\nmodel = \"scripted:x\"\nmiddleware = [{listed}]\n");
    let planner = agent(
        "careful",
        r#"{ name = "TodoListMiddleware", system_prompt = "Plan only when asked." }"#,
    );
    let standard = agent("ordinary", r#""TodoListMiddleware""#);
    server.is_configured_with(&format!("{planner}{standard}")).await;
    let instructions = async |name: &str| {
        let alice = server.human(name).await;
        alice.says(script().turn(json!({"echo_system": true}))).await;
        alice.transcript().await[1].clone()
    };
    let own = instructions("careful").await;
    assert!(own.contains("Plan only when asked."), "{own}");
    assert!(!own.contains("Plan work of several steps"), "{own}");
    assert!(instructions("ordinary").await.contains("Plan work of several steps"));

    let listed = json!([{"name": "TodoListMiddleware", "system_promt": "x"}]);
    let wrong = json!({"model": "scripted:x", "middleware": listed});
    let refused = server.client().put("/agents/wrong", wrong).await;
    let problem = "unknown key; did you mean `system_prompt`?";
    assert!(refused.refused(422).contains(problem));
}

async fn invalid_arguments_are_refused_by_field(server: TestServer) {
    let alice = server.human("agent").await;
    let wrong = call("m1", "lookup", json!({"query": 7}));
    alice
        .says(script().calls_all([wrong, call("m2", "fail", json!({}))]).says("sorry"))
        .await;
    let said = alice.transcript().await;
    let text = "lookup failed: Error: the arguments of `lookup` do not fit its schema. Nothing was run.\n\
            - `query`: must be string, but is integer\nCorrect them and call again.";
    assert_eq!(said[2], text);
    assert!(said[3].contains("- `why`: is required, but missing"), "{}", said[3]);
    assert_eq!(said[4], "ai: sorry");
    assert!(server.tools.calls_of("lookup").is_empty());
    assert!(server.tools.calls_of("fail").is_empty());
}

async fn a_failing_tool_is_reported_and_its_siblings_go_on(server: TestServer) {
    let alice = server.human("plain").await;
    let calls = [call("f1", "fail", json!({"why": "on purpose"})), lookup("c1", "x")];
    alice.says(script().calls_all(calls).says("I see")).await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("fail failed:"), "{}", said[2]);
    assert!(said[2].contains("500"), "{}", said[2]);
    assert!(said[2].contains("on purpose"), "{}", said[2]);
    assert_eq!(said[3..], ["lookup: found x", "ai: I see"]);
    assert_eq!(alice.status().await, "idle");
}

async fn a_failure_can_end_the_run(server: TestServer) {
    let alice = server.human("plain").await;
    let values = alice
        .says(
            script()
                .calls(call("f1", "fail_hard", json!({"why": "on purpose"})))
                .says("never"),
        )
        .await;
    assert!(
        values["__error__"]["message"].as_str().unwrap().contains("on purpose"),
        "{values}"
    );
    assert_eq!(alice.status().await, "error");
    assert_eq!(
        crate::support::transcript(&alice.says("again").await).last().unwrap(),
        "ai: echo: again"
    );
}

async fn each_call_that_failed_has_its_own_error_in_the_state(server: TestServer) {
    let agent = "[agents.curious]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\nask_user = true\n\
        tools = [\"lookup\", \"fail_hard\"]\n";
    server.is_configured_with(agent).await;
    let alice = server.human("curious").await;
    let question = json!({"questions": [{"question": "Why?", "type": "text"}]});
    let fails = |id: &str, why: &str| call(id, "fail_hard", json!({"why": why}));
    let calls = [
        call("q1", "ask_user", question),
        fails("f1", "the first"),
        lookup("c1", "x"),
        fails("f2", "the second"),
    ];
    alice.says(script().calls_all(calls).says("never")).await;
    let state = alice.state().await;
    let tasks = state["tasks"].as_array().expect("tasks").iter();
    let errors: Vec<&str> = tasks.map(|task| task["error"].as_str().unwrap_or_default()).collect();
    assert_eq!(errors.len(), 3, "{state}");
    assert_eq!(errors[0], "", "it asks");
    assert!(errors[1].contains("the first"), "{errors:?}");
    assert!(errors[2].contains("the second"), "{errors:?}");
}

async fn a_tool_that_takes_too_long_is_reported(server: TestServer) {
    let alice = server.human("plain").await;
    server.tools.hold("hasty");
    alice
        .says(script().calls(call("h1", "hasty", json!({}))).says("too slow"))
        .await;
    server.tools.let_go("hasty");
    let said = alice.transcript().await;
    assert!(said[2].starts_with("hasty failed:"), "{}", said[2]);
    assert!(said[2].contains("did not answer within 0.2 s"), "{}", said[2]);
    assert_eq!(said[3], "ai: too slow");
}

async fn an_unknown_tool_is_answered_with_the_known_names(server: TestServer) {
    let alice = server.human("plain").await;
    alice
        .says(script().calls(call("n1", "nosuch", json!({}))).says("sorry"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("nosuch failed:"), "{}", said[2]);
    assert!(said[2].contains("lookup"), "{}", said[2]);
    assert!(!said[2].contains("send_email"), "{}", said[2]);
    assert_eq!(said[3], "ai: sorry");
}

async fn arguments_that_are_not_json_are_an_error_result(server: TestServer) {
    let alice = server.human("plain").await;
    let broken = json!({"id": "b1", "name": "lookup", "args": "{\"query\": "});
    alice
        .says(script().calls(broken).calls(lookup("c1", "x")).says("mended"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("lookup failed:"), "{said:?}");
    assert_eq!(
        said[said.len() - 3..],
        ["ai calls lookup", "lookup: found x", "ai: mended"]
    );
    assert_eq!(server.tools.keys_of("lookup").len(), 1);
}

async fn a_request_names_its_agent_and_its_call(server: TestServer) {
    let alice = server.human("plain").await;
    let body = alice.run_body(
        script().calls(lookup("c1", "x")).says("done"),
        json!({"context": {"user": "u1"}}),
    );
    let run = alice.starts(body).await;
    run.finishes().await;
    let expected = json!({
        "name": "lookup", "args": {"query": "x"}, "tool_call_id": "c1", "agent_name": "plain-agent",
        "agent_path": ["plain-agent"], "thread_id": alice.thread, "run_id": run.id, "context": {"user": "u1"},
        "key": "c1",
    });
    assert_eq!(server.tools.calls_of("lookup"), [expected]);
}

async fn the_calls_of_one_answer_run_side_by_side(server: TestServer) {
    let alice = server.human("plain").await;
    server.tools.hold("lookup");
    let run = alice
        .asks(
            script()
                .calls_all(["c1", "c2", "c3"].map(|id| lookup(id, id)))
                .says("done"),
        )
        .await;
    server.tools.called("lookup", 3).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = ["lookup: found c1", "lookup: found c2", "lookup: found c3", "ai: done"];
    assert_eq!(alice.transcript().await[2..], said);
}

async fn a_finished_call_is_not_repeated_when_the_process_dies(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let calls = [
        task(
            "t1",
            "researcher",
            script().calls(call("n1", "note", json!({"update": {}}))).says("noted"),
        ),
        task("t2", "researcher", script().calls(lookup("c1", "x")).says("found")),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("lookup", 1).await;
    let noted = |child: &Value| child["task_call_id"] == "t1" && child["status"] == "success";
    eventually(async || run.children().await.iter().any(noted)).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = [
        "human: …",
        "ai calls task, task",
        "task: noted",
        "task: found",
        "ai: done",
    ];
    assert_eq!(alice.transcript().await, said);
    assert_eq!(
        server.tools.keys_of("lookup"),
        ["c1", "c1"],
        "the call that was under way is repeated"
    );
    assert_eq!(server.tools.keys_of("note"), ["n1"], "the finished call is not");
}

async fn a_call_with_an_unknown_outcome_raises_an_interrupt(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    server.tools.hold("send_email");
    let run = alice
        .asks(script().calls(crate::support::mail("m1", "bob")).says("sent"))
        .await;
    run.finishes().await;
    let resumed = alice.approves(&alice.question().await).await;
    server.tools.called("send_email", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("send_email");
    resumed.finishes().await;
    let question = alice.question().await;
    assert_eq!(question.0["kind"], "unknown_outcome");
    assert_eq!(question.requests()[0]["tool_call_id"], "m1");
    let answer = json!([{"type": "respond", "message": "it was sent"}]);
    alice.decides(&question, answer).await.finishes().await;
    assert_eq!(alice.transcript().await[2..], ["send_email: it was sent", "ai: sent"]);
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn content_blocks_and_artifacts_of_a_tool_are_stored(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(
            script()
                .calls(call("n1", "note", json!({"update": {"topic": "fish"}})))
                .says("done"),
        )
        .await;
    let values = alice.state().await["values"].clone();
    assert_eq!(&values["topic"], &json!("fish"));
    assert_eq!(&values["messages"][2]["content"], &json!("noted"));
    assert_eq!(values["messages"][2]["artifact"], Value::Null);
}
