//! Messages as LangChain serialises its instances (`JSON.stringify(new HumanMessage("hi"))`): a class with its
//! arguments, `{"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "HumanMessage"], "kwargs": {…}}`.

use serde_json::{Map, Value};

use super::{text, under, unexpected};
use crate::domain::Invalid;

/// The classes of messages, each with the role for which it stands. A chunk is read like a whole message.
const CLASSES: [(&str, &str); 6] = [
    ("HumanMessage", "human"),
    ("AIMessage", "ai"),
    ("SystemMessage", "system"),
    ("ToolMessage", "tool"),
    ("FunctionMessage", "function"),
    ("RemoveMessage", "remove"),
];

/// The class whose role is one of its arguments.
const CHAT: &str = "ChatMessage";

/// The role and the fields of a serialised instance.
pub(super) struct Constructor<'a> {
    pub(super) role: String,
    pub(super) fields: &'a Map<String, Value>,
}

/// Returns whether an object is a serialised instance of a class, if not of a message.
pub(super) fn is_instance(object: &Map<String, Value>) -> bool {
    object.contains_key("lc") && object.get("type").and_then(Value::as_str) == Some("constructor")
}

/// Parses a serialised instance. Only the name of the class counts: the packages before it have changed over time
/// (`langchain`, `schema`; `langchain_core`, `messages`).
///
/// # Errors
/// Names the part of the instance that is invalid: a class that is no message, or missing arguments.
pub(super) fn read(object: &Map<String, Value>) -> Result<Constructor<'_>, Invalid> {
    let path = object.get("id").and_then(Value::as_array);
    let class = path.and_then(|path| path.last()?.as_str());
    let class = class.ok_or_else(|| {
        let form = r#"a list that ends with the name of a class, as in ["langchain_core", "messages", "HumanMessage"]"#;
        Invalid::new("id", format!("must be {form}"))
    })?;
    let fields = match object.get("kwargs") {
        Some(Value::Object(fields)) => fields,
        Some(other) => return Err(under("kwargs")(unexpected("an object", other))),
        None => return Err(Invalid::new("kwargs", "is missing")),
    };
    let whole = class.strip_suffix("Chunk").unwrap_or(class);
    if whole == CHAT {
        let role = text(fields, "role").map_err(under("kwargs"))?;
        let role = role.ok_or_else(|| Invalid::new("kwargs.role", "is missing"))?;
        return Ok(Constructor { role, fields });
    }
    match CLASSES.iter().find(|(name, _)| *name == whole) {
        Some((_, role)) => Ok(Constructor {
            role: (*role).to_owned(),
            fields,
        }),
        None => {
            let allowed = CLASSES.map(|(name, _)| name).join(", ");
            let reason = format!("names the class {class:?}, but allowed are: {allowed}, {CHAT}");
            Err(Invalid::new("id", reason))
        }
    }
}
