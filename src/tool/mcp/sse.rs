//! The older transport *HTTP with SSE*: one event stream carries all answers, and its first event names the address to
//! which messages are posted.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use super::connection::{Connection, ConnectionError, ServerEvents};
use super::http::too_long;
use super::message::{self, Incoming};
use super::pending::PendingRequests;
use super::{McpLimits, SpawnServer};
use crate::domain::json_limits::read_foreign;
use crate::net::sse::Frames;

/// The timeout of a POST; its answer comes over the stream.
const POST_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection with an open event stream and the address for messages.
pub(super) struct SseConnection(Arc<Shared>);

struct Shared {
    client: Client,
    post: Url,
    /// The headers of every message. They may contain secrets.
    headers: HeaderMap,
    pending: PendingRequests,
    events: ServerEvents,
}

impl SseConnection {
    /// Opens the stream at `url` and waits for the address for messages.
    pub(super) async fn open(
        (client, url, headers): (Client, Url, HeaderMap),
        limits: McpLimits,
        spawn: &SpawnServer,
    ) -> Result<Self, ConnectionError> {
        let get = client
            .get(url.clone())
            .headers(headers.clone())
            .header(ACCEPT, "text/event-stream");
        let response = get
            .send()
            .await
            .map_err(|_| ConnectionError::Unreachable("no connection".to_owned()))?;
        let max_message = limits.max_message_bytes;
        if response.status() != StatusCode::OK {
            return Err(ConnectionError::InvalidAnswer(format!(
                "it answered with status {}",
                response.status().as_u16()
            )));
        }
        let mut stream = Stream {
            response,
            frames: Frames::up_to(usize::MAX),
            max_message,
        };
        let mut events = stream.next(|| {}).await?.into_iter();
        let post = events.next().and_then(|path| url.join(path.trim()).ok());
        // The headers may contain secrets, so they are sent to this origin only.
        let post = post.filter(|post| post.origin() == url.origin());
        let post =
            post.ok_or_else(|| ConnectionError::InvalidAnswer("it does not name the address for messages".to_owned()))?;
        let shared = Shared {
            client,
            post,
            headers,
            pending: PendingRequests::new(limits.pieces),
            events: ServerEvents::default(),
        };
        let shared = Arc::new(shared);
        spawn(Box::pin(Arc::clone(&shared).read(stream, events.collect())));
        Ok(Self(shared))
    }
}

impl Drop for SseConnection {
    fn drop(&mut self) {
        self.0.events.closed.cancel();
    }
}

#[async_trait]
impl Connection for SseConnection {
    async fn request(&self, id: u64, message: &Value) -> Result<Value, ConnectionError> {
        let pending = self.0.pending.register(id);
        // The stream may have ended before the request was registered.
        if self.0.events.closed.is_cancelled() {
            return Err(ConnectionError::Closed);
        }
        let response = self.0.post(message).await?;
        if !response.status().is_success() {
            return Err(ConnectionError::InvalidAnswer(format!(
                "it answered with status {}",
                response.status().as_u16()
            )));
        }
        pending.answer().await
    }

    async fn notify(&self, message: Value) {
        // A notification has no answer, and its failure no consequence.
        let _ = self.0.post(&message).await;
    }

    fn events(&self) -> &ServerEvents {
        &self.0.events
    }
}

impl Shared {
    async fn post(&self, message: &Value) -> Result<Response, ConnectionError> {
        let post = self.client.post(self.post.clone()).headers(self.headers.clone());
        // The text of the error may contain the URL, which may contain a secret.
        let sent = post
            .header(CONTENT_TYPE, "application/json")
            .body(message.to_string())
            .timeout(POST_TIMEOUT)
            .send()
            .await;
        sent.map_err(|_| ConnectionError::Closed)
    }

    /// Handles the events of the stream until it ends or the connection is dropped.
    async fn read(self: Arc<Self>, mut stream: Stream, mut events: Vec<String>) {
        loop {
            for event in events {
                self.handle(&event).await;
            }
            match self
                .events
                .closed
                .run_until_cancelled(stream.next(|| self.pending.data_arrived()))
                .await
            {
                Some(Ok(next)) => events = next,
                Some(Err(_)) | None => break,
            }
        }
        self.events.closed.cancel();
        self.pending.fail_all();
    }

    async fn handle(&self, event: &str) {
        let Ok(message) = read_foreign(event.as_bytes()) else {
            return;
        };
        match message::read(&message) {
            Incoming::Answer(id, result) => self.pending.answer(id, result.map_err(ConnectionError::Refused)),
            Incoming::Request(answer) => drop(self.post(&answer).await),
            Incoming::ToolsChanged => self.events.changed.notify_one(),
            Incoming::Other => {}
        }
    }
}

/// The event stream of a server.
struct Stream {
    response: Response,
    /// Without a limit of its own, so that a too long event ends the stream instead of being skipped.
    frames: Frames,
    max_message: usize,
}

impl Stream {
    /// Returns the data of the next events, at least one; calls `data_arrived` for each piece.
    async fn next(&mut self, data_arrived: impl Fn()) -> Result<Vec<String>, ConnectionError> {
        loop {
            let chunk = self
                .response
                .chunk()
                .await
                .map_err(|_| ConnectionError::Closed)?
                .ok_or(ConnectionError::Closed)?;
            data_arrived();
            let frames = self.frames.take(&chunk);
            if self.frames.pending() > self.max_message {
                return Err(too_long(self.max_message));
            }
            if !frames.is_empty() {
                return Ok(frames.into_iter().map(|frame| frame.data).collect());
            }
        }
    }
}
