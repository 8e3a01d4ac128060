//! The tool `compact_conversation`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::{Summarization, length};
use crate::definition::builtins::{Builtin, SUMMARIZATION};
use crate::domain::call::ToolOutput;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::domain::summarization::SummarizationEvent;
use crate::middleware::open_calls;
use crate::model::{ModelRequest, ToolSpec};
use crate::tool::{CallOutcome, Halt, Scope, Tool};

const DESCRIPTION: &str = "Replaces the older part of this conversation by a summary, to make room for further work. \
Use it when a piece of work is done and its details are not needed any more. It takes no arguments.";

/// The tool.
pub(super) struct CompactConversation {
    spec: Arc<ToolSpec>,
    own: Summarization,
}

impl CompactConversation {
    pub(super) fn shared(own: Summarization) -> Arc<dyn Tool> {
        let name = Builtin::tools_of(SUMMARIZATION).first().copied().unwrap_or_default();
        let spec = ToolSpec {
            name: name.to_owned(),
            description: DESCRIPTION.to_owned(),
            parameters: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        };
        Arc::new(Self {
            spec: Arc::new(spec),
            own,
        })
    }

    /// Returns the reason why there is nothing to do.
    fn refusal(&self, state: &State, call: &ToolCall) -> Option<&'static str> {
        let first = open_calls(state).into_iter().find(|other| other.name == call.name);
        if first.is_some_and(|first| first.id != call.id) {
            return Some("Nothing was done: another call of the same message compacts the conversation.");
        }
        let event = SummarizationEvent::of(&state.fields).unwrap_or_default();
        let view = event.view(state.messages.recent());
        let request = ModelRequest::default();
        let length = length::of_request(
            &request,
            &view,
            event.created_after.as_deref(),
            &length::ToolTokens::default(),
        );
        let is_long = self.own.0.lengths.is_half_reached(length);
        (!is_long).then_some("Nothing was done: the conversation is short enough to go on.")
    }
}

#[async_trait]
impl Tool for CompactConversation {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let success = |text: String| ToolOutput::message(Message::tool(call, ToolStatus::Success, text));
        if let Some(refusal) = self.refusal(state, call) {
            return Ok(CallOutcome::Answer(success(refusal.to_owned())));
        }
        let answer = match self.own.compact(scope, state, None).await {
            Ok(Some(compaction)) => {
                let count = compaction.event.cutoff_index;
                let mut answer = success(format!(
                    "Compacted: a summary stands for the first {count} messages now."
                ));
                answer.writes.merge(compaction.update());
                answer
            }
            Ok(None) => success("Nothing was done: there is nothing older to summarise.".to_owned()),
            Err(Halt::Fail(failure)) => {
                let text = format!(
                    "The conversation was not compacted ({}): {} It goes on as it is.",
                    failure.class, failure.message
                );
                ToolOutput::error(call, text)
            }
            Err(halt) => return Err(halt),
        };
        Ok(CallOutcome::Answer(answer))
    }
}
