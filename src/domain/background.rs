//! Background tasks: work that an agent has delegated to another agent without waiting for the result.
//!
//! A task is a thread of the other agent. The delegating agent's knowledge about it is in its own state, under
//! [`FIELD`]; the actual status is derived from the task's thread. An outcome is new until the state contains it, so
//! it is reported exactly once, however often the task is checked.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::field::{FieldRule, FieldVisibility, Merge};
use super::headers::Headers;
use super::id::{AssistantId, RunId, ThreadId};
use super::limits::{Limits, Usage};
use super::message::Message;
use super::state::{State, Update};
use super::text_limits::cut_after;
use super::time::Timestamp;
use super::visibility::Visibility as Seen;

mod remote;

pub use remote::{Answered, PollPolicy, RemoteWork};

/// The state field with the tasks, by their ids.
pub const FIELD: &str = "async_tasks";
/// The merge rule of the field.
pub const RULE: FieldRule = FieldRule {
    merge: Merge::ByKey,
    visibility: FieldVisibility::Public,
};
/// The key that marks a message as the notification of a task's outcome.
pub const NOTIFICATION: &str = "deepagents_notification";
/// The maximum length of a reported result, in characters.
pub const MAX_RESULT_CHARS: usize = 80_000;
/// The maximum number of earlier runs of a task in the state.
const MAX_SUPERSEDED: usize = 50;
/// The number of the last earlier runs of a task on another server whose outcomes are kept, with their results.
pub const MAX_PAST_OUTCOMES: usize = 5;

/// An agent for background tasks, as it is described to the delegating agent.
#[derive(Debug, Clone, PartialEq)]
pub struct BackgroundAgent {
    /// The name.
    pub name: String,
    /// The description of its abilities.
    pub description: String,
    /// The key of the agent definition.
    pub graph_id: String,
    /// The address of the agent's server; none for this server.
    pub url: Option<String>,
    /// The headers of requests to that server.
    pub headers: Headers,
    /// The webhook URL for the end of its runs.
    pub webhook: Option<String>,
    /// The effect of a further message on the current run.
    pub update_strategy: UpdateStrategy,
    /// True if an idle parent is started when a task has an outcome.
    pub notify_parent: bool,
    /// The visibility of the tasks to clients.
    pub visibility: Seen,
}

/// The effect of a further message on the current run of a background task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateStrategy {
    /// Cancel the run and keep what it wrote.
    #[default]
    Interrupt,
    /// Finish the run first.
    Enqueue,
}

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// The task is running.
    Running,
    /// The task is queued.
    Pending,
    /// The task waits for a human.
    Waiting,
    /// The task is complete.
    Success,
    /// The task failed.
    Error,
    /// The task exceeded its time limit.
    Timeout,
    /// The task was cancelled.
    Cancelled,
}

impl TaskStatus {
    /// All statuses.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Pending,
        Self::Waiting,
        Self::Success,
        Self::Error,
        Self::Timeout,
        Self::Cancelled,
    ];

    /// Returns the word used in the state and in the database.
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

    /// Returns whether the status is final unless the task gets a further message.
    pub fn is_final(self) -> bool {
        match self {
            Self::Running | Self::Pending | Self::Waiting => false,
            Self::Success | Self::Error | Self::Timeout | Self::Cancelled => true,
        }
    }

    /// Returns the status to record when a task was started, or got a message, and already has this status: an outcome
    /// is recorded as running, so that it is still reported.
    #[must_use]
    pub fn unreported(self) -> Self {
        if self.is_outcome() { Self::Running } else { self }
    }

    /// Returns whether the status is reported to the parent: the task is over, or waits for a human.
    pub fn is_outcome(self) -> bool {
        self.is_final() || self == Self::Waiting
    }
}

/// A task in the state of the delegating agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundTask {
    /// The id of the task, which is the id of its thread.
    pub task_id: String,
    /// The name of the agent.
    pub agent_name: String,
    /// The thread of the task.
    pub thread_id: String,
    /// The newest known run.
    pub run_id: String,
    /// The earlier runs, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded_run_ids: Vec<String>,
    /// The last run whose outcome the agent knows; empty if it knows none of several runs. A task that a former server has
    /// stored does not have it: see [`BackgroundTask::find`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_run_id: Option<String>,
    /// The status at the last check.
    pub status: TaskStatus,
    /// The time of creation, in UTC to the second like the other times.
    pub created_at: String,
    /// The time of the last check.
    pub last_checked_at: String,
    /// The time of the last change.
    pub last_updated_at: String,
}

impl BackgroundTask {
    /// Creates a task that was just started.
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
            reported_run_id: None,
            status: status.unreported(),
            created_at: now.clone(),
            last_checked_at: now.clone(),
            last_updated_at: now,
        }
    }

    /// Returns the tasks in a state, ordered by id. Invalid entries, which clients may have written, are ignored.
    pub fn all(state: &State) -> Vec<Self> {
        let Some(Value::Object(tasks)) = state.fields.get(FIELD) else {
            return vec![];
        };
        tasks.values().filter_map(Self::read).collect()
    }

    /// Returns the task with this id. A former server has not stored which outcomes it had reported. It reported most of
    /// them, and none of an older run later, so the agent is taken to know those of all runs but the newest.
    pub fn find(state: &State, id: &str) -> Option<Self> {
        Self::read(state.fields.get(FIELD)?.get(id.trim())?)
    }

    /// Returns the write that removes the unfinished tasks from the field with the value `tasks`; none if there are no
    /// unfinished tasks.
    pub fn removal_of_open(tasks: Option<&Value>) -> Option<Value> {
        let is_open = |task: &Value| Self::read(task).is_some_and(|task| !task.status.is_final());
        let open = tasks?.as_object()?.iter().filter(|(_, task)| is_open(task));
        let removed: Map<String, Value> = open.map(|(id, _)| (id.clone(), Value::Null)).collect();
        (!removed.is_empty()).then(|| removed.into())
    }

    fn read(stored: &Value) -> Option<Self> {
        let mut task: Self = serde_json::from_value(stored.clone()).ok()?;
        if task.reported_run_id.is_none() && !task.status.is_outcome() {
            task.reported_run_id = task.superseded_run_ids.last().cloned();
        }
        Some(task)
    }

    /// Returns the last run whose outcome the state contains.
    pub fn reported_run(&self) -> Option<&str> {
        let newest = self.status.is_outcome().then_some(&self.run_id);
        let known = self.reported_run_id.as_ref().or(newest).map(String::as_str);
        known.filter(|run| !run.is_empty())
    }

    /// Returns the task with the data of a snapshot taken now, whose outcomes the agent knows then.
    #[must_use]
    pub fn with_snapshot(&self, seen: &TaskSnapshot, now: Timestamp) -> Self {
        let is_new = self.status != seen.status || self.run_id != seen.run;
        let now = now.to_second();
        let last_updated_at = if is_new {
            now.clone()
        } else {
            self.last_updated_at.clone()
        };
        let mut task = self.clone();
        for outcome in seen.earlier.iter().chain([seen]) {
            task = task.with_run(&outcome.run);
            if outcome.status.is_outcome() {
                task.reported_run_id = Some(outcome.run.clone());
            }
        }
        Self {
            status: seen.status,
            last_checked_at: now,
            last_updated_at,
            ..task
        }
    }

    /// Returns the task with a newer run. It may be one that was superseded before it began: the run before it went on.
    #[must_use]
    pub fn with_run(&self, run: &str) -> Self {
        let mut task = self.clone();
        if task.run_id != run {
            task.reported_run_id = Some(self.reported_run().unwrap_or_default().to_owned());
            task.superseded_run_ids.retain(|earlier| earlier != run);
            task.superseded_run_ids
                .push(std::mem::replace(&mut task.run_id, run.to_owned()));
            let surplus = task.superseded_run_ids.len().saturating_sub(MAX_SUPERSEDED);
            task.superseded_run_ids.drain(..surplus);
        }
        task
    }

    /// Returns whether the task, as the snapshot shows it, has an outcome that the state does not contain. Of a superseded
    /// run, a cancellation is ignored, and so is the outcome that was reported last. Its other outcomes count, since a
    /// message supersedes the run before it while that run is still at work.
    fn has_new_outcome(&self, seen: &TaskSnapshot) -> bool {
        let is_other = self.status != seen.status || self.run_id != seen.run;
        let is_superseded = self.superseded_run_ids.contains(&seen.run);
        let is_reported = self.reported_run_id.as_ref() == Some(&seen.run);
        let is_past = is_superseded && (is_reported || seen.status == TaskStatus::Cancelled);
        seen.status.is_outcome() && !self.status.is_final() && is_other && !is_past
    }

    /// Returns the outcomes in a snapshot that the state does not contain, oldest first.
    pub fn new_outcomes<'s>(&self, seen: &'s TaskSnapshot) -> Vec<&'s TaskSnapshot> {
        let earlier = seen.earlier.iter().filter(|_| !self.status.is_final());
        earlier.chain(self.has_new_outcome(seen).then_some(seen)).collect()
    }

    /// Returns the snapshot of a task on another server with the outcomes before it that the agent does not know.
    #[must_use]
    pub fn with_unknown_past(&self, seen: TaskSnapshot) -> TaskSnapshot {
        let known = match self.reported_run() {
            None => 0,
            Some(reported) if reported == seen.run => seen.past.len(),
            // A reported run that was deleted has no place among the past runs, so all of them count as known.
            Some(reported) => {
                let at = seen.past.iter().position(|past| past.run == reported);
                at.map_or(seen.past.len(), |at| at + 1)
            }
        };
        let unknown = seen.past.iter().skip(known);
        let earlier = unknown.filter_map(|past| past.outcome.as_deref().cloned()).collect();
        TaskSnapshot { earlier, ..seen }
    }

    /// Returns the update that stores the task in the state.
    pub fn write(&self) -> Update {
        let task = serde_json::to_value(self).unwrap_or(Value::Null);
        let tasks = Map::from_iter([(self.task_id.clone(), task)]);
        let mut update = Update::field(FIELD, tasks.into());
        update.rules.insert(FIELD.to_owned(), RULE);
        update
    }

    /// Returns the message that reports the outcome to the agent.
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

/// A started run of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRun {
    /// The thread of the task.
    pub thread: String,
    /// The run.
    pub run: String,
    /// The status of the run.
    pub status: TaskStatus,
}

/// The status of a task at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    /// The newest run.
    pub run: String,
    /// The status.
    pub status: TaskStatus,
    /// The result, if the task is complete.
    pub result: Option<String>,
    /// The parts of the result that are not text: images, files.
    pub media: Vec<Value>,
    /// The error, if the task failed.
    pub error: Option<String>,
    /// The open interrupts as `{id, value}`, optionally with the `response_schema` of a valid answer.
    pub interrupts: Vec<Value>,
    /// The outcomes of earlier runs that the agent does not know, oldest first: other runs followed at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<TaskSnapshot>,
    /// The runs that have ended before, in the order of their ends. Only for tasks on other servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<PastRun>,
    /// The reason why the current status is unknown, if the task's server is unreachable. The other fields are from
    /// the last successful check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// True if the last poll did not find the task, of which the other fields show what was seen before. Only for tasks on other
    /// servers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
    /// The usage of the whole task, if the server reports it. Only for tasks on other servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Usage>,
    /// The time of the last status change. Only for tasks on other servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The interrupts that were answered here recently. Only for tasks on other servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answered: Vec<Answered>,
}

impl TaskSnapshot {
    /// Creates a snapshot with only a run and a status.
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
            earlier: vec![],
            past: vec![],
            lost: None,
            missed: false,
            used: None,
            since: None,
            answered,
        }
    }

    /// Returns the outcome of the newest run alone, for the time when other runs have followed; none if the run has no
    /// outcome yet, waits, or was cancelled. It has no media: earlier outcomes are reported as text.
    pub fn outcome(&self) -> Option<Box<Self>> {
        match self.status {
            TaskStatus::Success | TaskStatus::Error | TaskStatus::Timeout => Some(Box::new(Self {
                result: self.result.clone(),
                error: self.error.clone(),
                ..Self::of(self.run.clone(), self.status)
            })),
            TaskStatus::Running | TaskStatus::Pending | TaskStatus::Waiting | TaskStatus::Cancelled => None,
        }
    }

    /// Returns the runs that have ended, for the snapshot of a run that follows.
    pub fn past_of_next(&self) -> Vec<PastRun> {
        let mut past = self.past.clone();
        if self.status.is_outcome() {
            past.push(PastRun {
                run: self.run.clone(),
                outcome: self.outcome(),
            });
        }
        past
    }

    /// Returns the open interrupts as `{id, value}`.
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

/// An earlier run of a task on another server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PastRun {
    /// The run.
    pub run: String,
    /// Its outcome; none if it had none, or too many have followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Box<TaskSnapshot>>,
}

/// The reported result of a task without any text.
pub const EMPTY_RESULT: &str = "(The agent finished without saying anything.)";

/// Returns the text, truncated to the maximum length of a reported result.
pub fn truncate(text: &str) -> String {
    cut_after(
        text,
        MAX_RESULT_CHARS,
        &format!("\n[cut off after {MAX_RESULT_CHARS} characters]"),
    )
}

/// The ancestors of a background run, and the limits that they set. Every run on the thread of a task carries this,
/// so that limits apply across any number of runs and servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskLineage {
    /// The topmost run, which a client requested.
    pub top: RunId,
    /// The number of nested background tasks, including this one.
    pub nesting: u32,
    /// The number of delegation levels allowed below, if an ancestor limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<u32>,
    /// The trees whose limits include this run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<BudgetScope>,
    /// The subagent that started the task; none for the main agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starter: Option<StartedBy>,
    /// The visibility to clients, never greater than that of the agent that started the task.
    #[serde(default)]
    pub visibility: Seen,
}

/// A run whose limits include everything below it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetScope {
    /// The run; if it was resumed, the first run of the turn.
    pub top: RunId,
    /// The limits.
    pub limits: Limits,
}

/// The subagent that started a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartedBy {
    /// The run of the subagent.
    pub run: RunId,
    /// The names of the agents from the main agent down to the subagent.
    pub path: Vec<String>,
}

/// A task, as it is stored in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRecord {
    /// The id of the task, which is the id of its thread.
    pub task: ThreadId,
    /// The thread of the delegating agent.
    pub parent_thread: ThreadId,
    /// The run that delegated the task.
    pub parent_run: RunId,
    /// The assistant of that run.
    pub parent_assistant: AssistantId,
    /// The id of the tool call.
    pub call: String,
    /// The name of the agent.
    pub agent: String,
    /// The key of the agent definition.
    pub graph_id: String,
    /// The address of the agent's server; none for this server.
    pub url: Option<String>,
    /// The ancestors of the task.
    pub ancestry: TaskLineage,
    /// True if an idle parent is started when the task has an outcome.
    pub notify: bool,
    /// True if there may be an outcome that the parent does not know.
    pub watched: bool,
    /// The run whose outcome was reported last by starting the parent.
    pub reported_run: Option<RunId>,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The data of a task on another server.
    pub remote: RemoteWork,
}

impl TaskRecord {
    /// Returns the run of the main agent or subagent that started the task.
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
        let back = newer.with_run("r2");
        assert_eq!(back.run_id.as_str(), "r2");
        assert_eq!(back.superseded_run_ids, vec!["r1".to_owned(), "r3".to_owned()]);
    }

    #[test]
    fn an_outcome_is_new_until_the_state_contains_it() {
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
    fn a_message_that_waits_for_its_turn_hides_no_outcome_of_the_run_before_it() {
        let now = Timestamp(0);
        let queued = BackgroundTask {
            status: TaskStatus::Pending,
            ..task(TaskStatus::Running).with_run("r2")
        };
        let waits = TaskSnapshot::of("r1", TaskStatus::Waiting);
        assert_eq!(queued.new_outcomes(&waits), [&waits]);
        let waiting = queued.with_snapshot(&waits, now);
        assert!(waiting.new_outcomes(&waits).is_empty());
        assert_eq!(waiting.reported_run(), Some("r1"));
        // The answered run ends, and the message begins at once.
        let at_work = TaskSnapshot {
            earlier: vec![TaskSnapshot::of("r3", TaskStatus::Success)],
            ..TaskSnapshot::of("r2", TaskStatus::Running)
        };
        assert_eq!(waiting.new_outcomes(&at_work), [&at_work.earlier[0]]);
        let told = waiting.with_snapshot(&at_work, now);
        assert_eq!(told.run_id.as_str(), "r2");
        assert_eq!(told.status, TaskStatus::Running);
        assert_eq!(told.superseded_run_ids, ["r1", "r3"]);
        assert_eq!(told.reported_run(), Some("r3"));
        let done = TaskSnapshot::of("r2", TaskStatus::Success);
        assert_eq!(told.new_outcomes(&done), [&done]);
        assert!(told.with_snapshot(&done, now).new_outcomes(&at_work).is_empty());
    }

    #[test]
    fn outcomes_on_another_server_are_new_after_the_last_one_that_was_reported() {
        let done = |run: &str| TaskSnapshot::of(run, TaskStatus::Success);
        let mut past = TaskSnapshot::of("r1", TaskStatus::Waiting).past_of_next();
        for run in ["r2", "r3"] {
            past = TaskSnapshot { past, ..done(run) }.past_of_next();
        }
        let seen = TaskSnapshot { past, ..done("r4") };
        let new_after = |known: &BackgroundTask| -> Vec<String> {
            let earlier = known.with_unknown_past(seen.clone()).earlier;
            earlier.into_iter().map(|outcome| outcome.run).collect()
        };
        let first = task(TaskStatus::Running);
        assert_eq!(new_after(&first.with_run("r4")), ["r2", "r3"]);
        let waited = first.with_snapshot(&TaskSnapshot::of("r1", TaskStatus::Waiting), Timestamp(0));
        assert_eq!(
            new_after(&waited.with_run("r4")),
            ["r2", "r3"],
            "a question was no outcome"
        );
        let told = |run: &str| first.with_snapshot(&done(run), Timestamp(0));
        assert_eq!(new_after(&told("r2")), ["r3"]);
        for run in ["r3", "r4", "r0"] {
            assert!(new_after(&told(run)).is_empty(), "{run}");
        }
    }

    #[test]
    fn a_reported_outcome_is_not_new_when_the_message_after_it_was_withdrawn() {
        let done = TaskSnapshot::of("r1", TaskStatus::Success);
        let reported = task(TaskStatus::Running).with_snapshot(&done, Timestamp(0));
        let queued = BackgroundTask {
            status: TaskStatus::Pending,
            ..reported.with_run("r2")
        };
        assert!(queued.new_outcomes(&done).is_empty());
        assert_eq!(queued.reported_run(), Some("r1"));
    }

    #[test]
    fn outcomes_that_a_former_server_has_reported_are_not_new() {
        let read = |superseded: Value, status: &str| {
            let mut stored = serde_json::to_value(task(TaskStatus::Running)).expect("JSON");
            stored["run_id"] = "r3".into();
            stored["superseded_run_ids"] = superseded;
            stored["status"] = status.into();
            BackgroundTask::read(&stored).expect("a task")
        };
        assert_eq!(read(json!(["r1", "r2"]), "running").reported_run(), Some("r2"));
        assert_eq!(read(json!(["r1", "r2"]), "waiting").reported_run(), Some("r3"));
        assert_eq!(read(json!([]), "running").reported_run(), None);
        let done = TaskSnapshot::of("r2", TaskStatus::Success);
        assert!(read(json!(["r1", "r2"]), "pending").new_outcomes(&done).is_empty());
        // This server keeps that nothing was reported yet.
        let kept = serde_json::to_value(task(TaskStatus::Running).with_run("r2")).expect("JSON");
        let kept = BackgroundTask::read(&kept).expect("a task");
        assert_eq!(kept.reported_run(), None);
        let done = TaskSnapshot::of("r1", TaskStatus::Success);
        assert_eq!(kept.new_outcomes(&done), [&done]);
    }

    #[test]
    fn notifications_are_marked_and_truncated() {
        let long = TaskSnapshot {
            result: Some("é".repeat(MAX_RESULT_CHARS + 5)),
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
        assert_eq!(text.matches('é').count(), MAX_RESULT_CHARS);
    }
}
