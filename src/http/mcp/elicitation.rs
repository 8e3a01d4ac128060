//! Questions to a human as MCP asks them: a form of plain fields.
//!
//! The protocol allows texts, numbers, yes or no, and choices, but nothing nested. So a decision about a tool call is a
//! choice and a text, and each question of `ask_user` has fields of its own. What a form cannot express is not asked: an
//! edited tool call, and another answer than the choices when several may be chosen.

use std::sync::Arc;

use rmcp::model::{ElicitRequestParams, ElicitationSchema};
use serde_json::{Map, Value, json};

use crate::domain::interrupt::{ASK_USER, DecisionKind, Question};
use crate::domain::schema::Schema;
use crate::domain::text_limits::first_chars;

/// The longest text of a question, in characters.
const MAX_TEXT: usize = 16_000;

/// A question as a form.
pub(super) struct QuestionForm {
    /// The text of the question.
    message: String,
    fields: Vec<FormField>,
    kind: FormKind,
}

/// The way in which the fields become an answer.
enum FormKind {
    /// A decision and a text for each of these calls, by turns.
    Decisions,
    /// The answers to the questions of `ask_user`: for each one, the number of its fields.
    Answers(Vec<UserAnswer>),
    /// The object of all fields.
    Object,
    /// The value of the only field.
    Value,
    /// The value of the only field: a text that is JSON, or stands for itself.
    Json,
}

/// The type of an answer to a question of `ask_user`.
enum UserAnswer {
    /// A text.
    Text,
    /// A text that is JSON.
    Json,
    /// A choice for each of these texts.
    Several(Vec<String>),
}

/// A field of a form.
struct FormField {
    name: String,
    schema: Value,
    is_required: bool,
}

impl FormField {
    fn new(name: impl Into<String>, schema: Value, is_required: bool) -> Self {
        Self {
            name: name.into(),
            schema,
            is_required,
        }
    }
}

impl QuestionForm {
    /// Returns the form of a question; `None` if no form can express a valid answer.
    pub(super) fn of(question: &Question) -> Option<Self> {
        if question.wants_decisions() {
            return decisions_form(question);
        }
        match question.value["type"] == ASK_USER {
            true => user_form(question),
            false => Some(other_form(question)),
        }
    }

    /// Returns the parameters of the request to the client.
    pub(super) fn params(&self) -> Option<ElicitRequestParams> {
        let properties: Map<String, Value> = self
            .fields
            .iter()
            .map(|field| (field.name.clone(), field.schema.clone()))
            .collect();
        let required = self.fields.iter().filter(|field| field.is_required);
        let required: Vec<&str> = required.map(|field| field.name.as_str()).collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let requested_schema: ElicitationSchema = serde_json::from_value(schema).ok()?;
        Some(ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: self.message.clone(),
            requested_schema,
        })
    }

    /// Returns the answer that a filled form gives. It is checked as every answer is, where the interrupt is resolved.
    pub(super) fn answer(&self, content: &Value) -> Value {
        let value = |field: &FormField| content.get(&field.name).cloned().unwrap_or_default();
        let first = || self.fields.first().map(value).unwrap_or_default();
        match &self.kind {
            FormKind::Decisions => {
                let decisions = self
                    .fields
                    .chunks(2)
                    .map(|fields| decision(&fields.iter().map(value).collect::<Vec<_>>()));
                json!({"decisions": decisions.collect::<Vec<_>>()})
            }
            FormKind::Answers(kinds) => {
                let mut values = self.fields.iter().map(value);
                let answers: Vec<Value> = kinds.iter().map(|kind| kind.answer(&mut values)).collect();
                json!({"type": "answered", "answers": answers})
            }
            FormKind::Object => content.clone(),
            FormKind::Value => first(),
            FormKind::Json => read_json(first()),
        }
    }
}

impl UserAnswer {
    /// Takes the values of the fields, and returns the answer.
    fn answer(&self, values: &mut impl Iterator<Item = Value>) -> Value {
        match self {
            Self::Text => values.next().unwrap_or_default(),
            Self::Json => read_json(values.next().unwrap_or_default()),
            Self::Several(choices) => {
                let chosen = choices.iter().zip(values).filter(|(_, value)| *value == true);
                chosen.map(|(choice, _)| json!(choice)).collect()
            }
        }
    }
}

/// Returns one decision from a choice and a text.
fn decision(fields: &[Value]) -> Value {
    let kind = fields.first().cloned().unwrap_or_default();
    let text = fields.get(1).and_then(Value::as_str).filter(|text| !text.is_empty());
    match text.filter(|_| kind != DecisionKind::Approve.word()) {
        Some(text) => json!({"type": kind, "message": text}),
        None => json!({"type": kind}),
    }
}

/// Reads a text that is JSON. Another text stands for itself.
fn read_json(value: Value) -> Value {
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    parsed.unwrap_or(value)
}

/// Returns the name of a field of several alike; the only one needs no number.
fn numbered(name: &str, at: usize, count: usize) -> String {
    match count {
        1 => name.to_owned(),
        _ => format!("{name}_{}", at + 1),
    }
}

fn cut(text: &str) -> String {
    first_chars(text, MAX_TEXT).to_owned()
}

/// Returns the form for decisions about tool calls.
fn decisions_form(question: &Question) -> Option<QuestionForm> {
    let value = &question.value;
    let calls: Vec<&Value> = match value["action_requests"].as_array() {
        Some(calls) => calls.iter().collect(),
        None => vec![value],
    };
    let mut fields = vec![];
    let mut message = "The agent asks before it continues.".to_owned();
    let allowed_types = question.allowed_types();
    for (at, call) in calls.iter().enumerate() {
        let allowed = value.pointer(&format!("/review_configs/{at}/allowed_decisions"));
        let allowed = allowed.or(allowed_types.as_ref());
        let words = DecisionKind::ALL.map(DecisionKind::word);
        let is_allowed = |word: &&str| {
            allowed.is_none_or(|allowed| allowed.as_array().is_some_and(|all| all.contains(&json!(word))))
        };
        let edit = DecisionKind::Edit.word();
        let words: Vec<&str> = words
            .into_iter()
            .filter(|word| *word != edit)
            .filter(is_allowed)
            .collect();
        if words.is_empty() {
            return None;
        }
        let name = call["name"].as_str().unwrap_or_default();
        let described = call["description"].as_str().filter(|text| !text.is_empty());
        let described = described.map_or_else(|| format!("{name} {}", call["args"]), str::to_owned);
        message.push_str("\n\n");
        message.push_str(&described);
        let title = format!("Decision about {name}");
        let choice = json!({"type": "string", "enum": words, "title": title});
        fields.push(FormField::new(numbered("decision", at, calls.len()), choice, true));
        let text = json!({"type": "string", "title": "Message",
            "description": "The reason of a rejection, or the result to respond with."});
        fields.push(FormField::new(numbered("message", at, calls.len()), text, false));
    }
    Some(QuestionForm {
        message: cut(&message),
        fields,
        kind: FormKind::Decisions,
    })
}

/// Returns the form for questions of the tool `ask_user`.
fn user_form(question: &Question) -> Option<QuestionForm> {
    let questions = question.value["questions"].as_array()?;
    let mut fields = vec![];
    let mut kinds = vec![];
    let mut message = vec![];
    for (at, asked) in questions.iter().enumerate() {
        let text = asked["question"].as_str()?;
        message.push(text);
        let name = numbered("answer", at, questions.len());
        let is_required = asked["required"] != false;
        let choices = asked["choices"].as_array().map_or(&[][..], Vec::as_slice);
        let choices: Vec<String> = choices
            .iter()
            .filter_map(|choice| choice["value"].as_str().map(str::to_owned))
            .collect();
        let title = cut(text);
        let (kind, schema) = match asked["type"].as_str()? {
            "multi_select" => {
                for (number, choice) in choices.iter().enumerate() {
                    let schema = json!({"type": "boolean", "title": choice, "description": title});
                    fields.push(FormField::new(format!("{name}_choice_{}", number + 1), schema, false));
                }
                kinds.push(UserAnswer::Several(choices));
                continue;
            }
            "multiple_choice" if asked["allow_other"] == false => (
                UserAnswer::Text,
                json!({"type": "string", "enum": choices, "title": title}),
            ),
            "multiple_choice" => {
                let among = format!("One of: {}; or another answer.", choices.join(", "));
                (
                    UserAnswer::Text,
                    json!({"type": "string", "title": title, "description": among}),
                )
            }
            "json" => {
                let schema = format!("JSON that fits this schema: {}", asked["schema"]);
                (
                    UserAnswer::Json,
                    json!({"type": "string", "title": title, "description": cut(&schema)}),
                )
            }
            _ => (UserAnswer::Text, json!({"type": "string", "title": title})),
        };
        fields.push(FormField::new(name, schema, is_required));
        kinds.push(kind);
    }
    Some(QuestionForm {
        message: cut(&message.join("\n\n")),
        fields,
        kind: FormKind::Answers(kinds),
    })
}

/// Returns the form for any other question, by the schema of its answer.
fn other_form(question: &Question) -> QuestionForm {
    let value = &question.value;
    let message = value.as_str().map_or_else(|| cut(&value.to_string()), cut);
    let schema = question.schema.parse();
    let properties = schema["properties"].as_object().filter(|_| schema["type"] == "object");
    if let Some(properties) = properties.filter(|all| !all.is_empty() && all.values().all(is_plain)) {
        let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
        let fields = properties
            .iter()
            .map(|(name, schema)| FormField::new(name, schema.clone(), required.contains(&json!(name))));
        let fields = fields.collect();
        let kind = FormKind::Object;
        return QuestionForm { message, fields, kind };
    }
    if is_plain(&schema) {
        let fields = vec![FormField::new("answer", schema, true)];
        let kind = FormKind::Value;
        return QuestionForm { message, fields, kind };
    }
    // A text is an answer of any schema that allows texts.
    let takes_text = |schema: Arc<Schema>| schema.check("answer", &json!("text")).is_ok();
    let (kind, description) = match Schema::compile_once(&question.schema).is_ok_and(takes_text) {
        true => (FormKind::Value, String::new()),
        false => (FormKind::Json, cut(&format!("JSON that fits this schema: {schema}"))),
    };
    let text = json!({"type": "string", "description": description});
    let fields = vec![FormField::new("answer", text, true)];
    QuestionForm { message, fields, kind }
}

/// Returns whether a form can have a field with this schema.
fn is_plain(schema: &Value) -> bool {
    let is_known = |name: &String| {
        let known = [
            "type",
            "title",
            "description",
            "enum",
            "default",
            "format",
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
        ];
        known.contains(&name.as_str())
    };
    let Some(fields) = schema.as_object().filter(|fields| fields.keys().all(is_known)) else {
        return false;
    };
    let has_texts_only = |choices: &Value| choices.as_array().is_some_and(|all| all.iter().all(Value::is_string));
    match schema["type"].as_str() {
        Some("string") => fields.get("enum").is_none_or(has_texts_only),
        Some("boolean" | "integer" | "number") => !fields.contains_key("enum"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::interrupt::QuestionKind;

    fn properties(form: &QuestionForm) -> Value {
        let params = serde_json::to_value(form.params().expect("a form")).expect("JSON");
        params["requestedSchema"]["properties"].clone()
    }

    #[test]
    fn a_decision_is_a_choice_without_edit_and_a_text() {
        let calls = json!([{"name": "send", "args": {"to": "bob"}, "description": "Send mail to bob"}]);
        let configs = json!([{"action_name": "send", "allowed_decisions": ["approve", "edit", "reject"]}]);
        let question = Question {
            kind: QuestionKind::ToolApproval,
            value: json!({"action_requests": calls, "review_configs": configs}),
            ..Question::default()
        };
        let form = QuestionForm::of(&question).expect("a form");
        assert_eq!(properties(&form)["decision"]["enum"], json!(["approve", "reject"]));
        assert!(form.message.contains("Send mail to bob"));
        let approved = form.answer(&json!({"decision": "approve", "message": "ignored"}));
        assert_eq!(approved, json!({"decisions": [{"type": "approve"}]}));
        let rejected = form.answer(&json!({"decision": "reject", "message": "No."}));
        assert_eq!(rejected, json!({"decisions": [{"type": "reject", "message": "No."}]}));
    }

    #[test]
    fn a_call_that_can_only_be_edited_has_no_form() {
        let question = Question {
            kind: QuestionKind::ToolApproval,
            value: json!({"action_requests": [{"name": "a"}], "review_configs": [{"allowed_decisions": ["edit"]}]}),
            ..Question::default()
        };
        assert!(QuestionForm::of(&question).is_none());
    }

    #[test]
    fn questions_to_the_user_have_fields_of_their_own() {
        let question = Question {
            value: json!({"type": ASK_USER, "questions": [
                {"question": "Where?", "type": "text", "required": true},
                {"question": "Which?", "type": "multi_select", "choices": [{"value": "red"}, {"value": "blue"}]},
                {"question": "How many?", "type": "json", "schema": {"type": "integer"}, "required": false}]}),
            ..Question::default()
        };
        let form = QuestionForm::of(&question).expect("a form");
        assert_eq!(properties(&form)["answer_2_choice_2"]["title"], "blue");
        let filled = json!({"answer_1": "here", "answer_2_choice_2": true, "answer_3": "3"});
        assert_eq!(
            form.answer(&filled),
            json!({"type": "answered", "answers": ["here", ["blue"], 3]})
        );
    }

    #[test]
    fn other_questions_are_asked_by_their_schema() {
        let asked = |schema: Value| Question {
            value: json!("What?"),
            schema: schema.into(),
            ..Question::default()
        };
        let object = json!({"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]});
        let form = QuestionForm::of(&asked(object)).expect("a form");
        assert_eq!(form.answer(&json!({"sure": true})), json!({"sure": true}));
        let form = QuestionForm::of(&asked(json!({"type": "integer"}))).expect("a form");
        assert_eq!(form.answer(&json!({"answer": 3})), 3);
        let form = QuestionForm::of(&asked(json!({}))).expect("a form");
        assert_eq!(form.answer(&json!({"answer": "3"})), "3");
        let form = QuestionForm::of(&asked(json!({"type": "array"}))).expect("a form");
        assert_eq!(form.answer(&json!({"answer": "[1]"})), json!([1]));
    }
}
