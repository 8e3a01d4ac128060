//! The spans of a run at work: those of its agents and of their commits.

use std::sync::atomic::Ordering;

use super::LaneJournal;
use super::batch::{CommitBatch, RunEnd};
use crate::agent::set_conversation;
use crate::db::Engine;
use crate::domain::event::Origin;
use crate::domain::id::RunId;
use crate::domain::machine::{Failure, Machine};
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;
use crate::domain::trace::{SpanData, SpanId, SpanKind, TraceScope};
use crate::runtime::run_context::RunContext;
use crate::runtime::shared::Core;

/// The end of an agent's work, for its span.
struct AgentEnd<'a> {
    status: RunStatus,
    error: Option<&'a Failure>,
    /// True if the agent waits, for answers or at a breakpoint.
    waits: bool,
}

/// The agent whose work a span is about.
struct TracedAgent<'a> {
    context: &'a RunContext,
    trace: &'a TraceScope,
    origin: &'a Origin,
    /// The run of the agent: the main agent's, or a child's.
    run: RunId,
    /// The time at which the run of a child was created; none for the main agent.
    created: Option<Timestamp>,
}

impl TracedAgent<'_> {
    /// Records the span of the agent.
    fn record(&self, end: &AgentEnd<'_>, machine: Option<&Machine>) {
        if !self.trace.is_recorded() {
            return;
        }
        let root = &self.context.run;
        let placed = root.request.trace.as_ref();
        let parent = match self.origin.namespace.last() {
            None => placed
                .and_then(|placed| placed.parent.as_ref())
                .map(|parent| parent.span),
            Some(task) => Some(SpanId::of_call(*task, root.id)),
        };
        let Some(mut span) = self.trace.begin_current(parent, SpanKind::Internal) else {
            return;
        };
        // The same in every process that has worked for the run.
        span.start = self.created.unwrap_or(root.due_at).max(root.due_at);
        span.name = format!("invoke_agent {}", self.origin.agent);
        span.set("gen_ai.operation.name", "invoke_agent");
        span.set("gen_ai.agent.name", self.origin.agent.clone());
        let thread = root.thread.to_string();
        span.set("gen_ai.conversation.id", thread.clone());
        span.set("session.id", thread.clone());
        span.set("langsmith.span.kind", "chain");
        span.set("langsmith.metadata.thread_id", thread);
        span.set_some(
            "user.id",
            root.request.caller.as_ref().map(|caller| caller.identity.to_string()),
        );
        span.set_some(
            "adjutant.tenant",
            root.request.caller.as_ref().map(|caller| caller.tenant.to_string()),
        );
        span.set("adjutant.run.id", self.run.to_string());
        span.set("adjutant.run.status", end.status.word());
        if self.created.is_none() {
            span.set("gen_ai.agent.id", root.assistant.to_string());
            span.set("adjutant.run.attempt", u64::from(root.attempt));
            span.links.extend(placed.and_then(|placed| placed.link.clone()));
        }
        if end.waits {
            span.set("adjutant.waits", true);
        }
        if let Some(failure) = end.error {
            span.fail(failure.class.clone());
        }
        if let (Some(machine), Some(limit)) = (machine, self.trace.content_bytes()) {
            set_conversation(&mut span, &machine.state, limit);
        }
        self.trace.end(Some(span));
    }
}

/// Begins the span of a commit.
fn begin_commit(trace: &TraceScope, core: &Core) -> Option<SpanData> {
    let mut span = trace.begin(SpanKind::Client)?;
    let system = match core.db.engine() {
        Engine::Sqlite => "sqlite",
        Engine::Postgres => "postgresql",
    };
    "COMMIT checkpoints".clone_into(&mut span.name);
    span.set("db.system.name", system);
    span.set("db.operation.name", "COMMIT");
    span.set("db.collection.name", "checkpoints");
    Some(span)
}

impl LaneJournal {
    /// Begins the span of a commit.
    pub(super) fn begin_span(&self, batch: &CommitBatch) -> Option<SpanData> {
        let mut span = begin_commit(&self.trace, &self.run_context.core)?;
        let size = batch.count + batch.items.len() + batch.asked.len();
        span.set("db.operation.batch.size", size);
        Some(span)
    }

    fn traced_agent(&self) -> TracedAgent<'_> {
        TracedAgent {
            context: &self.run_context,
            trace: &self.trace,
            origin: &self.origin,
            run: self.run,
            created: self.created,
        }
    }

    /// Records the span of the agent, whose end is stored.
    pub(super) fn record_span(&self, end: &RunEnd, machine: &Machine) {
        self.ended.store(true, Ordering::Relaxed);
        let end = AgentEnd {
            status: end.status,
            error: end.error.as_ref(),
            waits: end.waits,
        };
        self.traced_agent().record(&end, Some(machine));
    }

    /// Records the span of a run that was cancelled and undone.
    pub(in crate::runtime) fn record_rollback(&self) {
        self.record_cancellation();
    }

    pub(super) fn record_cancellation(&self) {
        let failure = Failure::cancelled();
        let end = AgentEnd {
            status: RunStatus::Interrupted,
            error: Some(&failure),
            waits: false,
        };
        self.traced_agent().record(&end, None);
    }
}
