//! Runs and assistants that choose the model, the tools and texts in the instructions of an agent.

use serde_json::{Value, json};

use crate::agents::background_tasks::copied;
use crate::support::actors::Human;
use crate::support::provider::Turn;
use crate::support::{TestServer, call, mail, on_both_engines, script, task, transcript};

const CHOOSY: &str = r#"
[profiles."fake_openai:m-1"]
model_settings = { temperature = 0.75 }

[agents.choosy]
model = "scripted:lab"
system_prompt = "You help {user_name} in a {tone} tone, {nobody}."
tools = ["lookup", "send_email", "slow"]
interrupt_on = { send_email = true }
general_purpose_subagent = { enabled = false }
files = "none"

[agents.choosy.configurable]
models = ["fake_openai:m-1", "scripted:other"]
tools = ["slow", "send_email"]
prompt_slots = { user_name = "the user", tone = "plain" }

[[agents.choosy.subagents]]
name = "helper"
description = "Helps with one thing at a time."
system_prompt = "You help the helper of {user_name}."

[[agents.choosy.subagents]]
name = "narrow"
description = "Works with its own settings only."
graph_id = "narrow"

[agents.narrow]
model = "scripted:lab"
system_prompt = "You are narrow, {user_name}."
tools = ["send_email"]
interrupt_on = { send_email = true }

[agents.narrow.configurable]
models = ["scripted:third"]
prompt_slots = { user_name = "whoever" }
"#;

on_both_engines! {
    a_run_chooses_texts_of_its_instructions_and_leaves_out_tools,
    a_run_chooses_its_model_with_the_profile_of_that_model,
    an_assistant_chooses_and_its_runs_precede,
    a_choice_that_is_not_allowed_is_refused_with_its_field,
    the_schemas_describe_the_choices,
    a_resumed_run_keeps_its_choices_in_another_process,
    an_answer_to_another_agent_leaves_out_only_the_choices_that_it_does_not_allow,
    a_subagent_has_what_it_inherits_of_the_choice,
    an_agent_in_the_background_has_its_own_defaults,
    a_compaction_of_a_background_task_chooses_nothing,
    the_copy_of_a_background_task_goes_on_without_the_choices_of_its_parent,
    metadata_of_a_client_do_not_make_a_thread_that_of_a_task,
}

/// Sends a script with these fields of the request, and returns the last answer.
async fn answer(user: &Human, script: impl ToString, more: Value) -> String {
    let body = user.run_body(script, more);
    let values = user.client().post(&user.path("/runs/wait"), body).await.ok();
    transcript(&values).pop().expect("an answer")
}

async fn a_run_chooses_texts_of_its_instructions_and_leaves_out_tools(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let system = || script().turn(json!({"echo_system": true}));
    let tools = || script().turn(json!({"echo_tools": true}));
    let said = answer(&alice, system(), json!({})).await;
    assert!(said.contains("You help the user in a plain tone, {nobody}."), "{said}");
    let said = answer(&alice, system(), json!({"context": {"user_name": "Ann {tone}"}})).await;
    assert!(said.contains("You help Ann {tone} in a plain tone"), "{said}");
    let said = answer(&alice, system(), json!({"config": {"configurable": {"tone": "stern"}}})).await;
    assert!(said.contains("You help the user in a stern tone"), "{said}");
    let all = answer(&alice, tools(), json!({})).await;
    assert!(
        all.contains("lookup") && all.contains("send_email") && all.contains("slow"),
        "{all}"
    );
    let some = answer(&alice, tools(), json!({"context": {"tools": ["slow"]}})).await;
    assert_eq!(some, all.replace("send_email,", ""));
    let none = answer(&alice, tools(), json!({"context": {"tools": []}})).await;
    assert_eq!(none, all.replace("send_email,", "").replace("slow,", ""));
    // A tool that was left out is not there, even if the model calls it.
    let body = alice.run_body(
        script().calls(call("s1", "slow", json!({}))).says("done"),
        json!({"context": {"tools": []}}),
    );
    let values = alice.client().post(&alice.path("/runs/wait"), body).await.ok();
    let last = transcript(&values);
    assert_eq!(last.last().expect("an answer"), "ai: done");
    assert!(last[last.len() - 2].starts_with("slow failed: "), "{last:?}");
}

async fn a_run_chooses_its_model_with_the_profile_of_that_model(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let before = server.models.asked().len();
    server.models.will([Turn::Says("from afar")]);
    let said = answer(&alice, "hello", json!({"context": {"model": "fake_openai:m-1"}})).await;
    assert_eq!(said, "ai: from afar");
    let asked = server.models.asked().split_off(before);
    let body = asked[0].json();
    assert_eq!(body["model"], "m-1");
    assert_eq!(body["temperature"], 0.75);
    assert_eq!(
        answer(&alice, script().says("from here"), json!({})).await,
        "ai: from here"
    );
    assert_eq!(server.models.asked().len(), before + 1);
}

async fn an_assistant_chooses_and_its_runs_precede(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let body = json!({"graph_id": "choosy", "config": {"configurable": {"user_name": "Ben", "tone": "calm"}}});
    let made = alice.client().post("/assistants", body).await.ok();
    let system = || script().turn(json!({"echo_system": true}));
    let id = &made["assistant_id"];
    let said = answer(&alice, system(), json!({"assistant_id": id})).await;
    assert!(said.contains("You help Ben in a calm tone"), "{said}");
    let more = json!({"assistant_id": id, "context": {"tone": "loud"}});
    let said = answer(&alice, system(), more).await;
    assert!(said.contains("You help Ben in a loud tone"), "{said}");
}

async fn a_choice_that_is_not_allowed_is_refused_with_its_field(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let client = alice.client();
    let long = "x".repeat(4_001);
    for (context, field) in [
        (json!({"model": "scripted:expensive"}), "context.model: "),
        (json!({"model": ["scripted:other"]}), "context.model: "),
        (json!({"tools": ["slow", "lookup"]}), "context.tools.1: "),
        (json!({"tools": "slow"}), "context.tools: "),
        (json!({"user_name": 7}), "context.user_name: "),
        (json!({"user_name": long}), "context.user_name: "),
    ] {
        let body = alice.run_body("hello", json!({"context": context}));
        let refused = client.post(&alice.path("/runs"), body).await.refused(422);
        assert!(refused.starts_with(field), "{refused}");
        let body = alice.run_body("hello", json!({"config": {"configurable": context}}));
        let refused = client.post("/runs/wait", body).await.refused(422);
        assert!(refused.starts_with(field), "{refused}");
        let body = alice.run_body("hello", json!({"context": context, "schedule": "0 3 * * *"}));
        let refused = client.post(&alice.path("/runs/crons"), body).await.refused(422);
        assert!(refused.starts_with(field), "{refused}");
        let body = json!({"graph_id": "choosy", "context": context});
        let refused = client.post("/assistants", body).await.refused(422);
        assert!(refused.starts_with(field), "{refused}");
    }
    assert!(alice.runs().await.is_empty());
    let made = client.post("/assistants", json!({"graph_id": "choosy"})).await.ok();
    let path = format!("/assistants/{}", made["assistant_id"].as_str().expect("an id"));
    let change = json!({"context": {"model": "scripted:expensive"}});
    let refused = client.patch(&path, change).await.refused(422);
    assert!(refused.starts_with("context.model: "), "{refused}");
    assert_eq!(client.get(&path).await.ok()["version"], 1);
}

async fn the_schemas_describe_the_choices(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let schemas = server.client().get("/assistants/choosy/schemas").await.ok();
    let properties = &schemas["context_schema"]["properties"];
    assert_eq!(
        properties["model"]["enum"],
        json!(["scripted:lab", "fake_openai:m-1", "scripted:other"])
    );
    assert_eq!(properties["model"]["default"], "scripted:lab");
    assert_eq!(properties["tools"]["items"]["enum"], json!(["slow", "send_email"]));
    assert_eq!(properties["user_name"]["default"], "the user");
    assert_eq!(schemas["config_schema"], schemas["context_schema"]);
}

async fn a_resumed_run_keeps_its_choices_in_another_process(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let chosen = json!({"context": {"user_name": "Ann", "tools": ["send_email"], "model": "scripted:other"}});
    let text = script()
        .calls(mail("m1", "x"))
        .turn(json!({"echo_system": true}))
        .says("later");
    let body = alice.run_body(text, chosen);
    alice.client().post(&alice.path("/runs/wait"), body).await.ok();
    server.is_stopped_and_started_again().await;
    server
        .is_reconfigured("models = [\"fake_openai:m-1\", \"scripted:other\"]", "models = []")
        .await;
    // The answer brings a context of its own, which chooses the tone and nothing else.
    let answer = json!({"command": {"resume": {"decisions": [{"type": "approve"}]}},
        "assistant_id": "choosy", "context": {"tone": "glad"}});
    let values = alice.client().post(&alice.path("/runs/wait"), answer).await.ok();
    let said = transcript(&values).pop().expect("an answer");
    assert!(said.contains("You help Ann in a glad tone"), "{said}");
    let messages = values["messages"].as_array().expect("a list");
    assert_eq!(
        messages.last().expect("an answer")["response_metadata"]["model_name"],
        "other"
    );
    let run = &alice.runs().await[0];
    assert_eq!(run["kwargs"]["context"]["tools"], json!(["send_email"]));
    assert_eq!(run["kwargs"]["config"]["configurable"]["user_name"], "Ann");
}

async fn an_answer_to_another_agent_leaves_out_only_the_choices_that_it_does_not_allow(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let chosen = json!({"context": {"user_name": "Ann", "model": "scripted:other"}});
    let text = script().calls(mail("m1", "bob")).turn(json!({"echo_system": true}));
    let body = alice.run_body(text, chosen);
    alice.client().post(&alice.path("/runs/wait"), body).await.ok();
    let answer = json!({"command": {"resume": {"decisions": [{"type": "approve"}]}}, "assistant_id": "narrow"});
    let values = alice.client().post(&alice.path("/runs/wait"), answer).await.ok();
    let said = transcript(&values).pop().expect("an answer");
    assert!(said.contains("You are narrow, Ann."), "{said}");
    assert_eq!(alice.runs().await[0]["kwargs"]["context"], json!({"user_name": "Ann"}));
}

async fn a_subagent_has_what_it_inherits_of_the_choice(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let delegated = |turn: Value| {
        let inner = script().turn(turn);
        script()
            .calls(task("t1", "helper", inner))
            .turn(json!({"echo_last_tool": true}))
    };
    let chosen = || json!({"context": {"user_name": "Ann", "tools": [], "model": "scripted:other"}});
    let said = answer(&alice, delegated(json!({"echo_tools": true})), chosen()).await;
    assert!(said.contains("lookup") && !said.contains("slow"), "{said}");
    let said = answer(&alice, delegated(json!({"echo_system": true})), chosen()).await;
    assert!(said.contains("You help the helper of Ann."), "{said}");
}

/// Starts the agent `narrow` in the background with a script, from a run that chooses for itself, and returns the user on the
/// thread of the task when its run has ended.
async fn narrow_in_the_background(alice: &Human, inner: impl ToString) -> Human {
    let begin = call(
        "a1",
        "start_async_task",
        json!({"subagent_type": "narrow", "description": inner.to_string()}),
    );
    let chosen = json!({"context": {"user_name": "Ann", "model": "scripted:other"}});
    let body = alice.run_body(script().calls(begin).says("it is under way"), chosen);
    let values = alice.client().post(&alice.path("/runs/wait"), body).await.ok();
    let tasks = values["async_tasks"].as_object().expect("tasks").clone();
    let (thread, _) = tasks.iter().next().expect("a task");
    let narrow = Human::at(alice.client().clone(), "narrow", thread);
    let run = &narrow.runs().await[0];
    let run = narrow.run(run);
    run.finishes().await;
    narrow
}

async fn an_agent_in_the_background_has_its_own_defaults(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let narrow = narrow_in_the_background(&alice, script().turn(json!({"echo_system": true}))).await;
    let said = narrow.transcript().await.pop().expect("an answer");
    assert!(said.contains("You are narrow, whoever."), "{said}");
}

async fn a_compaction_of_a_background_task_chooses_nothing(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let narrow = narrow_in_the_background(&alice, script().says("done")).await;
    let done = narrow.client().post(&narrow.path("/compact"), json!({})).await.ok();
    let runs = narrow.runs().await;
    let compaction = runs.iter().find(|run| run["run_id"] == done["run_id"]);
    let compaction = compaction.expect("the run of the compaction");
    assert_eq!(compaction["kwargs"]["context"], json!({}));
}

async fn the_copy_of_a_background_task_goes_on_without_the_choices_of_its_parent(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let asks = script().calls(mail("m1", "bob")).turn(json!({"echo_system": true}));
    let narrow = narrow_in_the_background(&alice, asks).await;
    let copy = copied(&narrow).await;
    copy.approves(&copy.question().await).await.finishes().await;
    let said = copy.transcript().await.pop().expect("an answer");
    assert!(said.contains("You are narrow, whoever."), "{said}");
    assert_eq!(copy.runs().await[0]["kwargs"]["context"], json!({}));
}

async fn metadata_of_a_client_do_not_make_a_thread_that_of_a_task(server: TestServer) {
    server.is_configured_with(CHOOSY).await;
    let alice = server.human("choosy").await;
    let client = alice.client();
    let metadata = json!({"metadata": {"parent_thread_id": uuid::Uuid::new_v4()}});
    client.patch(&alice.path(""), metadata).await.ok();
    let forbidden = json!({"model": "scripted:expensive"});
    let body = alice.run_body("hello", json!({"context": forbidden, "schedule": "0 3 * * *"}));
    let refused = client.post(&alice.path("/runs/crons"), body).await.refused(422);
    assert!(refused.starts_with("context.model: "), "{refused}");
    let body = alice.run_body("hello", json!({"context": forbidden}));
    let refused = client.post(&alice.path("/runs"), body).await.refused(422);
    assert!(refused.starts_with("context.model: "), "{refused}");
}
