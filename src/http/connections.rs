//! The accept loop: connections are accepted, served and closed.
//!
//! It differs from `axum::serve` in three points: the number of connections is limited by the file descriptors of the
//! process, an idle connection is closed after a timeout or when another client needs the slot ([`open`]), and so is one
//! whose client takes nothing ([`stalled`]).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body_guard::hold_until_sent;
use crate::metrics::Metrics;
use open::OpenConnections;
pub use open::max_for_descriptors;
pub(super) use open::{ConnectionHandle, RequestGuard};
use stalled::{BodyInPieces, StreamTasks, TimedWrites, in_pieces};

mod open;
mod stalled;

/// The timeout for the head of a request, for an idle connection between two requests, and for a client that takes nothing
/// of a response or of a message. It is the default of common reverse proxies (nginx, `keepalive_timeout`).
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// The pause after `accept` failed for lack of a resource, such as file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// The time that an evicted connection gets to release its file descriptor.
const CLOSE_GRACE: Duration = Duration::from_millis(10);

/// The interval between two log lines about refused connections.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// Serves `router` on `listener`, with up to `max_connections` connections, until `shutdown`; then lets running
/// requests finish. Clients that take nothing are counted in `metrics`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
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
                        metrics: metrics.clone(),
                        shutdown: shutdown.clone(),
                    };
                    drop(connections.spawn(client.serve_until_evicted(stream)));
                }
                // Dropping the stream closes it.
                None => refusals.count(max_connections),
            },
            Err(error) if is_client_error(&error) => {}
            Err(error) => {
                tracing::error!(
                    %error,
                    "a connection could not be accepted: raise the limit of open files (`ulimit -n`), if that is reached"
                );
                let pause = if open.close_one() { CLOSE_GRACE } else { ACCEPT_BACKOFF };
                shutdown.run_until_cancelled(sleep(pause)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Counts connections that were refused because all others were busy.
#[derive(Default)]
struct Refusals {
    /// The number of refusals since the last log line.
    count: u64,
    logged: Option<Instant>,
}

impl Refusals {
    /// Counts a refusal, and logs it unless that was done a moment ago.
    fn count(&mut self, max_connections: usize) {
        self.count += 1;
        if self
            .logged
            .is_none_or(|logged| logged.elapsed() >= REFUSAL_LOG_INTERVAL)
        {
            let refused = self.count;
            tracing::warn!(max_connections, refused, "connections refused: all open ones are busy");
            *self = Self {
                count: 0,
                logged: Some(Instant::now()),
            };
        }
    }
}

/// Returns true if the client closed the connection before it was accepted.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A connected client.
struct Client {
    handle: ConnectionHandle,
    router: Router,
    metrics: Metrics,
    shutdown: CancellationToken,
}

impl Client {
    /// Serves the connection until it ends or is evicted.
    async fn serve_until_evicted(self, stream: TcpStream) {
        let handle = self.handle.clone();
        tokio::select! {
            () = self.serve(stream) => {}
            () = handle.evicted() => tracing::debug!(peer = %handle.peer(), "idle connection closed in favour of another one"),
            // The detection of the protocol has no timeout of its own.
            () = handle.unused_for(IDLE_TIMEOUT) => tracing::debug!(peer = %handle.peer(), "connection without a request closed"),
        }
    }

    async fn serve(self, stream: TcpStream) {
        // Streams write small pieces, which Nagle's algorithm would delay.
        let _ = stream.set_nodelay(true);
        let peer = self.handle.peer();
        let timed = TimedWrites::new(stream, peer, self.metrics.clone());
        let mut builder = auto::Builder::new(StreamTasks::new(peer, self.metrics));
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
        let mut connection = Box::pin(builder.serve_connection_with_upgrades(TokioIo::new(timed), service));
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        // Clients may disconnect at any time, so this is not an error.
        if let Err(error) = served {
            tracing::debug!(%error, "connection failed");
        }
    }
}

/// Wraps `router` so that each request knows its connection and counts as active until its response is sent.
fn track_requests(
    router: Router,
    handle: ConnectionHandle,
) -> impl Service<
    Request<Incoming>,
    Response = Response<BodyInPieces>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<BodyInPieces>, Infallible>> + Send + 'static,
> + Send {
    let inner = TowerToHyperService::new(router);
    service_fn(move |mut request: Request<Incoming>| {
        let guard = handle.begin();
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo::<SocketAddr>(handle.peer()));
        extensions.insert(handle.clone());
        let answer = inner.call(request);
        async move {
            let response = hold_until_sent(answer.await?, guard);
            Ok(in_pieces(response))
        }
    })
}

#[cfg(test)]
mod tests;
