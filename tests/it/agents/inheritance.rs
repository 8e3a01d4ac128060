//! Inheritance: the tools, middleware and settings that subagents have from their parents.

use serde_json::{Value, json};

use crate::support::{TestServer, call, eventually, lookup, mail, on_both_engines, script, task};

fn tells_its_instructions() -> String {
    script().turn(json!({"echo_system": true})).to_string()
}

fn tells_its_tools() -> String {
    script().turn(json!({"echo_tools": true})).to_string()
}

on_both_engines! {
    the_general_purpose_subagent_inherits_what_it_lists,
    an_inherited_limit_applies_to_heirs_only,
    deprecated_defaults_for_subagents_still_apply,
    the_general_purpose_subagent_can_be_renamed_or_disabled,
    a_subagent_may_add_tools_and_approvals_to_those_of_its_parent,
    a_subagent_may_have_nothing_of_its_parents_files_and_state,
    unknown_middleware_is_refused_with_the_known_names,
}

async fn the_general_purpose_subagent_inherits_what_it_lists(server: TestServer) {
    let alice = server.human("patron").await;
    let calls = ["double", "heir", "orphan"].map(|who| task(who, who, tells_its_instructions()));
    let files = json!({"/AGENTS.md": {"content": "Likes tea.", "encoding": "utf-8"}});
    let said = script().calls_all(calls).turn(json!({"echo_system": true}));
    let input = json!({"messages": [{"role": "user", "content": said.to_string()}], "files": files});
    alice.starts(json!({"input": input})).await.finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("task: SYSTEM<<You are the patron."), "{}", said[2]);
    assert!(said[2].contains("Likes tea."), "{}", said[2]);
    assert!(said[3].starts_with("task: SYSTEM<<You are the heir."), "{}", said[3]);
    assert!(!said[3].contains("Likes tea."), "{}", said[3]);
    assert!(said[4].starts_with("task: SYSTEM<<You are the orphan."), "{}", said[4]);
    assert!(!said[4].contains("Likes tea."), "{}", said[4]);

    let bob = server.human("patron").await;
    let calls = ["double", "heir", "orphan"].map(|who| task(who, who, tells_its_tools()));
    bob.says(script().calls_all(calls).turn(json!({"echo_tools": true})))
        .await;
    let said = bob.transcript().await;
    let has_todos: Vec<bool> = said[2..6].iter().map(|told| told.contains("write_todos")).collect();
    assert_eq!(has_todos, [true, false, false, true]);
}

async fn an_inherited_limit_applies_to_heirs_only(server: TestServer) {
    let alice = server.human("patron").await;
    let busy = || {
        script()
            .calls_all((0..5).map(|at| lookup(&format!("l{at}"), "x")))
            .says("busy")
    };
    let agents = ["double", "heir", "orphan"];
    let calls = agents.map(|who| task(who, who, busy()));
    alice.says(script().calls_all(calls).says("done")).await;
    let made = server.tools.calls_of("lookup");
    let of = |agent: &str| made.iter().filter(|call| call["agent_name"] == agent).count();
    assert_eq!(agents.map(of), [5, 4, 5]);
}

async fn deprecated_defaults_for_subagents_still_apply(server: TestServer) {
    let alice = server.human("elder").await;
    let problems = async || server.client().get("/agents/elder").await.ok()["problems"].clone();
    eventually(async || problems().await != json!([])).await;
    let shown = server.client().get("/agents/elder").await.ok();
    let problem = shown["problems"][0]["message"].as_str().unwrap();
    for key in [
        "default_model",
        "default_tools",
        "default_middleware",
        "default_interrupt_on",
    ] {
        assert!(problem.contains(key), "{key} is missing in {problem}");
    }
    let calls = ["general-purpose", "junior", "rebel"].map(|who| task(who, who, tells_its_tools()));
    alice
        .says(script().calls_all(calls).turn(json!({"echo_tools": true})))
        .await;
    let said = alice.transcript().await;
    let has_todos: Vec<bool> = said[2..6].iter().map(|told| told.contains("write_todos")).collect();
    assert_eq!(has_todos, [true, true, true, false]);

    let search = script().calls(lookup("l1", "x")).says("found");
    alice
        .asks(
            script()
                .calls_all([task("t1", "junior", &search), task("t2", "rebel", &search)])
                .says("done"),
        )
        .await
        .finishes()
        .await;
    assert_eq!(alice.question().await.agent(), "junior");
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(server.tools.calls_of("lookup").len(), 2);
}

async fn the_general_purpose_subagent_can_be_renamed_or_disabled(server: TestServer) {
    let tools = async |agent: &str| -> Vec<Value> {
        let alice = server.human(agent).await;
        alice.says(script().turn(json!({"echo_tools": true}))).await;
        let told = alice.transcript().await[1].clone();
        told.split([',', '<', '>', ' '])
            .filter(|word| !word.is_empty())
            .map(Value::from)
            .collect()
    };
    assert!(tools("patron").await.contains(&json!("task")));
    assert!(!tools("loner").await.contains(&json!("task")));
    let alice = server.human("patron").await;
    alice
        .says(script().calls(task("t1", "general-purpose", "x")).says("done"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].contains("`double`, `heir`, `orphan`"), "{}", said[2]);
}

async fn a_subagent_may_add_tools_and_approvals_to_those_of_its_parent(server: TestServer) {
    let more = json!({"name": "more", "description": "Has more tools.", "system_prompt": "You have more.",
            "tools": ["note"], "interrupt_on": {"note": true}, "inherit": {"tools": true, "interrupt_on": true}});
    let other = json!({"name": "other", "description": "Has other tools.", "system_prompt": "You have others.",
            "tools": ["note"], "interrupt_on": {"note": true}});
    let agent = json!({"model": "scripted:lab", "tools": ["lookup", "send_email"], "subagents": [more, other],
            "interrupt_on": {"send_email": true}});
    server.client().put("/agents/giver", agent).await.ok();
    let alice = server.human("giver").await;
    let calls = ["more", "other"].map(|who| task(who, who, tells_its_tools()));
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    let has = |line: &str| ["lookup", "send_email", "note"].map(|tool| line.contains(tool));
    assert_eq!(has(&said[2]), [true; 3], "{said:#?}");
    assert_eq!(has(&said[3]), [false, false, true], "{said:#?}");

    let bob = server.human("giver").await;
    let both = [
        mail("m1", "bob"),
        call("n1", "note", json!({"update": {"x": 1}})),
        lookup("l1", "x"),
    ];
    bob.asks(
        script()
            .calls(task("t1", "more", script().calls_all(both).says("all done")))
            .says("done"),
    )
    .await
    .finishes()
    .await;
    let question = bob.question().await;
    let asked: Vec<&Value> = question.requests().iter().map(|one| &one["name"]).collect();
    assert_eq!(asked, ["send_email", "note"]);
}

async fn a_subagent_may_have_nothing_of_its_parents_files_and_state(server: TestServer) {
    let mut lodger = json!({"name": "lodger", "description": "Lives for itself.", "system_prompt": "You are alone.",
            "inherit": {"files": false, "state": false}});
    let agent = |lodger: &Value| json!({"model": "scripted:lab", "tools": ["note"], "subagents": [lodger]});
    let plays = async |kept: bool| {
        let alice = server.human("landlord").await;
        let work = script()
            .calls(call("r1", "read_file", json!({"file_path": "/mine.txt"})))
            .calls(call(
                "w1",
                "write_file",
                json!({"file_path": "/theirs.txt", "content": "x"}),
            ))
            .calls(call("n1", "note", json!({"update": {"y": 2}})))
            .says("done");
        let own = [
            call("n0", "note", json!({"update": {"x": 1}})),
            call("w0", "write_file", json!({"file_path": "/mine.txt", "content": "m"})),
        ];
        let run = alice
            .asks(script().calls_all(own).calls(task("t1", "lodger", work)).says("done"))
            .await;
        run.finishes().await;
        let values = alice.state().await["values"].clone();
        let child = run.children().await[0]["run_id"].as_str().unwrap().to_owned();
        let below = server
            .client()
            .get(&alice.path(&format!("/runs/{child}/state")))
            .await
            .ok()["values"]
            .clone();
        assert_eq!(values["files"].get("/theirs.txt").is_some(), kept, "{values:#}");
        assert_eq!(values.get("y").is_some(), kept, "{values:#}");
        assert_eq!(below["files"].get("/mine.txt").is_some(), kept, "{below:#}");
        assert_eq!(below.get("x").is_some(), kept, "{below:#}");
        assert_eq!(values["files"]["/mine.txt"]["content"], "m");
    };
    server.client().put("/agents/landlord", agent(&lodger)).await.ok();
    plays(false).await;
    lodger["inherit"] = json!({});
    server.client().put("/agents/landlord", agent(&lodger)).await.ok();
    plays(true).await;
}

async fn unknown_middleware_is_refused_with_the_known_names(server: TestServer) {
    let client = server.client();
    let put = async |middleware: Value| {
        client
            .put(
                "/agents/post",
                json!({"model": "scripted:lab", "middleware": middleware}),
            )
            .await
    };
    let refused =
        put(json!(["TodosListMiddleware", {"name": "ModelCallLimitMiddleware"}, "FilesystemMiddleware"])).await;
    assert_eq!(refused.status, 422);
    let told = refused.body.to_string();
    for part in [
        "did you mean `TodoListMiddleware`",
        "HumanInTheLoopMiddleware",
        "middleware[1].run_limit",
        "files = ",
    ] {
        assert!(told.contains(part), "{part} is missing in {told}");
    }
    let list =
        json!([{"name": "ModelCallLimitMiddleware", "run_limit": 1, "exit_behavior": "error"}, "TodoListMiddleware"]);
    let made = put(list.clone()).await.ok();
    assert_eq!(made["definition"]["middleware"], list);
    let alice = server.human("post").await;
    let run = alice.asks(script().calls(lookup("l1", "x")).says("never said")).await;
    let end = run.finishes().await;
    assert_eq!(end["__error__"]["error"], "ModelCallLimitExceededError", "{end:#}");
}
