//! Which tasks begin after a checkpoint.
//!
//! The log says what was done, and not what comes next: a hook that writes nothing is not in it, and that a model is asked
//! is not stored. So what began after a checkpoint is known once the next event of the agent is there, or one of a subagent.

use serde_json::Map;

use crate::domain::checkpoint::CheckpointSource;
use crate::domain::event::{AgentWork, EventBody, Fact};
use crate::domain::id::{CheckpointId, TaskId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::machine::{MODEL, RUNNABLE, TOOLS};
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::State;
use crate::http::stream::fold::AgentFold;

/// What the tasks after a checkpoint are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NextTasks {
    /// The task of this node.
    Node(String),
    /// The calls of the last answer.
    Calls,
    /// What the state says, as nothing else tells.
    Unknown,
    /// What the state says, but it did not begin.
    Stopped,
    /// Something else altogether: a new turn begins.
    NewTurn,
}

impl NextTasks {
    /// What an event tells about the tasks that began after the newest checkpoint of its agent, where `head` is that
    /// checkpoint.
    pub(super) fn inferred_from(event: &EventBody, head: Option<CheckpointId>) -> Self {
        match event {
            EventBody::Delta(_) | EventBody::Begun(AgentWork::Model) | EventBody::Fact(Fact::BrokenOff { .. }) => {
                Self::Node(MODEL.to_owned())
            }
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
                }) if *task == TaskId::of_step(head, name, 0) => Self::Node(name.clone()),
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

    /// Whether an event tells that its agent makes the calls of the last answer. A question does not: it may come before.
    pub(super) fn are_calls(event: &EventBody) -> bool {
        !matches!(event, EventBody::Fact(Fact::Asked { .. })) && Self::inferred_from(event, None) == Self::Calls
    }

    /// The tasks, of an agent that stands at its newest checkpoint with this `state`.
    pub(super) fn tasks(&self, agent: &AgentFold, state: &State) -> Vec<StartedTask<'_>> {
        let task = |node, index, call| StartedTask {
            id: TaskId::of_step(agent.head, node, index),
            node,
            call,
        };
        let calls = || {
            let calls = open_calls(state).into_iter().enumerate();
            calls.map(|(index, call)| task(TOOLS, index, Some(call))).collect()
        };
        match self {
            Self::Node(node) => vec![task(node, 0, None)],
            Self::Calls => calls(),
            Self::Unknown | Self::Stopped => match state.messages.last() {
                Some(last) if last.is_ai() => calls(),
                Some(last) if last.is_human() || last.answers().is_some() => vec![task(MODEL, 0, None)],
                Some(_) | None => vec![],
            },
            Self::NewTurn => vec![],
        }
    }
}

/// A task that begins.
pub(super) struct StartedTask<'a> {
    pub id: TaskId,
    pub node: &'a str,
    /// The call, of a task that makes one.
    pub call: Option<ToolCall>,
}

/// The calls of the last answer that have no result, in the order of their tasks.
pub(super) fn open_calls(state: &State) -> Vec<ToolCall> {
    let Some(at) = state.messages.iter().rposition(|message| message.is_ai()) else {
        return vec![];
    };
    let answer: &Message = &state.messages[at];
    let later = &state.messages[at + 1..];
    let is_open = |id: &str| !later.iter().any(|message| message.answers() == Some(id));
    let unreadable = answer.invalid_tool_calls().iter().filter_map(|call| {
        let name = call.name.clone().unwrap_or_default();
        Some(ToolCall::new(call.id.clone()?, name, Map::new()))
    });
    answer
        .tool_calls()
        .iter()
        .cloned()
        .chain(unreadable)
        .filter(|call| is_open(&call.id))
        .collect()
}
