//! The stream of a thread in the v2 protocol, for one client.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::BytesMut;
use serde_json::{Value, json};

use super::pump::{self, Flow, Projection};
use super::v2::{CurrentRun, FRAMES, Filter, Replay, StreamFilter, V2Frame, V2Presenter, shows_change};
use crate::db::{DbResult, warn_of};
use crate::domain::access::Action;
use crate::domain::event::Event;
use crate::domain::id::{RunId, ThreadId};
use crate::events::{ReplayRange, ThreadEvent, ThreadTail};
use crate::http::access::Api;
use crate::runtime::ResourceRef;

/// The past events that a client asks for.
pub struct PastEvents {
    /// The channels and agents.
    pub filter: Filter,
    /// The number of the last frame that the client has; 0 for a new client.
    pub since: i64,
    /// True if the client may read the thread now. Otherwise the newest state is not looked at.
    pub may_read: bool,
    /// The number of the last event that counts as past, if not all do that are there now.
    pub until: Option<i64>,
}

/// Creates the frames of a thread's events and reads the data that they need.
pub struct ThreadFrames {
    api: Api,
    thread: ThreadId,
    /// The presenter with the client's filter.
    pub presenter: V2Presenter,
    /// A run whose events are skipped: it was deleted by a rollback, or the caller may not read it.
    skipped_run: Option<RunId>,
}

impl ThreadFrames {
    /// Creates a reader of `thread` for the caller of `api`.
    pub fn new(api: Api, thread: ThreadId, presenter: V2Presenter) -> Self {
        Self {
            api,
            thread,
            presenter,
            skipped_run: None,
        }
    }

    /// Creates a reader of the past events of `thread` that a client asks for, and of what happens then.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn replaying(api: Api, thread: ThreadId, past: PastEvents) -> DbResult<(Self, ThreadTail)> {
        let PastEvents {
            filter,
            since,
            may_read,
            until,
        } = past;
        let range = if since > 0 {
            Box::pin(api.events.range_after(thread, since / FRAMES)).await?
        } else if may_read {
            let subagents = filter.subagents().cloned().collect();
            Box::pin(api.events.replay_range(thread, subagents)).await?
        } else {
            ReplayRange::default()
        };
        let tail = api.events.tail_of_thread(thread, range.after);
        let replay = Replay::new(until.unwrap_or(range.until), range.left);
        let filters = vec![filter];
        let presenter = V2Presenter::new(StreamFilter { filters, since }, replay);
        Ok((Self::new(api, thread, presenter), tail))
    }

    /// The frames of an event.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn frames(&mut self, event: &Event) -> DbResult<Vec<V2Frame>> {
        if self.skipped_run == Some(event.run) {
            return Ok(vec![]);
        }
        if let Some(id) = self.presenter.required_run(event) {
            // The thread may be one that did not exist when the stream began, or that another user has created anew.
            if !self.may_read().await? {
                self.skipped_run = Some(id);
                return Ok(vec![]);
            }
            let Some(run) = Box::pin(self.api.events.run(id)).await? else {
                self.skipped_run = Some(id);
                return Ok(vec![]);
            };
            let graph = run
                .metadata
                .get("graph_id")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            self.presenter.start_run(CurrentRun { id, graph });
        }
        if let Some((lane, until)) = self.presenter.required_last_step(event) {
            let last = self.api.events.last_step(self.thread, lane, until, shows_change);
            let last = Box::pin(last).await?;
            self.presenter.set_last_step(lane, last);
        }
        let base = match self.presenter.required_state(event) {
            Some(checkpoint) => Some(Box::pin(self.api.events.state_at(self.thread, checkpoint)).await?),
            None => None,
        };
        Ok(self.presenter.present(event, base))
    }

    /// Returns whether the caller may read the thread now.
    async fn may_read(&self) -> DbResult<bool> {
        let thread = ResourceRef::Thread(self.thread);
        let allows = self.api.access.allows(&self.api.caller, Action::ThreadsRead, thread);
        Box::pin(allows).await
    }
}

/// Waits for the next event of a thread.
pub async fn next_event(mut tail: ThreadTail) -> (ThreadTail, DbResult<ThreadEvent>) {
    let read = tail.next().await;
    (tail, read)
}

/// The last frame of a stream that failed.
pub fn stream_error() -> Value {
    json!({"type": "error", "id": null, "error": "unknown_error", "message": "The stream failed: an internal error occurred."})
}

/// The projection of a thread's events for one client. `guard` is dropped when the client disconnects.
struct ThreadProjection<G> {
    reader: ThreadFrames,
    _guard: G,
}

impl<G: Send + 'static> Projection for ThreadProjection<G> {
    type Source = ThreadTail;
    type Item = DbResult<ThreadEvent>;

    async fn read(mut tail: Box<ThreadTail>) -> (Box<ThreadTail>, Self::Item) {
        let read = tail.next().await;
        (tail, read)
    }

    async fn take(&mut self, _: &mut ThreadTail, read: Self::Item, buffer: &mut BytesMut) -> Flow {
        let event: Arc<Event> = match read {
            Ok(ThreadEvent::Event(event)) => event,
            Ok(ThreadEvent::Quiet) => {
                self.reader.presenter.clear_caches();
                return Flow::Continue;
            }
            // A stream that ends normally would mean the end of the run.
            Ok(ThreadEvent::Shutdown) => return Flow::Break,
            Err(error) => return fail(&error, buffer),
        };
        match self.reader.frames(&event).await {
            Ok(frames) => {
                frames.iter().for_each(|frame| frame.write(buffer));
                Flow::Continue
            }
            Err(error) => fail(&error, buffer),
        }
    }
}

/// Reports to this client that the log cannot be read. If the database is away, the connection is aborted, so that the
/// client resumes.
fn fail(error: &crate::db::DbError, buffer: &mut BytesMut) -> Flow {
    if error.is_resumable() {
        warn_of!(error, "thread stream ended early");
        return Flow::Break;
    }
    tracing::error!(%error, "thread stream failed");
    super::frame::Frame::of("error", &stream_error()).write(buffer);
    Flow::End
}

/// Streams the events of a thread, past events first, until the client disconnects; `guard` is dropped then.
pub fn respond<G: Send + 'static>(reader: ThreadFrames, tail: ThreadTail, heartbeat: Duration, guard: G) -> Response {
    pump::respond(ThreadProjection { reader, _guard: guard }, tail, heartbeat)
}
