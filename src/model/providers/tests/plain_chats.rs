//! Tests of conversations that are encoded without rig-core.

use super::*;
use crate::domain::message::Content;

/// Returns the message with its text in a block, which is left to rig-core.
fn in_block(mut message: Message) -> Message {
    let text = message.content.text();
    let is_empty = text.is_empty();
    let block = json!({"type": "text", "text": text});
    message.content = Content::Blocks(if is_empty { vec![] } else { vec![block] });
    message
}

#[tokio::test]
async fn a_plain_conversation_is_sent_as_rig_core_sends_it() {
    let Value::Object(args) = json!({"q": "a \"b\"\n", "list": [1, 2.5, null, true], "object": {"ä": {}}}) else {
        panic!("an object")
    };
    let calls = ["call_a", "call-b", "C3"].map(|id| ToolCall::new(id, "look", args.clone()));
    let [first, second, third] = &calls;
    let role = Role::Ai {
        tool_calls: vec![first.clone(), second.clone()],
        invalid_tool_calls: vec![],
        usage_metadata: None,
    };
    let conversation = vec![
        Message::human("find \"it\"\n"),
        Message::new(role, "I look"),
        Message::tool(first, ToolStatus::Success, " found\t"),
        Message::tool(second, ToolStatus::Error, "nothing"),
        Message::calling([third.clone()]),
        Message::tool(third, ToolStatus::Success, "€"),
        Message::ai("there"),
        Message::human("thanks"),
    ];
    let plain = request(conversation.clone());
    let other = request(conversation.into_iter().map(in_block).collect());
    assert!(plain_chat::encode(&plain).is_some());
    assert!(plain_chat::encode(&other).is_none());
    let replies = vec![Reply::stream(&[]), Reply::stream(&[])];
    let (model, server) = fake(ProviderKind::OpenAi, replies).await;
    let mut sent = vec![];
    for asked in [plain, other] {
        let _ = ask(&model, asked).await;
        sent.push(server.last().body);
    }
    assert_eq!(sent[0]["messages"].as_array().map(Vec::len), Some(9), "{}", sent[0]);
    assert_eq!(sent[0], sent[1]);
}
