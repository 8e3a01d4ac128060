//! File permissions: the files that agents may read and change.

use serde_json::{Value, json};

use crate::support::{TestServer, call, on_both_engines, script, task};

fn write(id: &str, path: &str) -> Value {
    call(id, "write_file", json!({"file_path": path, "content": "x"}))
}

fn read(id: &str, path: &str) -> Value {
    call(id, "read_file", json!({"file_path": path}))
}

fn warden() -> Value {
    json!({
        "model": "scripted:lab",
        "permissions": [
            {"operations": ["write"], "paths": ["/rules/**", "/proj/keep/**"], "mode": "deny"},
            {"operations": ["read", "write"], "paths": ["/secret/**"], "mode": "deny"},
            {"operations": ["write"], "paths": ["/ask/**"], "mode": "interrupt"},
        ],
        "subagents": [
            {"name": "heir", "description": "May what its parent may.", "system_prompt": "You are the heir."},
            {"name": "free", "description": "May do everything.", "system_prompt": "You are free.", "permissions": []},
        ],
    })
}

/// Returns the initial files of the thread.
fn files() -> Value {
    let file = json!({"content": "x", "encoding": "utf-8"});
    json!({"/rules/a.md": file, "/proj/keep/b.md": file, "/proj/c.md": file, "/secret/.d": file})
}

on_both_engines! {
    forbidden_files_are_refused_and_hidden_also_for_subagents,
    a_rule_that_asks_raises_an_interrupt_for_every_tool,
    invalid_rules_are_refused_with_their_field,
}

async fn forbidden_files_are_refused_and_hidden_also_for_subagents(server: TestServer) {
    server.client().put("/agents/warden", warden()).await.ok();
    let alice = server.human("warden").await;
    let spies = |id: &str| {
        script()
            .calls(read(id, "/secret/.d"))
            .turn(json!({"echo_last_tool": true}))
    };
    let calls = [
        write("c1", "/rules/a.md"),
        read("c2", "/rules/a.md"),
        read("c3", "/secret/.d"),
        call("c4", "grep", json!({"pattern": "x", "path": "/"})),
        call("c5", "delete", json!({"file_path": "/proj"})),
        call("c6", "ls", json!({"path": "/secret/.d"})),
        task("c7", "heir", spies("h1")),
        task("c8", "free", spies("f1")),
    ];
    let text = script().calls_all(calls).says("done").to_string();
    let input = json!({"messages": [{"role": "user", "content": text}], "files": files()});
    alice.starts(json!({"input": input})).await.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains("you may not write '/rules/a.md' (rule for /rules/**)"),
        "{}",
        said[2]
    );
    assert!(said[3].contains("lines 1-1 of 1"), "{}", said[3]);
    assert!(said[4].contains("you may not read '/secret/.d'"), "{}", said[4]);
    assert!(said[5].contains("/rules/a.md"), "{}", said[5]);
    assert!(!said[5].contains("/secret"), "{}", said[5]);
    assert!(
        said[6].contains("you may not write '/proj/keep/b.md' (rule for /proj/keep/**)"),
        "{}",
        said[6]
    );
    assert!(said[7].contains("you may not read '/secret/.d'"), "{}", said[7]);
    assert!(said[8].contains("you may not read '/secret/.d'"), "{}", said[8]);
    assert!(said[9].contains("lines 1-1 of 1"), "{}", said[9]);
    let kept = &alice.state().await["values"]["files"];
    assert_eq!(kept.as_object().map(serde_json::Map::len), Some(4), "{kept:#}");
}

async fn a_rule_that_asks_raises_an_interrupt_for_every_tool(server: TestServer) {
    server.client().put("/agents/warden", warden()).await.ok();
    let alice = server.human("warden").await;
    let below = script().calls(write("h1", "/ask/b.md")).says("written");
    let calls = [
        write("c1", "/ask/a.md"),
        write("c2", "/free.md"),
        task("c3", "heir", below),
    ];
    alice
        .asks(script().calls_all(calls).says("done"))
        .await
        .finishes()
        .await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "warden");
    assert_eq!(question.requests().len(), 1);
    assert_eq!(question.requests()[0]["args"]["file_path"], "/ask/a.md");
    let allowed = &question.0["value"]["review_configs"][0]["allowed_decisions"];
    assert_eq!(allowed, &json!(["approve", "edit", "reject", "respond"]));
    alice.approves(&question).await.finishes().await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "heir");
    assert_eq!(&question.requests()[0]["args"]["file_path"], &json!("/ask/b.md"));
    alice.rejects(&question, "no").await.finishes().await;
    let values = alice.state().await["values"].clone();
    let paths: Vec<&String> = values["files"].as_object().unwrap().keys().collect();
    assert_eq!(paths, ["/ask/a.md", "/free.md"]);
}

async fn invalid_rules_are_refused_with_their_field(server: TestServer) {
    let mut agent = warden();
    agent["permissions"] =
        json!([{"operations": ["read"], "paths": ["secret"]}, {"operations": ["run"], "paths": ["/"]}]);
    agent["subagents"][0]["permissions"] = json!([{"operations": [], "paths": ["/a"]}]);
    let told = server.client().put("/agents/warden", agent).await.refused(422);
    for part in [
        "permissions[0].paths[0]: `secret` must begin with /",
        "permissions[1].operations[0]: `run` is not allowed; allowed are: read, write",
        "subagents[0].permissions[0].operations: must name at least one of read, write",
    ] {
        assert!(told.contains(part), "{part} is missing in {told}");
    }
}
