//! Clocks that differ, restarts without end, and results that cannot be stored at once.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use adjutant::sqlite::SqliteConnection;
use futures::future::join_all;
use reqwest::Method;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};

use crate::support::client::reply;
use crate::support::postgres_proxy::{Commits, play_behind_proxy};
use crate::support::{Engine, TestServer, call, eventually, lookup, on_both_engines, play, script};

/// The transcript of a run that called `slow` once and then answered "done".
const STORY: [&str; 4] = ["human: …", "ai calls slow", "slow: at last", "ai: done"];

on_both_engines! {
    restarts_in_good_order_do_not_count_as_crashes,
    a_run_whose_claim_is_stored_late_is_driven,
    a_run_that_ends_with_its_client_is_cancelled_after_a_crash_unless_a_client_joins_it,
    a_run_that_ends_with_its_client_is_cancelled_when_who_has_joined_it_after_a_crash_leaves,
    the_stream_of_a_run_breaks_when_the_server_stops,
    the_stream_of_a_thread_breaks_when_the_server_stops,
}

async fn restarts_in_good_order_do_not_count_as_crashes(server: TestServer) {
    server.tools.hold("lookup");
    let alice = server.human("plain").await;
    let run = alice.asks(script().calls(lookup("l1", "x")).says("done")).await;
    for restarts in 1..=10 {
        server.tools.called("lookup", restarts).await;
        server.is_stopped_and_started_again().await;
    }
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]
    );
}

async fn a_run_whose_claim_is_stored_late_is_driven(server: TestServer) {
    let alice = server.human("plain").await;
    let body = alice.run_body(
        script().calls(lookup("l1", "x")).says("done"),
        json!({"after_seconds": 3600}),
    );
    let run = alice.starts(body).await;
    assert_eq!(run.status().await, "pending");
    // A commit that waited for a standby does this, long after the server has given it up.
    let id = server.id_in_sql(&run.id);
    server
        .executes_sql(&format!(
            "update runs set status = 'running', worker = (select worker_id from workers), fence = fence + 1 \
             where run_id = {id}"
        ))
        .await;
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
}

async fn a_run_that_ends_with_its_client_is_cancelled_after_a_crash_unless_a_client_joins_it(server: TestServer) {
    server.moves_into_a_process().await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("l1", "x")).says("done");
    let more = json!({"on_disconnect": "cancel"});
    let alice = server.human("plain").await;
    let bob = server.human("plain").await;
    let left = alice.streams(&text, more.clone()).await;
    let joined = bob.streams(&text, more).await;
    let left = alice.run_of_id(&left.run_id());
    let joined = bob.run_of_id(&joined.run_id());
    server.tools.called("lookup", 2).await;
    server.is_killed_and_started_again().await;
    let reader = joined.is_joined(None).await;
    // Both are taken over, and the time in which their clients may come back is the same.
    eventually(async || left.status().await == "interrupted").await;
    assert_eq!(joined.status().await, "running");
    server.tools.let_go("lookup");
    joined.finishes().await;
    assert_eq!(joined.status().await, "success");
    drop(reader);
}

async fn a_run_that_ends_with_its_client_is_cancelled_when_who_has_joined_it_after_a_crash_leaves(server: TestServer) {
    server.moves_into_a_process().await;
    server.tools.hold("lookup");
    let alice = server.human("plain").await;
    let text = script().calls(lookup("l1", "x")).says("done");
    let stream = alice.streams(&text, json!({"on_disconnect": "cancel"})).await;
    let run = alice.run_of_id(&stream.run_id());
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    let reader = run.is_joined(None).await;
    assert_eq!(run.status().await, "running");
    drop(reader);
    eventually(async || run.status().await == "interrupted").await;
    server.tools.let_go("lookup");
}

async fn the_stream_of_a_run_breaks_when_the_server_stops(server: TestServer) {
    server.tools.hold("lookup");
    let alice = server.human("plain").await;
    let run_body = alice.run_body(
        script().calls(lookup("l1", "x")).says("done"),
        json!({"stream_resumable": true}),
    );
    let request = server
        .client()
        .request(Method::POST, &alice.path("/runs/stream"))
        .json(&run_body);
    let mut response = request.send().await.expect("it answers");
    server.tools.called("lookup", 1).await;
    let reads = async {
        let mut heard = vec![];
        loop {
            match response.chunk().await {
                Ok(Some(piece)) => heard.extend_from_slice(&piece),
                Ok(None) => return ("came to its end", heard),
                Err(_) => return ("broke off", heard),
            }
        }
    };
    let ((end, heard), ()) = tokio::join!(reads, server.is_stopped_and_started_again());
    assert_eq!(end, "broke off");
    let heard = String::from_utf8_lossy(&heard);
    assert!(heard.ends_with("\r\nretry: 500\r\n\r\n"), "{heard}");
    // The run goes on, and so does who reads on.
    server.tools.let_go("lookup");
    let run = alice.run(&alice.runs().await[0]);
    let frames = run.is_joined(Some("-1")).await.rest().await;
    assert!(
        frames
            .last()
            .is_some_and(|frame| frame.data.to_string().contains("done")),
        "{frames:?}"
    );
    assert_eq!(run.status().await, "success");
}

async fn the_stream_of_a_thread_breaks_when_the_server_stops(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("plain").await;
    for path in ["/stream", "/stream?stream_mode=lifecycle"] {
        let request = server.client().request(Method::GET, &alice.path(path));
        let mut response = request.send().await.expect("it answers");
        alice.says("hello").await;
        let first = response.chunk().await.expect("it is there");
        assert!(first.is_some(), "{path}: it does not end before");
        // SIGTERM; what the process had to say until its end can still be read.
        server.moves_into_a_process().await;
        let end = loop {
            match response.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => break "came to its end",
                Err(_) => break "broke off",
            }
        };
        assert_eq!(end, "broke off", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_server_on_a_sqlite_file_does_not_start() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.tools.hold("slow");
        let alice = server.human("plain").await;
        let run = alice
            .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
            .await;
        server.tools.called("slow", 1).await;
        let mut second = Command::new(env!("CARGO_BIN_EXE_adjutant"));
        second.arg("--config").arg(server.configuration()).stdin(Stdio::null());
        let second = tokio::task::spawn_blocking(move || second.output().expect("it can be started"));
        let second = tokio::time::timeout(Duration::from_secs(30), second)
            .await
            .expect("it ends by itself");
        let second = second.expect("no panic");
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert_eq!(second.status.code(), Some(1), "{said}");
        let reason = format!("is in use by another server (process {})", std::process::id());
        assert!(said.contains(&reason), "{said}");
        server.tools.let_go("slow");
        run.finishes().await;
        assert_eq!(alice.transcript().await, STORY);
        assert_eq!(alice.questions().await.len(), 0);
        assert_eq!(server.tools.calls_of("slow").len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_ahead_takes_over_no_run() {
    play(Engine::Postgres, async |server: TestServer| {
        server.tools.hold("slow");
        let alice = server.human("plain").await;
        let run = alice
            .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
            .await;
        server.tools.called("slow", 1).await;
        let ahead = ManualClock::starting_at(SystemClock.now().plus(Duration::from_secs(120)));
        let twin = server.starts_twin_with(Some(ahead)).await;
        // The twin searches for abandoned runs once a second; the slow model takes longer than that.
        let bob = server.human("plain").await;
        let began = Instant::now();
        bob.says(script().turn(json!({"text": "hm", "first_ms": 2500}))).await;
        assert!(began.elapsed() > Duration::from_secs(2));
        assert_eq!(run.status().await, "running");
        server.tools.let_go("slow");
        run.finishes().await;
        assert_eq!(alice.transcript().await, STORY);
        assert_eq!(alice.questions().await.len(), 0);
        assert_eq!(server.tools.calls_of("slow").len(), 1);
        twin.stops().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_of_a_run_resets_its_count_of_crashes() {
    play(Engine::Sqlite, async |server: TestServer| {
        let tool = format!(
            "[tools.lookup_again]\nkind = \"http\"\ndescription = \"Look again.\"\nurl = \"{}/lookup\"\n\
             parameters = {{ type = \"object\" }}\nafter_crash = \"repeat\"\n\
             [agents.dogged]\nmodel = \"scripted:lab\"\ntools = [\"lookup\", \"lookup_again\"]\n",
            server.tools.base
        );
        server.is_configured_with(&tool).await;
        server.moves_into_a_process().await;
        server.tools.hold("lookup");
        server.tools.hold("lookup_again");
        // `before` is the number of the tool's calls before the run: the run may have made one already.
        let dies_at = async |tool: &str, before: usize, times: usize| {
            for deaths in 1..=times {
                server.tools.called(tool, before + deaths).await;
                server.is_killed_and_started_again().await;
            }
        };
        let alice = server.human("dogged").await;
        let again = call("l2", "lookup_again", json!({"query": "y"}));
        let run = alice
            .asks(script().calls(lookup("l1", "x")).calls(again).says("done"))
            .await;
        dies_at("lookup", 0, 5).await;
        server.tools.let_go("lookup");
        dies_at("lookup_again", 0, 5).await;
        server.tools.let_go("lookup_again");
        run.finishes().await;
        assert_eq!(run.status().await, "success");
        // One that takes the server down each time is given up in the end.
        server.tools.hold("lookup");
        let before = server.tools.calls_of("lookup").len();
        let run = alice.asks(script().calls(lookup("l3", "z")).says("done")).await;
        dies_at("lookup", before, 8).await;
        let over = run.finishes().await;
        assert_eq!(over["__error__"]["error"], "TooManyAttemptsError", "{over}");
        server.tools.let_go("lookup");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_stored_after_the_lock_of_the_file_ends() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.configuration_changes("[storage]\n", "[storage]\nstatement_timeout_s = 2.0\n");
        server.is_stopped_and_started_again().await;
        server.tools.hold("slow");
        let alice = server.human("plain").await;
        let run = alice
            .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
            .await;
        server.tools.called("slow", 1).await;
        let mut other = SqliteConnection::connect(&server.database_url())
            .await
            .expect("the file");
        raw_sql("begin immediate")
            .execute(&mut other)
            .await
            .expect("it is free");
        server.tools.let_go("slow");
        // The first one waits with the result or before it, the second one behind it.
        for _ in 0..2 {
            let refused = server.client().post("/threads", json!({})).await;
            assert!(refused.status >= 500, "{refused:?}");
        }
        raw_sql("rollback").execute(&mut other).await.expect("it is there");
        other.close().await.expect("a clean goodbye");
        run.finishes().await;
        assert_eq!(alice.transcript().await, STORY);
        assert_eq!(alice.questions().await.len(), 0);
        assert_eq!(server.tools.calls_of("slow").len(), 1);
    })
    .await;
}

/// Executes a run, during which commits are treated like this while the result of a call is stored.
async fn stores_the_result_once_while(commits: Commits, lost: usize) {
    play_behind_proxy("at last", async |server, door| {
        server.tools.hold("slow");
        let alice = server.human("plain").await;
        let run = alice
            .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
            .await;
        server.tools.called("slow", 1).await;
        let mut stream = run.is_joined(Some("-1")).await;
        door.commits(commits);
        server.tools.let_go("slow");
        eventually(async || door.broken() >= lost).await;
        door.commits(Commits::Arrive);
        run.finishes().await;
        assert_eq!(alice.transcript().await, STORY);
        assert_eq!(alice.questions().await.len(), 0);
        assert_eq!(server.tools.calls_of("slow").len(), 1);
        // Input, call, result, answer: each is one checkpoint, and there are no others.
        let nodes = alice.history().await.len();
        let quiet = server.human("plain").await;
        quiet
            .says(script().calls(call("s2", "slow", json!({}))).says("done"))
            .await;
        assert_eq!(nodes, quiet.history().await.len());
        // The stream was open all the time and has every event.
        let end = stream
            .until(|frame| frame.data.to_string().contains("\"content\":\"done\""))
            .await;
        assert!(
            end.iter().any(|frame| frame.data.to_string().contains("at last")),
            "{end:?}"
        );
        drop(stream);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_whose_commit_does_not_arrive_is_stored_once() {
    stores_the_result_once_while(Commits::GetLost, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_whose_commit_is_not_acknowledged_is_stored_once() {
    stores_the_result_once_while(Commits::AreNotAcknowledged, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_admission_is_not_acknowledged_runs_once() {
    play_behind_proxy("no_answer", async |server, door| {
        let alice = server.human("plain").await;
        let post = async || {
            let request = server.client().request(Method::POST, &alice.path("/runs"));
            let body = alice.run_body(script().calls(lookup("no_answer", "x")).says("done"), json!({}));
            reply(request.header("Idempotency-Key", "once").json(&body)).await
        };
        door.commits(Commits::AreNotAcknowledged);
        assert_eq!(post().await.status, 503);
        assert!(door.broken() > 0, "the admission was not acknowledged");
        door.commits(Commits::Arrive);
        let run = post().await.ok();
        let run = alice.run(&run);
        run.finishes().await;
        assert_eq!(run.status().await, "success");
        assert_eq!(alice.runs().await.len(), 1);
        assert_eq!(server.tools.calls_of("lookup").len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ends_with_its_client_is_cancelled_if_its_admission_is_not_acknowledged() {
    play_behind_proxy("unheard_of", async |server, door| {
        let alice = server.human("plain").await;
        server.tools.hold("lookup");
        let text = script().calls(lookup("unheard_of", "x")).says("done");
        let body = alice.run_body(text, json!({"on_disconnect": "cancel"}));
        door.commits(Commits::AreNotAcknowledged);
        let refused = server.client().post(&alice.path("/runs/wait"), body).await;
        assert_eq!(refused.status, 503);
        assert!(door.broken() > 0, "the admission was not acknowledged");
        door.commits(Commits::Arrive);
        let runs = alice.runs().await;
        assert_eq!(runs.len(), 1, "it is stored");
        let run = alice.run(&runs[0]);
        eventually(async || run.status().await == "interrupted").await;
        server.tools.let_go("lookup");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ends_with_its_client_is_cancelled_if_the_client_leaves_before_its_admission() {
    play(Engine::Postgres, async |server: TestServer| {
        server.tools.hold("lookup");
        let alice = server.human("plain").await;
        let mut other = PgConnection::connect(&server.database_url())
            .await
            .expect("a connection");
        let id = server.id_in_sql(&alice.thread);
        let lock = format!("set adjutant.tenant = '*'; begin; select 1 from threads where thread_id = {id} for update");
        raw_sql(AssertSqlSafe(lock))
            .execute(&mut other)
            .await
            .expect("the lock");
        let text = script().calls(lookup("l1", "x")).says("done");
        let body = alice.run_body(text, json!({"on_disconnect": "cancel"}));
        let request = server.client().request(Method::POST, &alice.path("/runs/wait"));
        let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
            and wait_event_type = 'Lock'";
        tokio::select! {
            answer = request.json(&body).send() => panic!("it waits for the thread: {answer:?}"),
            () = eventually(async || server.number_in_database(waiting).await > 0) => {}
        }
        raw_sql("rollback").execute(&mut other).await.expect("it is there");
        eventually(async || alice.runs().await.len() == 1).await;
        let run = alice.run(&alice.runs().await[0]);
        eventually(async || run.status().await == "interrupted").await;
        server.tools.let_go("lookup");
        other.close().await.expect("a clean goodbye");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_writes_all_wait_for_a_lock_keeps_its_lease() {
    /// Half of the connections of the server.
    const WRITERS: usize = 8;
    const WAITING: &str = "select count(*) from pg_stat_activity where datname = current_database() \
        and wait_event_type = 'Lock'";
    const ALIVE_UNTIL: &str = "select max(alive_until) from workers";
    play(Engine::Postgres, async |server: TestServer| {
        server.tools.hold("lookup");
        let alice = server.human("plain").await;
        let run = alice.asks(script().calls(lookup("l1", "x")).says("done")).await;
        server.tools.called("lookup", 1).await;
        let bob = server.human("plain").await;
        let mut other = PgConnection::connect(&server.database_url())
            .await
            .expect("a connection");
        let id = server.id_in_sql(&bob.thread);
        let lock = format!("set adjutant.tenant = '*'; begin; select 1 from threads where thread_id = {id} for update");
        raw_sql(AssertSqlSafe(lock))
            .execute(&mut other)
            .await
            .expect("the lock");
        let path = bob.path("");
        let changes = (0..2 * WRITERS).map(|_| bob.client().patch(&path, json!({"metadata": {"colour": "red"}})));
        let renewals = async {
            eventually(async || usize::try_from(server.number_in_database(WAITING).await).is_ok_and(|n| n >= WRITERS))
                .await;
            let before = server.number_in_database(ALIVE_UNTIL).await;
            // Two leases of the harness later, in microseconds.
            eventually(async || server.number_in_database(ALIVE_UNTIL).await > before + 4_000_000).await;
            raw_sql("rollback").execute(&mut other).await.expect("it is there");
        };
        tokio::join!(join_all(changes), renewals);
        server.tools.let_go("lookup");
        run.finishes().await;
        assert_eq!(run.status().await, "success");
        assert_eq!(server.tools.calls_of("lookup").len(), 1);
        other.close().await.expect("a clean goodbye");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_run_whose_claim_is_not_acknowledged_runs_once() {
    play_behind_proxy("nothing", async |server, door| {
        let alice = server.human("plain").await;
        let later = json!({"after_seconds": 1});
        let run = alice
            .starts(alice.run_body(script().calls(lookup("l1", "x")).says("done"), later))
            .await;
        assert_eq!(run.status().await, "pending");
        door.commits(Commits::AreNotAcknowledged);
        // The run is claimed, but the server does not hear of it.
        eventually(async || run.status().await == "running").await;
        door.commits(Commits::Arrive);
        run.finishes().await;
        assert_eq!(run.status().await, "success");
        assert_eq!(server.tools.calls_of("lookup").len(), 1);
    })
    .await;
}
