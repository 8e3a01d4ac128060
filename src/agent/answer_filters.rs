//! The filters of the middleware for the text of an answer.

use std::sync::Arc;

use serde_json::Value;

use crate::domain::json_texts;
use crate::domain::machine::Failure;
use crate::domain::message::{Content, Message};
use crate::middleware::{Middleware, TextFilter};

/// The key of a message with the model's reasoning.
const REASONING: &str = "reasoning_content";
/// The keys of blocks with texts of the model.
const TEXT_KEYS: [&str; 3] = ["text", "reasoning", "thinking"];
/// The keys under which providers have the arguments of calls, which stay as they are.
const ARGUMENT_KEYS: [&str; 3] = ["arguments", "args", "input"];

/// The filters of one answer, innermost first.
#[derive(Default)]
pub(super) struct AnswerFilters {
    stack: Vec<Arc<dyn Middleware>>,
    text: FilterChain,
    reasoning: FilterChain,
}

/// A chain of filters: each reads what the one before it shows.
#[derive(Default)]
struct FilterChain(Vec<Box<dyn TextFilter>>);

impl FilterChain {
    fn of(stack: &[Arc<dyn Middleware>]) -> Self {
        Self(stack.iter().filter_map(|policy| policy.answer_filter()).collect())
    }

    fn push(&mut self, text: String) -> String {
        self.0.iter_mut().fold(text, |text, filter| filter.push(&text))
    }

    fn finish(&mut self) -> Result<String, Failure> {
        let mut rest = String::new();
        for filter in &mut self.0 {
            rest = filter.push(&rest);
            rest.push_str(&filter.finish()?);
        }
        Ok(rest)
    }
}

impl AnswerFilters {
    /// Collects the filters of these policies, of which the first is outermost.
    pub(super) fn of(stack: &[Arc<dyn Middleware>]) -> Self {
        let mut filters = Self::default();
        for policy in stack.iter().rev() {
            if let Some(filter) = policy.answer_filter() {
                filters.text.0.push(filter);
                filters.stack.push(Arc::clone(policy));
            }
        }
        filters.reasoning = FilterChain::of(&filters.stack);
        filters
    }

    /// Returns whether there is no filter.
    pub(super) fn is_empty(&self) -> bool {
        self.stack.is_empty()
    }

    /// Takes a piece of the text, and returns what may be shown now.
    pub(super) fn push_text(&mut self, text: String) -> String {
        self.text.push(text)
    }

    /// Takes a piece of the reasoning, and returns what may be shown now.
    pub(super) fn push_reasoning(&mut self, text: String) -> String {
        self.reasoning.push(text)
    }

    /// Returns the rest of the reasoning and of the text.
    ///
    /// # Errors
    /// The failure of a filter that does not let the answer pass.
    pub(super) fn finish(&mut self) -> Result<[String; 2], Failure> {
        Ok([self.reasoning.finish()?, self.text.finish()?])
    }

    /// Rewrites the texts of the complete answer, but for the arguments of calls. Fields of the provider that are changed by
    /// that are removed: the provider would not take them back.
    ///
    /// # Errors
    /// The failure of a filter that does not let the answer pass.
    pub(super) fn rewrite(&self, message: &mut Message) -> Result<(), Failure> {
        match &mut message.content {
            Content::Text(text) => *text = self.rewritten(text)?,
            Content::Blocks(blocks) => {
                for block in blocks {
                    self.rewrite_block(block)?;
                }
            }
        }
        let mut changed = vec![];
        for (key, value) in &mut message.additional_kwargs {
            let before = value.clone();
            json_texts::try_rewrite_besides(value, &ARGUMENT_KEYS, &mut |text: &mut String| {
                *text = self.rewritten(text)?;
                Ok(())
            })?;
            if *value != before && key != REASONING {
                changed.push(key.clone());
            }
        }
        message.additional_kwargs.retain(|key, _| !changed.contains(key));
        Ok(())
    }

    fn rewrite_block(&self, block: &mut Value) -> Result<(), Failure> {
        match block {
            Value::String(text) => *text = self.rewritten(text)?,
            Value::Object(fields) => {
                for key in TEXT_KEYS {
                    if let Some(Value::String(text)) = fields.get_mut(key) {
                        *text = self.rewritten(text)?;
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {}
        }
        Ok(())
    }

    fn rewritten(&self, text: &str) -> Result<String, Failure> {
        let mut filters = FilterChain::of(&self.stack);
        let mut rewritten = filters.push(text.to_owned());
        rewritten.push_str(&filters.finish()?);
        Ok(rewritten)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::middleware::pii::Pii;

    #[test]
    fn what_a_provider_wants_back_is_kept_unless_a_text_in_it_is_rewritten() {
        let settings = json!({"type": "email", "apply_to_output": true});
        let settings = settings.as_object().expect("an object");
        let policy = Pii::default().configured(settings).expect("settings");
        let filters = AnswerFilters::of(&[policy.expect("a policy")]);
        let keeps = |thought: &str| {
            let call = json!({"function": {"name": "send_email", "arguments": {"to": "bob@example.org"}},
                "item": {"type": "tool_use", "input": {"to": "bob@example.org"}}});
            let content = json!([{"thinking": thought, "signature": "abc"}, call]);
            let native = json!({"provider": "anthropic", "message": {"content": content}});
            let mut answer = Message::ai("Done.");
            answer.additional_kwargs.insert("native".to_owned(), native.clone());
            filters.rewrite(&mut answer).expect("it passes");
            answer.additional_kwargs.get("native") == Some(&native)
        };
        assert!(keeps("They want a mail."));
        assert!(!keeps("They want a mail to bob@example.org."));
    }
}
