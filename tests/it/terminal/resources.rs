//! `adjutant runs`, `threads`, `interrupts`, `approvals` and `agents`.

use serde_json::{Value, json};

use crate::support::terminal::{Done, program, runs};
use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task, without_postgres};

on_both_engines! {
    runs_are_listed_shown_and_cancelled,
    threads_are_listed_shown_and_deleted,
    interrupts_are_listed_and_resolved,
}

without_postgres! {
    an_interrupt_is_answered_in_every_way,
    decisions_for_the_rest_of_a_thread_are_listed_and_revoked,
    agents_are_listed_shown_and_drawn,
    a_question_is_answered_with_a_response,
    what_agents_say_is_escaped_in_lists,
    wrong_options_are_refused,
}

/// Runs a command of the program against the server.
async fn cli(server: &TestServer, arguments: &[&str]) -> Done {
    let folder = tempfile::tempdir().expect("a directory");
    let base = server.client().base();
    runs(program(folder.path(), &base, arguments), "").await
}

/// Runs a command that has to succeed, and returns its output.
async fn succeeds(server: &TestServer, arguments: &[&str]) -> String {
    let done = cli(server, arguments).await;
    assert_eq!(done.code, 0, "{arguments:?}: {}", done.all());
    done.output
}

/// Runs a command that has to succeed, and returns its JSON.
async fn json(server: &TestServer, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&succeeds(server, &arguments).await).expect("JSON")
}

async fn runs_are_listed_shown_and_cancelled(server: TestServer) {
    let alice = server.human("agent").await;
    let bob = server.human("plain").await;
    let work = script().says("found");
    alice
        .says(script().calls(task("t1", "researcher", work)).says("done"))
        .await;
    bob.says("hello").await;
    server.tools.hold("lookup");
    let busy = alice.asks(script().calls(lookup("c1", "x")).says("never")).await;
    server.tools.called("lookup", 1).await;

    let all = json(&server, &["runs", "list"]).await;
    let agents: Vec<&Value> = all
        .as_array()
        .expect("a list")
        .iter()
        .map(|run| &run["metadata"]["graph_id"])
        .collect();
    assert_eq!(
        agents,
        [&json!("agent"), &json!("plain"), &json!("agent")],
        "the newest first"
    );
    assert_eq!(all[0]["run_id"], busy.id.as_str());
    assert_eq!(
        json(&server, &["runs", "list", "--status", "running"])
            .await
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert_eq!(
        json(&server, &["runs", "list", "--agent", "plain"])
            .await
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert_eq!(
        json(&server, &["runs", "list", "--limit", "2"])
            .await
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(
        json(&server, &["runs", "list", "--since", "2999-01-01"]).await,
        json!([])
    );
    assert_eq!(
        json(&server, &["runs", "list", "--since", "1h"])
            .await
            .as_array()
            .map(Vec::len),
        Some(3)
    );
    assert_eq!(
        json(&server, &["runs", "list", "--thread", &bob.thread])
            .await
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let lines = succeeds(&server, &["runs", "list", "--output", "jsonl"]).await;
    assert_eq!(lines.lines().count(), 3);
    let table = succeeds(&server, &["runs", "list"]).await;
    assert!(table.starts_with("RUN "), "{table}");
    assert!(table.contains(&busy.id), "{table}");

    let first = all[2]["run_id"].as_str().expect("an id");
    let shown = succeeds(&server, &["runs", "show", first]).await;
    assert!(shown.contains(first) && shown.contains("success"), "{shown}");
    let beginning = &first[..first.len() - 1];
    let shown = json(&server, &["runs", "show", beginning, "--thread", &alice.thread]).await;
    assert_eq!(shown["run_id"], first);
    let tree = succeeds(&server, &["runs", "tree", first]).await;
    assert!(tree.starts_with("main-agent  success"), "{tree}");
    assert!(tree.contains("\n└─ researcher  success"), "{tree}");

    let cancelled = json(&server, &["runs", "cancel", &busy.id]).await;
    assert_eq!(cancelled["cancelled"], true);
    server.tools.let_go("lookup");
    busy.finishes().await;
    let again = succeeds(&server, &["runs", "cancel", &busy.id]).await;
    assert!(again.contains("has already ended"), "{again}");
    let unknown = cli(&server, &["runs", "show", "01a00000-0000-7000-8000-000000000000"]).await;
    assert_eq!(unknown.code, 3, "{}", unknown.all());
}

async fn threads_are_listed_shown_and_deleted(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let bob = server.human("plain").await;
    bob.says("hello\nbob").await;
    let table = succeeds(&server, &["threads", "list"]).await;
    assert!(table.contains("hello bob"), "{table}");
    let waiting = json(&server, &["threads", "list", "--status", "interrupted"]).await;
    assert_eq!(waiting.as_array().map(Vec::len), Some(1));
    assert_eq!(waiting[0]["thread_id"], alice.thread.as_str());
    let plain = json(&server, &["threads", "list", "--agent", "plain"]).await;
    assert_eq!(plain[0]["thread_id"], bob.thread.as_str());
    assert_eq!(
        plain[0]["values"]["messages"][0]["content"], "hello\nbob",
        "JSON has everything"
    );
    let shown = succeeds(&server, &["threads", "show", "last"]).await;
    assert!(shown.contains("\nyou:\n  hello\n  bob\n"), "{shown}");
    assert!(shown.contains("\nplain-agent:\n  echo: hello\n  bob\n"), "{shown}");
    let shown = succeeds(&server, &["threads", "show", &alice.thread]).await;
    assert!(shown.contains(alice.question().await.id()), "{shown}");
    let history = succeeds(&server, &["threads", "history", &bob.thread]).await;
    assert!(history.starts_with("CHECKPOINT"), "{history}");
    assert!(history.lines().count() > 2, "{history}");

    let unasked = cli(&server, &["threads", "delete", &bob.thread]).await;
    assert_eq!(unasked.code, 2, "{}", unasked.all());
    let short = cli(&server, &["threads", "delete", &bob.thread[..20], "--yes"]).await;
    assert_eq!(short.code, 2, "only a whole id is deleted: {}", short.all());
    succeeds(&server, &["threads", "delete", &bob.thread, "--yes"]).await;
    assert_eq!(cli(&server, &["threads", "show", &bob.thread]).await.code, 3);
}

async fn interrupts_are_listed_and_resolved(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let id = question.id();
    let table = succeeds(&server, &["interrupts", "list"]).await;
    assert!(table.contains(id) && table.contains("send_email"), "{table}");
    assert_eq!(
        json(&server, &["interrupts", "list", "--agent", "other"]).await,
        json!([])
    );
    assert_eq!(
        json(&server, &["interrupts", "list", "--thread", &alice.thread]).await[0]["id"],
        id
    );
    let shown = succeeds(&server, &["interrupts", "show", &id[..6]]).await;
    assert!(shown.contains("\"to\": \"bob\""), "{shown}");
    assert!(shown.contains("approve, edit, reject"), "{shown}");

    let short = cli(&server, &["interrupts", "resolve", &id[..6], "--approve"]).await;
    assert_eq!(short.code, 2, "{}", short.all());
    let resolved = json(&server, &["interrupts", "resolve", &id[..12], "--approve"]).await;
    assert_eq!(resolved["interrupt"]["status"], "resolved");
    server.tools.called("send_email", 1).await;
    let other = cli(&server, &["interrupts", "resolve", id, "--reject", "too late"]).await;
    assert_eq!(other.code, 1, "{}", other.all());
    assert!(other.errors.contains("status 409"), "{}", other.errors);
    let unknown = cli(&server, &["interrupts", "resolve", "ffffffffff", "--approve"]).await;
    assert_eq!(unknown.code, 3, "{}", unknown.all());
}

async fn an_interrupt_is_answered_in_every_way(server: TestServer) {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("call.json");
    std::fs::write(&file, "{\"to\": \"eve\", \"body\": \"from a file\"}").expect("a file");
    let from_file = format!("@{}", file.display());
    let edit = "{\"name\": \"send_email\", \"args\": {\"to\": \"eve\", \"body\": \"edited\"}}";
    for (answer, result) in [
        (vec!["--reject", "not today"], "not today"),
        (vec!["--edit", edit], "sent to eve: edited"),
        (vec!["--edit", &from_file], "sent to eve: from a file"),
        (vec!["--respond", "already sent"], "already sent"),
        (vec!["--decisions", "[{\"type\": \"approve\"}]"], "sent to bob: hi"),
    ] {
        let alice = server.human("deep").await;
        alice.says(script().calls(mail("m1", "bob")).says("done")).await;
        let question = alice.question().await;
        let arguments = [&["interrupts", "resolve", question.id()], answer.as_slice()].concat();
        let resolved = json(&server, &arguments).await;
        let run = resolved["run_id"].as_str().expect("a run");
        alice.client().get(&alice.path(&format!("/runs/{run}/join"))).await.ok();
        let said = alice.transcript().await.join("\n");
        assert!(said.contains(result), "{answer:?}: {said}");
    }
}

async fn decisions_for_the_rest_of_a_thread_are_listed_and_revoked(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let edited = ["interrupts", "resolve", question.id(), "--edit", "{}", "--always"];
    assert_eq!(
        cli(&server, &edited).await.code,
        2,
        "only an approval or a rejection is remembered"
    );
    let resolved = json(
        &server,
        &["interrupts", "resolve", question.id(), "--approve", "--always"],
    )
    .await;
    let run = resolved["run_id"].as_str().expect("a run");
    alice.client().get(&alice.path(&format!("/runs/{run}/join"))).await.ok();
    alice.says(script().calls(mail("m2", "eve")).says("sent")).await;
    assert!(alice.questions().await.is_empty());
    assert_eq!(server.tools.calls_of("send_email").len(), 2);

    let all = json(&server, &["approvals", "list", "last"]).await;
    assert_eq!(all[0]["tool"], "send_email");
    assert_eq!(all[0]["decision"], "approve");
    let id = all[0]["id"].as_str().expect("an id");
    let table = succeeds(&server, &["approvals", "list", &alice.thread]).await;
    assert!(table.starts_with("APPROVAL "), "{table}");
    assert!(table.contains(id) && table.contains("send_email"), "{table}");

    let beginning = &id[..id.len() - 1];
    let revoked = succeeds(&server, &["approvals", "revoke", &alice.thread, beginning]).await;
    assert!(revoked.contains(id), "{revoked}");
    assert_eq!(json(&server, &["approvals", "list", &alice.thread]).await, json!([]));
    let again = cli(&server, &["approvals", "revoke", &alice.thread, id]).await;
    assert_eq!(again.code, 3, "{}", again.all());
    alice.says(script().calls(mail("m3", "kim")).says("sent")).await;
    alice.question().await;
}

async fn agents_are_listed_shown_and_drawn(server: TestServer) {
    let table = succeeds(&server, &["agents", "list", "--name", "deep"]).await;
    assert!(table.contains("deep") && table.contains("researcher"), "{table}");
    let shown = succeeds(&server, &["agents", "show", "deep"]).await;
    assert!(shown.contains("Subagent"), "{shown}");
    assert!(shown.contains("send_email"), "{shown}");
    let graph = succeeds(&server, &["agents", "graph", "deep"]).await;
    assert!(graph.contains("__start__\n  → "), "{graph}");
    assert_eq!(json(&server, &["agents", "show", "deep"]).await["graph_id"], "deep");
    assert_eq!(cli(&server, &["agents", "show", "nobody"]).await.code, 3);
}

async fn a_question_is_answered_with_a_response(server: TestServer) {
    server.is_embedded().await;
    let alice = server.human("built").await;
    alice
        .says(script().calls(task("t1", "curious", "ask")).says("thanks"))
        .await;
    let question = alice.question().await;
    let wrong = cli(&server, &["interrupts", "resolve", question.id(), "--approve"]).await;
    assert_eq!(wrong.code, 2);
    assert!(wrong.errors.contains("--respond"), "{}", wrong.errors);
    let resolved = json(&server, &["interrupts", "resolve", question.id(), "--respond", "left"]).await;
    let run = resolved["run_id"].as_str().expect("a run");
    alice.client().get(&alice.path(&format!("/runs/{run}/join"))).await.ok();
    let said = alice.transcript().await.join("\n");
    assert!(said.contains("told: \"left\""), "{said}");
}

async fn what_agents_say_is_escaped_in_lists(server: TestServer) {
    let attack = "\u{1b}]0;title\u{7}\u{202e}";
    let alice = server.human("agent").await;
    let mail = call("m1", "send_email", json!({"to": attack, "body": attack}));
    alice
        .says(format!("{attack} {}", script().calls(mail).says(attack)))
        .await;
    let id = alice.question().await.id().to_owned();
    for arguments in [
        vec!["threads", "list"],
        vec!["threads", "list", "--json"],
        vec!["threads", "show", &alice.thread],
        vec!["interrupts", "show", &id],
        vec!["interrupts", "list", "--output", "jsonl"],
    ] {
        let text = succeeds(&server, &arguments).await;
        let active = text
            .chars()
            .find(|letter| (letter.is_control() && *letter != '\n') || *letter == '\u{202e}');
        assert_eq!(active, None, "{arguments:?}: {text:?}");
        assert!(text.contains("]0;title"), "{arguments:?}: {text}");
    }
}

async fn wrong_options_are_refused(server: TestServer) {
    for arguments in [
        vec!["runs", "list", "--status", "sleeping"],
        vec!["runs", "list", "--since", "yesterday"],
        vec!["runs", "list", "--limit", "0"],
        vec!["runs", "list", "--server", "ftp://example.org"],
        vec!["threads", "show", "01"],
        vec!["interrupts", "resolve", "0123456789"],
        vec!["approvals", "list"],
        vec!["approvals", "revoke", "01", "0123456789"],
        vec!["interrupts", "resolve", "0123456789", "--approve", "--reject"],
    ] {
        let done = cli(&server, &arguments).await;
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.all());
        assert_eq!(done.output, "", "{arguments:?}");
    }
}
