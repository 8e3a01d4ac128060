//! Policy: what a run may use is limited, and what it uses is counted.
//!
//! A call of a tool beyond a limit is an error result that the model can read. A question to the model beyond a limit ends
//! the run: the caller of a subagent is told so in the result. Delegations are counted where they are admitted.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::{Middleware, ModelAnswer, NextCall, NextModel};
use crate::definition::builtins;
use crate::domain::call::Answer;
use crate::domain::limits::Spending;
use crate::domain::machine::Failure;
use crate::domain::message::{Message, Role, ToolCall};
use crate::model::ModelRequest;
use crate::tool::budget::{Exceeded, Refused};
use crate::tool::{CallOutcome, Halt};

/// The class of the error that ends a run at a limit.
const CLASS: &str = "LimitExceededError";

/// The policy. The innermost one, so that it counts what really happens.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted;

#[async_trait]
impl Middleware for Counted {
    fn name(&self) -> &str {
        builtins::LIMITS
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let budget = next.scope.budget.clone();
        let clock = Arc::clone(&next.scope.clock);
        budget.claim(Spending::ModelCall, clock.now()).await.map_err(refused)?;
        let answer = next.ask(request).await?;
        // What an agent elsewhere says that it used counts here, too.
        for message in answer.heard.messages.iter().map(AsRef::as_ref).chain([&answer.message]) {
            let (input, output) = tokens(message);
            budget.add_tokens(input, output);
        }
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
                    return Ok(CallOutcome::Answer(Answer::error(&call, text)));
                }
                Err(away) => return Err(refused(away)),
            }
        }
        next.call(call).await
    }
}

/// A run ends that may not go on asking its model.
pub fn broken(limit: Exceeded) -> Halt {
    Halt::Fail(Failure::new(CLASS, limit.to_string()))
}

/// A run is left, and gone on with later, while it cannot be told what it may use.
fn refused(refused: Refused) -> Halt {
    match refused {
        Refused::Exceeded(limit) => broken(limit),
        Refused::Away => Halt::Stopped,
    }
}

/// The tokens that the provider says an answer took, of input and of output.
fn tokens(message: &Message) -> (u64, u64) {
    let Role::Ai {
        usage_metadata: Some(usage),
        ..
    } = &message.role
    else {
        return (0, 0);
    };
    let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
    (count("input_tokens"), count("output_tokens"))
}
