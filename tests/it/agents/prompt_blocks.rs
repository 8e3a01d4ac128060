//! System prompts in blocks, some of which are marked for the provider's cache.

use serde_json::{Value, json};

use crate::support::actors::transcript;
use crate::support::provider::{ModelCall, Turn};
use crate::support::{TestServer, call, lookup, on_both_engines, script, task};

/// Returns two blocks, the first of which is cached for an hour.
fn blocks() -> Value {
    json!([
        {"type": "text", "text": "You are careful.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "Today is a Monday."},
    ])
}

/// Returns an agent with memory files, this system prompt and a provider's model.
fn rememberer(provider: &str) -> Value {
    json!({"model": format!("fake_{provider}:m-1"), "system_prompt": blocks(), "memory": ["/AGENTS.md"],
        "general_purpose_subagent": {"enabled": false}})
}

fn tells_its_instructions() -> String {
    script().turn(json!({"echo_system": true})).to_string()
}

on_both_engines! {
    anthropic_receives_prompt_blocks_with_cache_markers,
    other_providers_read_blocks_as_one_text,
    claude_behind_a_gateway_receives_cache_markers_up_to_the_end_of_the_conversation,
    a_gateway_that_refuses_cache_markers_does_not_end_the_run,
    subagents_can_have_prompt_blocks,
    prompt_blocks_are_validated_and_stored_unchanged,
    a_short_description_is_a_warning,
    a_tool_that_delegates_may_set_the_system_prompt,
    a_fork_takes_no_system_prompt_from_a_tool,
}

async fn anthropic_receives_prompt_blocks_with_cache_markers(server: TestServer) {
    server
        .client()
        .put("/agents/careful", rememberer("anthropic"))
        .await
        .ok();
    let alice = server.human("careful").await;
    server.models.will([Turn::Says("hello")]);
    let files = json!({"/AGENTS.md": {"content": "Likes tea.", "encoding": "utf-8"}});
    let input = json!({"messages": [{"role": "user", "content": "hello"}], "files": files});
    alice.starts(json!({"input": input})).await.finishes().await;
    let asked = server.models.asked()[0].json();
    let system = asked["system"].as_array().unwrap();
    assert_eq!(json!(system[..2]), blocks());
    let (last, between) = system[2..].split_last().unwrap();
    assert!(last["text"].as_str().unwrap().contains("Likes tea."), "{last}");
    assert_eq!(last["cache_control"], json!({"type": "ephemeral"}));
    assert!(
        between.iter().all(|block| block.get("cache_control").is_none()),
        "{between:#?}"
    );
    let tools = asked["tools"].as_array().unwrap();
    assert!(!tools.is_empty(), "{asked:#}");
    assert!(
        tools.iter().all(|tool| tool.get("cache_control").is_none()),
        "the marker behind covers them"
    );
}

async fn other_providers_read_blocks_as_one_text(server: TestServer) {
    for provider in ["openai", "google", "ollama"] {
        server.client().put("/agents/careful", rememberer(provider)).await.ok();
        let alice = server.human("careful").await;
        server.models.will([Turn::Says("hello")]);
        alice.says("hello").await;
        let body = server.models.asked().pop().unwrap().body;
        assert!(body.contains(r"You are careful.\n\nToday is a Monday."), "{body}");
        assert!(!body.contains("cache_control"), "{body}");
    }
}

/// Configures an agent whose model is Claude behind a gateway with OpenAI's protocol.
async fn is_behind_a_gateway(server: &TestServer) {
    let base = &server.models.base;
    let gateway = format!(
        "[providers.gateway]\nkind = \"openai\"\nbase_url = \"{base}/openai/v1\"\napi_key = \"sk-1\"\n\
         prompt_caching = \"markers\"\n[agents.gated]\nmodel = \"gateway:claude\"\ntools = [\"lookup\"]\n\
         system_prompt = \"You are careful.\"\n"
    );
    server.is_configured_with(&gateway).await;
}

/// Returns the messages of a request of which a block is marked, by their roles.
fn marked_roles(asked: &Value) -> Vec<&str> {
    let has_marker = |blocks: &Vec<Value>| blocks.iter().any(|block| block.get("cache_control").is_some());
    let is_marked = |message: &&Value| message["content"].as_array().is_some_and(has_marker);
    let messages = asked["messages"].as_array().unwrap().iter().filter(is_marked);
    messages.map(|message| message["role"].as_str().unwrap()).collect()
}

fn bodies(server: &TestServer) -> Vec<Value> {
    server.models.asked().iter().map(ModelCall::json).collect()
}

async fn claude_behind_a_gateway_receives_cache_markers_up_to_the_end_of_the_conversation(server: TestServer) {
    is_behind_a_gateway(&server).await;
    let alice = server.human("gated").await;
    server.models.will([Turn::LooksUp(vec!["x"]), Turn::Says("done")]);
    let said = transcript(&alice.says("hello").await);
    assert_eq!(said.last().unwrap(), "ai: done");
    let asked = bodies(&server);
    assert_eq!(asked.len(), 2);
    assert_eq!(marked_roles(&asked[0]), ["system", "user"]);
    assert_eq!(marked_roles(&asked[1]), ["system", "tool"]);
    let end = &asked[1]["messages"][3]["content"];
    let marked = json!([{"type": "text", "text": "found x", "cache_control": {"type": "ephemeral"}}]);
    assert_eq!(end, &marked);
}

async fn a_gateway_that_refuses_cache_markers_does_not_end_the_run(server: TestServer) {
    is_behind_a_gateway(&server).await;
    let alice = server.human("gated").await;
    let objects = Turn::Objects("messages.0.content.0.cache_control: Extra inputs are not permitted");
    server.models.will([objects, Turn::Says("hello"), Turn::Says("again")]);
    let said = transcript(&alice.says("hello").await);
    assert_eq!(said, ["human: hello", "ai: hello"]);
    alice.says("and now?").await;
    let asked = bodies(&server);
    assert_eq!(asked.len(), 3);
    assert_eq!(marked_roles(&asked[0]), ["system", "user"]);
    for later in &asked[1..] {
        assert_eq!(marked_roles(later), Vec::<&str>::new());
    }
    assert_eq!(asked[1]["messages"][1]["content"], "hello");
}

async fn subagents_can_have_prompt_blocks(server: TestServer) {
    let subagents = json!([
        {"name": "plain", "description": "Has two blocks of its own.", "system_prompt": blocks()},
        {"name": "heir", "description": "Has its parent's words first.", "system_prompt": "You inherit.",
            "inherit": {"prompt": true}},
        {"name": "twin", "description": "Goes on as its parent does.", "mode": "fork",
            "system_prompt": [{"type": "text", "text": "Sign as the twin."}]},
    ]);
    let agent = json!({"model": "scripted:lab", "system_prompt": blocks(), "subagents": subagents, "files": "none"});
    server.client().put("/agents/careful", agent).await.ok();
    let alice = server.human("careful").await;
    let calls = ["plain", "heir", "twin"].map(|who| task(who, who, tells_its_instructions()));
    let said = transcript(&alice.says(script().calls_all(calls).says("done")).await);
    let both = "You are careful.\n\nToday is a Monday.";
    assert_eq!(said[2], format!("task: SYSTEM<<{both}>>"));
    assert_eq!(said[3], format!("task: SYSTEM<<{both}\n\nYou inherit.>>"));
    assert!(said[4].starts_with(&format!("task: SYSTEM<<{both}")), "{}", said[4]);
    assert!(said[4].ends_with("\n\nSign as the twin.>>"), "{}", said[4]);
}

async fn prompt_blocks_are_validated_and_stored_unchanged(server: TestServer) {
    let client = server.client();
    let made = client.put("/agents/careful", rememberer("openai")).await.ok();
    assert_eq!(made["definition"]["system_prompt"], blocks());
    server.is_stopped_and_started_again().await;
    assert_eq!(
        server.client().get("/agents/careful").await.ok()["definition"]["system_prompt"],
        blocks()
    );
    let bad = json!([{"type": "text", "text": "x"}, {"type": "image", "url": "x"}]);
    let refusal = server
        .client()
        .put(
            "/agents/careful",
            json!({"model": "scripted:lab", "system_prompt": bad}),
        )
        .await;
    let detail = refusal.refused(422);
    assert!(
        detail.contains("system_prompt[1].type: `image` is not allowed; allowed are: text"),
        "{detail}"
    );
}

async fn a_short_description_is_a_warning(server: TestServer) {
    let agent =
        |description: &str| json!({"model": "scripted:lab", "subagents": [{"name": "a", "description": description}]});
    let verdict = async |description: &str| {
        let body = json!({"definition": agent(description)});
        server.client().post("/agents/validate", body).await.ok()
    };
    assert_eq!(
        verdict("Does what is needed.").await,
        json!({"valid": true, "findings": []})
    );
    let short = verdict("Does what is needed").await;
    assert_eq!(short["valid"], true);
    assert_eq!(short["findings"].as_array().unwrap().len(), 1);
    let finding = &short["findings"][0];
    assert_eq!(finding["field"], "subagents[0].description");
    assert!(
        finding["message"].as_str().unwrap().contains("less than 20 characters"),
        "{finding}"
    );
}

async fn a_tool_that_delegates_may_set_the_system_prompt(server: TestServer) {
    let spawn = |id: &str, who: &str, prompt: Value| {
        let work = script()
            .calls(lookup(&format!("l-{id}"), "x"))
            .turn(json!({"echo_system": true}))
            .to_string();
        call(
            id,
            "spawn",
            json!({"description": work, "subagent_type": who, "system_prompt": prompt}),
        )
    };
    server.moves_into_a_process().await;
    let alice = server.human("deep").await;
    server.tools.hold("lookup");
    let counts = json!("You count sheep.");
    let calls = [
        spawn("s1", "researcher", counts.clone()),
        spawn("s2", "general-purpose", counts),
        spawn("s3", "researcher", json!(" ")),
        spawn("s4", "researcher", Value::Null),
    ];
    // The calls of a step may still be under way when the subagents of others work, and this one would be in doubt after the crash.
    let refused = spawn("s0", "researcher", json!("x".repeat(64 * 1024 + 1)));
    let run = alice.asks(script().calls(refused).calls_all(calls).says("done")).await;
    server.tools.called("lookup", 4).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = alice.transcript().await;
    for line in &said[4..6] {
        assert!(line.starts_with("spawn: SYSTEM<<You count sheep."), "{line}");
        assert!(!line.contains("You are the researcher."), "{line}");
        assert!(!line.contains("You work on one task"), "{line}");
    }
    for line in &said[6..8] {
        assert!(line.starts_with("spawn: SYSTEM<<You are the researcher."), "{line}");
    }
    assert!(
        said[2].starts_with("spawn failed: The `system_prompt` for `researcher` has 65537 bytes"),
        "{}",
        said[2]
    );
    let children = run.children().await;
    assert!(!children.is_empty());
    for child in children {
        let state = server
            .client()
            .get(&format!("{}/state", alice.run(&child).path))
            .await
            .ok();
        assert_eq!(state["values"].get("_system_prompt"), None, "{child}");
    }
}

async fn a_fork_takes_no_system_prompt_from_a_tool(server: TestServer) {
    let client = server.client();
    client.put("/agents/clerk", json!({"model": "scripted:lab"})).await.ok();
    let subagents = json!([
        {"name": "twin", "description": "Goes on as its caller does.", "mode": "fork"},
        {"name": "clerk", "description": "Knows where everything is.", "graph_id": "clerk", "async": false},
    ]);
    client
        .put(
            "/agents/school",
            json!({"model": "scripted:lab", "tools": ["spawn"], "subagents": subagents}),
        )
        .await
        .ok();
    let alice = server.human("school").await;
    let spawn = |id: &str, who: &str| {
        call(
            id,
            "spawn",
            json!({"description": "x", "subagent_type": who, "system_prompt": "You count sheep."}),
        )
    };
    let run = alice
        .asks(
            script()
                .calls_all([spawn("s1", "twin"), spawn("s2", "clerk")])
                .says("done"),
        )
        .await;
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("spawn failed: `twin` takes no `system_prompt`"),
        "{}",
        said[2]
    );
    assert!(
        said[3].starts_with("spawn failed: `clerk` takes no `system_prompt`"),
        "{}",
        said[3]
    );
    assert_eq!(run.children().await, Vec::<Value>::new());
}
