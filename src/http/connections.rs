//! Connections: accepted, served, closed.
//!
//! Like `axum::serve`, but for two things: a client that sends nothing loses its connection after a while, and a connection
//! of HTTP/1 is not read into a buffer of its own only to find out that it is one, so that an open stream takes less memory
//! (`benches/thread_streams.py`).

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client may take for the head of a request, and how long a connection may lie idle between two of them. As
/// much as the web servers that usually stand in front wait (nginx, `keepalive_timeout`).
const SILENCE: Duration = Duration::from_secs(75);

/// How long no connection is accepted when that failed for want of something, such as file descriptors.
const WANT: Duration = Duration::from_secs(1);

/// How a client begins that speaks HTTP/2 without having asked. No method of HTTP/1 begins like that.
const PREFACE: &[u8] = b"PRI";

/// The largest head of a request, in bytes.
const HEAD: usize = 64 * 1024;

/// Serves `router` to whoever connects, until `leaving`; then lets the requests under way finish.
pub async fn serve(listener: TcpListener, router: Router, leaving: CancellationToken) {
    let connections = TaskTracker::new();
    while let Some(accepted) = leaving.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => drop(connections.spawn(converse(stream, router.clone(), leaving.clone()))),
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted for now");
                leaving.run_until_cancelled(sleep(WANT)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Whether a connection broke off before it was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection.
async fn converse(stream: TcpStream, router: Router, leaving: CancellationToken) {
    // Streams write small pieces that must not wait for one another.
    let _ = stream.set_nodelay(true);
    let mut first = [0; PREFACE.len()];
    let peeked = leaving.run_until_cancelled(timeout(SILENCE, stream.peek(&mut first))).await;
    let Some(Ok(Ok(count @ 1..))) = peeked else { return };
    let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(router));
    if PREFACE.starts_with(&first[..count]) {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(SILENCE).max_buf_size(HEAD);
        // For sockets over HTTP/2.
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(SILENCE).enable_connect_protocol();
        let connection = builder.serve_connection_with_upgrades(io, service);
        // Boxed, because it is seldom, and would make room for itself in every task.
        Box::pin(finish(connection, auto::UpgradeableConnection::graceful_shutdown, leaving)).await;
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(SILENCE).max_buf_size(HEAD);
        let connection = builder.serve_connection(io, service).with_upgrades();
        finish(connection, http1::UpgradeableConnection::graceful_shutdown, leaving).await;
    }
}

/// Drives a connection to its end, and asks it to `leave` in good order when everybody does.
async fn finish<C, E>(connection: C, leave: impl FnOnce(Pin<&mut C>), leaving: CancellationToken)
where
    C: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
{
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = leaving.cancelled() => {
            leave(connection.as_mut());
            connection.await
        }
    };
    // Clients come and go as they like.
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke off");
    }
}

#[cfg(test)]
mod tests;
