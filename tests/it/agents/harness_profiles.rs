//! Harness profiles: settings for all agents with a certain model.

use serde_json::json;

use crate::support::provider::Turn;
use crate::support::{TestServer, call, on_both_engines, script, task};

const PROFILES: &str = r#"
[profiles.scripted]
base_system_prompt = "Be exact."
system_prompt_suffix = "Sign your work."
excluded_tools = ["grep"]

[profiles.scripted.general_purpose_subagent]
system_prompt = "You do everything."

[profiles."scripted:small"]
system_prompt_suffix = "Be brief."
extra_middleware = ["TodoListMiddleware"]

[profiles.fake_openai]
tool_description_overrides = { ls = "Shows what lies in a folder.", lookup = "Asks the oracle." }
model_settings = { temperature = 0.25 }

[agents.crew]
model = "scripted:big"
system_prompt = "You lead."

[[agents.crew.subagents]]
name = "small"
description = "Thinks with a small model."
system_prompt = "You are small."
model = "scripted:small"

[[agents.crew.subagents]]
name = "large"
description = "Thinks as its parent."
system_prompt = "You are large."
"#;

/// Agents with another model, whose summaries and policies ask the one with the profile.
const ASKED_BY_POLICIES: &str = r#"
[profiles.fake_openai]
model_settings = { temperature = 0.25, thinking = { type = "enabled" } }

[agents.picky]
model = "scripted:x"
tools = ["lookup", "send_email"]
middleware = [{ name = "LLMToolSelectorMiddleware", model = "fake_openai:m-1", max_tools = 1 }]

[agents.terse]
model = "scripted:x"
summarization = { model = "fake_openai:m-1", trigger = { messages = 3 }, keep = { messages = 1 } }
"#;

on_both_engines! {
    each_agent_has_the_profile_of_its_own_model,
    an_excluded_tool_is_neither_offered_nor_executed,
    providers_receive_the_prompt_and_settings_of_the_profile,
    policies_and_summaries_ask_their_model_with_the_settings_of_its_profile,
}

async fn each_agent_has_the_profile_of_its_own_model(server: TestServer) {
    server.is_configured_with(PROFILES).await;
    let alice = server.human("crew").await;
    let told = script().turn(json!({"echo_system": true})).to_string();
    let calls = ["small", "large", "general-purpose"].map(|who| task(who, who, &told));
    alice
        .says(script().calls_all(calls).turn(json!({"echo_system": true})))
        .await;
    let said = alice.transcript().await;
    let lead = |text: &str| format!("task: SYSTEM<<{text}");
    assert!(
        said[2].starts_with(&lead("You are small.\n\nBe exact.\n\nBe brief.")),
        "{}",
        said[2]
    );
    assert!(
        said[3].starts_with(&lead("You are large.\n\nBe exact.\n\nSign your work.")),
        "{}",
        said[3]
    );
    assert!(
        said[4].starts_with(&lead("You do everything.\n\nSign your work.")),
        "{}",
        said[4]
    );
    assert!(
        said[5].starts_with("ai: SYSTEM<<You lead.\n\nBe exact.\n\nSign your work."),
        "{}",
        said[5]
    );

    let bob = server.human("crew").await;
    let told = script().turn(json!({"echo_tools": true})).to_string();
    let calls = ["small", "large", "general-purpose"].map(|who| task(who, who, &told));
    bob.says(script().calls_all(calls).turn(json!({"echo_tools": true})))
        .await;
    let said = bob.transcript().await;
    let plans: Vec<bool> = said[2..6].iter().map(|tools| tools.contains("write_todos")).collect();
    assert_eq!(plans, [true, false, false, false]);
    assert!(
        said[2..6]
            .iter()
            .all(|tools| tools.contains("glob") && !tools.contains("grep")),
        "{said:#?}"
    );
}

async fn an_excluded_tool_is_neither_offered_nor_executed(server: TestServer) {
    server.is_configured_with(PROFILES).await;
    let alice = server.human("crew").await;
    alice
        .says(script().calls(call("c1", "grep", json!({"pattern": "x"}))).says("done"))
        .await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains("grep is not a valid tool, try one of ["),
        "{}",
        said[2]
    );
    assert!(!said[2].contains(", grep"), "{}", said[2]);

    let mine = json!({"model": "scripted:other", "tools": ["lookup"], "excluded_tools": ["lookup", "ls"]});
    server.client().put("/agents/own", mine).await.ok();
    let bob = server.human("own").await;
    bob.says(script().turn(json!({"echo_tools": true}))).await;
    let tools = bob.transcript().await[1].clone();
    assert!(!tools.contains("lookup"), "{tools}");
    assert!(!tools.contains("ls,"), "{tools}");
    assert!(tools.contains("glob"), "{tools}");
}

async fn providers_receive_the_prompt_and_settings_of_the_profile(server: TestServer) {
    server.is_configured_with(PROFILES).await;
    let alice = server.human("openai").await;
    server.models.will([Turn::Says("hello")]);
    alice.says("hello").await;
    let asked = server.models.asked().pop().unwrap().body;
    for part in [
        "Shows what lies in a folder.",
        "Asks the oracle.",
        "\"temperature\":0.25",
    ] {
        assert!(asked.contains(part), "{part} is missing in {asked}");
    }
    assert!(!asked.contains("Look a fact up."), "{asked}");
}

async fn policies_and_summaries_ask_their_model_with_the_settings_of_its_profile(server: TestServer) {
    server.is_configured_with(ASKED_BY_POLICIES).await;
    server.models.will([Turn::Says("{\"tools\": [\"lookup\"]}")]);
    server.human("picky").await.says(script().says("done")).await;
    let choice = server.models.asked().pop().expect("a request").json();
    assert_eq!(choice["tools"][0]["function"]["name"], "select_tools", "{choice:#}");
    assert_eq!(choice["temperature"], 0.25);
    assert_eq!(
        choice.get("thinking"),
        None,
        "a model that has to call a tool may not think"
    );
    server.models.will([Turn::Says("They greeted each other.")]);
    let alice = server.human("terse").await;
    for text in ["hello", "and hello again"] {
        alice.says(text).await;
    }
    let asked = server.models.asked();
    assert_eq!(asked.len(), 2, "one choice and one summary");
    let summary = asked[1].json();
    assert_eq!(summary["temperature"], 0.25, "{summary:#}");
    assert_eq!(summary["thinking"]["type"], "enabled");
}
