//! The modes `tasks`, `checkpoints` and `debug`: how the loop steps.
//!
//! The log says what was done, these modes also say what comes next. So a checkpoint, and the tasks that begin after it,
//! are shown with the next event of the same agent or of one of its subagents: that event tells which tasks those were.
//! Hooks that wrote nothing leave no trace in the log and none here.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Facts;
use super::lane::{Ahead, LaneView};
use super::metadata::{of_agent, triggers};
use super::mode::{Mode, Modes};
use super::values::{Written, interrupt};
use crate::domain::checkpoint::{Entry, Source};
use crate::domain::event::{Event, EventBody, Fact, Work};
use crate::domain::id::{CheckpointId, TaskId};
use crate::domain::interrupt::{Asker, Interrupt};
use crate::domain::machine::{MODEL, RUNNABLE, START, TOOLS};
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::{State, Update};
use crate::domain::time::Timestamp;
use crate::events::Standing;
use crate::http::stream::frame::Frame;

/// What the tasks after a checkpoint are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Coming {
    /// The task of this node.
    Node(String),
    /// The calls of the last answer.
    Calls,
    /// What the state says, as nothing else tells.
    Unknown,
    /// What the state says, but it did not begin.
    Stopped,
    /// Something else altogether: a new turn begins.
    NewTurn,
}

impl Coming {
    /// What `event` tells about what came after the newest checkpoint of its agent.
    pub(super) fn told_by(event: &Event, view: &LaneView) -> Self {
        match &event.body {
            EventBody::Delta(_) | EventBody::Begun(Work::Model) | EventBody::Fact(Fact::BrokenOff { .. }) => {
                Self::Node(MODEL.to_owned())
            }
            EventBody::Begun(Work::Program) => Self::Node(RUNNABLE.to_owned()),
            EventBody::Entry(entry) => match (entry.source, entry.node.as_str()) {
                (Source::Input | Source::Update | Source::Fork, _) => Self::NewTurn,
                (Source::Loop, TOOLS) => Self::Calls,
                (Source::Loop, node) => Self::Node(node.to_owned()),
            },
            EventBody::Fact(Fact::Asked { interrupts, .. }) => match interrupts.first() {
                Some(Interrupt {
                    asker: Asker::Hook(name),
                    task,
                    ..
                }) if *task == TaskId::of_step(view.head, name, 0) => Self::Node(name.clone()),
                Some(_) | None => Self::Calls,
            },
            EventBody::Fact(Fact::Started { .. }) => Self::NewTurn,
            EventBody::Output { .. } | EventBody::Fact(Fact::Calling { .. } | Fact::Answered { .. }) => Self::Calls,
            EventBody::Fact(Fact::Ended {
                error: Some(failure), ..
            }) if failure.class != "GraphRecursionError" => Self::Unknown,
            EventBody::Fact(Fact::Custom { .. }) => Self::Unknown,
            EventBody::Fact(Fact::Paused | Fact::Undone | Fact::Ended { .. }) => Self::Stopped,
        }
    }
}

/// A task that begins.
struct Begun<'a> {
    id: TaskId,
    node: &'a str,
    call: Option<ToolCall>,
}

/// The projection, for one reader.
pub(super) struct Steps<'a> {
    pub facts: &'a Facts,
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
    result: Written<'a>,
    interrupts: &'a [Value],
}

impl Steps<'_> {
    /// Shows the checkpoint that waits in `ahead` and the tasks that begin after it.
    pub(super) fn begin(&self, view: &LaneView, ahead: &Ahead, coming: &Coming, out: &mut Vec<Frame>) {
        let Some(state) = &view.state else {
            return;
        };
        if *coming == Coming::NewTurn {
            return;
        }
        let begun = begun(view, state, coming);
        if let Some(entry) = &ahead.entry {
            self.checkpoint(view, (entry, ahead), &begun, out);
        }
        if *coming == Coming::Stopped {
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
                metadata: self.metadata(view),
            };
            self.show(view, "task", &payload, out);
        }
    }

    /// Shows that a task of `node` ended.
    pub(super) fn end(&self, view: &LaneView, node: &str, call: usize, update: &Update, out: &mut Vec<Frame>) {
        let id = TaskId::of_step(view.head, node, call);
        self.result(
            view,
            ResultJson {
                id,
                name: node,
                error: None,
                result: Written(update),
                interrupts: &[],
            },
            out,
        );
    }

    /// Shows that a task ended with questions.
    pub(super) fn end_asking(
        &self,
        view: &LaneView,
        node: &str,
        id: TaskId,
        interrupts: &[Value],
        out: &mut Vec<Frame>,
    ) {
        let nothing = Update::none();
        self.result(
            view,
            ResultJson {
                id,
                name: node,
                error: None,
                result: Written(&nothing),
                interrupts,
            },
            out,
        );
    }

    fn result(&self, view: &LaneView, payload: ResultJson<'_>, out: &mut Vec<Frame>) {
        self.show(view, "task_result", &payload, out);
    }

    fn checkpoint(&self, view: &LaneView, (entry, ahead): (&Entry, &Ahead), begun: &[Begun<'_>], out: &mut Vec<Frame>) {
        let Some(values) = &view.state else {
            return;
        };
        let asked = ahead
            .before
            .as_ref()
            .map(|before| before.asked.as_slice())
            .unwrap_or_default();
        let mut payload = CheckpointJson {
            config: self.config(view, entry.id),
            parent_config: entry.parent.map(|parent| self.config(view, parent)),
            values,
            metadata: self.history_metadata(view, entry, ahead.before.as_ref()),
            next: begun.iter().map(|task| task.node).collect(),
            tasks: begun.iter().map(|task| task_of(view, task, asked)).collect(),
            places: None,
        };
        if self.modes.has(Mode::Checkpoints) {
            out.push(Frame::of(view.name("checkpoints"), &payload));
        }
        if self.modes.has(Mode::Debug) {
            payload.places = Some(Places {
                checkpoint: self.place(view, entry.id),
                parent_checkpoint: entry.parent.map(|parent| self.place(view, parent)),
            });
            let record = Record {
                step: Some(entry.step),
                timestamp: ahead.at.to_string(),
                kind: "checkpoint",
                payload: &payload,
            };
            out.push(Frame::of(view.name("debug"), &record));
        }
    }

    /// Shows a task, or what came of it, to those who follow tasks.
    fn show<T: Serialize>(&self, view: &LaneView, kind: &str, payload: &T, out: &mut Vec<Frame>) {
        if self.modes.has(Mode::Tasks) {
            out.push(Frame::of(view.name(Mode::Tasks.word()), payload));
        }
        if self.modes.has(Mode::Debug) {
            let step = view.next_step();
            out.push(Frame::of(
                view.name("debug"),
                &Record {
                    step,
                    timestamp: self.at.to_string(),
                    kind,
                    payload,
                },
            ));
        }
    }

    fn metadata(&self, view: &LaneView) -> Value {
        of_agent(self.facts, &view.origin).into()
    }

    /// How a checkpoint came to be. One that was made before is told apart by the run that made it.
    fn history_metadata(&self, view: &LaneView, entry: &Entry, before: Option<&Standing>) -> Value {
        let place = json!({"source": entry.source.word(), "step": entry.step, "parents": self.parents(view)});
        let (Some(before), Value::Object(place)) = (before, &place) else {
            return place;
        };
        let mut metadata = self.metadata(view);
        if let Value::Object(metadata) = &mut metadata {
            metadata.extend(place.clone());
            metadata.insert("thread_id".to_owned(), json!(self.facts.thread));
            metadata.insert("run_id".to_owned(), json!(before.run));
        }
        metadata
    }

    /// The checkpoints of the callers, by namespace.
    fn parents(&self, view: &LaneView) -> Map<String, Value> {
        let own = view.namespace.as_deref().unwrap_or_default();
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

    fn place(&self, view: &LaneView, checkpoint: CheckpointId) -> Value {
        let namespace = view.namespace.as_deref().unwrap_or_default();
        let mut place =
            json!({"checkpoint_id": checkpoint, "thread_id": self.facts.thread, "checkpoint_ns": namespace});
        if !view.is_main() {
            let mut map = self.parents(view);
            map.insert(namespace.to_owned(), json!(checkpoint));
            place["checkpoint_map"] = Value::Object(map);
        }
        place
    }

    fn config(&self, view: &LaneView, checkpoint: CheckpointId) -> Value {
        let facts = self.facts;
        let Value::Object(mut configurable) = self.place(view, checkpoint) else {
            return Value::Null;
        };
        let more = [
            ("langgraph_auth_user", Value::Null),
            ("langgraph_auth_permissions", json!([])),
            ("__request_start_time_ms__", json!(facts.created_at.millis())),
            ("__after_seconds__", json!(0)),
            ("run_id", json!(facts.run)),
            ("graph_id", json!(facts.graph_id)),
            ("assistant_id", json!(facts.assistant)),
            ("user_id", json!("")),
        ];
        configurable.extend(more.map(|(name, value)| (name.to_owned(), value)));
        if !view.is_main() {
            configurable.insert("ls_agent_type".to_owned(), json!("subagent"));
        }
        json!({ "configurable": configurable })
    }
}

/// A task as checkpoints show it, with what it had asked before it went on.
fn task_of(view: &LaneView, task: &Begun<'_>, asked: &[Interrupt]) -> Value {
    let asked = asked.iter().filter(|asked| asked.task == task.id);
    let interrupts: Vec<Value> = asked.map(|asked| interrupt(asked, &view.origin)).collect();
    json!({"id": task.id, "name": task.node, "interrupts": interrupts, "state": null})
}

/// The tasks that begin after the newest checkpoint.
fn begun<'a>(view: &LaneView, state: &State, coming: &'a Coming) -> Vec<Begun<'a>> {
    let one = |node: &'a str| {
        vec![Begun {
            id: TaskId::of_step(view.head, node, 0),
            node,
            call: None,
        }]
    };
    let calls = || {
        let calls = open_calls(state).into_iter().enumerate();
        calls.map(|(at, call)| Begun {
            id: TaskId::of_step(view.head, TOOLS, at),
            node: TOOLS,
            call: Some(call),
        })
    };
    match coming {
        Coming::Node(node) => one(node),
        Coming::Calls => calls().collect(),
        Coming::Unknown | Coming::Stopped => match state.messages.last() {
            Some(last) if last.is_ai() => calls().collect(),
            Some(last) if last.is_human() || last.answers().is_some() => one(MODEL),
            Some(_) | None => vec![],
        },
        Coming::NewTurn => vec![],
    }
}

/// The calls of the last answer that have no result, in the order of their tasks.
pub(super) fn open_calls(state: &State) -> Vec<ToolCall> {
    let Some(at) = state.messages.iter().rposition(|message| message.is_ai()) else {
        return vec![];
    };
    let answer: &Message = &state.messages[at];
    let later = &state.messages[at + 1..];
    let is_open = |id: &str| !later.iter().any(|message| message.answers() == Some(id));
    let unreadable = answer.invalid_tool_calls().iter().filter_map(|call| {
        let name = call.name.clone().unwrap_or_default();
        Some(ToolCall::new(call.id.clone()?, name, Map::new()))
    });
    answer
        .tool_calls()
        .iter()
        .cloned()
        .chain(unreadable)
        .filter(|call| is_open(&call.id))
        .collect()
}
