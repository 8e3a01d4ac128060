//! Sharing: what owners give their tenant by metadata, and that it is no more than that.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use reqwest::Method;
use serde_json::{Value, json};

use super::tenants::values_of;
use crate::api::crons::all_are_due;
use crate::support::client::{Client, reply};
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{Human, Keys, TestServer, approval, eventually, lookup, mail, on_both_engines, script};

on_both_engines! {
    a_thread_that_is_shared_for_reading_is_read_by_the_tenant_and_changed_by_nobody_else,
    who_may_only_read_a_thread_answers_no_question_on_it,
    the_stream_of_a_thread_ends_when_it_is_shared_no_more,
    a_thread_that_is_shared_for_writing_is_continued_by_the_tenant,
    a_thread_that_is_shared_for_writing_is_deleted_by_its_owner_only,
    runs_on_a_thread_that_is_shared_for_writing_are_rolled_back_by_its_owner_only,
    a_repeated_request_shows_no_run_of_a_thread_that_is_shared_no_more,
    a_shared_assistant_is_run_by_the_tenant_and_changed_by_nobody_else,
    a_cron_of_an_assistant_that_is_shared_no_more_starts_no_run,
    a_delayed_run_does_not_begin_on_a_thread_that_is_shared_no_more,
    the_report_of_a_run_has_no_values_of_a_thread_that_is_shared_no_more,
}

const SHARING: &str = "
[auth.sharing.threads]
read = { visibility = \"team\" }
write = { visibility = \"open\" }

[auth.sharing.assistants]
read = { visibility = \"team\" }
";

async fn shared(server: &TestServer) -> Keys {
    server.is_protected_with("", SHARING).await
}

/// Returns ann on a new thread with this visibility.
async fn ann_on(keys: &Keys, visibility: &str) -> Human {
    let ann = keys.client("ann");
    let body = json!({"metadata": {"visibility": visibility}});
    let made = ann.post("/threads", body).await.ok();
    Human::at(ann, "agent", made["thread_id"].as_str().expect("an id"))
}

/// Returns this caller on the thread of another user.
fn beside(keys: &Keys, caller: &str, owner: &Human) -> Human {
    Human::at(keys.client(caller), "agent", &owner.thread)
}

/// Makes an assistant that the tenant may run. Returns its id.
async fn has_shared_assistant(owner: &Client) -> String {
    let body = json!({"graph_id": "agent", "metadata": {"visibility": "team"}});
    let made = owner.post("/assistants", body).await.ok();
    made["assistant_id"].as_str().expect("an id").to_owned()
}

/// Makes a thread or an assistant one that nobody else may read.
async fn is_private(owner: &Client, path: &str) {
    let metadata = json!({"metadata": {"visibility": "private"}});
    owner.patch(path, metadata).await.ok();
}

async fn threads_of(client: &Client) -> Value {
    client.post("/threads/count", json!({})).await.ok()
}

async fn a_thread_that_is_shared_for_reading_is_read_by_the_tenant_and_changed_by_nobody_else(server: TestServer) {
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "team").await;
    ann.says(script().says("hello")).await;
    let bob = beside(&keys, "bob", &ann);
    assert_eq!(bob.state().await, ann.state().await);
    assert_eq!(bob.runs().await.len(), 1);
    assert_eq!(threads_of(bob.client()).await, json!(1));
    let before = ann.record().await;
    let client = bob.client();
    let metadata = json!({"metadata": {"visibility": "open"}});
    client.patch(&bob.path(""), metadata).await.refused(404);
    let run = bob.run_body(script().says("hi"), json!({}));
    client.post(&bob.path("/runs"), run).await.refused(404);
    let write = json!({"values": {"messages": []}});
    client.post(&bob.path("/state"), write).await.refused(404);
    client.delete(&bob.path("")).await.refused(404);
    assert_eq!(ann.record().await, before);
    let stranger = beside(&keys, "root-of-other", &ann);
    stranger.client().get(&stranger.path("")).await.refused(404);
    assert_eq!(threads_of(stranger.client()).await, json!(0));
    let eve = beside(&keys, "eve", &ann);
    eve.client().get(&eve.path("")).await.refused(403);
    is_private(ann.client(), &ann.path("")).await;
    client.get(&bob.path("")).await.refused(404);
    assert_eq!(threads_of(client).await, json!(0));
}

async fn who_may_only_read_a_thread_answers_no_question_on_it(server: TestServer) {
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "team").await;
    ann.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = ann.question().await;
    let bob = beside(&keys, "bob", &ann);
    assert_eq!(bob.question().await.id(), question.id());
    bob.resolves(&question, approval()).await.refused(404);
    bob.tries_to_resume(approval()).await.refused(404);
    let params = json!({"interrupt_id": question.id(), "response": approval()});
    let respond = json!({"id": 1, "method": "input.respond", "params": params});
    let answer = bob.client().post(&bob.path("/commands"), respond).await.ok();
    assert_eq!(answer["type"], "error", "{answer}");
    assert_eq!(server.tools.calls_of("send_email").len(), 0);
    ann.approves(&question).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn the_stream_of_a_thread_ends_when_it_is_shared_no_more(server: TestServer) {
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "team").await;
    let bob = beside(&keys, "bob", &ann);
    let mut stream = bob.client().get_stream(&bob.path("/stream"), None).await;
    ann.says(script().says("for the team")).await;
    stream.until(|frame| frame.data["status"] == "run_done").await;
    is_private(ann.client(), &ann.path("")).await;
    ann.says(script().says("for nobody else")).await;
    assert_eq!(stream.next().await, None);
}

async fn a_thread_that_is_shared_for_writing_is_continued_by_the_tenant(server: TestServer) {
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "open").await;
    let bob = beside(&keys, "bob", &ann);
    bob.says(script().says("from bob")).await;
    assert_eq!(ann.transcript().await.last().expect("a message"), "ai: from bob");
    let stranger = beside(&keys, "root-of-other", &ann);
    let run = stranger.run_body(script().says("hi"), json!({}));
    stranger.client().post(&stranger.path("/runs"), run).await.refused(404);
}

async fn a_thread_that_is_shared_for_writing_is_deleted_by_its_owner_only(server: TestServer) {
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "open").await;
    let bob = beside(&keys, "bob", &ann);
    bob.says(script().says("from bob")).await;
    let client = bob.client();
    client.delete(&bob.path("")).await.refused(404);
    let runs = bob.runs().await;
    let path = bob.path(&format!("/runs/{}", runs[0]["run_id"].as_str().expect("an id")));
    client.delete(&path).await.refused(404);
    let pruned = client.post("/threads/prune", json!({"thread_ids": [ann.thread]})).await;
    assert_eq!(pruned.ok()["pruned_count"], 0);
    client
        .patch(&bob.path(""), json!({"ttl": {"ttl": 1}}))
        .await
        .refused(404);
    client
        .patch(&bob.path(""), json!({"metadata": {"note": "x"}}))
        .await
        .ok();

    let own = client.post("/assistants", json!({"graph_id": "agent"})).await.ok();
    let id = own["assistant_id"].as_str().expect("an id");
    let bob = Human::at(client.clone(), id, &ann.thread);
    bob.says(script().says("by the assistant of bob")).await;
    let path = format!("/assistants/{id}?delete_threads=true");
    let deleted = bob.client().delete(&path).await;
    assert!(deleted.status < 300, "{deleted:?}");
    let said = ann.transcript().await;
    assert_eq!(said.last().expect("a message"), "ai: by the assistant of bob");
    let deleted = ann.client().delete(&ann.path("")).await;
    assert!(deleted.status < 300, "{deleted:?}");
}

async fn runs_on_a_thread_that_is_shared_for_writing_are_rolled_back_by_its_owner_only(server: TestServer) {
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "open").await;
    let bob = beside(&keys, "bob", &ann);
    server.tools.hold("lookup");
    let run = ann.asks(script().calls(lookup("l1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;

    bob.run_of_id(&run.id).is_cancelled("rollback").await.refused(404);
    let client = bob.client();
    let listed = json!({"thread_id": ann.thread, "run_ids": [run.id]});
    for which in [listed, json!({"status": "all"})] {
        client.post("/runs/cancel?action=rollback", which).await.refused(404);
    }
    let displacing = bob.run_body(script().says("instead"), json!({"multitask_strategy": "rollback"}));
    client.post(&bob.path("/runs"), displacing).await.refused(404);
    assert_eq!(run.status().await, "running");
    assert_eq!(ann.runs().await.len(), 1);

    // Bob may interrupt, since he may change the thread, and the owner may roll back.
    bob.run_of_id(&run.id).is_cancelled("interrupt").await.ok();
    assert_eq!(run.status().await, "interrupted");
    let run = ann.asks(script().calls(lookup("l2", "x")).says("done")).await;
    server.tools.called("lookup", 2).await;
    run.is_cancelled("rollback").await.ok();
    assert_eq!(ann.runs().await.len(), 1);
    server.tools.let_go("lookup");
}

async fn a_repeated_request_shows_no_run_of_a_thread_that_is_shared_no_more(server: TestServer) {
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "open").await;
    let bob = beside(&keys, "bob", &ann);
    let run = bob.run_body(script().says("for both"), json!({}));
    let repeats = async |tail: &str| {
        let request = bob.client().request(Method::POST, &bob.path(tail));
        reply(request.header("Idempotency-Key", tail).json(&run)).await
    };
    for tail in ["/runs/wait", "/runs/stream"] {
        for _ in 0..2 {
            assert!(repeats(tail).await.ok().to_string().contains("for both"), "{tail}");
        }
    }
    assert_eq!(ann.runs().await.len(), 2);
    is_private(ann.client(), &ann.path("")).await;
    for tail in ["/runs/wait", "/runs/stream"] {
        let refused = repeats(tail).await;
        assert!(!refused.body.to_string().contains("for both"), "{tail}: {refused:?}");
        refused.refused(404);
    }
}

async fn a_shared_assistant_is_run_by_the_tenant_and_changed_by_nobody_else(server: TestServer) {
    let keys = shared(&server).await;
    let id = has_shared_assistant(&keys.client("ann")).await;
    let path = format!("/assistants/{id}");
    let message = json!({"role": "user", "content": script().says("done").to_string()});
    let run = json!({"assistant_id": id, "input": {"messages": [message]}});
    let bob = keys.client("bob");
    assert_eq!(bob.get(&path).await.ok()["assistant_id"], id);
    bob.post("/runs/wait", run.clone()).await.ok();
    bob.patch(&path, json!({"name": "of bob"})).await.refused(404);
    bob.delete(&path).await.refused(404);
    let stranger = keys.client("root-of-other");
    stranger.get(&path).await.refused(404);
    stranger.post("/runs/wait", run).await.refused(404);
}

async fn a_cron_of_an_assistant_that_is_shared_no_more_starts_no_run(server: TestServer) {
    let keys = shared(&server).await;
    let ann = keys.client("ann");
    let bob = keys.client("bob");
    let id = has_shared_assistant(&ann).await;
    let message = json!({"role": "user", "content": script().says("done").to_string()});
    let cron = json!({"assistant_id": id, "schedule": "0 0 1 1 *", "input": {"messages": [message]},
        "on_run_completed": "keep"});
    bob.post("/runs/crons", cron).await.ok();
    all_are_due(&server).await;
    let threads = async || bob.post("/threads/search", json!({})).await.ok();
    eventually(async || threads().await[0]["status"] == "idle").await;

    is_private(&ann, &format!("/assistants/{id}")).await;
    all_are_due(&server).await;
    let root = keys.client("root");
    let resource = format!("assistant:{id}");
    eventually(async || {
        let denied = root.get("/audit?user=bob&outcome=denied").await.ok();
        values_of(&denied, "resource").contains(&resource)
    })
    .await;
    assert_eq!(threads_of(&bob).await, json!(1));
}

async fn a_delayed_run_does_not_begin_on_a_thread_that_is_shared_no_more(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "open").await;
    ann.says(script().says("hello")).await;
    let bob = beside(&keys, "bob", &ann);
    let delay = json!({"after_seconds": 3600, "multitask_strategy": "enqueue"});
    let own = ann.starts(ann.run_body(script().says("from ann"), delay.clone())).await;
    let other = bob.starts(bob.run_body(script().says("from bob"), delay.clone())).await;
    let id = has_shared_assistant(ann.client()).await;
    let with_assistant = Human::on_new_thread(keys.client("bob"), &id).await;
    let third = with_assistant.run_body(script().says("by the assistant of ann"), delay);
    let third = with_assistant.starts(third).await;
    is_private(ann.client(), &ann.path("")).await;
    is_private(ann.client(), &format!("/assistants/{id}")).await;
    clock.advance(Duration::from_secs(3601));
    ann.run_of_id(&other.id).finishes().await;
    ann.run_of_id(&own.id).finishes().await;
    third.finishes().await;
    assert_eq!(third.status().await, "error");
    assert_eq!(ann.run_of_id(&other.id).status().await, "error");
    assert_eq!(ann.run_of_id(&own.id).status().await, "success");
    assert_eq!(ann.transcript().await.last().expect("a message"), "ai: from ann");
    assert!(!ann.state().await.to_string().contains("from bob"));
}

async fn the_report_of_a_run_has_no_values_of_a_thread_that_is_shared_no_more(server: TestServer) {
    let receiver = WebhookReceiver::start().await;
    let keys = shared(&server).await;
    let ann = ann_on(&keys, "open").await;
    ann.says(script().says("for ann alone")).await;
    let bob = beside(&keys, "bob", &ann);
    let hook = |path: &str| json!({"webhook": format!("{}{path}", receiver.base), "after_seconds": 3600});
    let first = bob.starts(bob.run_body(script().says("x"), hook("/first"))).await;
    ann.run_of_id(&first.id).is_cancelled("interrupt").await.ok();
    let received = receiver.receives(1).await;
    assert!(received[0].text.contains("for ann alone"), "{}", received[0].text);

    let second = bob.starts(bob.run_body(script().says("x"), hook("/second"))).await;
    is_private(ann.client(), &ann.path("")).await;
    ann.run_of_id(&second.id).is_cancelled("interrupt").await.ok();
    let received = receiver.receives(2).await;
    assert_eq!(received[1].path, "/second");
    assert_eq!(received[1].body()["values"], json!({}));
    assert!(!received[1].text.contains("for ann alone"), "{}", received[1].text);
}
