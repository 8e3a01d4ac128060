//! Middleware: the agent delegates tasks to subagents.
//!
//! The middleware offers the `task` tool, with the argument names of the agent's dialect, and a tool that returns
//! instructions for tasks. The `task` tool starts nothing: it returns a [`Delegation`], which the loop executes.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Contribution, Middleware, NextCall};
use crate::definition::builtins;
use crate::definition::{TaskDialect, UnknownSubagent};
use crate::domain::call::ToolOutput;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::run::DelegatedTask;
use crate::domain::state::State;
use crate::model::ToolSpec;
use crate::tool::{CallOutcome, Delegation, Halt, Scope, Tool};

mod wording;

use wording::PromptTexts;

/// The name of the tool.
pub const TASK: &str = "task";
/// The name of the tool that returns the instructions for a task.
pub const INSTRUCTIONS_TOOL: &str = "get_task_instructions";

/// A subagent, as it is described to the delegating model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubagentSummary {
    /// The name.
    pub name: String,
    /// The description of its abilities.
    pub description: String,
    /// Detailed instructions, returned by the instructions tool.
    pub instructions: Option<String>,
    /// True if the subagent continues the caller's conversation.
    pub is_fork: bool,
}

/// The subagents that an agent can delegate to, and the texts about them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubagentList {
    /// The subagents, in this order.
    pub subagents: Vec<SubagentSummary>,
    /// The name of the general-purpose subagent, if there is one.
    pub general: Option<String>,
    /// The names of the tool's arguments.
    pub dialect: TaskDialect,
    /// The action for an unknown subagent name; the dialect's default if none.
    pub unknown: Option<UnknownSubagent>,
    /// True if the tool's description leaves the list of subagents out, since another text tells the model which to
    /// use.
    pub unlisted: bool,
    /// The description of the tool. `{available_agents}` is replaced by the list of subagents.
    pub task_description: Option<String>,
    /// The text added to the instructions, together with the list of subagents.
    pub task_system_prompt: Option<String>,
}

/// The delegation middleware.
#[derive(Clone)]
pub struct Subagents {
    task: Arc<TaskTool>,
    instructions_tool: Option<Arc<InstructionsTool>>,
    prompt: Option<String>,
    /// True if the tool is offered but refuses every call.
    is_refusing: bool,
}

/// The result for a fork that tries to delegate.
const REFUSAL: &str = "Error: you work on an order yourself and cannot delegate. Nothing was run; do the work with your \
    other tools.";

impl Subagents {
    /// Creates the middleware for these subagents.
    pub fn new(list: &SubagentList) -> Self {
        let texts = PromptTexts::of(list.dialect);
        let written = |card: &SubagentSummary| Some((card.name.clone(), card.instructions.clone()?));
        let instructions: Vec<(String, String)> = list.subagents.iter().filter_map(written).collect();
        let instructions_tool = (!instructions.is_empty()).then(|| {
            Arc::new(InstructionsTool {
                spec: Arc::new(texts.instructions_spec(&instructions)),
                instructions,
                texts,
            })
        });
        let fallback = list.general.clone().filter(|_| list.falls_back());
        let names = list.subagents.iter().map(|card| card.name.clone()).collect();
        let spec = Arc::new(texts.task_spec(list));
        let task = TaskTool {
            spec,
            names,
            fallback,
            general: list.general.clone(),
            texts,
        };
        Self {
            task: Arc::new(task),
            instructions_tool,
            prompt: texts.prompt(list),
            is_refusing: false,
        }
    }

    /// Returns the middleware for a fork: it offers the same tools, but refuses to delegate.
    #[must_use]
    pub fn refusing(&self) -> Self {
        Self {
            is_refusing: true,
            ..self.clone()
        }
    }
}

impl SubagentList {
    /// Returns whether the general-purpose subagent does the tasks of unknown names.
    fn falls_back(&self) -> bool {
        self.general.is_some()
            && self.unknown.unwrap_or_else(|| self.dialect.unknown_subagent()) == UnknownSubagent::Fallback
    }
}

#[async_trait]
impl Middleware for Subagents {
    fn name(&self) -> &str {
        builtins::SUBAGENTS
    }

    fn contribution(&self) -> Contribution {
        let instructions_tool = self
            .instructions_tool
            .clone()
            .map(|instructions_tool| instructions_tool as Arc<dyn Tool>);
        let task = Arc::clone(&self.task) as Arc<dyn Tool>;
        Contribution {
            tools: std::iter::once(task).chain(instructions_tool).collect(),
            prompt: self.prompt.clone(),
            ..Contribution::default()
        }
    }

    /// Adds advice to the error about a wrong name or argument, which the schema check cannot give.
    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        if call.name != TASK {
            return next.call(call).await;
        }
        if self.is_refusing {
            return Ok(CallOutcome::Answer(ToolOutput::error(&call, REFUSAL)));
        }
        match self.task.refusal(&call) {
            Some(text) => Ok(CallOutcome::Answer(ToolOutput::error(&call, text))),
            None => next.call(call).await,
        }
    }
}

struct TaskTool {
    spec: Arc<ToolSpec>,
    names: Vec<String>,
    /// The subagent for tasks with an unknown name.
    fallback: Option<String>,
    general: Option<String>,
    texts: PromptTexts,
}

impl TaskTool {
    /// Returns the reason why a call is refused.
    fn refusal(&self, call: &ToolCall) -> Option<String> {
        let known = self.texts.all();
        let unknown: Vec<String> = call
            .args
            .keys()
            .filter(|key| !known.contains(&key.as_str()))
            .map(|key| format!("`{key}`"))
            .collect();
        if !unknown.is_empty() {
            let order = self.texts.order;
            let subagent = self.texts.subagent;
            return Some(format!(
                "Error: `task` has no argument {}. All instructions for the subagent belong in `{order}`. \
                 Nothing was run; call again with `{order}` and `{subagent}` only.",
                unknown.join(", ")
            ));
        }
        let wanted = call.args.get(self.texts.subagent).and_then(|value| value.as_str());
        if let Some(prompt) = self.texts.prompt.and_then(|key| call.args.get(key)?.as_str()) {
            if wanted != self.general.as_deref() {
                return Some(
                    "Error: only the general-purpose subagent takes a `system_prompt`. Nothing was run.".to_owned(),
                );
            }
            if let Some(problem) = wording::prompt_error(prompt) {
                return Some(format!("Error: `system_prompt` {problem}. Nothing was run."));
            }
        }
        let wanted = wanted?;
        if self.fallback.is_some() || self.names.iter().any(|name| name == wanted) {
            return None;
        }
        let names: Vec<String> = self.names.iter().map(|name| format!("`{name}`")).collect();
        Some(format!(
            "We cannot invoke subagent {wanted} because it does not exist, the only allowed types are {}",
            names.join(", ")
        ))
    }

    /// Returns the name of the subagent for the task.
    fn target(&self, call: &ToolCall) -> String {
        let wanted = call.args.get(self.texts.subagent).and_then(|value| value.as_str());
        let known = wanted.filter(|wanted| self.names.iter().any(|name| name == wanted));
        let general = self
            .fallback
            .as_deref()
            .or(self.general.as_deref().filter(|_| wanted.is_none()));
        known.or(general).or(wanted).unwrap_or_default().to_owned()
    }
}

#[async_trait]
impl Tool for TaskTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if let Some(text) = self.refusal(call) {
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        }
        let argument = |name: &str| call.args.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        let order = DelegatedTask {
            description: argument(self.texts.order).unwrap_or_default(),
            system_prompt: self.texts.prompt.and_then(argument),
            ..DelegatedTask::default()
        };
        Ok(CallOutcome::Delegate(Delegation {
            subagent: self.target(call),
            order,
        }))
    }
}

/// The tool that returns the instructions for a task.
struct InstructionsTool {
    spec: Arc<ToolSpec>,
    instructions: Vec<(String, String)>,
    texts: PromptTexts,
}

#[async_trait]
impl Tool for InstructionsTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let wanted = call
            .args
            .get(self.texts.subagent)
            .and_then(|value| value.as_str())
            .unwrap_or_default();
        let answer = match self.instructions.iter().find(|(name, _)| name == wanted) {
            Some((_, text)) => ToolOutput::message(Message::tool(call, ToolStatus::Success, text.clone())),
            None => ToolOutput::error(
                call,
                format!("Nothing is written about `{wanted}`. Go by its description."),
            ),
        };
        Ok(CallOutcome::Answer(answer))
    }
}

#[cfg(test)]
mod tests;
