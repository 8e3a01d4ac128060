//! Tests that plain conversations are sent as rig-core sends them.

use super::*;
use crate::domain::message::Content;

fn call(id: &str, args: Value) -> ToolCall {
    let Value::Object(args) = args else { panic!("no object") };
    ToolCall::new(id, "look", args)
}

fn calling(text: &str, calls: &[&ToolCall]) -> Message {
    Message {
        content: Content::Text(text.to_owned()),
        ..Message::calling(calls.iter().copied().cloned())
    }
}

fn found(call: &ToolCall) -> Message {
    Message::tool(call, ToolStatus::Success, format!("found by {}", call.id))
}

/// Returns conversations, of which some are plain and some are not.
fn conversations() -> Vec<Vec<Message>> {
    let one = call("call_1", json!({"q": "a \"b\" ä", "n": [1, 2.5, null]}));
    let two = call("call_2", json!({}));
    let long = call(&"x".repeat(50), json!({"q": "c"}));
    let hi = || Message::human("hi \"there\"");
    vec![
        vec![hi()],
        vec![hi(), Message::ai("hello"), Message::human("and?")],
        vec![hi(), calling("", &[&one]), found(&one)],
        vec![
            hi(),
            calling("I look.", &[&one, &two]),
            found(&one),
            Message::tool(&two, ToolStatus::Error, "no"),
            Message::human("go on"),
        ],
        vec![
            hi(),
            calling("", &[&one]),
            found(&one),
            calling("", &[&two]),
            found(&two),
            Message::ai("done"),
        ],
        vec![hi(), calling("", &[&one, &two]), found(&two), found(&one)],
        vec![
            hi(),
            calling("", &[&one]),
            found(&one),
            calling("", &[&one]),
            found(&one),
        ],
        vec![hi(), calling(" ", &[&long]), found(&long)],
        vec![hi(), calling("", &[&one]), Message::tool(&one, ToolStatus::Success, "")],
        vec![hi(), calling("", &[&one]), Message::human("never mind")],
        vec![hi(), Message::ai(""), Message::human("and?")],
    ]
}

/// A text in a block is sent as a text, but a conversation with one is left to rig-core.
#[tokio::test]
async fn a_plain_conversation_is_sent_as_the_library_sends_it() {
    let (model, server) = fake(ProviderKind::OpenAi, vec![]).await;
    for conversation in conversations() {
        let mut bodies = vec![];
        for is_in_block in [false, true] {
            let mut messages = conversation.clone();
            if is_in_block {
                let text = messages[0].content.text();
                messages[0].content = Content::Blocks(vec![json!({"type": "text", "text": text})]);
            }
            server.prepare(Reply::stream(&[]));
            let _ = ask(&model, request(messages)).await;
            bodies.push(server.last().body.to_string());
        }
        assert_eq!(bodies[0], bodies[1]);
    }
}
