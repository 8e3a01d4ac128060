//! How much a model may say, and how long it may take to say it.

use std::time::Duration;

use super::pieces::PieceLimits;

/// The bounds of one answer of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    /// How long nothing may arrive.
    pub pieces: PieceLimits,
    /// The longest answer: text, reasoning and arguments of calls, in bytes.
    pub max_answer_bytes: usize,
    /// The longest single event or line of an answer, in bytes.
    pub max_line_bytes: usize,
    /// How much of the body of an error is read, in bytes.
    pub max_error_bytes: usize,
}

impl Default for AnswerLimits {
    fn default() -> Self {
        Self {
            pieces: PieceLimits::of_models(Duration::from_secs(120), Duration::from_secs(120)),
            max_answer_bytes: 8 * 1024 * 1024,
            max_line_bytes: 8 * 1024 * 1024,
            max_error_bytes: 1024 * 1024,
        }
    }
}

/// Providers wrap each token in an event of some hundred bytes: so many times longer than what is said may be what is sent.
const ENVELOPE: usize = 64;

impl AnswerLimits {
    /// The most bytes that are received for one answer that is streamed.
    pub fn max_received_bytes(&self) -> usize {
        self.max_answer_bytes.saturating_mul(ENVELOPE)
    }
}
