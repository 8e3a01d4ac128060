//! Middleware: instructions from the delegating agent replace the subagent's own.
//!
//! Only the definition's instructions are replaced; texts added by other middleware stay.

use async_trait::async_trait;

use super::{Middleware, ModelAnswer, NextModel};
use crate::definition::SystemPrompt;
use crate::domain::state::DELEGATED_PROMPT;
use crate::model::ModelRequest;
use crate::tool::Halt;

/// The prompt override middleware.
#[derive(Debug, Clone)]
pub struct PromptOverride {
    /// The instructions to replace.
    standard: SystemPrompt,
}

impl PromptOverride {
    /// Creates the middleware; `standard` is the beginning of the agent's instructions.
    pub fn new(standard: &SystemPrompt) -> Self {
        Self {
            standard: standard.clone(),
        }
    }
}

#[async_trait]
impl Middleware for PromptOverride {
    fn name(&self) -> &str {
        "OrderedPromptMiddleware"
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let ordered = next
            .state
            .fields
            .get(DELEGATED_PROMPT)
            .and_then(|prompt| prompt.as_str());
        if let Some(ordered) = ordered {
            request.system.replace_prefix(&self.standard, ordered);
        }
        next.ask(request).await
    }
}
