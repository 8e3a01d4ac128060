//! A connection to an MCP server. `rmcp` numbers the requests, matches the answers and replies to the server; the
//! transports are written here, since each of them has to bound what a server may send.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use rmcp::model::{
    CancelledNotification, CancelledNotificationParam, ClientCapabilities, ClientConfig, ClientJsonRpcMessage,
    ClientRequest, CustomResult, ElicitRequestParams, ElicitResult, ElicitationCreateRequestMethod, ErrorData,
    GetExtensions, Implementation, ProtocolVersion, RequestId, ServerCapabilities, ServerPeerInfo, ServerResult,
    SubscriptionFilter, SubscriptionsListenRequest, SubscriptionsListenRequestParams,
};
use rmcp::service::{
    ClientInitializeError, PeerRequestOptions, RequestContext, RoleClient, RunningService, ServiceError, serve_client,
    serve_directly,
};
use rmcp::transport::DynamicTransportError;
use rmcp::{ClientHandler, Peer};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::SpawnServer;
use super::discovery::{Discovering, STATELESS};
use super::elicitation::Elicitations;
use super::notices::OpenCalls;
use super::transport::ServerTransport;
use crate::domain::backoff::Backoff;
use crate::model::pieces::{PieceError, PieceLimits, SilenceLimit};

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

/// The signals of a transport.
#[derive(Debug)]
pub(super) struct Signals {
    /// Cancelled when the connection is closed.
    pub(super) closed: CancellationToken,
    /// Notified when the list of tools has changed.
    pub(super) tools_changed: Notify,
    /// The calls to which notices on the stream of the connection belong, if it has one stream for all answers.
    pub(super) calls: Arc<OpenCalls>,
    /// Notified by everything that arrives.
    arrived: watch::Sender<()>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            closed: CancellationToken::new(),
            tools_changed: Notify::new(),
            calls: Arc::default(),
            arrived: watch::Sender::new(()),
        }
    }
}

impl Signals {
    /// Reports that data has arrived, which need not be an answer.
    pub(super) fn data_arrived(&self) {
        self.arrived.send_replace(());
    }
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

/// Cancelled when the caller of a request does not wait for its answer any more. The request carries it in its
/// extensions, for the transport, which then stops to send it or to read its answer.
#[derive(Clone)]
struct Abandoned(CancellationToken);

/// Adds the call that a message makes, if it is one, to those of the connection.
pub(super) fn note_call(message: &ClientJsonRpcMessage, signals: &Signals) {
    if let ClientJsonRpcMessage::Request(request) = message {
        signals.calls.add(&request.request);
    }
}

/// Returns the token of a request that is cancelled when its caller does not wait for the answer any more; `None` if
/// the message is not a request.
pub(super) fn abandoned(message: &ClientJsonRpcMessage) -> Option<CancellationToken> {
    let ClientJsonRpcMessage::Request(request) = message else {
        return None;
    };
    let abandoned = request.request.extensions().get::<Abandoned>();
    Some(abandoned.map_or_else(CancellationToken::new, |abandoned| abandoned.0.clone()))
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
        let arrivals = self.signals.arrived.subscribe();
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_lasts_until_the_first_piece_or_between_two() {
        let limits = PieceLimits::of_others(Duration::from_secs(10), Duration::from_secs(20));
        let signals = Signals::default();
        let begun = Instant::now();
        assert_eq!(silence(Some(limits), signals.arrived.subscribe()).await, limits.first);
        assert_eq!(begun.elapsed().as_secs(), 10);
        let arrivals = signals.arrived.subscribe();
        signals.data_arrived();
        assert_eq!(silence(Some(limits), arrivals).await, limits.between);
        assert_eq!(begun.elapsed().as_secs(), 30);
    }
}
