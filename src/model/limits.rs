//! The limits of size and time on a model's answer.

use std::time::Duration;

use super::pieces::PieceLimits;

/// The limits of one answer of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    /// The time limits for the pieces of the answer.
    pub pieces: PieceLimits,
    /// The maximum size of text, reasoning and call arguments together, in bytes.
    pub max_answer_bytes: usize,
    /// The maximum size of one event or line of an answer, in bytes.
    pub max_line_bytes: usize,
    /// The maximum number of bytes that are read of an error's body.
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

/// The ratio between the bytes received and the bytes of the answer: providers wrap each token in an event of some
/// hundred bytes.
const MAX_OVERHEAD_FACTOR: usize = 64;

impl AnswerLimits {
    /// Returns the maximum number of bytes received for one streamed answer.
    pub fn max_received_bytes(&self) -> usize {
        self.max_answer_bytes.saturating_mul(MAX_OVERHEAD_FACTOR)
    }
}
