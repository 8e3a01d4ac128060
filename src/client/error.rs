//! The errors of the commands that talk to a server, and their exit codes.

use std::io;

use super::escape;
use crate::domain::text_limits::first_chars;

/// The longest text of a server in an error, in characters.
const MAX_DETAIL_CHARS: usize = 2000;

/// The error of a command.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No response came.
    #[error("{server} cannot be reached: {reason}{hint}")]
    Unreachable {
        /// The server.
        server: String,
        /// The reason.
        reason: String,
        /// The advice; may be empty.
        hint: &'static str,
    },
    /// The server refused the request.
    #[error("{}", describe_refusal(*status, detail, code.as_deref()))]
    Refused {
        /// The status.
        status: u16,
        /// The reason in words.
        detail: String,
        /// The stable code.
        code: Option<String>,
        /// For a stream that cannot be resumed: the first number that is still stored.
        min_available_seq: Option<i64>,
    },
    /// The response is not one of this API.
    #[error("{0}")]
    Misunderstood(String),
    /// The command was used wrongly.
    #[error("{0}")]
    Usage(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The output cannot be written, or a file not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The user left.
    #[error("left")]
    Left,
}

/// The result of a command.
pub type ClientResult<T> = Result<T, ClientError>;

/// The advice if nothing listens.
pub(super) const START_A_SERVER: &str =
    ".\nStart a server with `adjutant`, or name another one with --server or ADJUTANT_URL";

impl ClientError {
    /// Returns the exit code: 0 for a closed pipe, 2 for wrong usage, 3 if nothing was found, 130 if the user left, and
    /// otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Usage(_) => 2,
            Self::NotFound(_) | Self::Refused { status: 404, .. } => 3,
            Self::Left => 130,
            Self::Unreachable { .. } | Self::Refused { .. } | Self::Misunderstood(_) | Self::Io(_) => 1,
        }
    }

    /// Returns whether the command ends without a message: the reader of its output has gone, or the user left.
    pub fn is_silent(&self) -> bool {
        match self {
            Self::Io(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Left => true,
            Self::Unreachable { .. }
            | Self::Refused { .. }
            | Self::Misunderstood(_)
            | Self::Usage(_)
            | Self::NotFound(_) => false,
        }
    }

    /// Returns whether the same request may succeed soon.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Misunderstood(_) | Self::Usage(_) | Self::NotFound(_) | Self::Io(_) | Self::Left => false,
        }
    }

    /// Returns whether the server refused the request with one of these statuses.
    pub(super) fn is_refusal(&self, statuses: &[u16]) -> bool {
        matches!(self, Self::Refused { status, .. } if statuses.contains(status))
    }
}

/// Describes a refusal, with what to do about it.
fn describe_refusal(status: u16, detail: &str, code: Option<&str>) -> String {
    let detail = escape::text(detail);
    let detail = first_chars(&detail, MAX_DETAIL_CHARS);
    let code = code.map(|code| format!(", {}", escape::line(code))).unwrap_or_default();
    let hint = match status {
        401 => ".\nGive a valid API key with ADJUTANT_API_KEY",
        _ => "",
    };
    format!("{detail} (status {status}{code}){hint}")
}
