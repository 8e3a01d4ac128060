//! Answers over HTTP, read piece by piece: none may take too long, whoever answers.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{RequestBuilder, Response};
use tokio::time::{Instant, timeout_at};

/// How long nothing may arrive, and the setting that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceLimit {
    /// The longest silence.
    pub time: Duration,
    /// The setting, as it is named in messages.
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

/// How long an answer may take to begin, and to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceLimits {
    /// From the request to the first piece of the answer.
    pub first: SilenceLimit,
    /// Between two pieces.
    pub between: SilenceLimit,
}

impl PieceLimits {
    /// The limits of a model's answer.
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

    /// The limits of the answers of tools, MCP servers and remote agents.
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
    /// The longer of the two.
    pub fn longest(&self) -> SilenceLimit {
        if self.first.time >= self.between.time {
            self.first
        } else {
            self.between
        }
    }
}

impl Default for PieceLimits {
    /// Two minutes each, for tools, MCP servers and remote agents.
    fn default() -> Self {
        Self::of_others(Duration::from_secs(120), Duration::from_secs(120))
    }
}

/// Why an answer ended before it was complete.
#[derive(Debug)]
pub enum PieceError {
    /// Nothing arrived for too long.
    Silent(SilenceLimit),
    /// The connection failed, or the time of the whole request is over.
    Broken(reqwest::Error),
}

/// An answer whose head has arrived.
#[derive(Debug)]
pub struct PieceReader {
    response: Response,
    between: SilenceLimit,
    /// What limits the next piece, and until when that is.
    limit: SilenceLimit,
    deadline: Instant,
}

impl PieceReader {
    /// Sends a request and waits for the head of the answer. The first piece of the body counts from here, too.
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

    /// The head of the answer.
    pub fn head(&self) -> &Response {
        &self.response
    }

    /// The next piece of the body; none at its end.
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
