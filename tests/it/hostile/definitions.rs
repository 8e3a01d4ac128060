//! Agent definitions of clients.

use futures::future::join_all;
use serde_json::{Value, json};

use super::strategies::had_no_deadlock;
use crate::support::client::{Client, Reply};
use crate::support::{Engine, TestServer, eventually, on_both_engines, script};

/// Returns the fields of the errors of a definition, which validation and creation report alike.
async fn wrong_fields(server: &TestServer, definition: &Value) -> Vec<String> {
    let client = server.client();
    let body = json!({"graph_id": "odd", "definition": definition});
    let verdict = client.post("/agents/validate", body).await.ok();
    let refusal = client.put("/agents/odd", definition.clone()).await;
    assert_eq!(verdict["valid"].as_bool(), Some(false), "{verdict} {refusal:?}");
    assert_eq!(refusal.status, 422, "{verdict} {refusal:?}");
    let fields = |findings: &Value| -> Vec<String> {
        let errors = findings
            .as_array()
            .expect("a list")
            .iter()
            .filter(|finding| finding["severity"] == "error");
        errors
            .map(|finding| finding["field"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(fields(&verdict["findings"]), fields(&refusal.body["findings"]));
    fields(&refusal.body["findings"])
}

/// Restarts the server with this section `[agents_api]`.
async fn allows(server: &TestServer, section: &str) {
    let old = "[agents_api]\nenabled = true\ntools = [\"*\"]\nmodels = [\"*\"]\nagents = [\"*\"]";
    server.configuration_changes(old, section);
    server.is_stopped_and_started_again().await;
}

fn mailer() -> Value {
    json!({"model": "scripted:lab", "tools": ["send_email"], "system_prompt": "You write."})
}

on_both_engines! {
    clients_define_no_agents_unless_the_configuration_says_so,
    definitions_of_clients_use_only_what_is_allowed,
    validation_refuses_forbidden_webhooks,
    validation_refuses_agents_at_private_addresses,
    headers_come_from_the_configuration_and_never_from_clients,
    the_settings_of_a_model_cannot_replace_the_request,
    clients_that_define_and_delete_the_same_agents_at_once_are_served_and_lose_nothing,
}

/// The number of times that all clients change the agents.
const ROUNDS: usize = 12;

/// A client that changes one of the agents that others change at the same time.
async fn change(client: Client, round: usize, number: usize) -> Reply {
    let path = format!("/agents/shared-{}", number % 3);
    if !number.is_multiple_of(2) {
        return client.delete(&path).await;
    }
    // Agents share contents, and each has several of them.
    let prompt = format!("You are number {}.", (round + number / 3) % 4);
    client
        .put(&path, json!({"model": "scripted:lab", "system_prompt": prompt}))
        .await
}

async fn clients_that_define_and_delete_the_same_agents_at_once_are_served_and_lose_nothing(server: TestServer) {
    let here = server.client();
    let twin = match server.engine {
        Engine::Postgres => Some(server.starts_twin().await),
        Engine::Sqlite => None,
    };
    let there = twin.as_ref().map_or_else(|| here.clone(), |twin| twin.client.clone());
    for round in 0..ROUNDS {
        let changes = (0..24).map(|number| {
            let client = if number < 12 { &here } else { &there };
            change(client.clone(), round, number)
        });
        let defines = [(&here, "here"), (&there, "there")].map(|(client, place)| {
            let path = format!("/agents/kept-{place}-{round}");
            let body = json!({"model": "scripted:lab", "system_prompt": format!("You are number {}.", round % 4)});
            async move { client.put(&path, body).await.ok() }
        });
        let (changed, _) = tokio::join!(join_all(changes), join_all(defines));
        for reply in changed {
            // Another client may have deleted it.
            assert!([200, 204, 404].contains(&reply.status), "{reply:?}");
        }
    }
    for client in [&here, &there] {
        for place in ["here", "there"] {
            for round in 0..ROUNDS {
                let path = format!("/agents/kept-{place}-{round}");
                eventually(async || client.get(&path).await.status == 200).await;
                let prompt = format!("You are number {}.", round % 4);
                assert_eq!(client.get(&path).await.ok()["definition"]["system_prompt"], prompt);
            }
        }
    }
    if let Some(twin) = twin {
        twin.stops().await;
        had_no_deadlock(&server).await;
    }
}

async fn clients_define_no_agents_unless_the_configuration_says_so(server: TestServer) {
    let client = server.client();
    client.put("/agents/mine", mailer()).await.ok();
    allows(&server, "").await;
    let refusal = client.put("/agents/other", mailer()).await;
    assert_eq!(refusal.status, 403);
    assert_eq!(&refusal.body["code"], &json!("agents_api_disabled"));
    assert!(
        refusal.body["detail"]
            .as_str()
            .is_some_and(|text| text.contains("[agents_api]")),
        "{refusal:?}"
    );
    assert_eq!(client.delete("/agents/mine").await.status, 403);
    let verdict = client
        .post("/agents/validate", json!({"definition": mailer()}))
        .await
        .ok();
    assert_eq!(verdict["valid"], false);
    // An earlier definition is there and cannot run.
    assert_eq!(client.get("/agents/mine").await.ok()["usable"], false);
    let body = json!({"assistant_id": "mine", "input": {"messages": [{"role": "user", "content": "hello"}]}});
    assert!(client.post("/runs", body).await.status >= 400);
    assert_eq!(
        server.human("agent").await.says("hello").await["messages"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

async fn definitions_of_clients_use_only_what_is_allowed(server: TestServer) {
    allows(
        &server,
        "[agents_api]\nenabled = true\ntools = [\"lookup\"]\nmodels = [\"scripted:lab\"]",
    )
    .await;
    let subagent = |more: Value| {
        let mut all = json!({"name": "helper", "description": "Helps with this and that."});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let with = |more: Value| {
        let mut all = json!({"model": "scripted:lab"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let cases = [
        (mailer(), "tools[0]"),
        (json!({"model": "fake_openai:m-1"}), "model"),
        (
            with(json!({"default_tools": ["send_email"]})),
            "general_purpose_subagent.tools[0]",
        ),
        (
            with(json!({"default_model": "scripted:other"})),
            "general_purpose_subagent.model",
        ),
        (
            with(json!({"general_purpose_subagent": {"tools": ["send_email"]}})),
            "general_purpose_subagent.tools[0]",
        ),
        (
            with(json!({"subagents": [subagent(json!({"tools": ["send_email"]}))]})),
            "subagents[0].tools[0]",
        ),
        (
            with(json!({"subagents": [subagent(json!({"model": "scripted:other"}))]})),
            "subagents[0].model",
        ),
        (
            with(json!({"subagents": [subagent(json!({"graph_id": "agent"}))]})),
            "subagents[0].graph_id",
        ),
        (
            with(json!({"skills": ["/s"], "skill_tools": ["send_email"]})),
            "skill_tools[0]",
        ),
    ];
    for (definition, field) in cases {
        assert_eq!(wrong_fields(&server, &definition).await, [field], "{definition}");
    }
    let client = server.client();
    client
        .put("/agents/good", with(json!({"tools": ["lookup"]})))
        .await
        .ok();
    let alice = server.human("good").await;
    alice
        .says(
            script()
                .calls(json!({"id": "c1", "name": "lookup", "args": {"query": "x"}}))
                .says("done"),
        )
        .await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
}

async fn validation_refuses_forbidden_webhooks(server: TestServer) {
    let subagent = json!({"name": "far", "description": "Works in the background.", "graph_id": "agent",
            "webhook": "http://169.254.169.254/latest"});
    let definition = json!({"model": "scripted:lab", "subagents": [subagent]});
    assert_eq!(wrong_fields(&server, &definition).await, ["subagents[0].webhook"]);
}

async fn validation_refuses_agents_at_private_addresses(server: TestServer) {
    for url in [
        "http://169.254.169.254/latest",
        "http://127.0.0.1:9/",
        "http://localhost/",
        "http://[::1]/",
        "http://10.0.0.1/",
    ] {
        let subagent =
            json!({"name": "far", "description": "Works on another server.", "graph_id": "agent", "url": url});
        let definition = json!({"model": "scripted:lab", "subagents": [subagent]});
        assert_eq!(wrong_fields(&server, &definition).await, ["subagents[0].url"], "{url}");
    }
}

async fn headers_come_from_the_configuration_and_never_from_clients(server: TestServer) {
    let remote = |headers: Value| {
        let subagent = json!({"name": "far", "description": "Works on another server.", "graph_id": "agent",
                "url": "https://agents.example.org", "headers": headers});
        json!({"model": "scripted:lab", "subagents": [subagent]})
    };
    assert_eq!(
        wrong_fields(&server, &remote(json!({"x-key": "hush"}))).await,
        ["subagents[0].headers"]
    );
    for name in [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "Proxy-Authorization",
    ] {
        let told = wrong_fields(&server, &remote(json!({name: "x"}))).await;
        assert!(told.iter().any(|field| field.contains(name)), "{name}: {told:?}");
    }
}

async fn the_settings_of_a_model_cannot_replace_the_request(server: TestServer) {
    for name in [
        "model",
        "messages",
        "tools",
        "stream",
        "tool_choice",
        "functions",
        "system",
        "contents",
        "n",
    ] {
        let definition = json!({"model": "fake_openai:m-1", "model_settings": {name: []}});
        assert_eq!(
            wrong_fields(&server, &definition).await,
            [format!("model_settings.{name}")]
        );
    }
    let subagent = json!({"name": "helper", "description": "Helps with this and that.",
            "model_settings": {"messages": []}});
    let definition = json!({"model": "fake_openai:m-1", "subagents": [subagent]});
    assert_eq!(
        wrong_fields(&server, &definition).await,
        ["subagents[0].model_settings.messages"]
    );
    let good = json!({"model": "fake_openai:m-1", "model_settings": {"temperature": 0.5, "max_tokens": 9}});
    server.client().put("/agents/good", good).await.ok();
}
