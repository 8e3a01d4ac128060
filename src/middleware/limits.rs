//! Policy: what a run may use is limited, and what it uses is counted.
//!
//! A call of a tool beyond a limit is an error result that the model can read. A question to the model beyond a limit ends
//! the run: the caller of a subagent is told so in the result. Delegations are counted where they are admitted.

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

/// The policy. The innermost one, so that it counts what really happens.
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
        // A call that goes on with the answer to its question was counted when it asked.
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
