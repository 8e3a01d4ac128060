//! Runs as the loop logs them, and the frames that readers get.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::frame::unseen;
use super::*;
use crate::domain::call::{CallStatus, ToolOutput};
use crate::domain::event::{AnswerHead, Chunk, Delta};
use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::machine::{Failure, MODEL, Machine, Plan};
use crate::domain::message::{Message, Role, ToolCall, ToolStatus};

mod messages;
mod resume;
mod runs;
mod steps;
mod tools;

/// An agent that a test drives.
pub(super) struct Agent {
    pub origin: Arc<Origin>,
    pub machine: Machine,
    plan: Plan,
}

/// A thread whose log is being written.
pub(super) struct Play {
    pub events: Vec<Event>,
    pub states: HashMap<CheckpointId, Arc<State>>,
    snapshots: HashMap<CheckpointId, AgentSnapshot>,
    run: RunId,
    asking: bool,
    /// True if a command makes the run that is read begin at a node of its choice.
    pub jumps: bool,
}

pub(super) const HITL: &str = "HumanInTheLoopMiddleware.after_model";

pub(super) fn call(id: &str, name: &str, args: Value) -> ToolCall {
    let Value::Object(args) = args else {
        panic!("arguments are an object")
    };
    ToolCall::new(id, name, args)
}

impl Play {
    pub(super) fn new() -> Self {
        Self {
            events: vec![],
            states: HashMap::new(),
            snapshots: HashMap::new(),
            run: RunId::mint(),
            asking: false,
            jumps: false,
        }
    }

    /// A thread whose agents require approval of tool calls.
    pub(super) fn asking() -> Self {
        Self {
            asking: true,
            ..Self::new()
        }
    }

    /// A thread whose first run has ended with this answer of the main agent.
    pub(super) fn answered(text: &str, calls: &[ToolCall]) -> (Self, Agent) {
        let mut play = Self::new();
        let mut main = play.main();
        play.start(&main, false);
        play.input(&mut main, "hi");
        play.say(&mut main, "m1", text, calls);
        play.end(&main);
        (play, main)
    }

    fn agent(&self, origin: Origin) -> Agent {
        let after_model = if self.asking { vec![HITL.to_owned()] } else { vec![] };
        let plan = Plan {
            after_model,
            step_limit: 100,
            ..Plan::default()
        };
        Agent {
            origin: Arc::new(origin),
            machine: Machine::default(),
            plan,
        }
    }

    pub(super) fn main(&self) -> Agent {
        let agent = "main-agent".to_owned();
        self.agent(Origin {
            lane: Lane::Main,
            namespace: vec![],
            path: vec![agent.clone()],
            agent,
            cause: None,
            visibility: Default::default(),
            display_text: None,
        })
    }

    /// The subagent that works on a call of `parent`.
    pub(super) fn child(&self, parent: &Agent, at: usize, cause: &str) -> Agent {
        let agent = "researcher".to_owned();
        let mut namespace = parent.origin.namespace.clone();
        namespace.push(parent.machine.call_task(at));
        let path = parent.origin.path.iter().cloned().chain([agent.clone()]).collect();
        let lane = Lane::Child(RunId::mint());
        self.agent(Origin {
            lane,
            namespace,
            path,
            agent,
            cause: Some(cause.to_owned()),
            visibility: Default::default(),
            display_text: None,
        })
    }

    fn put(&mut self, agent: &Agent, body: EventBody) {
        let seq = i64::try_from(self.events.len()).unwrap() + 1;
        let at = Timestamp(1_795_250_000_000_000 + seq);
        self.events.push(Event {
            seq,
            run: self.run,
            at,
            origin: Arc::clone(&agent.origin),
            body,
        });
    }

    pub(super) fn fact(&mut self, agent: &Agent, fact: Fact) {
        self.put(agent, EventBody::Fact(fact));
    }

    fn entry(&mut self, agent: &Agent, entry: Entry) {
        self.states.insert(entry.id, Arc::new(agent.machine.state.clone()));
        let entry = Arc::new(entry);
        let snapshot = AgentSnapshot {
            entry: Arc::clone(&entry),
            run: Some(self.run),
            interrupts: vec![],
        };
        self.snapshots.insert(entry.id, snapshot);
        self.put(agent, EventBody::Entry(entry));
    }

    pub(super) fn start(&mut self, agent: &Agent, resumed: bool) {
        self.fact(
            agent,
            Fact::Started {
                base: agent.machine.head,
                carried_from: agent.machine.position.carried_from,
                attempt: 1,
                resumed,
                calls: agent.machine.calls_with_sent(),
            },
        );
    }

    pub(super) fn input(&mut self, agent: &mut Agent, text: &str) {
        let input = Update::messages([Message::human(text).with_id(format!("h-{text}"))]);
        let before = agent.machine.state.clone();
        let [first, second] = agent
            .machine
            .begin(&agent.plan, input, [CheckpointId::mint(), CheckpointId::mint()]);
        self.states.insert(first.id, Arc::new(before));
        self.put(agent, EventBody::Entry(Arc::new(first)));
        self.entry(agent, second);
    }

    /// Logs an answer of the model: its chunks, then the message.
    pub(super) fn say(&mut self, agent: &mut Agent, id: &str, text: &str, calls: &[ToolCall]) {
        for piece in self.pieces(agent, id, text, calls) {
            self.put(agent, piece);
        }
        self.conclude(agent, id, text, calls);
    }

    /// The chunks of an answer of the model.
    pub(super) fn pieces(&self, agent: &Agent, id: &str, text: &str, calls: &[ToolCall]) -> Vec<EventBody> {
        let head = Arc::new(AnswerHead {
            message: id.to_owned(),
            task: agent.machine.task(MODEL),
            step: agent.machine.step.map_or(0, |step| step + 1),
            provider: "openai".to_owned(),
            model: "mock".to_owned(),
        });
        let message = message(&agent.origin.agent, id, text, calls);
        let pieces = (0..).zip(pieces(text, calls, &message));
        let delta = |(ordinal, chunk)| {
            EventBody::Delta(Delta {
                answer: Arc::clone(&head),
                ordinal,
                chunk,
            })
        };
        pieces.map(delta).collect()
    }

    /// Logs the message that an answer of the model has become.
    pub(super) fn conclude(&mut self, agent: &mut Agent, id: &str, text: &str, calls: &[ToolCall]) {
        let message = message(&agent.origin.agent, id, text, calls);
        let entry = agent
            .machine
            .model_done(&agent.plan, message, Update::none(), CheckpointId::mint());
        self.entry(agent, entry);
    }

    /// Logs the result of a call; `alone` while others still run.
    pub(super) fn answer(&mut self, agent: &mut Agent, at: usize, text: &str, alone: bool) {
        let Some(call) = agent.machine.call(at) else {
            panic!("there is no call {at}")
        };
        let message = Message::tool(&call, ToolStatus::Success, text).with_id(format!("t-{}", call.id));
        let answer = ToolOutput {
            is_logged: alone,
            ..ToolOutput::message(message)
        };
        if let (true, Some(head)) = (alone, agent.machine.head) {
            self.fact(
                agent,
                Fact::Answered {
                    head,
                    carried_from: agent.machine.position.carried_from,
                    call: at,
                    writes: answer.writes.clone(),
                },
            );
        }
        agent
            .machine
            .set_call_status(at, CallStatus::Answered(Box::new(answer)));
    }

    pub(super) fn tools(&mut self, agent: &mut Agent) {
        let Some(entry) = agent.machine.tools_done(&agent.plan, CheckpointId::mint()) else {
            panic!("calls are open")
        };
        self.entry(agent, entry);
    }

    /// Logs a hook, with or without writes.
    pub(super) fn hook(&mut self, agent: &mut Agent, update: Update) {
        if let Some(entry) = agent.machine.hook_done(&agent.plan, update, None, CheckpointId::mint()) {
            self.entry(agent, entry);
        }
    }

    /// Logs an interrupt of the hook after the model.
    pub(super) fn ask(&mut self, agent: &mut Agent) -> Interrupt {
        let question = Question {
            kind: QuestionKind::ToolApproval,
            value: json!({"action_requests": [], "review_configs": []}),
            schema: json!({}).into(),
            calls: vec!["c1".to_owned()],
            key: None,
            approvers: Default::default(),
            ..Question::default()
        };
        let asked = agent.machine.hook_asked(&agent.plan, vec![question]).remove(0);
        let snapshot = agent.machine.head.and_then(|head| self.snapshots.get_mut(&head));
        snapshot
            .into_iter()
            .for_each(|snapshot| snapshot.interrupts.push(asked.clone()));
        self.repeat(agent, &asked);
        asked
    }

    pub(super) fn repeat(&mut self, agent: &Agent, asked: &Interrupt) {
        self.fact(
            agent,
            Fact::Asked {
                head: agent.machine.head,
                carried_from: agent.machine.position.carried_from,
                interrupts: vec![asked.clone()],
            },
        );
    }

    pub(super) fn end(&mut self, agent: &Agent) {
        self.fact(
            agent,
            Fact::Ended {
                status: RunStatus::Success,
                error: None,
                waits: false,
                used: None,
            },
        );
    }

    /// The frames that a reader gets for these events.
    pub(super) fn read(&self, events: &[Event], modes: &[StreamMode], subgraphs: bool) -> Vec<Frame> {
        self.read_with(MetadataDetail::Full, events, modes, subgraphs)
    }

    /// The same for a reader that chose the metadata of pieces.
    pub(super) fn read_with(
        &self,
        detail: MetadataDetail,
        events: &[Event],
        modes: &[StreamMode],
        subgraphs: bool,
    ) -> Vec<Frame> {
        let mut presenter = self.presenter(modes, subgraphs).with_detail(detail);
        let presented = events.iter().flat_map(|event| self.present(&mut presenter, event));
        presented.collect()
    }

    fn presenter(&self, modes: &[StreamMode], subgraphs: bool) -> V1Presenter {
        let facts = RunInfo {
            run: self.run,
            thread: ThreadId::mint(),
            graph_id: "agent".to_owned(),
            assistant: AssistantId::of_graph("agent"),
            attempt: 1,
            created_at: Timestamp(1_795_250_000_000_000),
            input: None,
            tags: vec![],
            metadata: Map::new(),
            jumps: self.jumps,
        };
        V1Presenter::new(facts, modes.iter().copied().collect(), subgraphs)
    }

    fn present(&self, presenter: &mut V1Presenter, event: &Event) -> Vec<Frame> {
        let needs = presenter.needs(event);
        let loaded = Loaded {
            state: needs.state.map(|id| Arc::clone(&self.states[&id])),
            resumed: needs.resumed.and_then(|id| self.snapshots.get(&id)).cloned(),
        };
        presenter.present(event, loaded)
    }

    /// The frames that a reader of all agents gets for these events behind the position `id`, each with its id.
    pub(super) fn resume(&self, events: &[Event], modes: &[StreamMode], id: Option<&str>) -> Vec<(String, Frame)> {
        let mut presenter = self.presenter(modes, true);
        let seen = id.map(|id| {
            let point: ResumePoint = id.parse().unwrap();
            let seen = point.cursor;
            presenter.resume(point);
            seen
        });
        let mut all = vec![];
        for event in events {
            let frames = self.present(&mut presenter, event);
            for (frame, cursor) in unseen(frames, event.seq, seen) {
                all.push((presenter.position(&frame, cursor).to_string(), frame));
            }
        }
        all
    }

    pub(super) fn all(&self, modes: &[StreamMode], subgraphs: bool) -> Vec<Frame> {
        self.read(&self.events, modes, subgraphs)
    }
}

/// The finished message.
fn message(agent: &str, id: &str, text: &str, calls: &[ToolCall]) -> Message {
    let usage_metadata = Some(json!({"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}));
    let role = Role::Ai {
        tool_calls: calls.to_vec(),
        invalid_tool_calls: vec![],
        usage_metadata,
    };
    let mut message = Message {
        name: Some(agent.to_owned()),
        ..Message::new(role, text).with_id(id)
    };
    message.response_metadata = ended();
    message
}

fn ended() -> Map<String, Value> {
    let ended = [
        ("finish_reason", "stop"),
        ("model_name", "mock"),
        ("model_provider", "openai"),
    ];
    ended
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect()
}

fn pieces(text: &str, calls: &[ToolCall], message: &Message) -> Vec<Chunk> {
    let mut pieces = vec![Chunk::Begin];
    pieces.extend(text.split_inclusive(' ').map(|word| Chunk::Text(word.to_owned())));
    for (index, call) in calls.iter().enumerate() {
        let id = Some(call.id.clone());
        let name = Some(call.name.clone());
        pieces.push(Chunk::Call {
            index,
            id,
            name,
            args: String::new(),
        });
        let args = json!(call.args).to_string();
        let (first, second) = args.split_at(args.len() / 2);
        for part in [first, second] {
            pieces.push(Chunk::Call {
                index,
                id: None,
                name: None,
                args: part.to_owned(),
            });
        }
    }
    let Role::Ai { usage_metadata, .. } = &message.role else {
        panic!("a model speaks")
    };
    pieces.push(Chunk::End {
        response_metadata: ended(),
        usage: usage_metadata.clone(),
    });
    pieces
}

pub(super) fn data(frame: &Frame) -> Value {
    serde_json::from_slice(&frame.data).unwrap_or_else(|error| panic!("{error} in {frame:?}"))
}

/// A short form of frames: the word, `@depth` inside a subagent, and the content.
pub(super) fn lines(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(line).collect()
}

fn line(frame: &Frame) -> String {
    let depth = frame
        .event
        .namespace
        .as_ref()
        .map_or(0, |namespace| namespace.split('|').count());
    let depth = if depth == 0 { String::new() } else { format!("@{depth}") };
    format!("{}{depth} {}", frame.event.word, about(frame.event.word, &data(frame)))
        .trim_end()
        .to_owned()
}

fn about(word: &str, data: &Value) -> String {
    let count = |value: &Value| value.as_array().map_or(0, Vec::len);
    match word {
        "values" => {
            let asks = if data["__interrupt__"].is_array() { " asks" } else { "" };
            format!("{}{asks}", count(&data["messages"]))
        }
        "updates" => {
            let keys: Vec<_> = data.as_object().into_iter().flat_map(Map::keys).cloned().collect();
            keys.join(" ")
        }
        "messages" | "messages/partial" | "messages/complete" => {
            format!("{}: {}", data[0]["type"], data[0]["content"]).replace('"', "")
        }
        "tasks" => {
            let kind = if data["input"].is_null() { "ends" } else { "begins" };
            let asks = if count(&data["interrupts"]) > 0 { " asking" } else { "" };
            format!("{} {kind}{asks}", data["name"]).replace('"', "")
        }
        "checkpoints" => format!("{} next {}", data["metadata"]["step"], data["next"]).replace('"', ""),
        "debug" => data["type"].as_str().unwrap_or_default().to_owned(),
        "error" => data["error"].as_str().unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}
