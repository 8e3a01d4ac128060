//! Large answers: how many bytes one may have, and how many there are in memory at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// How many answers of the largest size fit into memory at once.
const SIDE_BY_SIDE: usize = 4;
/// The unit in which memory is given out, in bytes.
const UNIT: usize = 1024;
/// How much of a text is handed on at once, in bytes.
const PIECE: usize = 64 * 1024;
/// For how long an answer waits for its memory.
const PATIENCE: Duration = Duration::from_secs(10);

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
        Self { bytes, memory: Arc::new(Semaphore::new(bytes.div_ceil(UNIT) * SIDE_BY_SIDE)) }
    }

    /// How many bytes an answer may have. A single item is never cut in two, so one may have more.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the memory for one answer, before it is read.
    pub(super) async fn permit(&self) -> Result<Permit, ApiError> {
        let units = u32::try_from(self.bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(units);
        match tokio::time::timeout(PATIENCE, memory).await {
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
        if text.len() <= PIECE {
            return Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response());
        }
        let sending = (self.shrunk_to(text.len()), Bytes::from(text));
        Ok(as_json(stream::unfold(sending, |(memory, mut rest)| async move {
            let piece = rest.split_to(rest.len().min(PIECE));
            (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (memory, rest)))
        })))
    }

    /// Answers with a list of about this many bytes, each item of which becomes text when it is its turn. An item that cannot
    /// be written breaks the connection: a list that ended there would look like a whole one.
    pub(super) fn list<I>(self, bytes: usize, items: I) -> Response
    where
        I: Iterator<Item = serde_json::Result<Vec<u8>>> + Send + 'static,
    {
        let writing = Writing { items, _memory: self.shrunk_to(bytes), is_first: true, is_over: false };
        as_json(stream::unfold(writing, |mut writing| async move {
            let chunk = writing.next()?;
            Some((chunk, writing))
        }))
    }

    /// Gives back what is not needed.
    fn shrunk_to(mut self, bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT);
        let surplus = self.0.num_permits().saturating_sub(units);
        drop(self.0.split(surplus));
        self
    }
}

/// A list on its way to the client.
struct Writing<I> {
    items: I,
    _memory: Permit,
    is_first: bool,
    is_over: bool,
}

impl<I: Iterator<Item = serde_json::Result<Vec<u8>>>> Writing<I> {
    fn next(&mut self) -> Option<serde_json::Result<Bytes>> {
        if self.is_over {
            return None;
        }
        let mut chunk = if self.is_first { vec![b'['] } else { vec![] };
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
                chunk.push(b']');
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
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
