//! The stream of a thread: what happens on it in run after run. It does not end by itself.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use serde_json::json;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::error::{ApiError, ErrorBody};
use super::extract::{Params, ThreadPath};
use super::stream::{Cursor, Facts, Frame, Mode, Place, Presenter};
use super::{Api, runs, state};
use crate::db::{DbResult, threads};
use crate::domain::event::Event;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::run::Run;
use crate::events::{Follow, Happening};

/// Which of the things that happen a reader wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Wanted {
    /// That runs begin and end.
    lifecycle: bool,
    /// All that the runs show, each in the modes it was asked for.
    run_modes: bool,
    /// What clients write into the state.
    state_update: bool,
}

impl Wanted {
    /// Reads the names, of which several may stand in one parameter.
    fn of(params: &Params) -> Result<Self, ApiError> {
        let mut wanted = Self::default();
        let texts = [params.texts("stream_mode"), params.texts("stream_modes")].concat();
        for word in texts.iter().flat_map(|text| text.split(',')).map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "lifecycle" => wanted.lifecycle = true,
                "run_modes" => wanted.run_modes = true,
                "state_update" => wanted.state_update = true,
                other => return Err(ApiError::bad_parameter("stream_mode", other)),
            }
        }
        Ok(if wanted == Self::default() { Self { run_modes: true, ..wanted } } else { wanted })
    }
}

/// Follows what happens on a thread, in all of its runs. The stream does not end by itself.
///
/// `run_modes` shows each run as its own stream does, with `metadata` before and after it; `lifecycle` only tells that
/// runs begin and end; `state_update` shows what clients write into the state. `Last-Event-ID` goes on behind an event,
/// `-1` begins with the first run; without it only what comes from now on is shown.
#[utoipa::path(get, path = "/threads/{thread_id}/stream", tag = "Threads",
    params(ThreadPath,
        ("stream_mode" = Option<String>, Query, description = "lifecycle, run_modes (default), state_update; several"),
        ("last-event-id" = Option<String>, Header, description = "The last event that the client has seen")),
    responses((status = 200, description = "The events", body = String, content_type = "text/event-stream"),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn follow(
    State(api): State<Api>,
    path: ThreadPath,
    params: Params,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (thread, wanted) = (path.thread_id, Wanted::of(&params)?);
    let seen = runs::last_event(&headers)?;
    let found = api.db.read(move |tx| Box::pin(async move { threads::find(tx, thread).await })).await?;
    found.ok_or_else(|| ApiError::no_thread(thread))?;
    let source = match &seen {
        Some(place) => Follow::from_seq(&api.events, thread, place.cursor.seq).await?,
        None => Follow::from_now(&api.events, thread).await?,
    };
    let reader = Reader::new(api, thread, source, wanted, seen);
    let body = futures::stream::unfold(reader, |mut reader| async move {
        let bytes = reader.write().await?;
        Some((Ok::<Bytes, Infallible>(bytes), reader))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// What was read, and where to read on.
type Read = (Follow, DbResult<Option<Happening>>);

/// One client that follows a thread.
struct Reader {
    api: Api,
    thread: ThreadId,
    /// The read under way. It is never given up halfway, only looked at.
    read: Option<BoxFuture<'static, Read>>,
    wanted: Wanted,
    presenter: Option<Presenter>,
    seen: Option<Place>,
    heartbeat: Interval,
    buffer: BytesMut,
}

impl Reader {
    fn new(api: Api, thread: ThreadId, source: Follow, wanted: Wanted, seen: Option<Place>) -> Self {
        let period = api.settings.heartbeat.max(Duration::from_millis(1));
        let mut heartbeat = interval_at(Instant::now() + period, period);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (read, buffer) = (Some(read(source)), BytesMut::new());
        Self { api, thread, read, wanted, presenter: None, seen, heartbeat, buffer }
    }

    /// What is to be sent next, or a sign of life. None at the end.
    async fn write(&mut self) -> Option<Bytes> {
        while self.buffer.is_empty() {
            let under_way = self.read.as_mut()?;
            let (source, happening) = tokio::select! {
                biased;
                read = under_way => read,
                _ = self.heartbeat.tick() => return Some(Bytes::from_static(b": heartbeat\r\n\r\n")),
            };
            self.read = None;
            let taken = match happening {
                Ok(Some(happening)) => self.take(happening).await.map(|()| true),
                Ok(None) => Ok(false),
                Err(error) => Err(error.into()),
            };
            match taken {
                Ok(true) => self.read = Some(read(source)),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(thread = %self.thread, error = error.message(), "the stream of a thread broke off");
                    let told = json!({"error": "InternalServerError", "message": "An internal error occurred"});
                    Frame::of("error", &told).write(&mut self.buffer);
                }
            }
        }
        Some(self.buffer.split().freeze())
    }

    async fn take(&mut self, happening: Happening) -> Result<(), ApiError> {
        match happening {
            Happening::Begun(run) => {
                self.begin(&run);
                Ok(())
            }
            Happening::Event(event) => self.event(&event).await,
            Happening::Done(run, seq) => {
                self.done(run, seq);
                Ok(())
            }
            Happening::Written(checkpoint, seq) => self.written(checkpoint, seq).await,
        }
    }

    fn begin(&mut self, run: &Run) {
        let graph = run.metadata.get("graph_id").and_then(serde_json::Value::as_str).unwrap_or_default();
        let modes: Vec<Mode> = run.request.stream_mode.iter().filter_map(|word| Mode::from_word(word)).collect();
        let modes = match (self.wanted.run_modes, modes.is_empty()) {
            // The frame that names the run comes in any mode.
            (false, _) => vec![Mode::Custom],
            (true, true) => vec![Mode::Values],
            (true, false) => modes,
        };
        let facts = Facts::of(run, graph);
        let mut presenter = Presenter::new(facts, modes.into_iter().collect(), run.request.stream_subgraphs);
        if let Some(seen) = &self.seen {
            presenter.recall(seen.said.clone());
        }
        self.presenter = Some(presenter);
    }

    async fn event(&mut self, event: &Event) -> Result<(), ApiError> {
        let Some(presenter) = &mut self.presenter else { return Ok(()) };
        if let Some(checkpoint) = presenter.wants_standing(event)
            && let Some(standing) = self.api.events.standing(self.thread, checkpoint).await?
        {
            presenter.learn(standing);
        }
        let base = match presenter.wants_state(event) {
            Some(checkpoint) => Some(self.api.events.state_at(self.thread, checkpoint).await?),
            None => None,
        };
        let frames = presenter.present(event, base);
        let mut own = 0..;
        for mut frame in frames {
            let cursor = match frame.belated {
                true => Cursor::after(event.seq - 1),
                false => Cursor { seq: event.seq, frame: own.next().unwrap_or(u32::MAX) },
            };
            let is_wanted = self.wanted.run_modes || self.wanted.lifecycle && frame.event.word == "metadata";
            if !is_wanted || !is_new(self.seen.as_ref(), cursor, frame.belated) {
                continue;
            }
            let said = self.presenter.as_ref().map(|presenter| presenter.unfinished(frame.said)).unwrap_or_default();
            frame.id = Some(Place { cursor, said });
            frame.write(&mut self.buffer);
        }
        Ok(())
    }

    fn done(&mut self, run: RunId, seq: i64) {
        self.presenter = None;
        let told = json!({"status": "run_done", "run_id": run});
        if self.wanted.run_modes || self.wanted.lifecycle {
            self.tell("metadata", &told, seq);
        }
    }

    async fn written(&mut self, checkpoint: CheckpointId, seq: i64) -> Result<(), ApiError> {
        if self.wanted.state_update {
            let state = state::show_at(&self.api, self.thread, checkpoint).await?.0;
            self.tell("state_update", &json!({"thread_id": self.thread, "state": state}), seq);
        }
        Ok(())
    }

    /// Writes a frame behind everything else that belongs to a number of the log.
    fn tell(&mut self, event: &'static str, data: &serde_json::Value, seq: i64) {
        let cursor = Cursor::after(seq);
        if is_new(self.seen.as_ref(), cursor, false) {
            let id = Some(Place { cursor, said: vec![] });
            Frame { id, ..Frame::of(event, data) }.write(&mut self.buffer);
        }
    }
}

/// Whether a client who has seen everything up to a place has not seen this frame.
fn is_new(seen: Option<&Place>, cursor: Cursor, belated: bool) -> bool {
    seen.is_none_or(|seen| cursor > seen.cursor || belated && cursor == seen.cursor)
}

fn read(mut source: Follow) -> BoxFuture<'static, Read> {
    Box::pin(async move {
        let happening = source.next().await;
        (source, happening)
    })
}
