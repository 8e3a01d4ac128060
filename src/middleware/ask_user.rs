//! Middleware: the agent asks the user questions, by the tool `ask_user`. The run waits for the answers, over restarts.

use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Contribution, Middleware, read_settings};
use crate::definition::{Diagnostic, FieldPath, MAX_EXPIRY_S, builtins};
use crate::domain::call::ToolOutput;
use crate::domain::interrupt::{ASK_USER, Expiry, Question, QuestionKind};
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::schema::{Schema, can_be_embedded};
use crate::domain::schema_text::SchemaText;
use crate::domain::state::State;
use crate::model::ToolSpec;
use crate::tool::{CallOutcome, Halt, Scope, Tool};

/// The name of the tool.
const TOOL: &str = "ask_user";
/// The maximum number of questions of one call.
const MAX_QUESTIONS: usize = 8;
/// The maximum number of choices of one question.
const MAX_CHOICES: usize = 32;
/// The maximum length of a question or a choice, in characters.
const MAX_TEXT: usize = 4_000;
/// The maximum length of an answer, in characters.
const MAX_ANSWER: usize = 100_000;

const DESCRIPTION: &str = "Asks the user one or more questions and waits for the answers. Use it when you cannot go on \
    well without a decision or a fact that only the user has; do not use it for what you can find out yourself. Put \
    questions that belong together into one call. The type `text` is answered by a text, `multiple_choice` by one of \
    the choices, `multi_select` by several of them, and `json` by a value of the given JSON Schema. The user can also \
    give another answer than the choices, unless `allow_other` is false, and can cancel.";

const CANCELLED: &str = "The user has cancelled the questions and gave no answer. Go on without one, and do not ask the \
    same again.";
const EXPIRED: &str = "Nobody has answered in time. Go on without an answer, and do not ask the same again.";

/// The middleware for questions to the user.
#[derive(Clone)]
pub struct AskUser {
    tool: Arc<AskUserTool>,
}

/// The settings of the policy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// The time after which the questions expire, in seconds; they wait for ever when absent.
    expires_after_s: Option<u64>,
}

impl AskUser {
    /// Creates the middleware.
    pub fn new() -> Self {
        Self::with_settings(Settings::default())
    }

    fn with_settings(settings: Settings) -> Self {
        Self {
            tool: Arc::new(AskUserTool {
                spec: Arc::new(spec()),
                settings,
            }),
        }
    }
}

impl Default for AskUser {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for AskUser {
    fn name(&self) -> &str {
        builtins::ASK_USER
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let settings: Settings = read_settings(settings)?;
        if settings
            .expires_after_s
            .is_some_and(|after| !(1..=MAX_EXPIRY_S).contains(&after))
        {
            let message = format!("must be a whole number from 1 to {MAX_EXPIRY_S}");
            return Err(vec![Diagnostic::error(FieldPath::of(["expires_after_s"]), message)]);
        }
        Ok(Some(Arc::new(Self::with_settings(settings))))
    }

    fn contribution(&self) -> Contribution {
        Contribution {
            tools: vec![self.tool.clone()],
            ..Contribution::default()
        }
    }
}

struct AskUserTool {
    spec: Arc<ToolSpec>,
    settings: Settings,
}

/// The type of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerType {
    Text,
    MultipleChoice,
    MultiSelect,
    Json,
}

/// A question of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct UserQuestion {
    question: String,
    #[serde(rename = "type")]
    kind: AnswerType,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    choices: Vec<Choice>,
    #[serde(default = "yes")]
    allow_other: bool,
    #[serde(default = "yes")]
    required: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
}

/// An answer among which the user chooses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Choice {
    value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

fn yes() -> bool {
    true
}

impl UserQuestion {
    /// Returns the reason why the question cannot be asked.
    fn problem(&self) -> Option<String> {
        let is_choice = matches!(self.kind, AnswerType::MultipleChoice | AnswerType::MultiSelect);
        let mut texts = self.choices.iter().map(|choice| &choice.value).chain([&self.question]);
        let repeated = |at: usize| {
            self.choices[..at]
                .iter()
                .any(|other| other.value == self.choices[at].value)
        };
        if texts.any(|text| text.trim().is_empty() || text.chars().count() > MAX_TEXT) {
            return Some(format!(
                "the question and each choice need a text of at most {MAX_TEXT} characters"
            ));
        }
        if is_choice && (self.choices.is_empty() || self.choices.len() > MAX_CHOICES) {
            return Some(format!("it needs 1 to {MAX_CHOICES} `choices`"));
        }
        if !is_choice && !self.choices.is_empty() {
            return Some("`choices` are for multiple_choice and multi_select".to_owned());
        }
        if (0..self.choices.len()).any(repeated) {
            return Some("two of its choices are the same".to_owned());
        }
        match (self.kind, &self.schema) {
            (AnswerType::Json, None) => Some("the type `json` needs a `schema`".to_owned()),
            (AnswerType::Json, Some(schema)) => schema_problem(schema),
            (AnswerType::Text | AnswerType::MultipleChoice | AnswerType::MultiSelect, Some(_)) => {
                Some("`schema` is for the type `json`".to_owned())
            }
            (AnswerType::Text | AnswerType::MultipleChoice | AnswerType::MultiSelect, None) => None,
        }
    }

    /// Returns the schema of an answer.
    fn answer_schema(&self) -> Value {
        let least = usize::from(self.required);
        let text = json!({"type": "string", "minLength": least, "maxLength": MAX_ANSWER});
        let choices: Vec<&str> = self.choices.iter().map(|choice| choice.value.as_str()).collect();
        let chosen = if self.allow_other {
            text.clone()
        } else {
            json!({"enum": choices})
        };
        let schema = match self.kind {
            AnswerType::Text => text,
            AnswerType::MultipleChoice => chosen,
            AnswerType::MultiSelect => {
                json!({"type": "array", "items": chosen, "minItems": least, "maxItems": MAX_CHOICES, "uniqueItems": true})
            }
            AnswerType::Json => self.schema.clone().unwrap_or(Value::Bool(true)),
        };
        if self.required {
            schema
        } else {
            json!({"anyOf": [schema, {"type": "null"}]})
        }
    }
}

/// Returns the reason why a schema cannot be part of the schema of the answers.
fn schema_problem(schema: &Value) -> Option<String> {
    if !can_be_embedded(schema) {
        return Some("its `schema` must be without `$ref` and other keys that begin with $".to_owned());
    }
    let error = Schema::compile(schema).err()?;
    Some(format!("its `schema` is no JSON Schema: {error}"))
}

/// Returns the schema of the answers to all questions. Without a `type` the answers are meant.
fn answers_schema(questions: &[UserQuestion]) -> Value {
    let positions: Vec<Value> = questions.iter().map(UserQuestion::answer_schema).collect();
    json!({
        "type": "object",
        "properties": {
            "type": {"enum": ["answered", "cancelled"]},
            "answers": {
                "type": "array", "minItems": questions.len(), "maxItems": questions.len(), "prefixItems": positions,
            },
        },
        "if": {"properties": {"type": {"const": "cancelled"}}, "required": ["type"]},
        "else": {"required": ["answers"]},
    })
}

/// Returns the result for the model.
fn result(questions: &[UserQuestion], answer: &Value) -> String {
    if answer["type"] == "cancelled" {
        let text = if answer["reason"] == "expired" {
            EXPIRED
        } else {
            CANCELLED
        };
        return text.to_owned();
    }
    let mut text = String::new();
    for (at, question) in questions.iter().enumerate() {
        let given = match answer.pointer(&format!("/answers/{at}")) {
            None | Some(Value::Null) => "(no answer)".to_owned(),
            Some(Value::String(text)) if text.is_empty() => "(no answer)".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        // Writing to a string does not fail.
        writeln!(text, "Question: {}\nAnswer: {given}", question.question).unwrap_or_default();
    }
    text.trim_end().to_owned()
}

fn spec() -> ToolSpec {
    let choice = json!({
        "type": "object",
        "properties": {
            "value": {"type": "string", "description": "The answer."},
            "description": {"type": "string", "description": "What it means, if that is not obvious."},
        },
        "required": ["value"],
    });
    let question = json!({
        "type": "object",
        "properties": {
            "question": {"type": "string", "description": "The question, complete in itself."},
            "type": {"enum": ["text", "multiple_choice", "multi_select", "json"]},
            "choices": {"type": "array", "maxItems": MAX_CHOICES, "items": choice,
                "description": "For multiple_choice and multi_select."},
            "allow_other": {"type": "boolean", "description": "False to accept the choices only; true by default."},
            "required": {"type": "boolean", "description": "False if the user may leave it out; true by default."},
            "schema": {"type": "object", "description": "For the type json: the JSON Schema of the answer."},
        },
        "required": ["question", "type"],
    });
    ToolSpec {
        name: TOOL.to_owned(),
        description: DESCRIPTION.to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {"questions": {"type": "array", "minItems": 1, "maxItems": MAX_QUESTIONS, "items": question}},
            "required": ["questions"],
        }),
    }
}

#[async_trait]
impl Tool for AskUserTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, scope: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let refused = |reason: String| Ok(CallOutcome::Answer(ToolOutput::error(call, format!("Error: {reason}"))));
        let given = call.args.get("questions").cloned().unwrap_or_default();
        let questions: Vec<UserQuestion> = match serde_json::from_value(given) {
            Ok(questions) => questions,
            Err(error) => return refused(format!("questions: {error}")),
        };
        let problems = questions.iter().enumerate();
        if let Some((at, problem)) = problems.filter_map(|(at, one)| Some((at, one.problem()?))).next() {
            return refused(format!("questions[{at}]: {problem}"));
        }
        let value = json!({"type": ASK_USER, "tool_call_id": call.id, "questions": questions});
        let is_answered = scope.question.as_ref().is_some_and(|asked| asked.value == value);
        if let Some(answer) = scope.answer.as_ref().filter(|_| is_answered) {
            let text = result(&questions, answer);
            let message = Message::tool(call, ToolStatus::Success, text);
            return Ok(CallOutcome::Answer(ToolOutput::message(message)));
        }
        let schema = SchemaText::from(answers_schema(&questions));
        if let Err(error) = Schema::compile_once(&schema) {
            return refused(format!("the questions are too large together: {error}"));
        }
        Err(Halt::Ask(vec![Question {
            kind: QuestionKind::Question,
            value,
            schema,
            calls: vec![call.id.clone()],
            expiry: self.settings.expires_after_s.map(|after_s| Expiry {
                after_s,
                answer: json!({"type": "cancelled", "reason": "expired"}),
            }),
            ..Question::default()
        }]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Timestamp;

    async fn outcome(questions: Value, answer: Option<Value>) -> Result<CallOutcome, Halt> {
        let call = ToolCall::new("c1", TOOL, Map::from_iter([("questions".to_owned(), questions)]));
        let tool = AskUser::new().tool;
        let scope = Scope::sample(Timestamp(0));
        let first = tool.call(&scope, &State::default(), &call).await;
        let (Err(Halt::Ask(asked)), Some(answer)) = (&first, answer) else {
            return first;
        };
        let answer = asked[0].normalised(answer);
        asked[0].check(&answer).expect("a valid answer");
        let scope = scope.answered(vec![(Arc::new(asked[0].clone()), answer)]);
        tool.call(&scope, &State::default(), &call).await
    }

    async fn question(questions: Value) -> Question {
        match outcome(questions, None).await {
            Err(Halt::Ask(mut asked)) => asked.remove(0),
            other => panic!("{other:?}"),
        }
    }

    async fn text(questions: Value, answer: Option<Value>) -> String {
        match outcome(questions, answer).await {
            Ok(CallOutcome::Answer(output)) => output.writes.messages[0].content.text(),
            other => panic!("{other:?}"),
        }
    }

    fn color(more: Value) -> Value {
        let mut one = json!({"question": "Which colour?", "type": "multiple_choice",
            "choices": [{"value": "red"}, {"value": "blue", "description": "Like the sea."}]});
        for (key, value) in more.as_object().expect("an object") {
            one[key] = value.clone();
        }
        one
    }

    #[tokio::test]
    async fn the_answers_are_checked_by_the_types_of_the_questions() {
        let asked = question(json!([
            {"question": "Name?", "type": "text"},
            color(json!({"allow_other": false})),
            color(json!({"type": "multi_select"})),
            {"question": "Size?", "type": "json", "schema": {"type": "integer"}, "required": false},
        ]))
        .await;
        let fits = |answers: Value| asked.check(&json!({"type": "answered", "answers": answers})).is_ok();
        assert!(fits(json!(["Ann", "red", ["blue", "green"], 3])));
        assert!(fits(json!(["Ann", "red", ["blue"], null])));
        assert!(!fits(json!(["", "red", ["blue"], null])), "an answer is required");
        assert!(
            !fits(json!(["Ann", "green", ["blue"], null])),
            "no other answer is allowed"
        );
        assert!(!fits(json!(["Ann", "red", "blue", null])));
        assert!(!fits(json!(["Ann", "red", ["blue"], "large"])));
        assert!(!fits(json!(["Ann"])));
        assert!(asked.check(&json!({"type": "cancelled"})).is_ok());
        assert!(asked.check(&json!({})).is_err());
        assert!(asked.shows_schema());
    }

    #[tokio::test]
    async fn the_result_has_the_questions_and_the_answers() {
        let two =
            json!([{"question": "Name?", "type": "text", "required": false}, color(json!({"type": "multi_select"}))]);
        let said = text(two, Some(json!({"answers": [null, ["red", "blue"]]}))).await;
        assert_eq!(
            said,
            "Question: Name?\nAnswer: (no answer)\nQuestion: Which colour?\nAnswer: [\"red\",\"blue\"]"
        );
        let one = json!([{"question": "Name?", "type": "text"}]);
        let said = text(one.clone(), Some(json!("Ann"))).await;
        assert_eq!(
            said, "Question: Name?\nAnswer: Ann",
            "a plain text answers a single question"
        );
        let said = text(json!([color(json!({"type": "multi_select"}))]), Some(json!(["red"]))).await;
        assert_eq!(said, "Question: Which colour?\nAnswer: [\"red\"]");
        assert_eq!(text(one, Some(json!({"type": "cancelled"}))).await, CANCELLED);
    }

    #[tokio::test]
    async fn questions_that_cannot_be_asked_are_error_results() {
        let of = |one: Value| async move { text(json!([one]), None).await };
        assert!(
            of(color(json!({"choices": []})))
                .await
                .contains("questions[0]: it needs 1 to 32 `choices`")
        );
        assert!(
            of(color(json!({"choices": [{"value": "a"}, {"value": "a"}]})))
                .await
                .contains("the same")
        );
        assert!(
            of(json!({"question": " ", "type": "text"}))
                .await
                .contains("need a text")
        );
        assert!(
            of(json!({"question": "x", "type": "json"}))
                .await
                .contains("needs a `schema`")
        );
        let refers = json!({"question": "x", "type": "json", "schema": {"$ref": "#/a"}});
        assert!(of(refers).await.contains("without `$ref`"));
        let wrong = json!({"question": "x", "type": "json", "schema": {"type": 7}});
        assert!(of(wrong).await.contains("is no JSON Schema"));
    }

    #[test]
    fn the_time_of_the_questions_is_a_setting() {
        let configured = |after: Value| {
            let settings = Map::from_iter([("expires_after_s".to_owned(), after)]);
            AskUser::new().configured(&settings).map(drop)
        };
        assert_eq!(configured(json!(60)), Ok(()));
        assert!(configured(json!(0)).is_err());
        assert!(configured(json!("1h")).is_err());
    }
}
