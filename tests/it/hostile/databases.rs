//! A database that is slow, locked, full or gone, and a second server on the same file.

use std::time::{Duration, Instant};

use adjutant::Adjutant;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::support::client::{Client, Reply, reply};
use crate::support::{Engine, TestServer, eventually, on_both_engines, play};

/// From now on a statement may take this long, in seconds.
async fn is_impatient(server: &TestServer, seconds: f64) {
    server.configuration_changes("[storage]\n", &format!("[storage]\nstatement_timeout_s = {seconds}\n"));
    server.is_stopped_and_started_again().await;
}

/// Nothing is known for sure, and the client is told when to ask again.
#[track_caller]
fn says_try_again(reply: &Reply) {
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
}

async fn post_keyed(client: &Client, key: &str) -> Reply {
    let request = client.request(reqwest::Method::POST, "/threads").header("Idempotency-Key", key);
    reply(request.json(&json!({"metadata": {"key": key}}))).await
}

async fn with_key(client: &Client, key: &str) -> usize {
    let search = json!({"metadata": {"key": key}});
    client.post("/threads/search", search).await.ok().as_array().expect("a list").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_somebody_else_holds_the_sqlite_file_writes_are_told_to_come_again() {
    play(Engine::Sqlite, async |server: TestServer| {
        is_impatient(&server, 0.3).await;
        let client = server.client();
        let thread = client.thread().await;
        let mut other = SqliteConnection::connect(&server.database_url()).await.expect("a connection");
        sqlx::raw_sql("begin exclusive").execute(&mut other).await.expect("the lock");
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
async fn a_request_ends_at_its_deadline_and_is_not_done_twice_under_its_key() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.is_configured("request_s = 0.5").await;
        let client = server.client();
        let mut other = SqliteConnection::connect(&server.database_url()).await.expect("a connection");
        sqlx::raw_sql("begin exclusive").execute(&mut other).await.expect("the lock");
        let begun = Instant::now();
        let late = post_keyed(&client, "k1").await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        says_try_again(&late);
        let told = late.body["detail"].as_str().unwrap_or_default();
        assert!(told.contains("may have been carried out") && told.contains("Idempotency-Key"), "{told}");
        assert_eq!(late.body["code"], "deadline_exceeded");
        sqlx::raw_sql("rollback").execute(&mut other).await.expect("it is free");
        eventually(async || post_keyed(&client, "k1").await.status == 200).await;
        assert_eq!(with_key(&client, "k1").await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_of_postgres_is_waited_for_no_longer_than_a_statement_may_take() {
    play(Engine::Postgres, async |server: TestServer| {
        is_impatient(&server, 0.5).await;
        let client = server.client();
        client.thread().await;
        let mut other = PgConnection::connect(&server.database_url()).await.expect("a connection");
        sqlx::raw_sql("begin; lock table threads in access exclusive mode")
            .execute(&mut other)
            .await
            .expect("the lock");
        let begun = Instant::now();
        says_try_again(&client.post("/threads", json!({})).await);
        says_try_again(&client.post("/threads/search", json!({})).await);
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        sqlx::raw_sql("rollback").execute(&mut other).await.expect("it is free");
        eventually(async || client.post("/threads", json!({})).await.status == 200).await;
    })
    .await;
}

/// Why a server with this database does not start.
async fn refusal(url: &str) -> (String, Duration) {
    let begun = Instant::now();
    let text = format!("[storage]\nurl = {url:?}\n");
    let Err(error) = Adjutant::builder().config_text(text).start().await else { panic!("it starts with {url}") };
    (format!("{error:#}"), begun.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_not_there_is_told_at_once_with_the_reason() {
    let (reason, took) = refusal("postgres://nobody@127.0.0.1:1/nothing").await;
    assert!(reason.to_lowercase().contains("connection refused"), "{reason}");
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_opened_is_named_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").expect("a file");
    let below = file.join("adjutant.db");
    let (reason, _) = refusal(&format!("sqlite://{}", below.display())).await;
    assert!(reason.contains(&file.display().to_string()) && reason.contains("cannot be opened"), "{reason}");
    let (reason, _) = refusal(&format!("sqlite://{}", folder.path().display())).await;
    assert!(reason.contains(&folder.path().display().to_string()) && reason.contains("directory"), "{reason}");
}

on_both_engines! {
    async fn the_check_of_the_database_writes_a_row(server: TestServer) {
        const SQL: &str = "select written_at from probes where probe = 1";
        let client = server.client();
        let written = async || {
            let url = server.database_url();
            let found: Option<i64> = match server.engine {
                Engine::Sqlite => {
                    let mut conn = SqliteConnection::connect(&url).await.expect("a connection");
                    sqlx::query_scalar(SQL).fetch_optional(&mut conn).await.expect("the table")
                }
                Engine::Postgres => {
                    let mut conn = PgConnection::connect(&url).await.expect("a connection");
                    sqlx::query_scalar(SQL).fetch_optional(&mut conn).await.expect("the table")
                }
            };
            found.unwrap_or_default()
        };
        let before = written().await;
        client.get("/ok?check_db=1").await.ok();
        let first = written().await;
        assert!(first > before);
        client.get("/ok?check_db=1").await.ok();
        assert!(written().await > first);
    }

    async fn copying_a_long_thread_keeps_nobody_waiting_and_the_copy_is_whole(server: TestServer) {
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
        assert!(slowest < took / 2, "a write waited {slowest:?} for a copy that took {took:?}");
        let history = |thread: Value| {
            let client = client.clone();
            async move {
                let path = format!("/threads/{}/history?limit=100&select=metadata", thread.as_str().unwrap());
                client.get(&path).await.ok().as_array().expect("a list").len()
            }
        };
        let original = alice.record().await["thread_id"].clone();
        assert_eq!(history(copy["thread_id"].clone()).await, history(original).await);
        assert_eq!(copy["values"], alice.state().await["values"]);
    }
}
