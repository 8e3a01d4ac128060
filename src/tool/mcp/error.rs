//! The reasons why a request to an MCP server has no result.

use rmcp::model::ErrorData;
use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;

use crate::model::pieces::{PieceError, SilenceLimit};

/// The reason why a request has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
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
    /// An operator has to log in, as the text says.
    #[error("requires a login: {0}")]
    LoginRequired(String),
    /// The access token lacks scopes (RFC 6750, section 3.1). The text names them, and says what an operator has to do.
    #[error("requires scopes that its access token lacks: {0}")]
    ScopesMissing(String),
    /// The server refused the request.
    #[error("refused: {} (code {})", .0.message, .0.code.0)]
    Refused(ErrorData),
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

impl From<DynamicTransportError> for ConnectionError {
    fn from(error: DynamicTransportError) -> Self {
        error.error.downcast().map_or(Self::Closed, |error| *error)
    }
}

impl From<ServiceError> for ConnectionError {
    fn from(error: ServiceError) -> Self {
        if let ServiceError::McpError(refusal) = error {
            return Self::Refused(refusal);
        }
        if let ServiceError::TransportSend(error) = error {
            return error.into();
        }
        Self::Closed
    }
}

impl From<ClientInitializeError> for ConnectionError {
    fn from(error: ClientInitializeError) -> Self {
        if let ClientInitializeError::JsonRpcError(refusal) = error {
            return Self::Refused(refusal);
        }
        if let ClientInitializeError::TransportError { error, .. } = error {
            return error.into();
        }
        if let ClientInitializeError::ConnectionClosed(_) = error {
            return Self::Closed;
        }
        // The text of the other errors may contain the whole answer.
        Self::InvalidAnswer("the answer is not one to `initialize`".to_owned())
    }
}
