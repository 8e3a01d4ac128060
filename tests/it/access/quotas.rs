//! Quotas: what API keys, users and tenants may use.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use super::tenants::values_of;
use crate::support::actors::{Human, Run};
use crate::support::client::Reply;
use crate::support::{TestServer, approval, eventually, lookup, mail, on_both_engines, on_postgres, script};

on_both_engines! {
    a_user_with_too_many_requests_waits_and_others_do_not,
    a_key_with_too_many_requests_does_not_limit_the_other_keys_of_its_user,
    commands_over_a_websocket_count_as_requests,
    ok_and_the_document_are_never_limited,
    runs_beyond_those_at_work_wait_and_runs_beyond_those_that_wait_are_refused,
    runs_at_the_same_time_begin_no_more_than_a_quota_allows,
    a_tenant_with_quotas_of_its_own_has_those,
    the_open_streams_of_a_tenant_are_limited,
    the_tokens_of_a_day_end_a_run_in_the_middle_and_it_continues_on_the_next_day,
    the_tokens_of_subagents_count,
    a_used_up_amount_of_money_is_answered_402,
    an_answer_to_an_interrupt_is_kept_for_the_next_day,
    failed_authentications_of_an_address_are_limited,
    a_tenant_that_floods_the_queue_does_not_delay_another,
    a_run_with_a_higher_priority_is_next_in_its_tenant,
    only_developers_operators_and_admins_give_priorities,
    a_copy_does_not_multiply_a_priority,
    the_owner_of_a_cron_with_a_priority_stops_it_and_gives_the_priority_to_nothing_else,
    the_sums_of_a_day_equal_the_usage_of_the_runs_after_kills,
    sums_of_days_long_ago_are_deleted,
    an_owner_who_has_stored_too_much_is_answered_507_until_something_is_deleted,
    the_agents_that_clients_of_a_tenant_define_are_limited_and_those_of_another_are_not,
    the_agents_that_clients_of_all_tenants_define_are_limited,
}

on_postgres! {
    two_servers_together_begin_no_more_runs_than_a_quota_allows,
}

const DAY: Duration = Duration::from_secs(86_400);

/// Restarts the server with a clock that the test moves.
async fn clock(server: &TestServer) -> ManualClock {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    clock
}

/// Checks that a response names this quota, and when to try again.
#[track_caller]
fn assert_reached(reply: &Reply, status: u16, quota: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    assert_eq!(reply.body["limit"], quota, "{reply:?}");
    assert_eq!(reply.body["code"], "quota_exceeded", "{reply:?}");
    assert!(
        reply.body["detail"].as_str().expect("a text").contains(quota),
        "{reply:?}"
    );
    assert!(retry_after(reply) >= 1, "{reply:?}");
}

fn retry_after(reply: &Reply) -> u64 {
    let seconds = reply.header("retry-after").expect("a time to wait");
    seconds.parse().expect("seconds")
}

/// Returns the body of a run that looks something up and is held there.
fn held(name: &str) -> Value {
    let text = script().calls(lookup("l", name)).says("done").to_string();
    json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": text}]}})
}

async fn a_user_with_too_many_requests_waits_and_others_do_not(server: TestServer) {
    let clock = clock(&server).await;
    server
        .is_configured_with(
            "[quotas.tenants.acme]\nrequests_per_second = 100\n[quotas.per_user]\nrequests_per_second = 2",
        )
        .await;
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    for _ in 0..2 {
        assert_eq!(ann.get("/auth/me").await.status, 200);
    }
    let refused = ann.get("/auth/me").await;
    assert_reached(&refused, 429, "per_user.requests_per_second");
    assert_eq!(retry_after(&refused), 1);
    assert_eq!(keys.client("bob").get("/auth/me").await.status, 200);
    clock.advance(Duration::from_secs(1));
    assert_eq!(ann.get("/auth/me").await.status, 200);
    server
        .is_reconfigured("requests_per_second = 2", "requests_per_second = 0")
        .await;
}

async fn a_key_with_too_many_requests_does_not_limit_the_other_keys_of_its_user(server: TestServer) {
    let clock = clock(&server).await;
    server
        .is_configured_with("[quotas.per_key]\nrequests_per_second = 3")
        .await;
    let keys = server.is_protected().await;
    let root = keys.client("root");
    let issued = root
        .post("/auth/keys", json!({"name": "second", "user": "root"}))
        .await
        .ok();
    let second = keys.with(issued["api_key"].as_str().expect("a key"));
    for _ in 0..2 {
        assert_eq!(root.get("/auth/me").await.status, 200);
    }
    assert_reached(&root.get("/auth/me").await, 429, "per_key.requests_per_second");
    assert_eq!(second.get("/auth/me").await.status, 200);
    clock.advance(Duration::from_secs(60));
    server
        .is_reconfigured("requests_per_second = 3", "requests_per_second = 0")
        .await;
}

async fn commands_over_a_websocket_count_as_requests(server: TestServer) {
    let clock = clock(&server).await;
    server
        .is_configured_with("[quotas.per_user]\nrequests_per_second = 3")
        .await;
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let opened = connect_async(ann.socket_request(&thread)).await;
    let mut socket = opened.expect("a socket").0;
    let mut answer = async || {
        let command = json!({"id": 1, "method": "agent.getTree", "params": {}}).to_string();
        socket.send(Message::text(command)).await.expect("it is open");
        loop {
            if let Message::Text(text) = socket.next().await.expect("it is open").expect("it works") {
                return text.to_string();
            }
        }
    };
    // The thread and the WebSocket were two requests.
    assert!(answer().await.contains("no_such_run"));
    let refused = answer().await;
    assert!(
        refused.contains("429") && refused.contains("per_user.requests_per_second"),
        "{refused}"
    );
    clock.advance(Duration::from_secs(1));
    assert!(answer().await.contains("no_such_run"));
    server
        .is_reconfigured("requests_per_second = 3", "requests_per_second = 0")
        .await;
}

async fn ok_and_the_document_are_never_limited(server: TestServer) {
    clock(&server).await;
    server
        .is_configured_with("[quotas.per_tenant]\nrequests_per_second = 1")
        .await;
    // Without authentication all clients are of one tenant.
    let client = server.client();
    assert_eq!(client.get("/info").await.status, 200);
    assert_reached(&client.get("/info").await, 429, "per_tenant.requests_per_second");
    for path in ["/ok", "/openapi.json", "/docs", "/ok"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    server
        .is_reconfigured("requests_per_second = 1", "requests_per_second = 0")
        .await;
}

async fn runs_beyond_those_at_work_wait_and_runs_beyond_those_that_wait_are_refused(server: TestServer) {
    server
        .is_configured_with("[quotas.tenants.acme]\nruns_at_work = 1\nruns_waiting = 1")
        .await;
    let keys = server.is_protected().await;
    server.tools.hold("lookup");
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let first = ann.starts(held("first")).await;
    server.tools.called("lookup", 1).await;
    let bob = Human::on_new_thread(keys.client("bob"), "agent").await;
    let second = bob.starts(held("second")).await;
    let third = keys.client("ann").post("/runs", held("third")).await;
    assert_reached(&third, 429, "per_tenant.runs_waiting");
    // Another tenant is not limited: its run begins although one of acme waits.
    let zoe = Human::on_new_thread(keys.client("root-of-other"), "agent").await;
    let other = zoe.starts(held("other")).await;
    server.tools.called("lookup", 2).await;
    assert_eq!(status(&zoe, &other).await, "running");
    assert_eq!(status(&bob, &second).await, "pending");
    server.tools.let_go("lookup");
    for (human, run) in [(&ann, &first), (&bob, &second), (&zoe, &other)] {
        ended(human, run).await;
    }
    assert_eq!(queries(&server), ["first", "other", "second"]);
}

async fn runs_at_the_same_time_begin_no_more_than_a_quota_allows(server: TestServer) {
    begins_no_more_than_allowed(&server, 1).await;
}

async fn two_servers_together_begin_no_more_runs_than_a_quota_allows(server: TestServer) {
    begins_no_more_than_allowed(&server, 2).await;
}

/// Starts runs of two users of a tenant at the same time, on this number of servers. The tenant may have three at work, each
/// user two.
async fn begins_no_more_than_allowed(server: &TestServer, servers: usize) {
    const RUNS: usize = 16;
    server
        .is_configured_with("[quotas.tenants.acme]\nruns_at_work = 3\n[quotas.per_user]\nruns_at_work = 2")
        .await;
    let keys = server.is_protected().await;
    let twin = match servers {
        1 => None,
        _ => Some(server.starts_twin().await),
    };
    let at_work = "select count(*) from runs where depth = 0 and status = 'running' and queue like 'acme/%'";
    for round in 0..3 {
        server.tools.hold("lookup");
        let starts = (0..RUNS).map(|number| {
            let name = if number % 4 < 2 { "ann" } else { "bob" };
            let client = match &twin {
                Some(twin) if number % 2 == 1 => twin.client.with_key(&keys.text(name)),
                Some(_) | None => keys.client(name),
            };
            async move { client.post("/runs", held(&format!("r{number}"))).await.ok() }
        });
        futures::future::join_all(starts).await;
        // The runs that may begin have called a tool that does not answer.
        let before = round * (RUNS + 1);
        server.tools.called("lookup", before + 3).await;
        assert_eq!(server.number_in_database(at_work).await, 3, "round {round}");
        // Another tenant has no quota.
        let zoe = keys.client("root-of-other");
        zoe.post("/runs", held("zoe")).await.ok();
        server.tools.called("lookup", before + 4).await;
        assert_eq!(server.number_in_database(at_work).await, 3, "round {round}");
        server.tools.let_go("lookup");
        server.tools.called("lookup", before + RUNS + 1).await;
        eventually(async || {
            let under_way = "select count(*) from runs where status in ('pending', 'running')";
            server.number_in_database(under_way).await == 0
        })
        .await;
    }
    if let Some(twin) = twin {
        twin.stops().await;
    }
}

async fn a_tenant_with_quotas_of_its_own_has_those(server: TestServer) {
    server
        .is_configured_with(
            "[quotas.per_tenant]\nruns_waiting = 1\nopen_streams = 7\n[quotas.tenants.acme]\nruns_waiting = 0",
        )
        .await;
    let keys = server.is_protected().await;
    let mut later = held("later");
    later["after_seconds"] = json!(3600);
    let runs = |name: &str| {
        let client = keys.client(name);
        let body = later.clone();
        async move { client.post("/runs", body).await }
    };
    for _ in 0..3 {
        assert_eq!(runs("ann").await.status, 200);
    }
    assert_eq!(runs("root-of-other").await.status, 200);
    assert_reached(&runs("root-of-other").await, 429, "per_tenant.runs_waiting");
    for name in ["root", "root-of-other"] {
        keys.client(name).post("/runs/cancel", json!({"status": "all"})).await;
    }
}

async fn the_open_streams_of_a_tenant_are_limited(server: TestServer) {
    server
        .is_configured_with("[quotas.tenants.acme]\nopen_streams = 1")
        .await;
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let bob = Human::on_new_thread(keys.client("bob"), "agent").await;
    let zoe = Human::on_new_thread(keys.client("root-of-other"), "agent").await;
    let first = keys.client("ann").get_stream(&ann.path("/stream"), None).await;
    assert_reached(
        &keys.client("bob").get(&bob.path("/stream")).await,
        429,
        "per_tenant.open_streams",
    );
    let other = keys
        .client("root-of-other")
        .get_stream(&zoe.path("/stream"), None)
        .await;
    drop((first, other));
    eventually(async || {
        let path = bob.path("/stream");
        let stream = keys.client("bob").request(reqwest::Method::GET, &path).send().await;
        stream.expect("a response").status() == 200
    })
    .await;
}

async fn the_tokens_of_a_day_end_a_run_in_the_middle_and_it_continues_on_the_next_day(server: TestServer) {
    let clock = clock(&server).await;
    server.is_configured_with("[quotas.per_user]\ntokens_per_day = 1").await;
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let first = ann.starts(held("first")).await;
    ended(&ann, &first).await;
    assert_eq!(status(&ann, &first).await, "error");
    let thread = keys.client("ann").get(&ann.path("")).await.ok();
    assert_eq!(thread["error"]["error"], "QuotaExceededError", "{thread}");
    assert!(
        thread["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("per_user.tokens_per_day"))
    );
    // The answer of the model and the result of the call are kept.
    let state = keys.client("ann").get(&ann.path("/state")).await.ok();
    assert_eq!(state["values"]["messages"].as_array().map(Vec::len), Some(3), "{state}");
    let again = json!({"assistant_id": "agent", "input": null});
    let refused = keys.client("ann").post(&ann.path("/runs"), again.clone()).await;
    assert_reached(&refused, 429, "per_user.tokens_per_day");
    assert!(retry_after(&refused) <= DAY.as_secs());
    // Another user of the tenant has tokens of their own.
    let bob = Human::on_new_thread(keys.client("bob"), "agent").await;
    assert!(bob.says("hi").await["messages"].is_array());
    clock.advance(DAY);
    let values = keys.client("ann").post(&ann.path("/runs/wait"), again).await.ok();
    assert_eq!(values["messages"][3]["content"], "done", "{values}");
    assert_eq!(server.tools.calls_of("lookup").len(), 1, "nothing was done twice");
}

async fn the_tokens_of_subagents_count(server: TestServer) {
    server
        .is_configured_with("[quotas.per_user]\ntokens_per_day = 1000000")
        .await;
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let work = script().calls(lookup("l1", "x")).says("found");
    let text = script()
        .calls(crate::support::task("t1", "researcher", work))
        .says("done");
    assert!(ann.says(text).await["messages"].is_array());
    let sums = sums_and_usage(&server, &ann).await;
    assert_eq!(sums[0], sums[1]);
    assert!(
        server
            .number_in_database("select count(*) from runs where usage is not null")
            .await
            >= 2
    );
}

async fn a_used_up_amount_of_money_is_answered_402(server: TestServer) {
    let clock = clock(&server).await;
    server
        .is_configured_with(
            "[quotas.tenants.acme]\ncost_per_day = 0.000001\n[prices.\"scripted:*\"]\ninput = 1.0\noutput = 2.0",
        )
        .await;
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    assert!(ann.says("hi").await["messages"].is_array());
    let refused = keys.client("bob").post("/runs", held("x")).await;
    assert_reached(&refused, 402, "per_tenant.cost_per_day");
    assert!(retry_after(&refused) <= DAY.as_secs());
    let zoe = Human::on_new_thread(keys.client("root-of-other"), "agent").await;
    assert!(zoe.says("hi").await["messages"].is_array());
    clock.advance(DAY);
    assert!(ann.says("hi").await["messages"].is_array());
}

async fn an_answer_to_an_interrupt_is_kept_for_the_next_day(server: TestServer) {
    let clock = clock(&server).await;
    server.is_configured_with("[quotas.per_user]\ntokens_per_day = 1").await;
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let text = script().calls(mail("m1", "bob")).says("sent");
    ann.says(text).await;
    let approve = json!({"decisions": [{"type": "approve"}]});
    let refused = ann.tries_to_resume(approve.clone()).await;
    assert_reached(&refused, 429, "per_user.tokens_per_day");
    assert_eq!(server.tools.calls_of("send_email").len(), 0);
    clock.advance(DAY);
    let run = ann.resumes(approve).await;
    ended(&ann, &run).await;
    assert_eq!(status(&ann, &run).await, "success");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn failed_authentications_of_an_address_are_limited(server: TestServer) {
    let clock = clock(&server).await;
    server
        .is_configured_with("[quotas]\nfailed_authentications_per_minute = 2")
        .await;
    let keys = server.is_protected().await;
    let guess = keys.with("no-such-key-0123456789abcdef0123456789");
    // A request without credentials is no attempt.
    for _ in 0..5 {
        assert_eq!(keys.nobody().get("/info").await.status, 401);
    }
    assert_eq!(guess.get("/info").await.status, 401);
    assert_eq!(guess.get("/info").await.status, 401);
    let refused = guess.get("/info").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.body["limit"], "failed_authentications_per_minute");
    assert!(retry_after(&refused) <= 30);
    // Valid keys of the same address, and public pages, are not limited.
    assert_eq!(keys.client("ann").get("/auth/me").await.status, 200);
    assert_eq!(guess.get("/ok").await.status, 200);
    assert_eq!(keys.nobody().get("/info").await.status, 401);
    assert_eq!(guess.get("/info").await.status, 429);
    clock.advance(Duration::from_secs(30));
    assert_eq!(guess.get("/info").await.status, 401);
}

async fn a_tenant_that_floods_the_queue_does_not_delay_another(server: TestServer) {
    server
        .is_reconfigured("[runtime]\n", "[runtime]\nmax_concurrent_runs = 1\n")
        .await;
    let keys = server.is_protected().await;
    server.tools.hold("lookup");
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let first = ann.starts(held("ann 0")).await;
    server.tools.called("lookup", 1).await;
    let flood: Vec<Value> = (1..=6).map(|number| held(&format!("ann {number}"))).collect();
    keys.client("ann").post("/runs/batch", Value::Array(flood)).await.ok();
    let mut runs = vec![];
    for number in 1..=2 {
        let human = Human::on_new_thread(keys.client("root-of-other"), "agent").await;
        runs.push((human.clone(), human.starts(held(&format!("zoe {number}"))).await));
    }
    server.tools.let_go("lookup");
    server.tools.called("lookup", 9).await;
    let order = queries(&server);
    let place = |name: &str| order.iter().position(|query| query == name).expect("it was called");
    // The tenants take turns: with each turn of the one, there was one of the other.
    assert!(place("zoe 1") <= 2 && place("zoe 2") <= 4, "{order:?}");
    let of_ann: Vec<&String> = order.iter().filter(|query| query.starts_with("ann")).collect();
    assert!(of_ann.is_sorted(), "the runs of a user begin in their order: {order:?}");
    ended(&ann, &first).await;
    for (human, run) in &runs {
        ended(human, run).await;
    }
}

async fn a_run_with_a_higher_priority_is_next_in_its_tenant(server: TestServer) {
    server
        .is_reconfigured("[runtime]\n", "[runtime]\nmax_concurrent_runs = 1\n")
        .await;
    let keys = server.is_protected().await;
    server.tools.hold("lookup");
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    ann.starts(held("at work")).await;
    server.tools.called("lookup", 1).await;
    for name in ["usual 1", "usual 2"] {
        assert_eq!(keys.client("ann").post("/runs", held(name)).await.status, 200);
    }
    let mut urgent = held("urgent");
    urgent["priority"] = json!(5);
    let created = keys.client("root").post("/runs", urgent).await.ok();
    assert_eq!(created["kwargs"]["priority"], 5);
    server.tools.let_go("lookup");
    server.tools.called("lookup", 4).await;
    assert_eq!(queries(&server), ["at work", "urgent", "usual 1", "usual 2"]);
}

async fn a_copy_does_not_multiply_a_priority(server: TestServer) {
    server
        .is_reconfigured("[runtime]\n", "[runtime]\nmax_concurrent_runs = 1\n")
        .await;
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let root = Human::at(keys.client("root"), "agent", &ann.thread);
    let talk = script()
        .calls(mail("m1", "x"))
        .calls(lookup("l1", "of the copy"))
        .says("done");
    let urgent = root.starts(root.run_body(talk, json!({"priority": 5}))).await;
    urgent.finishes().await;
    let copy = ann.client().post(&ann.path("/copy"), json!({})).await.ok();
    let copy = ann.on(copy["thread_id"].as_str().expect("an id"));
    let question = copy.question().await;
    server.tools.hold("lookup");
    let other = Human::on_new_thread(keys.client("ann"), "agent").await;
    other.starts(held("at work")).await;
    server.tools.called("lookup", 1).await;
    assert_eq!(keys.client("ann").post("/runs", held("usual")).await.status, 200);
    copy.resolves(&question, approval()).await.ok();
    server.tools.let_go("lookup");
    server.tools.called("lookup", 3).await;
    assert_eq!(queries(&server), ["at work", "usual", "of the copy"]);
}

async fn only_developers_operators_and_admins_give_priorities(server: TestServer) {
    let keys = server.is_protected().await;
    let with = |priority: i64| {
        let mut body = held("x");
        body["priority"] = json!(priority);
        body
    };
    let refused = keys.client("ann").post("/runs", with(1)).await;
    assert_eq!(refused.status, 403);
    assert!(
        refused.body["detail"]
            .as_str()
            .expect("a text")
            .starts_with("priority: ")
    );
    let cron = |priority: i64| {
        let mut body = with(priority);
        body["schedule"] = json!("0 0 1 1 *");
        body
    };
    keys.client("ann").post("/runs/crons", cron(1)).await.refused(403);
    let created = keys.client("ann").post("/runs/crons", cron(0)).await.ok();
    let id = created["cron_id"].as_str().expect("an id");
    let path = format!("/runs/crons/{id}");
    let more_urgent = json!({"priority": 1});
    keys.client("ann").patch(&path, more_urgent).await.refused(403);
    let denied = keys.client("root").get("/audit?user=ann&outcome=denied").await.ok();
    assert_eq!(
        values_of(&denied, "action"),
        ["crons:update", "crons:create", "threads:create_run"]
    );
    let named = format!("cron:{id}");
    assert_eq!(values_of(&denied, "resource"), [named.as_str(), "", ""]);
    assert_eq!(keys.client("ann").post("/runs/wait", with(0)).await.status, 200);
    for name in ["operator", "root"] {
        assert_eq!(keys.client(name).post("/runs/wait", with(9)).await.status, 200);
    }
    assert!(
        keys.client("root")
            .post("/runs", with(10))
            .await
            .refused(422)
            .starts_with("priority")
    );
    assert_eq!(keys.client("root").post("/runs", with(-1)).await.status, 422);
}

async fn the_owner_of_a_cron_with_a_priority_stops_it_and_gives_the_priority_to_nothing_else(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let mut cron = held("x");
    cron["schedule"] = json!("0 0 1 1 *");
    let created = ann.post("/runs/crons", cron).await.ok();
    let path = format!("/runs/crons/{}", created["cron_id"].as_str().expect("an id"));
    keys.client("operator").patch(&path, json!({"priority": 3})).await.ok();
    let noted = ann.patch(&path, json!({"metadata": {"note": "mine"}})).await.ok();
    assert_eq!(noted["metadata"]["note"], "mine");
    assert_eq!(noted["payload"]["priority"], 3);
    for more in [
        json!({"schedule": "* * * * *"}),
        json!({"input": {"messages": [{"role": "user", "content": "y"}]}}),
        json!({"priority": 4, "enabled": false}),
    ] {
        ann.patch(&path, more).await.refused(403);
    }
    assert_eq!(ann.patch(&path, json!({"enabled": false})).await.ok()["enabled"], false);
    ann.patch(&path, json!({"enabled": true})).await.refused(403);
    let usual = json!({"enabled": true, "priority": 0, "schedule": "0 0 1 2 *"});
    assert_eq!(ann.patch(&path, usual).await.ok()["enabled"], true);
    ann.patch(&path, json!({"priority": 3})).await.refused(403);
}

async fn the_sums_of_a_day_equal_the_usage_of_the_runs_after_kills(server: TestServer) {
    server
        .is_configured_with("[quotas.per_tenant]\ntokens_per_day = 1000000")
        .await;
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    for round in 0..3 {
        let work = (0..4).fold(script(), |work, step| work.calls(lookup(&format!("c{step}"), "x")));
        server.tools.hold("lookup");
        let before = server.tools.calls_of("lookup").len();
        let run = alice.asks(work.says(&format!("done {round}"))).await;
        server.tools.called("lookup", before + 1).await;
        server.is_killed_and_started_again().await;
        server.tools.let_go("lookup");
        server.is_killed_and_started_again().await;
        ended(&alice, &run).await;
        assert_eq!(status(&alice, &run).await, "success");
        let sums = sums_and_usage(&server, &alice).await;
        assert!(sums[0] > 0);
        assert_eq!(sums[0], sums[1]);
    }
}

async fn sums_of_days_long_ago_are_deleted(server: TestServer) {
    let clock = clock(&server).await;
    server
        .is_configured_with("[quotas.per_tenant]\ntokens_per_day = 1000000")
        .await;
    server.human("agent").await.says("hi").await;
    assert_eq!(server.number_in_database("select count(*) from daily_usage").await, 1);
    clock.advance(40 * DAY);
    eventually(async || {
        // The time goes on: a sweep that had begun before is followed by the next one.
        clock.advance(Duration::from_secs(60));
        server.number_in_database("select count(*) from daily_usage").await == 0
    })
    .await;
}

async fn an_owner_who_has_stored_too_much_is_answered_507_until_something_is_deleted(server: TestServer) {
    let clock = clock(&server).await;
    server
        .is_configured_with("[quotas.tenants.acme]\nstored_bytes = 20000")
        .await;
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let human = Human::on_new_thread(ann.clone(), "agent").await;
    assert!(human.says("x".repeat(20_000)).await["messages"].is_array());
    let item = json!({"namespace": ["notes"], "key": "k", "value": {"text": "short"}});
    // The sum is measured after a minute, when something is stored again.
    clock.advance(Duration::from_secs(61));
    eventually(async || ann.put("/store/items", item.clone()).await.status == 507).await;
    let refused = ann.put("/store/items", item.clone()).await;
    assert_reached(&refused, 507, "per_tenant.stored_bytes");
    assert_reached(&ann.post("/threads", json!({})).await, 507, "per_tenant.stored_bytes");
    assert_reached(
        &keys.client("bob").post("/runs", held("x")).await,
        507,
        "per_tenant.stored_bytes",
    );
    assert!(
        [200, 204].contains(
            &keys
                .client("root-of-other")
                .put("/store/items", item.clone())
                .await
                .status
        )
    );
    assert_eq!(
        ann.get(&human.path("/state")).await.status,
        200,
        "reading is not limited"
    );
    assert!([200, 204].contains(&ann.delete(&human.path("")).await.status));
    clock.advance(Duration::from_secs(61));
    eventually(async || [200, 204].contains(&ann.put("/store/items", item.clone()).await.status)).await;
}

async fn the_agents_that_clients_of_a_tenant_define_are_limited_and_those_of_another_are_not(server: TestServer) {
    server
        .is_configured_with("[quotas.tenants.acme]\ndefined_agents = 2")
        .await;
    let keys = server.is_protected().await;
    let root = keys.client("root");
    let definition = |prompt: &str| json!({"model": "scripted:lab", "system_prompt": prompt});
    for path in ["/agents/one", "/agents/two"] {
        root.put(path, definition("new")).await.ok();
    }
    let refused = root.put("/agents/three", definition("new")).await;
    assert_reached(&refused, 429, "per_tenant.defined_agents");
    root.get("/agents/three").await.refused(404);
    root.put("/agents/one", definition("changed")).await.ok();
    keys.client("root-of-other")
        .put("/agents/three", definition("new"))
        .await
        .ok();
    root.delete("/agents/two").await.ok();
    root.put("/agents/four", definition("new")).await.ok();
}

async fn the_agents_that_clients_of_all_tenants_define_are_limited(server: TestServer) {
    const VERSIONS: &str = "insert into definition_versions (graph_id, version, digest, origin, created_at) \
        with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 1999) \
        select 'filler-' || n, 1, (select digest from definition_versions where graph_id = 'first'), '', 0 from numbers";
    const AGENTS: &str = "insert into agents (graph_id, version, tenant) \
        select graph_id, 1, 'elsewhere' from definition_versions where graph_id like 'filler-%'";
    let client = server.client();
    let definition = json!({"model": "scripted:lab"});
    client.put("/agents/first", definition.clone()).await.ok();
    server.executes_sql(VERSIONS).await;
    server.executes_sql(AGENTS).await;
    let refused = client.put("/agents/second", definition).await;
    assert_eq!(refused.body["code"], "too_many_agents", "{refused:?}");
    assert_eq!(refused.body["limit"], "agents");
    assert!(refused.refused(409).contains("2000"));
    let changed = json!({"model": "scripted:lab", "system_prompt": "changed"});
    client.put("/agents/first", changed).await.ok();
}

/// Returns the tokens in the sums of days, and those in the usage of all runs of the only thread.
async fn sums_and_usage(server: &TestServer, human: &Human) -> [i64; 2] {
    let mut used = 0;
    for record in human.runs().await {
        let run = human.run(&record).record().await;
        for kind in ["input_tokens", "output_tokens"] {
            used += run["tree_usage"][kind].as_i64().expect("a number");
        }
    }
    let sums = "select cast(coalesce(sum(tokens), 0) as bigint) from daily_usage";
    [server.number_in_database(sums).await, used]
}

/// Returns the queries of the calls of `lookup`, in order of arrival.
fn queries(server: &TestServer) -> Vec<String> {
    let calls = server.tools.calls_of("lookup");
    calls
        .iter()
        .map(|call| call["args"]["query"].as_str().expect("a query").to_owned())
        .collect()
}

async fn status(human: &Human, run: &Run) -> String {
    let run = human.client().get(&run.path).await.ok();
    run["status"].as_str().expect("a status").to_owned()
}

/// Waits until a run has ended.
async fn ended(human: &Human, run: &Run) {
    human.client().get(&format!("{}/join", run.path)).await;
}
