//! The data of users over HTTP: its export and its deletion, while the server works.

use reqwest::Method;
use serde_json::{Value, json};

use super::encryption::{MARKER, converses, is_stored, of_type};
use super::tenants::values_of;
use crate::support::client::{Client, reply};
use crate::support::{Human, TestServer, call, eventually, lookup, on_both_engines, script};

on_both_engines! {
    an_admin_exports_everything_of_a_user,
    exported_events_have_the_fields_that_are_empty,
    an_admin_deletes_a_user_whose_run_is_at_work,
    a_deleted_user_leaves_nothing_in_the_database,
    who_erases_entries_of_the_audit_is_named_in_it,
    a_second_key_does_not_hide_who_has_erased_entries_of_the_audit,
    a_user_of_another_tenant_keeps_everything,
    users_neither_export_nor_delete,
    without_authentication_there_are_no_users,
    mistakes_are_named,
}

/// Returns the lines of the export of a user.
async fn exported(client: &Client, user: &str) -> Vec<Value> {
    let request = client.request(Method::GET, &format!("/users/{user}/export"));
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/jsonl");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let text = response.text().await.expect("the lines");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

/// Counts of a deletion that found nothing.
fn nothing() -> Value {
    json!({"api_keys": 0, "threads": 0, "assistants": 0, "crons": 0, "items": 0, "webhook_deliveries": 0,
        "audit_entries": 0})
}

async fn an_admin_exports_everything_of_a_user(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = converses(keys.client("ann"), MARKER).await;
    let bob = converses(keys.client("bob"), "said-by-bob").await;
    let root = keys.client("root");
    let lines = exported(&root, "ann").await;
    assert_eq!(of_type(&lines, "user"), [&json!({"user": "ann", "tenant": "acme"})]);
    assert_eq!(of_type(&lines, "thread")[0]["thread_id"], json!(ann.thread));
    for kind in ["thread", "run", "interrupt", "checkpoint", "item"] {
        let text = json!(of_type(&lines, kind)).to_string();
        assert!(text.contains(MARKER), "{kind}: {text}");
    }
    let entries = of_type(&lines, "audit_entry");
    assert!(entries.iter().any(|entry| entry["action"] == "threads:create"));
    let all = json!(lines).to_string();
    assert!(!all.contains("said-by-bob") && !all.contains(bob.thread.as_str()));
    let audit = root.get("/audit?action=users:export").await.ok();
    assert_eq!(audit[0]["user"], "root", "{audit}");
    assert_eq!(audit[0]["resource"], "user:ann", "{audit}");
}

async fn exported_events_have_the_fields_that_are_empty(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let root = keys.client("root");
    // Results that arrive together are not events of their own: the second call waits until the first result is stored.
    server.tools.hold("lookup");
    let both = [call("a", "note", json!({"update": {}})), lookup("b", "y")];
    let run = ann.asks(script().calls_all(both).says("done")).await;
    let is_answer = |event: &&Value| event["event"]["fact"] == "answered";
    eventually(async || of_type(&exported(&root, "ann").await, "event").iter().any(is_answer)).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let lines = exported(&root, "ann").await;
    let events = of_type(&lines, "event");
    let first = |kind: &str| {
        let found = events.iter().find(|line| line["event"]["fact"] == kind);
        &found.unwrap_or_else(|| panic!("no {kind} in {events:?}"))["event"]
    };
    let started = first("started").as_object().expect("an object");
    assert_eq!(started.get("base"), Some(&Value::Null));
    let result = &first("answered")["writes"]["messages"][0];
    assert_eq!(result["type"], "tool", "{result}");
    assert_eq!(result["status"], "success", "{result}");
    assert_eq!(result["additional_kwargs"], json!({}), "{result}");
    assert_eq!(result["response_metadata"], json!({}), "{result}");
    let ended = first("ended");
    assert_eq!(ended["waits"], false, "{ended}");
    assert!(
        ended.as_object().is_some_and(|ended| ended.contains_key("error")),
        "{ended}"
    );
    for counted in ["own", "tree"] {
        let used = &ended["used"][counted];
        assert_eq!(used["tool_calls"], 2, "{ended}");
        assert_eq!(used["children"], 0, "{ended}");
    }
}

async fn an_admin_deletes_a_user_whose_run_is_at_work(server: TestServer) {
    let keys = server.is_protected().await;
    let root = keys.client("root");
    let issued = json!({"name": "phone", "user": "ann", "roles": ["user"]});
    let issued = root.post("/auth/keys", issued).await.ok();
    let phone = keys.with(issued["api_key"].as_str().expect("a key"));
    let ann = converses(phone.clone(), MARKER).await;
    let bob = converses(keys.client("bob"), "said-by-bob").await;
    server.tools.hold("lookup");
    let busy = Human::on_new_thread(phone.clone(), "agent").await;
    let text = script().calls(lookup("l", "x")).says("done").to_string();
    let body = json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": text}]}});
    busy.starts(body).await;
    server.tools.called("lookup", 1).await;
    let deleted = root.delete("/users/ann").await.ok();
    let expected = json!({"api_keys": 1, "threads": 2, "assistants": 0, "crons": 0, "items": 1,
        "webhook_deliveries": 0, "audit_entries": 0});
    assert_eq!(deleted, expected);
    assert_eq!(phone.get("/auth/me").await.status, 401, "the key is gone at once");
    for human in [&ann, &busy] {
        assert_eq!(root.get(&human.path("")).await.status, 404);
    }
    let left = exported(&root, "ann").await;
    let entries = of_type(&left, "audit_entry").len();
    assert!(entries > 0, "the audit stays unless it is named");
    assert_eq!(left.len(), 1 + entries, "{left:?}");
    assert!(bob.state().await.to_string().contains("said-by-bob"));
    let with_audit = root.delete("/users/ann?audit=true").await.ok();
    assert_eq!(with_audit["audit_entries"], json!(entries), "{with_audit}");
    assert_eq!(exported(&root, "ann").await.len(), 1);
    assert_eq!(root.delete("/users/ann").await.ok(), nothing());
}

async fn a_deleted_user_leaves_nothing_in_the_database(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let human = converses(ann.clone(), MARKER).await;
    ann.post(&human.path("/copy"), json!({})).await.ok();
    let assistant =
        json!({"graph_id": "agent", "name": MARKER, "context": {"note": MARKER}, "metadata": {"m": MARKER}});
    // The answer is kept for a repeated request.
    let create = ann
        .request(Method::POST, "/assistants")
        .header("Idempotency-Key", "once");
    reply(create.json(&assistant)).await.ok();
    let input = json!({"messages": [{"role": "user", "content": MARKER}]});
    let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": input, "metadata": {"m": MARKER}});
    ann.post("/runs/crons", cron).await.ok();
    let report = json!({"assistant_id": "agent", "input": input, "webhook": "http://127.0.0.1:9/nobody-listens"});
    ann.post("/runs/wait", report).await.ok();
    let bob = converses(keys.client("bob"), "said-by-bob").await;
    assert!(is_stored(&server, MARKER).await, "a plain database shows it");
    keys.client("root").delete("/users/ann").await.ok();
    eventually(async || !is_stored(&server, MARKER).await).await;
    server.is_stopped().await;
    assert!(!is_stored(&server, MARKER).await);
    server.is_stopped_and_started_again().await;
    assert!(bob.state().await.to_string().contains("said-by-bob"));
}

async fn who_erases_entries_of_the_audit_is_named_in_it(server: TestServer) {
    let root = server.is_protected().await.client("root");
    root.thread().await;
    for times in 1..=2 {
        root.delete("/users/root?audit=true").await.ok();
        let left = root.get("/audit?user=root").await.ok();
        assert_eq!(values_of(&left, "action"), vec!["users:delete"; times]);
        assert_eq!(values_of(&left, "resource"), vec!["user:root"; times]);
    }
}

async fn a_second_key_does_not_hide_who_has_erased_entries_of_the_audit(server: TestServer) {
    let root = server.is_protected().await.client("root");
    root.thread().await;
    let body = json!({"name": "second", "user": "shadow", "roles": ["admin"]});
    let second = root.post("/auth/keys", body).await.ok();
    let shadow = root.with_key(second["api_key"].as_str().expect("a key"));
    shadow.delete("/users/root?audit=true").await.ok();
    let third = json!({"name": "third", "user": "shadow", "roles": ["admin"]});
    shadow.post("/auth/keys", third).await.ok();
    root.delete("/users/shadow?audit=true").await.ok();
    let left = root.get("/audit?limit=100").await.ok();
    let of = |user: &str| {
        let mut actions: Vec<String> = vec![];
        for entry in left.as_array().expect("a list") {
            if entry["user"] == user {
                actions.push(entry["action"].as_str().expect("a text").to_owned());
            }
        }
        actions
    };
    assert_eq!(of("root"), ["users:delete", "keys:write", "keys:write"], "{left}");
    assert_eq!(of("shadow"), ["keys:write", "keys:write", "users:delete"], "{left}");
    let named = json!({"user": "shadow", "roles": ["admin"]});
    let details = left.as_array().expect("a list").iter().map(|entry| &entry["detail"]);
    let has_named = details
        .filter(|detail| detail["user"] == named["user"] && detail["roles"] == named["roles"])
        .count();
    assert_eq!(has_named, 2, "{left}");
}

async fn a_user_of_another_tenant_keeps_everything(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = converses(keys.client("ann"), MARKER).await;
    let stranger = keys.client("root-of-other");
    assert_eq!(exported(&stranger, "ann").await.len(), 1);
    assert_eq!(stranger.delete("/users/ann?audit=true").await.ok(), nothing());
    assert!(ann.state().await.to_string().contains(MARKER));
    assert!(exported(&keys.client("root"), "ann").await.len() > 10);
}

async fn users_neither_export_nor_delete(server: TestServer) {
    let keys = server.is_protected().await;
    for caller in ["ann", "operator", "eve"] {
        let client = keys.client(caller);
        client.get("/users/ann/export").await.refused(403);
        client.delete("/users/ann").await.refused(403);
    }
}

async fn without_authentication_there_are_no_users(server: TestServer) {
    server.client().get("/users/ann/export").await.refused(409);
    server.client().delete("/users/ann").await.refused(409);
}

async fn mistakes_are_named(server: TestServer) {
    let root = server.is_protected().await.client("root");
    let name = root.delete("/users/a%0Ab").await.refused(422);
    assert!(name.contains("user_id"), "{name}");
    let audit = root.delete("/users/ann?audit=perhaps").await.refused(422);
    assert!(audit.contains("audit"), "{audit}");
}
