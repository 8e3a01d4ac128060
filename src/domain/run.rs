//! One execution on a thread.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::background::Ancestry;
use super::goto::Goto;
use super::id::{AssistantId, CheckpointId, Digest, InterruptId, RunId, TaskId, ThreadId};
use super::machine::Failure;
use super::message::Message;
use super::time::Timestamp;
use super::visibility::Visibility;

/// One execution on a thread: by request for the main agent, by a tool call for a subagent.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Identifies it.
    pub id: RunId,
    /// The thread it works on.
    pub thread: ThreadId,
    /// The assistant it was asked of.
    pub assistant: AssistantId,
    /// Its place in the tree of delegations.
    pub lineage: Lineage,
    /// What it is doing.
    pub status: RunStatus,
    /// What it was asked to do.
    pub request: RunRequest,
    /// The requester's notes, with the platform's own.
    pub metadata: Map<String, Value>,
    /// Why it failed, when it did.
    pub error: Option<Failure>,
    /// How often it was begun: 1, and one more after each crash.
    pub attempt: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it may begin.
    pub due_at: Timestamp,
}

/// The note on a run that says how many levels of delegation there may be below it: the server that had it begun counts it
/// among its own subagents.
pub const LEVELS: &str = "adjutant_levels";

impl Run {
    /// How many levels of delegation there may be below it, when another server says so, or who had it begun in the
    /// background.
    pub fn levels(&self) -> Option<u32> {
        let noted = self.metadata.get(LEVELS).and_then(Value::as_u64);
        let noted = noted.map(|levels| u32::try_from(levels).unwrap_or(u32::MAX));
        let left = self.request.background.as_ref().and_then(|ancestry| ancestry.levels);
        noted.into_iter().chain(left).min()
    }
}

/// A run's place in the tree of delegations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lineage {
    /// The run of the main agent at the top.
    pub root: RunId,
    /// The run that delegated; none for the main agent.
    pub parent: Option<RunId>,
    /// How many delegations deep: 0 for the main agent.
    pub depth: u32,
    /// The tool call that caused it.
    pub cause: Option<String>,
    /// The tasks of the callers, outermost first.
    pub namespace: Vec<TaskId>,
    /// The names of the agents from the main one down to this one.
    pub path: Vec<String>,
    /// How much clients see of it: never more than of who delegated.
    #[serde(default)]
    pub visibility: Visibility,
}

impl Lineage {
    /// The lineage of a run of the main agent, called `agent`.
    pub fn root(run: RunId, agent: &str) -> Self {
        Self {
            root: run,
            parent: None,
            depth: 0,
            cause: None,
            namespace: vec![],
            path: vec![agent.to_owned()],
            visibility: Visibility::Full,
        }
    }

    /// The agent's own name.
    pub fn agent(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// The namespace as clients write it: `tools:<task>|tools:<task>`, empty for the main agent.
    pub fn checkpoint_ns(&self) -> String {
        namespace_text(&self.namespace)
    }
}

/// A namespace as clients write it.
pub fn namespace_text(namespace: &[TaskId]) -> String {
    namespace
        .iter()
        .map(|task| format!("tools:{task}"))
        .collect::<Vec<_>>()
        .join("|")
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// It waits for its turn.
    Pending,
    /// It is at work.
    Running,
    /// It did what it could: it is done, or waits for a human.
    Success,
    /// It failed.
    Error,
    /// It took too long.
    Timeout,
    /// It was cancelled.
    Interrupted,
}

impl RunStatus {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Running,
        Self::Success,
        Self::Error,
        Self::Timeout,
        Self::Interrupted,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Success => "success",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
        }
    }

    /// The status of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// Whether it is over.
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Success | Self::Error | Self::Timeout | Self::Interrupted => true,
        }
    }
}

/// What a run was asked to do, as it is stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRequest {
    /// New input for the agent; none to go on where the thread stands.
    pub input: Option<Value>,
    /// What to do instead of taking input.
    pub command: Option<Command>,
    /// `tags`, `recursion_limit`, `configurable`, `metadata`, as given.
    pub config: Map<String, Value>,
    /// What tools may know about the caller.
    pub context: Map<String, Value>,
    /// The streams that were asked for.
    pub stream_mode: Vec<String>,
    /// Whether streams show subagents.
    pub stream_subgraphs: bool,
    /// Whether stream events carry ids.
    pub stream_resumable: bool,
    /// Nodes to stop before; `*` for all.
    pub interrupt_before: Vec<String>,
    /// Nodes to stop after; `*` for all.
    pub interrupt_after: Vec<String>,
    /// The checkpoint to begin from, when not the newest.
    pub checkpoint: Option<CheckpointId>,
    /// What to do when the thread is busy.
    pub multitask: Multitask,
    /// Whether the thread exists for this run alone and goes away with it.
    pub temporary: bool,
    /// Whether such a thread stays nevertheless until the key is forgotten under which the run was asked for: who asks
    /// again follows the same run.
    pub held: bool,
    /// Who does it, settled when the run was admitted. `config` and `context` hold the assistant's settings from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Assigned>,
    /// Where it stands below those who started it in the background, when somebody did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background: Option<Ancestry>,
    /// The platform fields of the request that the answer repeats (`webhook`, `feedback_keys`, `durability`).
    pub extra: Map<String, Value>,
}

impl RunRequest {
    /// How many steps an agent may take, if the request says so: the main agent, and each below it.
    pub fn step_limit(&self) -> Option<u32> {
        let limit = self.config.get("recursion_limit").and_then(Value::as_u64)?;
        Some(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// What tools may know about the caller: the context, or the `configurable` of a request that has none.
    pub fn told(&self) -> &Map<String, Value> {
        match self.config.get("configurable").and_then(Value::as_object) {
            Some(configurable) if self.context.is_empty() => configurable,
            Some(_) | None => &self.context,
        }
    }

    /// Where the end of the run is to be told, if anywhere.
    pub fn webhook(&self) -> Option<&str> {
        self.extra.get("webhook").and_then(Value::as_str)
    }
}

/// Who does what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The definition of the agent.
    pub graph_id: String,
    /// The version of the assistant that was in use.
    pub version: i64,
    /// The content of the definition, which the run keeps to. None for runs of an older time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Digest>,
}

/// The longest instructions that an order may bring, in bytes: several times what large agents have.
pub const MAX_ORDERED_PROMPT_BYTES: usize = 64 * 1024;

/// What a subagent is sent to do, as it is stored: the input of its run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Order {
    /// The work, which is all that the subagent is told.
    pub description: String,
    /// Instructions in place of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// What a user interface shows while it is being done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_text: Option<String>,
    /// What stands before the work in its conversation, behind the messages with which it begins anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initial_messages: Vec<Message>,
    /// The form of the result in place of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
}

impl Run {
    /// What a user interface shows while a subagent works, if its definition says so.
    pub fn display_text(&self) -> Option<&str> {
        let order = self.request.input.as_ref().filter(|_| self.lineage.depth > 0)?;
        order.get("display_text")?.as_str()
    }
}

/// What a client may send instead of input.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Command {
    /// Answers to open questions.
    pub resume: Option<Resume>,
    /// Writes into the state.
    pub update: Option<Value>,
    /// Where to go.
    pub goto: Vec<Goto>,
    /// Subagents that waited and were cancelled: whoever waits for them goes on without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<RunId>,
}

impl Command {
    /// Whether it goes on with what waits.
    pub fn goes_on(&self) -> bool {
        !self.given_up.is_empty() || self.resume.as_ref().is_some_and(|answers| !answers.is_empty())
    }
}

/// Answers to open questions, by the id of the question. Already checked when it is stored.
pub type Resume = BTreeMap<InterruptId, Value>;

/// What to do with a new run when the thread is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Multitask {
    /// Let it wait for its turn.
    #[default]
    Enqueue,
    /// Refuse it.
    Reject,
    /// Stop the run at work, keep what it did.
    Interrupt,
    /// Stop the run at work and undo what it did.
    Rollback,
}

impl Multitask {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Reject => "reject",
            Self::Interrupt => "interrupt",
            Self::Rollback => "rollback",
        }
    }

    /// The strategy of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Enqueue, Self::Reject, Self::Interrupt, Self::Rollback]
            .into_iter()
            .find(|s| s.word() == word)
    }
}
