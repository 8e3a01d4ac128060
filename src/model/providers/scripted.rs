//! The provider `scripted`: a model without a network that follows a script.
//!
//! Three ways of answering, in this order:
//!
//! 1. **A script.** The last human message holds `{"script": [STEP, …], "chunk": N, "delay_ms": D, "first_ms": F}`
//!    anywhere in its text. The step played is the number of `ai` messages after that human message, at most the
//!    last one. A summary that repeats the script says how many of them it stands for. A step is an object:
//!    * `text`: the text of the answer; `tool_calls`: `[{"name", "args", "id"?}]`, one or several (`args` as a string
//!      is sent unchanged, so that it may be invalid JSON);
//!    * `error`: an HTTP status to fail with, `retry_after` in seconds with it;
//!    * `drop`: the answer is cut off after its first piece;
//!    * `echo_system`, `echo_tools`, `echo_messages`, `echo_last_tool`: answer with what the request contained;
//!    * `fail_first`: fail that many times with `status` (500), then play the step;
//!    * `delay_ms` and `first_ms`: the pause between pieces and before the first, instead of the script's.
//!
//!    `chunk` is the size of a piece in characters; without it text comes in words and arguments in 24 characters.
//! 2. **The demonstration**, for the model name `demo`: see [`demo`].
//! 3. **An echo** for every other name: `echo: <text>`, in words.
//!
//! With a context window (`max_input_tokens` of the provider), longer requests fail as they do at a provider.
//!
//! [`mod@plan`] chooses the answer from the request alone; this file streams it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::content::refusal;
use crate::domain::message::{InvalidToolCall, Message, Role, ToolCall};
use crate::model::{Model, ModelError, ModelEvent, ModelRequest};

pub mod answer;
pub mod demo;
pub mod plan;

use answer::{PlannedCall, ScriptedAnswer};
use plan::{Planned, PlannedFailure, ScriptedStep, plan};

/// The name of the provider.
pub const PROVIDER: &str = "scripted";

/// The default size of a piece of arguments, in characters.
const ARGUMENT_PIECE: usize = 24;

/// The maximum number of planned failures that are remembered; clients choose the scripts, so it must be bounded.
const MAX_FAILURES: usize = 10_000;

/// A model that follows a script. One instance counts its own planned failures (`fail_first`).
#[derive(Debug)]
pub struct Scripted {
    model: String,
    failed: Mutex<HashMap<(String, usize), u64>>,
    max_input_tokens: Option<u64>,
}

impl Scripted {
    /// Creates a scripted model of this name; `demo` plays the demonstration if there is no script.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            failed: Mutex::new(HashMap::new()),
            max_input_tokens: None,
        }
    }

    /// Sets the context window. A longer request fails as it does at a provider: it is too long.
    #[must_use]
    pub fn with_max_input_tokens(self, max_input_tokens: Option<u64>) -> Self {
        Self {
            max_input_tokens,
            ..self
        }
    }

    /// Returns whether this planned failure has to happen again, and counts it then.
    fn is_due(&self, failure: &PlannedFailure) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.len() >= MAX_FAILURES {
            failed.clear();
        }
        let count = failed.entry((failure.script.clone(), failure.step)).or_default();
        let due = *count < failure.times;
        *count += u64::from(due);
        due
    }
}

#[async_trait]
impl Model for Scripted {
    fn identity(&self) -> (&str, &str) {
        (PROVIDER, &self.model)
    }

    fn refusal(&self, block: &Value) -> Option<String> {
        refusal(block)
    }

    fn max_input_tokens(&self) -> Option<u64> {
        self.max_input_tokens
    }

    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        let length = input_tokens(&request);
        if let Some(window) = self.max_input_tokens.filter(|window| length > *window) {
            let message = format!("the request has {length} tokens, and the context window {window}");
            return Err(ModelError::TooLong { message });
        }
        let Planned { step, failure } = plan(&request, self.model == "demo");
        if let Some(failure) = failure.filter(|failure| self.is_due(failure)) {
            return Err(failed(failure.status, failure.retry_after));
        }
        match step {
            ScriptedStep::Error { status, retry_after } => Err(failed(status, retry_after)),
            ScriptedStep::Answer(answer) => Ok(play(answer, &request, &self.model)),
        }
    }
}

/// Returns the error for an HTTP status of a provider.
fn failed(status: u16, retry_after: Option<Duration>) -> ModelError {
    let message = format!("scripted error {status}");
    match status {
        429 => ModelError::RateLimited { retry_after, message },
        413 => ModelError::TooLong { message },
        408 | 500.. => ModelError::Unavailable { retry_after, message },
        _ => ModelError::Refused { status, message },
    }
}

/// Streams the answer in pieces.
fn play(
    answer: ScriptedAnswer,
    request: &ModelRequest,
    model: &str,
) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
    let first = answer.first;
    let delay = answer.delay;
    let events = stream::iter(events(answer, request, model));
    if first.is_zero() && delay.is_zero() {
        return events.boxed();
    }
    events
        .enumerate()
        .then(move |(position, event)| async move {
            let pause = if position == 0 { first } else { delay };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            event
        })
        .boxed()
}

fn events(answer: ScriptedAnswer, request: &ModelRequest, model: &str) -> Vec<Result<ModelEvent, ModelError>> {
    let calls: Vec<(String, PlannedCall)> = answer
        .calls
        .iter()
        .map(|call| (call.id.clone().unwrap_or_else(call_id), call.clone()))
        .collect();
    let mut events: Vec<Result<ModelEvent, ModelError>> = pieces(&answer.text, answer.chunk)
        .into_iter()
        .map(|piece| Ok(ModelEvent::Text(piece)))
        .collect();
    if answer.drop {
        events.truncate(1);
        events.push(Err(ModelError::Interrupted {
            message: "scripted drop".to_owned(),
        }));
        return events;
    }
    for (index, (id, call)) in calls.iter().enumerate() {
        events.push(Ok(ModelEvent::CallChunk {
            index,
            id: Some(id.clone()),
            name: Some(call.name.clone()),
            args: String::new(),
        }));
        let size = answer.chunk.unwrap_or(ARGUMENT_PIECE);
        events.extend(pieces(&call.args, Some(size)).into_iter().map(|args| {
            Ok(ModelEvent::CallChunk {
                index,
                id: None,
                name: None,
                args,
            })
        }));
    }
    events.push(Ok(ModelEvent::Done(Box::new(message(&answer, calls, request, model)))));
    events
}

fn message(
    answer: &ScriptedAnswer,
    planned: Vec<(String, PlannedCall)>,
    request: &ModelRequest,
    model: &str,
) -> Message {
    let reason = if planned.is_empty() { "stop" } else { "tool_calls" };
    let mut calls = Vec::new();
    let mut invalid = Vec::new();
    for (id, call) in planned {
        match serde_json::from_str::<Map<String, Value>>(&call.args) {
            Ok(args) => calls.push(ToolCall::new(id, call.name, args)),
            Err(error) => invalid.push(InvalidToolCall {
                name: Some(call.name),
                args: Some(call.args),
                id: Some(id),
                error: Some(error.to_string()),
                kind: "invalid_tool_call".to_owned(),
            }),
        }
    }
    let usage = usage(&answer.text, request);
    let role = Role::Ai {
        tool_calls: calls,
        invalid_tool_calls: invalid,
        usage_metadata: Some(usage),
    };
    let mut message = Message::new(role, answer.text.clone());
    message
        .response_metadata
        .insert("finish_reason".to_owned(), reason.into());
    message.response_metadata.insert("model_name".to_owned(), model.into());
    message
        .response_metadata
        .insert("model_provider".to_owned(), PROVIDER.into());
    message
}

/// Returns invented but stable token counts: four characters are a token.
fn usage(text: &str, request: &ModelRequest) -> Value {
    let input = input_tokens(request);
    let output = u64::try_from((text.chars().count() / 4).max(1)).unwrap_or(u64::MAX);
    json!({
        "input_tokens": input,
        "output_tokens": output,
        "total_tokens": input.saturating_add(output),
        "input_token_details": {},
        "output_token_details": {},
    })
}

/// Returns the length of a request in tokens of four characters.
fn input_tokens(request: &ModelRequest) -> u64 {
    let chars: usize = request
        .messages
        .iter()
        .filter(|message| !matches!(message.role, Role::System | Role::Remove))
        .map(|message| message.content.text().chars().count())
        .sum();
    let input = chars / 4 + plan::system_of(request).chars().count() / 4 + 1;
    u64::try_from(input).unwrap_or(u64::MAX)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a call's id is a provider's affair and has no order"
)]
fn call_id() -> String {
    let digits = Uuid::new_v4().simple().to_string();
    format!("call_{}", digits.get(..16).unwrap_or(&digits))
}

/// Splits the text into pieces of `size` characters, or into words with the spaces behind them.
fn pieces(text: &str, size: Option<usize>) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece = String::new();
    let mut length = 0;
    for character in text.chars() {
        let full = match size {
            Some(size) => length == size.max(1),
            None => !character.is_whitespace() && piece.ends_with(char::is_whitespace),
        };
        if full {
            pieces.push(std::mem::take(&mut piece));
            length = 0;
        }
        piece.push(character);
        length += 1;
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests;
