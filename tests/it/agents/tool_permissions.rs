//! Permissions for calls of any tool.

use serde_json::{Value, json};

use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task, transcript};

fn warden() -> Value {
    json!({
        "model": "scripted:lab",
        "tools": ["lookup", "send_email"],
        "permissions": [
            {"tools": ["send_email"], "arguments": {"to": "*@example.com"}},
            {"tools": ["send_*"], "arguments": {"to": "*@evil.com"}, "mode": "deny"},
            {"tools": ["lookup", "send_*"], "agents": ["warden/intern"], "mode": "deny"},
            {"tools": ["send_*"], "mode": "ask"},
            {"operations": ["read"], "paths": ["/secret/**"], "mode": "deny"},
        ],
        "subagents": [
            {"name": "intern", "description": "May not do what its parent may.", "system_prompt": "You are the intern."},
            {"name": "clerk", "description": "May do what its parent may.", "system_prompt": "You are the clerk."},
        ],
    })
}

on_both_engines! {
    a_call_that_is_denied_is_an_error_result_and_the_others_run,
    a_call_that_is_asked_about_runs_once_it_is_approved,
    an_edit_to_a_call_that_is_denied_does_not_run,
    a_subagent_is_bound_by_the_rules_of_its_parent_and_by_those_about_its_path,
    calls_of_a_command_are_bound_by_the_rules,
    rules_about_calls_that_make_no_sense_are_refused,
}

async fn a_call_that_is_denied_is_an_error_result_and_the_others_run(server: TestServer) {
    server.client().put("/agents/warden", warden()).await.ok();
    let alice = server.human("warden").await;
    let calls = [
        mail("m1", "eve@evil.com"),
        lookup("l1", "x"),
        mail("m2", "ann@example.com"),
    ];
    let said = transcript(&alice.says(script().calls_all(calls).says("done")).await);
    assert_eq!(
        said[2],
        "send_email failed: Error: permission denied: you may not make this call of `send_email` (permissions[1]). It was not \
         made."
    );
    assert_eq!(
        said[3..],
        ["lookup: found x", "send_email: sent to ann@example.com: hi", "ai: done"]
    );
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn a_call_that_is_asked_about_runs_once_it_is_approved(server: TestServer) {
    server.client().put("/agents/warden", warden()).await.ok();
    let alice = server.human("warden").await;
    let run = alice
        .asks(
            script()
                .calls_all([mail("m1", "bob@other.com"), lookup("l1", "x")])
                .says("done"),
        )
        .await;
    run.finishes().await;
    assert!(server.tools.calls().is_empty(), "the other calls of the answer wait");
    let question = alice.question().await;
    assert_eq!(question.requests().len(), 1);
    let allowed = &question.0["value"]["review_configs"][0]["allowed_decisions"];
    assert_eq!(*allowed, json!(["approve", "edit", "reject", "respond"]));
    alice.approves(&question).await.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(
        said[2..],
        ["send_email: sent to bob@other.com: hi", "lookup: found x", "ai: done"]
    );
}

async fn an_edit_to_a_call_that_is_denied_does_not_run(server: TestServer) {
    server.client().put("/agents/warden", warden()).await.ok();
    let alice = server.human("warden").await;
    let text = script().calls(mail("m1", "bob@other.com")).says("done");
    alice.asks(text).await.finishes().await;
    let action = json!({"name": "send_email", "args": {"to": "eve@evil.com", "body": "hi"}});
    let question = alice.question().await;
    let edited = json!([{"type": "edit", "edited_action": action}]);
    alice.decides(&question, edited).await.finishes().await;
    assert!(server.tools.calls().is_empty());
    let said = alice.transcript().await;
    assert!(
        said[2].contains("permission denied") && said[2].contains("permissions[1]"),
        "{said:#?}"
    );
    assert_eq!(said[3], "ai: done");
}

async fn a_subagent_is_bound_by_the_rules_of_its_parent_and_by_those_about_its_path(server: TestServer) {
    server.client().put("/agents/warden", warden()).await.ok();
    let alice = server.human("warden").await;
    let intern = script()
        .calls(call("l1", "lookup", json!({"query": "x"})))
        .turn(json!({"echo_last_tool": true}));
    let tools = script().turn(json!({"echo_tools": true}));
    let clerk = script().calls(mail("m1", "bob@other.com")).says("mailed");
    let text = script()
        .calls_all([
            task("t1", "intern", intern),
            task("t2", "intern", tools),
            task("t3", "clerk", clerk),
        ])
        .says("done");
    alice.asks(text).await.finishes().await;
    assert!(server.tools.calls().is_empty());
    let question = alice.question().await;
    assert_eq!(question.agent(), "clerk");
    alice.approves(&question).await.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains("permission denied") && said[2].contains("permissions[2]"),
        "{said:#?}"
    );
    assert!(
        said[3].contains("send_email") && !said[3].contains("lookup"),
        "what is always denied is not offered: {said:#?}"
    );
    assert_eq!(said[4], "task: mailed");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn calls_of_a_command_are_bound_by_the_rules(server: TestServer) {
    server.client().put("/agents/warden", warden()).await.ok();
    let alice = server.human("warden").await;
    alice.says("hello").await;
    let input = json!([mail("m1", "eve@evil.com"), mail("m2", "bob@other.com")]);
    let command = json!({"command": {"goto": {"node": "tools", "input": input}}});
    alice.starts(command).await.finishes().await;
    assert!(server.tools.calls().is_empty());
    let question = alice.question().await;
    assert_eq!(question.requests()[0]["args"]["to"], "bob@other.com");
    alice.approves(&question).await.finishes().await;
    let sent = server.tools.calls_of("send_email");
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0]["args"]["to"], "bob@other.com");
}

async fn rules_about_calls_that_make_no_sense_are_refused(server: TestServer) {
    let mut wrong = warden();
    wrong["permissions"] = json!([
        {"tools": ["send_email"], "operations": ["read"], "paths": ["/a"]},
        {"tools": ["send_email"], "arguments": {"to": "[a"}, "mode": "block"},
        {"agents": ["main"], "mode": "deny"},
    ]);
    let refused: String = server.client().put("/agents/warden", wrong).await.refused(422);
    for part in [
        "permissions[0].tools",
        "permissions[1].arguments.to",
        "permissions[1].mode",
        "permissions[2].operations",
    ] {
        assert!(refused.contains(part), "{part} is missing in {refused}");
    }
}
