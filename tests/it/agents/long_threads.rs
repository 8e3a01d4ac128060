//! Threads that are longer than the state of a thread may be: they go on, and their log keeps everything.

use serde_json::{Value, json};

use crate::support::tools::screenshot;
use crate::support::{Human, TestServer, call, on_both_engines, script, transcript};

on_both_engines! {
    a_thread_with_more_screenshots_than_its_state_holds_goes_on,
    a_thread_whose_summarised_messages_exceed_the_bound_goes_on,
    an_input_that_does_not_fit_makes_older_messages_leave,
    a_state_that_is_too_large_without_its_older_messages_is_refused,
    a_state_that_is_too_large_since_nothing_is_summarised_says_so,
    a_history_with_a_state_that_is_too_large_is_refused,
}

/// The size of a screenshot, in bytes; a third more in base64.
const PIXELS: usize = 15_000;

/// Configures the agent `looker` whose summaries are `SUMMARY`, and the size of the largest state in bytes.
pub(crate) async fn has_states_of(server: &TestServer, most: usize) -> Human {
    server.configuration_changes("[runtime]\n", &format!("[runtime]\nmax_state_bytes = {most}\n"));
    let agent = format!(
        r#"
        [tools.screenshot]
        kind = "http"
        description = "Shows the screen."
        url = "{}/screenshot"
        parameters = {{ type = "object" }}

        [agents.looker]
        model = "scripted:lab"
        system_prompt = "You look."
        tools = ["screenshot"]

        [agents.looker.summarization]
        summary_prompt = '{{"script": [{{"text": "SUMMARY"}}]}}'
        "#,
        server.tools.base
    );
    server.is_configured_with(&agent).await;
    server.human("looker").await
}

/// A turn in which the agent looks at these screens, one after the other.
fn looks(numbers: std::ops::Range<u64>) -> String {
    let looked = numbers.fold(script(), |plan, number| {
        let args = json!({"number": number, "bytes": PIXELS});
        plan.calls(call(&format!("c{number}"), "screenshot", args))
    });
    looked.says("all seen").to_string()
}

fn messages(values: &Value) -> &Vec<Value> {
    values["messages"].as_array().expect("messages")
}

/// Returns the messages that have left the state, as the state says.
pub(crate) fn left(values: &Value) -> usize {
    let left = values["summarization"]["left_messages"].as_u64().unwrap_or(0);
    usize::try_from(left).expect("a count")
}

/// Returns the length of the state as JSON.
fn size(values: &Value) -> usize {
    values.to_string().len()
}

async fn a_thread_with_more_screenshots_than_its_state_holds_goes_on(server: TestServer) {
    let alice = has_states_of(&server, 200_000).await;
    alice.says(looks(0..1)).await;
    let first = alice.state().await["checkpoint"]["checkpoint_id"].clone();
    let values = alice.says(looks(1..31)).await;
    let said = transcript(&values);
    assert_eq!(
        said.last().map(String::as_str),
        Some("ai: all seen"),
        "{}",
        values["__error__"]
    );
    assert!(
        said.iter().all(|line| !line.contains("was not taken")),
        "every result has room"
    );
    assert!(size(&values) < 200_000, "{}", size(&values));
    assert_eq!(messages(&values).len() + left(&values), 4 + 62);
    let newest = values.to_string();
    assert!(newest.contains(&screenshot(30, PIXELS)), "the newest are there");
    assert!(!newest.contains(&screenshot(0, PIXELS)));
    assert!(
        newest.contains("`image` (image/png, 15000 bytes) is not shown"),
        "the others are named"
    );
    // The log has everything.
    let first = first.as_str().expect("an id");
    let before = alice.client().get(&alice.path(&format!("/state/{first}"))).await.ok();
    assert!(before["values"].to_string().contains(&screenshot(0, PIXELS)));
    // A server that reads the log comes to the same state.
    let known = alice.state().await["values"].clone();
    server.is_stopped_and_started_again().await;
    assert_eq!(alice.state().await["values"], known);
    let more = transcript(&alice.says(looks(31..33)).await);
    assert_eq!(more.last().map(String::as_str), Some("ai: all seen"));
}

async fn a_thread_whose_summarised_messages_exceed_the_bound_goes_on(server: TestServer) {
    let alice = has_states_of(&server, 60_000).await;
    let mut first = Value::Null;
    for turn in 0..30 {
        let values = alice.says(format!("turn {turn}: {}", "so it goes ".repeat(200))).await;
        assert!(size(&values) < 60_000, "{}", size(&values));
        assert_eq!(values["__error__"], Value::Null, "turn {turn}");
        assert_eq!(messages(&values).len() + left(&values), 2 * (turn + 1));
        if turn == 0 {
            first = alice.state().await["checkpoint"]["checkpoint_id"].clone();
        }
    }
    let values = alice.state().await["values"].clone();
    assert!(left(&values) >= 30, "{}", left(&values));
    let path = format!("/state/{}", first.as_str().expect("an id"));
    let before = alice.client().get(&alice.path(&path)).await.ok();
    assert!(transcript(&before["values"])[0].contains("turn 0: "));
    server.is_stopped_and_started_again().await;
    assert_eq!(alice.state().await["values"], values);
}

async fn an_input_that_does_not_fit_makes_older_messages_leave(server: TestServer) {
    let alice = has_states_of(&server, 100_000).await;
    alice.says("hello").await;
    let said = (0..10).flat_map(|turn| {
        let text = format!("turn {turn}: {}", "so it goes ".repeat(200));
        [
            json!({"role": "user", "content": text}),
            json!({"role": "assistant", "content": text}),
        ]
    });
    let body = json!({"values": {"messages": said.collect::<Vec<_>>()}, "as_node": "model"});
    alice.client().post(&alice.path("/state"), body).await.ok();
    let values = alice
        .says(format!("{} {}", script().says("read"), "x".repeat(65_000)))
        .await;
    assert_eq!(
        transcript(&values).last().map(String::as_str),
        Some("ai: read"),
        "{}",
        values["__error__"]
    );
    assert!(left(&values) > 0);
    assert!(size(&values) < 100_000, "{}", size(&values));
}

async fn a_history_with_a_state_that_is_too_large_is_refused(server: TestServer) {
    let alice = has_states_of(&server, 50_000).await;
    let steps = |count: usize| {
        let said = |turn: usize| json!({"role": "assistant", "content": format!("{turn}: {}", "x".repeat(11_000))});
        let step = |turn| json!({"updates": [{"values": {"messages": [said(turn)]}, "as_node": "model"}]});
        let steps: Vec<Value> = (0..count).map(step).collect();
        json!({"metadata": {"graph_id": "looker"}, "supersteps": steps})
    };
    alice.client().post("/threads", steps(4)).await.ok();
    let refusal = alice.client().post("/threads", steps(5)).await.refused(422);
    assert!(refusal.contains("larger than 50000 bytes"), "{refusal}");
}

async fn a_state_that_is_too_large_since_nothing_is_summarised_says_so(server: TestServer) {
    server.configuration_changes("[runtime]\n", "[runtime]\nmax_state_bytes = 50000\n");
    let agent = "[agents.hoarder]\nmodel = \"scripted:lab\"\nsystem_prompt = \"You keep.\"\nsummarization = false\n";
    server.is_configured_with(agent).await;
    let alice = server.human("hoarder").await;
    alice.says("hello").await;
    let files = json!({"values": {"files": {"/a": {"content": "a".repeat(40_000)}}}});
    alice.client().post(&alice.path("/state"), files).await.ok();
    let error = alice.says("x".repeat(11_000)).await["__error__"].clone();
    assert_eq!(error["error"], "StateTooLargeError", "{error}");
    let message = error["message"].as_str().expect("a text");
    for way_out in ["Remove messages or files", "max_state_bytes", "`summarization = false`"] {
        assert!(message.contains(way_out), "{way_out}: {message}");
    }
}

async fn a_state_that_is_too_large_without_its_older_messages_is_refused(server: TestServer) {
    let alice = has_states_of(&server, 50_000).await;
    let client = alice.client();
    let run = alice.run_body("x".repeat(50_001), json!({}));
    let refusal = client.post(&alice.path("/runs/wait"), run).await.refused(422);
    assert!(refusal.contains("larger than 50000 bytes"), "{refusal}");
    alice.says("hello").await;
    let files = json!({"values": {"files": {"/a": {"content": "a".repeat(40_000)}}}});
    client.post(&alice.path("/state"), files).await.ok();
    for _ in 0..2 {
        let values = alice.says("x".repeat(11_000)).await;
        assert_eq!(values["__error__"]["error"], "StateTooLargeError", "{values}");
    }
    let without = json!({"values": {"files": {"/a": null}}});
    client.post(&alice.path("/state"), without).await.ok();
    let values = alice.says("and now?").await;
    assert_eq!(
        transcript(&values).last().map(String::as_str),
        Some("ai: echo: and now?")
    );
}
