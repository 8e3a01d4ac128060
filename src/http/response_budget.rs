//! Limits for large responses: the size of one, and the memory of all.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::extract::Page;
use crate::db::ListPart;

/// The number of responses of the largest size that fit into memory at once.
const CONCURRENT: usize = 4;
/// The unit in which memory is handed out, in bytes.
const UNIT: usize = 1024;
/// The size of the pieces in which a body is sent, in bytes.
const CHUNK: usize = 64 * 1024;
/// The longest time that a response waits for memory.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The memory budget of responses whose size depends on stored data: states, histories, lists of threads.
#[derive(Debug, Clone)]
pub struct ResponseBudget {
    bytes: usize,
    memory: Arc<Semaphore>,
}

impl ResponseBudget {
    /// Creates a budget for responses of up to `bytes` bytes each.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.clamp(UNIT, u32::MAX as usize);
        Self {
            bytes,
            memory: Arc::new(Semaphore::new(bytes.div_ceil(UNIT) * CONCURRENT)),
        }
    }

    /// The largest size of a response in bytes. An item of a list is never split, so a single item may be larger.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves the memory for one response, before its data is read.
    pub(super) async fn permit(&self) -> Result<Permit, ApiError> {
        let units = u32::try_from(self.bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(units);
        match tokio::time::timeout(PERMIT_TIMEOUT, memory).await {
            Ok(Ok(memory)) => Ok(Permit(memory)),
            Ok(Err(_)) | Err(_) => Err(ApiError::answers_busy()),
        }
    }
}

/// The reserved memory of one response.
pub(super) struct Permit(OwnedSemaphorePermit);

impl Permit {
    /// Sends a value as JSON.
    pub(super) fn answer(self, value: &impl Serialize) -> Result<Response, ApiError> {
        let text = serde_json::to_vec(value).map_err(|error| ApiError::fault(&error))?;
        Ok(self.send("application/json", text))
    }

    /// Sends bytes as they are.
    pub(super) fn bytes(self, bytes: Vec<u8>) -> Response {
        self.send("application/octet-stream", bytes)
    }

    fn send(self, kind: &'static str, bytes: Vec<u8>) -> Response {
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
        if bytes.len() <= CHUNK {
            return (kind, bytes).into_response();
        }
        let sending = (self.shrink_to(bytes.len()), Bytes::from(bytes));
        let pieces = stream::unfold(sending, |(memory, mut rest)| async move {
            let piece = rest.split_to(rest.len().min(CHUNK));
            (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (memory, rest)))
        });
        (kind, Body::from_stream(pieces)).into_response()
    }

    /// Sends a list of about `bytes` bytes. Each item is encoded when its turn comes. If an item cannot be encoded, the
    /// connection is aborted: a list that ended there would look complete.
    pub(super) fn list<I>(self, bytes: usize, items: I) -> Response
    where
        I: Iterator<Item = serde_json::Result<Vec<u8>>> + Send + 'static,
    {
        self.stream_list(b"[", b"]", bytes, items)
    }

    /// Sends an object whose only field is a list of these items.
    pub(super) fn object(self, field: &str, texts: Texts) -> Response {
        let before = format!("{{{}:[", Value::from(field));
        self.stream_list(before.as_bytes(), b"]}", texts.bytes, texts.items.into_iter().map(Ok))
    }

    fn stream_list<I>(self, before: &[u8], after: &'static [u8], bytes: usize, items: I) -> Response
    where
        I: Iterator<Item = serde_json::Result<Vec<u8>>> + Send + 'static,
    {
        let before = before.to_vec();
        let writer = ListWriter {
            items,
            before,
            after,
            _memory: self.shrink_to(bytes),
            is_first: true,
            is_over: false,
        };
        as_json(stream::unfold(writer, |mut writer| async move {
            let chunk = writer.next()?;
            Some((chunk, writer))
        }))
    }

    /// Sends one page of a list, shortened to what the response may hold. The headers carry the total, if it is known,
    /// and the offset of the next page.
    ///
    /// # Errors
    /// If an item cannot be encoded.
    pub(super) fn page<T>(
        self,
        page: Page,
        total: Option<i64>,
        part: ListPart<T>,
        to_json: impl Fn(T) -> Option<Value>,
    ) -> Result<Response, ApiError> {
        let texts = self.texts(part, to_json)?;
        let headers = page.truncated_headers(total, texts.rows_read, texts.is_cut);
        Ok((headers, self.list(texts.bytes, texts.items.into_iter().map(Ok))).into_response())
    }

    /// Encodes as many items as a response may hold, at least one. Items that the client must not see are skipped.
    pub(super) fn texts<T>(&self, part: ListPart<T>, to_json: impl Fn(T) -> Option<Value>) -> Result<Texts, ApiError> {
        let most = self.0.num_permits() * UNIT;
        let mut texts = Texts {
            items: vec![],
            bytes: 0,
            rows_read: 0,
            is_cut: part.is_cut,
        };
        for row in part.rows {
            if let Some(item) = row.and_then(&to_json) {
                let text = serde_json::to_vec(&item).map_err(|error| ApiError::fault(&error))?;
                if texts.bytes + text.len() > most && !texts.items.is_empty() {
                    texts.is_cut = true;
                    break;
                }
                texts.bytes += text.len() + 1;
                texts.items.push(text);
            }
            texts.rows_read += 1;
        }
        Ok(texts)
    }

    /// Releases the memory that the response does not need.
    fn shrink_to(mut self, bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT);
        let surplus = self.0.num_permits().saturating_sub(units);
        drop(self.0.split(surplus));
        self
    }
}

/// The encoded items of a list.
pub(super) struct Texts {
    pub(super) items: Vec<Vec<u8>>,
    /// The length of all items together, in bytes.
    pub(super) bytes: usize,
    /// The number of rows that were read, including those that are not shown.
    pub(super) rows_read: u32,
    /// True if the list was cut short.
    pub(super) is_cut: bool,
}

/// A list that is being sent.
struct ListWriter<I> {
    items: I,
    /// The text before the first item and after the last.
    before: Vec<u8>,
    after: &'static [u8],
    _memory: Permit,
    is_first: bool,
    is_over: bool,
}

impl<I: Iterator<Item = serde_json::Result<Vec<u8>>>> ListWriter<I> {
    fn next(&mut self) -> Option<serde_json::Result<Bytes>> {
        if self.is_over {
            return None;
        }
        let mut chunk = std::mem::take(&mut self.before);
        match self.items.next() {
            Some(Ok(item)) => {
                if !self.is_first {
                    chunk.push(b',');
                }
                chunk.extend(item);
            }
            Some(Err(error)) => {
                self.is_over = true;
                return Some(Err(error));
            }
            None => {
                self.is_over = true;
                chunk.extend_from_slice(self.after);
            }
        }
        self.is_first = false;
        Some(Ok(chunk.into()))
    }
}

fn as_json<S, E>(chunks: S) -> Response
where
    S: stream::Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Into<axum::BoxError> + 'static,
{
    let mut response = Body::from_stream(chunks).into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
