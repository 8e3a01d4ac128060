//! Background tasks: work that an agent has handed to another agent and does not wait for.
//!
//! A task is a thread of the other agent. What the agent that asked for it knows is kept in its own state, under
//! [`FIELD`]; how the task really stands is seen by looking at its thread. An outcome is new as long as the state does not
//! know it, so it is told exactly once, whoever looks and however often.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::field::{FieldRule, FieldVisibility, Merge};
use super::headers::Headers;
use super::id::{AssistantId, RunId, ThreadId};
use super::limits::{Limits, Usage};
use super::message::Message;
use super::run::RunStatus;
use super::state::{State, Update};
use super::time::Timestamp;
use super::visibility::Visibility as Seen;

mod remote;

pub use remote::{Answered, PollPolicy, RemoteWork};

/// The field of the state that holds the tasks, by their ids.
pub const FIELD: &str = "async_tasks";
/// How that field is merged.
pub const RULE: FieldRule = FieldRule {
    merge: Merge::ByKey,
    visibility: FieldVisibility::Public,
};
/// The mark of a message that tells what became of a task.
pub const NOTIFICATION: &str = "deepagents_notification";
/// How many characters of a result are told.
pub const LONGEST_RESULT: usize = 80_000;
/// How many earlier runs of a task are remembered in the state.
const MOST_SUPERSEDED: usize = 50;

/// An agent that works in the background, as the one that may hand it work sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct BackgroundAgent {
    /// What it is called.
    pub name: String,
    /// What it is good for.
    pub description: String,
    /// Which agent it is.
    pub graph_id: String,
    /// The server that has it; this one when none.
    pub url: Option<String>,
    /// Headers sent to that server.
    pub headers: Headers,
    /// An address that is told when a run of it ends.
    pub webhook: Option<String>,
    /// What a further message does to the work under way.
    pub update_strategy: UpdateStrategy,
    /// Whether an idle parent is woken by what becomes of a task.
    pub notify_parent: bool,
    /// How much clients see of its work.
    pub visibility: Seen,
}

/// What becomes of the work under way when a background task is given a further message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateStrategy {
    /// It is broken off; what it did is kept.
    #[default]
    Interrupt,
    /// It is finished first.
    Enqueue,
}

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// It is at work.
    Running,
    /// It waits for its turn.
    Pending,
    /// It waits for a human.
    Waiting,
    /// It is done.
    Success,
    /// It failed.
    Error,
    /// It took too long.
    Timeout,
    /// It was cancelled.
    Cancelled,
}

impl TaskStatus {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Pending,
        Self::Waiting,
        Self::Success,
        Self::Error,
        Self::Timeout,
        Self::Cancelled,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Success => "success",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more comes of the task unless it is given a further message.
    pub fn is_final(self) -> bool {
        match self {
            Self::Running | Self::Pending | Self::Waiting => false,
            Self::Success | Self::Error | Self::Timeout | Self::Cancelled => true,
        }
    }

    /// How a task stands that was begun, or given a message, and has already come so far: its outcome is still to be told.
    #[must_use]
    pub fn unreported(self) -> Self {
        if self.is_outcome() { Self::Running } else { self }
    }

    /// Whether it is worth telling: the task is over, or cannot go on without a human.
    pub fn is_outcome(self) -> bool {
        self.is_final() || self == Self::Waiting
    }
}

impl From<RunStatus> for TaskStatus {
    /// What a run of a task is doing, as far as its status tells.
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Pending => Self::Pending,
            RunStatus::Running => Self::Running,
            RunStatus::Success => Self::Success,
            RunStatus::Error => Self::Error,
            RunStatus::Timeout => Self::Timeout,
            RunStatus::Interrupted => Self::Cancelled,
        }
    }
}

/// What the state knows of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundTask {
    /// Identifies it: the id of its thread.
    pub task_id: String,
    /// The name of the agent that does it.
    pub agent_name: String,
    /// Its thread.
    pub thread_id: String,
    /// Its newest run that is known.
    pub run_id: String,
    /// The runs before that one, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded_run_ids: Vec<String>,
    /// How it stood when it was looked at last.
    pub status: TaskStatus,
    /// When it was begun; like the others in UTC, to the second.
    pub created_at: String,
    /// When it was looked at last.
    pub last_checked_at: String,
    /// When something about it changed last.
    pub last_updated_at: String,
}

impl BackgroundTask {
    /// A task that was just begun.
    pub fn started(agent: &str, run: TaskRun, now: Timestamp) -> Self {
        let TaskRun { thread, run, status } = run;
        let task_id = thread.clone();
        let agent_name = agent.to_owned();
        let now = now.to_second();
        Self {
            task_id,
            agent_name,
            thread_id: thread,
            run_id: run,
            superseded_run_ids: vec![],
            status: status.unreported(),
            created_at: now.clone(),
            last_checked_at: now.clone(),
            last_updated_at: now,
        }
    }

    /// The tasks that a state knows, by their ids. What a client wrote there that is no task is passed over.
    pub fn all(state: &State) -> Vec<Self> {
        let Some(Value::Object(tasks)) = state.fields.get(FIELD) else {
            return vec![];
        };
        tasks
            .values()
            .filter_map(|task| serde_json::from_value(task.clone()).ok())
            .collect()
    }

    /// The task of this id.
    pub fn find(state: &State, id: &str) -> Option<Self> {
        serde_json::from_value(state.fields.get(FIELD)?.get(id.trim())?.clone()).ok()
    }

    /// The same task as it was `seen` now.
    #[must_use]
    pub fn with_snapshot(&self, seen: &TaskSnapshot, now: Timestamp) -> Self {
        let is_new = self.status != seen.status || self.run_id != seen.run;
        let now = now.to_second();
        let last_updated_at = if is_new {
            now.clone()
        } else {
            self.last_updated_at.clone()
        };
        Self {
            status: seen.status,
            last_checked_at: now,
            last_updated_at,
            ..self.with_run(&seen.run)
        }
    }

    /// The same task with a newer run.
    #[must_use]
    pub fn with_run(&self, run: &str) -> Self {
        let mut task = self.clone();
        if task.run_id != run {
            task.superseded_run_ids
                .push(std::mem::replace(&mut task.run_id, run.to_owned()));
            let surplus = task.superseded_run_ids.len().saturating_sub(MOST_SUPERSEDED);
            task.superseded_run_ids.drain(..surplus);
        }
        task
    }

    /// Whether what was `seen` is an outcome that the state does not know. That of a run which a newer one has
    /// superseded is none.
    pub fn has_new_outcome(&self, seen: &TaskSnapshot) -> bool {
        let is_other = self.status != seen.status || self.run_id != seen.run;
        let is_past = self.superseded_run_ids.contains(&seen.run);
        seen.status.is_outcome() && !self.status.is_final() && is_other && !is_past
    }

    /// The write that makes the state know the task like this.
    pub fn write(&self) -> Update {
        let task = serde_json::to_value(self).unwrap_or(Value::Null);
        let tasks = Map::from_iter([(self.task_id.clone(), task)]);
        let mut update = Update::field(FIELD, tasks.into());
        update.rules.insert(FIELD.to_owned(), RULE);
        update
    }

    /// The message that tells the agent what became of the task.
    pub fn notification(&self, seen: &TaskSnapshot) -> Message {
        let Self {
            task_id, agent_name, ..
        } = self;
        let status = seen.status.word();
        let what = match seen.status {
            TaskStatus::Success => "is done",
            TaskStatus::Waiting => "waits for the decision of a human",
            TaskStatus::Cancelled => "was cancelled",
            TaskStatus::Timeout => "took too long and was ended",
            TaskStatus::Error => "has failed",
            TaskStatus::Running | TaskStatus::Pending => "goes on",
        };
        let more = seen.report_text();
        let text = format!(
            "[Message of the server, not of the user] The background task {task_id} of `{agent_name}` {what} \
             (status: {status}).{more}"
        );
        let mut message = Message::human(text);
        let mark = json!({"task_id": task_id, "agent_name": agent_name, "status": status, "run_id": seen.run});
        message.additional_kwargs.insert(NOTIFICATION.to_owned(), mark);
        message
    }
}

/// A run of a task, as it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRun {
    /// The thread of the task.
    pub thread: String,
    /// The run.
    pub run: String,
    /// What it is doing.
    pub status: TaskStatus,
}

/// How a task stands when one looks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    /// Its newest run.
    pub run: String,
    /// How it stands.
    pub status: TaskStatus,
    /// What came of it, when it is done.
    pub result: Option<String>,
    /// What belongs to the result and is no text: images, files.
    pub media: Vec<Value>,
    /// Why it failed, when it did.
    pub error: Option<String>,
    /// The questions that it waits for, as `{id, value}`, and maybe with the `response_schema` of a valid answer.
    pub interrupts: Vec<Value>,
    /// Why it is not known how it stands now, when its server is out of reach: this is how it stood before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// What all of it has used so far, as far as its server tells; told of tasks on other servers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Usage>,
    /// Since when it is known to stand so; kept of tasks on other servers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The questions of it that were answered here lately; kept of tasks on other servers only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answered: Vec<Answered>,
}

impl TaskSnapshot {
    /// A run that stands like this, without anything to say about it.
    pub fn of(run: impl Into<String>, status: TaskStatus) -> Self {
        let interrupts = vec![];
        let answered = vec![];
        Self {
            run: run.into(),
            status,
            result: None,
            media: vec![],
            error: None,
            interrupts,
            lost: None,
            used: None,
            since: None,
            answered,
        }
    }

    /// The questions that it waits for, as `{id, value}`.
    pub fn asked(&self) -> Vec<Value> {
        self.interrupts
            .iter()
            .map(|asked| json!({"id": asked["id"], "value": asked["value"]}))
            .collect()
    }

    fn report_text(&self) -> String {
        match self.status {
            TaskStatus::Success => format!(
                "\n\nIts result:\n{}",
                truncate(self.result.as_deref().unwrap_or(EMPTY_RESULT))
            ),
            TaskStatus::Waiting => {
                let asked = Value::Array(self.asked()).to_string();
                format!(
                    "\n\nIt asks:\n{}\n\nOnly a human can answer. Tell the user that the task waits.",
                    truncate(&asked)
                )
            }
            TaskStatus::Error | TaskStatus::Timeout => self
                .error
                .as_deref()
                .map(|error| format!("\n\nThe error:\n{}", truncate(error)))
                .unwrap_or_default(),
            TaskStatus::Cancelled | TaskStatus::Running | TaskStatus::Pending => String::new(),
        }
    }
}

/// What is told of a task that ended without a word.
pub const EMPTY_RESULT: &str = "(The agent finished without saying anything.)";

/// The beginning of a text that is too long to be told whole.
pub fn truncate(text: &str) -> String {
    match text.char_indices().nth(LONGEST_RESULT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}\n[cut off after {LONGEST_RESULT} characters]", &text[..end]),
    }
}

/// Where a background run stands among those who started it, and what they allow it. Every run on the thread of a task
/// carries it, so that a limit holds however many runs and servers lie in between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskLineage {
    /// The run at the very top: the one that was asked for by a client.
    pub top: RunId,
    /// How many background tasks lie above and including this one.
    pub nesting: u32,
    /// How many levels of delegations may lie below, if somebody above limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<u32>,
    /// What the whole tree under the top may use, as it was written before there could be more than one such tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Box<Limits>>,
    /// The trees that it belongs to and whose limits reach this far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<BudgetScope>,
    /// The subagent that began it; none for the main agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starter: Option<StartedBy>,
    /// How much clients see of it: never more than of who began it.
    #[serde(default)]
    pub visibility: Seen,
}

impl TaskLineage {
    /// The trees that it belongs to and whose limits reach this far.
    pub fn limited(&self) -> Vec<BudgetScope> {
        let before = || {
            self.tree.iter().map(|limits| BudgetScope {
                top: self.top,
                limits: Limits::clone(limits),
            })
        };
        if self.trees.is_empty() {
            before().collect()
        } else {
            self.trees.clone()
        }
    }
}

/// A run that limits what it and all below it use together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetScope {
    /// The run, the first one of those that went on with each other.
    pub top: RunId,
    /// The limits.
    pub limits: Limits,
}

/// The subagent that began a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartedBy {
    /// Its run.
    pub run: RunId,
    /// The names of the agents from the main one down to it.
    pub path: Vec<String>,
}

/// What the server remembers of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRecord {
    /// The task: the id of its thread.
    pub task: ThreadId,
    /// The thread of the agent that asked for it.
    pub parent_thread: ThreadId,
    /// The run in whose course it was asked for.
    pub parent_run: RunId,
    /// The assistant that was asked in that run.
    pub parent_assistant: AssistantId,
    /// The tool call.
    pub call: String,
    /// The name of the agent that does it.
    pub agent: String,
    /// Which agent that is.
    pub graph_id: String,
    /// The server that has it; this one when none.
    pub url: Option<String>,
    /// Its place below the agent that asked.
    pub ancestry: TaskLineage,
    /// Whether an idle parent is woken by what becomes of it.
    pub notify: bool,
    /// Whether something may come of it that the parent does not know.
    pub watched: bool,
    /// The run whose outcome the parent was woken for last.
    pub reported_run: Option<RunId>,
    /// When it was begun.
    pub created_at: Timestamp,
    /// What is known of the work, when another server does it.
    pub remote: RemoteWork,
}

impl TaskRecord {
    /// The run of the agent that began it, main agent or subagent.
    pub fn starter(&self) -> RunId {
        self.ancestry
            .starter
            .as_ref()
            .map_or(self.parent_run, |starter| starter.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(status: TaskStatus) -> BackgroundTask {
        let run = TaskRun {
            thread: "t1".to_owned(),
            run: "r1".to_owned(),
            status,
        };
        BackgroundTask::started("writer", run, Timestamp(1_767_225_600_999_999))
    }

    #[test]
    fn a_task_is_kept_with_exactly_these_fields() {
        let task = task(TaskStatus::Running);
        let kept = serde_json::to_value(&task).expect("JSON");
        assert_eq!(
            kept,
            json!({"task_id": "t1", "agent_name": "writer", "thread_id": "t1", "run_id": "r1", "status": "running",
                "created_at": "2026-01-01T00:00:00Z", "last_checked_at": "2026-01-01T00:00:00Z",
                "last_updated_at": "2026-01-01T00:00:00Z"})
        );
        let newer = task.with_run("r2").with_run("r2").with_run("r3");
        assert_eq!(newer.run_id.as_str(), "r3");
        assert_eq!(newer.superseded_run_ids, vec!["r1".to_owned(), "r2".to_owned()]);
    }

    #[test]
    fn an_outcome_is_news_until_the_state_knows_it() {
        let done = TaskSnapshot::of("r1", TaskStatus::Success);
        let running = task(TaskStatus::Running);
        assert!(running.has_new_outcome(&done));
        assert!(!running.has_new_outcome(&TaskSnapshot::of("r1", TaskStatus::Pending)));
        assert!(!running.with_snapshot(&done, Timestamp(0)).has_new_outcome(&done));
        let waits = TaskSnapshot::of("r1", TaskStatus::Waiting);
        let waiting = running.with_snapshot(&waits, Timestamp(0));
        assert!(!waiting.has_new_outcome(&waits));
        assert!(
            waiting.has_new_outcome(&TaskSnapshot::of("r2", TaskStatus::Waiting)) && waiting.has_new_outcome(&done)
        );
        let newer = running.with_run("r2");
        assert!(
            !newer.has_new_outcome(&TaskSnapshot::of("r1", TaskStatus::Cancelled)),
            "the run was superseded"
        );
        assert!(
            task(TaskStatus::Success).has_new_outcome(&done),
            "it was over before anybody heard that it had begun"
        );
    }

    #[test]
    fn what_is_told_is_marked_and_cut() {
        let long = TaskSnapshot {
            result: Some("é".repeat(LONGEST_RESULT + 5)),
            ..TaskSnapshot::of("r1", TaskStatus::Success)
        };
        let message = task(TaskStatus::Running).notification(&long);
        assert_eq!(
            message.additional_kwargs[NOTIFICATION],
            json!({"task_id": "t1", "agent_name": "writer", "status": "success", "run_id": "r1"})
        );
        let text = message.content.text();
        assert!(
            message.is_human() && text.starts_with("[Message of the server, not of the user]"),
            "{text:.80}"
        );
        assert_eq!(text.matches('é').count(), LONGEST_RESULT);
    }
}
