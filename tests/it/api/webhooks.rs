//! Webhooks: the reports of ended runs and their delivery.

use std::time::Duration;

use adjutant::domain::time::{ManualClock, Timestamp};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::support::client::Client;
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{Engine, Human, TestServer, eventually, lookup, mail, on_both_engines, play, script};

/// Starts a run with the receiver as its webhook.
async fn asks(human: &Human, receiver: &WebhookReceiver, text: impl ToString) -> crate::support::actors::Run {
    let hook = json!({"webhook": format!("{}/hook?x=1", receiver.base)});
    human.starts(human.run_body(text, hook)).await
}

async fn deliveries(client: &Client, query: &str) -> Vec<Value> {
    client
        .get(&format!("/webhooks/deliveries{query}"))
        .await
        .ok()
        .as_array()
        .unwrap()
        .clone()
}

/// Returns the newest delivery as soon as it stands so.
async fn becomes(client: &Client, status: &str, attempts: u32) -> Value {
    eventually(async || {
        let all = deliveries(client, "").await;
        all.first().is_some_and(|it| {
            // One that is pending and not due at any time is being tried.
            let rests = it["next_attempt_at"].is_null() == (status != "pending");
            it["status"] == status && it["attempts"] == attempts && rests
        })
    })
    .await;
    deliveries(client, "").await[0].clone()
}

/// Lets the server use a clock that stands still until the test moves it.
async fn clocked(server: &TestServer) -> ManualClock {
    let clock = ManualClock::starting_at(Timestamp::read("2026-11-21T12:00:00Z").unwrap());
    server.uses_clock(&clock).await;
    clock
}

on_both_engines! {
    a_webhook_receives_the_run_and_its_values,
    a_webhook_receives_errors_and_interrupts,
    an_address_is_shown_without_what_may_be_a_secret_in_it,
    a_delivery_is_signed_and_has_the_configured_headers,
    a_failed_delivery_is_retried_with_backoff,
    a_failed_delivery_can_be_repeated,
    deliveries_are_listed_by_run_thread_and_status,
    a_stateless_run_is_reported_after_its_thread_was_deleted,
    a_webhook_cannot_have_a_private_address,
    a_slow_receiver_delays_no_cron,
    a_delivery_survives_a_kill,
}

async fn a_webhook_receives_the_run_and_its_values(server: TestServer) {
    let alice = server.human("agent").await;
    let receiver = WebhookReceiver::start().await;
    let run = asks(&alice, &receiver, "hello").await;
    let heard = receiver.receives(1).await.remove(0);
    assert_eq!(heard.path.as_str(), "/hook?x=1");
    assert_eq!(heard.header("content-type"), "application/json");
    let mut told = heard.body();
    let fields = told.as_object_mut().unwrap();
    for time in ["run_started_at", "run_ended_at", "webhook_sent_at"] {
        let at = fields.remove(time).unwrap();
        assert!(Timestamp::read(at.as_str().unwrap()).is_some(), "{time}: {at}");
    }
    assert_eq!(fields.remove("values").unwrap(), alice.state().await["values"]);
    assert_eq!(told["status"], "success");
    let mut record = run.record().await;
    for counted in ["usage", "tree_usage"] {
        assert!(record.as_object_mut().unwrap().remove(counted).is_some(), "{counted}");
    }
    assert_eq!(told, record);
}

async fn an_address_is_shown_without_what_may_be_a_secret_in_it(server: TestServer) {
    let receiver = WebhookReceiver::start().await;
    let alice = server.human("agent").await;
    let address = format!("{}/hook?token=secret", receiver.base).replace("://", "://ann:secret@");
    let shown = format!("{}/hook?***", receiver.base).replace("://", "://***@");
    let hook = json!({"webhook": address});
    let run = alice.starts(alice.run_body("hello", hook)).await;
    let heard = receiver.receives(1).await.remove(0);
    assert_eq!(heard.path.as_str(), "/hook?token=secret");
    assert_eq!(run.record().await["kwargs"]["webhook"], shown.as_str());
    let delivery = becomes(&server.client(), "delivered", 1).await;
    assert_eq!(delivery["url"], shown.as_str());
    // No report could be sent to the address that is shown.
    let again = alice.run_body("hello", json!({"webhook": shown}));
    let refused = server.client().post(&alice.path("/runs"), again).await.refused(422);
    assert!(refused.starts_with("webhook: "), "{refused}");
}

async fn a_webhook_receives_errors_and_interrupts(server: TestServer) {
    let receiver = WebhookReceiver::start().await;
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let carol = server.human("agent").await;
    asks(&alice, &receiver, script().fails(400)).await;
    let failed = receiver.receives(1).await[0].body();
    assert_eq!(&failed["status"], &json!("error"));
    assert_eq!(&failed["error"], &alice.record().await["error"]);
    assert!(failed["error"]["error"].is_string());
    asks(&bob, &receiver, script().calls(mail("m1", "a@b.c")).says("sent")).await;
    let asking = receiver.receives(2).await[1].body();
    assert_eq!(&asking["status"], &json!("success"));
    assert_eq!(asking.get("error"), None);
    assert_eq!(asking["values"]["messages"][1]["tool_calls"][0]["name"], "send_email");
    server.tools.hold("lookup");
    let run = asks(&carol, &receiver, script().calls(lookup("c1", "x")).says("done")).await;
    let waiting = asks(&carol, &receiver, "never").await;
    server.tools.called("lookup", 1).await;
    waiting.is_cancelled("interrupt").await.ok();
    let never = receiver.receives(3).await[2].body();
    assert_eq!(&never["status"], &json!("interrupted"));
    assert_eq!(&never["run_started_at"], &json!(null));
    run.is_cancelled("interrupt").await.ok();
    let stopped = receiver.receives(4).await[3].body();
    assert_eq!(&stopped["run_id"], &json!(run.id));
    assert_eq!(&stopped["status"], &json!("interrupted"));
    server.tools.let_go("lookup");
}

async fn a_delivery_is_signed_and_has_the_configured_headers(server: TestServer) {
    let alice = server.human("agent").await;
    let receiver = WebhookReceiver::start().await;
    asks(&alice, &receiver, "hello").await;
    let heard = receiver.receives(1).await.remove(0);
    let id = heard.header("webhook-id");
    let second = heard.header("webhook-timestamp");
    let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let mut hash = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    hash.update(format!("{id}.{second}.{}", heard.text).as_bytes());
    assert_eq!(
        heard.header("webhook-signature"),
        format!("v1,{}", STANDARD.encode(hash.finalize().into_bytes()))
    );
    assert_eq!(heard.header("x-tenant"), "secret-tenant");
    assert_eq!(deliveries(&server.client(), "").await[0]["delivery_id"], id);
}

async fn a_failed_delivery_is_retried_with_backoff(server: TestServer) {
    let clock = clocked(&server).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let receiver = WebhookReceiver::start().await;
    receiver.answers(&[500, 302, 404]);
    asks(&alice, &receiver, "hello").await;
    let first = becomes(&client, "pending", 1).await;
    assert_eq!(&first["response_status"], &json!(500));
    assert_eq!(&first["next_attempt_at"], &json!("2026-11-21T12:01:00.000000+00:00"));
    clock.advance(Duration::from_secs(60));
    let second = becomes(&client, "pending", 2).await;
    assert_eq!(&second["response_status"], &json!(302));
    assert_eq!(&second["next_attempt_at"], &json!("2026-11-21T12:04:00.000000+00:00"));
    clock.advance(Duration::from_secs(180));
    let third = becomes(&client, "dead", 3).await;
    assert_eq!(&third["response_status"], &json!(404));
    assert_eq!(&third["finished_at"], &json!("2026-11-21T12:04:00.000000+00:00"));
    let heard = receiver.received();
    assert!(
        heard.iter().all(|heard| heard.path == "/hook?x=1"),
        "a redirect is not followed: {heard:#?}"
    );
    assert_eq!(heard.len(), 3);
    assert!(
        heard
            .iter()
            .all(|other| other.header("webhook-id") == heard[0].header("webhook-id"))
    );
}

async fn a_failed_delivery_can_be_repeated(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let receiver = WebhookReceiver::start().await;
    receiver.answers(&[410]);
    let run = asks(&alice, &receiver, "hello").await;
    let dead = becomes(&client, "dead", 1).await;
    let path = format!("/webhooks/deliveries/{}", dead["delivery_id"].as_str().unwrap());
    let again = client.post(&format!("{path}/redeliver"), json!({})).await.ok();
    assert_eq!(&again["status"], &json!("pending"));
    assert_eq!(&again["delivery_id"], &dead["delivery_id"]);
    let heard = receiver.receives(2).await;
    assert_eq!(heard[0].header("webhook-id"), heard[1].header("webhook-id"));
    becomes(&client, "delivered", 1).await;
    let whole = client.get(&path).await.ok();
    assert_eq!(&whole["payload"]["run_id"], &json!(run.id));
    assert_eq!(&whole["response_status"], &json!(200));
    client.post(&format!("{path}/redeliver"), json!({})).await.ok();
    receiver.receives(3).await;
    becomes(&client, "delivered", 1).await;
    let nowhere = format!("/webhooks/deliveries/{}", uuid::Uuid::new_v4());
    assert_eq!(client.get(&nowhere).await.status, 404);
    assert_eq!(
        client.post(&format!("{nowhere}/redeliver"), json!({})).await.status,
        404
    );
}

async fn deliveries_are_listed_by_run_thread_and_status(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let receiver = WebhookReceiver::start().await;
    let mut runs = vec![];
    for human in [&alice, &bob, &alice] {
        let run = asks(human, &receiver, "hello").await;
        run.finishes().await;
        becomes(&client, "delivered", 1).await;
        runs.push(run.id);
    }
    let runs_of = async |query: &str| -> Vec<usize> {
        let place = |it: &Value| runs.iter().position(|run| it["run_id"] == json!(run)).unwrap();
        deliveries(&client, query).await.iter().map(place).collect()
    };
    assert_eq!(runs_of("").await, [2, 1, 0]);
    assert_eq!(runs_of(&format!("?run_id={}", runs[1])).await, [1]);
    assert_eq!(
        runs_of(&format!("?thread_id={}&status=delivered", alice.thread)).await,
        [2, 0]
    );
    assert_eq!(runs_of("?status=dead").await, [0_usize; 0]);
    let page = client.get("/webhooks/deliveries?limit=1&offset=1").await;
    assert_eq!(page.header("x-pagination-total"), Some("3"));
    assert_eq!(page.header("x-pagination-next"), Some("2"));
    assert_eq!(page.ok()[0]["payload"], json!(null));
    for wrong in ["?status=odd", "?run_id=x", "?limit=0"] {
        client.get(&format!("/webhooks/deliveries{wrong}")).await.refused(422);
    }
    assert_eq!(client.delete(&alice.path("")).await.status, 204);
    assert_eq!(runs_of("").await, [1], "what was told of a thread goes with it");
}

async fn a_stateless_run_is_reported_after_its_thread_was_deleted(server: TestServer) {
    let client = server.client();
    let receiver = WebhookReceiver::start().await;
    receiver.answers(&[500]);
    let clock = clocked(&server).await;
    let run_body = json!({"assistant_id": "agent", "webhook": receiver.base, "input": {"messages": [{"role": "user", "content": "hi"}]}});
    let run = client.post("/runs", run_body).await.ok();
    let thread = format!("/threads/{}", run["thread_id"].as_str().unwrap());
    eventually(async || client.get(&thread).await.status == 404).await;
    becomes(&client, "pending", 1).await;
    clock.advance(Duration::from_secs(60));
    let heard = receiver.receives(2).await;
    assert_eq!(heard[1].body()["values"]["messages"][1]["content"], "echo: hi");
    becomes(&client, "delivered", 2).await;
}

async fn a_webhook_cannot_have_a_private_address(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    for url in [
        "/hook",
        "ftp://example.org/",
        "http://localhost:1/",
        "http://[::1]/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:127.0.0.1]/",
        "http://0x7f000002/",
    ] {
        let run_body = alice.run_body("hello", json!({"webhook": url}));
        let mut cron = run_body.clone();
        cron["schedule"] = json!("0 * * * *");
        for (path, run_body) in [
            (alice.path("/runs"), run_body.clone()),
            (alice.path("/runs/wait"), run_body.clone()),
            (alice.path("/runs/stream"), run_body.clone()),
            ("/runs".into(), run_body.clone()),
            ("/runs/batch".into(), json!([run_body])),
            ("/runs/crons".into(), cron.clone()),
            (alice.path("/runs/crons"), cron.clone()),
        ] {
            let detail = client.post(&path, run_body).await.refused(422);
            assert!(detail.contains("webhook: "), "{path}: {detail}");
            let names_setting = detail.contains("`private_hosts` in the section [webhooks]");
            let is_address = !["/hook", "ftp://example.org/"].contains(&url);
            assert_eq!(names_setting, is_address, "{path}: {detail}");
        }
    }
    assert_eq!(alice.runs().await.len(), 0);
    assert_eq!(deliveries(&client, "").await.len(), 0);
}

async fn a_slow_receiver_delays_no_cron(server: TestServer) {
    let receiver = WebhookReceiver::start().await;
    receiver.holds();
    for _ in 0..33 {
        asks(&server.human("agent").await, &receiver, "hello").await;
    }
    receiver.receives(32).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let run_body = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {"messages": ["by the clock"]}});
    client.post(&alice.path("/runs/crons"), run_body).await.ok();
    crate::api::crons::all_are_due(&server).await;
    eventually(async || alice.runs().await.iter().any(|run| run["status"] == "success")).await;
    assert_eq!(receiver.received().len(), 32, "so many are told at once");
    receiver.lets_go();
    eventually(async || deliveries(&client, "?status=delivered&limit=100").await.len() == 33).await;
}

async fn a_delivery_survives_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let client = server.client();
    let receiver = WebhookReceiver::start().await;
    receiver.holds();
    let mut ids = vec![];
    for _ in 0..5 {
        let human = server.human("agent").await;
        ids.push(asks(&human, &receiver, "hello").await.id);
    }
    receiver.receives(1).await;
    eventually(async || deliveries(&client, "").await.len() == 5).await;
    server.is_killed_and_started_again().await;
    receiver.lets_go();
    eventually(async || deliveries(&client, "?status=delivered").await.len() == 5).await;
    for id in ids {
        let heard = receiver.received();
        let mut keys: Vec<&str> = heard
            .iter()
            .filter(|heard| heard.body()["run_id"] == json!(id))
            .map(|heard| heard.header("webhook-id"))
            .collect();
        keys.dedup();
        assert_eq!(keys.len(), 1, "told, and under one id");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_one_database_deliver_once() {
    play(Engine::Postgres, async |server: TestServer| {
        let twin = server.starts_twin().await;
        let receiver = WebhookReceiver::start().await;
        for _ in 0..20 {
            let human = server.human("agent").await;
            asks(&human, &receiver, "hello").await;
        }
        let client = server.client();
        eventually(async || deliveries(&client, "?status=delivered&limit=100").await.len() == 20).await;
        assert_eq!(
            twin.client
                .get("/webhooks/deliveries?limit=1")
                .await
                .header("x-pagination-total"),
            Some("20")
        );
        twin.stops().await;
        assert_eq!(receiver.received().len(), 20);
    })
    .await;
}
