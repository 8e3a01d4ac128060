//! The audit: who did what, from where, and whether it was allowed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use crate::support::client::{Client, reply};
use crate::support::{Engine, Human, TestServer, eventually, mail, on_both_engines, script};

on_both_engines! {
    a_change_is_recorded_with_its_caller_and_resource,
    a_refusal_is_recorded,
    a_copy_of_a_thread_is_recorded,
    a_refusal_is_recorded_whatever_characters_the_path_has,
    a_thread_has_one_name_in_the_audit_however_its_id_is_spelled,
    a_request_for_an_assistant_of_another_tenant_is_recorded,
    the_decisions_of_an_approval_are_recorded_without_their_contents,
    only_admins_of_the_tenant_read_the_audit,
    the_audit_is_read_in_pages_and_as_json_lines,
    threads_that_are_pruned_are_named,
    the_thread_of_runs_that_a_request_lists_is_named,
    a_new_key_is_named_with_its_rights,
    an_entry_is_durable_before_the_response,
    a_request_that_fails_after_it_was_allowed_is_recorded,
    a_repeated_request_is_recorded_each_time,
    commands_to_a_thread_are_recorded,
    a_change_whose_entry_cannot_be_stored_is_not_made,
    a_kill_separates_no_change_from_its_entry,
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

async fn a_copy_of_a_thread_is_recorded(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    ann.post(&format!("/threads/{thread}/copy"), json!({})).await.ok();
    keys.client("bob")
        .post(&format!("/threads/{thread}/copy"), json!({}))
        .await
        .refused(404);
    let query = format!("action=threads:create&resource=thread:{thread}");
    let found = entries(&keys.client("root"), &query).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(&found[0]["user"], &json!("ann"));
    assert_eq!(&found[0]["outcome"], &json!("allowed"));
}

async fn a_refusal_is_recorded(server: TestServer) {
    let keys = server.is_protected().await;
    let thread = keys.client("ann").thread().await;
    let bob = keys.client("bob");
    bob.get(&format!("/threads/{thread}")).await.refused(404);
    bob.get("/audit").await.refused(403);
    let run = Human::at(bob.clone(), "agent", &thread).run_body(script().says("hi"), json!({}));
    bob.post(&format!("/threads/{thread}/runs"), run).await.refused(404);
    let body = json!({"thread_id": thread, "run_ids": []});
    bob.post("/runs/cancel", body).await.refused(404);
    let found = entries(&keys.client("root"), "user=bob&outcome=denied").await;
    let seen: Vec<_> = found.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(
        seen,
        ["threads:update", "threads:create_run", "audit:read", "threads:read"]
    );
}

async fn a_refusal_is_recorded_whatever_characters_the_path_has(server: TestServer) {
    let keys = server.is_protected().await;
    keys.client("ann").delete("/users/a%00b").await.refused(403);
    let root = keys.client("root");
    let invalid = root.delete("/users/a%00b").await.refused(422);
    assert!(invalid.contains("user_id: contains the character U+0000"), "{invalid}");
    let found = entries(&root, "action=users:delete").await;
    let seen: Vec<_> = found.iter().map(|entry| (&entry["user"], &entry["outcome"])).collect();
    assert_eq!(
        seen,
        [(&json!("root"), &json!("allowed")), (&json!("ann"), &json!("denied"))]
    );
    assert_eq!(&found[0]["resource"], "user:a\u{fffd}b");
}

async fn a_thread_has_one_name_in_the_audit_however_its_id_is_spelled(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let spellings: [fn(&str) -> String; 2] = [str::to_uppercase, |id| id.replace('-', "")];
    for spelled in spellings {
        let thread = ann.thread().await;
        ann.delete(&format!("/threads/{}", spelled(&thread))).await.ok();
        let query = format!("action=threads:delete&resource=thread:{thread}");
        let found = entries(&keys.client("root"), &query).await;
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

async fn a_request_for_an_assistant_of_another_tenant_is_recorded(server: TestServer) {
    let keys = server.is_protected().await;
    let created = keys
        .client("ann")
        .post("/assistants", json!({"graph_id": "agent"}))
        .await
        .ok();
    let assistant = created["assistant_id"].as_str().expect("an id");
    let stranger = keys.client("root-of-other");
    let run = json!({"assistant_id": assistant, "input": {}});
    stranger.post("/runs", run.clone()).await.refused(404);
    let cron = json!({"assistant_id": assistant, "schedule": "0 0 1 1 *", "input": {}});
    stranger.post("/runs/crons", cron).await.refused(404);
    let query = format!("action=assistants:read&outcome=denied&resource=assistant:{assistant}");
    eventually(async || entries(&stranger, &query).await.len() == 2).await;
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

async fn threads_that_are_pruned_are_named(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let own = ann.thread().await;
    let of_bob = keys.client("bob").thread().await;
    let body = json!({"thread_ids": [own, of_bob]});
    let pruned = ann.post("/threads/prune", body).await.ok();
    assert_eq!(pruned, json!({"pruned_count": 1}));
    for (thread, outcome) in [(own, "allowed"), (of_bob, "denied")] {
        let query = format!("action=threads:delete&resource=thread:{thread}");
        let found = entries(&keys.client("root"), &query).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0]["user"], "ann");
        assert_eq!(found[0]["outcome"], outcome);
    }
}

async fn the_thread_of_runs_that_a_request_lists_is_named(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let body = json!({"thread_id": thread, "run_ids": [thread]});
    // There is no such run, but the thread is ann's.
    ann.post("/runs/cancel", body).await.refused(404);
    let query = format!("action=threads:update&resource=thread:{thread}");
    let found = entries(&keys.client("root"), &query).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(&found[0]["outcome"], "allowed");
}

async fn a_new_key_is_named_with_its_rights(server: TestServer) {
    let keys = server.is_protected().await;
    let root = keys.client("root");
    let key = json!({"name": "laptop", "user": "carol", "roles": ["operator"], "scopes": ["threads:read"]});
    let made = root.post("/auth/keys", key).await.ok();
    let id = made["key_id"].as_str().expect("an id");
    let found = entries(&root, &format!("resource=key:{id}")).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["action"], "keys:write");
    assert_eq!(found[0]["user"], "root");
    let rights = json!({"user": "carol", "roles": ["operator"], "scopes": ["threads:read"]});
    assert_eq!(found[0]["detail"], rights);
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

async fn a_request_that_fails_after_it_was_allowed_is_recorded(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    ann.post("/threads", json!({"thread_id": thread})).await.refused(409);
    ann.post("/threads", json!({"metadata": 7})).await.refused(422);
    ann.delete(&format!("/threads/{thread}/runs/{thread}"))
        .await
        .refused(404);
    let found = entries(&keys.client("root"), "user=ann&outcome=allowed").await;
    let seen: Vec<_> = found.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(
        seen,
        ["threads:delete", "threads:create", "threads:create", "threads:create"]
    );
}

async fn a_repeated_request_is_recorded_each_time(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let mut threads = vec![];
    for _ in 0..3 {
        let request = ann.request(Method::POST, "/threads").header("Idempotency-Key", "k");
        let thread = reply(request.json(&json!({}))).await.ok();
        threads.push(thread["thread_id"].clone());
    }
    threads.dedup();
    assert_eq!(threads.len(), 1);
    assert_eq!(entries(&keys.client("root"), "user=ann").await.len(), 3);
}

/// Sends a command over a WebSocket to a thread, and returns the type of its result.
async fn commands_by_socket(client: &Client, thread: &str, params: Value) -> Value {
    let ticket = client.post("/auth/tickets", json!({})).await.ok();
    let base = client.base().replacen("http", "ws", 1);
    let ticket = ticket["ticket"].as_str().expect("a ticket");
    let url = format!("{base}/threads/{thread}/stream/events?ticket={ticket}");
    let mut socket = connect_async(url).await.expect("a socket").0;
    let command = json!({"id": 1, "method": "run.start", "params": params});
    socket
        .send(Message::text(command.to_string()))
        .await
        .expect("it is open");
    while let Some(received) = socket.next().await {
        if let Message::Text(text) = received.expect("it is open") {
            let answer: Value = serde_json::from_str(&text).expect("JSON");
            return answer["type"].clone();
        }
    }
    panic!("the command was not answered");
}

async fn commands_to_a_thread_are_recorded(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let message = json!({"role": "user", "content": script().says("hi").to_string()});
    let params = json!({"assistant_id": "agent", "input": {"messages": [message]}});
    let command = json!({"id": 1, "method": "run.start", "params": params});
    let path = format!("/threads/{thread}/commands");
    assert_eq!(&ann.post(&path, command.clone()).await.ok()["type"], "success");
    let query = format!("action=threads:create_run&resource=thread:{thread}");
    let root = keys.client("root");
    assert_eq!(entries(&root, &query).await.len(), 1);
    assert_eq!(commands_by_socket(&ann, &thread, params.clone()).await, "success");
    assert_eq!(entries(&root, &query).await.len(), 2);
    let bob = keys.client("bob");
    assert_eq!(&bob.post(&path, command).await.ok()["type"], "error");
    assert_eq!(commands_by_socket(&bob, &thread, params).await, "error");
    let refused = entries(&root, &format!("{query}&user=bob&outcome=denied")).await;
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert_eq!(&refused[0]["user"], &json!("bob"));
}

async fn a_change_whose_entry_cannot_be_stored_is_not_made(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let refuse = match server.engine {
        Engine::Sqlite => {
            "create trigger no_entry before insert on audit begin select raise(abort, 'there is no room'); end"
        }
        Engine::Postgres => {
            "create function refuse() returns trigger as $$ begin raise exception 'there is no room'; end $$ \
             language plpgsql; \
             create trigger no_entry before insert on audit for each row execute function refuse()"
        }
    };
    let thread = ann.thread().await;
    server.executes_sql(refuse).await;
    let new = uuid::Uuid::new_v4();
    let created = ann.post("/threads", json!({"thread_id": new})).await;
    assert!(created.status >= 500, "{created:?}");
    let run = Human::at(ann.clone(), "agent", &thread).run_body(script().says("hi"), json!({}));
    let started = ann.post(&format!("/threads/{thread}/runs"), run).await;
    assert!(started.status >= 500, "{started:?}");
    let accept = match server.engine {
        Engine::Sqlite => "drop trigger no_entry",
        Engine::Postgres => "drop trigger no_entry on audit",
    };
    server.executes_sql(accept).await;
    ann.get(&format!("/threads/{new}")).await.refused(404);
    let runs = ann.get(&format!("/threads/{thread}/runs")).await.ok();
    assert_eq!(runs, json!([]));
    ann.post("/threads", json!({"thread_id": new})).await.ok();
}

async fn a_kill_separates_no_change_from_its_entry(server: TestServer) {
    let keys = server.is_protected().await;
    server.moves_into_a_process().await;
    let ann = keys.client("ann");
    let created = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let creates = async || {
        while !is_over.load(Ordering::SeqCst) {
            // A request that the kill interrupts may have created its thread or not.
            let tried = ann.tries(Method::POST, "/threads", Some(&json!({}))).await;
            let is_created = tried.is_ok_and(|reply| reply.status == 200);
            created.fetch_add(usize::from(is_created), Ordering::SeqCst);
        }
    };
    let kills = async {
        for round in 1..=3 {
            eventually(async || created.load(Ordering::SeqCst) >= 40 * round).await;
            server.is_killed_and_started_again().await;
        }
        is_over.store(true, Ordering::SeqCst);
    };
    futures::join!(kills, creates(), creates(), creates(), creates());
    let threads = server
        .number_in_database("select count(*) from threads where owner = 'ann'")
        .await;
    let created = i64::try_from(created.into_inner()).expect("a small number");
    assert!(threads >= created, "{threads} of {created}");
    let entries = "select count(*) from audit where user_id = 'ann' and action = 'threads:create'";
    // A request that was interrupted before its change may have an entry.
    let recorded = server.number_in_database(entries).await;
    assert!(recorded >= threads, "{recorded} for {threads}");
}
