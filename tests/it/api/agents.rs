//! Definitions of agents that change while the server runs: by clients, or in files.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::{TestServer, eventually, mail, on_both_engines, on_postgres, script};

/// Returns the agent of most tests: it needs an approval to send mail.
fn mailer(prompt: &str) -> Value {
    json!({"name": "post", "description": "Sends mail.", "model": "scripted:lab", "system_prompt": prompt,
        "tools": ["send_email"], "interrupt_on": {"send_email": true}})
}

/// Returns the same definition without the tool that sends.
fn mute() -> Value {
    json!({"name": "post", "description": "Sends nothing.", "model": "scripted:lab", "system_prompt": "Be silent."})
}

/// Returns the assistants of a definition.
async fn assistants(client: &Client, graph_id: &str) -> Vec<Value> {
    let found = client
        .post("/assistants/search", json!({"graph_id": graph_id}))
        .await
        .ok();
    found.as_array().unwrap().clone()
}

/// Sends a mail on a new thread and waits for the interrupt. Returns the thread.
async fn asks_to_mail(client: &Client, agent: &str) -> String {
    let thread = client.thread().await;
    let plan = script().calls(mail("c1", "a@b.c")).says("sent").to_string();
    let run = json!({"assistant_id": agent, "input": {"messages": [{"role": "user", "content": plan}]}});
    let answer = client.post(&format!("/threads/{thread}/runs/wait"), run).await.ok();
    assert!(answer["__interrupt__"].is_array(), "it does not ask: {answer:#}");
    thread
}

/// Approves the mail and returns the last message.
async fn allows(client: &Client, agent: &str, thread: &str) -> String {
    let answer = json!({"assistant_id": agent, "command": {"resume": {"decisions": [{"type": "approve"}]}}});
    let values = client.post(&format!("/threads/{thread}/runs/wait"), answer).await.ok();
    values["messages"].as_array().unwrap().last().unwrap()["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Checks that an agent without the tool cannot send a mail.
async fn fails_to_mail(client: &Client, agent: &str) {
    let thread = client.thread().await;
    let plan = script().calls(mail("c1", "a@b.c")).says("not sent").to_string();
    let run = json!({"assistant_id": agent, "input": {"messages": [{"role": "user", "content": plan}]}});
    let values = client.post(&format!("/threads/{thread}/runs/wait"), run).await.ok();
    let answer = &values["messages"][2];
    assert_eq!(&answer["type"], &json!("tool"), "{values:#}");
    assert_eq!(&answer["status"], &json!("error"), "{values:#}");
}

on_both_engines! {
    an_agent_that_a_client_defines_runs_at_once,
    a_definition_has_a_new_version_for_each_change,
    an_interrupted_run_keeps_its_definition,
    a_definition_survives_a_restart_and_goes_when_it_is_removed,
    an_invalid_definition_is_refused_with_every_reason,
    every_field_of_a_definition_is_accepted_or_refused_by_name,
    a_definition_of_a_file_cannot_be_changed_over_http,
    agents_are_found_by_their_attributes,
    a_changed_file_is_reloaded_while_runs_continue,
    an_invalid_file_keeps_the_previous_definition,
    a_file_precedes_a_client_that_took_the_name_before,
    an_agent_without_its_tool_does_not_run,
}

on_postgres! {
    servers_on_one_database_have_the_same_agents,
}

async fn an_agent_that_a_client_defines_runs_at_once(server: TestServer) {
    let client = server.client();
    let made = client.put("/agents/post", mailer("Write.")).await.ok();
    assert_eq!(&made["source"], &json!("http"));
    assert_eq!(&made["file"], &Value::Null);
    assert_eq!(&made["version"], &json!(1));
    assert_eq!(&made["usable"], &json!(true));
    assert_eq!(&made["problems"], &json!([]));
    assert_eq!(made["definition"]["system_prompt"], "Write.");
    assert_eq!(client.get("/agents/post").await.ok(), made);

    let assistant = &assistants(&client, "post").await[0];
    assert_eq!(&assistant["assistant_id"], &made["assistant_id"]);
    assert_eq!(&assistant["name"], &json!("post"));
    assert_eq!(assistant["description"], "Sends mail.");
    let thread = asks_to_mail(&client, "post").await;
    assert_eq!(allows(&client, "post", &thread).await, "sent");
    assert_eq!(
        client
            .get(&format!("/assistants/{}", made["assistant_id"].as_str().unwrap()))
            .await
            .ok(),
        *assistant
    );
}

async fn a_definition_has_a_new_version_for_each_change(server: TestServer) {
    let client = server.client();
    let first = client.put("/agents/post", mailer("One.")).await.ok();
    assert_eq!(
        client.put("/agents/post", mailer("One.")).await.ok(),
        first,
        "nothing has changed"
    );
    let renamed = json!({"name": "courier", "model": "scripted:lab"});
    assert_eq!(client.put("/agents/post", renamed).await.ok()["version"], 2);
    assert_eq!(assistants(&client, "post").await[0]["name"], "courier");

    let versions = client.get("/agents/post/versions").await;
    assert_eq!(versions.header("x-pagination-total"), Some("2"));
    let numbers: Vec<i64> = versions
        .ok()
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["version"].as_i64().unwrap())
        .collect();
    assert_eq!(numbers, [2, 1]);
    assert_eq!(
        client.get("/agents/post/versions?limit=1&offset=1").await.ok()[0]["digest"],
        first["digest"]
    );
    assert_eq!(
        client.get("/agents/post?version=1").await.ok()["definition"],
        first["definition"]
    );
    assert_eq!(
        client.get("/agents/post?version=3").await.refused(404),
        "Version 3 not found for agent 'post'"
    );
    assert_eq!(
        client.get("/agents/nobody/versions").await.refused(404),
        "Agent 'nobody' not found"
    );
}

async fn an_interrupted_run_keeps_its_definition(server: TestServer) {
    let client = server.client();
    client.put("/agents/post", mailer("Write.")).await.ok();
    let one = asks_to_mail(&client, "post").await;
    let two = asks_to_mail(&client, "post").await;
    let state = client.get(&format!("/threads/{one}/state")).await.ok();
    client.put("/agents/post", mute()).await.ok();

    assert_eq!(client.get(&format!("/threads/{one}/state")).await.ok(), state);
    assert_eq!(allows(&client, "post", &one).await, "sent");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    fails_to_mail(&client, "post").await;
    server.is_stopped_and_started_again().await;
    assert_eq!(allows(&client, "post", &two).await, "sent");
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
    fails_to_mail(&client, "post").await;

    // A new message uses the new definition, on the old thread, too.
    let plan = script().calls(mail("c2", "a@b.c")).says("not sent").to_string();
    let run = json!({"assistant_id": "post", "input": {"messages": [{"role": "user", "content": plan}]}});
    let values = client.post(&format!("/threads/{two}/runs/wait"), run).await.ok();
    assert_eq!(
        values["messages"].as_array().unwrap().last().unwrap()["content"],
        "not sent"
    );
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
}

async fn a_definition_survives_a_restart_and_goes_when_it_is_removed(server: TestServer) {
    let client = server.client();
    let made = client.put("/agents/post", mailer("Write.")).await.ok();
    let named = client
        .post("/assistants", json!({"graph_id": "post", "name": "mine"}))
        .await
        .ok();
    server.is_stopped_and_started_again().await;
    assert_eq!(client.get("/agents/post").await.ok(), made);

    let automatic = format!("/assistants/{}", made["assistant_id"].as_str().unwrap());
    client.delete(&automatic).await.refused(409);
    client.delete("/agents/post").await.ok();
    assert_eq!(client.get("/agents/post").await.refused(404), "Agent 'post' not found");
    assert_eq!(
        client.delete("/agents/post").await.refused(404),
        "Agent 'post' not found"
    );
    assert_eq!(client.get(&automatic).await.refused(404), "Not Found");
    let left = assistants(&client, "post").await;
    assert_eq!(left.iter().map(|one| &one["name"]).collect::<Vec<_>>(), ["mine"]);
    let run = json!({"assistant_id": named["assistant_id"], "input": {}});
    client
        .post(&format!("/threads/{}/runs", client.thread().await), run)
        .await
        .refused(404);
    server.is_stopped_and_started_again().await;
    assert_eq!(client.get("/agents/post").await.refused(404), "Agent 'post' not found");
}

async fn an_invalid_definition_is_refused_with_every_reason(server: TestServer) {
    let client = server.client();
    let wrong = json!({"model": "laab:x", "tools": ["lokup"], "subagents": [{"name": "a", "description": ""}], "x": 1});
    let refusal = client.put("/agents/post", wrong.clone()).await;
    assert_eq!(refusal.status, 422);
    assert_eq!(&refusal.body["code"], &json!("invalid_definition"));
    let fields = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|one| one["field"].as_str().unwrap().to_owned())
            .collect()
    };
    let expected = ["model", "subagents[0].description", "tools[0]", "x"];
    assert_eq!(fields(&refusal.body["findings"]), expected);
    assert!(
        refusal.body["detail"]
            .as_str()
            .unwrap()
            .contains("tools[0]: there is no tool `lokup`; did you mean `lookup`?")
    );
    assert_eq!(client.get("/agents/post").await.status, 404, "nothing is stored");

    let verdict = client.post("/agents/validate", json!({"definition": wrong})).await.ok();
    assert_eq!(&verdict["valid"], &json!(false));
    assert_eq!(fields(&verdict["findings"]), expected.map(str::to_owned).to_vec());
    let good = client
        .post(
            "/agents/validate",
            json!({"graph_id": "post", "definition": mailer("Write.")}),
        )
        .await
        .ok();
    assert_eq!(good, json!({"valid": true, "findings": []}));
    client.put("/agents/no%20word", mailer("Write.")).await.refused(422);
    let large = json!({"model": "scripted:lab", "system_prompt": "x".repeat(300_000)});
    assert!(
        client
            .put("/agents/post", large)
            .await
            .refused(422)
            .contains("bytes of JSON")
    );
}

async fn every_field_of_a_definition_is_accepted_or_refused_by_name(server: TestServer) {
    let client = server.client();
    let good = json!({"name": "a", "description": "Does this and all of that.", "system_prompt": "Do."});
    let with = |key: &str, value: Value| {
        let mut body = json!({"model": "scripted:lab"});
        body[key] = value;
        body
    };
    let subagent = |key: &str, value: Value| {
        let mut one = good.clone();
        one[key] = value;
        with("subagents", json!([one]))
    };
    let heap: serde_json::Map<String, Value> = (0..20_000).map(|at| (format!("k{at}"), json!(1))).collect();
    let cases = [
        (
            json!({"model": "scripted:a\u{0}"}),
            "model: contains the character U+0000",
        ),
        (with("name", json!("a\u{0}")), "name: contains the character U+0000"),
        (with("name", json!("a\nb")), "name: \"a\\nb\" must be one line"),
        (with("limits", json!([1])), "limits: must be an object, not a list"),
        (
            with("general_purpose_subagent", json!([true])),
            "general_purpose_subagent: must be an object, not a list",
        ),
        (
            with("subagents", json!([[]])),
            "subagents[0]: must be an object, not a list",
        ),
        (
            with("subagents", json!([null, 1])),
            "subagents[0]: must be an object, not null",
        ),
        (
            with("task_description", json!(" ")),
            "task_description: must not be blank",
        ),
        (
            with("middleware", json!([{"x": 1}])),
            "middleware[0]: must have a `name`",
        ),
        (
            with("response_format", json!("Finding")),
            "response_format: must be a JSON Schema of an object",
        ),
        (
            with("excluded_tools", json!(["nope"])),
            "excluded_tools[0]: the agent has no tool `nope`",
        ),
        (
            with("tool_description_overrides", json!({"ls": ""})),
            "tool_description_overrides.ls: must be given",
        ),
        (
            subagent("name", json!(" a")),
            "subagents[0].name: \" a\" must be one line",
        ),
        (
            subagent("name", json!("n".repeat(129))),
            "subagents[0].name: must have at most 128 characters",
        ),
        (
            subagent("mode", json!(3)),
            "subagents[0].mode: must be a string, not a whole number",
        ),
        (
            subagent("description", json!("x\u{0}")),
            "subagents[0].description: contains the character U+0000",
        ),
        (
            subagent("inherit", json!({"tools": 1})),
            "subagents[0].inherit.tools: must be true or false",
        ),
        (
            subagent("response_format", json!({"schema": 3, "strategy": "tool"})),
            "subagents[0].response_format.schema",
        ),
        (Value::Object(heap), "more may be wrong than these 100 things"),
    ];
    for (body, expected) in cases {
        let told = client.put("/agents/post", body.clone()).await.refused(422);
        assert!(told.contains(expected), "{expected}: {told}");
        let verdict = client.post("/agents/validate", json!({"definition": body})).await.ok();
        assert_eq!(verdict["valid"], false);
    }
    for name in ["..", ".a", "search", "a%00b", "a%2Fb"] {
        let told = client
            .put(&format!("/agents/{name}"), json!({"model": "scripted:lab"}))
            .await;
        assert!(matches!(told.status, 404 | 405 | 422), "{name}: {told:?}");
    }
    assert_eq!(
        client.post("/agents/search", json!({"source": "http"})).await.ok(),
        json!([]),
        "nothing is stored"
    );
}

async fn a_definition_of_a_file_cannot_be_changed_over_http(server: TestServer) {
    let client = server.client();
    let shown = client.get("/agents/agent").await.ok();
    assert_eq!(&shown["source"], &json!("file"));
    assert_eq!(&shown["usable"], &json!(true));
    assert!(shown["file"].as_str().unwrap().ends_with("adjutant.toml"), "{shown:#}");
    let refusal = client.put("/agents/agent", mute()).await;
    assert_eq!(refusal.body["code"], "agent_in_file");
    assert!(refusal.refused(409).contains("adjutant.toml; change it there"));
    assert!(
        client
            .delete("/agents/agent")
            .await
            .refused(409)
            .contains("adjutant.toml")
    );
}

async fn agents_are_found_by_their_attributes(server: TestServer) {
    let client = server.client();
    client.put("/agents/post", mailer("Write.")).await.ok();
    let ids = async |wanted: Value| -> Vec<String> {
        let found = client.post("/agents/search", wanted).await.ok();
        found
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["graph_id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(json!({"source": "http"})).await, ["post"]);
    assert_eq!(ids(json!({"graph_id": "agent"})).await, ["agent"]);
    assert_eq!(ids(json!({"name": "MAIN-AG"})).await, ["agent"]);
    assert_eq!(ids(json!({"usable": false})).await, Vec::<String>::new());
    let page = client
        .post("/agents/search", json!({"limit": 1, "select": ["graph_id"]}))
        .await;
    assert_eq!(page.header("x-pagination-next"), Some("1"));
    assert_eq!(page.ok(), json!([{"graph_id": "agent"}]));
    client
        .post("/agents/search", json!({"select": ["nope"]}))
        .await
        .refused(422);
}

async fn a_changed_file_is_reloaded_while_runs_continue(server: TestServer) {
    server.watches_its_files().await;
    let client = server.client();
    let folder = "agents/letters/AGENTS.md";
    server.file_is_written(
        folder,
        "---\nmodel: scripted:lab\ntools: [send_email]\ninterrupt_on: {send_email: true}\n---\nWrite.",
    );
    eventually(async || client.get("/agents/letters").await.status == 200).await;
    assert!(
        client.get("/agents/letters").await.ok()["file"]
            .as_str()
            .unwrap()
            .ends_with("agents/letters")
    );
    assert_eq!(assistants(&client, "letters").await.len(), 1);
    let thread = asks_to_mail(&client, "letters").await;

    server.file_is_written(folder, "---\nmodel: scripted:lab\n---\nBe silent.");
    eventually(async || client.get("/agents/letters").await.body["version"] == 2).await;
    fails_to_mail(&client, "letters").await;
    assert_eq!(allows(&client, "letters", &thread).await, "sent");
}

async fn an_invalid_file_keeps_the_previous_definition(server: TestServer) {
    server.watches_its_files().await;
    let client = server.client();
    let folder = "agents/letters/AGENTS.md";
    server.file_is_written(folder, "---\nmodel: scripted:lab\n---\nWrite.");
    eventually(async || client.get("/agents/letters").await.status == 200).await;
    let before = client.get("/agents/letters").await.ok();

    server.file_is_written(folder, "---\nmodel: scripted:lab\ntools: [nope]\n---\nWrite more.");
    let problems = async || client.get("/agents/letters").await.ok()["problems"].clone();
    eventually(async || problems().await != json!([])).await;
    let problem = problems().await[0].clone();
    assert_eq!(&problem["severity"], &json!("error"));
    assert_eq!(&problem["field"], &json!("tools[0]"));
    assert_eq!(&problem["line"], &json!(3));
    assert!(problem["file"].as_str().unwrap().ends_with(folder), "{problem:#}");
    let after = client.get("/agents/letters").await.ok();
    assert_eq!(&after["digest"], &before["digest"]);
    assert_eq!(&after["usable"], &json!(true));
    assert_eq!(
        client.get("/agents/agent").await.ok()["problems"],
        json!([]),
        "the others are as they should be"
    );

    server.file_is_written(folder, "---\nmodel: scripted:lab\n---\nWrite less.");
    eventually(async || client.get("/agents/letters").await.body["version"] == 2).await;
    assert_eq!(problems().await, json!([]));
    // A file that cannot be read at all is an error of all agents.
    server.configuration_changes("[runtime]", "[runtime");
    eventually(async || client.get("/agents/agent").await.ok()["problems"] != json!([])).await;
    server.configuration_changes("[runtime", "[runtime]");
    eventually(async || client.get("/agents/agent").await.ok()["problems"] == json!([])).await;
}

async fn a_file_precedes_a_client_that_took_the_name_before(server: TestServer) {
    server.watches_its_files().await;
    let client = server.client();
    client.put("/agents/letters", mailer("Write.")).await.ok();
    server.file_is_written("agents/letters/AGENTS.md", "---\nmodel: scripted:lab\n---\nBe silent.");
    eventually(async || client.get("/agents/letters").await.ok()["source"] == "file").await;
    let shown = client.get("/agents/letters").await.ok();
    assert!(
        shown["problems"][0]["message"]
            .as_str()
            .unwrap()
            .contains("the file precedes"),
        "{shown:#}"
    );
    fails_to_mail(&client, "letters").await;
    client.put("/agents/letters", mailer("Write.")).await.refused(409);
}

async fn an_agent_without_its_tool_does_not_run(server: TestServer) {
    let client = server.client();
    server
        .is_configured_with("[tools.extra]\nkind = \"builtin\"\nbuiltin = \"lookup\"\n")
        .await;
    client
        .put("/agents/post", json!({"model": "scripted:lab", "tools": ["extra"]}))
        .await
        .ok();
    server.configuration_changes("[tools.extra]", "[tools.other]");
    server.is_stopped_and_started_again().await;
    let shown = client.get("/agents/post").await.ok();
    assert_eq!(&shown["usable"], &json!(false));
    assert_eq!(&shown["problems"][0]["field"], &json!("tools[0]"));
    let run = json!({"assistant_id": "post", "input": {}});
    client
        .post(&format!("/threads/{}/runs", client.thread().await), run)
        .await
        .refused(422);
    client.put("/agents/post", mute()).await.ok();
    fails_to_mail(&client, "post").await;
}

async fn servers_on_one_database_have_the_same_agents(server: TestServer) {
    let client = server.client();
    let twin = server.starts_twin().await;
    client.put("/agents/post", mailer("Write.")).await.ok();
    eventually(async || twin.client.get("/agents/post").await.status == 200).await;
    let thread = asks_to_mail(&twin.client, "post").await;

    twin.client.put("/agents/post", mute()).await.ok();
    client.put("/agents/other", mute()).await.ok();
    eventually(async || client.get("/agents/post").await.body["version"] == 2).await;
    fails_to_mail(&client, "post").await;
    assert_eq!(allows(&client, "post", &thread).await, "sent");
    eventually(async || twin.client.get("/agents/other").await.status == 200).await;
    client.delete("/agents/post").await.ok();
    eventually(async || twin.client.get("/agents/post").await.status == 404).await;
    twin.stops().await;
}
