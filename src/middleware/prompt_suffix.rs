//! Middleware: appends a text to the end of the instructions.
//!
//! The instructions before it are the same for several agents, so that providers can cache them.

use async_trait::async_trait;

use super::{Middleware, ModelAnswer, NextModel};
use crate::definition::SystemPrompt;
use crate::model::ModelRequest;
use crate::tool::Halt;

/// The prompt suffix middleware. It must be the innermost one that changes the instructions.
#[derive(Debug, Clone)]
pub struct PromptSuffix(pub SystemPrompt);

#[async_trait]
impl Middleware for PromptSuffix {
    fn name(&self) -> &str {
        "AddendumMiddleware"
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        request.system.append(&self.0);
        next.ask(request).await
    }
}
