//! The request for a run, after HTTP has checked its form.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::domain::id::{AssistantId, InterruptId, RunId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::json_size::value_size;
use crate::domain::run::RunRequest;

/// The key of the parent run in the metadata of the thread and the runs of a task.
pub(super) const PARENT_RUN: &str = "parent_run_id";

/// The field of a request that has the answers to interrupts.
pub(super) const ANSWERS: &str = "command.resume";

/// The stream modes of the run of a task.
pub(super) const STREAM_MODES: [&str; 4] = ["values", "updates", "messages-tuple", "custom"];

/// The size from which a request is checked in advance. The check of a smaller request takes less than a millisecond.
const LARGE: usize = 16 * 1024;

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

/// The resolution of interrupts that a run brings.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// The answer of a client to the open interrupts: one answer if there is one interrupt, a map by interrupt id, or a
    /// list in the order in which the interrupts were raised.
    Answered(Value),
    /// The answer of a client to this interrupt, with nothing else in the request. Its approvers bring it without any
    /// further access to the thread.
    AnsweredAlone(InterruptId, Value),
    /// The interrupts of this subagent were answered, or dropped, on the server where it runs.
    AnsweredRemotely(RunId),
    /// The expiry of these interrupts. They get the answers that their questions name for that.
    Expired(Vec<InterruptId>),
    /// The cancellation of subagents that waited. Their callers continue without them.
    Cancelled(Vec<RunId>),
}

/// Returns whether a request is so large that reading it may be slow.
pub(super) fn is_large(request: &RunRequest) -> bool {
    let update = request.command.as_ref().and_then(|command| command.update.as_ref());
    let brought: usize = request.input.iter().chain(update).map(value_size).sum();
    brought + size_of(&request.context) > LARGE
}

/// Returns whether a context is so large that checking it may be slow.
pub(super) fn is_context_large(context: &Map<String, Value>) -> bool {
    size_of(context) > LARGE
}

fn size_of(context: &Map<String, Value>) -> usize {
    context.values().map(value_size).sum()
}

/// Returns whether a run with this request may take its first step where it is admitted: all that it brings is input for
/// the newest checkpoint.
pub(super) fn may_step_at_once(request: &RunRequest) -> bool {
    let only_input = request.command.is_none() && request.checkpoint.is_none() && request.compaction.is_none();
    // A run that is found at its input after a crash has passed the breakpoint there. So the input of a run with
    // breakpoints is stored when it has met the first of them, or passed it.
    let has_breakpoints = !request.interrupt_before.is_empty() || !request.interrupt_after.is_empty();
    request.input.is_some() && only_input && !has_breakpoints && !is_large(request)
}

/// Returns a request whose run is streamed in all modes.
pub(super) fn streamed_request() -> RunRequest {
    let stream_mode = STREAM_MODES.map(str::to_owned).into();
    RunRequest {
        stream_mode,
        stream_subgraphs: true,
        stream_resumable: true,
        ..RunRequest::default()
    }
}
