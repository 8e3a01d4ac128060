//! Checkpoints: stored machines, and their place in the history of a thread.

use serde::{Deserialize, Serialize};

use super::call::Fate;
use super::id::{CheckpointId, RunId, TaskId, ThreadId};
use super::interrupt::{Asker, Interrupt};
use super::machine::{MODEL, Moment, Phase, Plan, Position, START, TOOLS};
use super::state::{State, Update};
use super::time::Timestamp;

/// One step of a history: what it wrote, and onto what.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Identifies the checkpoint that the step left.
    pub id: CheckpointId,
    /// The checkpoint before it.
    pub parent: Option<CheckpointId>,
    /// Its number in the lane; the first one is -1.
    pub step: i64,
    /// Why it exists.
    pub source: Source,
    /// The node that wrote: `model`, `tools`, `__start__`, or a hook's name.
    pub node: String,
    /// What was written: one update, but for `tools` one for each call, in call order.
    pub writes: Vec<Update>,
    /// The calls of `writes` that the log has already shown one by one.
    pub shown: Vec<usize>,
}

/// Why a checkpoint exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A run brought new input.
    Input,
    /// The loop took a step.
    Loop,
    /// A client wrote into the state.
    Update,
    /// A client began anew from an older checkpoint.
    Fork,
}

impl Source {
    /// The word for it in metadata and storage.
    pub fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Loop => "loop",
            Self::Update => "update",
            Self::Fork => "fork",
        }
    }
}

/// Which history of a thread: the main agent's, or that of one child run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// The main agent's.
    Main,
    /// A child run's.
    Child(RunId),
}

/// A checkpoint as it is read back.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The step that left it.
    pub entry: Entry,
    /// The thread.
    pub thread: ThreadId,
    /// The history it belongs to.
    pub lane: Lane,
    /// The run during which it was made; none for a client's update.
    pub run: Option<RunId>,
    /// Its place in the log of the thread.
    pub seq: i64,
    /// Whether it is the first of a branch: its parent had a child already.
    pub forks: bool,
    /// What came after it, as far as it came.
    pub position: Position,
    /// The sum of all writes up to it.
    pub state: State,
    /// When it was made.
    pub created_at: Timestamp,
}

/// A task that a checkpoint is followed by: what clients read under `next` and `tasks`.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Identifies it.
    pub id: TaskId,
    /// The node.
    pub node: String,
    /// Which call, when the node is `tools`.
    pub call: Option<usize>,
    /// The open questions that it asks itself.
    pub asks: Vec<Interrupt>,
    /// The child that works on it, when a subagent does.
    pub child: Option<RunId>,
    /// Why it failed, when it did.
    pub error: Option<String>,
}

impl Position {
    /// The same place in a copy of the thread. Questions and children stay with the original, so whoever waited for one
    /// of them begins that anew. A call that was begun stays so: the original may yet bring it to its end.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.asked.clear();
        self.reviewed.clear();
        self.copied = !matches!(self.phase, Phase::Start | Phase::Ended);
        if let Phase::Tools { calls } = &mut self.phase {
            for call in calls {
                match call.fate {
                    Fate::Asking | Fate::Delegated { .. } => call.fate = Fate::Ready,
                    Fate::Ready | Fate::Started | Fate::Answered(_) => {}
                }
            }
        }
        self
    }

    /// The tasks that follow the checkpoint `head`. A hook that asks nothing is passed over: it leaves no trace.
    pub fn tasks(&self, plan: Option<&Plan>, head: CheckpointId) -> Vec<Task> {
        let mut tasks = match &self.phase {
            Phase::Start => vec![self.task(head, START, None)],
            Phase::Model => vec![self.task(head, MODEL, None)],
            Phase::Work { node, .. } => vec![self.task(head, node, None)],
            Phase::Hooks { moment, next } => self.hook_tasks(plan, head, *moment, *next),
            Phase::Tools { calls } => (0..calls.len())
                .filter(|at| calls[*at].answer().is_none())
                .map(|at| {
                    let child = match calls[at].fate {
                        Fate::Delegated { child, .. } => Some(child),
                        Fate::Ready | Fate::Started | Fate::Asking | Fate::Answered(_) => None,
                    };
                    Task {
                        child,
                        ..self.task(head, TOOLS, Some(at))
                    }
                })
                .collect(),
            Phase::Ended => vec![],
        };
        if let (Some(failure), Some(first)) = (&self.failure, tasks.first_mut())
            && failure.class != "GraphRecursionError"
        {
            first.error = Some(format!("{}({:?})", failure.class, failure.message));
        }
        tasks
    }

    fn hook_tasks(&self, plan: Option<&Plan>, head: CheckpointId, moment: Moment, next: usize) -> Vec<Task> {
        if let Some(hook) = self.asked.iter().find_map(|i| match &i.asker {
            Asker::Hook(name) => Some(name.clone()),
            Asker::Call(_) => None,
        }) {
            return vec![self.task(head, &hook, None)];
        }
        let named = plan.and_then(|plan| plan.hooks(moment).get(next));
        match moment {
            Moment::BeforeAgent | Moment::BeforeModel => vec![self.task(head, MODEL, None)],
            Moment::AfterModel | Moment::AfterAgent => {
                named.map(|name| self.task(head, name, None)).into_iter().collect()
            }
        }
    }

    fn task(&self, head: CheckpointId, node: &str, call: Option<usize>) -> Task {
        let id = TaskId::of_step(Some(head), node, call.unwrap_or(0));
        // By the asker and not by the task: a client's write makes another checkpoint, and with it another task.
        let asks = self
            .asked
            .iter()
            .filter(|i| i.answer.is_none() && self.is_by(&i.asker, node, call))
            .cloned();
        let asks = asks.collect();
        Task {
            id,
            node: node.to_owned(),
            call,
            asks,
            child: None,
            error: None,
        }
    }

    fn is_by(&self, asker: &Asker, node: &str, call: Option<usize>) -> bool {
        match (asker, &self.phase, call) {
            (Asker::Hook(name), _, None) => name == node,
            (Asker::Call(id), Phase::Tools { calls }, Some(at)) => calls.get(at).is_some_and(|call| call.id == *id),
            (Asker::Hook(_) | Asker::Call(_), _, _) => false,
        }
    }
}

#[cfg(test)]
mod tests;
