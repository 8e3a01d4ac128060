//! Middleware: the agent's final answer matches a JSON Schema, by structured output of the provider.
//!
//! The text of the answer is the JSON. It is validated, since not every server enforces the schema.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::super::reminder::ToolUseReminder;
use super::{FAILURE, FIELD, SOURCE, has_answer};
use crate::definition::builtins;
use crate::definition::{AnswerFormat, HandleErrors};
use crate::domain::graph::Field;
use crate::domain::machine::{Failure, HookPoint};
use crate::domain::message::Message;
use crate::domain::schema::{Schema, SchemaCheck};
use crate::domain::state::{State, Update};
use crate::middleware::{Contribution, HookResult, Middleware, ModelAnswer, NextModel};
use crate::model::ModelRequest;
use crate::tool::{Halt, Scope};

/// The native structured output middleware.
pub struct NativeAnswer {
    format: Arc<AnswerFormat>,
    schema: Option<Schema>,
}

impl NativeAnswer {
    /// Creates the middleware for this format.
    pub fn new(format: &AnswerFormat) -> Self {
        // An invalid schema was refused when the definition was read.
        let schema = Schema::compile(&format.schema).ok();
        Self {
            format: Arc::new(format.clone()),
            schema,
        }
    }

    /// Returns the answer in a message without tool calls.
    ///
    /// # Errors
    /// The reason why it is invalid.
    fn read(&self, message: &Message) -> Result<Value, String> {
        let text = message.content.text();
        self.fitting(serde_json::from_str(text.trim()).map_err(|error| format!("it is not JSON ({error})"))?)
    }

    /// Returns the schema.
    pub fn schema(&self) -> Arc<Value> {
        Arc::new(self.format.schema.clone())
    }

    /// Returns the answer of a program: its `structured_response`, or its last message.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn of_program(&self, written: &Update) -> Result<Value, String> {
        let response = written.fields.get(FIELD).filter(|response| !response.is_null());
        let last = written.messages.iter().rfind(|message| message.is_ai());
        match (response, last) {
            (Some(response), _) => self.fitting(response.clone()),
            (None, Some(last)) => self.read(last),
            (None, None) => Err("it neither says anything nor has a `structured_response`".to_owned()),
        }
    }

    fn fitting(&self, value: Value) -> Result<Value, String> {
        let problem = match self.schema.as_ref().map(|schema| schema.validate(&value)) {
            None | Some(SchemaCheck::Fits) => None,
            Some(SchemaCheck::Wrong(errors)) => errors
                .first()
                .map(|error| format!("`{}`: {error}", error.instance_path())),
            Some(SchemaCheck::Unexplained(reason)) => Some(format!("it {reason}")),
        };
        problem.map_or(Ok(value), Err)
    }
}

/// Returns whether a message is a final answer, without tool calls.
fn is_final(message: &Message) -> bool {
    message.is_ai() && message.tool_calls().is_empty() && message.invalid_tool_calls().is_empty()
}

#[async_trait]
impl Middleware for NativeAnswer {
    fn name(&self) -> &str {
        builtins::STRUCTURED
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeAgent, HookPoint::AfterModel]
    }

    fn contribution(&self) -> Contribution {
        Contribution {
            fields: vec![Field {
                name: FIELD,
                schema: self.format.schema.clone(),
            }],
            ..Contribution::default()
        }
    }

    async fn hook(&self, point: HookPoint, _: &Scope, state: &State) -> Result<HookResult, Halt> {
        let is_there = has_answer(state);
        match (point, state.last_ai()) {
            // The answer of an earlier turn is not the answer of this one.
            (HookPoint::BeforeAgent, _) if is_there => Ok(Update::field(FIELD, Value::Null).into()),
            (HookPoint::AfterModel, Some(last)) if !is_there && is_final(last) => {
                let problem = self.read(last).err().unwrap_or_else(|| "it was not taken".to_owned());
                let text = match &self.format.handle_errors {
                    HandleErrors::Switch(false) => return Err(Halt::Fail(Failure::new(FAILURE, problem))),
                    HandleErrors::Switch(true) => format!(
                        "Your answer does not have the form that was asked for: {problem}. Answer with the JSON and \
                         nothing else."
                    ),
                    HandleErrors::Say(text) => text.clone(),
                };
                let failure = (
                    FAILURE,
                    "the model was told of the required form and did not keep to it",
                );
                ToolUseReminder {
                    source: SOURCE,
                    text,
                    failure,
                }
                .remind(state)
            }
            _ => Ok(HookResult::default()),
        }
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut answer = next
            .ask(ModelRequest {
                answer_format: Some(Arc::clone(&self.format)),
                ..request
            })
            .await?;
        if is_final(&answer.message)
            && let Ok(response) = self.read(&answer.message)
        {
            answer.extra.merge(Update::field(FIELD, response));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::FutureExt;
    use serde_json::json;

    use super::*;
    use crate::domain::machine::Jump;
    use crate::domain::state_size::StateSize;
    use crate::domain::time::Timestamp;

    fn policy(errors: Value) -> NativeAnswer {
        let schema =
            json!({"title": "Finding", "type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}});
        NativeAnswer::new(&AnswerFormat::of(
            &json!({"schema": schema, "strategy": "provider", "handle_errors": errors}),
        ))
    }

    async fn asked(says: &'static str) -> (Option<Value>, bool) {
        let seen = AtomicBool::new(false);
        let ask = |request: ModelRequest| {
            seen.store(request.answer_format.is_some(), Ordering::Relaxed);
            async move {
                Ok(ModelAnswer {
                    message: Message::ai(says),
                    extra: Update::none(),
                })
            }
            .boxed()
        };
        let scope = Scope::sample(Timestamp(0));
        let state = State::default();
        let next = NextModel {
            rest: &[],
            ask: &ask,
            scope: &scope,
            state: &state,
            size: &StateSize::default(),
        };
        let answer = policy(json!(true))
            .wrap_model_call(ModelRequest::default(), next)
            .await
            .expect("an answer");
        let taken = answer.extra.fields.get(FIELD).cloned();
        (taken, seen.into_inner())
    }

    #[tokio::test]
    async fn a_matching_text_is_the_answer_and_the_provider_gets_the_schema() {
        assert_eq!(asked(r#"{"a": "x"}"#).await, (Some(json!({"a": "x"})), true));
        for wrong in ["plain words", r#"{"a": 1}"#, "[]", ""] {
            assert_eq!(asked(wrong).await, (None, true), "{wrong}");
        }
    }

    #[tokio::test]
    async fn an_invalid_answer_is_returned_twice_or_fails_at_once() {
        let mut state = State::default();
        state
            .messages
            .extend([Message::human("go"), Message::ai("words")].map(Arc::new));
        let scope = Scope::sample(Timestamp(0));
        let strict = policy(json!(false)).hook(HookPoint::AfterModel, &scope, &state).await;
        assert!(matches!(strict, Err(Halt::Fail(failure)) if failure.message.contains("not JSON")));
        for _ in 0..2 {
            let reaction = policy(json!("JSON, please."))
                .hook(HookPoint::AfterModel, &scope, &state)
                .await
                .expect("a reminder");
            assert_eq!(reaction.jump, Some(Jump::Model));
            assert_eq!(reaction.update.messages[0].content.text(), "JSON, please.");
            state.apply(&reaction.update);
            state.messages.push(Arc::new(Message::ai("words")));
        }
        let failed = policy(json!(true)).hook(HookPoint::AfterModel, &scope, &state).await;
        assert!(matches!(failed, Err(Halt::Fail(failure)) if failure.class == FAILURE));
    }

    #[tokio::test]
    async fn a_valid_answer_needs_no_reminder_and_lasts_one_turn() {
        let mut state = State::default();
        state
            .messages
            .extend([Message::human("go"), Message::ai(r#"{"a": "x"}"#)].map(Arc::new));
        state.apply(&Update::field(FIELD, json!({"a": "x"})));
        let scope = Scope::sample(Timestamp(0));
        assert_eq!(
            policy(json!(true)).hook(HookPoint::AfterModel, &scope, &state).await,
            Ok(HookResult::default())
        );
        let forgotten = policy(json!(true)).hook(HookPoint::BeforeAgent, &scope, &state).await;
        assert_eq!(forgotten, Ok(Update::field(FIELD, Value::Null).into()));
    }
}
