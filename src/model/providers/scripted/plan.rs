//! The next answer of the scripted model: a pure function of the request.

use std::time::Duration;

use serde_json::Value;

use super::answer::{PlannedCall, ScriptedAnswer};
use super::demo::demo;
use crate::domain::message::{Message, Role};
use crate::domain::summarization::SUMMARIZED_ANSWERS;
use crate::domain::text_limits::first_chars;
use crate::model::ModelRequest;

/// The maximum pause of a script, since a paused run occupies a worker slot.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);

/// The planned reaction to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The step to play.
    pub step: ScriptedStep,
    /// A failure that comes first, for a number of times.
    pub failure: Option<PlannedFailure>,
}

/// One turn of the model.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptedStep {
    /// The model answers.
    Answer(ScriptedAnswer),
    /// The model fails like a provider that replies with an HTTP status.
    Error {
        /// The status.
        status: u16,
        /// The provider's `retry-after`.
        retry_after: Option<Duration>,
    },
}

/// A step that fails a number of times before it is played.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedFailure {
    /// The script's text, which identifies it.
    pub script: String,
    /// The step within the script.
    pub step: usize,
    /// The number of failures.
    pub times: u64,
    /// The HTTP status it fails with.
    pub status: u16,
    /// The provider's `retry-after`.
    pub retry_after: Option<Duration>,
}

/// Chooses the reaction to a request. `is_demo` selects the demonstration if there is no script.
pub fn plan(request: &ModelRequest, is_demo: bool) -> Planned {
    let Some(last) = request.messages.iter().rposition(|message| message.is_human()) else {
        return Planned {
            step: ScriptedStep::Answer(ScriptedAnswer::text("no human message")),
            failure: None,
        };
    };
    let text = request
        .messages
        .get(last)
        .map(|message| message.content.text())
        .unwrap_or_default();
    let turn = request.messages.get(last + 1..).unwrap_or_default();
    if let Some(script) = script_of(&text) {
        let turns = turn.iter().filter(|message| message.is_ai()).count();
        // A summary that repeats the script stands for the answers before it, too.
        let summarized = request.messages[last].additional_kwargs.get(SUMMARIZED_ANSWERS);
        let summarized = summarized.and_then(Value::as_u64).unwrap_or(0);
        let turns = turns.saturating_add(usize::try_from(summarized).unwrap_or(usize::MAX));
        return scripted(&script, turns, &text, request);
    }
    let answer = if is_demo {
        demo(&text, turn, &request.tools)
    } else {
        ScriptedAnswer::text(format!("echo: {text}"))
    };
    Planned {
        step: ScriptedStep::Answer(answer),
        failure: None,
    }
}

/// Returns the script in a text: the first JSON object that begins with the key `script`.
fn script_of(text: &str) -> Option<Value> {
    let rest = text.get(text.find(r#"{"script""#)?..)?;
    serde_json::Deserializer::from_str(rest)
        .into_iter::<Value>()
        .next()?
        .ok()
}

fn scripted(script: &Value, turns: usize, text: &str, request: &ModelRequest) -> Planned {
    let steps = script
        .get("script")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let index = turns.min(steps.len().saturating_sub(1));
    let Some(step) = steps.get(index) else {
        return Planned {
            step: ScriptedStep::Answer(ScriptedAnswer::text("the script has no steps")),
            failure: None,
        };
    };
    let failure = step
        .get("fail_first")
        .and_then(Value::as_u64)
        .filter(|times| *times > 0)
        .map(|times| PlannedFailure {
            script: first_chars(text, 2000).to_owned(),
            step: index,
            times,
            status: status(step.get("status")),
            retry_after: seconds(step),
        });
    if let Some(error) = step.get("error") {
        let step = ScriptedStep::Error {
            status: status(Some(error)),
            retry_after: seconds(step),
        };
        return Planned { step, failure };
    }
    let answer = ScriptedAnswer {
        text: step_text(step, request),
        calls: calls(step),
        chunk: script
            .get("chunk")
            .and_then(Value::as_u64)
            .filter(|n| *n > 0)
            .and_then(|n| usize::try_from(n).ok()),
        first: pause("first_ms", step, script),
        delay: pause("delay_ms", step, script),
        drop: is_set(step, "drop"),
    };
    Planned {
        step: ScriptedStep::Answer(answer),
        failure,
    }
}

fn calls(step: &Value) -> Vec<PlannedCall> {
    let calls = step
        .get("tool_calls")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    calls
        .iter()
        .map(|call| PlannedCall {
            id: call
                .get("id")
                .and_then(Value::as_str)
                .filter(|id| !id.is_empty())
                .map(str::to_owned),
            name: call.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            args: match call.get("args") {
                Some(Value::String(text)) => text.clone(),
                Some(args) => args.to_string(),
                None => "{}".to_owned(),
            },
        })
        .collect()
}

/// Returns the text of a step, or the text that it echoes.
fn step_text(step: &Value, request: &ModelRequest) -> String {
    let mut text = step.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
    if is_set(step, "echo_system") {
        text = format!("SYSTEM<<{}>>", system_of(request));
    }
    if is_set(step, "echo_tools") {
        let mut names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        names.sort_unstable();
        text = format!("TOOLS<<{}>>", names.join(","));
    }
    if is_set(step, "echo_messages") {
        let roles: Vec<&str> = request.messages.iter().filter_map(|message| role_of(message)).collect();
        text = format!("ROLES<<{}>>", roles.join(","));
    }
    if is_set(step, "echo_last_tool") {
        let last = request
            .messages
            .iter()
            .rev()
            .find(|message| message.answers().is_some());
        text = format!(
            "LAST_TOOL<<{}>>",
            last.map(|message| message.content.text()).unwrap_or_default()
        );
    }
    text
}

fn role_of(message: &Message) -> Option<&'static str> {
    match message.role {
        Role::Human => Some("user"),
        Role::Ai { .. } => Some("assistant"),
        Role::Tool { .. } => Some("tool"),
        Role::System | Role::Remove => None,
    }
}

/// Returns the instructions of the request: its system prompt and any system messages in the conversation.
pub fn system_of(request: &ModelRequest) -> String {
    let others = request
        .messages
        .iter()
        .filter(|message| matches!(message.role, Role::System));
    std::iter::once(request.system.text())
        .chain(others.map(|message| message.content.text()))
        .collect()
}

fn is_set(step: &Value, key: &str) -> bool {
    step.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn status(value: Option<&Value>) -> u16 {
    value
        .and_then(Value::as_u64)
        .and_then(|status| u16::try_from(status).ok())
        .unwrap_or(500)
}

fn seconds(step: &Value) -> Option<Duration> {
    let seconds = step.get("retry_after").and_then(Value::as_f64)?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn pause(key: &str, step: &Value, script: &Value) -> Duration {
    let given = |from: &Value| from.get(key).and_then(Value::as_u64).filter(|ms| *ms > 0);
    Duration::from_millis(given(step).or_else(|| given(script)).unwrap_or(0)).min(MAX_PAUSE)
}
