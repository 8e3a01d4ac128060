//! Spans have contents only if the settings ask for them, and never secrets.

use serde_json::Value;

use crate::support::collector::Collector;
use crate::support::{TestServer, lookup, script, without_postgres};

/// A word of a message, an argument and a result.
const WORD: &str = "platypus";
const SECRET: &str = "s3cret-of-the-collector";

without_postgres! {
    spans_have_no_contents_by_default,
    spans_have_bounded_contents_when_they_are_asked_for,
}

async fn spans_have_no_contents_by_default(server: TestServer) {
    let collector = Collector::start().await;
    let headers = format!("headers = {{ authorization = \"Bearer {SECRET}\" }}");
    server.is_configured_with(&collector.section(&headers)).await;
    let work = script().calls(lookup("l1", WORD)).says(WORD);
    server.human("plain").await.says(work).await;
    collector.only("invoke_agent plain-agent").await;
    collector.only("POST /threads/{thread_id}/runs/wait").await;
    for (headers, body) in collector.requests() {
        assert_eq!(headers["authorization"], format!("Bearer {SECRET}"));
        let body = String::from_utf8_lossy(&body).into_owned();
        for word in [WORD, "You are", SECRET] {
            assert!(!body.contains(word), "{word} is in a span");
        }
    }
}

async fn spans_have_bounded_contents_when_they_are_asked_for(server: TestServer) {
    let collector = Collector::start().await;
    let settings = "capture_content = true\nmax_content_bytes = 2000";
    server.is_configured_with(&collector.section(settings)).await;
    let long = format!("{WORD} {}", "x".repeat(10_000));
    let work = script().calls(lookup("l1", &long)).says(WORD);
    server.human("plain").await.says(work).await;
    let call = collector.only("execute_tool lookup").await;
    let text = |key: &str| call.attribute(key).as_str().expect("a text").to_owned();
    assert!(text("gen_ai.tool.call.arguments").contains(WORD));
    assert!(text("gen_ai.tool.call.result").contains(WORD));
    let chats = collector.gets(2, |span| span.name == "chat lab").await;
    for chat in &chats {
        let instructions = chat.attribute("gen_ai.system_instructions").to_string();
        assert!(instructions.contains("You are"), "{instructions}");
        let input = chat.attribute("gen_ai.input.messages");
        let input: Vec<Value> = serde_json::from_str(input.as_str().expect("a text")).expect("JSON");
        assert!(!input.is_empty());
    }
    let outputs = chats.iter().map(|chat| chat.attribute("gen_ai.output.messages"));
    let last = outputs
        .filter(|output| output.as_str().is_some_and(|text| text.contains(WORD)))
        .count();
    assert!(last > 0);
    let run = collector.only("invoke_agent plain-agent").await;
    assert!(run.attribute("gen_ai.output.messages").to_string().contains(WORD));
    let longest = collector
        .spans()
        .into_iter()
        .flat_map(|span| span.attributes.into_values());
    let longest = longest
        .map(|value| value.as_str().map_or(0, str::len))
        .max()
        .expect("some attributes");
    assert!(longest < 6000, "an attribute has {longest} bytes");
}
