//! Delegation: the input, the result and the tools of subagents.

use serde_json::{Value, json};

use crate::support::{TestServer, call, lookup, on_both_engines, script, task};

/// Returns a script of one turn that echoes something about its request.
fn echo(what: &str) -> String {
    script().turn(json!({what: true})).to_string()
}

on_both_engines! {
    a_subagent_receives_one_message_and_its_answer_is_the_result,
    a_subagent_has_its_own_instructions_and_tools,
    results_come_back_in_the_order_of_the_calls,
    subagents_run_in_parallel,
    a_requested_response_format_is_followed,
    plain_text_instead_of_a_response_format_is_an_error_result,
    a_failing_subagent_is_an_error_result_and_its_siblings_go_on,
    a_subagent_that_takes_too_many_steps_is_an_error_result,
    an_empty_answer_of_a_subagent_is_an_error_result,
    an_unknown_subagent_is_refused_with_the_known_names,
    an_invented_or_missing_argument_is_named,
    subagents_do_not_delegate_unless_allowed,
    delegation_stops_at_the_maximum_depth,
    a_tool_may_ask_the_server_to_delegate,
    the_children_of_a_run_are_listed_with_name_call_status_and_depth,
    the_context_reaches_the_tools_of_subagents_unchanged,
    cancelling_a_run_stops_its_subagents,
}

async fn a_subagent_receives_one_message_and_its_answer_is_the_result(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("something said before").await;
    let research = script().calls(lookup("c1", "x")).turn(json!({"echo_messages": true}));
    alice
        .says(script().calls(task("t1", "researcher", research)).says("done"))
        .await;
    let said = [
        "human: …",
        "ai calls task",
        "task: ROLES<<user,assistant,tool>>",
        "ai: done",
    ];
    assert_eq!(alice.transcript().await[2..], said);
    let message = alice.state().await["values"]["messages"][4].clone();
    assert_eq!(&message["name"], &json!("task"));
    assert_eq!(&message["tool_call_id"], &json!("t1"));
}

async fn a_subagent_has_its_own_instructions_and_tools(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = [
        task("t1", "researcher", echo("echo_system")),
        task("t2", "researcher", echo("echo_tools")),
        task("t3", "general-purpose", echo("echo_system")),
        task("t4", "general-purpose", echo("echo_tools")),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("task: SYSTEM<<You are the researcher."),
        "{}",
        said[2]
    );
    let own = "delete,edit_file,glob,grep,lookup,ls,note,progress,read_file,slow,write_file";
    assert_eq!(said[3], format!("task: TOOLS<<{own}>>"));
    assert!(!said[4].contains("You are the main agent."), "{}", said[4]);
    let all = "delete,edit_file,fail,glob,grep,lookup,ls,note,read_file,send_email,write_file";
    assert_eq!(said[5], format!("task: TOOLS<<{all}>>"));
}

async fn results_come_back_in_the_order_of_the_calls(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let slow = script().calls(lookup("c1", "x")).says("the slow one");
    let calls = [
        task("t1", "researcher", slow),
        task("t2", "researcher", script().says("the quick one")),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("lookup", 1).await;
    let stream = run.is_joined(None).await;
    server.tools.let_go("lookup");
    stream.rest().await;
    let said = [
        "human: …",
        "ai calls task, task",
        "task: the slow one",
        "task: the quick one",
        "ai: done",
    ];
    assert_eq!(alice.transcript().await, said);
}

async fn subagents_run_in_parallel(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let research = |id: &str| script().calls(lookup(id, id)).says(id);
    let calls = ["c1", "c2", "c3", "c4"].map(|id| task(&id.replace('c', "t"), "researcher", research(id)));
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("lookup", 4).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await[2..],
        ["task: c1", "task: c2", "task: c3", "task: c4", "ai: done"]
    );
}

async fn a_requested_response_format_is_followed(server: TestServer) {
    let alice = server.human("agent").await;
    let finding = |summary: Value| call("f1", "Finding", json!({"summary": summary, "confidence": 0.5}));
    let analysis = script().calls(finding(json!(7))).calls(finding(json!("it is so")));
    alice
        .says(script().calls(task("t1", "analyst", analysis)).says("done"))
        .await;
    let said = alice.transcript().await;
    assert_eq!(said[2], r#"task: {"summary":"it is so","confidence":0.5}"#);
    assert_eq!(alice.state().await["values"].get("structured_response"), None);
}

async fn plain_text_instead_of_a_response_format_is_an_error_result(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = [
        task("t1", "analyst", "just talk"),
        task("t2", "researcher", script().says("fine")),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("task failed: The subagent `analyst` failed"),
        "{said:?}"
    );
    assert_eq!(said[3..], ["task: fine", "ai: done"]);
}

async fn a_failing_subagent_is_an_error_result_and_its_siblings_go_on(server: TestServer) {
    let alice = server.human("agent").await;
    let research = script().calls(lookup("c1", "x")).says("fine");
    let calls = [
        task("t1", "researcher", script().fails(400)),
        task("t2", "researcher", research),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("task failed: The subagent `researcher` failed"),
        "{said:?}"
    );
    assert_eq!(said[3..], ["task: fine", "ai: done"]);
    let statuses: Vec<Value> = run
        .children()
        .await
        .iter()
        .map(|child| child["status"].clone())
        .collect();
    assert_eq!(statuses, ["error", "success"]);
    assert_eq!(run.status().await, "success");
}

async fn a_subagent_that_takes_too_many_steps_is_an_error_result(server: TestServer) {
    let alice = server.human("agent").await;
    let endless = (0..9).fold(script(), |script, n| script.calls(lookup(&format!("c{n}"), "x")));
    alice
        .says(script().calls(task("t1", "hurried", endless)).says("done"))
        .await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("task failed: The subagent `hurried` failed (GraphRecursionError)"),
        "{said:?}"
    );
    assert_eq!(said[3], "ai: done");
}

async fn an_empty_answer_of_a_subagent_is_an_error_result(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = [
        task("t1", "researcher", script().says("")),
        task(
            "t2",
            "researcher",
            script()
                .turn(json!({"text": "earlier", "tool_calls": [lookup("c1", "x")]}))
                .says(""),
        ),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert!(said[2].len() > "task: ".len(), "{said:?}");
    assert_eq!(said[3], "task: earlier");
}

async fn an_unknown_subagent_is_refused_with_the_known_names(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(script().calls(task("t1", "nobody", "hi")).says("done"))
        .await;
    let said = alice.transcript().await;
    let names = "`general-purpose`, `researcher`, `mailer`, `hurried`, `analyst`";
    assert!(said[2].contains("nobody"), "{}", said[2]);
    assert!(said[2].ends_with(names), "{}", said[2]);
    assert_eq!(said[3], "ai: done");
}

async fn an_invented_or_missing_argument_is_named(server: TestServer) {
    let alice = server.human("agent").await;
    let invented = json!({"description": "hi", "subagent_type": "researcher", "prompt": "do it"});
    let calls = [
        call("t1", "task", invented),
        call("t2", "task", json!({"description": "hi"})),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("task failed:"), "{}", said[2]);
    assert!(said[2].contains("`prompt`"), "{}", said[2]);
    assert!(said[3].starts_with("task failed:"), "{}", said[3]);
    assert!(said[3].contains("`subagent_type`"), "{}", said[3]);
    let run = alice.run(&alice.runs().await[0]);
    assert_eq!(run.children().await, Vec::<Value>::new());
}

async fn subagents_do_not_delegate_unless_allowed(server: TestServer) {
    let alice = server.human("agent").await;
    let tries = script()
        .calls(task("t2", "researcher", "deeper"))
        .turn(json!({"echo_last_tool": true}));
    alice
        .says(script().calls(task("t1", "researcher", tries)).says("done"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].contains("task"), "{}", said[2]);
    assert!(said[2].contains("LAST_TOOL<<"), "{}", said[2]);
    assert_eq!(alice.run(&alice.runs().await[0]).children().await.len(), 1);
}

async fn delegation_stops_at_the_maximum_depth(server: TestServer) {
    let alice = server.human("deep").await;
    let below = |id: &str, inner: String| {
        script()
            .calls(task(id, "researcher", inner))
            .turn(json!({"echo_last_tool": true}))
            .to_string()
    };
    let fourth = below("t4", "too deep".to_owned());
    alice.says(below("t1", below("t2", below("t3", fourth)))).await;
    let said = alice.transcript().await;
    assert!(said[3].starts_with("ai: LAST_TOOL<<LAST_TOOL<<LAST_TOOL<<"), "{said:?}");
    let run = alice.run(&alice.runs().await[0]);
    let mut depths = vec![];
    let mut level = run.children().await;
    while let [child] = level.as_slice() {
        depths.push(child["depth"].clone());
        level = alice.run(child).children().await;
    }
    assert_eq!(depths, [1, 2, 3]);
}

async fn a_tool_may_ask_the_server_to_delegate(server: TestServer) {
    let alice = server.human("deep").await;
    let args = json!({"description": script().says("spawned").to_string(), "subagent_type": "researcher"});
    let run = alice.asks(script().calls(call("s1", "spawn", args)).says("done")).await;
    run.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls spawn", "spawn: spawned", "ai: done"]
    );
    assert_eq!(run.children().await[0]["depth"], 1);
}

async fn the_children_of_a_run_are_listed_with_name_call_status_and_depth(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = [
        task("t1", "researcher", script().calls(lookup("c1", "x")).says("one")),
        task(
            "t2",
            "mailer",
            script().calls(crate::support::mail("m1", "bob")).says("two"),
        ),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let children = run.children().await;
    let shown = |child: &Value| {
        json!([
            child["agent_name"],
            child["task_call_id"],
            child["status"],
            child["depth"]
        ])
    };
    let shown: Vec<Value> = children.iter().map(shown).collect();
    assert_eq!(
        shown,
        [
            json!(["researcher", "t1", "success", 1]),
            json!(["mailer", "t2", "interrupted", 1])
        ],
        "{children:#?}"
    );
    alice.approves(&alice.question().await).await.finishes().await;
    let statuses: Vec<Value> = run
        .children()
        .await
        .iter()
        .map(|child| child["status"].clone())
        .collect();
    assert_eq!(statuses, ["success", "success"]);
}

async fn the_context_reaches_the_tools_of_subagents_unchanged(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script()
        .calls(task("t1", "researcher", script().calls(lookup("c1", "x")).says("ok")))
        .says("done");
    let body = alice.run_body(text, json!({"context": {"user": "u1", "researcher:max": 3}}));
    alice.starts(body).await.finishes().await;
    let seen = &server.tools.calls_of("lookup")[0];
    assert_eq!(seen["context"], json!({"user": "u1", "researcher:max": 3}));
    assert_eq!(&seen["agent_name"], &json!("researcher"));
    assert_eq!(&seen["agent_path"], &json!(["main-agent", "researcher"]));
    assert_eq!(&seen["tool_call_id"], &json!("c1"));
    assert_eq!(&seen["thread_id"], &json!(alice.thread));
}

async fn cancelling_a_run_stops_its_subagents(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let research = |id: &str| script().calls(lookup(id, id)).says(id);
    let calls = [
        task("t1", "researcher", research("c1")),
        task("t2", "researcher", research("c2")),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("lookup", 2).await;
    run.is_cancelled("interrupt").await.ok();
    let statuses: Vec<Value> = run
        .children()
        .await
        .iter()
        .map(|child| child["status"].clone())
        .collect();
    assert_eq!(statuses, ["interrupted", "interrupted"]);
    server.tools.let_go("lookup");
    let said = alice.says("go on").await;
    assert_eq!(crate::support::transcript(&said).last().unwrap(), "ai: echo: go on");
}
