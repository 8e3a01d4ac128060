//! Middleware: the agent delegates tasks to background agents and is notified of their outcomes.
//!
//! Before each model call, and after the final answer, the active tasks are checked. A new outcome becomes a message,
//! which is stored together with the task's new status.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use serde_json::json;

use super::{Contribution, HookResult, Middleware};
use crate::definition::builtins;
use crate::domain::background::{BackgroundAgent, BackgroundTask, FIELD, TaskSnapshot};
use crate::domain::graph::Field;
use crate::domain::machine::{HookPoint, Jump};
use crate::domain::state::{State, Update};
use crate::tool::{Halt, Scope, background};

/// The timeout of checking a task. Another server gets half of it; then the last known status is used.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// The background task middleware.
pub struct BackgroundWork {
    agents: Arc<[BackgroundAgent]>,
}

impl BackgroundWork {
    /// Creates the middleware for these agents.
    pub fn new(agents: Vec<BackgroundAgent>) -> Self {
        Self { agents: agents.into() }
    }

    /// Returns the current snapshot of a task; none if it is unavailable.
    async fn fetch_snapshot(scope: &Scope, task: &BackgroundTask) -> Option<TaskSnapshot> {
        let fetching = scope.tasks.snapshot(scope, task);
        match tokio::time::timeout(SNAPSHOT_TIMEOUT, fetching).await {
            Ok(Ok(seen)) => Some(seen),
            Ok(Err(reason)) => {
                tracing::debug!(task = task.task_id, reason, "could not check a background task");
                None
            }
            Err(_) => {
                tracing::debug!(task = task.task_id, "checking a background task timed out");
                None
            }
        }
    }

    /// Returns the update for outcomes that the agent does not know: tasks and messages.
    async fn new_outcomes(scope: &Scope, state: &State) -> Update {
        let open: Vec<BackgroundTask> = BackgroundTask::all(state)
            .into_iter()
            .filter(|task| !task.status.is_final())
            .collect();
        let seen = join_all(open.iter().map(|task| Self::fetch_snapshot(scope, task))).await;
        let mut update = Update::none();
        let mut under_way = 0;
        for (task, seen) in open.iter().zip(seen) {
            under_way += u64::from(seen.as_ref().is_none_or(|seen| !seen.status.is_final()));
            let Some(seen) = seen else { continue };
            let news = task.new_outcomes(&seen);
            if news.is_empty() {
                continue;
            }
            let messages = news.into_iter().map(|outcome| Arc::new(task.notification(outcome)));
            update.messages.extend(messages);
            update.merge(task.with_snapshot(&seen, scope.now()).write());
        }
        scope.budget.in_background(under_way);
        update
    }
}

#[async_trait]
impl Middleware for BackgroundWork {
    fn name(&self) -> &str {
        builtins::BACKGROUND
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeModel, HookPoint::AfterModel]
    }

    fn contribution(&self) -> Contribution {
        let schema = json!({"type": "object", "additionalProperties": {"type": "object"}});
        Contribution {
            tools: background::tools(&self.agents),
            prompt: Some(background::prompt(&self.agents)),
            fields: vec![Field { name: FIELD, schema }],
        }
    }

    async fn hook(&self, point: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        let is_final_answer = state
            .last_ai()
            .is_some_and(|message| message.tool_calls().is_empty() && message.invalid_tool_calls().is_empty());
        if point == HookPoint::AfterModel && !is_final_answer {
            return Ok(HookResult::default());
        }
        let update = Self::new_outcomes(scope, state).await;
        let jump = (point == HookPoint::AfterModel && !update.is_empty()).then_some(Jump::Model);
        Ok(HookResult {
            update,
            jump,
            ..HookResult::default()
        })
    }
}
