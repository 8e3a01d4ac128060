//! Agents that clients define: they belong to the tenant of the client.

use serde_json::{Value, json};

use super::tenants::{a_run, default_of, values_of};
use crate::agents::background_tasks::start;
use crate::support::client::{Client, Reply};
use crate::support::{Human, Keys, TestServer, eventually, on_both_engines, on_postgres, script, task, transcript};

on_both_engines! {
    searches_counts_and_pages_have_no_agents_of_other_tenants,
    an_agent_of_another_tenant_is_answered_like_an_unknown_one,
    an_agent_of_another_tenant_cannot_be_changed_or_deleted,
    a_name_is_free_again_when_its_tenant_has_deleted_the_agent,
    a_definition_cannot_refer_to_an_agent_of_another_tenant,
    a_subagent_whose_name_another_tenant_has_taken_does_not_work,
    an_assistant_of_an_agent_that_another_tenant_has_taken_does_not_exist,
    a_thread_that_names_an_agent_of_another_tenant_has_no_agent,
    an_agent_of_a_file_is_there_for_all_tenants,
    versions_that_a_file_precedes_are_hidden_from_other_tenants,
    an_assistant_of_another_tenant_does_not_become_that_of_a_new_agent,
    a_background_task_for_an_agent_of_another_tenant_is_refused_like_one_for_an_unknown_agent,
    what_clients_of_the_default_tenant_define_is_theirs,
    without_authentication_agents_of_all_tenants_are_there,
}

on_postgres! {
    another_server_knows_the_tenant_of_an_agent,
}

/// The word in the definitions of acme.
const MARK: &str = "belongs-to-acme";

fn definition() -> Value {
    json!({"model": "scripted:lab", "name": "Desk", "description": MARK})
}

/// Returns a definition with a subagent that is the agent of this name.
fn parent_of(graph_id: &str) -> Value {
    let clerk = json!({"name": "clerk", "description": "Knows.", "graph_id": graph_id, "async": false});
    json!({"model": "scripted:lab", "subagents": [clerk]})
}

/// Returns the key of a new developer in the tenant of this admin.
async fn developer_key(keys: &Keys, admin: &str) -> String {
    let body = json!({"name": "dev", "user": "dev", "roles": ["developer"]});
    let issued = keys.client(admin).post("/auth/keys", body).await.ok();
    issued["api_key"].as_str().expect("a key").to_owned()
}

/// Returns a developer of `acme`, who has defined the agent `desk`, and one of `other`.
async fn developers(keys: &Keys) -> [Client; 2] {
    let acme = keys.with(&developer_key(keys, "root").await);
    let other = keys.with(&developer_key(keys, "root-of-other").await);
    acme.put("/agents/desk", definition()).await.ok();
    [acme, other]
}

async fn count(client: &Client) -> i64 {
    let count = client.post("/assistants/count", json!({})).await.ok();
    count.as_i64().expect("a number")
}

/// Returns the names and the number of the agents that a search of this client finds.
async fn agents(client: &Client) -> (Vec<String>, usize) {
    let found = client.post("/agents/search", json!({"limit": 1000})).await;
    let total = found.header("x-pagination-total").expect("a total").parse::<usize>();
    (values_of(&found.ok(), "graph_id"), total.expect("a number"))
}

/// Returns a response, with this name instead of that of an agent which does not exist.
fn answer(reply: &Reply, name: &str) -> (u16, String) {
    (reply.status, reply.body.to_string().replace("nosuch", name))
}

async fn searches_counts_and_pages_have_no_agents_of_other_tenants(server: TestServer) {
    let keys = server.is_protected().await;
    let others = ["root-of-other", "harness"].map(|name| keys.client(name));
    let files = count(&others[0]).await;
    let [acme, other] = developers(&keys).await;
    for client in [&acme, &keys.client("ann"), &keys.client("root")] {
        assert_eq!(count(client).await, files + 1);
        let (names, total) = agents(client).await;
        assert!(names.contains(&"desk".to_owned()) && total == names.len(), "{names:?}");
        let found = client.post("/assistants/search", json!({"graph_id": "desk"})).await;
        assert_eq!(values_of(&found.ok(), "graph_id"), ["desk"]);
    }
    for client in others.iter().chain([&other]) {
        assert_eq!(count(client).await, files);
        let (names, total) = agents(client).await;
        assert!(!names.contains(&"desk".to_owned()) && total == names.len(), "{names:?}");
        for path in ["/agents/search", "/assistants/search"] {
            for body in [json!({"graph_id": "desk"}), json!({"name": "desk"})] {
                let found = client.post(path, body).await;
                assert_eq!(found.header("x-pagination-total"), Some("0"), "{path}: {found:?}");
                assert_eq!(found.ok(), json!([]), "{path}");
            }
        }
    }
}

async fn an_agent_of_another_tenant_is_answered_like_an_unknown_one(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, developer] = developers(&keys).await;
    let desk = default_of(&acme, "desk").await;
    let cron = |assistant: &str| json!({"assistant_id": assistant, "schedule": "0 0 1 1 *", "input": {}});
    for other in [&developer, &keys.client("root-of-other"), &keys.client("harness")] {
        for path in ["", "/graph", "/schemas", "/subgraphs"] {
            other.get(&format!("/assistants/{desk}{path}")).await.refused(404);
        }
        let versions = format!("/assistants/{desk}/versions");
        other.post(&versions, json!({})).await.refused(404);
        let path = format!("/assistants/{desk}");
        other.patch(&path, json!({"name": "ours"})).await.refused(404);
        other.delete(&path).await.refused(404);
        for path in ["", "/versions"] {
            let reply = other.get(&format!("/agents/desk{path}")).await;
            let unknown = other.get(&format!("/agents/nosuch{path}")).await;
            assert_eq!(answer(&reply, "desk"), answer(&unknown, "desk"), "{path}");
            assert_eq!(reply.status, 404);
        }
        let thread = other.thread().await;
        let on_thread = format!("/threads/{thread}/runs");
        for path in [on_thread.as_str(), "/runs", "/runs/wait"] {
            other.post(path, a_run(&desk)).await.refused(404);
            let reply = other.post(path, a_run("desk")).await;
            let unknown = other.post(path, a_run("nosuch")).await;
            assert_eq!(answer(&reply, "desk"), answer(&unknown, "desk"), "{path}");
            assert!(reply.status >= 400, "{reply:?}");
        }
        other.post("/runs/crons", cron(&desk)).await.refused(404);
        let reply = other.post("/runs/crons", cron("desk")).await;
        assert_eq!(
            answer(&reply, "desk"),
            answer(&other.post("/runs/crons", cron("nosuch")).await, "desk")
        );
        let reply = other.post("/assistants", json!({"graph_id": "desk"})).await;
        let unknown = other.post("/assistants", json!({"graph_id": "nosuch"})).await;
        assert_eq!(answer(&reply, "desk"), answer(&unknown, "desk"));
        let own = other.post("/assistants", json!({"graph_id": "agent"})).await.ok();
        let own = format!("/assistants/{}", own["assistant_id"].as_str().expect("an id"));
        other.patch(&own, json!({"graph_id": "desk"})).await.refused(404);
        let graph = other.get("/assistants/desk/graph").await;
        let unknown = other.get("/assistants/nosuch/graph").await;
        assert_eq!(answer(&graph, "desk"), answer(&unknown, "desk"));
    }
    keys.client("ann").post("/runs/wait", a_run("desk")).await.ok();
    acme.get(&format!("/assistants/{desk}/graph")).await.ok();
}

async fn an_agent_of_another_tenant_cannot_be_changed_or_deleted(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, developer] = developers(&keys).await;
    for other in [&developer, &keys.client("root-of-other"), &keys.client("harness")] {
        for body in [definition(), json!({"model": "scripted:lab", "description": "ours"})] {
            let refused = other.put("/agents/desk", body).await;
            assert_eq!(refused.body["code"], "agent_name_taken", "{refused:?}");
            assert!(!refused.refused(409).contains("acme"));
        }
        other.delete("/agents/desk").await.refused(404);
    }
    let kept = acme.get("/agents/desk").await.ok();
    assert_eq!(kept["version"], 1);
    assert_eq!(kept["definition"]["description"], MARK);
    let denied = keys
        .client("root-of-other")
        .get("/audit?outcome=denied&limit=100")
        .await
        .ok();
    for action in ["agents:put", "agents:delete"] {
        let is_it = |entry: &&Value| entry["action"] == action && entry["resource"] == "graph:desk";
        let found = denied.as_array().expect("a list").iter().filter(is_it).count();
        assert!(found >= 2, "{action}: {denied:#}");
    }
    // Another developer or an admin of the same tenant may.
    keys.client("root")
        .put("/agents/desk", json!({"model": "scripted:lab"}))
        .await
        .ok();
    assert_eq!(acme.get("/agents/desk").await.ok()["version"], 2);
    keys.client("root").delete("/agents/desk").await.ok();
    acme.get("/agents/desk").await.refused(404);
}

async fn a_name_is_free_again_when_its_tenant_has_deleted_the_agent(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, other] = developers(&keys).await;
    acme.delete("/agents/desk").await.ok();
    other.put("/agents/desk", json!({"model": "scripted:lab"})).await.ok();
    let versions = other.get("/agents/desk/versions").await.ok().to_string();
    assert!(!versions.contains(MARK), "{versions}");
    acme.get("/agents/desk").await.refused(404);
    // The tenant is stored.
    server.is_stopped_and_started_again().await;
    acme.get("/agents/desk").await.refused(404);
    assert_eq!(acme.put("/agents/desk", definition()).await.status, 409);
    keys.client("root-of-other")
        .post("/runs/wait", a_run("desk"))
        .await
        .ok();
}

async fn a_definition_cannot_refer_to_an_agent_of_another_tenant(server: TestServer) {
    let keys = server.is_protected().await;
    let other = keys.client("root-of-other");
    let body = json!({"graph_id": "overseer", "definition": parent_of("desk")});
    let answers = async || {
        let refused = other.put("/agents/overseer", parent_of("desk")).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        let verdict = other.post("/agents/validate", body.clone()).await.ok();
        [refused.body, verdict]
    };
    let before = answers().await;
    let [acme, _] = developers(&keys).await;
    acme.put("/agents/overseer", parent_of("desk")).await.ok();
    acme.delete("/agents/overseer").await.ok();
    assert_eq!(answers().await, before);
}

async fn a_subagent_whose_name_another_tenant_has_taken_does_not_work(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, other] = developers(&keys).await;
    acme.put("/agents/overseer", parent_of("desk")).await.ok();
    let work = script().says("the clerk knows");
    let ask = script().calls(task("t1", "clerk", &work)).says("done");
    let ann = Human::on_new_thread(keys.client("ann"), "overseer").await;
    assert_eq!(transcript(&ann.says(&ask).await)[2], "task: the clerk knows");
    acme.delete("/agents/desk").await.ok();
    other.put("/agents/desk", json!({"model": "scripted:lab"})).await.ok();
    let ann = Human::on_new_thread(keys.client("ann"), "overseer").await;
    let refusal = "task failed: The agent `desk` is not defined on this server. Do the work yourself.";
    assert_eq!(transcript(&ann.says(&ask).await)[2], refusal);
    let problems = acme.get("/agents/overseer").await.ok()["problems"].to_string();
    assert!(problems.contains("there is no agent `desk`"), "{problems}");
}

async fn an_assistant_of_an_agent_that_another_tenant_has_taken_does_not_exist(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, other] = developers(&keys).await;
    let ann = keys.client("ann");
    let own = ann
        .post("/assistants", json!({"graph_id": "desk", "name": "mine"}))
        .await
        .ok();
    let own = own["assistant_id"].as_str().expect("an id").to_owned();
    ann.post("/runs/wait", a_run(&own)).await.ok();
    acme.delete("/agents/desk").await.ok();
    other.put("/agents/desk", json!({"model": "scripted:lab"})).await.ok();
    ann.get(&format!("/assistants/{own}")).await.refused(404);
    ann.post("/runs/wait", a_run(&own)).await.refused(404);
    let found = ann.post("/assistants/search", json!({"name": "mine"})).await.ok();
    assert_eq!(found, json!([]));
}

async fn a_thread_that_names_an_agent_of_another_tenant_has_no_agent(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, other] = developers(&keys).await;
    let mut strict = definition();
    strict["state"] = json!({"notes": {"merge": "append", "schema": {"type": "array"}}});
    acme.put("/agents/desk", strict).await.ok();
    let writes = async |client: &Client, graph_id: &str| {
        let body = json!({"metadata": {"graph_id": graph_id}});
        let thread = client.post("/threads", body).await.ok();
        let path = format!("/threads/{}/state", thread["thread_id"].as_str().expect("an id"));
        client.post(&path, json!({"values": {"notes": "no list"}})).await
    };
    writes(&acme, "desk").await.refused(422);
    let with_theirs = writes(&other, "desk").await;
    let with_none = writes(&other, "nosuch").await;
    assert_eq!(with_theirs.status, with_none.status, "{with_theirs:?}");
    assert_ne!(with_none.status, 422, "{with_none:?}");
}

async fn an_agent_of_a_file_is_there_for_all_tenants(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, other] = developers(&keys).await;
    for client in [&acme, &other, &keys.client("harness")] {
        client.get("/agents/plain").await.ok();
        let refused = client.put("/agents/plain", definition()).await;
        assert_eq!(refused.body["code"], "agent_in_file", "{refused:?}");
    }
    // A file precedes a client of any tenant.
    let lines = "[agents.desk]\nmodel = \"scripted:lab\"\ndescription = \"of a file\"\n";
    server.is_configured_with(lines).await;
    for client in [&acme, &other] {
        let shown = client.get("/agents/desk").await.ok();
        assert_eq!(shown["definition"]["description"], "of a file");
        client.post("/runs/wait", a_run("desk")).await.ok();
    }
}

async fn versions_that_a_file_precedes_are_hidden_from_other_tenants(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, other] = developers(&keys).await;
    let lines = "[agents.desk]\nmodel = \"scripted:lab\"\ndescription = \"of a file\"\n";
    server.is_configured_with(lines).await;
    for (client, total) in [(&acme, "2"), (&other, "1"), (&keys.client("harness"), "1")] {
        let listed = client.get("/agents/desk/versions").await;
        assert_eq!(listed.header("x-pagination-total"), Some(total), "{listed:?}");
        assert_eq!(listed.ok().to_string().contains(MARK), total == "2");
    }
    acme.get("/agents/desk?version=1").await.ok();
    let hidden = other.get("/agents/desk?version=1").await;
    let unknown = other.get("/agents/desk?version=9").await;
    assert_eq!(hidden.status, 404);
    assert_eq!(
        hidden.body.to_string().replace("Version 1", "Version 9"),
        unknown.body.to_string()
    );
}

async fn an_assistant_of_another_tenant_does_not_become_that_of_a_new_agent(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, _] = developers(&keys).await;
    let other = keys.client("root-of-other");
    // The id follows from the name of the agent.
    let desk = default_of(&acme, "desk").await;
    acme.delete("/agents/desk").await.ok();
    let body = json!({"assistant_id": desk, "graph_id": "plain", "name": "theirs"});
    other.post("/assistants", body).await.ok();
    acme.put("/agents/desk", definition()).await.ok();
    let path = format!("/assistants/{desk}");
    let shown = acme.get(&path).await.ok();
    assert_eq!(shown["graph_id"], "desk");
    assert_eq!(shown["name"], "Desk");
    let versions = acme.post(&format!("{path}/versions"), json!({})).await.ok();
    assert_eq!(values_of(&versions, "graph_id"), ["desk"]);
    other.get(&path).await.refused(404);
    keys.client("ann").post("/runs/wait", a_run("desk")).await.ok();
}

async fn a_background_task_for_an_agent_of_another_tenant_is_refused_like_one_for_an_unknown_agent(server: TestServer) {
    let keys = server.is_protected().await;
    let [acme, other] = developers(&keys).await;
    let writer = json!({"name": "writer", "description": "Writes.", "graph_id": "desk"});
    let foreman = json!({"model": "scripted:lab", "subagents": [writer]});
    acme.put("/agents/foreman", foreman).await.ok();
    acme.delete("/agents/desk").await.ok();
    let call = start("c1", "writer", script().says("written"));
    let ask = script().calls(call).says("done");
    let answer = async || {
        let ann = Human::on_new_thread(keys.client("ann"), "foreman").await;
        transcript(&ann.says(&ask).await)[2].clone()
    };
    let unknown = answer().await;
    assert!(unknown.contains("desk"), "{unknown}");
    other.put("/agents/desk", json!({"model": "scripted:lab"})).await.ok();
    assert_eq!(answer().await, unknown);
}

async fn what_clients_of_the_default_tenant_define_is_theirs(server: TestServer) {
    server.client().put("/agents/former", definition()).await.ok();
    let keys = server.is_protected().await;
    let harness = keys.client("harness");
    assert_eq!(harness.get("/agents/former").await.ok()["version"], 1);
    harness
        .put("/agents/former", json!({"model": "scripted:lab"}))
        .await
        .ok();
    for name in ["ann", "root", "root-of-other"] {
        keys.client(name).get("/agents/former").await.refused(404);
    }
}

async fn without_authentication_agents_of_all_tenants_are_there(server: TestServer) {
    server.client().put("/agents/desk", definition()).await.ok();
    server.is_stopped().await;
    server
        .executes_sql("update agents set tenant = 'acme' where graph_id = 'desk'")
        .await;
    server.is_stopped_and_started_again().await;
    let client = server.client();
    client.post("/runs/wait", a_run("desk")).await.ok();
    client.put("/agents/desk", json!({"model": "scripted:lab"})).await.ok();
    assert_eq!(client.get("/agents/desk").await.ok()["version"], 2);
    client.delete("/agents/desk").await.ok();
}

async fn another_server_knows_the_tenant_of_an_agent(server: TestServer) {
    let keys = server.is_protected().await;
    let acme = developer_key(&keys, "root").await;
    let other = developer_key(&keys, "root-of-other").await;
    let twin = server.starts_twin().await;
    keys.with(&acme).put("/agents/desk", definition()).await.ok();
    // The answer is the same, if this server has heard of the agent or not.
    let there = twin.client.with_key(&other);
    assert_eq!(there.put("/agents/desk", definition()).await.status, 409);
    eventually(async || twin.client.with_key(&acme).get("/agents/desk").await.status == 200).await;
    there.get("/agents/desk").await.refused(404);
    there.delete("/agents/desk").await.refused(404);
    assert!(there.post("/runs/wait", a_run("desk")).await.status >= 400);
    twin.stops().await;
}
