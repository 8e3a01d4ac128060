//! A log that cannot be written, and essential tasks that end.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adjutant::domain::time::{Clock, SystemClock, Timestamp};
use adjutant::sqlite::SqliteConnection;
use adjutant::{Adjutant, Shutdown};
use serde_json::json;
use sqlx::{Connection, raw_sql};
use tokio::net::TcpListener;

use crate::support::client::Client;
use crate::support::process::{Process, port_in};
use crate::support::{TestServer, call, eventually, on_both_engines, script};

/// Starts a process in the place of `server`, with its log in a pipe. Returns the pipe behind the line `listening`.
pub(super) fn start_with_a_pipe(server: &TestServer, filter: &str) -> (Process, BufReader<ChildStderr>) {
    let mut child = command(server)
        .env("ADJUTANT_LOG", filter)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
    let process = Process::of(child);
    let mut line = String::new();
    while port_in(&line).is_none() {
        line.clear();
        assert_ne!(log.read_line(&mut line).expect("text"), 0, "it did not listen");
    }
    server
        .client()
        .moved_to(&format!("http://127.0.0.1:{}", port_in(&line).expect("a port")));
    (process, log)
}

/// Starts a process in the place of `server`, with its log in `/dev/full`, where nothing can be written.
async fn start_with_a_full_disk(server: &TestServer) -> Process {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let listen = listener.local_addr().unwrap().to_string();
    drop(listener);
    let full = File::options().write(true).open("/dev/full").expect("it is there");
    let child = command(server)
        .args(["--listen", &listen])
        .stdout(Stdio::null())
        .stderr(full)
        .spawn();
    server.client().moved_to(&format!("http://{listen}"));
    Process::of(child.expect("it starts"))
}

fn command(server: &TestServer) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    let configuration = server.configuration();
    command
        .arg("--config")
        .arg(&configuration)
        .current_dir(configuration.parent().expect("a folder"));
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    command
}

/// Returns the number of lost log lines.
async fn lines_lost(server: &TestServer) -> f64 {
    let metrics = server.client().get("/metrics?format=json").await.ok();
    let all = metrics["metrics"].as_array().expect("a list").clone();
    let lost = all
        .iter()
        .find(|sample| sample["name"] == "adjutant_log_lines_lost_total")
        .expect("it is counted");
    lost["value"].as_f64().expect("a number")
}

on_both_engines! {
    a_server_with_an_unread_log_continues_and_can_be_stopped,
    a_full_disk_for_the_log_does_not_prevent_the_start,
    an_unread_log_delays_no_request,
    a_forced_stop_is_in_the_exit_code_and_the_log,
    a_stop_after_a_failed_stateless_run_logs_no_warning,
    a_stop_that_takes_too_long_is_in_the_exit_code_and_the_log,
    the_server_stops_when_an_essential_task_ends,
}

async fn a_server_with_an_unread_log_continues_and_can_be_stopped(server: TestServer) {
    server.is_stopped().await;
    let (process, log) = start_with_a_pipe(&server, "info");
    drop(log);
    let alice = server.human("plain").await;
    let failing = alice.asks(script().fails(400)).await;
    failing.finishes().await;
    assert_eq!(failing.status().await, "error");
    alice.says(script().says("well")).await;
    assert_eq!(alice.transcript().await.last().map(String::as_str), Some("ai: well"));
    eventually(async || lines_lost(&server).await >= 1.0).await;
    process.signal("TERM");
    assert!(process.ends().await.success(), "it was told to stop, and stopped");
    server.is_stopped_and_started_again().await;
}

async fn a_full_disk_for_the_log_does_not_prevent_the_start(server: TestServer) {
    server.is_stopped().await;
    let process = start_with_a_full_disk(&server).await;
    let client = server.client();
    let listens = async || client.request(reqwest::Method::GET, "/ok").send().await.is_ok();
    eventually(listens).await;
    let run = server.human("plain").await.asks(script().fails(400)).await;
    run.finishes().await;
    assert_eq!(run.status().await, "error");
    process.signal("TERM");
    assert!(process.ends().await.success());
    server.is_stopped_and_started_again().await;
}

async fn an_unread_log_delays_no_request(server: TestServer) {
    server.is_stopped().await;
    let (process, log) = start_with_a_pipe(&server, "trace");
    // Far more than an unread pipe holds.
    let asks = async {
        for _ in 0..200 {
            server.client().post("/threads/search", json!({"limit": 1})).await.ok();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asks)
        .await
        .expect("the requests are answered");
    process.signal("TERM");
    assert!(process.ends().await.success());
    drop(log);
    server.is_stopped_and_started_again().await;
}

async fn a_forced_stop_is_in_the_exit_code_and_the_log(server: TestServer) {
    server.is_stopped().await;
    let (process, mut log) = start_with_a_pipe(&server, "info");
    server.tools.hold("slow");
    let alice = server.human("plain").await;
    let run = alice
        .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
        .await;
    server.tools.called("slow", 1).await;
    // A launcher hands on what the group of processes gets as well: that is one request to stop.
    process.signal("TERM");
    process.signal("TERM");
    let mut said = String::new();
    while !said.contains("stopping") {
        assert_ne!(log.read_line(&mut said).expect("text"), 0, "{said}");
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    server.client().get("/ok").await.ok();
    process.signal("TERM");
    let status = process.ends().await;
    std::io::Read::read_to_string(&mut log, &mut said).expect("text");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("it was stopped at once by a second SIGTERM"), "{said}");
    server.tools.let_go("slow");
    server.is_stopped_and_started_again().await;
    run.finishes().await;
}

async fn a_stop_after_a_failed_stateless_run_logs_no_warning(server: TestServer) {
    server.is_stopped().await;
    let (process, mut log) = start_with_a_pipe(&server, "info");
    let client = server.client();
    server.tools.hold("slow");
    let text = script().calls(call("s1", "slow", json!({}))).fails(400).to_string();
    let input = json!({"messages": [{"role": "user", "content": text}]});
    let run = client
        .post("/runs", json!({"assistant_id": "plain", "input": input}))
        .await
        .ok();
    server.tools.called("slow", 1).await;
    let thread = run["thread_id"].as_str().expect("an id");
    // An open stream keeps the thread for a while.
    let listens = client.get_stream(&format!("/threads/{thread}/stream"), None).await;
    server.tools.let_go("slow");
    let path = format!("/threads/{thread}/runs/{}", run["run_id"].as_str().expect("an id"));
    eventually(async || client.get(&path).await.body["status"] == "error").await;
    process.signal("TERM");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut log, &mut said).expect("text");
    drop(listens);
    assert!(process.ends().await.success(), "{said}");
    assert!(!said.contains("could not remove"), "{said}");
    server.is_stopped_and_started_again().await;
}

async fn a_stop_that_takes_too_long_is_in_the_exit_code_and_the_log(server: TestServer) {
    server.configuration_changes("[server]\n", "[server]\nshutdown_s = 0.5\n");
    server.is_stopped().await;
    let (process, mut log) = start_with_a_pipe(&server, "info");
    server.tools.hold("slow");
    let alice = server.human("plain").await;
    let run = alice
        .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
        .await;
    server.tools.called("slow", 1).await;
    process.signal("TERM");
    let status = process.ends().await;
    let mut said = String::new();
    std::io::Read::read_to_string(&mut log, &mut said).expect("text");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the deadline of 0.5 s was reached"), "{said}");
    server.tools.let_go("slow");
    server.configuration_changes("shutdown_s = 0.5\n", "");
    server.is_stopped_and_started_again().await;
    run.finishes().await;
}

async fn the_server_stops_when_an_essential_task_ends(server: TestServer) {
    server.is_stopped().await;
    let clock = Arc::new(BreakableClock(AtomicBool::new(false)));
    let builder = Adjutant::builder()
        .config_file(server.configuration())
        .clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let app = builder.start().await.expect("it starts");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let serving = Shutdown::default().spawn("server", app.serve(listener));
    // The server itself reads the clock when it begins to serve.
    Client::new(&base).get("/ok").await.ok();
    clock.0.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(Duration::from_secs(60), serving)
        .await
        .expect("it ends by itself");
    let error = ended
        .expect("it does not panic")
        .expect("it is not dropped")
        .expect_err("it says why");
    assert!(
        error.to_string().contains("ended: it panicked: the clock is broken"),
        "{error}"
    );
    server.is_stopped_and_started_again().await;
}

/// A clock that panics when it is read, once it is broken.
struct BreakableClock(AtomicBool);

impl Clock for BreakableClock {
    fn now(&self) -> Timestamp {
        assert!(!self.0.load(Ordering::SeqCst), "the clock is broken");
        SystemClock.now()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_statement_that_cannot_be_logged_does_not_stop_writes() {
    crate::support::play(crate::support::Engine::Sqlite, async |server: TestServer| {
        server.is_stopped().await;
        let (process, log) = start_with_a_pipe(&server, "info,sqlx=warn");
        drop(log);
        let mut other = SqliteConnection::connect(&server.database_url())
            .await
            .expect("the file");
        raw_sql("begin immediate")
            .execute(&mut other)
            .await
            .expect("it is free");
        let client = server.client();
        let mut slow = Box::pin(client.post("/threads", json!({})));
        let is_held_up = tokio::time::timeout(Duration::from_millis(1500), &mut slow)
            .await
            .is_err();
        assert!(is_held_up, "longer than statements take of which nothing is said");
        raw_sql("rollback").execute(&mut other).await.expect("it is there");
        slow.await.ok();
        let next = tokio::time::timeout(Duration::from_secs(30), client.post("/threads", json!({}))).await;
        next.expect("writes go on").ok();
        assert!(lines_lost(&server).await >= 1.0, "the slow statement was to be told");
        process.signal("TERM");
        assert!(process.ends().await.success());
        other.close().await.expect("a clean goodbye");
        server.is_stopped_and_started_again().await;
    })
    .await;
}
