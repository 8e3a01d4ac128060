//! Middleware: the agent's final answer matches a JSON Schema.
//!
//! The schema is offered as a tool that the model has to call at the end; the arguments are the answer. This works
//! with every provider that supports tools. A model that answers in plain text is reminded a limited number of times.
//! The alternative, structured output by the provider, is [`native`].

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::reminder::ToolUseReminder;
use super::{Contribution, HookResult, Middleware, ModelAnswer, NextCall, NextModel, open_calls};
use crate::definition::builtins;
use crate::definition::{AnswerFormat, HandleErrors, form_name};
use crate::domain::call::ToolOutput;
use crate::domain::graph::Field;
use crate::domain::machine::{Failure, HookPoint, Jump};
use crate::domain::message::{Message, Role, ToolCall, ToolStatus};
use crate::domain::state::{State, Update};
use crate::model::{ModelRequest, ToolChoice, ToolSpec};
use crate::tool::literal::python;
use crate::tool::{ArgumentCheck, CallOutcome, Halt, Scope, Tool};

pub mod native;

/// The field with the answer.
pub const FIELD: &str = "structured_response";
/// The value that marks reminders of this middleware.
const SOURCE: &str = "structured_output";
/// The class of the failure if there is no valid answer.
pub const FAILURE: &str = "StructuredOutputError";
/// The result for a model that gives several answers.
const SEVERAL: &str = "Error: there are several final answers in one message, but there can be only one. None was taken. \
    Call once, with the whole answer.";

/// The structured output middleware.
#[derive(Clone)]
pub struct StructuredOutput {
    forms: Vec<Arc<Form>>,
    /// The schema of the answer, with all alternatives.
    schema: Value,
    /// The handling of invalid answers.
    errors: HandleErrors,
}

impl StructuredOutput {
    /// Creates the middleware for this format, or for one of its alternatives.
    pub fn new(format: &AnswerFormat) -> Self {
        let schemas = format.alternatives();
        let all: Arc<[String]> = schemas.iter().map(tool_name).collect();
        let result_text = &format.tool_message_content;
        let form = |(at, schema): (usize, Value)| Arc::new(Form::new(&all, at, schema, result_text.clone()));
        let forms = schemas.into_iter().enumerate().map(form).collect();
        Self {
            forms,
            schema: format.schema.clone(),
            errors: format.handle_errors.clone(),
        }
    }

    /// Returns the error in a call that gives the answer, considering the other calls of its message.
    fn call_error(&self, call: &ToolCall, state: &State) -> Option<String> {
        let form = self.forms.iter().find(|form| form.spec.name == call.name)?;
        form.check
            .check(&call.args)
            .err()
            .or_else(|| form.is_one_of_several(state).then(|| SEVERAL.to_owned()))
    }

    /// Returns the writes for a message that consists of one valid answer. Other messages are left to the tool step.
    fn take(&self, message: &Message) -> Option<Update> {
        let [call] = message.tool_calls() else { return None };
        let form = self.forms.iter().find(|form| form.spec.name == call.name)?;
        let fits = message.invalid_tool_calls().is_empty() && form.check.check(&call.args).is_ok();
        fits.then(|| form.writes(call))
    }

    /// Returns whether the answer was just taken from the model's message.
    fn was_taken(&self, state: &State) -> bool {
        let is_form = |name: &String| self.forms.iter().any(|form| form.spec.name == *name);
        state.messages.last().is_some_and(|last| {
            matches!(
                last.role,
                Role::Tool {
                    status: ToolStatus::Success,
                    ..
                }
            ) && last.name.as_ref().is_some_and(is_form)
        })
    }

    /// Returns the reminder if the model's last answer is plain text.
    fn remind(&self, state: &State) -> Result<HookResult, Halt> {
        if has_answer(state) {
            return Ok(HookResult::default());
        }
        let names: Vec<String> = self.forms.iter().map(|form| format!("`{}`", form.spec.name)).collect();
        let names = names.join(" or ");
        ToolUseReminder {
            source: SOURCE,
            text: format!(
                "Your answer was plain text and nobody will read it. Give your final answer by calling {names}."
            ),
            failure: (
                FAILURE,
                "the model gave its answer as plain text, although it was reminded of the required form",
            ),
        }
        .remind(state)
    }
}

#[async_trait]
impl Middleware for StructuredOutput {
    fn name(&self) -> &str {
        builtins::STRUCTURED
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeAgent, HookPoint::AfterModel]
    }

    fn contribution(&self) -> Contribution {
        let tools = self
            .forms
            .iter()
            .map(|form| Arc::clone(form) as Arc<dyn Tool>)
            .collect();
        Contribution {
            tools,
            prompt: None,
            fields: vec![Field {
                name: FIELD,
                schema: self.schema.clone(),
            }],
        }
    }

    async fn hook(&self, point: HookPoint, _: &Scope, state: &State) -> Result<HookResult, Halt> {
        match point {
            // The answer of an earlier turn is not the answer of this one.
            HookPoint::BeforeAgent if has_answer(state) => Ok(Update::field(FIELD, Value::Null).into()),
            HookPoint::AfterModel if self.was_taken(state) => Ok(HookResult {
                update: Update::none(),
                jump: Some(Jump::End),
                ..HookResult::default()
            }),
            HookPoint::AfterModel => self.remind(state),
            HookPoint::BeforeAgent | HookPoint::BeforeModel | HookPoint::AfterAgent => Ok(HookResult::default()),
        }
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut answer = next
            .ask(ModelRequest {
                tool_choice: ToolChoice::Any,
                ..request
            })
            .await?;
        if let Some(taken) = self.take(&answer.message) {
            answer.extra.merge(taken);
        }
        Ok(answer)
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        match (&self.errors, self.call_error(&call, next.state)) {
            (HandleErrors::Say(text), Some(_)) => Ok(CallOutcome::Answer(ToolOutput::error(&call, text.clone()))),
            (HandleErrors::Switch(false), Some(call_error)) => Err(Halt::Fail(Failure::new(FAILURE, call_error))),
            (HandleErrors::Switch(_), _) | (HandleErrors::Say(_), None) => next.call(call).await,
        }
    }
}

/// Returns whether there is an answer already.
fn has_answer(state: &State) -> bool {
    state.fields.get(FIELD).is_some_and(|answer| !answer.is_null())
}

/// One alternative of the answer, as a tool.
struct Form {
    spec: Arc<ToolSpec>,
    check: ArgumentCheck,
    all: Arc<[String]>,
    /// The text of the tool result in the conversation, if not the answer itself.
    result_text: Option<String>,
}

impl Form {
    /// Creates alternative number `at`; `all` are the names of all alternatives.
    fn new(all: &Arc<[String]>, at: usize, schema: Value, result_text: Option<String>) -> Self {
        let about = schema
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or("The form of your final answer.");
        let description =
            format!("{about}\n\nCall this once, alone, when you have your final answer: it ends your work.");
        let spec = ToolSpec {
            name: all[at].clone(),
            description,
            parameters: schema,
        };
        Self {
            check: ArgumentCheck::new(&spec),
            spec: Arc::new(spec),
            all: Arc::clone(all),
            result_text,
        }
    }

    /// Returns whether the model's last message gives several answers.
    fn is_one_of_several(&self, state: &State) -> bool {
        open_calls(state)
            .iter()
            .filter(|other| self.all.contains(&other.name))
            .count()
            > 1
    }

    /// Returns the writes of a valid answer: the tool result, and the answer itself.
    fn writes(&self, call: &ToolCall) -> Update {
        let response = self.in_order(call.args.clone());
        let fields: Vec<String> = response
            .iter()
            .map(|(name, value)| format!("{name}={}", python(value)))
            .collect();
        let standard = || format!("Returning structured response: {}", fields.join(" "));
        let text = self.result_text.clone().unwrap_or_else(standard);
        let mut writes = Update::messages([Message::tool(call, ToolStatus::Success, text)]);
        writes.merge(Update::field(FIELD, Value::Object(response)));
        writes
    }

    /// Returns the arguments in the order of the schema, which readers expect.
    fn in_order(&self, mut args: Map<String, Value>) -> Map<String, Value> {
        let Some(properties) = self.spec.parameters.get("properties").and_then(Value::as_object) else {
            return args;
        };
        let mut ordered: Map<String, Value> = properties
            .keys()
            .filter_map(|name| args.remove(name).map(|value| (name.clone(), value)))
            .collect();
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
        if self.is_one_of_several(state) {
            return Ok(CallOutcome::Answer(ToolOutput::error(call, SEVERAL)));
        }
        Ok(CallOutcome::Answer(ToolOutput {
            writes: self.writes(call),
            ends: true,
            is_logged: false,
            changes: vec![],
            failure: None,
        }))
    }
}

/// Returns the tool's name: the schema's title, or a name derived from the schema.
fn tool_name(schema: &Value) -> String {
    form_name(schema).unwrap_or_else(|| {
        let hash = Uuid::new_v5(&Uuid::nil(), schema.to_string().as_bytes())
            .simple()
            .to_string();
        format!("response_format_{}", &hash[..8])
    })
}

#[cfg(test)]
mod tests;
