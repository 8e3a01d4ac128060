//! The modes `tasks`, `checkpoints` and `debug`: how the loop steps.
//!
//! A checkpoint is shown together with the tasks that begin after it, once it is known which those are (`next_tasks`).
//! Hooks that wrote nothing leave no trace in the log and none here.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::RunInfo;
use super::agent::{PendingCheckpoint, ShownAgent};
use super::metadata::{of_agent, triggers};
use super::mode::{Modes, StreamMode};
use super::next_tasks::{NextTasks, StartedTask};
use super::values::{UpdateOrEmpty, interrupt};
use crate::domain::checkpoint::Entry;
use crate::domain::id::{CheckpointId, TaskId};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::START;
use crate::domain::message::ToolCall;
use crate::domain::state::{State, Update};
use crate::domain::time::Timestamp;
use crate::events::AgentSnapshot;
use crate::http::stream::frame::Frame;

/// The projection, for one reader.
pub(super) struct Steps<'a> {
    pub info: &'a RunInfo,
    pub modes: Modes,
    /// The newest checkpoints of the agents that are at work, by namespace.
    pub heads: &'a BTreeMap<String, CheckpointId>,
    /// When the event happened.
    pub at: Timestamp,
}

/// A record of the mode `debug`.
#[derive(Serialize)]
struct Record<'a, T> {
    step: Option<i64>,
    timestamp: String,
    #[serde(rename = "type")]
    kind: &'a str,
    payload: &'a T,
}

#[derive(Serialize)]
struct CheckpointJson<'a> {
    config: Value,
    parent_config: Option<Value>,
    values: &'a State,
    metadata: Value,
    next: Vec<&'a str>,
    tasks: Vec<Value>,
    #[serde(flatten)]
    places: Option<Places>,
}

#[derive(Serialize)]
struct Places {
    checkpoint: Value,
    parent_checkpoint: Option<Value>,
}

#[derive(Serialize)]
struct TaskJson<'a> {
    id: TaskId,
    name: &'a str,
    input: Input<'a>,
    triggers: [String; 1],
    metadata: Value,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    State(&'a State),
    Call([&'a ToolCall; 1]),
}

#[derive(Serialize)]
struct ResultJson<'a> {
    id: TaskId,
    name: &'a str,
    error: Option<&'a str>,
    result: UpdateOrEmpty<'a>,
    interrupts: &'a [Value],
}

impl Steps<'_> {
    /// Shows the checkpoint that waits in `pending` and the tasks that begin after it.
    pub(super) fn begin(
        &self,
        shown: &ShownAgent,
        pending: &PendingCheckpoint,
        next: &NextTasks,
        out: &mut Vec<Frame>,
    ) {
        let Some(state) = &shown.agent.state else {
            return;
        };
        if *next == NextTasks::NewTurn {
            return;
        }
        let begun = next.tasks(&shown.agent, state);
        if let Some(entry) = &pending.entry {
            self.checkpoint(shown, (entry, pending), &begun, out);
        }
        if *next == NextTasks::Stopped {
            return;
        }
        for task in begun.iter().filter(|task| task.node != START) {
            let payload = TaskJson {
                id: task.id,
                name: task.node,
                input: task
                    .call
                    .as_ref()
                    .map_or(Input::State(state), |call| Input::Call([call])),
                triggers: [triggers(task.node)],
                metadata: self.metadata(shown),
            };
            self.show(shown, "task", &payload, out);
        }
    }

    /// Shows that a task of `node` ended.
    pub(super) fn end(&self, shown: &ShownAgent, node: &str, call: usize, update: &Update, out: &mut Vec<Frame>) {
        let id = TaskId::of_step(shown.agent.head, node, call);
        self.result(
            shown,
            ResultJson {
                id,
                name: node,
                error: None,
                result: UpdateOrEmpty(update),
                interrupts: &[],
            },
            out,
        );
    }

    /// Shows that a task ended with questions.
    pub(super) fn end_asking(
        &self,
        shown: &ShownAgent,
        node: &str,
        id: TaskId,
        interrupts: &[Value],
        out: &mut Vec<Frame>,
    ) {
        let nothing = Update::none();
        self.result(
            shown,
            ResultJson {
                id,
                name: node,
                error: None,
                result: UpdateOrEmpty(&nothing),
                interrupts,
            },
            out,
        );
    }

    fn result(&self, shown: &ShownAgent, payload: ResultJson<'_>, out: &mut Vec<Frame>) {
        self.show(shown, "task_result", &payload, out);
    }

    fn checkpoint(
        &self,
        shown: &ShownAgent,
        (entry, pending): (&Entry, &PendingCheckpoint),
        begun: &[StartedTask<'_>],
        out: &mut Vec<Frame>,
    ) {
        let Some(values) = &shown.agent.state else {
            return;
        };
        let asked = pending
            .resumed
            .as_ref()
            .map(|before| before.asked.as_slice())
            .unwrap_or_default();
        let mut payload = CheckpointJson {
            config: self.config(shown, entry.id),
            parent_config: entry.parent.map(|parent| self.config(shown, parent)),
            values,
            metadata: self.history_metadata(shown, entry, pending.resumed.as_ref()),
            next: begun.iter().map(|task| task.node).collect(),
            tasks: begun.iter().map(|task| task_of(shown, task, asked)).collect(),
            places: None,
        };
        if self.modes.has(StreamMode::Checkpoints) {
            out.push(Frame::of(shown.name("checkpoints"), &payload));
        }
        if self.modes.has(StreamMode::Debug) {
            payload.places = Some(Places {
                checkpoint: self.place(shown, entry.id),
                parent_checkpoint: entry.parent.map(|parent| self.place(shown, parent)),
            });
            let record = Record {
                step: Some(entry.step),
                timestamp: pending.at.to_string(),
                kind: "checkpoint",
                payload: &payload,
            };
            out.push(Frame::of(shown.name("debug"), &record));
        }
    }

    /// Shows a task, or what came of it, to those who follow tasks.
    fn show<T: Serialize>(&self, shown: &ShownAgent, kind: &str, payload: &T, out: &mut Vec<Frame>) {
        if self.modes.has(StreamMode::Tasks) {
            out.push(Frame::of(shown.name(StreamMode::Tasks.word()), payload));
        }
        if self.modes.has(StreamMode::Debug) {
            let step = shown.agent.next_step();
            out.push(Frame::of(
                shown.name("debug"),
                &Record {
                    step,
                    timestamp: self.at.to_string(),
                    kind,
                    payload,
                },
            ));
        }
    }

    fn metadata(&self, shown: &ShownAgent) -> Value {
        of_agent(self.info, &shown.agent.origin).into()
    }

    /// How a checkpoint came to be. One that was made before is told apart by the run that made it.
    fn history_metadata(&self, shown: &ShownAgent, entry: &Entry, before: Option<&AgentSnapshot>) -> Value {
        let place = json!({"source": entry.source.word(), "step": entry.step, "parents": self.parents(shown)});
        let (Some(before), Value::Object(place)) = (before, &place) else {
            return place;
        };
        let mut metadata = self.metadata(shown);
        if let Value::Object(metadata) = &mut metadata {
            metadata.extend(place.clone());
            metadata.insert("thread_id".to_owned(), json!(self.info.thread));
            metadata.insert("run_id".to_owned(), json!(before.run));
        }
        metadata
    }

    /// The checkpoints of the callers, by namespace.
    fn parents(&self, shown: &ShownAgent) -> Map<String, Value> {
        let own = shown.namespace.as_deref().unwrap_or_default();
        let is_above = |namespace: &str| {
            namespace.len() < own.len()
                && own.starts_with(namespace)
                && (namespace.is_empty() || own[namespace.len()..].starts_with('|'))
        };
        self.heads
            .iter()
            .filter(|(namespace, _)| is_above(namespace))
            .map(|(namespace, head)| (namespace.clone(), json!(head)))
            .collect()
    }

    fn place(&self, shown: &ShownAgent, checkpoint: CheckpointId) -> Value {
        let namespace = shown.namespace.as_deref().unwrap_or_default();
        let mut place = json!({"checkpoint_id": checkpoint, "thread_id": self.info.thread, "checkpoint_ns": namespace});
        if !shown.agent.is_main() {
            let mut map = self.parents(shown);
            map.insert(namespace.to_owned(), json!(checkpoint));
            place["checkpoint_map"] = Value::Object(map);
        }
        place
    }

    fn config(&self, shown: &ShownAgent, checkpoint: CheckpointId) -> Value {
        let info = self.info;
        let Value::Object(mut configurable) = self.place(shown, checkpoint) else {
            return Value::Null;
        };
        let more = [
            ("langgraph_auth_user", Value::Null),
            ("langgraph_auth_permissions", json!([])),
            ("__request_start_time_ms__", json!(info.created_at.millis())),
            ("__after_seconds__", json!(0)),
            ("run_id", json!(info.run)),
            ("graph_id", json!(info.graph_id)),
            ("assistant_id", json!(info.assistant)),
            ("user_id", json!("")),
        ];
        configurable.extend(more.map(|(name, value)| (name.to_owned(), value)));
        if !shown.agent.is_main() {
            configurable.insert("ls_agent_type".to_owned(), json!("subagent"));
        }
        json!({ "configurable": configurable })
    }
}

/// A task as checkpoints show it, with what it had asked before it went on.
fn task_of(shown: &ShownAgent, task: &StartedTask<'_>, asked: &[Interrupt]) -> Value {
    let asked = asked.iter().filter(|asked| asked.task == task.id);
    let interrupts: Vec<Value> = asked.map(|asked| interrupt(asked, &shown.agent.origin)).collect();
    json!({"id": task.id, "name": task.node, "interrupts": interrupts, "state": null})
}
