//! The mode `events`: tracing records of starts, chunks and ends, as a tree of runs.
//!
//! LangChain tracers expect a tree: the agent, below it a task for each step, below that a model or a tool, and below a
//! delegating tool the subagent. Every record names its run and the runs above it. Records of subagents are always
//! included. The records of the agent's own output are left out: the other modes contain it.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::RunInfo;
use super::agent::PresentedAgent;
use super::metadata::{MessageSource, of_agent, triggers};
use super::next_tasks::open_calls;
use super::values::{UpdateOrEmpty, UpdateOrNull};
use crate::domain::event::Origin;
use crate::domain::id::{RunId, TaskId};
use crate::domain::machine::TOOLS;
use crate::domain::message::{Message, ToolCall};
use crate::domain::run::namespace_text;
use crate::domain::state::{State, Update};
use crate::http::stream::frame::{Frame, json as encoded};

/// A run in the tracing tree, with the data that its records share.
pub(super) struct TracedRun {
    run_id: String,
    name: String,
    tags: Vec<String>,
    metadata: Box<RawValue>,
    parent_ids: Vec<String>,
}

#[derive(Serialize)]
struct Record<'a, T> {
    event: &'static str,
    data: T,
    run_id: &'a str,
    name: &'a str,
    tags: &'a [String],
    metadata: &'a RawValue,
    parent_ids: &'a [String],
}

/// The data of a start record.
#[derive(Serialize)]
struct StartData<'a, I> {
    input: &'a I,
}

/// The data of an end record.
#[derive(Serialize)]
struct EndData<'a, I, O> {
    output: &'a O,
    input: &'a I,
}

impl TracedRun {
    /// The tracing run of an agent. The main agent's is the run that the client knows, and a subagent's is within the task of
    /// the call that delegates to it.
    pub(super) fn agent(info: &RunInfo, origin: &Origin) -> Self {
        let mut parent_ids = parent_ids_of(info, &origin.namespace);
        let run_id = parent_ids.pop().unwrap_or_default();
        let mut metadata = of_agent(info, origin);
        metadata.insert("thread_id".to_owned(), json!(info.thread));
        if !origin.namespace.is_empty() {
            let namespace = namespace_text(&origin.namespace);
            metadata.insert("langgraph_node".to_owned(), json!(TOOLS));
            metadata.insert("langgraph_triggers".to_owned(), json!([triggers(TOOLS)]));
            for name in ["langgraph_checkpoint_ns", "checkpoint_ns"] {
                metadata.insert(name.to_owned(), json!(namespace));
            }
        }
        let metadata = raw(String::from_utf8(encoded(&metadata)).unwrap_or_default());
        Self {
            run_id,
            name: origin.agent.clone(),
            tags: info.tags.clone(),
            metadata,
            parent_ids,
        }
    }

    /// The tracing run of a task.
    fn task(info: &RunInfo, source: &MessageSource<'_>) -> Self {
        let step = source.step.map(|step| format!("graph:step:{step}"));
        let tags = step.into_iter().chain(info.tags.iter().cloned()).collect();
        Self {
            run_id: source.task.to_string(),
            name: source.node.to_owned(),
            tags,
            metadata: raw(MessageSource { model: None, ..*source }.encode(info).to_string()),
            parent_ids: parent_ids_of(info, &source.origin.namespace),
        }
    }

    /// The tracing run of the model or tool that a task calls.
    fn callee(info: &RunInfo, source: &MessageSource<'_>, run_id: String, name: String) -> Self {
        let mut parent_ids = parent_ids_of(info, &source.origin.namespace);
        parent_ids.push(source.task.to_string());
        let metadata = raw(source.encode(info).to_string());
        let own = ["seq:step:1".to_owned()];
        Self {
            run_id,
            name,
            tags: own.into_iter().chain(info.tags.iter().cloned()).collect(),
            metadata,
            parent_ids,
        }
    }

    fn record<T: Serialize>(&self, event: &'static str, data: T) -> Frame {
        let Self {
            run_id,
            name,
            tags,
            metadata,
            parent_ids,
        } = self;
        Frame::of(
            "events",
            &Record {
                event,
                data,
                run_id,
                name,
                tags,
                metadata,
                parent_ids,
            },
        )
    }

    /// A start record.
    pub(super) fn start(&self, event: &'static str, input: &impl Serialize) -> Frame {
        self.record(event, StartData { input })
    }

    /// A chunk record.
    pub(super) fn stream(&self, event: &'static str, chunk: &impl Serialize) -> Frame {
        #[derive(Serialize)]
        struct Chunk<'a, T> {
            chunk: &'a T,
        }
        self.record(event, Chunk { chunk })
    }

    /// An end record.
    pub(super) fn end_record(&self, event: &'static str, output: &impl Serialize, input: &impl Serialize) -> Frame {
        self.record(event, EndData { output, input })
    }
}

/// The ids of the runs above an agent's tasks, outermost first; the last one is the agent's.
fn parent_ids_of(info: &RunInfo, namespace: &[TaskId]) -> Vec<String> {
    let below = namespace
        .iter()
        .flat_map(|task| [task.to_string(), tool_run(*task), RunId::of_child(*task).to_string()]);
    [info.run.to_string()].into_iter().chain(below).collect()
}

/// The id of the tracing run of a task's tool.
fn tool_run(task: TaskId) -> String {
    Uuid::new_v5(&task.0, b"tool").to_string()
}

fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// A model call: its task, and the model below it.
pub(super) struct TracedModelCall {
    task: TracedRun,
    model: TracedRun,
    state: State,
}

impl TracedModelCall {
    pub(super) fn new(info: &RunInfo, source: &MessageSource<'_>, message: &str, state: Option<&State>) -> Self {
        let provider = source.model.map_or("", |(provider, _)| provider);
        let run_id = message.trim_start_matches("lc_run--").to_owned();
        Self {
            task: TracedRun::task(info, source),
            model: TracedRun::callee(info, source, run_id, class_of(provider)),
            state: state.cloned().unwrap_or_default(),
        }
    }

    pub(super) fn begin(&self, out: &mut Vec<Frame>) {
        out.push(self.task.start("on_chain_start", &self.state));
        out.push(self.model.start("on_chat_model_start", &self.messages()));
    }

    pub(super) fn stream_chunk(&self, chunk: &impl Serialize) -> Frame {
        self.model.stream("on_chat_model_stream", chunk)
    }

    pub(super) fn end(&self, message: &Message, update: &Update, out: &mut Vec<Frame>) {
        out.push(self.model.end_record("on_chat_model_end", message, &self.messages()));
        // LangGraph agents return their model's message in this form.
        let commands = json!([{"graph": null, "update": UpdateOrNull(update), "resume": null, "goto": []}]);
        out.push(self.task.stream("on_chain_stream", &commands));
        out.push(self.task.end_record("on_chain_end", &commands, &self.state));
    }

    fn messages(&self) -> Value {
        json!({"messages": [self.state.messages]})
    }
}

/// The class name of a provider's models in LangChain.
fn class_of(provider: &str) -> String {
    match provider {
        "openai" | "openai_responses" => "ChatOpenAI".to_owned(),
        "anthropic" => "ChatAnthropic".to_owned(),
        "google_genai" => "ChatGoogleGenerativeAI".to_owned(),
        "ollama" => "ChatOllama".to_owned(),
        other => format!("Chat:{other}"),
    }
}

/// Records a task that made its writes at once.
pub(super) fn hook(info: &RunInfo, agent: &PresentedAgent, node: &str, update: &Update, out: &mut Vec<Frame>) {
    let task = TracedRun::task(info, &agent.source(node, 0));
    let input = agent.fold.state.clone().unwrap_or_default();
    let output = UpdateOrNull(update);
    out.push(task.start("on_chain_start", &input));
    out.push(task.stream("on_chain_stream", &output));
    out.push(task.end_record("on_chain_end", &output, &input));
}

/// Records the start of the last answer's calls, except those in `skip`, which were made before.
pub(super) fn start_calls(info: &RunInfo, agent: &PresentedAgent, skip: &[usize], out: &mut Vec<Frame>) {
    let calls = open_calls(&agent.fold).into_iter();
    for (at, call) in calls.filter(|(at, _)| !skip.contains(at)) {
        let source = agent.source(TOOLS, at);
        out.push(TracedRun::task(info, &source).start("on_chain_start", &[&call]));
        let tool = TracedRun::callee(info, &source, tool_run(source.task), call.name.clone());
        out.push(tool.start("on_tool_start", &call.args));
    }
}

/// Records the end of a call.
pub(super) fn end_call(info: &RunInfo, agent: &PresentedAgent, at: usize, update: &Update, out: &mut Vec<Frame>) {
    let source = agent.source(TOOLS, at);
    let message = update.messages.iter().find(|message| message.answers().is_some());
    let open = open_calls(&agent.fold).into_iter().find(|(index, _)| *index == at);
    let unknown = || {
        let name = message.and_then(|message| message.name.clone()).unwrap_or_default();
        ToolCall::new(
            message.and_then(|message| message.answers()).unwrap_or_default(),
            name,
            Map::new(),
        )
    };
    let call = open.map_or_else(unknown, |(_, call)| call);
    let tool = TracedRun::callee(info, &source, tool_run(source.task), call.name.clone());
    out.push(tool.end_record("on_tool_end", &message, &call.args));
    let task = TracedRun::task(info, &source);
    out.push(task.stream("on_chain_stream", &UpdateOrEmpty(update)));
    out.push(task.end_record("on_chain_end", &UpdateOrEmpty(update), &[&call]));
}
