//! A WebSocket that sends large texts in pieces: as several frames of one message (RFC 6455, 5.4). A socket keeps a buffer as
//! large as its largest frame was, and only between two frames it shows whether the client takes anything.

use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::Request;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, Utf8Bytes};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};

use crate::http::connections::IDLE_TIMEOUT;
use crate::http::error::ApiError;
use crate::metrics::Metrics;

/// The size of the pieces in which messages are read, in bytes. A socket keeps a buffer of that size.
const READ_BUFFER: usize = 8 * 1024;

/// The largest part of a text that is sent as one frame, in bytes.
const FRAME: usize = 64 * 1024;

/// The client has disconnected, or the session must end.
pub(super) struct Disconnected;

/// A request to become a WebSocket.
pub(in crate::http) struct SocketUpgrade {
    /// Makes the response.
    handshake: WebSocketUpgrade,
    /// The connection, once the response is sent.
    connection: OnUpgrade,
}

impl<S: Send + Sync> FromRequestParts<S> for SocketUpgrade {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        // The extractor that checks the request and makes the response would also take the connection, and send each
        // message as one frame. So it gets a connection that never comes.
        let connection = parts.extensions.remove::<OnUpgrade>();
        if connection.is_some() {
            parts.extensions.insert(no_connection());
        }
        let handshake = WebSocketUpgrade::from_request_parts(parts, state)
            .await
            .map_err(|rejection| ApiError::no_web_socket(rejection.status(), &rejection.body_text()))?;
        Ok(Self {
            handshake,
            connection: connection.unwrap_or_else(no_connection),
        })
    }
}

/// Returns the upgrade of a request without a connection, which fails.
fn no_connection() -> OnUpgrade {
    hyper::upgrade::on(Request::new(()))
}

impl SocketUpgrade {
    /// Returns the response that opens the socket, which `session` serves then. The client may send messages of `largest`
    /// bytes. If it takes nothing, it is counted in `metrics`.
    pub(super) fn open<F, E>(self, largest: usize, metrics: Metrics, session: F) -> Response
    where
        F: FnOnce(ClientSocket<TokioIo<Upgraded>>) -> E + Send + 'static,
        E: Future<Output = ()> + Send + 'static,
    {
        let connection = self.connection;
        let serving = async move {
            // Otherwise the client has gone.
            if let Ok(upgraded) = connection.await {
                let socket = ClientSocket::new(TokioIo::new(upgraded), largest, metrics).await;
                Box::pin(session(socket)).await;
            }
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "a session ends when the shutdown begins, and the server does not wait for clients"
        )]
        drop(tokio::spawn(serving));
        self.handshake.on_upgrade(|_| async {})
    }
}

/// A WebSocket to a client.
pub(super) struct ClientSocket<C> {
    inner: WebSocketStream<C>,
    metrics: Metrics,
}

impl<C: AsyncRead + AsyncWrite + Unpin> ClientSocket<C> {
    /// Creates the socket on a connection whose handshake is done. The client may send messages of `largest` bytes.
    async fn new(connection: C, largest: usize, metrics: Metrics) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .max_message_size(Some(largest))
            .max_frame_size(Some(largest));
        Self {
            inner: WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await,
            metrics,
        }
    }

    /// Waits for the next message of the client. There is none after the end.
    pub(super) async fn recv(&mut self) -> Option<tungstenite::Result<Message>> {
        self.inner.next().await
    }

    /// Sends a text, which must be UTF-8.
    ///
    /// # Errors
    /// The client has disconnected, or takes nothing.
    pub(super) async fn send_text(&mut self, text: Bytes) -> Result<(), Disconnected> {
        let mut rest = text;
        let mut kind = Data::Text;
        loop {
            let part = rest.split_to(rest.len().min(FRAME));
            let frame = Frame::message(part, OpCode::Data(kind), rest.is_empty());
            self.send(Message::Frame(frame)).await?;
            if rest.is_empty() {
                return Ok(());
            }
            kind = Data::Continue;
        }
    }

    /// Asks the client for a sign of life.
    ///
    /// # Errors
    /// As [`ClientSocket::send_text`].
    pub(super) async fn ping(&mut self) -> Result<(), Disconnected> {
        self.send(Message::Ping(Bytes::new())).await
    }

    /// Closes the socket. A client that does not receive the reason sees the connection end.
    pub(super) async fn close(&mut self, code: CloseCode, reason: impl Into<Utf8Bytes>) {
        let frame = CloseFrame {
            code,
            reason: reason.into(),
        };
        let _ = self.send(Message::Close(Some(frame))).await;
    }

    async fn send(&mut self, message: Message) -> Result<(), Disconnected> {
        let Ok(sent) = timeout(IDLE_TIMEOUT, self.inner.send(message)).await else {
            self.metrics.traffic().record_stalled();
            tracing::info!("a WebSocket is closed: its client takes nothing");
            return Err(Disconnected);
        };
        sent.map_err(|_| Disconnected)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::domain::time::Timestamp;

    fn metrics() -> Metrics {
        Metrics::new(Timestamp(0), [])
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (ours, _theirs) = duplex(FRAME / 2);
        let metrics = metrics();
        let mut socket = ClientSocket::new(ours, FRAME, metrics.clone()).await;
        let begun = Instant::now();
        assert!(socket.send_text("x".repeat(FRAME).into()).await.is_err());
        assert!(begun.elapsed() >= IDLE_TIMEOUT, "{:?}", begun.elapsed());
        assert!(begun.elapsed() < 2 * IDLE_TIMEOUT, "{:?}", begun.elapsed());
        assert!(metrics.text(None).contains("adjutant_stalled_clients_total 1\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_large_text_slowly_gets_it_in_small_frames() {
        let (ours, mut theirs) = duplex(FRAME / 2);
        let mut socket = ClientSocket::new(ours, FRAME, metrics()).await;
        // The frames end in the middle of characters.
        let text = format!("x{}", "ü".repeat(8 * FRAME));
        let sent = Bytes::from(text.clone());
        let begun = Instant::now();
        let sending = async move { socket.send_text(sent).await.is_ok() };
        let reading = async {
            let mut all = vec![];
            let mut part = vec![0; FRAME / 2];
            loop {
                let count = theirs.read(&mut part).await.expect("the socket is open");
                if count == 0 {
                    return all;
                }
                all.extend_from_slice(&part[..count]);
                sleep(IDLE_TIMEOUT / 4).await;
            }
        };
        let (is_sent, bytes) = tokio::join!(sending, reading);
        assert!(is_sent);
        assert!(begun.elapsed() > 2 * IDLE_TIMEOUT, "{:?}", begun.elapsed());
        let (nothing, _open) = duplex(1);
        let config = WebSocketConfig::default().max_frame_size(Some(FRAME));
        let mut client = WebSocketStream::from_partially_read(nothing, bytes, Role::Client, Some(config)).await;
        let message = client.next().await.expect("a message").expect("small frames");
        assert!(message == Message::text(text), "{} bytes", message.len());
    }
}
