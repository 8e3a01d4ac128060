//! Middleware: limits the number of model calls on a thread and in a run.
//!
//! A run is the work on one input: a run that continues with the answer to an interrupt continues its count. The counts
//! are private fields of the state, written together with the answer of the model, so a restart neither loses nor
//! repeats one. A subagent has counts of its own, and every delegation begins anew.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{HookResult, Middleware, ModelAnswer, NextModel, read_settings};
use crate::definition::{Diagnostic, FieldPath, builtins};
use crate::domain::machine::{Failure, HookPoint, Jump};
use crate::domain::message::Message;
use crate::domain::state::{RUN_MODEL_CALLS, State, THREAD_MODEL_CALLS, Update};
use crate::model::ModelRequest;
use crate::tool::{Halt, Scope};

/// The class of the failure with which a run ends.
const FAILURE: &str = "ModelCallLimitExceededError";

/// The model call limit middleware, with its settings.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelCallLimit {
    /// The maximum number of model calls on the thread.
    thread_limit: Option<u64>,
    /// The maximum number of model calls in a run.
    run_limit: Option<u64>,
    /// The effect of a limit that is reached.
    exit_behavior: ModelLimitExit,
}

/// The effect of a limit on model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModelLimitExit {
    /// The run ends with a message that says so.
    #[default]
    End,
    /// The run fails.
    Error,
}

#[async_trait]
impl Middleware for ModelCallLimit {
    fn name(&self) -> &str {
        builtins::MODEL_CALLS
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let policy: Self = read_settings(settings)?;
        let findings = check_limits(policy.thread_limit, policy.run_limit);
        if findings.is_empty() {
            Ok(Some(Arc::new(policy)))
        } else {
            Err(findings)
        }
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeAgent, HookPoint::BeforeModel]
    }

    async fn hook(&self, point: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        match point {
            HookPoint::BeforeAgent if state.count(RUN_MODEL_CALLS) > 0 => {
                Ok(Update::field(RUN_MODEL_CALLS, json!(0)).into())
            }
            HookPoint::BeforeModel => match self.reached(state) {
                Some(reached) => self.exit(scope, reached),
                None => Ok(HookResult::default()),
            },
            HookPoint::BeforeAgent | HookPoint::AfterModel | HookPoint::AfterAgent => Ok(HookResult::default()),
        }
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let state = next.state;
        let mut answer = next.ask(request).await?;
        for field in [THREAD_MODEL_CALLS, RUN_MODEL_CALLS] {
            let calls = state.count(field).saturating_add(1);
            answer.extra.merge(Update::field(field, json!(calls)));
        }
        Ok(answer)
    }
}

impl ModelCallLimit {
    /// Returns the text about the limit that is reached.
    fn reached(&self, state: &State) -> Option<String> {
        let thread = self
            .thread_limit
            .filter(|limit| state.count(THREAD_MODEL_CALLS) >= *limit);
        let run = self.run_limit.filter(|limit| state.count(RUN_MODEL_CALLS) >= *limit);
        thread
            .map(|limit| format!("The limit on model calls on this thread is reached: {limit}."))
            .or_else(|| run.map(|limit| format!("The limit on model calls in one run is reached: {limit}.")))
    }

    fn exit(&self, scope: &Scope, reached: String) -> Result<HookResult, Halt> {
        match self.exit_behavior {
            ModelLimitExit::Error => Err(Halt::Fail(Failure::new(FAILURE, reached))),
            ModelLimitExit::End => Ok(HookResult {
                jump: Some(Jump::End),
                ..Update::messages([Message {
                    name: Some(scope.agent.clone()),
                    ..Message::ai(reached)
                }])
                .into()
            }),
        }
    }
}

/// Checks limits on the calls of a thread and of a run.
pub(super) fn check_limits(thread_limit: Option<u64>, run_limit: Option<u64>) -> Vec<Diagnostic> {
    let given = [("thread_limit", thread_limit), ("run_limit", run_limit)];
    let mut findings: Vec<Diagnostic> = given
        .iter()
        .filter(|(_, limit)| *limit == Some(0))
        .map(|(name, _)| Diagnostic::error(FieldPath::of([*name]), "must be a whole number of at least 1"))
        .collect();
    if thread_limit.is_none() && run_limit.is_none() {
        let message = "must be given, or `thread_limit`: a limit without a number limits nothing";
        findings.push(Diagnostic::error(FieldPath::of(["run_limit"]), message));
    }
    if let (Some(thread), Some(run)) = (thread_limit, run_limit)
        && run > thread
    {
        let message = format!("is above the `thread_limit` of {thread}, so that it limits nothing");
        findings.push(Diagnostic::error(FieldPath::of(["run_limit"]), message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Timestamp;

    fn errors(settings: Value) -> Vec<String> {
        let settings = settings.as_object().cloned().unwrap_or_default();
        let findings = ModelCallLimit::default().configured(&settings).err();
        findings.unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn limits_that_limit_nothing_are_refused() {
        assert_eq!(errors(json!({"run_limit": 2, "thread_limit": 2})), [""; 0]);
        assert!(errors(json!({}))[0].starts_with("run_limit: must be given"));
        assert!(errors(json!({"run_limit": 0}))[0].starts_with("run_limit: must be a whole number of at least 1"));
        assert!(errors(json!({"run_limit": 3, "thread_limit": 2}))[0].starts_with("run_limit: is above"));
        assert!(
            errors(json!({"run_limit": 3, "exit_behavior": "continue"}))[0].contains("allowed are: end, error"),
            "{:?}",
            errors(json!({"run_limit": 3, "exit_behavior": "continue"}))
        );
    }

    #[tokio::test]
    async fn a_new_input_begins_the_count_of_the_run_and_not_that_of_the_thread() {
        let policy = ModelCallLimit {
            thread_limit: Some(3),
            run_limit: Some(2),
            ..ModelCallLimit::default()
        };
        let scope = Scope::sample(Timestamp(0));
        let mut state = State::default();
        state.apply(&Update::field(THREAD_MODEL_CALLS, json!(2)));
        state.apply(&Update::field(RUN_MODEL_CALLS, json!(2)));
        let before = policy
            .hook(HookPoint::BeforeModel, &scope, &state)
            .await
            .expect("a result");
        assert_eq!(before.jump, Some(Jump::End));
        let anew = policy
            .hook(HookPoint::BeforeAgent, &scope, &state)
            .await
            .expect("a result");
        state.apply(&anew.update);
        let before = policy
            .hook(HookPoint::BeforeModel, &scope, &state)
            .await
            .expect("a result");
        assert_eq!(before, HookResult::default());
        state.apply(&Update::field(THREAD_MODEL_CALLS, json!(3)));
        let before = policy
            .hook(HookPoint::BeforeModel, &scope, &state)
            .await
            .expect("a result");
        assert!(
            before.update.messages[0]
                .content
                .text()
                .contains("on this thread is reached: 3")
        );
    }
}
