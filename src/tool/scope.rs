//! What a tool or a policy may know and use.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::definition::ContextScoping;
use crate::domain::id::{AssistantId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::Question;
use crate::domain::size::SizeLimits;
use crate::domain::time::{Clock, Timestamp};
use crate::domain::visibility::Visibility;
use crate::tool::background::Tasks;
use crate::tool::budget::Budget;
use crate::tool::program::ProgramScope;
use crate::tool::{CallSlots, Items, Voice};

/// Who is at work, for whom, and what it may use. One for each agent of a run; cheap to clone.
#[derive(Clone)]
pub struct Scope {
    /// The agent's name: `lc_agent_name`.
    pub agent: String,
    /// The names from the main agent down to this one.
    pub path: Arc<[String]>,
    /// The thread.
    pub thread: ThreadId,
    /// The run of the main agent, as clients know it.
    pub run: RunId,
    /// The assistant that was asked.
    pub assistant: AssistantId,
    /// How many delegations deep: 0 for the main agent.
    pub depth: u32,
    /// The run of the subagent that this is; none for the main agent.
    pub subagent: Option<RunId>,
    /// How much clients see of it.
    pub visibility: Visibility,
    /// What the requester said about itself and the work, for all agents of the run; see [`Scope::own_context`].
    pub context: Arc<Map<String, Value>>,
    /// Which entries of it reach whom.
    pub context_scoping: ContextScoping,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// What is remembered beyond the thread. Whoever holds a scope reaches all of it.
    pub store: Arc<dyn Items>,
    /// Who works in the background.
    pub tasks: Arc<dyn Tasks>,
    /// The task of the call that is being made: unique over all threads, and the same when the call is made again after a
    /// crash. None outside of calls.
    pub task: Option<TaskId>,
    /// How many steps each agent of the run may take, when its request says so.
    pub step_limit: Option<u32>,
    /// How large files and the state may become.
    pub sizes: SizeLimits,
    /// Tells when the run has to stop.
    pub stop: CancellationToken,
    /// What the agent may still use.
    pub budget: Budget,
    /// Who takes turns with it at calls.
    pub slots: CallSlots,
    /// Tells clients something while the work goes on.
    pub voice: Voice,
    /// JSON Schema of what a program has to come to, if whoever delegated to it asks for a form.
    pub form: Option<Arc<Value>>,
    /// The answer to the question that the hook, call or program asked before, when it is looked at again; of several the
    /// first.
    pub answer: Option<Value>,
    /// The question that the answer was given to.
    pub question: Option<Arc<Question>>,
    /// All the questions that it asked together before, each with its answer.
    pub answers: Arc<[(Question, Value)]>,
    /// What a program is given besides.
    pub program: Arc<ProgramScope>,
}

impl Scope {
    /// The present instant.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The entries of the context that are meant for this agent.
    pub fn own_context(&self) -> Map<String, Value> {
        let own = |key: &String| self.context_scoping.reaches(key, &self.agent);
        self.context
            .iter()
            .filter(|(key, _)| own(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// The same scope for a hook, call or program that goes on with these answers, if there are any.
    pub fn answered(&self, answers: Vec<(Question, Value)>) -> Self {
        let first = answers.first();
        Self {
            answer: first.map(|(_, answer)| answer.clone()),
            question: first.map(|(question, _)| Arc::new(question.clone())),
            answers: answers.into(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
impl Scope {
    /// A scope for tests, in which the clock stands still at `now`.
    pub(crate) fn sample(now: Timestamp) -> Self {
        Self {
            agent: "researcher".to_owned(),
            path: Arc::from(["main".to_owned(), "researcher".to_owned()]),
            thread: ThreadId(uuid::Uuid::from_u128(1)),
            run: RunId(uuid::Uuid::from_u128(2)),
            assistant: AssistantId(uuid::Uuid::from_u128(3)),
            depth: 1,
            subagent: None,
            visibility: Visibility::Full,
            context: Arc::new(Map::from_iter([("user".to_owned(), Value::from("u1"))])),
            context_scoping: ContextScoping::default(),
            clock: Arc::new(crate::domain::time::ManualClock::starting_at(now)),
            store: Arc::new(crate::tool::items::ItemsInMemory::default()),
            tasks: Arc::new(crate::tool::background::NoTasks),
            task: Some(TaskId(uuid::Uuid::from_u128(4))),
            step_limit: None,
            sizes: SizeLimits::default(),
            stop: CancellationToken::new(),
            budget: Budget::endless(now),
            slots: CallSlots::default(),
            voice: Voice::default(),
            form: None,
            answer: None,
            question: None,
            answers: Arc::default(),
            program: Arc::default(),
        }
    }
}
