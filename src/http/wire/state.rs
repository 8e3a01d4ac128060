//! States and histories on the wire.

use std::collections::{HashMap, HashSet};

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Object;
use super::history::{CompletedStep, HistoryEntry, HistoryFields};
use super::interrupt::{InterruptSummary, brief};
use super::values::Values;
use crate::db::checkpoints::CheckpointSummary;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::domain::checkpoint::{CheckpointSource, Lane};
use crate::domain::id::{CheckpointId, RunId, TaskId, ThreadId};
use crate::domain::machine::{Failure, Plan, Position, START, TOOLS};
use crate::domain::run::{MAX_DELEGATIONS, Run, namespace_text};
use crate::domain::run_config::configurable;
use crate::domain::thread::Thread;
use crate::http::error::ApiError;
use crate::http::extract::Select;

/// The state of a thread at a checkpoint, with its next tasks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "ThreadState")]
pub struct StateView {
    /// The values of the state.
    #[schema(value_type = Object)]
    pub values: Values,
    /// The next nodes; empty when the run has finished.
    pub next: Vec<String>,
    /// The next tasks.
    pub tasks: Vec<TaskView>,
    /// The metadata of the checkpoint: `source`, `step`, and the metadata of its run.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    /// The checkpoint.
    pub checkpoint: Option<CheckpointView>,
    /// The parent checkpoint.
    pub parent_checkpoint: Option<CheckpointView>,
    /// The interrupts of the tasks.
    #[schema(value_type = Vec<InterruptSummary>)]
    pub interrupts: Vec<Value>,
    /// The id of the checkpoint.
    pub checkpoint_id: Option<Uuid>,
    /// The id of the parent checkpoint.
    pub parent_checkpoint_id: Option<Uuid>,
}

/// A task that follows a checkpoint.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "ThreadTask")]
pub struct TaskView {
    /// The id of the task; streams use it in namespaces.
    pub id: Uuid,
    /// The node of the task.
    pub name: String,
    /// The path of the task: `["__pregel_pull", node]`, or for a tool call `["__pregel_push", index, false]`.
    #[schema(value_type = Vec<Value>)]
    pub path: Value,
    /// The error of a task that failed, or that was open when its run was cancelled.
    pub error: Option<String>,
    /// The interrupts.
    #[schema(value_type = Vec<InterruptSummary>)]
    pub interrupts: Vec<Value>,
    /// The newest checkpoint of the task's subagent, with `subgraphs`.
    pub checkpoint: Option<CheckpointView>,
    /// The state of the task's subagent in the shape of this object, with `subgraphs`.
    #[schema(value_type = Option<Object>)]
    pub state: Option<Box<StateView>>,
    /// The writes of a completed task.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Box<RawValue>>,
    /// The last task in the namespace of the task's subagent, if it has one.
    #[serde(skip)]
    pub delegated: Option<TaskId>,
}

/// A reference to a checkpoint.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(title = "Checkpoint")]
pub struct CheckpointView {
    /// The checkpoint.
    pub checkpoint_id: Uuid,
    /// The thread.
    pub thread_id: Uuid,
    /// The namespace of the subagent; empty for the main agent.
    pub checkpoint_ns: String,
}

impl CheckpointView {
    /// Creates a reference to a checkpoint of the main agent.
    pub fn new(thread: ThreadId, id: CheckpointId) -> Self {
        Self {
            checkpoint_id: id.0,
            thread_id: thread.0,
            checkpoint_ns: String::new(),
        }
    }

    /// Creates a reference to a checkpoint of a subagent.
    pub fn within(thread: ThreadId, id: CheckpointId, namespace: &[TaskId]) -> Self {
        Self {
            checkpoint_ns: namespace_text(namespace),
            ..Self::new(thread, id)
        }
    }
}

/// The data that all checkpoints of a history share.
#[derive(Debug)]
pub struct HistoryContext {
    /// The thread.
    pub thread: Thread,
    /// The run of the subagent; `None` for the main agent.
    pub child: Option<Run>,
    /// The metadata of the runs that created the checkpoints.
    pub run_notes: HashMap<RunId, Object>,
    /// The newest checkpoint, if the last run was cancelled there.
    pub stopped_at: Option<CheckpointId>,
    /// The interrupts of the thread, each with the agent's task that raised it.
    pub interrupts: Vec<(TaskId, InterruptRecord)>,
}

impl HistoryContext {
    /// Gives the interrupts of subagents the tasks of the completed calls among `entries` that have delegated to them. The
    /// subagents of a call whose tool is called again have tasks of their own, whose ids are derived from that of the call.
    #[must_use]
    pub fn with_calls_of(mut self, entries: &[HistoryEntry]) -> Self {
        let own = self.child.as_ref().map_or(Lane::Main, |child| Lane::Child(child.id));
        let of_subagents = self.interrupts.iter().filter(|(_, record)| record.lane != own);
        let mut raised: Vec<(i64, TaskId)> = of_subagents.map(|(task, record)| (record.seq, *task)).collect();
        if raised.is_empty() {
            return self;
        }
        raised.sort_unstable_by_key(|(seq, _)| *seq);
        let mut callers: HashMap<TaskId, TaskId> = HashMap::new();
        for entry in entries {
            callers.extend(callers_in(entry, &raised));
        }
        for (task, _) in &mut self.interrupts {
            if let Some(call) = callers.get(&*task) {
                *task = *call;
            }
        }
        self
    }

    /// Creates the view of a checkpoint. `plan` and `agent_name` are those of the thread's agent.
    pub fn view(&self, entry: HistoryEntry, plan: Option<&Plan>, agent_name: &str) -> StateView {
        let id = entry.origin.id;
        let thread = self.thread.id;
        let parent = entry.origin.parent;
        let tasks = match (entry.completed, &entry.position) {
            (Some(step), _) => self.finished_tasks(step),
            (None, Some(position)) => self.open_tasks(position, id, plan),
            (None, None) => vec![],
        };
        StateView {
            values: entry.values,
            next: tasks.iter().map(|task| task.name.clone()).collect(),
            interrupts: tasks.iter().flat_map(|task| task.interrupts.clone()).collect(),
            tasks,
            metadata: Some(self.metadata(&entry.origin, agent_name)),
            created_at: Some(entry.origin.created_at.to_string()),
            checkpoint: Some(CheckpointView::within(thread, id, self.namespace())),
            parent_checkpoint: parent.map(|parent| CheckpointView::within(thread, parent, self.namespace())),
            checkpoint_id: Some(id.0),
            parent_checkpoint_id: parent.map(|parent| parent.0),
        }
    }

    /// The tasks down to the agent.
    pub fn namespace(&self) -> &[TaskId] {
        self.child
            .as_ref()
            .map(|child| child.lineage.namespace.as_slice())
            .unwrap_or_default()
    }

    /// The tasks of a completed step.
    fn finished_tasks(&self, step: CompletedStep) -> Vec<TaskView> {
        let CompletedStep {
            node, base, results, ..
        } = step;
        let view = |(at, result): (usize, Option<Box<RawValue>>)| {
            let id = base.task(&node, at);
            let interrupts = self
                .interrupts
                .iter()
                .filter(|(task, _)| *task == id)
                .map(|(_, record)| brief(&record.interrupt));
            TaskView {
                result,
                ..task_view(id, &node, at, interrupts.collect())
            }
        };
        results.into_iter().enumerate().map(view).collect()
    }

    /// The tasks that are not completed.
    fn open_tasks(&self, position: &Position, head: CheckpointId, plan: Option<&Plan>) -> Vec<TaskView> {
        let cancelled = self.cancellation(head);
        let view = |task: crate::domain::checkpoint::Task| {
            let interrupts = self.interrupts.iter().filter(|(id, record)| {
                (*id == task.id || Some(*id) == task.delegated) && record.status == InterruptState::Pending
            });
            let interrupts: Vec<Value> = interrupts.map(|(_, record)| brief(&record.interrupt)).collect();
            // A task that asks goes on with the answer.
            let cancelled = cancelled.clone().filter(|_| interrupts.is_empty());
            TaskView {
                error: task.error.or(cancelled),
                delegated: task.delegated,
                ..task_view(task.id, &task.node, task.call.unwrap_or(0), interrupts)
            }
        };
        position.tasks(plan, head).into_iter().map(view).collect()
    }

    /// The error of the tasks that the last run left open when it was cancelled at this checkpoint. Without it clients
    /// take the open tasks for a breakpoint.
    fn cancellation(&self, at: CheckpointId) -> Option<String> {
        let error = self.thread.error.as_ref().filter(|_| self.stopped_at == Some(at));
        error.map(Failure::to_task_error)
    }

    /// The metadata of a checkpoint.
    fn metadata(&self, origin: &CheckpointSummary, agent_name: &str) -> Object {
        let run_notes = origin.run.and_then(|run| self.run_notes.get(&run));
        metadata_of(
            &self.thread,
            origin,
            run_notes,
            self.child.as_ref().map_or(agent_name, |child| child.lineage.agent()),
        )
    }
}

/// Returns the tasks of the subagents to which completed calls of a step have delegated before their tools were called again, each
/// with the task of the call. `raised` are the interrupts of subagents in the order of the log. Ids are derived only if some of
/// them were raised during the step: a long history has many calls, and few that have delegated so.
fn callers_in(entry: &HistoryEntry, raised: &[(i64, TaskId)]) -> Vec<(TaskId, TaskId)> {
    let Some(step) = entry.completed.as_ref().filter(|step| step.node == TOOLS) else {
        return vec![];
    };
    // A step that was carried on began before this checkpoint.
    let is_carried = step.base.checkpoint() != Some(entry.origin.id);
    let since = if is_carried { i64::MIN } else { entry.origin.seq };
    let first = raised.partition_point(|(seq, _)| *seq < since);
    let end = raised.partition_point(|(seq, _)| *seq <= step.until);
    let within = raised.get(first..end).unwrap_or_default();
    if within.is_empty() {
        return vec![];
    }
    let mut unknown: HashSet<TaskId> = within.iter().map(|(_, task)| *task).collect();
    let calls: Vec<TaskId> = (0..step.results.len()).map(|at| step.base.task(TOOLS, at)).collect();
    for call in &calls {
        unknown.remove(call);
    }
    let mut callers = vec![];
    for call in calls {
        if unknown.is_empty() {
            break;
        }
        let delegations = (0..MAX_DELEGATIONS).map(|number| TaskId::of_delegation(call, number));
        callers.extend(delegations.filter(|task| unknown.remove(task)).map(|task| (task, call)));
    }
    callers
}

/// The metadata of a checkpoint that was created by a run with the metadata `run_notes`, if by any ([`run_metadata`]).
pub fn metadata_of(
    thread: &Thread,
    origin: &CheckpointSummary,
    run_notes: Option<&Object>,
    agent_name: &str,
) -> Object {
    let mut metadata = Object::new();
    if let Some(graph) = thread.metadata.get("graph_id") {
        metadata.insert("graph_id".to_owned(), graph.clone());
    }
    if let Some(run_notes) = run_notes {
        metadata.extend(thread.metadata.clone());
        metadata.extend(run_notes.clone());
    } else if let (CheckpointSource::Update, Some(from)) = (origin.source, origin.fork_of) {
        metadata.insert("checkpoint_id".to_owned(), json!(from));
    }
    metadata.extend([
        ("lc_agent_name".to_owned(), json!(agent_name)),
        ("thread_id".to_owned(), json!(thread.id)),
        ("source".to_owned(), json!(origin.source.word())),
        ("step".to_owned(), json!(origin.step)),
        ("parents".to_owned(), json!({})),
    ]);
    metadata
}

/// The metadata that a run adds to its checkpoints: its own, and the scalar settings of its config.
pub fn run_metadata(run: &Run) -> Object {
    let configurable = configurable(&run.request.config);
    let simple = |(name, value): &(&String, &Value)| !name.starts_with("__") && !value.is_object() && !value.is_array();
    let settings = configurable
        .into_iter()
        .flatten()
        .filter(simple)
        .map(|(name, value)| (name.clone(), value.clone()));
    let mut metadata: Object = settings.collect();
    metadata.extend(run.metadata.clone());
    metadata.extend([
        ("assistant_id".to_owned(), json!(run.assistant)),
        ("user_id".to_owned(), json!("")),
        ("run_attempt".to_owned(), json!(run.attempt)),
        ("run_id".to_owned(), json!(run.id)),
    ]);
    if let Some(checkpoint) = run.request.checkpoint {
        metadata.insert("checkpoint_id".to_owned(), json!(checkpoint));
    }
    metadata
}

fn task_view(id: TaskId, node: &str, call: usize, interrupts: Vec<Value>) -> TaskView {
    let path = if node == TOOLS {
        json!(["__pregel_push", call, false])
    } else {
        json!(["__pregel_pull", node])
    };
    let name = if node.is_empty() {
        START.to_owned()
    } else {
        node.to_owned()
    };
    TaskView {
        id: id.0,
        name,
        path,
        error: None,
        interrupts,
        checkpoint: None,
        state: None,
        result: None,
        delegated: None,
    }
}

impl StateView {
    /// The state of a thread without checkpoints, or at a checkpoint that does not exist.
    pub fn empty(checkpoint: Option<CheckpointView>) -> Self {
        Self {
            values: Values::default(),
            next: vec![],
            tasks: vec![],
            metadata: None,
            created_at: None,
            parent_checkpoint: None,
            interrupts: vec![],
            checkpoint_id: checkpoint.as_ref().map(|checkpoint| checkpoint.checkpoint_id),
            parent_checkpoint_id: None,
            checkpoint,
        }
    }
}

/// A state update.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct StateUpdate {
    /// The values to write: an object, a list of objects, or null. They may be those of every field, also of those that an
    /// input may not write.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Value>,
    /// The node that the update is attributed to; the last one when absent. `__end__` ends the turn: no node follows, and
    /// open interrupts are dropped.
    pub as_node: Option<String>,
    /// The checkpoint to update, if not the newest: an object with `checkpoint_id`.
    #[schema(value_type = Option<Object>)]
    pub checkpoint: Option<Object>,
    /// The id of the checkpoint, as an alternative to `checkpoint`.
    #[schema(format = Uuid)]
    pub checkpoint_id: Option<String>,
}

/// The result of a state update.
#[derive(Debug, Serialize, ToSchema)]
pub struct StateUpdated {
    /// The new checkpoint.
    pub checkpoint: CheckpointView,
    /// The new checkpoint as a run's `config.configurable` expects it.
    pub configurable: CheckpointView,
    /// The id of the new checkpoint.
    pub checkpoint_id: Uuid,
}

impl StateUpdated {
    /// Creates a reference to the new checkpoint.
    pub fn new(thread: ThreadId, id: CheckpointId) -> Self {
        let checkpoint = CheckpointView::new(thread, id);
        Self {
            configurable: checkpoint.clone(),
            checkpoint,
            checkpoint_id: id.0,
        }
    }
}

/// A request for the state at a checkpoint.
#[derive(Debug, Deserialize, ToSchema)]
pub struct StateAt {
    /// An object with `checkpoint_id`, and for a subagent `checkpoint_ns`; without an id, the newest checkpoint.
    #[schema(value_type = Object)]
    pub checkpoint: Object,
    /// True if tasks include the states of their subagents.
    #[serde(default)]
    pub subgraphs: Option<bool>,
    /// The fields to return; `values.<key>` selects one field of the values.
    #[serde(default)]
    pub select: Option<Vec<String>>,
}

/// A search in a history.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct HistorySearch {
    /// The maximum number of items.
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    pub limit: Option<i64>,
    /// The checkpoint before which the page starts: `{"configurable": {"checkpoint_id": "…"}}`.
    #[schema(value_type = Option<Object>)]
    pub before: Option<Object>,
    /// A filter: the metadata contains these keys and values.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The agent, `{"checkpoint_ns": "tools:<task>"}` for the subagent of a task, and the only checkpoint to return, if not
    /// all: `{"checkpoint_id": "…"}`.
    #[schema(value_type = Option<Object>)]
    pub checkpoint: Option<Object>,
    /// The fields to return; `values.<key>` selects one field of the values.
    pub select: Option<Vec<String>>,
}

/// The fields that `select` may name.
const FIELDS: [&str; 10] = [
    "values",
    "next",
    "tasks",
    "metadata",
    "created_at",
    "checkpoint",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
];

/// The fields of states to return, and the keys of their values.
#[derive(Debug, Clone, Default)]
pub struct StateSelect {
    fields: Select,
    values: Vec<String>,
}

impl StateSelect {
    /// Selects fields, and keys of the values as in `values.messages`; all if there are none.
    ///
    /// # Errors
    /// If a field is unknown.
    pub fn checked(names: Vec<String>) -> Result<Self, ApiError> {
        let mut values = vec![];
        let mut field = |name: String| match name.strip_prefix("values.") {
            Some(key) => {
                values.push(key.to_owned());
                "values".to_owned()
            }
            None => name,
        };
        let fields: Vec<String> = names.into_iter().map(&mut field).collect();
        Ok(Self {
            fields: Select::checked(fields, &FIELDS)?,
            values,
        })
    }

    /// The fields of checkpoints to load.
    pub fn fields(&self) -> HistoryFields {
        let tasks = ["tasks", "next", "interrupts"]
            .into_iter()
            .any(|field| self.fields.has(field));
        HistoryFields {
            values: self.fields.has("values"),
            keys: self.values.clone(),
            tasks,
        }
    }

    /// Selects the fields of a state.
    pub fn pick(&self, view: StateView) -> SelectedState<'_> {
        SelectedState { select: self, view }
    }
}

/// A state with selected fields.
pub struct SelectedState<'a> {
    select: &'a StateSelect,
    view: StateView,
}

impl Serialize for SelectedState<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { select, view } = self;
        let mut map = serializer.serialize_map(None)?;
        for field in FIELDS.into_iter().filter(|field| select.fields.has(field)) {
            match field {
                "values" => map.serialize_entry(field, &view.values)?,
                "next" => map.serialize_entry(field, &view.next)?,
                "tasks" => map.serialize_entry(field, &view.tasks)?,
                "metadata" => map.serialize_entry(field, &view.metadata)?,
                "created_at" => map.serialize_entry(field, &view.created_at)?,
                "checkpoint" => map.serialize_entry(field, &view.checkpoint)?,
                "parent_checkpoint" => map.serialize_entry(field, &view.parent_checkpoint)?,
                "interrupts" => map.serialize_entry(field, &view.interrupts)?,
                "checkpoint_id" => map.serialize_entry(field, &view.checkpoint_id)?,
                _ => map.serialize_entry(field, &view.parent_checkpoint_id)?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
