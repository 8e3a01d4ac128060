//! Connections: accepted, served, closed.
//!
//! Like `axum::serve`, but for three things: there are never more connections than file descriptors for them, a client that
//! sends nothing loses its connection after a while or when another one needs it ([`open`]), and an open stream takes little
//! memory (`benches/thread_streams.py`). A connection of HTTP/1 is not read into a buffer of its own only to
//! find out that it is one, and an answer that lasts takes the whole connection over (`lasting`).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::guarded::guarded;
use lasting::Handover;
pub(super) use lasting::Lasting;
use open::OpenConnections;
pub use open::fitting;
pub(super) use open::{ConnectionHandle, RequestGuard};

mod lasting;
mod open;

/// How long a client may take for the head of a request, and how long a connection may lie idle between two of them. As
/// much as the web servers that usually stand in front wait (nginx, `keepalive_timeout`).
const SILENCE: Duration = Duration::from_secs(75);

/// How long no connection is accepted when that failed for want of something, such as file descriptors.
const WANT: Duration = Duration::from_secs(1);

/// How long a connection that was closed for want of file descriptors may take to give its own back.
const CLOSING: Duration = Duration::from_millis(10);

/// How often it is logged that connections are refused.
const REFUSALS_LOGGED: Duration = Duration::from_secs(60);

/// How a client begins that speaks HTTP/2 without having asked. No method of HTTP/1 begins like that.
const PREFACE: &[u8] = b"PRI";

/// The largest head of a request, in bytes.
const HEAD: usize = 64 * 1024;

/// Serves `router` to whoever connects, `max_connections` at once, until `leaving`; then lets the requests under way finish.
pub async fn serve(listener: TcpListener, router: Router, max_connections: usize, leaving: CancellationToken) {
    let connections = TaskTracker::new();
    let open = OpenConnections::new(max_connections);
    let mut refused = Refusals::default();
    while let Some(accepted) = leaving.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => match open.enter(peer) {
                Some(handle) => {
                    let client = Client {
                        handle,
                        router: router.clone(),
                        leaving: leaving.clone(),
                    };
                    drop(connections.spawn(client.converse(stream)));
                }
                // Closed by dropping it.
                None => refused.count(max_connections),
            },
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted for now");
                let pause = if open.close_one() { CLOSING } else { WANT };
                leaving.run_until_cancelled(sleep(pause)).await;
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
        if self.logged.is_none_or(|logged| logged.elapsed() >= REFUSALS_LOGGED) {
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
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A client that has connected.
struct Client {
    handle: ConnectionHandle,
    router: Router,
    leaving: CancellationToken,
}

impl Client {
    /// Serves the connection, until it is over or has to go for another one.
    async fn converse(self, stream: TcpStream) {
        let handle = self.handle.clone();
        tokio::select! {
            () = self.serve(stream) => {}
            () = handle.closed() => tracing::debug!(peer = %handle.peer(), "a connection was closed in favour of another one"),
        }
    }

    async fn serve(self, stream: TcpStream) {
        // Streams write small pieces that must not wait for one another.
        let _ = stream.set_nodelay(true);
        let mut first = [0; PREFACE.len()];
        let peeked = self
            .leaving
            .run_until_cancelled(timeout(SILENCE, stream.peek(&mut first)))
            .await;
        let Some(Ok(Ok(count @ 1..))) = peeked else { return };
        if PREFACE.starts_with(&first[..count]) {
            // Boxed, because it is seldom, and would make room for itself in every task.
            Box::pin(self.serve_http_2(stream)).await;
        } else if let Some((stream, lasting)) = Box::pin(self.serve_http_1(stream)).await {
            tell(lasting::pour(stream, lasting).await);
        }
    }

    /// Serves a connection of HTTP/2, or one that begins like that.
    async fn serve_http_2(self, stream: TcpStream) {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(SILENCE)
            .max_buf_size(HEAD);
        // For sockets over HTTP/2.
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(SILENCE)
            .enable_connect_protocol();
        let service = tracked(self.router, self.handle);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        finish(
            pin!(connection),
            auto::UpgradeableConnection::graceful_shutdown,
            self.leaving,
        )
        .await;
    }

    /// Serves a connection of HTTP/1 to its end, or to an answer that lasts.
    async fn serve_http_1(self, stream: TcpStream) -> Option<(TcpStream, Response)> {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(SILENCE)
            .max_buf_size(HEAD);
        let handover = Handover::default();
        let service = handover.clone().service(tracked(self.router, self.handle));
        let mut connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let leaving = self.leaving;
        let lasting = tokio::select! {
            biased;
            () = finish(Pin::new(&mut connection), http1::UpgradeableConnection::graceful_shutdown, leaving) => return None,
            lasting = handover.take() => lasting,
        };
        let stream = connection.into_parts()?.io.into_inner();
        // Who has not read the answer before this one would get what is left of it in the wrong place.
        stream
            .try_io(Interest::WRITABLE, || Ok(()))
            .ok()
            .map(|()| (stream, lasting))
    }
}

/// Answers requests by `router`, tells it which connection they came on, and keeps account of them until they are answered
/// to the end.
fn tracked(
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
            Ok(guarded(response, guard))
        }
    })
}

/// Drives a connection to its end, and asks it to `leave` in good order when everybody does.
async fn finish<C, E>(mut connection: Pin<&mut C>, leave: impl FnOnce(Pin<&mut C>), leaving: CancellationToken)
where
    C: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
{
    tell(tokio::select! {
        served = connection.as_mut() => served,
        () = leaving.cancelled() => {
            leave(connection.as_mut());
            connection.await
        }
    });
}

fn tell(served: Result<(), impl std::fmt::Display>) {
    // Clients come and go as they like.
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke off");
    }
}

#[cfg(test)]
mod tests;
