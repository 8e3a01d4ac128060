//! Middleware: in long conversations, older tool results are left out of the model's request.
//!
//! Only the request is shortened. The state keeps every result, so clients see the whole conversation.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::summarization::{tokens_of_arguments, tokens_of_message};
use super::{MOST_NAMES, Middleware, ModelAnswer, NextModel, read_settings};
use crate::definition::mcp::ToolNames;
use crate::definition::{Diagnostic, FieldPath};
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
        "ContextEditingMiddleware"
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

    fn tools_setting(&self) -> Option<&'static str> {
        Some("exclude_tools")
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
        let results = results_with_calls(messages);
        let older = results.len().saturating_sub(self.settings.keep);
        let enough = self.settings.clear_at_least;
        let mut cleared = 0;
        for (at, call) in results.into_iter().take(older) {
            cleared += self.clear_call(messages, at, call);
            if enough > 0 && cleared >= enough {
                return;
            }
        }
    }

    /// Removes the result at the index `at`, and the arguments of its call. Returns the number of tokens by which the
    /// conversation is shorter.
    fn clear_call(&self, messages: &mut [Arc<Message>], at: usize, call: Option<CallPlace>) -> u64 {
        let Some(result) = messages.get(at) else { return 0 };
        let called = call.and_then(|place| call_at(messages.get(place.message)?, place.at));
        let name = result.name.as_deref().or(called.map(|call| call.name.as_str()));
        if name.is_some_and(|name| self.excluded.contains(name)) {
            return 0;
        }
        let mut cleared = messages.get_mut(at).map_or(0, without_content);
        if let Some(place) = call.filter(|_| self.settings.clear_tool_inputs)
            && let Some(message) = messages.get_mut(place.message)
        {
            cleared += without_arguments(message, place.at);
        }
        cleared
    }
}

/// The place of a call in a conversation.
#[derive(Debug, Clone, Copy)]
struct CallPlace {
    /// The index of the message.
    message: usize,
    /// The index of the call in it.
    at: usize,
}

/// Returns the indexes of the results in a conversation, with the places of their calls: the nearest ones before them,
/// since ids may be used again.
fn results_with_calls(messages: &[Arc<Message>]) -> Vec<(usize, Option<CallPlace>)> {
    let mut calls: BTreeMap<&str, CallPlace> = BTreeMap::new();
    let mut results = vec![];
    for (message_at, message) in messages.iter().enumerate() {
        results.extend(message.answers().map(|id| (message_at, calls.get(id).copied())));
        let own = message.tool_calls().iter().enumerate();
        calls.extend(own.map(|(at, call)| {
            let place = CallPlace {
                message: message_at,
                at,
            };
            (call.id.as_str(), place)
        }));
    }
    results
}

/// Replaces the content of a result, unless that makes it no shorter. Returns the number of tokens by which it is
/// shorter.
fn without_content(result: &mut Arc<Message>) -> u64 {
    let shorter = Message {
        content: Content::Text(PLACEHOLDER.to_owned()),
        ..Message::clone(result)
    };
    let cleared = tokens_of_message(result).saturating_sub(tokens_of_message(&shorter));
    if cleared > 0 {
        *result = Arc::new(shorter);
    }
    cleared
}

/// Removes the arguments of one call of a message, unless that makes it no shorter. Returns the number of tokens by
/// which it is shorter.
fn without_arguments(message: &mut Arc<Message>, at: usize) -> u64 {
    let cleared = call_at(message, at).map_or(0, tokens_of_arguments);
    if cleared > 0
        && let Role::Ai { tool_calls, .. } = &mut Arc::make_mut(message).role
        && let Some(call) = tool_calls.get_mut(at)
    {
        call.args = Map::new();
    }
    cleared
}

fn call_at(message: &Message, at: usize) -> Option<&ToolCall> {
    message.tool_calls().get(at)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
    fn a_result_belongs_to_the_nearest_call_with_its_id() {
        let result = |text: &str| Message::tool(&call("a"), ToolStatus::Success, text.repeat(20));
        let all = [
            Message::calling([call("a")]),
            result("earlier "),
            Message::calling([call("a")]),
            result("later "),
        ];
        let mut messages: Vec<Arc<Message>> = all.into_iter().map(Arc::new).collect();
        let settings = json!({"trigger": 10, "keep": 1, "clear_tool_inputs": true});
        let settings: ContextEditingSettings = serde_json::from_value(settings).expect("settings");
        ContextEditing::from(settings).clear(&mut messages);
        assert!(messages[0].tool_calls()[0].args.is_empty());
        assert_eq!(messages[1].content.text(), PLACEHOLDER);
        assert_eq!(messages[2].tool_calls(), [call("a")]);
        assert_ne!(messages[3].content.text(), PLACEHOLDER);
    }

    #[test]
    fn an_answer_with_thousands_of_calls_is_not_copied_for_each_of_them() {
        let ids: Vec<String> = (0..10_000).map(|number| format!("c{number}")).collect();
        let result = |id: &String| Message::tool(&call(id), ToolStatus::Success, "result ".repeat(10));
        let mut messages = vec![Arc::new(Message::calling(ids.iter().map(|id| call(id))))];
        messages.extend(ids.iter().map(result).map(Arc::new));
        let settings = json!({"trigger": 10, "keep": 1, "clear_tool_inputs": true});
        let settings: ContextEditingSettings = serde_json::from_value(settings).expect("settings");
        let begun = Instant::now();
        ContextEditing::from(settings).clear(&mut messages);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let kept = messages[0].tool_calls().iter().filter(|call| !call.args.is_empty());
        assert_eq!(kept.count(), 1);
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
