//! Runs that are started by the clock: when they are due, once each, on two servers and over crashes.

use std::time::Duration;

use adjutant::domain::time::{ManualClock, Timestamp};
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::postgres_proxy::{Commits, play_behind_proxy};
use crate::support::{Engine, Human, TestServer, eventually, lookup, on_both_engines, play, script};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a clock that shows this time until the test moves it.
fn clock_at(text: &str) -> ManualClock {
    ManualClock::starting_at(Timestamp::read(text).unwrap())
}

/// Returns the body of a cron that sends `hello` to `agent`, with the fields of `more`.
fn cron_body(schedule: &str, more: Value) -> Value {
    let mut cron_body = json!({"assistant_id": "agent", "schedule": schedule, "metadata": {"job": "greet"},
        "input": {"messages": [{"role": "user", "content": "hello"}]}});
    for (name, value) in more.as_object().into_iter().flatten() {
        cron_body[name] = value.clone();
    }
    cron_body
}

fn id(cron: &Value) -> String {
    cron["cron_id"]
        .as_str()
        .unwrap_or_else(|| panic!("a cron: {cron}"))
        .to_owned()
}

async fn show(client: &Client, cron: &Value) -> Value {
    client.get(&format!("/runs/crons/{}", id(cron))).await.ok()
}

/// Returns the next due time.
async fn next(client: &Client, cron: &Value) -> String {
    let shown = show(client, cron).await;
    shown["next_run_date"]
        .as_str()
        .unwrap_or("never")
        .replace(":00.000000+00:00", "")
}

/// Returns when the thread has so many runs and all are over.
async fn has_run(human: &Human, times: usize) {
    let is_over = |run: &Value| run["status"] != "pending" && run["status"] != "running";
    eventually(async || {
        let runs = human.runs().await;
        assert!(runs.len() <= times, "more than {times}: {runs:#?}");
        runs.len() == times && runs.iter().all(is_over)
    })
    .await;
}

/// Returns the threads that a cron created for its runs and that still exist.
async fn threads_of(client: &Client, cron: &Value) -> usize {
    let wanted = json!({"metadata": {"cron_id": cron["cron_id"]}, "limit": 1000});
    client
        .post("/threads/search", wanted)
        .await
        .ok()
        .as_array()
        .unwrap()
        .len()
}

/// Makes all crons due at once, whatever their schedules say.
pub(crate) async fn all_are_due(server: &TestServer) {
    server
        .executes_sql("update jobs set due_at = 1 where kind = 'cron'")
        .await;
}

on_both_engines! {
    a_run_is_started_at_every_due_time,
    a_schedule_may_be_a_nickname,
    missed_due_times_start_one_run,
    a_stateless_cron_creates_a_thread_for_each_run,
    no_run_starts_after_the_end_time,
    a_disabled_cron_starts_no_run_later,
    a_cron_whose_runs_are_refused_by_now_can_be_disabled,
    a_cron_whose_stored_request_is_refused_by_now_can_be_disabled,
    a_busy_thread_follows_the_multitask_strategy,
    the_crons_of_a_thread_are_deleted_with_it,
    the_crons_of_an_assistant_are_deleted_with_it,
    a_cron_is_shown_as_created,
    a_patch_changes_only_its_fields,
    an_invalid_cron_is_refused_and_not_stored,
    crons_are_searched_and_counted_in_pages,
    a_due_time_starts_one_run_over_a_kill,
}

async fn a_run_is_started_at_every_due_time(server: TestServer) {
    let clock = clock_at("2026-11-21T11:59:30Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let cron = client
        .post(&alice.path("/runs/crons"), cron_body("*/10 * * * *", json!({})))
        .await
        .ok();
    assert_eq!(next(&client, &cron).await, "2026-11-21T12:00");
    for (round, due) in ["2026-11-21T12:10", "2026-11-21T12:20", "2026-11-21T12:30"]
        .into_iter()
        .enumerate()
    {
        clock.advance(10 * MINUTE);
        has_run(&alice, round + 1).await;
        assert_eq!(next(&client, &cron).await, due);
    }
    let run = &alice.runs().await[0];
    assert_eq!(&run["status"], &json!("success"));
    assert_eq!(&run["metadata"]["cron_id"], &cron["cron_id"]);
    assert_eq!(run["metadata"]["job"], "greet");
    assert_eq!(run["kwargs"]["config"]["configurable"]["cron_id"], cron["cron_id"]);
    let said = ["human: hello", "ai: echo: hello"].repeat(3);
    assert_eq!(alice.transcript().await, said);
}

async fn a_schedule_may_be_a_nickname(server: TestServer) {
    let clock = clock_at("2026-11-21T11:59:30Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let body = cron_body("@hourly", json!({}));
    let cron = client.post(&alice.path("/runs/crons"), body).await.ok();
    assert_eq!(cron["schedule"], "@hourly");
    assert_eq!(next(&client, &cron).await, "2026-11-21T12:00");
    clock.advance(MINUTE);
    has_run(&alice, 1).await;
    assert_eq!(next(&client, &cron).await, "2026-11-21T13:00");
    let daily = json!({"schedule": "@daily", "timezone": "Europe/Paris"});
    let path = format!("/runs/crons/{}", id(&cron));
    let patched = client.patch(&path, daily).await.ok();
    assert_eq!(patched["next_run_date"], "2026-11-21T23:00:00.000000+00:00");
}

async fn missed_due_times_start_one_run(server: TestServer) {
    let clock = clock_at("2026-11-21T12:00:00Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let cron = client
        .post(&alice.path("/runs/crons"), cron_body("* * * * *", json!({})))
        .await
        .ok();
    clock.advance(95 * MINUTE);
    server.is_stopped_and_started_again().await;
    has_run(&alice, 1).await;
    assert_eq!(next(&client, &cron).await, "2026-11-21T13:36");
    clock.advance(MINUTE);
    has_run(&alice, 2).await;
}

async fn a_stateless_cron_creates_a_thread_for_each_run(server: TestServer) {
    let clock = clock_at("2026-11-21T12:00:00Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let forgets = client.post("/runs/crons", cron_body("0 * * * *", json!({}))).await.ok();
    let keeps = client
        .post(
            "/runs/crons",
            cron_body("0 * * * *", json!({"on_run_completed": "keep"})),
        )
        .await
        .ok();
    assert_eq!(&forgets["on_run_completed"], &json!("delete"));
    assert_eq!(&keeps["on_run_completed"], &json!("keep"));
    for round in 1..=2 {
        clock.advance(60 * MINUTE);
        eventually(async || threads_of(&client, &keeps).await == round).await;
        eventually(async || next(&client, &forgets).await == format!("2026-11-21T{}:00", 13 + round)).await;
        eventually(async || threads_of(&client, &forgets).await == 0).await;
    }
    let idle = json!({"metadata": {"cron_id": keeps["cron_id"]}, "status": "idle"});
    eventually(async || client.post("/threads/count", idle.clone()).await.ok() == 2).await;
}

async fn no_run_starts_after_the_end_time(server: TestServer) {
    let clock = clock_at("2026-11-21T12:00:00Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let ends = cron_body("0 * * * *", json!({"end_time": "2026-11-21T14:30:00"}));
    let cron = client.post(&alice.path("/runs/crons"), ends).await.ok();
    clock.advance(60 * MINUTE);
    has_run(&alice, 1).await;
    clock.advance(60 * MINUTE);
    has_run(&alice, 2).await;
    assert_eq!(next(&client, &cron).await, "never");
    let longer = json!({"end_time": null});
    client.patch(&format!("/runs/crons/{}", id(&cron)), longer).await.ok();
    assert_eq!(next(&client, &cron).await, "2026-11-21T15:00");
    // A start that was due before the end, and was not possible until the end had passed, is not made up for.
    client
        .patch(
            &format!("/runs/crons/{}", id(&cron)),
            json!({"end_time": "2026-11-21T15:00:30Z"}),
        )
        .await
        .ok();
    clock.advance(61 * MINUTE);
    eventually(async || next(&client, &cron).await == "never").await;
    assert_eq!(alice.runs().await.len(), 2);
}

async fn a_disabled_cron_starts_no_run_later(server: TestServer) {
    let clock = clock_at("2026-11-21T12:00:00Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let cron = client
        .post(
            &alice.path("/runs/crons"),
            cron_body("0 * * * *", json!({"enabled": false})),
        )
        .await
        .ok();
    client
        .post(&bob.path("/runs/crons"), cron_body("0 * * * *", json!({})))
        .await
        .ok();
    clock.advance(150 * MINUTE);
    has_run(&bob, 1).await;
    let path = format!("/runs/crons/{}", id(&cron));
    assert_eq!(
        client.patch(&path, json!({"enabled": true})).await.ok()["enabled"],
        true
    );
    assert_eq!(next(&client, &cron).await, "2026-11-21T15:00");
    clock.advance(30 * MINUTE);
    has_run(&bob, 2).await;
    has_run(&alice, 1).await;
    client.patch(&path, json!({"enabled": false})).await.ok();
    clock.advance(60 * MINUTE);
    has_run(&bob, 3).await;
    has_run(&alice, 1).await;
}

async fn a_cron_whose_runs_are_refused_by_now_can_be_disabled(server: TestServer) {
    let choosy = "[agents.choosy]\nmodel = \"scripted:lab\"\nconfigurable = { models = [\"scripted:dear\"] }\n";
    server.is_configured_with(choosy).await;
    let client = server.client();
    let alice = server.human("choosy").await;
    let chosen = json!({"assistant_id": "choosy", "context": {"model": "scripted:dear"}});
    let body = cron_body("0 0 1 1 *", chosen);
    let cron = client.post(&alice.path("/runs/crons"), body).await.ok();
    let path = format!("/runs/crons/{}", id(&cron));
    server.is_reconfigured("scripted:dear", "scripted:cheap").await;
    let is_refused = async |patch: Value| {
        let refused = client.patch(&path, patch).await.refused(422);
        assert!(refused.starts_with("context.model: "), "{refused}");
    };
    is_refused(json!({"schedule": "@daily"})).await;
    is_refused(json!({"enabled": false, "context": {"model": "scripted:other"}})).await;
    let stopped = client.patch(&path, json!({"enabled": false})).await.ok();
    assert_eq!(stopped["enabled"], false);
    assert_eq!(stopped["payload"]["context"], cron["payload"]["context"]);
    is_refused(json!({"enabled": true})).await;
    let allowed = json!({"enabled": true, "context": {"model": "scripted:cheap"}});
    assert_eq!(client.patch(&path, allowed).await.ok()["enabled"], true);
}

async fn a_cron_whose_stored_request_is_refused_by_now_can_be_disabled(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let checkpoint = alice.state().await["checkpoint_id"].clone();
    let body = cron_body("0 0 1 1 *", json!({"checkpoint": {"checkpoint_id": checkpoint}}));
    let cron = client.post(&alice.path("/runs/crons"), body).await.ok();
    let path = format!("/runs/crons/{}", id(&cron));
    // Earlier builds took a checkpoint whose id is no text for none.
    let earlier =
        format!("update crons set payload = replace(payload, '\"checkpoint_id\":{checkpoint}', '\"checkpoint_id\":5')");
    server.executes_sql(&earlier).await;
    let is_refused = async |patch: Value| {
        let refused = client.patch(&path, patch).await.refused(422);
        assert!(refused.starts_with("checkpoint.checkpoint_id: "), "{refused}");
    };
    is_refused(json!({"schedule": "@daily"})).await;
    let stopped = client.patch(&path, json!({"enabled": false})).await.ok();
    assert_eq!(stopped["enabled"], false);
    assert_eq!(stopped["schedule"], "0 0 1 1 *");
    assert_eq!(stopped["payload"]["checkpoint"], json!({"checkpoint_id": 5}));
    assert_eq!(show(&client, &cron).await["enabled"], false);
    is_refused(json!({"enabled": true})).await;
}

async fn a_busy_thread_follows_the_multitask_strategy(server: TestServer) {
    let clock = clock_at("2026-11-21T12:00:00Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let rejects = cron_body("0 * * * *", json!({"multitask_strategy": "reject"}));
    let rejects = client.post(&alice.path("/runs/crons"), rejects).await.ok();
    let displaces = cron_body("0 * * * *", json!({"multitask_strategy": "interrupt"}));
    client.post(&bob.path("/runs/crons"), displaces).await.ok();
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("done");
    let mine = alice.asks(&text).await;
    let his = bob.asks(&text).await;
    server.tools.called("lookup", 2).await;
    clock.advance(60 * MINUTE);
    has_run(&bob, 2).await;
    assert_eq!(his.status().await, "interrupted");
    eventually(async || next(&client, &rejects).await == "2026-11-21T14:00").await;
    server.tools.let_go("lookup");
    mine.finishes().await;
    assert_eq!(alice.runs().await.len(), 1);
    clock.advance(60 * MINUTE);
    has_run(&alice, 2).await;
    has_run(&bob, 3).await;
}

async fn the_crons_of_a_thread_are_deleted_with_it(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let gone = client
        .post(&alice.path("/runs/crons"), cron_body("0 0 1 1 *", json!({})))
        .await
        .ok();
    let stays = client.post("/runs/crons", cron_body("0 0 1 1 *", json!({}))).await.ok();
    assert_eq!(client.delete(&alice.path("")).await.status, 204);
    assert_eq!(client.get(&format!("/runs/crons/{}", id(&gone))).await.status, 404);
    assert_eq!(client.post("/runs/crons/count", json!({})).await.ok(), 1);
    let path = format!("/runs/crons/{}", id(&stays));
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(client.delete(&path).await.status, 404);
}

async fn the_crons_of_an_assistant_are_deleted_with_it(server: TestServer) {
    let clock = clock_at("2026-11-21T12:00:00Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let wanted = json!({"graph_id": "agent", "config": {"tags": ["night"]}});
    let assistant = client.post("/assistants", wanted).await.ok();
    let theirs = cron_body("0 * * * *", json!({"assistant_id": assistant["assistant_id"]}));
    let cron = client.post(&alice.path("/runs/crons"), theirs).await.ok();
    clock.advance(60 * MINUTE);
    has_run(&alice, 1).await;
    let run = &alice.runs().await[0];
    assert_eq!(run["assistant_id"], assistant["assistant_id"]);
    assert_eq!(run["kwargs"]["config"]["tags"], json!(["night"]));
    let path = format!("/assistants/{}", assistant["assistant_id"].as_str().unwrap());
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(client.get(&format!("/runs/crons/{}", id(&cron))).await.status, 404);
}

async fn a_cron_is_shown_as_created(server: TestServer) {
    let clock = clock_at("2026-11-21T08:40:58Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let cron_body = cron_body(
        "0 0 1 1 *",
        json!({"end_time": "2099-01-01T00:00:00Z", "enabled": false, "timezone": "Europe/Paris"}),
    );
    let cron = client.post(&alice.path("/runs/crons"), cron_body.clone()).await.ok();
    let mut payload = cron_body;
    payload["assistant_id"] = cron["assistant_id"].clone();
    payload["config"] = json!({"configurable": {"cron_id": cron["cron_id"]}});
    let now = "2026-11-21T08:40:58.000000+00:00";
    let expected = json!({
        "cron_id": cron["cron_id"], "assistant_id": cron["assistant_id"], "thread_id": alice.thread, "user_id": "",
        "end_time": "2099-01-01T00:00:00.000000+00:00", "schedule": "0 0 1 1 *", "timezone": "Europe/Paris",
        "payload": payload, "next_run_date": "2026-12-31T23:00:00.000000+00:00", "metadata": {"job": "greet"},
        "on_run_completed": null, "enabled": false, "created_at": now, "updated_at": now,
    });
    assert_eq!(cron, expected);
    assert_eq!(show(&client, &cron).await, expected);
}

async fn a_patch_changes_only_its_fields(server: TestServer) {
    let clock = clock_at("2026-11-21T08:40:58Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let old = cron_body(
        "0 0 1 1 *",
        json!({"timezone": "Europe/Paris", "context": {"who": "me"}, "webhook": null}),
    );
    let cron = client.post("/runs/crons", old).await.ok();
    let path = format!("/runs/crons/{}", id(&cron));
    clock.advance(MINUTE);
    let patch =
        json!({"schedule": "0 12 * * *", "metadata": {"more": 1}, "on_run_completed": "keep", "assistant_id": "x"});
    let new = client.patch(&path, patch).await.ok();
    let mut expected = cron.clone();
    expected["schedule"] = json!("0 12 * * *");
    expected["next_run_date"] = json!("2026-11-21T11:00:00.000000+00:00");
    expected["metadata"] = json!({"job": "greet", "more": 1});
    expected["on_run_completed"] = json!("keep");
    expected["updated_at"] = json!("2026-11-21T08:41:58.000000+00:00");
    expected["payload"]["schedule"] = json!("0 12 * * *");
    expected["payload"]["metadata"] = expected["metadata"].clone();
    expected["payload"]["on_run_completed"] = json!("keep");
    assert_eq!(new, expected);
    assert_eq!(
        client.patch(&path, json!({})).await.refused(400),
        "Request body cannot be empty"
    );
    for (patch, field) in [
        (json!({"schedule": null}), "schedule"),
        (json!({"timezone": "Mars/One"}), "timezone"),
        (json!({"stream_mode": "odd"}), "stream_mode[0]"),
        (json!({"enabled": "x"}), "enabled"),
    ] {
        let detail = client.patch(&path, patch).await.refused(422);
        assert!(detail.starts_with(&format!("{field}: ")), "{detail}");
    }
    assert_eq!(show(&client, &cron).await, expected);
    let nowhere = format!("/runs/crons/{}", uuid::Uuid::new_v4());
    assert_eq!(client.patch(&nowhere, json!({"enabled": true})).await.status, 404);
}

async fn an_invalid_cron_is_refused_and_not_stored(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let wrong = [
        (json!({"schedule": "nonsense"}), "schedule: "),
        (json!({"schedule": "* * * * * *"}), "schedule: "),
        (json!({"schedule": "@reboot"}), "schedule: "),
        (json!({"schedule": "0 0 30 2 *"}), "schedule: "),
        (json!({"schedule": null}), "schedule: is missing"),
        (json!({"schedule": 5}), "schedule: "),
        (json!({"timezone": "Mars/One"}), "timezone: "),
        (json!({"end_time": "tomorrow"}), "end_time: "),
        (json!({"enabled": 1}), "enabled: "),
        (json!({"on_run_completed": "burn"}), "on_run_completed: "),
        (json!({"assistant_id": null}), "assistant_id: "),
        (json!({"input": {"messages": 5}}), "messages"),
        (json!({"config": {"recursion_limit": 0}}), "config.recursion_limit: "),
        (json!({"multitask_strategy": "odd"}), "multitask_strategy: "),
        (json!({"stream_mode": ["odd"]}), "stream_mode[0]: "),
        (json!({"interrupt_before": 5}), "interrupt_before: "),
        (json!({"webhook": "/relative"}), "webhook: "),
        (json!({"durability": "odd"}), "durability: "),
        (json!({"command": {"resume": 1}}), "command.resume: "),
        (json!({"after_seconds": 5}), "after_seconds: "),
    ];
    for (more, expected) in wrong {
        for path in ["/runs/crons".to_owned(), alice.path("/runs/crons")] {
            let detail = client
                .post(&path, cron_body("0 * * * *", more.clone()))
                .await
                .refused(422);
            assert!(detail.contains(expected), "{more}: {detail}");
        }
    }
    let both = json!({"context": {"a": 1}, "config": {"configurable": {"b": 1}}});
    client
        .post("/runs/crons", cron_body("0 * * * *", both))
        .await
        .refused(400);
    client
        .post("/runs/crons", cron_body("0 * * * *", json!({"assistant_id": "nosuch"})))
        .await
        .refused(404);
    let nobody = uuid::Uuid::new_v4();
    client
        .post("/runs/crons", cron_body("0 * * * *", json!({"assistant_id": nobody})))
        .await
        .refused(404);
    client
        .post(
            &format!("/threads/{nobody}/runs/crons"),
            cron_body("0 * * * *", json!({})),
        )
        .await
        .refused(404);
    client.get("/runs/crons/nope").await.refused(422);
    assert_eq!(client.post("/runs/crons/count", json!({})).await.ok(), 0);
}

async fn crons_are_searched_and_counted_in_pages(server: TestServer) {
    let clock = clock_at("2026-11-21T12:00:00Z");
    server.uses_clock(&clock).await;
    let client = server.client();
    let alice = server.human("agent").await;
    let mut all = vec![];
    for (path, schedule, more) in [
        (alice.path("/runs/crons"), "0 0 1 1 *", json!({"metadata": {"n": 1}})),
        (
            "/runs/crons".to_owned(),
            "0 13 * * *",
            json!({"metadata": {"n": 2}, "enabled": false}),
        ),
        (
            "/runs/crons".to_owned(),
            "0 14 * * *",
            json!({"metadata": {"n": 2}, "end_time": "2027-01-01T00:00:00Z"}),
        ),
    ] {
        clock.advance(MINUTE / 60);
        all.push(id(&client.post(&path, cron_body(schedule, more)).await.ok()));
    }
    let found = async |wanted: Value| -> Vec<usize> {
        let found = client.post("/runs/crons/search", wanted).await.ok();
        let place = |cron: &Value| all.iter().position(|known| *known == id(cron)).unwrap();
        found.as_array().unwrap().iter().map(place).collect()
    };
    assert_eq!(found(json!({})).await, [2, 1, 0]);
    assert_eq!(
        found(json!({"sort_by": "created_at", "sort_order": "asc"})).await,
        [0, 1, 2]
    );
    assert_eq!(
        found(json!({"sort_by": "next_run_date", "sort_order": "asc"})).await,
        [1, 2, 0]
    );
    assert_eq!(found(json!({"sort_by": "end_time"})).await[0], 2);
    assert_eq!(found(json!({"sort_by": "thread_id"})).await[0], 0);
    assert_eq!(
        found(json!({"sort_by": "cron_id", "sort_order": "asc"})).await,
        [0, 1, 2]
    );
    assert_eq!(found(json!({"thread_id": alice.thread})).await, [0]);
    assert_eq!(found(json!({"enabled": false})).await, [1]);
    assert_eq!(found(json!({"enabled": true, "metadata": {"n": 2}})).await, [2]);
    assert_eq!(found(json!({"assistant_id": "agent"})).await.len(), 3);
    assert_eq!(found(json!({"assistant_id": "mailer"})).await.len(), 0);
    let page = client
        .post(
            "/runs/crons/search",
            json!({"limit": 1, "offset": 1, "select": ["cron_id", "now"]}),
        )
        .await;
    assert_eq!(page.header("x-pagination-total"), Some("3"));
    assert_eq!(page.header("x-pagination-next"), Some("2"));
    assert_eq!(
        page.ok(),
        json!([{"cron_id": all[1], "now": "2026-11-21T12:00:03.000000+00:00"}])
    );
    assert_eq!(
        client
            .post("/runs/crons/count", json!({"metadata": {"n": 2}}))
            .await
            .ok(),
        2
    );
    for wrong in [
        json!({"select": ["odd"]}),
        json!({"limit": 0}),
        json!({"sort_by": "odd"}),
        json!({"thread_id": "x"}),
    ] {
        client.post("/runs/crons/search", wrong).await.refused(422);
    }
}

async fn a_due_time_starts_one_run_over_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let client = server.client();
    let mut crons = vec![];
    for _ in 0..40 {
        crons.push(
            client
                .post(
                    "/runs/crons",
                    cron_body("0 0 1 1 *", json!({"on_run_completed": "keep"})),
                )
                .await
                .ok(),
        );
    }
    all_are_due(&server).await;
    let fired = json!({"metadata": {"job": "greet"}});
    eventually(async || client.post("/threads/count", fired.clone()).await.ok() != 0).await;
    server.is_killed_and_started_again().await;
    let idle = json!({"metadata": {"job": "greet"}, "status": "idle"});
    eventually(async || client.post("/threads/count", idle.clone()).await.ok() == 40).await;
    for cron in &crons {
        assert_eq!(threads_of(&client, cron).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_start_one_run_for_each_due_time() {
    play(Engine::Postgres, async |server: TestServer| {
        let clock = clock_at("2026-11-21T12:00:00Z");
        server.uses_clock(&clock).await;
        let twin = server.starts_twin().await;
        let client = server.client();
        let alice = server.human("agent").await;
        let on_thread = client
            .post(&alice.path("/runs/crons"), cron_body("* * * * *", json!({})))
            .await
            .ok();
        let mut crons = vec![];
        for _ in 0..10 {
            crons.push(
                twin.client
                    .post(
                        "/runs/crons",
                        cron_body("* * * * *", json!({"on_run_completed": "keep"})),
                    )
                    .await
                    .ok(),
            );
        }
        for round in 1..=4 {
            clock.advance(MINUTE);
            eventually(async || threads_of(&client, &crons[9]).await == round).await;
            has_run(&alice, round).await;
            for cron in &crons {
                eventually(async || threads_of(&client, cron).await == round).await;
            }
        }
        assert_eq!(next(&client, &on_thread).await, "2026-11-21T12:05");
        let busy = json!({"status": "busy"});
        eventually(async || client.post("/threads/count", busy.clone()).await.ok() == 0).await;
        twin.stops().await;
        for cron in &crons {
            assert_eq!(threads_of(&client, cron).await, 4);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_due_time_whose_run_is_not_acknowledged_starts_one_run() {
    play_behind_proxy("no answer", async |server, door| {
        let client = server.client();
        let alice = server.human("agent").await;
        let bob = server.human("agent").await;
        let input = json!({"messages": [{"role": "user", "content": "no answer"}]});
        let body = cron_body("0 0 1 1 *", json!({"input": input}));
        client.post(&alice.path("/runs/crons"), body).await.ok();
        door.commits(Commits::OfMarkedAreNotAcknowledged);
        all_are_due(&server).await;
        eventually(async || door.broken() > 0).await;
        door.commits(Commits::Arrive);
        has_run(&alice, 1).await;
        // If the first one were due again, it would be so earlier than this one.
        let body = cron_body("0 0 1 1 *", json!({}));
        let later = client.post(&bob.path("/runs/crons"), body).await.ok();
        let now = "cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)";
        let key = id(&later);
        server
            .executes_sql(&format!("update jobs set due_at = {now} where key = '{key}'"))
            .await;
        has_run(&bob, 1).await;
        has_run(&alice, 1).await;
    })
    .await;
}
