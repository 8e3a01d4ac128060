//! The calls of hooks, whose results are for the hook alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::Value;

use super::Loop;
use super::calls::PreparedCall;
use crate::definition::{AfterCrash, builtins};
use crate::domain::call::ToolOutput;
use crate::domain::id::TaskId;
use crate::domain::machine::Machine;
use crate::domain::message::ToolCall;
use crate::domain::state::State;
use crate::middleware::HookTools;
use crate::model::ToolSpec;
use crate::tool::file_claims::FileClaims;
use crate::tool::{CallOutcome, Halt, Scope};

const NO_APPROVAL: &str = "Error: a human would have to be asked about this call. It was not made.";

const NO_DELEGATION: &str =
    "Error: this tool delegates to a subagent, which is not possible here. Nothing was delegated.";

const NO_REPETITION: &str = "Error: this tool may not be called here, since its calls must not be repeated after a \
     crash (`after_crash`). The call was not made.";

/// The tools of an agent for one of its hooks.
pub(super) struct ToolsOfHook<'a> {
    own: &'a Loop<'a>,
    machine: &'a Machine,
    /// The public name of the hook.
    hook: &'a str,
    /// The number of calls that the hook has made.
    made: AtomicUsize,
}

impl<'a> ToolsOfHook<'a> {
    /// Creates it for the hook of this name.
    pub(super) fn new(own: &'a Loop<'a>, machine: &'a Machine, hook: &'a str) -> Self {
        Self {
            own,
            machine,
            hook,
            made: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl HookTools for ToolsOfHook<'_> {
    fn specs(&self) -> Vec<Arc<ToolSpec>> {
        let own = self.own.agent.model_loop();
        own.map_or_else(Vec::new, |own| own.toolbox.specs())
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, Halt> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        // The task is an idempotency key. A hook that runs again after a crash may make other calls with the same ids.
        let arguments = Value::Object(call.args.clone());
        let task = format!("{}:{number}:{}:{arguments}", self.hook, call.name);
        let task = self.machine.task(&task);
        self.own.call_for_hook(&self.machine.state, task, call).await
    }
}

impl Loop<'_> {
    /// Makes a call of a hook. It goes through the middleware like a call of the model.
    async fn call_for_hook(&self, state: &State, task: TaskId, call: ToolCall) -> Result<ToolOutput, Halt> {
        if let Some(refusal) = self.refusal_for_hook(&call) {
            return Ok(ToolOutput::error(&call, refusal));
        }
        let scope = Scope {
            task: Some(task),
            // The writes of the call are not stored, so that they are in the way of no other call.
            files: FileClaims::default(),
            // Clients do not know the call.
            progress: self.scope.progress.without_output(),
            ..self.scope.answered(vec![])
        };
        let job = PreparedCall {
            at: 0,
            call: call.clone(),
            scope,
        };
        match self.make_in_span(job, state).await {
            Ok(CallOutcome::Answer(answer)) => {
                // The file of a long result would not be stored, so that nobody could read it.
                let policies = self.agent.stack().iter().rev();
                let policies = policies.filter(|policy| policy.name() != builtins::FILES);
                Ok(policies.fold(answer, |answer, policy| {
                    policy.receive(&self.scope, state, &call, answer)
                }))
            }
            Ok(CallOutcome::Delegate(_)) => Ok(ToolOutput::error(&call, NO_DELEGATION)),
            Err(Halt::Ask(_)) => Ok(ToolOutput::error(&call, NO_APPROVAL)),
            Err(halt @ (Halt::Fail(_) | Halt::Stopped)) => Err(halt),
        }
    }

    /// Returns the reason why a hook may not make a call.
    fn refusal_for_hook(&self, call: &ToolCall) -> Option<&'static str> {
        if self.needs_approval(call) {
            return Some(NO_APPROVAL);
        }
        let tool = self.agent.tool(&call.name);
        let may_repeat = tool.is_none_or(|tool| tool.after_crash() == AfterCrash::Repeat);
        (!may_repeat).then_some(NO_REPETITION)
    }
}
