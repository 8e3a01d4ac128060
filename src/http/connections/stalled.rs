//! Clients that take nothing of a response. After [`IDLE_TIMEOUT`] their connection is closed, or their stream of HTTP/2 is
//! reset.
//!
//! A connection takes nothing while its socket is full, which [`TimedWrites`] sees. Of one stream of HTTP/2 a client may take
//! nothing while it takes the others: the socket goes on, and hyper has read a piece of the response that it may not send.
//! [`StreamTasks`] sees that, and each [`BodyPiece`] tells it when the client takes a part.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use bytes::Buf;
use http_body::{Frame, SizeHint};
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::IDLE_TIMEOUT;
use crate::metrics::Metrics;

/// The largest piece of a response over HTTP/2, in bytes: as much as a frame has at most, unless the client allows more. The task
/// of a stream ends before the last piece is taken, so nothing larger is left without a timeout.
const PIECE: usize = 16 * 1024;

/// The time that a client has for taking anything.
///
/// The timer is made by the first wait. Later ones only set it to a later time, since a client that reads slowly makes its
/// connection wait again and again.
#[derive(Default)]
struct WriteTimeout {
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    /// Completes when [`IDLE_TIMEOUT`] is over since the client took something. Without such a time nothing waits for the client.
    fn poll_elapsed(&mut self, taken_at: Option<Instant>, context: &mut Context<'_>) -> Poll<()> {
        let Some(taken_at) = taken_at else {
            return Poll::Pending;
        };
        let end = taken_at + IDLE_TIMEOUT;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        if timer.deadline() != end {
            timer.as_mut().reset(end);
        }
        timer.as_mut().poll(context)
    }
}

/// A connection whose writes fail when the client has taken nothing for [`IDLE_TIMEOUT`].
///
/// A socket that is full takes more only when the client has read a good part of what is in it.
pub(super) struct TimedWrites<S> {
    connection: S,
    timeout: WriteTimeout,
    /// The time at which the socket became full, while it is.
    full_at: Option<Instant>,
    peer: SocketAddr,
    metrics: Metrics,
}

impl<S> TimedWrites<S> {
    pub(super) fn new(connection: S, peer: SocketAddr, metrics: Metrics) -> Self {
        Self {
            connection,
            timeout: WriteTimeout::default(),
            full_at: None,
            peer,
            metrics,
        }
    }

    /// Returns the outcome of a write, or an error if it has waited for too long.
    fn in_time(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.full_at = written.is_pending().then(|| self.full_at.unwrap_or_else(Instant::now));
        if self.timeout.poll_elapsed(self.full_at, context).is_pending() {
            return written;
        }
        self.full_at = None;
        self.metrics.traffic().record_stalled();
        tracing::info!(peer = %self.peer, "a connection is closed: its client takes nothing");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(context, parts);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

tokio::task_local! {
    /// The wait of the stream of HTTP/2 whose work the current task does.
    static WAIT: Arc<PieceWait>;
}

/// The wait of a stream of HTTP/2 until the last piece that it has read from its response is sent.
#[derive(Default)]
struct PieceWait {
    /// While it waits, the time at which it began, or at which the client last took something.
    taken_at: Mutex<Option<Instant>>,
}

impl PieceWait {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.taken_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a piece is read, which is to be sent.
    fn begin(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// Notes that the client takes something of this piece or of one before.
    fn note_taken(&self) {
        if let Some(taken_at) = self.lock().as_mut() {
            *taken_at = Instant::now();
        }
    }

    /// Notes that the response is asked for the next piece, so that the last one is sent.
    fn end(&self) {
        *self.lock() = None;
    }

    /// Returns the time at which the client last took something, if a piece waits to be sent.
    fn taken_at(&self) -> Option<Instant> {
        *self.lock()
    }
}

/// Runs the tasks of the streams of a connection over HTTP/2. A stream whose client has taken nothing for [`IDLE_TIMEOUT`] is
/// reset.
#[derive(Clone)]
pub(super) struct StreamTasks {
    tasks: TokioExecutor,
    peer: SocketAddr,
    metrics: Metrics,
}

impl StreamTasks {
    pub(super) fn new(peer: SocketAddr, metrics: Metrics) -> Self {
        Self {
            tasks: TokioExecutor::new(),
            peer,
            metrics,
        }
    }

    /// Does the work of a stream until it is done, or its client takes nothing of a piece for too long. A stream whose work is
    /// dropped is reset.
    async fn until_stalled<W: Future>(self, work: W, wait: Arc<PieceWait>) {
        let mut work = pin!(work);
        let mut timeout = WriteTimeout::default();
        let ended = poll_fn(|context| {
            if work.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            ready!(timeout.poll_elapsed(wait.taken_at(), context));
            self.metrics.traffic().record_stalled();
            tracing::info!(peer = %self.peer, "a stream is reset: its client takes nothing");
            Poll::Ready(())
        });
        ended.await;
    }
}

impl<W> Executor<W> for StreamTasks
where
    W: Future + Send + 'static,
{
    fn execute(&self, work: W) {
        let wait = Arc::new(PieceWait::default());
        let work = self.clone().until_stalled(work, Arc::clone(&wait));
        self.tasks.execute(WAIT.scope(wait, work));
    }
}

/// Has the response sent by pieces, which over HTTP/2 tell the task of their stream when the client takes a part.
pub(super) fn in_pieces(response: Response) -> Response<BodyInPieces> {
    response.map(|body| {
        let rest = Bytes::new();
        BodyInPieces { body, rest }
    })
}

/// The body of a response as it is sent.
pub(super) struct BodyInPieces {
    body: Body,
    /// The rest of the frame that the body has given.
    rest: Bytes,
}

/// A piece of a response. The connection advances it by the bytes that it writes.
pub(super) struct BodyPiece {
    bytes: Bytes,
    wait: Option<Arc<PieceWait>>,
}

impl Buf for BodyPiece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(wait) = &self.wait {
            wait.note_taken();
        }
    }
}

impl HttpBody for BodyInPieces {
    type Data = BodyPiece;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPiece>, axum::Error>>> {
        // Over HTTP/1 there is none, and the frames of the body are sent as they are.
        let wait = WAIT.try_with(Arc::clone).ok();
        if let Some(wait) = &wait {
            wait.end();
        }
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => {
                    let trailers = trailers.map_data(|bytes| BodyPiece { bytes, wait: None });
                    return Poll::Ready(Some(Ok(trailers)));
                }
            }
        }
        let length = match &wait {
            Some(_) => self.rest.len().min(PIECE),
            None => self.rest.len(),
        };
        let bytes = self.rest.split_to(length);
        if let Some(wait) = &wait {
            wait.begin();
        }
        Poll::Ready(Some(Ok(Frame::data(BodyPiece { bytes, wait }))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::sleep;

    use super::*;
    use crate::domain::time::Timestamp;

    const BUFFER: usize = 1024;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_a_little_now_and_then_keeps_its_connection() {
        let (ours, mut theirs) = duplex(BUFFER);
        let metrics = Metrics::new(Timestamp(0), []);
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut connection = TimedWrites::new(ours, peer, metrics.clone());
        let begun = Instant::now();
        let writing = async {
            connection.write_all(&[b'x'; 4 * BUFFER]).await.expect("it is read");
            // Nobody reads the last one.
            let full = connection.write_all(&[b'x'; 2 * BUFFER]).await;
            full.expect_err("nothing is read").kind()
        };
        let reading = async {
            let mut part = [0; BUFFER / 2];
            for _ in 0..6 {
                sleep(IDLE_TIMEOUT / 2).await;
                theirs.read_exact(&mut part).await.expect("the connection is open");
            }
        };
        let (failed, ()) = tokio::join!(writing, reading);
        assert_eq!(failed, io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= 4 * IDLE_TIMEOUT, "{:?}", begun.elapsed());
        assert!(metrics.text(None).contains("adjutant_stalled_clients_total 1\n"));
    }
}
