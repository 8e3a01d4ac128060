//! Plain conversations in requests with OpenAI's protocol: texts, calls, and the result of each call.
//!
//! rig-core copies a conversation several times before it encodes it, since it adapts what other models have written,
//! repairs what has gaps, and replays what providers have signed. Most conversations have nothing of that and no files,
//! and a run sends a longer part of one in each step. So they are encoded from the messages themselves. All others are
//! left to rig-core, and so are those with models for which it writes plain ones in another way.

use std::collections::HashSet;
use std::sync::Arc;

use rig_core::operation::Completion;
use rig_core::wire::{Body, Encoded, Mode, Wire};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::{Protocol, native, request};
use crate::domain::message::{Content, Message, Role, ToolCall, ToolStatus};
use crate::model::{ModelRequest, ToolSpec};

/// The longest id of a call that rig-core leaves as it is, in bytes.
const LONGEST_ID: usize = 40;

/// A message as it is sent.
#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum PlainMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: &'a str,
    },
    Assistant {
        #[serde(skip_serializing_if = "str::is_empty")]
        content: &'a str,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<PlainCall<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

/// A call as it is sent.
#[derive(Serialize)]
struct PlainCall<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    function: PlainFunction<'a>,
}

#[derive(Serialize)]
struct PlainFunction<'a> {
    name: &'a str,
    arguments: String,
}

/// Returns the encoded messages of a request, if its conversation is plain.
pub(super) fn encode(request: &ModelRequest, instructions: Option<&str>) -> Option<Box<RawValue>> {
    if request.messages.is_empty() {
        return None;
    }
    let mut sent: Vec<PlainMessage<'_>> = Vec::with_capacity(request.messages.len() + 1);
    sent.extend(instructions.map(|content| PlainMessage::System { content }));
    let mut ids = HashSet::new();
    let mut may_be_human = true;
    let mut may_be_answer = false;
    let mut rest = request.messages.as_slice();
    while let [message, later @ ..] = rest {
        let content = plain_text(message)?;
        rest = later;
        match &message.role {
            Role::Human if may_be_human && !content.is_empty() => {
                sent.push(PlainMessage::User { content });
                may_be_human = false;
                may_be_answer = true;
            }
            Role::Ai { tool_calls, .. } if may_be_answer && is_plain_answer(message) => {
                // Tools that are not there any more have to be declared for past calls, which rig-core does.
                let has_calls = !tool_calls.is_empty();
                if has_calls && request.tools.is_empty() || !has_calls && content.is_empty() {
                    return None;
                }
                let calls = tool_calls.iter().map(|call| plain_call(call, &mut ids));
                let tool_calls: Vec<PlainCall<'_>> = calls.collect::<Option<_>>()?;
                let (results, later) = later.split_at_checked(tool_calls.len())?;
                let results = tool_calls.iter().zip(results);
                let results: Vec<PlainMessage<'_>> = results
                    .map(|(call, result)| plain_result(call.id, result))
                    .collect::<Option<_>>()?;
                sent.push(PlainMessage::Assistant { content, tool_calls });
                sent.extend(results);
                rest = later;
                may_be_human = true;
                may_be_answer = has_calls;
            }
            Role::Human | Role::Ai { .. } | Role::System | Role::Tool { .. } | Role::Remove => return None,
        }
    }
    to_raw_value(&sent).ok()
}

/// Returns the text of a message, if it is a text that is empty or has more than blanks.
fn plain_text(message: &Message) -> Option<&str> {
    match &message.content {
        Content::Text(text) => (text.is_empty() || !text.trim().is_empty()).then_some(text.as_str()),
        Content::Blocks(_) => None,
    }
}

/// Returns whether an answer has nothing but its text and its calls.
fn is_plain_answer(message: &Message) -> bool {
    message.invalid_tool_calls().is_empty() && !message.additional_kwargs.contains_key(native::KEY)
}

/// Returns a call as it is sent, if its id may be sent as it is and is not among `ids`, to which it is added.
fn plain_call<'a>(call: &'a ToolCall, ids: &mut HashSet<&'a str>) -> Option<PlainCall<'a>> {
    let is_short = !call.id.is_empty() && call.id.len() <= LONGEST_ID && !call.id.contains('|');
    if call.name.is_empty() || !is_short || !ids.insert(&call.id) {
        return None;
    }
    Some(PlainCall {
        kind: "function",
        id: &call.id,
        function: PlainFunction {
            name: &call.name,
            arguments: serde_json::to_string(&call.args).ok()?,
        },
    })
}

/// Returns the result of the call with this id as it is sent, if it is one with a text.
fn plain_result<'a>(call: &str, message: &'a Message) -> Option<PlainMessage<'a>> {
    let tool_call_id = message.answers().filter(|answered| *answered == call)?;
    let content = plain_text(message).filter(|text| !text.is_empty())?;
    Some(PlainMessage::Tool { tool_call_id, content })
}

/// Returns whether rig-core encodes a plain conversation with this model as this module does.
pub(super) fn is_known_form<W>(wire: &W) -> bool
where
    W: Wire<Op = Completion, Payload = Encoded>,
{
    let sample = sample();
    let ours = encode(&sample, None).and_then(|messages| serde_json::from_str::<Value>(messages.get()).ok());
    let built = request::build(&sample, Protocol::OpenAi, None).ok();
    let encoded = built.and_then(|built| wire.encode(built, Mode::Streaming).ok());
    let theirs = encoded.and_then(|encoded| {
        let Body::Bytes(bytes) = encoded.request.into_body() else {
            return None;
        };
        let mut body: Value = serde_json::from_slice(&bytes).ok()?;
        body.get_mut("messages").map(Value::take)
    });
    ours.is_some() && ours == theirs
}

/// Returns a request with a plain conversation that has a message of each kind.
fn sample() -> ModelRequest {
    let args = Map::from_iter([("q".to_owned(), Value::from("a"))]);
    let call = ToolCall::new("call_1", "look", args);
    let mut calling = Message::calling([call.clone()]);
    calling.content = Content::Text("I look.".to_owned());
    let messages = [
        Message::human("a"),
        calling,
        Message::tool(&call, ToolStatus::Success, "found"),
        Message::ai("b"),
        Message::human("c"),
    ];
    let tool = ToolSpec {
        name: call.name,
        description: String::new(),
        parameters: Value::Null,
    };
    ModelRequest {
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: vec![Arc::new(tool)],
        ..ModelRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use rig_core::providers::openai::OpenAIConfig;
    use rig_core::providers::openai::wire::Chat;
    use serde_json::json;

    use super::*;

    /// Changes the messages of the sample, whose second one makes the call that the third one answers.
    type Change = fn(&mut Vec<Arc<Message>>);

    fn encoded(change: Change) -> Option<Value> {
        let mut request = sample();
        change(&mut request.messages);
        let messages = encode(&request, Some("be brief"))?;
        serde_json::from_str(messages.get()).ok()
    }

    fn second(messages: &mut [Arc<Message>]) -> &mut Message {
        Arc::make_mut(&mut messages[1])
    }

    #[test]
    fn a_plain_conversation_has_texts_calls_and_their_results() {
        let call =
            json!({"type": "function", "id": "call_1", "function": {"name": "look", "arguments": "{\"q\":\"a\"}"}});
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "I look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "found"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]);
        assert_eq!(encoded(|_| {}), Some(expected));
        let silent = encoded(|messages| second(messages).content = Content::Text(String::new()));
        let silent = silent.expect("a call needs no text");
        assert_eq!(silent[2].get("content"), None);
    }

    #[test]
    fn any_other_conversation_is_left_to_the_library() {
        let others: [Change; 12] = [
            Vec::clear,
            |messages| drop(messages.remove(0)),
            |messages| drop(messages.remove(1)),
            |messages| drop(messages.remove(2)),
            |messages| messages.swap(0, 1),
            |messages| messages.push(Arc::new(Message::human("more"))),
            |messages| messages.insert(3, Arc::clone(&messages[1])),
            |messages| second(messages).content = Content::Text(" ".to_owned()),
            |messages| second(messages).content = Content::Blocks(vec![json!({"type": "text", "text": "a"})]),
            |messages| {
                drop(
                    second(messages)
                        .additional_kwargs
                        .insert(native::KEY.to_owned(), json!({})),
                )
            },
            |messages| messages[2] = Arc::new(Message::human("found")),
            |messages| Arc::make_mut(&mut messages[2]).content = Content::Text(String::new()),
        ];
        for (at, change) in others.into_iter().enumerate() {
            assert_eq!(encoded(change), None, "{at}");
        }
        for id in ["", "a|b", "12345678901234567890123456789012345678901"] {
            let mut request = sample();
            let call = ToolCall::new(id, "look", Map::new());
            request.messages[1] = Arc::new(Message::calling([call.clone()]));
            request.messages[2] = Arc::new(Message::tool(&call, ToolStatus::Success, "found"));
            assert!(encode(&request, None).is_none(), "{id}");
        }
        let mut without_tools = sample();
        without_tools.tools.clear();
        assert!(encode(&without_tools, None).is_none(), "the past call has no tool");
    }

    #[test]
    fn a_model_to_which_more_is_sent_gets_what_the_library_encodes() {
        let wire = |url: &str| Chat::new(OpenAIConfig::new("key".to_owned()).with_base_url(url), "m-1");
        assert!(is_known_form(&wire("https://api.example.com/v1")));
        assert!(
            !is_known_form(&wire("https://api.deepseek.com/v1")),
            "answers need their reasoning"
        );
    }
}
