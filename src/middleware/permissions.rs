//! Middleware: refuses the tool calls that the permissions of an agent deny.
//!
//! It is inside the other policies, so that it checks the call that really runs: after an edit by a human, and
//! also if a client has sent the call. Calls about which a rule asks are the business of [`super::approval`].

use async_trait::async_trait;

use super::{Middleware, ModelAnswer, NextCall, NextModel};
use crate::definition::{CallRules, builtins};
use crate::domain::call::ToolOutput;
use crate::domain::message::ToolCall;
use crate::model::ModelRequest;
use crate::tool::{CallOutcome, Halt};

/// The permissions middleware.
pub struct CallPermissions(CallRules);

impl CallPermissions {
    /// Creates the middleware; none if there are no rules.
    pub fn new(rules: CallRules) -> Option<Self> {
        (!rules.is_empty()).then_some(Self(rules))
    }
}

#[async_trait]
impl Middleware for CallPermissions {
    fn name(&self) -> &str {
        builtins::PERMISSIONS
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        request
            .tools
            .retain(|tool| !self.0.always_denies(&next.scope.path, &tool.name));
        next.ask(request).await
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        match self.0.check(&next.scope.path, &call) {
            Ok(()) => next.call(call).await,
            Err(denied) => Ok(CallOutcome::Answer(ToolOutput::error(&call, denied))),
        }
    }
}
