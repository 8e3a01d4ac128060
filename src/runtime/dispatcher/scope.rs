//! The scope of the main agent of a run.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Dispatcher;
use crate::agent::assemble::RegisteredAgent;
use crate::domain::run::RunOrigin;
use crate::runtime::run_context::RunContext;
use crate::runtime::sandboxes::StoredSandboxes;
use crate::runtime::{BackgroundTasks, Runs, StoredCallTokens};
use crate::tool::budget::Budget;
use crate::tool::files::FileClaims;
use crate::tool::remembered::NothingRemembered;
use crate::tool::{CallSlots, ProgressSink, Scope};

impl Dispatcher {
    pub(super) fn scope(
        self: &Arc<Self>,
        run_context: &RunContext,
        known: &RegisteredAgent,
        origin: RunOrigin,
        stop: CancellationToken,
        budget: Budget,
    ) -> Scope {
        let run = &run_context.run;
        let ownership = run_context.ownership.clone();
        Scope {
            agent: known.agent.name.clone(),
            path: run.lineage.path.clone().into(),
            thread: run.thread,
            ownership: ownership.clone(),
            run: run.id,
            origin,
            assistant: run.assistant,
            depth: 0,
            subagent: None,
            visibility: run.lineage.visibility,
            context: Arc::new(run.request.tool_context()),
            context_scoping: known.context_scoping,
            clock: Arc::clone(&self.core.clock),
            store: Arc::new(self.store.space_of(ownership)),
            tasks: Arc::new(BackgroundTasks::new(Runs::new(self))),
            // A decision is given with an answer, which another run brings: this run meets none that is not there yet.
            remembered: Arc::new(NothingRemembered),
            sandboxes: Arc::new(StoredSandboxes(self.core.db.clone())),
            tokens: Arc::new(StoredCallTokens::new(Arc::clone(&self.core))),
            task: None,
            step_limit: run.request.step_limit(),
            sizes: self.core.sizes,
            stop,
            budget,
            slots: CallSlots::new(self.calls_per_run, Arc::clone(&self.calls)),
            progress: ProgressSink::default(),
            form: None,
            answer: None,
            question: None,
            answers: Arc::default(),
            delegations: Arc::default(),
            program: Arc::default(),
            files: FileClaims::default(),
            trace: run_context.trace.clone(),
        }
    }
}
