//! One connection to an MCP server, whatever carries it.

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::message::Refusal;
use crate::model::pieces::{PieceError, SilenceLimit};

/// A connection. It is of no use any more once it is closed.
#[async_trait]
pub(super) trait Wire: Send + Sync {
    /// Sends request `id` and waits for its answer, however long that takes.
    async fn ask(&self, id: u64, request: &Value) -> Result<Value, WireError>;

    /// Sends what nobody answers. What cannot be sent is lost.
    async fn tell(&self, message: Value);

    /// What the server has told of itself.
    fn signs(&self) -> &Signs;
}

/// What a server tells without being asked.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// Tells that the connection is over.
    pub(super) closed: CancellationToken,
    /// Rung when the list of tools has changed.
    pub(super) changed: Notify,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    /// The server could not be started or reached.
    #[error("cannot be reached ({0})")]
    Unreachable(String),
    /// The connection ended before the answer came.
    #[error("broke off before it answered")]
    Closed,
    /// Nothing arrived for too long.
    #[error("did not answer in time: {0}")]
    Silent(SilenceLimit),
    /// What came back is no answer.
    #[error("cannot be understood: {0}")]
    Garbled(String),
    /// The server does not know the session any more.
    #[error("has forgotten the session")]
    Forgotten,
    /// The server refused the request.
    #[error("refused: {} (code {})", .0.message, .0.code)]
    Refused(Refusal),
}

impl From<PieceError> for WireError {
    fn from(error: PieceError) -> Self {
        match error {
            PieceError::Silent(limit) => Self::Silent(limit),
            // What is told of an error may hold the address, which may hold a secret.
            PieceError::Broken(error) if error.is_connect() => Self::Unreachable("no connection".to_owned()),
            PieceError::Broken(_) => Self::Closed,
        }
    }
}
