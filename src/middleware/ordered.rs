//! Policy: who delegated may have written the instructions.
//!
//! They take the place of the standard ones; what other policies add to these stays.

use async_trait::async_trait;

use super::{Middleware, ModelAnswer, NextModel};
use crate::definition::SystemPrompt;
use crate::domain::state::ORDERED_PROMPT;
use crate::model::ModelRequest;
use crate::tool::Halt;

/// The policy.
#[derive(Debug, Clone)]
pub struct PromptOverride {
    /// The instructions that are replaced.
    standard: SystemPrompt,
}

impl PromptOverride {
    /// Replaces `standard`, which begins the instructions of the agent.
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
        let ordered = next.state.fields.get(ORDERED_PROMPT).and_then(|prompt| prompt.as_str());
        if let Some(ordered) = ordered {
            request.system.replace_prefix(&self.standard, ordered);
        }
        next.ask(request).await
    }
}
