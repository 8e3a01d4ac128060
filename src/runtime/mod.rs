//! From a wish to a running loop: starting, resuming, cancelling.
//!
//! Only [`Runs`] changes runs and threads. Neighbours: [`crate::http`] above asks, [`crate::agent`] below runs.
//!
//! Why a run was refused or waits: `admission.rs`. Who carries it out, and what if that process dies: `worker.rs`, `lease.rs`.
//! What is one transaction: `journal/`. Where an answer goes: `resume.rs`. Which agents there are: `registry.rs`.
//! Nothing here knows HTTP or SQL text; what has to be durable goes through a journal or one `db.write`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Map, Value};

use crate::db::interrupts::InterruptState;
use crate::db::{self, Db, DbResult, Engine};
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};
use crate::domain::machine::Plan;
use crate::domain::run::{Run, RunRequest};
use crate::domain::size::SizeLimits;
use crate::domain::time::Clock;
use crate::events::Events;
use crate::metrics::{Backlog, Metrics};
use crate::shutdown::Shutdown;

mod admission;
mod ahead;
mod answering;
mod assistants;
mod background;
mod cancel;
mod children;
mod crons;
mod definitions;
mod desk;
mod giving_up;
mod jobs;
mod journal;
mod lease;
mod ledger;
mod log_lines;
mod opening;
mod queue;
mod refusal;
mod registry;
mod resume;
mod starting;
mod store;
mod sweeper;
mod threads;
mod turns;
mod webhooks;
mod worker;
mod writing;

pub use answering::{InterruptReply, RespondError};
pub use assistants::DefaultAssistant;
pub use background::known_of;
pub use cancel::CancelAction;
pub use crons::NewCron;
pub use definitions::DefinitionError;
pub use queue::RunBounds;
pub use refusal::{AssistantError, CancelError, CronError, OpenError, ResolveError, StartError, StateWriteError};
pub use registry::{AgentRecord, AgentSources, FileAgent, FileAgents};
pub use store::{IndexParts, Store, StoreError, StoreSettings};
pub use sweeper::Retention;
pub use threads::{CreatedThread, NewThread, NodeWrite, Superstep};
pub use webhooks::{Render, Report, WebhookSettings, Webhooks};

use worker::Worker;

/// A wish for a run, checked for shape but not yet for sense.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Where it shall run.
    pub target: Target,
    /// Who shall run.
    pub assistant: AssistantRef,
    /// What it shall do. `command.resume` in it is empty; see `resume`.
    pub request: RunRequest,
    /// The answer to open questions, as the client wrote it: one answer, or a map by interrupt id.
    pub resume: Option<Value>,
    /// The requester's notes.
    pub metadata: Map<String, Value>,
    /// How long to wait before it begins.
    pub after: Duration,
}

/// Where a run shall run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// On this thread, which must exist.
    Thread(ThreadId),
    /// On this thread, made if need be.
    ThreadOrNew(ThreadId),
    /// On a new thread of its own, which goes away afterwards unless `keep`.
    Stateless {
        /// Whether the thread stays.
        keep: bool,
    },
}

impl Target {
    /// The thread, if it is named.
    pub fn thread(self) -> Option<ThreadId> {
        match self {
            Self::Thread(thread) | Self::ThreadOrNew(thread) => Some(thread),
            Self::Stateless { .. } => None,
        }
    }
}

/// Who shall run, as the client names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssistantRef {
    /// An assistant.
    Id(AssistantId),
    /// The assistant that a definition has by itself.
    Graph(String),
}

impl AssistantRef {
    /// Who is meant by `text`: an assistant if it is a UUID, else a definition.
    pub fn read(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Graph(text.to_owned()), Self::Id)
    }
}

/// A write into the state of a thread from outside the loop.
#[derive(Debug, Clone, Default)]
pub struct StateWrite {
    /// What to write: an object, a list of such, or nothing.
    pub values: Value,
    /// The node that is to be taken for the writer.
    pub as_node: Option<String>,
    /// The checkpoint to write onto, when not the newest.
    pub checkpoint: Option<CheckpointId>,
}

/// What runs are made with.
pub struct RuntimeParts {
    /// Where everything is stored.
    pub db: Db,
    /// The logs of all threads.
    pub events: Events,
    /// What agents are defined by.
    pub ground: AgentSources,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// Owns the tasks.
    pub shutdown: Shutdown,
    /// Where what happens is counted.
    pub metrics: Metrics,
    /// What tools remember beyond a thread.
    pub store: Store,
    /// How long threads and histories are kept.
    pub retention: Retention,
    /// Tells others that runs have ended.
    pub webhooks: Webhooks,
    /// For how long a claim holds without a heartbeat.
    pub lease: Duration,
    /// How often the lease is renewed; much less than it lasts.
    pub heartbeat: Duration,
    /// How many runs may be at work at once in this process.
    pub max_concurrent_runs: usize,
    /// How many may wait, and how long one may be at work.
    pub bounds: RunBounds,
    /// How large files and states may become.
    pub sizes: SizeLimits,
    /// How many calls of tools may be under way at once in this process.
    pub max_calls: usize,
    /// How many calls of tools and questions to models may be under way at once for one run with its subagents.
    pub max_calls_per_run: usize,
}

/// Starts a task without which the server is of no use, and which ends only with the server.
fn spawn_essential(shutdown: &Shutdown, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    shutdown.spawn_essential(name, task.map(Ok::<(), Infallible>));
}

/// How runs are shown to who does not follow them.
pub type RunResponse = fn(&[Run]) -> StoredResponse;

/// How a question stands.
enum Standing {
    /// It waits for its answer, asked by an agent of this assistant.
    Open(AssistantId),
    /// It has this very answer, with which this run went on.
    AnsweredBy(RunId),
}

/// Starts, resumes and cancels runs. Cheap to clone.
#[derive(Clone)]
pub struct Runs(Arc<Worker>);

impl Runs {
    /// Takes the lease on this process and begins to look for runs that are due, those that a crash left first.
    ///
    /// # Errors
    /// When an agent of a file cannot be assembled, or the database fails.
    pub async fn open(mut parts: RuntimeParts) -> Result<Self, OpenError> {
        let files = std::mem::take(&mut parts.ground.files);
        parts.metrics.work().set_known_names(files.labels());
        let worker = Arc::new(Worker::new(parts));
        worker.registry.open(files).await?;
        worker.sign_on().await?;
        if worker.db.engine() == Engine::Postgres {
            let soft = worker.shutdown.soft().clone();
            spawn_essential(
                &worker.shutdown,
                "definitions",
                Arc::clone(&worker.registry).keep_up(soft),
            );
        }
        worker.sweep_copies(true).await?;
        spawn_essential(&worker.shutdown, "lease", Arc::clone(&worker).keep_lease());
        spawn_essential(&worker.shutdown, "dispatcher", Arc::clone(&worker).dispatch());
        spawn_essential(&worker.shutdown, "hearing", Arc::clone(&worker).hear());
        let runs = Self(Arc::clone(&worker));
        runs.schedule_periodic_jobs().await?;
        spawn_essential(&runs.0.shutdown, "jobs", runs.clone().run_jobs());
        Ok(runs)
    }

    /// The runs of this worker.
    fn of(worker: Arc<Worker>) -> Self {
        Self(worker)
    }

    /// Waits until no run and no job is at work in this process.
    pub async fn rest(&self) {
        self.0.at_rest(|_, _| true).await;
        self.0.jobs.at_rest().await;
    }

    /// Gives the lease back, so that another process may go on at once with what is unfinished.
    pub async fn close(&self) {
        if let Err(error) = self.0.sign_off().await {
            tracing::warn!(%error, "could not give the lease back");
        }
    }

    /// How much is at work and waits.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn backlog(&self) -> DbResult<Backlog> {
        let now = self.0.clock.now();
        let read = self
            .0
            .db
            .read(move |tx| Box::pin(async move { Ok((db::runs::queue(tx, now).await?, db::jobs::count(tx).await?)) }));
        let (queue, jobs) = read.await?;
        let oldest = queue.oldest.map_or(Duration::ZERO, |due| now.since(due));
        let at_work = self.0.active().len();
        Ok(Backlog {
            at_work,
            slots: self.0.slot_count,
            queued: queue.due,
            running: queue.running,
            oldest,
            jobs,
        })
    }

    /// Gives the answer to one question; returns the run that goes on with it. The same answer again gives the same run.
    ///
    /// # Errors
    /// See [`ResolveError`]; nothing is stored then.
    pub async fn resolve(
        &self,
        thread: ThreadId,
        interrupt: InterruptId,
        answer: Value,
    ) -> Result<RunId, ResolveError> {
        let assistant = match self.question(thread, &interrupt, &answer).await {
            Ok(Standing::Open(assistant)) => assistant,
            Ok(Standing::AnsweredBy(run)) => return Ok(run),
            Err(ResolveError::NoInterrupt) => return self.resolve_elsewhere(thread, &interrupt, answer).await,
            Err(error) => return Err(error),
        };
        let request = RunRequest {
            stream_mode: vec!["values".to_owned()],
            ..RunRequest::default()
        };
        let wish = NewRun {
            target: Target::Thread(thread),
            assistant: AssistantRef::Id(assistant),
            request,
            resume: Some(Value::Object(
                [(interrupt.0.clone(), answer.clone())].into_iter().collect(),
            )),
            metadata: Map::new(),
            after: Duration::ZERO,
        };
        match self.start(wish).await {
            Ok(run) => Ok(run.id),
            // Not a question that waits: somebody was quicker.
            Err(StartError::Invalid(invalid)) => match self.question(thread, &interrupt, &answer).await? {
                Standing::Open(_) => Err(ResolveError::Invalid(invalid)),
                Standing::AnsweredBy(run) => Ok(run),
            },
            Err(StartError::Fault(error)) => Err(error.into()),
            // Answers are not refused because of the queue.
            Err(StartError::Busy | StartError::QueueFull(_) | StartError::ThreadFull(_)) => Err(ResolveError::Busy),
            Err(StartError::NoAssistant(_) | StartError::NoAgent { .. }) => Err(ResolveError::NoAgent),
            Err(
                StartError::NoThread(_)
                | StartError::NoCheckpoint(_)
                | StartError::QuestionPending(_)
                | StartError::NoOpenInterrupt
                | StartError::AmbiguousAnswer(_)
                | StartError::ResumeNeedsThread,
            ) => Err(ResolveError::NoInterrupt),
        }
    }

    /// How a question stands for somebody who gives this answer.
    async fn question(
        &self,
        thread: ThreadId,
        interrupt: &InterruptId,
        answer: &Value,
    ) -> Result<Standing, ResolveError> {
        let id = interrupt.clone();
        let read = self.0.db.read(move |tx| {
            Box::pin(async move {
                let Some(asked) = db::interrupts::find(tx, thread, &id).await? else {
                    return Ok(None);
                };
                let run = db::runs::get_by_id(tx, asked.run).await?;
                Ok(run.map(|run| (asked, run.assistant)))
            })
        });
        let (asked, assistant) = read.await?.ok_or(ResolveError::NoInterrupt)?;
        match (asked.status, asked.resumed_by) {
            (InterruptState::Pending, _) => Ok(Standing::Open(assistant)),
            (InterruptState::Resolved, Some(by)) if asked.resolution.as_ref() == Some(answer) => {
                Ok(Standing::AnsweredBy(by))
            }
            (status, _) => Err(ResolveError::Stale(status.word())),
        }
    }

    /// Writes into the state of a thread that no run works on.
    ///
    /// # Errors
    /// See [`StateWriteError`]; nothing is stored then.
    pub async fn write_state(
        &self,
        thread: ThreadId,
        write: StateWrite,
        key: Option<IdempotencyKey>,
        shown: fn(ThreadId, CheckpointId) -> StoredResponse,
    ) -> Result<Once<CheckpointId>, StateWriteError> {
        let checked = match self.checked_write(thread, write).await {
            Ok(checked) => checked,
            Err(refusal) => return self.kept(key).await?.ok_or(refusal),
        };
        let registry = Arc::clone(&self.0.registry);
        let now = self.0.clock.now();
        let kept = move |left: &CheckpointId| shown(thread, *left);
        let write = self.0.db.write_once(key, now, kept, move |tx| {
            Box::pin(async move { writing::write(tx, thread, checked, (&registry, now)).await })
        });
        write.await?
    }

    /// Stops what works on the thread, then deletes it. False if there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn delete_thread(&self, thread: ThreadId) -> DbResult<bool> {
        for run in self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::runs::in_flight(tx, thread).await }))
            .await?
        {
            self.stop_and_wait(&run).await?;
        }
        self.forget_deliveries(thread).await?;
        self.0
            .db
            .write(move |tx| Box::pin(async move { db::threads::delete(tx, thread).await }))
            .await
    }

    /// Stops the run if it is at work, then deletes it. False if there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn delete_run(&self, thread: ThreadId, run: RunId) -> DbResult<bool> {
        let Some(found) = self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::runs::find(tx, thread, run).await }))
            .await?
        else {
            return Ok(false);
        };
        // A subagent's run goes with that of its main agent.
        if found.lineage.depth > 0 {
            return Ok(false);
        }
        if !found.status.is_final() {
            self.stop_and_wait(&found).await?;
        }
        self.0
            .db
            .write(move |tx| Box::pin(async move { db::runs::delete(tx, thread, run).await }))
            .await
    }

    async fn stop_and_wait(&self, run: &Run) -> DbResult<()> {
        match self.cancel(run.thread, run.id, CancelAction::Interrupt).await {
            Ok(()) | Err(CancelError::NoRun | CancelError::Over | CancelError::NoUndo) => {}
            Err(CancelError::Fault(error)) => return Err(error),
        }
        self.0.quiet(run.thread).await;
        Ok(())
    }

    /// The hooks of the agent that did a run, by the definition with which it began.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn plan_of_run(&self, run: &Run) -> DbResult<Option<Plan>> {
        // A subagent is described in the definition of the next agent above it that has one.
        let mut owner = run.clone();
        while let (None, Some(parent)) = (&owner.request.agent, owner.lineage.parent) {
            let read = self
                .0
                .db
                .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, parent).await }));
            let Some(found) = read.await? else { return Ok(None) };
            owner = found;
        }
        let Some(known) = self.0.registry.of_run(&owner).await? else {
            return Ok(None);
        };
        let levels = run.lineage.depth.saturating_sub(owner.lineage.depth);
        if levels == 0 {
            return Ok(Some(known.agent.plan.clone()));
        }
        let found = known
            .agent
            .subagents()
            .and_then(|all| all.get(run.lineage.agent(), levels));
        Ok(found.map(|agent| agent.plan.clone()))
    }

    /// The hooks of the agent with this `graph_id`.
    pub fn plan_of(&self, graph_id: &str) -> Option<Plan> {
        self.0
            .registry
            .agents()
            .of_graph(graph_id)
            .map(|known| known.agent.plan.clone())
    }
}
