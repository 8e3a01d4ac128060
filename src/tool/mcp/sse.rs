//! An MCP server behind HTTP, in the older way: one event stream carries all answers, and its first event tells where
//! messages are posted.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use super::http::too_long;
use super::message::{self, Said};
use super::waiting::Waiting;
use super::wire::{Signs, Wire, WireError};
use super::{McpLimits, Spawn};
use crate::domain::json_limits::read_foreign;
use crate::net::sse::Frames;

/// How long it may take to post a message: what is answered comes over the stream.
const POST_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection: a stream that is open, and where to post.
pub(super) struct Channel(Arc<Shared>);

struct Shared {
    client: Client,
    post: Url,
    /// Sent with every message. They may hold secrets.
    headers: HeaderMap,
    waiting: Waiting,
    signs: Signs,
}

impl Channel {
    /// Opens the stream at `url` and waits until it has told where to post.
    pub(super) async fn open(
        (client, url, headers): (Client, Url, HeaderMap),
        limits: McpLimits,
        spawn: &Spawn,
    ) -> Result<Self, WireError> {
        let get = client
            .get(url.clone())
            .headers(headers.clone())
            .header(ACCEPT, "text/event-stream");
        let response = get
            .send()
            .await
            .map_err(|_| WireError::Unreachable("no connection".to_owned()))?;
        let max_message = limits.max_message_bytes;
        if response.status() != StatusCode::OK {
            return Err(WireError::Garbled(format!(
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
        let post = events.next().and_then(|told| url.join(told.trim()).ok());
        // The headers are meant for this server and no other.
        let post = post.filter(|post| post.origin() == url.origin());
        let post = post.ok_or_else(|| WireError::Garbled("it does not tell where to post".to_owned()))?;
        let shared = Shared {
            client,
            post,
            headers,
            waiting: Waiting::new(limits.pieces),
            signs: Signs::default(),
        };
        let shared = Arc::new(shared);
        spawn(Box::pin(Arc::clone(&shared).read(stream, events.collect())));
        Ok(Self(shared))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.0.signs.closed.cancel();
    }
}

#[async_trait]
impl Wire for Channel {
    async fn ask(&self, id: u64, request: &Value) -> Result<Value, WireError> {
        let wait = self.0.waiting.begin(id);
        // Whoever comes after the end waits for nothing.
        if self.0.signs.closed.is_cancelled() {
            return Err(WireError::Closed);
        }
        let response = self.0.post(request).await?;
        if !response.status().is_success() {
            return Err(WireError::Garbled(format!(
                "it answered with status {}",
                response.status().as_u16()
            )));
        }
        wait.answer().await
    }

    async fn tell(&self, message: Value) {
        // Nobody waits for what comes of it.
        let _ = self.0.post(&message).await;
    }

    fn signs(&self) -> &Signs {
        &self.0.signs
    }
}

impl Shared {
    async fn post(&self, message: &Value) -> Result<Response, WireError> {
        let post = self.client.post(self.post.clone()).headers(self.headers.clone());
        // What is told of an error may hold the address, which may hold a secret.
        let sent = post
            .header(CONTENT_TYPE, "application/json")
            .body(message.to_string())
            .timeout(POST_TIMEOUT)
            .send()
            .await;
        sent.map_err(|_| WireError::Closed)
    }

    /// Hands out what the stream brings, until it ends or nobody uses the connection any more.
    async fn read(self: Arc<Self>, mut stream: Stream, mut events: Vec<String>) {
        loop {
            for event in events {
                self.hear(&event).await;
            }
            match self
                .signs
                .closed
                .run_until_cancelled(stream.next(|| self.waiting.arrive()))
                .await
            {
                Some(Ok(next)) => events = next,
                Some(Err(_)) | None => break,
            }
        }
        self.signs.closed.cancel();
        self.waiting.end();
    }

    async fn hear(&self, event: &str) {
        let Ok(said) = read_foreign(event.as_bytes()) else {
            return;
        };
        match message::read(&said) {
            Said::Answer(id, result) => self.waiting.answer(id, result.map_err(WireError::Refused)),
            Said::Asks(answer) => drop(self.post(&answer).await),
            Said::ToolsChanged => self.signs.changed.notify_one(),
            Said::Other => {}
        }
    }
}

/// The events of a server, as they come.
struct Stream {
    response: Response,
    /// What is too long ends the stream, and is not passed over.
    frames: Frames,
    max_message: usize,
}

impl Stream {
    /// The data of the next events, at least one; calls `arrive` for each piece of them.
    async fn next(&mut self, arrive: impl Fn()) -> Result<Vec<String>, WireError> {
        loop {
            let chunk = self
                .response
                .chunk()
                .await
                .map_err(|_| WireError::Closed)?
                .ok_or(WireError::Closed)?;
            arrive();
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
