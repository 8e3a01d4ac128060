//! The MCP servers in the files of an agent's folder, in the formats of other programs.

use serde_json::{Value, json};

use crate::support::mcp::{behind_http, program};
use crate::support::{TestServer, call, eventually, on_both_engines, script, task, transcript};

const SETTINGS: &str = "[agent]\nname = \"reader\"\nmodel = \"scripted:lab\"\n";

/// Writes the folder of an agent in the layout of `deepagents.toml`, with these servers.
fn folder_with(server: &TestServer, servers: &Value) {
    server.file_is_written("agents/reader/AGENTS.md", "You read.");
    server.file_is_written("agents/reader/deepagents.toml", SETTINGS);
    has_servers(server, servers);
}

fn has_servers(server: &TestServer, servers: &Value) {
    server.file_is_written("agents/reader/mcp.json", &json!({"mcpServers": servers}).to_string());
}

/// Returns the result of a tool of an MCP server on a new thread.
async fn answer(server: &TestServer, agent: &str, tool: &str, args: &Value) -> String {
    let alice = server.human(agent).await;
    let said = transcript(
        &alice
            .says(script().calls(call("c1", tool, args.clone())).says("done"))
            .await,
    );
    said[2].clone()
}

/// Waits until the agent is there and its tool says this again.
async fn echoes(server: &TestServer, agent: &str, tool: &str) {
    let client = server.client();
    eventually(async || client.get(&format!("/agents/{agent}")).await.body["usable"] == json!(true)).await;
    let wanted = format!("{tool}: hello");
    eventually(async || answer(server, agent, tool, &json!({"text": "hello"})).await == wanted).await;
}

/// Returns the process id in a result of the tool `process`.
fn process(answer: &str) -> String {
    answer.rsplit(' ').next().expect("a number").to_owned()
}

fn is_alive(process: &str) -> bool {
    let looked = std::process::Command::new("kill")
        .args(["-0", process])
        .stderr(std::process::Stdio::null())
        .status();
    looked.expect("kill").success()
}

on_both_engines! {
    a_folder_with_an_mcp_json_adds_its_servers,
    the_servers_of_a_folder_change_with_its_file,
    an_invalid_change_keeps_the_previous_servers,
    a_subagent_has_the_servers_of_its_own_folder,
    a_tools_json_names_the_servers_of_its_tools,
    configured_servers_change_without_a_restart,
    an_interrupt_about_a_tool_of_a_folder_survives_a_kill,
    a_tool_of_a_server_can_be_offered_after_a_skill_was_read,
}

async fn a_folder_with_an_mcp_json_adds_its_servers(server: TestServer) {
    server.watches_its_files().await;
    let (Some(docs), Some(own)) = (behind_http(&server), program(&server)) else {
        return;
    };
    let key = json!({"x-key": "${ADJUTANT_TEST_NOTHING:-s3cret}"});
    folder_with(
        &server,
        &json!({
            "docs": {"type": "http", "url": docs.address("/mcp"), "headers": key},
            "old": {"type": "sse", "url": docs.address("/sse"), "headers": key},
            "own": own,
        }),
    );
    for name in ["docs", "old", "own"] {
        echoes(&server, "reader", &format!("{name}__echo")).await;
    }
    let late = answer(&server, "reader", "old__fail", &json!({"why": "no luck"})).await;
    assert!(late.ends_with("`fail` of the MCP server `old`: no luck"), "{late}");
    assert!(
        answer(&server, "reader", "own__environment", &json!({}))
            .await
            .ends_with(" d0cs")
    );

    let client = server.client();
    let shown = client.get("/agents/reader").await.ok();
    assert_eq!(shown["definition"]["tools"], json!(["docs/*", "old/*", "own/*"]));
    assert!(!shown.to_string().contains("s3cret"), "{shown:#}");
    assert!(!shown.to_string().contains("d0cs"), "{shown:#}");
    let thief = json!({"model": "scripted:lab", "tools": ["own/*"]});
    let refused = client.put("/agents/thief", thief).await;
    assert!(refused.refused(422).contains("there is no server `own` of tools"));
}

async fn the_servers_of_a_folder_change_with_its_file(server: TestServer) {
    server.watches_its_files().await;
    let Some(own) = program(&server) else { return };
    folder_with(&server, &json!({"own": own}));
    echoes(&server, "reader", "own__echo").await;
    let first = process(&answer(&server, "reader", "own__process", &json!({})).await);
    server.tools.hold("dig");
    let alice = server.human("reader").await;
    let run = alice
        .asks(script().calls(call("c1", "own__dig", json!({}))).says("done"))
        .await;
    server.tools.called("dig", 1).await;

    let mut fewer = own.clone();
    fewer["disabledTools"] = json!(["ech*"]);
    has_servers(&server, &json!({"own": fewer}));
    eventually(async || {
        let said = answer(&server, "reader", "own__process", &json!({})).await;
        said.starts_with("own__process: ") && process(&said) != first
    })
    .await;
    let gone = answer(&server, "reader", "own__echo", &json!({"text": "hello"})).await;
    assert!(gone.contains("own__echo is not a valid tool"), "{gone}");
    server.tools.let_go("dig");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await[2],
        "own__dig: dug",
        "who was asked before answers"
    );
    eventually(async || !is_alive(&first)).await;

    let second = process(&answer(&server, "reader", "own__process", &json!({})).await);
    has_servers(&server, &json!({}));
    eventually(async || !is_alive(&second)).await;
    let gone = answer(&server, "reader", "own__process", &json!({})).await;
    assert!(gone.contains("own__process is not a valid tool"), "{gone}");
}

async fn an_invalid_change_keeps_the_previous_servers(server: TestServer) {
    server.watches_its_files().await;
    let Some(own) = program(&server) else { return };
    folder_with(&server, &json!({"own": own}));
    echoes(&server, "reader", "own__echo").await;
    let before = answer(&server, "reader", "own__process", &json!({})).await;
    has_servers(
        &server,
        &json!({"own": own, "more": {"type": "http", "url": "${ADJUTANT_TEST_NOTHING}"}}),
    );
    let client = server.client();
    let problems = async || client.get("/agents/reader").await.ok()["problems"].clone();
    eventually(async || problems().await != json!([])).await;
    let problem = problems().await[0].clone();
    assert!(
        problem["file"].as_str().unwrap().ends_with("agents/reader/mcp.json"),
        "{problem:#}"
    );
    assert_eq!(&problem["field"], &json!("more.url"));
    assert_eq!(
        &problem["message"],
        &json!("the environment variable ADJUTANT_TEST_NOTHING is not set")
    );
    assert_eq!(answer(&server, "reader", "own__process", &json!({})).await, before);
}

async fn a_subagent_has_the_servers_of_its_own_folder(server: TestServer) {
    server.watches_its_files().await;
    let Some(own) = program(&server) else { return };
    folder_with(&server, &json!({}));
    let settings = "[agent]\nname = \"scout\"\ndescription = \"Finds a lot of sources.\"\n";
    server.file_is_written("agents/reader/subagents/scout/AGENTS.md", "You find.");
    server.file_is_written("agents/reader/subagents/scout/deepagents.toml", settings);
    let servers = json!({"mcpServers": {"own": own}});
    server.file_is_written("agents/reader/subagents/scout/mcp.json", &servers.to_string());
    let work = || {
        script()
            .calls(call("d1", "own__echo", json!({"text": "hello"})))
            .turn(json!({"echo_last_tool": true}))
    };
    let client = server.client();
    eventually(async || client.get("/agents/reader").await.status == 200).await;
    eventually(async || {
        let alice = server.human("reader").await;
        let said = transcript(
            &alice
                .says(script().calls(task("t1", "scout", work())).says("done"))
                .await,
        );
        said[2].contains("hello")
    })
    .await;
    let gone = answer(&server, "reader", "own__echo", &json!({"text": "hello"})).await;
    assert!(gone.contains("own__echo is not a valid tool"), "{gone}");
}

async fn a_tools_json_names_the_servers_of_its_tools(server: TestServer) {
    server.watches_its_files().await;
    let Some(docs) = behind_http(&server) else { return };
    let url = docs.address("/mcp");
    server
        .is_configured_with(&format!(
            "[mcp_servers.hub]\nurl = {url:?}\nheaders = {{ x-key = \"s3cret\" }}\n"
        ))
        .await;
    let tools = json!({
        "tools": [
            {"name": "echo", "mcp_server_url": url, "mcp_server_name": "Docs", "display_name": "Echo"},
            {"name": "count", "mcp_server_url": url, "mcp_server_name": "Docs"}
        ],
        "interrupt_config": {format!("{url}::count::Docs"): true}
    });
    server.file_is_written("agents/clerk/AGENTS.md", "You count.");
    server.file_is_written("agents/clerk/tools.json", &tools.to_string());
    server.file_is_written(
        "agents/clerk/agent.json",
        r#"{"name": "clerk", "model": "scripted:lab"}"#,
    );
    echoes(&server, "clerk", "Docs__echo").await;
    let other = answer(&server, "clerk", "Docs__whoami", &json!({})).await;
    assert!(other.contains("Docs__whoami is not a valid tool"), "{other}");
    let alice = server.human("clerk").await;
    alice
        .says(
            script()
                .calls(call("c1", "Docs__count", json!({"text": "one two"})))
                .says("done"),
        )
        .await;
    let question = alice.question().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await[2], r#"Docs__count: {"words":2}"#);
}

async fn configured_servers_change_without_a_restart(server: TestServer) {
    server.watches_its_files().await;
    let Some(docs) = behind_http(&server) else { return };
    let url = docs.address("/mcp");
    let section = format!("[mcp_servers.extra]\nurl = {url:?}\nheaders = {{ x-key = \"s3cret\" }}\n\n[runtime]");
    let client = server.client();
    server.configuration_changes("[runtime]", &section);
    let body = json!({"model": "scripted:lab", "tools": ["extra/echo"]});
    eventually(async || client.put("/agents/late", body.clone()).await.status == 200).await;
    echoes(&server, "late", "extra__echo").await;

    server.configuration_changes(&section, "[runtime]");
    eventually(async || client.get("/agents/late").await.ok()["usable"] == json!(false)).await;
    let shown = client.get("/agents/late").await.ok();
    assert!(
        shown["problems"][0]["message"]
            .as_str()
            .unwrap()
            .contains("there is no server `extra` of tools"),
        "{shown:#}"
    );
    server.configuration_changes("[runtime]", &section);
    echoes(&server, "late", "extra__echo").await;
}

async fn an_interrupt_about_a_tool_of_a_folder_survives_a_kill(server: TestServer) {
    server.watches_its_files().await;
    let Some(own) = program(&server) else { return };
    folder_with(&server, &json!({"own": own}));
    let settings = "---\nmodel: scripted:lab\ninterrupt_on: {own/echo: true}\n---\nYou read.";
    server.file_is_written("agents/asker/AGENTS.md", settings);
    server.file_is_written(
        "agents/asker/mcp.json",
        &json!({"mcpServers": {"own": own}}).to_string(),
    );
    let client = server.client();
    eventually(async || client.get("/agents/asker").await.status == 200).await;
    eventually(async || {
        !answer(&server, "asker", "own__process", &json!({}))
            .await
            .contains("not a valid tool")
    })
    .await;
    let alice = server.human("asker").await;
    alice
        .says(
            script()
                .calls(call("c1", "own__echo", json!({"text": "hello"})))
                .says("done"),
        )
        .await;
    server.moves_into_a_process().await;
    server.is_killed_and_started_again().await;
    let question = alice.question().await;
    alice.approves(&question).await.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(said[said.len() - 2], "own__echo: hello");
}

async fn a_tool_of_a_server_can_be_offered_after_a_skill_was_read(server: TestServer) {
    server.watches_its_files().await;
    let Some(own) = program(&server) else { return };
    let settings = "---\nmodel: scripted:lab\ntools: [own/*]\nskill_tools: [own/count]\n---\nYou count.";
    server.file_is_written("agents/counter/AGENTS.md", settings);
    server.file_is_written(
        "agents/counter/mcp.json",
        &json!({"mcpServers": {"own": own}}).to_string(),
    );
    let skill = "---\nname: counting\ndescription: Count well.\nmetadata: {include_tools: own/*}\n---\nOne by one.";
    server.file_is_written("agents/counter/skills/counting/SKILL.md", skill);
    echoes(&server, "counter", "own__echo").await;
    let count = |id: &str| call(id, "own__count", json!({"text": "one two"}));
    let read = call(
        "r1",
        "read_file",
        json!({"file_path": "/.agent/skills/counting/SKILL.md"}),
    );
    let asked = script()
        .turn(json!({"echo_tools": true, "tool_calls": [count("c1")]}))
        .calls(read)
        .turn(json!({"echo_tools": true, "tool_calls": [count("c2")]}))
        .says("done");
    let alice = server.human("counter").await;
    let said = transcript(&alice.says(asked).await);
    let offered: Vec<bool> = said
        .iter()
        .filter_map(|line| line.split_once(">>"))
        .map(|(line, _)| line.contains("own__count"))
        .collect();
    assert_eq!(offered, [false, true], "{said:#?}");
    let results: Vec<&String> = said.iter().filter(|line| line.starts_with("own__count")).collect();
    assert!(results[0].contains("own__count is not a valid tool"), "{said:#?}");
    assert_eq!(results[1], r#"own__count: {"words":2}"#);
}
