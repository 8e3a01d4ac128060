//! HTTP responses that are read piece by piece, with a time limit for each piece.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{RequestBuilder, Response};
use tokio::time::{Instant, timeout_at};

/// The maximum time without arriving data, and the setting that sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceLimit {
    /// The maximum time without data.
    pub time: Duration,
    /// The name of the setting, for messages.
    pub setting: &'static str,
}

impl fmt::Display for SilenceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "nothing arrived for {} s (the setting `{}`)",
            self.time.as_secs_f64(),
            self.setting
        )
    }
}

/// The time limits of a response: until its first piece, and between two pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceLimits {
    /// The limit from the request to the first piece.
    pub first: SilenceLimit,
    /// The limit between two pieces.
    pub between: SilenceLimit,
}

impl PieceLimits {
    /// Creates the limits of a model's answer.
    pub fn of_models(first: Duration, between: Duration) -> Self {
        Self {
            first: SilenceLimit {
                time: first,
                setting: "[answers] first_token_s",
            },
            between: SilenceLimit {
                time: between,
                setting: "[answers] between_tokens_s",
            },
        }
    }

    /// Creates the limits of the answers of tools, MCP servers and remote agents.
    pub fn of_others(first: Duration, between: Duration) -> Self {
        Self {
            first: SilenceLimit {
                time: first,
                setting: "[answers] first_byte_s",
            },
            between: SilenceLimit {
                time: between,
                setting: "[answers] between_bytes_s",
            },
        }
    }
}

impl PieceLimits {
    /// Returns the longer of the two limits.
    pub fn longest(&self) -> SilenceLimit {
        if self.first.time >= self.between.time {
            self.first
        } else {
            self.between
        }
    }
}

impl Default for PieceLimits {
    /// Creates limits of two minutes each, for tools, MCP servers and remote agents.
    fn default() -> Self {
        Self::of_others(Duration::from_secs(120), Duration::from_secs(120))
    }
}

/// The reason why a response ended before it was complete.
#[derive(Debug)]
pub enum PieceError {
    /// Nothing arrived for too long.
    Silent(SilenceLimit),
    /// The connection failed, or the timeout of the whole request is over.
    Broken(reqwest::Error),
}

/// A response whose head has arrived.
#[derive(Debug)]
pub struct PieceReader {
    response: Response,
    between: SilenceLimit,
    /// The limit of the next piece.
    limit: SilenceLimit,
    deadline: Instant,
}

impl PieceReader {
    /// Sends a request and waits for the head of the response. The limit of the first piece of the body starts here,
    /// too.
    ///
    /// # Errors
    /// When nothing arrives in time, or there is no connection.
    pub async fn open(request: RequestBuilder, limits: PieceLimits) -> Result<Self, PieceError> {
        let limit = limits.first;
        let deadline = Instant::now() + limit.time;
        let sent = timeout_at(deadline, request.send()).await;
        let response = sent
            .map_err(|_| PieceError::Silent(limit))?
            .map_err(PieceError::Broken)?;
        Ok(Self {
            response,
            between: limits.between,
            limit,
            deadline,
        })
    }

    /// Returns the head of the response.
    pub fn head(&self) -> &Response {
        &self.response
    }

    /// Returns the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// When nothing arrives in time, or the connection breaks.
    pub async fn next(&mut self) -> Result<Option<Bytes>, PieceError> {
        let chunk = timeout_at(self.deadline, self.response.chunk()).await;
        let chunk = chunk
            .map_err(|_| PieceError::Silent(self.limit))?
            .map_err(PieceError::Broken)?;
        self.limit = self.between;
        self.deadline = Instant::now() + self.limit.time;
        Ok(chunk)
    }
}
