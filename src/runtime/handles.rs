//! The handles of the runtime.

use std::sync::Arc;

use super::access::AccessControl;
use super::answers::Interrupts;
use super::assistants::Assistants;
use super::audit::Audit;
use super::background::BackgroundTasks;
use super::call_files::CallFiles;
use super::call_tokens::StoredCallTokens;
use super::crons::Crons;
use super::definitions::Definitions;
use super::deliveries::Deliveries;
use super::dispatcher::Dispatcher;
use super::runs::Runs;
use super::shared::Core;
use super::stored_bytes::StoredBytes;
use super::threads::Threads;

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
    pub(super) tasks: BackgroundTasks,
    pub(super) core: Arc<Core>,
}

impl RuntimeHandles {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>) -> Self {
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
