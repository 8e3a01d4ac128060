//! The mode `tools`: the start, the progress and the end of each call, in the form that the JavaScript SDK reads.

use serde_json::{Value, json};

use super::agent::PresentedAgent;
use super::next_tasks::open_calls;
use crate::domain::call::edited_call;
use crate::domain::event::tool_progress;
use crate::domain::message::{Role, ToolCall, ToolStatus};
use crate::domain::state::Update;
use crate::http::stream::frame::Frame;
use crate::http::wire::stream_mode::StreamMode;

/// Sends the start of the last answer's calls, except those in `skip`, which were made before. A call is shown as a
/// reviewer edited it.
pub(super) fn start_calls(agent: &PresentedAgent, skip: &[usize], out: &mut Vec<Frame>) {
    let Some(state) = &agent.fold.state else {
        return;
    };
    for (at, call) in open_calls(&agent.fold) {
        if skip.contains(&at) {
            continue;
        }
        let made = match edited_call(state, &call.id) {
            Some(action) => ToolCall::new(call.id, action.name, action.args),
            None => call,
        };
        let data = json!({"event": "on_tool_start", "toolCallId": made.id, "name": made.name, "input": made.args});
        out.push(Frame::of(agent.name(StreamMode::Tools.word()), &data));
    }
}

/// The frame of the progress of a call; none if a custom event is not about that.
pub(super) fn progress(agent: &PresentedAgent, value: &Value) -> Option<Frame> {
    let payload = tool_progress(value)?;
    let id = payload.get("tool_call_id")?.as_str()?;
    let name = payload.get("tool_name")?.as_str()?;
    let data = json!({"event": "on_tool_event", "toolCallId": id, "name": name, "data": payload});
    Some(Frame::of(agent.name(StreamMode::Tools.word()), &data))
}

/// The frame of the end of a call with these writes; none if they have no result.
pub(super) fn end_call(agent: &PresentedAgent, update: &Update) -> Option<Frame> {
    let result = update.messages.iter().find(|message| message.answers().is_some())?;
    let failed = matches!(
        result.role,
        Role::Tool {
            status: ToolStatus::Error,
            ..
        }
    );
    let id = result.answers();
    let data = match failed {
        true => {
            json!({"event": "on_tool_error", "toolCallId": id, "name": result.name, "error": result.content.text()})
        }
        false => json!({"event": "on_tool_end", "toolCallId": id, "name": result.name, "output": result}),
    };
    Some(Frame::of(agent.name(StreamMode::Tools.word()), &data))
}
