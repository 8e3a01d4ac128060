//! What agents do: read off the events of their runs.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use serde_json::Value;

use super::SECONDS;
use crate::domain::checkpoint::Lane;
use crate::domain::event::{AnswerHead, Chunk, Delta, Event, EventBody, Fact, Origin};
use crate::domain::machine::TOOLS;
use crate::domain::message::{Role, ToolStatus};
use crate::domain::state::Update;

/// Stands for every name of a tool that is not known to be one: models make names up.
const OTHER: &str = "other";

/// Stands for every agent that no file defines.
const CLIENT: &str = "client";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Agent {
    agent: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    agent: String,
    kind: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    agent: String,
    model: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Spent {
    agent: String,
    model: String,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Called {
    agent: String,
    tool: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lost {
    reason: &'static str,
}

/// Counts what agents do.
pub struct Work {
    runs: Family<Ended, Counter>,
    durations: Family<Agent, Histogram>,
    waits: Family<Agent, Histogram>,
    models: Family<Asked, Counter>,
    tokens: Family<Spent, Counter>,
    calls: Family<Called, Counter>,
    commits: Histogram,
    lost: Family<Lost, Counter>,
    tools: RwLock<HashSet<String>>,
    known: RwLock<FileNames>,
}

/// What files define, and so may be a label.
#[derive(Debug, Clone, Default)]
pub struct FileNames {
    /// The names of agents and subagents.
    pub agents: HashSet<String>,
    /// The models that they name.
    pub models: HashSet<String>,
}

impl Work {
    pub(super) fn new(registry: &mut Registry, tools: impl IntoIterator<Item = String>) -> Self {
        let histogram = || Histogram::new(SECONDS);
        let work = Self {
            runs: Family::default(),
            durations: Family::new_with_constructor(histogram),
            waits: Family::new_with_constructor(histogram),
            models: Family::default(),
            tokens: Family::default(),
            calls: Family::default(),
            commits: histogram(),
            lost: Family::default(),
            tools: RwLock::new(tools.into_iter().collect()),
            known: RwLock::default(),
        };
        registry.register("adjutant_runs", "Runs that came to an end", work.runs.clone());
        let text = "From a run's beginning in this process to its end, runs of main agents";
        registry.register("adjutant_run_duration_seconds", text, work.durations.clone());
        let text = "From when a run was due to when it began";
        registry.register("adjutant_run_queue_wait_seconds", text, work.waits.clone());
        registry.register("adjutant_model_calls", "Questions to models", work.models.clone());
        registry.register(
            "adjutant_model_tokens",
            "Tokens that models counted",
            work.tokens.clone(),
        );
        registry.register(
            "adjutant_tool_calls",
            "Tool calls that came to an end",
            work.calls.clone(),
        );
        let text = "How long it took until a step was durable";
        registry.register("adjutant_commit_duration_seconds", text, work.commits.clone());
        registry.register(
            "adjutant_commits_lost",
            "Steps that could not be stored",
            work.lost.clone(),
        );
        work
    }

    /// Takes this for what files define now. All other names are counted together.
    pub fn knows(&self, known: FileNames) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// The name of an agent of a file, or what stands for all others.
    fn agent(&self, name: &str) -> String {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.agents.contains(name) {
            name.to_owned()
        } else {
            CLIENT.to_owned()
        }
    }

    /// A model that a file names, or what stands for all others.
    fn model(&self, answer: &AnswerHead) -> String {
        let name = format!("{}:{}", answer.provider, answer.model);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.models.contains(&name) {
            name
        } else {
            OTHER.to_owned()
        }
    }

    /// A run of a main agent begins that was due so long ago.
    pub fn run_began(&self, agent: &str, waited: Duration) {
        self.waits
            .get_or_create(&Agent {
                agent: self.agent(agent),
            })
            .observe(waited.as_secs_f64());
    }

    /// A run that nobody worked on any more came to an end, in these words.
    pub fn run_was_ended(&self, agent: &str, status: &'static str) {
        self.runs
            .get_or_create(&Ended {
                agent: self.agent(agent),
                kind: "run",
                status,
            })
            .inc();
    }

    /// A step was stored, after so long.
    pub fn committed(&self, took: Duration) {
        self.commits.observe(took.as_secs_f64());
    }

    /// A step could not be stored.
    pub fn commit_lost(&self, reason: &'static str) {
        self.lost.get_or_create(&Lost { reason }).inc();
    }

    /// Something happened, and is stored, in a run that has been at work for `age`.
    pub fn happened(&self, event: &Event, age: Duration) {
        let origin = &*event.origin;
        match &event.body {
            EventBody::Fact(Fact::Ended { status, .. }) => self.ended(origin, status.word(), age),
            EventBody::Fact(Fact::Answered { writes, .. }) => self.tools_answered(origin, writes),
            EventBody::Entry(entry) if entry.node == TOOLS => {
                let new = entry
                    .writes
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| !entry.shown.contains(at));
                new.for_each(|(_, writes)| self.tools_answered(origin, writes));
            }
            EventBody::Entry(_)
            | EventBody::Fact(_)
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => {}
        }
    }

    fn ended(&self, origin: &Origin, status: &'static str, age: Duration) {
        let agent = self.agent(&origin.agent);
        let main = origin.lane == Lane::Main;
        if main {
            self.durations
                .get_or_create(&Agent { agent: agent.clone() })
                .observe(age.as_secs_f64());
        }
        let kind = if main { "run" } else { "subagent" };
        self.runs.get_or_create(&Ended { agent, kind, status }).inc();
    }

    fn tools_answered(&self, origin: &Origin, writes: &Update) {
        for message in &writes.messages {
            let Role::Tool { status, .. } = &message.role else {
                continue;
            };
            let worked = *status == ToolStatus::Success;
            let outcome = if worked { "success" } else { "error" };
            let tool = self.tool(message.name.as_deref().unwrap_or_default(), worked);
            self.calls
                .get_or_create(&Called {
                    agent: self.agent(&origin.agent),
                    tool,
                    outcome,
                })
                .inc();
        }
    }

    /// The name, if it is known to be a tool's: that of a call that `worked` is from then on.
    fn tool(&self, name: &str, worked: bool) -> String {
        let is_known = self.tools.read().unwrap_or_else(PoisonError::into_inner).contains(name);
        if !is_known && !worked {
            return OTHER.to_owned();
        }
        if !is_known {
            self.tools
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(name.to_owned());
        }
        name.to_owned()
    }

    /// An agent passes on a piece of its model's answer.
    pub fn said(&self, origin: &Origin, delta: &Delta) {
        let outcome = match &delta.chunk {
            Chunk::End { usage, .. } => {
                self.spent(origin, &delta.answer, usage.as_ref());
                "success"
            }
            Chunk::Void => "error",
            Chunk::Begin | Chunk::Text(_) | Chunk::Reasoning(_) | Chunk::Call { .. } => return,
        };
        let agent = self.agent(&origin.agent);
        let model = self.model(&delta.answer);
        self.models.get_or_create(&Asked { agent, model, outcome }).inc();
    }

    fn spent(&self, origin: &Origin, answer: &AnswerHead, usage: Option<&Value>) {
        for (direction, field) in [("input", "input_tokens"), ("output", "output_tokens")] {
            let tokens = usage.and_then(|usage| usage[field].as_u64()).unwrap_or(0);
            let agent = self.agent(&origin.agent);
            let model = self.model(answer);
            self.tokens
                .get_or_create(&Spent {
                    agent,
                    model,
                    direction,
                })
                .inc_by(tokens);
        }
    }
}
