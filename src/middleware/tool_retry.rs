//! Middleware: repeats tool calls that failed.
//!
//! A failure that the tool itself reports is repeated. A failure that leaves open whether the call took effect (no
//! answer in time, a lost connection, an answer that cannot be read) is repeated only for tools that may be called
//! twice: those with `after_crash = "repeat"`. Results with arguments that do not fit, and results that are no
//! failures, are never repeated. All attempts have one idempotency key. A crash between two attempts is handled like one
//! within an attempt.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{MOST_NAMES, Middleware, NextCall, read_settings};
use crate::definition::mcp::ToolNames;
use crate::definition::{Diagnostic, FieldPath, MOST_RETRIES, builtins};
use crate::domain::backoff::Backoff;
use crate::domain::call::ToolOutput;
use crate::domain::machine::Failure;
use crate::domain::message::ToolCall;
use crate::tool::{CallOutcome, Halt, UNCERTAIN};

/// The longest pause that can be set, in seconds.
const LONGEST_PAUSE_S: f64 = 3_600.0;
/// The largest growth factor that can be set.
const LARGEST_FACTOR: f32 = 100.0;

/// The tool retry middleware.
#[derive(Debug, Clone, Default)]
pub struct ToolRetry {
    settings: ToolRetrySettings,
    tools: ToolNames,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ToolRetrySettings {
    /// The number of attempts after the first one.
    max_retries: u32,
    /// The pause before the second attempt, in seconds.
    initial_delay_s: f64,
    /// The factor by which the pauses grow.
    backoff_factor: f32,
    /// The longest pause, in seconds.
    max_delay_s: f64,
    /// True if a random part is added to each pause.
    jitter: bool,
    /// The effect of the last failure.
    on_failure: OnRetriesExhausted,
    /// The tools; all when empty.
    tools: Vec<String>,
    /// The classes of failures that are repeated; all when empty.
    retry_on: Vec<String>,
}

impl Default for ToolRetrySettings {
    fn default() -> Self {
        Self {
            max_retries: 2,
            initial_delay_s: 1.0,
            backoff_factor: 2.0,
            max_delay_s: 60.0,
            jitter: true,
            on_failure: OnRetriesExhausted::default(),
            tools: vec![],
            retry_on: vec![],
        }
    }
}

/// The effect of a failure after which a call is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnRetriesExhausted {
    /// The model reads it as an error result.
    #[default]
    Continue,
    /// The run fails.
    Error,
}

#[async_trait]
impl Middleware for ToolRetry {
    fn name(&self) -> &str {
        builtins::TOOL_RETRY
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let settings: ToolRetrySettings = read_settings(settings)?;
        let findings = settings.check();
        if !findings.is_empty() {
            return Err(findings);
        }
        Ok(Some(Arc::new(Self {
            tools: ToolNames::of(&settings.tools),
            settings,
        })))
    }

    fn tools_setting(&self) -> Option<&'static str> {
        Some("tools")
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        if !self.tools.is_empty() && !self.tools.contains(&call.name) {
            return next.call(call).await;
        }
        let mut pauses = self.pauses();
        let mut attempts: u32 = 0;
        loop {
            attempts += 1;
            let outcome = next.call(call.clone()).await;
            let Some(failure) = failure_of(&outcome) else {
                return outcome;
            };
            let pause = pauses.next().filter(|_| self.repeats(failure, next.may_repeat));
            let Some(pause) = pause else {
                let failure = failure.clone();
                return self.give_up(&call, outcome, failure, attempts);
            };
            tracing::warn!(
                tool = %call.name,
                run = %next.scope.run,
                class = failure.class,
                attempts,
                pause_ms = pause.as_millis(),
                "the tool call failed; calling again"
            );
            tokio::time::sleep(pause).await;
        }
    }
}

impl ToolRetry {
    /// Returns the pauses between the attempts.
    fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        let settings = &self.settings;
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let backoff = Backoff {
            first: seconds(settings.initial_delay_s),
            factor: settings.backoff_factor,
            longest: seconds(settings.max_delay_s),
        };
        let pauses = match settings.jitter {
            true => backoff.pauses_with_jitter(),
            false => backoff.pauses(),
        };
        pauses.take(usize::try_from(settings.max_retries).unwrap_or(usize::MAX))
    }

    /// Returns whether a call with this failure is made again.
    fn repeats(&self, failure: &Failure, may_repeat: bool) -> bool {
        let classes = &self.settings.retry_on;
        let is_listed = classes.is_empty() || classes.contains(&failure.class);
        is_listed && (may_repeat || !UNCERTAIN.contains(&failure.class.as_str()))
    }

    fn give_up(
        &self,
        call: &ToolCall,
        outcome: Result<CallOutcome, Halt>,
        failure: Failure,
        attempts: u32,
    ) -> Result<CallOutcome, Halt> {
        match (self.settings.on_failure, outcome) {
            (OnRetriesExhausted::Error, _) => Err(Halt::Fail(failure)),
            (OnRetriesExhausted::Continue, outcome @ Ok(_)) if attempts == 1 => outcome,
            (OnRetriesExhausted::Continue, _) => {
                let times = if attempts == 1 {
                    String::new()
                } else {
                    format!(" The call was made {attempts} times.")
                };
                let text = format!(
                    "The call to `{}` failed with {}: {}{times}",
                    call.name, failure.class, failure.message
                );
                Ok(CallOutcome::Answer(ToolOutput::error(call, text).with_failure(failure)))
            }
        }
    }
}

impl ToolRetrySettings {
    fn check(&self) -> Vec<Diagnostic> {
        let mut findings = vec![];
        let mut wrong = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
        if !(1..=MOST_RETRIES).contains(&self.max_retries) {
            wrong(
                FieldPath::of(["max_retries"]),
                format!("must be a whole number from 1 to {MOST_RETRIES}"),
            );
        }
        for (name, seconds) in [
            ("initial_delay_s", self.initial_delay_s),
            ("max_delay_s", self.max_delay_s),
        ] {
            if !(0.0..=LONGEST_PAUSE_S).contains(&seconds) {
                wrong(
                    FieldPath::of([name]),
                    format!("must be a number of seconds from 0 to {LONGEST_PAUSE_S}"),
                );
            }
        }
        if !(1.0..=LARGEST_FACTOR).contains(&self.backoff_factor) {
            wrong(
                FieldPath::of(["backoff_factor"]),
                format!("must be a number from 1 to {LARGEST_FACTOR}"),
            );
        }
        for (name, list) in [("tools", &self.tools), ("retry_on", &self.retry_on)] {
            if list.len() > MOST_NAMES {
                wrong(
                    FieldPath::of([name]),
                    format!("has {} names; at most {MOST_NAMES} are allowed", list.len()),
                );
            }
            for (at, _) in list.iter().enumerate().filter(|(_, text)| text.trim().is_empty()) {
                wrong(FieldPath::of([name]).then(at), "must not be blank".to_owned());
            }
        }
        findings
    }
}

/// Returns the failure of a call, whether it is reported to the model or ends the run.
fn failure_of(outcome: &Result<CallOutcome, Halt>) -> Option<&Failure> {
    match outcome {
        Ok(CallOutcome::Answer(answer)) => answer.failure.as_ref(),
        Ok(CallOutcome::Delegate(_)) => None,
        Err(halt) => halt.failure(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::{BoxFuture, FutureExt};
    use serde_json::json;

    use super::*;
    use crate::domain::interrupt::{Question, QuestionKind};
    use crate::domain::state::State;
    use crate::domain::time::Timestamp;
    use crate::tool::Scope;

    fn policy(mut settings: Value) -> ToolRetry {
        settings["initial_delay_s"] = json!(0.0);
        let settings: ToolRetrySettings = serde_json::from_value(settings).expect("settings");
        assert_eq!(settings.check(), []);
        ToolRetry {
            tools: ToolNames::of(&settings.tools),
            settings,
        }
    }

    fn call() -> ToolCall {
        ToolCall::new("c", "search", Map::new())
    }

    fn failed(class: &str) -> Result<CallOutcome, Halt> {
        let failure = Failure::new(class, "no luck");
        Ok(CallOutcome::Answer(
            ToolOutput::error(&call(), "no luck").with_failure(failure),
        ))
    }

    /// Makes a call whose attempts all have this outcome. Returns the result and the number of attempts.
    async fn made(
        policy: &ToolRetry,
        may_repeat: bool,
        outcome: Result<CallOutcome, Halt>,
    ) -> (Result<CallOutcome, Halt>, u32) {
        let attempts = AtomicU32::new(0);
        let scope = Scope::sample(Timestamp(0));
        let state = State::default();
        let make = |_: ToolCall| -> BoxFuture<'_, Result<CallOutcome, Halt>> {
            attempts.fetch_add(1, Ordering::Relaxed);
            std::future::ready(outcome.clone()).boxed()
        };
        let next = NextCall {
            rest: &[],
            make: &make,
            scope: &scope,
            state: &state,
            may_repeat,
            spec: None,
        };
        let result = policy.wrap_tool_call(call(), next).await;
        let made = attempts.load(Ordering::Relaxed);
        (result, made)
    }

    #[tokio::test]
    async fn a_failure_that_the_tool_reports_is_repeated_and_then_read_by_the_model() {
        let made = made(&policy(json!({"max_retries": 3})), false, failed("ToolError")).await;
        let Ok(CallOutcome::Answer(answer)) = made.0 else {
            panic!("a result is expected");
        };
        let text = answer.writes.messages[0].content.text();
        assert_eq!(
            text,
            "The call to `search` failed with ToolError: no luck The call was made 4 times."
        );
        assert_eq!(made.1, 4);
    }

    #[tokio::test]
    async fn a_failure_with_an_unknown_effect_is_repeated_only_where_the_tool_may_be_called_twice() {
        for class in UNCERTAIN {
            assert_eq!(made(&policy(json!({})), false, failed(class)).await.1, 1, "{class}");
            assert_eq!(made(&policy(json!({})), true, failed(class)).await.1, 3, "{class}");
        }
    }

    #[tokio::test]
    async fn the_last_failure_can_end_the_run() {
        let made = made(&policy(json!({"on_failure": "error"})), true, failed("ToolError")).await;
        assert!(matches!(made.0, Err(Halt::Fail(failure)) if failure.class == "ToolError"));
    }

    #[tokio::test]
    async fn other_classes_tools_results_and_questions_are_passed_on() {
        let other = policy(json!({"retry_on": ["ToolHttpError"]}));
        assert_eq!(made(&other, true, failed("ToolError")).await.1, 1);
        assert_eq!(
            made(&policy(json!({"tools": ["mail"]})), true, failed("ToolError"))
                .await
                .1,
            1
        );
        let refused = Ok(CallOutcome::Answer(ToolOutput::error(
            &call(),
            "the arguments do not fit",
        )));
        assert_eq!(made(&policy(json!({})), true, refused.clone()).await, (refused, 1));
        let question = Question {
            kind: QuestionKind::Question,
            value: json!("why?"),
            schema: json!({}).into(),
            ..Question::default()
        };
        let asked = Err(Halt::from(question));
        assert_eq!(made(&policy(json!({})), true, asked.clone()).await, (asked, 1));
    }

    #[test]
    fn settings_beyond_their_bounds_are_refused() {
        let settings = json!({"max_retries": 0, "initial_delay_s": -1, "max_delay_s": 1e9, "backoff_factor": 0.5,
            "tools": [" "], "retry_on": vec!["x"; 257]});
        let settings = settings.as_object().cloned().unwrap_or_default();
        let findings = ToolRetry::default().configured(&settings).err().unwrap_or_default();
        let fields: Vec<String> = findings.iter().map(|finding| finding.field.to_string()).collect();
        assert_eq!(
            fields,
            [
                "max_retries",
                "initial_delay_s",
                "max_delay_s",
                "backoff_factor",
                "tools[0]",
                "retry_on"
            ]
        );
    }
}
