//! Conversations of texts, calls and results, in OpenAI's chat completions.
//!
//! rig-core converts the whole conversation for each request: it copies it several times, pairs the calls with their results
//! and builds JSON values. That took 25,000 instructions for each message, and an agent sends its conversation with each step. So
//! a conversation that rig-core would send as it is is encoded here, and rig-core gets one message in its place, see
//! [`super::chat_body`]. All other conversations, and those with models that need a form of their own, are left to rig-core.
//! What was encoded for a step is [kept](RecentTexts) for the next one, which sends a few messages more.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use rig_core::providers::openai::wire::Chat;
use rig_core::wire::{Body, Mode, Wire};
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::{Protocol, native, request};
use crate::domain::message::{Content, Message, Role, ToolCall, ToolStatus};
use crate::domain::recent_texts::RecentTexts;
use crate::model::{ModelRequest, ToolSpec};

/// The encoded messages of a conversation.
pub(super) type EncodedMessages = Vec<Arc<RawValue>>;

/// The longest id of a call that is sent as it is, in bytes.
const MAX_ID_BYTES: usize = 40;

/// A message in chat completions.
#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum ChatMessage<'a> {
    User {
        content: &'a str,
    },
    Assistant {
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ChatCall<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct ChatCall<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    function: ChatFunction<'a>,
}

#[derive(Serialize)]
struct ChatFunction<'a> {
    name: &'a str,
    #[serde(serialize_with = "as_text")]
    arguments: &'a Map<String, Value>,
}

/// Serialises the arguments of a call as a text.
fn as_text<S: Serializer>(arguments: &&Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = serde_json::to_string(arguments).map_err(S::Error::custom)?;
    serializer.serialize_str(&text)
}

/// Returns the encoded messages of a request, if rig-core would send each of them as it is. Those in `recent` are known.
pub(super) fn encode(request: &ModelRequest, recent: &RecentTexts) -> Option<EncodedMessages> {
    let messages = messages_of(request)?;
    recent.of(&request.messages, |at| to_raw_value(messages.get(at)?).ok())
}

/// Returns whether rig-core sends conversations to this model in the form in which they are encoded here.
pub(super) fn is_for(wire: &Chat) -> bool {
    let call = ToolCall::new("call", "tool", Map::from_iter([("argument".to_owned(), json!(1))]));
    let result = Message::tool(&call, ToolStatus::Success, "result");
    let tool = ToolSpec {
        name: call.name.clone(),
        description: String::new(),
        parameters: json!({}),
    };
    let messages = [
        Message::human("question"),
        Message::calling([call]),
        result,
        Message::ai("answer"),
        Message::human("question"),
    ];
    let sample = ModelRequest {
        messages: messages.map(Arc::new).to_vec(),
        tools: vec![Arc::new(tool)],
        ..ModelRequest::default()
    };
    let ours = messages_of(&sample).and_then(|messages| serde_json::to_value(&messages).ok());
    ours.is_some() && ours == messages_of_library(wire, &sample)
}

/// Returns the messages of a request as rig-core encodes them.
fn messages_of_library(wire: &Chat, request: &ModelRequest) -> Option<Value> {
    let built = request::build(request, Protocol::OpenAi, None).ok()?;
    let encoded = wire.encode(built, Mode::Streaming).ok()?;
    let Body::Bytes(body) = encoded.request.into_body() else {
        return None;
    };
    let mut body: Value = serde_json::from_slice(&body).ok()?;
    body.get_mut("messages").map(Value::take)
}

fn messages_of(request: &ModelRequest) -> Option<Vec<ChatMessage<'_>>> {
    let mut reader = Reader::default();
    let messages = request.messages.iter().map(|message| reader.read(message));
    let messages: Vec<ChatMessage<'_>> = messages.collect::<Option<_>>()?;
    let is_asked = reader.open.is_empty() && matches!(reader.last, Some(Role::Human | Role::Tool { .. }));
    // rig-core sends calls as texts if no tool is declared.
    let may_call = reader.ids.is_empty() || !request.tools.is_empty();
    (is_asked && may_call).then_some(messages)
}

/// The reader of a conversation.
#[derive(Default)]
struct Reader<'a> {
    /// The author of the last message.
    last: Option<&'a Role>,
    /// The ids of all calls.
    ids: HashSet<&'a str>,
    /// The ids of the calls whose results follow, in their order.
    open: VecDeque<&'a str>,
}

impl<'a> Reader<'a> {
    /// Returns the next message, if rig-core would send it as it is.
    fn read(&mut self, message: &'a Message) -> Option<ChatMessage<'a>> {
        let last = self.last.replace(&message.role);
        let Content::Text(text) = &message.content else {
            return None;
        };
        let text = text.as_str();
        // rig-core leaves blank texts out, or has others in their place.
        let is_blank = text.trim().is_empty();
        match &message.role {
            Role::Human => {
                let is_plain = !is_blank && self.open.is_empty() && !matches!(last, Some(Role::Human));
                is_plain.then_some(ChatMessage::User { content: text })
            }
            Role::Ai {
                tool_calls,
                invalid_tool_calls,
                ..
            } => {
                let is_next = self.open.is_empty() && matches!(last, Some(Role::Human | Role::Tool { .. }));
                let has_content = !is_blank || (text.is_empty() && !tool_calls.is_empty());
                let is_whole = invalid_tool_calls.is_empty() && !message.additional_kwargs.contains_key(native::KEY);
                if !is_next || !has_content || !is_whole {
                    return None;
                }
                let calls = tool_calls.iter().map(|call| self.read_call(call));
                Some(ChatMessage::Assistant {
                    tool_calls: calls.collect::<Option<_>>()?,
                    content: (!is_blank).then_some(text),
                })
            }
            Role::Tool { tool_call_id, .. } => {
                let is_next = self.open.pop_front() == Some(tool_call_id.as_str());
                (is_next && !is_blank).then_some(ChatMessage::Tool {
                    tool_call_id: tool_call_id.as_str(),
                    content: text,
                })
            }
            Role::System | Role::Remove => None,
        }
    }

    fn read_call(&mut self, call: &'a ToolCall) -> Option<ChatCall<'a>> {
        let id = call.id.as_str();
        let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let is_plain = !id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(is_sign);
        // rig-core changes an id that occurs twice.
        if !is_plain || call.name.is_empty() || !self.ids.insert(id) {
            return None;
        }
        self.open.push_back(id);
        Some(ChatCall {
            kind: "function",
            id,
            function: ChatFunction {
                name: &call.name,
                arguments: &call.args,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use rig_core::operation::Completion;
    use rig_core::providers::openai::OpenAIConfig;
    use rig_core::wire::Operation as _;

    use super::*;
    use crate::domain::message::InvalidToolCall;
    use crate::model::providers::chat_body::{EncodedTools, OmittedParts};
    use crate::model::providers::separators::Separator;

    /// The number of messages of the longest conversations that are compared.
    const LONGEST: usize = 6;

    fn call(id: &str) -> ToolCall {
        ToolCall::new(id, "look", Map::new())
    }

    fn encoded(request: &ModelRequest) -> Option<EncodedMessages> {
        encode(request, &RecentTexts::default())
    }

    fn asking(messages: Vec<Message>) -> ModelRequest {
        let tool = ToolSpec {
            name: "look".to_owned(),
            description: String::new(),
            parameters: json!({}),
        };
        ModelRequest {
            messages: messages.into_iter().map(Arc::new).collect(),
            tools: vec![Arc::new(tool)],
            ..ModelRequest::default()
        }
    }

    fn found(id: &str) -> Message {
        Message::tool(&call(id), ToolStatus::Success, "found")
    }

    #[test]
    fn texts_calls_and_results_are_plain() {
        let hello = || Message::human("hello");
        let conversations = [
            vec![hello()],
            vec![hello(), Message::ai("hi"), hello()],
            vec![
                hello(),
                Message::calling([call("a"), call("b")]),
                found("a"),
                found("b"),
            ],
            vec![hello(), Message::calling([call("a")]), found("a"), hello()],
        ];
        for conversation in conversations {
            let request = asking(conversation);
            assert!(encoded(&request).is_some(), "{:?}", request.messages);
        }
    }

    #[test]
    fn what_rig_core_would_change_is_left_to_it() {
        let hello = || Message::human("hello");
        let long = "a".repeat(MAX_ID_BYTES + 1);
        let mut native = Message::ai("hi");
        native.additional_kwargs.insert(native::KEY.to_owned(), json!({}));
        let conversations = [
            vec![],
            vec![hello(), hello()],
            vec![Message::human(" ")],
            vec![Message::human(Content::Blocks(vec![
                json!({"type": "text", "text": "hello"}),
            ]))],
            vec![Message::new(Role::System, "be brief"), hello()],
            vec![Message::ai("hi"), hello()],
            vec![hello(), Message::ai("hi")],
            vec![hello(), Message::ai(""), hello()],
            vec![hello(), native, hello()],
            vec![hello(), Message::calling([call("a")]), hello()],
            vec![
                hello(),
                Message::calling([call("a"), call("b")]),
                found("b"),
                found("a"),
            ],
            vec![hello(), Message::calling([call("a")]), found("a"), found("a")],
            vec![
                hello(),
                Message::calling([call("a")]),
                found("a"),
                Message::calling([call("a")]),
                found("a"),
            ],
            vec![hello(), Message::calling([call("a|b")]), found("a|b")],
            vec![hello(), Message::calling([call(&long)]), found(&long)],
            vec![
                hello(),
                Message::calling([call("a")]),
                Message::tool(&call("a"), ToolStatus::Success, ""),
            ],
        ];
        for conversation in conversations {
            let request = asking(conversation);
            assert!(encoded(&request).is_none(), "{:?}", request.messages);
        }
        let mut without_tools = asking(vec![hello(), Message::calling([call("a")]), found("a")]);
        without_tools.tools.clear();
        assert!(encoded(&without_tools).is_none());
    }

    /// Returns the message of a model with a text and calls.
    fn saying(text: &str, calls: impl IntoIterator<Item = ToolCall>) -> Message {
        let mut message = Message::calling(calls);
        message.content = text.into();
        message
    }

    /// Returns the message with its text in a block.
    fn in_block(mut message: Message) -> Message {
        let block = json!({"type": "text", "text": message.content.text()});
        message.content = Content::Blocks(vec![block]);
        message
    }

    /// Returns messages of all kinds.
    fn messages() -> Vec<Arc<Message>> {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
        let mut with_args = call("b");
        with_args.args.insert("q".to_owned(), json!("a \"b\"\n\u{7f}"));
        with_args
            .args
            .insert("list".to_owned(), json!([1, -2.5, 1e300, null, true, {"ä": {}}]));
        let mut reasoned = Message::ai("I know");
        let reasoning = json!("I have thought");
        reasoned
            .additional_kwargs
            .insert("reasoning_content".to_owned(), reasoning);
        let mut native = Message::ai("native");
        native.additional_kwargs.insert(native::KEY.to_owned(), json!({}));
        let mut broken = Message::ai("broken");
        if let Role::Ai { invalid_tool_calls, .. } = &mut broken.role {
            invalid_tool_calls.push(InvalidToolCall {
                name: Some("look".to_owned()),
                args: Some("{".to_owned()),
                id: Some("broken".to_owned()),
                error: None,
                kind: "invalid_tool_call".to_owned(),
            });
        }
        let result = |id: &str, status, text: &str| Message::tool(&call(id), status, text);
        let longest = "a".repeat(MAX_ID_BYTES);
        let too_long = "b".repeat(MAX_ID_BYTES + 1);
        let messages = vec![
            Message::human("hello"),
            Message::human(" hello \"again\"\r\n€\u{1f600}\u{2028} "),
            Message::human(""),
            Message::human("\u{a0}\n"),
            in_block(Message::human("in a block")),
            Message::human(Content::Blocks(vec![image.clone()])),
            Message::new(Role::System, "be brief"),
            Message::new(Role::Remove, ""),
            Message::ai("hi"),
            Message::ai(""),
            Message::ai(" "),
            in_block(Message::ai("in a block")),
            reasoned,
            native,
            broken,
            Message::calling([call("a")]),
            saying("I look twice ", [call("a"), with_args.clone()]),
            saying("\t", [call("a")]),
            saying("I look", [with_args]),
            Message::calling([call("a"), call("a")]),
            Message::calling([call("")]),
            Message::calling([call("a|b")]),
            Message::calling([call("ä")]),
            Message::calling([call(&longest)]),
            Message::calling([call(&too_long)]),
            found("a"),
            result("a", ToolStatus::Error, "\tnot found"),
            result("a", ToolStatus::Success, ""),
            in_block(found("a")),
            Message::tool(&call("a"), ToolStatus::Success, Content::Blocks(vec![image])),
            found("b"),
            result("b", ToolStatus::Error, " "),
            found("unknown"),
            found(&longest),
            found(&too_long),
        ];
        messages.into_iter().map(Arc::new).collect()
    }

    /// Returns whether all messages are plain, so that a longer conversation may be plain, too.
    fn is_plain(messages: &[Arc<Message>]) -> bool {
        let mut reader = Reader::default();
        messages.iter().all(|message| reader.read(message).is_some())
    }

    /// Returns the body of a request. rig-core gets one message in place of the encoded conversation, if there is one.
    fn body_of(asked: &ModelRequest, conversation: Option<EncodedMessages>) -> Value {
        let mut asked = asked.clone();
        if conversation.is_some() {
            asked.messages = vec![Arc::new(Message::human(request::STAND_IN))];
        }
        let wire = Chat::new(OpenAIConfig::new("key".to_owned()), "m-1");
        let separator = Separator::new(Protocol::OpenAi, &asked.messages);
        let built = request::build(&asked, Protocol::OpenAi, separator.as_ref()).expect("a request");
        let built = Completion::prepare(built, &wire.describe()).expect("a request");
        let mut sent = wire.encode(built, Mode::Streaming).expect("a request").request;
        if let Some(separator) = &separator {
            separator.remove(&mut sent);
        }
        let omitted = OmittedParts::of(&asked, &EncodedTools::default(), conversation).expect("parts");
        assert!(omitted.set(&mut sent), "a body with messages");
        let Body::Bytes(body) = sent.into_body() else {
            panic!("bytes")
        };
        serde_json::from_slice(&body).expect("JSON")
    }

    /// Compares both ways to send a request, if its conversation is plain. Returns whether it is.
    fn compare(request: &ModelRequest) -> bool {
        let Some(conversation) = encoded(request) else {
            return false;
        };
        let sent = body_of(request, Some(conversation));
        assert_eq!(sent, body_of(request, None), "{:?}", request.messages);
        true
    }

    #[test]
    fn plain_conversations_of_all_kinds_of_messages_are_sent_as_rig_core_sends_them() {
        let messages = messages();
        let mut conversations: Vec<Vec<Arc<Message>>> = vec![vec![]];
        let mut with_tools = 0;
        let mut without_tools = 0;
        for _ in 0..LONGEST {
            let longer = conversations.iter().flat_map(|conversation| {
                let next = messages.iter().cloned();
                next.map(move |message| conversation.iter().cloned().chain([message]).collect::<Vec<_>>())
            });
            conversations = longer.filter(|conversation| is_plain(conversation)).collect();
            for conversation in &conversations {
                let mut request = asking(vec![]);
                request.messages.clone_from(conversation);
                request.system = "be brief".into();
                with_tools += usize::from(compare(&request));
                request.system = "".into();
                request.tools.clear();
                without_tools += usize::from(compare(&request));
            }
        }
        assert!(with_tools > 200, "{with_tools}");
        assert!(without_tools > 20, "{without_tools}");
    }

    #[test]
    fn a_model_that_needs_a_field_of_its_own_is_found() {
        let openai = OpenAIConfig::new("key".to_owned());
        assert!(is_for(&Chat::new(openai.clone(), "m-1")));
        let other = openai.with_base_url("https://api.deepseek.com");
        assert!(!is_for(&Chat::new(other, "m-1")), "it has reasoning in each answer");
    }
}
