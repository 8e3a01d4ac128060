//! The transports as one type. The code of `rmcp` that drives a connection is compiled for each type of transport.

use futures::FutureExt;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;

use super::error::ConnectionError;
use super::http::HttpTransport;
use super::sse::SseTransport;
use super::stdio::StdioTransport;

/// A transport to a server.
pub(super) enum ServerTransport {
    Stdio(Box<StdioTransport>),
    Http(HttpTransport),
    Sse(Box<SseTransport>),
}

impl Transport<RoleClient> for ServerTransport {
    type Error = ConnectionError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        match self {
            Self::Stdio(transport) => transport.send(message).boxed(),
            Self::Http(transport) => transport.send(message).boxed(),
            Self::Sse(transport) => transport.send(message).boxed(),
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        match self {
            Self::Stdio(transport) => transport.receive().await,
            Self::Http(transport) => transport.receive().await,
            Self::Sse(transport) => transport.receive().await,
        }
    }

    async fn close(&mut self) -> Result<(), ConnectionError> {
        match self {
            Self::Stdio(transport) => transport.close().await,
            Self::Http(transport) => transport.close().await,
            Self::Sse(transport) => transport.close().await,
        }
    }
}
