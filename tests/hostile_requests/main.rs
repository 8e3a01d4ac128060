//! Ten thousand hostile requests to all endpoints, and hostile answers from every outside party, against the real
//! program with 512 MiB of memory. Afterwards the server has to work normally.
//!
//! This is a test program of its own, so that nothing else runs while it measures: cargo runs test programs one after
//! the other. Everything is generated from a seed; a failure names the request, and the same seed reproduces it.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, reads the environment, and starts what it needs"
)]

mod documents;
mod endpoints;
mod parties;
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "the other tests are superusers, too")]
mod postgres;
#[path = "../support/process.rs"]
#[expect(dead_code, reason = "the other tests kill and suspend servers, too")]
mod process;
mod requests;
#[path = "../support/schemas.rs"]
mod schemas;
mod server;
mod traffic;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use documents::Chance;
use server::Server;

/// The number of requests for each engine.
const REQUESTS: usize = 10_000;
/// The memory limit of the server, in bytes.
const MEMORY: u64 = 512 * 1024 * 1024;
/// The time within which `/ok` and a new run have to be answered.
const PROMPT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_comes_in_breaks_a_server_with_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("adjutant.db").display());
    attack(&folder, &url, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_comes_in_breaks_a_server_with_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let Some(database) = postgres::fresh_database().await else {
        let is_required = std::env::var("ADJUTANT_TEST_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(!is_required, "there is no Postgres, and a skip is a failure");
        return;
    };
    attack(&folder, &database.url, 2).await;
    database.discard().await;
}

/// Runs the whole test against one server.
async fn attack(folder: &tempfile::TempDir, url: &str, seed: u64) {
    // One engine at a time, since both measure times.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let parties = parties::start().await;
    let server = Server::start(folder.path(), url, &parties).await;
    let places = endpoints::places(&server).await;
    let before = server.resources();

    let watch = traffic::watch(server.base.clone());
    let outside = tokio::spawn(traffic::run_hostile_parties(server.base.clone()));
    let sent = traffic::send(&server, &places, REQUESTS, &mut Chance::new(seed)).await;
    outside.await.unwrap();
    let answers = watch.finish().await;

    assert!(
        sent.faults.is_empty(),
        "these were answered with a fault: {:#?}",
        sent.faults
    );
    assert!(
        sent.answered > REQUESTS / 2,
        "only {} requests had an answer",
        sent.answered
    );
    answers.check(PROMPT);
    assert!(
        server.peak_memory() < MEMORY,
        "the server took {} MiB",
        server.peak_memory() / 1024 / 1024
    );
    everything_works(&server).await;
    nothing_is_left(&server, before).await;
    println!(
        "{} requests, {} answered, peak {} MiB, statuses {:?}",
        sent.count,
        sent.answered,
        server.peak_memory() / 1024 / 1024,
        sent.statuses
    );
    server.stop().await;
}

/// Checks that a run on a new thread is answered in time, and that every list can be read.
async fn everything_works(server: &Server) {
    let client = server.client();
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let thread = client.post("/threads", json!({})).await;
        let thread = thread["thread_id"].as_str().unwrap().to_owned();
        let began = Instant::now();
        let input = json!({"messages": [{"role": "user", "content": "hello"}]});
        let values = client
            .post(
                &format!("/threads/{thread}/runs/wait"),
                json!({"assistant_id": "plain", "input": input}),
            )
            .await;
        fastest = fastest.min(began.elapsed());
        assert_eq!(values["messages"][1]["content"], "echo: hello");
    }
    assert!(fastest < PROMPT, "a fresh run took {fastest:?}");
    for path in [
        "/threads/search",
        "/assistants/search",
        "/runs/crons/search",
        "/agents/search",
        "/store/items/search",
        "/store/namespaces",
    ] {
        for offset in [0, 1000] {
            let body = match path {
                "/store/items/search" => json!({"namespace_prefix": [], "limit": 100, "offset": offset}),
                "/store/namespaces" => json!({"limit": 100, "offset": offset}),
                _ => json!({"limit": 1000, "offset": offset}),
            };
            client.post(path, body).await;
        }
    }
    for path in [
        "/interrupts?limit=1000",
        "/webhooks/deliveries?limit=1000",
        "/metrics",
        "/ok?check_db=1",
        "/info",
    ] {
        client.get(path).await;
    }
    every_thread_can_be_read(&client).await;
}

/// Checks that the state, the history and the runs of every thread can be read.
///
/// Threads of stateless runs are deleted some seconds after their run, also while this reads them. So a thread may be
/// missing, but only if no search finds it either.
async fn every_thread_can_be_read(client: &server::Client) {
    let mut offset = 0;
    loop {
        let page = client
            .post(
                "/threads/search",
                json!({"limit": 100, "offset": offset, "select": ["thread_id"]}),
            )
            .await;
        let page: Vec<Value> = page.as_array().unwrap().clone();
        let mut deleted = 0;
        for thread in page.iter().filter_map(|thread| thread["thread_id"].as_str()) {
            if !thread_can_be_read(client, thread).await {
                deleted += 1;
            }
        }
        if page.len() < 100 {
            return;
        }
        offset += page.len() - deleted;
    }
}

/// Checks that the state, the history and the runs of a thread can be read. Returns `false` if it was deleted meanwhile.
async fn thread_can_be_read(client: &server::Client, thread: &str) -> bool {
    for part in ["", "/state", "/history?limit=5", "/runs", "/interrupts", "/storage"] {
        let path = format!("/threads/{thread}{part}");
        if client.get_if_exists(&path).await.is_none() {
            let found = client.post("/threads/search", json!({"ids": [thread]})).await;
            assert_eq!(found, json!([]), "{path}: 404 Not Found, but a search finds the thread");
            return false;
        }
    }
    true
}

/// Checks that no run, stream or file descriptor is left.
async fn nothing_is_left(server: &Server, before: server::Resources) {
    let client = server.client();
    client.cancel_everything().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let busy = client.post("/threads/count", json!({"status": "busy"})).await;
        let now = server.resources();
        if busy == json!(0) && now.is_about(before) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{busy} threads are busy; resources were {before:?} and are {now:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
