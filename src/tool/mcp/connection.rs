//! A connection to an MCP server. `rmcp` numbers the requests, matches the answers and replies to the server; the
//! transports are written here, since each of them has to bound what a server may send.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use rmcp::model::{
    CancelledNotification, CancelledNotificationParam, ClientCapabilities, ClientConfig, ClientRequest, CustomResult,
    ElicitRequestParams, ElicitResult, ElicitationCreateRequestMethod, ErrorData, GetExtensions, Implementation,
    ProtocolVersion, RequestId, ServerCapabilities, ServerPeerInfo, ServerResult, SubscriptionFilter,
    SubscriptionsListenRequest, SubscriptionsListenRequestParams,
};
use rmcp::service::{
    PeerRequestOptions, RequestContext, RoleClient, RunningService, ServiceError, serve_client, serve_directly,
};
use rmcp::{ClientHandler, Peer};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::SpawnServer;
use super::discovery::{Discovering, STATELESS};
use super::elicitation::Elicitations;
use super::error::ConnectionError;
use super::signals::{Abandoned, Signals};
use super::transport::ServerTransport;
use crate::domain::backoff::Backoff;
use crate::model::pieces::{PieceLimits, SilenceLimit};

/// The timeout of the cancellation of a request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);
/// The pauses before a subscription that has ended, or could not be opened, is opened again.
const SUBSCRIPTION_PAUSES: Backoff = Backoff::doubling(Duration::from_secs(60), Duration::from_secs(3600));

/// A connection to an MCP server, over any transport. A closed connection cannot be used again.
pub(super) struct Connection {
    service: RunningService<RoleClient, Client>,
    signals: Arc<Signals>,
    /// The time limits for arriving data; `None` if the transport keeps them itself.
    limits: Option<PieceLimits>,
    spawn: SpawnServer,
}

/// The client that servers see. Of the requests of servers it supports `ping`, and questions if the server may ask.
struct Client {
    elicitations: Option<Arc<Elicitations>>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let own = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let capabilities = match self.elicitations {
            Some(_) => ClientCapabilities::builder().enable_elicitation().build(),
            None => ClientCapabilities::default(),
        };
        ClientConfig::new(capabilities, own).with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        match &self.elicitations {
            Some(elicitations) => Ok(elicitations.reply(params)),
            None => Err(ErrorData::method_not_found::<ElicitationCreateRequestMethod>()),
        }
    }
}

impl Connection {
    /// Begins a connection over a transport that is open and gives these signals. With `patience` the server is first
    /// asked, for this time, whether it needs no handshake; otherwise the handshake comes first.
    pub(super) async fn begin(
        transport: ServerTransport,
        signals: Arc<Signals>,
        limits: Option<PieceLimits>,
        spawn: SpawnServer,
        elicitations: Option<Arc<Elicitations>>,
        patience: Option<Duration>,
    ) -> Result<Self, ConnectionError> {
        let client = Client { elicitations };
        let mut transport = Discovering::new(transport);
        let is_stateless = match patience {
            Some(patience) => transport.ask(client.get_info(), patience, &signals).await?,
            None => false,
        };
        let service = if is_stateless {
            let server = ServerPeerInfo::new(STATELESS, ServerCapabilities::default());
            serve_directly::<RoleClient, _, _, _, _>(client, transport, Some(server))
        } else {
            serve_client(client, transport).boxed().await?
        };
        Ok(Self {
            service,
            signals,
            limits,
            spawn,
        })
    }

    pub(super) fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Returns whether the connection began without a handshake. Then each request stands for itself, and the server sends
    /// none.
    pub(super) fn is_stateless(&self) -> bool {
        let server = self.service.peer_info();
        server.is_some_and(|server| !server.protocol_version.has_initialize())
    }

    /// Has the server report changed tools for as long as the future lives. After a handshake it does so anyway.
    pub(super) async fn subscribe(self: &Arc<Self>) -> Infallible {
        let mut failures = 0;
        while self.is_stateless() {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let request = SubscriptionsListenRequest::new(SubscriptionsListenRequestParams::new(filter));
            let request = ClientRequest::SubscriptionsListenRequest(request);
            match self.request_until(request, std::future::pending()).await {
                Ok(_) | Err(ConnectionError::Closed | ConnectionError::TimedOut(_)) => failures = 0,
                // The server has no subscriptions, or not for this client.
                Err(ConnectionError::Refused(_) | ConnectionError::ScopesMissing(_)) => break,
                // A gateway may have answered in place of the server, or a long stream was ended.
                Err(_) => failures += 1,
            }
            sleep(SUBSCRIPTION_PAUSES.pause(failures)).await;
            // The tools may have changed meanwhile.
            self.signals.tools_changed.notify_one();
        }
        std::future::pending().await
    }

    /// Sends a request and waits for its result. The request is cancelled at the server if the caller stops waiting.
    pub(super) async fn request(self: &Arc<Self>, request: ClientRequest) -> Result<Value, ConnectionError> {
        let arrivals = self.signals.arrivals();
        self.request_until(request, silence(self.limits, arrivals)).await
    }

    /// Sends a request and waits for its result, or for a limit.
    async fn request_until(
        self: &Arc<Self>,
        mut request: ClientRequest,
        limit: impl Future<Output = SilenceLimit>,
    ) -> Result<Value, ConnectionError> {
        let token = CancellationToken::new();
        request.extensions_mut().insert(Abandoned(token.clone()));
        let sent = self
            .service
            .send_cancellable_request(request, PeerRequestOptions::no_options());
        let handle = sent.await?;
        let mut guard = CancelOnDrop {
            connection: self,
            id: Some(handle.id.clone()),
            abandoned: token,
        };
        let answer = tokio::select! {
            biased;
            answer = handle.await_response() => answer.map_err(ConnectionError::from),
            limit = limit => Err(ConnectionError::TimedOut(limit)),
        };
        if !matches!(answer, Err(ConnectionError::TimedOut(_))) {
            guard.id = None;
        }
        if let ServerResult::CustomResult(CustomResult(result)) = answer? {
            return Ok(result);
        }
        let problem = "the answer is not one to the request";
        Err(ConnectionError::InvalidAnswer(problem.to_owned()))
    }
}

/// Waits until nothing has arrived for too long. All requests share the connection, so any data shows that the server
/// is working.
async fn silence(limits: Option<PieceLimits>, mut arrivals: watch::Receiver<()>) -> SilenceLimit {
    let Some(limits) = limits else {
        return std::future::pending().await;
    };
    let mut limit = limits.first;
    while let Ok(Ok(())) = timeout(limit.time, arrivals.changed()).await {
        limit = limits.between;
    }
    limit
}

/// A guard that sends `notifications/cancelled` when it is dropped before the answer has arrived.
struct CancelOnDrop<'a> {
    connection: &'a Arc<Connection>,
    id: Option<RequestId>,
    abandoned: CancellationToken,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.abandoned.cancel();
        let is_open = !self.connection.signals.closed.is_cancelled();
        if let Some(id) = self.id.take().filter(|_| is_open) {
            let connection = Arc::clone(self.connection);
            (self.connection.spawn)(Box::pin(async move {
                let cancelled = cancel(&connection.service, id);
                drop(timeout(CANCEL_TIMEOUT, cancelled).await);
            }));
        }
    }
}

async fn cancel(server: &Peer<RoleClient>, id: RequestId) -> Result<(), ServiceError> {
    let params = CancelledNotificationParam::new(Some(id), Some("the call was cancelled".to_owned()));
    server
        .send_notification(CancelledNotification::new(params).into())
        .await
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_lasts_until_the_first_piece_or_between_two() {
        let limits = PieceLimits::of_others(Duration::from_secs(10), Duration::from_secs(20));
        let signals = Signals::default();
        let begun = Instant::now();
        assert_eq!(silence(Some(limits), signals.arrivals()).await, limits.first);
        assert_eq!(begun.elapsed().as_secs(), 10);
        let arrivals = signals.arrivals();
        signals.data_arrived();
        assert_eq!(silence(Some(limits), arrivals).await, limits.between);
        assert_eq!(begun.elapsed().as_secs(), 30);
    }
}
