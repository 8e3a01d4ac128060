//! Assistants: named, versioned settings of agents.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::client::Client;
use crate::support::{TestServer, lookup, mail, on_both_engines, script};

/// The id of the default assistant of the definition `agent`.
const AUTOMATIC: &str = "fe096781-5601-53d2-b2f6-0d3403f7e9ca";

/// Returns an agent with a required context.
const STRICT: &str = r#"
[agents.strict]
model = "scripted:lab"
system_prompt = "You are strict."
tools = ["lookup"]

[agents.strict.context_schema]
type = "object"
required = ["who"]
properties = { who = { type = "string" } }
"#;

/// Creates an assistant and returns its path.
async fn assistant(client: &Client, body: Value) -> String {
    let made = client.post("/assistants", body).await.ok();
    format!("/assistants/{}", made["assistant_id"].as_str().unwrap())
}

fn id(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// Returns the contexts that the tool server received.
fn contexts(server: &TestServer) -> Vec<Value> {
    server
        .tools
        .calls_of("lookup")
        .iter()
        .map(|call| call["context"].clone())
        .collect()
}

fn texts(list: &Value, field: &str) -> Vec<String> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|item| item[field].as_str().unwrap().to_owned())
        .collect()
}

on_both_engines! {
    every_definition_has_an_assistant,
    an_existing_assistant_is_not_created_again,
    an_invalid_assistant_is_refused_by_field,
    every_change_is_a_version_that_can_be_restored,
    assistants_are_searched_by_name_metadata_and_definition,
    a_run_has_the_settings_of_its_assistant_and_its_own_win,
    a_context_has_to_fit_the_schema_of_the_agent,
    a_resumed_run_keeps_its_context,
    an_interrupt_of_a_deleted_assistant_cannot_be_answered,
    the_recursion_limit_of_an_assistant_holds,
    a_run_keeps_the_version_that_it_was_started_with,
    the_assistant_of_a_definition_can_be_changed_but_not_deleted,
    an_assistant_is_deleted_with_its_versions,
    threads_can_be_deleted_with_their_assistant,
    assistants_survive_a_restart_and_the_removal_of_their_definition,
    the_graph_shows_the_loop_and_the_hooks_around_it,
    xray_shows_the_subagents_level_by_level,
    schemas_describe_input_state_and_output,
    subgraphs_are_the_subagents_by_name,
}

async fn every_definition_has_an_assistant(server: TestServer) {
    let client = server.client();
    let shown = client.get(&format!("/assistants/{AUTOMATIC}")).await.ok();
    assert_eq!(&shown["graph_id"], &json!("agent"));
    assert_eq!(&shown["name"], &json!("main-agent"));
    assert_eq!(&shown["version"], &json!(1));
    assert_eq!(shown["metadata"], json!({"created_by": "system"}));
    assert_eq!(shown["description"], "The main agent of the tests.");
    let search = json!({"graph_id": "agent", "metadata": {"created_by": "system"}});
    assert_eq!(
        client.post("/assistants/search", search.clone()).await.ok(),
        json!([shown])
    );
    assert_eq!(client.post("/assistants/count", search).await.ok(), 1);
    assert_eq!(
        client.get("/assistants/agent").await.refused(422),
        "Invalid assistant ID: must be a UUID"
    );
    assert_eq!(
        client
            .get(&format!("/assistants/{}", Uuid::new_v4()))
            .await
            .refused(404),
        "Not Found"
    );
}

async fn an_existing_assistant_is_not_created_again(server: TestServer) {
    let client = server.client();
    let id = Uuid::new_v4();
    let run_body = json!({"graph_id": "agent", "assistant_id": id, "name": "first", "metadata": {"tag": "t"},
            "config": {"tags": ["x"], "recursion_limit": 50}, "context": {"who": "me"}, "description": "d"});
    let made = client.post("/assistants", run_body.clone()).await.ok();
    assert_eq!(
        made["config"],
        json!({"tags": ["x"], "recursion_limit": 50, "configurable": {"who": "me"}})
    );
    assert_eq!(&made["context"], &json!({"who": "me"}));
    assert_eq!(&made["version"], &json!(1));
    let again = client.post("/assistants", run_body).await;
    assert_eq!(again.refused(409), format!("Assistant {id} already exists"));
    let or_that = json!({"graph_id": "agent", "assistant_id": id, "if_exists": "do_nothing", "name": "ignored"});
    assert_eq!(client.post("/assistants", or_that).await.ok(), made);
    let minimal = client.post("/assistants", json!({"graph_id": "plain"})).await.ok();
    assert_eq!(&minimal["name"], &json!("Untitled"));
    assert_eq!(&minimal["config"], &json!({}));
    assert_eq!(&minimal["description"], &Value::Null);
}

async fn an_invalid_assistant_is_refused_by_field(server: TestServer) {
    let client = server.client();
    let refusals = [
        (json!({"graph_id": "nosuch"}), 404, "Graph 'nosuch' not found"),
        (json!({}), 422, "body: `graph_id` must be given"),
        (
            json!({"graph_id": "agent", "assistant_id": "nope"}),
            422,
            "Invalid assistant ID: must be a UUID",
        ),
        (json!({"graph_id": "agent", "name": ""}), 422, "name: "),
        (json!({"graph_id": "agent", "name": "n".repeat(600)}), 422, "name: "),
        (
            json!({"graph_id": "agent", "config": {"recursion_limit": 0}}),
            422,
            "config.recursion_limit: ",
        ),
        (
            json!({"graph_id": "agent", "context": {"x": "y".repeat(200_000)}}),
            422,
            "context: ",
        ),
        (
            json!({"graph_id": "agent", "config": {"configurable": {"a": 1}}, "context": {"b": 1}}),
            400,
            "Cannot specify both",
        ),
    ];
    for (body, status, text) in refusals {
        let said = client.post("/assistants", body.clone()).await.refused(status);
        assert!(said.starts_with(text), "{text} was not said, but {said}");
    }
    let all = client.post("/assistants/count", json!({})).await.ok();
    let automatic = json!({"metadata": {"created_by": "system"}});
    assert_eq!(
        all,
        client.post("/assistants/count", automatic).await.ok(),
        "nothing was stored"
    );
}

async fn every_change_is_a_version_that_can_be_restored(server: TestServer) {
    let client = server.client();
    let path = assistant(
        &client,
        json!({"graph_id": "agent", "name": "first", "metadata": {"tag": "t"},
            "config": {"tags": ["x"]}, "context": {"who": "me"}}),
    )
    .await;
    let patch = json!({"name": "second", "metadata": {"more": 1}, "config": {"recursion_limit": 60}});
    let second = client.patch(&path, patch).await.ok();
    assert_eq!(&second["version"], &json!(2));
    assert_eq!(&second["config"], &json!({"recursion_limit": 60}));
    assert_eq!(&second["context"], &json!({"who": "me"}));
    assert_eq!(&second["metadata"], &json!({"tag": "t", "more": 1}));

    let versions = client.post(&format!("{path}/versions"), json!({})).await.ok();
    assert_eq!(texts(&versions, "name"), ["second", "first"]);
    assert!(versions[0].get("updated_at").is_none());
    let paged = json!({"limit": 1, "offset": 1, "metadata": {"tag": "t"}});
    assert_eq!(
        texts(&client.post(&format!("{path}/versions"), paged).await.ok(), "name"),
        ["first"]
    );

    let back = client.post(&format!("{path}/latest"), json!({"version": 1})).await.ok();
    assert_eq!(&back["name"], &json!("first"));
    assert_eq!(&back["version"], &json!(1));
    assert_eq!(&back["metadata"], &json!({"tag": "t"}));
    assert_ne!(back["updated_at"], second["updated_at"]);
    let third = client.patch(&path, json!({"description": "third"})).await.ok();
    assert_eq!(&third["version"], &json!(3));
    assert_eq!(&third["name"], &json!("first"));
    let unknown = client.post(&format!("{path}/latest"), json!({"version": 77})).await;
    assert_eq!(
        unknown.refused(404),
        format!("Version 77 not found for assistant {}", id(&path))
    );
    assert!(
        client
            .patch(&path, json!({"graph_id": "nosuch"}))
            .await
            .refused(404)
            .starts_with("Graph 'nosuch'")
    );
    assert_eq!(client.get(&path).await.ok(), third);
    let nobody = format!("/assistants/{}", Uuid::new_v4());
    assert_eq!(client.patch(&nobody, json!({"name": "x"})).await.status, 404);
    assert_eq!(client.post(&format!("{nobody}/versions"), json!({})).await.status, 404);
    assert_eq!(
        client
            .post(&format!("{nobody}/latest"), json!({"version": 1}))
            .await
            .status,
        404
    );
}

async fn assistants_are_searched_by_name_metadata_and_definition(server: TestServer) {
    let client = server.client();
    for (name, graph) in [("first", "agent"), ("Untitled", "plain"), ("Second", "agent")] {
        assistant(
            &client,
            json!({"graph_id": graph, "name": name, "metadata": {"tag": "t"}}),
        )
        .await;
    }
    let found = async |body: Value| {
        let mut body = body;
        body["metadata"] = json!({"tag": "t"});
        client.post("/assistants/search", body).await
    };
    let page = found(json!({"limit": 2})).await;
    assert_eq!(page.header("x-pagination-total"), Some("3"));
    assert_eq!(page.header("x-pagination-next"), Some("2"));
    assert_eq!(texts(&page.ok(), "name"), ["Second", "Untitled"]);
    let rest = found(json!({"limit": 2, "offset": 2})).await;
    assert_eq!(rest.header("x-pagination-next"), None);
    assert_eq!(texts(&rest.ok(), "name"), ["first"]);
    let sorted = found(json!({"sort_by": "name", "sort_order": "asc", "select": ["name", "graph_id"]}))
        .await
        .ok();
    assert_eq!(
        sorted,
        json!([{"graph_id": "agent", "name": "first"}, {"graph_id": "agent", "name": "Second"},
            {"graph_id": "plain", "name": "Untitled"}])
    );
    assert_eq!(texts(&found(json!({"name": "FIR"})).await.ok(), "name"), ["first"]);
    assert_eq!(
        texts(&found(json!({"graph_id": "plain"})).await.ok(), "name"),
        ["Untitled"]
    );
    for wrong in [
        json!({"limit": 0}),
        json!({"limit": 5000}),
        json!({"select": ["bogus"]}),
        json!({"sort_by": "age"}),
    ] {
        assert_eq!(found(wrong.clone()).await.status, 422, "{wrong}");
    }
}

async fn a_run_has_the_settings_of_its_assistant_and_its_own_win(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = assistant(
        &client,
        json!({"graph_id": "agent", "metadata": {"team": "blue", "owner": "us"},
            "config": {"recursion_limit": 77}, "context": {"who": "assistant", "where": "here"}}),
    )
    .await;
    let text = script().calls(lookup("c1", "x")).says("done");
    let more = json!({"assistant_id": id(&path), "context": {"who": "run"}, "metadata": {"owner": "me"}});
    let run = client
        .post(&alice.path("/runs"), alice.run_body(&text, more))
        .await
        .ok();
    alice.run(&run).finishes().await;
    assert_eq!(contexts(&server), [json!({"who": "run", "where": "here"})]);
    assert_eq!(&run["assistant_id"], &json!(id(&path)));
    assert_eq!(&run["assistant_version"], &json!(1));
    let metadata = json!({"team": "blue", "owner": "me", "graph_id": "agent", "assistant_id": id(&path)});
    assert_eq!(run["metadata"], metadata);
    let config = &run["kwargs"]["config"];
    assert_eq!(&config["recursion_limit"], &json!(77));
    assert_eq!(&config["configurable"]["where"], &json!("here"));
    assert_eq!(run["kwargs"]["context"], json!({"who": "run", "where": "here"}));
    let thread = alice.record().await;
    assert_eq!(&thread["metadata"]["assistant_id"], &json!(id(&path)));
    assert_eq!(&thread["metadata"]["graph_id"], &json!("agent"));
    assert_eq!(thread["config"]["recursion_limit"], 77);
    assert_eq!(alice.state().await["metadata"]["team"], "blue");
}

async fn a_context_has_to_fit_the_schema_of_the_agent(server: TestServer) {
    server.is_configured_with(STRICT).await;
    let client = server.client();
    let alice = server.human("strict").await;
    let refused = async |more: Value| {
        client
            .post(&alice.path("/runs"), alice.run_body("hello", more))
            .await
            .refused(422)
    };
    assert!(
        refused(json!({"context": {"who": 7}}))
            .await
            .starts_with("context.who: ")
    );
    assert!(refused(json!({})).await.starts_with("context: "));
    assert!(alice.runs().await.is_empty());
    let path = assistant(&client, json!({"graph_id": "strict", "context": {"who": "me"}})).await;
    let text = script().calls(lookup("c1", "x")).says("done");
    let more = json!({"assistant_id": id(&path), "context": {"more": 1}});
    client
        .post(&alice.path("/runs/wait"), alice.run_body(&text, more))
        .await
        .ok();
    assert_eq!(contexts(&server), [json!({"who": "me", "more": 1})]);
    let schemas = client.get("/assistants/strict/schemas").await.ok();
    assert_eq!(schemas["context_schema"]["required"], json!(["who"]));
    assert_eq!(schemas["config_schema"], schemas["context_schema"]);
}

async fn a_resumed_run_keeps_its_context(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let path = assistant(&client, json!({"graph_id": "agent", "context": {"where": "here"}})).await;
    let more = json!({"assistant_id": id(&path), "context": {"who": "me"}});
    for (human, call) in [(&alice, "m1"), (&bob, "m2")] {
        let run_body = human.run_body(script().calls(mail(call, "x")).says("sent"), more.clone());
        client.post(&human.path("/runs/wait"), run_body).await.ok();
    }
    let resumed = json!({"assistant_id": id(&path), "command": {"resume": {"decisions": [{"type": "approve"}]}}});
    client.post(&alice.path("/runs/wait"), resumed).await.ok();
    let answer = json!({"decisions": [{"type": "approve"}]});
    let resolved = bob.resolves(&bob.question().await, answer).await.ok();
    bob.run_of_id(resolved["run_id"].as_str().unwrap()).finishes().await;
    let told: Vec<Value> = server
        .tools
        .calls_of("send_email")
        .iter()
        .map(|call| call["context"].clone())
        .collect();
    assert_eq!(told, vec![json!({"where": "here", "who": "me"}); 2]);
}

async fn an_interrupt_of_a_deleted_assistant_cannot_be_answered(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = assistant(&client, json!({"graph_id": "agent"})).await;
    let run_body = alice.run_body(
        script().calls(mail("m1", "x")).says("sent"),
        json!({"assistant_id": id(&path)}),
    );
    client.post(&alice.path("/runs/wait"), run_body).await.ok();
    client.delete(&path).await.ok();
    let question = alice.question().await;
    let refused = alice
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await;
    assert!(
        refused
            .refused(409)
            .starts_with("The assistant of the interrupted run was deleted")
    );
    assert_eq!(alice.question().await, question);
    // The assistant that the agent has by itself may still be asked to go on.
    alice.approves(&question).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn the_recursion_limit_of_an_assistant_holds(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = assistant(&client, json!({"graph_id": "agent", "config": {"recursion_limit": 2}})).await;
    let text = script().calls(lookup("c1", "x")).calls(lookup("c2", "y")).says("done");
    let answer = client
        .post(
            &alice.path("/runs/wait"),
            alice.run_body(&text, json!({"assistant_id": id(&path)})),
        )
        .await
        .ok();
    assert_eq!(answer["__error__"]["error"], "GraphRecursionError");
}

async fn a_run_keeps_the_version_that_it_was_started_with(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = assistant(&client, json!({"graph_id": "agent", "context": {"n": 1}})).await;
    let more = json!({"assistant_id": id(&path)});
    let run_body = |call: &str| alice.run_body(script().calls(lookup(call, "x")).says("done"), more.clone());
    server.tools.hold("lookup");
    client.post(&alice.path("/runs"), run_body("c1")).await.ok();
    server.tools.called("lookup", 1).await;
    let waiting = client.post(&alice.path("/runs"), run_body("c2")).await.ok();
    client.patch(&path, json!({"context": {"n": 2}})).await.ok();
    let last = client.post(&alice.path("/runs"), run_body("c3")).await.ok();
    client.delete(&path).await.ok();
    server.tools.let_go("lookup");
    alice.run(&last).finishes().await;
    assert_eq!(contexts(&server), [json!({"n": 1}), json!({"n": 1}), json!({"n": 2})]);
    assert_eq!(&waiting["assistant_version"], &json!(1));
    assert_eq!(&last["assistant_version"], &json!(2));
    let runs = alice.runs().await;
    assert_eq!(runs.len(), 3);
    for run in runs {
        assert_eq!(&run["status"], &json!("success"));
        assert_eq!(&run["assistant_id"], &json!(id(&path)));
    }
    let refused = client.post(&alice.path("/runs"), run_body("c4")).await;
    assert_eq!(refused.refused(404), "Thread or assistant not found.");
}

async fn the_assistant_of_a_definition_can_be_changed_but_not_deleted(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = format!("/assistants/{AUTOMATIC}");
    let patched = client
        .patch(&path, json!({"context": {"who": "everyone"}, "name": "ours"}))
        .await
        .ok();
    assert_eq!(&patched["version"], &json!(2));
    assert_eq!(&patched["metadata"], &json!({"created_by": "system"}));
    alice.says(script().calls(lookup("c1", "x")).says("done")).await;
    assert_eq!(contexts(&server), [json!({"who": "everyone"})]);
    let refused = client.delete(&format!("{path}?delete_threads=true")).await;
    assert!(refused.refused(409).contains("'agent'"));
    assert_eq!(alice.status().await, "idle");
    server.is_stopped_and_started_again().await;
    assert_eq!(client.get(&path).await.ok(), patched);
}

async fn an_assistant_is_deleted_with_its_versions(server: TestServer) {
    let client = server.client();
    let path = assistant(&client, json!({"graph_id": "agent"})).await;
    client.patch(&path, json!({"name": "second"})).await.ok();
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(
        client.delete(&path).await.refused(404),
        format!("Assistant with ID {} not found", id(&path))
    );
    assert_eq!(client.get(&path).await.refused(404), "Not Found");
    let again = client
        .post("/assistants", json!({"graph_id": "agent", "assistant_id": id(&path)}))
        .await
        .ok();
    let versions = client.post(&format!("{path}/versions"), json!({})).await.ok();
    assert_eq!(&again["version"], &json!(1));
    assert_eq!(versions.as_array().unwrap().len(), 1);
}

async fn threads_can_be_deleted_with_their_assistant(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let path = assistant(&client, json!({"graph_id": "agent"})).await;
    let more = json!({"assistant_id": id(&path)});
    server.tools.hold("lookup");
    client
        .post(&alice.path("/runs/wait"), alice.run_body("hello", more.clone()))
        .await
        .ok();
    let at_work = alice.run_body(script().calls(lookup("c1", "x")).says("done"), more);
    client.post(&alice.path("/runs"), at_work).await.ok();
    server.tools.called("lookup", 1).await;
    bob.says("hello").await;
    assert_eq!(client.delete(&format!("{path}?delete_threads=true")).await.status, 204);
    server.tools.let_go("lookup");
    assert_eq!(client.get(&alice.path("")).await.status, 404);
    assert_eq!(bob.status().await, "idle");
    assert_eq!(client.get(&path).await.status, 404);
    assert_eq!(client.delete(&format!("{path}?delete_threads=maybe")).await.status, 422);
}

async fn assistants_survive_a_restart_and_the_removal_of_their_definition(server: TestServer) {
    let client = server.client();
    let alice = server.human("plain").await;
    let path = assistant(&client, json!({"graph_id": "plain", "name": "kept"})).await;
    let automatic = client
        .post(
            "/assistants/search",
            json!({"graph_id": "plain", "name": "plain-agent"}),
        )
        .await
        .ok();
    let of_definition = format!("/assistants/{}", automatic[0]["assistant_id"].as_str().unwrap());
    server.is_stopped_and_started_again().await;
    assert_eq!(client.get(&path).await.ok()["name"], "kept");
    assert_eq!(client.get(&of_definition).await.ok(), automatic[0]);

    server.renames_agent("plain", "other").await;
    assert_eq!(client.get(&path).await.ok()["graph_id"], "plain");
    let more = json!({"assistant_id": id(&path)});
    let refused = client.post(&alice.path("/runs"), alice.run_body("hello", more)).await;
    assert_eq!(
        refused.refused(404),
        "Graph 'plain' not found: this server is not configured to run it"
    );
    assert_eq!(client.get(&format!("{path}/graph")).await.status, 404);
    assert_eq!(client.get(&format!("{path}/schemas")).await.status, 404);
    assert_eq!(client.delete(&of_definition).await.status, 204);
}

async fn the_graph_shows_the_loop_and_the_hooks_around_it(server: TestServer) {
    let client = server.client();
    let graph = client.get(&format!("/assistants/{AUTOMATIC}/graph")).await.ok();
    let nodes = texts(&graph["nodes"], "id");
    assert_eq!(
        nodes,
        [
            "__start__",
            "model",
            "tools",
            "PatchToolCallsMiddleware.before_agent",
            "HumanInTheLoopMiddleware.after_model",
            "__end__"
        ]
    );
    assert!(
        graph["nodes"][2]["metadata"]["__tools"]
            .as_array()
            .unwrap()
            .contains(&json!("send_email"))
    );
    let edges = graph["edges"].as_array().unwrap();
    for edge in [
        json!({"source": "__start__", "target": "PatchToolCallsMiddleware.before_agent"}),
        json!({"source": "PatchToolCallsMiddleware.before_agent", "target": "model"}),
        json!({"source": "model", "target": "HumanInTheLoopMiddleware.after_model"}),
        json!({"source": "HumanInTheLoopMiddleware.after_model", "target": "tools", "conditional": true}),
        json!({"source": "HumanInTheLoopMiddleware.after_model", "target": "model", "conditional": true}),
        json!({"source": "HumanInTheLoopMiddleware.after_model", "target": "__end__", "conditional": true}),
        json!({"source": "tools", "target": "model", "conditional": true}),
    ] {
        assert!(edges.contains(&edge), "{edge} is missing in {edges:#?}");
    }
    assert_eq!(edges.len(), 7);
    assert_eq!(client.get("/assistants/agent/graph").await.ok(), graph);
    assert_eq!(client.get("/assistants/agent/graph?xray=odd").await.status, 422);
    assert_eq!(client.get("/assistants/nosuch/graph").await.status, 422);
    assert_eq!(
        client
            .get(&format!("/assistants/{}/graph", Uuid::new_v4()))
            .await
            .status,
        404
    );
}

async fn xray_shows_the_subagents_level_by_level(server: TestServer) {
    let client = server.client();
    let drawn =
        async |agent: &str, xray: &str| client.get(&format!("/assistants/{agent}/graph?xray={xray}")).await.ok();
    let graph = drawn("agent", "true").await;
    let nodes = texts(&graph["nodes"], "id");
    assert!(nodes.contains(&"researcher:model".to_owned()));
    assert!(nodes.contains(&"general-purpose:tools".to_owned()));
    let inner = graph["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|node| node["id"] == "mailer:model")
        .unwrap();
    assert_eq!(&inner["data"]["name"], &json!("model"));
    assert_eq!(&inner["metadata"]["lc_agent_name"], &json!("mailer"));
    let edges = graph["edges"].as_array().unwrap();
    let enter =
        json!({"source": "tools", "target": "mailer:PatchToolCallsMiddleware.before_agent", "conditional": true});
    let leave =
        json!({"source": "mailer:HumanInTheLoopMiddleware.after_model", "target": "tools", "conditional": true});
    assert!(edges.contains(&enter), "{edges:#?}");
    assert!(edges.contains(&leave), "{edges:#?}");
    let sources = texts(&graph["edges"], "source");
    assert!(
        sources
            .iter()
            .chain(&texts(&graph["edges"], "target"))
            .all(|id| nodes.contains(id))
    );

    let one = drawn("deep", "1").await;
    let all = drawn("deep", "true").await;
    let depth = |graph: &Value| {
        texts(&graph["nodes"], "id")
            .iter()
            .map(|id| id.matches(':').count())
            .max()
    };
    assert_eq!(depth(&one), Some(1));
    assert_eq!(depth(&all), Some(3));
    assert_eq!(depth(&drawn("deep", "false").await), Some(0));
}

async fn schemas_describe_input_state_and_output(server: TestServer) {
    let client = server.client();
    let schemas = client.get("/assistants/planner/schemas").await.ok();
    assert_eq!(schemas["graph_id"], "planner");
    let fields = |schema: &str| {
        let mut names: Vec<String> = schemas[schema]["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        names.sort();
        names
    };
    assert_eq!(fields("input_schema"), ["files", "messages"]);
    assert_eq!(fields("output_schema"), ["files", "messages", "summarization", "todos"]);
    assert_eq!(fields("state_schema"), ["files", "messages", "summarization", "todos"]);
    assert_eq!(&schemas["config_schema"]["type"], &json!("object"));
    assert_eq!(&schemas["context_schema"], &Value::Null);
    let finder = client.get("/assistants/finder/schemas").await.ok();
    assert_eq!(
        finder["output_schema"]["properties"]["structured_response"]["title"],
        "Finding"
    );
}

async fn subgraphs_are_the_subagents_by_name(server: TestServer) {
    let client = server.client();
    let names = async |path: &str| {
        let shown = client.get(&format!("/assistants/{path}")).await.ok();
        shown.as_object().unwrap().keys().cloned().collect::<Vec<String>>()
    };
    assert_eq!(
        names("agent/subgraphs").await,
        ["analyst", "general-purpose", "hurried", "mailer", "researcher"]
    );
    assert_eq!(names("agent/subgraphs/analyst").await, ["analyst"]);
    assert_eq!(names("agent/subgraphs/nobody?recurse=true").await, Vec::<String>::new());
    assert_eq!(names("deep/subgraphs").await, ["general-purpose", "researcher"]);
    let all = names("deep/subgraphs?recurse=true").await;
    assert_eq!(all.len(), 2 + 4 + 8);
    assert!(all.contains(&"researcher|general-purpose|researcher".to_owned()));
    assert_eq!(
        names("deep/subgraphs/researcher%7Cresearcher?recurse=true").await,
        ["researcher|researcher"]
    );
    assert_eq!(
        names("deep/subgraphs/researcher%7Cresearcher").await,
        Vec::<String>::new()
    );
    let analyst = client.get("/assistants/agent/subgraphs/analyst").await.ok();
    assert_eq!(
        analyst["analyst"]["output_schema"]["properties"]["structured_response"]["title"],
        "Finding"
    );
}
