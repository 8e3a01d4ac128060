//! The traces of runs: the place of a run in a trace, and the spans of agents, commits and webhooks.
//!
//! The place is stored with the run, so that every process that works for the run continues the same trace. A run that is
//! started by a request, or by an agent as a background task, is below the span of that request or call. A run that
//! answers interrupts is below the span of the run that waited, and has a link to the request that brought the answer.

use tokio::task_local;

use super::run_context::RunContext;
use super::shared::Core;
use crate::agent::set_conversation;
use crate::db::{self, Engine};
use crate::domain::delivery::Delivery;
use crate::domain::event::Origin;
use crate::domain::id::RunId;
use crate::domain::machine::{Failure, Machine};
use crate::domain::run::{Run, RunStatus};
use crate::domain::time::Timestamp;
use crate::domain::trace::{RunTrace, SpanContext, SpanData, SpanId, SpanKind, TraceScope, Tracer};

task_local! {
    /// The span of the request, or of the tool call, for which the current task works.
    static CALLER: SpanContext;
}

/// Does work on behalf of the span `caller`: runs that it starts are below that span.
pub async fn called_by<W: Future>(caller: Option<SpanContext>, work: W) -> W::Output {
    match caller {
        Some(caller) => CALLER.scope(caller, work).await,
        None => work.await,
    }
}

/// Returns the span on whose behalf the current task works.
pub(super) fn caller() -> Option<SpanContext> {
    CALLER.try_with(Clone::clone).ok()
}

/// Returns work for a task of its own, on behalf of the caller of the current task.
pub(super) fn for_current_caller<W: Future>(work: W) -> impl Future<Output = W::Output> {
    called_by(caller(), work)
}

/// Returns the trace of a new run: below the run that it continues, else below its caller, else in a new trace. Returns
/// none if traces are off.
pub(super) fn new_run_trace(
    tracer: &Tracer,
    run: RunId,
    continued: Option<RunTrace>,
    caller: Option<&SpanContext>,
) -> Option<RunTrace> {
    if !tracer.is_on() {
        return None;
    }
    if let Some(before) = continued {
        return Some(RunTrace {
            link: caller.filter(|caller| caller.trace != before.context.trace).cloned(),
            ..RunTrace::below(before.context, run)
        });
    }
    match caller {
        Some(caller) => Some(RunTrace::below(caller.clone(), run)),
        None => Some(RunTrace::root(&tracer.begin_server_span(None)?, run)),
    }
}

/// Returns the scope of the main agent of a run.
pub(super) fn scope_of(tracer: &Tracer, run: &Run) -> TraceScope {
    tracer.scope(run.request.trace.as_ref().map(|trace| trace.context.clone()))
}

/// The end of an agent's work, for its span.
pub(super) struct AgentEnd<'a> {
    pub(super) status: RunStatus,
    pub(super) error: Option<&'a Failure>,
    /// True if the agent waits, for answers or at a breakpoint.
    pub(super) waits: bool,
}

/// The agent whose work a span is about.
pub(super) struct TracedAgent<'a> {
    pub(super) context: &'a RunContext,
    pub(super) trace: &'a TraceScope,
    pub(super) origin: &'a Origin,
    /// The run of the agent: the main agent's, or a child's.
    pub(super) run: RunId,
    /// The time at which the run of a child was created; none for the main agent.
    pub(super) created: Option<Timestamp>,
}

impl TracedAgent<'_> {
    /// Records the span of the agent.
    pub(super) fn record(&self, end: &AgentEnd<'_>, machine: Option<&Machine>) {
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
pub(super) fn begin_commit(trace: &TraceScope, core: &Core) -> Option<SpanData> {
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

/// Returns the trace of the run that a delivery reports. A run that is deleted with its thread has none any more.
pub(super) async fn of_delivery(core: &Core, delivery: &Delivery) -> TraceScope {
    if !core.tracer.is_on() {
        return TraceScope::default();
    }
    let run = delivery.run;
    let read = core.db.read(move |tx| Box::pin(db::runs::get_by_id(tx, run))).await;
    match read {
        Ok(Some(run)) => scope_of(&core.tracer, &run),
        Ok(None) | Err(_) => TraceScope::default(),
    }
}
