//! Streams of runs: events become frames until the run ends.
//!
//! All readers of a run read the log through a [`Tail`], from its start, from the middle, or after its end. The client
//! pulls, so a slow client delays only itself.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::BytesMut;
use serde_json::{Value, json};

use crate::db::{DbResult, warn_of};
use crate::domain::event::Event;
use crate::domain::id::ThreadId;
use crate::events::{Events, Tail};
pub use frame::{Cursor, Frame, ResumePoint};
pub use metadata_detail::{MetadataDetail, MetadataDetailHeader, MetadataDetailParameter};
pub(super) use pump::{Flow, Projection, heartbeat_interval, respond};
pub use v1::{Loaded, Modes, Needs, RunInfo, StreamMode, V1Presenter};

pub(in crate::http) mod fold;
pub mod frame;
mod metadata_detail;
mod pump;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod v1;
pub mod v2;

/// Returns the custom event of a model that failed, so that the next one was asked.
fn fell_back(from: &str, to: &str, error: &str) -> Value {
    json!({"name": "model_fallback", "payload": {"from": from, "to": to, "error": error}})
}

/// The parameters of a run's stream.
pub struct StreamRequest {
    /// The run.
    pub info: RunInfo,
    /// The modes that the run was created with; `values` if empty.
    pub modes: Vec<StreamMode>,
    /// True if events of subagents are included.
    pub subgraphs: bool,
    /// True if events have ids, so that the client can resume after one of them.
    pub resumable: bool,
    /// The last event that the client has seen. The tail has to start at the beginning of the run nevertheless.
    pub resume_from: Option<ResumePoint>,
    /// The modes of this reader, if not all of the run's. Frames that belong to no mode are then left out.
    pub filter: Option<Vec<StreamMode>>,
    /// The metadata of the pieces of answers.
    pub detail: MetadataDetail,
    /// The interval of heartbeats.
    pub heartbeat: Duration,
    /// The action if the client disconnects before the run ends.
    pub on_disconnect: Option<Box<dyn FnOnce() + Send>>,
}

/// Streams the events of a run. `tail` determines the first event.
pub fn stream_run(events: Events, tail: Tail, request: StreamRequest) -> Response {
    let log = RunLog {
        events,
        thread: request.info.thread,
        tail,
    };
    let heartbeat = request.heartbeat;
    respond(RunProjection::new(request), log, heartbeat)
}

/// The log that a projection reads.
trait Log: Send + 'static {
    /// The next event; `None` after the last.
    fn next(&mut self) -> impl Future<Output = DbResult<Option<Arc<Event>>>> + Send;
    /// Returns true if the log ended because the server shuts down and the run continues elsewhere.
    fn is_cut(&self) -> bool;
    /// Reads the data that an event needs.
    fn load(&mut self, needs: Needs) -> impl Future<Output = DbResult<Loaded>> + Send;
}

/// Reads the data that an event of a thread needs.
///
/// # Errors
/// If the database fails.
pub(super) async fn load(events: &Events, thread: ThreadId, needs: Needs) -> DbResult<Loaded> {
    // Boxed, because it is rare: it must not make a waiting stream larger.
    Ok(Loaded {
        state: match needs.state {
            Some(checkpoint) => Some(Box::pin(events.state_at(thread, checkpoint)).await?),
            None => None,
        },
        resumed: match needs.resumed {
            Some(checkpoint) => Box::pin(events.snapshot(thread, checkpoint)).await?,
            None => None,
        },
    })
}

struct RunLog {
    events: Events,
    thread: ThreadId,
    tail: Tail,
}

impl Log for RunLog {
    async fn next(&mut self) -> DbResult<Option<Arc<Event>>> {
        self.tail.next().await
    }

    fn is_cut(&self) -> bool {
        self.tail.is_cut()
    }

    async fn load(&mut self, needs: Needs) -> DbResult<Loaded> {
        load(&self.events, self.thread, needs).await
    }
}

/// The projection of a run's events for one client.
struct RunProjection<L> {
    presenter: V1Presenter,
    resumable: bool,
    seen: Option<Cursor>,
    on_disconnect: OnDisconnect,
    log: PhantomData<fn() -> L>,
}

impl<L: Log> Projection for RunProjection<L> {
    type Source = L;
    type Item = DbResult<Option<Arc<Event>>>;

    async fn read(mut log: Box<L>) -> (Box<L>, Self::Item) {
        let event = log.next().await;
        (log, event)
    }

    async fn take(&mut self, log: &mut L, event: Self::Item, buffer: &mut BytesMut) -> Flow {
        let event = match event {
            Ok(Some(event)) => event,
            Ok(None) if log.is_cut() => return self.abort(),
            Ok(None) => return self.end(),
            Err(error) => return self.fail(&error, buffer),
        };
        match self.present(log, &event, buffer).await {
            Ok(()) => Flow::Continue,
            Err(error) => self.fail(&error, buffer),
        }
    }
}

impl<L: Log> RunProjection<L> {
    fn new(request: StreamRequest) -> Self {
        let StreamRequest {
            info,
            modes,
            subgraphs,
            resumable,
            resume_from,
            filter,
            detail,
            heartbeat: _,
            on_disconnect,
        } = request;
        let requested: Modes = if modes.is_empty() {
            [StreamMode::Values].into_iter().collect()
        } else {
            modes.into_iter().collect()
        };
        let mut presenter = match filter {
            None => V1Presenter::new(info, requested, subgraphs),
            Some(filter) => V1Presenter::new(info, requested.chosen_by(&filter), subgraphs).without_metadata_frame(),
        }
        .with_detail(detail);
        let seen = resume_from.map(|point| {
            let seen = point.cursor;
            presenter.resume(point);
            seen
        });
        Self {
            presenter,
            resumable,
            seen,
            on_disconnect: OnDisconnect(on_disconnect),
            log: PhantomData,
        }
    }

    async fn present(&mut self, log: &mut L, event: &Event, buffer: &mut BytesMut) -> DbResult<()> {
        let loaded = log.load(self.presenter.needs(event)).await?;
        let frames = self.presenter.present(event, loaded);
        for (mut frame, cursor) in frame::unseen(frames, event.seq, self.seen) {
            if self.resumable {
                frame.id = Some(self.presenter.position(&frame, cursor));
            }
            frame.write(buffer);
        }
        Ok(())
    }

    /// The run has ended, so a disconnect has no effect.
    fn end(&mut self) -> Flow {
        self.on_disconnect.0 = None;
        Flow::End
    }

    /// The run continues, and this stream cannot: the connection is aborted, so that the client resumes, or resumes elsewhere.
    fn abort(&mut self) -> Flow {
        self.on_disconnect.0 = None;
        Flow::Break
    }

    /// The log cannot be read. The run continues; only this client gets an error. If the database is away, the connection
    /// is aborted, so that the client resumes: an error would look like the end of the run.
    fn fail(&mut self, error: &crate::db::DbError, buffer: &mut BytesMut) -> Flow {
        if error.is_resumable() {
            warn_of!(error, "run stream ended early");
            return self.abort();
        }
        tracing::error!(%error, "run stream failed");
        Frame::fault().write(buffer);
        self.end()
    }
}

/// Runs the action when dropped before the run ends.
struct OnDisconnect(Option<Box<dyn FnOnce() + Send>>);

impl Drop for OnDisconnect {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}
