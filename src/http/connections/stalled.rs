//! Clients that take nothing of a response. After [`IDLE_TIMEOUT`] their connection is closed, or their stream of HTTP/2 is
//! reset.
//!
//! A connection takes nothing while its socket is full, which [`TimedWrites`] sees. Of one stream of HTTP/2 a client may take
//! nothing while it takes the others: the socket goes on, and hyper has read a piece of the response that it may not send.
//! [`StreamTasks`] sees that.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::IDLE_TIMEOUT;
use crate::metrics::Metrics;

/// The largest piece of a response over HTTP/2, in bytes. Only between two pieces it shows whether the client takes anything, so a
/// client that takes less in [`IDLE_TIMEOUT`] counts as one that takes nothing.
const PIECE: usize = 4 * 1024;

/// The time that a client has for taking anything.
///
/// The timer is made by the first wait. Later ones only set it to a later time, since a client that reads slowly makes its
/// connection wait again and again.
#[derive(Default)]
struct WriteTimeout {
    timer: Option<Pin<Box<Sleep>>>,
    /// The number of the piece that waits, if one does.
    waiting: Option<u64>,
}

impl WriteTimeout {
    /// Completes when the piece with this number has waited for [`IDLE_TIMEOUT`]. The time begins anew with each other
    /// number. Without one it is never over.
    fn poll_elapsed(&mut self, waiting: Option<u64>, context: &mut Context<'_>) -> Poll<()> {
        let is_known = self.waiting == waiting;
        self.waiting = waiting;
        if waiting.is_none() {
            return Poll::Pending;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(IDLE_TIMEOUT)));
        if !is_known {
            timer.as_mut().reset(Instant::now() + IDLE_TIMEOUT);
        }
        ready!(timer.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(())
    }
}

/// A connection whose writes fail when the client has taken nothing for [`IDLE_TIMEOUT`].
///
/// A socket that is full takes more only when the client has read a good part of what is in it.
pub(super) struct TimedWrites<S> {
    connection: S,
    timeout: WriteTimeout,
    peer: SocketAddr,
    metrics: Metrics,
}

impl<S> TimedWrites<S> {
    pub(super) fn new(connection: S, peer: SocketAddr, metrics: Metrics) -> Self {
        Self {
            connection,
            timeout: WriteTimeout::default(),
            peer,
            metrics,
        }
    }

    /// Returns the outcome of a write, or an error if it has waited for too long.
    fn in_time(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        // One number suffices, since a write that succeeds ends the wait.
        let waiting = written.is_pending().then_some(0);
        if self.timeout.poll_elapsed(waiting, context).is_pending() {
            return written;
        }
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
    /// The pieces that the current task of a stream has read from its response.
    static PIECES: ReadPieces;
}

/// The pieces that a stream of HTTP/2 has read from its response.
#[derive(Default)]
struct ReadPieces {
    count: Cell<u64>,
    /// True while the last of them is not sent.
    is_sending: Cell<bool>,
}

impl ReadPieces {
    /// Notes that the response is asked for a piece, so that the one before is sent.
    fn note_sent(&self) {
        self.is_sending.set(false);
    }

    fn note_read(&self) {
        self.count.set(self.count.get() + 1);
        self.is_sending.set(true);
    }

    /// Returns the number of the piece that waits to be sent, if one does.
    fn waiting(&self) -> Option<u64> {
        self.is_sending.get().then(|| self.count.get())
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

    /// Does the work of a stream until it is done, or a piece waits for too long. A stream whose work is dropped is reset.
    async fn until_stalled<W: Future>(self, work: W) {
        let mut work = pin!(work);
        let mut timeout = WriteTimeout::default();
        let ended = poll_fn(|context| {
            if work.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            ready!(timeout.poll_elapsed(PIECES.with(ReadPieces::waiting), context));
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
        let work = self.clone().until_stalled(work);
        self.tasks.execute(PIECES.scope(ReadPieces::default(), work));
    }
}

/// Has the response to a request over HTTP/2 sent in pieces, which the task of its stream counts.
pub(super) fn in_pieces(response: Response) -> Response {
    response.map(|body| {
        let rest = Bytes::new();
        Body::new(BodyInPieces { body, rest })
    })
}

struct BodyInPieces {
    body: Body,
    /// The rest of the frame that the body has given.
    rest: Bytes,
}

impl HttpBody for BodyInPieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Outside of such a task nothing is counted.
        let _ = PIECES.try_with(ReadPieces::note_sent);
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        let _ = PIECES.try_with(ReadPieces::note_read);
        Poll::Ready(Some(Ok(Frame::data(piece))))
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
