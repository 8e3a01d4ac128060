//! Middleware: limits the number of calls of a tool, or of all tools, on a thread and in a run.
//!
//! The calls of an answer are counted in their order when the answer arrives, before a human is asked about them and
//! before any of them runs. The calls beyond the limit get their result at once. That and the counts are written
//! together with the answer, so calls that run side by side and restarts make no difference. A call that a human
//! rejects counts.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::model_call_limit::check_limits;
use super::{AgentParts, HookResult, Middleware, ModelAnswer, NextModel, instance_name, read_settings};
use crate::definition::mcp::ToolNames;
use crate::definition::{Diagnostic, FieldPath, builtins};
use crate::domain::machine::{Failure, HookPoint, Jump};
use crate::domain::message::{Message, ToolCall, ToolStatus, answered_calls};
use crate::domain::state::{RUN_TOOL_CALLS, State, THREAD_TOOL_CALLS, Update};
use crate::model::ModelRequest;
use crate::tool::{Halt, Scope};

/// The class of the failure with which a run ends.
const FAILURE: &str = "ToolCallLimitExceededError";
/// The key of the counts of a limit on all tools.
const ALL: &str = "__all__";

/// The tool call limit middleware.
#[derive(Debug, Clone, Default)]
pub struct ToolCallLimit {
    settings: ToolCallLimitSettings,
    /// The tools that the limit is about; `None` if it is about all.
    tools: Option<ToolNames>,
    /// The tools by which the model gives its final answer. They are not counted.
    answer_tools: Vec<String>,
    name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ToolCallLimitSettings {
    /// The tool; all tools when absent.
    tool: Option<String>,
    /// The maximum number of calls on the thread.
    thread_limit: Option<u64>,
    /// The maximum number of calls in a run.
    run_limit: Option<u64>,
    /// The effect of a call beyond a limit.
    exit_behavior: ToolLimitExit,
}

/// The effect of a call beyond a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToolLimitExit {
    /// The call gets an error result, and the run goes on.
    #[default]
    Continue,
    /// The run ends with a message that says so.
    End,
    /// The run fails.
    Error,
}

#[async_trait]
impl Middleware for ToolCallLimit {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(builtins::TOOL_CALLS)
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let settings: ToolCallLimitSettings = read_settings(settings)?;
        let mut findings = check_limits(settings.thread_limit, settings.run_limit);
        if settings.tool.as_ref().is_some_and(|tool| tool.trim().is_empty()) {
            let message = "must not be blank; leave it out for a limit on all tools";
            findings.push(Diagnostic::error(FieldPath::of(["tool"]), message));
        }
        if !findings.is_empty() {
            return Err(findings);
        }
        Ok(Some(Arc::new(Self {
            tools: settings.tool.as_ref().map(|tool| ToolNames::of([tool])),
            name: settings
                .tool
                .as_ref()
                .map(|tool| instance_name(builtins::TOOL_CALLS, tool)),
            answer_tools: vec![],
            settings,
        })))
    }

    fn distinguished_by(&self) -> Option<&'static str> {
        Some("tool")
    }

    fn tools_setting(&self) -> Option<&'static str> {
        Some("tool")
    }

    fn for_agent(&self, parts: &AgentParts<'_>) -> Option<Arc<dyn Middleware>> {
        Some(Arc::new(Self {
            answer_tools: parts.answer_tools.to_vec(),
            ..self.clone()
        }))
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeAgent, HookPoint::AfterModel]
    }

    async fn hook(&self, point: HookPoint, _: &Scope, state: &State) -> Result<HookResult, Halt> {
        match point {
            // The counts of all limits on tools are in one field.
            HookPoint::BeforeAgent
                if state
                    .fields
                    .get(RUN_TOOL_CALLS)
                    .is_some_and(|counts| *counts != json!({})) =>
            {
                Ok(Update::field(RUN_TOOL_CALLS, json!({})).into())
            }
            HookPoint::AfterModel => self.exit(state),
            HookPoint::BeforeAgent | HookPoint::BeforeModel | HookPoint::AfterAgent => Ok(HookResult::default()),
        }
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let state = next.state;
        let agent = next.scope.agent.clone();
        let mut answer = next.ask(request).await?;
        self.admit(state, &agent, &mut answer);
        Ok(answer)
    }
}

impl ToolCallLimit {
    /// Counts the calls of an answer, and adds results for those that go beyond the limit.
    fn admit(&self, state: &State, agent: &str, answer: &mut ModelAnswer) {
        let answered = answered_calls(&answer.extra.messages).into_iter();
        let answered: BTreeSet<String> = answered.map(str::to_owned).collect();
        let calls: Vec<ToolCall> = answer.message.tool_calls().to_vec();
        let counted: Vec<&ToolCall> = calls
            .iter()
            .filter(|call| self.concerns(&call.name) && !answered.contains(&call.id))
            .collect();
        if counted.is_empty() {
            return;
        }
        let thread = count(state, &answer.extra, THREAD_TOOL_CALLS, self.key());
        let run = count(state, &answer.extra, RUN_TOOL_CALLS, self.key());
        let left = |limit: Option<u64>, calls: u64| limit.map_or(u64::MAX, |limit| limit.saturating_sub(calls));
        let of_run = left(self.settings.run_limit, run);
        let of_thread = left(self.settings.thread_limit, thread);
        let admitted = counted
            .len()
            .min(usize::try_from(of_run.min(of_thread)).unwrap_or(usize::MAX));
        let refused = counted.get(admitted..).unwrap_or_default().iter();
        let refused: BTreeSet<&str> = refused.map(|call| call.id.as_str()).collect();
        let more = u64::try_from(admitted).unwrap_or(u64::MAX);
        for (field, calls) in [(THREAD_TOOL_CALLS, thread), (RUN_TOOL_CALLS, run)] {
            let mut counts = counts(state, &answer.extra, field);
            counts.insert(self.key().to_owned(), json!(calls.saturating_add(more)));
            answer.extra.fields.insert(field.to_owned(), Value::Object(counts));
        }
        if refused.is_empty() {
            return;
        }
        let reached = self.reached(of_thread <= of_run);
        let ends = self.settings.exit_behavior != ToolLimitExit::Continue;
        for call in &calls {
            let text = match (refused.contains(call.id.as_str()), ends) {
                (true, _) => {
                    format!("{reached} The call was not made. Do not make it again; finish with what you have.")
                }
                (false, true) => format!("{reached} The run ends, so this call was not made."),
                (false, false) => continue,
            };
            if !answered.contains(&call.id) {
                answer
                    .extra
                    .messages
                    .push(Arc::new(self.marked(Message::tool(call, ToolStatus::Error, text))));
            }
        }
        if self.settings.exit_behavior == ToolLimitExit::End {
            let end = Message {
                name: Some(agent.to_owned()),
                ..Message::ai(reached)
            };
            answer.extra.messages.push(Arc::new(self.marked(end)));
        }
    }

    /// Ends the run if the newest answer has a call beyond the limit.
    fn exit(&self, state: &State) -> Result<HookResult, Halt> {
        let Some(last) = state.messages.last().filter(|message| self.is_marked(message)) else {
            return Ok(HookResult::default());
        };
        match self.settings.exit_behavior {
            ToolLimitExit::Continue => Ok(HookResult::default()),
            ToolLimitExit::End if !last.is_ai() => Ok(HookResult::default()),
            ToolLimitExit::End => Ok(HookResult {
                jump: Some(Jump::End),
                ..HookResult::default()
            }),
            ToolLimitExit::Error => {
                let calls = count(state, &Update::none(), THREAD_TOOL_CALLS, self.key());
                let of_thread = self.settings.thread_limit.is_some_and(|limit| calls >= limit);
                Err(Halt::Fail(Failure::new(FAILURE, self.reached(of_thread))))
            }
        }
    }

    /// Returns whether calls of a tool are counted.
    fn concerns(&self, tool: &str) -> bool {
        match &self.tools {
            Some(tools) => tools.contains(tool),
            None => !self.answer_tools.iter().any(|other| other == tool),
        }
    }

    fn key(&self) -> &str {
        self.settings.tool.as_deref().unwrap_or(ALL)
    }

    /// Returns the text about the limit that is reached.
    fn reached(&self, of_thread: bool) -> String {
        let what = match &self.settings.tool {
            Some(tool) => format!("calls of `{tool}`"),
            None => "tool calls".to_owned(),
        };
        match (of_thread, self.settings.thread_limit, self.settings.run_limit) {
            (true, Some(limit), _) => format!("The limit on {what} on this thread is reached: {limit}."),
            (_, _, limit) => format!(
                "The limit on {what} in one run is reached: {}.",
                limit.unwrap_or_default()
            ),
        }
    }

    fn marked(&self, mut message: Message) -> Message {
        message.set_source(self.name());
        message
    }

    fn is_marked(&self, message: &Message) -> bool {
        message.source() == Some(self.name())
    }
}

/// Returns the counts in a field, after the limits inside this one have written theirs.
fn counts(state: &State, extra: &Update, field: &str) -> Map<String, Value> {
    let newest = extra.fields.get(field).or_else(|| state.fields.get(field));
    newest.and_then(Value::as_object).cloned().unwrap_or_default()
}

fn count(state: &State, extra: &Update, field: &str, key: &str) -> u64 {
    counts(state, extra, field)
        .get(key)
        .and_then(Value::as_u64)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(settings: Value) -> ToolCallLimit {
        let settings: ToolCallLimitSettings = serde_json::from_value(settings).expect("settings");
        ToolCallLimit {
            tools: settings.tool.as_ref().map(|tool| ToolNames::of([tool])),
            answer_tools: vec!["Finding".to_owned()],
            name: None,
            settings,
        }
    }

    fn answer(tools: &[&str]) -> ModelAnswer {
        let call = |(at, tool): (usize, &&str)| ToolCall::new(format!("c{at}"), *tool, Map::new());
        ModelAnswer {
            message: Message::calling(tools.iter().enumerate().map(call)),
            extra: Update::none(),
        }
    }

    fn refused(answer: &ModelAnswer) -> Vec<&str> {
        answer
            .extra
            .messages
            .iter()
            .filter_map(|message| message.answers())
            .collect()
    }

    #[test]
    fn the_first_calls_of_an_answer_are_admitted_and_the_others_refused() {
        let mut given = answer(&["search", "other", "search", "search"]);
        limit(json!({"tool": "search", "run_limit": 2})).admit(&State::default(), "a", &mut given);
        assert_eq!(refused(&given), ["c3"]);
        assert_eq!(given.extra.fields[RUN_TOOL_CALLS], json!({"search": 2}));
    }

    #[test]
    fn limits_inside_one_another_keep_their_counts_and_a_call_is_refused_once() {
        let mut given = answer(&["search", "search", "read"]);
        limit(json!({"tool": "search", "run_limit": 1})).admit(&State::default(), "a", &mut given);
        limit(json!({"run_limit": 1})).admit(&State::default(), "a", &mut given);
        assert_eq!(refused(&given), ["c1", "c2"]);
        assert_eq!(
            given.extra.fields[THREAD_TOOL_CALLS],
            json!({"search": 1, "__all__": 1})
        );
    }

    #[test]
    fn a_call_that_gives_the_final_answer_is_not_counted() {
        let mut given = answer(&["Finding"]);
        limit(json!({"run_limit": 1})).admit(&State::default(), "a", &mut given);
        assert!(given.extra.is_empty());
    }

    #[test]
    fn a_limit_that_ends_the_run_answers_all_calls() {
        let mut given = answer(&["read", "search", "search"]);
        let policy = limit(json!({"tool": "search", "thread_limit": 1, "exit_behavior": "end"}));
        policy.admit(&State::default(), "a", &mut given);
        assert_eq!(refused(&given), ["c0", "c1", "c2"]);
        let mut state = State::default();
        state.apply(&given.extra);
        assert_eq!(policy.exit(&state).expect("a result").jump, Some(Jump::End));
        let failing = limit(json!({"tool": "search", "thread_limit": 1, "exit_behavior": "error"}));
        state.messages = given.extra.messages.split_last().expect("messages").1.to_vec().into();
        let failure = failing.exit(&state);
        assert!(
            matches!(&failure, Err(Halt::Fail(failure)) if failure.message == "The limit on calls of `search` on this thread is reached: 1."),
            "{failure:?}"
        );
    }
}
