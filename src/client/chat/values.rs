//! Asks a person for values that a schema describes.

use serde_json::{Map, Value};

use super::input::Entered;
use super::session::Session;
use crate::client::error::ClientResult;
use crate::client::escape;

/// Asks for a value of a schema; `None` if the person leaves it for later.
pub(super) async fn ask_value(session: &mut Session, label: &str, schema: &Value) -> ClientResult<Option<Value>> {
    let fields = schema["properties"].as_object().filter(|fields| !fields.is_empty());
    let Some(fields) = fields.filter(|_| schema["type"] == "object") else {
        return ask_simple(session, label, schema).await;
    };
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut object = Map::new();
    for (name, schema) in fields {
        let is_required = required.contains(&name.as_str());
        let label = if is_required {
            name.clone()
        } else {
            format!("{name} (may be empty)")
        };
        let answer = Box::pin(ask_simple_or_nothing(session, &label, schema, is_required)).await?;
        match answer {
            Some(Some(value)) => drop(object.insert(name.clone(), value)),
            Some(None) => {}
            None => return Ok(None),
        }
    }
    Ok(Some(Value::Object(object)))
}

async fn ask_simple(session: &mut Session, label: &str, schema: &Value) -> ClientResult<Option<Value>> {
    let answer = Box::pin(ask_simple_or_nothing(session, label, schema, true)).await?;
    Ok(answer.flatten())
}

/// Asks for one value. `Some(None)` is an empty answer, and `None` no answer.
pub(super) async fn ask_simple_or_nothing(
    session: &mut Session,
    label: &str,
    schema: &Value,
    is_required: bool,
) -> ClientResult<Option<Option<Value>>> {
    let choices = choices(schema);
    let mut about = vec![];
    if let Some(description) = schema["description"].as_str() {
        about.push(description.to_owned());
    }
    about.extend(
        choices
            .iter()
            .enumerate()
            .map(|(at, choice)| format!("  {}. {}", at + 1, plain(choice))),
    );
    if !about.is_empty() {
        session.write(&format!("{}\n", escape::text(&about.join("\n"))))?;
    }
    let prompt = format!("{}{}: ", escape::line(label), hint(schema, choices.is_empty()));
    loop {
        let Entered::Line(line) = session.read_line(&prompt, "", false).await? else {
            return Ok(None);
        };
        if session.is_answered_elsewhere() {
            return Ok(Some(Some(Value::Null)));
        }
        if line.trim().is_empty() && !(is_required && schema["type"] == "string") {
            if is_required {
                continue;
            }
            return Ok(Some(None));
        }
        match read_value(schema, &choices, &line) {
            Ok(value) => return Ok(Some(Some(value))),
            Err(reason) => session.remark(reason)?,
        }
    }
}

/// Returns the values among which a schema lets choose.
fn choices(schema: &Value) -> Vec<Value> {
    let listed = schema["enum"].as_array().cloned().unwrap_or_default();
    let alternatives = ["oneOf", "anyOf"]
        .into_iter()
        .filter_map(|key| schema[key].as_array())
        .flatten();
    let constants = alternatives.filter_map(|alternative| alternative.get("const")).cloned();
    listed.into_iter().chain(constants).collect()
}

fn hint(schema: &Value, is_free: bool) -> &'static str {
    match (schema["type"].as_str(), is_free) {
        (_, false) => " (a number of the list, or the value)",
        (Some("string"), true) => "",
        (Some("boolean"), true) => " [y/n]",
        (Some("integer" | "number"), true) => " (a number)",
        (Some(_) | None, true) => " (JSON, or a text)",
    }
}

/// Reads a value that a person has entered.
fn read_value(schema: &Value, choices: &[Value], line: &str) -> Result<Value, &'static str> {
    let line = line.trim();
    if !choices.is_empty() {
        let by_number = line
            .parse::<usize>()
            .ok()
            .and_then(|number| choices.get(number.checked_sub(1)?));
        let by_value = choices.iter().find(|choice| plain(choice) == line);
        return by_value.or(by_number).cloned().ok_or("it is none of the list");
    }
    match schema["type"].as_str() {
        Some("string") => Ok(Value::String(line.to_owned())),
        Some("boolean") => match line.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => Ok(Value::Bool(true)),
            "n" | "no" | "false" => Ok(Value::Bool(false)),
            _ => Err("answer y or n"),
        },
        Some("integer" | "number") => {
            let number = serde_json::from_str::<Value>(line).ok().filter(Value::is_number);
            number.ok_or("it is no number")
        }
        Some(_) => serde_json::from_str(line).map_err(|_| "it is not JSON"),
        None => Ok(serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.to_owned()))),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
