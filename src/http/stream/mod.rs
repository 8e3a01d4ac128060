//! Streams: from events to frames. STUB until the room is merged.

use std::time::Duration;

use axum::response::{IntoResponse, Response};

use crate::domain::run::Run;
use crate::domain::id::ThreadId;
use crate::events::Tail;
use crate::runtime::Runs;

/// What a client wants to see of a run.
pub struct StreamRequest {
    /// The thread.
    pub thread: ThreadId,
    /// The run.
    pub run: Run,
    /// The streams.
    pub modes: Vec<String>,
    /// Whether subagents are shown.
    pub subgraphs: bool,
    /// Whether events carry ids.
    pub resumable: bool,
    /// How often a quiet stream gives a sign of life.
    pub heartbeat: Duration,
    /// Cancels the run when the client leaves.
    pub cancel_on_disconnect: Option<Runs>,
}

/// Answers with the events of a run.
pub fn respond(_tail: Tail, _request: StreamRequest) -> Response {
    axum::http::StatusCode::OK.into_response()
}
