//! Tools of MCP servers, over stdio and HTTP.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::mcp::{McpTransport, docs, program_after};
use crate::support::script::Script;
use crate::support::{TestServer, call, eventually, on_both_engines, script, task, transcript};

/// Returns a call of a tool of the server `docs`.
fn docs_call(id: &str, tool: &str, args: Value) -> Value {
    call(id, &format!("docs__{tool}"), args)
}

/// Returns the id of the process of an MCP server over stdio.
fn process_in(said: &[String]) -> String {
    let line = said.iter().find_map(|line| line.strip_prefix("docs__process: "));
    line.unwrap_or_else(|| panic!("no process in {said:#?}")).to_owned()
}

fn kill(process: &str) {
    let killed = std::process::Command::new("kill")
        .args(["-9", process])
        .status()
        .expect("kill");
    assert!(killed.success());
}

/// Checks listing, calls, errors and structured results over one transport.
async fn everything_works(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let calls = [
        docs_call("c1", "echo", json!({"text": "hello"})),
        docs_call("c2", "count", json!({"text": "one two"})),
        docs_call("c3", "echo", json!({"txt": "hello"})),
        docs_call("c4", "broken", json!({})),
        docs_call(
            "c5",
            "spawn",
            json!({"work": script().says("helped").to_string(), "to": "helper"}),
        ),
        docs_call("c6", "picture", json!({})),
    ];
    let text = script().calls_all(calls).turn(json!({"echo_tools": true}));
    let values = alice.says(text).await;
    let said = transcript(&values);
    assert_eq!(said[2..4], ["docs__echo: hello", r#"docs__count: {"words":2}"#]);
    assert!(said[4].starts_with("docs__echo failed:"), "{}", said[4]);
    assert!(said[4].contains("`text`: is required, but missing"), "{}", said[4]);
    assert!(said[5].contains("docs__broken is not a valid tool"), "{}", said[5]);
    assert_eq!(said[6], "docs__spawn: helped");
    let messages = values["messages"].as_array().unwrap();
    assert_eq!(messages[3]["artifact"], json!({"words": 2}));
    let image = json!({"type": "image", "base64": "AAAA", "mime_type": "image/png"});
    assert_eq!(
        messages[7]["content"],
        json!([{"type": "text", "text": "a dot"}, image])
    );
    let offered = said.last().unwrap();
    let odd = offered
        .split(&['<', ',', '>'][..])
        .find(|name| name.starts_with("docs__read_file_"))
        .unwrap()
        .to_owned();
    assert!(offered.contains("docs__whoami"), "{offered}");
    assert!(!offered.contains("broken"), "{offered}");
    assert!(
        !offered.contains("docs__long"),
        "a tool that can only be called as a task: {offered}"
    );
    let run = &alice.runs().await[0];
    assert_eq!(alice.run(run).children().await[0]["task_call_id"], "c5");

    let bob = server.human("librarian").await;
    let calls = [call("c1", &odd, json!({})), docs_call("c2", "whoami", json!({}))];
    let body = bob.run_body(
        script().calls_all(calls).says("done"),
        json!({"context": {"user": "u1"}}),
    );
    let run = bob.starts(body).await;
    run.finishes().await;
    let said = bob.transcript().await;
    assert_eq!(said[2], format!("{odd}: read"));
    let told: Value = serde_json::from_str(said[3].strip_prefix("docs__whoami: ").unwrap()).unwrap();
    assert_eq!(&told["tool_call_id"], &json!("c2"));
    assert_eq!(&told["agent_name"], &json!("librarian"));
    assert_eq!(&told["context"], &json!({"user": "u1"}));
    assert_eq!(&told["thread_id"], &json!(bob.thread));
    assert_eq!(&told["run_id"], &json!(run.id));
}

/// Checks that a tool that delegates can set the system prompt of the subagent.
async fn a_delegation_may_bring_instructions(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let work = script().turn(json!({"echo_system": true})).to_string();
    let spawn =
        |id: &str, prompt: Value| docs_call(id, "spawn", json!({"work": work, "to": "helper", "prompt": prompt}));
    alice
        .says(
            script()
                .calls_all([spawn("c1", json!("You count sheep.")), spawn("c2", Value::Null)])
                .says("done"),
        )
        .await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("docs__spawn: SYSTEM<<You count sheep."),
        "{}",
        said[2]
    );
    assert!(!said[2].contains("You help."), "{}", said[2]);
    assert!(said[3].starts_with("docs__spawn: SYSTEM<<You help."), "{}", said[3]);
}

/// Checks that a tool gets the result of the subagent to which it has delegated, when it asks for it.
async fn a_delegation_comes_back(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let work = script().says("helped").to_string();
    let spawn = docs_call("c1", "spawn", json!({"work": work, "to": "helper", "again": true}));
    let said = transcript(&alice.says(script().calls(spawn).says("done")).await);
    assert_eq!(said[2], "docs__spawn: helper has said: helped");
}

/// Checks that new tools are offered while the server runs.
async fn tools_come_and_go(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    alice
        .says(script().calls(docs_call("c1", "grow", json!({}))).says("done"))
        .await;
    eventually(async || {
        let said = transcript(
            &alice
                .says(script().calls(docs_call("c2", "late", json!({}))).says("done"))
                .await,
        );
        said.iter().any(|line| line == "docs__late: better")
    })
    .await;
}

/// Checks that a call that takes too long is an error result, and that the server receives a cancellation.
async fn a_late_answer_is_not_waited_for(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "timeout_s = 0.3").await else {
        return;
    };
    let alice = server.human("librarian").await;
    server.tools.hold("dig");
    let said = transcript(
        &alice
            .says(script().calls(docs_call("c1", "dig", json!({}))).says("done"))
            .await,
    );
    assert_eq!(
        said[2],
        "docs__dig failed: The call to `docs__dig` failed: `dig` of the MCP server `docs`: there was no answer within 0.3 s (its `timeout_s`)"
    );
    server.tools.called("cancelled", 1).await;
    server.tools.let_go("dig");
}

/// Checks that the MCP server receives a cancellation when a run is cancelled.
async fn a_cancelled_run_takes_its_call_back(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    server.tools.hold("dig");
    let run = alice
        .asks(script().calls(docs_call("c1", "dig", json!({}))).says("done"))
        .await;
    server.tools.called("dig", 1).await;
    run.is_cancelled("interrupt").await.ok();
    server.tools.called("cancelled", 1).await;
    server.tools.let_go("dig");
}

/// Checks that `after_crash` of the MCP server applies to a call that a crash interrupted.
async fn the_rule_of_the_server_decides_after_a_crash(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "after_crash = \"fail\"").await else {
        return;
    };
    server.moves_into_a_process().await;
    let alice = server.human("librarian").await;
    server.tools.hold("dig");
    let run = alice
        .asks(script().calls(docs_call("c1", "dig", json!({}))).says("done"))
        .await;
    server.tools.called("dig", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("dig");
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("docs__dig failed: The server stopped while this call was running"),
        "{said:#?}"
    );
    assert_eq!(server.tools.calls_of("dig").len(), 1);
}

on_both_engines! {
    the_tools_of_a_program_are_tools_like_others,
    the_tools_of_a_server_behind_http_are_tools_like_others,
    a_program_may_bring_tools_while_it_runs,
    a_server_behind_http_may_bring_tools_while_it_runs,
    a_program_that_takes_too_long_gets_a_cancellation,
    a_server_behind_http_that_takes_too_long_gets_a_cancellation,
    cancelling_a_run_cancels_its_call_of_a_program,
    cancelling_a_run_cancels_its_call_behind_http,
    a_call_of_a_program_is_not_repeated_after_a_crash,
    a_call_behind_http_is_not_repeated_after_a_crash,
    a_program_that_dies_in_a_call_is_started_again_for_the_next,
    a_server_behind_http_may_end_and_start_again,
    a_server_behind_http_may_forget_its_sessions,
    long_results_and_errors_reach_the_model,
    a_program_does_not_see_the_variables_of_the_server,
    clients_may_use_configured_servers_only,
    an_unreachable_server_does_not_prevent_the_start,
    a_program_is_started_when_an_agent_first_needs_it,
    a_program_may_be_started_before_an_agent_needs_it,
    a_run_fails_without_its_server_and_the_next_one_tries_again,
    a_run_goes_on_without_a_server_that_is_not_required,
    a_server_that_is_not_required_brings_its_tools_as_soon_as_it_is_there,
    a_tool_takes_the_arguments_that_its_server_listed_last,
    a_call_whose_server_is_gone_after_a_restart_says_so,
    the_graph_of_an_agent_names_tools_before_its_first_run,
    a_delegation_of_a_program_may_bring_instructions,
    a_delegation_from_behind_http_may_bring_instructions,
    a_tool_of_a_program_gets_the_result_of_its_delegation,
    a_tool_from_behind_http_gets_the_result_of_its_delegation,
}

async fn a_tool_of_a_program_gets_the_result_of_its_delegation(server: TestServer) {
    a_delegation_comes_back(&server, McpTransport::Stdio).await;
}

async fn a_tool_from_behind_http_gets_the_result_of_its_delegation(server: TestServer) {
    a_delegation_comes_back(&server, McpTransport::Http).await;
}

async fn the_tools_of_a_program_are_tools_like_others(server: TestServer) {
    everything_works(&server, McpTransport::Stdio).await;
}

async fn the_tools_of_a_server_behind_http_are_tools_like_others(server: TestServer) {
    everything_works(&server, McpTransport::Http).await;
}

async fn a_program_may_bring_tools_while_it_runs(server: TestServer) {
    tools_come_and_go(&server, McpTransport::Stdio).await;
}

async fn a_server_behind_http_may_bring_tools_while_it_runs(server: TestServer) {
    tools_come_and_go(&server, McpTransport::Http).await;
}

async fn a_program_that_takes_too_long_gets_a_cancellation(server: TestServer) {
    a_late_answer_is_not_waited_for(&server, McpTransport::Stdio).await;
}

async fn a_server_behind_http_that_takes_too_long_gets_a_cancellation(server: TestServer) {
    a_late_answer_is_not_waited_for(&server, McpTransport::Http).await;
}

async fn cancelling_a_run_cancels_its_call_of_a_program(server: TestServer) {
    a_cancelled_run_takes_its_call_back(&server, McpTransport::Stdio).await;
}

async fn cancelling_a_run_cancels_its_call_behind_http(server: TestServer) {
    a_cancelled_run_takes_its_call_back(&server, McpTransport::Http).await;
}

async fn a_call_of_a_program_is_not_repeated_after_a_crash(server: TestServer) {
    the_rule_of_the_server_decides_after_a_crash(&server, McpTransport::Stdio).await;
}

async fn a_call_behind_http_is_not_repeated_after_a_crash(server: TestServer) {
    the_rule_of_the_server_decides_after_a_crash(&server, McpTransport::Http).await;
}

async fn a_program_that_dies_in_a_call_is_started_again_for_the_next(server: TestServer) {
    let Some(_docs) = docs(&server, McpTransport::Stdio, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let said = transcript(
        &alice
            .says(script().calls(docs_call("p1", "process", json!({}))).says("done"))
            .await,
    );
    server.tools.hold("dig");
    let calls = [docs_call("c1", "dig", json!({})), crate::support::lookup("c2", "x")];
    let run = alice
        .asks(
            script()
                .calls_all(calls)
                .calls(docs_call("p2", "process", json!({})))
                .says("done"),
        )
        .await;
    server.tools.called("dig", 1).await;
    kill(&process_in(&said));
    run.finishes().await;
    server.tools.let_go("dig");
    let later = alice.transcript().await[said.len()..].to_vec();
    assert_eq!(
        later[2],
        "docs__dig failed: The call to `docs__dig` failed: `dig` of the MCP server `docs`: the server broke off before it answered"
    );
    assert_eq!(later[3], "lookup: found x");
    assert_ne!(process_in(&later), process_in(&said));
}

/// Returns a script that calls the tool `echo` once.
fn echo() -> Script {
    script()
        .calls(docs_call("e1", "echo", json!({"text": "still here"})))
        .says("done")
}

async fn a_server_behind_http_may_end_and_start_again(server: TestServer) {
    let Some(mut docs) = docs(&server, McpTransport::Http, "start_timeout_s = 1.0").await else {
        return;
    };
    let alice = server.human("librarian").await;
    server.tools.hold("dig");
    let run = alice
        .asks(script().calls(docs_call("c1", "dig", json!({}))).says("done"))
        .await;
    server.tools.called("dig", 1).await;
    docs.dies();
    run.finishes().await;
    server.tools.let_go("dig");
    assert!(
        alice.transcript().await[2].ends_with("the server broke off before it answered"),
        "{:?}",
        alice.transcript().await
    );
    let said = transcript(&alice.says(echo()).await);
    assert!(
        said[said.len() - 2].ends_with("the server is not available"),
        "{said:#?}"
    );
    docs.starts();
    let said = transcript(&alice.says(echo()).await);
    assert_eq!(said[said.len() - 2], "docs__echo: still here");
}

async fn a_server_behind_http_may_forget_its_sessions(server: TestServer) {
    let Some(docs) = docs(&server, McpTransport::Http, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    alice.says(echo()).await;
    docs.forgets();
    let said = transcript(&alice.says(echo()).await);
    assert_eq!(said[said.len() - 2], "docs__echo: still here");
}

async fn long_results_and_errors_reach_the_model(server: TestServer) {
    let Some(_docs) = docs(&server, McpTransport::Stdio, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    alice
        .says(
            script()
                .calls(docs_call("c1", "fail", json!({"why": "no luck"})))
                .says("done"),
        )
        .await;
    let question = alice.question().await;
    assert_eq!(&question.requests()[0]["name"], &json!("docs__fail"));
    assert_eq!(question.agent(), "librarian");
    let edited = json!([{"type": "edit", "edited_action": {"name": "docs__fail", "args": {"why": "bad luck"}}}]);
    alice.decides(&question, edited).await.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].ends_with("`fail` of the MCP server `docs`: bad luck"),
        "{said:#?}"
    );
    let said = transcript(
        &alice
            .says(script().calls(docs_call("c2", "huge", json!({}))).says("done"))
            .await,
    );
    assert!(said[said.len() - 2].starts_with("docs__huge failed:"), "{said:#?}");
    let helped = script()
        .calls(docs_call("c4", "echo", json!({"text": "x"})))
        .turn(json!({"echo_tools": true}));
    let calls = script()
        .calls(task("t1", "helper", helped))
        .turn(json!({"echo_last_tool": true}));
    alice.says(calls).await;
    let question = alice.question().await;
    assert_eq!(&question.requests()[0]["name"], &json!("docs__echo"));
    assert_eq!(question.agent(), "helper");
    alice.approves(&question).await.finishes().await;
    let said = alice.transcript().await;
    let tools = said.iter().find(|line| line.contains("TOOLS<<")).unwrap();
    assert!(tools.contains("docs__echo"), "{tools}");
    assert!(!tools.contains("docs__dig"), "{tools}");
}

/// A program that is an MCP server, and notes each of its starts. It ends at once while the file `closed` exists.
struct DoorProgram {
    starts: PathBuf,
    closed: PathBuf,
}

impl DoorProgram {
    /// Configures the program as the server `docs`, and an agent that uses it; `None` without Python. `more` is added to its
    /// section.
    async fn configured(server: &TestServer, more: &str) -> Option<Self> {
        let door = Self {
            starts: server.path_of("starts"),
            closed: server.path_of("closed"),
        };
        let first = format!(
            "test ! -e '{}' || exit 1; echo started >> '{}';",
            door.closed.display(),
            door.starts.display()
        );
        let program = program_after(server, &first)?;
        server
            .is_configured_with(&format!(
                "{program}start_timeout_s = 60\n{more}\n\
                 [agents.reader]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Read.\"\ntools = [\"docs/*\"]\n\
                 interrupt_on = {{ \"docs/count\" = true }}\n"
            ))
            .await;
        Some(door)
    }

    fn closes(&self) {
        std::fs::write(&self.closed, "").expect("a file");
    }

    fn opens(&self) {
        std::fs::remove_file(&self.closed).expect("it was closed");
    }
}

async fn a_program_is_started_when_an_agent_first_needs_it(server: TestServer) {
    let Some(door) = DoorProgram::configured(&server, "").await else {
        return;
    };
    let bob = server.human("plain").await;
    bob.says("hello").await;
    assert!(!door.starts.exists(), "no agent has needed it");
    for number in 1..=2 {
        let alice = server.human("reader").await;
        let text = script()
            .calls(docs_call("e1", "echo", json!({"text": number.to_string()})))
            .turn(json!({"echo_tools": true}));
        let said = transcript(&alice.says(text).await);
        assert_eq!(said[2], format!("docs__echo: {number}"));
        assert!(said[3].contains("docs__whoami"), "{}", said[3]);
    }
    let starts = std::fs::read_to_string(&door.starts).expect("it was started");
    assert_eq!(starts, "started\n");
}

async fn a_program_may_be_started_before_an_agent_needs_it(server: TestServer) {
    let Some(door) = DoorProgram::configured(&server, "connect_at_start = true").await else {
        return;
    };
    // Any request starts the server of the test.
    server.human("plain").await;
    assert!(door.starts.exists());
}

async fn a_run_fails_without_its_server_and_the_next_one_tries_again(server: TestServer) {
    let Some(door) = DoorProgram::configured(&server, "").await else {
        return;
    };
    door.closes();
    let alice = server.human("reader").await;
    for _ in 0..2 {
        let error = alice.says(echo()).await["__error__"].clone();
        assert_eq!(error["error"], "McpConnectionError", "{error}");
        assert_eq!(error["message"], "the MCP server `docs` broke off before it answered");
    }
    door.opens();
    let said = transcript(&alice.says(echo()).await);
    assert_eq!(said[said.len() - 2], "docs__echo: still here");
}

async fn a_run_goes_on_without_a_server_that_is_not_required(server: TestServer) {
    let Some(door) = DoorProgram::configured(&server, "required = false").await else {
        return;
    };
    door.closes();
    let alice = server.human("reader").await;
    let unknown = call("l1", "dig", json!({}));
    let calls = [docs_call("e1", "echo", json!({"text": "x"})), unknown];
    let text = script().calls_all(calls).turn(json!({"echo_tools": true}));
    let said = transcript(&alice.says(text).await);
    assert_eq!(
        said[2],
        "docs__echo failed: The call to `docs__echo` failed: the MCP server `docs` broke off before it answered"
    );
    assert!(said[3].contains("dig is not a valid tool"), "{}", said[3]);
    assert!(!said[4].contains("docs__"), "{}", said[4]);
}

async fn a_server_that_is_not_required_brings_its_tools_as_soon_as_it_is_there(server: TestServer) {
    let Some(door) = DoorProgram::configured(&server, "required = false").await else {
        return;
    };
    door.closes();
    server.human("reader").await.says("hello").await;
    door.opens();
    eventually(async || {
        let bob = server.human("reader").await;
        transcript(&bob.says(echo()).await)[2] == "docs__echo: still here"
    })
    .await;
}

async fn a_tool_takes_the_arguments_that_its_server_listed_last(server: TestServer) {
    // The agent is made when the tools are known.
    let Some(_docs) = docs(&server, McpTransport::Stdio, "connect_at_start = true").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let count = || docs_call("c2", "count", json!({}));
    let calls = script()
        .calls(count())
        .calls(docs_call("c1", "grow", json!({})))
        .says("done");
    let said = transcript(&alice.says(calls).await);
    assert!(said[2].contains("`text`: is required, but missing"), "{}", said[2]);
    eventually(async || {
        let bob = server.human("librarian").await;
        let said = transcript(&bob.says(script().calls(count()).says("done")).await);
        said[2] == r#"docs__count: {"words":0}"#
    })
    .await;
}

async fn a_call_whose_server_is_gone_after_a_restart_says_so(server: TestServer) {
    let Some(door) = DoorProgram::configured(&server, "").await else {
        return;
    };
    let alice = server.human("reader").await;
    let count = docs_call("c1", "count", json!({"text": "one two"}));
    alice.says(script().calls(count).says("done")).await;
    door.closes();
    server.is_stopped_and_started_again().await;
    let question = alice.question().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(
        alice.transcript().await[2],
        "docs__count failed: The call to `docs__count` failed: the MCP server `docs` broke off before it answered"
    );
    door.opens();
    let said = transcript(&alice.says(echo()).await);
    assert_eq!(said[said.len() - 2], "docs__echo: still here");
}

async fn the_graph_of_an_agent_names_tools_before_its_first_run(server: TestServer) {
    let Some(_door) = DoorProgram::configured(&server, "").await else {
        return;
    };
    let graph = server.client().get("/assistants/reader/graph").await.ok();
    let nodes = graph["nodes"].as_array().expect("a list");
    let tools = nodes
        .iter()
        .find(|node| node["id"] == "tools")
        .expect("a node of tools");
    let names = tools["metadata"]["__tools"].as_array().expect("a list");
    assert!(names.contains(&json!("docs__echo")), "{names:?}");
}

async fn a_program_does_not_see_the_variables_of_the_server(server: TestServer) {
    let Some(_docs) = docs(&server, McpTransport::Stdio, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let said = transcript(
        &alice
            .says(script().calls(docs_call("c1", "environment", json!({}))).says("done"))
            .await,
    );
    assert!(said[2].ends_with(" d0cs"), "{}", said[2]);
    assert!(said[2].contains("PATH"), "{}", said[2]);
    assert!(!said[2].contains("CARGO"), "{}", said[2]);
}

async fn clients_may_use_configured_servers_only(server: TestServer) {
    let Some(_docs) = docs(&server, McpTransport::Stdio, "").await else {
        return;
    };
    let client = server.client();
    let body = |tool: &str| json!({"model": "scripted:lab", "tools": [tool]});
    let refused = client.put("/agents/brought", body("dosc/*")).await;
    assert_eq!(refused.status, 422);
    assert!(
        refused
            .body
            .to_string()
            .contains("there is no server `dosc` of tools; did you mean `docs`?"),
        "{}",
        refused.body
    );
    let own = json!({"model": "scripted:lab", "mcp_servers": {"own": {"command": "sh"}}});
    assert_eq!(client.put("/agents/brought", own).await.status, 422);
    client.put("/agents/brought", body("docs/echo")).await.ok();
    let alice = server.human("brought").await;
    let said = transcript(
        &alice
            .says(
                script()
                    .calls(docs_call("c1", "echo", json!({"text": "x"})))
                    .says("done"),
            )
            .await,
    );
    assert_eq!(said[2], "docs__echo: x");
}

async fn an_unreachable_server_does_not_prevent_the_start(server: TestServer) {
    server
        .is_configured_with(
            r#"
            [mcp_servers.gone]
            command = "/no/such/program"
            connect_at_start = true
            [agents.waiter]
            model = "scripted:lab"
            tools = ["gone/*"]
        "#,
        )
        .await;
    let alice = server.human("waiter").await;
    let error = alice.says("hello").await["__error__"].clone();
    assert_eq!(error["error"], "McpConnectionError", "{error}");
    assert_eq!(
        error["message"],
        "the MCP server `gone` cannot be reached (there is no program `/no/such/program`)"
    );
}

async fn a_delegation_of_a_program_may_bring_instructions(server: TestServer) {
    a_delegation_may_bring_instructions(&server, McpTransport::Stdio).await;
}

async fn a_delegation_from_behind_http_may_bring_instructions(server: TestServer) {
    a_delegation_may_bring_instructions(&server, McpTransport::Http).await;
}
