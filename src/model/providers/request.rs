//! The conversion of a model request into one of rig-core.

use std::collections::{BTreeMap, HashMap};

use rig_core::completion::{CompletionRequest, GenerationOptions, ToolDefinition};
use rig_core::message::{
    AssistantContent, AssistantMessage, CallId, LocalCallId, Message as RigMessage, ToolCall as Call,
    ToolChoice as Choice, ToolFunction, ToolName, ToolResult, UserContent,
};
use serde_json::{Map, Value, json};

use super::separators::Separator;
use super::{Protocol, content, native};
use crate::definition::{AnswerFormat, form_name, is_structural_setting};
use crate::domain::message::{Message, Role, ToolStatus};
use crate::model::{ModelError, ModelRequest, ToolChoice};

/// The instructions, and the conversation, that rig-core gets in place of the real ones, which `chat_body` sets.
pub(super) const STAND_IN: &str = "instructions";

/// Builds rig-core's request. A `separator` is inserted between consecutive messages of the user. In chat
/// completions, of OpenAI and of Ollama, the instructions and the tools have stand-ins, see [`super::chat_body`].
pub(super) fn build(
    request: &ModelRequest,
    kind: Protocol,
    separator: Option<&Separator>,
) -> Result<CompletionRequest, ModelError> {
    let mut history = History {
        kind,
        separator,
        messages: Vec::new(),
        calls: HashMap::new(),
        attached: Vec::new(),
    };
    if !request.system.is_blank() {
        match kind {
            Protocol::Anthropic => {
                let parts = request.system.parts();
                history.messages.extend(parts.into_iter().map(RigMessage::system));
            }
            Protocol::OpenAi | Protocol::Ollama => history.messages.push(RigMessage::system(STAND_IN)),
            Protocol::OpenAiResponses | Protocol::GoogleGenAi | Protocol::Scripted => {
                history.messages.push(RigMessage::system(request.system.text()));
            }
        }
    }
    for message in &request.messages {
        history.add(message)?;
    }
    history.add_attached();
    if history.messages.is_empty() {
        return Err(ModelError::NothingToAsk);
    }
    let (tools, choice) = tools(request, &history)?;
    let mut built = CompletionRequest::from(history.messages)
        .tools(tools)
        .accept_unknown_finish_reasons(true);
    built.tool_choice = choice;
    let mut own = request.settings.clone();
    // A definition that was stored before settings were validated may still contain one of these.
    own.retain(|name, _| !is_structural_setting(name));
    if let Some(format) = &request.answer_format {
        match kind {
            // rig-core would request the format only after a tool has been called.
            Protocol::OpenAi => drop(own.insert("response_format".to_owned(), response_format(format))),
            Protocol::OpenAiResponses => {
                let text = own.entry("text").or_insert_with(|| json!({}));
                if let Some(text) = text.as_object_mut() {
                    text.insert("format".to_owned(), text_format(format));
                }
            }
            // An invalid schema was rejected when the definition was read.
            Protocol::Anthropic | Protocol::GoogleGenAi | Protocol::Ollama | Protocol::Scripted => {
                built.output_schema = serde_json::from_value(format.schema.clone()).ok();
            }
        }
    }
    if kind == Protocol::OpenAiResponses {
        // The thread has the whole conversation, reasoning included, for as long as it is kept.
        own.entry("store").or_insert(Value::Bool(false));
    }
    Ok(settings(built, own))
}

/// Returns `text.format` of OpenAI's responses.
fn text_format(format: &AnswerFormat) -> Value {
    let mut nested = response_format(format);
    let mut format = nested["json_schema"].take();
    format["type"] = "json_schema".into();
    format
}

/// Returns `response_format` of OpenAI's protocol.
fn response_format(format: &AnswerFormat) -> Value {
    let name = form_name(&format.schema).unwrap_or_else(|| "answer".to_owned());
    let mut schema = json!({"name": name, "schema": format.schema});
    if let Some(strict) = format.strict {
        schema["strict"] = strict.into();
    }
    json!({"type": "json_schema", "json_schema": schema})
}

/// Returns the tools to declare. Past calls need their tools declared even if none may be called now, since rig-core
/// would otherwise send those calls as text; so their names are declared, and calling is disabled.
fn tools(request: &ModelRequest, history: &History<'_>) -> Result<(Vec<ToolDefinition>, Option<Choice>), ModelError> {
    let Some(first) = request.tools.first() else {
        let past: BTreeMap<&str, &ToolName> = history.calls.values().map(|(_, name)| (name.as_str(), name)).collect();
        let schema = json!({"type": "object", "properties": {}});
        let past: Vec<ToolDefinition> = past
            .into_values()
            .map(|name| ToolDefinition::new(name.clone(), "Not available any more.", schema.clone()))
            .collect();
        let choice = (!past.is_empty()).then_some(Choice::None);
        return Ok((past, choice));
    };
    let choice = (request.tool_choice == ToolChoice::Any).then_some(Choice::Required);
    if matches!(history.kind, Protocol::OpenAi | Protocol::Ollama) {
        let stand_in = ToolDefinition::new(name(&first.name)?, "", Value::Null);
        return Ok((vec![stand_in], choice));
    }
    let tools = request.tools.iter().map(|tool| {
        Ok(ToolDefinition::new(
            name(&tool.name)?,
            tool.description.as_str(),
            tool.parameters.clone(),
        ))
    });
    Ok((tools.collect::<Result<_, ModelError>>()?, choice))
}

/// Applies the settings: common ones where each provider expects them, the others merged into the request as they are.
fn settings(mut request: CompletionRequest, mut settings: Map<String, Value>) -> CompletionRequest {
    request.temperature = take(&mut settings, "temperature", Value::as_f64);
    request.max_tokens = take(&mut settings, "max_tokens", Value::as_u64);
    let mut options = GenerationOptions::new();
    if let Some(top_p) = take(&mut settings, "top_p", Value::as_f64) {
        options = options.top_p(top_p);
    }
    if let Some(seed) = take(&mut settings, "seed", Value::as_u64) {
        options = options.seed(seed);
    }
    if let Some(stop) = take(&mut settings, "stop", strings) {
        options = options.stop(stop);
    }
    let parallel = take(&mut settings, "parallel_tool_calls", Value::as_bool);
    // OpenAI refuses it in a request without tools, such as one for a summary.
    if let Some(parallel) = parallel.filter(|_| !request.tools.is_empty()) {
        options = options.parallel_tool_calls(parallel);
    }
    request.options = options;
    request.additional_params = (!settings.is_empty()).then_some(Value::Object(settings));
    request
}

fn strings(value: &Value) -> Option<Vec<String>> {
    value
        .as_array()?
        .iter()
        .map(|text| text.as_str().map(str::to_owned))
        .collect()
}

/// Removes and returns a setting of the expected type; otherwise it stays, and the provider reports the error.
fn take<T>(settings: &mut Map<String, Value>, name: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let value = read(settings.get(name)?)?;
    settings.shift_remove(name);
    Some(value)
}

/// Returns the name of a tool.
///
/// # Errors
/// When it is empty.
pub(super) fn name(name: &str) -> Result<ToolName, ModelError> {
    ToolName::new(name).map_err(|error| ModelError::Refused {
        status: 400,
        message: error.to_string(),
    })
}

/// The conversation so far, and its calls by their ids in our messages.
struct History<'a> {
    kind: Protocol,
    separator: Option<&'a Separator>,
    messages: Vec<RigMessage>,
    calls: HashMap<String, (CallId, ToolName)>,
    /// The files and the audio of the results that were added last.
    attached: Vec<UserContent>,
}

impl History<'_> {
    fn add(&mut self, message: &Message) -> Result<(), ModelError> {
        if message.answers().is_none() {
            self.add_attached();
        }
        match &message.role {
            Role::Human => self.human(message)?,
            Role::System => self.messages.push(RigMessage::system(message.content.text())),
            Role::Ai { .. } => {
                let turn = match native::recall(message, self.kind) {
                    Some(native) => native,
                    None => self.rebuilt(message)?,
                };
                let calls = turn.tool_calls();
                self.calls
                    .extend(calls.map(|c| (c.id.wire().into_owned(), (c.id.clone(), c.function.name.clone()))));
                if !turn.content.is_empty() {
                    self.messages.push(RigMessage::Assistant(turn));
                }
            }
            Role::Tool {
                tool_call_id, status, ..
            } => self.answer(tool_call_id, *status, message)?,
            Role::Remove => {}
        }
        Ok(())
    }

    fn human(&mut self, message: &Message) -> Result<(), ModelError> {
        let content = content::human(&message.content)?;
        let follows_another = match self.messages.last() {
            Some(RigMessage::User { content }) => !matches!(content.last(), Some(UserContent::ToolResult(_))),
            _ => false,
        };
        if let Some(separator) = self.separator.filter(|_| follows_another) {
            self.messages.push(RigMessage::system(separator.text()));
        }
        self.messages.push(RigMessage::User { content });
        Ok(())
    }

    /// Rebuilds a turn of the model from the fields of the message. Reasoning is omitted: no provider accepts it
    /// without its signature.
    fn rebuilt(&self, message: &Message) -> Result<AssistantMessage, ModelError> {
        let mut blocks = Vec::new();
        let text = message.content.text();
        if !text.is_empty() {
            blocks.push(AssistantContent::text(text));
        }
        for call in message.tool_calls() {
            let function = ToolFunction::new(name(&call.name)?, Value::Object(call.args.clone()));
            blocks.push(AssistantContent::ToolCall(Call::new(self.id(&call.id), function)));
        }
        for call in message.invalid_tool_calls() {
            let Some(tool) = call.name.as_deref().filter(|name| !name.is_empty()) else {
                continue;
            };
            let function = ToolFunction::parse(name(tool)?, call.args.as_deref().unwrap_or_default());
            blocks.push(AssistantContent::ToolCall(Call::new(
                self.id(call.id.as_deref().unwrap_or_default()),
                function,
            )));
        }
        Ok(AssistantMessage::new(blocks))
    }

    /// Returns rig-core's form of a call id. Google has no call ids, so ids that rig-core generated are recognised by
    /// their form and not sent.
    fn id(&self, id: &str) -> CallId {
        if self.kind == Protocol::GoogleGenAi
            && let Ok(local) = serde_json::from_value::<LocalCallId>(Value::from(id))
        {
            return CallId::Local(local);
        }
        CallId::from_wire(id)
    }

    /// Adds the files and the audio of the results before, which are a message of the user.
    fn add_attached(&mut self) {
        if !self.attached.is_empty() {
            let content = std::mem::take(&mut self.attached);
            self.messages.push(RigMessage::User { content });
        }
    }

    /// Adds a tool's result. Consecutive results form one message, as some providers require.
    fn answer(&mut self, id: &str, status: ToolStatus, message: &Message) -> Result<(), ModelError> {
        let (call, tool) = match self.calls.get(id) {
            Some(known) => known.clone(),
            None => (
                self.id(id),
                name(
                    message
                        .name
                        .as_deref()
                        .filter(|name| !name.is_empty())
                        .unwrap_or("tool"),
                )?,
            ),
        };
        let content::SentResult { parts, attached } = content::tool(&message.content);
        self.attached.extend(attached);
        let result = UserContent::ToolResult(ToolResult {
            call,
            name: tool,
            content: parts,
            is_error: status == ToolStatus::Error,
        });
        match self.messages.last_mut() {
            Some(RigMessage::User { content }) if matches!(content.last(), Some(UserContent::ToolResult(_))) => {
                content.push(result);
            }
            _ => self.messages.push(RigMessage::User { content: vec![result] }),
        }
        Ok(())
    }
}
