//! The interface between the loop and the runtime.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::Agent;
use super::assemble::RegisteredAgent;
use crate::domain::checkpoint::Entry;
use crate::domain::event::{AgentWork, Delta, Fact, Origin};
use crate::domain::id::{CheckpointId, RunId};
use crate::domain::interrupt::Interrupt;
use crate::domain::item::ItemChange;
use crate::domain::machine::{Failure, Machine, Plan, Position};
use crate::domain::run::{DelegatedTask, Lineage};
use crate::domain::state::Update;
use crate::tool::budget::Meter;

/// The journal of one lane of a thread: stores what the loop writes and publishes what it streams.
///
/// The traits that the runtime implements return boxed futures by hand. The bounds that `async_trait` adds to such a
/// function keep the compiler from reusing its proofs that the parts of the runtime are `Send`, and proving them anew for
/// each function took 40 % of the time of a build.
pub trait Journal: Send + Sync {
    /// Stores the entries, the position of `machine` and the facts in one transaction, in the order of `pending`.
    /// Returns when all of it is durable; nothing is visible to readers before that.
    ///
    /// # Errors
    /// [`ExitReason::LeaseLost`] if another process has taken the run over; then nothing was stored.
    fn commit<'a>(&'a self, machine: &'a Machine, pending: Vec<PendingWrite>) -> BoxFuture<'a, Result<(), ExitReason>>;

    /// Waits until the commits of the run that are under way have ended, whatever their outcome. They are those of other agents.
    fn wait_for_commits(&self) -> BoxFuture<'_, ()>;

    /// Publishes a piece of an answer that is being streamed. Live subscribers receive it at once; it is not stored.
    fn publish(&self, delta: Delta);

    /// Publishes the start of a step. It is not stored, and must not be published before the writes that led to it
    /// are committed.
    fn publish_start(&self, work: AgentWork);

    /// Publishes a piece of the output of the call with this id.
    fn publish_output(&self, call: String, text: String);

    /// Finds the child run of a call, or creates it if the limits allow. `parent` already records that the call is
    /// delegated. Both are durable before this returns.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    fn child<'a>(
        &'a self,
        parent: &'a Machine,
        request: NewChildRun,
    ) -> BoxFuture<'a, Result<ChildAdmission, ExitReason>>;

    /// Stores `pending` like [`Journal::commit`] and creates child runs with their starts, in one transaction. `parent` already
    /// records that their calls are delegated. None if one of them exists, or a limit forbids it: then nothing is stored, and they are to be
    /// requested by [`Journal::child`].
    ///
    /// # Errors
    /// As [`Journal::commit`].
    fn new_children<'a>(
        &'a self,
        parent: &'a Machine,
        pending: Vec<PendingWrite>,
        requests: Vec<(NewChildRun, Option<ChildStart>)>,
    ) -> BoxFuture<'a, Result<Option<Vec<Child>>, ExitReason>>;

    /// Returns the run that this journal belongs to.
    fn run(&self) -> RunId;

    /// Finds an existing child run.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    fn find_child<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<(Lineage, Child)>, ExitReason>>;

    /// Reads an existing child run without taking it up.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    fn child_record<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<ChildRecord>, ExitReason>>;

    /// Returns a parked child run and the parked child runs below it. A caller comes before those it waits for.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    fn waiting_agents<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Vec<WaitingAgent>, ExitReason>>;

    /// Waits until a parked child run, or one below it, is cancelled, so that it can be continued.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    fn child_cancelled<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<(), ExitReason>>;
}

/// A write for the next commit.
#[derive(Debug, Clone)]
pub enum PendingWrite {
    /// A completed step, with the machine's position after it.
    Entry {
        /// The step.
        entry: Entry,
        /// The position at that time.
        position: Position,
    },
    /// Another event.
    Fact(Fact),
    /// Interrupts that were raised before and are still open. Only the event is stored, for the readers of this run;
    /// those that were resolved meanwhile are left out.
    Repeated {
        /// The subagent that waits; none for the agent that writes.
        agent: Option<Arc<Origin>>,
        /// The newest checkpoint of the agent that waits.
        head: Option<CheckpointId>,
        /// The checkpoint after which its step began, as in [`Fact::Asked`].
        carried_from: Option<CheckpointId>,
        /// The interrupts, as in [`Fact::Asked`].
        interrupts: Vec<Interrupt>,
    },
    /// Writes to the Store. They are not events of the thread.
    Items(Vec<ItemChange>),
    /// The position that an older checkpoint keeps when its step is carried on. It is not an event of the thread.
    Left(CheckpointId, Position),
}

impl PendingWrite {
    /// Creates the write for a step that `machine` has just taken.
    pub fn entry(entry: Entry, machine: &Machine) -> Self {
        Self::Entry {
            entry,
            position: machine.position.clone(),
        }
    }

    /// Creates the write for interrupts that `machine` has raised.
    pub fn asked(machine: &Machine, interrupts: Vec<Interrupt>) -> Self {
        Self::Fact(Fact::Asked {
            head: machine.head,
            carried_from: machine.position.carried_from,
            interrupts,
        })
    }

    /// Gives `machine` new input and returns the writes of both checkpoints.
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

/// A subagent that waits for answers.
#[derive(Debug, Clone)]
pub struct WaitingAgent {
    /// The subagent.
    pub origin: Arc<Origin>,
    /// Its newest checkpoint.
    pub head: Option<CheckpointId>,
    /// The checkpoint after which its step began, if it was carried on to the newest one.
    pub carried_from: Option<CheckpointId>,
    /// Its own open interrupts, without those of the subagents below it.
    pub open: Vec<Interrupt>,
}

/// A request for a child run.
#[derive(Debug, Clone)]
pub struct NewChildRun {
    /// The id, derived from the task of the call: a repeated request finds the same child run.
    pub id: RunId,
    /// The place of the child run in the tree.
    pub lineage: Lineage,
    /// The delegated task.
    pub order: DelegatedTask,
    /// The maximum depth of delegations below the main agent.
    pub max_depth: u32,
    /// The `graph_id` of a registered agent, if the subagent is not defined with its parent.
    pub graph_id: Option<String>,
    /// The address of the other server, for a remote agent.
    pub url: Option<String>,
}

impl NewChildRun {
    /// Returns the reason why `agent` cannot do the task, as a text for the delegating model.
    pub fn incompatibility(&self, agent: &Agent) -> Option<String> {
        let problem = agent.form_problem(self.order.response_format.as_ref()?)?;
        Some(format_error(self.lineage.agent(), &problem))
    }
}

/// Returns the text for the delegating model if the subagent cannot answer in the requested form.
pub(super) fn format_error(subagent: &str, problem: &str) -> String {
    format!("`{subagent}` cannot answer in the form that was asked for: {problem}. Nothing was delegated.")
}

/// The start of a child run that is stored when the run is created.
#[derive(Debug)]
pub struct ChildStart {
    /// The machine, which has its input.
    pub machine: Machine,
    /// The input.
    pub input: Update,
    /// The writes: facts and steps.
    pub pending: Vec<PendingWrite>,
}

/// The result of a request for a child run.
pub enum ChildAdmission {
    /// The child run can be driven.
    Admitted(Box<Child>),
    /// A limit forbids it; the text is for the delegating model.
    Refused(String),
}

/// A child run that is ready to be driven.
pub struct Child {
    /// The id.
    pub id: RunId,
    /// The machine: new, waiting, running, or ended.
    pub machine: Machine,
    /// The delegated task.
    pub order: DelegatedTask,
    /// The cancellation token of the child run, cancelled together with the parent's.
    pub stop: CancellationToken,
    /// The usage so far, which the journal stores.
    pub meter: Arc<Meter>,
    /// The registered agent with the definition that the child run started with; none for a subagent that is defined
    /// with its parent.
    pub known: Option<Arc<RegisteredAgent>>,
    /// The input, once the child run has started. The difference to its state is its result.
    pub input: Option<Update>,
    /// True if the start of the child run is stored already: it was created with a [`ChildStart`].
    pub is_begun: bool,
    /// The journal of the child run.
    pub journal: Box<dyn Journal>,
}

/// A child run as it is stored.
pub struct ChildRecord {
    /// The place in the tree.
    pub lineage: Lineage,
    /// The machine: new, waiting, running, or ended.
    pub machine: Machine,
    /// The delegated task.
    pub order: DelegatedTask,
    /// The registered agent, as in [`Child::known`].
    pub known: Option<Arc<RegisteredAgent>>,
    /// The input, as in [`Child::input`].
    pub input: Option<Update>,
}

/// The reason why a loop was left before its end.
#[derive(Debug, Clone, PartialEq)]
pub enum ExitReason {
    /// The run was cancelled, or the server is shutting down.
    Cancelled,
    /// Another process has taken the run over; nothing more may be written.
    LeaseLost,
    /// The database cannot be reached; the run continues later from its last commit.
    Unavailable,
    /// The database failed; the run cannot continue.
    Fault(Failure),
}
