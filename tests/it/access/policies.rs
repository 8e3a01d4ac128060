//! Access policies in Cedar: what they forbid and permit, in requests, searches and counts.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, start, the_task, worker};
use crate::api::crons::all_are_due;
use crate::support::client::{Client, Reply};
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{Human, Keys, TestServer, eventually, lookup, mail, on_both_engines, script};

on_both_engines! {
    a_forbidden_change_is_refused_with_the_reason,
    what_may_not_be_read_does_not_exist,
    what_may_not_be_read_is_not_changed_either,
    a_policy_about_runs_is_about_the_thread_of_the_run,
    searches_counts_and_pages_follow_the_policies,
    a_permission_gives_more_within_the_tenant_and_not_beyond,
    forbidden_assistants_are_not_run,
    a_permission_to_read_interrupts_answers_no_assigned_one,
    what_is_created_is_decided_about_with_its_metadata,
    a_run_creates_no_thread_that_a_policy_forbids,
    a_run_displaces_none_that_a_policy_protects,
    a_run_is_not_rolled_back_if_a_policy_forbids_its_deletion,
    a_command_writes_no_state_that_a_policy_protects,
    a_delayed_command_writes_no_state_that_a_policy_protects_by_now,
    what_may_not_be_read_is_reached_by_no_other_name,
    commands_to_a_thread_follow_the_policies,
    what_is_forbidden_on_a_thread_is_forbidden_on_those_of_its_background_tasks,
    a_cron_starts_no_run_that_a_policy_forbids,
    the_report_of_a_run_does_not_show_a_forbidden_thread,
    the_policies_of_the_documents_do_what_they_say,
}

/// Secret threads are read by their owners only.
const SECRETS: &str = "
    @id(\"secrets\")
    forbid(principal, action == Action::\"threads:read\", resource)
    when { resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\" }
    unless { resource.owner == principal };";

/// Returns the request for a run that says something.
fn a_run(more: Value) -> Value {
    let message = json!({"role": "user", "content": script().says("x").to_string()});
    let mut body = json!({"assistant_id": "agent", "input": {"messages": [message]}});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

/// Checks that a policy is the reason for which a request is refused.
fn is_forbidden_by_policy(reply: &Reply) {
    assert_eq!(reply.status, 403, "{reply:?}");
    assert_eq!(reply.body["code"], "forbidden_by_policy", "{reply:?}");
}

/// Restarts the server with these policies.
async fn ruled(server: &TestServer, policies: &str, more: &str) -> Keys {
    server.file_is_written("policies/rules.cedar", policies);
    let section = format!("[auth.policies]\nfiles = [\"policies/*.cedar\"]\n{more}");
    server.is_protected_with("", &section).await
}

/// Creates a thread with this metadata.
async fn thread(client: &Client, metadata: Value) -> String {
    let made = client.post("/threads", json!({"metadata": metadata})).await.ok();
    made["thread_id"].as_str().expect("an id").to_owned()
}

/// Returns the threads that a search finds.
async fn found(client: &Client, search: Value) -> Vec<String> {
    let found = client.post("/threads/search", search).await.ok();
    let all = found.as_array().expect("a list");
    all.iter()
        .map(|thread| thread["thread_id"].as_str().expect("an id").to_owned())
        .collect()
}

async fn count(client: &Client) -> i64 {
    client
        .post("/threads/count", json!({}))
        .await
        .ok()
        .as_i64()
        .expect("a number")
}

async fn a_forbidden_change_is_refused_with_the_reason(server: TestServer) {
    let policies = "
        @id(\"nobody-deletes-evidence\")
        forbid(principal, action == Action::\"threads:delete\", resource)
        when { resource.hasTag(\"kind\") && resource.getTag(\"kind\") == \"evidence\" };
        forbid(principal, action == Action::\"crons:create\", resource)
        unless { principal.roles.contains(\"admin\") };";
    let keys = ruled(&server, policies, "").await;
    let ann = keys.client("ann");
    let evidence = thread(&ann, json!({"kind": "evidence"})).await;
    let other = thread(&ann, json!({"kind": "chat"})).await;
    for caller in ["ann", "operator", "root"] {
        let reply = keys.client(caller).delete(&format!("/threads/{evidence}")).await;
        assert_eq!(reply.status, 403, "{caller}: {reply:?}");
        assert_eq!(reply.body["code"], "forbidden_by_policy", "{reply:?}");
        assert!(
            reply.body["detail"].as_str().unwrap().contains("`threads:delete`"),
            "{reply:?}"
        );
    }
    // Others do not learn that it exists.
    keys.client("bob")
        .delete(&format!("/threads/{evidence}"))
        .await
        .refused(404);
    ann.get(&format!("/threads/{evidence}")).await.ok();
    ann.delete(&format!("/threads/{other}")).await.ok();
    let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {}});
    ann.post("/runs/crons", cron.clone()).await.refused(403);
    let root = keys.client("root");
    root.post("/runs/crons", cron).await.ok();
    let found = root.get("/audit?outcome=denied").await.ok();
    let detail = |user: &str, action: &str| {
        let found = found.as_array().expect("a list");
        let is_it = |entry: &&Value| entry["user"] == user && entry["action"] == action;
        found.iter().find(is_it).expect("an entry")["detail"].clone()
    };
    assert_eq!(
        detail("ann", "threads:delete"),
        json!({"policies": ["nobody-deletes-evidence"]})
    );
    assert_eq!(
        detail("ann", "crons:create"),
        json!({"policies": ["policies/rules.cedar#policy1"]})
    );
    // To Bob it is a thread of another user, as without policies.
    assert_eq!(detail("bob", "threads:delete"), json!({}));
}

async fn what_may_not_be_read_is_not_changed_either(server: TestServer) {
    let policies = "
        @id(\"secrets\")
        forbid(principal, action == Action::\"threads:read\", resource)
        when { resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\" }
        unless { resource.owner == principal };";
    let keys = ruled(&server, policies, "").await;
    let secret = thread(&keys.client("ann"), json!({"level": "secret"})).await;
    let root = keys.client("root");
    let path = format!("/threads/{secret}");
    root.patch(&path, json!({"metadata": {"level": "open"}}))
        .await
        .refused(404);
    root.post(&format!("{path}/state"), json!({"values": {"messages": []}}))
        .await
        .refused(404);
    let run = json!({"assistant_id": "agent", "input": {"messages": []}});
    root.post(&format!("{path}/runs/wait"), run).await.refused(404);
    root.delete(&path).await.refused(404);
    let found = root.get("/audit?outcome=denied").await.ok();
    let found = found.as_array().expect("a list");
    assert_eq!(found.len(), 4, "{found:?}");
    for entry in found {
        assert_eq!(entry["detail"], json!({"policies": ["secrets"]}), "{entry}");
    }
    keys.client("ann").delete(&path).await.ok();
}

async fn a_policy_about_runs_is_about_the_thread_of_the_run(server: TestServer) {
    let policies = "
        @id(\"runs-are-for-apollo\")
        forbid(principal, action == Action::\"threads:create_run\", resource)
        unless { resource.hasTag(\"project\") && resource.getTag(\"project\") == \"apollo\" };";
    let keys = ruled(&server, policies, "").await;
    let ann = keys.client("ann");
    let apollo = thread(&ann, json!({"project": "apollo"})).await;
    let other = thread(&ann, json!({"project": "gemini"})).await;
    let message = json!({"role": "user", "content": script().says("x").to_string()});
    let run = json!({"assistant_id": "agent", "input": {"messages": [message]}});
    ann.post(&format!("/threads/{apollo}/runs/wait"), run.clone())
        .await
        .ok();
    for path in [format!("/threads/{other}/runs/wait"), "/runs/wait".to_owned()] {
        let reply = ann.post(&path, run.clone()).await;
        assert_eq!(reply.status, 403, "{path}: {reply:?}");
        assert_eq!(reply.body["code"], "forbidden_by_policy", "{path}: {reply:?}");
    }
}

async fn what_may_not_be_read_does_not_exist(server: TestServer) {
    let policies = "
        forbid(principal, action in Action::\"threads\", resource)
        when { resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\" }
        unless { resource.owner == principal };";
    let keys = ruled(&server, policies, "").await;
    let ann = keys.client("ann");
    let secret = thread(&ann, json!({"level": "secret"})).await;
    ann.get(&format!("/threads/{secret}")).await.ok();
    for caller in ["operator", "root"] {
        let client = keys.client(caller);
        for path in ["", "/state", "/runs"] {
            client.get(&format!("/threads/{secret}{path}")).await.refused(404);
        }
        let run = json!({"assistant_id": "agent", "input": {"messages": []}});
        client.post(&format!("/threads/{secret}/runs"), run).await.refused(404);
    }
}

async fn searches_counts_and_pages_follow_the_policies(server: TestServer) {
    let policies = "
        forbid(principal, action in [Action::\"threads:read\", Action::\"interrupts:read\"], resource)
        when { resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\" }
        unless { resource.owner == principal };
        permit(principal == User::\"acme/bob\", action in [Action::\"threads:read\", Action::\"threads:search\"], resource)
        when { resource.hasTag(\"for\") && (resource.getTag(\"for\") == \"bob\" || resource.getTag(\"for\") == \"all\") };";
    let keys = ruled(&server, policies, "").await;
    let ann = keys.client("ann");
    let secret = thread(&ann, json!({"level": "secret", "for": "bob"})).await;
    let for_bob = thread(&ann, json!({"level": "open", "for": "bob"})).await;
    let for_all = thread(&ann, json!({"for": "all"})).await;
    let plain = thread(&ann, json!({})).await;
    let of_bob = thread(&keys.client("bob"), json!({"level": "secret"})).await;
    for (caller, expected) in [
        ("ann", vec![&plain, &for_all, &for_bob, &secret]),
        ("bob", vec![&of_bob, &for_all, &for_bob]),
        ("operator", vec![&plain, &for_all, &for_bob]),
        ("root", vec![&plain, &for_all, &for_bob]),
    ] {
        let client = keys.client(caller);
        let all = found(&client, json!({"limit": 100})).await;
        assert_eq!(all.iter().collect::<Vec<_>>(), expected, "{caller}");
        assert_eq!(count(&client).await, i64::try_from(expected.len()).unwrap(), "{caller}");
        let second = found(&client, json!({"limit": 2, "offset": 2})).await;
        assert_eq!(second, all[2..all.len().min(4)], "{caller}");
        let tagged = found(&client, json!({"metadata": {"for": "bob"}})).await;
        let expected = all.iter().filter(|id| **id == for_bob || **id == secret);
        assert_eq!(tagged, expected.cloned().collect::<Vec<_>>(), "{caller}");
        for id in [&secret, &for_bob, &for_all, &plain, &of_bob] {
            let reply = client.get(&format!("/threads/{id}")).await;
            let is_found = all.contains(id);
            assert_eq!(reply.status, if is_found { 200 } else { 404 }, "{caller}: {reply:?}");
        }
    }
    assert_eq!(count(&keys.client("root-of-other")).await, 0);
}

async fn a_permission_gives_more_within_the_tenant_and_not_beyond(server: TestServer) {
    let policies = "
        permit(principal, action == Action::\"audit:read\", resource) when { principal == User::\"acme/bob\" };
        permit(principal, action in [Action::\"threads\", Action::\"metrics\"], resource) when { principal.roles.contains(\"approver\") };";
    let keys = ruled(&server, policies, "").await;
    let of_ann = thread(&keys.client("ann"), json!({})).await;
    let elsewhere = thread(&keys.client("root-of-other"), json!({})).await;
    keys.client("bob").get("/audit").await.ok();
    keys.client("ann").get("/audit").await.refused(403);
    let eve = keys.client("eve");
    eve.get(&format!("/threads/{of_ann}")).await.ok();
    eve.patch(&format!("/threads/{of_ann}"), json!({"metadata": {"seen": true}}))
        .await
        .ok();
    assert_eq!(found(&eve, json!({})).await, [of_ann]);
    let reply = eve.get(&format!("/threads/{elsewhere}")).await;
    assert_eq!(reply.status, 403, "{reply:?}");
    // The metrics count for all tenants.
    eve.get("/metrics").await.refused(403);
}

async fn forbidden_assistants_are_not_run(server: TestServer) {
    let policies = "
        forbid(principal, action == Action::\"assistants:read\", resource)
        when { resource.hasTag(\"stage\") && resource.getTag(\"stage\") == \"draft\" }
        unless { resource.owner == principal || principal.roles.contains(\"admin\") };";
    let keys = ruled(&server, policies, "").await;
    let operator = keys.client("operator");
    let draft = json!({"graph_id": "agent", "name": "draft", "metadata": {"stage": "draft"}});
    let made = keys.client("ann").post("/assistants", draft).await.ok();
    let id = made["assistant_id"].as_str().unwrap();
    operator.get(&format!("/assistants/{id}")).await.refused(404);
    let run = json!({"assistant_id": id, "input": {"messages": [{"role": "user", "content": script().says("x").to_string()}]}});
    operator.post("/runs/wait", run.clone()).await.refused(404);
    keys.client("ann").post("/runs/wait", run).await.ok();
    let drafts = json!({"metadata": {"stage": "draft"}});
    for (caller, expected) in [("operator", 0), ("ann", 1), ("root", 1)] {
        let found = keys
            .client(caller)
            .post("/assistants/search", drafts.clone())
            .await
            .ok();
        assert_eq!(found.as_array().map(Vec::len), Some(expected), "{caller}");
    }
    // The default assistants are there as before.
    let all = operator.post("/assistants/search", json!({})).await.ok();
    assert!(all.as_array().is_some_and(|all| !all.is_empty()));
}

async fn a_permission_to_read_interrupts_answers_no_assigned_one(server: TestServer) {
    let policies = "permit(principal == User::\"acme/bob\", action in Action::\"interrupts\", resource);
        forbid(principal == User::\"acme/eve\", action in Action::\"interrupts\", resource)
        when { resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\" };";
    let agent = "[agents.assigned]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\ntools = [\"send_email\"]\n\
        interrupt_on = { send_email = { allowed_decisions = [\"approve\"], approvers = { roles = [\"approver\"] } } }\n";
    let keys = ruled(&server, policies, agent).await;
    for level in ["open", "secret"] {
        let id = thread(&keys.client("ann"), json!({"level": level})).await;
        let ann = Human::at(keys.client("ann"), "assigned", &id);
        ann.says(script().calls(mail("m1", "bob")).says("sent")).await;
        let question = ann.question().await;
        let approval = json!({"decisions": [{"type": "approve"}]});
        let bob = Human::at(keys.client("bob"), "assigned", &id);
        assert_eq!(bob.question().await.id(), question.id());
        bob.resolves(&question, approval.clone()).await.refused(403);
        let eve = Human::at(keys.client("eve"), "assigned", &id);
        let seen = eve.client().get("/interrupts").await.ok();
        let seen = seen["interrupts"].as_array().expect("a list").len();
        let reply = eve.resolves(&question, approval).await;
        match level {
            "open" => {
                assert_eq!(seen, 1);
                ann.run(&reply.ok()).finishes().await;
            }
            _ => {
                assert_eq!(seen, 0);
                assert!(matches!(reply.status, 403 | 404), "{reply:?}");
            }
        }
    }
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn what_is_created_is_decided_about_with_its_metadata(server: TestServer) {
    let policies = "
        forbid(principal, action in [Action::\"threads:create\", Action::\"assistants:create\"], resource)
        when { resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\" }
        unless { principal.roles.contains(\"admin\") };";
    let keys = ruled(&server, policies, "").await;
    let ann = keys.client("ann");
    let secret = json!({"level": "secret"});
    is_forbidden_by_policy(&ann.post("/threads", json!({"metadata": secret})).await);
    let assistant = json!({"graph_id": "agent", "metadata": secret});
    is_forbidden_by_policy(&ann.post("/assistants", assistant.clone()).await);
    keys.client("root").post("/assistants", assistant).await.ok();
    thread(&keys.client("root"), secret.clone()).await;
    let plain = format!("/threads/{}", thread(&ann, json!({"level": "open"})).await);
    ann.post(&format!("{plain}/copy"), json!({})).await.ok();
    ann.patch(&plain, json!({"metadata": secret})).await.ok();
    is_forbidden_by_policy(&ann.post(&format!("{plain}/copy"), json!({})).await);
    assert_eq!(count(&ann).await, 2);
}

async fn a_run_creates_no_thread_that_a_policy_forbids(server: TestServer) {
    let policies = "
        forbid(principal, action == Action::\"threads:create\", resource)
        unless { principal.roles.contains(\"admin\") };";
    let keys = ruled(&server, policies, "").await;
    let ann = keys.client("ann");
    is_forbidden_by_policy(&ann.post("/threads", json!({})).await);
    let id = "5ca1ab1e-0000-4000-8000-000000000001";
    let new = a_run(json!({"if_not_exists": "create"}));
    is_forbidden_by_policy(&ann.post(&format!("/threads/{id}/runs/wait"), new.clone()).await);
    let kept = a_run(json!({"on_completion": "keep"}));
    is_forbidden_by_policy(&ann.post("/runs/wait", kept.clone()).await);
    is_forbidden_by_policy(&ann.post("/runs/batch", json!([kept])).await);
    assert_eq!(count(&keys.client("root")).await, 0);
    // The thread of an ordinary stateless run goes with the run.
    ann.post("/runs/wait", a_run(json!({}))).await.ok();
    keys.client("root")
        .post(&format!("/threads/{id}/runs/wait"), new)
        .await
        .ok();
}

async fn a_run_displaces_none_that_a_policy_protects(server: TestServer) {
    let policies = "
        forbid(principal, action == Action::\"threads:update\", resource)
        when { resource.hasTag(\"hold\") && resource.getTag(\"hold\") == \"yes\" };";
    let keys = ruled(&server, policies, "").await;
    let id = thread(&keys.client("ann"), json!({"hold": "yes"})).await;
    let ann = Human::at(keys.client("ann"), "agent", &id);
    server.tools.hold("lookup");
    let first = ann.asks(script().calls(lookup("l1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    let path = format!("/threads/{id}/runs");
    for strategy in ["interrupt", "rollback"] {
        let run = a_run(json!({"multitask_strategy": strategy}));
        is_forbidden_by_policy(&ann.client().post(&path, run).await);
    }
    let waiting = a_run(json!({"multitask_strategy": "enqueue"}));
    let second = ann.run(&ann.client().post(&path, waiting).await.ok());
    server.tools.let_go("lookup");
    first.finishes().await;
    second.finishes().await;
}

async fn a_run_is_not_rolled_back_if_a_policy_forbids_its_deletion(server: TestServer) {
    let policies = "
        forbid(principal, action == Action::\"threads:delete\", resource)
        when { resource.hasTag(\"hold\") && resource.getTag(\"hold\") == \"yes\" };";
    let keys = ruled(&server, policies, "").await;
    let id = thread(&keys.client("ann"), json!({"hold": "yes"})).await;
    let ann = Human::at(keys.client("ann"), "agent", &id);
    server.tools.hold("lookup");
    let run = ann.asks(script().calls(lookup("l1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    is_forbidden_by_policy(&run.is_cancelled("rollback").await);
    let listed = json!({"thread_id": id, "run_ids": [run.id]});
    is_forbidden_by_policy(&ann.client().post("/runs/cancel?action=rollback", listed).await);
    let all = json!({"status": "all"});
    ann.client()
        .post("/runs/cancel?action=rollback", all)
        .await
        .refused(404);
    let displacing = a_run(json!({"multitask_strategy": "rollback"}));
    is_forbidden_by_policy(&ann.client().post(&format!("/threads/{id}/runs"), displacing).await);
    assert_eq!(run.status().await, "running");
    run.is_cancelled("interrupt").await.ok();
    assert_eq!(run.status().await, "interrupted");
    server.tools.let_go("lookup");
}

/// Threads with this metadata are not changed.
const HELD: &str = "
    forbid(principal, action == Action::\"threads:update\", resource)
    when { resource.hasTag(\"hold\") && resource.getTag(\"hold\") == \"yes\" }
    unless { principal.roles.contains(\"admin\") };";

async fn a_command_writes_no_state_that_a_policy_protects(server: TestServer) {
    let keys = ruled(&server, HELD, "").await;
    let ann = keys.client("ann");
    let held = format!("/threads/{}", thread(&ann, json!({"hold": "yes"})).await);
    let free = format!("/threads/{}", thread(&ann, json!({})).await);
    let note = json!({"messages": [{"role": "user", "content": "a note"}]});
    let run = json!({"assistant_id": "agent", "command": {"update": note}});
    let mut cron = run.clone();
    cron["schedule"] = json!("0 0 1 1 *");
    let bodies = [
        ("state", json!({"values": note})),
        ("runs", run.clone()),
        ("runs/wait", run.clone()),
        ("runs/stream", run.clone()),
        ("runs/crons", cron.clone()),
    ];
    for (path, body) in bodies {
        is_forbidden_by_policy(&ann.post(&format!("{held}/{path}"), body).await);
    }
    ann.post(&format!("{held}/runs/wait"), a_run(json!({}))).await.ok();
    ann.post(&format!("{free}/runs/wait"), run.clone()).await.ok();
    ann.post(&format!("{free}/runs/crons"), cron).await.ok();
    keys.client("root").post(&format!("{held}/runs/wait"), run).await.ok();
}

async fn a_delayed_command_writes_no_state_that_a_policy_protects_by_now(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    let keys = ruled(&server, HELD, "").await;
    let id = thread(&keys.client("ann"), json!({})).await;
    let ann = Human::at(keys.client("ann"), "agent", &id);
    let note = json!({"messages": [{"role": "user", "content": "a note"}]});
    let run = ann
        .starts(json!({"command": {"update": note}, "after_seconds": 3600}))
        .await;
    let hold = json!({"metadata": {"hold": "yes"}});
    ann.client().patch(&ann.path(""), hold).await.ok();
    clock.advance(Duration::from_secs(3601));
    run.finishes().await;
    assert_eq!(run.status().await, "error");
    assert!(!ann.state().await.to_string().contains("a note"));
}

async fn what_may_not_be_read_is_reached_by_no_other_name(server: TestServer) {
    let policies = "
        forbid(principal, action == Action::\"store:get\", resource)
        unless { principal.roles.contains(\"admin\") };
        forbid(principal, action == Action::\"assistants:read\", resource)
        when { resource.hasTag(\"created_by\") && resource.getTag(\"created_by\") == \"system\" }
        unless { principal.roles.contains(\"admin\") };";
    let keys = ruled(&server, policies, "").await;
    let ann = keys.client("ann");
    is_forbidden_by_policy(&ann.get("/store/items?namespace=notes&key=one").await);
    is_forbidden_by_policy(&ann.post("/store/items/search", json!({})).await);
    is_forbidden_by_policy(&ann.post("/store/namespaces", json!({})).await);
    keys.client("root")
        .post("/store/items/search", json!({"namespace_prefix": ["notes"]}))
        .await
        .ok();
    // The name of a definition stands for its default assistant.
    for path in ["graph", "schemas", "subgraphs"] {
        let path = format!("/assistants/agent/{path}");
        ann.get(&path).await.refused(404);
        keys.client("root").get(&path).await.ok();
    }
    ann.post("/runs/wait", a_run(json!({}))).await.refused(404);
}

async fn commands_to_a_thread_follow_the_policies(server: TestServer) {
    let keys = ruled(&server, SECRETS, "").await;
    let secret = thread(&keys.client("ann"), json!({"level": "secret"})).await;
    let path = format!("/threads/{secret}/commands");
    let commands = [
        json!({"id": 1, "method": "run.start", "params": a_run(json!({}))}),
        json!({"id": 2, "method": "agent.getTree", "params": {}}),
    ];
    let root = keys.client("root");
    for command in &commands {
        let answer = root.post(&path, command.clone()).await.ok();
        assert_eq!(answer["type"], "error", "{answer}");
        assert!(
            answer["message"].as_str().is_some_and(|text| text.starts_with("404")),
            "{answer}"
        );
    }
    let started = keys.client("ann").post(&path, commands[0].clone()).await.ok();
    assert_eq!(started["type"], "success", "{started}");
    let ann = Human::at(keys.client("ann"), "agent", &secret);
    eventually(async || ann.status().await == "idle").await;
    assert_eq!(ann.runs().await.len(), 1);
}

async fn what_is_forbidden_on_a_thread_is_forbidden_on_those_of_its_background_tasks(server: TestServer) {
    let keys = ruled(&server, SECRETS, &boss("")).await;
    let root = keys.client("root");
    for level in ["open", "secret"] {
        let id = thread(&keys.client("ann"), json!({"level": level})).await;
        let ann = Human::at(keys.client("ann"), "boss", &id);
        let work = script().says("the long text");
        ann.says(script().calls(start("a1", "courier", work)).says("it is under way"))
            .await;
        let task = worker(&ann, &the_task(&ann).await);
        eventually(async || task.status().await == "idle").await;
        let is_open = level == "open";
        let all = found(&root, json!({"limit": 100})).await;
        assert_eq!(all.contains(&task.thread), is_open, "{level}");
        assert_eq!(count(&root).await, 2, "{level}");
        for path in ["", "/state", "/history", "/runs"] {
            let reply = root.get(&task.path(path)).await;
            assert_eq!(
                reply.status,
                if is_open { 200 } else { 404 },
                "{level} {path}: {reply:?}"
            );
        }
        assert!(
            found(&keys.client("ann"), json!({"limit": 100}))
                .await
                .contains(&task.thread)
        );
    }
}

async fn a_cron_starts_no_run_that_a_policy_forbids(server: TestServer) {
    let policies = format!(
        "{SECRETS}
        @id(\"on-hold\")
        forbid(principal, action == Action::\"threads:create_run\", resource)
        when {{ resource.hasTag(\"hold\") && resource.getTag(\"hold\") == \"yes\" }}
        unless {{ principal.roles.contains(\"admin\") }};"
    );
    let keys = ruled(&server, &policies, "").await;
    let ann = keys.client("ann");
    let crons = |thread: &str| format!("/threads/{thread}/runs/crons");
    let cron = a_run(json!({"schedule": "0 0 1 1 *"}));
    let held = thread(&ann, json!({"hold": "yes"})).await;
    is_forbidden_by_policy(&ann.post(&crons(&held), cron.clone()).await);
    let secret = thread(&ann, json!({"level": "secret"})).await;
    keys.client("root")
        .post(&crons(&secret), cron.clone())
        .await
        .refused(404);
    let free = thread(&ann, json!({})).await;
    ann.post(&crons(&free), cron).await.ok();
    all_are_due(&server).await;
    let human = Human::at(keys.client("ann"), "agent", &free);
    eventually(async || human.runs().await.iter().any(|run| run["status"] == "success")).await;
    // The policies look at the thread as it is when the cron is due.
    ann.patch(&format!("/threads/{free}"), json!({"metadata": {"hold": "yes"}}))
        .await
        .ok();
    all_are_due(&server).await;
    let root = keys.client("root");
    let resource = format!("thread:{free}");
    eventually(async || {
        let denied = root.get("/audit?outcome=denied").await.ok();
        let is_it = |entry: &Value| entry["resource"] == resource.as_str() && entry["user"] == "ann";
        let denied = denied.as_array().expect("a list");
        denied
            .iter()
            .any(|entry| is_it(entry) && entry["detail"] == json!({"policies": ["on-hold"]}))
    })
    .await;
    assert_eq!(human.runs().await.len(), 1);
}

async fn the_report_of_a_run_does_not_show_a_forbidden_thread(server: TestServer) {
    let keys = ruled(&server, SECRETS, "").await;
    let receiver = WebhookReceiver::start().await;
    let id = thread(&keys.client("ann"), json!({"level": "secret"})).await;
    let ann = Human::at(keys.client("ann"), "agent", &id);
    let hook = json!({"webhook": format!("{}/hook", receiver.base)});
    ann.starts(ann.run_body(script().says("the secret"), hook)).await;
    receiver.receives(1).await;
    let all = keys.client("root").get("/webhooks/deliveries").await.ok();
    let path = format!(
        "/webhooks/deliveries/{}",
        all[0]["delivery_id"].as_str().expect("an id")
    );
    let shown = keys.client("root").get(&path).await.ok();
    assert!(shown["payload"].is_null(), "{shown}");
    let shown = keys.client("ann").get(&path).await.ok();
    assert!(shown["payload"]["values"].to_string().contains("the secret"), "{shown}");
}

/// Returns the policies in the page about access.
fn documented() -> String {
    let page = include_str!("../../../docs/access.md");
    let blocks = page.split("```text\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let texts: Vec<&str> = blocks.filter(|block| block.contains("(principal")).collect();
    assert!(!texts.is_empty(), "the page has no policies");
    texts.join("\n")
}

async fn the_policies_of_the_documents_do_what_they_say(server: TestServer) {
    let keys = ruled(&server, &documented(), "").await;
    let ann = keys.client("ann");
    let locked = thread(&ann, json!({"legal_hold": "yes"})).await;
    ann.delete(&format!("/threads/{locked}")).await.refused(403);
    let unlocking = json!({"metadata": {"legal_hold": "no"}});
    ann.patch(&format!("/threads/{locked}"), unlocking).await.refused(403);
    let case = thread(&ann, json!({"project": "apollo"})).await;
    let bob = keys.client("bob");
    assert_eq!(found(&bob, json!({})).await, std::slice::from_ref(&case));
    bob.get(&format!("/threads/{case}")).await.ok();
    bob.delete(&format!("/threads/{case}")).await.refused(404);
    let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {}});
    ann.post("/runs/crons", cron).await.refused(403);
}
