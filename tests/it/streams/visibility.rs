//! Clients see of a subagent what its definition lets them see, on every stream and in every answer.

use serde_json::{Value, json};

use crate::agents::background_tasks::{notifications, start};
use crate::support::actors::{Human, Run};
use crate::support::viewer::Viewer;
use crate::support::{TestServer, eventually, lookup, mail, on_both_engines, script, task};

/// An agent with a subagent of each visibility, two of which have a fully visible subagent.
const AGENTS: &str = r#"
[agents.veiled]
model = "scripted:lab"
system_prompt = "You are veiled."
tools = ["lookup"]
max_subagent_depth = 2

[[agents.veiled.subagents]]
name = "open"
description = "Shows everything."
system_prompt = "Mark: openly."
tools = ["lookup", "send_email"]

[[agents.veiled.subagents]]
name = "handy"
description = "Shows its tools."
system_prompt = "Mark: handily."
visibility = "tools_only"

[[agents.veiled.subagents]]
name = "quiet"
description = "Shows that it works."
system_prompt = "Mark: quietly."
visibility = "status"

[[agents.veiled.subagents]]
name = "ghost"
description = "Shows nothing."
system_prompt = "Mark: secretly."
visibility = "hidden"
tools = ["lookup", "send_email"]
interrupt_on = { send_email = true }
"#;

/// An agent whose background agents show their status only, or nothing.
const CURTAIN: &str = r#"
[agents.curtain]
model = "scripted:lab"
system_prompt = "You stand in front."

[[agents.curtain.subagents]]
name = "dim"
description = "Shows that it works."
graph_id = "stagehand"
visibility = "status"

[[agents.curtain.subagents]]
name = "dark"
description = "Shows nothing."
graph_id = "stagehand"
visibility = "hidden"

[agents.stagehand]
model = "scripted:lab"
system_prompt = "Mark: secretly."
tools = ["lookup", "send_email"]
interrupt_on = { send_email = true }
"#;

/// An agent with a hidden general-purpose subagent.
const SECRETIVE: &str = r#"
[agents.secretive]
model = "scripted:lab"
system_prompt = "You are secretive."
tools = ["lookup"]
general_purpose_subagent = { visibility = "hidden", system_prompt = "Mark: secretly." }
"#;

/// The kinds of subagents, each with a mark that only its model writes, and a query whose result only its tool returns.
const KINDS: [(&str, &str, &str); 4] = [
    ("open", "openly", "a"),
    ("handy", "handily", "b"),
    ("quiet", "quietly", "c"),
    ("ghost", "secretly", "d"),
];

/// Returns a script in which each subagent calls a tool, with a long text before it and a short answer after it.
fn work() -> String {
    let each = KINDS.map(|(name, _, query)| {
        let musing = json!({"echo_system": true, "tool_calls": [lookup("c1", query)]});
        task(&format!("t-{name}"), name, script().turn(musing).says("done"))
    });
    let inner = script()
        .turn(json!({"echo_system": true, "tool_calls": [lookup("c2", "e")]}))
        .says("done");
    let below = task(
        "t-below",
        "quiet",
        script().calls(task("t-deep", "open", inner)).says("done"),
    );
    script().calls_all(each).calls(below).says("all done").to_string()
}

/// Returns the marks of models and the results of tools that are in `text`.
fn found(text: &str) -> Vec<&'static str> {
    let marks = KINDS
        .iter()
        .map(|(_, mark, _)| *mark)
        .filter(|mark| text.contains(&format!("Mark: {mark}")));
    let results = ["found a", "found b", "found c", "found d", "found e"];
    marks
        .chain(results.into_iter().filter(|result| text.contains(result)))
        .collect()
}

async fn worked(server: &TestServer) -> (Human, Run) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("veiled").await;
    let run = alice.asks(work()).await;
    run.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: all done");
    (alice, run)
}

/// The marks and results that may be visible.
const SEEN: [&str; 3] = ["openly", "found a", "found b"];

/// All stream modes.
const MODES: [&str; 10] = [
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "tasks",
    "checkpoints",
    "debug",
    "events",
    "tools",
];

on_both_engines! {
    the_streams_of_a_run_respect_visibility,
    the_streams_of_a_thread_respect_visibility,
    read_endpoints_respect_visibility,
    interrupts_of_a_hidden_subagent_can_be_answered,
    the_general_purpose_subagent_has_a_visibility,
    background_tasks_respect_visibility,
    an_unknown_visibility_is_refused,
}

async fn the_streams_of_a_run_respect_visibility(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("veiled").await;
    for modes in [
        MODES.as_slice(),
        &MODES[..1],
        &["updates", "messages-tuple"],
        &["events"],
        &["tools"],
    ] {
        let frames = alice
            .streams(work(), json!({"stream_mode": modes, "stream_subgraphs": true}))
            .await
            .rest()
            .await;
        let text = format!("{frames:?}");
        let seen = found(&text);
        assert!(seen.iter().all(|seen| SEEN.contains(seen)), "{modes:?}: {seen:?}");
        let children = alice.run(&alice.runs().await[0]).children().await;
        let namespace = |name: &str| {
            let child = children.iter().find(|child| child["agent_name"] == name).unwrap();
            child["checkpoint_ns"].as_str().unwrap().to_owned()
        };
        if modes.len() == MODES.len() {
            assert_eq!(seen, SEEN);
            assert!(text.contains(&format!("updates|{}", namespace("handy"))));
            assert!(!text.contains(&format!("values|{}", namespace("handy"))));
            assert!(text.contains(&format!("tools|{}", namespace("handy"))));
            assert!(!text.contains(&format!("|{}", namespace("quiet"))));
        }
    }
    let more = json!({"stream_mode": MODES, "stream_subgraphs": true, "stream_resumable": true});
    let run = alice.starts(alice.run_body(work(), more)).await;
    let joined = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(found(&format!("{joined:?}")), SEEN);
}

async fn the_streams_of_a_thread_respect_visibility(server: TestServer) {
    let (alice, _) = worked(&server).await;
    let frames = Viewer::of(&server, &alice.thread).replays(1).await;
    let text = format!("{frames:?}");
    assert_eq!(found(&text), SEEN);
    let told = |name: &str| -> Vec<&str> {
        let mut methods: Vec<&str> = frames
            .iter()
            .filter(|frame| frame.data["params"]["agent_name"] == name)
            .map(|frame| frame.event.as_str())
            .collect();
        methods.sort_unstable();
        methods.dedup();
        methods
    };
    assert_eq!(told("ghost"), [""; 0]);
    assert_eq!(told("quiet"), ["lifecycle"]);
    assert_eq!(told("handy"), ["lifecycle", "tools", "updates"]);
    assert!(told("open").len() > 3);
    let deep = frames.iter().any(|frame| {
        frame.data["params"]["agent_path"] == json!(["veiled", "quiet", "open"]) && frame.event != "lifecycle"
    });
    assert!(!deep, "who is below one that is seen dimly is not seen better");
    let bob = server.human("veiled").await;
    let modes = json!({"stream_mode": MODES, "stream_subgraphs": true});
    drop(bob.streams(work(), modes).await.rest().await);
    let mut old = server.client().get_stream(&bob.path("/stream"), Some("-1")).await;
    let frames = old.until(|frame| frame.data["status"] == "run_done").await;
    assert_eq!(found(&format!("{frames:?}")), SEEN);
}

async fn read_endpoints_respect_visibility(server: TestServer) {
    let (alice, run) = worked(&server).await;
    let client = server.client();
    let children = run.children().await;
    let names: Vec<&Value> = children.iter().map(|child| &child["agent_name"]).collect();
    assert_eq!(names, ["open", "handy", "quiet", "quiet"]);
    let tree = client.get(&format!("{}/tree", run.path)).await.ok();
    assert!(!tree.to_string().contains("ghost"), "{tree:#}");
    assert!(tree["tree_usage"]["children"].as_u64() > Some(4), "{tree:#}");
    for child in &children {
        let own = alice.run(child);
        let state = client.get(&format!("{}/state", own.path)).await.ok();
        let body = json!({"limit": 9, "checkpoint": {"checkpoint_ns": child["checkpoint_ns"]}});
        let history = client.post(&alice.path("/history"), body).await.ok();
        let joined = own.finishes().await;
        let is_open = child["agent_name"] == "open";
        assert_eq!(state["values"]["messages"].is_array(), is_open, "{state:#}");
        assert_eq!(history.as_array().map(Vec::is_empty), Some(!is_open));
        assert_eq!(joined["messages"].is_array(), is_open);
    }
    server.tools.hold("lookup");
    let bob = server.human("veiled").await;
    let going = bob.asks(work()).await;
    let earlier = KINDS.len() + 1;
    server.tools.called("lookup", earlier + KINDS.len()).await;
    let states = client.get(&bob.path("/state?subgraphs=true")).await.ok();
    assert_eq!(found(&states.to_string()), ["openly"], "{states:#}");
    server.tools.let_go("lookup");
    going.finishes().await;
}

async fn interrupts_of_a_hidden_subagent_can_be_answered(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("veiled").await;
    let run = alice
        .asks(
            script()
                .calls(task("t1", "ghost", script().calls(mail("m1", "bob")).says("sent")))
                .says("done"),
        )
        .await;
    run.finishes().await;
    assert_eq!(run.children().await, Vec::<Value>::new());
    let question = alice.question().await;
    let hidden = alice.run_of_id(question.0["run_id"].as_str().unwrap());
    if hidden.id != run.id {
        for path in ["", "/tree", "/children", "/state", "/join"] {
            assert_eq!(
                server.client().get(&format!("{}{path}", hidden.path)).await.status,
                404,
                "{path}"
            );
        }
        assert_eq!(
            server
                .client()
                .post(&format!("{}/cancel", hidden.path), json!({}))
                .await
                .status,
            404
        );
    }
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await[2..], ["task: sent", "ai: done"]);
}

async fn the_general_purpose_subagent_has_a_visibility(server: TestServer) {
    server.is_configured_with(SECRETIVE).await;
    let alice = server.human("secretive").await;
    let musing = json!({"echo_system": true, "tool_calls": [lookup("c1", "d")]});
    let work = script()
        .calls(task("t1", "general-purpose", script().turn(musing).says("done")))
        .says("all done");
    let modes = json!({"stream_mode": ["values", "updates", "messages-tuple", "events"], "stream_subgraphs": true});
    let frames = alice.streams(work, modes).await.rest().await;
    assert_eq!(found(&format!("{frames:?}")), [""; 0]);
    assert_eq!(alice.transcript().await[2..], ["task: done", "ai: all done"]);
    assert_eq!(alice.run(&alice.runs().await[0]).children().await, Vec::<Value>::new());
    let looks = Viewer::of(&server, &alice.thread).replays(1).await;
    assert_eq!(found(&format!("{looks:?}")), [""; 0]);
}

async fn background_tasks_respect_visibility(server: TestServer) {
    server.is_configured_with(CURTAIN).await;
    let client = server.client();
    let alice = server.human("curtain").await;
    let work = || {
        let musing = json!({"echo_system": true, "tool_calls": [lookup("c1", "d")]});
        script().turn(musing).calls(mail("m1", "bob")).says("done")
    };
    let calls = [start("a1", "dim", work()), start("a2", "dark", work())];
    let run = alice.asks(script().calls_all(calls).says("under way")).await;
    run.finishes().await;
    let wanted = json!({"metadata": {"parent_thread_id": alice.thread}, "status": "interrupted"});
    eventually(async || {
        client
            .post("/threads/search", wanted.clone())
            .await
            .ok()
            .as_array()
            .map(Vec::len)
            == Some(2)
    })
    .await;
    let threads = client.post("/threads/search", wanted.clone()).await.ok();
    assert_eq!(found(&threads.to_string()), [""; 0]);
    let tree = client.get(&format!("{}/tree", run.path)).await.ok();
    let names: Vec<&Value> = tree["background_tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| &task["agent_name"])
        .collect();
    assert_eq!(names, ["dim"]);
    assert_eq!(threads.as_array().map(Vec::len), Some(2), "{threads:#}");
    for thread in threads.as_array().unwrap() {
        let is_dark = thread["metadata"]["subagent_name"] == "dark";
        let own = alice.on(thread["thread_id"].as_str().unwrap());
        let runs = own.runs().await;
        assert_eq!(runs.is_empty(), is_dark);
        for path in ["", "/state", "/state?subgraphs=true", "/history"] {
            let shown = client.get(&own.path(path)).await.ok();
            assert_eq!(found(&shown.to_string()), [""; 0], "{path}: {shown:#}");
        }
        assert_eq!(client.post(&own.path("/copy"), json!({})).await.status, 404);
        let values = json!({"values": {"files": {}}, "ids": [thread["thread_id"]]});
        assert_eq!(client.post("/threads/search", values).await.ok(), json!([]));
        let known = alice.state().await["values"]["async_tasks"][&own.thread]["run_id"].clone();
        let shown = client
            .get(&own.path(&format!("/runs/{}", known.as_str().unwrap())))
            .await;
        assert_eq!(shown.status, if is_dark { 404 } else { 200 });
        if let Some(run) = runs.first() {
            let looks = Viewer::of(&server, &own.thread).replays(1).await;
            assert_eq!(found(&format!("{looks:?}")), [""; 0]);
            let joined = own.run(run).finishes().await;
            assert_eq!(found(&joined.to_string()), [""; 0], "{joined:#}");
        }
        let approved = json!({"decisions": [{"type": "approve"}]});
        own.resolves(&own.question().await, approved).await.ok();
    }
    let over = json!({"metadata": {"parent_thread_id": alice.thread}, "status": "idle"});
    eventually(async || {
        client
            .post("/threads/search", over.clone())
            .await
            .ok()
            .as_array()
            .map(Vec::len)
            == Some(2)
    })
    .await;
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
    eventually(async || {
        notifications(&alice)
            .await
            .iter()
            .filter(|told| told["status"] == "success")
            .count()
            == 2
    })
    .await;
    eventually(async || alice.status().await == "idle").await;
}

async fn an_unknown_visibility_is_refused(server: TestServer) {
    let subagent = json!({"name": "x", "description": "Does something.", "visibility": "secret"});
    let body = json!({"model": "scripted:lab", "subagents": [subagent]});
    let refused = server.client().put("/agents/brought", body).await;
    assert_eq!(refused.status, 422);
    assert!(refused.body.to_string().contains("hidden"), "{}", refused.body);
}
