//! Policies that ask a model of their own: the choice of tools, made-up results, and grades by a rubric.

use serde_json::{Value, json};

use crate::support::provider::Turn;
use crate::support::{Human, TestServer, lookup, mail, on_both_engines, script, transcript};

/// Returns an agent with this policy, whose own model plays scripts.
fn agent(listed: &str) -> String {
    format!(
        "[agents.helped]\nmodel = \"scripted:x\"\ntools = [\"lookup\", \"send_email\", \"fail\"]\n\
         middleware = [{{ {listed} }}]\n"
    )
}

on_both_engines! {
    a_model_chooses_the_tools_once_for_each_message,
    a_choice_that_cannot_be_read_ends_the_run_or_offers_all_tools,
    results_of_emulated_tools_are_made_up_and_the_others_are_real,
    work_that_does_not_meet_the_rubric_is_revised_until_it_does,
    the_last_answer_is_kept_when_the_gradings_are_used_up_or_the_grader_fails,
    a_grader_looks_with_its_tools_before_it_grades,
    a_grader_makes_no_call_that_it_may_not_make,
    a_grader_has_to_grade_when_its_steps_are_used_up,
    calls_of_a_grader_count_for_the_limits_of_the_run,
    a_policy_with_an_unknown_model_is_refused,
}

async fn a_model_chooses_the_tools_once_for_each_message(server: TestServer) {
    let listed =
        "name = \"LLMToolSelectorMiddleware\", model = \"fake_openai:m-1\", max_tools = 1, always_include = [\"fail\"]";
    server.is_configured_with(&agent(listed)).await;
    server
        .models
        .will([Turn::Says("{\"tools\": [\"lookup\", \"send_email\"]}")]);
    let alice = server.human("helped").await;
    let text = script().calls(lookup("l1", "x")).turn(json!({"echo_tools": true}));
    let said = transcript(&alice.says(text).await);
    let offered = said.last().expect("an answer");
    assert!(offered.contains("lookup") && offered.contains("fail"), "{offered}");
    assert!(
        !offered.contains("send_email") && !offered.contains("write_file"),
        "{offered}"
    );
    let asked = server.models.asked();
    assert_eq!(asked.len(), 1, "one choice for both requests");
    assert!(asked[0].body.contains("send_email") && asked[0].body.contains("select_tools"));
    server
        .models
        .will([Turn::Says("```json\n{\"tools\": [\"send_email\"]}\n```")]);
    let said = transcript(&alice.says(script().turn(json!({"echo_tools": true}))).await);
    let offered = said.last().expect("an answer");
    assert!(
        offered.contains("send_email") && !offered.contains("lookup"),
        "{offered}"
    );
}

async fn a_choice_that_cannot_be_read_ends_the_run_or_offers_all_tools(server: TestServer) {
    let listed = "name = \"LLMToolSelectorMiddleware\", model = \"fake_openai:m-1\", max_tools = 1, max_retries = 1";
    server.is_configured_with(&agent(listed)).await;
    let nonsense = || [Turn::Says("all of them"), Turn::Says("{\"tools\": [\"no_such_tool\"]}")];
    server.models.will(nonsense());
    let values = server.human("helped").await.says(script().says("never")).await;
    assert_eq!(values["__error__"]["error"], "ToolSelectionError", "{values}");
    server
        .is_reconfigured("max_retries = 1", "max_retries = 1, on_parsing_failure = \"continue\"")
        .await;
    server.models.will(nonsense());
    let alice = server.human("helped").await;
    let said = transcript(&alice.says(script().turn(json!({"echo_tools": true}))).await);
    assert!(
        said[1].contains("lookup") && said[1].contains("send_email"),
        "{said:#?}"
    );
}

async fn results_of_emulated_tools_are_made_up_and_the_others_are_real(server: TestServer) {
    let listed = "name = \"LLMToolEmulator\", model = \"fake_openai:m-1\", tools = [\"send_email\"]";
    server.is_configured_with(&agent(listed)).await;
    server.models.will([Turn::Says("sent as number 7")]);
    let alice = server.human("helped").await;
    let calls = [mail("m1", "bob"), lookup("l1", "x")];
    let said = transcript(&alice.says(script().calls_all(calls).says("done")).await);
    assert_eq!(
        said[2..],
        ["send_email: sent as number 7", "lookup: found x", "ai: done"]
    );
    assert!(server.tools.calls_of("send_email").is_empty());
    let asked = server.models.asked();
    assert!(
        asked[0].body.contains("send_email") && asked[0].body.contains("bob"),
        "{}",
        asked[0].body
    );
}

const REVISE: &str = "{\"result\": \"needs_revision\", \"explanation\": \"Too short.\", \
    \"criteria\": [{\"name\": \"length\", \"passed\": false, \"gap\": \"one word\"}]}";
const SATISFIED: &str = "{\"result\": \"satisfied\", \"explanation\": \"Good.\", \
    \"criteria\": [{\"name\": \"length\", \"passed\": true}]}";

/// Sends a message with a rubric. Returns the statuses of the gradings as clients see them.
async fn works_by_a_rubric(server: &TestServer, alice: &Human) -> Vec<String> {
    let ends = rubric_events(server, alice, "rubric_evaluation_end").await;
    let status = |event: &Value| event["status"].as_str().unwrap_or_default().to_owned();
    ends.iter().map(status).collect()
}

/// Sends a message with a rubric. Returns the events of this type as clients see them.
async fn rubric_events(server: &TestServer, alice: &Human, kind: &str) -> Vec<Value> {
    let mut body = alice.run_body(script().says("short"), json!({"stream_mode": ["custom"]}));
    body["input"]["rubric"] = json!("The answer is long.");
    let stream = server.client().post_stream(&alice.path("/runs/stream"), body).await;
    let frames = stream.rest().await;
    let events = frames.iter().filter(|frame| frame.data["type"] == kind);
    events.map(|frame| frame.data.clone()).collect()
}

async fn work_that_does_not_meet_the_rubric_is_revised_until_it_does(server: TestServer) {
    let listed = "name = \"RubricMiddleware\", model = \"fake_openai:m-1\"";
    server.is_configured_with(&agent(listed)).await;
    server
        .models
        .will([Turn::Says(REVISE), Turn::Says(REVISE), Turn::Says(SATISFIED)]);
    let alice = server.human("helped").await;
    let ends = works_by_a_rubric(&server, &alice).await;
    assert_eq!(ends, ["needs_revision", "needs_revision", "satisfied"]);
    let values = alice.state().await["values"].clone();
    let messages = values["messages"].as_array().expect("messages");
    let feedback: Vec<&Value> = messages
        .iter()
        .filter(|message| message["name"] == "rubric_grader")
        .collect();
    assert_eq!(feedback.len(), 2);
    assert_eq!(feedback[0]["type"], "human");
    assert_eq!(feedback[0]["additional_kwargs"]["lc_source"], "rubric_grader");
    assert!(
        feedback[0]["content"]
            .as_str()
            .is_some_and(|text| text.contains("- length: one word"))
    );
    assert_eq!(messages.iter().filter(|message| message["type"] == "ai").count(), 3);
    assert!(
        values
            .as_object()
            .expect("an object")
            .keys()
            .all(|key| !key.starts_with("_rubric"))
    );
    assert!(server.models.asked()[0].body.contains("The answer is long."));
    // Without a rubric nobody grades.
    let bob = server.human("helped").await;
    bob.says(script().says("short")).await;
    assert_eq!(server.models.asked().len(), 3);
}

async fn the_last_answer_is_kept_when_the_gradings_are_used_up_or_the_grader_fails(server: TestServer) {
    let listed = "name = \"RubricMiddleware\", model = \"fake_openai:m-1\", max_iterations = 1";
    server.is_configured_with(&agent(listed)).await;
    server.models.will([Turn::Says(REVISE)]);
    let alice = server.human("helped").await;
    assert_eq!(works_by_a_rubric(&server, &alice).await, ["max_iterations_reached"]);
    assert_eq!(alice.transcript().await.last().expect("an answer"), "ai: short");
    assert_eq!(alice.status().await, "idle");
    server.models.will([Turn::Refuses(400, None)]);
    let bob = server.human("helped").await;
    assert_eq!(works_by_a_rubric(&server, &bob).await, ["grader_error"]);
    assert_eq!(bob.status().await, "idle");
}

/// A listed rubric whose grader has the tool `lookup`.
const WITH_LOOKUP: &str = "name = \"RubricMiddleware\", model = \"fake_openai:m-1\", tools = [\"lookup\"]";

async fn a_grader_looks_with_its_tools_before_it_grades(server: TestServer) {
    server.is_configured_with(&agent(WITH_LOOKUP)).await;
    server
        .models
        .will([Turn::LooksUp(vec!["facts"]), Turn::Says(SATISFIED)]);
    let alice = server.human("helped").await;
    let calls = rubric_events(&server, &alice, "rubric_tool_call").await;
    let call = json!({"type": "rubric_tool_call", "iteration": 1, "tool": "lookup", "args": {"query": "facts"},
        "status": "success"});
    assert_eq!(calls, [call]);
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
    let asked = server.models.asked();
    assert_eq!(asked.len(), 2);
    let offered = asked[0].json();
    let names: Vec<&Value> = offered["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| &tool["function"]["name"])
        .collect();
    assert_eq!(names, [&json!("grade"), &json!("lookup")]);
    assert!(asked[1].body.contains("found facts"), "{}", asked[1].body);
    assert_eq!(alice.transcript().await.last().expect("an answer"), "ai: short");
    let values = alice.state().await["values"].clone();
    assert!(
        !values.to_string().contains("found facts"),
        "the grader alone reads it: {values}"
    );
}

async fn a_grader_makes_no_call_that_it_may_not_make(server: TestServer) {
    let listed_none = WITH_LOOKUP.replace("lookup", "read_file");
    let cases = [
        (agent(&listed_none), "is not a tool that you may call"),
        (
            agent(WITH_LOOKUP) + "interrupt_on = { lookup = true }\n",
            "a human would have to be asked",
        ),
        (
            agent(WITH_LOOKUP) + "permissions = [{ tools = [\"lookup\"], mode = \"deny\" }]\n",
            "permission denied",
        ),
    ];
    for (at, (configuration, refusal)) in cases.into_iter().enumerate() {
        let name = format!("helped{at}");
        let configuration = configuration.replace("[agents.helped]", &format!("[agents.{name}]"));
        server.is_configured_with(&configuration).await;
        server
            .models
            .will([Turn::LooksUp(vec!["facts"]), Turn::Says(SATISFIED)]);
        let alice = server.human(&name).await;
        let calls = rubric_events(&server, &alice, "rubric_tool_call").await;
        assert_eq!(calls.len(), 1, "{refusal}");
        assert_eq!(calls[0]["status"], "error", "{refusal}");
        let asked = server.models.asked().pop().expect("a request");
        assert!(asked.body.contains(refusal), "{refusal}: {}", asked.body);
        assert!(server.tools.calls_of("lookup").is_empty(), "{refusal}");
        assert_eq!(alice.status().await, "idle", "{refusal}");
    }
}

async fn a_grader_has_to_grade_when_its_steps_are_used_up(server: TestServer) {
    let listed = format!("{WITH_LOOKUP}, max_steps = 2");
    server.is_configured_with(&agent(&listed)).await;
    server
        .models
        .will([Turn::LooksUp(vec!["a", "b"]), Turn::Says(SATISFIED)]);
    let alice = server.human("helped").await;
    assert_eq!(works_by_a_rubric(&server, &alice).await, ["satisfied"]);
    assert_eq!(server.tools.calls_of("lookup").len(), 2);
    let last = server.models.asked().pop().expect("a request").json();
    let tools = last["tools"].as_array().expect("tools");
    assert_eq!(tools.len(), 1, "{tools:?}");
    assert_eq!(tools[0]["function"]["name"], "grade");
}

async fn calls_of_a_grader_count_for_the_limits_of_the_run(server: TestServer) {
    let limited = agent(WITH_LOOKUP) + "limits = { tool_calls = 1 }\n";
    server.is_configured_with(&limited).await;
    server
        .models
        .will([Turn::LooksUp(vec!["a", "b"]), Turn::Says(SATISFIED)]);
    let alice = server.human("helped").await;
    assert_eq!(works_by_a_rubric(&server, &alice).await, ["satisfied"]);
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
    let last = server.models.asked().pop().expect("a request");
    assert!(last.body.contains("The call was not made"), "{}", last.body);
}

async fn a_policy_with_an_unknown_model_is_refused(server: TestServer) {
    for name in ["LLMToolSelectorMiddleware", "LLMToolEmulator", "RubricMiddleware"] {
        let definition = json!({"model": "scripted:x", "middleware": [{"name": name, "model": "nowhere:m-1"}]});
        let refused: String = server.client().put("/agents/wrong", definition).await.refused(422);
        assert!(
            refused.contains("middleware[0].model") && refused.contains("nowhere"),
            "{refused}"
        );
    }
}
