//! Requests that are repeated under the same idempotency key: executed once, with the same response.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, Reply, reply};
use crate::support::sse::{Sse, put_together};
use crate::support::{TestServer, eventually, lookup, on_both_engines, on_postgres, script, transcript};

/// Sends a POST request under a key.
async fn post(client: &Client, path: &str, key: &str, body: &Value) -> Reply {
    reply(
        client
            .request(Method::POST, path)
            .header("Idempotency-Key", key)
            .json(body),
    )
    .await
}

async fn stream(client: &Client, path: &str, key: &str, body: &Value) -> Sse {
    let request = client
        .request(Method::POST, path)
        .header("Idempotency-Key", key)
        .json(body);
    Sse::open(request.send().await.expect("an answer")).await
}

fn run_body(text: impl ToString) -> Value {
    json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": text.to_string()}]}})
}

/// Checks that two responses are the same but for the header of the second.
fn are_alike(first: &Reply, second: &Reply) {
    assert_eq!(first.status, second.status);
    assert_eq!(&first.body, &second.body);
    assert_eq!(first.header("content-location"), second.header("content-location"));
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(second.header("idempotent-replayed"), Some("true"));
}

on_both_engines! {
    a_thread_is_created_once_for_each_key,
    assistants_and_crons_are_created_once_for_each_key,
    a_partly_invalid_batch_stores_nothing,
    a_key_cannot_be_used_for_another_request,
    a_refused_request_may_be_repeated_under_its_key,
    a_background_run_starts_once_for_each_key,
    a_repeated_wait_waits_for_the_same_run,
    a_repeated_stream_is_the_same_from_its_beginning,
    stateless_runs_can_be_repeated_after_their_end,
    concurrent_requests_under_one_key_start_one_run,
    a_run_is_found_by_its_key_after_a_kill,
    a_request_that_a_kill_interrupted_can_be_repeated,
    copies_and_state_updates_happen_once_for_each_key,
    a_command_that_starts_a_run_starts_it_once_for_each_key,
    a_repeated_command_names_the_place_before_the_events_of_its_run,
}

on_postgres! {
    two_servers_on_one_database_share_keys,
}

async fn a_thread_is_created_once_for_each_key(server: TestServer) {
    let client = server.client();
    let body = json!({"metadata": {"a": 1}});
    let first = post(&client, "/threads", "k1", &body).await;
    let path = format!("/threads/{}", first.body["thread_id"].as_str().unwrap());
    client.patch(&path, json!({"metadata": {"a": 2}})).await.ok();
    server.is_stopped_and_started_again().await;
    are_alike(&first, &post(&client, "/threads", "k1", &body).await);
    assert_ne!(post(&client, "/threads", "k2", &body).await.body, first.body);
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 2);
}

async fn assistants_and_crons_are_created_once_for_each_key(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {"messages": []}});
    let makes = [
        (
            "/assistants".to_owned(),
            json!({"graph_id": "agent", "name": "mine"}),
            "/assistants/count",
            1,
        ),
        ("/runs/crons".to_owned(), cron.clone(), "/runs/crons/count", 1),
        (alice.path("/runs/crons"), cron, "/runs/crons/count", 2),
    ];
    for (path, body, count, expected) in makes {
        let before = client.post("/assistants/count", json!({})).await.ok();
        let first = post(&client, &path, &format!("key of {path}").replace(' ', "-"), &body).await;
        are_alike(
            &first,
            &post(&client, &path, &format!("key of {path}").replace(' ', "-"), &body).await,
        );
        let found = client.post(count, json!({})).await.ok();
        if count == "/assistants/count" {
            assert_eq!(found.as_i64(), before.as_i64().map(|before| before + expected));
        } else {
            assert_eq!(found, expected);
        }
    }
    for cron in client
        .post("/runs/crons/search", json!({}))
        .await
        .ok()
        .as_array()
        .unwrap()
    {
        client
            .delete(&format!("/runs/crons/{}", cron["cron_id"].as_str().unwrap()))
            .await;
    }
}

async fn a_partly_invalid_batch_stores_nothing(server: TestServer) {
    let client = server.client();
    let mut unknown = run_body("two");
    unknown["assistant_id"] = json!(uuid::Uuid::new_v4());
    post(&client, "/runs/batch", "k1", &json!([run_body("one"), unknown]))
        .await
        .refused(404);
    assert_eq!(client.post("/threads/search", json!({})).await.ok(), json!([]));
}

async fn a_key_cannot_be_used_for_another_request(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    post(&client, "/threads", "k1", &json!({})).await.ok();
    let others = [
        ("/threads", json!({"metadata": {}})),
        (alice.path("/runs").as_str(), run_body("hello")),
    ]
    .map(|(path, body)| (path.to_owned(), body));
    for (path, body) in others {
        let refused = post(&client, &path, "k1", &body).await;
        assert_eq!(refused.body["code"], "idempotency_key_reused");
        assert!(refused.refused(422).starts_with("Idempotency-Key: "));
    }
    assert_eq!(alice.runs().await, Vec::<Value>::new());
    for odd in ["a b", &"k".repeat(256)] {
        assert!(
            post(&client, "/threads", odd, &json!({}))
                .await
                .refused(422)
                .starts_with("Idempotency-Key: must be")
        );
    }
}

async fn a_refused_request_may_be_repeated_under_its_key(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let first = alice.asks(script().calls(lookup("c1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    let body = alice.run_body("second", json!({"multitask_strategy": "reject"}));
    post(&client, &alice.path("/runs/wait"), "k1", &body).await.refused(409);
    server.tools.let_go("lookup");
    first.finishes().await;
    let values = post(&client, &alice.path("/runs/wait"), "k1", &body).await.ok();
    assert_eq!(transcript(&values).last().unwrap(), "ai: echo: second");
}

async fn a_background_run_starts_once_for_each_key(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let body = alice.run_body("hello", json!({}));
    let first = post(&client, &alice.path("/runs"), "k1", &body).await;
    let run = alice.run(&first.body);
    assert_eq!(first.header("content-location"), Some(run.path.as_str()));
    run.finishes().await;
    are_alike(&first, &post(&client, &alice.path("/runs"), "k1", &body).await);
    assert_eq!(alice.runs().await.len(), 1);
    client.delete(&run.path).await.ok();
    are_alike(&first, &post(&client, &alice.path("/runs"), "k1", &body).await);
    assert_eq!(alice.runs().await.len(), 0);
}

async fn a_repeated_wait_waits_for_the_same_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let body = alice.run_body(script().calls(lookup("c1", "x")).says("done"), json!({}));
    let path = alice.path("/runs/wait");
    let first = post(&client, &path, "k1", &body);
    let again = async {
        server.tools.called("lookup", 1).await;
        let second = tokio::spawn({
            let client = client.clone();
            let path = path.clone();
            let body = body.clone();
            async move { post(&client, &path, "k1", &body).await }
        });
        server.tools.let_go("lookup");
        second.await.unwrap()
    };
    let (first, again) = tokio::join!(first, again);
    are_alike(&first, &again);
    are_alike(&first, &post(&client, &path, "k1", &body).await);
    assert_eq!(
        transcript(&first.body),
        ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]
    );
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
    assert_eq!(alice.runs().await.len(), 1);
}

async fn a_repeated_stream_is_the_same_from_its_beginning(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let more = json!({"stream_mode": ["values", "messages-tuple"], "stream_resumable": true});
    let body = alice.run_body(script().calls(lookup("c1", "x")).says("done"), more);
    let path = alice.path("/runs/stream");
    let mut first = stream(&client, &path, "k1", &body).await;
    let mut seen = first.until(|frame| frame.mode() == "values").await;
    let again = stream(&client, &path, "k1", &body).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.run_id(), first.run_id());
    server.tools.let_go("lookup");
    let again = again.rest().await;
    seen.extend(first.rest().await);
    let late = stream(&client, &path, "k1", &body).await.rest().await;
    assert_eq!(put_together(&again), put_together(&seen));
    assert_eq!(put_together(&late), put_together(&seen));
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
}

async fn stateless_runs_can_be_repeated_after_their_end(server: TestServer) {
    let client = server.client();
    let first = post(&client, "/runs/wait", "k1", &run_body("hello")).await;
    are_alike(&first, &post(&client, "/runs/wait", "k1", &run_body("hello")).await);
    let frames = stream(&client, "/runs/stream", "k2", &run_body("hello"))
        .await
        .rest()
        .await;
    server.is_stopped_and_started_again().await;
    assert_eq!(
        stream(&client, "/runs/stream", "k2", &run_body("hello"))
            .await
            .rest()
            .await,
        frames
    );
    let created = post(&client, "/runs", "k3", &run_body("hello")).await;
    are_alike(&created, &post(&client, "/runs", "k3", &run_body("hello")).await);
    let batch = json!([run_body("one"), run_body("two")]);
    let started = post(&client, "/runs/batch", "k4", &batch).await;
    are_alike(&started, &post(&client, "/runs/batch", "k4", &batch).await);
    assert_eq!(started.body.as_array().unwrap().len(), 2);
    eventually(async || client.post("/threads/search", json!({"status": "busy"})).await.ok() == json!([])).await;
}

async fn concurrent_requests_under_one_key_start_one_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = alice.path("/runs");
    let body = alice.run_body("hello", json!({}));
    let replies = futures::future::join_all((0..24).map(|_| post(&client, &path, "k1", &body))).await;
    assert!(
        replies
            .iter()
            .all(|reply| reply.status == 200 && reply.body == replies[0].body),
        "{replies:#?}"
    );
    assert_eq!(
        replies
            .iter()
            .filter(|reply| reply.header("idempotent-replayed").is_none())
            .count(),
        1
    );
    alice.run(&replies[0].body).finishes().await;
    assert_eq!(alice.transcript().await, ["human: hello", "ai: echo: hello"]);
}

async fn a_run_is_found_by_its_key_after_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let body = alice.run_body(script().calls(lookup("c1", "x")).says("done"), json!({}));
    let path = alice.path("/runs/wait");
    let elsewhere = client.clone();
    let lost = tokio::spawn({
        let request = elsewhere
            .request(Method::POST, &path)
            .header("Idempotency-Key", "k1")
            .json(&body);
        async move { request.send().await.map(reqwest::Response::bytes) }
    });
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    let values = post(&client, &path, "k1", &body).await.ok();
    assert_eq!(
        transcript(&values),
        ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]
    );
    assert_eq!(alice.runs().await.len(), 1);
    drop(lost);
}

async fn a_request_that_a_kill_interrupted_can_be_repeated(server: TestServer) {
    server.moves_into_a_process().await;
    let client = server.client();
    let alice = server.human("agent").await;
    for round in 0..4 {
        let key = format!("k{round}");
        let body = alice.run_body(format!("round {round}"), json!({}));
        let request = client
            .request(Method::POST, &alice.path("/runs"))
            .header("Idempotency-Key", &key)
            .json(&body);
        let cut = tokio::spawn(async move { request.send().await.map(|_| ()) });
        // Sometimes before the request arrives, sometimes after it was granted.
        if round % 2 == 1 {
            client.get("/ok").await.ok();
        }
        server.is_killed_and_started_again().await;
        let _ = cut.await;
        let record = post(&client, &alice.path("/runs"), &key, &body).await.ok();
        alice.run(&record).finishes().await;
    }
    assert_eq!(alice.runs().await.len(), 4);
    assert_eq!(
        alice
            .transcript()
            .await
            .iter()
            .filter(|line| line.starts_with("human: "))
            .count(),
        4
    );
}

async fn copies_and_state_updates_happen_once_for_each_key(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.asks("hello").await.finishes().await;
    let copy = post(&client, &alice.path("/copy"), "k1", &json!({})).await;
    are_alike(&copy, &post(&client, &alice.path("/copy"), "k1", &json!({})).await);
    assert_eq!(transcript(&copy.body["values"]), ["human: hello", "ai: echo: hello"]);
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 2);
    let body = json!({"values": {"messages": [{"role": "user", "content": "noted"}]}});
    let written = post(&client, &alice.path("/state"), "k2", &body).await;
    are_alike(&written, &post(&client, &alice.path("/state"), "k2", &body).await);
    assert_eq!(
        alice.transcript().await,
        ["human: hello", "ai: echo: hello", "human: noted"]
    );
}

async fn a_command_that_starts_a_run_starts_it_once_for_each_key(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let command = |text: &str| {
        let input = json!({"messages": [{"role": "user", "content": text}]});
        json!({"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": input}})
    };
    let first = post(&client, &alice.path("/commands"), "k1", &command("hello"))
        .await
        .ok();
    alice.run(&first["result"]).finishes().await;
    let again = post(&client, &alice.path("/commands"), "k1", &command("hello"))
        .await
        .ok();
    assert_eq!(again["result"]["run_id"], first["result"]["run_id"]);
    let other = post(&client, &alice.path("/commands"), "k1", &command("something else"))
        .await
        .ok();
    assert_eq!(&other["type"], &json!("error"));
    assert_eq!(other.get("result"), None);
    assert_eq!(alice.transcript().await, ["human: hello", "ai: echo: hello"]);
}

async fn a_repeated_command_names_the_place_before_the_events_of_its_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = alice.path("/commands");
    for (key, text) in [("k1", "hello"), ("k2", "hello again")] {
        let input = json!({"messages": [{"role": "user", "content": text}]});
        let command = json!({"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": input}});
        let first = post(&client, &path, key, &command).await.ok();
        alice.run(&first["result"]).finishes().await;
        let again = post(&client, &path, key, &command).await.ok();
        assert!(first["meta"]["applied_through_seq"].is_i64(), "{first}");
        assert_eq!(again, first);
    }
}

async fn two_servers_on_one_database_share_keys(server: TestServer) {
    let other = server.starts_twin().await;
    let client = server.client();
    let alice = server.human("agent").await;
    let path = alice.path("/runs/wait");
    let body = alice.run_body("hello", json!({}));
    let (here, there) = tokio::join!(
        post(&client, &path, "k1", &body),
        post(&other.client, &path, "k1", &body)
    );
    assert_eq!(here.status, there.status);
    assert_eq!(&here.body, &there.body);
    assert_eq!(transcript(&here.body), ["human: hello", "ai: echo: hello"]);
    assert_eq!(alice.runs().await.len(), 1);
    other.stops().await;
}
