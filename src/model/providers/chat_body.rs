//! The instructions, the tools and plain conversations in chat completions, of OpenAI and of Ollama.
//!
//! Instructions and tools are the largest part of most requests, and the tools are the same in all requests of an
//! agent. rig-core would convert and copy them several times for each request. So it gets short ones in their place, and
//! the encoded request gets the real ones: the tools as they were encoded for an earlier request. The same holds for a
//! conversation that was encoded without rig-core, see [`super::plain_chat`].
//!
//! rig-core sends a system message as a list with one block of text. OpenAI takes both forms, but some servers of other
//! makers apply templates to the messages that take a text alone. So all messages of the system are sent as texts.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use rig_core::wire::Body;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::plain_chat::EncodedMessages;
use super::request;
use crate::model::{ModelError, ModelRequest, ToolSpec};

/// The maximum number of lists of tools that are kept for one model.
const MAX_LISTS: usize = 8;

/// The length of a body without its messages, tools and other fields, with the key of a conversation.
const ENVELOPE_BYTES: usize = 96;

/// The beginning of a message of the system, as rig-core encodes it.
const SYSTEM: &str = r#"{"role":"system","#;

/// The parts of a request that rig-core does not get.
#[derive(Debug, Clone, Default)]
pub(super) struct OmittedParts {
    /// The instructions, unless there are none.
    instructions: Option<Arc<str>>,
    /// The encoded list of the tools, unless there are none.
    tools: Option<Arc<RawValue>>,
    /// The encoded conversation, if rig-core got another one.
    conversation: Option<EncodedMessages>,
    /// The key of the conversation for the cache of the provider, if rig-core did not get it.
    cache_key: Option<String>,
}

impl OmittedParts {
    /// Returns the parts of a request; its `conversation`, if rig-core gets another one.
    ///
    /// # Errors
    /// When the name of a tool cannot be sent.
    pub(super) fn of(
        request: &ModelRequest,
        known: &EncodedTools,
        conversation: Option<EncodedMessages>,
    ) -> Result<Self, ModelError> {
        let has_tools = !request.tools.is_empty();
        Ok(Self {
            instructions: (!request.system.is_blank()).then(|| request.system.text().into()),
            tools: has_tools.then(|| known.of(&request.tools)).transpose()?,
            conversation,
            cache_key: None,
        })
    }

    /// Returns the parts with a key of the conversation, which is set in the request, too.
    pub(super) fn with_cache_key(self, cache_key: Option<String>) -> Self {
        Self { cache_key, ..self }
    }

    /// Sets the parts in an encoded request, and sends the other messages of the system as texts. Returns false if that is
    /// no request with messages.
    pub(super) fn set(&self, request: &mut http::Request<Body>) -> bool {
        let Body::Bytes(bytes) = request.body_mut() else {
            return false;
        };
        let Some(whole) = self.complete(bytes) else {
            return false;
        };
        *bytes = whole;
        true
    }

    /// Sets the body of a request of which rig-core has encoded no messages and no tools, and whose other fields are `fields`.
    /// Returns false if the conversation is not among the parts.
    pub(super) fn set_with(&self, request: &mut http::Request<Body>, fields: &BTreeMap<String, Box<RawValue>>) -> bool {
        let Some(conversation) = &self.conversation else {
            return false;
        };
        let others = fields.iter().map(|(name, value)| name.len() + value.get().len() + 4);
        let messages = self.own_messages(conversation);
        let Some(whole) = self.write(messages, self.tools.as_deref(), fields, others.sum()) else {
            return false;
        };
        *request.body_mut() = Body::Bytes(whole);
        true
    }

    /// Returns the whole body; none if it is no request with messages. Only messages of the system are parsed.
    fn complete(&self, body: &[u8]) -> Option<Vec<u8>> {
        let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body).ok()?;
        let messages = self.messages(fields.remove("messages")?)?;
        let tools = fields.remove("tools");
        self.write(messages, self.tools.as_deref().or(tools), &fields, body.len())
    }

    /// Returns the body with these messages, tools and other fields, which have about `others` bytes.
    fn write<V: Serialize>(
        &self,
        messages: Vec<SentMessage<'_>>,
        tools: Option<&RawValue>,
        fields: &BTreeMap<String, V>,
        others: usize,
    ) -> Option<Vec<u8>> {
        let size = messages.iter().map(SentMessage::bytes).sum::<usize>() + others + ENVELOPE_BYTES;
        let mut whole = Vec::with_capacity(size + tools.map_or(0, |tools| tools.get().len()));
        let sent = SentBody {
            messages,
            tools,
            cache_key: self.cache_key.as_deref(),
            fields,
        };
        serde_json::to_writer(&mut whole, &sent).ok()?;
        Some(whole)
    }

    /// Returns the messages to send; none if those of rig-core are no messages.
    fn messages<'a>(&'a self, encoded: &'a RawValue) -> Option<Vec<SentMessage<'a>>> {
        if let Some(conversation) = &self.conversation {
            return Some(self.own_messages(conversation));
        }
        let instructions = self.own_instructions();
        let messages: Vec<&RawValue> = serde_json::from_str(encoded.get()).ok()?;
        let mut messages: Vec<SentMessage<'_>> = messages.into_iter().map(SentMessage::of).collect();
        if let (Some(instructions), Some(first)) = (instructions, messages.first_mut()) {
            *first = instructions;
        }
        Some(messages)
    }

    /// Returns the instructions and the messages of an encoded conversation.
    fn own_messages<'a>(&'a self, conversation: &'a [Arc<RawValue>]) -> Vec<SentMessage<'a>> {
        let conversation = conversation.iter().map(|message| SentMessage::Encoded(message));
        self.own_instructions().into_iter().chain(conversation).collect()
    }

    /// Returns the message with the instructions, unless there are none.
    fn own_instructions(&self) -> Option<SentMessage<'_>> {
        self.instructions
            .as_deref()
            .map(|text| SentMessage::system(text.into()))
    }
}

/// A request.
#[derive(Serialize)]
struct SentBody<'a, V> {
    messages: Vec<SentMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    /// Under the name [`super::caching::KEY`].
    #[serde(rename = "prompt_cache_key", skip_serializing_if = "Option::is_none")]
    cache_key: Option<&'a str>,
    /// The other fields.
    #[serde(flatten)]
    fields: &'a BTreeMap<String, V>,
}

/// A message of a request.
#[derive(Serialize)]
#[serde(untagged)]
enum SentMessage<'a> {
    /// A message as rig-core encoded it.
    Encoded(&'a RawValue),
    /// A message of the system with a text.
    System { role: &'static str, content: Cow<'a, str> },
}

impl<'a> SentMessage<'a> {
    fn of(message: &'a RawValue) -> Self {
        text_of_system(message).map_or(Self::Encoded(message), |text| Self::system(text.into()))
    }

    fn system(content: Cow<'a, str>) -> Self {
        Self::System {
            role: "system",
            content,
        }
    }

    /// Returns about how long the message is as JSON. Most texts have few characters that need an escape.
    fn bytes(&self) -> usize {
        match self {
            Self::Encoded(message) => message.get().len() + 1,
            Self::System { content, .. } => content.len() + content.len() / 16 + SYSTEM.len() + 16,
        }
    }
}

/// A message of the system with blocks of text.
#[derive(Deserialize)]
struct BlockMessage {
    content: Vec<TextBlock>,
}

#[derive(Deserialize)]
struct TextBlock {
    text: String,
}

/// Returns the text of a message of the system with blocks; none for other messages.
fn text_of_system(message: &RawValue) -> Option<String> {
    if !message.get().starts_with(SYSTEM) {
        return None;
    }
    let BlockMessage { content } = serde_json::from_str(message.get()).ok()?;
    let texts: Vec<String> = content.into_iter().map(|block| block.text).collect();
    Some(texts.join("\n\n"))
}

/// The encoded tools of the last requests to a model.
#[derive(Default)]
pub(super) struct EncodedTools(Mutex<VecDeque<EncodedList>>);

/// The tools of a request, and their encoding.
struct EncodedList {
    tools: Vec<Arc<ToolSpec>>,
    json: Arc<RawValue>,
}

impl EncodedTools {
    /// Returns the encoding of these tools.
    fn of(&self, tools: &[Arc<ToolSpec>]) -> Result<Arc<RawValue>, ModelError> {
        if let Some(known) = self.find(tools) {
            return Ok(known);
        }
        let json = encode(tools)?;
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lists.truncate(MAX_LISTS - 1);
        lists.push_front(EncodedList {
            tools: tools.to_vec(),
            json: Arc::clone(&json),
        });
        Ok(json)
    }

    fn find(&self, tools: &[Arc<ToolSpec>]) -> Option<Arc<RawValue>> {
        // A comparison is rare: the values are usually the same ones.
        let is_same = |(one, other): (&Arc<ToolSpec>, &Arc<ToolSpec>)| Arc::ptr_eq(one, other) || one == other;
        let lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lists
            .iter()
            .find(|list| list.tools.len() == tools.len() && list.tools.iter().zip(tools).all(is_same))?;
        Some(Arc::clone(&known.json))
    }
}

/// A tool, in the form of rig-core.
#[derive(Serialize)]
struct SentTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: SentFunction<'a>,
}

#[derive(Serialize)]
struct SentFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

fn encode(tools: &[Arc<ToolSpec>]) -> Result<Arc<RawValue>, ModelError> {
    for tool in tools {
        request::name(&tool.name)?;
    }
    let sent = tools.iter().map(|tool| SentTool {
        kind: "function",
        function: SentFunction {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.parameters,
        },
    });
    let json = to_raw_value(&sent.collect::<Vec<_>>()).map_err(|error| ModelError::Refused {
        status: 400,
        message: error.to_string(),
    })?;
    Ok(json.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::providers::request::STAND_IN;

    fn tool(name: &str) -> Arc<ToolSpec> {
        Arc::new(ToolSpec {
            name: name.to_owned(),
            description: format!("How \"{name}\" works."),
            parameters: json!({"type": "object", "properties": {"q": {"type": "string"}}}),
        })
    }

    fn asking(system: &str, tools: &[Arc<ToolSpec>]) -> ModelRequest {
        ModelRequest {
            system: system.into(),
            tools: tools.to_vec(),
            ..ModelRequest::default()
        }
    }

    fn sent(request: &ModelRequest, known: &EncodedTools, body: &Value) -> Value {
        let omitted = OmittedParts::of(request, known, None).expect("parts");
        let whole = omitted.complete(body.to_string().as_bytes()).expect("a body");
        serde_json::from_slice(&whole).expect("JSON")
    }

    #[test]
    fn what_was_omitted_is_set_and_the_rest_stays() {
        let user = json!({"role": "user", "content": "a \"b\"\n"});
        let system = |text: &str| json!({"role": "system", "content": [{"type": "text", "text": text}]});
        let stand_in = json!([{"type": "function", "function": {"name": "a", "description": "", "parameters": null}}]);
        let body = json!({"model": "m", "messages": [system(STAND_IN), user, system("later")], "tools": stand_in});
        let known = EncodedTools::default();
        let request = asking("be \"brief\"", &[tool("a"), tool("b")]);
        let function = |name: &str| {
            let spec = tool(name);
            let function = json!({"name": spec.name, "description": spec.description, "parameters": spec.parameters});
            json!({"type": "function", "function": function})
        };
        let expected = json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "be \"brief\""},
                user,
                {"role": "system", "content": "later"},
            ],
            "tools": [function("a"), function("b")],
        });
        for _ in 0..2 {
            assert_eq!(sent(&request, &known, &body), expected);
        }
    }

    #[test]
    fn an_encoded_conversation_takes_the_place_of_the_other_one() {
        let user = json!({"role": "user", "content": "a \"b\"\n"});
        let conversation: EncodedMessages = vec![to_raw_value(&user).expect("JSON").into()];
        let instructed = json!({"role": "system", "content": [{"type": "text", "text": STAND_IN}]});
        let stand_in = json!({"role": "user", "content": STAND_IN});
        for (system, others) in [("be brief", vec![instructed]), ("", vec![])] {
            let messages: Vec<Value> = others.into_iter().chain([stand_in.clone()]).collect();
            let body = json!({"model": "m", "messages": messages}).to_string();
            let conversation = Some(conversation.clone());
            let omitted = OmittedParts::of(&asking(system, &[]), &EncodedTools::default(), conversation);
            let whole = omitted.expect("parts").complete(body.as_bytes()).expect("a body");
            let whole: Value = serde_json::from_slice(&whole).expect("JSON");
            let mut expected = vec![user.clone()];
            if !system.is_empty() {
                expected.insert(0, json!({"role": "system", "content": system}));
            }
            assert_eq!(whole, json!({"model": "m", "messages": expected}));
        }
    }

    #[test]
    fn a_request_without_instructions_and_tools_gets_none() {
        let body = json!({"model": "m", "messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]}]});
        let expected = json!({"model": "m", "messages": [{"role": "system", "content": "a"}]});
        assert_eq!(sent(&asking(" ", &[]), &EncodedTools::default(), &body), expected);
    }

    #[test]
    fn tools_are_encoded_anew_when_one_of_them_changes() {
        let known = EncodedTools::default();
        let first = known.of(&[tool("a"), tool("b")]).expect("tools");
        let same = known.of(&[tool("a"), tool("b")]).expect("tools");
        assert!(Arc::ptr_eq(&first, &same), "equal tools are encoded once");
        let mut changed = ToolSpec::clone(&tool("b"));
        changed.description = "Other words.".to_owned();
        let other = known.of(&[tool("a"), Arc::new(changed)]).expect("tools");
        assert!(other.get().contains("Other words."), "{other}");
        assert!(!known.of(&[tool("a")]).expect("tools").get().contains(r#""name":"b""#));
        for at in 0..MAX_LISTS {
            known.of(&[tool(&at.to_string())]).expect("tools");
        }
        assert_eq!(known.0.lock().expect("no panic").len(), MAX_LISTS);
        assert!(known.of(&[tool("")]).is_err(), "a tool without a name");
    }
}
