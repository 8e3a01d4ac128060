//! The runtime: it starts, continues and cancels runs.
//!
//! [`RuntimeHandles`] has one handle for each subject: [`Runs`], [`Threads`], [`Interrupts`], [`Crons`],
//! [`Deliveries`], [`Assistants`] and [`Definitions`]. They share one `Core` with the database, the clock, the events
//! and the registry of agents. [`crate::http`] calls the handles; [`crate::agent`] is the loop that a run drives.
//!
//! | File | Subject |
//! |---|---|
//! | `handles.rs` | all handles |
//! | `jobs/` | everything that is due later |
//! | `answers.rs`, `threads.rs`, `assistants.rs`, `definitions.rs`, `crons.rs`, `deliveries.rs` | the handles for single subjects; `Runs` is in `runs.rs` |
//! | `cancel.rs`, `withdraw.rs`, `undo.rs`, `deletion.rs`, `unfollowed_runs.rs` | the end of runs that do not end by themselves |
//! | `background/` | background tasks |
//! | `admit.rs` | starts runs that are admitted |
//! | `dispatcher.rs`, `lease.rs` | which process drives a run, and what happens when it dies |
//! | `active_runs.rs`, `children.rs` | the runs at work in this process: those of main agents, and those of subagents |
//! | `prepare.rs` | the state with which a run begins, and its first step |
//! | `journal.rs` | the transactions of a run at work |
//! | `resumption.rs` | runs that continue a thread without a client |
//! | `admission.rs` | whether a run may start, or has to wait |
//! | `interrupts.rs` | which questions are open, and who may answer them |
//! | `state_update.rs`, `thread_status.rs` | the state of a thread between runs |
//! | `quotas.rs`, `stored_bytes.rs`, `ledger.rs` | what accounts and trees of runs may use |
//! | `access.rs`, `audit.rs` | whether a caller may do something; who did what |
//! | `call_tokens.rs`, `call_files.rs` | what tools read of the run that calls them |
//! | `shared.rs` | what all of them share, with its settings |
//! | `turns.rs` | whose run is next |
//! | `registry.rs` | which agents there are |
//! | `store.rs` | items that outlive threads |
//! | `webhooks.rs`, `reports.rs` | what other servers are told about the ends of runs |
//! | `trace.rs` | the place of a run in a trace |
//! | `new_run.rs`, `error.rs` | requests for runs, and refusals |
//!
//! The modules import each other by name and one way, and none of them imports this one. What `Core` has does not import it.
//! The background tasks, which start runs, get to the runs that use them through a function of the [`Dispatcher`].
//!
//! The runtime knows neither HTTP nor SQL. Durable data goes through a journal or one `db.write`.

use std::convert::Infallible;
use std::sync::Arc;

use futures::FutureExt;

use crate::db::{Engine, RowAccess};
use crate::shutdown::Shutdown;
use crate::tool::scope::Tasks;

mod access;
mod active_runs;
mod admission;
mod admit;
mod answers;
mod assistants;
mod audit;
mod background;
mod call_files;
mod call_tokens;
mod cancel;
mod cancel_action;
mod children;
mod commit_order;
mod crons;
mod definitions;
mod deletion;
mod deliveries;
mod dispatcher;
mod error;
mod handles;
mod interrupts;
mod jobs;
mod journal;
mod late_commits;
mod lease;
mod ledger;
mod log_lines;
mod new_run;
mod prepare;
mod quotas;
mod registry;
mod remote_runs;
mod reports;
mod resource_ref;
mod resumption;
mod retry;
mod run_context;
mod runs;
mod sandboxes;
mod shared;
mod state_update;
mod store;
mod stored_bytes;
mod subagent_usage;
mod sweeper;
mod thread_status;
mod threads;
mod trace;
mod turns;
mod undo;
mod unfollowed_runs;
mod webhooks;
mod withdraw;

pub use access::{AccessControl, AccessError, AccessRefusal};
pub use answers::{InterruptReply, Interrupts, RespondError};
pub use assistants::{Assistants, DefaultAssistant, NewAssistant};
pub use audit::{Audit, interrupt_text};
pub use background::{delete_thread, known_status};
pub use call_files::{CallFileList, CallFiles, OpenCallFiles};
pub use call_tokens::StoredCallTokens;
pub use cancel_action::CancelAction;
pub use crons::{Crons, NewCron};
pub use definitions::{DefinitionError, Definitions};
pub use deliveries::Deliveries;
pub use error::{
    AssignedToOthers, AssistantError, BatchError, CallFileError, CancelError, CreateThreadError, CronError,
    DeleteRunError, OpenError, ResolveError, RevokeError, StartError, StateWriteError,
};
pub use handles::RuntimeHandles;
pub use interrupts::{open_among, open_interrupts};
pub use new_run::{AssistantRef, NewRun, Resolution, Target};
pub use registry::{AgentRecord, AgentSources, FileAgent, FileAgents};
pub use resource_ref::ResourceRef;
pub use runs::{RunResponse, Runs};
pub use shared::parts::RuntimeParts;
pub use shared::settings::{AuditSettings, Retention, RunBounds, SharingRules};
pub use state_update::{NodeWrite, StateWrite, Superstep};
pub use store::{IndexParts, Store, StoreError, StoreSettings};
pub use stored_bytes::StoredBytes;
pub use threads::{CreatedThread, NewThread, Threads};
pub use trace::called_by;
pub use unfollowed_runs::FollowingClient;
pub use webhooks::{Render, Report, WebhookSettings, Webhooks};

use background::BackgroundTasks;
use dispatcher::Dispatcher;
use jobs::JobRunner;
use shared::job_queue::JobQueue;

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

/// Returns the background tasks that the runs of a dispatcher can start.
fn tasks_of(dispatcher: &Arc<Dispatcher>) -> Arc<dyn Tasks> {
    Arc::new(BackgroundTasks::new(Runs::new(dispatcher)))
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

impl RuntimeHandles {
    /// Takes the lease of this process and starts its tasks. The dispatcher first looks for due runs that a crash left.
    ///
    /// # Errors
    /// Returns an error when an agent of a file cannot be assembled, or the database fails.
    pub async fn open(mut parts: RuntimeParts) -> Result<Self, OpenError> {
        let files = std::mem::take(&mut parts.sources.files);
        parts.metrics.work().set_known_names(files.labels());
        let claims = parts.claims;
        let dispatcher = Arc::new(Dispatcher::new(parts, JobQueue::new(jobs::limits_of), tasks_of));
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
        let cancelling = handles.runs.clone().cancel_unfollowed_runs();
        spawn_essential(&core.shutdown, "unfollowed runs", cancelling);
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
}
