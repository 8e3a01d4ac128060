//! A chat of one message: its output, its exit code, and the server that it starts.

use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::process::{Log, Process, server_in};
use crate::support::terminal::{program, runs};
use crate::support::{TestServer, call, mail, on_both_engines, script, task, without_postgres};

on_both_engines! {
    the_answer_goes_to_the_output_and_progress_to_the_errors,
    a_run_that_waits_for_an_approval_has_its_own_exit_code,
}

without_postgres! {
    a_failed_run_is_a_failure,
    events_can_be_read_as_json_lines,
    a_thread_is_continued_by_the_beginning_of_its_id,
    what_an_agent_says_cannot_drive_the_terminal,
    a_key_is_never_shown,
    a_refused_request_says_why,
    a_closed_pipe_ends_quietly,
    interrupting_a_chat_cancels_its_run,
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

async fn the_answer_goes_to_the_output_and_progress_to_the_errors(server: TestServer) {
    let folder = folder();
    let base = server.client().base();
    let work = script().says("part one\npart two");
    let text = script()
        .calls(task("t1", "researcher", work))
        .says("all done")
        .to_string();
    let done = runs(program(folder.path(), &base, &["chat", "agent"]), &text).await;
    assert_eq!(done.code, 0, "{}", done.all());
    assert_eq!(done.output, "all done\n");
    for line in [
        "main-agent │ → task researcher:",
        "  researcher │ part one\n",
        "  researcher │ part two\n",
        "── completed after ",
    ] {
        assert!(done.errors.contains(line), "{line}: {}", done.errors);
    }
    assert!(done.errors.contains("model calls"), "{}", done.errors);
}

async fn a_run_that_waits_for_an_approval_has_its_own_exit_code(server: TestServer) {
    let folder = folder();
    let base = server.client().base();
    let text = script().calls(mail("m1", "bob")).says("sent").to_string();
    let done = runs(
        program(folder.path(), &base, &["chat", "agent", "--message", &text]),
        "",
    )
    .await;
    assert_eq!(done.code, 4, "{}", done.all());
    assert_eq!(done.output, "");
    assert!(
        done.errors.contains("main-agent waits for an answer: send_email"),
        "{}",
        done.errors
    );
    let command = done
        .errors
        .lines()
        .find(|line| line.contains("interrupts resolve"))
        .expect("how to go on");
    let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
    let resolved = runs(program(folder.path(), &base, &arguments), "").await;
    assert_eq!(resolved.code, 0, "{}", resolved.all());
    server.tools.called("send_email", 1).await;
}

async fn a_failed_run_is_a_failure(server: TestServer) {
    let folder = folder();
    let base = server.client().base();
    let text = script().fails(400).to_string();
    let done = runs(program(folder.path(), &base, &["chat", "plain"]), &text).await;
    assert_eq!(done.code, 1, "{}", done.all());
    assert_eq!(done.output, "");
    assert!(done.errors.contains("── failed"), "{}", done.errors);
}

async fn events_can_be_read_as_json_lines(server: TestServer) {
    let folder = folder();
    let base = server.client().base();
    let done = runs(program(folder.path(), &base, &["chat", "plain", "--json"]), "hello").await;
    assert_eq!(done.code, 0, "{}", done.all());
    let lines: Vec<Value> = done
        .output
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let result = lines.last().expect("a result");
    assert_eq!(result["type"], "result");
    assert_eq!(result["status"], "completed");
    assert_eq!(result["answer"], "echo: hello");
    assert!(
        lines.iter().any(|line| line["params"]["agent_name"] == "plain-agent"),
        "{lines:#?}"
    );
}

async fn a_thread_is_continued_by_the_beginning_of_its_id(server: TestServer) {
    let folder = folder();
    let alice = server.human("plain").await;
    alice.says("one").await;
    let beginning = &alice.thread[..alice.thread.len() - 6];
    let arguments = ["chat", "plain", "--thread", beginning];
    let done = runs(program(folder.path(), &server.client().base(), &arguments), "two").await;
    assert_eq!(done.output, "echo: two\n", "{}", done.all());
    assert!(
        !done.errors.contains("echo: one"),
        "what was before is not shown again: {}",
        done.errors
    );
    let said = ["human: one", "ai: echo: one", "human: two", "ai: echo: two"];
    assert_eq!(alice.transcript().await, said);
    let unknown = ["chat", "plain", "--thread", "ffffffff"];
    let done = runs(program(folder.path(), &server.client().base(), &unknown), "two").await;
    assert_eq!(done.code, 3, "{}", done.all());
}

async fn what_an_agent_says_cannot_drive_the_terminal(server: TestServer) {
    let folder = folder();
    let base = server.client().base();
    let attack = "\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m\u{202e}gnorw";
    let text = script()
        .calls(call("c1", "lookup", json!({"query": attack})))
        .says(attack)
        .to_string();
    let done = runs(program(folder.path(), &base, &["chat", "agent"]), &text).await;
    assert_eq!(done.code, 0, "{}", done.all());
    assert_eq!(done.output, "\\u{1b}]0;title\\u{7}\\u{1b}[2J\\u{9b}31m\\u{202e}gnorw\n");
    let json = runs(program(folder.path(), &base, &["chat", "agent", "--json"]), &text).await;
    for text in [done.all(), json.all()] {
        let active = text
            .chars()
            .find(|letter| (letter.is_control() && *letter != '\n') || *letter == '\u{202e}');
        assert_eq!(active, None, "{text:?}");
    }
}

async fn a_key_is_never_shown(server: TestServer) {
    let keys = server.is_protected().await;
    let folder = folder();
    let base = server.client().base();
    let key = keys.text("harness");
    for arguments in [
        vec!["threads", "list"],
        vec!["chat", "--help"],
        vec!["threads", "show", "0000"],
        vec!["agents", "list", "--json"],
    ] {
        let mut command = program(folder.path(), &base, &arguments);
        command.env("ADJUTANT_API_KEY", &key);
        let done = runs(command, "").await;
        assert!(!done.all().contains(&key), "{arguments:?}: {}", done.all());
    }
    let mut command = program(folder.path(), &base, &["threads", "list"]);
    command.env("ADJUTANT_API_KEY", &key);
    assert_eq!(runs(command, "").await.code, 0);
    let refused = runs(program(folder.path(), &base, &["threads", "list"]), "").await;
    assert_eq!(refused.code, 1);
    assert!(refused.errors.contains("status 401"), "{}", refused.errors);
    assert!(refused.errors.contains("ADJUTANT_API_KEY"), "{}", refused.errors);
    let mut command = program(folder.path(), "http://example.org", &["threads", "list"]);
    command.env("ADJUTANT_API_KEY", &key);
    let refused = runs(command, "").await;
    assert_eq!(
        refused.code,
        2,
        "a key does not go over http to another machine: {}",
        refused.all()
    );
    assert!(!refused.all().contains(&key));
}

async fn a_refused_request_says_why(server: TestServer) {
    let folder = folder();
    let base = server.client().base();
    let done = runs(program(folder.path(), &base, &["chat", "nobody"]), "hello").await;
    assert_ne!(done.code, 0);
    assert!(done.errors.contains("nobody"), "{}", done.errors);
    let wrong = runs(
        program(folder.path(), &base, &["chat", "plain", "--context", "[]"]),
        "hello",
    )
    .await;
    assert_eq!(wrong.code, 2);
    assert!(wrong.errors.contains("--context"), "{}", wrong.errors);
    let empty = runs(program(folder.path(), &base, &["chat", "plain"]), " \n").await;
    assert_eq!(empty.code, 2);
    let nowhere = runs(program(folder.path(), "http://127.0.0.1:1", &["runs", "list"]), "").await;
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.errors.contains("Start a server"), "{}", nowhere.errors);
    assert!(!nowhere.errors.contains("backtrace"), "{}", nowhere.errors);
}

async fn a_closed_pipe_ends_quietly(server: TestServer) {
    let folder = folder();
    let alice = server.human("plain").await;
    alice.says("hello").await;
    let base = server.client().base();
    for arguments in [
        vec!["threads", "list", "--json"],
        vec!["chat", "plain", "--json", "--message", "hello"],
    ] {
        let mut command = program(folder.path(), &base, &arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        drop(child.stdout.take());
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await;
        let output = output.expect("it is called").expect("it ends");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

async fn interrupting_a_chat_cancels_its_run(server: TestServer) {
    let folder = folder();
    let base = server.client().base();
    server.tools.hold("lookup");
    let text = script()
        .calls(crate::support::lookup("c1", "otters"))
        .says("never")
        .to_string();
    let mut command = program(folder.path(), &base, &["chat", "agent", "--message", &text]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    server.tools.called("lookup", 1).await;
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &id])
        .status()
        .expect("kill can be called");
    assert!(sent.success());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await;
    server.tools.let_go("lookup");
    let output = output.expect("it is called").expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let found = server.client().post("/threads/search", json!({})).await.ok();
    let thread = found[0]["thread_id"].as_str().expect("a thread").to_owned();
    let runs = server.client().get(&format!("/threads/{thread}/runs")).await.ok();
    assert_eq!(runs[0]["status"], "interrupted");
}

/// An agent of scripts.
const CONFIGURATION: &str = "[storage]\nurl = \"sqlite://chat.db\"\n[providers.scripted]\nkind = \"scripted\"\n\
    [agents.teller]\nname = \"teller\"\nmodel = \"scripted:demo\"\ntodos = true\n";

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_survives_a_killed_server_and_shows_nothing_twice() {
    let folder = folder();
    std::fs::write(folder.path().join("adjutant.toml"), CONFIGURATION).expect("a file");
    let address = free_address();
    let server = || {
        let mut command = server_in(folder.path());
        command.args(["--listen", &address]);
        command
    };
    let log = Log::default();
    let first = Process::spawn(server(), &log);
    let base = first.base().await;
    let todos = json!({"todos": [{"content": "Tell a story", "status": "in_progress"}]});
    let lines: Vec<String> = (0..40).map(|number| format!("line {number}.")).collect();
    let story = json!({"script": [
        {"tool_calls": [{"id": "w1", "name": "write_todos", "args": todos}]},
        {"text": lines.join("\n"), "delay_ms": 20},
    ], "chunk": 4});
    let mut command = program(
        folder.path(),
        &base,
        &["chat", "teller", "--message", &story.to_string()],
    );
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let errors = Log::default();
    let reading = {
        let mut pipe = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
        let errors = errors.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while std::io::BufRead::read_line(&mut pipe, &mut line).is_ok_and(|size| size > 0) {
                errors.push(line.trim_end());
                line.clear();
            }
        })
    };
    errors.gets_one_of(&["line 3."]).await;
    drop(first);
    let second = Process::spawn(server(), &log);
    second.base().await;
    let mut output = String::new();
    let mut pipe = child.stdout.take().expect("a pipe");
    let child = tokio::task::spawn_blocking(move || {
        pipe.read_to_string(&mut output).expect("text");
        (child.wait().expect("it ends"), output)
    });
    let (status, output) = child.await.expect("it ends");
    reading.join().expect("all is read");
    let said = errors.text();
    assert!(status.success(), "{said}\n{}", log.text());
    assert_eq!(output, lines.join("\n") + "\n");
    for text in ["the connection is lost", "connected again", "begins again"] {
        assert!(said.contains(text), "{text}: {said}");
    }
    assert_eq!(said.matches("[>] Tell a story").count(), 1, "{said}");
    assert_eq!(said.matches("line 39.").count(), 1, "{said}");
    second.terminates().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_a_chat_starts_one_and_keeps_its_state() {
    let folder = folder();
    let listen = free_address();
    let configuration = format!("[server]\nlisten = \"{listen}\"\n{CONFIGURATION}");
    std::fs::write(folder.path().join("adjutant.toml"), configuration).expect("a file");
    let first = runs(program(folder.path(), "", &["chat"]), "one").await;
    assert_eq!(first.code, 0, "{}", first.all());
    assert!(
        first.errors.contains("one is started for this chat"),
        "{}",
        first.errors
    );
    let second = runs(
        program(folder.path(), "", &["chat", "--thread", "last", "--json"]),
        "two",
    )
    .await;
    assert_eq!(second.code, 0, "{}", second.all());
    let result: Value = serde_json::from_str(second.output.lines().last().expect("a line")).expect("JSON");
    assert!(
        first.errors.contains(result["thread_id"].as_str().expect("a thread")),
        "{}",
        first.errors
    );

    // A server with the same database that listens elsewhere: the chat cannot start a second one.
    let mut command = server_in(folder.path());
    command.args(["--listen", "127.0.0.1:0"]);
    let server = Process::start(command).await;
    let refused = runs(program(folder.path(), "", &["chat"]), "three").await;
    assert_eq!(refused.code, 1, "{}", refused.all());
    assert!(
        refused.errors.contains("in use by another server"),
        "{}",
        refused.errors
    );
    assert!(refused.errors.contains("--server"), "{}", refused.errors);
    let base = server.base().await;
    let talked = runs(program(folder.path(), &base, &["chat"]), "three").await;
    assert_eq!(talked.code, 0, "{}", talked.all());
    server.terminates().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_servers_are_recognized() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let serving = tokio::spawn(async move {
        let page = axum::Router::new().fallback(|| async { "hello" });
        axum::serve(listener, page).await
    });
    let folder = folder();
    let done = runs(program(folder.path(), &address, &["threads", "list"]), "").await;
    assert_eq!(done.code, 1);
    assert!(done.errors.contains("is it the right address?"), "{}", done.errors);
    serving.abort();
}
