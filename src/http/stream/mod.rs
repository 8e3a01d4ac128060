//! Events become an answer that does not end before the run does.
//!
//! Whoever follows a run, from its start, from the middle, or once more after it is over, reads the log through a
//! [`Tail`]. Reading is pulled by the client: one who reads slowly holds up himself and nobody else.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::BytesMut;

use crate::db::DbResult;
use crate::domain::event::Event;
use crate::domain::id::ThreadId;
use crate::events::{Events, Tail};
pub use frame::{Cursor, Frame, ResumePoint};
pub(super) use pump::{Flow, Projection, heartbeat_interval, respond};
pub use v1::{Loaded, Modes, Needs, RunInfo, StreamMode, V1Presenter};

pub(in crate::http) mod fold;
pub mod frame;
mod pump;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod v1;
pub mod v2;

/// How a client wants to follow a run.
pub struct StreamRequest {
    /// The run.
    pub info: RunInfo,
    /// The modes that the run was asked for; `values` if there are none.
    pub modes: Vec<StreamMode>,
    /// Whether subagents are shown.
    pub subgraphs: bool,
    /// Whether events carry ids, so that the client can go on after one of them.
    pub resumable: bool,
    /// The last event that the client has seen. The tail has to start at the run's beginning nevertheless.
    pub resume_from: Option<ResumePoint>,
    /// The modes that this reader wants, when not all of the run's. What belongs to no mode is left out then.
    pub filter: Option<Vec<StreamMode>>,
    /// How long the line may be silent.
    pub heartbeat: Duration,
    /// What to do if the client leaves before the run is over.
    pub on_disconnect: Option<Box<dyn FnOnce() + Send>>,
}

/// Answers with the events of a run as they come. `tail` decides from where.
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
    /// The next event; none after the last.
    fn next(&mut self) -> impl Future<Output = DbResult<Option<Arc<Event>>>> + Send;
    /// Whether there are no more events because the server leaves, and not because the run is over.
    fn is_cut(&self) -> bool;
    /// Reads what is needed to present an event.
    fn load(&mut self, needs: Needs) -> impl Future<Output = DbResult<Loaded>> + Send;
}

/// Reads what is needed to present an event of a thread.
///
/// # Errors
/// When the database fails.
pub(super) async fn load(events: &Events, thread: ThreadId, needs: Needs) -> DbResult<Loaded> {
    // Boxed, like all that is seldom: a stream is no larger while it waits.
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

    async fn read(mut log: L) -> (L, Self::Item) {
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
            Some(filter) => {
                V1Presenter::new(info, requested.and(filter.into_iter().collect()), subgraphs).without_metadata_frame()
            }
        };
        let seen = resume_from.map(|point| {
            presenter.resume(point.answers);
            point.cursor
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
            frame.id = self.resumable.then(|| ResumePoint {
                cursor,
                answers: self.presenter.unfinished(frame.progress),
            });
            frame.write(buffer);
        }
        Ok(())
    }

    /// The run is over: the client may leave now.
    fn end(&mut self) -> Flow {
        self.on_disconnect.0 = None;
        Flow::End
    }

    /// The server leaves and the run goes on: the connection breaks off, so that the client takes the run up elsewhere.
    fn abort(&mut self) -> Flow {
        self.on_disconnect.0 = None;
        Flow::Break
    }

    /// The log cannot be read. The run goes on; only this client is told.
    fn fail(&mut self, error: &crate::db::DbError, buffer: &mut BytesMut) -> Flow {
        tracing::error!(%error, "a stream broke off");
        Frame::fault().write(buffer);
        self.end()
    }
}

/// Acts when it is dropped before the run is over: the client has left.
struct OnDisconnect(Option<Box<dyn FnOnce() + Send>>);

impl Drop for OnDisconnect {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}
