//! The log lines about runs, subagents, background tasks and interrupts: that one started, ended or was answered. They
//! have ids, names and numbers, and no content of the thread.

use std::time::Duration;

use crate::db::interrupts::InterruptRecord;
use crate::domain::background::{TaskRecord, TaskRun, TaskStatus};
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::RunId;
use crate::domain::interrupt::QuestionKind;
use crate::domain::limits::Usage;
use crate::domain::machine::Failure;
use crate::domain::run::Run;
use crate::tool::Scope;

/// The word for the end of a run that was undone.
pub(super) const ROLLED_BACK: &str = "rolled_back";

/// The end of a run, of a main agent or a subagent.
pub(super) struct FinishedRun<'a> {
    /// The status of the run, as a word.
    status: &'static str,
    /// The error, if the run failed or was cancelled.
    error: Option<&'a Failure>,
    /// True if the run waits, for answers or at a breakpoint.
    waits: bool,
    /// The time for which the run was at work in this process.
    took: Option<Duration>,
    /// The usage of the run and of all runs below it, if known.
    used: Option<Usage>,
}

/// Returns the end of a run that an event reports, with the time `took`; none for other events.
pub(super) fn finished_run(event: &Event, took: Duration) -> Option<FinishedRun<'_>> {
    let EventBody::Fact(Fact::Ended {
        status,
        error,
        waits,
        used,
    }) = &event.body
    else {
        return None;
    };
    let used = used.as_ref().map(|totals| totals.tree.unwrap_or(totals.own));
    Some(FinishedRun {
        status: status.word(),
        error: error.as_ref(),
        waits: *waits,
        took: Some(took),
        used,
    })
}

/// Logs that a run ended.
pub(super) fn run_ended(run: &Run, end: &FinishedRun<'_>) {
    let user = run.request.caller.as_ref();
    tracing::info!(
        run = %run.id,
        thread = %run.thread,
        agent = run.lineage.agent(),
        user = user.map(|user| tracing::field::display(&user.identity)),
        tenant = user.map(|user| tracing::field::display(&user.tenant)),
        status = end.status,
        error = end.error.map(|failure| failure.class.as_str()),
        waits = end.waits,
        duration_ms = end.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        model_calls = end.used.map(|used| used.model_calls),
        tool_calls = end.used.map(|used| used.tool_calls),
        input_tokens = end.used.map(|used| used.input_tokens),
        output_tokens = end.used.map(|used| used.output_tokens),
        "run ended"
    );
}

/// Logs that the run of a subagent ended, or stopped to wait.
pub(super) fn subagent_ended(subagent: RunId, origin: &Origin, main: &Run, end: &FinishedRun<'_>) {
    tracing::info!(
        run = %subagent,
        main_run = %main.id,
        thread = %main.thread,
        agent = origin.agent,
        path = origin.path.join("/"),
        status = end.status,
        error = end.error.map(|failure| failure.class.as_str()),
        waits = end.waits,
        duration_ms = end.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        model_calls = end.used.map(|used| used.model_calls),
        tool_calls = end.used.map(|used| used.tool_calls),
        input_tokens = end.used.map(|used| used.input_tokens),
        output_tokens = end.used.map(|used| used.output_tokens),
        "subagent ended"
    );
}

/// Logs that an event starts or continues the run of an agent, at the level DEBUG.
pub(super) fn agent_started(event: &Event, run: RunId, main: &Run) {
    let EventBody::Fact(Fact::Started { attempt, resumed, .. }) = &event.body else {
        return;
    };
    tracing::debug!(
        %run,
        main_run = %main.id,
        thread = %main.thread,
        agent = event.origin.agent,
        attempt,
        resumed,
        "agent started"
    );
}

/// Logs that an agent started a background task, or sent it a further message.
pub(super) fn background_task_started(scope: &Scope, agent: &str, started: &TaskRun) {
    tracing::info!(
        task = started.thread,
        run = started.run,
        agent,
        parent_run = %scope.run,
        parent_thread = %scope.thread,
        parent_agent = scope.agent,
        "background task started"
    );
}

/// Logs that a background task on another server ended. One on this server is a run of its own.
pub(super) fn background_task_ended(record: &TaskRecord, status: TaskStatus) {
    tracing::info!(
        task = %record.task,
        agent = record.graph_id,
        parent_run = %record.parent_run,
        status = status.word(),
        "background task ended"
    );
}

/// Logs that a run was withdrawn before it began, was undone, or ends without the process that works on it.
pub(super) fn run_withdrawn(run: &Run, status: &'static str) {
    run_ended(
        run,
        &FinishedRun {
            status,
            error: None,
            waits: false,
            took: None,
            used: None,
        },
    );
}

/// Logs that an agent waits for an answer.
pub(super) fn interrupt_raised(asked: &InterruptRecord) {
    let question = &asked.interrupt.question;
    let kind = match question.kind {
        QuestionKind::ToolApproval => "tool_approval",
        QuestionKind::UnknownOutcome => "unknown_outcome",
        QuestionKind::Question => "question",
    };
    tracing::info!(
        interrupt = %asked.interrupt.id.0,
        run = %asked.run,
        thread = %asked.thread,
        agent = asked.agent,
        kind,
        calls = question.calls.len(),
        "interrupt asked"
    );
}

/// Logs the interrupts that a new run answers.
pub(super) fn interrupts_answered(run: &Run) {
    let answers = run
        .request
        .command
        .iter()
        .filter_map(|command| command.resume.as_ref())
        .flatten();
    for (interrupt, _) in answers {
        tracing::info!(interrupt = %interrupt.0, run = %run.id, thread = %run.thread, "interrupt answered");
    }
}
