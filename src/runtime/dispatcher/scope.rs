//! The scope of the main agent of a run.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Dispatcher;
use crate::agent::assemble::RegisteredAgent;
use crate::domain::access::Ownership;
use crate::domain::run::{Run, RunOrigin};
use crate::domain::trace::TraceScope;
use crate::runtime::call_tokens::StoredCallTokens;
use crate::runtime::run_context::RunContext;
use crate::runtime::sandboxes::StoredSandboxes;
use crate::tool::budget::Budget;
use crate::tool::file_claims::FileClaims;
use crate::tool::remembered::NothingRemembered;
use crate::tool::{CallSlots, ContextEntries, ProgressSink, Scope};

impl Dispatcher {
    /// Returns the scope of a run that is driven.
    pub(super) fn scope(
        self: &Arc<Self>,
        run_context: &RunContext,
        known: &RegisteredAgent,
        origin: RunOrigin,
        stop: CancellationToken,
        budget: Budget,
    ) -> Scope {
        Scope {
            origin,
            stop,
            trace: run_context.trace.clone(),
            ..self.scope_of(&run_context.run, &run_context.ownership, known, budget)
        }
    }

    /// Returns the scope of a run on a thread that belongs to `ownership`. It is not traced, and nothing stops it.
    pub(in crate::runtime) fn scope_of(
        self: &Arc<Self>,
        run: &Run,
        ownership: &Ownership,
        known: &RegisteredAgent,
        budget: Budget,
    ) -> Scope {
        Scope {
            agent: known.name.clone(),
            path: run.lineage.path.clone().into(),
            thread: run.thread,
            ownership: ownership.clone(),
            run: run.id,
            origin: RunOrigin::of(run.id),
            assistant: run.assistant,
            depth: 0,
            subagent: None,
            visibility: run.lineage.visibility,
            context: ContextEntries::new(run.request.tool_context()),
            context_scoping: known.context_scoping,
            clock: Arc::clone(&self.core.clock),
            store: Arc::new(self.store.space_of(ownership.clone())),
            tasks: (self.tasks_of)(self),
            // A decision is given with an answer, which another run brings: this run meets none that is not there yet.
            remembered: Arc::new(NothingRemembered),
            sandboxes: Arc::new(StoredSandboxes {
                db: self.core.db.clone(),
                replaces_lost: true,
            }),
            tokens: Arc::new(StoredCallTokens::new(Arc::clone(&self.core))),
            task: None,
            step_limit: run.request.step_limit(),
            sizes: self.core.sizes,
            stop: CancellationToken::new(),
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
            trace: TraceScope::default(),
        }
    }
}
