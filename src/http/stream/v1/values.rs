//! The modes `values`, `updates` and `custom`: states and writes.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::agent::PresentedAgent;
use crate::domain::event::Origin;
use crate::domain::interrupt::Interrupt;
use crate::domain::state::Update;
use crate::http::stream::frame::{Frame, json};

/// The key of interrupts.
const INTERRUPT: &str = "__interrupt__";

/// The public part of an update; `null` when there is none.
pub(super) struct UpdateOrNull<'a>(pub &'a Update);

impl UpdateOrNull<'_> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Update {
            messages,
            files,
            fields,
            rules: _,
        } = self.0;
        let mut map = serializer.serialize_map(None)?;
        if !messages.is_empty() {
            map.serialize_entry("messages", messages)?;
        }
        if !files.is_empty() {
            map.serialize_entry("files", files)?;
        }
        for (name, value) in fields.iter().filter(|(name, _)| !self.0.hides(name)) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Serialize for UpdateOrNull<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.shows_nothing() {
            serializer.serialize_none()
        } else {
            self.write(serializer)
        }
    }
}

/// The public part of an update; `{}` when there is none.
pub(super) struct UpdateOrEmpty<'a>(pub &'a Update);

impl Serialize for UpdateOrEmpty<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        UpdateOrNull(self.0).write(serializer)
    }
}

/// The writes of a node.
struct NodeUpdate<'a> {
    node: &'a str,
    update: &'a Update,
    cached: bool,
}

impl Serialize for NodeUpdate<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.node, &UpdateOrNull(self.update))?;
        if self.cached {
            map.serialize_entry("__metadata__", &json!({"cached": true}))?;
        }
        map.end()
    }
}

/// `updates`: the writes of `node`. `cached` when an earlier run did the work.
pub(super) fn updates(agent: &PresentedAgent, node: &str, update: &Update, cached: bool) -> Frame {
    Frame::of(agent.name("updates"), &NodeUpdate { node, update, cached })
}

/// `updates`: interrupts, or none for a breakpoint.
pub(super) fn updates_with_interrupts(agent: &PresentedAgent, interrupts: &[Value]) -> Frame {
    Frame::of(agent.name("updates"), &json!({ INTERRUPT: interrupts }))
}

/// `values`: the state, if it is known.
pub(super) fn values(agent: &PresentedAgent) -> Option<Frame> {
    agent
        .fold
        .state
        .as_ref()
        .map(|state| Frame::of(agent.name("values"), state))
}

/// `values`: the state with interrupts.
pub(super) fn values_with_interrupts(agent: &PresentedAgent, interrupts: &[Value]) -> Option<Frame> {
    let mut data = json(agent.fold.state.as_ref()?);
    // The state is an object with at least two keys.
    data.pop();
    data.extend_from_slice(b",\"__interrupt__\":");
    data.extend_from_slice(&json(&interrupts));
    data.push(b'}');
    Some(Frame::new(agent.name("values"), data))
}

/// `custom`: a custom event of a tool or middleware.
pub(super) fn custom(agent: &PresentedAgent, value: &Value) -> Frame {
    Frame::of(agent.name("custom"), value)
}

/// An interrupt as streams show it, with its agent and its tool calls.
pub(super) fn interrupt(interrupt: &Interrupt, asker: &Origin) -> Value {
    let question = &interrupt.question;
    let mut shown = json!({
        "value": question.value,
        "id": interrupt.id,
        "response_schema": null,
        "agent_name": asker.agent,
        "agent_path": asker.path,
        "tool_call_ids": question.calls,
    });
    if question.shows_schema() {
        shown["response_schema"] = question.schema.parse();
    }
    shown
}
