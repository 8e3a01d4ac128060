//! Middleware: in long conversations, older tool results are left out of the model's request.
//!
//! Only the request is shortened. The state keeps every result, so clients see the whole conversation.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::summarization::tokens_of_message;
use super::{MOST_NAMES, Middleware, ModelAnswer, NextModel, read_settings};
use crate::definition::mcp::ToolNames;
use crate::definition::{Diagnostic, FieldPath, builtins};
use crate::domain::message::{Content, Message, Role, ToolCall};
use crate::model::ModelRequest;
use crate::tool::Halt;

/// The replacement for a result that is left out.
const PLACEHOLDER: &str = "[cleared]";

/// The context editing middleware.
#[derive(Debug, Clone, Default)]
pub struct ContextEditing {
    settings: ContextEditingSettings,
    excluded: ToolNames,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ContextEditingSettings {
    /// The length of the conversation from which results are left out, in estimated tokens.
    trigger: u64,
    /// The number of newest results that are always kept.
    keep: usize,
    /// The number of estimated tokens after which no further result is left out; 0 for all older ones.
    clear_at_least: u64,
    /// True if the arguments of the calls are left out with their results.
    clear_tool_inputs: bool,
    /// The tools whose results are kept.
    exclude_tools: Vec<String>,
}

impl Default for ContextEditingSettings {
    fn default() -> Self {
        Self {
            trigger: 100_000,
            keep: 3,
            clear_at_least: 0,
            clear_tool_inputs: false,
            exclude_tools: vec![],
        }
    }
}

impl From<ContextEditingSettings> for ContextEditing {
    fn from(settings: ContextEditingSettings) -> Self {
        Self {
            excluded: ToolNames::of(&settings.exclude_tools),
            settings,
        }
    }
}

#[async_trait]
impl Middleware for ContextEditing {
    fn name(&self) -> &str {
        builtins::CONTEXT_EDITING
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let settings: ContextEditingSettings = read_settings(settings)?;
        let mut findings = vec![];
        if settings.trigger == 0 {
            let field = FieldPath::of(["trigger"]);
            findings.push(Diagnostic::error(field, "must be a whole number of at least 1"));
        }
        if settings.exclude_tools.len() > MOST_NAMES {
            let message = format!("must name at most {MOST_NAMES} tools");
            findings.push(Diagnostic::error(FieldPath::of(["exclude_tools"]), message));
        }
        if !findings.is_empty() {
            return Err(findings);
        }
        Ok(Some(Arc::new(Self::from(settings))))
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        self.clear(&mut request.messages);
        next.ask(request).await
    }
}

impl ContextEditing {
    /// Removes the older results of a conversation that is too long.
    fn clear(&self, messages: &mut [Arc<Message>]) {
        let tokens: u64 = messages.iter().map(|message| tokens_of_message(message)).sum();
        if tokens < self.settings.trigger {
            return;
        }
        let all = messages.iter().enumerate();
        let results = all.filter(|(_, message)| message.answers().is_some());
        let results: Vec<usize> = results.map(|(at, _)| at).collect();
        let older = results.len().saturating_sub(self.settings.keep);
        let enough = self.settings.clear_at_least;
        let mut cleared = 0;
        for at in results.into_iter().take(older) {
            let Some((result, before)) = messages[..=at].split_last_mut() else {
                continue;
            };
            cleared += self.clear_call(result, before);
            if enough > 0 && cleared >= enough {
                return;
            }
        }
    }

    /// Removes a result, and the arguments of its call, which is in one of the messages `before` it. Returns the number of
    /// tokens by which the conversation is shorter.
    fn clear_call(&self, result: &mut Arc<Message>, before: &mut [Arc<Message>]) -> u64 {
        let id = result.answers().unwrap_or_default().to_owned();
        let call = before.iter_mut().rev().find(|message| call_of(message, &id).is_some());
        let called = call.as_ref().and_then(|message| call_of(message, &id));
        let name = result.name.as_deref().or(called.map(|call| call.name.as_str()));
        if name.is_some_and(|name| self.excluded.contains(name)) {
            return 0;
        }
        let cleared = shorten(result, |result| result.content = Content::Text(PLACEHOLDER.to_owned()));
        let call = call.filter(|_| self.settings.clear_tool_inputs);
        cleared + call.map_or(0, |call| shorten(call, |call| without_arguments(call, &id)))
    }
}

/// Changes a message, unless that makes it no shorter. Returns the number of tokens by which it is shorter.
fn shorten(message: &mut Arc<Message>, change: impl FnOnce(&mut Message)) -> u64 {
    let mut shorter = Message::clone(message);
    change(&mut shorter);
    let cleared = tokens_of_message(message).saturating_sub(tokens_of_message(&shorter));
    if cleared > 0 {
        *message = Arc::new(shorter);
    }
    cleared
}

fn without_arguments(message: &mut Message, id: &str) {
    if let Role::Ai { tool_calls, .. } = &mut message.role {
        for call in tool_calls.iter_mut().filter(|call| call.id == id) {
            call.args = Map::new();
        }
    }
}

fn call_of<'a>(message: &'a Message, id: &str) -> Option<&'a ToolCall> {
    message.tool_calls().iter().find(|call| call.id == id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::message::ToolStatus;

    fn call(id: &str) -> ToolCall {
        let args = Map::from_iter([("text".to_owned(), json!(format!("argument {id} ").repeat(10)))]);
        ToolCall::new(id, format!("look_{id}"), args)
    }

    fn conversation() -> Vec<Arc<Message>> {
        let result = |id: &str| Message::tool(&call(id), ToolStatus::Success, format!("result {id} ").repeat(10));
        let all = [
            Message::human("Look.".repeat(20)),
            Message::calling([call("a"), call("b")]),
            result("a"),
            result("b"),
            Message::calling([call("c")]),
            result("c"),
        ];
        all.into_iter().map(Arc::new).collect()
    }

    fn cleared(settings: Value) -> Vec<Arc<Message>> {
        let settings: ContextEditingSettings = serde_json::from_value(settings).expect("settings");
        let mut messages = conversation();
        ContextEditing::from(settings).clear(&mut messages);
        messages
    }

    /// Returns the ids of the calls whose results were left out.
    fn cleared_results(settings: Value) -> Vec<String> {
        let messages = cleared(settings);
        let left_out = messages.iter().filter(|message| message.content.text() == PLACEHOLDER);
        left_out
            .filter_map(|message| message.answers())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn older_results_are_cleared_in_a_long_conversation() {
        assert_eq!(cleared(json!({"trigger": 1000, "keep": 1})), conversation());
        let messages = cleared(json!({"trigger": 10, "keep": 1}));
        for (at, whole) in conversation().iter().enumerate() {
            match at {
                2 | 3 => assert_eq!(messages[at].content.text(), PLACEHOLDER),
                _ => assert_eq!(messages[at], *whole),
            }
        }
    }

    #[test]
    fn an_image_counts_as_what_a_model_reads_and_not_by_its_bytes() {
        let image = json!({"type": "image", "base64": "iVBO".repeat(20_000), "mime_type": "image/png"});
        let blocks = vec![json!({"type": "text", "text": "Look."}), image];
        let mut messages = conversation();
        messages.insert(0, Arc::new(Message::human(Content::Blocks(blocks))));
        let edited = |trigger: u64| {
            let mut edited = messages.clone();
            let settings: ContextEditingSettings =
                serde_json::from_value(json!({"trigger": trigger, "keep": 0})).expect("settings");
            ContextEditing::from(settings).clear(&mut edited);
            edited
        };
        assert_eq!(edited(2_000), messages);
        assert_ne!(edited(1_000), messages);
    }

    #[test]
    fn no_more_results_are_cleared_than_needed() {
        assert_eq!(
            cleared_results(json!({"trigger": 10, "keep": 0, "clear_at_least": 20})),
            ["a"]
        );
        assert_eq!(
            cleared_results(json!({"trigger": 10, "keep": 0, "clear_at_least": 30})),
            ["a", "b"]
        );
        assert_eq!(cleared_results(json!({"trigger": 10, "keep": 0})), ["a", "b", "c"]);
    }

    #[test]
    fn results_of_excluded_tools_are_kept() {
        let settings = json!({"trigger": 10, "keep": 0, "exclude_tools": ["look_a"]});
        assert_eq!(cleared_results(settings), ["b", "c"]);
    }

    #[test]
    fn the_arguments_of_a_call_are_cleared_with_its_result() {
        let messages = cleared(json!({"trigger": 10, "keep": 2, "clear_tool_inputs": true}));
        let calls = messages[1].tool_calls();
        assert_eq!(calls[0], ToolCall::new("a", "look_a", Map::new()));
        assert_eq!(calls[1], call("b"));
        assert_eq!(messages[4].tool_calls(), [call("c")]);
    }

    #[test]
    fn settings_of_the_wrong_form_are_refused() {
        let answer_errors = |settings: Value| {
            let settings = settings.as_object().cloned().unwrap_or_default();
            let findings = ContextEditing::default()
                .configured(&settings)
                .err()
                .unwrap_or_default();
            findings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(answer_errors(json!({"keep": 0, "trigger": 5})), [""; 0]);
        assert_eq!(
            answer_errors(json!({"trigger": 0})),
            ["trigger: must be a whole number of at least 1"]
        );
        assert_eq!(
            answer_errors(json!({"kept": 1})),
            [
                "kept: unknown key; did you mean `keep`? allowed are: trigger, keep, clear_at_least, \
                clear_tool_inputs, exclude_tools"
            ]
        );
    }
}
