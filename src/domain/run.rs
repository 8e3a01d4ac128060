//! Runs: one execution on a thread, its request, its status and its place in the tree of delegations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::access::Ownership;
use super::account::RunQueue;
use super::background::{TaskLineage, TaskStatus};
use super::failure::Failure;
use super::goto::Goto;
use super::id::{AssistantId, CheckpointId, DefinitionDigest, InterruptId, RunId, TaskId, ThreadId, WorkerId};
use super::identity::{Credential, Identity, Tenant, UserId, UserRole};
use super::message::Message;
use super::run_config::{configurable, configurable_mut};
use super::stored;
use super::time::Timestamp;
use super::trace::RunTrace;
use super::visibility::Visibility;

/// One execution on a thread: started by a request for the main agent, or by a tool call for a subagent.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The id.
    pub id: RunId,
    /// The thread that the run belongs to.
    pub thread: ThreadId,
    /// The assistant that the request named.
    pub assistant: AssistantId,
    /// The run's place in the tree of delegations.
    pub lineage: Lineage,
    /// The status.
    pub status: RunStatus,
    /// The request, as it was stored at admission.
    pub request: RunRequest,
    /// The client's metadata, together with the metadata that the server adds.
    pub metadata: Map<String, Value>,
    /// The failure, if the run failed.
    pub error: Option<Failure>,
    /// The number of the attempt: 1, and one more after each crash.
    pub attempt: u32,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
    /// The earliest time at which the run may start.
    pub due_at: Timestamp,
    /// The account on whose behalf the run works, and its priority.
    pub queue: RunQueue,
}

/// The beginning of the metadata keys with which one server marks the runs that it requests from another.
pub const SERVER_KEYS: &str = "adjutant_";
/// The metadata key for the number of delegation levels allowed below a run. The server that requested the run counts
/// it among its own subagents and sends what is left of its limit.
pub const LEVELS: &str = "adjutant_levels";
/// The metadata key with the number of servers that have passed the work on as a whole.
pub const HOPS: &str = "adjutant_hops";

impl Run {
    /// Returns the number of delegation levels allowed below the run: the smaller of the limit in the metadata, set by
    /// another server, and the limit inherited by a background task.
    pub fn levels(&self) -> Option<u32> {
        let noted = self.metadata.get(LEVELS).and_then(Value::as_u64);
        let noted = noted.map(|levels| u32::try_from(levels).unwrap_or(u32::MAX));
        let left = self.request.background.as_ref().and_then(|ancestry| ancestry.levels);
        noted.into_iter().chain(left).min()
    }

    /// Returns the number of servers that have passed the work of the run on as a whole.
    pub fn hops(&self) -> u32 {
        let noted = self.metadata.get(HOPS).and_then(Value::as_u64).unwrap_or(0);
        u32::try_from(noted).unwrap_or(u32::MAX)
    }
}

/// The origin of the work of a run of a main agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOrigin {
    /// The run that brought the input. It is another one if this run continues with answers to questions.
    pub first: RunId,
    /// The number of servers that have passed the work on as a whole.
    pub hops: u32,
}

impl RunOrigin {
    /// Returns the origin of a run that brought its input itself.
    pub fn of(run: RunId) -> Self {
        Self { first: run, hops: 0 }
    }
}

/// A run's place in the tree of delegations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lineage {
    /// The run of the main agent, the root of the tree.
    pub root: RunId,
    /// The run that delegated; none for the main agent.
    pub parent: Option<RunId>,
    /// The number of delegations above the run: 0 for the main agent.
    pub depth: u32,
    /// The id of the tool call that started the run; none for the main agent.
    pub cause: Option<String>,
    /// The tasks of the callers, outermost first.
    pub namespace: Vec<TaskId>,
    /// The names of the agents from the main agent down to this one.
    pub path: Vec<String>,
    /// The visibility of the run to clients, never greater than that of the run that delegated.
    #[serde(default)]
    pub visibility: Visibility,
}

impl Lineage {
    /// Creates the lineage of a run of the main agent, called `agent`.
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

    /// Returns the agent's name.
    pub fn agent(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// Returns the run of the subagent that has delegated to this one; `None` if the main agent has.
    pub fn calling_subagent(&self) -> Option<RunId> {
        self.parent.filter(|_| self.depth > 1)
    }

    /// Returns the namespace as clients write it: `tools:<task>|tools:<task>`, empty for the main agent.
    pub fn checkpoint_ns(&self) -> String {
        namespace_text(&self.namespace)
    }
}

/// Returns a namespace as clients write it: `tools:<task>|tools:<task>`.
pub fn namespace_text(namespace: &[TaskId]) -> String {
    namespace
        .iter()
        .map(|task| format!("tools:{task}"))
        .collect::<Vec<_>>()
        .join("|")
}

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// The run waits in the queue.
    Pending,
    /// A worker executes the run.
    Running,
    /// The run ended without an error: it is complete, or waits for a human.
    Success,
    /// The run failed.
    Error,
    /// The run exceeded its time limit.
    Timeout,
    /// The run was cancelled.
    Interrupted,
}

impl From<RunStatus> for TaskStatus {
    /// Converts the status of a task's run.
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Pending => Self::Pending,
            RunStatus::Running => Self::Running,
            RunStatus::Success => Self::Success,
            RunStatus::Error => Self::Error,
            RunStatus::Timeout => Self::Timeout,
            RunStatus::Interrupted => Self::Cancelled,
        }
    }
}

impl RunStatus {
    /// All statuses.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Running,
        Self::Success,
        Self::Error,
        Self::Timeout,
        Self::Interrupted,
    ];

    /// Returns the word that clients and the database use.
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

    /// Parses the word that clients and the database use.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// Returns whether the run has ended.
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Success | Self::Error | Self::Timeout | Self::Interrupted => true,
        }
    }

    /// Returns whether the run has failed. A run that was cancelled has not: its result is what it wrote.
    pub fn has_failed(self) -> bool {
        matches!(self, Self::Error | Self::Timeout)
    }
}

/// The request for a run, as it is stored. Fields with their default are not stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRequest {
    /// The input for the agent; none to continue from the thread's state.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub input: Option<Value>,
    /// The command, sent instead of input.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub command: Option<Command>,
    /// `tags`, `recursion_limit`, `configurable` and `metadata`, as given.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub config: Map<String, Value>,
    /// The context of the run, readable by tools and policies.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub context: Map<String, Value>,
    /// The stream modes that the client requested.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub stream_mode: Vec<String>,
    /// True if streams include the events of subagents.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub stream_subgraphs: bool,
    /// True if stream events carry ids.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub stream_resumable: bool,
    /// The nodes to stop before; `*` for all.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub interrupt_before: Vec<String>,
    /// The nodes to stop after; `*` for all.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub interrupt_after: Vec<String>,
    /// The checkpoint to start from, if not the newest.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub checkpoint: Option<CheckpointId>,
    /// The strategy for a thread that is busy.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub multitask: Multitask,
    /// True if the run, once it is queued, begins only when no interrupt of its thread is pending.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub after_answers: bool,
    /// True if the thread was created for this run alone and is deleted with it.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub temporary: bool,
    /// True if a temporary thread is kept until the request's idempotency key expires, so that a repeated request can
    /// follow the same run.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub held: bool,
    /// For a run that ends with its client: the server processes that the client, and who has joined since, are or were
    /// connected to. Empty for a run that does not.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub followers: Vec<WorkerId>,
    /// The agent, resolved at admission. From then on `config` and `context` include the assistant's settings.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub agent: Option<AssignedAgent>,
    /// The ancestors of the run, if it belongs to a background task.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub background: Option<TaskLineage>,
    /// The user on whose behalf the run works. None without authentication.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub caller: Option<RunCaller>,
    /// The priority among the runs of the tenant, from 0 to [`MAX_PRIORITY`](super::account::MAX_PRIORITY).
    #[serde(skip_serializing_if = "stored::is_default")]
    pub priority: u8,
    /// The place of the run in a trace, if traces are on.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub trace: Option<RunTrace>,
    /// The request to compact the conversation instead of running the agent.
    #[serde(skip_serializing_if = "stored::is_default")]
    pub compaction: Option<CompactionRequest>,
    /// The fields of the request that responses repeat (`webhook`, `feedback_keys`, `durability`).
    #[serde(skip_serializing_if = "stored::is_default")]
    pub extra: Map<String, Value>,
}

/// A request to compact the conversation of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CompactionRequest {
    /// The number of newest messages to keep; that of the agent's settings when none.
    pub keep_messages: Option<u64>,
}

/// The beginning of the keys that name the authenticated user in the context of a run. Clients cannot set them.
const AUTH_KEYS: &str = "langgraph_auth_";

/// The user on whose behalf a run works, as agents and tools see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunCaller {
    /// The user's identity.
    pub identity: UserId,
    /// The tenant of the user.
    pub tenant: Tenant,
    /// The user's name for people.
    pub display_name: String,
    /// The user's roles.
    pub roles: Vec<UserRole>,
    /// The permissions of the credential; the roles when it is not limited.
    pub permissions: Vec<String>,
    /// Further fields that the authentication knows of the user.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub claims: Map<String, Value>,
}

impl RunCaller {
    /// Returns the user that an identity proves; `None` if the identity proves none.
    pub fn of(identity: &Identity) -> Option<Self> {
        if identity.user == UserId::default() {
            return None;
        }
        let roles = identity.roles.iter().map(|role| role.word().to_owned()).collect();
        Some(Self {
            identity: identity.user.clone(),
            tenant: identity.tenant.clone(),
            display_name: identity
                .display_name
                .clone()
                .unwrap_or_else(|| identity.user.to_string()),
            roles: identity.roles.clone(),
            permissions: identity.scopes.clone().unwrap_or(roles),
            claims: identity.claims.clone(),
        })
    }

    /// Returns the identity with which the server works for this user, for policies that ask for roles and claims.
    pub fn to_identity(&self) -> Identity {
        let roles = self.roles.iter().map(|role| role.word());
        let is_limited = !roles.eq(self.permissions.iter());
        let owner = Ownership {
            tenant: self.tenant.clone(),
            owner: self.identity.clone(),
        };
        Identity {
            roles: self.roles.clone(),
            scopes: is_limited.then(|| self.permissions.clone()),
            claims: self.claims.clone(),
            ..Identity::server_for(&owner)
        }
    }

    /// Returns an identity that may do no more than the user may by roles, scopes and policies, for decisions about what the
    /// server does for the user.
    pub fn to_restricted_identity(&self) -> Identity {
        Identity {
            credential: Credential::Call,
            ..self.to_identity()
        }
    }

    /// Returns the entries of the context that name the user, with the names and the shape of LangGraph.
    fn context(&self) -> [(String, Value); 3] {
        let text = |text: &str| Value::String(text.to_owned());
        let permissions: Value = self.permissions.iter().map(String::as_str).collect();
        let roles: Value = self.roles.iter().map(|role| role.word()).collect();
        let own = [
            ("identity", text(self.identity.as_str())),
            ("display_name", text(&self.display_name)),
            ("is_authenticated", Value::Bool(true)),
            ("permissions", permissions.clone()),
            ("roles", roles),
            ("tenant", text(self.tenant.as_str())),
        ];
        let mut user = Map::with_capacity(self.claims.len() + own.len());
        user.extend(self.claims.clone());
        user.extend(own.map(|(key, value)| (key.to_owned(), value)));
        [
            ("langgraph_auth_user", Value::Object(user)),
            ("langgraph_auth_user_id", text(self.identity.as_str())),
            ("langgraph_auth_permissions", permissions),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }
}

/// Removes the entries that name an authenticated user: only the server may write them.
fn remove_auth_keys(context: &mut Map<String, Value>) {
    context.retain(|key, _| !key.starts_with(AUTH_KEYS));
}

impl RunRequest {
    /// Returns `config.recursion_limit`, if given: the number of steps allowed to the main agent, and to each agent
    /// below it.
    pub fn step_limit(&self) -> Option<u32> {
        let limit = self.config.get("recursion_limit").and_then(Value::as_u64)?;
        Some(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Returns a function that makes the context for tools: `context`, or `config.configurable` if the request has no
    /// context, with the user on whose behalf the run works.
    pub fn tool_context(&self) -> impl FnOnce() -> Map<String, Value> + Send + use<> {
        let mut context = match configurable(&self.config) {
            Some(configurable) if self.context.is_empty() => configurable.clone(),
            Some(_) | None => self.context.clone(),
        };
        let caller = self.caller.clone();
        move || {
            if let Some(caller) = caller {
                remove_auth_keys(&mut context);
                context.extend(caller.context());
            }
            context
        }
    }

    /// Returns whether the request writes into the state by a command, as a client may do without a run.
    pub fn brings_update(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command.update.is_some())
    }

    /// Makes the request one of this caller: what clients wrote in the place of the authenticated user is removed.
    pub fn assign_to(&mut self, caller: &Identity) {
        self.caller = RunCaller::of(caller);
        remove_auth_keys(&mut self.context);
        if let Some(configurable) = configurable_mut(&mut self.config) {
            remove_auth_keys(configurable);
        }
    }

    /// Returns the digest of the definition that the run is pinned to, if any.
    pub fn pinned_definition(&self) -> Option<&DefinitionDigest> {
        self.agent.as_ref()?.definition.as_ref()
    }

    /// Returns when the run begins among the queued runs of its thread.
    pub fn turn(&self) -> QueueTurn {
        if self.command.as_ref().is_some_and(Command::resumes) {
            QueueTurn::Answer
        } else if self.after_answers {
            QueueTurn::AfterAnswers
        } else {
            QueueTurn::InOrder
        }
    }

    /// Returns the URL to notify when the run ends, if any.
    pub fn webhook(&self) -> Option<&str> {
        self.extra.get("webhook").and_then(Value::as_str)
    }
}

/// The agent of a run, resolved at admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedAgent {
    /// The key of the agent definition.
    pub graph_id: String,
    /// The version of the assistant that was in use.
    pub version: i64,
    /// The digest of the definition that the run is pinned to. None for runs stored by older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<DefinitionDigest>,
}

/// The maximum size of a delegated `system_prompt`, in bytes: several times the instructions of large agents.
pub const MAX_DELEGATED_PROMPT_BYTES: usize = 64 * 1024;

/// The maximum number of delegations of one call after which its tool is called again.
pub const MAX_DELEGATIONS: usize = 16;

/// A task delegated to a subagent, as it is stored: the input of the child run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DelegatedTask {
    /// The description of the task: the message that the subagent receives.
    pub description: String,
    /// The instructions that replace the subagent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The text that user interfaces show while the subagent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_text: Option<String>,
    /// The messages placed before the description, behind the subagent's own initial messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initial_messages: Vec<Message>,
    /// The JSON Schema of the result that replaces the subagent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// The use of the result.
    #[serde(default, skip_serializing_if = "AfterDelegation::is_default")]
    pub then: AfterDelegation,
}

/// The use of the result of a delegated task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterDelegation {
    /// The result of the call.
    #[default]
    Answer,
    /// The input of another call of the tool.
    CallAgain,
}

impl AfterDelegation {
    /// Returns the task of the run to which a call delegates. `call` is the task of the call, which has delegated so many
    /// times before.
    pub fn task(self, call: TaskId, earlier: usize) -> TaskId {
        match self {
            Self::Answer => call,
            Self::CallAgain => TaskId::of_delegation(call, earlier),
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Run {
    /// Returns the task that the run of a subagent was given; none for a main agent.
    pub fn order(&self) -> Option<DelegatedTask> {
        DelegatedTask::deserialize(self.stored_order()?).ok()
    }

    /// Returns the text that user interfaces show while the subagent runs, if there is one.
    pub fn display_text(&self) -> Option<&str> {
        self.stored_order()?.get("display_text")?.as_str()
    }

    /// Returns the [`DelegatedTask`] of the run of a subagent, as it is stored.
    fn stored_order(&self) -> Option<&Value> {
        self.request.input.as_ref().filter(|_| self.lineage.depth > 0)
    }
}

/// The command that a client may send instead of input.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Command {
    /// Answers to open interrupts.
    pub resume: Option<Resume>,
    /// Writes to the state.
    pub update: Option<Value>,
    /// The nodes to continue at.
    pub goto: Vec<Goto>,
    /// The part that the server adds. It is stored beside the other fields.
    #[serde(flatten)]
    pub continuation: Continuation,
}

/// The part of a command that the server adds, and that no client can send.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Continuation {
    /// Child runs that were cancelled while they waited. Their parents continue without them.
    #[serde(rename = "given_up", skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<RunId>,
    /// The checkpoint whose interrupts [`Command::resume`] answers, if it need not be the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<CheckpointId>,
}

impl Command {
    /// Returns whether the command resumes runs that wait.
    pub fn resumes(&self) -> bool {
        let has_answers = self.resume.as_ref().is_some_and(|answers| !answers.is_empty());
        has_answers || !self.continuation.cancelled.is_empty()
    }
}

/// Answers to open interrupts, by the id of the interrupt. Validated before they are stored.
pub type Resume = BTreeMap<InterruptId, Value>;

/// When a queued run begins among those of its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueTurn {
    /// Before the others: it brings an answer, for which the thread waits.
    Answer,
    /// In the order of the queue.
    InOrder,
    /// In the order of the queue, but not before all interrupts of the thread are answered, dropped or expired.
    AfterAnswers,
}

impl QueueTurn {
    /// Returns the stored word; none for the order of the queue.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::Answer => Some("answer"),
            Self::InOrder => None,
            Self::AfterAnswers => Some("after_answers"),
        }
    }
}

/// The strategy for a new run on a thread that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Multitask {
    /// Queue the new run.
    #[default]
    Enqueue,
    /// Refuse the new run.
    Reject,
    /// Cancel the running run and keep what it wrote. Queued runs stay, and go before the new one.
    Interrupt,
    /// Cancel the running run and undo what it wrote. Queued runs stay, and go before the new one.
    Rollback,
}

impl Multitask {
    /// Returns the word that clients use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Reject => "reject",
            Self::Interrupt => "interrupt",
            Self::Rollback => "rollback",
        }
    }

    /// Parses the word that clients use.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Enqueue, Self::Reject, Self::Interrupt, Self::Rollback]
            .into_iter()
            .find(|s| s.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_part_of_the_server_is_stored_beside_the_fields_of_the_client() {
        let child = RunId::mint();
        let branch = CheckpointId::mint();
        let resume = BTreeMap::from([(InterruptId("q".to_owned()), json!({"x": [1, 2.5]}))]);
        let command = Command {
            resume: Some(resume),
            update: Some(json!({"todos": []})),
            continuation: Continuation {
                cancelled: vec![child],
                branch: Some(branch),
            },
            ..Command::default()
        };
        let stored = json!({"resume": {"q": {"x": [1, 2.5]}}, "update": {"todos": []}, "goto": [],
            "given_up": [child], "branch": branch});
        assert_eq!(serde_json::to_value(&command).expect("JSON"), stored);
        assert_eq!(serde_json::from_value::<Command>(stored).expect("a command"), command);
    }

    #[test]
    fn a_command_of_a_client_is_stored_without_a_part_of_the_server() {
        let stored = json!({"resume": null, "update": null, "goto": []});
        assert_eq!(serde_json::to_value(Command::default()).expect("JSON"), stored);
        assert_eq!(
            serde_json::from_value::<Command>(json!({})).expect("a command"),
            Command::default()
        );
        assert!(!Command::default().resumes());
    }
}
