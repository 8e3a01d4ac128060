//! Cancelling a run cancels the whole tree below it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::mcp::{McpTransport, docs};
use crate::support::proxy::Proxy;
use crate::support::{TestServer, call, eventually, lookup, on_both_engines, script, task};

/// Returns the definition of an agent with a subagent of every kind, some of them behind the proxy `door`.
fn agents(door: &str) -> String {
    let other = |name: &str, more: &str| {
        format!("[[agents.halted.subagents]]\nname = \"{name}\"\ndescription = \"One.\"\n{more}\n")
    };
    [
        "[agents.halted]\nmodel = \"scripted:mock\"\ntools = [\"lookup\", \"hand_over\", \"docs/*\"]\nmax_subagent_depth = 3\n",
        &other("one", "system_prompt = \"One.\"\ntools = [\"lookup\", \"docs/*\"]"),
        &other("twin", "mode = \"fork\""),
        &other("digger", "runnable = \"dig\""),
        &other("clerk", "graph_id = \"halting\"\nasync = false"),
        &other("far", &format!("graph_id = \"halting\"\nasync = false\nurl = \"{door}\"")),
        &other("back", "graph_id = \"halting\""),
        "[agents.halting]\nmodel = \"scripted:mock\"\ntools = [\"lookup\"]\n",
    ]
    .concat()
}

/// Returns the statuses of all runs in a tree.
fn statuses(node: &Value) -> Vec<String> {
    let below = node["children"].as_array().expect("a list").iter().flat_map(statuses);
    std::iter::once(node["status"].as_str().expect("a status").to_owned())
        .chain(below)
        .collect()
}

on_both_engines! {
    cancelling_a_run_stops_agents_of_every_kind_below_it,
}

async fn cancelling_a_run_stops_agents_of_every_kind_below_it(server: TestServer) {
    let door = Proxy::before(server.client()).await;
    let Some(_docs) = docs(&server, McpTransport::Stdio, "").await else {
        return;
    };
    server.is_embedded().await;
    server.is_configured_with(&agents(&door.base)).await;
    server.tools.hold("lookup");
    server.tools.hold("dig");
    let alice = server.human("halted").await;
    let looks = |id: &str| script().calls(lookup(id, "x")).says("found");
    let thinks = script().turn(json!({"text": "at last", "first_ms": 60_000}));
    let deeper = script().calls(task("t9", "one", looks("l9"))).says("found below");
    let calls = [
        task("t1", "one", looks("l1")),
        task(
            "t2",
            "one",
            script().calls(call("d1", "docs__dig", json!({}))).says("dug"),
        ),
        task("t3", "digger", "deep"),
        task("t4", "clerk", looks("l4")),
        task("t5", "far", looks("l5")),
        task("t6", "twin", thinks),
        call("h1", "hand_over", json!({"to": "one", "work": deeper.to_string()})),
        call(
            "a1",
            "start_async_task",
            json!({"description": looks("l6").to_string(), "subagent_type": "back"}),
        ),
        lookup("l0", "x"),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    // The main agent's, those of `one` (twice), `clerk`, `far` and `back`; the program's and that of the MCP server.
    server.tools.called("lookup", 6).await;
    server.tools.called("dig", 2).await;
    let search = async |status: &str| {
        let wanted = json!({"metadata": {"graph_id": "halting"}, "status": status, "limit": 9});
        server
            .client()
            .post("/threads/search", wanted)
            .await
            .ok()
            .as_array()
            .expect("a list")
            .clone()
    };
    assert_eq!(search("busy").await.len(), 2, "those of `far` and `back`");
    let began = Instant::now();
    assert_eq!(run.is_cancelled("interrupt").await.status, 200);
    let took = began.elapsed();
    eventually(async || search("interrupted").await.len() == 1).await;
    let took_far = began.elapsed();
    // It takes far less than a second; but a machine that does other things as well shall not make this fail.
    assert!(took_far < Duration::from_secs(10), "{took:?}, {took_far:?}");
    let tree = server.client().get(&format!("{}/tree", run.path)).await.ok();
    let all = statuses(&tree);
    assert!(all.len() == 9, "{all:?}");
    assert!(all.iter().all(|status| status == "interrupted"), "{all:?}");
    // The call of the MCP server is cancelled, and no agent calls a tool again.
    server.tools.called("cancelled", 1).await;
    let left = search("busy").await;
    assert_eq!(
        left.len(),
        1,
        "what works in the background belongs to the conversation, and goes on"
    );
    assert_eq!(left[0]["metadata"]["subagent_name"], "back");
    server.tools.let_go("lookup");
    server.tools.let_go("dig");
    eventually(async || search("busy").await.is_empty()).await;
    assert_eq!(
        server.client().get(&format!("{}/tree", run.path)).await.ok()["children"],
        tree["children"]
    );
}
