//! Counters of runs, model calls and tool calls, derived from the events of runs.

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

/// The label for all tool names that are not known, since models make names up.
const OTHER_TOOL: &str = "other";

/// The label for all agents that no file defines.
const OTHER_AGENT: &str = "client";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AgentLabels {
    agent: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    agent: String,
    kind: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelCallLabels {
    agent: String,
    model: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FallbackLabels {
    agent: String,
    from: String,
    to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    agent: String,
    model: String,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolCallLabels {
    agent: String,
    tool: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LostCommitLabels {
    reason: &'static str,
}

/// The counters of runs, model calls and tool calls.
pub struct AgentMetrics {
    runs: Family<RunLabels, Counter>,
    durations: Family<AgentLabels, Histogram>,
    waits: Family<AgentLabels, Histogram>,
    models: Family<ModelCallLabels, Counter>,
    fallbacks: Family<FallbackLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    calls: Family<ToolCallLabels, Counter>,
    commits: Histogram,
    lost: Family<LostCommitLabels, Counter>,
    tools: RwLock<HashSet<String>>,
    known: RwLock<ConfiguredNames>,
}

/// The names defined in files, which may be used as labels.
#[derive(Debug, Clone, Default)]
pub struct ConfiguredNames {
    /// The names of agents and subagents.
    pub agents: HashSet<String>,
    /// The models of these agents.
    pub models: HashSet<String>,
}

impl AgentMetrics {
    pub(super) fn new(registry: &mut Registry, tools: impl IntoIterator<Item = String>) -> Self {
        let histogram = || Histogram::new(SECONDS);
        let work = Self {
            runs: Family::default(),
            durations: Family::new_with_constructor(histogram),
            waits: Family::new_with_constructor(histogram),
            models: Family::default(),
            fallbacks: Family::default(),
            tokens: Family::default(),
            calls: Family::default(),
            commits: histogram(),
            lost: Family::default(),
            tools: RwLock::new(tools.into_iter().collect()),
            known: RwLock::default(),
        };
        // A rate needs the zero before the first loss.
        for reason in ["database", "lease"] {
            drop(work.lost.get_or_create(&LostCommitLabels { reason }));
        }
        registry.register("adjutant_runs", "Runs that ended", work.runs.clone());
        let text = "Time from the start of a run in this process to its end, main agents only";
        registry.register("adjutant_run_duration_seconds", text, work.durations.clone());
        let text = "Time from the due time of a run to its start";
        registry.register("adjutant_run_queue_wait_seconds", text, work.waits.clone());
        registry.register("adjutant_model_calls", "Model calls", work.models.clone());
        let text = "Models that failed, so that the next one of the agent was asked";
        registry.register("adjutant_model_fallbacks", text, work.fallbacks.clone());
        registry.register(
            "adjutant_model_tokens",
            "Tokens as reported by models",
            work.tokens.clone(),
        );
        registry.register("adjutant_tool_calls", "Tool calls that ended", work.calls.clone());
        let text = "Time to commit a step";
        registry.register("adjutant_commit_duration_seconds", text, work.commits.clone());
        registry.register(
            "adjutant_commits_lost",
            "Steps that could not be committed",
            work.lost.clone(),
        );
        work
    }

    /// Replaces the known names. All other names are counted together.
    pub fn set_known_names(&self, known: ConfiguredNames) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// Returns the label of an agent: its name if a file defines it.
    fn agent_label(&self, name: &str) -> String {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.agents.contains(name) {
            name.to_owned()
        } else {
            OTHER_AGENT.to_owned()
        }
    }

    /// Returns the label of a model: its name if a file contains it.
    fn model_label(&self, answer: &AnswerHead) -> String {
        self.known_model(&format!("{}:{}", answer.provider, answer.model))
    }

    fn known_model(&self, name: &str) -> String {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.models.contains(name) {
            name.to_owned()
        } else {
            OTHER_TOOL.to_owned()
        }
    }

    /// Counts the start of a main agent's run that was due `waited` ago.
    pub fn run_started(&self, agent: &str, waited: Duration) {
        self.waits
            .get_or_create(&AgentLabels {
                agent: self.agent_label(agent),
            })
            .observe(waited.as_secs_f64());
    }

    /// Counts the end of a run that no worker executed any more.
    pub fn run_ended_without_worker(&self, agent: &str, status: &'static str) {
        self.runs
            .get_or_create(&RunLabels {
                agent: self.agent_label(agent),
                kind: "run",
                status,
            })
            .inc();
    }

    /// Counts a commit, with its duration.
    pub fn committed(&self, took: Duration) {
        self.commits.observe(took.as_secs_f64());
    }

    /// Counts a commit that failed.
    pub fn commit_failed(&self, reason: &'static str) {
        self.lost.get_or_create(&LostCommitLabels { reason }).inc();
    }

    /// Counts a stored event of a run that has been running for `age`.
    pub fn record_event(&self, event: &Event, age: Duration) {
        let origin = &*event.origin;
        match &event.body {
            EventBody::Fact(Fact::Ended { status, .. }) => self.count_end(origin, status.word(), age),
            EventBody::Fact(Fact::FellBack { from, to, .. }) => self.count_fallback(origin, from, to),
            EventBody::Fact(Fact::Answered { writes, .. }) => self.count_tool_results(origin, writes),
            EventBody::Entry(entry) if entry.node == TOOLS => {
                let new = entry
                    .writes
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| !entry.logged_writes.contains(at));
                new.for_each(|(_, writes)| self.count_tool_results(origin, writes));
            }
            EventBody::Entry(_)
            | EventBody::Fact(_)
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => {}
        }
    }

    fn count_fallback(&self, origin: &Origin, from: &str, to: &str) {
        let labels = FallbackLabels {
            agent: self.agent_label(&origin.agent),
            from: self.known_model(from),
            to: self.known_model(to),
        };
        self.fallbacks.get_or_create(&labels).inc();
    }

    fn count_end(&self, origin: &Origin, status: &'static str, age: Duration) {
        let agent = self.agent_label(&origin.agent);
        let main = origin.lane == Lane::Main;
        if main {
            self.durations
                .get_or_create(&AgentLabels { agent: agent.clone() })
                .observe(age.as_secs_f64());
        }
        let kind = if main { "run" } else { "subagent" };
        self.runs.get_or_create(&RunLabels { agent, kind, status }).inc();
    }

    fn count_tool_results(&self, origin: &Origin, writes: &Update) {
        for message in &writes.messages {
            let Role::Tool { status, .. } = &message.role else {
                continue;
            };
            let worked = *status == ToolStatus::Success;
            let outcome = if worked { "success" } else { "error" };
            let tool = self.tool_label(message.name.as_deref().unwrap_or_default(), worked);
            self.calls
                .get_or_create(&ToolCallLabels {
                    agent: self.agent_label(&origin.agent),
                    tool,
                    outcome,
                })
                .inc();
        }
    }

    /// Returns the label of a tool: its name if it is known. The tool of a call that `worked` becomes known.
    fn tool_label(&self, name: &str, worked: bool) -> String {
        let is_known = self.tools.read().unwrap_or_else(PoisonError::into_inner).contains(name);
        if !is_known && !worked {
            return OTHER_TOOL.to_owned();
        }
        if !is_known {
            self.tools
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(name.to_owned());
        }
        name.to_owned()
    }

    /// Counts the model call or the tokens of a piece of an answer.
    pub fn record_delta(&self, origin: &Origin, delta: &Delta) {
        let outcome = match &delta.chunk {
            Chunk::End { .. } => "success",
            Chunk::Void => "error",
            Chunk::Begin | Chunk::Text(_) | Chunk::Reasoning(_) | Chunk::Call { .. } => return,
        };
        let agent = self.agent_label(&origin.agent);
        let model = self.model_label(&delta.answer);
        if let Chunk::End { usage, .. } = &delta.chunk {
            self.count_tokens(&agent, &model, usage.as_ref());
        }
        self.models
            .get_or_create(&ModelCallLabels { agent, model, outcome })
            .inc();
    }

    fn count_tokens(&self, agent: &str, model: &str, usage: Option<&Value>) {
        for (direction, field) in [("input", "input_tokens"), ("output", "output_tokens")] {
            let tokens = usage.and_then(|usage| usage[field].as_u64()).unwrap_or(0);
            self.tokens
                .get_or_create(&TokenLabels {
                    agent: agent.to_owned(),
                    model: model.to_owned(),
                    direction,
                })
                .inc_by(tokens);
        }
    }
}
