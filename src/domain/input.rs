//! The input of clients: parses the various forms of messages, files and fields.
//!
//! Clients may write a message as a text, as a pair `["user", "hello"]`, as an object with `role` or `type`, or as
//! LangChain serialises its instances. All other modules know only one form, [`Message`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Invalid;
use super::json_limits::check;
use super::message::{Content, InvalidToolCall, Message, Role, ToolCall, ToolStatus};
use super::path::{FOLDER, is_bundled, normalise};
use super::state::{Encoding, File, PINNED_SKILLS, SKILLS, Update, is_private};
use super::summarization;
use super::text_limits::first_chars;

mod constructor;

/// The maximum number of messages in one input.
pub const MAX_MESSAGES: usize = 10_000;

/// The maximum number of initial messages of a subagent.
const MAX_INITIAL: usize = 100;
/// The maximum number of pinned skills.
const MAX_PINNED: usize = 32;
/// The maximum length of a path in the name of a field, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// Public fields that are only output: as input they are ignored.
const OUTPUT_ONLY: [&str; 4] = ["todos", "structured_response", "jump_to", summarization::STATUS];

/// Returns whether the field is ignored as input.
pub fn is_output_only(field: &str) -> bool {
    OUTPUT_ONLY.contains(&field)
}

/// Parses the input of a run: an object, or null. Private and output-only fields are ignored. Messages without an id
/// keep none.
///
/// # Errors
/// Names the invalid part of the input (`messages[2].role`) and what is expected. A list of messages is refused: as a
/// list of updates ([`read_update`]) it would write fields that nobody reads.
pub fn read_input(input: &Value) -> Result<Update, Invalid> {
    if !matches!(input, Value::Null | Value::Object(_)) {
        let wanted = r#"an object of state fields, as in {"messages": [...]}"#;
        return Err(under("input")(unexpected(wanted, input)));
    }
    let mut update = read_update(input)?;
    update.fields.retain(|name, _| !is_output_only(name));
    Ok(update)
}

/// Parses a state update: an object, a list of objects or of `[field, value]` pairs that are applied in order, or
/// null. Unlike input it may set every public field.
///
/// # Errors
/// As [`read_input`].
pub fn read_update(values: &Value) -> Result<Update, Invalid> {
    check(values).map_err(|exceeded| exceeded.of("input"))?;
    let update = match values {
        Value::Null => Update::none(),
        Value::Object(fields) => read_fields(fields)?,
        Value::Array(items) => {
            let mut all = Update::none();
            for (at, item) in items.iter().enumerate() {
                all.merge(read_item(item).map_err(under(&format!("[{at}]")))?);
            }
            all
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(under("input")(unexpected("an object of state fields", values)));
        }
    };
    Ok(update)
}

/// Parses one of several updates: an object, or a field with its value.
fn read_item(item: &Value) -> Result<Update, Invalid> {
    match item {
        Value::Object(fields) => read_fields(fields),
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(field), value] => read_fields(&Map::from_iter([(field.clone(), value.clone())])),
            _ => Err(Invalid::new("", "must be a pair [field, value] when it is a list")),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Err(unexpected("an object or a pair", item))
        }
    }
}

fn read_fields(fields: &Map<String, Value>) -> Result<Update, Invalid> {
    let mut update = Update::none();
    for (name, value) in fields {
        match name.as_str() {
            "messages" => update.messages = read_messages(value)?.into_iter().map(Arc::new).collect(),
            "files" => update.files = read_files(value)?,
            // A client may delete the list of skills, so that it is loaded again, but not write it.
            SKILLS if value.is_null() => drop(update.fields.insert(SKILLS.to_owned(), Value::Null)),
            name if is_private(name) => {}
            PINNED_SKILLS => drop(update.fields.insert(PINNED_SKILLS.to_owned(), read_pinned(value)?)),
            name => {
                update.fields.insert(name.to_owned(), value.clone());
            }
        }
    }
    Ok(update)
}

/// Parses the names of pinned skills.
fn read_pinned(value: &Value) -> Result<Value, Invalid> {
    let wrong = |_| under(PINNED_SKILLS)(unexpected("a list of names of skills", value));
    let Some(names) = Option::<Vec<String>>::deserialize(value).map_err(wrong)? else {
        return Ok(Value::Null);
    };
    if names.len() > MAX_PINNED {
        let reason = format!("names {} skills, but {MAX_PINNED} are allowed at once", names.len());
        return Err(Invalid::new(PINNED_SKILLS, reason));
    }
    Ok(names.into())
}

/// Parses one message or a list of messages.
fn read_messages(value: &Value) -> Result<Vec<Message>, Invalid> {
    match value {
        Value::Null => Ok(vec![]),
        Value::Array(items) if items.len() > MAX_MESSAGES => Err(Invalid::new(
            "messages",
            format!("has {} messages, but {MAX_MESSAGES} are allowed", items.len()),
        )),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(at, item)| read_message(item).map_err(under(&format!("messages[{at}]"))))
            .collect(),
        Value::String(_) | Value::Object(_) => Ok(vec![read_message(value).map_err(under("messages"))?]),
        Value::Bool(_) | Value::Number(_) => Err(under("messages")(unexpected(
            "a text, a message or a list of messages",
            value,
        ))),
    }
}

/// Parses the initial messages of a subagent.
///
/// # Errors
/// The index of the invalid message, and the reason.
pub fn read_initial(values: &[Value]) -> Result<Vec<Message>, (usize, String)> {
    let mut read: Vec<Message> = vec![];
    for (at, value) in values.iter().enumerate() {
        let message = read_next(&read, value).map_err(|invalid| match invalid.field.as_str() {
            "" => (at, invalid.reason),
            field => (at, format!("`{field}` {}", invalid.reason)),
        })?;
        read.push(message);
    }
    Ok(read)
}

/// Parses a message that follows others.
fn read_next(before: &[Message], value: &Value) -> Result<Message, Invalid> {
    if before.len() == MAX_INITIAL {
        return Err(Invalid::new(
            "",
            format!("is one too many; at most {MAX_INITIAL} are allowed"),
        ));
    }
    check(value).map_err(|exceeded| exceeded.of(""))?;
    let message = read_message(value)?;
    if message.role == Role::Remove {
        return Err(Invalid::new("", "must not remove a message: there is none yet"));
    }
    let makes = |id: &str| before.iter().flat_map(Message::tool_calls).any(|call| call.id == id);
    match message.answers().filter(|id| !makes(id)) {
        Some(id) => Err(Invalid::new(
            "",
            format!("answers the call `{id}`, which no message before it makes"),
        )),
        None => Ok(message),
    }
}

/// Parses one message in any form.
fn read_message(value: &Value) -> Result<Message, Invalid> {
    match value {
        Value::String(text) => Ok(Message::human(text.as_str())),
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(role), content] => {
                let fields = Map::from_iter([("content".to_owned(), content.clone())]);
                message_of(role, "[0]", &fields)
            }
            _ => Err(Invalid::new("", "must be a pair [role, content] when it is a list")),
        },
        Value::Object(fields) if constructor::is_instance(fields) => {
            let instance = constructor::read(fields)?;
            message_of(&instance.role, "role", instance.fields).map_err(under("kwargs"))
        }
        Value::Object(fields) => {
            let (name, role) = ["role", "type"]
                .into_iter()
                .find_map(|name| Some((name, fields.get(name)?)))
                .ok_or_else(|| Invalid::new("role", "is missing (so is `type`, its other name)"))?;
            let role = role.as_str().ok_or_else(|| under(name)(unexpected("a text", role)))?;
            message_of(role, name, fields)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Err(unexpected("a text, a pair or an object", value)),
    }
}

/// The roles, for error messages.
const ROLES: &str = "user, human, assistant, ai, system, developer, tool, function, remove";

fn message_of(role: &str, role_part: &str, fields: &Map<String, Value>) -> Result<Message, Invalid> {
    let mut kwargs = None;
    let role = match role {
        "user" | "human" | "HumanMessageChunk" => Role::Human,
        "system" | "SystemMessageChunk" => Role::System,
        "developer" => {
            kwargs = Some(("__openai_role__".to_owned(), Value::from("developer")));
            Role::System
        }
        "assistant" | "ai" | "AIMessageChunk" => ai_role(fields)?,
        "tool" | "function" | "ToolMessageChunk" => tool_role(role == "function", fields)?,
        "remove" => Role::Remove,
        other => {
            return Err(Invalid::new(
                role_part,
                format!("is {other:?}, but allowed are: {ROLES}"),
            ));
        }
    };
    let id = text(fields, "id")?;
    if role == Role::Remove && id.is_none() {
        return Err(Invalid::new("id", "is missing: it says which message to remove"));
    }
    let mut message = Message {
        content: content(fields, &role)?,
        additional_kwargs: optional(fields, "additional_kwargs", "an object")?.unwrap_or_default(),
        response_metadata: optional(fields, "response_metadata", "an object")?.unwrap_or_default(),
        name: text(fields, "name")?,
        id,
        role,
    };
    message.additional_kwargs.extend(kwargs);
    Ok(message)
}

fn content(fields: &Map<String, Value>, role: &Role) -> Result<Content, Invalid> {
    let may_lack_content = match role {
        Role::Ai { .. } | Role::Remove => true,
        Role::Human | Role::System | Role::Tool { .. } => false,
    };
    match fields.get("content") {
        Some(Value::Null) => Ok(Content::default()),
        None if may_lack_content => Ok(Content::default()),
        None => Err(Invalid::new("content", "is missing")),
        Some(Value::String(text)) => Ok(Content::Text(text.clone())),
        Some(Value::Array(blocks)) => match blocks.iter().position(|b| !b.is_string() && !b.is_object()) {
            None => Ok(Content::Blocks(blocks.clone())),
            Some(at) => Err(under(&format!("content[{at}]"))(unexpected(
                "a text or an object",
                &blocks[at],
            ))),
        },
        Some(other) if matches!(role, Role::Tool { .. }) => Ok(Content::Text(other.to_string())),
        Some(other) => Err(under("content")(unexpected(
            "a text or a list of content blocks",
            other,
        ))),
    }
}

fn ai_role(fields: &Map<String, Value>) -> Result<Role, Invalid> {
    let mut tool_calls = vec![];
    let mut invalid_tool_calls: Vec<InvalidToolCall> =
        optional(fields, "invalid_tool_calls", "a list of unreadable calls")?.unwrap_or_default();
    let calls: Vec<Value> = optional(fields, "tool_calls", "a list of calls")?.unwrap_or_default();
    for (at, call) in calls.iter().enumerate() {
        match read_call(call).map_err(under(&format!("tool_calls[{at}]")))? {
            Ok(call) => tool_calls.push(call),
            Err(call) => invalid_tool_calls.push(call),
        }
    }
    let usage_metadata = fields.get("usage_metadata").filter(|usage| !usage.is_null()).cloned();
    Ok(Role::Ai {
        tool_calls,
        invalid_tool_calls,
        usage_metadata,
    })
}

/// Parses a call: `{name, args, id}`, or the form of OpenAI, `{id, function: {name, arguments}}`, whose arguments are
/// a text and may be invalid JSON.
pub(super) fn read_call(value: &Value) -> Result<Result<ToolCall, InvalidToolCall>, Invalid> {
    let fields = value.as_object().ok_or_else(|| unexpected("an object", value))?;
    let id = text(fields, "id")?.ok_or_else(|| Invalid::new("id", "is missing"))?;
    let Some(function) = fields.get("function") else {
        let name = text(fields, "name")?.ok_or_else(|| Invalid::new("name", "is missing"))?;
        return Ok(Ok(ToolCall::new(
            id,
            name,
            optional(fields, "args", "an object")?.unwrap_or_default(),
        )));
    };
    let function = function
        .as_object()
        .ok_or_else(|| under("function")(unexpected("an object", function)))?;
    let name = text(function, "name").map_err(under("function"))?;
    let name = name.ok_or_else(|| Invalid::new("function.name", "is missing"))?;
    let arguments = text(function, "arguments")
        .map_err(under("function"))?
        .unwrap_or_default();
    Ok(
        match serde_json::from_str::<Map<String, Value>>(if arguments.is_empty() { "{}" } else { &arguments }) {
            Ok(args) => Ok(ToolCall::new(id, name, args)),
            Err(error) => Err(InvalidToolCall {
                name: Some(name),
                args: Some(arguments),
                id: Some(id),
                error: Some(error.to_string()),
                kind: "invalid_tool_call".to_owned(),
            }),
        },
    )
}

fn tool_role(is_function: bool, fields: &Map<String, Value>) -> Result<Role, Invalid> {
    let call = text(fields, "tool_call_id")?;
    // The older `function` role has only the name of the function.
    let call = if is_function {
        call.or(text(fields, "name")?)
    } else {
        call
    };
    let tool_call_id =
        call.ok_or_else(|| Invalid::new("tool_call_id", "is missing: it says which call is answered"))?;
    let status = optional(fields, "status", "\"success\" or \"error\"")?.unwrap_or(ToolStatus::Success);
    let artifact = fields.get("artifact").filter(|artifact| !artifact.is_null()).cloned();
    Ok(Role::Tool {
        tool_call_id,
        artifact,
        status,
    })
}

/// Parses files by path; `null` deletes a file.
fn read_files(value: &Value) -> Result<BTreeMap<String, Option<Arc<File>>>, Invalid> {
    let files = match value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Object(files) => files,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(under("files")(unexpected("an object of files by path", value)));
        }
    };
    files
        .iter()
        .map(|(path, file)| {
            let shown = first_chars(path, MAX_SHOWN_CHARS);
            let field = format!("files[{shown:?}]");
            let path = read_path(path).map_err(under(&field))?;
            let file = read_file(file).map_err(under(&field))?;
            Ok((path, file.map(Arc::new)))
        })
        .collect()
}

/// Parses the path of a file and returns its normal form.
fn read_path(path: &str) -> Result<String, Invalid> {
    let clean = normalise(path).map_err(|why| Invalid::new("", format!("is not a file path: {why}")))?;
    if clean == "/" {
        return Err(Invalid::new("", "is not a file path: it is empty"));
    }
    if is_bundled(&clean) {
        let reason = format!("cannot be written: the files in {FOLDER} belong to the agent's definition");
        return Err(Invalid::new("", reason));
    }
    Ok(clean)
}

fn read_file(value: &Value) -> Result<Option<File>, Invalid> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(file_of(text.clone()))),
        Value::Object(fields) => {
            let content = match fields.get("content") {
                Some(Value::String(text)) => text.clone(),
                // Older clients store a file as a list of lines.
                Some(Value::Array(lines)) if lines.iter().all(Value::is_string) => {
                    lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
                }
                Some(other) => return Err(under("content")(unexpected("a text", other))),
                None => return Err(Invalid::new("content", "is missing")),
            };
            Ok(Some(File {
                encoding: optional(fields, "encoding", "\"utf-8\" or \"base64\"")?.unwrap_or(Encoding::Utf8),
                created_at: text(fields, "created_at")?,
                modified_at: text(fields, "modified_at")?,
                ..file_of(content)
            }))
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            Err(unexpected("null, a text or an object with `content`", value))
        }
    }
}

fn file_of(content: String) -> File {
    File {
        content: content.into(),
        encoding: Encoding::Utf8,
        created_at: None,
        modified_at: None,
    }
}

/// Returns the text of a field; absent and null are the same.
fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, Invalid> {
    optional(fields, name, "a text")
}

/// Parses a field that must be `wanted`; absent and null are the same.
fn optional<T: DeserializeOwned>(fields: &Map<String, Value>, name: &str, wanted: &str) -> Result<Option<T>, Invalid> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value)
            .map(Some)
            .map_err(|_| under(name)(unexpected(wanted, value))),
    }
}

/// Creates the error for a `value` that is not `wanted`. [`under`] adds the field.
fn unexpected(wanted: &str, value: &Value) -> Invalid {
    let kind = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "true or false".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) if text.len() <= 40 => format!("the text {text:?}"),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    Invalid::new("", format!("must be {wanted}, not {kind}"))
}

/// Prepends `field` to the field of an error.
pub(super) fn under(field: &str) -> impl Fn(Invalid) -> Invalid {
    move |error| {
        let joint = if error.field.is_empty() || error.field.starts_with('[') {
            ""
        } else {
            "."
        };
        Invalid {
            field: format!("{field}{joint}{}", error.field),
            reason: error.reason,
        }
    }
}

#[cfg(test)]
mod tests;
