//! Answers that last: what serves a connection of HTTP/1 otherwise keeps room at hand for the next request and for large
//! answers, 16 KiB of it. A stream that goes on until the client leaves needs neither, and there may be thousands of them.
//! So it takes the connection over, and is written piece by piece as it comes.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use axum::body::Body;
use axum::extract::Request;
use axum::http::response::Parts;
use axum::http::{Method, Version};
use axum::response::Response;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::TryStreamExt;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::domain::time::{Clock, SystemClock};

/// Marks an answer, as an extension of it, that goes on until the client leaves.
#[derive(Debug, Clone, Copy)]
pub(in crate::http) struct Lasting;

/// Where an answer waits that is to take its connection over.
#[derive(Clone, Default)]
pub(super) struct Handover(Arc<Mutex<Option<Response>>>);

impl Handover {
    /// Answers requests by `inner`; an answer that lasts is put here instead.
    pub(super) fn service<S>(
        self,
        inner: S,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response,
        Error = Infallible,
        Future = impl Future<Output = Result<Response, Infallible>> + Send + 'static,
    > + Send
    where
        S: Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send + 'static> + Send,
    {
        service_fn(move |request: Request<Incoming>| {
            // To older clients an answer without a length is written otherwise, and `HEAD` gets none.
            let may_last = request.version() == Version::HTTP_11 && request.method() != Method::HEAD;
            let handover = self.clone();
            let answer = inner.call(request);
            async move {
                let response = answer.await?;
                if may_last && response.extensions().get::<Lasting>().is_some() {
                    *handover.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
                    return pending().await;
                }
                Ok(response)
            }
        })
    }

    /// Waits for an answer that lasts. To be polled by the task that serves the connection, and after that: it is this task
    /// that puts the answer here, so nobody has to wake it.
    pub(super) async fn take(&self) -> Response {
        let look = || self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        poll_fn(|_| look().map_or(Poll::Pending, Poll::Ready)).await
    }
}

/// Writes an answer, until it ends or the client leaves; the connection is over then.
///
/// # Errors
/// When the connection breaks off, or the answer does; the client notices that its end is missing.
pub(super) async fn pour(mut stream: TcpStream, response: Response) -> io::Result<()> {
    let (parts, body) = response.into_parts();
    let (mut from, mut to) = stream.split();
    let pouring = async {
        to.write_all_buf(&mut head(&parts)).await?;
        drop(parts);
        pour_body(&mut to, body).await?;
        to.shutdown().await
    };
    let leaving = async {
        // What a client says after its request is left unread: the connection takes no further one.
        match from.read(&mut [0]).await {
            Ok(1..) => pending().await,
            other => other.map(drop),
        }
    };
    tokio::select! {
        poured = pouring => poured,
        left = leaving => left,
    }
}

/// The status and the headers.
fn head(parts: &Parts) -> BytesMut {
    let mut head = BytesMut::with_capacity(512);
    head.put_slice(format!("HTTP/1.1 {}\r\n", parts.status).as_bytes());
    for (name, value) in &parts.headers {
        for text in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.put_slice(text);
        }
    }
    let date = SystemClock.now().to_http();
    head.put_slice(format!("date: {date}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n").as_bytes());
    head
}

/// The body in chunks (RFC 9112, 7.1).
async fn pour_body(to: &mut (impl AsyncWriteExt + Unpin), body: Body) -> io::Result<()> {
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.try_next().await.map_err(io::Error::other)? {
        // An empty chunk would be the last.
        if !piece.is_empty() {
            let size = Bytes::from(format!("{:x}\r\n", piece.len()));
            to.write_all_buf(&mut size.chain(piece).chain(&b"\r\n"[..])).await?;
        }
    }
    to.write_all(b"0\r\n\r\n").await
}
