//! A database that is slow, locked, full or unreachable.

use std::str::FromStr;
use std::time::{Duration, Instant};

use adjutant::Adjutant;
use adjutant::sqlite::SqliteConnection;
use futures::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use crate::support::client::{Client, Reply, reply};
use crate::support::postgres_proxy::play_behind_proxy;
use crate::support::{Engine, TestServer, call, eventually, on_both_engines, play, postgres, script};

/// Restarts the server with this time limit of a statement, in seconds.
async fn is_impatient(server: &TestServer, seconds: f64) {
    server.configuration_changes("[storage]\n", &format!("[storage]\nstatement_timeout_s = {seconds}\n"));
    server.is_stopped_and_started_again().await;
}

/// Begins a transaction on Postgres, beside the server, with a statement that locks something.
async fn begins_with(server: &TestServer, begin_and_lock: &'static str) -> PgConnection {
    let mut other = postgres::connect(&server.database_url()).await;
    sqlx::raw_sql(begin_and_lock)
        .execute(&mut other)
        .await
        .expect("the lock");
    other
}

/// Frees what a transaction has locked.
async fn is_freed(mut other: PgConnection) {
    sqlx::raw_sql("rollback").execute(&mut other).await.expect("it is free");
}

/// Checks that the request may be repeated later: status 503 with `Retry-After`.
#[track_caller]
fn says_try_again(reply: &Reply) {
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
}

async fn post_keyed(client: &Client, key: &str) -> Reply {
    let request = client
        .request(reqwest::Method::POST, "/threads")
        .header("Idempotency-Key", key);
    reply(request.json(&json!({"metadata": {"key": key}}))).await
}

async fn with_key(client: &Client, key: &str) -> usize {
    let search = json!({"metadata": {"key": key}});
    client
        .post("/threads/search", search)
        .await
        .ok()
        .as_array()
        .expect("a list")
        .len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_locked_sqlite_file_are_unavailable() {
    play(Engine::Sqlite, async |server: TestServer| {
        is_impatient(&server, 0.3).await;
        let client = server.client();
        let thread = client.thread().await;
        let mut other = SqliteConnection::connect(&server.database_url())
            .await
            .expect("a connection");
        sqlx::raw_sql("begin exclusive")
            .execute(&mut other)
            .await
            .expect("the lock");
        says_try_again(&client.post("/threads", json!({})).await);
        says_try_again(&client.get("/ok?check_db=1").await);
        client.get("/ok").await.ok();
        client.get("/metrics").await.ok();
        client.get(&format!("/threads/{thread}")).await.ok();
        sqlx::raw_sql("rollback").execute(&mut other).await.expect("it is free");
        eventually(async || client.post("/threads", json!({})).await.status == 200).await;
        client.get("/ok?check_db=1").await.ok();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_past_its_deadline_is_executed_once_under_its_key() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.is_configured("request_s = 0.5").await;
        let client = server.client();
        let mut other = SqliteConnection::connect(&server.database_url())
            .await
            .expect("a connection");
        sqlx::raw_sql("begin exclusive")
            .execute(&mut other)
            .await
            .expect("the lock");
        let begun = Instant::now();
        let late = post_keyed(&client, "k1").await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        says_try_again(&late);
        let told = late.body["detail"].as_str().unwrap_or_default();
        assert!(told.contains("may have been made"), "{told}");
        assert!(told.contains("Idempotency-Key"), "{told}");
        assert_eq!(late.body["code"], "deadline_exceeded");
        sqlx::raw_sql("rollback").execute(&mut other).await.expect("it is free");
        eventually(async || post_keyed(&client, "k1").await.status == 200).await;
        assert_eq!(with_key(&client, "k1").await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_of_postgres_hits_the_statement_timeout() {
    play(Engine::Postgres, async |server: TestServer| {
        is_impatient(&server, 0.5).await;
        let client = server.client();
        client.thread().await;
        let other = begins_with(&server, "begin; lock table threads in access exclusive mode").await;
        let begun = Instant::now();
        says_try_again(&client.post("/threads", json!({})).await);
        says_try_again(&client.post("/threads/search", json!({})).await);
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        is_freed(other).await;
        eventually(async || client.post("/threads", json!({})).await.status == 200).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_cannot_be_swept_in_time_does_not_keep_others() {
    play(Engine::Postgres, async |server: TestServer| {
        server.sweeps_often();
        is_impatient(&server, 0.5).await;
        let client = server.client();
        let alice = server.human("agent").await;
        alice.says("hello").await;
        // The deletion of the thread waits for its run.
        let other = begins_with(&server, "begin; select 1 from runs for update").await;
        let soon = json!({"ttl": {"ttl": 0.001, "strategy": "delete"}});
        client.patch(&alice.path(""), soon.clone()).await.ok();
        // A thread that expires later is swept behind that one.
        let later = client.post("/threads", soon).await.ok();
        let path = format!("/threads/{}", later["thread_id"].as_str().expect("an id"));
        eventually(async || client.get(&path).await.status == 404).await;
        client.get(&alice.path("")).await.ok();
        is_freed(other).await;
        eventually(async || client.get(&alice.path("")).await.status == 404).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_behind_more_than_a_sweep_passes_over_are_swept() {
    play(Engine::Postgres, async |server: TestServer| {
        server.sweeps_often();
        is_impatient(&server, 0.5).await;
        let client = server.client();
        let mut kept = vec![];
        for _ in 0..5 {
            let human = server.human("agent").await;
            human.says("hello").await;
            kept.push(human);
        }
        // The deletions of the threads wait for their runs.
        let other = begins_with(&server, "begin; select 1 from runs for update").await;
        let soon = json!({"ttl": {"ttl": 0.001, "strategy": "delete"}});
        for human in &kept {
            client.patch(&human.path(""), soon.clone()).await.ok();
        }
        let later = client.post("/threads", soon).await.ok();
        let path = format!("/threads/{}", later["thread_id"].as_str().expect("an id"));
        eventually(async || client.get(&path).await.status == 404).await;
        for human in &kept {
            client.get(&human.path("")).await.ok();
        }
        is_freed(other).await;
        for human in &kept {
            eventually(async || client.get(&human.path("")).await.status == 404).await;
        }
    })
    .await;
}

/// Has the crons locked while requests read them, checks that those do not delay bob, who has one thread, and returns their
/// answers.
async fn bob_is_not_delayed_by<T>(requests: impl Future<Output = T>, server: &TestServer, bob: &Client) -> T {
    const WAITING: &str = "select count(*) from pg_stat_activity where datname = current_database() \
        and wait_event_type = 'Lock' and query like '%from crons%'";
    let other = begins_with(server, "begin; lock table crons in access exclusive mode").await;
    let searches = async {
        eventually(async || server.number_in_database(WAITING).await >= 3).await;
        let counted = bob.post("/threads/count", json!({}));
        let counted = timeout(Duration::from_secs(5), counted)
            .await
            .expect("bob does not wait");
        assert_eq!(counted.ok(), 1);
        is_freed(other).await;
    };
    let (answers, ()) = tokio::join!(requests, searches);
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slow_searches_of_one_user_do_not_delay_those_of_others() {
    play(Engine::Postgres, async |server: TestServer| {
        let keys = server.is_protected().await;
        let ann = keys.client("ann");
        let bob = keys.client("bob");
        bob.thread().await;
        let counts = join_all((0..6).map(|_| ann.post("/runs/crons/count", json!({}))));
        for count in bob_is_not_delayed_by(counts, &server, &bob).await {
            assert_eq!(count.ok(), 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exports_of_one_admin_do_not_delay_the_searches_of_others() {
    play(Engine::Postgres, async |server: TestServer| {
        let keys = server.is_protected().await;
        let root = keys.client("root");
        let bob = keys.client("bob");
        bob.thread().await;
        let exports = join_all((0..6).map(|_| async {
            let request = root.request(reqwest::Method::GET, "/users/bob/export");
            let response = request.send().await.expect("an answer");
            response.text().await.expect("the lines")
        }));
        for lines in bob_is_not_delayed_by(exports, &server, &bob).await {
            assert!(lines.contains("\"type\":\"audit_entry\""), "it is complete: {lines}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_postgres_is_unavailable_until_it_answers_again() {
    play_behind_proxy("nothing", async |server, door| {
        // A statement may take 5 s with the way there and back, so requests are given up in the midst of their reads.
        server.configuration_changes("[server]\n", "[server]\nrequest_s = 4.0\n");
        server.configuration_changes("[storage]\n", "[storage]\nstatement_timeout_s = 4.0\n");
        server.configuration_changes("lease_s = 2.0", "lease_s = 120.0");
        server.is_stopped_and_started_again().await;
        server.tools.hold("slow");
        let client = server.client();
        let alice = server.human("plain").await;
        let run = alice
            .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
            .await;
        server.tools.called("slow", 1).await;
        let thread = alice.path("");
        door.stops_forwarding();
        server.tools.let_go("slow");
        // More than there are connections, in reads and writes of all kinds.
        for _ in 0..3 {
            let begun = Instant::now();
            let reads = (0..20).map(|_| client.get(&thread));
            let writes = (0..20).map(|_| client.post("/threads", json!({})));
            let database_requests = async {
                let replies = futures::future::join(join_all(reads), join_all(writes)).await;
                (replies, begun.elapsed())
            };
            let other_requests = async {
                client.get("/ok").await.ok();
                client.get("/metrics").await.ok();
                begun.elapsed()
            };
            let (((reads, writes), unavailable_after), others_after) =
                futures::future::join(database_requests, other_requests).await;
            reads.iter().chain(&writes).for_each(says_try_again);
            assert!(
                others_after < unavailable_after,
                "{others_after:?}, {unavailable_after:?}"
            );
            says_try_again(&client.get("/ok?check_db=1").await);
            assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
        }
        door.forwards_again();
        // All of its connections are of use again, for reads and for writes, and not only one of them.
        eventually(async || {
            let reads = join_all((0..32).map(|_| client.get(&thread)));
            let writes = join_all((0..32).map(|_| client.post("/threads", json!({}))));
            let (reads, writes) = futures::future::join(reads, writes).await;
            reads.iter().chain(&writes).all(|reply| reply.status == 200)
        })
        .await;
        client.get("/ok?check_db=1").await.ok();
        run.finishes().await;
        assert_eq!(
            alice.transcript().await,
            ["human: …", "ai calls slow", "slow: at last", "ai: done"]
        );
        assert_eq!(server.tools.calls_of("slow").len(), 1);
        let bob = server.human("plain").await;
        bob.says("hello").await;
        assert_eq!(bob.transcript().await, ["human: hello", "ai: echo: hello"]);
    })
    .await;
}

/// Sets the limit of file sizes of the process to 0, as if the disk were full, or removes it.
fn disk_is_full(process: u32, is_full: bool) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process");
    let most = getrlimit(Resource::Fsize).maximum;
    let current = if is_full { Some(0) } else { most };
    prlimit(Some(process), Resource::Fsize, Rlimit { current, maximum: most }).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_makes_the_database_unavailable_until_there_is_room() {
    play(Engine::Sqlite, async |server: TestServer| {
        let process = server.moves_into_a_process_that_outlives_a_full_disk().await;
        server.tools.hold("slow");
        let client = server.client();
        let alice = server.human("plain").await;
        let run = alice
            .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
            .await;
        server.tools.called("slow", 1).await;
        client.get("/ok?check_db=1").await.ok();
        client.get("/ready").await.ok();
        disk_is_full(process, true);
        server.tools.let_go("slow");
        for _ in 0..3 {
            says_try_again(&client.get("/ok?check_db=1").await);
            says_try_again(&client.post("/threads", json!({})).await);
            client.get("/ready").await.refused(503);
            client.get("/ok").await.ok();
            client.get("/metrics").await.ok();
            client.get(&alice.path("")).await.ok();
        }
        disk_is_full(process, false);
        eventually(async || client.get("/ok?check_db=1").await.status == 200).await;
        eventually(async || client.get("/ready").await.status == 200).await;
        run.finishes().await;
        assert_eq!(
            alice.transcript().await,
            ["human: …", "ai calls slow", "slow: at last", "ai: done"]
        );
        assert_eq!(server.tools.calls_of("slow").len(), 1);
        alice.says("hello").await;
    })
    .await;
}

/// Returns the error of a server that does not start with this database, and the time it took.
async fn refusal(url: &str) -> (String, Duration) {
    let begun = Instant::now();
    let text = format!("[storage]\nurl = {url:?}\n");
    let Err(error) = Adjutant::builder().config_text(text).start().await else {
        panic!("it starts with {url}")
    };
    (format!("{error:#}"), begun.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_postgres_prevents_the_start_with_a_reason() {
    let (reason, took) = refusal("postgres://nobody@127.0.0.1:1/nothing").await;
    assert!(reason.to_lowercase().contains("connection refused"), "{reason}");
    let advice = "start Postgres there, or correct the host and the port in [storage]";
    assert!(reason.ends_with(advice), "{reason}");
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_refuses_the_server_is_named_with_what_to_do() {
    play(Engine::Postgres, async |server: TestServer| {
        let url = server.database_url();
        let options = PgConnectOptions::from_str(&url).expect("a URL");
        let database = options.get_database().expect("a name");
        for (wrong, reason, advice) in [
            (
                url.replace(database, "no_such_database"),
                "no_such_database",
                "create the database, or correct its name in [storage]",
            ),
            (
                url.replace(&format!("//{}", options.get_username()), "//no_such_role"),
                "no_such_role",
                "correct the role and the password in [storage]",
            ),
        ] {
            let (said, _) = refusal(&wrong).await;
            assert!(said.contains(reason) && said.contains(advice), "{said}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_sqlite_file_prevents_the_start_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").expect("a file");
    let below = file.join("adjutant.db");
    let (reason, _) = refusal(&format!("sqlite://{}", below.display())).await;
    assert!(reason.contains(&file.display().to_string()), "{reason}");
    assert!(reason.contains("is not a folder"), "{reason}");
    let (reason, _) = refusal(&format!("sqlite://{}", folder.path().display())).await;
    assert!(reason.contains(&folder.path().display().to_string()), "{reason}");
    assert!(reason.contains("directory"), "{reason}");
}

on_both_engines! {
    the_database_check_writes_a_row,
    copying_a_long_thread_delays_no_other_request,
}

async fn the_database_check_writes_a_row(server: TestServer) {
    let client = server.client();
    let written = async || {
        server
            .number_in_database("select coalesce(max(written_at), 0) from probes where probe = 1")
            .await
    };
    let before = written().await;
    client.get("/ok?check_db=1").await.ok();
    let first = written().await;
    assert!(first > before);
    client.get("/ok?check_db=1").await.ok();
    assert!(written().await > first);
}

async fn copying_a_long_thread_delays_no_other_request(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let client = server.client();
    for at in 0..30 {
        let message = json!({"role": "user", "id": format!("m{}", at % 3), "content": "x".repeat(1_000_000)});
        let write = json!({"values": {"messages": [message]}, "as_node": "model"});
        client.post(&alice.path("/state"), write).await.ok();
    }
    let copying = async {
        let begun = Instant::now();
        let copy = client.post(&alice.path("/copy"), json!({})).await.ok();
        (copy, begun.elapsed())
    };
    let (done, is_done) = tokio::sync::watch::channel(false);
    let writing = async {
        let mut slowest = Duration::ZERO;
        while !*is_done.borrow() {
            let begun = Instant::now();
            client.post("/threads", json!({"metadata": {"other": true}})).await.ok();
            slowest = slowest.max(begun.elapsed());
        }
        slowest
    };
    let copying = async {
        let copied = copying.await;
        done.send_replace(true);
        copied
    };
    let ((copy, took), slowest) = futures::join!(copying, writing);
    assert!(
        slowest < took / 2,
        "a write waited {slowest:?} for a copy that took {took:?}"
    );
    let history = |thread: Value| {
        let client = client.clone();
        async move {
            let path = format!(
                "/threads/{}/history?limit=100&select=metadata",
                thread.as_str().unwrap()
            );
            client.get(&path).await.ok().as_array().expect("a list").len()
        }
    };
    let original = alice.record().await["thread_id"].clone();
    assert_eq!(history(copy["thread_id"].clone()).await, history(original).await);
    assert_eq!(copy["values"], alice.state().await["values"]);
}
