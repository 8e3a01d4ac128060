//! Events become an answer that does not end before the run does.
//!
//! Whoever follows a run, from its start, from the middle, or once more after it is over, reads the log through a
//! [`Tail`]. Reading is pulled by the client: one who reads slowly holds up himself and nobody else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::Stream;
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::ReusableBoxFuture;

use crate::db::DbResult;
use crate::domain::event::Event;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::state::State;
use crate::events::{Events, Standing, Tail};
pub use frame::{Cursor, Frame, Place};
pub use v1::{Facts, Mode, Modes, Presenter};

pub mod frame;
#[cfg(test)]
mod tests;
pub mod v1;

/// How a client wants to follow a run.
pub struct StreamRequest {
    /// The run.
    pub facts: Facts,
    /// The modes that the run was asked for; `values` if there are none.
    pub modes: Vec<Mode>,
    /// Whether subagents are shown.
    pub subgraphs: bool,
    /// Whether events carry ids, so that the client can go on after one of them.
    pub resumable: bool,
    /// The last event that the client has seen. The tail has to start at the run's beginning nevertheless.
    pub seen: Option<Place>,
    /// The modes that this reader wants, when not all of the run's. What belongs to no mode is left out then.
    pub filter: Option<Vec<Mode>>,
    /// How long the line may be silent.
    pub heartbeat: Duration,
    /// What to do if the client leaves before the run is over.
    pub on_leave: Option<Box<dyn FnOnce() + Send>>,
}

/// Answers with the events of a run as they come. `tail` decides from where.
pub fn respond(events: Events, tail: Tail, request: StreamRequest) -> Response {
    let log = RunLog { events, thread: request.facts.thread, tail };
    let mut response = Body::from_stream(body(log, request)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// What a follower reads.
trait Log: Send + 'static {
    /// The next event; none after the last.
    fn next(&mut self) -> impl Future<Output = DbResult<Option<Arc<Event>>>> + Send;
    /// The state at a checkpoint.
    fn state_at(&mut self, checkpoint: CheckpointId) -> impl Future<Output = DbResult<Arc<State>>> + Send;
    /// How an agent stood at a checkpoint, if there is one.
    fn standing(&mut self, checkpoint: CheckpointId) -> impl Future<Output = DbResult<Option<Standing>>> + Send;
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

    async fn state_at(&mut self, checkpoint: CheckpointId) -> DbResult<Arc<State>> {
        self.events.state_at(self.thread, checkpoint).await
    }

    async fn standing(&mut self, checkpoint: CheckpointId) -> DbResult<Option<Standing>> {
        self.events.standing(self.thread, checkpoint).await
    }
}

/// The bytes of the answer.
fn body<L: Log>(log: L, request: StreamRequest) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let follower = Follower::new(log, request);
    futures::stream::unfold(follower, |mut follower| async move {
        let bytes = follower.write().await?;
        Some((Ok(bytes), follower))
    })
}

/// How much is put into one write at most, when more is ready than that.
const WRITE: usize = 64 * 1024;

/// What was read, and the log to read on from.
type Read<L> = (L, DbResult<Option<Arc<Event>>>);

/// One client that follows a run.
struct Follower<L> {
    /// The read under way. It is never given up halfway, only looked at.
    read: ReusableBoxFuture<'static, Read<L>>,
    presenter: Presenter,
    buffer: BytesMut,
    heartbeat: Interval,
    resumable: bool,
    seen: Option<Cursor>,
    on_leave: OnLeave,
    over: bool,
}

impl<L: Log> Follower<L> {
    fn new(log: L, request: StreamRequest) -> Self {
        let StreamRequest { facts, modes, subgraphs, resumable, seen, filter, heartbeat, on_leave } = request;
        let asked: Modes =
            if modes.is_empty() { [Mode::Values].into_iter().collect() } else { modes.into_iter().collect() };
        let mut presenter = match filter {
            None => Presenter::new(facts, asked, subgraphs),
            Some(filter) => Presenter::new(facts, asked.and(filter.into_iter().collect()), subgraphs).without_opening(),
        };
        let seen = seen.map(|place| {
            presenter.recall(place.said);
            place.cursor
        });
        let period = heartbeat.max(Duration::from_millis(1));
        let mut heartbeat = interval_at(tokio::time::Instant::now() + period, period);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            read: ReusableBoxFuture::new(read(log)),
            presenter,
            buffer: BytesMut::new(),
            heartbeat,
            resumable,
            seen,
            on_leave: OnLeave(on_leave),
            over: false,
        }
    }

    /// What is to be sent next: everything that is ready, or a sign of life. None at the end.
    async fn write(&mut self) -> Option<Bytes> {
        while self.buffer.is_empty() && !self.over {
            let (log, event) = tokio::select! {
                biased;
                read = &mut self.read => read,
                _ = self.heartbeat.tick() => return Some(Bytes::from_static(b": heartbeat\r\n\r\n")),
            };
            self.take(log, event).await;
            self.take_ready().await;
        }
        (!self.buffer.is_empty()).then(|| self.buffer.split().freeze())
    }

    /// Takes what is there already, without waiting.
    async fn take_ready(&mut self) {
        while !self.over && self.buffer.len() < WRITE {
            let std::task::Poll::Ready((log, event)) = futures::poll!(&mut self.read) else {
                return;
            };
            self.take(log, event).await;
        }
    }

    async fn take(&mut self, mut log: L, event: DbResult<Option<Arc<Event>>>) {
        let event = match event {
            Ok(Some(event)) => event,
            Ok(None) => return self.end(),
            Err(error) => return self.fail(&error),
        };
        match self.look_up(&mut log, &event).await {
            Ok(base) => {
                self.present(&event, base);
                self.read.set(read(log));
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Reads what the presenter needs to know besides the event. The state is for the event, the rest it remembers.
    async fn look_up(&mut self, log: &mut L, event: &Event) -> DbResult<Option<Arc<State>>> {
        if let Some(checkpoint) = self.presenter.wants_standing(event)
            && let Some(standing) = log.standing(checkpoint).await?
        {
            self.presenter.learn(standing);
        }
        match self.presenter.wants_state(event) {
            Some(checkpoint) => log.state_at(checkpoint).await.map(Some),
            None => Ok(None),
        }
    }

    fn present(&mut self, event: &Event, base: Option<Arc<State>>) {
        let frames = self.presenter.present(event, base);
        let mut own = 0..;
        for mut frame in frames {
            // What makes up for earlier pieces comes before the frames that everybody gets.
            let cursor = match frame.belated {
                true => Cursor::after(event.seq - 1),
                false => Cursor { seq: event.seq, frame: own.next().unwrap_or(u32::MAX) },
            };
            let is_new = |seen: Cursor| cursor > seen || frame.belated && cursor == seen;
            if self.seen.is_none_or(is_new) {
                frame.id = self.resumable.then(|| Place { cursor, said: self.presenter.unfinished(frame.said) });
                frame.write(&mut self.buffer);
            }
        }
    }

    /// The run is over: the client may leave now.
    fn end(&mut self) {
        self.over = true;
        self.on_leave.0 = None;
    }

    /// The log cannot be read. The run goes on; only this client is told.
    fn fail(&mut self, error: &crate::db::DbError) {
        tracing::error!(%error, "a stream broke off");
        let told = json!({"error": "InternalServerError", "message": "An internal error occurred"});
        Frame::of("error", &told).write(&mut self.buffer);
        self.end();
    }
}

async fn read<L: Log>(mut log: L) -> Read<L> {
    let event = log.next().await;
    (log, event)
}

/// Acts when it is dropped before the run is over: the client has left.
struct OnLeave(Option<Box<dyn FnOnce() + Send>>);

impl Drop for OnLeave {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}
