//! The length of requests: counted by the provider where possible, estimated for what came since.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::definition::{ContextLength, ContextTrigger, SummarizationSettings};
use crate::domain::json_size::json_size;
use crate::domain::message::{Content, Message, Role, ToolCall};
use crate::middleware::MiddlewareModel;
use crate::model::{ModelRequest, ToolSpec, windows};

/// The estimated number of bytes of a token.
const BYTES_PER_TOKEN: u64 = 4;
/// The estimated number of tokens of an image or another block that is not text.
const MAX_BLOCK_TOKENS: u64 = 1_000;
/// The estimated number of bytes by which a message is longer than its texts.
const MESSAGE_BYTES: u64 = 16;
/// The length at which an unknown model is asked for a summary, in tokens: 85 % of the assumed window.
const TRIGGER_TOKENS: u64 = 170_000;
/// The number of messages that are kept for such a model.
const KEPT_MESSAGES: u64 = 6;
/// The fraction of a known window at which the conversation is summarised.
const TRIGGER_FRACTION: f64 = 0.85;
/// The part of the trigger that is kept.
const KEPT_PART: f64 = 0.10 / 0.85;
/// The fraction of a known window that a request may fill together with the output it asks for.
const SAFE_FRACTION: f64 = 0.95;

/// The lengths that decide about a compaction.
#[derive(Debug, Clone)]
pub(super) struct Lengths {
    triggers: Vec<ContextLength>,
    keep: ContextLength,
    /// The context window of the model, in tokens, if it is known. With several models, the smallest one that is known:
    /// each of them has to be able to answer.
    window: Option<u64>,
}

/// The length of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestLength {
    pub(super) tokens: u64,
    pub(super) messages: u64,
}

/// The estimated number of tokens of the tools in the last request that was estimated. An agent has mostly the same tools, and
/// their schemas are longer than most conversations.
#[derive(Debug, Default)]
pub(super) struct ToolTokens(Mutex<(Vec<Arc<ToolSpec>>, u64)>);

impl ToolTokens {
    fn of(&self, tools: &[Arc<ToolSpec>]) -> u64 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, tokens) = &mut *last;
        if known.as_slice() != tools {
            *tokens = tools.iter().map(|tool| tokens_of_tool(tool)).sum();
            *known = tools.to_vec();
        }
        *tokens
    }
}

impl Lengths {
    pub(super) fn new(settings: &SummarizationSettings, model: &MiddlewareModel) -> Self {
        let window = settings.max_input_tokens.or_else(|| model.max_input_tokens());
        let triggers = settings.trigger.as_ref().map_or_else(
            || vec![default_trigger(window)],
            |it| ContextTrigger::lengths(it).to_vec(),
        );
        let keep = settings.keep.unwrap_or_else(|| match (&settings.trigger, window) {
            (None, None) => ContextLength {
                messages: Some(KEPT_MESSAGES),
                ..ContextLength::default()
            },
            (_, _) => kept_of(triggers.first()),
        });
        Self { triggers, keep, window }
    }

    pub(super) fn keep(&self) -> ContextLength {
        self.keep
    }

    /// Returns the window of the model, or the one that is assumed.
    pub(super) fn window(&self) -> u64 {
        self.window.unwrap_or(windows::DEFAULT_WINDOW)
    }

    /// Returns the number of tokens of a length.
    pub(super) fn tokens_of(&self, length: &ContextLength) -> Option<u64> {
        let part = length.fraction.map(|fraction| scaled(self.window(), fraction));
        part.into_iter().chain(length.tokens).min()
    }

    /// Returns whether the conversation has to be summarised before a request of this length, which asks for an output
    /// of so many tokens.
    pub(super) fn is_reached(&self, length: RequestLength, output: u64) -> bool {
        self.triggers.iter().any(|trigger| self.reaches(length, trigger, 1)) || self.overflows(length, output)
    }

    /// Returns whether a request has at least half of the length at which the conversation is summarised.
    pub(super) fn is_half_reached(&self, length: RequestLength) -> bool {
        self.triggers.iter().any(|trigger| self.reaches(length, trigger, 2))
    }

    fn reaches(&self, length: RequestLength, trigger: &ContextLength, divisor: u64) -> bool {
        let is_long = self
            .tokens_of(trigger)
            .is_none_or(|tokens| length.tokens >= tokens / divisor);
        is_long
            && trigger
                .messages
                .is_none_or(|messages| length.messages >= messages / divisor)
    }

    /// Returns whether a request would leave too little room for its output in a known window.
    fn overflows(&self, length: RequestLength, output: u64) -> bool {
        let Some(window) = self.window else { return false };
        // An output that fills the window is a setting that cannot be met by shorter requests.
        let room = scaled(window, SAFE_FRACTION).saturating_sub(output).max(window / 4);
        length.tokens > room
    }
}

fn default_trigger(window: Option<u64>) -> ContextLength {
    match window {
        Some(_) => ContextLength {
            fraction: Some(TRIGGER_FRACTION),
            ..ContextLength::default()
        },
        None => ContextLength {
            tokens: Some(TRIGGER_TOKENS),
            ..ContextLength::default()
        },
    }
}

/// Returns the length that is kept, in a unit of the trigger.
fn kept_of(trigger: Option<&ContextLength>) -> ContextLength {
    let trigger = trigger.copied().unwrap_or_default();
    if trigger.fraction.is_some() || trigger.tokens.is_some() {
        return ContextLength {
            fraction: trigger.fraction.map(|fraction| fraction * KEPT_PART),
            tokens: trigger.tokens.map(|tokens| scaled(tokens, KEPT_PART).max(1)),
            messages: None,
        };
    }
    let half = trigger.messages.map_or(KEPT_MESSAGES, |messages| (messages / 2).max(1));
    ContextLength {
        messages: Some(half.min(KEPT_MESSAGES)),
        ..ContextLength::default()
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::as_conversions,
    reason = "an estimate; a cast from a float saturates"
)]
fn scaled(number: u64, fraction: f64) -> u64 {
    (number as f64 * fraction) as u64
}

/// Returns the estimated number of tokens of a message.
pub(in crate::middleware) fn tokens_of_message(message: &Message) -> u64 {
    let (bytes, blocks) = match &message.content {
        Content::Text(text) => (length(text), 0),
        Content::Blocks(blocks) => blocks.iter().fold((0, 0), |(bytes, others), block| {
            let text = Content::Blocks(vec![block.clone()]).text();
            match text.is_empty() {
                false => (bytes + length(&text), others),
                true => (bytes, others + tokens_of_value(block).min(MAX_BLOCK_TOKENS)),
            }
        }),
    };
    let calls = message.tool_calls().iter();
    let calls: u64 = calls.map(|call| length(&call.name) + bytes_of_arguments(call)).sum();
    (bytes + calls + MESSAGE_BYTES) / BYTES_PER_TOKEN + blocks
}

/// Returns the estimated number of tokens of the arguments of a call.
pub(in crate::middleware) fn tokens_of_arguments(call: &ToolCall) -> u64 {
    bytes_of_arguments(call) / BYTES_PER_TOKEN
}

fn bytes_of_arguments(call: &ToolCall) -> u64 {
    let args = call.args.iter();
    args.map(|(name, value)| length(name) + bytes_of(value)).sum()
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

fn bytes_of(value: &Value) -> u64 {
    match value {
        Value::String(text) => length(text) + 2,
        Value::Null | Value::Bool(_) | Value::Number(_) => 5,
        Value::Array(_) | Value::Object(_) => {
            let size = json_size(value, usize::MAX).and_then(|size| u64::try_from(size).ok());
            size.unwrap_or(u64::MAX)
        }
    }
}

fn tokens_of_value(value: &Value) -> u64 {
    bytes_of(value) / BYTES_PER_TOKEN
}

fn tokens_of_tool(tool: &ToolSpec) -> u64 {
    let text = length(&tool.name) + length(&tool.description);
    text / BYTES_PER_TOKEN + tokens_of_value(&tool.parameters)
}

/// Returns the estimated number of tokens of these messages.
pub(super) fn tokens_of_messages<'a>(messages: impl IntoIterator<Item = &'a Arc<Message>>) -> u64 {
    messages.into_iter().map(|message| tokens_of_message(message)).sum()
}

/// Returns the length of a request whose conversation is `view`. The last answer in it tells how long the request for
/// it was; answers up to the message with the id `created_after` are from before the last compaction and do not count.
pub(super) fn of_request(
    request: &ModelRequest,
    view: &[Arc<Message>],
    created_after: Option<&str>,
    tools: &ToolTokens,
) -> RequestLength {
    let messages = u64::try_from(view.len()).unwrap_or(u64::MAX);
    let counted = last_count(view, created_after);
    let tokens = match counted {
        Some((at, tokens)) => tokens + tokens_of_messages(&view[at + 1..]),
        None => {
            let system = length(&request.system.text()) / BYTES_PER_TOKEN;
            tokens_of_messages(view) + system + tools.of(&request.tools)
        }
    };
    RequestLength { tokens, messages }
}

/// Returns the index of the last answer that tells the length of its request, and the length with the answer.
fn last_count(view: &[Arc<Message>], created_after: Option<&str>) -> Option<(usize, u64)> {
    let is_older = |message: &Arc<Message>| created_after.is_some() && message.id.as_deref() == created_after;
    let newer = view
        .iter()
        .enumerate()
        .rev()
        .take_while(|(_, message)| !is_older(message));
    newer
        .filter_map(|(at, message)| Some((at, counted_tokens(message)?)))
        .next()
}

fn counted_tokens(message: &Message) -> Option<u64> {
    let Role::Ai {
        usage_metadata: Some(usage),
        ..
    } = &message.role
    else {
        return None;
    };
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let input = count("input_tokens").filter(|tokens| *tokens > 0)?;
    Some(input.saturating_add(count("output_tokens").unwrap_or(0)))
}

/// The settings for the length of an answer.
pub(super) const OUTPUT_SETTINGS: [&str; 4] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "maxOutputTokens",
];

/// Returns the number of tokens that a request reserves for the answer, if it says so.
pub(super) fn requested_output(request: &ModelRequest) -> u64 {
    OUTPUT_SETTINGS
        .iter()
        .find_map(|name| request.settings.get(*name).and_then(Value::as_u64))
        .unwrap_or(0)
}
