//! HTTP responses that are read piece by piece, with a time limit for each piece.

use std::fmt;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{RequestBuilder, Response};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

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

/// The time until a deadline that each piece moves. The timer of the runtime is only moved when it expires before the
/// deadline: to register one for each piece would cost more than to read the piece.
#[derive(Debug)]
pub(super) struct SilenceTimer {
    timer: Pin<Box<Sleep>>,
    deadline: Instant,
}

impl SilenceTimer {
    /// Starts a timer with this deadline.
    pub(super) fn new(deadline: Instant) -> Self {
        Self {
            timer: Box::pin(sleep_until(deadline)),
            deadline,
        }
    }

    /// Moves the deadline to this time from now.
    pub(super) fn restart(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
        if self.deadline < self.timer.deadline() {
            self.timer.as_mut().reset(self.deadline);
        }
    }

    /// Waits for `future`; none if it is not ready at the deadline.
    pub(super) async fn limit<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                output = future.as_mut() => return Some(output),
                // Also while the future uses up the budget of its task each time, as one that skips comments.
                () = unconstrained(self.timer.as_mut()) => {}
            }
            if self.timer.deadline() >= self.deadline {
                return None;
            }
            self.timer.as_mut().reset(self.deadline);
        }
    }
}

/// A response whose head has arrived.
#[derive(Debug)]
pub struct PieceReader {
    response: Response,
    between: SilenceLimit,
    /// The limit of the next piece.
    limit: SilenceLimit,
    silence: SilenceTimer,
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
            silence: SilenceTimer::new(deadline),
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
        let chunk = self.silence.limit(self.response.chunk()).await;
        let chunk = chunk
            .ok_or(PieceError::Silent(self.limit))?
            .map_err(PieceError::Broken)?;
        self.limit = self.between;
        self.silence.restart(self.limit.time);
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::task::Poll;

    use tokio::task::coop::consume_budget;
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Returns the time for which something that never arrives is waited for.
    async fn silence(timer: &mut SilenceTimer) -> Duration {
        let begun = Instant::now();
        assert_eq!(timer.limit(pending::<()>()).await, None);
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn each_piece_moves_the_deadline_to_its_time_from_then() {
        let mut timer = SilenceTimer::new(Instant::now() + LIMIT);
        for _ in 0..3 {
            tokio::time::advance(LIMIT / 2).await;
            assert_eq!(timer.limit(ready(1)).await, Some(1));
            timer.restart(LIMIT);
        }
        let waited = silence(&mut timer).await;
        assert!((LIMIT..LIMIT * 11 / 10).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_can_be_moved_forward() {
        let mut timer = SilenceTimer::new(Instant::now() + LIMIT);
        timer.restart(LIMIT / 5);
        let waited = silence(&mut timer).await;
        assert!((LIMIT / 5..LIMIT / 4).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_after_the_deadline_is_not_lost() {
        let mut timer = SilenceTimer::new(Instant::now() + LIMIT);
        tokio::time::advance(LIMIT * 2).await;
        assert_eq!(timer.limit(ready(1)).await, Some(1));
        assert_eq!(timer.limit(pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn what_uses_up_the_budget_of_its_task_each_time_has_a_deadline_too() {
        let mut timer = SilenceTimer::new(Instant::now());
        let busy = poll_fn(|context| {
            while pin!(consume_budget()).poll(context).is_ready() {}
            Poll::<()>::Pending
        });
        assert_eq!(timeout(LIMIT, timer.limit(busy)).await, Ok(None));
    }
}
