//! The transport *streamable HTTP*: one POST for each message, whose answer is a JSON object or an event stream that
//! contains it.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde_json::Value;

use super::McpLimits;
use super::connection::{Connection, ConnectionError, ServerEvents};
use super::message::{self, Incoming, VERSION};
use crate::domain::json_limits::read_foreign;
use crate::model::pieces::PieceReader;
use crate::net::sse::Frames;
use crate::tool::remote::without_secrets;

const SESSION: &str = "mcp-session-id";
const PROTOCOL: &str = "mcp-protocol-version";
/// The maximum number of characters of an error response that are shown.
const MAX_ERROR_CHARS: usize = 2_000;

/// A connection over streamable HTTP, with a session if the server uses sessions.
pub(super) struct HttpConnection {
    client: Client,
    url: Url,
    /// The headers of every message. They may contain secrets.
    headers: HeaderMap,
    limits: McpLimits,
    id: Mutex<Option<HeaderValue>>,
    events: ServerEvents,
}

impl HttpConnection {
    pub(super) fn new(client: Client, url: Url, headers: HeaderMap, limits: McpLimits) -> Self {
        Self {
            client,
            url,
            headers,
            limits,
            id: Mutex::default(),
            events: ServerEvents::default(),
        }
    }

    fn session(&self) -> Option<HeaderValue> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn post(&self, message: &Value) -> RequestBuilder {
        let mut post = self.client.post(self.url.clone()).headers(self.headers.clone());
        post = post
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(session) = self.session() {
            post = post.header(SESSION, session);
        }
        post.header(PROTOCOL, VERSION).body(message.to_string())
    }

    /// Reads the answer to request `id` from a response.
    async fn answer(&self, id: u64, response: PieceReader) -> Result<Value, ConnectionError> {
        let kind = response
            .head()
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream") {
            return self.answer_in_stream(id, response).await;
        }
        let body = read(response, self.limits.max_message_bytes).await?;
        let message =
            read_foreign(&body).map_err(|error| ConnectionError::InvalidAnswer(format!("the answer {error}")))?;
        match message::read(&message) {
            Incoming::Answer(of, result) if of == id => result.map_err(ConnectionError::Refused),
            Incoming::Answer(..) | Incoming::Request(_) | Incoming::ToolsChanged | Incoming::Other => Err(
                ConnectionError::InvalidAnswer("the answer is not one to the request".to_owned()),
            ),
        }
    }

    async fn answer_in_stream(&self, id: u64, mut response: PieceReader) -> Result<Value, ConnectionError> {
        let max = self.limits.max_message_bytes;
        let mut frames = Frames::up_to(max);
        let mut length = 0;
        while let Some(chunk) = response.next().await? {
            length += chunk.len();
            if length > max {
                return Err(too_long(max));
            }
            for frame in frames.take(&chunk) {
                let Ok(message) = read_foreign(frame.data.as_bytes()) else {
                    continue;
                };
                match message::read(&message) {
                    Incoming::Answer(of, result) if of == id => return result.map_err(ConnectionError::Refused),
                    Incoming::Request(answer) => self.notify(answer).await,
                    Incoming::ToolsChanged => self.events.changed.notify_one(),
                    Incoming::Answer(..) | Incoming::Other => {}
                }
            }
        }
        Err(ConnectionError::Closed)
    }

    async fn error_of(&self, response: PieceReader) -> ConnectionError {
        let status = response.head().status();
        if status == StatusCode::NOT_FOUND && self.session().is_some() {
            self.events.closed.cancel();
            return ConnectionError::SessionExpired;
        }
        // Only the first characters are shown, each of at most four bytes.
        let body = read(response, MAX_ERROR_CHARS * 4).await.unwrap_or_default();
        let body = without_secrets(String::from_utf8_lossy(&body).into_owned(), &self.headers);
        let excerpt: String = body.chars().take(MAX_ERROR_CHARS).collect();
        ConnectionError::InvalidAnswer(format!("it answered with status {}: {excerpt}", status.as_u16()))
    }
}

#[async_trait]
impl Connection for HttpConnection {
    async fn request(&self, id: u64, message: &Value) -> Result<Value, ConnectionError> {
        let response = PieceReader::open(self.post(message), self.limits.pieces)
            .await
            .map_err(ConnectionError::from);
        let response = response.inspect_err(|error| {
            // A server that takes too long for one request may still answer others.
            if !matches!(error, ConnectionError::TimedOut(_)) {
                self.events.closed.cancel();
            }
        })?;
        if let (None, Some(session)) = (self.session(), response.head().headers().get(SESSION)) {
            let mut session = session.clone();
            session.set_sensitive(true);
            *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        }
        if response.head().status() != StatusCode::OK {
            return Err(self.error_of(response).await);
        }
        self.answer(id, response).await
    }

    async fn notify(&self, message: Value) {
        // A notification has no answer, and its failure no consequence.
        let _ = self.post(&message).send().await;
    }

    fn events(&self) -> &ServerEvents {
        &self.events
    }
}

/// Reads a body up to `max` bytes. A longer body is an error, unless the response itself is one.
async fn read(mut response: PieceReader, max: usize) -> Result<Vec<u8>, ConnectionError> {
    let is_whole = response.head().status() == StatusCode::OK;
    let mut body = Vec::new();
    while let Some(chunk) = response.next().await? {
        body.extend_from_slice(&chunk);
        if body.len() > max {
            return if is_whole { Err(too_long(max)) } else { Ok(body) };
        }
    }
    Ok(body)
}

pub(super) fn too_long(max: usize) -> ConnectionError {
    ConnectionError::InvalidAnswer(format!("the answer is longer than {max} bytes"))
}
