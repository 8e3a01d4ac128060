//! Policy: the agent can hand work to subagents.
//!
//! Offers the `task` tool, in the words of the agent's dialect, and a tool to read what is written about a task. The
//! `task` tool starts nothing: it returns a wish, and the loop decides about it.

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
/// The name of the tool that tells what is written about a task.
pub const INSTRUCTIONS_TOOL: &str = "get_task_instructions";

/// A subagent as the delegating model sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubagentSummary {
    /// What it is called.
    pub name: String,
    /// What it is good for.
    pub description: String,
    /// How to use it, at length; shown only to a model that asks.
    pub instructions: Option<String>,
    /// Whether it begins with the conversation of who delegates.
    pub is_fork: bool,
}

/// What an agent may delegate, and how it is told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubagentList {
    /// Whom it can delegate to, in this order.
    pub subagents: Vec<SubagentSummary>,
    /// Which of them is the general-purpose one.
    pub general: Option<String>,
    /// The names of the arguments.
    pub dialect: TaskDialect,
    /// What becomes of a name that is no subagent's; none for what the dialect does.
    pub unknown: Option<UnknownSubagent>,
    /// Whether the subagents are not listed: somebody else tells the model which one to take.
    pub unlisted: bool,
    /// The description of the tool. The slot `{available_agents}` is filled with the list of subagents.
    pub task_description: Option<String>,
    /// A text that is added to the instructions together with the list of subagents.
    pub task_system_prompt: Option<String>,
}

/// The policy.
#[derive(Clone)]
pub struct Subagents {
    task: Arc<Task>,
    guide: Option<Arc<InstructionsTool>>,
    prompt: Option<String>,
    /// Whether nothing is delegated although it is offered.
    refuses: bool,
}

/// What a fork is told that would delegate.
const REFUSAL: &str = "Error: you work on an order yourself and cannot delegate. Nothing was run; do the work with your \
    other tools.";

impl Subagents {
    /// Offers what is on the menu.
    pub fn new(menu: &SubagentList) -> Self {
        let words = PromptTexts::of(menu.dialect);
        let written = |card: &SubagentSummary| Some((card.name.clone(), card.instructions.clone()?));
        let instructions: Vec<(String, String)> = menu.subagents.iter().filter_map(written).collect();
        let guide = (!instructions.is_empty()).then(|| {
            Arc::new(InstructionsTool {
                spec: Arc::new(words.guide_spec(&instructions)),
                instructions,
                words,
            })
        });
        let fallback = menu.general.clone().filter(|_| menu.falls_back());
        let names = menu.subagents.iter().map(|card| card.name.clone()).collect();
        let spec = Arc::new(words.task_spec(menu));
        let task = Task {
            spec,
            names,
            fallback,
            general: menu.general.clone(),
            words,
        };
        Self {
            task: Arc::new(task),
            guide,
            prompt: words.prompt(menu),
            refuses: false,
        }
    }

    /// The same for a fork: it looks like its caller to the model, but nothing is delegated.
    #[must_use]
    pub fn refusing(&self) -> Self {
        Self {
            refuses: true,
            ..self.clone()
        }
    }
}

impl SubagentList {
    /// Whether the general-purpose subagent does what no other is named for.
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
        let guide = self.guide.clone().map(|guide| guide as Arc<dyn Tool>);
        let task = Arc::clone(&self.task) as Arc<dyn Tool>;
        Contribution {
            tools: std::iter::once(task).chain(guide).collect(),
            prompt: self.prompt.clone(),
            ..Contribution::default()
        }
    }

    /// A wrong name, or an argument that does not exist, is answered with a word on the way out, which the check of the
    /// arguments against the schema could not give.
    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        if self.refuses && call.name == TASK {
            return Ok(CallOutcome::Answer(ToolOutput::error(&call, REFUSAL)));
        }
        match self.task.refusal(&call) {
            Some(text) if call.name == TASK => Ok(CallOutcome::Answer(ToolOutput::error(&call, text))),
            Some(_) | None => next.call(call).await,
        }
    }
}

struct Task {
    spec: Arc<ToolSpec>,
    names: Vec<String>,
    /// Who does the work that nobody else is named for.
    fallback: Option<String>,
    general: Option<String>,
    words: PromptTexts,
}

impl Task {
    /// Why a call cannot be granted.
    fn refusal(&self, call: &ToolCall) -> Option<String> {
        let known = self.words.all();
        let unknown: Vec<String> = call
            .args
            .keys()
            .filter(|key| !known.contains(&key.as_str()))
            .map(|key| format!("`{key}`"))
            .collect();
        if !unknown.is_empty() {
            let order = self.words.order;
            let subagent = self.words.subagent;
            return Some(format!(
                "Error: `task` has no argument {}. All instructions for the subagent belong in `{order}`. \
                 Nothing was run; call again with `{order}` and `{subagent}` only.",
                unknown.join(", ")
            ));
        }
        let wanted = call.args.get(self.words.subagent).and_then(|value| value.as_str());
        if let Some(prompt) = self.words.prompt.and_then(|key| call.args.get(key)?.as_str()) {
            if wanted != self.general.as_deref() {
                return Some(
                    "Error: only the general-purpose subagent takes a `system_prompt`. Nothing was run.".to_owned(),
                );
            }
            if let Some(problem) = wording::prompt_problem(prompt) {
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

    /// Who shall do the work.
    fn chosen(&self, call: &ToolCall) -> String {
        let wanted = call.args.get(self.words.subagent).and_then(|value| value.as_str());
        let known = wanted.filter(|wanted| self.names.iter().any(|name| name == wanted));
        let general = self
            .fallback
            .as_deref()
            .or(self.general.as_deref().filter(|_| wanted.is_none()));
        known.or(general).or(wanted).unwrap_or_default().to_owned()
    }
}

#[async_trait]
impl Tool for Task {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if let Some(text) = self.refusal(call) {
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        }
        let argument = |name: &str| call.args.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        let order = DelegatedTask {
            description: argument(self.words.order).unwrap_or_default(),
            system_prompt: self.words.prompt.and_then(argument),
            ..DelegatedTask::default()
        };
        Ok(CallOutcome::Delegate(Delegation {
            subagent: self.chosen(call),
            order,
        }))
    }
}

/// Tells what is written about a task.
struct InstructionsTool {
    spec: Arc<ToolSpec>,
    instructions: Vec<(String, String)>,
    words: PromptTexts,
}

#[async_trait]
impl Tool for InstructionsTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let wanted = call
            .args
            .get(self.words.subagent)
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
