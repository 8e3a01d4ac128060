//! The context of a tool or a policy: the agent and run it works for, and the services it may use.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::budget::Budget;
use super::call_tokens::CallTokens;
use super::file_claims::FileClaims;
use super::items::Items;
use super::program::ProgramScope;
use super::progress::ProgressSink;
use super::remembered::RememberedDecisions;
use super::slots::CallSlots;
use super::thread_sandboxes::ThreadSandboxes;
use crate::definition::ContextScoping;
use crate::domain::access::Ownership;
use crate::domain::call::DelegationResult;
use crate::domain::id::{AssistantId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::Question;
use crate::domain::run::RunOrigin;
use crate::domain::size::SizeLimits;
use crate::domain::time::{Clock, Timestamp};
use crate::domain::trace::TraceScope;
use crate::domain::visibility::Visibility;

mod tasks;

pub use tasks::{BackgroundOrder, NoTasks, Tasks};

/// The entries of the context of a request. They are made when one is asked for; most runs ask for none. Cheap to clone.
#[derive(Clone)]
pub struct ContextEntries(Arc<LazyEntries>);

type LazyEntries = LazyLock<Map<String, Value>, Box<dyn FnOnce() -> Map<String, Value> + Send>>;

impl ContextEntries {
    /// Creates entries that `make` makes at their first use.
    pub fn new(make: impl FnOnce() -> Map<String, Value> + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(make))))
    }
}

impl Deref for ContextEntries {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// The context of one agent of a run. Cheap to clone.
#[derive(Clone)]
pub struct Scope {
    /// The agent's name: `lc_agent_name`.
    pub agent: String,
    /// The agent names from the main agent down to this one.
    pub path: Arc<[String]>,
    /// The thread.
    pub thread: ThreadId,
    /// To whom the thread belongs.
    pub ownership: Ownership,
    /// The run of the main agent, which is the run that clients see.
    pub run: RunId,
    /// The origin of the work of the run.
    pub origin: RunOrigin,
    /// The assistant of the run.
    pub assistant: AssistantId,
    /// The number of delegations above this agent: 0 for the main agent.
    pub depth: u32,
    /// The subagent's own run; `None` for the main agent.
    pub subagent: Option<RunId>,
    /// The visibility of the agent to clients.
    pub visibility: Visibility,
    /// The context of the request, for all agents of the run; see [`Scope::own_context`].
    pub context: ContextEntries,
    /// The rules for which agents see which entries of the context.
    pub context_scoping: ContextScoping,
    /// The source of the time.
    pub clock: Arc<dyn Clock>,
    /// The Store of the owner of the thread, which all threads of that owner share. A scope gives access to all its
    /// namespaces.
    pub store: Arc<dyn Items>,
    /// The background tasks.
    pub tasks: Arc<dyn Tasks>,
    /// The decisions that reviewers have given for the rest of the thread.
    pub remembered: Arc<dyn RememberedDecisions>,
    /// The sandboxes of the thread at sandbox services.
    pub sandboxes: Arc<dyn ThreadSandboxes>,
    /// The tokens with which tools read what they may of the run.
    pub tokens: Arc<dyn CallTokens>,
    /// The task id of the current call: unique over all threads, and the same when the call is repeated after a crash.
    /// `None` outside of calls.
    pub task: Option<TaskId>,
    /// The maximum number of steps of each agent of the run, if the request sets one.
    pub step_limit: Option<u32>,
    /// The size limits of files and of the state.
    pub sizes: SizeLimits,
    /// Cancelled when the run has to stop.
    pub stop: CancellationToken,
    /// The remaining budget of the agent.
    pub budget: Budget,
    /// The limits on simultaneous calls.
    pub slots: CallSlots,
    /// Sends progress to clients while the run goes on.
    pub progress: ProgressSink,
    /// The JSON Schema (`response_format`) that a program's result has to match, if the delegating agent requires one.
    pub form: Option<Arc<Value>>,
    /// The answer to the question that the hook, call or program asked before, when it runs again; of several the
    /// first.
    pub answer: Option<Value>,
    /// The question that was answered.
    pub question: Option<Arc<Question>>,
    /// All the questions that it asked together before, each with its answer.
    pub answers: Arc<[(Arc<Question>, Value)]>,
    /// The results of the delegations that the call has asked for, when its tool is called again.
    pub delegations: Arc<[DelegationResult]>,
    /// The further context of a program.
    pub program: Arc<ProgramScope>,
    /// The files of the state that calls of the tree change at the same time.
    pub files: FileClaims,
    /// The current span of the trace. Requests to other systems pass its context on.
    pub trace: TraceScope,
}

impl Scope {
    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the entries of the context that this agent may see.
    pub fn own_context(&self) -> Map<String, Value> {
        let own = |key: &String| self.context_scoping.reaches(key, &self.agent);
        self.context
            .iter()
            .filter(|(key, _)| own(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Returns this scope for a hook, call or program that goes on with these answers, if there are any.
    pub fn answered(&self, answers: Vec<(Arc<Question>, Value)>) -> Self {
        let first = answers.first();
        Self {
            answer: first.map(|(_, answer)| answer.clone()),
            question: first.map(|(question, _)| Arc::clone(question)),
            answers: answers.into(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
impl Scope {
    /// Creates a scope for tests, with a clock that stays at `now`.
    pub(crate) fn sample(now: Timestamp) -> Self {
        Self {
            agent: "researcher".to_owned(),
            path: Arc::from(["main".to_owned(), "researcher".to_owned()]),
            thread: ThreadId(uuid::Uuid::from_u128(1)),
            ownership: Ownership::default(),
            run: RunId(uuid::Uuid::from_u128(2)),
            origin: RunOrigin::of(RunId(uuid::Uuid::from_u128(2))),
            assistant: AssistantId(uuid::Uuid::from_u128(3)),
            depth: 1,
            subagent: None,
            visibility: Visibility::Full,
            context: ContextEntries::new(|| Map::from_iter([("user".to_owned(), Value::from("u1"))])),
            context_scoping: ContextScoping::default(),
            clock: Arc::new(crate::domain::time::ManualClock::starting_at(now)),
            store: Arc::new(crate::tool::items::InMemoryItems::default()),
            tasks: Arc::new(NoTasks),
            remembered: Arc::new(crate::tool::remembered::NothingRemembered),
            sandboxes: Arc::new(crate::tool::thread_sandboxes::NoSandboxes),
            tokens: Arc::new(crate::tool::call_tokens::NoCallTokens),
            task: Some(TaskId(uuid::Uuid::from_u128(4))),
            step_limit: None,
            sizes: SizeLimits::default(),
            stop: CancellationToken::new(),
            budget: Budget::endless(now),
            slots: CallSlots::default(),
            progress: ProgressSink::default(),
            form: None,
            answer: None,
            question: None,
            answers: Arc::default(),
            delegations: Arc::default(),
            program: Arc::default(),
            files: FileClaims::default(),
            trace: TraceScope::default(),
        }
    }
}
