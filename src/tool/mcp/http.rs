//! An MCP server behind HTTP, in the way called *streamable*: one POST for each message, whose answer is a JSON object or
//! an event stream that holds it.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde_json::Value;

use super::McpLimits;
use super::message::{self, Said, VERSION};
use super::wire::{Signs, Wire, WireError};
use crate::domain::json_limits::read_foreign;
use crate::model::pieces::PieceReader;
use crate::net::sse::Frames;
use crate::tool::remote::without_secrets;

const SESSION: &str = "mcp-session-id";
const PROTOCOL: &str = "mcp-protocol-version";
/// How much of a refusal is shown.
const SHOWN_CHARS: usize = 2_000;

/// A connection to a server behind HTTP: a session, if the server keeps one.
pub(super) struct Session {
    client: Client,
    url: Url,
    /// Sent with every message. They may hold secrets.
    headers: HeaderMap,
    limits: McpLimits,
    id: Mutex<Option<HeaderValue>>,
    signs: Signs,
}

impl Session {
    pub(super) fn new(client: Client, url: Url, headers: HeaderMap, limits: McpLimits) -> Self {
        Self {
            client,
            url,
            headers,
            limits,
            id: Mutex::default(),
            signs: Signs::default(),
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

    /// The answer to request `id` in what the server sent back.
    async fn answer(&self, id: u64, response: PieceReader) -> Result<Value, WireError> {
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
        let message = read_foreign(&body).map_err(|error| WireError::Garbled(format!("the answer {error}")))?;
        match message::read(&message) {
            Said::Answer(of, result) if of == id => result.map_err(WireError::Refused),
            Said::Answer(..) | Said::Asks(_) | Said::ToolsChanged | Said::Other => {
                Err(WireError::Garbled("the answer is not one to the request".to_owned()))
            }
        }
    }

    async fn answer_in_stream(&self, id: u64, mut response: PieceReader) -> Result<Value, WireError> {
        let most = self.limits.max_message_bytes;
        let mut frames = Frames::up_to(most);
        let mut length = 0;
        while let Some(chunk) = response.next().await? {
            length += chunk.len();
            if length > most {
                return Err(too_long(most));
            }
            for frame in frames.take(&chunk) {
                let Ok(message) = read_foreign(frame.data.as_bytes()) else {
                    continue;
                };
                match message::read(&message) {
                    Said::Answer(of, result) if of == id => return result.map_err(WireError::Refused),
                    Said::Asks(answer) => self.tell(answer).await,
                    Said::ToolsChanged => self.signs.changed.notify_one(),
                    Said::Answer(..) | Said::Other => {}
                }
            }
        }
        Err(WireError::Closed)
    }

    async fn refused(&self, response: PieceReader) -> WireError {
        let status = response.head().status();
        if status == StatusCode::NOT_FOUND && self.session().is_some() {
            self.signs.closed.cancel();
            return WireError::Forgotten;
        }
        // Of a refusal only the first characters are shown, at most four bytes each.
        let body = read(response, SHOWN_CHARS * 4).await.unwrap_or_default();
        let body = without_secrets(String::from_utf8_lossy(&body).into_owned(), &self.headers);
        let shown: String = body.chars().take(SHOWN_CHARS).collect();
        WireError::Garbled(format!("it answered with status {}: {shown}", status.as_u16()))
    }
}

#[async_trait]
impl Wire for Session {
    async fn ask(&self, id: u64, request: &Value) -> Result<Value, WireError> {
        let response = PieceReader::open(self.post(request), self.limits.pieces)
            .await
            .map_err(WireError::from);
        let response = response.inspect_err(|error| {
            // Who takes too long over one request may answer the others.
            if !matches!(error, WireError::Silent(_)) {
                self.signs.closed.cancel();
            }
        })?;
        if let (None, Some(session)) = (self.session(), response.head().headers().get(SESSION)) {
            let mut session = session.clone();
            session.set_sensitive(true);
            *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        }
        if response.head().status() != StatusCode::OK {
            return Err(self.refused(response).await);
        }
        self.answer(id, response).await
    }

    async fn tell(&self, message: Value) {
        // Nobody waits for what comes of it.
        let _ = self.post(&message).send().await;
    }

    fn signs(&self) -> &Signs {
        &self.signs
    }
}

/// Reads a body up to `most` bytes; a longer one that is to be read whole is an error of its own.
async fn read(mut response: PieceReader, most: usize) -> Result<Vec<u8>, WireError> {
    let is_whole = response.head().status() == StatusCode::OK;
    let mut body = Vec::new();
    while let Some(chunk) = response.next().await? {
        body.extend_from_slice(&chunk);
        if body.len() > most {
            return if is_whole { Err(too_long(most)) } else { Ok(body) };
        }
    }
    Ok(body)
}

pub(super) fn too_long(most: usize) -> WireError {
    WireError::Garbled(format!("the answer is longer than {most} bytes"))
}
