//! The question that finds out which versions of the protocol a server has (`server/discover`).
//!
//! From version 2026-07-28 on there is no handshake: each request stands for itself. Servers of older versions refuse
//! the question in many ways, or do not answer it at all.

use std::time::Duration;

use futures::FutureExt;
use rmcp::model::{
    ClientConfig, ClientJsonRpcMessage, ClientRequest, DiscoverRequest, DiscoverRequestParams, ProtocolVersion,
    RequestId, RequestMetaObject, ServerJsonRpcMessage, ServerResult,
};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::time::timeout;

use super::error::ConnectionError;
use super::message::is_answer;
use super::signals::Signals;
use super::transport::ServerTransport;

/// The version without a handshake.
pub(super) const STATELESS: ProtocolVersion = ProtocolVersion::V_2026_07_28;

/// A transport that may have asked the server for its versions. An answer that comes too late is left out.
pub(super) struct Discovering {
    transport: ServerTransport,
    /// The id of the question. `rmcp` numbers its own requests.
    id: RequestId,
}

impl Discovering {
    pub(super) fn new(transport: ServerTransport) -> Self {
        Self {
            transport,
            id: RequestId::String("discover".into()),
        }
    }

    /// Returns whether the server has the version [`STATELESS`], as it says within this time.
    ///
    /// # Errors
    /// If the connection is closed.
    pub(super) async fn ask(
        &mut self,
        client: ClientConfig,
        patience: Duration,
        signals: &Signals,
    ) -> Result<bool, ConnectionError> {
        match timeout(patience, self.versions(client)).await {
            Ok(Ok(versions)) => Ok(versions.contains(&STATELESS)),
            Ok(Err(error)) if signals.closed.is_cancelled() => Err(error),
            Ok(Err(_)) | Err(_) => Ok(false),
        }
    }

    /// Returns the versions that the server names; none if it refuses to.
    async fn versions(&mut self, client: ClientConfig) -> Result<Vec<ProtocolVersion>, ConnectionError> {
        let mut request = DiscoverRequest::new(DiscoverRequestParams {});
        let meta = RequestMetaObject::with_client_context(STATELESS, client.client_info, client.capabilities);
        request.extensions.insert(meta);
        let request = ClientRequest::DiscoverRequest(request);
        let message = ClientJsonRpcMessage::request(request, self.id.clone());
        self.transport.send(message).boxed().await?;
        let answer = loop {
            let message = self.transport.receive().await.ok_or(ConnectionError::Closed)?;
            if is_answer(&message, &self.id) {
                break message;
            }
        };
        if let ServerJsonRpcMessage::Response(response) = answer
            && let ServerResult::DiscoverResult(result) = response.result
        {
            return Ok(result.supported_versions);
        }
        Ok(vec![])
    }
}

impl Transport<RoleClient> for Discovering {
    type Error = ConnectionError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        self.transport.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let message = self.transport.receive().await?;
            if !is_answer(&message, &self.id) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), ConnectionError> {
        self.transport.close().await
    }
}
