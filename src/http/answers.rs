//! Large answers: how many bytes one may have, and how many there are in memory at once.

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

/// How many answers of the largest size fit into memory at once.
const CONCURRENT: usize = 4;
/// The unit in which memory is given out, in bytes.
const UNIT: usize = 1024;
/// How much of a text is handed on at once, in bytes.
const CHUNK: usize = 64 * 1024;
/// For how long an answer waits for its memory.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The memory for answers whose size is chosen by what clients have stored: states, histories, lists of threads.
#[derive(Debug, Clone)]
pub struct Answers {
    bytes: usize,
    memory: Arc<Semaphore>,
}

impl Answers {
    /// Answers of this many bytes at most.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.clamp(UNIT, u32::MAX as usize);
        Self {
            bytes,
            memory: Arc::new(Semaphore::new(bytes.div_ceil(UNIT) * CONCURRENT)),
        }
    }

    /// How many bytes an answer may have. A single item is never cut in two, so one may have more.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the memory for one answer, before it is read.
    pub(super) async fn permit(&self) -> Result<Permit, ApiError> {
        let units = u32::try_from(self.bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(units);
        match tokio::time::timeout(PERMIT_TIMEOUT, memory).await {
            Ok(Ok(memory)) => Ok(Permit(memory)),
            Ok(Err(_)) | Err(_) => Err(ApiError::answers_busy()),
        }
    }
}

/// The memory of one answer.
pub(super) struct Permit(OwnedSemaphorePermit);

impl Permit {
    /// Answers with a value.
    pub(super) fn answer(self, value: &impl Serialize) -> Result<Response, ApiError> {
        let text = serde_json::to_vec(value).map_err(|error| ApiError::fault(&error))?;
        if text.len() <= CHUNK {
            return Ok((
                [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
                text,
            )
                .into_response());
        }
        let sending = (self.shrink_to(text.len()), Bytes::from(text));
        Ok(as_json(stream::unfold(sending, |(memory, mut rest)| async move {
            let piece = rest.split_to(rest.len().min(CHUNK));
            (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (memory, rest)))
        })))
    }

    /// Answers with a list of about this many bytes, each item of which becomes text when it is its turn. An item that cannot
    /// be written breaks the connection: a list that ended there would look like a whole one.
    pub(super) fn list<I>(self, bytes: usize, items: I) -> Response
    where
        I: Iterator<Item = serde_json::Result<Vec<u8>>> + Send + 'static,
    {
        self.stream_list(b"[", b"]", bytes, items)
    }

    /// Answers with an object whose only field is a list of these items.
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

    /// Answers with a page of a list, as much of it as an answer may hold. The headers say how many there are on all pages, if
    /// that is known, and where to go on: behind the last item that is shown.
    ///
    /// # Errors
    /// When an item cannot be written.
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

    /// The texts of as many items as an answer may hold, one at least. Items that are not to be seen are passed over.
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

    /// Gives back what is not needed.
    fn shrink_to(mut self, bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT);
        let surplus = self.0.num_permits().saturating_sub(units);
        drop(self.0.split(surplus));
        self
    }
}

/// Items of a list as texts.
pub(super) struct Texts {
    pub(super) items: Vec<Vec<u8>>,
    /// How long they are together.
    pub(super) bytes: usize,
    /// How many rows of the list they are, those included that are not shown.
    pub(super) rows_read: u32,
    /// Whether there were more.
    pub(super) is_cut: bool,
}

/// A list on its way to the client.
struct ListWriter<I> {
    items: I,
    /// What stands before the first item, and behind the last.
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
