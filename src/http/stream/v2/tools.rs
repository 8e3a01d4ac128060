//! The channels `tools` and `tasks`: the start and end of calls.

use serde_json::{Map, Value, json};

use super::agent::TrackedAgent;
use super::filter::Channel;
use super::frame_writer::{FrameId, FrameWriter};
use super::values::Writes;
use crate::domain::call::edited_call;
use crate::domain::id::TaskId;
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::TOOLS;
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::Update;
use crate::http::stream::fold::AgentFold;

/// Sends the start of calls. After a crash it is not repeated.
pub(super) fn begin(agent: &mut TrackedAgent, calls: &[(usize, String)], out: &mut FrameWriter<'_>) {
    for (at, id) in calls {
        if agent.open_calls.insert(id.clone(), *at).is_some() {
            continue;
        }
        let call = || call_of(&agent.fold, id);
        out.put(Channel::Tools, &agent.source, FrameId::Numbered, || {
            let (name, args) = call().map_or_else(Default::default, |call| (call.name, call.args));
            json!({"event": "tool-started", "tool_call_id": id, "tool_name": name, "input": args})
        });
        out.put(Channel::Tasks, &agent.source, FrameId::Numbered, || {
            let task = agent.fold.task(TOOLS, *at);
            json!({"id": task, "name": TOOLS, "input": call().map(|call| [call])})
        });
    }
}

/// Sends a piece of a call's output.
pub(super) fn delta(agent: &TrackedAgent, call: &str, text: &str, out: &mut FrameWriter<'_>) {
    if agent.open_calls.contains_key(call) {
        out.put(
            Channel::Tools,
            &agent.source,
            FrameId::Numbered,
            || json!({"event": "tool-output-delta", "tool_call_id": call, "delta": text}),
        );
    }
}

/// The call of this id as it is executed: the one that a client has sent, the model's, or the version that a reviewer edited.
fn call_of(agent: &AgentFold, id: &str) -> Option<ToolCall> {
    if let Some((_, sent)) = agent.sent.iter().find(|(_, call)| call.id == id) {
        return Some(sent.clone());
    }
    let state = agent.state.as_ref()?;
    if let Some(action) = edited_call(state, id) {
        return Some(ToolCall::new(id, action.name, action.args));
    }
    state.last_ai()?.tool_calls().iter().find(|call| call.id == id).cloned()
}

/// Sends the end of the call at `at`. `delegated` when a subagent worked on it.
pub(super) fn end(agent: &mut TrackedAgent, at: usize, writes: &Update, delegated: bool, out: &mut FrameWriter<'_>) {
    let result = writes.messages.iter().find(|message| message.answers().is_some());
    let failed = result
        .filter(|message| message.is_error_result())
        .map(|message| message.content.text());
    let was_open = result
        .and_then(|message| agent.open_calls.remove(message.answers()?))
        .is_some();
    if let Some(message) = result.filter(|_| was_open) {
        let id = message.answers().unwrap_or_default();
        match &failed {
            Some(text) => put_error(agent, id, text, out),
            None => {
                out.put(Channel::Tools, &agent.source, FrameId::Numbered, || {
                    let output = if delegated {
                        command(writes, message)
                    } else {
                        json!(message)
                    };
                    json!({"event": "tool-finished", "tool_call_id": id, "output": output})
                });
                put_result_message(agent, message, delegated, out);
            }
        }
    }
    out.put(Channel::Tasks, &agent.source, FrameId::Numbered, || {
        let task = agent.fold.task(TOOLS, at);
        json!({"id": task, "name": TOOLS, "result": Writes(writes), "error": failed, "interrupts": []})
    });
    out.put_of_node(
        Channel::Updates,
        &agent.source,
        TOOLS,
        || json!({"node": TOOLS, "values": Writes(writes)}),
    );
}

/// Sends an error for each call without a result.
pub(super) fn fail_open_calls(agent: &mut TrackedAgent, reason: &str, out: &mut FrameWriter<'_>) {
    for id in std::mem::take(&mut agent.open_calls).into_keys() {
        put_error(agent, &id, reason, out);
    }
}

/// Sends a task that waits for the answer to interrupts.
pub(super) fn park(
    agent: &TrackedAgent,
    task: TaskId,
    node: &str,
    interrupts: &[&Interrupt],
    out: &mut FrameWriter<'_>,
) {
    out.put(Channel::Tasks, &agent.source, FrameId::Numbered, || {
        let value = |interrupt: &&Interrupt| json!({"id": interrupt.id, "value": interrupt.question.value});
        let interrupts: Vec<Value> = interrupts.iter().map(value).collect();
        json!({"id": task, "name": node, "result": {}, "error": null, "interrupts": interrupts})
    });
}

/// Sends a node other than the tools, which is finished at once.
pub(super) fn node(agent: &TrackedAgent, node: &str, writes: &Update, out: &mut FrameWriter<'_>) {
    let task = agent.fold.task(node, 0);
    out.put(
        Channel::Tasks,
        &agent.source,
        FrameId::Numbered,
        || json!({"id": task, "name": node, "input": null}),
    );
    out.put(
        Channel::Tasks,
        &agent.source,
        FrameId::Numbered,
        || json!({"id": task, "name": node, "result": Writes(writes), "error": null, "interrupts": []}),
    );
    out.put_of_node(
        Channel::Updates,
        &agent.source,
        node,
        || json!({"node": node, "values": Writes(writes)}),
    );
}

fn put_error(agent: &TrackedAgent, id: &str, text: &str, out: &mut FrameWriter<'_>) {
    out.put(
        Channel::Tools,
        &agent.source,
        FrameId::Numbered,
        || json!({"event": "tool-error", "tool_call_id": id, "message": text}),
    );
}

/// The output of a delegation: a state update of the caller instead of a message.
fn command(writes: &Update, message: &Message) -> Value {
    let mut update = match json!(Writes(writes)) {
        Value::Object(update) => update,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    // The delegation wrote the message without name and id; it gets them in the state.
    let message = Message {
        name: None,
        id: None,
        ..message.clone()
    };
    update.insert("messages".to_owned(), json!([message]));
    json!({"graph": null, "update": update, "resume": null, "goto": []})
}

/// Sends a result as a message under the namespace of its call. The text of a delegation is empty, since its result is
/// a state update.
fn put_result_message(agent: &TrackedAgent, message: &Message, delegated: bool, out: &mut FrameWriter<'_>) {
    let call = message.answers().unwrap_or_default();
    let source = agent.source.of_call(call);
    let text = || json!({"type": "text", "text": if delegated { String::new() } else { message.content.text() }});
    let mut put = |data: &dyn Fn() -> Value| out.put(Channel::Messages, &source, FrameId::Numbered, data);
    put(&|| json!({"event": "message-start", "role": "tool", "id": message.id, "tool_call_id": call}));
    put(&|| json!({"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}}));
    put(&|| json!({"event": "content-block-delta", "index": 0, "content": text()}));
    put(&|| json!({"event": "content-block-finish", "index": 0, "content": text()}));
    put(&|| json!({"event": "message-finish", "metadata": {}}));
}
