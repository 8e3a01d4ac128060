//! Middleware: warns a model that repeats a failing call, and then ends the run.
//!
//! Calls are equal if their tool and arguments are. A call is repeated if every answer of the model since the last
//! human message makes it, and it fails each time. The result of failure number N contains a warning; after N more
//! failures the run ends. All of this is derived from the messages, so it survives a restart.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::{Middleware, ModelAnswer, NextModel};
use crate::definition::builtins;
use crate::domain::call::ToolOutput;
use crate::domain::machine::Failure;
use crate::domain::message::{Content, InvalidToolCall, Message, Role, ToolCall, answered_calls};
use crate::domain::message_list::MessageList;
use crate::domain::state::State;
use crate::model::ModelRequest;
use crate::tool::{Halt, Scope};

/// The class of the failure that ends a run.
const CLASS: &str = "RepeatedFailureError";

/// The repeated-failures middleware.
#[derive(Debug, Clone, Copy)]
pub struct RepeatedFailures {
    /// The number of failures before the warning. The run ends after twice as many.
    limit: usize,
}

impl RepeatedFailures {
    /// Creates the middleware: a warning after `limit` failures, the end of the run after twice as many. None if
    /// `limit` is 0.
    pub fn new(limit: u32) -> Option<Self> {
        let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0)?;
        Some(Self { limit })
    }
}

#[async_trait]
impl Middleware for RepeatedFailures {
    fn name(&self) -> &str {
        builtins::REPEATED_FAILURES
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let most = self.limit.saturating_mul(2);
        if let Some(tool) = repeated(&last_turns(&next.state.messages, most), most) {
            let message = format!(
                "The model called `{tool}` {most} times in a row with the same arguments, and it failed every time. \
                 The number is set by `limits.repeated_failures`."
            );
            return Err(Halt::Fail(Failure::new(CLASS, message)));
        }
        next.ask(request).await
    }

    fn receive(&self, _: &Scope, state: &State, call: &ToolCall, mut answer: ToolOutput) -> ToolOutput {
        let mut results = answer.writes.messages.iter_mut();
        let result = results.find(|message| message.answers() == Some(call.id.as_str()));
        // A turn may have thousands of calls, and they are compared only for one that has failed.
        if let Some(result) = result.filter(|result| result.is_error_result())
            && self.is_due(state, call)
        {
            add_text(&mut Arc::make_mut(result).content, &notice(&call.name, self.limit));
        }
        answer
    }
}

impl RepeatedFailures {
    /// Returns whether the result of a call that has failed gets the warning.
    fn is_due(self, state: &State, call: &ToolCall) -> bool {
        let messages = last_turns(&state.messages, self.limit + 1);
        let mut turns = turns(&messages);
        // The call belongs to the newest answer, whose results are still arriving.
        let is_current = turns.next().is_some_and(|turn| turn.makes(call));
        let before = turns.take_while(|turn| turn.fails(call)).take(self.limit).count();
        is_current && before + 1 == self.limit
    }
}

/// Returns the warning in the result of a failure.
fn notice(tool: &str, times: usize) -> String {
    format!(
        "This call of `{tool}` has now failed {times} times in a row with exactly these arguments. Repeating it will not \
         help: change the arguments, use another tool, or say what is missing."
    )
}

fn add_text(content: &mut Content, text: &str) {
    match content {
        Content::Text(existing) => {
            existing.push_str("\n\n");
            existing.push_str(text);
        }
        Content::Blocks(blocks) => blocks.push(serde_json::json!({"type": "text", "text": text})),
    }
}

/// Returns messages with the last `count` turns, or with all since the last human message.
fn last_turns(messages: &MessageList, count: usize) -> Cow<'_, [Arc<Message>]> {
    messages.recent_or_all(|recent| {
        recent.iter().any(|message| message.is_human()) || turns(recent).take(count).count() == count
    })
}

/// Returns the tool of a call that failed in each of the last `times` answers of the model.
fn repeated(messages: &[Arc<Message>], times: usize) -> Option<&str> {
    let latest: Vec<Turn<'_>> = turns(messages).take(times).collect();
    let newest = latest.first().filter(|_| latest.len() == times)?;
    let failed: Vec<HashSet<CallKey<'_>>> = latest.iter().map(Turn::failed).collect();
    let mut calls = newest.answer.tool_calls().iter();
    let repeated = calls.find(|call| failed.iter().all(|calls| calls.contains(&key_of(call))));
    if let Some(call) = repeated {
        return Some(&call.name);
    }
    let unreadable: Vec<HashSet<UnreadableKey<'_>>> = latest.iter().map(Turn::unreadable).collect();
    let mut calls = newest.answer.invalid_tool_calls().iter();
    let repeated = calls.find(|call| unreadable.iter().all(|calls| calls.contains(&unreadable_key_of(call))));
    repeated.map(|call| call.name.as_deref().unwrap_or_default())
}

/// The tool and the arguments of a call.
type CallKey<'a> = (&'a str, &'a Map<String, Value>);

fn key_of(call: &ToolCall) -> CallKey<'_> {
    (call.name.as_str(), &call.args)
}

/// The tool and the arguments of a call that could not be read.
type UnreadableKey<'a> = (Option<&'a str>, Option<&'a str>);

fn unreadable_key_of(call: &InvalidToolCall) -> UnreadableKey<'_> {
    (call.name.as_deref(), call.args.as_deref())
}

/// An answer of the model and the messages up to the next one.
struct Turn<'a> {
    answer: &'a Message,
    results: &'a [Arc<Message>],
}

impl<'a> Turn<'a> {
    fn makes(&self, call: &ToolCall) -> bool {
        self.answer.tool_calls().iter().any(|other| other.id == call.id)
    }

    /// Returns whether the turn made the same call and it failed.
    fn fails(&self, call: &ToolCall) -> bool {
        let same = |other: &&ToolCall| other.name == call.name && other.args == call.args;
        let failed = |other: &ToolCall| {
            let mut results = self.results.iter();
            results.any(|message| message.answers() == Some(other.id.as_str()) && message.is_error_result())
        };
        self.answer.tool_calls().iter().filter(same).any(failed)
    }

    /// Returns the calls that failed.
    fn failed(&self) -> HashSet<CallKey<'a>> {
        let errors = self.results.iter().filter(|message| message.is_error_result());
        let ids = answered_calls(errors);
        let calls = self.answer.tool_calls().iter();
        calls
            .filter(|call| ids.contains(call.id.as_str()))
            .map(key_of)
            .collect()
    }

    /// Returns the calls whose arguments are not a JSON object. Such a call never ran; it counts as failed.
    fn unreadable(&self) -> HashSet<UnreadableKey<'a>> {
        self.answer.invalid_tool_calls().iter().map(unreadable_key_of).collect()
    }
}

/// Returns the turns since the last human message, newest first.
fn turns(messages: &[Arc<Message>]) -> impl Iterator<Item = Turn<'_>> {
    let mut end = messages.len();
    std::iter::from_fn(move || {
        let earlier = messages.get(..end)?;
        let at = earlier
            .iter()
            .rposition(|message| message.is_ai() || matches!(message.role, Role::Human))?;
        let answer = messages.get(at).filter(|message| message.is_ai())?;
        let results = earlier.get(at + 1..)?;
        end = at;
        Some(Turn { answer, results })
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;
    use crate::domain::message::ToolStatus;
    use crate::domain::time::Timestamp;

    fn call(id: &str, path: &str) -> ToolCall {
        let args: Value = json!({"path": path});
        ToolCall::new(id, "read", args.as_object().cloned().unwrap_or_default())
    }

    /// Returns a turn with calls of these statuses.
    fn turn(calls: &[(ToolCall, ToolStatus)]) -> Vec<Arc<Message>> {
        let role = Role::Ai {
            tool_calls: calls.iter().map(|(call, _)| call.clone()).collect(),
            invalid_tool_calls: vec![],
            usage_metadata: None,
        };
        let results = calls
            .iter()
            .map(|(call, status)| Message::tool(call, *status, "no such file"));
        std::iter::once(Message::new(role, ""))
            .chain(results)
            .map(Arc::new)
            .collect()
    }

    fn failing(times: usize) -> Vec<Arc<Message>> {
        let turns = (0..times).flat_map(|at| turn(&[(call(&at.to_string(), "/a"), ToolStatus::Error)]));
        std::iter::once(Arc::new(Message::human("go"))).chain(turns).collect()
    }

    /// Returns the text of the result of another failure after these messages.
    fn next_result(mut messages: Vec<Arc<Message>>, path: &str) -> String {
        let again = call("again", path);
        messages.extend(turn(&[(again.clone(), ToolStatus::Error)]).into_iter().take(1));
        let state = State {
            messages: messages.into(),
            ..State::default()
        };
        let policy = RepeatedFailures::new(3).expect("a policy");
        let answer = policy.receive(
            &Scope::sample(Timestamp(0)),
            &state,
            &again,
            ToolOutput::error(&again, "no such file"),
        );
        answer.writes.messages[0].content.text()
    }

    #[test]
    fn only_the_last_of_n_failures_has_the_warning() {
        assert_eq!(next_result(failing(1), "/a"), "no such file");
        assert!(
            next_result(failing(2), "/a").starts_with("no such file\n\nThis call of `read` has now failed 3 times")
        );
        assert_eq!(next_result(failing(3), "/a"), "no such file");
    }

    #[test]
    fn other_arguments_are_another_call() {
        assert_eq!(next_result(failing(2), "/b"), "no such file");
    }

    #[test]
    fn another_call_or_a_human_message_ends_a_series_of_failures() {
        assert_eq!(repeated(&failing(6), 6), Some("read"));
        assert_eq!(repeated(&failing(5), 6), None);
        let mut spoken = failing(5);
        spoken.extend(failing(5));
        assert_eq!(repeated(&spoken, 6), None);
        let mut other = failing(5);
        other.extend(turn(&[(call("x", "/a"), ToolStatus::Success)]));
        other.extend(failing(5).into_iter().skip(1));
        assert_eq!(repeated(&other, 6), None);
    }

    #[test]
    fn a_call_beside_others_that_succeed_counts() {
        let mixed = |at: usize| {
            turn(&[
                (call(&format!("a{at}"), "/a"), ToolStatus::Error),
                (call(&format!("b{at}"), "/b"), ToolStatus::Success),
            ])
        };
        let messages: Vec<Arc<Message>> = (0..6).flat_map(mixed).collect();
        assert_eq!(repeated(&messages, 6), Some("read"));
    }

    #[test]
    fn answers_with_thousands_of_calls_are_compared_in_time() {
        let many = |turn_number: usize| {
            let calls: Vec<_> = (0..10_000)
                .map(|at| {
                    let id = format!("{turn_number} {at}");
                    (call(&id, &format!("/{}{id}", "a".repeat(1_000))), ToolStatus::Error)
                })
                .collect();
            turn(&calls)
        };
        let messages: Vec<Arc<Message>> = (0..2).flat_map(many).collect();
        let begun = Instant::now();
        assert_eq!(repeated(&messages, 2), None);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn nothing_is_counted_with_a_limit_of_0() {
        assert!(RepeatedFailures::new(0).is_none());
    }
}
