//! Connections: accepted, served, closed.
//!
//! Like `axum::serve`, but for two things: there are never more connections than file descriptors for them, and a client
//! that sends nothing loses its connection after a while or when another one needs it ([`open`]).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::guarded::hold_until_sent;
use open::OpenConnections;
pub use open::max_for_descriptors;
pub(super) use open::{ConnectionHandle, RequestGuard};

mod open;

/// How long a client may take for the head of a request, and how long a connection may lie idle between two of them. As
/// much as the web servers that usually stand in front wait (nginx, `keepalive_timeout`).
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// How long no connection is accepted when that failed for want of something, such as file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// How long a connection that was closed for want of file descriptors may take to give its own back.
const CLOSE_GRACE: Duration = Duration::from_millis(10);

/// How often it is logged that connections are refused.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// Serves `router` to whoever connects, `max_connections` at once, until `shutdown`; then lets the requests under way finish.
pub async fn serve(listener: TcpListener, router: Router, max_connections: usize, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    let open = OpenConnections::new(max_connections);
    let mut refusals = Refusals::default();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => match open.admit(peer) {
                Some(handle) => {
                    let client = Client {
                        handle,
                        router: router.clone(),
                        shutdown: shutdown.clone(),
                    };
                    drop(connections.spawn(client.serve_until_evicted(stream)));
                }
                // Closed by dropping it.
                None => refusals.count(max_connections),
            },
            Err(error) if is_client_error(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted for now");
                let pause = if open.close_one() { CLOSE_GRACE } else { ACCEPT_BACKOFF };
                shutdown.run_until_cancelled(sleep(pause)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Connections that were refused because all others are busy.
#[derive(Default)]
struct Refusals {
    /// How many since the last line of the log.
    count: u64,
    logged: Option<Instant>,
}

impl Refusals {
    /// Counts one, and logs it unless that was done a moment ago.
    fn count(&mut self, max_connections: usize) {
        self.count += 1;
        if self
            .logged
            .is_none_or(|logged| logged.elapsed() >= REFUSAL_LOG_INTERVAL)
        {
            let refused = self.count;
            tracing::warn!(
                max_connections,
                refused,
                "connections are refused: all that are open are busy"
            );
            *self = Self {
                count: 0,
                logged: Some(Instant::now()),
            };
        }
    }
}

/// Whether a connection broke off before it was accepted.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A client that has connected.
struct Client {
    handle: ConnectionHandle,
    router: Router,
    shutdown: CancellationToken,
}

impl Client {
    /// Serves the connection, until it is over or has to go for another one.
    async fn serve_until_evicted(self, stream: TcpStream) {
        let handle = self.handle.clone();
        tokio::select! {
            () = self.serve(stream) => {}
            () = handle.evicted() => tracing::debug!(peer = %handle.peer(), "a connection was closed in favour of another one"),
        }
    }

    async fn serve(self, stream: TcpStream) {
        // Streams write small pieces that must not wait for one another.
        let _ = stream.set_nodelay(true);
        // Finding out which protocol a connection speaks has no time limit of its own.
        let mut first = [0];
        let peeked = timeout(IDLE_TIMEOUT, stream.peek(&mut first));
        let Some(Ok(Ok(1..))) = self.shutdown.run_until_cancelled(peeked).await else {
            return;
        };
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(MAX_HEAD);
        // For WebSockets over HTTP/2.
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(IDLE_TIMEOUT)
            .enable_connect_protocol();
        let service = track_requests(self.router, self.handle);
        let mut connection = Box::pin(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        // Clients come and go as they like.
        if let Err(error) = served {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}

/// Answers requests by `router`, tells it which connection they came on, and keeps account of them until they are answered
/// to the end.
fn track_requests(
    router: Router,
    handle: ConnectionHandle,
) -> impl Service<
    Request<Incoming>,
    Response = Response,
    Error = Infallible,
    Future = impl Future<Output = Result<Response, Infallible>> + Send + 'static,
> + Send {
    let inner = TowerToHyperService::new(router);
    service_fn(move |mut request: Request<Incoming>| {
        let guard = handle.begin();
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo::<SocketAddr>(handle.peer()));
        extensions.insert(handle.clone());
        let answer = inner.call(request);
        async move {
            let response = answer.await?;
            Ok(hold_until_sent(response, guard))
        }
    })
}

#[cfg(test)]
mod tests;
