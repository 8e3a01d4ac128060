//! The audit: who did what, from where, and whether it was allowed.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::{Human, TestServer, mail, on_both_engines, script};

on_both_engines! {
    a_change_is_recorded_with_its_caller_and_resource,
    a_refusal_is_recorded,
    the_decisions_of_an_approval_are_recorded_without_their_contents,
    only_admins_of_the_tenant_read_the_audit,
    the_audit_is_read_in_pages_and_as_json_lines,
    an_entry_is_durable_before_the_response,
}

/// Returns the entries that match a query, newest first.
async fn entries(client: &Client, query: &str) -> Vec<Value> {
    let found = client.get(&format!("/audit?{query}")).await.ok();
    found.as_array().expect("a list").clone()
}

async fn a_change_is_recorded_with_its_caller_and_resource(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    ann.get(&format!("/threads/{thread}")).await.ok();
    ann.delete(&format!("/threads/{thread}")).await.ok();
    let found = entries(&keys.client("root"), "user=ann").await;
    let seen: Vec<_> = found.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(seen, ["threads:delete", "threads:create"]);
    assert_eq!(&found[0]["resource"], &json!(format!("thread:{thread}")));
    assert_eq!(&found[0]["outcome"], &json!("allowed"));
    assert_eq!(&found[0]["tenant"], &json!("acme"));
    assert_eq!(&found[0]["address"], &json!("127.0.0.1"));
    assert!(
        found[0]["credential"]
            .as_str()
            .is_some_and(|text| text.starts_with("key:")),
        "{found:?}"
    );
}

async fn a_refusal_is_recorded(server: TestServer) {
    let keys = server.is_protected().await;
    let thread = keys.client("ann").thread().await;
    let bob = keys.client("bob");
    bob.get(&format!("/threads/{thread}")).await.refused(404);
    bob.get("/audit").await.refused(403);
    let run = Human::at(bob.clone(), "agent", &thread).run_body(script().says("hi"), json!({}));
    bob.post(&format!("/threads/{thread}/runs"), run).await.refused(404);
    let root = keys.client("root");
    // The refusal of an admission is recorded beside the response.
    crate::support::eventually(async || entries(&root, "user=bob&outcome=denied").await.len() == 3).await;
    let found = entries(&root, "user=bob&outcome=denied").await;
    let seen: Vec<_> = found.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(seen, ["threads:create_run", "audit:read", "threads:read"]);
}

async fn the_decisions_of_an_approval_are_recorded_without_their_contents(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let human = Human::on_new_thread(ann.clone(), "agent").await;
    human.says(script().calls(mail("m1", "bob")).says("as you wish")).await;
    let question = human.question().await;
    let answer = json!({"decisions": [{"type": "reject", "message": "a private reason"}]});
    let resolved = human.resolves(&question, answer).await.ok();
    human.run(&resolved).finishes().await;
    let resource = format!("thread:{}/interrupt:{}", human.thread, question.id());
    let found = entries(&keys.client("root"), &format!("resource={resource}")).await;
    let with_decisions: Vec<_> = found.iter().filter(|entry| entry["detail"] != json!({})).collect();
    assert_eq!(with_decisions.len(), 1, "{found:?}");
    assert_eq!(&with_decisions[0]["detail"], &json!({"decisions": ["reject"]}));
    assert_eq!(&with_decisions[0]["user"], &json!("ann"));
    assert!(!format!("{found:?}").contains("private reason"));
}

async fn only_admins_of_the_tenant_read_the_audit(server: TestServer) {
    let keys = server.is_protected().await;
    keys.client("ann").thread().await;
    for caller in ["ann", "operator"] {
        keys.client(caller).get("/audit").await.refused(403);
    }
    keys.nobody().get("/audit").await.refused(401);
    let theirs = entries(&keys.client("root-of-other"), "").await;
    assert_eq!(theirs, Vec::<Value>::new());
    assert!(!entries(&keys.client("root"), "").await.is_empty());
}

async fn the_audit_is_read_in_pages_and_as_json_lines(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    for _ in 0..5 {
        ann.thread().await;
    }
    let root = keys.client("root");
    let all = entries(&root, "user=ann").await;
    assert_eq!(all.len(), 5);
    let first = entries(&root, "user=ann&limit=2").await;
    let last = first[1]["id"].as_str().unwrap();
    let rest = entries(&root, &format!("user=ann&before={last}")).await;
    assert_eq!([first.as_slice(), &rest].concat(), all);
    let lines = root.get("/audit?user=ann&format=jsonl").await.ok();
    let lines = lines.as_str().expect("a text").lines();
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines, all);
}

async fn an_entry_is_durable_before_the_response(server: TestServer) {
    let keys = server.is_protected().await;
    server.moves_into_a_process().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    server.is_killed_and_started_again().await;
    let found = entries(&keys.client("root"), "user=ann").await;
    assert_eq!(found.len(), 1);
    ann.get(&format!("/threads/{thread}")).await.ok();
}
