//! Middleware: the agent works until a certain tool succeeds, and returns that tool's result.
//!
//! A model that stops earlier is reminded a limited number of times.

use async_trait::async_trait;
use serde_json::Value;

use super::reminder::ToolUseReminder;
use super::structured::FIELD;
use super::{HookResult, Middleware};
use crate::definition::builtins;
use crate::domain::call::ToolOutput;
use crate::domain::machine::HookPoint;
use crate::domain::message::{Role, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::tool::{Halt, Scope};

/// The value that marks reminders of this middleware.
const SOURCE: &str = "until_tool";

/// The until-tool middleware.
#[derive(Debug, Clone)]
pub struct UntilToolMiddleware {
    tools: Vec<String>,
}

impl UntilToolMiddleware {
    /// Creates the middleware; the run ends with the first success of one of `tools`.
    pub fn new(tools: Vec<String>) -> Self {
        Self { tools }
    }
}

#[async_trait]
impl Middleware for UntilToolMiddleware {
    fn name(&self) -> &str {
        builtins::UNTIL
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::AfterModel]
    }

    async fn hook(&self, _: HookPoint, _: &Scope, state: &State) -> Result<HookResult, Halt> {
        let names: Vec<String> = self.tools.iter().map(|name| format!("`{name}`")).collect();
        let text = format!(
            "Your work is not done before {} has succeeded. Go on.",
            names.join(" or ")
        );
        let failure = (
            "UntilToolError",
            "the model stopped without calling the tool that its work has to end with",
        );
        ToolUseReminder {
            source: SOURCE,
            text,
            failure,
        }
        .remind(state)
    }

    fn receive(&self, _: &Scope, _: &State, call: &ToolCall, mut answer: ToolOutput) -> ToolOutput {
        let result = answer
            .writes
            .messages
            .iter()
            .find(|message| message.answers() == Some(call.id.as_str()));
        let Some(result) = result.filter(|_| self.tools.contains(&call.name)) else {
            return answer;
        };
        if matches!(
            result.role,
            Role::Tool {
                status: ToolStatus::Success,
                ..
            }
        ) {
            let text = result.content.text();
            answer.writes.fields.insert(FIELD.to_owned(), Value::String(text));
            answer.ends = true;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Map, json};

    use super::*;
    use crate::domain::machine::Jump;
    use crate::domain::message::Message;
    use crate::domain::summarization::EVENT;
    use crate::domain::time::Timestamp;

    fn policy() -> UntilToolMiddleware {
        UntilToolMiddleware::new(vec!["submit".to_owned()])
    }

    fn received(name: &str, status: ToolStatus) -> ToolOutput {
        let call = ToolCall::new("c", name, Map::new());
        let answer = ToolOutput::message(Message::tool(&call, status, "report 7"));
        policy().receive(&Scope::sample(Timestamp(0)), &State::default(), &call, answer)
    }

    #[test]
    fn the_first_success_of_the_tool_ends_the_work_with_its_result() {
        let answer = received("submit", ToolStatus::Success);
        assert!(answer.ends);
        assert_eq!(answer.writes.fields[FIELD], json!("report 7"));
    }

    #[test]
    fn a_failure_or_another_tool_does_not_end_the_run() {
        for answer in [
            received("submit", ToolStatus::Error),
            received("lookup", ToolStatus::Success),
        ] {
            assert!(!answer.ends && answer.writes.fields.is_empty());
        }
    }

    #[tokio::test]
    async fn a_model_that_stops_early_gets_reminders_and_then_fails() {
        let mut state = State::default();
        state
            .messages
            .extend([Message::human("go"), Message::ai("done")].map(Arc::new));
        for _ in 0..2 {
            let reaction = policy()
                .hook(HookPoint::AfterModel, &Scope::sample(Timestamp(0)), &state)
                .await;
            let reaction = reaction.expect("a reminder");
            assert_eq!(reaction.jump, Some(Jump::Model));
            state.apply(&reaction.update);
            state.messages.push(Arc::new(Message::ai("done")));
        }
        let failed = policy()
            .hook(HookPoint::AfterModel, &Scope::sample(Timestamp(0)), &state)
            .await;
        assert!(matches!(failed, Err(Halt::Fail(failure)) if failure.class == "UntilToolError"));
    }

    #[tokio::test]
    async fn reminders_before_a_summary_count() {
        let scope = Scope::sample(Timestamp(0));
        let mut state = State::default();
        state
            .messages
            .extend([Message::human("go"), Message::ai("done")].map(Arc::new));
        for _ in 0..2 {
            let reaction = policy().hook(HookPoint::AfterModel, &scope, &state).await;
            state.apply(&reaction.expect("a reminder").update);
            let work = (0..100).map(|_| Message::ai("done"));
            state.messages.extend(work.map(Arc::new));
        }
        state.messages.push(Arc::new(Message::ai("done").with_id("last")));
        let event = json!({"last_message_id": "last", "summary_message": {"type": "human", "content": "S"}});
        state.fields.insert(EVENT.to_owned(), event);
        assert!(state.compress());
        assert_eq!(state.messages.earlier_len(), 141);
        let failed = policy().hook(HookPoint::AfterModel, &scope, &state).await;
        assert!(matches!(failed, Err(Halt::Fail(failure)) if failure.class == "UntilToolError"));
    }
}
