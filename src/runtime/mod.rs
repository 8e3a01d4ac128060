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

use futures::FutureExt;

use crate::db::{Engine, RowAccess};
use crate::shutdown::Shutdown;

mod access;
mod admission;
mod admit;
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
mod retry;
mod run_context;
mod runs;
mod sandboxes;
mod shared;
mod state_update;
mod store;
mod stored_bytes;
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
pub use interrupts::{InterruptReply, Interrupts, RespondError, open_interrupts};
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
        let dispatcher = Arc::new(Dispatcher::new(parts, JobQueue::new(jobs::limits_of)));
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
}
