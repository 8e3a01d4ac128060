//! The runtime: it starts, continues and cancels runs.
//!
//! [`RuntimeHandles`] has one handle for each subject: [`Runs`], [`Threads`], [`Interrupts`], [`Crons`],
//! [`Deliveries`], [`Assistants`] and [`Definitions`]. They share one `Core` with the database, the clock, the events
//! and the registry of agents. [`crate::http`] calls the handles; [`crate::agent`] is the loop that a run drives.
//!
//! | File | Subject |
//! |---|---|
//! | `access.rs`, `audit.rs` | whether a caller may do something; who did what |
//! | `admission.rs` | whether a run may start, or has to wait |
//! | `dispatcher.rs`, `lease.rs` | which process drives a run, and what happens when it dies |
//! | `turns.rs` | whose run is next |
//! | `quotas.rs`, `stored_bytes.rs` | what accounts may use |
//! | `prepare.rs` | the state with which a run begins, and its first step |
//! | `journal.rs` | the transactions of a run at work |
//! | `call_tokens.rs`, `call_files.rs` | what tools read of the run that calls them |
//! | `interrupts.rs` | answers to interrupts, and runs that continue with them |
//! | `background/` | background tasks |
//! | `jobs/` | everything that is due later |
//! | `registry.rs` | which agents there are |
//! | `trace.rs` | the place of a run in a trace, and its spans |
//!
//! The runtime knows neither HTTP nor SQL. Durable data goes through a journal or one `db.write`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Map, Value};

use crate::db::{Db, Engine, RowAccess};
use crate::domain::id::{AssistantId, CheckpointId, ThreadId};
use crate::domain::idempotency::StoredResponse;
use crate::domain::identity::Identity;
use crate::domain::quota::Quotas;
use crate::domain::ruling::AccessPolicies;
use crate::domain::run::{Run, RunRequest};
use crate::domain::size::SizeLimits;
use crate::domain::tenant::Tenants;
use crate::domain::time::Clock;
use crate::domain::trace::Tracer;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

mod access;
mod admission;
mod assistants;
mod audit;
mod background;
mod call_files;
mod call_tokens;
mod cancel;
mod children;
mod commit_order;
mod crons;
mod definitions;
mod deletion;
mod dispatcher;
mod error;
mod interrupts;
mod jobs;
mod journal;
mod late_commits;
mod lease;
mod ledger;
mod log_lines;
mod prepare;
mod quotas;
mod registry;
mod retry;
mod run_context;
mod runs;
mod sandboxes;
mod shared;
mod state_update;
mod store;
mod stored_bytes;
mod sweeper;
mod threads;
mod trace;
mod turns;
mod unfollowed_runs;
mod webhooks;

pub use access::{AccessControl, AccessError, AccessRefusal, ResourceRef, SharingRules};
pub use admission::RunBounds;
pub use assistants::{Assistants, DefaultAssistant, NewAssistant};
pub use audit::{Audit, AuditSettings, interrupt_text};
pub use background::{delete_thread, known_status};
pub use call_files::{CallFileList, CallFiles, OpenCallFiles};
pub use call_tokens::StoredCallTokens;
pub use cancel::CancelAction;
pub use crons::{Crons, NewCron};
pub use definitions::{DefinitionError, Definitions};
pub use error::{
    AssignedToOthers, AssistantError, BatchError, CallFileError, CancelError, CreateThreadError, CronError,
    DeleteRunError, OpenError, ResolveError, RevokeError, StartError, StateWriteError,
};
pub use interrupts::{InterruptReply, Interrupts, Resolution, RespondError, open_interrupts};
pub use jobs::Deliveries;
pub use registry::{AgentRecord, AgentSources, FileAgent, FileAgents};
pub use runs::Runs;
pub use store::{IndexParts, Store, StoreError, StoreSettings};
pub use stored_bytes::StoredBytes;
pub use sweeper::Retention;
pub use threads::{CreatedThread, NewThread, NodeWrite, Superstep, Threads};
pub use trace::called_by;
pub use unfollowed_runs::FollowingClient;
pub use webhooks::{Render, Report, WebhookSettings, Webhooks};

use background::BackgroundTasks;
use dispatcher::Dispatcher;
use jobs::JobRunner;
use shared::Core;

/// A request for a run whose form was checked.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// The thread.
    pub target: Target,
    /// The assistant.
    pub assistant: AssistantRef,
    /// The caller who starts the run. A thread that the run creates belongs to this user; an existing thread keeps its owner.
    pub caller: Arc<Identity>,
    /// The request. `command.resume` in it is empty; see `resume`.
    pub request: RunRequest,
    /// The resolution of open interrupts that the run brings.
    pub resume: Option<Resolution>,
    /// The metadata.
    pub metadata: Map<String, Value>,
    /// The delay before the run begins.
    pub after: Duration,
}

/// The thread of a new run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// This thread, which must exist.
    Thread(ThreadId),
    /// This thread, created if it does not exist.
    ThreadOrNew(ThreadId),
    /// A new thread, deleted afterwards unless `keep` is set.
    Stateless {
        /// True to keep the thread.
        keep: bool,
    },
}

impl Target {
    /// Returns the thread, if it is named.
    pub fn thread(self) -> Option<ThreadId> {
        match self {
            Self::Thread(thread) | Self::ThreadOrNew(thread) => Some(thread),
            Self::Stateless { .. } => None,
        }
    }
}

/// The assistant of a new run, as the client names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssistantRef {
    /// An assistant.
    Id(AssistantId),
    /// The default assistant of a definition.
    Graph(String),
}

impl AssistantRef {
    /// Reads the name of an assistant: an id if it is a UUID, else the key of a definition.
    pub fn read(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Graph(text.to_owned()), Self::Id)
    }
}

/// A write into the state of a thread from outside the loop.
#[derive(Debug, Clone)]
pub struct StateWrite {
    /// The values: an object, a list of objects, or null.
    pub values: Value,
    /// The node on whose behalf the values are written.
    pub as_node: Option<String>,
    /// The checkpoint to write onto, when not the newest.
    pub checkpoint: Option<CheckpointId>,
    /// The caller who writes.
    pub caller: Arc<Identity>,
}

/// The parts of the runtime.
pub struct RuntimeParts {
    /// The database.
    pub db: Db,
    /// The logs of all threads.
    pub events: Events,
    /// The sources of agents.
    pub sources: AgentSources,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The owner of the tasks.
    pub shutdown: Shutdown,
    /// The metrics.
    pub metrics: Metrics,
    /// Records traces.
    pub tracer: Tracer,
    /// The store of items.
    pub store: Store,
    /// The default lifetimes of threads and histories.
    pub retention: Retention,
    /// The sender of webhooks.
    pub webhooks: Webhooks,
    /// The time for which a claim holds without a heartbeat.
    pub lease: Duration,
    /// The pause between two heartbeats; much shorter than the lease.
    pub heartbeat: Duration,
    /// True if this process claims runs and jobs; otherwise it only admits runs.
    pub claims: bool,
    /// The most concurrent runs in this process.
    pub max_concurrent_runs: usize,
    /// The most runs in the queue, and the longest time for which a run may be at work.
    pub bounds: RunBounds,
    /// The largest sizes of files and states.
    pub sizes: SizeLimits,
    /// The rules by which owners share resources with their tenant.
    pub sharing: SharingRules,
    /// The access policies.
    pub policies: Arc<dyn AccessPolicies>,
    /// The settings of the audit.
    pub audit: AuditSettings,
    /// The quotas of accounts.
    pub quotas: Arc<Quotas>,
    /// The settings of single tenants.
    pub tenants: Arc<Tenants>,
    /// The most concurrent tool calls in this process.
    pub max_calls: usize,
    /// The most concurrent tool and model calls of one run with its subagents.
    pub max_calls_per_run: usize,
}

/// Starts an essential task, which ends only with the server. The process ends if the task ends before. It works for the
/// server itself.
pub(crate) fn spawn_essential(
    shutdown: &Shutdown,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let task = RowAccess::Server.scope(task.boxed());
    shutdown.spawn_essential(name, task.map(Ok::<(), Infallible>));
}

/// Has the loops look again when the clock is moved: they sleep until times of the clock.
fn wake_with_clock(dispatcher: &Arc<Dispatcher>) {
    // The dispatcher owns the clock.
    let listener = Arc::downgrade(dispatcher);
    dispatcher.core.clock.when_moved(Box::new(move || {
        if let Some(dispatcher) = listener.upgrade() {
            dispatcher.wake_loops();
        }
    }));
}

/// Renders runs as a stored response.
pub type RunResponse = fn(&[Run]) -> StoredResponse;

/// The handles of the runtime, one for each subject. Cheap to clone.
#[derive(Clone)]
pub struct RuntimeHandles {
    /// Runs.
    pub runs: Runs,
    /// Threads and their states.
    pub threads: Threads,
    /// Interrupts and the answers to them.
    pub interrupts: Interrupts,
    /// Crons.
    pub crons: Crons,
    /// Deliveries of webhooks.
    pub deliveries: Deliveries,
    /// Assistants.
    pub assistants: Assistants,
    /// Definitions of agents.
    pub definitions: Definitions,
    /// The access policies.
    pub access: AccessControl,
    /// The audit.
    pub audit: Audit,
    /// The quotas for stored bytes.
    pub stored: StoredBytes,
    /// The tokens of tool calls.
    pub call_tokens: StoredCallTokens,
    /// The files that tools read of the agents that call them.
    pub call_files: CallFiles,
    tasks: BackgroundTasks,
    core: Arc<Core>,
}

impl RuntimeHandles {
    /// Takes the lease of this process and starts its tasks. The dispatcher first looks for due runs that a crash left.
    ///
    /// # Errors
    /// Returns an error when an agent of a file cannot be assembled, or the database fails.
    pub async fn open(mut parts: RuntimeParts) -> Result<Self, OpenError> {
        let files = std::mem::take(&mut parts.sources.files);
        parts.metrics.work().set_known_names(files.labels());
        let claims = parts.claims;
        let dispatcher = Arc::new(Dispatcher::new(parts));
        let core = Arc::clone(&dispatcher.core);
        core.registry.open(files).await?;
        dispatcher.take_lease().await?;
        if core.db.engine() == Engine::Postgres {
            let soft = core.shutdown.soft().clone();
            let run_reload_loop = Arc::clone(&core.registry).run_reload_loop(soft, core.longest_sleep());
            spawn_essential(&core.shutdown, "definitions", run_reload_loop);
        }
        sweeper::sweep_copies(&core, true).await?;
        spawn_essential(&core.shutdown, "lease", Arc::clone(&dispatcher).run_lease_loop());
        spawn_essential(
            &core.shutdown,
            "hearing",
            Arc::clone(&dispatcher).run_notification_loop(),
        );
        let handles = Self::new(&dispatcher);
        wake_with_clock(&dispatcher);
        let jobs = JobRunner::new(handles.clone());
        if claims {
            spawn_essential(&core.shutdown, "dispatcher", dispatcher.dispatch());
            jobs.schedule_periodic_jobs().await?;
            spawn_essential(&core.shutdown, "jobs", jobs.run_jobs());
        } else {
            spawn_essential(&core.shutdown, "jobs", jobs.announce_jobs());
        }
        Ok(handles)
    }

    fn new(dispatcher: &Arc<Dispatcher>) -> Self {
        let core = Arc::clone(&dispatcher.core);
        let runs = Runs::new(dispatcher);
        let tasks = BackgroundTasks::new(runs.clone());
        let deliveries = Deliveries::new(Arc::clone(&core));
        let threads = Threads::new(runs.clone(), deliveries.clone());
        Self {
            interrupts: Interrupts::new(runs.clone(), tasks.clone()),
            crons: Crons::new(Arc::clone(&core), runs.admission.clone()),
            assistants: Assistants::new(Arc::clone(&core), threads.clone()),
            definitions: Definitions::new(Arc::clone(&core)),
            access: AccessControl::new(Arc::clone(&core)),
            audit: Audit::new(Arc::clone(&core)),
            stored: StoredBytes::new(Arc::clone(&core)),
            call_tokens: StoredCallTokens::new(Arc::clone(&core)),
            call_files: CallFiles::new(dispatcher),
            runs,
            threads,
            tasks,
            deliveries,
            core,
        }
    }
}
