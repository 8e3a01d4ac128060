//! Middleware: counts the usage of a run and enforces its limits.
//!
//! A tool call beyond a limit returns an error to the model. A model call beyond a limit ends the run; for a
//! subagent, the caller's result says so. Delegations are counted at their admission.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Middleware, ModelAnswer, NextCall, NextModel};
use crate::definition::builtins;
use crate::domain::call::ToolOutput;
use crate::domain::limits::Spending;
use crate::domain::message::ToolCall;
use crate::model::ModelRequest;
use crate::tool::budget::Refused;
use crate::tool::{CallOutcome, Halt};

/// The limits middleware. It is the innermost one, so that it counts the calls that are really made.
#[derive(Debug, Clone, Copy, Default)]
pub struct UsageLimits;

#[async_trait]
impl Middleware for UsageLimits {
    fn name(&self) -> &str {
        builtins::LIMITS
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let budget = next.scope.budget.clone();
        let clock = Arc::clone(&next.scope.clock);
        budget.claim(Spending::ModelCall, clock.now()).await?;
        let answer = next.ask(request).await?;
        budget.add_tokens_of([&answer.message]);
        budget.settle(clock.now()).await;
        Ok(answer)
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        // A call that continues with the answer to its question was counted before.
        if next.scope.answer.is_none() {
            match next.scope.budget.claim(Spending::ToolCall, next.scope.now()).await {
                Ok(()) => {}
                Err(Refused::Exceeded(limit)) => {
                    let text = format!("{limit} The call was not made; finish with what you have.");
                    return Ok(CallOutcome::Answer(ToolOutput::error(&call, text)));
                }
                Err(away) => return Err(away.into()),
            }
        }
        next.call(call).await
    }
}
