//! The form of an agent's final answer, and the way in which its model produces this form.
//!
//! `response_format` is a JSON Schema, or a table with the schema in `schema` and further settings.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::diagnostic::{Diagnostic, FieldPath};
use super::read::read;
use super::schema::{NO_OBJECT, schema_problem};

/// The way in which a model produces an answer in a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerStrategy {
    /// The way of the provider where all models of the agent are known to have it and the form is one object, else that of a
    /// tool, which works with every model.
    #[default]
    Auto,
    /// The form is offered as a tool that the model has to call in the end.
    Tool,
    /// The provider gets the schema, and the text of the answer is the JSON.
    Provider,
}

/// The reaction to an answer that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be true, false or the text that the model is told")]
pub enum HandleErrors {
    /// `true`: the model reads the reason and answers again; `false`: the run fails.
    Switch(bool),
    /// The model reads this text instead of the reason.
    Say(String),
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AnswerFormat {
    /// The JSON Schema of an object, or of alternatives (`oneOf`, `anyOf`) that are objects.
    pub schema: Value,
    /// The strategy.
    pub strategy: AnswerStrategy,
    /// The text in the conversation as the result of a fitting answer by tool; the answer itself when absent.
    pub tool_message_content: Option<String>,
    /// The reaction to an answer that does not fit.
    pub handle_errors: HandleErrors,
    /// True if a provider with a strict mode uses that mode. The provider then accepts fewer schemas.
    pub strict: Option<bool>,
}

impl Default for AnswerFormat {
    fn default() -> Self {
        Self {
            schema: Value::Null,
            strategy: AnswerStrategy::default(),
            tool_message_content: None,
            handle_errors: HandleErrors::Switch(true),
            strict: None,
        }
    }
}

/// The key of the schema in the table. It is not a key of a JSON Schema, so it tells the two forms apart.
const SCHEMA: &str = "schema";

impl AnswerFormat {
    /// Reads the form in a definition. [`check`] has reported invalid forms.
    pub fn of(value: &Value) -> Self {
        if value.get(SCHEMA).is_none() && value.get("strategy").is_none() {
            return Self {
                schema: value.clone(),
                ..Self::default()
            };
        }
        read::<Self>(value.clone()).value.unwrap_or_default()
    }

    /// Returns whether every provider with structured output takes the form: one object, without a text in the place of
    /// the call.
    pub fn is_plain(&self) -> bool {
        let is_object = self.schema.get("type").and_then(Value::as_str) == Some("object");
        let has_alternatives = ["oneOf", "anyOf"]
            .iter()
            .any(|keyword| self.schema.get(keyword).is_some());
        is_object && !has_alternatives && self.tool_message_content.is_none()
    }

    /// Returns the alternatives at the top of the schema, or the schema itself. An answer has to fit one of them.
    pub fn alternatives(&self) -> Vec<Value> {
        let alternatives = ["oneOf", "anyOf"]
            .iter()
            .find_map(|keyword| self.schema.get(keyword)?.as_array());
        match alternatives {
            Some(alternatives) => alternatives
                .iter()
                .map(|one| with_definitions(one, &self.schema))
                .collect(),
            None => vec![self.schema.clone()],
        }
    }
}

/// Returns an alternative of `whole` with the definitions to which it may refer, so that it can stand alone.
fn with_definitions(alternative: &Value, whole: &Value) -> Value {
    let pointer = alternative
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|to| to.strip_prefix('#'));
    let mut alone = pointer.and_then(|to| whole.pointer(to)).unwrap_or(alternative).clone();
    for keyword in ["$defs", "definitions"] {
        if let Some(fields) = alone.as_object_mut()
            && let Some(definitions) = whole.get(keyword)
        {
            fields.entry(keyword).or_insert_with(|| definitions.clone());
        }
    }
    alone
}

/// The maximum length of the name of a tool that providers accept.
const LONGEST_NAME: usize = 64;

/// Returns the title of a form as the name of a tool; none for a form without a title of letters or digits.
pub fn form_name(schema: &Value) -> Option<String> {
    let title = schema.get("title").and_then(Value::as_str).unwrap_or_default();
    let safe = |letter: char| {
        if letter.is_ascii_alphanumeric() || "_-".contains(letter) {
            letter
        } else {
            '_'
        }
    };
    let name: String = title.chars().take(LONGEST_NAME).map(safe).collect();
    name.chars()
        .any(|letter| letter.is_ascii_alphanumeric())
        .then_some(name)
}

/// Checks the form of an answer in `field`; `has_tool` says which tools the agent has.
pub(super) fn check(field: &FieldPath, value: &Value, has_tool: impl Fn(&str) -> bool) -> Vec<Diagnostic> {
    let is_plain = value.get(SCHEMA).is_none() && value.get("strategy").is_none();
    let place = if is_plain { field.clone() } else { field.then(SCHEMA) };
    let mut findings = vec![];
    if !is_plain {
        findings.extend(
            read::<AnswerFormat>(value.clone())
                .findings
                .into_iter()
                .map(|finding| finding.under(field)),
        );
    }
    let format = AnswerFormat::of(value);
    findings.extend(check_schema(&place, &format.schema));
    if !findings.is_empty() {
        return findings;
    }
    let mut error = |key: &str, message: &str| findings.push(Diagnostic::error(field.then(key), message));
    if format.strategy == AnswerStrategy::Provider && format.tool_message_content.is_some() {
        error(
            "tool_message_content",
            "goes without `strategy = \"provider\"` only: there is no call of a tool then",
        );
    }
    if format.strategy != AnswerStrategy::Provider && format.strict.is_some() {
        error("strict", "goes with `strategy = \"provider\"` only");
    }
    if format.strategy == AnswerStrategy::Provider {
        return findings;
    }
    let mut names: Vec<String> = vec![];
    for name in format.alternatives().iter().filter_map(form_name) {
        if names.contains(&name) {
            let message = format!("has two alternatives named `{name}`; give each a `title` of its own");
            findings.push(Diagnostic::error(place.clone(), message));
        } else if has_tool(&name) {
            let message = format!("`{name}` is the name of a tool of the agent; choose another");
            findings.push(Diagnostic::error(place.then("title"), message));
        }
        names.push(name);
    }
    findings
}

/// Returns the reason why an agent with these tools cannot answer in this form.
pub fn form_problem(value: &Value, has_tool: impl Fn(&str) -> bool) -> Option<String> {
    let findings = check(&FieldPath::of(["response_format"]), value, has_tool);
    findings.first().map(ToString::to_string)
}

fn check_schema(place: &FieldPath, schema: &Value) -> Vec<Diagnostic> {
    let alternatives = AnswerFormat {
        schema: schema.clone(),
        ..AnswerFormat::default()
    }
    .alternatives();
    let is_object = |one: &Value| one.get("type") == Some(&json!("object"));
    if alternatives.is_empty() || !alternatives.iter().all(is_object) {
        return vec![Diagnostic::error(place.clone(), NO_OBJECT)];
    }
    schema_problem(place, schema).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(value: Value) -> Vec<String> {
        let findings = check(&FieldPath::of(["response_format"]), &value, |name| name == "ls");
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_schema_alone_and_one_with_a_strategy_are_forms() {
        let schema = json!({"title": "Finding", "type": "object", "properties": {"a": {"type": "string"}}});
        let strategies =
            json!({"schema": schema, "strategy": "tool", "tool_message_content": "Kept.", "handle_errors": "No."});
        let provider = json!({"schema": schema, "strategy": "provider", "strict": true});
        for good in [schema.clone(), strategies.clone(), provider, json!({"schema": schema})] {
            assert_eq!(reported(good), [""; 0]);
        }
        assert_eq!(AnswerFormat::of(&schema).schema, schema);
        let format = AnswerFormat::of(&strategies);
        assert_eq!(format.schema, schema);
        assert_eq!(format.strategy, AnswerStrategy::Tool);
        assert_eq!(format.handle_errors, HandleErrors::Say("No.".to_owned()));
    }

    #[test]
    fn alternatives_need_no_type_of_their_own_and_may_be_references() {
        let union = json!({"anyOf": [{"$ref": "#/$defs/A"}, {"title": "B", "type": "object"}],
            "$defs": {"A": {"title": "A", "type": "object"}}});
        assert_eq!(reported(union.clone()), [""; 0]);
        let names: Vec<_> = AnswerFormat::of(&union)
            .alternatives()
            .iter()
            .filter_map(form_name)
            .collect();
        assert_eq!(names, ["A", "B"]);
    }

    #[test]
    fn what_is_wrong_is_told_where_it_stands() {
        let object = |title: &str| json!({"title": title, "type": "object"});
        let cases = [
            (
                json!({"type": "array"}),
                "response_format: must be a JSON Schema of an object",
            ),
            (
                json!({"oneOf": []}),
                "response_format: must be a JSON Schema of an object",
            ),
            (json!("x"), "response_format: must be a JSON Schema of an object"),
            (
                json!({"type": "object", "properties": 3}),
                "response_format.properties: is not valid in a JSON Schema",
            ),
            (
                object("ls"),
                "response_format.title: `ls` is the name of a tool of the agent",
            ),
            (
                json!({"oneOf": [object("A"), object("A")]}),
                "response_format: has two alternatives named `A`",
            ),
            (
                json!({"schema": {"type": "array"}}),
                "response_format.schema: must be a JSON Schema of an object",
            ),
            (
                json!({"schema": object("A"), "strategy": "magic"}),
                "response_format.strategy: `magic` is not allowed",
            ),
            (
                json!({"schema": object("A"), "foo": 1}),
                "response_format.foo: unknown key",
            ),
            (
                json!({"schema": object("A"), "strict": true}),
                "response_format.strict: goes with",
            ),
            (
                json!({"schema": object("A"), "strategy": "provider", "tool_message_content": "x"}),
                "response_format.tool_message_content: goes without",
            ),
            (
                json!({"schema": object("A"), "handle_errors": 3}),
                "response_format.handle_errors: must be true, false",
            ),
            (
                json!({"strategy": "tool"}),
                "response_format.schema: must be a JSON Schema",
            ),
        ];
        for (value, expected) in cases {
            let reported = reported(value);
            assert!(
                reported.iter().any(|line| line.starts_with(expected)),
                "{expected}: {reported:#?}"
            );
        }
    }
}
