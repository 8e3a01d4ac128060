//! Policy: the agent's final answer has a form.
//!
//! The form is offered as a tool that the model has to call in the end; its arguments are the answer. Works with every
//! provider that can call tools. A model that answers in plain text nevertheless is reminded, but not for ever. The other
//! way, by which the provider itself keeps to the form, is [`native`].

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

/// The field that holds the answer.
pub const FIELD: &str = "structured_response";
/// What marks a reminder as ours.
const OURS: &str = "structured_output";
/// The class of the failure when there is no answer in the form.
pub const FAILURE: &str = "StructuredOutputError";
/// What a model is told that answers more than once.
const SEVERAL: &str = "Error: there are several final answers in one message, but there can be only one. None was taken. \
    Call once, with the whole answer.";

/// The policy.
#[derive(Clone)]
pub struct StructuredOutput {
    forms: Vec<Arc<Form>>,
    /// What the answer looks like, all alternatives together.
    schema: Value,
    /// What becomes of an answer that does not fit.
    errors: HandleErrors,
}

impl StructuredOutput {
    /// The answer has to have this form; with alternatives one of them.
    pub fn new(format: &AnswerFormat) -> Self {
        let schemas = format.alternatives();
        let all: Arc<[String]> = schemas.iter().map(tool_name).collect();
        let kept = &format.tool_message_content;
        let form = |(at, schema): (usize, Value)| Arc::new(Form::new(&all, at, schema, kept.clone()));
        let forms = schemas.into_iter().enumerate().map(form).collect();
        Self {
            forms,
            schema: format.schema.clone(),
            errors: format.handle_errors.clone(),
        }
    }

    /// What is wrong with a call of a form, beside the other calls of its message.
    fn mistake(&self, call: &ToolCall, state: &State) -> Option<String> {
        let form = self.forms.iter().find(|form| form.spec.name == call.name)?;
        form.check
            .check(&call.args)
            .err()
            .or_else(|| form.is_one_of_several(state).then(|| SEVERAL.to_owned()))
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
            matches!(
                last.role,
                Role::Tool {
                    status: ToolStatus::Success,
                    ..
                }
            ) && last.name.as_ref().is_some_and(is_form)
        })
    }

    /// What is to be done about the model's last answer, when it is plain text.
    fn remind(&self, state: &State) -> Result<HookResult, Halt> {
        if has_answer(state) {
            return Ok(HookResult::default());
        }
        let names: Vec<String> = self.forms.iter().map(|form| format!("`{}`", form.spec.name)).collect();
        let names = names.join(" or ");
        ToolUseReminder {
            source: OURS,
            text: format!(
                "Your answer was plain text and nobody will read it. Give your final answer by calling {names}."
            ),
            failure: (
                FAILURE,
                "the model gave its answer as plain text, although it was reminded of the required form",
            ),
        }
        .about(state)
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
            // The answer of an earlier turn must not be taken for one of this turn.
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
        match (&self.errors, self.mistake(&call, next.state)) {
            (HandleErrors::Say(text), Some(_)) => Ok(CallOutcome::Answer(ToolOutput::error(&call, text.clone()))),
            (HandleErrors::Switch(false), Some(mistake)) => Err(Halt::Fail(Failure::new(FAILURE, mistake))),
            (HandleErrors::Switch(_), _) | (HandleErrors::Say(_), None) => next.call(call).await,
        }
    }
}

/// Whether there is an answer in the form already.
fn has_answer(state: &State) -> bool {
    state.fields.get(FIELD).is_some_and(|answer| !answer.is_null())
}

/// One form of the answer, as a tool.
struct Form {
    spec: Arc<ToolSpec>,
    check: ArgumentCheck,
    all: Arc<[String]>,
    /// What stands in the conversation as its result, when not the answer itself.
    kept: Option<String>,
}

impl Form {
    /// The form at `at` among `all` the names.
    fn new(all: &Arc<[String]>, at: usize, schema: Value, kept: Option<String>) -> Self {
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
            kept,
        }
    }

    /// Whether the model's last message gives several final answers.
    fn is_one_of_several(&self, state: &State) -> bool {
        open_calls(state)
            .iter()
            .filter(|other| self.all.contains(&other.name))
            .count()
            > 1
    }

    /// What a good answer writes: its result, and the answer itself.
    fn writes(&self, call: &ToolCall) -> Update {
        let response = self.in_order(call.args.clone());
        let shown: Vec<String> = response
            .iter()
            .map(|(name, value)| format!("{name}={}", python(value)))
            .collect();
        let standard = || format!("Returning structured response: {}", shown.join(" "));
        let text = self.kept.clone().unwrap_or_else(standard);
        let mut writes = Update::messages([Message::tool(call, ToolStatus::Success, text)]);
        writes.merge(Update::field(FIELD, Value::Object(response)));
        writes
    }

    /// The arguments in the order of the schema, which is the one the reader expects.
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
        }))
    }
}

/// The schema's title as the name of a tool; without one, a name that the same schema always gets.
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
