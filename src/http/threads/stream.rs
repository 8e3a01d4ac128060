//! The stream of a thread: the events of all its runs, one run after another.

use axum::http::HeaderMap;
use axum::response::Response;
use bytes::BytesMut;
use serde_json::json;

use crate::db::{DbResult, threads, warn_of};
use crate::domain::access::Action;
use crate::domain::event::Event;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::run::Run;
use crate::events::{RunSequence, ThreadItem};
use crate::http::client::ClientId;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{ApiPath, Params, ThreadPath};
use crate::http::run_stream::{check_gap, last_event_id};
use crate::http::stream::frame::unseen;
use crate::http::stream::{
    self, Cursor, Flow, Frame, MetadataDetail, MetadataDetailHeader, MetadataDetailParameter, Projection, ResumePoint,
    RunInfo, StreamMode, V1Presenter,
};
use crate::http::stream_limits::StreamPermit;
use crate::http::wire::server_sent_event::ServerSentEvent;
use crate::http::{Api, state};
use crate::runtime::ResourceRef;

/// The stream modes of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StreamModes {
    /// The start and end of runs.
    lifecycle: bool,
    /// All events of the runs, in the modes that each run was created with.
    run_modes: bool,
    /// State updates by clients.
    state_update: bool,
}

impl StreamModes {
    /// Reads the mode names. One parameter may hold several.
    fn of(params: &Params) -> Result<Self, ApiError> {
        let mut modes = Self::default();
        let texts = [params.texts("stream_mode"), params.texts("stream_modes")].concat();
        for word in texts
            .iter()
            .flat_map(|text| text.split(','))
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            match word {
                "lifecycle" => modes.lifecycle = true,
                "run_modes" => modes.run_modes = true,
                "state_update" => modes.state_update = true,
                other => {
                    return Err(ApiError::bad_parameter(
                        "stream_modes",
                        other,
                        "allowed are: lifecycle, run_modes, state_update",
                    ));
                }
            }
        }
        Ok(if modes == Self::default() {
            Self {
                run_modes: true,
                ..modes
            }
        } else {
            modes
        })
    }
}

/// Streams the events of all runs of a thread. The stream does not end by itself.
///
/// `run_modes` streams each run as its own endpoint does, with `metadata` before and after it; `lifecycle` sends only
/// the start and end of runs; `state_update` sends state updates by clients. `Last-Event-ID` resumes after an event,
/// and `-1` or `-` starts at the first run; without it, only new events are sent.
#[utoipa::path(get, path = "/threads/{thread_id}/stream", tag = "Threads",
    params(ThreadPath,
        ("stream_mode" = Option<String>, Query, description = "A mode: lifecycle, run_modes (default) or state_update; may be repeated"),
        ("last-event-id" = Option<String>, Header, description = "The id of the last event that the client has received"),
        MetadataDetailParameter, MetadataDetailHeader),
    responses((status = 200, description = "The events", body = ServerSentEvent, content_type = "text/event-stream"),
        (status = 404, description = "Thread not found", body = ErrorBody),
        (status = 409, description = "The log no longer contains the last event", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(in crate::http) async fn follow(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    params: Params,
    headers: HeaderMap,
    client: ClientId,
    detail: MetadataDetail,
) -> Result<Response, ApiError> {
    let thread = path.thread_id;
    let modes = StreamModes::of(&params)?;
    let resume_from = last_event_id(&headers)?;
    let found = api
        .db
        .read(move |tx| Box::pin(async move { threads::find(tx, thread).await }))
        .await?;
    found.ok_or_else(|| ApiError::no_thread(thread))?;
    check_gap(&api, thread, resume_from.as_ref()).await?;
    let permit = api.open_stream(Some(thread), client)?;
    let source = match &resume_from {
        Some(point) => RunSequence::from_seq(&api.events, thread, point.cursor.seq).await?,
        None => RunSequence::from_now(&api.events, thread).await?,
    };
    let heartbeat = api.settings.heartbeat;
    let seen = resume_from.as_ref().map(|point| point.cursor);
    Ok(stream::respond(
        ThreadRunsProjection {
            api,
            thread,
            modes,
            detail,
            presenter: None,
            seen,
            resume_from,
            _permit: permit,
        },
        source,
        heartbeat,
    ))
}

/// The projection of a thread's runs for one client.
struct ThreadRunsProjection {
    api: Api,
    thread: ThreadId,
    modes: StreamModes,
    detail: MetadataDetail,
    /// The presenter of the current run.
    presenter: Option<V1Presenter>,
    /// The last frame that the client has seen.
    seen: Option<Cursor>,
    /// The same with how far it has seen the answers that were unfinished then, until the run of that frame is presented.
    resume_from: Option<ResumePoint>,
    _permit: StreamPermit,
}

impl Projection for ThreadRunsProjection {
    type Source = RunSequence;
    type Item = DbResult<Option<ThreadItem>>;

    async fn read(mut source: Box<RunSequence>) -> (Box<RunSequence>, Self::Item) {
        let item = source.next().await;
        (source, item)
    }

    async fn take(&mut self, source: &mut RunSequence, item: Self::Item, buffer: &mut BytesMut) -> Flow {
        let result = match item {
            Ok(Some(item)) => match self.is_shown(&item).await {
                Ok(true) => self.take_item(item, buffer).await,
                Ok(false) => return Flow::End,
                Err(error) => Err(error),
            },
            Ok(None) if source.is_cut() => return Flow::Break,
            Ok(None) => return Flow::End,
            // The client resumes when the database is back.
            Err(error) if error.is_resumable() => {
                warn_of!(error, thread = %self.thread, "thread stream ended early");
                return Flow::Break;
            }
            Err(error) => Err(error.into()),
        };
        match result {
            Ok(()) => Flow::Continue,
            Err(error) if error.is_unavailable() => {
                tracing::warn!(thread = %self.thread, error = error.message(), "thread stream ended early");
                Flow::Break
            }
            Err(error) => {
                tracing::error!(thread = %self.thread, error = error.message(), "thread stream failed");
                Frame::fault().write(buffer);
                Flow::End
            }
        }
    }
}

impl ThreadRunsProjection {
    /// Returns whether the caller may see what begins with this item. The thread may be shared no more, or it is one that
    /// another user has created anew.
    async fn is_shown(&self, item: &ThreadItem) -> Result<bool, ApiError> {
        match item {
            ThreadItem::RunStarted(_) | ThreadItem::StateUpdated(..) => {
                let thread = ResourceRef::Thread(self.thread);
                Box::pin(self.api.may(Action::ThreadsRead, thread)).await
            }
            ThreadItem::Event(_) | ThreadItem::RunEnded(..) => Ok(true),
        }
    }

    async fn take_item(&mut self, item: ThreadItem, buffer: &mut BytesMut) -> Result<(), ApiError> {
        match item {
            ThreadItem::RunStarted(run) => {
                self.start_run(&run);
                Ok(())
            }
            ThreadItem::Event(event) => self.event(&event, buffer).await,
            ThreadItem::RunEnded(run, seq) => {
                self.end_run(run, seq, buffer);
                Ok(())
            }
            ThreadItem::StateUpdated(checkpoint, seq) => self.state_updated(checkpoint, seq, buffer).await,
        }
    }

    fn start_run(&mut self, run: &Run) {
        let graph = run
            .metadata
            .get("graph_id")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        let modes: Vec<StreamMode> = run
            .request
            .stream_mode
            .iter()
            .filter_map(|word| StreamMode::from_word(word))
            .collect();
        let modes = match (self.modes.run_modes, modes.is_empty()) {
            // The frame that names the run is sent in any mode.
            (false, _) => vec![StreamMode::Custom],
            (true, true) => vec![StreamMode::Values],
            (true, false) => modes,
        };
        let info = RunInfo::of(run, graph);
        let subgraphs = run.request.stream_subgraphs;
        let mut presenter = V1Presenter::new(info, modes.into_iter().collect(), subgraphs).with_detail(self.detail);
        // The unfinished answers belong to the run of the last event that the client has seen, which comes first.
        if let Some(point) = self.resume_from.take() {
            presenter.resume(point);
        }
        self.presenter = Some(presenter);
    }

    async fn event(&mut self, event: &Event, buffer: &mut BytesMut) -> Result<(), ApiError> {
        let Some(presenter) = &mut self.presenter else {
            return Ok(());
        };
        let loaded = stream::load(&self.api.events, self.thread, presenter.needs(event)).await?;
        let frames = presenter.present(event, loaded);
        for (mut frame, cursor) in unseen(frames, event.seq, self.seen) {
            if self.modes.run_modes || self.modes.lifecycle && frame.event.word == "metadata" {
                frame.id = Some(presenter.position(&frame, cursor));
                frame.write(buffer);
            }
        }
        Ok(())
    }

    fn end_run(&mut self, run: RunId, seq: i64, buffer: &mut BytesMut) {
        self.presenter = None;
        if self.modes.run_modes || self.modes.lifecycle {
            self.write_frame("metadata", &json!({"status": "run_done", "run_id": run}), seq, buffer);
        }
    }

    async fn state_updated(&self, checkpoint: CheckpointId, seq: i64, buffer: &mut BytesMut) -> Result<(), ApiError> {
        if self.modes.state_update {
            let state = state::load_state_at(&self.api, self.thread, checkpoint).await?.0;
            self.write_frame(
                "state_update",
                &json!({"thread_id": self.thread, "state": state}),
                seq,
                buffer,
            );
        }
        Ok(())
    }

    /// Writes a frame that follows all others of this sequence number.
    fn write_frame(&self, event: &'static str, data: &serde_json::Value, seq: i64, buffer: &mut BytesMut) {
        let cursor = Cursor::after(seq);
        if cursor.is_new(self.seen, false) {
            let id = Some(ResumePoint {
                cursor,
                answers: vec![],
            });
            Frame {
                id,
                ..Frame::of(event, data)
            }
            .write(buffer);
        }
    }
}
