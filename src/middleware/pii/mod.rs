//! Middleware: personal data is removed from what humans write, from answers of the model and from results of tools.
//!
//! An answer is rewritten while it is streamed: a piece is held back until it can be no part of personal data. So what
//! is removed is neither in a stream nor in the log. Results are rewritten before they are recorded. The arguments of
//! tool calls are left as they are, since the call would fail without them.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{HookResult, Middleware, TextFilter, instance_name, read_settings};
use crate::definition::words::is_word;
use crate::definition::{Diagnostic, FieldPath, builtins, suggestion};
use crate::domain::call::ToolOutput;
use crate::domain::json_texts;
use crate::domain::machine::{Failure, HookPoint};
use crate::domain::message::{Content, Message, Role, ToolCall};
use crate::domain::state::{State, Update};
use crate::tool::{Halt, Scope};

mod detector;
mod filter;

use detector::{Detector, PiiKind};
use filter::{PiiFilter, PiiRule, PiiStrategy};

/// The maximum length of the name of a kind.
const LONGEST_TYPE: usize = 64;

/// The middleware for one kind of personal data.
#[derive(Clone, Default)]
pub struct Pii {
    name: Option<String>,
    rule: Option<PiiRule>,
    to_input: bool,
    to_output: bool,
    to_tool_results: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PiiSettings {
    /// The kind: a known one, or any name with a `pattern`.
    r#type: String,
    /// The regular expression of a kind of its own.
    pattern: Option<String>,
    /// The treatment of the data.
    strategy: PiiStrategy,
    /// True if the messages of humans are rewritten.
    apply_to_input: bool,
    /// True if the answers of the model are rewritten.
    apply_to_output: bool,
    /// True if the results of tools are rewritten.
    apply_to_tool_results: bool,
}

impl Default for PiiSettings {
    fn default() -> Self {
        Self {
            r#type: String::new(),
            pattern: None,
            strategy: PiiStrategy::default(),
            apply_to_input: true,
            apply_to_output: false,
            apply_to_tool_results: false,
        }
    }
}

impl PiiSettings {
    fn detector(&self) -> Result<Detector, Diagnostic> {
        let field = |name: &str| FieldPath::of([name]);
        let kind = PiiKind::named(&self.r#type);
        match (kind, &self.pattern) {
            _ if !is_word(&self.r#type, LONGEST_TYPE, "") => {
                let message = format!(
                    "must be one of {}, or a name of letters, digits, `_` and `-` with a `pattern`",
                    PiiKind::NAMES.join(", ")
                );
                Err(Diagnostic::error(field("type"), message))
            }
            (PiiKind::Custom, None) => {
                let known = suggestion(&self.r#type, PiiKind::NAMES, "known are");
                let message = format!(
                    "`{}` is not known; {known}; a `pattern` says what another kind is",
                    self.r#type
                );
                Err(Diagnostic::error(field("type"), message))
            }
            (PiiKind::Custom, Some(pattern)) => {
                Detector::new(kind, pattern).map_err(|problem| Diagnostic::error(field("pattern"), problem))
            }
            (_, Some(_)) => {
                let message = format!("goes with a `type` of its own; `{}` has a pattern", self.r#type);
                Err(Diagnostic::error(field("pattern"), message))
            }
            (_, None) => Detector::new(kind, "").map_err(|problem| Diagnostic::error(field("type"), problem)),
        }
    }
}

#[async_trait]
impl Middleware for Pii {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(builtins::PII)
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let settings: PiiSettings = read_settings(settings)?;
        let detector = settings.detector().map_err(|finding| vec![finding])?;
        if !(settings.apply_to_input || settings.apply_to_output || settings.apply_to_tool_results) {
            let message = "is false like the others, so that nothing is rewritten";
            return Err(vec![Diagnostic::error(FieldPath::of(["apply_to_input"]), message)]);
        }
        Ok(Some(Arc::new(Self {
            name: Some(instance_name(builtins::PII, &settings.r#type)),
            rule: Some(PiiRule {
                name: settings.r#type.as_str().into(),
                detector: Arc::new(detector),
                strategy: settings.strategy,
            }),
            to_input: settings.apply_to_input,
            to_output: settings.apply_to_output,
            to_tool_results: settings.apply_to_tool_results,
        })))
    }

    fn distinguished_by(&self) -> Option<&'static str> {
        Some("type")
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeModel]
    }

    async fn hook(&self, _: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        // A client may send the earlier conversation along with a new message, as it knows it and with the agent's own
        // answers. Blocked data was refused when it arrived.
        let is_blocking = self
            .rule
            .as_ref()
            .is_some_and(|rule| rule.strategy == PiiStrategy::Block);
        let is_turn_start = state.messages.last().is_some_and(|message| message.is_human());
        let reads_all = is_turn_start && !is_blocking;
        // Within a turn, what came before the last answer of the agent was rewritten before it.
        let is_own = |message: &Message| message.is_ai() && message.name.as_deref() == Some(scope.agent.as_str());
        let new = state.messages.recent().iter().rev();
        let new = new.take_while(|message| reads_all || !is_own(message));
        let mut update = Update::none();
        for message in new.filter(|message| self.concerns(message)) {
            if let Some(rewritten) = self.rewritten(message)? {
                update.messages.push(Arc::new(rewritten));
            }
        }
        Ok(update.into())
    }

    fn answer_filter(&self) -> Option<Box<dyn TextFilter>> {
        let rule = self.rule.as_ref().filter(|_| self.to_output)?;
        Some(Box::new(PiiFilter::new(rule)))
    }

    fn input_problem(&self, message: &Message) -> Option<String> {
        let rule = self.rule.as_ref().filter(|_| self.to_input)?;
        let is_blocked =
            rule.strategy == PiiStrategy::Block && message.is_human() && rule.is_in(&texts(&message.content));
        is_blocked.then(|| format!("contains personal data that this agent does not take: {}", rule.name))
    }

    fn withholds_tool_output(&self) -> bool {
        self.to_tool_results
    }

    fn receive(&self, _: &Scope, _: &State, call: &ToolCall, mut answer: ToolOutput) -> ToolOutput {
        if !self.to_tool_results {
            return answer;
        }
        let results = answer.writes.messages.iter_mut();
        for result in results.filter(|message| message.answers() == Some(call.id.as_str())) {
            match self.rewritten(result) {
                Ok(Some(rewritten)) => *result = Arc::new(rewritten),
                Ok(None) => {}
                Err(blocked) => {
                    let text = format!("The result of `{}` was withheld. {}", call.name, blocked.message);
                    return ToolOutput {
                        ends: answer.ends,
                        ..ToolOutput::error(call, text)
                    };
                }
            }
        }
        answer
    }
}

impl Pii {
    /// Returns whether a message is rewritten before the model reads it.
    fn concerns(&self, message: &Message) -> bool {
        match message.role {
            Role::Human => self.to_input,
            Role::Tool { .. } => self.to_tool_results,
            Role::Ai { .. } | Role::System | Role::Remove => false,
        }
    }

    /// Returns the message without personal data; `None` if there is none in it.
    ///
    /// # Errors
    /// The failure, if such data is blocked.
    fn rewritten(&self, message: &Message) -> Result<Option<Message>, Failure> {
        let Some(rule) = &self.rule else { return Ok(None) };
        let mut changed = false;
        let mut rewritten = message.clone();
        match &mut rewritten.content {
            Content::Text(text) => replace(rule, text, &mut changed)?,
            Content::Blocks(blocks) => {
                for block in blocks {
                    replace_in_block(rule, block, &mut changed)?;
                }
            }
        }
        if let Role::Tool {
            artifact: Some(artifact),
            ..
        } = &mut rewritten.role
        {
            json_texts::try_rewrite(artifact, &mut |text: &mut String| replace(rule, text, &mut changed))?;
        }
        Ok(changed.then_some(rewritten))
    }
}

fn replace(rule: &PiiRule, text: &mut String, changed: &mut bool) -> Result<(), Failure> {
    if let Some(rewritten) = rule.rewrite(text)?.filter(|rewritten| *rewritten != *text) {
        *text = rewritten;
        *changed = true;
    }
    Ok(())
}

/// Replaces the text of a block. Media stay as they are.
fn replace_in_block(rule: &PiiRule, block: &mut Value, changed: &mut bool) -> Result<(), Failure> {
    match block {
        Value::String(text) => replace(rule, text, changed),
        Value::Object(fields) => match text_of_block_mut(fields) {
            Some(Value::String(text)) => replace(rule, text, changed),
            Some(_) | None => Ok(()),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => Ok(()),
    }
}

/// Returns the text of a block: its own, or that of a document in the form of Anthropic.
fn text_of_block(fields: &Map<String, Value>) -> Option<&str> {
    let in_source = || {
        let source = fields.get("source").filter(|source| is_text(source))?;
        source.get("data")
    };
    fields.get("text").or_else(in_source)?.as_str()
}

/// Does the same for a text that is to be changed.
fn text_of_block_mut(fields: &mut Map<String, Value>) -> Option<&mut Value> {
    if fields.contains_key("text") {
        return fields.get_mut("text");
    }
    let source = fields.get_mut("source").filter(|source| is_text(source))?;
    source.get_mut("data")
}

/// Returns whether the source of a document is a text.
fn is_text(source: &Value) -> bool {
    source.get("type").and_then(Value::as_str) == Some("text")
}

/// Returns the texts of a content, one below the other.
fn texts(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Blocks(blocks) => {
            let text = |block: &Value| match block {
                Value::String(text) => Some(text.clone()),
                Value::Object(fields) => text_of_block(fields).map(str::to_owned),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
            };
            blocks.iter().filter_map(text).collect::<Vec<_>>().join("\n")
        }
    }
}

#[cfg(test)]
mod tests;
