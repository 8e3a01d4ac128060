//! Policy: the agent's final answer has a form.
//!
//! The form is offered as a tool that the model has to call in the end; its arguments are the answer. Works with every
//! provider that can call tools. A model that answers in plain text nevertheless is reminded, but not for ever.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::reminder::Reminder;
use super::{Contribution, Middleware, ModelAnswer, NextModel, Reaction, open_calls};
use crate::domain::Invalid;
use crate::domain::call::Answer;
use crate::domain::graph::Field;
use crate::domain::machine::{Jump, Moment};
use crate::domain::message::{Message, Role, ToolCall, ToolStatus};
use crate::domain::state::{State, Update};
use crate::model::{ModelRequest, ToolChoice, ToolSpec};
use crate::tool::literal::python;
use crate::tool::{ArgumentCheck, CallOutcome, Halt, Scope, Tool};

/// The field that holds the answer.
pub const FIELD: &str = "structured_response";
/// What marks a reminder as ours.
const OURS: &str = "structured_output";
/// The longest name of a tool that providers accept.
const LONGEST_NAME: usize = 64;

/// The policy.
#[derive(Clone)]
pub struct StructuredOutput {
    forms: Vec<Arc<Form>>,
    /// What the answer looks like, all alternatives together.
    schema: Value,
}

impl StructuredOutput {
    /// The answer has to fit `schema`; with alternatives at its top (`oneOf`, `anyOf`) one of them.
    ///
    /// # Errors
    /// When it is no JSON Schema of an object, or two alternatives have one name.
    pub fn new(schema: &Value) -> Result<Self, Invalid> {
        let refuse = |reason: String| Err(Invalid::new("response_format", reason));
        if let Err(error) = jsonschema::validator_for(schema) {
            return refuse(format!("is not a JSON Schema: {error}"));
        }
        let alternatives = ["oneOf", "anyOf"].iter().find_map(|keyword| schema.get(keyword)?.as_array());
        let schemas = match alternatives {
            Some(alternatives) => alternatives.iter().map(|one| with_definitions(one, schema)).collect(),
            None => vec![schema.clone()],
        };
        let mut names: Vec<String> = vec![];
        for schema in &schemas {
            if schema.get("type").and_then(Value::as_str) != Some("object") {
                return refuse("must be a JSON Schema with \"type\": \"object\"".to_owned());
            }
            let name = form_name(schema);
            if names.contains(&name) {
                return refuse(format!("has two alternatives named `{name}`; give each a `title` of its own"));
            }
            names.push(name);
        }
        let all: Arc<[String]> = names.into();
        let form = |(at, schema): (usize, Value)| Arc::new(Form::new(&all, at, schema));
        Ok(Self { forms: schemas.into_iter().enumerate().map(form).collect(), schema: schema.clone() })
    }

    /// What is written for a message that is nothing but a good answer. Whatever else the message holds is left to the
    /// tool step, which has the rules for it.
    fn take(&self, message: &Message) -> Option<Update> {
        let [call] = message.tool_calls() else { return None };
        let form = self.forms.iter().find(|form| form.spec.name == call.name)?;
        let fits = message.invalid_tool_calls().is_empty() && form.check.check(&call.args).is_ok();
        fits.then(|| form.writes(call))
    }

    /// Whether the last thing that happened is that an answer was taken together with the model's message.
    fn was_taken(&self, state: &State) -> bool {
        let is_form = |name: &String| self.forms.iter().any(|form| form.spec.name == *name);
        state.messages.last().is_some_and(|last| {
            matches!(last.role, Role::Tool { status: ToolStatus::Success, .. })
                && last.name.as_ref().is_some_and(is_form)
        })
    }

    /// What is to be done about the model's last answer, when it is plain text.
    fn remind(&self, state: &State) -> Result<Reaction, Halt> {
        if state.fields.get(FIELD).is_some_and(|response| !response.is_null()) {
            return Ok(Reaction::default());
        }
        let names: Vec<String> = self.forms.iter().map(|form| format!("`{}`", form.spec.name)).collect();
        let names = names.join(" or ");
        Reminder {
            source: OURS,
            text: format!(
                "Your answer was plain text and nobody will read it. Give your final answer by calling {names}."
            ),
            failure: (
                "StructuredOutputError",
                "the model gave its answer as plain text, although it was reminded of the required form",
            ),
        }
        .about(state)
    }
}

#[async_trait]
impl Middleware for StructuredOutput {
    fn name(&self) -> &str {
        "StructuredOutputMiddleware"
    }

    fn moments(&self) -> &[Moment] {
        &[Moment::BeforeAgent, Moment::AfterModel]
    }

    fn contribution(&self) -> Contribution {
        let tools = self.forms.iter().map(|form| Arc::clone(form) as Arc<dyn Tool>).collect();
        Contribution { tools, prompt: None, fields: vec![Field { name: FIELD, schema: self.schema.clone() }] }
    }

    async fn hook(&self, moment: Moment, _: &Scope, state: &State) -> Result<Reaction, Halt> {
        match moment {
            // The answer of an earlier turn must not be taken for one of this turn.
            Moment::BeforeAgent if state.fields.get(FIELD).is_some_and(|response| !response.is_null()) => {
                Ok(Update::field(FIELD, Value::Null).into())
            }
            Moment::AfterModel if self.was_taken(state) => {
                Ok(Reaction { update: Update::none(), jump: Some(Jump::End) })
            }
            Moment::AfterModel => self.remind(state),
            Moment::BeforeAgent | Moment::BeforeModel | Moment::AfterAgent => Ok(Reaction::default()),
        }
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut answer = next.ask(ModelRequest { tool_choice: ToolChoice::Any, ..request }).await?;
        if let Some(taken) = self.take(&answer.message) {
            answer.extra.merge(taken);
        }
        Ok(answer)
    }
}

/// One form of the answer, as a tool.
struct Form {
    spec: Arc<ToolSpec>,
    check: ArgumentCheck,
    all: Arc<[String]>,
}

impl Form {
    /// The form at `at` among `all` the names.
    fn new(all: &Arc<[String]>, at: usize, schema: Value) -> Self {
        let about = schema.get("description").and_then(Value::as_str).unwrap_or("The form of your final answer.");
        let description =
            format!("{about}\n\nCall this once, alone, when you have your final answer: it ends your work.");
        let spec = ToolSpec { name: all[at].clone(), description, parameters: schema };
        Self { check: ArgumentCheck::new(&spec), spec: Arc::new(spec), all: Arc::clone(all) }
    }

    /// What a good answer writes: its result, and the answer itself.
    fn writes(&self, call: &ToolCall) -> Update {
        let response = self.in_order(call.args.clone());
        let shown: Vec<String> = response.iter().map(|(name, value)| format!("{name}={}", python(value))).collect();
        let text = format!("Returning structured response: {}", shown.join(" "));
        let mut writes = Update::messages([Message::tool(call, ToolStatus::Success, text)]);
        writes.merge(Update::field(FIELD, Value::Object(response)));
        writes
    }

    /// The arguments in the order of the schema, which is the one the reader expects.
    fn in_order(&self, mut args: Map<String, Value>) -> Map<String, Value> {
        let Some(properties) = self.spec.parameters.get("properties").and_then(Value::as_object) else {
            return args;
        };
        let mut ordered: Map<String, Value> =
            properties.keys().filter_map(|name| args.remove(name).map(|value| (name.clone(), value))).collect();
        ordered.extend(args);
        ordered
    }
}

#[async_trait]
impl Tool for Form {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if open_calls(state).iter().filter(|other| self.all.contains(&other.name)).count() > 1 {
            let text = "Error: there are several final answers in one message, but there can be only one. None was \
                taken. Call once, with the whole answer.";
            return Ok(CallOutcome::Answer(Answer::error(call, text)));
        }
        Ok(CallOutcome::Answer(Answer { writes: self.writes(call), ends: true, shown: false, changes: vec![] }))
    }
}

/// An alternative of `whole` that can stand alone: with the definitions it may refer to.
fn with_definitions(alternative: &Value, whole: &Value) -> Value {
    let mut alone = alternative.clone();
    for keyword in ["$defs", "definitions"] {
        if let (Some(fields), Some(definitions)) = (alone.as_object_mut(), whole.get(keyword)) {
            fields.entry(keyword).or_insert_with(|| definitions.clone());
        }
    }
    alone
}

/// The schema's title as the name of a tool; without one, a name that the same schema always gets.
fn form_name(schema: &Value) -> String {
    let title = schema.get("title").and_then(Value::as_str).unwrap_or_default();
    let safe = |letter: char| if letter.is_ascii_alphanumeric() || "_-".contains(letter) { letter } else { '_' };
    let name: String = title.chars().take(LONGEST_NAME).map(safe).collect();
    if name.chars().any(|letter| letter.is_ascii_alphanumeric()) {
        return name;
    }
    let hash = Uuid::new_v5(&Uuid::nil(), schema.to_string().as_bytes()).simple().to_string();
    format!("response_format_{}", &hash[..8])
}

#[cfg(test)]
mod tests;
