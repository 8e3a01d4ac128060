//! All that the loop asks of the outer world.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::Agent;
use super::assemble::RegisteredAgent;
use crate::domain::checkpoint::Entry;
use crate::domain::event::{AgentWork, Delta, Fact};
use crate::domain::id::{CheckpointId, RunId};
use crate::domain::interrupt::Interrupt;
use crate::domain::item::ItemChange;
use crate::domain::machine::{Failure, Machine, Plan, Position};
use crate::domain::run::{DelegatedTask, Lineage};
use crate::domain::state::Update;
use crate::tool::budget::Meter;

/// What the loop writes through. One journal serves one lane of a thread.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Stores, in one transaction: the entries, where `machine` now stands, and the facts, in the order of `notes`.
    /// Returns only when all of it is durable; until then nobody sees it.
    ///
    /// # Errors
    /// [`ExitReason::LeaseLost`] when another process has taken the run over; nothing was stored then.
    async fn commit(&self, machine: &Machine, notes: Vec<PendingWrite>) -> Result<(), ExitReason>;

    /// Passes on a piece of an answer that is still being given. Followers see it at once; it is not stored.
    fn publish(&self, delta: Delta);

    /// Tells followers what the agent sets about now. It is not stored, and must not be told before what led to it is.
    fn publish_start(&self, work: AgentWork);

    /// Shows clients a piece of what the call of this id will come to.
    fn publish_output(&self, call: String, text: String);

    /// Finds the child run of a call, or creates it if limits allow; `parent` already says that the call is the child's.
    /// Both are durable before this returns.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    async fn child(&self, parent: &Machine, wish: NewChildRun) -> Result<ChildAdmission, ExitReason>;

    /// The run that this journal belongs to.
    fn run(&self) -> RunId;

    /// Finds a child run again.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    async fn find_child(&self, child: RunId) -> Result<Option<(Lineage, Child)>, ExitReason>;

    /// The open questions of a child that waits, and of the children below it.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    async fn open_interrupts_of(&self, child: RunId) -> Result<Vec<Interrupt>, ExitReason>;

    /// Returns when a child that waits was cancelled, or one below it, so that there is something to go on with.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    async fn child_cancelled(&self, child: RunId) -> Result<(), ExitReason>;
}

/// Something to be stored.
#[derive(Debug, Clone)]
pub enum PendingWrite {
    /// A step was taken, after which the machine stood at `position`.
    Entry {
        /// The step.
        entry: Entry,
        /// What came next, at that time.
        position: Position,
    },
    /// Something else happened.
    Fact(Fact),
    /// Something shall be remembered beyond the thread. It is no event: nobody is told.
    Items(Vec<ItemChange>),
}

impl PendingWrite {
    /// That `machine` has just taken the step `entry`.
    pub fn entry(entry: Entry, machine: &Machine) -> Self {
        Self::Entry {
            entry,
            position: machine.position.clone(),
        }
    }

    /// That `machine` asks these questions.
    pub fn asked(machine: &Machine, interrupts: Vec<Interrupt>) -> Self {
        Self::Fact(Fact::Asked {
            head: machine.head,
            interrupts,
        })
    }

    /// Gives `machine` new input, and notes both checkpoints of it.
    pub fn input(machine: &mut Machine, plan: &Plan, input: Update, ids: [CheckpointId; 2]) -> [Self; 2] {
        let [before, after] = machine.begin(plan, input, ids);
        [
            Self::Entry {
                entry: before,
                position: Position::default(),
            },
            Self::entry(after, machine),
        ]
    }
}

/// What a child run is to be.
#[derive(Debug, Clone)]
pub struct NewChildRun {
    /// Its id, which follows from the task of the call: asking again finds the same child.
    pub id: RunId,
    /// The child's place in the tree.
    pub lineage: Lineage,
    /// The work.
    pub order: DelegatedTask,
    /// How deep delegations may nest under the main agent.
    pub max_depth: u32,
    /// The agent of this server that it is, when it is none that its parent's definition describes.
    pub graph_id: Option<String>,
    /// The server that does the work, when that is another one.
    pub url: Option<String>,
}

impl NewChildRun {
    /// Why `agent` cannot be the child; the text is for the delegating model.
    pub fn incompatibility(&self, agent: &Agent) -> Option<String> {
        let problem = agent.form_problem(self.order.response_format.as_ref()?)?;
        Some(super::delegate::format_error(self.lineage.agent(), &problem))
    }
}

/// Whether there is a child to drive.
pub enum ChildAdmission {
    /// There is.
    Admitted(Box<Child>),
    /// A limit forbids it; the text is for the delegating model.
    Refused(String),
}

/// A child run, ready to be driven.
pub struct Child {
    /// Its id.
    pub id: RunId,
    /// Where it stands: fresh, waiting, under way, or ended.
    pub machine: Machine,
    /// The work.
    pub order: DelegatedTask,
    /// Tells it to stop. Whoever tells its parent to stop tells it, too.
    pub stop: CancellationToken,
    /// What it has used so far; its journal stores what this says.
    pub meter: Arc<Meter>,
    /// The agent of this server that it is, by the definition with which it began; none for one that its parent's
    /// definition describes.
    pub known: Option<Arc<RegisteredAgent>>,
    /// What it began with, once it has; the difference to its state is what it wrote.
    pub input: Option<Update>,
    /// Where it writes.
    pub journal: Box<dyn Journal>,
}

/// Why a loop was left without having come to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum ExitReason {
    /// The run was told to stop, or the server is shutting down.
    Cancelled,
    /// Another process has taken the run over: nothing more may be written.
    LeaseLost,
    /// The outer world cannot be reached for the moment; the run goes on later from what was stored.
    Unavailable,
    /// The outer world failed; the run cannot go on.
    Fault(Failure),
}
