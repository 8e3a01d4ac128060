//! Checkpoints: the entries of a thread's log, and the state and position that they lead to.

use serde::{Deserialize, Serialize};

use super::call::{Call, CallStatus};
use super::failure::Failure;
use super::id::{CheckpointId, RunId, StepBase, TaskId, ThreadId};
use super::interrupt::{Interrupt, InterruptSource};
use super::machine::{HookPoint, MODEL, Phase, Plan, Position, START, TOOLS};
use super::state::State;
use super::time::Timestamp;

pub use super::entry::{CheckpointSource, Entry};

/// The history of one agent on a thread: the main agent's, or that of one child run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// The history of the main agent.
    Main,
    /// The history of a child run.
    Child(RunId),
}

/// A checkpoint as it is read from the database.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The step that created the checkpoint.
    pub entry: Entry,
    /// The thread.
    pub thread: ThreadId,
    /// The lane that the checkpoint belongs to.
    pub lane: Lane,
    /// The run that created the checkpoint; none for a client's update.
    pub run: Option<RunId>,
    /// The number in the log of the thread.
    pub seq: i64,
    /// True if the checkpoint starts a branch: its parent already had a child.
    pub forks: bool,
    /// The progress of the step that follows the checkpoint. Its interrupts may be without their questions, which are in their
    /// rows: a long history has many.
    pub position: Position,
    /// The state: the sum of all writes up to this checkpoint.
    pub state: State,
    /// The time of creation.
    pub created_at: Timestamp,
}

/// A task that follows a checkpoint: the entry that clients read under `next` and `tasks`.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The id.
    pub id: TaskId,
    /// The node.
    pub node: String,
    /// The index of the call, if the node is `tools`.
    pub call: Option<usize>,
    /// The open interrupts of the task itself.
    pub asks: Vec<Interrupt>,
    /// The child run that executes the call, if it is delegated.
    pub child: Option<RunId>,
    /// The task of the child run: that of the call, unless the tool of the call is called again with the result.
    pub delegated: Option<TaskId>,
    /// The error, if the task failed.
    pub error: Option<String>,
}

impl Position {
    /// Returns the position for a copy of the thread. Interrupts and child runs stay with the original, so calls and
    /// hooks that waited for them start again. A call that was started keeps that status: the original may still
    /// complete it.
    #[must_use]
    pub fn for_copy(mut self) -> Self {
        self.asked.clear();
        self.outdated.clear();
        self.reviewed.clear();
        self.carried_from = None;
        self.copied = !matches!(self.phase, Phase::Start | Phase::Ended);
        if let Phase::Tools { calls } = &mut self.phase {
            for call in calls {
                match call.status {
                    CallStatus::Asking | CallStatus::Delegated { .. } => call.status = CallStatus::Ready,
                    CallStatus::Ready | CallStatus::Started | CallStatus::Answered(_) => {}
                }
            }
        }
        self
    }

    /// Returns the tasks that follow the checkpoint `head`. Hooks without an interrupt are left out, since they leave
    /// no trace.
    pub fn tasks(&self, plan: Option<&Plan>, head: CheckpointId) -> Vec<Task> {
        let mut tasks = match &self.phase {
            Phase::Start => vec![self.task(head, START, None)],
            Phase::Model => vec![self.task(head, MODEL, None)],
            Phase::Work { node, .. } => vec![self.task(head, node, None)],
            Phase::Hooks { point, next } => self.hook_tasks(plan, head, *point, *next),
            Phase::Tools { calls } => (0..calls.len())
                .filter(|at| calls[*at].answer().is_none())
                .map(|at| {
                    let task = self.task(head, TOOLS, Some(at));
                    Task {
                        child: calls[at].status.child(),
                        delegated: delegated(task.id, &calls[at]),
                        ..task
                    }
                })
                .collect(),
            Phase::Ended => vec![],
        };
        for task in &mut tasks {
            task.error = self.failure_of(task).map(Failure::to_task_error);
        }
        tasks
    }

    /// Returns the failure of a task. If the step did not fail by one of its calls, its failure is that of all its tasks,
    /// also of calls that had failed before: it was cancelled, for example. A step limit is no failure of a task.
    fn failure_of(&self, task: &Task) -> Option<&Failure> {
        let of_step = self.failure.as_ref()?;
        if of_step.class == "GraphRecursionError" {
            return None;
        }
        let Phase::Tools { calls } = &self.phase else {
            return Some(of_step);
        };
        if !self.failed_calls.values().any(|failure| failure == of_step) {
            return Some(of_step);
        }
        self.failed_calls.get(&calls.get(task.call?)?.id)
    }

    fn hook_tasks(&self, plan: Option<&Plan>, head: CheckpointId, point: HookPoint, next: usize) -> Vec<Task> {
        if let Some(hook) = self.asked.iter().find_map(|i| match &i.asker {
            InterruptSource::Hook(name) => Some(name.clone()),
            InterruptSource::Call(_) => None,
        }) {
            return vec![self.task(head, &hook, None)];
        }
        let named = plan.and_then(|plan| plan.hooks(point).get(next));
        match point {
            HookPoint::BeforeAgent | HookPoint::BeforeModel => vec![self.task(head, MODEL, None)],
            HookPoint::AfterModel | HookPoint::AfterAgent => {
                named.map(|name| self.task(head, name, None)).into_iter().collect()
            }
        }
    }

    fn task(&self, head: CheckpointId, node: &str, call: Option<usize>) -> Task {
        let id = StepBase::after(Some(head), self.carried_from).task(node, call.unwrap_or(0));
        // Matched by the source of the interrupt, not by the task: a client's update creates another checkpoint, and
        // with it other task ids.
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
            delegated: None,
            error: None,
        }
    }

    fn is_by(&self, asker: &InterruptSource, node: &str, call: Option<usize>) -> bool {
        match (asker, &self.phase, call) {
            (InterruptSource::Hook(name), _, None) => name == node,
            (InterruptSource::Call(id), Phase::Tools { calls }, Some(at)) => {
                calls.get(at).is_some_and(|call| call.id == *id)
            }
            (InterruptSource::Hook(_) | InterruptSource::Call(_), _, _) => false,
        }
    }
}

/// Returns the task of the child run that executes a call. `task` is that of the call. The child run has its id from its task.
fn delegated(task: TaskId, call: &Call) -> Option<TaskId> {
    let child = call.status.child()?;
    let again = TaskId::of_delegation(task, call.delegations.len());
    [task, again].into_iter().find(|task| RunId::of_child(*task) == child)
}

#[cfg(test)]
mod tests;
