//! The place of a run in a trace.
//!
//! The place is stored with the run, so that every process that works for the run continues the same trace. A run that is
//! started by a request, or by an agent as a background task, is below the span of that request or call. A run that
//! answers interrupts is below the span of the run that waited, and has a link to the request that brought the answer.

use tokio::task_local;

use crate::domain::id::RunId;
use crate::domain::run::Run;
use crate::domain::trace::{RunTrace, SpanContext, TraceScope, Tracer};

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
