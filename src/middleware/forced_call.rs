//! Asks a model for one answer of a given form, for the middleware itself.
//!
//! The form is a tool that the model has to call. A model that answers with the JSON as text is understood, too.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::MiddlewareModel;
use super::model_call::ask_model;
use crate::definition::SystemPrompt;
use crate::domain::message::Message;
use crate::model::{ModelRequest, ToolChoice, ToolSpec};
use crate::tool::{ArgumentCheck, Halt, Scope};

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
        let request = ModelRequest {
            system: SystemPrompt::Text(self.instructions.to_owned()),
            messages: vec![Arc::new(Message::human(self.text.as_str()))],
            tools: vec![Arc::new(self.form.clone())],
            tool_choice: ToolChoice::Any,
            ..ModelRequest::default()
        };
        let answer = ask_model(scope, self.model, request).await?;
        Ok(self.read(&answer))
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

/// Returns the first characters of a text.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}
