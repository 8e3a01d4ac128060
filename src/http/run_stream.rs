//! The streams of single runs: what a reader requests, and where it begins.

use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use super::Api;
use super::error::{ApiError, Gap};
use super::extract::Params;
use super::stream::{self, Cursor, MetadataDetail, ResumePoint, RunInfo, StreamMode, StreamRequest};
use crate::db::{checkpoints, runs};
use crate::domain::id::ThreadId;
use crate::domain::run::{Run, RunStatus};

/// The stream of a run with the modes that the run was created with.
pub(super) fn stream_request(api: &Api, run: &Run, cancel_on_disconnect: bool) -> StreamRequest {
    let graph = run.metadata.get("graph_id").and_then(Value::as_str).unwrap_or_default();
    let on_disconnect = cancel_on_disconnect.then(|| {
        let runs = api.runs.clone();
        let thread = run.thread;
        let id = run.id;
        Box::new(move || runs.cancel_soon(thread, id)) as Box<dyn FnOnce() + Send>
    });
    StreamRequest {
        info: RunInfo::of(run, graph),
        modes: run
            .request
            .stream_mode
            .iter()
            .filter_map(|word| StreamMode::from_word(word))
            .collect(),
        subgraphs: run.request.stream_subgraphs,
        resumable: run.request.stream_resumable,
        resume_from: None,
        filter: None,
        detail: MetadataDetail::Full,
        heartbeat: api.settings.heartbeat,
        on_disconnect,
    }
}

/// The stream modes that a client requests: one or several names, or JSON arrays of names.
pub(super) fn requested_modes(params: &Params) -> Result<Option<Vec<StreamMode>>, ApiError> {
    let mut modes = vec![];
    for text in params.texts("stream_mode") {
        let words = serde_json::from_str::<Vec<String>>(&text).unwrap_or_else(|_| vec![text]);
        for word in words.iter().filter(|word| !word.is_empty()) {
            let wrong = || {
                let allowed = StreamMode::ALL.map(StreamMode::word).join(", ");
                ApiError::bad_parameter("stream_mode", word, &format!("allowed are: {allowed}"))
            };
            modes.push(StreamMode::from_word(word).ok_or_else(wrong)?);
        }
    }
    Ok((!modes.is_empty()).then_some(modes))
}

/// The event named by `Last-Event-ID`. An empty header, which some clients send before the first event, names none.
///
/// # Errors
/// If the header names no event.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<ResumePoint>, ApiError> {
    let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    text.parse().map(Some).map_err(|_| {
        ApiError::bad_parameter(
            "Last-Event-ID",
            text,
            "must be the id of an event, or -1 for the beginning",
        )
    })
}

/// Refuses to resume after an event that the log no longer contains.
pub(super) async fn check_gap(api: &Api, thread: ThreadId, resume_from: Option<&ResumePoint>) -> Result<(), ApiError> {
    let Some(since) = resume_from.map(|point| point.cursor.seq).filter(|seq| *seq > 0) else {
        return Ok(());
    };
    match api.events.gap(thread, since).await? {
        Some(first) => Err(ApiError::resume_gap(
            "Last-Event-ID",
            Gap {
                since,
                min_available_seq: first,
            },
        )),
        None => Ok(()),
    }
}

/// The run of the main agent that a child run is active in, with the thread's newest sequence number. `None` if the
/// child run is not active.
pub(super) async fn active_main_run(api: &Api, child: &Run) -> Result<Option<(Run, i64)>, ApiError> {
    let thread = child.thread;
    let id = child.id;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let run = runs::find(tx, thread, id).await?;
            if run.is_none_or(|run| run.status.is_final()) {
                return Ok(None);
            }
            let mains = runs::in_flight(tx, thread).await?;
            let main = mains.into_iter().find(|run| run.status == RunStatus::Running);
            let newest = checkpoints::max_seq(tx, thread).await?;
            Ok(main.map(|main| (main, newest)))
        })
    });
    Ok(read.await?)
}

/// The request for the stream of a child run.
pub(super) struct ChildReader {
    /// The last event that the reader has seen.
    pub resume_from: Option<ResumePoint>,
    /// The modes of this reader, if not all of the run's.
    pub filter: Option<Vec<StreamMode>>,
    /// The metadata of the pieces of answers.
    pub detail: MetadataDetail,
    /// True if the run is cancelled when the reader disconnects.
    pub cancel_on_disconnect: bool,
}

/// Responds with the events of a child run, in the modes of the main agent's run: after `resume_from`, or from now on.
pub(super) async fn stream_child(api: &Api, child: &Run, reader: ChildReader) -> Result<Response, ApiError> {
    let ChildReader {
        resume_from,
        filter,
        detail,
        cancel_on_disconnect,
    } = reader;
    let root = child.lineage.root;
    let active = active_main_run(api, child).await?;
    let now = active.as_ref().map(|(_, now)| *now);
    let main = match active {
        Some((main, _)) => main,
        None => api
            .events
            .run(root)
            .await?
            .ok_or_else(|| ApiError::not_found("run_not_found"))?,
    };
    let resume_from = resume_from.filter(|_| main.request.stream_resumable);
    let joined_at = now.filter(|_| resume_from.is_none());
    let tail = match joined_at {
        Some(now) => api.events.join_child(&main, child, now),
        None => api.events.tail_of_child(&main, child),
    };
    // Of a run that has ended, who names no event gets none.
    let at_the_end = || ResumePoint {
        cursor: Cursor::after(i64::MAX),
        answers: vec![],
    };
    let resume_from = resume_from.or_else(|| now.is_none().then(at_the_end));
    let mut request = stream_request(api, &main, false);
    if cancel_on_disconnect {
        let runs = api.runs.clone();
        let thread = child.thread;
        let id = child.id;
        request.on_disconnect = Some(Box::new(move || runs.cancel_soon(thread, id)));
    }
    let request = StreamRequest {
        resume_from,
        filter,
        detail,
        subgraphs: true,
        ..request
    };
    Ok(stream::stream_run(api.events.clone(), tail, request))
}
