//! `[tenants.NAME]`: what single tenants may see, run and use, and their own credentials.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Error;

use crate::agents::background_tasks::{boss, start};
use crate::api::crons::all_are_due;
use crate::support::client::{Client, Reply, reply};
use crate::support::mcp::behind_http;
use crate::support::provider::Turn;
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{Human, Keys, TestServer, call, eventually, lookup, on_both_engines, script, task, transcript};

on_both_engines! {
    searches_counts_and_pages_have_only_the_agents_of_the_tenant,
    an_agent_that_others_have_does_not_exist_for_a_tenant,
    an_agent_that_others_have_cannot_be_defined_or_deleted,
    an_agent_that_was_taken_away_runs_no_more,
    a_queued_run_of_an_agent_that_was_taken_away_fails,
    a_subagent_that_others_have_does_not_exist_for_a_tenant,
    a_tool_that_others_have_is_not_offered_and_not_called,
    a_run_with_a_model_that_others_have_is_refused_before_it_starts,
    a_model_that_others_have_is_refused_wherever_a_definition_names_it,
    the_settings_of_a_run_choose_no_other_model,
    a_cron_is_refused_for_the_model_that_its_runs_choose_and_no_other,
    a_subagent_with_a_model_that_others_have_does_not_work,
    a_provider_gets_the_key_of_the_tenant,
    a_tool_gets_the_headers_of_the_tenant,
    an_mcp_server_has_a_connection_for_each_tenant_with_headers,
    a_webhook_is_signed_with_the_secret_of_the_tenant,
    a_page_acts_only_for_users_of_its_tenant,
    a_request_from_the_page_of_another_tenant_is_in_the_audit,
    a_host_name_serves_only_its_tenant,
}

/// Restarts the server with authentication and with these lines in the section of the tenant `acme`.
async fn restricted(server: &TestServer, section: &str) -> Keys {
    server
        .is_protected_with("", &format!("[tenants.acme]\n{section}\n"))
        .await
}

/// Returns the id of the default assistant of an agent.
pub(super) async fn default_of(client: &Client, graph_id: &str) -> String {
    let found = client.post("/assistants/search", json!({"graph_id": graph_id})).await;
    let found = found.ok();
    found[0]["assistant_id"].as_str().expect("an id").to_owned()
}

/// Returns the values of a key in a list of objects.
pub(super) fn values_of(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().expect("a list");
    list.iter()
        .map(|one| one[key].as_str().expect("a text").to_owned())
        .collect()
}

/// Returns the actions that were refused to a user.
async fn denied(keys: &Keys, user: &str) -> Vec<String> {
    let found = keys.client("root").get("/audit?outcome=denied&limit=100").await.ok();
    let found: Vec<Value> = found.as_array().expect("a list").clone();
    let of_user = found.into_iter().filter(|entry| entry["user"] == user);
    values_of(&of_user.collect(), "action")
}

/// Returns the request for a run that says something.
pub(super) fn a_run(assistant: &str) -> Value {
    let message = json!({"role": "user", "content": script().says("x").to_string()});
    json!({"assistant_id": assistant, "input": {"messages": [message]}})
}

/// Returns a user of an agent on a new thread.
async fn user(keys: &Keys, name: &str, agent: &str) -> Human {
    Human::on_new_thread(keys.client(name), agent).await
}

async fn searches_counts_and_pages_have_only_the_agents_of_the_tenant(server: TestServer) {
    let keys = restricted(&server, "agents = [\"agent\", \"pla*\", \"Plain\"]").await;
    let ann = keys.client("ann");
    let own = json!({"graph_id": "agent", "name": "mine"});
    ann.post("/assistants", own).await.ok();
    let expected = ["agent", "agent", "plain", "planner"];
    let mut found = vec![];
    for offset in [0, 3] {
        let page = json!({"limit": 3, "offset": offset, "sort_by": "name"});
        let page = ann.post("/assistants/search", page).await;
        assert_eq!(page.header("x-pagination-total"), Some("4"), "{page:?}");
        found.extend(values_of(&page.ok(), "graph_id"));
    }
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(ann.post("/assistants/count", json!({})).await.ok(), json!(4));
    let agents = ann.post("/agents/search", json!({"limit": 1})).await;
    assert_eq!(agents.header("x-pagination-total"), Some("3"), "{agents:?}");
    let agents = ann.post("/agents/search", json!({})).await.ok();
    assert_eq!(values_of(&agents, "graph_id"), ["agent", "plain", "planner"]);
    let other = keys.client("root-of-other");
    let all = other.post("/assistants/count", json!({})).await.ok();
    assert!(all.as_i64().is_some_and(|all| all > 10), "{all}");
}

async fn an_agent_that_others_have_does_not_exist_for_a_tenant(server: TestServer) {
    let keys = restricted(&server, "agents = [\"agent\"]").await;
    let ann = keys.client("ann");
    let other = keys.client("root-of-other");
    let office = default_of(&other, "office").await;
    for path in ["", "/graph", "/schemas", "/subgraphs"] {
        let path = format!("/assistants/{office}{path}");
        ann.get(&path).await.refused(404);
        other.get(&path).await.ok();
    }
    let versions = format!("/assistants/{office}/versions");
    ann.post(&versions, json!({})).await.refused(404);
    for path in ["/agents/office", "/agents/office/versions"] {
        ann.get(path).await.refused(404);
        other.get(path).await.ok();
    }
    let thread = ann.thread().await;
    let runs = format!("/threads/{thread}/runs");
    let cron = |assistant: &str| json!({"assistant_id": assistant, "schedule": "0 0 1 1 *", "input": {}});
    for path in [runs.as_str(), "/runs", "/runs/wait"] {
        ann.post(path, a_run(&office)).await.refused(404);
    }
    ann.post("/runs/batch", json!([a_run("agent"), a_run(&office)]))
        .await
        .refused(404);
    ann.post("/runs/crons", cron(&office)).await.refused(404);
    // By its name it is refused like one that does not exist, with the names of those that do.
    let answer = |reply: Reply| (reply.status, reply.body.to_string().replace("nosuch", "office"));
    for path in [runs.as_str(), "/runs", "/runs/wait"] {
        let refused = answer(ann.post(path, a_run("office")).await);
        assert_eq!(refused, answer(ann.post(path, a_run("nosuch")).await), "{path}");
        assert!(!refused.1.contains("plain"), "{refused:?}");
    }
    for body in [a_run("office"), cron("office")] {
        let path = if body["schedule"].is_null() {
            "/runs"
        } else {
            "/runs/crons"
        };
        assert!(ann.post(path, body).await.status >= 400);
    }
    let graph = answer(ann.get("/assistants/office/graph").await);
    assert_eq!(graph, answer(ann.get("/assistants/nosuch/graph").await));
    let assistant = json!({"graph_id": "office"});
    ann.post("/assistants", assistant.clone()).await.refused(404);
    let own = ann.post("/assistants", json!({"graph_id": "agent"})).await.ok();
    let own = format!("/assistants/{}", own["assistant_id"].as_str().expect("an id"));
    ann.patch(&own, assistant).await.refused(404);
    assert_eq!(ann.post("/threads/count", json!({})).await.ok(), json!(1));
    assert_eq!(
        ann.post("/runs/crons/count", json!({})).await.ok(),
        json!(0),
        "a cron of the agent was stored"
    );
    let denied = denied(&keys, "ann").await;
    for action in ["assistants:read", "threads:create_run"] {
        assert!(denied.iter().any(|one| one == action), "{action}: {denied:?}");
    }
    other.post("/runs/wait", a_run("office")).await.ok();
    ann.post("/runs/wait", a_run("agent")).await.ok();
}

async fn an_agent_that_others_have_cannot_be_defined_or_deleted(server: TestServer) {
    let keys = restricted(&server, "agents = [\"agent\", \"own-*\"]").await;
    let root = keys.client("root");
    let other = keys.client("root-of-other");
    let definition = json!({"model": "scripted:lab"});
    other.put("/agents/theirs", definition.clone()).await.ok();
    let refused = root.put("/agents/theirs", definition.clone()).await;
    assert_eq!(refused.body["code"], "agent_not_allowed", "{refused:?}");
    assert!(refused.refused(403).contains("[tenants.NAME]"));
    root.delete("/agents/theirs").await.refused(404);
    other.get("/agents/theirs").await.ok();
    root.put("/agents/own-1", definition).await.ok();
    root.post("/runs/wait", a_run("own-1")).await.ok();
    let denied = denied(&keys, "root").await;
    assert!(denied.contains(&"agents:put".to_owned()), "{denied:?}");
    assert!(denied.contains(&"agents:delete".to_owned()), "{denied:?}");
}

async fn an_agent_that_was_taken_away_runs_no_more(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = user(&keys, "ann", "office").await;
    ann.says(script().says("while it was there")).await;
    let client = ann.client();
    let made = client.post("/assistants", json!({"graph_id": "office"})).await.ok();
    let id = made["assistant_id"].as_str().expect("an id").to_owned();
    let mut cron = a_run(&id);
    cron["schedule"] = json!("0 0 1 1 *");
    client.post(&ann.path("/runs/crons"), cron).await.ok();
    server
        .is_configured_with("[tenants.acme]\nagents = [\"agent\"]\n")
        .await;
    client.get(&format!("/assistants/{id}")).await.refused(404);
    client.delete(&format!("/assistants/{id}")).await.refused(404);
    client.post(&ann.path("/runs"), a_run(&id)).await.refused(404);
    let again = json!({"assistant_id": id, "input": null});
    client.post(&ann.path("/runs"), again).await.refused(404);
    // Earlier messages stay readable.
    assert_eq!(
        ann.transcript().await.last().expect("a message"),
        "ai: while it was there"
    );
    all_are_due(&server).await;
    let resource = format!("assistant:{id}");
    let root = keys.client("root");
    let is_it = |entry: &&Value| entry["resource"] == resource.as_str() && entry["action"] == "assistants:read";
    eventually(async || {
        let denied = root.get("/audit?outcome=denied&user=ann&limit=100").await.ok();
        let of_clients = 3;
        denied.as_array().expect("a list").iter().filter(is_it).count() > of_clients
    })
    .await;
    assert_eq!(ann.runs().await.len(), 1);
}

async fn a_queued_run_of_an_agent_that_was_taken_away_fails(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = user(&keys, "ann", "office").await;
    let body = ann.run_body(script().says("too late"), json!({"after_seconds": 2}));
    let run = ann.starts(body).await;
    server
        .is_configured_with("[tenants.acme]\nagents = [\"agent\"]\n")
        .await;
    eventually(async || run.status().await == "error").await;
    let record = ann.record().await;
    assert_eq!(record["error"]["error"], "AgentNotFoundError", "{record}");
}

async fn a_subagent_that_others_have_does_not_exist_for_a_tenant(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let keys = restricted(&server, "agents = [\"chief\", \"boss\"]").await;
    let work = script().says("the clerk knows");
    let ask = script().calls(task("t1", "clerk", &work)).says("done");
    let ann = user(&keys, "ann", "chief").await;
    let said = transcript(&ann.says(&ask).await);
    assert!(
        said[2].starts_with("task failed: ") && said[2].contains("clerk"),
        "{said:?}"
    );
    let subgraphs = ann.client().get("/assistants/chief/subgraphs").await.ok();
    assert!(subgraphs.get("clerk").is_none(), "{subgraphs}");
    let other = user(&keys, "root-of-other", "chief").await;
    assert_eq!(transcript(&other.says(&ask).await)[2], "task: the clerk knows");
    // Background agents do not exist either.
    let ask = script()
        .calls(start("c1", "writer", script().says("written")))
        .says("done");
    let ann = user(&keys, "ann", "boss").await;
    let said = transcript(&ann.says(&ask).await);
    assert!(said[2].contains("start_async_task is not a valid tool"), "{said:?}");
    assert_eq!(ann.client().post("/threads/count", json!({})).await.ok(), json!(2));
}

async fn a_tool_that_others_have_is_not_offered_and_not_called(server: TestServer) {
    let keys = restricted(&server, "tools = [\"look*\"]").await;
    let calls = [lookup("c1", "x"), call("c2", "note", json!({"update": {}}))];
    let ask = script().calls_all(calls).turn(json!({"echo_tools": true}));
    let ann = user(&keys, "ann", "plain").await;
    let said = transcript(&ann.says(&ask).await);
    assert_eq!(said[2], "lookup: found x");
    assert!(said[3].contains("note is not a valid tool"), "{said:?}");
    assert!(said[4].contains("lookup") && said[4].contains("write_file"), "{said:?}");
    assert!(!said[4].contains("note") && !said[4].contains("slow"), "{said:?}");
    assert_eq!(server.tools.calls_of("note").len(), 0);
    let graph = ann.client().get("/assistants/plain/graph").await.ok().to_string();
    assert!(graph.contains("lookup") && !graph.contains("\"note\""), "{graph}");
    let other = user(&keys, "root-of-other", "plain").await;
    other.says(&ask).await;
    assert_eq!(server.tools.calls_of("note").len(), 1);
}

async fn a_run_with_a_model_that_others_have_is_refused_before_it_starts(server: TestServer) {
    let keys = restricted(&server, "models = [\"scripted:*\", \"fake_openai:m-2\"]").await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    for path in [format!("/threads/{thread}/runs"), "/runs/wait".to_owned()] {
        let refused = ann.post(&path, a_run("openai")).await;
        assert_eq!(refused.body["code"], "model_not_allowed", "{refused:?}");
        let text = refused.refused(403);
        assert!(
            text.contains("`fake_openai:m-1`") && text.contains("`models`"),
            "{text}"
        );
    }
    let mut cron = a_run("openai");
    cron["schedule"] = json!("0 0 1 1 *");
    ann.post("/runs/crons", cron).await.refused(403);
    let denied = denied(&keys, "ann").await;
    assert_eq!(denied, ["threads:create_run"; 3]);
    assert_eq!(server.models.asked().len(), 0);
    ann.post("/runs/wait", a_run("agent")).await.ok();
    server.models.will([Turn::Says("hello")]);
    let other = keys.client("root-of-other");
    other.post("/runs/wait", a_run("openai")).await.ok();
    assert_eq!(server.models.asked().len(), 1);
}

/// Agents by their names, each with the part of its definition that names the model of others.
const MODELS_OF_OTHERS: [(&str, &str); 8] = [
    ("fallback", "model = [\"scripted:lab\", \"fake_openai:m-1\"]"),
    (
        "summaries",
        "model = \"scripted:lab\"\nsummarization = { model = \"fake_openai:m-1\" }",
    ),
    (
        "policy",
        "model = \"scripted:lab\"\nmiddleware = [{ name = \"RubricMiddleware\", model = \"fake_openai:m-1\" }]",
    ),
    (
        "general",
        "model = \"scripted:lab\"\ngeneral_purpose_subagent = { model = \"fake_openai:m-1\" }",
    ),
    (
        "general-policy",
        "model = \"scripted:lab\"\n[agents.general-policy.general_purpose_subagent]\n\
         middleware = [{ name = \"RubricMiddleware\", model = \"fake_openai:m-1\" }]",
    ),
    (
        "lower-summaries",
        "model = \"scripted:lab\"\n[[agents.lower-summaries.subagents]]\nname = \"lower\"\n\
         description = \"Works with long texts.\"\nsummarization = { model = \"fake_openai:m-1\" }",
    ),
    (
        "lower-policy",
        "model = \"scripted:lab\"\n[[agents.lower-policy.subagents]]\nname = \"lower\"\n\
         description = \"Works by a rubric.\"\n\
         middleware = [{ name = \"RubricMiddleware\", model = \"fake_openai:m-1\" }]",
    ),
    (
        "profile",
        "model = \"scripted:graded\"\n[profiles.\"scripted:graded\"]\n\
         extra_middleware = [{ name = \"RubricMiddleware\", model = \"fake_openai:m-1\" }]",
    ),
];

async fn a_model_that_others_have_is_refused_wherever_a_definition_names_it(server: TestServer) {
    let of_others = MODELS_OF_OTHERS.map(|(name, part)| format!("[agents.{name}]\n{part}\n"));
    // No run of these asks the model, unless it chooses it.
    let usable = "
        [agents.switched-off]
        model = \"scripted:lab\"
        general_purpose_subagent = { enabled = false, model = \"fake_openai:m-1\" }
        [agents.choosy]
        model = \"scripted:lab\"
        configurable = { models = [\"fake_openai:m-1\", \"scripted:other\"] }";
    server
        .is_configured_with(&format!("{}{usable}\n", of_others.concat()))
        .await;
    let keys = restricted(&server, "models = [\"scripted:*\"]").await;
    let ann = keys.client("ann");
    for (agent, _) in MODELS_OF_OTHERS {
        let refused = ann.post("/runs/wait", a_run(agent)).await;
        assert_eq!(refused.body["code"], "model_not_allowed", "{agent}: {refused:?}");
        assert!(refused.refused(403).contains("`fake_openai:m-1`"), "{agent}");
    }
    for agent in ["switched-off", "choosy"] {
        ann.post("/runs/wait", a_run(agent)).await.ok();
    }
    let choosing = |model: &str| {
        let mut run = a_run("choosy");
        run["context"] = json!({"model": model});
        run
    };
    ann.post("/runs/wait", choosing("scripted:other")).await.ok();
    ann.post("/runs/wait", choosing("fake_openai:m-1")).await.refused(403);
    assert_eq!(server.models.asked().len(), 0);
}

async fn the_settings_of_a_run_choose_no_other_model(server: TestServer) {
    let keys = restricted(&server, "models = [\"scripted:*\"]").await;
    let ann = user(&keys, "ann", "plain").await;
    for more in [
        json!({"config": {"configurable": {"model": "fake_openai:m-1"}}}),
        json!({"context": {"model": "fake_openai:m-1"}}),
    ] {
        let run = ann.starts(ann.run_body(script().says("as defined"), more)).await;
        let values = run.finishes().await;
        assert_eq!(transcript(&values).last().expect("a message"), "ai: as defined");
    }
    assert_eq!(server.models.asked().len(), 0);
}

async fn a_cron_is_refused_for_the_model_that_its_runs_choose_and_no_other(server: TestServer) {
    let agents = "
        [agents.cheap]
        model = \"scripted:lab\"
        configurable = { models = [\"fake_openai:m-1\"] }
        [agents.costly]
        model = \"fake_openai:m-1\"
        configurable = { models = [\"scripted:other\"] }";
    server.is_configured_with(agents).await;
    let keys = restricted(&server, "models = [\"scripted:*\"]").await;
    let ann = user(&keys, "ann", "costly").await;
    let client = ann.client();
    let cron = |assistant: &str, context: Value| {
        let mut cron = a_run(assistant);
        cron["schedule"] = json!("0 0 1 1 *");
        cron["context"] = context;
        cron
    };
    let choosy = json!({"graph_id": "cheap", "context": {"model": "fake_openai:m-1"}});
    let choosy = client.post("/assistants", choosy).await.ok();
    let choosy = choosy["assistant_id"].as_str().expect("an id");
    let expensive = json!({"model": "fake_openai:m-1"});
    for path in [ann.path("/runs/crons"), "/runs/crons".to_owned()] {
        for (assistant, context) in [
            ("cheap", expensive.clone()),
            ("costly", expensive.clone()),
            ("costly", json!({})),
            (choosy, json!({})),
        ] {
            let refused = client.post(&path, cron(assistant, context)).await;
            assert_eq!(refused.body["code"], "model_not_allowed", "{assistant}: {refused:?}");
            assert!(refused.refused(403).contains("`fake_openai:m-1`"), "{assistant}");
        }
    }
    let count = async || client.post("/runs/crons/count", json!({})).await.ok();
    assert_eq!(count().await, json!(0));

    let other = json!({"model": "scripted:other"});
    let made = client.post(&ann.path("/runs/crons"), cron("costly", other)).await.ok();
    let path = format!("/runs/crons/{}", made["cron_id"].as_str().expect("an id"));
    client.patch(&path, json!({"context": expensive})).await.refused(403);
    let usual = json!({"model": "scripted:lab"});
    client.post("/runs/crons", cron(choosy, usual)).await.ok();
    assert_eq!(count().await, json!(2));
    assert_eq!(denied(&keys, "ann").await, ["threads:create_run"; 9]);
    all_are_due(&server).await;
    eventually(async || ann.runs().await.iter().any(|run| run["status"] == "success")).await;
    assert_eq!(ann.transcript().await.last().expect("a message"), "ai: x");
    assert_eq!(server.models.asked().len(), 0);
}

async fn a_subagent_with_a_model_that_others_have_does_not_work(server: TestServer) {
    let agents = "
        [agents.mixed]
        model = \"scripted:lab\"
        [[agents.mixed.subagents]]
        name = \"expensive\"
        description = \"Has another model.\"
        system_prompt = \"You are expensive.\"
        model = \"fake_openai:m-1\"
        [agents.borrower]
        model = \"scripted:lab\"
        [[agents.borrower.subagents]]
        name = \"speaker\"
        description = \"Is another agent.\"
        graph_id = \"openai\"
        async = false";
    server.is_configured_with(agents).await;
    let keys = restricted(&server, "models = [\"scripted:*\"]").await;
    keys.client("ann").post("/runs/wait", a_run("mixed")).await.refused(403);
    let ask = script().calls(task("t1", "speaker", "hello")).says("done");
    let ann = user(&keys, "ann", "borrower").await;
    let said = transcript(&ann.says(&ask).await);
    assert!(
        said[2].starts_with("task failed: ") && said[2].contains("`fake_openai:m-1`"),
        "{said:?}"
    );
    assert_eq!(server.models.asked().len(), 0);
    server.models.will([Turn::Says("hello")]);
    let other = user(&keys, "root-of-other", "borrower").await;
    assert_eq!(transcript(&other.says(&ask).await)[2], "task: hello");
}

async fn a_provider_gets_the_key_of_the_tenant(server: TestServer) {
    let section = "providers.fake_openai.api_key = \"${secrets.acme}\"\n\
                   [secrets.acme]\ncommand = [\"printf\", \"%s\", \"key-of-acme\"]";
    let keys = restricted(&server, section).await;
    server
        .models
        .will([Turn::Says("one"), Turn::Says("two"), Turn::Says("three")]);
    for caller in ["ann", "root-of-other", "bob"] {
        let values = keys.client(caller).post("/runs/wait", a_run("openai")).await.ok();
        assert_eq!(values["messages"].as_array().expect("messages").len(), 2, "{values}");
    }
    let asked = server.models.asked();
    let used: Vec<_> = asked.iter().map(|request| request.key.as_deref()).collect();
    assert_eq!(used, [Some("key-of-acme"), Some("secret-openai"), Some("key-of-acme")]);
    let paths: Vec<_> = asked.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/openai/v1/chat/completions"; 3]);
}

async fn a_tool_gets_the_headers_of_the_tenant(server: TestServer) {
    let section = format!(
        "[tenants.acme.headers.{:?}]\nx-key = \"key-of-acme\"",
        server.tools.base
    );
    let keys = restricted(&server, &section).await;
    let ask = script().calls(lookup("c1", "x")).says("done");
    for caller in ["ann", "root-of-other"] {
        user(&keys, caller, "plain").await.says(&ask).await;
    }
    let calls = server.tools.calls_of("lookup");
    let keys: Vec<&Value> = calls.iter().map(|call| &call["x_key"]).collect();
    assert_eq!(keys, [&json!("key-of-acme"), &Value::Null]);
}

async fn an_mcp_server_has_a_connection_for_each_tenant_with_headers(server: TestServer) {
    let Some(docs) = behind_http(&server) else { return };
    let url = docs.address("/mcp");
    let origin = docs.address("");
    // The server of the tests lists its tools only for this key.
    let section = format!(
        "[tenants.acme.headers.{origin:?}]\nx-key = \"s3cret\"\n\
         [tenants.other]\ntools = [\"docs/echo\"]\n[tenants.other.headers.{origin:?}]\nX-Key = \"s3cret\"\n\
         [mcp_servers.docs]\nurl = {url:?}\nheaders = {{ x-key = \"of-nobody\" }}\n\
         [agents.librarian]\nmodel = \"scripted:lab\"\ntools = [\"docs/*\"]\n"
    );
    let keys = restricted(&server, &section).await;
    let calls = |id: &str| {
        [
            call(id, "docs__echo", json!({"text": "hello"})),
            call(&format!("{id}2"), "docs__count", json!({"text": "one two"})),
        ]
    };
    let ask = |id: &str| script().calls_all(calls(id)).says("done");
    let ann = user(&keys, "ann", "librarian").await;
    let said = transcript(&ann.says(ask("a")).await);
    assert_eq!(said[2..4], ["docs__echo: hello", r#"docs__count: {"words":2}"#]);
    let other = user(&keys, "root-of-other", "librarian").await;
    let said = transcript(&other.says(ask("b")).await);
    assert_eq!(said[2], "docs__echo: hello");
    assert!(said[3].contains("docs__count is not a valid tool"), "{said:?}");
    let default = user(&keys, "harness", "librarian").await;
    let error = default.says(ask("c")).await["__error__"].clone();
    assert_eq!(error["error"], "McpConnectionError", "{error}");
    assert!(!error.to_string().contains("of-nobody"), "{error}");
}

async fn a_webhook_is_signed_with_the_secret_of_the_tenant(server: TestServer) {
    let keys = restricted(&server, "webhook_secret = \"whsec_c2VjcmV0LW9mLWFjbWU=\"").await;
    let receiver = WebhookReceiver::start().await;
    let of_server = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("Base64");
    let callers = [("ann", b"secret-of-acme".to_vec()), ("root-of-other", of_server)];
    for (number, (caller, key)) in callers.into_iter().enumerate() {
        let mut body = a_run("agent");
        body["webhook"] = json!(format!("{}/hook", receiver.base));
        keys.client(caller).post("/runs/wait", body).await.ok();
        let report = receiver.receives(number + 1).await.remove(number);
        let id = report.header("webhook-id");
        let second = report.header("webhook-timestamp");
        let mut hash = Hmac::<Sha256>::new_from_slice(&key).expect("a key");
        hash.update(format!("{id}.{second}.{}", report.text).as_bytes());
        let signature = format!("v1,{}", STANDARD.encode(hash.finalize().into_bytes()));
        assert_eq!(report.header("webhook-signature"), signature, "{caller}");
    }
}

/// Sends a request with this header.
async fn with_header(client: &Client, method: Method, name: &str, value: &str) -> Reply {
    let request = client.request(method.clone(), "/threads/search").header(name, value);
    match method {
        Method::POST => reply(request.json(&json!({}))).await,
        _ => reply(client.request(method, "/assistants/agent/graph").header(name, value)).await,
    }
}

/// Opens the WebSocket of a thread with this header. Returns the status.
async fn socket_status(client: &Client, key: &str, name: &'static str, value: &str) -> u16 {
    let thread = client.thread().await;
    let mut request = client.with_key(key).socket_request(&thread);
    let value = value.parse().expect("a header");
    request.headers_mut().insert(name, value);
    match connect_async(request).await {
        Ok((_, response)) => response.status().as_u16(),
        Err(Error::Http(response)) => response.status().as_u16(),
        Err(other) => panic!("{other}"),
    }
}

async fn a_page_acts_only_for_users_of_its_tenant(server: TestServer) {
    let section = "cors_origins = [\"https://acme.example\"]\n\
                   [tenants.other]\ncors_origins = [\"https://other.example\"]";
    let keys = restricted(&server, section).await;
    let theirs = [
        ("ann", "https://acme.example", 200),
        ("ann", "https://other.example", 403),
        ("ann", "http://localhost:3000", 403),
        ("root-of-other", "https://other.example", 200),
        ("root-of-other", "https://acme.example", 403),
        // A tenant without a list has that of the server.
        ("harness", "http://localhost:3000", 200),
        ("harness", "https://acme.example", 403),
    ];
    for (caller, origin, expected) in theirs {
        let client = keys.client(caller);
        for method in [Method::GET, Method::POST] {
            let answer = with_header(&client, method.clone(), "origin", origin).await;
            assert_eq!(answer.status, expected, "{caller} {method} {origin}: {answer:?}");
            if expected == 403 {
                assert_eq!(answer.body["code"], "foreign_origin", "{answer:?}");
                assert!(answer.refused(403).contains("[tenants."), "{caller} {origin}");
            }
        }
        let opened = socket_status(&client, &keys.text(caller), "origin", origin).await;
        let expected = if expected == 200 { 101 } else { expected };
        assert_eq!(opened, expected, "{caller} {origin}");
    }
    // A preflight request has no credentials.
    for (origin, is_allowed) in [
        ("https://acme.example", true),
        ("https://other.example", true),
        ("https://evil.example", false),
    ] {
        let request = keys.nobody().request(Method::OPTIONS, "/threads/search");
        let request = request
            .header("origin", origin)
            .header("access-control-request-method", "POST");
        let answer = reply(request).await;
        let allowed = answer.header("access-control-allow-origin");
        assert_eq!(allowed, is_allowed.then_some(origin), "{answer:?}");
    }
    let evil = with_header(&keys.client("ann"), Method::POST, "origin", "https://evil.example").await;
    evil.refused(403);
}

async fn a_request_from_the_page_of_another_tenant_is_in_the_audit(server: TestServer) {
    let keys = restricted(&server, "cors_origins = [\"https://acme.example\"]").await;
    let ann = keys.client("ann");
    for method in [Method::GET, Method::POST] {
        let answer = with_header(&ann, method, "origin", "http://localhost:3000").await;
        answer.refused(403);
    }
    let thread = ann.thread().await;
    let deletion = ann.request(Method::DELETE, &format!("/threads/{thread}"));
    let answer = reply(deletion.header("origin", "http://localhost:3000")).await;
    answer.refused(403);
    let found = keys.client("root").get("/audit?outcome=denied&user=ann").await.ok();
    assert_eq!(
        values_of(&found, "action"),
        ["threads:delete", "threads:search", "assistants:read"]
    );
    let named = format!("thread:{thread}");
    assert_eq!(values_of(&found, "resource"), [named.as_str(), "", "assistant:agent"]);
    assert_eq!(found[0]["detail"], json!({"reason": "foreign_origin"}));
    assert_eq!(found[0]["address"], "127.0.0.1");
}

async fn a_host_name_serves_only_its_tenant(server: TestServer) {
    server.is_configured("hosts = [\"*.example.org\"]").await;
    let section = "hosts = [\"acme.example.org\", \"*.acme.example\"]";
    let keys = restricted(&server, section).await;
    let theirs = [
        ("ann", "acme.example.org", 200),
        ("ann", "eu.acme.example", 200),
        ("ann", "localhost", 200),
        ("ann", "agents.example.org", 421),
        ("root-of-other", "agents.example.org", 200),
        ("root-of-other", "localhost", 200),
        ("root-of-other", "acme.example.org", 421),
        ("root-of-other", "eu.acme.example", 421),
    ];
    for (caller, host, expected) in theirs {
        let client = keys.client(caller);
        for method in [Method::GET, Method::POST] {
            let answer = with_header(&client, method.clone(), "host", host).await;
            assert_eq!(answer.status, expected, "{caller} {method} {host}: {answer:?}");
        }
        let opened = socket_status(&client, &keys.text(caller), "host", host).await;
        let expected = if expected == 200 { 101 } else { expected };
        assert_eq!(opened, expected, "{caller} {host}");
    }
    // The pages for everybody are there under all names, and under no others.
    let ok = |host: &'static str| reply(keys.nobody().request(Method::GET, "/ok").header("host", host));
    assert_eq!(ok("eu.acme.example").await.status, 200);
    assert_eq!(ok("evil.example").await.status, 421);
}
