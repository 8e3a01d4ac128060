//! Background tasks: the tools with which an agent starts the work of another agent, reads its status, sends it further
//! messages, and stops it.
//!
//! The tools write the status that they read into the state, under [`FIELD`](crate::domain::background::FIELD).
//! [`Tasks`](super::scope::Tasks) does the work itself.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::halt::Halt;
use super::outcome::CallOutcome;
use super::scope::{BackgroundOrder, Scope};
use super::toolbox::Tool;
use crate::domain::background::{BackgroundAgent, BackgroundTask, TaskSnapshot, TaskStatus, truncate};
use crate::domain::call::ToolOutput;
use crate::domain::message::{Content, Message, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::model::ToolSpec;

mod specs;

pub use specs::prompt;

/// The sentence for a subagent about the notification after its own work is over.
const AFTER_YOU: &str = " If your own work is over before, the main agent of this conversation gets it.";

/// The operation of one of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Start,
    Check,
    Update,
    Cancel,
    List,
}

/// One of the tools.
struct BackgroundTool {
    action: Action,
    spec: Arc<ToolSpec>,
    agents: Arc<[BackgroundAgent]>,
}

/// Returns the tools of an agent that may start tasks of these agents.
pub fn tools(agents: &Arc<[BackgroundAgent]>) -> Vec<Arc<dyn Tool>> {
    let tool = |action| -> Arc<dyn Tool> {
        Arc::new(BackgroundTool {
            action,
            spec: Arc::new(specs::spec(action, agents)),
            agents: Arc::clone(agents),
        })
    };
    [
        Action::Start,
        Action::Check,
        Action::Update,
        Action::Cancel,
        Action::List,
    ]
    .map(tool)
    .into()
}

#[async_trait]
impl Tool for BackgroundTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    fn has_effects(&self) -> bool {
        match self.action {
            Action::Start | Action::Update | Action::Cancel => true,
            Action::Check | Action::List => false,
        }
    }

    async fn call(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let answer = match self.action {
            Action::Start => self.start(scope, call).await,
            Action::Check => self.check(scope, state, call).await,
            Action::Update => self.update(scope, state, call).await,
            Action::Cancel => self.cancel(scope, state, call).await,
            Action::List => Ok(self.list(scope, state, call).await),
        };
        Ok(CallOutcome::Answer(
            answer.unwrap_or_else(|text| ToolOutput::error(call, text)),
        ))
    }
}

impl BackgroundTool {
    async fn start(&self, scope: &Scope, call: &ToolCall) -> Result<ToolOutput, String> {
        let wanted = call.text_argument("subagent_type");
        let Some(agent) = self.agent(wanted) else {
            let names: Vec<String> = self.agents.iter().map(|agent| format!("`{}`", agent.name)).collect();
            let names = names.join(", ");
            return Err(format!(
                "There is no background agent `{wanted}`; there are {names}. Nothing was started."
            ));
        };
        let text = call.text_argument("description");
        let run = scope.tasks.start(scope, BackgroundOrder { agent, text, call }).await?;
        let task = BackgroundTask::started(&agent.name, run, scope.now());
        let text = format!(
            "Started the background task {} with `{}`. Its result comes by itself; do not wait for it.{}",
            task.task_id,
            agent.name,
            if scope.subagent.is_some() { AFTER_YOU } else { "" }
        );
        Ok(noted(call, text, &task))
    }

    async fn check(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<ToolOutput, String> {
        let task = self.find_task(state, call)?;
        let seen = scope.tasks.snapshot(scope, &task).await?;
        let mut report = Map::new();
        report.insert("status".to_owned(), seen.status.word().into());
        report.insert("thread_id".to_owned(), task.thread_id.clone().into());
        if let Some(result) = &seen.result {
            report.insert("result".to_owned(), truncate(result).into());
        }
        if let Some(error) = &seen.error {
            report.insert("error".to_owned(), truncate(error).into());
        }
        if !seen.interrupts.is_empty() {
            report.insert("interrupts".to_owned(), seen.asked().into());
        }
        if let Some(note) = note(&seen) {
            report.insert("note".to_owned(), note.into());
        }
        if let Some(lost) = &seen.lost {
            report.insert("last_checked_at".to_owned(), task.last_checked_at.clone().into());
            let note = format!("Its server cannot be asked now ({lost}); so it stood before.");
            report.insert("note".to_owned(), note.into());
        }
        let text = Value::Object(report).to_string();
        let content = if seen.media.is_empty() {
            Content::Text(text)
        } else {
            let first = json!({"type": "text", "text": text});
            Content::Blocks(std::iter::once(first).chain(seen.media.clone()).collect())
        };
        // Earlier outcomes that are not in the state are reported together with the new one, before the next request to
        // the model.
        let task = if seen.lost.is_none() && seen.earlier.is_empty() {
            task.with_snapshot(&seen, scope.now())
        } else {
            task
        };
        Ok(noted(call, content, &task))
    }

    async fn update(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<ToolOutput, String> {
        let task = self.find_task(state, call)?;
        let Some(agent) = self.agent(&task.agent_name) else {
            return Err(format!(
                "The agent `{}` of this task is not there any more.",
                task.agent_name
            ));
        };
        // The state has the status of the task at the last report to the agent.
        let waited = task.status == TaskStatus::Waiting
            && scope
                .tasks
                .snapshot(scope, &task)
                .await
                .is_ok_and(|seen| seen.status == TaskStatus::Waiting);
        let run = scope
            .tasks
            .update(
                scope,
                &task,
                BackgroundOrder {
                    agent,
                    text: call.text_argument("message"),
                    call,
                },
            )
            .await?;
        let run_id = run.run;
        let status = run.status.unreported();
        let now = scope.now().to_second();
        let task = BackgroundTask {
            status,
            last_updated_at: now,
            ..task.with_run(&run_id)
        };
        let dropped = if waited {
            " The question that it waited for was dropped."
        } else {
            ""
        };
        let text = format!("The background task {} was given the message.{dropped}", task.task_id);
        Ok(noted(call, text, &task))
    }

    async fn cancel(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<ToolOutput, String> {
        let task = self.find_task(state, call)?;
        let seen = scope.tasks.cancel(scope, &task).await?;
        let id = &task.task_id;
        let status = seen.status.word();
        let is_cancelled = seen.status == TaskStatus::Cancelled;
        let text = match &seen.lost {
            Some(lost) if is_cancelled => format!(
                "The background task {id} is cancelled. Its server is told as soon as it can be reached ({lost})."
            ),
            None if is_cancelled => format!("The background task {id} is cancelled."),
            Some(_) | None => format!("The background task {id} was over before: {status}. Nothing was cancelled."),
        };
        // The outcome of a task that was already over still has to be reported, with its result.
        let task = if is_cancelled {
            task.with_snapshot(&seen, scope.now())
        } else {
            task
        };
        Ok(noted(call, text, &task))
    }

    /// Lists the tasks that the state knows, each with its present status. A new outcome is reported with its result
    /// before the next request to the model.
    async fn list(&self, scope: &Scope, state: &State, call: &ToolCall) -> ToolOutput {
        let filter = call.text_argument("status_filter");
        let all = BackgroundTask::all(state);
        let lines = all.iter().map(|task| async move {
            let mut unknown = String::new();
            let status = match task.status.is_final() {
                true => task.status,
                false => match scope.tasks.snapshot(scope, task).await {
                    Ok(seen) => seen.status,
                    Err(reason) => {
                        unknown = format!(" when it was last seen. {reason}");
                        task.status
                    }
                },
            };
            let word = status.word();
            let is_wanted = matches!(filter, "" | "all") || word == filter;
            is_wanted.then(|| format!("- {} ({}): {word}{unknown}", task.task_id, task.agent_name))
        });
        let lines = futures::future::join_all(lines).await;
        let lines: Vec<String> = lines.into_iter().flatten().collect();
        let text = if lines.is_empty() {
            "There are no such background tasks.".to_owned()
        } else {
            lines.join("\n")
        };
        ToolOutput::message(Message::tool(call, ToolStatus::Success, text))
    }

    fn agent(&self, name: &str) -> Option<&BackgroundAgent> {
        self.agents.iter().find(|agent| agent.name == name)
    }

    /// Returns the task that a call names.
    fn find_task(&self, state: &State, call: &ToolCall) -> Result<BackgroundTask, String> {
        let id = call.text_argument("task_id");
        BackgroundTask::find(state, id).ok_or_else(|| {
            format!(
                "There is no background task `{id}` here. Tasks that were under way when a conversation was copied belong \
                 to the original only."
            )
        })
    }
}

/// Returns an answer with an update that stores the task in the state.
fn noted(call: &ToolCall, text: impl Into<Content>, task: &BackgroundTask) -> ToolOutput {
    let mut answer = ToolOutput::message(Message::tool(call, ToolStatus::Success, text));
    answer.writes.merge(task.write());
    answer
}

fn note(seen: &TaskSnapshot) -> Option<&'static str> {
    match seen.status {
        TaskStatus::Waiting => Some(
            "The task waits for a human, who answers on the thread of the task. Tell the user what is asked; it cannot \
             be answered from here.",
        ),
        TaskStatus::Running | TaskStatus::Pending => Some("The result comes by itself when the task is done."),
        TaskStatus::Success if seen.result.is_none() => Some("The agent finished without saying anything."),
        TaskStatus::Success | TaskStatus::Error | TaskStatus::Timeout | TaskStatus::Cancelled => None,
    }
}
