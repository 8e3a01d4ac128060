//! The interface of a connection to an MCP server, over any transport.

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::message::RpcError;
use crate::model::pieces::{PieceError, SilenceLimit};

/// A connection to an MCP server. A closed connection cannot be used again.
#[async_trait]
pub(super) trait Connection: Send + Sync {
    /// Sends request `id` and waits for its answer.
    async fn request(&self, id: u64, message: &Value) -> Result<Value, ConnectionError>;

    /// Sends a notification. Errors are ignored.
    async fn notify(&self, message: Value);

    /// Returns the events of the connection.
    fn events(&self) -> &ServerEvents;
}

/// The events of a connection.
#[derive(Debug, Default)]
pub(super) struct ServerEvents {
    /// Cancelled when the connection is closed.
    pub(super) closed: CancellationToken,
    /// Notified when the list of tools has changed.
    pub(super) changed: Notify,
}

/// The reason why a request has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConnectionError {
    /// The server could not be started or reached.
    #[error("cannot be reached ({0})")]
    Unreachable(String),
    /// The connection ended before the answer came.
    #[error("broke off before it answered")]
    Closed,
    /// Nothing arrived for too long.
    #[error("did not answer in time: {0}")]
    TimedOut(SilenceLimit),
    /// The answer is invalid.
    #[error("returned an invalid answer: {0}")]
    InvalidAnswer(String),
    /// The server does not know the session.
    #[error("does not know the session any more")]
    SessionExpired,
    /// The server refused the request.
    #[error("refused: {} (code {})", .0.message, .0.code)]
    Refused(RpcError),
}

impl From<PieceError> for ConnectionError {
    fn from(error: PieceError) -> Self {
        match error {
            PieceError::Silent(limit) => Self::TimedOut(limit),
            // The text of the error may contain the URL, which may contain a secret.
            PieceError::Broken(error) if error.is_connect() => Self::Unreachable("no connection".to_owned()),
            PieceError::Broken(_) => Self::Closed,
        }
    }
}
