//! Middleware: in long conversations, older tool results are left out of the model's request.
//!
//! Only the request is shortened. The state keeps every result, so clients see the whole conversation.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Middleware, ModelAnswer, NextModel, read_settings};
use crate::definition::{Diagnostic, FieldPath};
use crate::domain::message::{Content, Message, Role};
use crate::model::ModelRequest;
use crate::tool::Halt;

/// The replacement for a result that is left out.
const PLACEHOLDER: &str = "[cleared]";
/// The approximate number of bytes of one token.
const BYTES_PER_TOKEN: usize = 4;

/// The context editing middleware, with its settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContextEditing {
    /// The length of the conversation from which results are left out, in estimated tokens.
    trigger: usize,
    /// The number of newest results that are always kept.
    keep: usize,
}

impl Default for ContextEditing {
    fn default() -> Self {
        Self {
            trigger: 100_000,
            keep: 3,
        }
    }
}

#[async_trait]
impl Middleware for ContextEditing {
    fn name(&self) -> &str {
        "ContextEditingMiddleware"
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let policy: Self = read_settings(settings)?;
        if policy.trigger == 0 {
            let field = FieldPath::of(["trigger"]);
            return Err(vec![Diagnostic::error(field, "must be a whole number of at least 1")]);
        }
        Ok(Some(Arc::new(policy)))
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        self.clear(&mut request.messages);
        next.ask(request).await
    }
}

impl ContextEditing {
    /// Removes the older results of a conversation that is too long.
    fn clear(&self, messages: &mut [Arc<Message>]) {
        let bytes: usize = messages.iter().map(|message| size(message)).sum();
        if bytes / BYTES_PER_TOKEN < self.trigger {
            return;
        }
        let results = messages
            .iter_mut()
            .rev()
            .filter(|message| matches!(message.role, Role::Tool { .. }));
        for result in results.skip(self.keep) {
            if size(result) > PLACEHOLDER.len() {
                Arc::make_mut(result).content = Content::Text(PLACEHOLDER.to_owned());
            }
        }
    }
}

/// Returns the size of a message for the model, in bytes.
fn size(message: &Message) -> usize {
    match &message.content {
        Content::Text(text) => text.len(),
        Content::Blocks(blocks) => blocks.iter().map(|block| block.to_string().len()).sum(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::message::{ToolCall, ToolStatus};

    fn conversation() -> Vec<Arc<Message>> {
        let result = |id: &str| {
            let call = ToolCall::new(id, "lookup", Map::new());
            Message::tool(&call, ToolStatus::Success, format!("result {id} ").repeat(10))
        };
        let all = [
            Message::human("Look.".repeat(20)),
            result("a"),
            result("b"),
            result("c"),
        ];
        all.into_iter().map(Arc::new).collect()
    }

    fn texts(policy: &ContextEditing) -> Vec<String> {
        let mut messages = conversation();
        policy.clear(&mut messages);
        messages.iter().map(|message| message.content.text()).collect()
    }

    #[test]
    fn older_results_are_cleared_in_a_long_conversation() {
        let whole: Vec<String> = conversation().iter().map(|message| message.content.text()).collect();
        assert_eq!(texts(&ContextEditing { trigger: 1000, keep: 1 }), whole);
        let cleared = texts(&ContextEditing { trigger: 10, keep: 1 });
        assert_eq!(cleared[0], whole[0]);
        assert_eq!(cleared[1], PLACEHOLDER);
        assert_eq!(cleared[2], PLACEHOLDER);
        assert_eq!(cleared[3], whole[3]);
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
            ["kept: unknown key; did you mean `keep`? allowed are: trigger, keep"]
        );
    }
}
