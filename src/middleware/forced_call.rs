//! Asks a model for one answer of a given form, for the middleware itself.
//!
//! The form is a tool that the model has to call. A model that answers with the JSON as text is understood, too. Before
//! it answers, the model may find out what it needs with tools of the agent.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::dangling_calls::result_of_unreadable;
use super::model_call::ask_model;
use super::{HookTools, MiddlewareModel};
use crate::definition::SystemPrompt;
use crate::definition::mcp::ToolNames;
use crate::domain::call::ToolOutput;
use crate::domain::call_ids::CallIdAllocator;
use crate::domain::message::{Message, Role, ToolCall, ToolStatus};
use crate::domain::text_limits::first_chars;
use crate::model::{ModelRequest, ToolChoice, ToolSpec};
use crate::tool::{ArgumentCheck, Halt, Scope};

/// The maximum number of calls of one answer that are made.
const MOST_CALLS: usize = 16;
/// The characters of a result that the model reads.
const SHOWN_RESULT: usize = 20_000;
/// The bytes of results after which the model has to answer.
const MOST_RESULTS: usize = 400_000;

/// The tools with which a model finds out what it needs for its answer.
pub(super) struct Research<'a> {
    /// The tools of the agent.
    pub(super) tools: &'a dyn HookTools,
    /// The names of the tools that the model may call.
    pub(super) names: &'a ToolNames,
    /// The maximum number of requests, the last of which has to be answered.
    pub(super) max_steps: u64,
    /// The event about each call, to which `tool`, `args` and `status` are added.
    pub(super) event: Value,
}

impl Research<'_> {
    /// Makes a call. Returns its result for the model.
    async fn call(&self, scope: &Scope, call: ToolCall) -> Result<Message, Halt> {
        let output = match self.names.contains(&call.name) {
            true => self.tools.call(call.clone()).await?,
            false => ToolOutput::error(&call, format!("Error: {} is not a tool that you may call.", call.name)),
        };
        let answers = |message: &&Arc<Message>| message.answers() == Some(call.id.as_str());
        let result = output.writes.messages.iter().find(answers);
        let text = result.map(|result| result.content.text()).unwrap_or_default();
        let status = match result.map(|result| &result.role) {
            Some(Role::Tool { status, .. }) => *status,
            Some(Role::Human | Role::System | Role::Ai { .. } | Role::Remove) | None => ToolStatus::Success,
        };
        let mut event = self.event.clone();
        event["tool"] = call.name.as_str().into();
        event["args"] = Value::Object(call.args.clone());
        event["status"] = json!(status);
        scope.progress.send(event).await;
        Ok(Message::tool(&call, status, first_chars(&text, SHOWN_RESULT)))
    }
}

/// A question to a model.
pub(super) struct ForcedCall<'a> {
    /// The model.
    pub(super) model: &'a MiddlewareModel,
    /// The instructions.
    pub(super) instructions: &'a str,
    /// The message of the user.
    pub(super) text: String,
    /// The form of the answer.
    pub(super) form: ToolSpec,
}

impl ForcedCall<'_> {
    /// Asks once. Returns the answer, or the reason why it cannot be used.
    ///
    /// # Errors
    /// [`Halt::Fail`] if the model fails or a limit is reached; [`Halt::Stopped`] if the run has to stop.
    pub(super) async fn ask(&self, scope: &Scope) -> Result<Result<Map<String, Value>, String>, Halt> {
        let answer = ask_model(scope, self.model, self.request()).await?;
        Ok(self.read(&answer))
    }

    /// Asks until the model answers. Before that it may call tools, as often as its steps allow.
    ///
    /// # Errors
    /// As [`ForcedCall::ask`], and if a tool fails whose failure ends the run.
    pub(super) async fn ask_with_tools(
        &self,
        scope: &Scope,
        research: &Research<'_>,
    ) -> Result<Result<Map<String, Value>, String>, Halt> {
        let mut request = self.request();
        let form = request.tools.clone();
        let is_offered = |spec: &Arc<ToolSpec>| research.names.contains(&spec.name) && spec.name != self.form.name;
        request
            .tools
            .extend(research.tools.specs().into_iter().filter(is_offered));
        let mut read = 0;
        for _ in 1..research.max_steps {
            let mut answer = ask_model(scope, self.model, request.clone()).await?;
            CallIdAllocator::make_unique(&mut answer);
            let calls = answer.tool_calls().to_vec();
            let unreadable: Vec<Message> = answer
                .invalid_tool_calls()
                .iter()
                .filter_map(result_of_unreadable)
                .collect();
            let is_silent = calls.is_empty() && unreadable.is_empty();
            if is_silent || calls.iter().any(|call| call.name == self.form.name) {
                return Ok(self.read(&answer));
            }
            request.messages.push(Arc::new(answer));
            request.messages.extend(unreadable.into_iter().map(Arc::new));
            for (at, call) in calls.into_iter().enumerate() {
                let result = match at < MOST_CALLS {
                    true => research.call(scope, call).await?,
                    false => Message::tool(
                        &call,
                        ToolStatus::Error,
                        "Error: too many calls at once. It was not made.",
                    ),
                };
                read += result.content.text_bytes();
                request.messages.push(Arc::new(result));
            }
            if read >= MOST_RESULTS {
                break;
            }
        }
        request.tools = form;
        let answer = ask_model(scope, self.model, request).await?;
        Ok(self.read(&answer))
    }

    fn request(&self) -> ModelRequest {
        ModelRequest {
            system: SystemPrompt::Text(self.instructions.to_owned()),
            messages: vec![Arc::new(Message::human(self.text.as_str()))],
            tools: vec![Arc::new(self.form.clone())],
            tool_choice: ToolChoice::Any,
            ..ModelRequest::default()
        }
    }

    fn read(&self, answer: &Message) -> Result<Map<String, Value>, String> {
        let call = answer.tool_calls().iter().find(|call| call.name == self.form.name);
        let args = match call {
            Some(call) => call.args.clone(),
            None => {
                let text = answer.content.text();
                let text = text.trim().trim_start_matches("```json").trim_matches('`').trim();
                let value: Value = serde_json::from_str(text).map_err(|_| "it is no JSON object".to_owned())?;
                value
                    .as_object()
                    .cloned()
                    .ok_or_else(|| "it is no JSON object".to_owned())?
            }
        };
        ArgumentCheck::new(&self.form).check(&args)?;
        Ok(args)
    }
}
