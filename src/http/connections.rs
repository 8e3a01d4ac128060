//! Connections: accepted, served, closed.
//!
//! Like `axum::serve`, but for two things: a client that sends nothing loses its connection after a while, and an open stream
//! takes little memory (`benches/thread_streams.py`). A connection of HTTP/1 is not read into a buffer of its own only to
//! find out that it is one, and an answer that lasts takes the whole connection over (`lasting`).

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use lasting::Handover;
pub(super) use lasting::Lasting;

mod lasting;

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
    if PREFACE.starts_with(&first[..count]) {
        // Boxed, because it is seldom, and would make room for itself in every task.
        Box::pin(converse_in_2(stream, router, leaving)).await;
    } else if let Some((stream, lasting)) = Box::pin(converse_in_1(stream, router, leaving)).await {
        tell(lasting::pour(stream, lasting).await);
    }
}

/// Serves a connection of HTTP/2, or one that begins like that.
async fn converse_in_2(stream: TcpStream, router: Router, leaving: CancellationToken) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(SILENCE).max_buf_size(HEAD);
    // For sockets over HTTP/2.
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(SILENCE).enable_connect_protocol();
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router));
    finish(pin!(connection), auto::UpgradeableConnection::graceful_shutdown, leaving).await;
}

/// Serves a connection of HTTP/1 to its end, or to an answer that lasts.
async fn converse_in_1(stream: TcpStream, router: Router, leaving: CancellationToken) -> Option<(TcpStream, Response)> {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(SILENCE).max_buf_size(HEAD);
    let handover = Handover::default();
    let mut connection =
        builder.serve_connection(TokioIo::new(stream), handover.clone().service(router)).with_upgrades();
    let lasting = tokio::select! {
        biased;
        () = finish(Pin::new(&mut connection), http1::UpgradeableConnection::graceful_shutdown, leaving) => return None,
        lasting = handover.take() => lasting,
    };
    let stream = connection.into_parts()?.io.into_inner();
    // Who has not read the answer before this one would get what is left of it in the wrong place.
    stream.try_io(Interest::WRITABLE, || Ok(())).ok().map(|()| (stream, lasting))
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
