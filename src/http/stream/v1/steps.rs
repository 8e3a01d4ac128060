//! The modes `tasks`, `checkpoints` and `debug`: the steps of the loop.
//!
//! A checkpoint is sent together with its next tasks, once these are known (`next_tasks`). Hooks without writes are
//! neither in the log nor in these modes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::RunInfo;
use super::agent::{PendingCheckpoint, PresentedAgent};
use super::metadata::{of_agent, triggers};
use super::modes::Modes;
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
use crate::http::wire::run::platform_settings;
use crate::http::wire::stream_mode::StreamMode;

/// Creates the frames of steps for one reader.
pub(super) struct Steps<'a> {
    pub info: &'a RunInfo,
    pub modes: Modes,
    /// The newest checkpoints of active agents by namespace.
    pub heads: &'a BTreeMap<String, CheckpointId>,
    /// The time of the event.
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
    checkpoints: Option<CheckpointConfigs>,
}

#[derive(Serialize)]
struct CheckpointConfigs {
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
    /// Sends the pending checkpoint and the tasks that start after it.
    pub(super) fn begin(
        &self,
        agent: &PresentedAgent,
        pending: &PendingCheckpoint,
        next: &NextTasks,
        out: &mut Vec<Frame>,
    ) {
        let Some(state) = &agent.fold.state else {
            return;
        };
        if *next == NextTasks::NewTurn || pending.jumps && *next == NextTasks::Unknown {
            return;
        }
        let started = next.tasks(&agent.fold, state);
        if let Some(entry) = &pending.entry {
            self.checkpoint(agent, entry, pending, &started, out);
        }
        if *next == NextTasks::Stopped {
            return;
        }
        for task in started.iter().filter(|task| task.node != START) {
            let payload = TaskJson {
                id: task.id,
                name: task.node,
                input: task
                    .call
                    .as_ref()
                    .map_or(Input::State(state), |call| Input::Call([call])),
                triggers: [triggers(task.node)],
                metadata: self.metadata(agent),
            };
            self.push_record(agent, "task", &payload, out);
        }
    }

    /// Sends the end of a task.
    pub(super) fn end(&self, agent: &PresentedAgent, node: &str, call: usize, update: &Update, out: &mut Vec<Frame>) {
        self.result(
            agent,
            ResultJson {
                id: agent.fold.task(node, call),
                name: node,
                error: None,
                result: UpdateOrEmpty(update),
                interrupts: &[],
            },
            out,
        );
    }

    /// Sends the end of a task that raised interrupts.
    pub(super) fn end_with_interrupts(
        &self,
        agent: &PresentedAgent,
        node: &str,
        id: TaskId,
        interrupts: &[Value],
        out: &mut Vec<Frame>,
    ) {
        let nothing = Update::none();
        self.result(
            agent,
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

    fn result(&self, agent: &PresentedAgent, payload: ResultJson<'_>, out: &mut Vec<Frame>) {
        self.push_record(agent, "task_result", &payload, out);
    }

    fn checkpoint(
        &self,
        agent: &PresentedAgent,
        entry: &Entry,
        pending: &PendingCheckpoint,
        started: &[StartedTask<'_>],
        out: &mut Vec<Frame>,
    ) {
        let Some(values) = &agent.fold.state else {
            return;
        };
        let interrupts = pending
            .resumed
            .as_ref()
            .map(|before| before.interrupts.as_slice())
            .unwrap_or_default();
        let mut payload = CheckpointJson {
            config: self.config(agent, entry.id),
            parent_config: entry.parent.map(|parent| self.config(agent, parent)),
            values,
            metadata: self.history_metadata(agent, entry, pending.resumed.as_ref()),
            next: started.iter().map(|task| task.node).collect(),
            tasks: started.iter().map(|task| task_of(agent, task, interrupts)).collect(),
            checkpoints: None,
        };
        if self.modes.has(StreamMode::Checkpoints) {
            out.push(Frame::of(agent.name("checkpoints"), &payload));
        }
        if self.modes.has(StreamMode::Debug) {
            payload.checkpoints = Some(CheckpointConfigs {
                checkpoint: self.checkpoint_config(agent, entry.id),
                parent_checkpoint: entry.parent.map(|parent| self.checkpoint_config(agent, parent)),
            });
            let record = Record {
                step: Some(entry.step),
                timestamp: pending.at.to_string(),
                kind: "checkpoint",
                payload: &payload,
            };
            out.push(Frame::of(agent.name("debug"), &record));
        }
    }

    /// Sends a record of a task.
    fn push_record<T: Serialize>(&self, agent: &PresentedAgent, kind: &str, payload: &T, out: &mut Vec<Frame>) {
        if self.modes.has(StreamMode::Tasks) {
            out.push(Frame::of(agent.name(StreamMode::Tasks.word()), payload));
        }
        if self.modes.has(StreamMode::Debug) {
            let step = agent.fold.next_step();
            out.push(Frame::of(
                agent.name("debug"),
                &Record {
                    step,
                    timestamp: self.at.to_string(),
                    kind,
                    payload,
                },
            ));
        }
    }

    fn metadata(&self, agent: &PresentedAgent) -> Value {
        of_agent(self.info, &agent.fold.origin).into()
    }

    /// The metadata of a checkpoint. An older checkpoint also names the run that created it.
    fn history_metadata(&self, agent: &PresentedAgent, entry: &Entry, before: Option<&AgentSnapshot>) -> Value {
        let checkpoint_config =
            json!({"source": entry.source.word(), "step": entry.step, "parents": self.parents(agent)});
        let (Some(before), Value::Object(checkpoint_config)) = (before, &checkpoint_config) else {
            return checkpoint_config;
        };
        let mut metadata = self.metadata(agent);
        if let Value::Object(metadata) = &mut metadata {
            metadata.extend(checkpoint_config.clone());
            metadata.insert("thread_id".to_owned(), json!(self.info.thread));
            metadata.insert("run_id".to_owned(), json!(before.run));
        }
        metadata
    }

    /// The checkpoints of the agents above, by namespace.
    fn parents(&self, agent: &PresentedAgent) -> Map<String, Value> {
        let own = agent.namespace.as_deref().unwrap_or_default();
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

    fn checkpoint_config(&self, agent: &PresentedAgent, checkpoint: CheckpointId) -> Value {
        let namespace = agent.namespace.as_deref().unwrap_or_default();
        let mut checkpoint_config =
            json!({"checkpoint_id": checkpoint, "thread_id": self.info.thread, "checkpoint_ns": namespace});
        if !agent.fold.is_main() {
            let mut map = self.parents(agent);
            map.insert(namespace.to_owned(), json!(checkpoint));
            checkpoint_config["checkpoint_map"] = Value::Object(map);
        }
        checkpoint_config
    }

    fn config(&self, agent: &PresentedAgent, checkpoint: CheckpointId) -> Value {
        let info = self.info;
        let Value::Object(mut configurable) = self.checkpoint_config(agent, checkpoint) else {
            return Value::Null;
        };
        let graph_id = json!(info.graph_id);
        configurable.extend(platform_settings(info.run, info.assistant, graph_id, info.created_at));
        if !agent.fold.is_main() {
            configurable.insert("ls_agent_type".to_owned(), json!("subagent"));
        }
        json!({ "configurable": configurable })
    }
}

/// A task of a checkpoint with the interrupts that it had raised.
fn task_of(agent: &PresentedAgent, task: &StartedTask<'_>, interrupts: &[Interrupt]) -> Value {
    let interrupts = interrupts.iter().filter(|question| question.task == task.id);
    let interrupts: Vec<Value> = interrupts
        .map(|question| interrupt(question, &agent.fold.origin))
        .collect();
    json!({"id": task.id, "name": task.node, "interrupts": interrupts, "state": null})
}
