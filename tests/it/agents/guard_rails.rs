//! Guard rails that an agent lists: limits on calls, retries of tools, personal data.

use serde_json::{Value, json};

use crate::support::viewer::Viewer;
use crate::support::{TestServer, call, eventually, lookup, on_both_engines, script, transcript};

on_both_engines! {
    a_run_at_its_limit_of_model_calls_ends_with_a_note,
    a_limit_on_the_model_calls_of_a_thread_counts_all_of_its_runs,
    calls_beyond_the_limit_of_a_tool_are_error_results_and_the_others_run,
    a_limit_on_tool_calls_can_end_the_run,
    a_limit_on_tool_calls_can_fail_the_run_and_the_thread_goes_on,
    the_counts_of_calls_survive_a_kill,
    counts_of_calls_are_hidden_from_clients_and_cannot_be_written,
    a_failed_call_is_made_again_until_it_succeeds,
    a_call_that_failed_too_often_is_an_error_result_or_ends_the_run,
    a_call_with_an_unknown_effect_is_made_again_only_if_the_tool_allows_it,
    a_call_that_died_between_two_attempts_is_asked_about,
    personal_data_of_an_answer_is_in_no_stream_and_not_in_the_state,
    personal_data_is_removed_from_messages_and_results_before_the_model_reads_them,
    personal_data_is_removed_from_a_whole_conversation_that_a_client_brings,
    a_message_with_blocked_personal_data_is_refused_and_an_answer_ends_the_run,
    an_answer_that_breaks_off_is_kept_without_personal_data,
    a_guard_rail_about_a_tool_that_the_agent_lacks_is_a_warning,
}

/// Returns an agent with these policies.
fn guarded(listed: &str) -> String {
    format!(
        "[agents.guarded]\nmodel = \"scripted:x\"\ntools = [\"lookup\", \"fail\", \"send_email\"]\nmiddleware = [{listed}]\n"
    )
}

async fn a_run_at_its_limit_of_model_calls_ends_with_a_note(server: TestServer) {
    server
        .is_configured_with(&guarded("{ name = \"ModelCallLimitMiddleware\", run_limit = 1 }"))
        .await;
    let alice = server.human("guarded").await;
    let run = alice.asks(script().calls(lookup("c1", "x")).says("never said")).await;
    let said = transcript(&run.finishes().await);
    assert_eq!(
        said[2..],
        [
            "lookup: found x",
            "ai: The limit on model calls in one run is reached: 1."
        ]
    );
    assert_eq!(run.status().await, "success");
    assert_eq!(alice.status().await, "idle");
    let said = transcript(&alice.says(script().says("a new run")).await);
    assert_eq!(said.last().unwrap(), "ai: a new run");
}

async fn a_limit_on_the_model_calls_of_a_thread_counts_all_of_its_runs(server: TestServer) {
    let listed = "{ name = \"ModelCallLimitMiddleware\", thread_limit = 2, exit_behavior = \"error\" }";
    server.is_configured_with(&guarded(listed)).await;
    let alice = server.human("guarded").await;
    alice.says(script().says("one")).await;
    alice.says(script().says("two")).await;
    let values = alice.says(script().says("three")).await;
    assert_eq!(
        values["__error__"],
        json!({"error": "ModelCallLimitExceededError", "message": "The limit on model calls on this thread is reached: 2."})
    );
    let bob = server.human("guarded").await;
    assert_eq!(transcript(&bob.says(script().says("one")).await)[1], "ai: one");
}

async fn calls_beyond_the_limit_of_a_tool_are_error_results_and_the_others_run(server: TestServer) {
    // The first in the list is outermost: it does not count what the second has refused.
    let listed = "{ name = \"ToolCallLimitMiddleware\", run_limit = 4 }, \
        { name = \"ToolCallLimitMiddleware\", tool = \"lookup\", run_limit = 2 }";
    server.is_configured_with(&guarded(listed)).await;
    let alice = server.human("guarded").await;
    let mail = |id: &str| call(id, "send_email", json!({"to": "bob", "body": id}));
    let text = script()
        .calls_all([lookup("c1", "a"), lookup("c2", "b"), lookup("c3", "c"), mail("m1")])
        .calls_all([lookup("c4", "d"), mail("m2"), mail("m3")])
        .says("done");
    let said = transcript(&alice.says(text).await);
    let of_lookup = "lookup failed: The limit on calls of `lookup` in one run is reached: 2. The call was not made. \
        Do not make it again; finish with what you have.";
    assert_eq!(server.tools.calls_of("lookup").len(), 2, "{said:#?}");
    assert_eq!(said.iter().filter(|line| *line == of_lookup).count(), 2, "{said:#?}");
    let of_all = "send_email failed: The limit on tool calls in one run is reached: 4.";
    assert_eq!(
        said.iter().filter(|line| line.starts_with(of_all)).count(),
        1,
        "{said:#?}"
    );
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
    assert_eq!(said.last().unwrap(), "ai: done");
}

async fn a_limit_on_tool_calls_can_end_the_run(server: TestServer) {
    let listed = "{ name = \"ToolCallLimitMiddleware\", tool = \"lookup\", run_limit = 1, exit_behavior = \"end\" }";
    server
        .is_configured_with(&format!("{}interrupt_on = {{ send_email = true }}\n", guarded(listed)))
        .await;
    let alice = server.human("guarded").await;
    let mail = call("m1", "send_email", json!({"to": "bob", "body": "hi"}));
    let run = alice
        .asks(
            script()
                .calls_all([lookup("c1", "a"), mail, lookup("c2", "b")])
                .says("never said"),
        )
        .await;
    let said = transcript(&run.finishes().await);
    assert_eq!(
        said.last().unwrap(),
        "ai: The limit on calls of `lookup` in one run is reached: 1."
    );
    assert_eq!(said.len(), 6, "{said:#?}");
    assert!(
        said[3].ends_with("The run ends, so this call was not made."),
        "{said:#?}"
    );
    assert!(server.tools.calls().is_empty());
    assert_eq!(run.status().await, "success");
    assert_eq!(
        alice.status().await,
        "idle",
        "nobody is asked about a call that is not made"
    );
}

async fn a_limit_on_tool_calls_can_fail_the_run_and_the_thread_goes_on(server: TestServer) {
    let listed = "{ name = \"ToolCallLimitMiddleware\", run_limit = 1, exit_behavior = \"error\" }";
    server.is_configured_with(&guarded(listed)).await;
    let alice = server.human("guarded").await;
    let values = alice
        .says(script().calls_all([lookup("c1", "a"), lookup("c2", "b")]).says("never"))
        .await;
    assert_eq!(
        values["__error__"],
        json!({"error": "ToolCallLimitExceededError", "message": "The limit on tool calls in one run is reached: 1."})
    );
    assert!(server.tools.calls().is_empty());
    let said = transcript(&alice.says(script().calls(lookup("c3", "c")).says("again")).await);
    assert_eq!(said[said.len() - 2..], ["lookup: found c", "ai: again"]);
}

async fn the_counts_of_calls_survive_a_kill(server: TestServer) {
    let listed =
        "{ name = \"ToolCallLimitMiddleware\", run_limit = 2 }, { name = \"ModelCallLimitMiddleware\", run_limit = 3 }";
    server.is_configured_with(&guarded(listed)).await;
    server.moves_into_a_process().await;
    let alice = server.human("guarded").await;
    server.tools.hold("lookup");
    let text = script()
        .calls(lookup("c1", "a"))
        .calls_all([lookup("c2", "b"), lookup("c3", "c")])
        .calls(lookup("c4", "d"))
        .says("never said");
    let run = alice.asks(text).await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    let said = transcript(&run.finishes().await);
    let refused = said
        .iter()
        .filter(|line| line.starts_with("lookup failed: The limit on tool calls"));
    assert_eq!(refused.count(), 2, "{said:#?}");
    assert_eq!(
        said.iter().filter(|line| line.starts_with("lookup: found")).count(),
        2,
        "{said:#?}"
    );
    assert_eq!(
        said.last().unwrap(),
        "ai: The limit on model calls in one run is reached: 3."
    );
}

async fn counts_of_calls_are_hidden_from_clients_and_cannot_be_written(server: TestServer) {
    let listed = "{ name = \"ToolCallLimitMiddleware\", thread_limit = 1 }, { name = \"ModelCallLimitMiddleware\", thread_limit = 9 }";
    server.is_configured_with(&guarded(listed)).await;
    let alice = server.human("guarded").await;
    let mut body = alice.run_body(script().calls(lookup("c1", "a")).says("one"), json!({}));
    body["input"]["thread_tool_call_count"] = json!({"__all__": -5});
    body["input"]["thread_model_call_count"] = json!(9);
    let values = alice.starts(body).await.finishes().await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: one");
    let state = alice.state().await["values"].clone();
    for shown in [&values, &state] {
        let fields = shown.as_object().expect("an object").keys();
        let counts: Vec<&String> = fields.filter(|field| field.ends_with("_call_count")).collect();
        assert!(counts.is_empty(), "{counts:?}");
    }
    let said = transcript(&alice.says(script().calls(lookup("c2", "b")).says("two")).await);
    assert!(
        said[said.len() - 2].starts_with("lookup failed: The limit on tool calls on this thread"),
        "{said:#?}"
    );
    let wrong = json!({"model": "scripted:x", "middleware": [{"name": "ModelCallLimitMiddleware"}]});
    let refused: String = server.client().put("/agents/wrong", wrong).await.refused(422);
    assert!(refused.contains("run_limit"), "{refused}");
}

/// Returns an agent with this policy and tools that fail in different ways.
fn retrying(base: &str, listed: &str) -> String {
    let tool = |name: &str, path: &str, more: &str| {
        format!(
            "[tools.{name}]\ndescription = \"A tool.\"\nurl = \"{base}/{path}\"\n\
             parameters = {{ type = \"object\" }}\n{more}\n"
        )
    };
    let tools = [
        tool("busy", "busy", ""),
        tool("broken", "fail", ""),
        tool("once", "slow", "timeout_s = 0.05"),
        tool("again", "slow", "timeout_s = 0.05\nafter_crash = \"repeat\""),
    ];
    let agent = "[agents.retrying]\nmodel = \"scripted:x\"\ntools = [\"busy\", \"broken\", \"once\", \"again\"]\n";
    let listed = format!("middleware = [{{ name = \"ToolRetryMiddleware\", {listed} }}]\n");
    format!("{}{agent}{listed}", tools.concat())
}

async fn a_failed_call_is_made_again_until_it_succeeds(server: TestServer) {
    let listed = "initial_delay_s = 0.01, tools = [\"busy\"]";
    server.is_configured_with(&retrying(&server.tools.base, listed)).await;
    let alice = server.human("retrying").await;
    let calls = [call("b1", "busy", json!({})), call("b2", "broken", json!({}))];
    let said = transcript(&alice.says(script().calls_all(calls).says("done")).await);
    assert_eq!(said[2], "busy: free again");
    assert!(
        said[3].starts_with("broken failed: The call to `broken` failed: the tool `broken` answered with status 500")
    );
    assert_eq!(server.tools.keys_of("busy"), ["b1"; 3]);
    assert_eq!(server.tools.keys_of("broken"), ["b2"]);
}

async fn a_call_that_failed_too_often_is_an_error_result_or_ends_the_run(server: TestServer) {
    let listed = "initial_delay_s = 0.01, max_retries = 1";
    server.is_configured_with(&retrying(&server.tools.base, listed)).await;
    let text = || script().calls(call("b1", "broken", json!({}))).says("sorry");
    let alice = server.human("retrying").await;
    let said = transcript(&alice.says(text()).await);
    assert!(
        said[2].contains("failed with ToolHttpError") && said[2].ends_with("The call was made 2 times."),
        "{said:#?}"
    );
    assert_eq!(said[3], "ai: sorry");
    server
        .is_reconfigured("max_retries = 1", "max_retries = 1, on_failure = \"error\"")
        .await;
    let values = server.human("retrying").await.says(text()).await;
    assert_eq!(values["__error__"]["error"], "ToolHttpError", "{values}");
}

async fn a_call_with_an_unknown_effect_is_made_again_only_if_the_tool_allows_it(server: TestServer) {
    let listed = "initial_delay_s = 0.01, max_retries = 1";
    server.is_configured_with(&retrying(&server.tools.base, listed)).await;
    server.tools.hold("once");
    server.tools.hold("again");
    let alice = server.human("retrying").await;
    let calls = ["once", "again"].map(|name| call(name, name, json!({})));
    let said = transcript(&alice.says(script().calls_all(calls).says("done")).await);
    assert_eq!(server.tools.calls_of("once").len(), 1, "{said:#?}");
    assert_eq!(server.tools.calls_of("again").len(), 2, "{said:#?}");
    assert!(
        said[2].starts_with("once failed:") && said[3].starts_with("again failed:"),
        "{said:#?}"
    );
}

async fn a_call_that_died_between_two_attempts_is_asked_about(server: TestServer) {
    let listed = "initial_delay_s = 3600, max_delay_s = 3600, jitter = false";
    server.is_configured_with(&retrying(&server.tools.base, listed)).await;
    server.moves_into_a_process().await;
    let alice = server.human("retrying").await;
    let run = alice
        .asks(script().calls(call("b1", "busy", json!({}))).says("done"))
        .await;
    server.tools.called("busy", 1).await;
    server.is_killed_and_started_again().await;
    eventually(async || alice.status().await == "interrupted").await;
    assert_eq!(server.tools.calls_of("busy").len(), 1);
    let question = alice.question().await;
    alice
        .resolves(
            &question,
            json!({"decisions": [{"type": "respond", "message": "it was done"}]}),
        )
        .await
        .ok();
    run.finishes().await;
    eventually(async || alice.status().await == "idle").await;
    assert_eq!(alice.transcript().await[2..], ["busy: it was done", "ai: done"]);
}

const SECRET: &str = "bob@example.com";

async fn personal_data_of_an_answer_is_in_no_stream_and_not_in_the_state(server: TestServer) {
    let listed = "{ name = \"PIIMiddleware\", type = \"email\", apply_to_input = false, apply_to_output = true }, \
        { name = \"PIIMiddleware\", type = \"credit_card\", strategy = \"mask\", apply_to_input = false, apply_to_output = true }";
    server.is_configured_with(&guarded(listed)).await;
    let answer = format!("Ask {SECRET} about 4111 1111 1111 1111, not a@b.");
    let shown = "Ask [REDACTED_EMAIL] about **** **** **** 1111, not a@b.";
    // The script is a message of the human, so it holds the data without looking like it.
    let text = script().says(&answer).in_pieces_of(3).to_string();
    let hidden = text.replace('@', "\\u0040").replace("4111 1111", "4111\\u00201111");
    let alice = server.human("guarded").await;
    let modes = json!({"stream_mode": ["messages-tuple", "messages", "updates", "values", "events", "debug"]});
    let viewer = Viewer::of(&server, &alice.thread);
    let stream = alice.streams(&hidden, modes).await;
    let frames = stream.rest().await;
    let all: String = frames.iter().map(|frame| frame.data.to_string()).collect();
    let said: String = frames
        .iter()
        .filter(|frame| frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk")
        .filter_map(|frame| frame.data[0]["content"].as_str())
        .collect();
    assert_eq!(said, shown);
    for part in ["bob@", "@example", "4111 1111"] {
        assert!(!all.contains(part), "{part} is in {all}");
    }
    let replayed: String = viewer
        .replays(1)
        .await
        .iter()
        .map(|frame| frame.data.to_string())
        .collect();
    assert!(
        !replayed.contains("bob@") && replayed.contains("[REDACTED_EMAIL]"),
        "{replayed}"
    );
    assert_eq!(alice.transcript().await[1], format!("ai: {shown}"));
}

async fn personal_data_is_removed_from_messages_and_results_before_the_model_reads_them(server: TestServer) {
    let listed = "{ name = \"PIIMiddleware\", type = \"email\", strategy = \"hash\", apply_to_tool_results = true }";
    server.is_configured_with(&guarded(listed)).await;
    let alice = server.human("guarded").await;
    let text = script()
        .calls(lookup("c1", "bob\u{40}example.com"))
        .turn(json!({"echo_last_tool": true}))
        .to_string();
    let text = format!("I am {SECRET}. {}", text.replace("bob@", "bob\\u0040"));
    let values = alice.says(&text).await;
    let messages = values["messages"].as_array().expect("messages").clone();
    let asked = messages[0]["content"].as_str().unwrap_or_default();
    assert!(asked.starts_with("I am <email_hash:"), "{asked}");
    let told = messages[3]["content"].as_str().unwrap_or_default();
    assert!(told.starts_with("LAST_TOOL<<found <email_hash:"), "{told}");
    assert_eq!(
        server.tools.calls_of("lookup")[0]["args"]["query"],
        SECRET,
        "arguments stay as they are"
    );
}

async fn personal_data_is_removed_from_a_whole_conversation_that_a_client_brings(server: TestServer) {
    server
        .is_configured_with(&guarded("{ name = \"PIIMiddleware\", type = \"email\" }"))
        .await;
    let alice = server.human("guarded").await;
    let mut body = alice.run_body(script().says("done"), json!({}));
    let asked = body["input"]["messages"][0].clone();
    body["input"]["messages"] = json!([
        {"role": "user", "content": format!("I am {SECRET}.")},
        {"role": "assistant", "content": "How can I help?"},
        asked,
    ]);
    let values = server.client().post(&alice.path("/runs/wait"), body).await.ok();
    let messages = values["messages"].as_array().expect("messages");
    assert_eq!(messages[0]["content"], "I am [REDACTED_EMAIL].");
    assert_eq!(messages[1]["content"], "How can I help?");
    assert_eq!(messages.last().expect("an answer")["content"], "done");
}

async fn a_message_with_blocked_personal_data_is_refused_and_an_answer_ends_the_run(server: TestServer) {
    let listed = "{ name = \"PIIMiddleware\", type = \"ip\", strategy = \"block\", apply_to_output = true }";
    server.is_configured_with(&guarded(listed)).await;
    let alice = server.human("guarded").await;
    let body = alice.run_body("I am at 10.0.0.1.", json!({}));
    let refused: String = server.client().post(&alice.path("/runs"), body).await.refused(422);
    assert!(
        refused.contains("messages[0].content") && refused.contains("personal data"),
        "{refused}"
    );
    assert!(!refused.contains("10.0.0.1"), "{refused}");
    let text = script()
        .says("It is 10.0.0.1.")
        .to_string()
        .replace("10.0", "\\u00310.0");
    let values = alice.says(&text).await;
    assert_eq!(values["__error__"]["error"], "PIIDetectionError", "{values}");
    assert!(!values["__error__"].to_string().contains("10.0.0.1"));
    assert_eq!(
        transcript(&alice.says(script().says("fine")).await).last().unwrap(),
        "ai: fine"
    );
}

async fn an_answer_that_breaks_off_is_kept_without_personal_data(server: TestServer) {
    let listed = "{ name = \"PIIMiddleware\", type = \"email\", apply_to_input = false, apply_to_output = true }";
    server.is_configured_with(&guarded(listed)).await;
    let alice = server.human("guarded").await;
    let text = script().turn(json!({"text": format!("{SECRET} is it"), "drop": true}));
    let text = text.in_pieces_of(15).to_string().replace('@', "\\u0040");
    let stream = alice
        .streams(&text, json!({"stream_mode": ["messages-tuple", "updates"]}))
        .await;
    let all: String = stream.rest().await.iter().map(|frame| frame.data.to_string()).collect();
    assert!(!all.contains("bob@"), "{all}");
    let history: Vec<Value> = alice.history().await;
    assert!(!json!(history).to_string().contains("bob@example"), "{history:#?}");
}

async fn a_guard_rail_about_a_tool_that_the_agent_lacks_is_a_warning(server: TestServer) {
    let listed = json!([{"name": "ToolCallLimitMiddleware", "tool": "lokup", "run_limit": 2},
        {"name": "ToolCallLimitMiddleware", "tool": "lookup", "run_limit": 2}]);
    let body = json!({"definition": {"model": "scripted:x", "tools": ["lookup"], "middleware": listed}});
    let verdict = server.client().post("/agents/validate", body).await.ok();
    assert_eq!(verdict["valid"], true, "{verdict:#}");
    let findings = verdict["findings"].as_array().expect("a list");
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(findings[0]["field"], "middleware[0].tool");
    let message = findings[0]["message"].as_str().expect("a text");
    assert!(message.contains("did you mean `lookup`?"), "{message}");
}
