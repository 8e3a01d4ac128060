//! The tasks that start after a checkpoint.
//!
//! The log contains what was done, not what comes next: a hook without writes is not in it, and the start of a model
//! call is not stored. So the tasks after a checkpoint are inferred from the next event of the agent or of one of its
//! subagents.

use serde_json::Map;

use crate::domain::checkpoint::CheckpointSource;
use crate::domain::event::{AgentWork, EventBody, Fact};
use crate::domain::id::{StepBase, TaskId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::machine::{MODEL, RUNNABLE, TOOLS};
use crate::domain::message::{ToolCall, answered_calls};
use crate::domain::state::State;
use crate::http::stream::fold::AgentFold;

/// The tasks after a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NextTasks {
    /// The task of a node.
    Node(String),
    /// The tool calls of the last answer.
    Calls,
    /// The tasks that the state implies, since no event determines them.
    Unknown,
    /// The tasks that the state implies, but they did not start.
    Stopped,
    /// A new turn; the checkpoint has no next tasks.
    NewTurn,
}

impl NextTasks {
    /// Infers the tasks of the step with this base from the next event of its agent.
    pub(super) fn inferred_from(event: &EventBody, base: StepBase) -> Self {
        match event {
            EventBody::Delta(_)
            | EventBody::Begun(AgentWork::Model)
            | EventBody::Fact(Fact::BrokenOff { .. } | Fact::FellBack { .. }) => Self::Node(MODEL.to_owned()),
            EventBody::Begun(AgentWork::Program) => Self::Node(RUNNABLE.to_owned()),
            EventBody::Entry(entry) => match (entry.source, entry.node.as_str()) {
                (CheckpointSource::Input | CheckpointSource::Update | CheckpointSource::Fork, _) => Self::NewTurn,
                (CheckpointSource::Loop, TOOLS) => Self::Calls,
                (CheckpointSource::Loop, node) => Self::Node(node.to_owned()),
            },
            EventBody::Fact(Fact::Asked { interrupts, .. }) => match interrupts.first() {
                Some(Interrupt {
                    asker: InterruptSource::Hook(name),
                    task,
                    ..
                }) if *task == base.task(name, 0) => Self::Node(name.clone()),
                Some(_) | None => Self::Calls,
            },
            EventBody::Fact(Fact::Started { .. }) => Self::NewTurn,
            EventBody::Output { .. } | EventBody::Fact(Fact::Calling { .. } | Fact::Answered { .. }) => Self::Calls,
            EventBody::Fact(Fact::Ended {
                error: Some(failure), ..
            }) if failure.class != "GraphRecursionError" => Self::Unknown,
            EventBody::Fact(Fact::Custom { .. }) => Self::Unknown,
            EventBody::Fact(Fact::Paused | Fact::Undone | Fact::Ended { .. }) => Self::Stopped,
        }
    }

    /// Returns true if an event implies that the calls of the last answer have started. An interrupt does not: it may
    /// come before.
    pub(super) fn are_calls(event: &EventBody) -> bool {
        !matches!(event, EventBody::Fact(Fact::Asked { .. }))
            && Self::inferred_from(event, StepBase::default()) == Self::Calls
    }

    /// The tasks of an agent with this `state` at its newest checkpoint.
    pub(super) fn tasks(&self, agent: &AgentFold, state: &State) -> Vec<StartedTask<'_>> {
        let task = |node, index, call| StartedTask {
            id: agent.task(node, index),
            node,
            call,
        };
        let calls = || {
            let calls = open_calls(agent).into_iter();
            calls.map(|(index, call)| task(TOOLS, index, Some(call))).collect()
        };
        match self {
            Self::Node(node) => vec![task(node, 0, None)],
            Self::Calls => calls(),
            Self::Unknown | Self::Stopped if !agent.sent.is_empty() => calls(),
            Self::Unknown | Self::Stopped => match state.messages.last() {
                Some(last) if last.is_ai() => calls(),
                Some(last) if last.is_human() || last.answers().is_some() => vec![task(MODEL, 0, None)],
                Some(_) | None => vec![],
            },
            Self::NewTurn => vec![],
        }
    }
}

/// A task that starts.
pub(super) struct StartedTask<'a> {
    pub id: TaskId,
    pub node: &'a str,
    /// The tool call, for a task of the tools node.
    pub call: Option<ToolCall>,
}

/// The calls of the last answer without a result, or those of a step for which a client has sent calls; each with its index in
/// the step.
pub(super) fn open_calls(agent: &AgentFold) -> Vec<(usize, ToolCall)> {
    if !agent.sent.is_empty() {
        return agent.sent.clone();
    }
    let Some(state) = &agent.state else {
        return vec![];
    };
    let Some((answer, later)) = state.messages.last_answer() else {
        return vec![];
    };
    let answered = answered_calls(later);
    let unreadable = answer.invalid_tool_calls().iter().filter_map(|call| {
        let name = call.name.clone().unwrap_or_default();
        Some(ToolCall::new(call.id.clone()?, name, Map::new()))
    });
    answer
        .tool_calls()
        .iter()
        .cloned()
        .chain(unreadable)
        .filter(|call| !answered.contains(call.id.as_str()))
        .enumerate()
        .map(|(position, call)| (agent.index_of(&call.id).unwrap_or(position), call))
        .collect()
}
